package tailnettest

import (
	"maps"
	"net/netip"
	"slices"

	"tailscale.com/tailcfg"
)

// ApproveService gives a service its virtual addresses and lets the node, which
// must be tagged, answer for it; a client sees it once it accepts routes. It
// reports whether the node exists and is tagged.
func (n *Net) ApproveService(id tailcfg.StableNodeID, svc tailcfg.ServiceName, vips ...netip.Addr) bool {
	ok := false
	n.control.update(id, func(nd *node) {
		if ok = len(nd.tags) > 0; !ok {
			return
		}
		nd.vips = maps.Clone(nd.vips) // map responses may hold the old one
		if nd.vips == nil {
			nd.vips = map[tailcfg.ServiceName][]netip.Addr{}
		}
		nd.vips[svc] = slices.Clone(vips)
	})
	return ok
}

// recordsLocked are the DNS names of the services that some node answers for.
func (c *control) recordsLocked() []tailcfg.DNSRecord {
	var out []tailcfg.DNSRecord
	seen := map[tailcfg.ServiceName]bool{}
	for _, n := range c.sortedLocked() {
		for _, svc := range slices.Sorted(maps.Keys(n.vips)) {
			if seen[svc] {
				continue
			}
			seen[svc] = true
			for _, a := range n.vips[svc] {
				out = append(out, tailcfg.DNSRecord{Name: svc.WithoutPrefix() + "." + c.suffix, Value: a.String()})
			}
		}
	}
	return out
}
