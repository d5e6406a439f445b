package httpapi

import (
	"net"
	"net/http"
	"net/netip"
	"sync"
)

// A ConnLimiter is a listener that limits the open connections of one address and of all addresses. It
// closes further connections at once. A tailnet node has one address of each IP family. A WhoIs
// query for each connection would cost more than the connection.
type ConnLimiter struct {
	net.Listener
	max, all int

	mu      sync.Mutex
	perAddr map[netip.Addr]int
	// addrOf stores the address that each connection counts against. A tailnet connection that its
	// peer has reset no longer has a remote address.
	addrOf map[net.Conn]netip.Addr
}

// NewConnLimiter returns ln with at most perAddr open connections of one address, and at most all connections. 0: no limit.
// The server must call [ConnLimiter.OnStateChange].
func NewConnLimiter(ln net.Listener, perAddr, all int) *ConnLimiter {
	return &ConnLimiter{Listener: ln, max: perAddr, all: all, perAddr: map[netip.Addr]int{}, addrOf: map[net.Conn]netip.Addr{}}
}

// Accept implements [net.Listener]. It does not wrap the connection, because OnStateChange must receive the
// same one.
func (b *ConnLimiter) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil || b.acquire(c) {
			return c, err
		}
		c.Close()
	}
}

// OnStateChange is the ConnState hook of net/http. It releases a connection that has ended.
func (b *ConnLimiter) OnStateChange(c net.Conn, s http.ConnState) {
	if s == http.StateClosed || s == http.StateHijacked {
		b.release(c)
	}
}

func (b *ConnLimiter) acquire(c net.Conn) bool {
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
	if b.max > 0 && b.perAddr[addr] >= b.max || b.all > 0 && len(b.addrOf) >= b.all {
		return false
	}
	b.perAddr[addr]++
	b.addrOf[c] = addr
	return true
}

func (b *ConnLimiter) release(c net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	addr, ok := b.addrOf[c]
	if !ok {
		return
	}
	delete(b.addrOf, c)
	if b.perAddr[addr]--; b.perAddr[addr] <= 0 {
		delete(b.perAddr, addr)
	}
}
