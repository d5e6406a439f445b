package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/gateway/workload"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
)

// The groupReconciler reconciles the relays of TailscaleProxyGroups: their Kubernetes objects, their
// keys and devices at Tailscale, their configuration and their status. It follows law 7: external
// objects are recorded before anything that refers to them is deleted, and missing information
// deletes nothing.

const (
	groupReconcileTimeout = 2 * time.Minute  // for one reconcile of one group, including all API requests
	maxGroupRequeue       = 10 * time.Minute // between two reconciles, to find changes without an event
	groupRequeueSoon      = 2 * time.Second  // for changes that come without an event
	groupWorkers          = 4

	forbiddenRequeue = 10 * time.Second // while the operator cannot read the group's namespace
)

// A groupReconciler reconciles groups. Fields are required unless documented otherwise.
type groupReconciler struct {
	Namespace       string   // the operator's namespace, where it creates groups
	ProxyNamespaces []string // additional namespaces of groups; may be empty
	ClusterDomain   string   // such as cluster.local
	Workload        workload.Settings

	Clients *tsapi.Clients // filled by the tailnet controller
	Log     *slog.Logger
	Now     func() time.Time

	// OnKey is called for each auth key with "minted", "reissued" or "deleted". Optional.
	OnKey func(op string)

	cache     client.Reader // for objects of others: tailnets and services
	direct    client.Client // reads from the API server, and writes
	events    events.EventRecorder
	publisher *Publisher

	mu     sync.Mutex
	pauses map[types.UID]apiPause
}

// An apiPause is the time until which the API is not called for a group. It ends early if the
// generation or the client changes.
type apiPause struct {
	until      time.Time
	generation int64
	version    tsapi.Version
}

// groupObjectKinds returns the kinds of the objects of a group.
func groupObjectKinds() []client.Object {
	return []client.Object{&appsv1.StatefulSet{}, &corev1.Pod{}, &corev1.Secret{}, &corev1.ConfigMap{}, &corev1.Service{}, &corev1.ServiceAccount{},
		&rbacv1.Role{}, &rbacv1.RoleBinding{}, &policyv1.PodDisruptionBudget{}, &networkingv1.NetworkPolicy{}}
}

// addGroupTypes registers the kinds that the controller uses.
func addGroupTypes(s *runtime.Scheme) error {
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme, appsv1.AddToScheme, rbacv1.AddToScheme, policyv1.AddToScheme,
		networkingv1.AddToScheme, discoveryv1.AddToScheme} {
		if err := add(s); err != nil {
			return err
		}
	}
	return nil
}

// groupKinds returns the namespaced kinds that the controller uses, for a mapper.
func groupKinds() []schema.GroupVersionKind {
	core, rbac := corev1.SchemeGroupVersion, rbacv1.SchemeGroupVersion
	return []schema.GroupVersionKind{
		appsv1.SchemeGroupVersion.WithKind("StatefulSet"), core.WithKind("Pod"), core.WithKind("Secret"), core.WithKind("ConfigMap"), core.WithKind("Service"),
		core.WithKind("ServiceAccount"), rbac.WithKind("Role"), rbac.WithKind("RoleBinding"), policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudget"),
		networkingv1.SchemeGroupVersion.WithKind("NetworkPolicy"), discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"),
	}
}

// groupCacheOptions limits the caches to the namespaces of groups and to the operator's objects,
// because the ServiceAccount may list and watch nothing else. It does not limit Services and
// NetworkPolicies, because other controllers watch more of them.
func groupCacheOptions(namespaces []string) map[client.Object]cache.ByObject {
	managed := labels.SelectorFromSet(labels.Set{v1alpha1.ManagedLabel: "true"})
	where := map[string]cache.Config{}
	for _, ns := range namespaces {
		where[ns] = cache.Config{}
	}
	out := map[client.Object]cache.ByObject{}
	for _, kind := range groupObjectKinds() {
		switch kind.(type) {
		case *corev1.Service, *networkingv1.NetworkPolicy:
		default:
			out[kind] = cache.ByObject{Namespaces: where, Label: managed}
		}
	}
	return out
}

// Add registers the controller with the manager's leader. It reconciles the decisions of the
// Board.
//
// The controller watches only the metadata of a group's objects, and reads their contents from the
// API server. An outdated view could create a key for a relay that has just joined, or delete the
// Secret of a relay.
func (c *groupReconciler) Add(mgr manager.Manager, publisher *Publisher) error {
	if c.Namespace == "" || c.ClusterDomain == "" || c.Workload.Image == "" || c.Clients == nil || c.Log == nil || c.Now == nil || publisher == nil {
		return errors.New("the proxy group controller lacks a setting: namespace, cluster domain, image, clients, log, clock and publisher are required")
	}
	// The manager's client would watch every written kind with its full contents.
	direct, err := client.New(mgr.GetConfig(), client.Options{HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), FieldOwner: v1alpha1.FieldManager})
	if err != nil {
		return err
	}
	c.cache, c.direct, c.events, c.publisher = mgr.GetCache(), direct, mgr.GetEventRecorder(v1alpha1.FieldManager), publisher
	c.pauses = map[types.UID]apiPause{}
	b := builder.ControllerManagedBy(mgr).
		Named("tailscaleproxygroup").
		For(&v1alpha1.TailscaleProxyGroup{}, builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}, predicate.LabelChangedPredicate{}))).
		Watches(&v1alpha1.TailscaleService{}, handler.EnqueueRequestsFromMapFunc(c.groupOfService), builder.WithPredicates(predicate.Funcs{UpdateFunc: groupServiceChanged})).
		Watches(&v1alpha1.TailscaleTailnet{}, handler.EnqueueRequestsFromMapFunc(c.groupsOfTailnet), builder.WithPredicates(predicate.Funcs{UpdateFunc: groupTailnetChanged})).
		WatchesRawSource(publisher.Changes(c.changedGroups)).
		WithOptions(controller.Options{MaxConcurrentReconciles: groupWorkers, ReconciliationTimeout: groupReconcileTimeout, SkipNameValidation: new(true)})
	for _, kind := range groupObjectKinds() {
		b = b.Watches(kind, handler.EnqueueRequestsFromMapFunc(owningGroup), builder.OnlyMetadata, builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool {
			return o.GetLabels()[v1alpha1.ManagedLabel] == "true"
		})))
	}
	return b.Complete(c)
}

// owningGroup returns the group to which an object belongs.
func owningGroup(_ context.Context, o client.Object) []reconcile.Request {
	if name := o.GetLabels()[v1alpha1.ProxyGroupLabel]; name != "" {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: name}}}
	}
	return nil
}

// groupOfService returns the group that carries a TailscaleService.
func (c *groupReconciler) groupOfService(_ context.Context, o client.Object) []reconcile.Request {
	result := c.publisher.Result()
	if result == nil {
		return nil
	}
	group := result.Services[gateway.Name{Namespace: o.GetNamespace(), Name: o.GetName()}].Group
	if group.Name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName(group)}}
}

// groupsOfTailnet returns the groups of a tailnet.
func (c *groupReconciler) groupsOfTailnet(_ context.Context, o client.Object) (out []reconcile.Request) {
	result := c.publisher.Result()
	if result == nil {
		return nil
	}
	for name, report := range result.Groups {
		if report.Tailnet == o.GetName() {
			out = append(out, reconcile.Request{NamespacedName: types.NamespacedName(name)})
		}
	}
	return out
}

// groupServiceChanged selects the changes of a service that affect the configuration of relays.
func groupServiceChanged(e event.UpdateEvent) bool {
	was, ok := e.ObjectOld.(*v1alpha1.TailscaleService)
	is, ok2 := e.ObjectNew.(*v1alpha1.TailscaleService)
	return !ok || !ok2 || was.Generation != is.Generation || !reflect.DeepEqual(was.Status.VIP, is.Status.VIP) ||
		is.Spec.VIPService != nil && mayHost(was) != mayHost(is)
}

// groupTailnetChanged selects the changes of a tailnet that affect its groups.
func groupTailnetChanged(e event.UpdateEvent) bool {
	was, ok := e.ObjectOld.(*v1alpha1.TailscaleTailnet)
	is, ok2 := e.ObjectNew.(*v1alpha1.TailscaleTailnet)
	return !ok || !ok2 || was.Generation != is.Generation || !reflect.DeepEqual(was.Status.TailnetInfo, is.Status.TailnetInfo) ||
		meta.IsStatusConditionTrue(was.Status.Conditions, v1alpha1.ConditionReady) != meta.IsStatusConditionTrue(is.Status.Conditions, v1alpha1.ConditionReady)
}

// changedGroups returns the groups whose decision changed.
func (c *groupReconciler) changedGroups(was, is *gateway.Result) (out []types.NamespacedName) {
	if was == nil {
		was = &gateway.Result{}
	}
	seen := map[gateway.Name]bool{}
	note := func(name gateway.Name, differs bool) {
		if differs && !seen[name] {
			seen[name] = true
			out = append(out, types.NamespacedName(name))
		}
	}
	for name, report := range is.Groups {
		previous, ok := was.Groups[name]
		note(name, !ok || previous != report || !slices.Equal(was.RequiredPorts[name], is.RequiredPorts[name]))
	}
	for name, w := range is.DesiredGroups {
		note(gateway.Name{Namespace: c.Namespace, Name: name}, !reflect.DeepEqual(was.DesiredGroups[name], w))
	}
	for name := range was.DesiredGroups {
		_, still := is.DesiredGroups[name]
		note(gateway.Name{Namespace: c.Namespace, Name: name}, !still)
	}
	for name, report := range is.Services { // another group may carry it now
		if previous := was.Services[name]; previous.Group != report.Group || previous.ResolvedRefs != report.ResolvedRefs {
			note(report.Group, report.Group.Name != "")
			note(previous.Group, previous.Group.Name != "")
		}
	}
	for name, previous := range was.Services {
		if _, still := is.Services[name]; !still {
			note(previous.Group, previous.Group.Name != "")
		}
	}
	return out
}

// Reconcile reconciles one group: gather facts, decide, act, report.
func (c *groupReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	wake, err := c.reconcileGroup(ctx, req.NamespacedName)
	switch {
	case kube.IsStale(err):
		return reconcile.Result{RequeueAfter: 50 * time.Millisecond}, nil // stale object: try again in a moment
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("proxy group %s: %w", req.NamespacedName, err)
	case wake.IsZero():
		return reconcile.Result{}, nil
	}
	return reconcile.Result{RequeueAfter: min(max(wake.Sub(c.Now()), time.Millisecond), maxGroupRequeue)}, nil
}

// manages reports whether the operator manages groups in a namespace. It may not be able to read
// other namespaces.
func (c *groupReconciler) manages(namespace string) bool {
	return namespace == c.Namespace || slices.Contains(c.ProxyNamespaces, namespace)
}
