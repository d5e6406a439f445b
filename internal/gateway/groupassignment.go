package gateway

import (
	"cmp"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	gatewayv1alpha1 "github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/kube/conditions"
)

// noGroupMessage is the message both for a group that does not exist and for a group that the namespace
// may not use, so that a tenant cannot tell the two apart.
const noGroupMessage = "there is no such proxy group for this namespace"

// A groupRequest is the group configuration that a TailscaleGateway requests for the services that it
// discovers in one tailnet.
type groupRequest struct {
	gatewayv1alpha1.GatewayProxyGroup
	gateway Name
}

// A groupRequestKey identifies one tailnet of one TailscaleGateway.
type groupRequestKey struct {
	gateway Name
	uid     types.UID
	tailnet string
}

// groupRequestFor returns the requested group configuration for a service without a proxyGroupRef. For a
// discovered service it comes from the TailscaleGateway that owns the service. ok is false if that
// TailscaleGateway no longer exists or no longer has this tailnet.
func (b *builder) groupRequestFor(s *gatewayv1alpha1.TailscaleService, tailnet string) (groupRequest, bool) {
	if s.Labels[gatewayv1alpha1.DiscoveredLabel] != "true" {
		return groupRequest{gatewayv1alpha1.GatewayProxyGroup{Mode: gatewayv1alpha1.GroupPerService}, Name{}}, true
	}
	for _, owner := range s.OwnerReferences {
		gateway := Name{s.Namespace, owner.Name}
		if spec, ok := b.groupRequests[groupRequestKey{gateway, owner.UID, tailnet}]; ok && owner.Kind == "TailscaleGateway" {
			return groupRequest{spec, gateway}, true
		}
	}
	return groupRequest{}, false
}

// assignGroup selects the group that carries a service. If the operator creates that group, assignGroup
// adds it to Result.DesiredGroups.
func (b *builder) assignGroup(s *gatewayv1alpha1.TailscaleService, report ServiceReport) ServiceReport {
	if ref := s.Spec.ProxyGroupRef; ref != nil {
		return b.assignNamedGroup(s, report, Name{cmp.Or(ref.Namespace, s.Namespace), ref.Name})
	}
	w := DesiredGroup{Type: s.Spec.Type, Tailnet: report.Tailnet, Replicas: 2}
	if s.Spec.Type == gatewayv1alpha1.Ingress {
		w.Name = ingressGroupName(report.Tailnet)
		return b.assignCreatedGroup(s, report, w)
	}
	request, ok := b.groupRequestFor(s, report.Tailnet)
	if !ok {
		report.ResolvedRefs = conditions.False(gatewayv1alpha1.ReasonTargetNotFound, "the TailscaleGateway that discovered it does not exist or does not have this tailnet any more")
		return report
	}
	if request.Replicas != nil {
		w.Replicas = *request.Replicas
	}
	switch {
	case request.Ref != nil:
		return b.assignNamedGroup(s, report, Name{cmp.Or(request.Ref.Namespace, s.Namespace), request.Ref.Name})
	case request.Mode == gatewayv1alpha1.GroupShared:
		w.Name = sharedGroupName(request.gateway.Name, report.Tailnet)
		return b.assignCreatedGroup(s, report, w)
	}
	label, _ := labelAndTags(s)
	label = cmp.Or(label, s.Name)
	w.Target = targetOf(s)
	for _, taken := range []bool{false, true} {
		w.Name = groupName(label, nameOf(s), taken)
		if holder, held := b.groupHolders[w.Name]; held && holder != nameOf(s) {
			continue
		}
		if b.groupNameUsable(w) {
			break
		}
	}
	if limit := int(request.MaxGroups); limit > 0 {
		key := [2]string{request.gateway.String(), report.Tailnet}
		if b.createdGroups[key] >= limit {
			report.Accepted = conditions.False(gatewayv1alpha1.ReasonProxyGroupLimit, fmt.Sprintf("%s already has its limit of %d proxy groups for this tailnet", request.gateway, limit))
			return report
		}
		b.createdGroups[key]++
	}
	b.groupHolders[w.Name] = nameOf(s)
	return b.assignCreatedGroup(s, report, w)
}

// targetOf returns the target of a group that the operator creates for one service.
func targetOf(s *gatewayv1alpha1.TailscaleService) *gatewayv1alpha1.TailnetTarget {
	t := &gatewayv1alpha1.TailnetTarget{FQDN: s.Spec.Target.FQDN, IP: s.Spec.Target.IP, Tags: s.Spec.Target.Tags}
	if label, _ := labelAndTags(s); label != "" {
		t.ServiceName, t.Tags = label, []string{"tag:svc-" + label}
	}
	for _, p := range s.Spec.Ports {
		t.Ports = append(t.Ports, gatewayv1alpha1.TargetPort{Name: p.Name, Protocol: p.Protocol, Port: int32(targetPort(p))})
	}
	return t
}

// assignNamedGroup handles a service whose group is named by a reference.
func (b *builder) assignNamedGroup(s *gatewayv1alpha1.TailscaleService, report ServiceReport, group Name) ServiceReport {
	g := b.groupOf[group]
	switch accepted := b.result.Groups[group]; {
	case g == nil || !b.selects(g.Spec.Consumers, g.Namespace, s.Namespace):
		report.ResolvedRefs = conditions.False(gatewayv1alpha1.ReasonRefNotPermitted, noGroupMessage)
	case !accepted.Accepted.IsTrue():
		report.ResolvedRefs = conditions.False(gatewayv1alpha1.ReasonRefNotPermitted, "the proxy group cannot be used: "+accepted.Accepted.Reason)
	case g.Spec.Type != s.Spec.Type:
		report.ResolvedRefs = conditions.False(gatewayv1alpha1.ReasonRefNotPermitted, "the proxy group has the other type")
	case accepted.Tailnet != report.Tailnet:
		report.ResolvedRefs = conditions.False(gatewayv1alpha1.ReasonRefNotPermitted, "the proxy group is in another tailnet")
	default:
		report.Group = group
	}
	return report
}

// groupNameUsable reports whether the operator can use this group name: no group has it, or the operator
// created that group for the same tailnet and direction.
func (b *builder) groupNameUsable(w DesiredGroup) bool {
	g := b.groupOf[Name{b.o.Namespace, w.Name}]
	return g == nil || b.createdByOperator(g) && g.Spec.Type == w.Type && g.Spec.TailnetRef != nil && g.Spec.TailnetRef.Name == w.Tailnet
}

// assignCreatedGroup handles a service whose group the operator creates.
func (b *builder) assignCreatedGroup(s *gatewayv1alpha1.TailscaleService, report ServiceReport, w DesiredGroup) ServiceReport {
	if !b.groupNameUsable(w) {
		report.Accepted = conditions.False(gatewayv1alpha1.ReasonServiceNameConflict, "another owner already has a proxy group with the name that this service would get")
		return report
	}
	if existing, ok := b.result.DesiredGroups[w.Name]; ok {
		existing.Target = nil // a group of several services has no single target
		w = existing
	}
	w.Services, w.Consumers = append(w.Services, nameOf(s)), append(w.Consumers, s.Namespace)
	b.result.DesiredGroups[w.Name] = w
	report.Group = Name{b.o.Namespace, w.Name}
	return report
}

// recordGroups collects stored facts about groups: the group configuration of each TailscaleGateway,
// and the service that already holds each group name. Because of the latter, a group name does not
// move to another service when an older service appears.
func (b *builder) recordGroups() {
	for _, a := range b.o.Attachments {
		for _, t := range a.Spec.Tailnets {
			b.groupRequests[groupRequestKey{nameOf(a), a.UID, t.TailnetRef.Name}] = t.ProxyGroup
		}
	}
	for _, s := range b.services {
		if s.Status.Egress == nil || s.Spec.Target == nil {
			continue
		}
		label, _ := labelAndTags(s)
		name, ok := strings.CutPrefix(s.Status.Egress.Group, b.o.Namespace+"/")
		if ok && name == groupName(cmp.Or(label, s.Name), nameOf(s), false) {
			if _, held := b.groupHolders[name]; !held {
				b.groupHolders[name] = nameOf(s)
			}
		}
	}
}
