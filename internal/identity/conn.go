package identity

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"sync"
)

// connKey is the context key of a connMark. net/http offers no other way from a
// connection to its requests; nothing in the mark names anybody.
type connKey struct{}

// A connMark is what requests ask of the connection that they came by.
type connMark struct {
	conn net.Conn
	user func() (uint32, error) // whose process the other end is; the kernel is asked once
}

// ConnContext is the hook of that name of [http.Server]. Proxy needs it to see a
// certificate on a listener that wraps its connections; Serve, so that it asks
// the kernel once for each connection and not for each request.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, &connMark{conn: c, user: sync.OnceValues(func() (uint32, error) {
		here, there, err := endsOf(c.LocalAddr(), c.RemoteAddr().String())
		if err != nil {
			return 0, err
		}
		return userOf(there, here)
	})})
}

// userAt returns whose process is at the other end of r's connection.
func userAt(r *http.Request, here, there netip.AddrPort) (uint32, error) {
	if mark, ok := r.Context().Value(connKey{}).(*connMark); ok {
		return mark.user()
	}
	return userOf(there, here)
}

// connectionState is the TLS state of the connection that r came by, nil when it
// is not known.
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

// local is the address at which the request's connection was taken. net/http
// sets it; a request without one came from no listener.
func local(r *http.Request) (net.Addr, bool) {
	at, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return at, ok && at != nil
}

// overSocket reports whether r came in by a Unix socket.
func overSocket(r *http.Request) bool {
	at, ok := local(r)
	return ok && at.Network() == "unix"
}

// ends returns both ends of the TCP connection that r came by.
func ends(r *http.Request) (here, there netip.AddrPort, ok bool) {
	at, known := local(r)
	if !known {
		return here, there, false
	}
	here, there, err := endsOf(at, r.RemoteAddr)
	return here, there, err == nil
}

func endsOf(local net.Addr, remote string) (here, there netip.AddrPort, err error) {
	if local.Network() != "tcp" {
		return here, there, net.UnknownNetworkError(local.Network())
	}
	if here, err = netip.ParseAddrPort(local.String()); err != nil {
		return here, there, err
	}
	there, err = netip.ParseAddrPort(remote)
	return plainEnd(here), plainEnd(there), err
}

// plainEnd writes an IPv4 address that came as an IPv6 one as what it is.
func plainEnd(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}
