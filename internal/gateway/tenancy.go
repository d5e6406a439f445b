package gateway

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	gatewayv1alpha1 "github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/kube/conditions"
)

// notPermitted is the message both for a tailnet that does not exist and for a tailnet that the
// namespace may not use. A tenant must not learn which tailnets exist.
const notPermitted = "there is no such tailnet for this namespace"

// unsupportedRuntime is the message for a group that was stored with the runtime of an earlier
// release.
const unsupportedRuntime = "the runtime Containerboot is no longer supported, because Envoy cannot check the health of its services; " +
	"set spec.runtime to Relay, or remove the field"

// selects reports whether a selector in an object of namespace home selects namespace ns.
func (b *builder) selects(s gatewayv1alpha1.NamespaceSelector, home, ns string) bool {
	set, known := b.o.Namespaces[ns]
	return Selects(s, home, ns, set, known)
}

// Selects reports whether a selector in an object of namespace home selects namespace ns, which has these labels if it
// exists. An invalid selector selects no namespace.
func Selects(s gatewayv1alpha1.NamespaceSelector, home, ns string, set map[string]string, exists bool) bool {
	switch s.From {
	case gatewayv1alpha1.NamespacesAll:
		return true
	case gatewayv1alpha1.NamespacesSame, "":
		return ns == home
	case gatewayv1alpha1.NamespacesSelector:
		selector, err := metav1.LabelSelectorAsSelector(s.Selector)
		return err == nil && s.Selector != nil && exists && selector.Matches(labels.Set(set))
	}
	return false
}

// tailnetFor returns a tailnet that namespace ns may use. A tailnet that is being deleted counts
// until it is gone, because its deletion waits for its users.
func (b *builder) tailnetFor(name, ns string) (*gatewayv1alpha1.TailscaleTailnet, bool) {
	t := b.tailnets[name]
	if t == nil {
		return nil, false
	}
	key := [2]string{name, ns}
	allowed, cached := b.allowed[key]
	if !cached {
		allowed = b.selects(t.Spec.AllowedNamespaces, b.o.Namespace, ns)
		b.allowed[key] = allowed
	}
	return t, allowed
}

// defaultTailnet returns the name of the TailscaleTailnet that is annotated as default. If several
// are annotated, it returns "", because choosing one would be a guess.
func (b *builder) defaultTailnet() string {
	found := ""
	for _, t := range b.o.Tailnets {
		if t.Annotations[gatewayv1alpha1.DefaultAnnotation] != "true" {
			continue
		}
		if found != "" {
			return ""
		}
		found = t.Name
	}
	return found
}

// granted reports whether an object of kind from may refer to the object to of kind toKind.
// References within one namespace are always granted; others need a ReferenceGrant.
func (b *builder) granted(from GrantFrom, toGroup, toKind string, to Name) bool {
	if from.Namespace == to.Namespace {
		return true
	}
	return slices.ContainsFunc(b.grants[to.Namespace], func(g GrantObject) bool {
		return slices.Contains(g.From, from) && slices.ContainsFunc(g.To, func(t GrantTo) bool {
			return t.Group == toGroup && t.Kind == toKind && (t.Name == "" || t.Name == to.Name)
		})
	})
}

// createdByOperator reports whether the operator created a group. To forge this, an attacker needs write
// access to the operator's own namespace.
func (b *builder) createdByOperator(g *gatewayv1alpha1.TailscaleProxyGroup) bool {
	return g.Namespace == b.o.Namespace && g.Labels[gatewayv1alpha1.ManagedLabel] == "true"
}

// validateGroup checks one TailscaleProxyGroup.
func (b *builder) validateGroup(g *gatewayv1alpha1.TailscaleProxyGroup) GroupReport {
	if g.Namespace != b.o.Namespace && !slices.Contains(b.o.ProxyNamespaces, g.Namespace) {
		return GroupReport{
			Accepted: conditions.False(gatewayv1alpha1.ReasonNamespaceNotManaged, "the operator runs no relays in this namespace"),
		}
	}
	if !g.Spec.Runtime.Supported() {
		return GroupReport{Accepted: conditions.False(gatewayv1alpha1.ReasonUnsupportedRuntime, unsupportedRuntime)}
	}
	name := b.defaultTailnetName
	if g.Spec.TailnetRef != nil {
		name = g.Spec.TailnetRef.Name
	} else if name == "" {
		return GroupReport{Accepted: conditions.False(gatewayv1alpha1.ReasonTailnetNotSpecified, "set a tailnet: not exactly one tailnet is annotated as the default")}
	}
	t, ok := b.tailnetFor(name, g.Namespace)
	if !ok && (t == nil || !b.createdByOperator(g)) { // exempt: each service of such a group was checked itself
		return GroupReport{Accepted: conditions.False(gatewayv1alpha1.ReasonTailnetNotPermitted, notPermitted)}
	}
	if target := g.Spec.TailnetTarget; target != nil {
		if v := b.validateTarget(target.FQDN, target.IP, t); !v.IsTrue() {
			return GroupReport{Accepted: conditions.False(gatewayv1alpha1.ReasonInvalidTarget, v.Message)}
		}
	}
	return GroupReport{Accepted: conditions.True(gatewayv1alpha1.ReasonAccepted, ""), Tailnet: name}
}

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

// validateTarget checks whether a name or an address may be a target in t. If both are empty, validateTarget
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
			return conditions.False(
				gatewayv1alpha1.ReasonTargetForbidden,
				"the domain of the tailnet is not known yet, so a name cannot be checked",
			)
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
	if i := t.Status.TailnetInfo; i != nil && strings.Contains(i.Name, ".") && isDomain(i.Name) {
		return i.Name
	}
	return ""
}

func isDomain(s string) bool {
	return len(s) <= 253 && !slices.ContainsFunc(strings.Split(s, "."), func(label string) bool { return !IsLabel(label) })
}

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
		report.ResolvedRefs = conditions.False(
			gatewayv1alpha1.ReasonTargetNotFound,
			"the TailscaleGateway that discovered it does not exist or does not have this tailnet any more",
		)
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
			report.Accepted = conditions.False(
				gatewayv1alpha1.ReasonProxyGroupLimit,
				fmt.Sprintf("%s already has its limit of %d proxy groups for this tailnet", request.gateway, limit),
			)
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
		report.ResolvedRefs = conditions.False(
			gatewayv1alpha1.ReasonRefNotPermitted,
			"the proxy group cannot be used: "+accepted.Accepted.Reason,
		)
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
		report.Accepted = conditions.False(
			gatewayv1alpha1.ReasonServiceNameConflict,
			"another owner already has a proxy group with the name that this service would get",
		)
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
