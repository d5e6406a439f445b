// Package proxytest has fakes of what surrounds the access proxy: a tailnet, stored sign-ins, and an API server that
// records what arrives. They refuse what the real ones refuse, with the same problems and errors.
package proxytest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/util/broadcast"
)

// Name is the name of the proxy's node.
const Name = "east-api.example.ts.net"

// A Tailnet is the proxy's node in a tailnet. Its peers are addresses of this machine, such as 127.0.0.2.
type Tailnet struct {
	mu      sync.Mutex
	names   []string
	peers   map[netip.Addr]access.Caller
	down    bool
	queries int
	during  func() // called at the end of each query, before its answer
	changed broadcast.Change
}

// NewTailnet returns a tailnet without peers.
func NewTailnet() *Tailnet {
	return &Tailnet{names: []string{Name, "east-api", "100.64.0.9"}, peers: map[netip.Addr]access.Caller{}}
}

// Person returns the caller for a person on a device, with the capability's rules.
func Person(login, device string, rules ...string) access.Caller {
	c := access.Caller{Login: access.Login(login), DisplayName: login, UserID: "u-" + login, Device: access.Device{ID: "n-" + device, Name: device + ".example.ts.net"},
		Tailnet: "example.com", Via: access.ViaTailnet}
	for _, r := range rules {
		c.Rules = append(c.Rules, []byte(r))
	}
	return c
}

// Set makes c the peer at an address, and reports the change to the node.
func (n *Tailnet) Set(address string, c access.Caller) {
	n.mu.Lock()
	n.peers[netip.MustParseAddr(address)] = c
	n.mu.Unlock()
	n.changed.Notify()
}

// SetSilently is Set without a report, as if the control server had sent none.
func (n *Tailnet) SetSilently(address string, c access.Caller) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.peers[netip.MustParseAddr(address)] = c
}

// Remove removes the peer at an address from the netmap.
func (n *Tailnet) Remove(address string) {
	n.mu.Lock()
	delete(n.peers, netip.MustParseAddr(address))
	n.mu.Unlock()
	n.changed.Notify()
}

// SetDown makes queries fail, or work again.
func (n *Tailnet) SetDown(down bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = down
}

// SetNames replaces the names of the node; none means that it is not connected.
func (n *Tailnet) SetNames(names ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.names = names
}

// During sets a function that each query calls after it has read its answer. nil removes it.
func (n *Tailnet) During(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.during = f
}

// Queries returns the number of queries so far.
func (n *Tailnet) Queries() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.queries
}

// Names implements accessproxy.Tailnet.
func (n *Tailnet) Names() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.names
}

// Changed implements accessproxy.Tailnet.
func (n *Tailnet) Changed() <-chan struct{} { return n.changed.Next() }

type markKey struct{}

// ConnContext implements accessproxy.Tailnet.
func (n *Tailnet) ConnContext(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, markKey{}, true)
}

// Identify implements accessproxy.Tailnet.
func (n *Tailnet) Identify(r *http.Request) (access.Caller, error) {
	if r.Context().Value(markKey{}) == nil {
		return access.Caller{}, problem.New(problem.Internal, "internal error").WithCause(errors.New("the server does not use the node's ConnContext"))
	}
	if _, ok := r.Header["Tailscale-Funnel-Request"]; ok {
		return access.Caller{Via: access.ViaFunnel}, nil
	}
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return access.Caller{}, problem.New(problem.NoIdentity, "The tailnet does not identify you.").WithCause(err)
	}
	return n.WhoIs(r.Context(), at)
}

// WhoIs returns the peer at an address.
func (n *Tailnet) WhoIs(_ context.Context, at netip.AddrPort) (access.Caller, error) {
	n.mu.Lock()
	n.queries++
	c, ok := n.peers[at.Addr()]
	down, during := n.down, n.during
	n.mu.Unlock()
	if during != nil {
		during()
	}
	switch {
	case down:
		return access.Caller{}, problem.New(problem.IdentityUnavailable, "This server cannot get your identity from its tailnet.", "Try again in a moment.").
			WithRetryAfter(time.Second).WithCause(errors.New("the backend is down"))
	case !ok:
		return access.Caller{}, problem.New(problem.NoIdentity, "The tailnet does not identify you.",
			"Connect directly from a device of the tailnet, not through a router or a proxy.").WithCause(fmt.Errorf("WhoIs of %s: no peer", at))
	}
	return c, nil
}
