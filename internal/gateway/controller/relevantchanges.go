package controller

import (
	"maps"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayapi "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
)

// affectsDecision reports whether a change of an object can affect a decision.
func affectsDecision(was, is any) bool {
	a, ok := was.(client.Object)
	b, ok2 := is.(client.Object)
	if !ok || !ok2 {
		return true
	}
	if a.GetUID() != b.GetUID() || a.GetGeneration() != b.GetGeneration() || (a.GetDeletionTimestamp() == nil) != (b.GetDeletionTimestamp() == nil) ||
		!maps.Equal(a.GetLabels(), b.GetLabels()) || !maps.Equal(a.GetAnnotations(), b.GetAnnotations()) && !onlyTranslationNotes(a, b) {
		return true
	}
	switch a := a.(type) {
	case *v1alpha1.TailscaleTailnet:
		b := b.(*v1alpha1.TailscaleTailnet)
		return !apiequality.Semantic.DeepEqual(a.Status.TailnetInfo, b.Status.TailnetInfo) ||
			meta.IsStatusConditionTrue(a.Status.Conditions, v1alpha1.ConditionReady) != meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionReady)
	case *v1alpha1.TailscaleProxyGroup:
		return !slices.Equal(a.Status.Ports, b.(*v1alpha1.TailscaleProxyGroup).Status.Ports)
	case *v1alpha1.TailscaleService:
		return statusGroup(a) != statusGroup(b.(*v1alpha1.TailscaleService)) || !apiequality.Semantic.DeepEqual(a.OwnerReferences, b.GetOwnerReferences())
	case *gatewayapi.HTTPRoute:
		return !apiequality.Semantic.DeepEqual(a.Status.Parents, b.(*gatewayapi.HTTPRoute).Status.Parents)
	case *gatewayapi.GRPCRoute:
		return !apiequality.Semantic.DeepEqual(a.Status.Parents, b.(*gatewayapi.GRPCRoute).Status.Parents)
	case *v1alpha1.TailscaleGateway, *v1alpha1.TailscaleRoutePolicy, *gatewayapi.Gateway, *gatewayapi.GatewayClass, *networkingv1.NetworkPolicy:
		return false // only the status changed
	case *metav1.PartialObjectMetadata:
		return a.Kind == "Service" && a.Labels[owningName] != "" // the type of Envoy's Services is not in the metadata
	}
	return true
}

// onlyTranslationNotes reports whether the annotations differ only in Tailplane's own notes.
func onlyTranslationNotes(a, b client.Object) bool {
	x, y := maps.Clone(a.GetAnnotations()), maps.Clone(b.GetAnnotations())
	for _, note := range []string{v1alpha1.TranslatedAnnotation, v1alpha1.TranslationAnnotation, v1alpha1.RequestedAnnotation} {
		delete(x, note)
		delete(y, note)
	}
	return maps.Equal(x, y)
}

func statusGroup(s *v1alpha1.TailscaleService) string {
	if s.Status.Egress == nil {
		return ""
	}
	return s.Status.Egress.Group
}
