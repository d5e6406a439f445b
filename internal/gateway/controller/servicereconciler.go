package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
)

// The serviceReconciler maintains the objects of a TailscaleService. For egress these are the
// Services and EndpointSlices through which the cluster reaches a tailnet. For ingress it is the
// tailnet service. It follows law 7: it does not touch objects of other owners. A relay is an
// endpoint only if it has reported that it carries the service. An external object is recorded
// before it is created.

const (
	serviceReconcileTimeout = 2 * time.Minute // for one reconcile of one service, including all API requests
	maxServiceRequeue       = 10 * time.Minute
	unreadableRequeue       = 10 * time.Second // while the relays of a service cannot be read
	serviceWorkers          = 8
)

// A serviceReconciler reconciles services. Fields are required unless documented otherwise.
type serviceReconciler struct {
	Namespace          string   // the operator's namespace
	ConsumerNamespaces []string // more namespaces for the Services through which pods reach a tailnet; may be empty
	ClusterDomain      string   // such as cluster.local

	// OperatorID and Instance identify this operator to other operators; see Identify.
	OperatorID, Instance string

	Clients *tsapi.Clients // filled by the tailnet controller
	Log     *slog.Logger
	Now     func() time.Time

	// Forbidden reports whether the caches may be incomplete for a namespace. Optional.
	Forbidden func(namespace string) bool

	client    client.Client // reads from the caches, except objects such as Secrets that it may not watch
	cached    client.Reader // reads from the caches
	direct    client.Reader // reads from the API server
	events    events.EventRecorder
	publisher *Publisher

	mu      sync.Mutex
	vips    map[types.NamespacedName]*vipState
	states  map[types.NamespacedName]relayState     // by Secret
	written map[types.NamespacedName]writtenService // by Service
}

// addServiceTypes registers the kinds that the controller uses.
func addServiceTypes(s *runtime.Scheme) error {
	return errors.Join(v1alpha1.AddToScheme(s), corev1.AddToScheme(s), discoveryv1.AddToScheme(s), metav1.AddMetaToScheme(s))
}

// serviceKinds returns the kinds that the controller uses, for kube.Mapper. It watches only the metadata
// of Secrets and Services. The caches must contain the Pods, Secrets and EndpointSlices with
// v1alpha1.ManagedLabel in the namespaces of groups, and the Services of all namespaces.
func serviceKinds() (namespaced, clusterWide []schema.GroupVersionKind) {
	core := corev1.SchemeGroupVersion
	return []schema.GroupVersionKind{
			v1alpha1.GroupVersion.WithKind("TailscaleService"), v1alpha1.GroupVersion.WithKind("TailscaleProxyGroup"),
			core.WithKind("Service"), core.WithKind("Pod"), core.WithKind("Secret"), core.WithKind("ConfigMap"), discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"),
		},
		[]schema.GroupVersionKind{v1alpha1.GroupVersion.WithKind("TailscaleTailnet"), core.WithKind("Namespace")}
}

// Add registers the controller with the manager's leader. It reconciles the decisions of the
// Board.
func (c *serviceReconciler) Add(mgr manager.Manager, publisher *Publisher) error {
	if c.Namespace == "" || c.ClusterDomain == "" || c.OperatorID == "" || c.Instance == "" || c.Clients == nil || c.Log == nil || c.Now == nil || publisher == nil {
		return errors.New("the service controller lacks a setting: namespace, cluster domain, operator id, instance, clients, log, clock and publisher are required")
	}
	c.client, c.cached, c.direct, c.events, c.publisher = mgr.GetClient(), mgr.GetCache(), mgr.GetAPIReader(), mgr.GetEventRecorder(v1alpha1.FieldManager), publisher
	c.vips, c.states, c.written = map[types.NamespacedName]*vipState{}, map[types.NamespacedName]relayState{}, map[types.NamespacedName]writtenService{}
	managed := predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetLabels()[v1alpha1.ManagedLabel] == "true" })
	return builder.ControllerManagedBy(mgr).
		Named("tailscaleservice").
		For(&v1alpha1.TailscaleService{}, builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		Watches(&v1alpha1.TailscaleProxyGroup{}, handler.EnqueueRequestsFromMapFunc(c.servicesOfGroup), builder.WithPredicates(predicate.Funcs{UpdateFunc: serviceGroupChanged})).
		Watches(&v1alpha1.TailscaleTailnet{}, handler.EnqueueRequestsFromMapFunc(c.servicesOfTailnet), builder.WithPredicates(predicate.Funcs{UpdateFunc: serviceTailnetChanged})).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(c.servicesOfRelay), builder.WithPredicates(managed, predicate.Funcs{UpdateFunc: podChanged})).
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(c.servicesOfRelay), builder.OnlyMetadata, builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool {
			return o.GetLabels()[v1alpha1.SecretTypeLabel] == v1alpha1.SecretTypeState
		}))).
		Watches(&corev1.Service{}, handler.EnqueueRequestsFromMapFunc(c.serviceOfObject), builder.OnlyMetadata).
		Watches(&discoveryv1.EndpointSlice{}, handler.EnqueueRequestsFromMapFunc(c.serviceOfObject), builder.WithPredicates(managed)).
		WatchesRawSource(publisher.Changes(changedServices)).
		WithOptions(controller.Options{MaxConcurrentReconciles: serviceWorkers, ReconciliationTimeout: serviceReconcileTimeout, SkipNameValidation: new(true)}).
		Complete(c)
}

// changedServices returns the services whose decision changed.
func changedServices(was, is *gateway.Result) (out []types.NamespacedName) {
	if was == nil {
		was = &gateway.Result{}
	}
	for name, report := range is.Services {
		if previous, ok := was.Services[name]; !ok || previous != report {
			out = append(out, types.NamespacedName(name))
		}
	}
	return out
}

// servicesOfGroup returns the services that a group carries.
func (c *serviceReconciler) servicesOfGroup(_ context.Context, o client.Object) []reconcile.Request {
	return c.servicesOn(gateway.Name{Namespace: o.GetNamespace(), Name: o.GetName()})
}

// servicesOfRelay returns the services of the group to which a pod or a Secret belongs.
func (c *serviceReconciler) servicesOfRelay(_ context.Context, o client.Object) []reconcile.Request {
	return c.servicesOn(gateway.Name{Namespace: o.GetNamespace(), Name: o.GetLabels()[v1alpha1.ProxyGroupLabel]})
}

func (c *serviceReconciler) servicesOn(group gateway.Name) []reconcile.Request {
	return c.servicesWhere(func(r gateway.ServiceReport) bool { return r.Group == group })
}

// servicesOfTailnet returns the services in a tailnet.
func (c *serviceReconciler) servicesOfTailnet(_ context.Context, o client.Object) []reconcile.Request {
	return c.servicesWhere(func(r gateway.ServiceReport) bool { return r.Tailnet == o.GetName() })
}

func (c *serviceReconciler) servicesWhere(which func(gateway.ServiceReport) bool) (out []reconcile.Request) {
	result := c.publisher.Result()
	if result == nil {
		return nil // the first decision triggers all services
	}
	for name, report := range result.Services {
		if which(report) {
			out = append(out, reconcile.Request{NamespacedName: types.NamespacedName(name)})
		}
	}
	return out
}

// serviceOfObject returns the service for which a Service or an EndpointSlice was created. For a Service of
// another owner, it returns the service with the same name, which may be in conflict with it.
// Conflicts under another name are found by a periodic reconcile.
func (c *serviceReconciler) serviceOfObject(_ context.Context, o client.Object) []reconcile.Request {
	of := gateway.Name{Namespace: o.GetNamespace(), Name: o.GetName()}
	if namespace, name, ok := parseServiceAnnotation(o); ok {
		of = gateway.Name{Namespace: namespace, Name: name}
	}
	result := c.publisher.Result()
	if result == nil {
		return nil
	}
	if _, ok := result.Services[of]; !ok {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName(of)}}
}

func serviceGroupChanged(e event.UpdateEvent) bool {
	was, ok := e.ObjectOld.(*v1alpha1.TailscaleProxyGroup)
	is, ok2 := e.ObjectNew.(*v1alpha1.TailscaleProxyGroup)
	return !ok || !ok2 || was.Generation != is.Generation || was.UID != is.UID || !deepEqual(was.Status.Ports, is.Status.Ports) || !deepEqual(was.Status.Devices, is.Status.Devices) ||
		portsExhausted(was) != portsExhausted(is)
}

func serviceTailnetChanged(e event.UpdateEvent) bool {
	was, ok := e.ObjectOld.(*v1alpha1.TailscaleTailnet)
	is, ok2 := e.ObjectNew.(*v1alpha1.TailscaleTailnet)
	return !ok || !ok2 || was.Generation != is.Generation || !deepEqual(was.Status.TailnetInfo, is.Status.TailnetInfo) ||
		meta.IsStatusConditionTrue(was.Status.Conditions, v1alpha1.ConditionReady) != meta.IsStatusConditionTrue(is.Status.Conditions, v1alpha1.ConditionReady)
}

func podChanged(e event.UpdateEvent) bool {
	was, ok := e.ObjectOld.(*corev1.Pod)
	is, ok2 := e.ObjectNew.(*corev1.Pod)
	return !ok || !ok2 || was.UID != is.UID || podServes(was) != podServes(is) || !deepEqual(was.Status.PodIPs, is.Status.PodIPs)
}

// Reconcile reconciles one service: gather facts, decide, act, report.
func (c *serviceReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	o := &v1alpha1.TailscaleService{}
	if err := c.client.Get(ctx, req.NamespacedName, o); err != nil {
		if apierrors.IsNotFound(err) {
			c.forget(req.NamespacedName)
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, fmt.Errorf("get the service %s: %w", req, err)
	}
	l := &serviceReconciliation{serviceReconciler: c, object: o, before: o.DeepCopy()}
	err := l.run(ctx)
	switch {
	case kube.IsStale(err):
		return reconcile.Result{RequeueAfter: 50 * time.Millisecond}, nil // stale object: try again in a moment
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("service %s: %w", req, err)
	case l.wake.IsZero():
		return reconcile.Result{}, nil
	}
	return reconcile.Result{RequeueAfter: min(max(l.wake.Sub(c.Now()), time.Millisecond), maxServiceRequeue)}, nil
}
