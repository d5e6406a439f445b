package relay

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/relay/config"
)

// A Host is a node of the tailnet that the relay may connect to.
type Host struct {
	Name     string       // full name in lower case without the final dot
	Addrs    []netip.Addr // of the node itself
	Services []netip.Addr // of services that the node hosts
	Tags     []string
	Shared   bool // shared from another tailnet
	Online   bool // control considers it connected
}

// A Netmap is the set of nodes and services of the tailnet at one moment. It must not be modified.
type Netmap struct {
	Suffix string // of the tailnet's names, such as "tail8eff9.ts.net"

	hosts  []Host
	byName map[string]int
	online map[netip.Addr]bool // has every address that may be dialed
}

// NewNetmap returns a netmap with these hosts. self are the relay's own addresses, which it never
// dials.
func NewNetmap(suffix string, self []netip.Addr, hosts []Host) *Netmap {
	n := &Netmap{Suffix: strings.ToLower(strings.Trim(suffix, ".")), hosts: hosts, byName: map[string]int{}, online: map[netip.Addr]bool{}}
	for i, h := range hosts {
		n.byName[h.Name] = i
		for _, a := range slices.Concat(h.Addrs, h.Services) {
			if config.Allowed(a) && !slices.Contains(self, a) {
				n.online[a] = n.online[a] || h.Online
			}
		}
	}
	return n
}

// errForbidden means that the netmap does not contain an address. Tailscale's library would send
// such a connection to the host's own network.
var errForbidden = errors.New("it is not a node or service of this tailnet")

// errNoTarget means that no node or service matches a name or tags now.
var errNoTarget = errors.New("no node or service of this tailnet matches")

// check returns an error if an address may not be dialed. Every dial must call it last.
func (n *Netmap) check(a netip.Addr) error {
	if _, is := n.online[a]; !is {
		return fmt.Errorf("%s: %w", a, errForbidden)
	}
	return nil
}

// find returns the current addresses of a target, one per node or service. lookup queries the
// tailnet's resolver for names that are not nodes.
func (n *Netmap) find(
	ctx context.Context,
	t config.Target,
	lookup func(context.Context, string) ([]netip.Addr, error),
) ([]netip.Addr, error) {
	switch {
	case t.IP != "":
		a, err := netip.ParseAddr(t.IP)
		if err != nil {
			return nil, err
		}
		return firstAllowed(n, []netip.Addr{a})
	case t.FQDN != "":
		if i, is := n.byName[t.FQDN]; is {
			return firstAllowed(n, n.hosts[i].Addrs)
		}
		if n.Suffix == "" || !strings.HasSuffix(t.FQDN, "."+n.Suffix) {
			return nil, fmt.Errorf("%s: %w", t.FQDN, errNoTarget)
		}
		addrs, err := lookup(ctx, t.FQDN)
		if err != nil {
			return nil, fmt.Errorf("look up %s: %w", t.FQDN, err)
		}
		if len(addrs) == 0 {
			return nil, fmt.Errorf("%s: %w", t.FQDN, errNoTarget)
		}
		return firstAllowed(n, addrs)
	}
	var out []netip.Addr
	for _, h := range n.hosts {
		if h.Shared || slices.ContainsFunc(t.Tags, func(tag string) bool { return !slices.Contains(h.Tags, tag) }) {
			continue
		}
		if a, err := firstAllowed(n, h.Addrs); err == nil {
			out = append(out, a...)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: %w", strings.Join(t.Tags, " and "), errNoTarget)
	}
	return out, nil
}

// firstAllowed returns the first of several addresses of one node that may be dialed.
func firstAllowed(n *Netmap, addrs []netip.Addr) ([]netip.Addr, error) {
	var err error = errNoTarget
	for _, a := range addrs {
		if err = n.check(a); err == nil {
			return []netip.Addr{a}, nil
		}
	}
	return nil, err
}
