package door

import (
	"net"
	"net/http"
	"net/netip"
	"sync"
)

// bounded is a listener that closes at once what an address opens beyond its
// bound, or all beyond theirs. A node of a tailnet has one address of each family; asking who it is
// for every connection would cost more than the connection.
type bounded struct {
	net.Listener
	max, all int

	mu   sync.Mutex
	open map[netip.Addr]int
	// from is what each connection counts against: one of a tailnet that its peer
	// has reset no longer knows where it came from.
	from map[net.Conn]netip.Addr
}

func newBounded(ln net.Listener, l Limits) *bounded {
	return &bounded{Listener: ln, max: l.Connections, all: l.AllConnections, open: map[netip.Addr]int{}, from: map[net.Conn]netip.Addr{}}
}

// Accept implements [net.Listener]. It does not wrap the connection: hear is told
// of the same one.
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
	if b.max <= 0 && b.all <= 0 {
		return true
	}
	at := c.RemoteAddr()
	if at == nil {
		return false // it was reset before it was taken
	}
	from, err := netip.ParseAddrPort(at.String())
	if err != nil {
		return true // not of a network
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
