package serving

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"sync"
)

// A wholeListener is one whose HTTP/2 connections write a frame by one call to the
// system. net/http hands a frame of 16 KiB over in two pieces, and TLS cuts it into
// two records more: with thousands of them in a list, those calls are most of what
// the list costs.
type wholeListener struct {
	net.Listener // of connections that end in a *tls.Conn over a gather
}

// Accept implements [net.Listener].
func (l wholeListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if below := gathers(c); below != nil {
		return &whole{Conn: c, below: below}, nil
	}
	return c, nil
}

// gathers finds the gather that a connection ends in.
func gathers(c net.Conn) *gather {
	for {
		if g, ok := c.(*gather); ok {
			return g
		}
		in, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return nil
		}
		c = in.NetConn()
	}
}

// A whole connection follows the frames that are written, and lets what is below
// TLS wait while one is not complete. The rest of it always comes: nobody could
// read the frame otherwise.
type whole struct {
	net.Conn
	below *gather
	kind  protocol
	head  [frameHead]byte
	have  int // bytes of head
	left  int // bytes of the frame behind its head
}

type protocol uint8

const (
	unknown protocol = iota
	http1            // is let be
	http2
)

// frameHead is how long the head of a frame is, which begins with the length of
// what follows (RFC 9113, section 4.1).
const frameHead = 9

// Write implements [net.Conn].
func (w *whole) Write(p []byte) (int, error) {
	if w.kind == unknown && len(p) > 0 {
		w.kind = http2 // begins with SETTINGS, of a few bytes
		if bytes.HasPrefix(p, []byte("H")) {
			w.kind = http1
		}
	}
	if w.kind != http2 {
		return w.Conn.Write(p)
	}
	w.follow(p)
	w.below.wait()
	n, err := w.Conn.Write(p)
	if err == nil && w.have > 0 {
		return n, nil
	}
	return n, errors.Join(err, w.below.flush())
}

// follow moves over what is written. Between two frames have is 0.
func (w *whole) follow(p []byte) {
	for len(p) > 0 {
		if w.have < frameHead {
			n := copy(w.head[w.have:], p)
			w.have += n
			p = p[n:]
			if w.have < frameHead {
				return
			}
			w.left = int(binary.BigEndian.Uint32(w.head[:4]) >> 8)
		}
		n := min(w.left, len(p))
		w.left -= n
		p = p[n:]
		if w.left == 0 {
			w.have = 0
		}
	}
}

// CloseWrite lets net/http tell the other side that it has said all.
func (w *whole) CloseWrite() error {
	if half, ok := w.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// NetConn returns the connection inside.
func (w *whole) NetConn() net.Conn { return w.Conn }

// A gatherListener is one whose connections can gather what is written.
type gatherListener struct {
	net.Listener
	pool *sync.Pool // of *[]byte
}

// Accept implements [net.Listener].
func (l gatherListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &gather{Conn: c, pool: l.pool}, nil
}

// A gather is a connection whose writes can be made to wait for each other.
type gather struct {
	net.Conn
	pool *sync.Pool

	mu      sync.Mutex
	waiting bool
	buf     *[]byte // nil: nothing waits
}

// gatherSize has room for a frame in its records.
const gatherSize = 17 << 10

// gatherMost is how much waits at most.
const gatherMost = 64 << 10

// Write implements [net.Conn].
func (g *gather) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.waiting {
		return g.Conn.Write(p)
	}
	if g.buf == nil {
		g.buf = g.pool.Get().(*[]byte)
	}
	*g.buf = append(*g.buf, p...)
	if len(*g.buf) < gatherMost {
		return len(p), nil
	}
	return len(p), g.write()
}

func (g *gather) wait() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = true
}

// flush writes what waited.
func (g *gather) flush() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = false
	return g.write()
}

func (g *gather) write() error {
	if g.buf == nil {
		return nil
	}
	_, err := g.Conn.Write(*g.buf)
	*g.buf = (*g.buf)[:0]
	g.pool.Put(g.buf)
	g.buf = nil
	return err
}
