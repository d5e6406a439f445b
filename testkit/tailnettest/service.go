package tailnettest

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"tailscale.com/net/tsaddr"
	"tailscale.com/tailcfg"

	"github.com/tailplane/tailplane/testkit/tailnettest/tsapi"
)

// vipService is a service with its own addresses. The lock of control guards it. Its fields are replaced and never
// modified.
type vipService struct {
	tsapi.Service
	hosts   map[tailcfg.StableNodeID]bool // nodes that are approved as hosts
	primary tailcfg.StableNodeID          // the host that has the addresses; see primaryLocked
}

// ApproveService lets a tagged node host a service. It creates a missing service, with the given addresses or with
// new ones. Clients see the service if they accept routes. ApproveService reports whether the node exists and is
// tagged.
func (n *Net) ApproveService(id tailcfg.StableNodeID, svc tailcfg.ServiceName, vips ...netip.Addr) bool {
	c := n.control
	ok := false
	c.update(id, func(nd *node) {
		if ok = len(nd.tags) > 0; !ok {
			return
		}
		s := c.services[svc]
		if s == nil {
			s = c.newServiceLocked(svc, netip.Addr{})
		}
		if len(vips) > 0 {
			s.Addrs = slices.Clone(vips)
		}
		s.hosts[id] = true
	})
	return ok
}

// newServiceLocked creates a service. wish, if set, is its IPv4 address.
func (c *control) newServiceLocked(svc tailcfg.ServiceName, wish netip.Addr) *vipService {
	if !wish.IsValid() {
		for taken := true; taken; {
			c.serviceSeq++
			wish = netip.AddrFrom4([4]byte{100, 127, byte(c.serviceSeq >> 8), byte(c.serviceSeq)})
			taken = c.addrTakenLocked(wish)
		}
	}
	s := &vipService{tsapi.Service{Name: svc, Addrs: []netip.Addr{wish, tsaddr.Tailscale4To6(wish)}}, map[tailcfg.StableNodeID]bool{}, ""}
	c.services[svc] = s
	return s
}

func (c *control) addrTakenLocked(a netip.Addr) bool {
	for _, s := range c.services {
		if slices.Contains(s.Addrs, a) {
			return true
		}
	}
	for _, n := range c.nodes {
		if slices.ContainsFunc(n.addrs, func(p netip.Prefix) bool { return p.Addr() == a }) {
			return true
		}
	}
	return false
}

// vipsLocked returns the services that the node hosts.
func (c *control) vipsLocked(n *node) tailcfg.ServiceIPMappings {
	var out tailcfg.ServiceIPMappings
	for name, s := range c.services {
		if s.hosts[n.stable] && len(n.tags) > 0 {
			if out == nil {
				out = tailcfg.ServiceIPMappings{}
			}
			out[name] = s.Addrs
		}
	}
	return out
}

// certNamesLocked returns the names for which the node may have certificates: its own name, and the names of the
// services that it hosts.
func (c *control) certNamesLocked(n *node) []string {
	names := []string{c.fqdn(n)}
	for _, name := range slices.Sorted(maps.Keys(c.vipsLocked(n))) {
		names = append(names, name.WithoutPrefix()+"."+c.suffix)
	}
	return names
}

// primaryLocked returns the approved host to which the service's addresses lead. It keeps a host that is online and
// announces a service, and otherwise moves the addresses to another such host.
func (c *control) primaryLocked(s *vipService) tailcfg.StableNodeID {
	var ready, approved []tailcfg.StableNodeID
	for _, n := range c.sortedLocked() {
		if !s.hosts[n.stable] || len(n.tags) == 0 {
			continue
		}
		approved = append(approved, n.stable)
		if n.streams > 0 && n.hi.ServicesHash != "" {
			ready = append(ready, n.stable)
		}
	}
	switch {
	case slices.Contains(ready, s.primary):
	case len(ready) > 0:
		s.primary = ready[0]
	case !slices.Contains(approved, s.primary) && len(approved) > 0:
		s.primary = approved[0]
	}
	return s.primary
}

// routesLocked returns the addresses of the services that lead to the node.
func (c *control) routesLocked(n *node) []netip.Prefix {
	var out []netip.Prefix
	vips := c.vipsLocked(n)
	for _, name := range slices.Sorted(maps.Keys(vips)) {
		if c.primaryLocked(c.services[name]) != n.stable {
			continue
		}
		for _, a := range vips[name] {
			out = append(out, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return out
}

// recordsLocked returns the DNS records of the services.
func (c *control) recordsLocked() []tailcfg.DNSRecord {
	var out []tailcfg.DNSRecord
	for _, name := range slices.Sorted(maps.Keys(c.services)) {
		for _, a := range c.services[name].Addrs {
			out = append(out, tailcfg.DNSRecord{Name: name.WithoutPrefix() + "." + c.suffix, Value: a.String()})
		}
	}
	return out
}

// Services, PutService, DeleteService and ApproveHost implement [tsapi.Tailnet] for services.
func (c *control) Services() []tsapi.Service {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []tsapi.Service
	for _, name := range slices.Sorted(maps.Keys(c.services)) {
		out = append(out, c.services[name].Service)
	}
	return out
}

func (c *control) PutService(want tsapi.Service) (tsapi.Service, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.services[want.Name]
	if s != nil && !slices.Equal(want.Addrs, s.Addrs) {
		return tsapi.Service{}, errors.New("addrs must be the service's current ones")
	}
	if s == nil {
		var wish netip.Addr
		if len(want.Addrs) > 0 {
			wish = want.Addrs[0]
			if !wish.Is4() || len(want.Addrs) > 1 {
				return tsapi.Service{}, fmt.Errorf("a new service can request one IPv4 address, not %v", want.Addrs)
			}
			if !tsaddr.CGNATRange().Contains(wish) || c.addrTakenLocked(wish) {
				return tsapi.Service{}, fmt.Errorf("address %s is not available", wish)
			}
		}
		s = c.newServiceLocked(want.Name, wish)
	}
	want.Addrs = s.Addrs
	s.Service = want
	c.bumpLocked()
	return want, nil
}

func (c *control) DeleteService(name tailcfg.ServiceName) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.services[name] == nil {
		return false
	}
	delete(c.services, name)
	c.bumpLocked()
	return true
}

func (c *control) ApproveHost(name tailcfg.ServiceName, host tailcfg.StableNodeID, approved bool) bool {
	ok := false
	c.update(host, func(n *node) {
		s := c.services[name]
		if ok = s != nil && len(n.tags) > 0; !ok {
			return
		}
		if approved {
			s.hosts[host] = true
		} else {
			delete(s.hosts, host)
		}
	})
	return ok
}

func (c *control) Hosts(name tailcfg.ServiceName) []tailcfg.StableNodeID {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.services[name]; s != nil {
		return slices.Sorted(maps.Keys(s.hosts))
	}
	return nil
}

// ServiceHost returns the host to which the addresses of a service lead now, or "" if no node may host it.
func (n *Net) ServiceHost(name tailcfg.ServiceName) tailcfg.StableNodeID {
	n.control.mu.Lock()
	defer n.control.mu.Unlock()
	if s := n.control.services[name]; s != nil {
		return n.control.primaryLocked(s)
	}
	return ""
}
