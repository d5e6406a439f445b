package httpapi

import (
	"net"
	"net/http"
	"sync/atomic"
	"testing"
)

// A resetConn connection behaves like a tailnet connection: after its peer has reset it, it has no
// remote address.
type resetConn struct {
	net.Conn
	reset *atomic.Bool
}

func (c resetConn) RemoteAddr() net.Addr {
	if c.reset.Load() {
		return nil
	}
	return c.Conn.RemoteAddr()
}

type resetListener struct {
	net.Listener
	reset []*atomic.Bool // reset flags of the coming connections
}

func (l *resetListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	reset := l.reset[0]
	l.reset = l.reset[1:]
	return resetConn{c, reset}, nil
}

// ID-11, DS-02: A connection that its peer has reset affects no other connection, and its slot is
// released.
func TestAResetConnectionIsCounted(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	later, before, last := new(atomic.Bool), new(atomic.Bool), new(atomic.Bool)
	before.Store(true)
	ln := NewConnLimiter(&resetListener{tcp, []*atomic.Bool{later, before, last}}, 1, 0)
	dial := func() net.Conn {
		c, err := net.Dial("tcp", tcp.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	dial()
	first, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	later.Store(true)
	ln.OnStateChange(first, http.StateClosed)
	ln.OnStateChange(first, http.StateClosed) // a second call has no effect
	dial()                                    // reset before Accept: skipped
	want := dial().LocalAddr().String()
	got, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if got.RemoteAddr().String() != want {
		t.Errorf("accepted %v, want %s", got.RemoteAddr(), want)
	}
	if len(ln.perAddr) != 1 || len(ln.addrOf) != 1 {
		t.Errorf("counted: %v of %d connections", ln.perAddr, len(ln.addrOf))
	}
	ln.OnStateChange(got, http.StateClosed)
	if len(ln.perAddr)+len(ln.addrOf) != 0 {
		t.Errorf("counted when all have ended: %v of %d connections", ln.perAddr, len(ln.addrOf))
	}
}
