package door

import (
	"net"
	"net/http"
	"net/netip"
	"sync"
)

// bounded is a listener that closes at once what an address opens beyond its
// bound. A node of a tailnet has one address of each family; asking who it is
// for every connection would cost more than the connection.
type bounded struct {
	net.Listener
	max int

	mu   sync.Mutex
	open map[netip.Addr]int
}

func newBounded(ln net.Listener, max int) *bounded {
	return &bounded{Listener: ln, max: max, open: map[netip.Addr]int{}}
}

// Accept implements [net.Listener]. It does not wrap the connection: net/http
// must see that it is a *tls.Conn.
func (b *bounded) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil || b.take(c) {
			return c, err
		}
		c.Close()
	}
}

// hear is net/http's ConnState hook: it tells when a connection has ended.
func (b *bounded) hear(c net.Conn, s http.ConnState) {
	if s == http.StateClosed || s == http.StateHijacked {
		b.give(c)
	}
}

func (b *bounded) take(c net.Conn) bool {
	addr, ok := remote(c)
	if !ok || b.max <= 0 {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open[addr] >= b.max {
		return false
	}
	b.open[addr]++
	return true
}

func (b *bounded) give(c net.Conn) {
	addr, ok := remote(c)
	if !ok || b.max <= 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open[addr]--; b.open[addr] <= 0 {
		delete(b.open, addr)
	}
}

// remote returns the address that a connection counts against, if it is of a network.
func remote(c net.Conn) (netip.Addr, bool) {
	from, err := netip.ParseAddrPort(c.RemoteAddr().String())
	return from.Addr().Unmap(), err == nil
}
