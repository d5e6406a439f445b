package gossiphttp

import (
	"net"
	"sync/atomic"
)

// A Meter counts the bytes of connections among members: messages and what HTTP
// adds to them. The zero Meter is ready.
type Meter struct{ in, out atomic.Uint64 }

// Bytes returns how many were read and written so far.
func (m *Meter) Bytes() (in, out uint64) { return m.in.Load(), m.out.Load() }

// Listener returns ln with its connections counted.
func (m *Meter) Listener(ln net.Listener) net.Listener { return meteredListener{ln, m} }

func (m *Meter) conn(c net.Conn) net.Conn { return meteredConn{c, m} }

type meteredListener struct {
	net.Listener
	meter *Meter
}

// Accept implements [net.Listener].
func (l meteredListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.meter.conn(c), nil
}

type meteredConn struct {
	net.Conn
	meter *Meter
}

// Read implements [net.Conn].
func (c meteredConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.meter.in.Add(uint64(n))
	return n, err
}

// Write implements [net.Conn].
func (c meteredConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.meter.out.Add(uint64(n))
	return n, err
}

// NetConn returns the connection inside: what it came through can be told from it.
func (c meteredConn) NetConn() net.Conn { return c.Conn }

// CloseWrite lets a server say that it has said all, before it closes.
func (c meteredConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
