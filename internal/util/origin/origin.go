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

// Host returns the name or address that the request is for: in lower case, without port, brackets and final dot. To a browser, a page
// whose name was rebound to a server's address is of the same site, so every server must compare the host with its own names.
//
// Host returns "" if two parsers could read different hosts: for a target in absolute form, whose Host header net/http drops; for a
// Host header of HTTP/2 that is repeated or differs from :authority; and for userinfo and for brackets around anything but an IPv6
// address.
func Host(r *http.Request) string {
	if r.URL != nil && (r.URL.Scheme != "" || r.URL.Host != "" || r.URL.User != nil) {
		return ""
	}
	if also := r.Header["Host"]; len(also) > 1 || len(also) == 1 && also[0] != r.Host {
		return ""
	}
	host, inBrackets := r.Host, strings.HasPrefix(r.Host, "[")
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	} else if inBrackets && strings.HasSuffix(host, "]") {
		host = host[1 : len(host)-1]
	}
	if strings.Contains(r.Host, "@") || strings.ContainsAny(host, "[]") {
		return ""
	}
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	addr, err := netip.ParseAddr(host)
	switch {
	case inBrackets && (err != nil || !addr.Is6() || addr.Zone() != ""):
		return ""
	case err == nil:
		return addr.String()
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
