package door

import (
	"net"
	"net/http"
	"net/netip"
	"sync"
)

// bounded is a listener that limits the open connections of one address and of all addresses. It
// closes further connections at once. A tailnet node has one address of each IP family. A WhoIs
// query for each connection would cost more than the connection.
type bounded struct {
	net.Listener
	max, all int

	mu   sync.Mutex
	open map[netip.Addr]int
	// from stores the address that each connection counts against. A tailnet connection that its
	// peer has reset no longer has a remote address.
	from map[net.Conn]netip.Addr
}

func newBounded(ln net.Listener, l Limits) *bounded {
	return &bounded{Listener: ln, max: l.Connections, all: l.AllConnections, open: map[netip.Addr]int{}, from: map[net.Conn]netip.Addr{}}
}

// Accept implements [net.Listener]. It does not wrap the connection, because hear must receive the
// same one.
func (b *bounded) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil || b.take(c) {
			return c, err
		}
		c.Close()
	}
}

// hear is the ConnState hook of net/http. It releases a connection that has ended.
func (b *bounded) hear(c net.Conn, s http.ConnState) {
	if s == http.StateClosed || s == http.StateHijacked {
		b.give(c)
	}
}

func (b *bounded) take(c net.Conn) bool {
	if b.max <= 0 && b.all <= 0 {
		return true
	}
	at := c.RemoteAddr()
	if at == nil {
		return false // reset by the peer before Accept
	}
	from, err := netip.ParseAddrPort(at.String())
	if err != nil {
		return true // not a network address
	}
	addr := from.Addr().Unmap()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.max > 0 && b.open[addr] >= b.max || b.all > 0 && len(b.from) >= b.all {
		return false
	}
	b.open[addr]++
	b.from[c] = addr
	return true
}

func (b *bounded) give(c net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	addr, ok := b.from[c]
	if !ok {
		return
	}
	delete(b.from, c)
	if b.open[addr]--; b.open[addr] <= 0 {
		delete(b.open, addr)
	}
}
