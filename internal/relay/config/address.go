package config

import "net/netip"

// The networks of Tailscale nodes and services, and the reserved ranges in them.
var (
	tailnetIPv4 = netip.MustParsePrefix("100.64.0.0/10")
	tailnetIPv6 = netip.MustParsePrefix("fd7a:115c:a1e0::/48")

	reserved = []netip.Prefix{
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
	if a.Zone() != "" || !tailnetIPv4.Contains(a) && !tailnetIPv6.Contains(a) {
		return false
	}
	for _, p := range reserved {
		if p.Contains(a) {
			return false
		}
	}
	return true
}
