package gateway

import (
	"net/netip"
	"strings"

	gatewayv1alpha1 "github.com/tailplane/tailplane/api/gateway/v1alpha1"
)

// What addresses of a tailnet are within, and the two in there that are the
// tailnet's resolver on every node, and so nobody's service.
var (
	tailnetIPv4  = netip.MustParsePrefix("100.64.0.0/10")
	tailnetIPv6  = netip.MustParsePrefix("fd7a:115c:a1e0::/48")
	resolverIPv4 = netip.MustParseAddr("100.100.100.100")
	resolverIPv6 = netip.MustParseAddr("fd7a:115c:a1e0::53")
)

// IsTailnetAddr says whether an address can be that of a node or service of a
// tailnet. One that is spelt as IPv4 within IPv6, or has a zone, cannot.
func IsTailnetAddr(a netip.Addr) bool {
	return (tailnetIPv4.Contains(a) || tailnetIPv6.Contains(a)) && a != resolverIPv4 && a != resolverIPv6 && a.Zone() == ""
}

// target decides whether a name or an address may be a target in t; without
// either there is nothing to refuse. The schema refuses much of this too; an
// object may be older than the schema.
func (b *builder) target(fqdn, ip string, t *gatewayv1alpha1.TailscaleTailnet) Verdict {
	switch {
	case ip != "":
		if a, err := netip.ParseAddr(ip); err != nil || !IsTailnetAddr(a) {
			return fails(gatewayv1alpha1.ReasonTargetForbidden, "the address is not one of a tailnet")
		}
	case fqdn != "":
		suffix := suffixOf(t)
		if suffix == "" {
			return fails(gatewayv1alpha1.ReasonTargetForbidden, "the domain of the tailnet is not known yet, so that no name can be told to be in it")
		}
		host, ok := strings.CutSuffix(fqdn, "."+suffix)
		if !ok || !IsLabel(host) {
			return fails(gatewayv1alpha1.ReasonTargetForbidden, "the name is not one of the tailnet, whose domain is "+suffix)
		}
	}
	return holds(gatewayv1alpha1.ReasonAccepted)
}

// suffixOf is the MagicDNS domain of a tailnet; empty while it is not known, or
// if it is no domain at all.
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
