package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tailplane/tailplane/internal/relay"
	"github.com/tailplane/tailplane/internal/relay/config"
	"github.com/tailplane/tailplane/internal/tailnet"
	"github.com/tailplane/tailplane/internal/util/broadcast"
	"github.com/tailplane/tailplane/internal/util/retry"
	"github.com/tailplane/tailplane/internal/util/secret"
)

var capVersion = strconv.Itoa(tailnet.CapabilityVersion)

// keyPause is how often a relay that cannot join checks for a new key.
const keyPause = 2 * time.Second

// relayNode is the relay's node across all attempts to join.
type relayNode struct {
	p    *relayProcess
	node atomic.Pointer[tailnet.Node]

	given secret.Text // from configuration files

	mu       sync.Mutex
	peers    []tailnet.Peer // the peers from which last was built
	last     *relay.Netmap
	replaced broadcast.Change // notifies when another node replaces this one
}

// run joins the tailnet and stays in it. If a key is refused, run reports that and waits for the next key.
func (l *relayNode) run(ctx context.Context) error {
	var first config.Config
	select {
	case first = <-l.p.config:
	case <-ctx.Done():
		return nil
	}
	t := first.Tailnet
	if l.p.ConfigDir != "" { // the files that Tailscale's own image reads
		f, err := tailnet.ReadConfigDir(l.p.ConfigDir)
		if err != nil {
			return err
		}
		l.given = f.AuthKey
		l.p.Hostname = cmp.Or(f.Hostname, l.p.Hostname)
		t.ControlURL = cmp.Or(f.ControlURL, t.ControlURL)
	}
	tried, keyless := "", false // keyless: the node cannot join without a key
	for {
		id, key := l.key(ctx)
		if key != "" && key == tried || key == "" && (keyless || !l.p.state.Joined()) {
			if id == "" || keyless {
				id = config.NoKey
			}
			if err := l.p.state.Set(ctx, map[string]string{config.Reissue: id}); err != nil && ctx.Err() == nil {
				l.p.log.Warn("writing the state Secret failed; trying again", "err", err)
			}
			if retry.Sleep(ctx, keyPause) != nil {
				return nil
			}
			continue
		}
		tried, keyless = key, false
		if err := l.p.state.Refresh(ctx, config.DeviceID, config.DeviceFQDN, config.DeviceIPs); err != nil && ctx.Err() == nil {
			l.p.log.Warn("reading the state Secret failed; the relay may not write fields that the operator removed", "err", err)
		}
		err := l.join(ctx, t, key)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, tailnet.ErrRefused), errors.Is(err, errSignedOut):
			l.p.log.Error("the node cannot join; waiting for another key", "err", err)
			keyless = key == ""
		default:
			return err
		}
	}
}

// key returns the auth key of the environment, else that of the configuration files, else that of the config Secret.
func (l *relayNode) key(ctx context.Context) (id, key string) {
	for _, name := range []string{"TS_AUTHKEY", "TS_AUTH_KEY"} {
		if key := os.Getenv(name); key != "" {
			return "", key
		}
	}
	if !l.given.IsZero() {
		return "", l.given.Reveal()
	}
	id, key, err := l.p.client.AuthKey(ctx, l.p.ConfigSecret())
	if err != nil && ctx.Err() == nil {
		l.p.log.Warn("reading the auth key failed", "err", err)
	}
	return id, key // a node that has joined before needs none
}

// errSignedOut ends a node that must sign in again at the control server.
var errSignedOut = errors.New("the node was signed out: its key has expired, or it was removed")

// join runs the node until ctx ends. It returns errSignedOut when the node needs a key that it does not have.
func (l *relayNode) join(ctx context.Context, t config.Tailnet, key string) error {
	host := l.p.Hostname
	if host == "" && t.HostnamePrefix != "" {
		host = t.HostnamePrefix + "-" + l.p.Ordinal
	}
	if host == "" {
		host = l.p.Pod
	}
	node, err := tailnet.New(tailnet.Config{Hostname: host, Tags: t.Tags, ControlURL: t.ControlURL, AuthKey: secret.New(strings.TrimSpace(key)),
		StateDir: l.p.stateDir, State: l.p.state, Relay: true, JoinTimeout: 24 * time.Hour, Log: l.p.log})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	l.node.Store(node)
	l.replaced.Notify()
	go func() {
		for {
			changed := node.Changed()
			if st := node.Status(); st.LoginURL != "" || st.State == "NeedsLogin" && st.ID != "" && l.p.state.Field(config.DeviceID) != "" {
				cancel(errSignedOut)
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	if err := node.Run(ctx); err != nil {
		return err
	}
	return context.Cause(ctx)
}

func (l *relayNode) checkAlive() error {
	if n := l.node.Load(); n == nil || !n.Status().Running() {
		return errors.New("the node is not in its tailnet")
	}
	return nil
}

// joined calls a function of the node, if it is in its tailnet.
func joined[T any](l *relayNode, call func(*tailnet.Node) (T, error)) (result T, err error) {
	if err := l.checkAlive(); err != nil {
		return result, err
	}
	return call(l.node.Load())
}

func (l *relayNode) dial(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
	return joined(l, func(n *tailnet.Node) (net.Conn, error) { return n.DialVia(ctx, network, to) })
}

func (l *relayNode) lookup(ctx context.Context, name string) ([]netip.Addr, error) {
	return joined(l, func(n *tailnet.Node) ([]netip.Addr, error) { return n.Lookup(ctx, name) })
}

// listen listens on a port of the node, or of a Tailscale Service if vip is not "".
func (l *relayNode) listen(ctx context.Context, vip string, port uint16) (net.Listener, error) {
	return joined(l, func(n *tailnet.Node) (net.Listener, error) {
		if vip == "" {
			return n.ListenPlain(ctx, port)
		}
		return n.ListenService(ctx, vip, port)
	})
}

func (l *relayNode) listenPacket(ctx context.Context, port uint16) (net.PacketConn, error) {
	return joined(l, func(n *tailnet.Node) (net.PacketConn, error) { return n.ListenPacket(ctx, port) })
}

func (l *relayNode) issueCertificate(ctx context.Context, name string) (chain, key []byte, err error) {
	if err := l.checkAlive(); err != nil {
		return nil, nil, errors.Join(relay.ErrNotYet, err)
	}
	chain, key, err = l.node.Load().IssueCertificate(ctx, name)
	if errors.Is(err, tailnet.ErrNoName) {
		return nil, nil, relay.ErrNotYet
	}
	return chain, key, err
}

// netmap returns the netmap and rebuilds it only when the peers have changed: Peers returns the same list until then.
func (l *relayNode) netmap() (*relay.Netmap, error) {
	if err := l.checkAlive(); err != nil {
		return nil, err
	}
	n := l.node.Load()
	peers, err := n.Peers(context.Background())
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last != nil && len(peers) == len(l.peers) && (len(peers) == 0 || &peers[0] == &l.peers[0]) {
		return l.last, nil
	}
	hosts := make([]relay.Host, len(peers))
	for i, p := range peers {
		hosts[i] = relay.Host{Name: p.Name, Addrs: p.Addrs, Services: p.Services, Shared: p.Shared, Online: p.Online}
		for _, tag := range p.Tags {
			hosts[i].Tags = append(hosts[i].Tags, string(tag))
		}
	}
	st := n.Status()
	suffix := ""
	if len(st.Names) > 0 {
		_, suffix, _ = strings.Cut(st.Names[0], ".")
	}
	l.peers, l.last = peers, relay.NewNetmap(suffix, st.Addrs, hosts)
	return l.last, nil
}

// changed returns a channel that closes at the node's next change, and one that closes when another node replaces it.
func (l *relayNode) changed() (changed, other <-chan struct{}) {
	other = l.replaced.Next() // before the node is loaded, so that no replacement in between is missed
	if n := l.node.Load(); n != nil {
		changed = n.Changed()
	}
	return changed, other
}

// fields returns the state Secret's fields about the node.
func (l *relayNode) fields() map[string]string {
	n := l.node.Load()
	if n == nil {
		return map[string]string{}
	}
	st := n.Status()
	if !st.Running() || len(st.Names) == 0 {
		return map[string]string{}
	}
	ips, err := json.Marshal(st.Addrs)
	if err != nil {
		panic(fmt.Sprintf("addresses: %v", err))
	}
	return map[string]string{config.DeviceID: st.ID, config.DeviceFQDN: st.Names[0] + ".", config.DeviceIPs: string(ips), config.Reissue: ""}
}
