package gateway

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	gatewayv1alpha1 "github.com/tailplane/tailplane/api/gateway/v1alpha1"
)

// notPermitted is said of a tailnet that is not there and of one that is not for
// the asker alike: a tenant must not learn which tailnets there are.
const notPermitted = "there is no such tailnet for this namespace"

// unsupportedRuntime tells the owner of a group that was stored for a runtime of an
// earlier release what to do.
const unsupportedRuntime = "the runtime Containerboot is no longer supported, because Envoy cannot check the health of its services; " +
	"set spec.runtime to Relay, or remove the field"

// selects says whether a selector that stands in an object of namespace home
// means namespace ns. A selector that cannot be read means none.
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

// tailnetFor returns a tailnet that namespace ns may use. One that is to be deleted
// counts until it is: its deletion waits for those who use it.
func (b *builder) tailnetFor(name, ns string) (*gatewayv1alpha1.TailscaleTailnet, bool) {
	t := b.tailnets[name]
	if t == nil {
		return nil, false
	}
	key := [2]string{name, ns}
	allowed, asked := b.allowed[key]
	if !asked {
		allowed = b.selects(t.Spec.AllowedNamespaces, b.o.Namespace, ns)
		b.allowed[key] = allowed
	}
	return t, allowed
}

// defaultTailnet is the one TailscaleTailnet that is annotated so; with two of
// them there is none, for which of them is meant would be a guess.
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

// granted says whether an object of kind from may refer to object to of kind
// toKind, in another namespace.
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

// madeByUs says whether the operator made a group. Who can forge that may write in
// the operator's own namespace.
func (b *builder) madeByUs(g *gatewayv1alpha1.TailscaleProxyGroup) bool {
	return g.Namespace == b.o.Namespace && g.Labels[gatewayv1alpha1.ManagedLabel] == "true"
}

// group decides on one TailscaleProxyGroup.
func (b *builder) group(g *gatewayv1alpha1.TailscaleProxyGroup) GroupReport {
	if g.Namespace != b.o.Namespace && !contains(b.o.ProxyNamespaces, g.Namespace) {
		return GroupReport{Accepted: fails(gatewayv1alpha1.ReasonNamespaceNotManaged, "the operator runs no relays in this namespace")}
	}
	if !g.Spec.Runtime.Supported() {
		return GroupReport{Accepted: fails(gatewayv1alpha1.ReasonUnsupportedRuntime, unsupportedRuntime)}
	}
	name := b.byDefault
	if g.Spec.TailnetRef != nil {
		name = g.Spec.TailnetRef.Name
	} else if name == "" {
		return GroupReport{Accepted: fails(gatewayv1alpha1.ReasonTailnetNotSpecified, "name a tailnet: not exactly one is annotated as the default")}
	}
	t, ok := b.tailnetFor(name, g.Namespace)
	if !ok && (t == nil || !b.madeByUs(g)) { // ours are there for services, which were asked themselves
		return GroupReport{Accepted: fails(gatewayv1alpha1.ReasonTailnetNotPermitted, notPermitted)}
	}
	if target := g.Spec.TailnetTarget; target != nil {
		if v := b.target(target.FQDN, target.IP, t); !v.OK {
			return GroupReport{Accepted: fails(gatewayv1alpha1.ReasonInvalidTarget, v.Message)}
		}
	}
	return GroupReport{Accepted: holds(gatewayv1alpha1.ReasonAccepted), Tailnet: name}
}

func contains(list []string, s string) bool {
	for _, e := range list {
		if e == s {
			return true
		}
	}
	return false
}
