// Package origin checks for which host a request is meant, and whether a browser sends it for the page of another site (law 4). It
// is a small package because servers in different layers need the same checks. Each server decides which hosts are its own.
package origin

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// Host returns the name or address in the Host header: in lower case, without port, brackets and final dot. To a browser, a page
// whose name was rebound to a server's address is of the same site, so every server must compare the host with its own names.
func Host(r *http.Request) string {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.ToLower(strings.Trim(host, "[]")), ".")
	if addr, err := netip.ParseAddr(host); err == nil {
		host = addr.String()
	}
	return host
}

// IsOwnPort reports whether the Host header has no port, the port of the listener, or one of the others.
func IsOwnPort(r *http.Request, others ...string) bool {
	_, port, err := net.SplitHostPort(r.Host)
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if err != nil || !ok {
		return true
	}
	_, own, err := net.SplitHostPort(local.String())
	return err != nil || own == port || slices.Contains(others, port)
}

// IsClusterHost reports whether host, as returned by Host, is an IP address, "localhost" or a name in the cluster's DNS. No web page
// can own such a host.
func IsClusterHost(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil || host == "localhost" || strings.HasSuffix(host, ".svc") || strings.HasSuffix(host, ".svc.cluster.local")
}

// IsCrossSite reports whether a browser sends the request for a page of another site. [http.CrossOriginProtection] lets GET through
// by design, but in this product a GET can read a Secret or create a token.
func IsCrossSite(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
	default:
		return true
	}
	for _, origin := range r.Header["Origin"] {
		if u, err := url.Parse(origin); err != nil || u.Host == "" || !strings.EqualFold(u.Host, r.Host) {
			return true
		}
	}
	return new(http.CrossOriginProtection).Check(r) != nil
}
