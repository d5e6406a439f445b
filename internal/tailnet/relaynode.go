package tailnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
	"tailscale.com/ipn"
	"tailscale.com/tailcfg"
)

// CapabilityVersion is the Tailscale protocol version of this program's nodes.
const CapabilityVersion = int(tailcfg.CurrentCapabilityVersion)

// A stateStore adapts a State to Tailscale's interface.
type stateStore struct{ State }

// ReadState implements [ipn.StateStore].
func (s stateStore) ReadState(id ipn.StateKey) ([]byte, error) {
	b := s.State.ReadState(string(id))
	if len(b) == 0 {
		return nil, ipn.ErrStateNotExist
	}
	return b, nil
}

// WriteState implements [ipn.StateStore].
func (s stateStore) WriteState(id ipn.StateKey, value []byte) error {
	return s.State.WriteState(string(id), value)
}

// publishPeers configures a joined node as a relay or as a host of services, as Config says.
func (w *watcher) publishPeers(ctx context.Context) error {
	if w.cfg.Relay || w.cfg.Services {
		w.b.server.RegisterFallbackTCPHandler(w.hosts.handle)
	}
	if !w.cfg.Relay {
		return nil
	}
	// Without this, service addresses are not routed, because they belong to no node.
	if _, err := w.b.client.EditPrefs(ctx, &ipn.MaskedPrefs{RouteAllSet: true, Prefs: ipn.Prefs{RouteAll: true}}); err != nil {
		return fmt.Errorf("accept the routes of services: %w", err)
	}
	return nil
}

// DialVia connects to a tailnet address by TCP or UDP. Whatever the current netmap contains, the
// packets go to the tailnet or nowhere. Tailscale's Dial would send packets for unknown addresses
// to the machine's network.
func (n *Node) DialVia(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
	b, err := n.running()
	if err != nil {
		return nil, err
	}
	dialer := b.server.Sys().Dialer.Get()
	switch network {
	case "tcp":
		return dialer.NetstackDialTCP(ctx, to)
	case "udp":
		return dialer.NetstackDialUDP(ctx, to)
	}
	return nil, fmt.Errorf("a tailnet does not support the network %q", network)
}

// Lookup resolves a name, such as the name of a service, with the tailnet's resolver. It uses no
// other resolver.
func (n *Node) Lookup(ctx context.Context, name string) ([]netip.Addr, error) {
	b, err := n.running()
	if err != nil {
		return nil, err
	}
	if _, suffix, ok := strings.Cut(n.Names()[0], "."); !ok || !strings.HasSuffix(name, "."+suffix) {
		return nil, fmt.Errorf("%q is not a name of this tailnet", name)
	}
	ctx, cancel := context.WithTimeout(ctx, whoIsLimit)
	defer cancel()
	var out []netip.Addr
	for _, kind := range []string{"A", "AAAA"} {
		answer, _, err := b.client.QueryDNS(ctx, name, kind)
		if err != nil {
			return nil, fmt.Errorf("the tailnet's resolver: %w", err)
		}
		if out, err = appendAddrs(out, answer); err != nil {
			return nil, fmt.Errorf("the tailnet's resolver on %s: %w", name, err)
		}
	}
	return out, nil
}

// appendAddrs appends the addresses in a DNS response. A name that does not exist gives no
// addresses and no error.
func appendAddrs(out []netip.Addr, answer []byte) ([]netip.Addr, error) {
	var p dnsmessage.Parser
	head, err := p.Start(answer)
	if err != nil {
		return nil, err
	}
	if head.RCode == dnsmessage.RCodeNameError {
		return out, nil
	}
	if head.RCode != dnsmessage.RCodeSuccess {
		return nil, fmt.Errorf("it answers %v", head.RCode)
	}
	if err := p.SkipAllQuestions(); err != nil {
		return nil, err
	}
	answers, err := p.AllAnswers()
	for _, r := range answers {
		switch body := r.Body.(type) {
		case *dnsmessage.AResource:
			out = append(out, netip.AddrFrom4(body.A))
		case *dnsmessage.AAAAResource:
			out = append(out, netip.AddrFrom16(body.AAAA))
		}
	}
	return out, err
}

// ListenPacket listens for UDP packets on a port of the node's IPv4 address.
func (n *Node) ListenPacket(ctx context.Context, port uint16) (net.PacketConn, error) {
	b, err := n.wait(ctx)
	if err != nil {
		return nil, err
	}
	for _, a := range n.Status().Addrs {
		if a.Is4() {
			pc, err := b.server.ListenPacket("udp", netip.AddrPortFrom(a, port).String())
			if err != nil {
				return nil, fmt.Errorf("listen on UDP port %d of the tailnet: %w", port, err)
			}
			return pc, nil
		}
	}
	return nil, errors.New("the node has no IPv4 address")
}
