package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
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

// addTypes registers the kinds that the controllers use.
func addTypes(s *runtime.Scheme) error {
	return errors.Join(
		v1alpha1.AddToScheme(s),
		gatewayapi.Install(s),
		corev1.AddToScheme(s),
		appsv1.AddToScheme(s),
		rbacv1.AddToScheme(s),
		policyv1.AddToScheme(s),
		networkingv1.AddToScheme(s),
		discoveryv1.AddToScheme(s),
		authenticationv1.AddToScheme(s),
		metav1.AddMetaToScheme(s),
	)
}

// gatewayAPI is the group and version of the Gateway API that is used.
var gatewayAPI = schema.GroupVersion(gatewayapi.GroupVersion)

// newMapper returns a RESTMapper for the kinds that the controllers use.
func newMapper() meta.RESTMapper {
	var namespaced []schema.GroupVersionKind
	add := func(version schema.GroupVersion, kinds ...string) {
		for _, k := range kinds {
			namespaced = append(namespaced, version.WithKind(k))
		}
	}
	add(v1alpha1.GroupVersion, "TailscaleProxyGroup", "TailscaleService", "TailscaleGateway", "TailscaleRoutePolicy")
	add(gatewayAPI, "Gateway", "HTTPRoute", "GRPCRoute", "ReferenceGrant")
	add(corev1.SchemeGroupVersion, "ConfigMap", "Pod", "Secret", "Service", "ServiceAccount")
	add(appsv1.SchemeGroupVersion, "StatefulSet")
	add(rbacv1.SchemeGroupVersion, "Role", "RoleBinding")
	add(policyv1.SchemeGroupVersion, "PodDisruptionBudget")
	add(networkingv1.SchemeGroupVersion, "NetworkPolicy")
	add(discoveryv1.SchemeGroupVersion, "EndpointSlice")
	return kube.Mapper(
		namespaced,
		[]schema.GroupVersionKind{v1alpha1.GroupVersion.WithKind("TailscaleTailnet"), gatewayAPI.WithKind("GatewayClass"),
			corev1.SchemeGroupVersion.WithKind("Namespace"), authenticationv1.SchemeGroupVersion.WithKind("SelfSubjectReview")},
	)
}

// groupObjectKinds returns the kinds of the objects of a group.
func groupObjectKinds() []client.Object {
	return []client.Object{
		&appsv1.StatefulSet{},
		&corev1.Pod{},
		&corev1.Secret{},
		&corev1.ConfigMap{},
		&corev1.Service{},
		&corev1.ServiceAccount{},
		&rbacv1.Role{},
		&rbacv1.RoleBinding{},
		&policyv1.PodDisruptionBudget{},
		&networkingv1.NetworkPolicy{},
	}
}

// cacheOptions limits the caches to the namespaces of groups and to the operator's objects, because the ServiceAccount
// may list and watch nothing else. Policies are also cached in Envoy's namespace, and Services in all namespaces.
func cacheOptions(groups []string, envoy string) map[client.Object]cache.ByObject {
	in := func(namespaces ...string) map[string]cache.Config {
		out := map[string]cache.Config{}
		for _, ns := range namespaces {
			out[ns] = cache.Config{}
		}
		return out
	}
	out := map[client.Object]cache.ByObject{
		&networkingv1.NetworkPolicy{}: {Namespaces: in(append(slices.Clone(groups), envoy)...)},
		&discoveryv1.EndpointSlice{}:  {Namespaces: in(groups...)},
	}
	managed := labels.SelectorFromSet(labels.Set{v1alpha1.ManagedLabel: "true"})
	for _, kind := range groupObjectKinds() {
		switch kind.(type) {
		case *corev1.Service, *networkingv1.NetworkPolicy:
		default:
			out[kind] = cache.ByObject{Namespaces: in(groups...), Label: managed}
		}
	}
	return out
}

func partialMetadata(kind string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: kind}}
}

func partialList(kind string) *metav1.PartialObjectMetadataList {
	return &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: kind}}
}

func objectName(o client.Object) gateway.Name {
	return gateway.Name{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// pointers returns pointers to the elements of a list.
func pointers[T any](items []T) []*T {
	out := make([]*T, len(items))
	for i := range items {
		out[i] = &items[i]
	}
	return out
}

// An objectPointer is a pointer to the type of an object.
type objectPointer[T any] interface {
	*T
	client.Object
}

// find reads an object. It returns nil if the object does not exist.
func find[T any, P objectPointer[T]](ctx context.Context, from client.Reader, key client.ObjectKey) (P, error) {
	o := P(new(T))
	if err := from.Get(ctx, key, o); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return o, nil
}

// wrapError adds to an error what failed. It returns nil if err is nil.
func wrapError(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err)
}

// lockedPatch is a patch that fails if the object has changed since was.
func lockedPatch(was client.Object) client.Patch {
	return client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})
}

// patchMetadata changes the metadata of an object with optimistic locking.
func patchMetadata(ctx context.Context, to client.Writer, o client.Object, doing string, change func()) error {
	was := o.DeepCopyObject().(client.Object)
	change()
	return wrapError(to.Patch(ctx, o, lockedPatch(was)), "%s", doing)
}

// patchStatus writes the status of an object that differs from was in its status only. It writes nothing if they are
// equal.
func patchStatus(ctx context.Context, to client.StatusClient, o, was client.Object, patch client.Patch, doing string) error {
	if deepEqual(was, o) {
		return nil
	}
	return wrapError(to.Status().Patch(ctx, o, patch), "%s", doing)
}

// applyStatus applies one manager's part of a status and keeps the fields of other managers.
func applyStatus(ctx context.Context, to client.StatusClient, manager, kind string, of client.Object, status any,
	more ...client.SubResourceApplyOption) error {
	part, err := runtime.DefaultUnstructuredConverter.ToUnstructured(status)
	if err != nil {
		return err
	}
	u := newObject(kind, client.ObjectKeyFromObject(of))
	u.SetUID(of.GetUID())
	u.Object["status"] = part
	options := append(more, client.FieldOwner(manager), client.ForceOwnership)
	return to.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(u), options...)
}

func deepEqual(a, b any) bool { return apiequality.Semantic.DeepEqual(a, b) }

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
func changedNames[K comparable, V any](was, is map[K]V) (names []K) {
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
		!maps.Equal(a.GetLabels(), b.GetLabels()) ||
		!maps.Equal(a.GetAnnotations(), b.GetAnnotations()) && !onlyTranslationNotes(a, b) {
		return true
	}
	switch a := a.(type) {
	case *v1alpha1.TailscaleTailnet:
		return tailnetChanged(a, b.(*v1alpha1.TailscaleTailnet))
	case *v1alpha1.TailscaleProxyGroup:
		return !slices.Equal(a.Status.Ports, b.(*v1alpha1.TailscaleProxyGroup).Status.Ports)
	case *v1alpha1.TailscaleService:
		return statusGroup(a) != statusGroup(b.(*v1alpha1.TailscaleService)) || !deepEqual(a.OwnerReferences, b.GetOwnerReferences())
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

func statusGroup(s *v1alpha1.TailscaleService) string {
	return ptr.Deref(s.Status.Egress, v1alpha1.EgressStatus{}).Group
}
