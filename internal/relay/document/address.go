package document

import "net/netip"

// The networks of Tailscale nodes and services, and the reserved ranges in them.
var (
	nodes4 = netip.MustParsePrefix("100.64.0.0/10")
	nodes6 = netip.MustParsePrefix("fd7a:115c:a1e0::/48")

	kept = []netip.Prefix{
		netip.MustParsePrefix("100.100.0.0/24"),          // Tailscale's own services: the resolver and the web client
		netip.MustParsePrefix("100.100.100.0/24"),        // includes 100.100.100.100
		netip.MustParsePrefix("100.115.92.0/23"),         // ChromeOS virtual machines
		netip.MustParsePrefix("fd7a:115c:a1e0::53/128"),  // the resolver
		netip.MustParsePrefix("fd7a:115c:a1e0:b1a::/64"), // IPv4 behind subnet routers of other sites ("4via6")
	}
)

// Allowed reports whether an address can belong to a node or a service of a tailnet. Only the
// netmap shows whether it does. IPv4-mapped IPv6 addresses are not allowed, because one address
// must have one spelling.
func Allowed(a netip.Addr) bool {
	if a.Zone() != "" || !nodes4.Contains(a) && !nodes6.Contains(a) {
		return false
	}
	for _, p := range kept {
		if p.Contains(a) {
			return false
		}
	}
	return true
}
