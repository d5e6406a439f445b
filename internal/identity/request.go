package identity

import (
	"context"
	"crypto/tls"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/textproto"
	"slices"
	"strings"
	"sync"
)

// normalizeHeader normalises a header name as the most tolerant parser would. It returns lower case with
// "-" for every character that is not a letter or digit. CGI and similar interfaces treat
// X_Tailscale_User and X-Tailscale-User as the same header.
func normalizeHeader(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case 'A' <= r && r <= 'Z':
			return r + 'a' - 'A'
		case 'a' <= r && r <= 'z', '0' <= r && r <= '9':
			return r
		}
		return '-'
	}, name)
}

// SameHeader reports whether the most tolerant parser treats both names as the same header.
func SameHeader(a, b string) bool { return normalizeHeader(a) == normalizeHeader(b) }

// IsIdentityHeader reports whether proxies use a header of that name, in any spelling, to pass a
// caller's identity or address.
func IsIdentityHeader(name string) bool {
	s := normalizeHeader(name)
	families := []string{
		"tailscale-",
		"x-tailscale-",
		"x-webauth-",
		"impersonate-",
		"x-forwarded-",
		"x-remote-",
		"remote-",
		"x-auth-request-",
	}
	return slices.Contains([]string{"forwarded", "x-real-ip", "x-client-ip", "true-client-ip", normalizeHeader(SecretHeader)}, s) ||
		slices.ContainsFunc(families, func(family string) bool { return strings.HasPrefix(s, family) })
}

// Strip removes from h every header that names a caller, in any spelling.
func Strip(h http.Header) {
	maps.DeleteFunc(h, func(name string, _ []string) bool { return IsIdentityHeader(name) })
}

// strip removes such headers and trailers from a request. HTTP/2 may still add trailers later, but
// only announced ones.
func strip(r *http.Request) {
	Strip(r.Header)
	Strip(r.Trailer)
}

// funnelHeader is the header that serve sets for a request from the public internet.
const funnelHeader = "Tailscale-Funnel-Request"

// fromFunnel reports whether any spelling of the Funnel header is present. A forged header only
// harms the client that sends it.
func fromFunnel(r *http.Request) bool {
	for name := range r.Header {
		if SameHeader(name, funnelHeader) {
			return true
		}
	}
	return false
}

// singleHeader returns the value of a header that the trusted peer sets, and whether it is present. It
// rejects a second value, another spelling of the name, and a Connection header that would make an
// earlier hop remove it. In other systems, each of these has mixed the peer's values with the
// client's (ID-07).
func singleHeader(h http.Header, name string) (value string, there bool, err error) {
	for other := range h {
		if other != name && SameHeader(other, name) {
			return "", false, errAmbiguousHeader(name, "also occurs in another spelling")
		}
	}
	for _, list := range h["Connection"] {
		for option := range strings.SplitSeq(list, ",") {
			if SameHeader(textproto.TrimString(option), name) {
				return "", false, errAmbiguousHeader(name, "is listed in the header Connection")
			}
		}
	}
	switch values := h[name]; len(values) {
	case 0:
		return "", false, nil
	case 1:
		return values[0], true, nil
	}
	return "", false, errAmbiguousHeader(name, "occurs more than once")
}

// singleHeaders returns the values of headers that may each occur once; "" for a missing header.
func singleHeaders(h http.Header, names ...string) ([]string, error) {
	values := make([]string, len(names))
	for i, name := range names {
		var err error
		if values[i], _, err = singleHeader(h, name); err != nil {
			return nil, err
		}
	}
	return values, nil
}

// connKey is the context key of a connMark. net/http offers no other way to get from a request to
// its connection. The mark contains no identity.
type connKey struct{}

// A connMark holds the connection of a request.
type connMark struct {
	conn net.Conn
	user func() (uint32, error) // user ID of the process at the other end; the kernel is queried once
}

// ConnContext is the hook of the same name of [http.Server]. Proxy needs it to find a client
// certificate on a wrapped connection. Serve needs it to query the kernel once per connection
// instead of once per request.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, &connMark{conn: c, user: sync.OnceValues(func() (uint32, error) {
		here, there, err := parseEndpoints(c.LocalAddr(), c.RemoteAddr().String())
		if err != nil {
			return 0, err
		}
		return userOf(there, here)
	})})
}

// userAt returns the user ID of the process at the other end of the connection of r.
func userAt(r *http.Request, here, there netip.AddrPort) (uint32, error) {
	if mark, ok := r.Context().Value(connKey{}).(*connMark); ok {
		return mark.user()
	}
	return userOf(there, here)
}

// connectionState returns the TLS state of the connection of r, or nil if it is unknown.
func connectionState(r *http.Request) *tls.ConnectionState {
	if r.TLS != nil {
		return r.TLS
	}
	mark, ok := r.Context().Value(connKey{}).(*connMark)
	if !ok {
		return nil
	}
	for c := mark.conn; c != nil; {
		if t, ok := c.(*tls.Conn); ok {
			return new(t.ConnectionState())
		}
		wrapped, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return nil
		}
		c = wrapped.NetConn()
	}
	return nil
}

// local returns the local address of the request's connection. net/http sets it, so a request
// without one did not come from a listener.
func local(r *http.Request) (net.Addr, bool) {
	at, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return at, ok && at != nil
}

// overSocket reports whether r arrived over a Unix socket.
func overSocket(r *http.Request) bool {
	at, ok := local(r)
	return ok && at.Network() == "unix"
}

// connEndpoints returns the local and the remote address of the TCP connection of r.
func connEndpoints(r *http.Request) (here, there netip.AddrPort, ok bool) {
	at, known := local(r)
	if !known {
		return here, there, false
	}
	here, there, err := parseEndpoints(at, r.RemoteAddr)
	return here, there, err == nil
}

// loopbackEndpoints is connEndpoints for a connection within this machine. It returns an error for
// any other connection.
func loopbackEndpoints(r *http.Request) (here, there netip.AddrPort, err error) {
	here, there, ok := connEndpoints(r)
	if !ok || !here.Addr().IsLoopback() || !there.Addr().IsLoopback() {
		return here, there, errUntrustedPeer("%s is not an address of this machine", r.RemoteAddr)
	}
	return here, there, nil
}

func parseEndpoints(local net.Addr, remote string) (here, there netip.AddrPort, err error) {
	if local.Network() != "tcp" {
		return here, there, net.UnknownNetworkError(local.Network())
	}
	if here, err = netip.ParseAddrPort(local.String()); err != nil {
		return here, there, err
	}
	there, err = netip.ParseAddrPort(remote)
	return unmapEndpoint(here), unmapEndpoint(there), err
}

// unmapEndpoint converts an IPv4-mapped IPv6 address to IPv4.
func unmapEndpoint(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}
