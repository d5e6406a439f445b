package gossiphttp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tailplane/tailplane/internal/gossip"
)

// An env is the other end of a connection, on loopback, with the tailnet's data on it.
type env struct {
	client *Client
	peer   gossip.Peer
	whois  atomic.Pointer[string] // the node that has its address
	netmap atomic.Pointer[gossip.Netmap]
	bytes  atomic.Int64 // received
	secret atomic.Bool  // it received the secret
	asked  atomic.Int64 // requests received
	meter  Meter
	answer func(http.ResponseWriter, *http.Request)
}

type countingConn struct {
	net.Conn
	n      *atomic.Int64
	secret *atomic.Bool
}

func (c countingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.n.Add(int64(n))
	if bytes.Contains(p[:n], []byte(secret)) {
		c.secret.Store(true)
	}
	return n, err
}

// secret is a message that the far end must not receive, whatever frames it gets.
const secret = "secret"

type countingListener struct {
	net.Listener
	n      *atomic.Int64
	secret *atomic.Bool
}

func (l countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return countingConn{c, l.n, l.secret}, err
}

func newEnv(t *testing.T) *env {
	f := &env{answer: func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) }}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.asked.Add(1)
		if r.Host != f.hostPort() || r.URL.Path != ExchangePath || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" {
			http.Error(w, "what is this?", http.StatusBadRequest)
			return
		}
		f.answer(w, r)
	}))
	srv.Listener = countingListener{srv.Listener, &f.bytes, &f.secret}
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Start()
	t.Cleanup(srv.Close)
	at := netip.MustParseAddrPort(srv.Listener.Addr().String())
	f.peer = gossip.Peer{ID: "nFarCNTRL", Name: "far.tail1234.ts.net", Addrs: []netip.Addr{at.Addr()}}
	f.newEnvPeer(f.peer.ID)
	f.netmap.Store(gossip.NewNetmap([]gossip.Peer{f.peer}))
	f.client = NewClient(ClientConfig{Port: at.Port(), Meter: &f.meter, Netmap: f.netmap.Load,
		Dial: func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", to.String())
		},
		WhoIs: func(context.Context, netip.AddrPort) (string, error) {
			if who := *f.whois.Load(); who != "" {
				return who, nil
			}
			return "", errors.New("it has no required tag")
		},
	})
	t.Cleanup(f.client.Close)
	return f
}

func (f *env) newEnvPeer(node string) { f.whois.Store(&node) }

func (f *env) hostPort() string {
	return net.JoinHostPort(f.peer.Name, netip.AddrPortFrom(f.peer.Addrs[0], f.client.config.Port).String()[len("127.0.0.1:"):])
}

func (f *env) exchange(t *testing.T, body string) (string, error) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	b, err := f.client.Exchange(ctx, f.peer, []byte(body))
	return string(b), err
}

// TestTransport: a message reaches the intended node or none (DSC-09).
func TestTransport(t *testing.T) {
	f := newEnv(t)
	for range 3 {
		if answer, err := f.exchange(t, "hello"); err != nil || answer != "hello" {
			t.Fatalf("%q, %v", answer, err)
		}
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // until all written bytes are read
		in, out := f.meter.Bytes()
		if in > 0 && out == uint64(f.bytes.Load()) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes were read and %d written, and %d arrived", in, out, f.bytes.Load())
		}
	}
	f.answer = func(w http.ResponseWriter, r *http.Request) { http.Error(w, "no", http.StatusTooManyRequests) }
	if _, err := f.exchange(t, "hello"); err == nil || !strings.Contains(err.Error(), "429") {
		t.Errorf("a refusal: %v", err)
	}
	f.answer = func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, strings.Repeat("x", 10*gossip.MaxMessage))
	}
	if answer, err := f.exchange(t, "hello"); err != nil || len(answer) != gossip.MaxMessage+1 {
		t.Errorf("%d bytes of a huge answer were read, %v", len(answer), err)
	}
}

// TestNotThePeer: an address that now belongs to another node gets no byte (DSC-09, GO-06). Red without the comparison in dial.
func TestNotThePeer(t *testing.T) {
	for name, who := range map[string]string{"another node": "nOtherCNTRL", "no required tag": ""} {
		f := newEnv(t)
		f.newEnvPeer(who)
		switch _, err := f.exchange(t, secret); {
		case err == nil:
			t.Errorf("%s: no error", name)
		case f.bytes.Load() != 0:
			t.Errorf("%s: f.bytes.Load() = %v, want 0", name, f.bytes.Load())
		case f.asked.Load() != 0:
			t.Errorf("%s: f.asked.Load() = %v, want 0", name, f.asked.Load())
		}
	}
}

// TestMovedAddress: an open connection to an address that the node has lost is not used again (DSC-09). Red without the close in ask.
func TestMovedAddress(t *testing.T) {
	f := newEnv(t)
	if _, err := f.exchange(t, "hello"); err != nil {
		t.Fatal(err)
	}
	f.netmap.Store(gossip.NewNetmap([]gossip.Peer{{ID: f.peer.ID, Name: f.peer.Name, Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.2")}}}))
	switch _, err := f.exchange(t, secret); {
	case err == nil:
		t.Error("no error")
	case f.secret.Load():
		t.Errorf("f.secret.Load() is true; %v, %t, %d", err, f.secret.Load(), f.asked.Load())
	case f.asked.Load() != 1:
		t.Errorf("f.asked.Load() = %v, want 1", f.asked.Load())
	}
}

// A pipe is one end of a connection in memory.
type pipe struct {
	net.Conn
	at   netip.AddrPort
	open *atomic.Int64
	once sync.Once
}

func (p *pipe) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(p.at) }

func (p *pipe) Close() error {
	p.once.Do(func() { p.open.Add(-1) })
	return p.Conn.Close()
}

// pipes receives the other ends.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (p pipes) Close() error {
	close(p)
	return nil
}

func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// TestIdleConnections: connections to peers that are no longer queried end, with everything that served them (DSC-15). Red without
// idleTimeout.
func TestIdleConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var peers []gossip.Peer
		for i := range 30 {
			peers = append(peers, gossip.Peer{ID: fmt.Sprintf("n%dCNTRL", i), Name: fmt.Sprintf("tka-%d.tail1234.ts.net", i), Addrs: []netip.Addr{netip.AddrFrom4([4]byte{100, 64, 1, byte(i)})}})
		}
		netmap := gossip.NewNetmap(peers)
		var open atomic.Int64
		arrive := make(pipes)
		srv := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) })}
		srv.Protocols.SetUnencryptedHTTP2(true)
		var serving sync.WaitGroup
		serving.Go(func() { srv.Serve(arrive) })
		client := NewClient(ClientConfig{Port: 7946, Meter: new(Meter), Netmap: func() *gossip.Netmap { return netmap },
			Dial: func(_ context.Context, to netip.AddrPort) (net.Conn, error) {
				near, env := net.Pipe()
				open.Add(1)
				arrive <- env
				return &pipe{Conn: near, at: to, open: &open}, nil
			},
			WhoIs: func(_ context.Context, at netip.AddrPort) (string, error) {
				return peers[at.Addr().As4()[3]].ID, nil
			},
		})
		synctest.Wait()
		before := runtime.NumGoroutine()
		for _, p := range peers {
			for range 2 {
				if answer, err := client.Exchange(t.Context(), p, []byte("hello")); err != nil || string(answer) != "hello" {
					t.Fatalf("%q, %v", answer, err)
				}
			}
		}
		synctest.Wait()
		if n := open.Load(); n != int64(len(peers)) {
			t.Errorf("%d connections to %d peers", n, len(peers))
		}
		time.Sleep(idleTimeout + 10*time.Second)
		synctest.Wait()
		if n, goroutines := open.Load(), runtime.NumGoroutine(); n != 0 || goroutines > before {
			t.Errorf("%d connections are open, with %d goroutines; before there were %d", n, goroutines, before)
		}
		srv.Close()
		serving.Wait()
	})
}
