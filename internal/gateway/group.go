package gateway

import (
	"cmp"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	gatewayv1alpha1 "github.com/tailplane/tailplane/api/gateway/v1alpha1"
)

// noGroup is the message both for a group that does not exist and for a group that the namespace
// may not use, so that a tenant cannot tell the two apart.
const noGroup = "there is no such proxy group for this namespace"

// A groupWish is the group configuration that a TailscaleGateway requests for the services that it
// discovers in one tailnet.
type groupWish struct {
	gatewayv1alpha1.GatewayProxyGroup
	gateway Name
}

// A wishKey identifies one tailnet of one TailscaleGateway.
type wishKey struct {
	gateway Name
	uid     types.UID
	tailnet string
}

// wishFor returns the requested group configuration for a service without a proxyGroupRef. For a
// discovered service it comes from the TailscaleGateway that owns the service. ok is false if that
// TailscaleGateway no longer exists or no longer has this tailnet.
func (b *builder) wishFor(s *gatewayv1alpha1.TailscaleService, tailnet string) (groupWish, bool) {
	if s.Labels[gatewayv1alpha1.DiscoveredLabel] != "true" {
		return groupWish{gatewayv1alpha1.GatewayProxyGroup{Mode: gatewayv1alpha1.GroupPerService}, Name{}}, true
	}
	for _, owner := range s.OwnerReferences {
		gateway := Name{s.Namespace, owner.Name}
		if spec, ok := b.wishes[wishKey{gateway, owner.UID, tailnet}]; ok && owner.Kind == "TailscaleGateway" {
			return groupWish{spec, gateway}, true
		}
	}
	return groupWish{}, false
}

// place selects the group that carries a service. If the operator creates that group, place adds
// it to Result.Wanted.
func (b *builder) place(s *gatewayv1alpha1.TailscaleService, report ServiceReport) ServiceReport {
	if ref := s.Spec.ProxyGroupRef; ref != nil {
		return b.placeIn(s, report, Name{cmp.Or(ref.Namespace, s.Namespace), ref.Name})
	}
	w := WantedGroup{Type: s.Spec.Type, Tailnet: report.Tailnet, Replicas: 2}
	if s.Spec.Type == gatewayv1alpha1.Ingress {
		w.Name = ingressGroupName(report.Tailnet)
		return b.placeOwn(s, report, w)
	}
	wish, ok := b.wishFor(s, report.Tailnet)
	if !ok {
		report.ResolvedRefs = fails(gatewayv1alpha1.ReasonTargetNotFound, "the TailscaleGateway that discovered it is gone, or has not this tailnet any more")
		return report
	}
	if wish.Replicas != nil {
		w.Replicas = *wish.Replicas
	}
	switch {
	case wish.Ref != nil:
		return b.placeIn(s, report, Name{cmp.Or(wish.Ref.Namespace, s.Namespace), wish.Ref.Name})
	case wish.Mode == gatewayv1alpha1.GroupShared:
		w.Name = sharedGroupName(wish.gateway.Name, report.Tailnet)
		return b.placeOwn(s, report, w)
	}
	label, _ := identity(s)
	label = cmp.Or(label, s.Name)
	w.Target = targetOf(s)
	for _, taken := range []bool{false, true} {
		w.Name = groupName(label, nameOf(s), taken)
		if holder, held := b.holders[w.Name]; held && holder != nameOf(s) {
			continue
		}
		if b.usable(w) {
			break
		}
	}
	if limit := int(wish.MaxGroups); limit > 0 {
		key := [2]string{wish.gateway.String(), report.Tailnet}
		if b.made[key] >= limit {
			report.Accepted = fails(gatewayv1alpha1.ReasonProxyGroupLimit, fmt.Sprintf("%s has its %d proxy groups for this tailnet", wish.gateway, limit))
			return report
		}
		b.made[key]++
	}
	b.holders[w.Name] = nameOf(s)
	return b.placeOwn(s, report, w)
}

// targetOf returns the target of a group that the operator creates for one service.
func targetOf(s *gatewayv1alpha1.TailscaleService) *gatewayv1alpha1.TailnetTarget {
	t := &gatewayv1alpha1.TailnetTarget{FQDN: s.Spec.Target.FQDN, IP: s.Spec.Target.IP, Tags: s.Spec.Target.Tags}
	if label, _ := identity(s); label != "" {
		t.ServiceName, t.Tags = label, []string{"tag:svc-" + label}
	}
	for _, p := range s.Spec.Ports {
		t.Ports = append(t.Ports, gatewayv1alpha1.TargetPort{Name: p.Name, Protocol: p.Protocol, Port: int32(targetPort(p))})
	}
	return t
}

// placeIn handles a service whose group is named by a reference.
func (b *builder) placeIn(s *gatewayv1alpha1.TailscaleService, report ServiceReport, group Name) ServiceReport {
	g := b.groupOf[group]
	switch accepted := b.result.Groups[group]; {
	case g == nil || !b.selects(g.Spec.Consumers, g.Namespace, s.Namespace):
		report.ResolvedRefs = fails(gatewayv1alpha1.ReasonRefNotPermitted, noGroup)
	case !accepted.Accepted.OK:
		report.ResolvedRefs = fails(gatewayv1alpha1.ReasonRefNotPermitted, "the proxy group cannot be used: "+accepted.Accepted.Reason)
	case g.Spec.Type != s.Spec.Type:
		report.ResolvedRefs = fails(gatewayv1alpha1.ReasonRefNotPermitted, "the proxy group is of the other type")
	case accepted.Tailnet != report.Tailnet:
		report.ResolvedRefs = fails(gatewayv1alpha1.ReasonRefNotPermitted, "the proxy group is in another tailnet")
	default:
		report.Group = group
	}
	return report
}

// usable reports whether the operator can use this group name: no group has it, or the operator
// created that group for the same tailnet and direction.
func (b *builder) usable(w WantedGroup) bool {
	g := b.groupOf[Name{b.o.Namespace, w.Name}]
	return g == nil || b.madeByUs(g) && g.Spec.Type == w.Type && g.Spec.TailnetRef != nil && g.Spec.TailnetRef.Name == w.Tailnet
}

// placeOwn handles a service whose group the operator creates.
func (b *builder) placeOwn(s *gatewayv1alpha1.TailscaleService, report ServiceReport, w WantedGroup) ServiceReport {
	if !b.usable(w) {
		report.Accepted = fails(gatewayv1alpha1.ReasonServiceNameConflict, "somebody else has a proxy group of the name that this service would get")
		return report
	}
	if had, ok := b.result.Wanted[w.Name]; ok {
		had.Target = nil // a group of several services has no single target
		w = had
	}
	w.Services, w.Consumers = append(w.Services, nameOf(s)), append(w.Consumers, s.Namespace)
	b.result.Wanted[w.Name] = w
	report.Group = Name{b.o.Namespace, w.Name}
	return report
}

// remember collects stored facts about groups: the group configuration of each TailscaleGateway,
// and the service that already holds each group name. Because of the latter, a group name does not
// move to another service when an older service appears.
func (b *builder) remember() {
	for _, a := range b.o.Attachments {
		for _, t := range a.Spec.Tailnets {
			b.wishes[wishKey{nameOf(a), a.UID, t.TailnetRef.Name}] = t.ProxyGroup
		}
	}
	for _, s := range b.services {
		if s.Status.Egress == nil || s.Spec.Target == nil {
			continue
		}
		label, _ := identity(s)
		name, ok := strings.CutPrefix(s.Status.Egress.Group, b.o.Namespace+"/")
		if ok && name == groupName(cmp.Or(label, s.Name), nameOf(s), false) {
			if _, held := b.holders[name]; !held {
				b.holders[name] = nameOf(s)
			}
		}
	}
}
