package tailnet

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"tailscale.com/ipn"
	"tailscale.com/ipn/ipnstate"
	"tailscale.com/net/tsaddr"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

// A Peer is another node of the tailnet, as this node's netmap has it. A netmap
// holds only nodes that the policy lets this one talk to, or that talk to it.
type Peer struct {
	access.Device
	Addrs  []netip.Addr
	Tags   []access.Tag
	Shared bool // from another tailnet
	Online bool // control has heard from it
	// Services are the addresses of the tailnet's services that it answers for:
	// single ones that are routed to it and are its own in no other way. A node
	// sees them when it accepts routes, as one with [Config.Relay] does.
	Services []netip.Addr
}

// peers is the netmap's peers at one moment.
type peers struct {
	at   <-chan struct{} // Changed of that moment: open as long as nothing has changed
	list []Peer
}

// Peers returns the peers of now. It asks the backend once for each change of the
// tailnet; the result is shared and must not be changed. An error, a problem with the code
// identity_unavailable, says nothing about any of them.
func (n *Node) Peers(ctx context.Context) ([]Peer, error) {
	changed := n.Changed()
	if known := n.peers.Load(); known != nil && known.at == changed {
		return known.list, nil
	}
	st, err := n.ask(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]Peer, 0, len(st.Peer))
	for _, p := range st.Peer {
		if len(p.TailscaleIPs) == 0 {
			continue
		}
		peer := Peer{Device: access.Device{ID: string(p.ID), Name: strings.ToLower(strings.TrimSuffix(p.DNSName, "."))}, Addrs: p.TailscaleIPs, Shared: p.ShareeNode || p.AltSharerUserID != 0, Online: p.Online}
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
	n.peers.Store(&peers{changed, list})
	return list, nil
}

// ask asks the backend for its status, peers included. The error is a problem
// with the code identity_unavailable; without one the node is Running.
func (n *Node) ask(ctx context.Context) (*ipnstate.Status, error) {
	if st := n.Status(); !st.Running() {
		return nil, unavailable(fmt.Errorf("the node is %s", st.State))
	}
	ctx, cancel := context.WithTimeout(ctx, whoIsLimit)
	defer cancel()
	st, err := n.backend.Load().client.Status(ctx)
	switch {
	case err != nil:
		return nil, unavailable(fmt.Errorf("peers: %w", err))
	case st.BackendState != ipn.Running.String():
		return nil, unavailable(fmt.Errorf("the node is %s and sees %s", st.BackendState, problem.Plural(len(st.Peer), "peer")))
	}
	return st, nil
}

// Dial connects to an address of the tailnet, through the tailnet and nothing
// else. Whoever sends a byte must have asked WhoIs before.
func (n *Node) Dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	if st := n.Status(); !st.Running() {
		return nil, unavailable(fmt.Errorf("the node is %s", st.State))
	}
	return n.backend.Load().server.Dial(ctx, "tcp", to.String())
}

// DialHost connects by TCP to a host and port: to names and addresses of the tailnet
// through it, to others by the network of the machine. It is for peers that prove by
// TLS who they are, as an issuer of tokens does, which may be in either.
func (n *Node) DialHost(ctx context.Context, network, address string) (net.Conn, error) {
	if st := n.Status(); !st.Running() {
		return nil, unavailable(fmt.Errorf("the node is %s", st.State))
	}
	return n.backend.Load().server.Dial(ctx, network, address)
}

// WhoIs says whose an address of the tailnet is at this moment, as Identify does
// of a caller.
func (n *Node) WhoIs(ctx context.Context, at netip.AddrPort) (access.Caller, error) {
	return n.whoIs(ctx, at.String())
}
