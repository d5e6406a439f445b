// Package groups reconciles the relays of TailscaleProxyGroups: their Kubernetes objects, their
// keys and devices at Tailscale, their configuration and their status. It follows law 7: external
// objects are recorded before anything that refers to them is deleted, and missing information
// deletes nothing.
package groups

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
	"github.com/tailplane/tailplane/internal/gateway/gatewaykube/gather"
	"github.com/tailplane/tailplane/internal/gateway/workload"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
)

const (
	lookLimit  = 2 * time.Minute  // for one reconcile of one group, including all API requests
	longestNap = 10 * time.Minute // between two reconciles, to find changes without an event
	soon       = 2 * time.Second  // for changes that come without an event
	workers    = 4

	forbiddenNap = 10 * time.Second // while the operator cannot read the group's namespace
)

// A Controller reconciles groups. Fields are required unless documented otherwise.
type Controller struct {
	Namespace       string   // the operator's namespace, where it creates groups
	ProxyNamespaces []string // additional namespaces of groups; may be empty
	ClusterDomain   string   // such as cluster.local
	Workload        workload.Settings

	Clients *tsapi.Clients // filled by the tailnet controller
	Log     *slog.Logger
	Now     func() time.Time

	// Keys is called for each auth key with "minted", "reissued" or "deleted". Optional.
	Keys func(op string)

	cache  client.Reader // for objects of others: tailnets and services
	direct client.Client // reads from the API server, and writes
	events events.EventRecorder
	board  *gather.Board

	mu    sync.Mutex
	after map[types.UID]pause
}

// A pause is the time until which the API is not called for a group. It ends early if the
// generation or the client changes.
type pause struct {
	until      time.Time
	generation int64
	version    tsapi.Version
}

// kinds returns the kinds of the objects of a group.
func kinds() []client.Object {
	return []client.Object{&appsv1.StatefulSet{}, &corev1.Pod{}, &corev1.Secret{}, &corev1.ConfigMap{}, &corev1.Service{}, &corev1.ServiceAccount{},
		&rbacv1.Role{}, &rbacv1.RoleBinding{}, &policyv1.PodDisruptionBudget{}, &networkingv1.NetworkPolicy{}}
}

// AddToScheme registers the kinds that the controller uses.
func AddToScheme(s *runtime.Scheme) error {
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme, appsv1.AddToScheme, rbacv1.AddToScheme, policyv1.AddToScheme,
		networkingv1.AddToScheme, discoveryv1.AddToScheme} {
		if err := add(s); err != nil {
			return err
		}
	}
	return nil
}

// Kinds returns the namespaced kinds that the controller uses, for a mapper.
func Kinds() []schema.GroupVersionKind {
	core, rbac := corev1.SchemeGroupVersion, rbacv1.SchemeGroupVersion
	return []schema.GroupVersionKind{
		appsv1.SchemeGroupVersion.WithKind("StatefulSet"), core.WithKind("Pod"), core.WithKind("Secret"), core.WithKind("ConfigMap"), core.WithKind("Service"),
		core.WithKind("ServiceAccount"), rbac.WithKind("Role"), rbac.WithKind("RoleBinding"), policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudget"),
		networkingv1.SchemeGroupVersion.WithKind("NetworkPolicy"), discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"),
	}
}

// CacheOptions limits the caches to the namespaces of groups and to the operator's objects,
// because the ServiceAccount may list and watch nothing else. It does not limit Services and
// NetworkPolicies, because other controllers watch more of them.
func CacheOptions(namespaces []string) map[client.Object]cache.ByObject {
	ours := labels.SelectorFromSet(labels.Set{v1alpha1.ManagedLabel: "true"})
	where := map[string]cache.Config{}
	for _, ns := range namespaces {
		where[ns] = cache.Config{}
	}
	out := map[client.Object]cache.ByObject{}
	for _, kind := range kinds() {
		switch kind.(type) {
		case *corev1.Service, *networkingv1.NetworkPolicy:
		default:
			out[kind] = cache.ByObject{Namespaces: where, Label: ours}
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
func (c *Controller) Add(mgr manager.Manager, board *gather.Board) error {
	if c.Namespace == "" || c.ClusterDomain == "" || c.Workload.Image == "" || c.Clients == nil || c.Log == nil || c.Now == nil || board == nil {
		return errors.New("the controller of proxy groups lacks a setting: namespace, cluster domain, image, clients, log, clock and board are required")
	}
	// The manager's client would watch every written kind with its full contents.
	direct, err := client.New(mgr.GetConfig(), client.Options{HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), FieldOwner: v1alpha1.FieldManager})
	if err != nil {
		return err
	}
	c.cache, c.direct, c.events, c.board = mgr.GetCache(), direct, mgr.GetEventRecorder(v1alpha1.FieldManager), board
	c.after = map[types.UID]pause{}
	b := builder.ControllerManagedBy(mgr).
		Named("tailscaleproxygroup").
		For(&v1alpha1.TailscaleProxyGroup{}, builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}, predicate.LabelChangedPredicate{}))).
		Watches(&v1alpha1.TailscaleService{}, handler.EnqueueRequestsFromMapFunc(c.carrying), builder.WithPredicates(predicate.Funcs{UpdateFunc: serviceChanged})).
		Watches(&v1alpha1.TailscaleTailnet{}, handler.EnqueueRequestsFromMapFunc(c.within), builder.WithPredicates(predicate.Funcs{UpdateFunc: tailnetChanged})).
		WatchesRawSource(board.Changes(c.changed)).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers, ReconciliationTimeout: lookLimit, SkipNameValidation: new(true)})
	for _, kind := range kinds() {
		b = b.Watches(kind, handler.EnqueueRequestsFromMapFunc(groupOf), builder.OnlyMetadata, builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool {
			return o.GetLabels()[v1alpha1.ManagedLabel] == "true"
		})))
	}
	return b.Complete(c)
}

// groupOf returns the group to which an object belongs.
func groupOf(_ context.Context, o client.Object) []reconcile.Request {
	if name := o.GetLabels()[v1alpha1.ProxyGroupLabel]; name != "" {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: name}}}
	}
	return nil
}

// carrying returns the group that carries a TailscaleService.
func (c *Controller) carrying(_ context.Context, o client.Object) []reconcile.Request {
	result := c.board.Result()
	if result == nil {
		return nil
	}
	group := result.Services[gateway.Name{Namespace: o.GetNamespace(), Name: o.GetName()}].Group
	if group.Name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName(group)}}
}

// within returns the groups of a tailnet.
func (c *Controller) within(_ context.Context, o client.Object) (out []reconcile.Request) {
	result := c.board.Result()
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

// serviceChanged selects the changes of a service that affect the configuration of relays.
func serviceChanged(e event.UpdateEvent) bool {
	was, ok := e.ObjectOld.(*v1alpha1.TailscaleService)
	is, ok2 := e.ObjectNew.(*v1alpha1.TailscaleService)
	return !ok || !ok2 || was.Generation != is.Generation || !reflect.DeepEqual(was.Status.VIP, is.Status.VIP) ||
		is.Spec.VIPService != nil && mayHost(was) != mayHost(is)
}

// tailnetChanged selects the changes of a tailnet that affect its groups.
func tailnetChanged(e event.UpdateEvent) bool {
	was, ok := e.ObjectOld.(*v1alpha1.TailscaleTailnet)
	is, ok2 := e.ObjectNew.(*v1alpha1.TailscaleTailnet)
	return !ok || !ok2 || was.Generation != is.Generation || !reflect.DeepEqual(was.Status.TailnetInfo, is.Status.TailnetInfo) ||
		meta.IsStatusConditionTrue(was.Status.Conditions, v1alpha1.ConditionReady) != meta.IsStatusConditionTrue(is.Status.Conditions, v1alpha1.ConditionReady)
}

// changed returns the groups whose decision changed.
func (c *Controller) changed(was, is *gateway.Result) (out []types.NamespacedName) {
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
		had, ok := was.Groups[name]
		note(name, !ok || had != report || !slices.Equal(was.Demands[name], is.Demands[name]))
	}
	for name, w := range is.Wanted {
		note(gateway.Name{Namespace: c.Namespace, Name: name}, !reflect.DeepEqual(was.Wanted[name], w))
	}
	for name := range was.Wanted {
		_, still := is.Wanted[name]
		note(gateway.Name{Namespace: c.Namespace, Name: name}, !still)
	}
	for name, report := range is.Services { // another group may carry it now
		if had := was.Services[name]; had.Group != report.Group || had.ResolvedRefs != report.ResolvedRefs {
			note(report.Group, report.Group.Name != "")
			note(had.Group, had.Group.Name != "")
		}
	}
	for name, had := range was.Services {
		if _, still := is.Services[name]; !still {
			note(had.Group, had.Group.Name != "")
		}
	}
	return out
}

// Reconcile reconciles one group: gather facts, decide, act, report.
func (c *Controller) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	wake, err := c.look(ctx, req.NamespacedName)
	switch {
	case kube.Stale(err):
		return reconcile.Result{RequeueAfter: 50 * time.Millisecond}, nil // stale object: try again in a moment
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("proxy group %s: %w", req.NamespacedName, err)
	case wake.IsZero():
		return reconcile.Result{}, nil
	}
	return reconcile.Result{RequeueAfter: min(max(wake.Sub(c.Now()), time.Millisecond), longestNap)}, nil
}

// manages reports whether the operator manages groups in a namespace. It may not be able to read
// other namespaces.
func (c *Controller) manages(namespace string) bool {
	return namespace == c.Namespace || slices.Contains(c.ProxyNamespaces, namespace)
}
