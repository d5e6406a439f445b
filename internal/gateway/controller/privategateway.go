package controller

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
)

// Labels that Envoy Gateway sets on the Services and pods of a Gateway.
const (
	owningName      = "gateway.envoyproxy.io/owning-gateway-name"
	owningNamespace = "gateway.envoyproxy.io/owning-gateway-namespace"
)

// isPrivate reports whether only relays can connect to the Envoys of a Gateway. The Services must be
// internal to the cluster. At least one policy of Tailplane must select the pods, and every policy
// that may select them must admit only relays. Policies are additive, so one policy of another
// owner that admits more would open the pods again. If it is unclear whether a policy selects the
// pods, isPrivate assumes that it does.
func isPrivate(g gateway.Name, services []corev1.Service, policies []networkingv1.NetworkPolicy, relays []string) bool {
	of := map[string]string{owningName: g.Name, owningNamespace: g.Namespace}
	found := false
	for i := range services {
		s := &services[i]
		if s.Labels[owningName] != g.Name || s.Labels[owningNamespace] != g.Namespace {
			continue
		}
		if s.Spec.Type != corev1.ServiceTypeClusterIP && s.Spec.Type != "" || len(s.Spec.ExternalIPs) > 0 {
			return false
		}
		found = true
	}
	closed := false
	for i := range policies {
		p := &policies[i]
		if !slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeIngress) {
			continue
		}
		if matchesAll(p.Spec.PodSelector, of) && p.Labels[v1alpha1.ManagedLabel] == "true" {
			closed = true
		}
		if mayMatch(p.Spec.PodSelector, of) && !onlyRelays(p, relays) {
			return false
		}
	}
	return found && closed
}

// matchesAll reports whether a selector matches every pod that has these labels, whatever other labels
// it has.
func matchesAll(s metav1.LabelSelector, of map[string]string) bool {
	selector, err := metav1.LabelSelectorAsSelector(&s)
	if err != nil || !selector.Matches(labels.Set(of)) {
		return false
	}
	return !slices.ContainsFunc(s.MatchExpressions, func(e metav1.LabelSelectorRequirement) bool {
		_, known := of[e.Key]
		return !known // whether another label exists is unknown
	})
}

// mayMatch reports whether a selector can match a pod that has these labels and possibly others.
func mayMatch(s metav1.LabelSelector, of map[string]string) bool {
	for k, v := range s.MatchLabels {
		if have, known := of[k]; known && have != v {
			return false
		}
	}
	for _, e := range s.MatchExpressions {
		have, known := of[e.Key]
		switch {
		case !known:
		case e.Operator == metav1.LabelSelectorOpIn && !slices.Contains(e.Values, have),
			e.Operator == metav1.LabelSelectorOpNotIn && slices.Contains(e.Values, have),
			e.Operator == metav1.LabelSelectorOpDoesNotExist:
			return false
		}
	}
	return true
}

// onlyRelays reports whether a policy admits only pods of groups, in namespaces where only the
// operator creates such pods.
func onlyRelays(p *networkingv1.NetworkPolicy, relays []string) bool {
	for _, rule := range p.Spec.Ingress {
		if len(rule.From) == 0 {
			return false // admits every source
		}
		for _, peer := range rule.From {
			if peer.IPBlock != nil || peer.PodSelector == nil || !requiresLabel(*peer.PodSelector, v1alpha1.ProxyGroupLabel) {
				return false
			}
			if peer.NamespaceSelector == nil {
				if !slices.Contains(relays, p.Namespace) {
					return false
				}
				continue
			}
			if !limitedTo(*peer.NamespaceSelector, relays) {
				return false
			}
		}
	}
	return true
}

// requiresLabel reports whether a selector matches only objects with a label.
func requiresLabel(s metav1.LabelSelector, label string) bool {
	if s.MatchLabels[label] != "" {
		return true
	}
	return slices.ContainsFunc(s.MatchExpressions, func(e metav1.LabelSelectorRequirement) bool {
		return e.Key == label && (e.Operator == metav1.LabelSelectorOpExists || e.Operator == metav1.LabelSelectorOpIn)
	})
}

// limitedTo reports whether a selector matches only namespaces in the list.
func limitedTo(s metav1.LabelSelector, list []string) bool {
	if slices.Contains(list, s.MatchLabels[corev1.LabelMetadataName]) {
		return true
	}
	return slices.ContainsFunc(s.MatchExpressions, func(e metav1.LabelSelectorRequirement) bool {
		return e.Key == corev1.LabelMetadataName && e.Operator == metav1.LabelSelectorOpIn &&
			!slices.ContainsFunc(e.Values, func(v string) bool { return !slices.Contains(list, v) })
	})
}
