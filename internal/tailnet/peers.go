package tailnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"tailscale.com/ipn"

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
		return nil, unavailable(fmt.Errorf("the node is %s", st.BackendState))
	}
	list := make([]Peer, 0, len(st.Peer))
	for _, p := range st.Peer {
		if len(p.TailscaleIPs) == 0 {
			continue
		}
		peer := Peer{Device: access.Device{ID: string(p.ID), Name: strings.ToLower(strings.TrimSuffix(p.DNSName, "."))}, Addrs: p.TailscaleIPs, Shared: p.ShareeNode}
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

// dialTime bounds how long a connection to a peer may take.
const dialTime = 10 * time.Second

// DialPeer connects to a port of the peer with that stable id, and says who is
// there: the tailnet vouches for the other end at this moment, whoever was meant.
// If it is another node by now, the connection is closed without a byte.
func (n *Node) DialPeer(ctx context.Context, id string, port uint16) (net.Conn, access.Caller, error) {
	all, err := n.Peers(ctx)
	if err != nil {
		return nil, access.Caller{}, err
	}
	var addr netip.Addr
	for _, p := range all {
		if p.ID == id {
			addr = p.Addrs[0]
		}
	}
	if !addr.IsValid() {
		return nil, access.Caller{}, nobody(fmt.Errorf("the tailnet has no node %.40q", id))
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	conn, err := n.backend.Load().server.Dial(ctx, "tcp", netip.AddrPortFrom(addr, port).String())
	if err != nil {
		return nil, access.Caller{}, err
	}
	who, err := n.vouch(ctx, conn, id)
	if err != nil {
		return nil, access.Caller{}, errors.Join(err, conn.Close())
	}
	return conn, who, nil
}

// vouch says who is at the other end of a connection that was meant for id.
func (n *Node) vouch(ctx context.Context, conn net.Conn, id string) (access.Caller, error) {
	at := conn.RemoteAddr()
	if at == nil { // it was reset at once
		return access.Caller{}, nobody(errors.New("the connection is closed"))
	}
	who, err := n.whoIs(ctx, at.String())
	if err != nil {
		return access.Caller{}, err
	}
	if who.Device.ID != id {
		return access.Caller{}, problem.New(problem.NoIdentity, "That address belongs to another node by now.", "Look at the tailnet again.").
			Because(fmt.Errorf("%s is %s, not %s", at, who.Device.ID, id))
	}
	return who, nil
}
