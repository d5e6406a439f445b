package kubetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
)

// hops are connections through a machine between two others, which may close them at any time.
type hops struct {
	mu  sync.Mutex
	all map[net.Conn]struct{}
}

// Cut closes all open connections, as a hop does whose connections were idle for too long. It returns their number.
func (h *hops) Cut() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := range h.all {
		c.Close()
	}
	return len(h.all)
}

// relay copies in both directions until one side ends.
func (h *hops) relay(near, far net.Conn) {
	h.mu.Lock()
	if h.all == nil {
		h.all = map[net.Conn]struct{}{}
	}
	h.all[near] = struct{}{}
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		delete(h.all, near)
		h.mu.Unlock()
	}()
	ctx, end := context.WithCancel(context.Background())
	defer end()
	context.AfterFunc(ctx, func() {
		near.Close()
		far.Close()
	})
	go func() {
		io.Copy(far, near)
		end()
	}()
	io.Copy(near, far)
}

// A Hop is a listener on loopback whose connections go on to one address, as through a load balancer.
type Hop struct {
	hops
	net.Listener
}

// StartHop starts a hop to an address.
func StartHop(to string) (*Hop, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	h := &Hop{Listener: ln}
	go func() {
		for {
			near, err := ln.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				continue
			}
			go func() {
				far, err := net.Dial("tcp", to)
				if err != nil {
					near.Close()
					return
				}
				h.relay(near, far)
			}()
		}
	}()
	return h, nil
}

// Close stops the hop.
func (h *Hop) Close() error {
	defer h.Cut()
	return h.Listener.Close()
}

// An Egress carries the connections of an API server to its nodes, webhooks and aggregated APIs, as konnectivity does in
// managed clusters. The addresses of Services' endpoints must not be loopback, but only the Egress uses them: Map sends them to
// a listener on loopback.
type Egress struct {
	hops
	listener net.Listener
	config   string            // file
	to       map[string]string // host of an endpoint: address on loopback; mu guards it
}

// StartEgress starts an egress with its files in dir, whose path must be short: a Unix socket is there.
func StartEgress(dir string) (*Egress, error) {
	socket := filepath.Join(dir, "egress.sock")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	e := &Egress{listener: ln, config: filepath.Join(dir, "egress.yaml"), to: map[string]string{}}
	if err := os.WriteFile(e.config, fmt.Appendf(nil, `apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: %s}}}
`, socket), 0o600); err != nil {
		ln.Close()
		return nil, err
	}
	go http.Serve(ln, e)
	return e, nil
}

// Args returns the flags of the API server that uses the egress.
func (e *Egress) Args() []string { return []string{"--egress-selector-config-file=" + e.config} }

// Map sends the connections to a host to an address on loopback.
func (e *Egress) Map(host, address string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.to[host] = address
}

// Close stops the egress.
func (e *Egress) Close() error {
	defer e.Cut()
	return e.listener.Close()
}

// ServeHTTP implements [http.Handler]: CONNECT to an endpoint.
func (e *Egress) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil || r.Method != http.MethodConnect {
		http.Error(w, "only CONNECT to host:port", http.StatusBadRequest)
		return
	}
	address := r.Host
	e.mu.Lock()
	if to, ok := e.to[host]; ok {
		address = to
	}
	e.mu.Unlock()
	if at, err := net.ResolveTCPAddr("tcp", address); err != nil || !at.IP.IsLoopback() {
		http.Error(w, "the address is not on loopback", http.StatusForbidden)
		return
	}
	far, err := (&net.Dialer{}).DialContext(r.Context(), "tcp", address)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	near, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		far.Close()
		return
	}
	if _, err := io.WriteString(near, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
		near.Close()
		far.Close()
		return
	}
	e.relay(near, far)
}
