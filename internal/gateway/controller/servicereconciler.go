package controller

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
)

// The serviceReconciler maintains the objects of a TailscaleService. For egress these are the
// Services and EndpointSlices through which the cluster reaches a tailnet. For ingress it is the
// tailnet service. It follows law 7: it does not touch objects of other owners. A relay is an
// endpoint only if it has reported that it carries the service. An external object is recorded
// before it is created.

const (
	unreadableRequeue = 10 * time.Second // while the relays of a service cannot be read
	serviceWorkers    = 8
)

// A serviceReconciler reconciles services.
type serviceReconciler struct {
	*Runner
	operatorID, instance string // identify this operator to other operators; see identifyOperator

	client client.Client // reads from the caches, except objects such as Secrets that it may not watch
	cached client.Reader // reads from the caches
	direct client.Reader // reads from the API server
	events events.EventRecorder

	mu      sync.Mutex
	vips    map[types.NamespacedName]*vipState
	states  map[types.NamespacedName]relayState     // by Secret
	written map[types.NamespacedName]writtenService // by Service
}

// Add registers the controller with the manager's leader. It reconciles the decisions of the
// Publisher. It watches only the metadata of Secrets and Services.
func (c *serviceReconciler) Add(mgr manager.Manager) error {
	c.client, c.cached, c.direct, c.events = mgr.GetClient(), mgr.GetCache(), mgr.GetAPIReader(), mgr.GetEventRecorder(v1alpha1.FieldManager)
	c.vips, c.states, c.written = map[types.NamespacedName]*vipState{}, map[types.NamespacedName]relayState{}, map[types.NamespacedName]writtenService{}
	state := predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetLabels()[v1alpha1.SecretTypeLabel] == v1alpha1.SecretTypeState })
	return builder.ControllerManagedBy(mgr).
		Named("tailscaleservice").
		For(&v1alpha1.TailscaleService{}, specOrAnnotationChanged()).
		Watches(&v1alpha1.TailscaleProxyGroup{}, handler.EnqueueRequestsFromMapFunc(c.servicesOfGroup), changed(serviceGroupChanged)).
		Watches(&v1alpha1.TailscaleTailnet{}, handler.EnqueueRequestsFromMapFunc(c.servicesOfTailnet), changed(tailnetChanged)).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(c.servicesOfRelay), builder.WithPredicates(managed), changed(podChanged)).
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(c.servicesOfRelay), builder.OnlyMetadata, builder.WithPredicates(state)).
		Watches(&corev1.Service{}, handler.EnqueueRequestsFromMapFunc(c.serviceOfObject), builder.OnlyMetadata).
		Watches(&discoveryv1.EndpointSlice{}, handler.EnqueueRequestsFromMapFunc(c.serviceOfObject), builder.WithPredicates(managed)).
		WatchesRawSource(c.Publisher.Changes(func(was, is *gateway.Result) []gateway.Name { return changedNames(was.Services, is.Services) })).
		WithOptions(reconcileOptions(serviceWorkers)).
		Complete(c)
}

// servicesOfGroup returns the services that a group carries.
func (c *serviceReconciler) servicesOfGroup(_ context.Context, o client.Object) []reconcile.Request {
	return c.servicesOn(objectName(o))
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
	for name, report := range cmp.Or(c.Publisher.Result(), &gateway.Result{}).Services {
		if which(report) {
			out = append(out, requests(name)...)
		}
	}
	return out
}

// serviceOfObject returns the service for which a Service or an EndpointSlice was created. For a Service of
// another owner, it returns the service with the same name, which may be in conflict with it.
// Conflicts under another name are found by a periodic reconcile.
func (c *serviceReconciler) serviceOfObject(_ context.Context, o client.Object) []reconcile.Request {
	of := objectName(o)
	if namespace, name, ok := parseServiceAnnotation(o); ok {
		of = gateway.Name{Namespace: namespace, Name: name}
	}
	if _, ok := cmp.Or(c.Publisher.Result(), &gateway.Result{}).Services[of]; ok {
		return requests(of)
	}
	return nil
}

func serviceGroupChanged(was, is *v1alpha1.TailscaleProxyGroup) bool {
	return was.Generation != is.Generation || was.UID != is.UID || !deepEqual(was.Status.Ports, is.Status.Ports) || !deepEqual(was.Status.Devices, is.Status.Devices) ||
		portsExhausted(was) != portsExhausted(is)
}

func podChanged(was, is *corev1.Pod) bool {
	return was.UID != is.UID || podServes(was) != podServes(is) || !deepEqual(was.Status.PodIPs, is.Status.PodIPs)
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
	return c.reconciled("service "+req.String(), l.wake, err)
}
