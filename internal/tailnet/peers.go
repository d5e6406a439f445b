package tailnet

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"tailscale.com/ipn"
	"tailscale.com/ipn/ipnstate"
	"tailscale.com/net/tsaddr"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

// A Peer is another node in this node's netmap. A netmap contains only nodes that the policy lets
// this node reach, or that may reach this node.
type Peer struct {
	access.Device
	Addrs  []netip.Addr
	Tags   []access.Tag
	Shared bool // shared from another tailnet
	Online bool // connected to the control server
	// Services are the tailnet service addresses that this peer answers for: single addresses
	// routed to the peer that are not the peer's. A node sees them if it accepts routes, as with
	// [Config.Relay].
	Services []netip.Addr
}

// peers is a snapshot of the netmap's peers.
type peers struct {
	at     <-chan struct{} // Changed at the time of the snapshot; open as long as nothing has changed
	list   []Peer
	logins loginOwners
}

// Peers returns the current peers. It queries the backend once per change of the tailnet. The
// result is shared and must not be modified. An error is a problem with the code
// identity_unavailable and gives no information about any peer.
func (n *Node) Peers(ctx context.Context) ([]Peer, error) {
	known, err := n.snapshot(ctx)
	if err != nil {
		return nil, err
	}
	return known.list, nil
}

// snapshot returns the current snapshot, from the last query if nothing has changed since.
func (n *Node) snapshot(ctx context.Context) (*peers, error) {
	if known := n.peers.Load(); known != nil && known.at == n.Changed() {
		return known, nil
	}
	return n.querySnapshot(ctx)
}

func (n *Node) querySnapshot(ctx context.Context) (*peers, error) {
	changed := n.Changed() // taken before the query, so that no change is missed
	st, err := n.queryPeers(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]Peer, 0, len(st.Peer))
	for _, p := range st.Peer {
		if len(p.TailscaleIPs) == 0 {
			continue
		}
		peer := Peer{Device: access.Device{ID: string(p.ID), Name: strings.ToLower(strings.TrimSuffix(p.DNSName, "."))}, Addrs: p.TailscaleIPs, Shared: isShared(p), Online: p.Online}
		if p.AllowedIPs != nil {
			for _, r := range p.AllowedIPs.All() {
				if a := r.Addr(); r.IsSingleIP() && tsaddr.IsTailscaleIP(a) && !slices.Contains(p.TailscaleIPs, a) {
					peer.Services = append(peer.Services, a)
				}
			}
		}
		if p.Tags != nil {
			for _, t := range p.Tags.All() {
				peer.Tags = append(peer.Tags, access.Tag(t))
			}
		}
		list = append(list, peer)
	}
	known := &peers{changed, list, loginOwnersOf(st)}
	n.peers.Store(known)
	return known, nil
}

// running returns the backend of a node that is Running. Otherwise the error is a problem with the
// code identity_unavailable.
func (n *Node) running() (*backend, error) {
	if st := n.Status(); !st.Running() {
		return nil, errUnavailable(fmt.Errorf("the node is %s", st.State))
	}
	return n.backend.Load(), nil
}

// queryPeers returns the backend's status with peers. The error is a problem with the code
// identity_unavailable. If err is nil, the node is Running.
func (n *Node) queryPeers(ctx context.Context) (*ipnstate.Status, error) {
	if _, err := n.running(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, whoIsLimit)
	defer cancel()
	st, err := n.queryStatus(ctx)
	switch {
	case err != nil:
		return nil, errUnavailable(fmt.Errorf("peers: %w", err))
	case st.BackendState != ipn.Running.String():
		return nil, errUnavailable(fmt.Errorf("the node is %s and sees %s", st.BackendState, problem.Plural(len(st.Peer), "peer")))
	}
	if st.Self != nil && st.Self.Online { // of the node itself: it is in its map poll
		n.polled.Store(time.Now().UnixNano())
	}
	return st, nil
}

// MapAge returns for how long the node has had no connection to its control server; 0 if it has one. What the node knows
// of others may be so old. A node that has had none since its start knows only what it stored before. The time is as exact
// as the interval of the queries.
func (n *Node) MapAge(ctx context.Context) (time.Duration, error) {
	st, err := n.queryPeers(ctx)
	switch {
	case err != nil:
		return 0, err
	case st.Self != nil && st.Self.Online:
		return 0, nil
	case n.polled.Load() == 0:
		return math.MaxInt64, nil
	}
	return time.Since(time.Unix(0, n.polled.Load())), nil
}

// Dial connects to a tailnet address, only through the tailnet. The caller must query WhoIs before
// it sends data.
func (n *Node) Dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	return n.DialHost(ctx, "tcp", to.String())
}

// DialHost connects by TCP to a host and port. Tailnet names and addresses go through the tailnet,
// all others through the machine's network. Use it for peers that TLS authenticates and that may be
// in either network, such as a token issuer.
func (n *Node) DialHost(ctx context.Context, network, address string) (net.Conn, error) {
	b, err := n.running()
	if err != nil {
		return nil, err
	}
	return b.server.Dial(ctx, network, address)
}

// WhoIs returns the current owner of a tailnet address, in the form that Identify returns a caller.
func (n *Node) WhoIs(ctx context.Context, at netip.AddrPort) (access.Caller, error) {
	return n.whoIs(ctx, at.String(), "")
}
