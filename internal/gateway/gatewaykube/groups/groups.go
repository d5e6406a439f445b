// Package groups keeps the relays of TailscaleProxyGroups as they should be: their
// objects, their keys and devices at Tailscale, what they carry, and what is said of
// them. It keeps law 7: whatever is outside the cluster is written down before
// anything that knows of it is deleted, and what should be known and cannot be had
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
	lookLimit  = 2 * time.Minute  // for one look at one group, with all its requests
	longestNap = 10 * time.Minute // between two looks: what nobody tells us of is found then
	soon       = 2 * time.Second  // for what comes of itself, and tells nobody
	workers    = 4

	forbiddenNap = 10 * time.Second // while the operator may not read in the group's namespace
)

// A Controller keeps groups. Fields without a remark are required.
type Controller struct {
	Namespace       string   // the operator's own, where the groups are that it makes
	ProxyNamespaces []string // where groups may be besides; none is fine
	ClusterDomain   string   // such as cluster.local
	Workload        workload.Settings

	Clients *tsapi.Clients // filled by whoever looks after tailnets
	Log     *slog.Logger
	Now     func() time.Time

	// Keys, optional, hears of each auth key: "minted", "reissued" or "deleted".
	Keys func(op string)

	cache  client.Reader // of what others say: tailnets, services
	direct client.Client // reads what is so now, and writes
	events events.EventRecorder
	board  *gather.Board

	mu    sync.Mutex
	after map[types.UID]pause
}

// A pause is until when the API is not asked for a group, unless what made it refuse
// is other by then.
type pause struct {
	until      time.Time
	generation int64
	version    tsapi.Version
}

// kinds are those of the objects that a group is made of.
func kinds() []client.Object {
	return []client.Object{&appsv1.StatefulSet{}, &corev1.Pod{}, &corev1.Secret{}, &corev1.ConfigMap{}, &corev1.Service{}, &corev1.ServiceAccount{},
		&rbacv1.Role{}, &rbacv1.RoleBinding{}, &policyv1.PodDisruptionBudget{}, &networkingv1.NetworkPolicy{}}
}

// AddToScheme adds the kinds that the controller speaks of.
func AddToScheme(s *runtime.Scheme) error {
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme, appsv1.AddToScheme, rbacv1.AddToScheme, policyv1.AddToScheme,
		networkingv1.AddToScheme, discoveryv1.AddToScheme} {
		if err := add(s); err != nil {
			return err
		}
	}
	return nil
}

// Kinds are the kinds that the controller speaks of and whose objects are in
// namespaces, for a mapper.
func Kinds() []schema.GroupVersionKind {
	core, rbac := corev1.SchemeGroupVersion, rbacv1.SchemeGroupVersion
	return []schema.GroupVersionKind{
		appsv1.SchemeGroupVersion.WithKind("StatefulSet"), core.WithKind("Pod"), core.WithKind("Secret"), core.WithKind("ConfigMap"), core.WithKind("Service"),
		core.WithKind("ServiceAccount"), rbac.WithKind("Role"), rbac.WithKind("RoleBinding"), policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudget"),
		networkingv1.SchemeGroupVersion.WithKind("NetworkPolicy"), discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"),
	}
}

// CacheOptions limit the caches to the namespaces where groups are, and to what is
// ours there: the account may list and watch nothing else. Services and
// NetworkPolicies are not among them, for others follow more of them.
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

// Add makes the manager run the controller, on its leader, upon what the board shows.
//
// Of what a group is made of, only metadata is watched: what it says is read from the
// API server when it is looked at, since a view that is a moment old would lead to a
// key for a relay that has just joined, or to the deletion of the Secret of one.
func (c *Controller) Add(mgr manager.Manager, board *gather.Board) error {
	if c.Namespace == "" || c.ClusterDomain == "" || c.Workload.Image == "" || c.Clients == nil || c.Log == nil || c.Now == nil || board == nil {
		return errors.New("the controller of proxy groups lacks a setting: namespace, cluster domain, image, clients, log, clock and board are required")
	}
	// Not the manager's client: it would follow whole every kind that is written.
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

// groupOf is the group that an object is a part of.
func groupOf(_ context.Context, o client.Object) []reconcile.Request {
	if name := o.GetLabels()[v1alpha1.ProxyGroupLabel]; name != "" {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: name}}}
	}
	return nil
}

// carrying is the group that carries a TailscaleService.
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

// within are the groups of a tailnet.
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

// serviceChanged picks the changes of a service that its relays are told of.
func serviceChanged(e event.UpdateEvent) bool {
	was, ok := e.ObjectOld.(*v1alpha1.TailscaleService)
	is, ok2 := e.ObjectNew.(*v1alpha1.TailscaleService)
	return !ok || !ok2 || was.Generation != is.Generation || !reflect.DeepEqual(was.Status.VIP, is.Status.VIP) ||
		is.Spec.VIPService != nil && mayHost(was) != mayHost(is)
}

// tailnetChanged picks the changes of a tailnet that its groups see.
func tailnetChanged(e event.UpdateEvent) bool {
	was, ok := e.ObjectOld.(*v1alpha1.TailscaleTailnet)
	is, ok2 := e.ObjectNew.(*v1alpha1.TailscaleTailnet)
	return !ok || !ok2 || was.Generation != is.Generation || !reflect.DeepEqual(was.Status.TailnetInfo, is.Status.TailnetInfo) ||
		meta.IsStatusConditionTrue(was.Status.Conditions, v1alpha1.ConditionReady) != meta.IsStatusConditionTrue(is.Status.Conditions, v1alpha1.ConditionReady)
}

// changed are the groups upon which two decisions differ.
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
	for name, report := range is.Services { // it may be carried elsewhere now
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

// Reconcile brings one group to where it should be: gather, decide, act, report.
func (c *Controller) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	wake, err := c.look(ctx, req.NamespacedName)
	switch {
	case kube.Stale(err):
		return reconcile.Result{RequeueAfter: 50 * time.Millisecond}, nil // it is no longer what was looked at
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("proxy group %s: %w", req.NamespacedName, err)
	case wake.IsZero():
		return reconcile.Result{}, nil
	}
	return reconcile.Result{RequeueAfter: min(max(wake.Sub(c.Now()), time.Millisecond), longestNap)}, nil
}

// manages says whether the operator keeps groups in a namespace. It may not even read
// in another.
func (c *Controller) manages(namespace string) bool {
	return namespace == c.Namespace || slices.Contains(c.ProxyNamespaces, namespace)
}
