package gateway

import (
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

// selects reports whether a selector in an object of namespace home selects namespace ns. An
// invalid selector selects no namespace.
func (b *builder) selects(s gatewayv1alpha1.NamespaceSelector, home, ns string) bool {
	switch s.From {
	case gatewayv1alpha1.NamespacesAll:
		return true
	case gatewayv1alpha1.NamespacesSame, "":
		return ns == home
	case gatewayv1alpha1.NamespacesSelector:
		set, known := b.o.Namespaces[ns]
		if s.Selector == nil || !known {
			return false
		}
		selector, err := metav1.LabelSelectorAsSelector(s.Selector)
		return err == nil && selector.Matches(labels.Set(set))
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
	for _, g := range b.grants[to.Namespace] {
		for _, f := range g.From {
			if f != from {
				continue
			}
			for _, t := range g.To {
				if t.Group == toGroup && t.Kind == toKind && (t.Name == "" || t.Name == to.Name) {
					return true
				}
			}
		}
	}
	return false
}

// createdByOperator reports whether the operator created a group. To forge this, an attacker needs write
// access to the operator's own namespace.
func (b *builder) createdByOperator(g *gatewayv1alpha1.TailscaleProxyGroup) bool {
	return g.Namespace == b.o.Namespace && g.Labels[gatewayv1alpha1.ManagedLabel] == "true"
}

// validateGroup checks one TailscaleProxyGroup.
func (b *builder) validateGroup(g *gatewayv1alpha1.TailscaleProxyGroup) GroupReport {
	if g.Namespace != b.o.Namespace && !contains(b.o.ProxyNamespaces, g.Namespace) {
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

func contains(list []string, s string) bool {
	for _, e := range list {
		if e == s {
			return true
		}
	}
	return false
}
