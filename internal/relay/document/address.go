package document

import "net/netip"

// What Tailscale gives to nodes and services, and what it keeps for itself in
// there.
var (
	nodes4 = netip.MustParsePrefix("100.64.0.0/10")
	nodes6 = netip.MustParsePrefix("fd7a:115c:a1e0::/48")

	kept = []netip.Prefix{
		netip.MustParsePrefix("100.100.0.0/24"),          // its own services: the resolver and the web client
		netip.MustParsePrefix("100.100.100.0/24"),        // and 100.100.100.100
		netip.MustParsePrefix("100.115.92.0/23"),         // ChromeOS' own machines
		netip.MustParsePrefix("fd7a:115c:a1e0::53/128"),  // the resolver again
		netip.MustParsePrefix("fd7a:115c:a1e0:b1a::/64"), // IPv4 of other sites behind a router ("4via6")
	}
)

// Allowed reports whether an address can belong to a node or a service of a
// tailnet at all. That it does, only the netmap can say. An IPv4 address in the
// form of an IPv6 one is none: it would be two spellings of one thing.
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
