package controller

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	gatewayapi "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/kube/conditions"
)

// changed selects the updates of an object for which differ returns true, and all other events.
func changed[T client.Object](differ func(was, is T) bool) builder.Predicates {
	return builder.WithPredicates(predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		was, ok := e.ObjectOld.(T)
		is, ok2 := e.ObjectNew.(T)
		return !ok || !ok2 || differ(was, is)
	}})
}

// managed selects the operator's objects.
var managed = predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetLabels()[v1alpha1.ManagedLabel] == "true" })

func specOrAnnotationChanged() builder.Predicates {
	return builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))
}

func isReady(t *v1alpha1.TailscaleTailnet) bool {
	return conditions.Get(t.Status.Conditions, v1alpha1.ConditionReady).IsTrue()
}

// tailnetChanged selects the changes of a tailnet that affect its groups and services. Status updates of the periodic
// check do not.
func tailnetChanged(was, is *v1alpha1.TailscaleTailnet) bool {
	return was.Generation != is.Generation || !deepEqual(was.Status.TailnetInfo, is.Status.TailnetInfo) || isReady(was) != isReady(is)
}

func requests(names ...gateway.Name) (out []reconcile.Request) {
	for _, n := range names {
		out = append(out, reconcile.Request{NamespacedName: types.NamespacedName(n)})
	}
	return out
}

// changedNames returns the names whose values are new or differ.
func changedNames[V any](was, is map[gateway.Name]V) (names []gateway.Name) {
	for n, v := range is {
		if w, ok := was[n]; !ok || !reflect.DeepEqual(w, v) {
			names = append(names, n)
		}
	}
	return names
}

// removedNames returns the names that are no longer in a map.
func removedNames[K comparable, V any](was, is map[K]V) (names []K) {
	for n := range was {
		if _, still := is[n]; !still {
			names = append(names, n)
		}
	}
	return names
}

func reconcileOptions(workers int) controller.Options {
	return controller.Options{MaxConcurrentReconciles: workers, ReconciliationTimeout: reconcileTimeout, SkipNameValidation: new(true)}
}

// reconciled returns the result of a reconcile that ended with err, or that must be repeated at wake. A zero wake means
// on change.
func (c *Runner) reconciled(what string, wake time.Time, err error) (reconcile.Result, error) {
	switch {
	case kube.IsStale(err):
		return reconcile.Result{RequeueAfter: 50 * time.Millisecond}, nil // stale object: try again in a moment
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("%s: %w", what, err)
	case wake.IsZero():
		return reconcile.Result{}, nil
	}
	return reconcile.Result{RequeueAfter: min(max(wake.Sub(c.Now()), time.Millisecond), maxRequeueAfter)}, nil
}

// A nextTime is the latest time of the next reconcile. Zero means on change.
type nextTime struct{ wake time.Time }

func (n *nextTime) requeueAt(t time.Time) {
	if !t.IsZero() && (n.wake.IsZero() || t.Before(n.wake)) {
		n.wake = t
	}
}

// everyReplica runs a function on every replica, leader or not.
type everyReplica func(context.Context) error

// NeedLeaderElection implements [manager.LeaderElectionRunnable].
func (everyReplica) NeedLeaderElection() bool { return false }

// Start implements [manager.Runnable].
func (r everyReplica) Start(ctx context.Context) error { return r(ctx) }

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
		return tailnetChanged(a, b.(*v1alpha1.TailscaleTailnet))
	case *v1alpha1.TailscaleProxyGroup:
		return !slices.Equal(a.Status.Ports, b.(*v1alpha1.TailscaleProxyGroup).Status.Ports)
	case *v1alpha1.TailscaleService:
		return deref(a.Status.Egress, v1alpha1.EgressStatus{}).Group != deref(b.(*v1alpha1.TailscaleService).Status.Egress, v1alpha1.EgressStatus{}).Group ||
			!deepEqual(a.OwnerReferences, b.GetOwnerReferences())
	case *gatewayapi.HTTPRoute:
		return !deepEqual(a.Status.Parents, b.(*gatewayapi.HTTPRoute).Status.Parents)
	case *gatewayapi.GRPCRoute:
		return !deepEqual(a.Status.Parents, b.(*gatewayapi.GRPCRoute).Status.Parents)
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
