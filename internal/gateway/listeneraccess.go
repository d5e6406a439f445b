package gateway

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	gatewayv1alpha1 "github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/kube/conditions"
)

// A listenerAccess holds the access rules that a policy sets for one listener, or for all listeners that
// no policy names.
type listenerAccess struct {
	policy   Name
	restrict bool
	allow    []netip.Prefix
}

// processAccessPolicy processes a policy whose target is a Gateway or one of its listeners.
func (b *builder) processAccessPolicy(p *gatewayv1alpha1.TailscaleRoutePolicy, target Name) PolicyReport {
	object, ok := b.gatewayObjects[target]
	section := p.Spec.TargetRef.SectionName
	if !ok || section != "" && !object.hasListener(section) {
		return refusedPolicy(gatewayv1alpha1.ReasonTargetNotFound, "there is no such Gateway of Envoy Gateway, or listener, in this namespace")
	}
	report := PolicyReport{Accepted: conditions.True(gatewayv1alpha1.ReasonAccepted, ""), ResolvedRefs: conditions.True(gatewayv1alpha1.ReasonResolved, ""), Programmed: conditions.True(gatewayv1alpha1.ReasonProgrammed, "")}
	if p.Spec.Access == nil {
		return report // such a policy exists only to make Envoy Gateway translate again
	}
	r := b.gatewayState(target)
	if other, taken := r.access[section]; taken {
		return refusedPolicy(gatewayv1alpha1.ReasonConflicted, "an older policy already has the listener: "+other.policy.Name)
	}
	a := listenerAccess{policy: nameOf(p), restrict: p.Spec.Access.From == gatewayv1alpha1.AccessTailnet}
	if a.restrict && !object.Private {
		// Envoy trusts the PROXY header of every peer that can connect, so the listener must admit
		// no peer.
		report.Programmed = conditions.False(gatewayv1alpha1.ReasonServiceExposed, "clients other than relays could connect to this Gateway and forge addresses, so all connections are rejected: its Service must be ClusterIP and the chart's NetworkPolicy must be in place")
	} else if a.restrict {
		a.allow = []netip.Prefix{tailnetIPv4, tailnetIPv6}
		if cidrs := p.Spec.Access.CIDRs; len(cidrs) > 0 {
			a.allow = nil
			for _, c := range cidrs {
				prefix, err := netip.ParsePrefix(c)
				if err != nil {
					a.allow = nil
					report.Programmed = conditions.False(gatewayv1alpha1.ReasonFailed, "an address range cannot be parsed, so all connections are rejected")
					break
				}
				a.allow = append(a.allow, prefix.Masked())
			}
			slices.SortFunc(a.allow, netip.Prefix.Compare)
			a.allow = slices.Compact(a.allow)
		}
	}
	r.access[section] = a
	return report
}

// listeners merges the rules of each listener. A listener that only an attachment names also gets
// the access rules for all listeners.
func (r *gatewayState) listeners() []Listener {
	sections := map[string]bool{}
	for s := range r.access {
		sections[s] = true
	}
	for s := range r.proxyProtocol {
		sections[s] = true
	}
	var all []Listener
	for _, s := range slices.Sorted(maps.Keys(sections)) {
		a, ok := r.access[s]
		if !ok {
			a = r.access[""]
		}
		all = append(all, Listener{Section: s, Restrict: a.restrict, Allow: a.allow, ProxyProtocol: a.restrict || r.proxyProtocol[s] || r.proxyProtocol[""]})
	}
	slices.SortFunc(all, func(x, y Listener) int { return cmp.Compare(x.Section, y.Section) })
	return all
}
