package gateway

import (
	"net/netip"
	"strings"

	gatewayv1alpha1 "github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/kube/conditions"
)

// The networks of tailnet addresses, and the two addresses in them that every node uses as its
// resolver. No service can have the resolver addresses.
var (
	tailnetIPv4  = netip.MustParsePrefix("100.64.0.0/10")
	tailnetIPv6  = netip.MustParsePrefix("fd7a:115c:a1e0::/48")
	resolverIPv4 = netip.MustParseAddr("100.100.100.100")
	resolverIPv6 = netip.MustParseAddr("fd7a:115c:a1e0::53")
)

// isTailnetAddr reports whether a can be the address of a node or service of a tailnet.
// IPv4-mapped IPv6 addresses and addresses with a zone cannot.
func isTailnetAddr(a netip.Addr) bool {
	return (tailnetIPv4.Contains(a) || tailnetIPv6.Contains(a)) && a != resolverIPv4 && a != resolverIPv6 && a.Zone() == ""
}

// validateTarget checks whether a name or an address may be a target in t. If both are empty, target
// accepts. The schema rejects most invalid targets too, but an object may be older than the
// schema.
func (b *builder) validateTarget(fqdn, ip string, t *gatewayv1alpha1.TailscaleTailnet) conditions.Condition {
	switch {
	case ip != "":
		if a, err := netip.ParseAddr(ip); err != nil || !isTailnetAddr(a) {
			return conditions.False(gatewayv1alpha1.ReasonTargetForbidden, "the address is not a tailnet address")
		}
	case fqdn != "":
		suffix := suffixOf(t)
		if suffix == "" {
			return conditions.False(gatewayv1alpha1.ReasonTargetForbidden, "the domain of the tailnet is not known yet, so a name cannot be checked")
		}
		host, ok := strings.CutSuffix(fqdn, "."+suffix)
		if !ok || !IsLabel(host) {
			return conditions.False(gatewayv1alpha1.ReasonTargetForbidden, "the name is not in the tailnet's domain "+suffix)
		}
	}
	return conditions.True(gatewayv1alpha1.ReasonAccepted, "")
}

// suffixOf returns the MagicDNS domain of a tailnet. It is empty if the domain is unknown or not a
// valid domain.
func suffixOf(t *gatewayv1alpha1.TailscaleTailnet) string {
	if t.Status.TailnetInfo == nil {
		return ""
	}
	suffix := t.Status.TailnetInfo.Name
	labels := strings.Split(suffix, ".")
	for _, l := range labels {
		if !IsLabel(l) {
			return ""
		}
	}
	if len(labels) < 2 {
		return ""
	}
	return suffix
}
