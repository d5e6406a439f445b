package tailnettest

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"tailscale.com/net/tsaddr"
	"tailscale.com/tailcfg"
)

// vipService is a service with addresses of its own. The lock of control guards it;
// its addrs are replaced, never changed.
type vipService struct {
	addrs       []netip.Addr // one IPv4, one IPv6
	comment     string
	annotations map[string]string
	ports       []string
	tags        []string
	hosts       map[tailcfg.StableNodeID]bool // approved to answer for it
}

// ApproveService lets a tagged node answer for a service, and makes the service if
// there is none, with the addresses given or, without any, with new ones. Clients
// see it once they accept routes. It reports whether the node exists and is tagged.
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
			s.addrs = slices.Clone(vips)
		}
		s.hosts[id] = true
	})
	return ok
}

// newServiceLocked makes a service. Its IPv4 address is the wished one, if there is one.
func (c *control) newServiceLocked(svc tailcfg.ServiceName, wish netip.Addr) *vipService {
	if !wish.IsValid() {
		for taken := true; taken; {
			c.serviceSeq++
			wish = netip.AddrFrom4([4]byte{100, 127, byte(c.serviceSeq >> 8), byte(c.serviceSeq)})
			taken = c.addrTakenLocked(wish)
		}
	}
	s := &vipService{addrs: []netip.Addr{wish, tsaddr.Tailscale4To6(wish)}, hosts: map[tailcfg.StableNodeID]bool{}}
	c.services[svc] = s
	return s
}

func (c *control) addrTakenLocked(a netip.Addr) bool {
	for _, s := range c.services {
		if slices.Contains(s.addrs, a) {
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

// vipsLocked returns the services that the node answers for.
func (c *control) vipsLocked(n *node) tailcfg.ServiceIPMappings {
	var out tailcfg.ServiceIPMappings
	for name, s := range c.services {
		if s.hosts[n.stable] && len(n.tags) > 0 {
			if out == nil {
				out = tailcfg.ServiceIPMappings{}
			}
			out[name] = s.addrs
		}
	}
	return out
}

// routesLocked returns the service addresses that the node answers for.
func (c *control) routesLocked(n *node) []netip.Prefix {
	var out []netip.Prefix
	vips := c.vipsLocked(n)
	for _, name := range slices.Sorted(maps.Keys(vips)) {
		for _, a := range vips[name] {
			out = append(out, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return out
}

// recordsLocked are the DNS names of the services.
func (c *control) recordsLocked() []tailcfg.DNSRecord {
	var out []tailcfg.DNSRecord
	for _, name := range slices.Sorted(maps.Keys(c.services)) {
		for _, a := range c.services[name].addrs {
			out = append(out, tailcfg.DNSRecord{Name: name.WithoutPrefix() + "." + c.suffix, Value: a.String()})
		}
	}
	return out
}

// serviceJSON is a service as the API shows and takes it.
type serviceJSON struct {
	Name        string            `json:"name"`
	Addrs       []string          `json:"addrs"`
	Comment     string            `json:"comment,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Ports       []string          `json:"ports,omitempty"`
	Tags        []string          `json:"tags,omitempty"`
}

func (a *API) serviceRoutes() []route {
	var out []route
	for _, word := range []string{"vip-services", "services"} { // both are spelled
		out = append(out,
			route{"GET /tailnet/{tailnet}/" + word, "services", a.listServices},
			route{"GET /tailnet/{tailnet}/" + word + "/{name}", "services", a.getService},
			route{"PUT /tailnet/{tailnet}/" + word + "/{name}", "services", a.putService},
			route{"DELETE /tailnet/{tailnet}/" + word + "/{name}", "services", a.deleteService},
			route{"POST /tailnet/{tailnet}/" + word + "/{name}/device/{id}/approved", "services", a.approveHost})
	}
	return out
}

func (s *vipService) json(name tailcfg.ServiceName) *serviceJSON {
	out := &serviceJSON{Name: string(name), Comment: s.comment, Annotations: s.annotations, Ports: s.ports, Tags: s.tags}
	for _, a := range s.addrs {
		out.Addrs = append(out.Addrs, a.String())
	}
	return out
}

func (a *API) listServices(*call) (any, error) {
	c := a.net.control
	c.mu.Lock()
	defer c.mu.Unlock()
	list := []*serviceJSON{}
	for _, name := range slices.Sorted(maps.Keys(c.services)) {
		list = append(list, c.services[name].json(name))
	}
	return map[string]any{"vipServices": list}, nil
}

func (a *API) getService(r *call) (any, error) {
	c := a.net.control
	c.mu.Lock()
	defer c.mu.Unlock()
	name := tailcfg.ServiceName(r.PathValue("name"))
	s := c.services[name]
	if s == nil {
		return nil, notFound("service")
	}
	return s.json(name), nil
}

// putService creates a service or replaces it in full; there is no ETag.
func (a *API) putService(r *call) (any, error) {
	var req serviceJSON
	if err := r.decode(&req); err != nil {
		return nil, err
	}
	name := tailcfg.ServiceName(r.PathValue("name"))
	if err := name.Validate(); err != nil || req.Name != "" && req.Name != string(name) {
		return nil, badRequest("%q is no name of a service, or not the path's: %v", req.Name, err)
	}
	if err := checkPorts(req.Ports); err != nil {
		return nil, err
	}
	if err := a.mayTag(r.token, req.Tags); err != nil {
		return nil, err
	}
	c := a.net.control
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.services[name]
	if s != nil {
		if !slices.Equal(req.Addrs, s.json(name).Addrs) {
			return nil, badRequest("addrs must be the service's current ones")
		}
	} else {
		var wish netip.Addr
		if len(req.Addrs) > 0 {
			var err error
			if wish, err = netip.ParseAddr(req.Addrs[0]); err != nil || !wish.Is4() || len(req.Addrs) > 1 {
				return nil, badRequest("a new service can wish for one IPv4 address, not for %v", req.Addrs)
			}
			if !tsaddr.CGNATRange().Contains(wish) || c.addrTakenLocked(wish) {
				return nil, badRequest("address %s cannot be had", wish)
			}
		}
		s = c.newServiceLocked(name, wish)
	}
	s.comment, s.annotations, s.ports, s.tags = req.Comment, req.Annotations, req.Ports, req.Tags
	c.bumpLocked()
	return s.json(name), nil
}

func checkPorts(ports []string) error {
	if len(ports) == 1 && ports[0] == "do-not-validate" {
		return nil
	}
	for _, p := range ports {
		num, ok := strings.CutPrefix(p, "tcp:")
		n, err := strconv.ParseUint(num, 10, 16)
		if !ok || err != nil || n == 0 {
			return badRequest("%q is no port of a service: they look like tcp:443", p)
		}
	}
	return nil
}

func (a *API) deleteService(r *call) (any, error) {
	c := a.net.control
	c.mu.Lock()
	defer c.mu.Unlock()
	name := tailcfg.ServiceName(r.PathValue("name"))
	if c.services[name] == nil {
		return nil, notFound("service")
	}
	delete(c.services, name)
	c.bumpLocked()
	return empty(r.w), nil
}

func (a *API) approveHost(r *call) (any, error) {
	var req struct {
		Approved bool `json:"approved"`
	}
	if err := r.decode(&req); err != nil {
		return nil, err
	}
	c := a.net.control
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.services[tailcfg.ServiceName(r.PathValue("name"))]
	n := c.nodeLockedByID(r.PathValue("id"))
	switch {
	case s == nil:
		return nil, notFound("service")
	case n == nil:
		return nil, notFound("device")
	case len(n.tags) == 0:
		return nil, badRequest("%s is not tagged: only a tagged device can be a service's host", fmt.Sprint(n.stable))
	case req.Approved:
		s.hosts[n.stable] = true
	default:
		delete(s.hosts, n.stable)
	}
	c.bumpLocked()
	return empty(r.w), nil
}
