package identity

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"sync"
)

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
