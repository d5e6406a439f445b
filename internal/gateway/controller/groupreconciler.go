package controller

import (
	"cmp"
	"context"
	"reflect"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
)

// The groupReconciler reconciles the relays of TailscaleProxyGroups: their Kubernetes objects, their
// keys and devices at Tailscale, their configuration and their status. It follows law 7: external
// objects are recorded before anything that refers to them is deleted, and missing information
// deletes nothing.

const (
	groupRequeueSoon = 2 * time.Second // for changes that come without an event
	groupWorkers     = 4
	forbiddenRequeue = 10 * time.Second // while the operator cannot read the group's namespace
)

// A groupReconciler reconciles groups.
type groupReconciler struct {
	*Runner
	cache  client.Reader // for objects of others: tailnets and services
	direct client.Client // reads from the API server, and writes
	events events.EventRecorder

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

// Add registers the controller with the manager's leader. It reconciles the decisions of the
// Publisher.
//
// The controller watches only the metadata of a group's objects, and reads their contents from the
// API server. An outdated view could create a key for a relay that has just joined, or delete the
// Secret of a relay.
func (c *groupReconciler) Add(mgr manager.Manager) error {
	// The manager's client would watch every written kind with its full contents.
	direct, err := client.New(mgr.GetConfig(), client.Options{HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), FieldOwner: v1alpha1.FieldManager})
	if err != nil {
		return err
	}
	c.cache, c.direct, c.events = mgr.GetCache(), direct, mgr.GetEventRecorder(v1alpha1.FieldManager)
	c.pauses = map[types.UID]apiPause{}
	b := builder.ControllerManagedBy(mgr).
		Named("tailscaleproxygroup").
		For(&v1alpha1.TailscaleProxyGroup{}, builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}, predicate.LabelChangedPredicate{}))).
		Watches(&v1alpha1.TailscaleService{}, handler.EnqueueRequestsFromMapFunc(c.groupOfService), changed(groupServiceChanged)).
		Watches(&v1alpha1.TailscaleTailnet{}, handler.EnqueueRequestsFromMapFunc(c.groupsOfTailnet), changed(tailnetChanged)).
		WatchesRawSource(c.Publisher.Changes(c.changedGroups)).
		WithOptions(reconcileOptions(groupWorkers))
	for _, kind := range groupObjectKinds() {
		b = b.Watches(kind, handler.EnqueueRequestsFromMapFunc(owningGroup), builder.OnlyMetadata, builder.WithPredicates(managed))
	}
	return b.Complete(c)
}

// owningGroup returns the group to which an object belongs.
func owningGroup(_ context.Context, o client.Object) []reconcile.Request {
	if name := o.GetLabels()[v1alpha1.ProxyGroupLabel]; name != "" {
		return requests(gateway.Name{Namespace: o.GetNamespace(), Name: name})
	}
	return nil
}

// groupOfService returns the group that carries a TailscaleService.
func (c *groupReconciler) groupOfService(_ context.Context, o client.Object) []reconcile.Request {
	result := cmp.Or(c.Publisher.Result(), &gateway.Result{})
	if group := result.Services[objectName(o)].Group; group.Name != "" {
		return requests(group)
	}
	return nil
}

// groupsOfTailnet returns the groups of a tailnet.
func (c *groupReconciler) groupsOfTailnet(_ context.Context, o client.Object) (out []reconcile.Request) {
	for name, report := range cmp.Or(c.Publisher.Result(), &gateway.Result{}).Groups {
		if report.Tailnet == o.GetName() {
			out = append(out, requests(name)...)
		}
	}
	return out
}

// groupServiceChanged selects the changes of a service that affect the configuration of relays.
func groupServiceChanged(was, is *v1alpha1.TailscaleService) bool {
	return was.Generation != is.Generation || !deepEqual(was.Status.VIP, is.Status.VIP) || is.Spec.VIPService != nil && mayHost(was) != mayHost(is)
}

// changedGroups returns the groups whose decision changed.
func (c *groupReconciler) changedGroups(was, is *gateway.Result) (out []gateway.Name) {
	own := func(name string) gateway.Name { return gateway.Name{Namespace: c.Namespace, Name: name} }
	for name, report := range is.Groups {
		previous, ok := was.Groups[name]
		if !ok || previous != report || !slices.Equal(was.RequiredPorts[name], is.RequiredPorts[name]) {
			out = append(out, name)
		}
	}
	for name, w := range is.DesiredGroups {
		if !reflect.DeepEqual(was.DesiredGroups[name], w) {
			out = append(out, own(name))
		}
	}
	for _, name := range removedNames(was.DesiredGroups, is.DesiredGroups) {
		out = append(out, own(name))
	}
	for name, report := range is.Services { // another group may carry it now
		if previous := was.Services[name]; previous.Group != report.Group || previous.ResolvedRefs != report.ResolvedRefs {
			out = append(out, report.Group, previous.Group)
		}
	}
	for _, name := range removedNames(was.Services, is.Services) {
		out = append(out, was.Services[name].Group)
	}
	slices.SortFunc(out, gateway.Name.Compare)
	return slices.DeleteFunc(slices.Compact(out), func(n gateway.Name) bool { return n.Name == "" })
}

// Reconcile reconciles one group: gather facts, decide, act, report.
func (c *groupReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	wake, err := c.reconcileGroup(ctx, req.NamespacedName)
	return c.reconciled("proxy group "+req.String(), wake, err)
}

// manages reports whether the operator manages groups in a namespace. It may not be able to read
// other namespaces.
func (c *groupReconciler) manages(namespace string) bool {
	return namespace == c.Namespace || slices.Contains(c.ProxyNamespaces, namespace)
}
