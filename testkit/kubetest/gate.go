//go:build unix

package kubetest

import (
	"net"
	"net/url"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
)

// Gate is a TCP proxy between a client and the API server. It is open until Set changes that.
type Gate struct {
	ln net.Listener
	to string

	mu    sync.Mutex
	shut  bool
	mute  bool // accept connections, but forward no data
	conns map[net.Conn]bool
}

// NewGate returns a gate that closes at the end of the test, and a copy of config that connects through the gate.
func NewGate(t testing.TB, config *rest.Config) (*Gate, *rest.Config) {
	t.Helper()
	u, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &Gate{ln: ln, to: u.Host, conns: map[net.Conn]bool{}}
	done := make(chan struct{})
	go func() { defer close(done); g.serve() }()
	t.Cleanup(func() {
		ln.Close()
		g.cut()
		<-done
	})
	through := rest.CopyConfig(config)
	through.Host = "https://" + ln.Addr().String()
	return g, through
}

func (g *Gate) serve() {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := g.ln.Accept()
		if err != nil {
			return
		}
		g.mu.Lock()
		shut := g.shut
		if !shut {
			g.conns[c] = true
		}
		g.mu.Unlock()
		if shut {
			c.Close()
			continue
		}
		wg.Go(func() { g.carry(c) })
	}
}

func (g *Gate) carry(c net.Conn) {
	defer c.Close()
	server, err := net.Dial("tcp", g.to)
	if err != nil {
		return
	}
	defer server.Close()
	g.mu.Lock()
	if g.conns[c] { // otherwise it was closed in the meantime
		g.conns[server] = true
	} else {
		server.Close()
	}
	g.mu.Unlock()
	var wg sync.WaitGroup
	pour := func(to, from net.Conn) {
		defer to.Close()
		defer from.Close()
		buf := make([]byte, 32<<10)
		for {
			n, err := from.Read(buf)
			if n > 0 && !g.muted() {
				if _, err := to.Write(buf[:n]); err != nil {
					return
				}
			}
			if err != nil {
				return
			}
		}
	}
	wg.Go(func() { pour(server, c) })
	wg.Go(func() { pour(c, server) })
	wg.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.conns, c)
	delete(g.conns, server)
}

func (g *Gate) muted() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mute
}

// Set opens, shuts or mutes the gate. A shut gate closes all connections and accepts no new ones. A muted gate
// accepts connections but forwards no data.
func (g *Gate) Set(shut, mute bool) {
	g.mu.Lock()
	g.shut, g.mute = shut, mute
	g.mu.Unlock()
	if shut {
		g.cut()
	}
}

func (g *Gate) cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for c := range g.conns {
		c.Close()
	}
	clear(g.conns)
}
