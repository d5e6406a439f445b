package gateway

import (
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

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
		return GroupReport{Accepted: conditions.False(gatewayv1alpha1.ReasonNamespaceNotManaged, "the operator runs no relays in this namespace")}
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
	if i := t.Status.TailnetInfo; i != nil && strings.Contains(i.Name, ".") && isDomain(i.Name) {
		return i.Name
	}
	return ""
}

func isDomain(s string) bool {
	return len(s) <= 253 && !slices.ContainsFunc(strings.Split(s, "."), func(label string) bool { return !IsLabel(label) })
}
