package tailnettest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/tailscale/wireguard-go/tun"
	"tailscale.com/ipn/store/mem"
	"tailscale.com/net/tstun"
	"tailscale.com/tailcfg"
	"tailscale.com/tsnet"
	"tailscale.com/types/key"
)

// namedTUN keeps tsnet from opening its wildcard peer API socket. tsnet opens it only without a TUN, and detects
// this by the device's name.
type namedTUN struct{ tun.Device }

func (namedTUN) Name() (string, error) { return "testbed", nil }

// Node returns a node that joins as a node of login, or as a tagged node if tags are given. It is not started: call
// Ready or its own methods. The tailnet's Close ends it. It is ephemeral and keeps its state in memory. For a node
// that keeps its identity over restarts, set Store to nil and Ephemeral to false.
func (n *Net) Node(host, login string, tags ...string) *tsnet.Server {
	n.mu.Lock()
	defer n.mu.Unlock()
	folder := host
	if i := n.hosts[host]; i > 0 {
		folder = fmt.Sprintf("%s.%d", host, i)
	}
	n.hosts[host]++
	s := &tsnet.Server{
		Hostname: host, Dir: filepath.Join(n.dir, folder), ControlURL: n.url,
		Store: new(mem.Store), Ephemeral: true, AdvertiseTags: tags,
		AuthKey:  n.AuthKey(AuthKey{Login: login, Tags: tags}),
		UserLogf: func(string, ...any) {},
	}
	if n.strict {
		s.Tun = namedTUN{tstun.NewFake()}
	}
	n.nodes = append(n.nodes, s)
	return s
}

// ID returns the stable ID of a started node, for Expire, Delete and Share.
func (n *Net) ID(s *tsnet.Server) (tailcfg.StableNodeID, error) {
	k, err := nodeKey(context.Background(), s)
	if err != nil {
		return "", err
	}
	n.control.mu.Lock()
	defer n.control.mu.Unlock()
	if nd := n.control.nodes[k]; nd != nil {
		return nd.stable, nil
	}
	return "", fmt.Errorf("node %s is not in the tailnet", s.Hostname)
}

func nodeKey(ctx context.Context, s *tsnet.Server) (key.NodePublic, error) {
	lc, err := s.LocalClient()
	if err != nil {
		return key.NodePublic{}, err
	}
	st, err := lc.StatusWithoutPeers(ctx)
	if err != nil {
		return key.NodePublic{}, err
	}
	return st.Self.PublicKey, nil
}

// Ready starts the nodes and waits until each can reach each other with the first packet. A node must be running and
// connected to its relay, control must know its home and disco key, and all others must know its home. Up alone is
// not sufficient: a packet that is sent before the peer's home is known is lost, and WireGuard tries again after 5 s.
func (n *Net) Ready(ctx context.Context, nodes ...*tsnet.Server) error {
	keys := make([]key.NodePublic, len(nodes))
	errs := make([]error, len(nodes))
	var wg sync.WaitGroup
	for i, s := range nodes {
		wg.Go(func() {
			st, err := s.Up(ctx)
			if err != nil {
				errs[i] = fmt.Errorf("%s: %w", s.Hostname, err)
				return
			}
			keys[i] = st.Self.PublicKey
			errs[i] = n.reachable(ctx, s.Hostname, func() *node { return n.control.nodes[keys[i]] })
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for i, s := range nodes {
		wg.Go(func() { errs[i] = knows(ctx, s, keys) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// WaitPeer waits until from can reach the node called host (its MagicDNS label, full name or host name) with the
// first packet. The node can be in another process, and can start later.
func (n *Net) WaitPeer(ctx context.Context, from *tsnet.Server, host string) error {
	var k key.NodePublic
	err := n.reachable(ctx, host, func() *node {
		nd := n.control.findLocked(host)
		if nd == nil || nd.streams == 0 {
			return nil
		}
		k = nd.key
		return nd
	})
	if err != nil {
		return err
	}
	return knows(ctx, from, []key.NodePublic{k})
}

// reachable waits until the node is in the tailnet with a known home and disco key, and connected to the relay. find
// runs under control's lock.
func (n *Net) reachable(ctx context.Context, name string, find func() *node) error {
	missing := ""
	err := poll(ctx, func() (bool, error) {
		n.control.mu.Lock()
		nd := find()
		var k key.NodePublic
		switch {
		case nd == nil:
			missing = "it has not joined"
		case nd.homeDERP == 0:
			missing = "the control server has no home relay for it"
		case nd.disco.IsZero():
			missing = "the control server has no disco key for it"
		default:
			missing, k = "", nd.key
		}
		n.control.mu.Unlock()
		if missing == "" && !n.derp.connected(k) {
			missing = "it is not connected to the relay"
		}
		return missing == "", nil
	})
	if err != nil {
		return fmt.Errorf("waiting for node %s: %s: %w", name, missing, err)
	}
	return nil
}

// knows waits until s knows the home of each of the peers, except itself.
func knows(ctx context.Context, s *tsnet.Server, peers []key.NodePublic) error {
	lc, err := s.LocalClient()
	if err != nil {
		return fmt.Errorf("%s: %w", s.Hostname, err)
	}
	unknown := 0
	err = poll(ctx, func() (bool, error) {
		st, err := lc.Status(ctx)
		if err != nil {
			return false, err
		}
		unknown = 0
		for _, k := range peers {
			if k == st.Self.PublicKey {
				continue
			}
			if p := st.Peer[k]; p == nil || p.Relay == "" {
				unknown++
			}
		}
		return unknown == 0, nil
	})
	if err != nil {
		return fmt.Errorf("%s: the homes of %d peers are unknown: %w", s.Hostname, unknown, err)
	}
	return nil
}

// poll calls ok every few milliseconds until it returns true or an error, or the context ends. Neither the relay nor
// a node's Status offers a notification.
func poll(ctx context.Context, ok func() (bool, error)) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		if done, err := ok(); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
