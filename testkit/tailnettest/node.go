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

// namedTUN keeps tsnet from opening its wildcard peer API socket: tsnet opens it
// only when it believes that it runs without a TUN, which it tells by the name.
type namedTUN struct{ tun.Device }

func (namedTUN) Name() (string, error) { return "testbed", nil }

// Node returns a node that will join as login's, or as a tagged node if tags are
// given. It is not started; Ready or its own methods do that, and the tailnet's
// Close ends it. It is ephemeral with its state in memory; for one that keeps its
// identity over restarts set Store to nil and Ephemeral to false.
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

// ID returns the stable ID of a started node, as Expire, Delete and Share want it.
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

// Ready brings the nodes up and waits until each reaches each other with the first
// packet: running, its relay connected, its home and disco key known to control,
// and its home known to all the others. Up alone is not enough: a packet sent
// before the peer's home is known is lost, and WireGuard tries again after 5 s.
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

// WaitPeer waits until from can reach the node called host (its MagicDNS label,
// full name or host name) with the first packet. The node may live in another
// process, and need not have started yet.
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

// reachable waits until the node is in the tailnet, with its home and disco key
// known, and connected to the relay. find runs under control's lock.
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
			missing = "control does not know its home relay"
		case nd.disco.IsZero():
			missing = "control does not know its disco key"
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

// knows waits until s has heard of the home of each of the peers (itself left out).
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

// poll asks every few milliseconds until it is true, fails, or the context ends:
// neither the relay nor a node's Status offers anything to wait on.
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
