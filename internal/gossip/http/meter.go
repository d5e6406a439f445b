package gossiphttp

import (
	"net"
	"sync/atomic"
)

// A Meter counts the bytes on connections among members, including the HTTP overhead. The zero Meter is ready for use.
type Meter struct{ in, out atomic.Uint64 }

// Bytes returns how many bytes were read and written so far.
func (m *Meter) Bytes() (in, out uint64) { return m.in.Load(), m.out.Load() }

// Listener returns ln with the bytes of its connections counted.
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

// NetConn returns the wrapped connection, so that callers can find its origin.
func (c meteredConn) NetConn() net.Conn { return c.Conn }

// CloseWrite closes the writing side, so that the server can end its response before it closes the connection.
func (c meteredConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
