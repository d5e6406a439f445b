package controller

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/kube/conditions"
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
	c.client, c.cached, c.direct, c.events = mgr.GetClient(), mgr.GetCache(), mgr.GetAPIReader(), mgr.GetEventRecorder(
		v1alpha1.FieldManager,
	)
	c.vips, c.states, c.written = map[types.NamespacedName]*vipState{}, map[types.NamespacedName]relayState{}, map[types.NamespacedName]writtenService{}
	state := predicate.NewPredicateFuncs(
		func(o client.Object) bool { return o.GetLabels()[v1alpha1.SecretTypeLabel] == v1alpha1.SecretTypeState },
	)
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
	return was.Generation != is.Generation || was.UID != is.UID || !deepEqual(was.Status.Ports, is.Status.Ports) ||
		!deepEqual(was.Status.Devices, is.Status.Devices) ||
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

// maxServiceMessage is the length of an error in a condition of a service, in characters.
const maxServiceMessage = 400

// A serviceReconciliation is one reconcile of one service. Its methods change the status in object, and report
// writes it.
type serviceReconciliation struct {
	*serviceReconciler
	object   *v1alpha1.TailscaleService // desired state
	before   *v1alpha1.TailscaleService // as last read or written
	decision gateway.ServiceReport
	nextTime

	programmed conditions.Condition
	ready      conditions.Condition
	degraded   conditions.Condition // zero leaves the condition unchanged
}

func (l *serviceReconciliation) run(ctx context.Context) error {
	if l.object.DeletionTimestamp != nil {
		return l.finalize(ctx)
	}
	result := l.Publisher.Result()
	if result == nil {
		return nil
	}
	decision, ok := result.Services[objectName(l.object)]
	if !ok || decision.Generation != l.object.Generation {
		return nil // a new decision will trigger a reconcile
	}
	l.decision = decision
	if at := decision.Group.Namespace; at != "" && (decision.Unreadable || slices.Contains(l.unreadableNamespaces(), at)) {
		return l.reportUnreadable(ctx, at)
	}
	l.ready = conditions.True(v1alpha1.ReasonReady, "")
	var err error
	if l.object.Spec.Type == v1alpha1.Ingress {
		err = l.reconcileIngress(ctx)
	} else {
		err = l.reconcileEgress(ctx)
	}
	if err != nil {
		return err // the facts are unknown, so the last status stays
	}
	l.setConditions()
	return l.report(ctx)
}

// reportUnreadable handles a service whose relays cannot be read. Its status and its endpoints stay.
func (l *serviceReconciliation) reportUnreadable(ctx context.Context, namespace string) error {
	l.requeueAt(l.Now().Add(unreadableRequeue))
	l.setCondition(v1alpha1.ConditionDegraded, conditions.True(v1alpha1.ReasonNamespaceForbidden, forbiddenMessage(namespace)))
	if conditions.Get(l.object.Status.Conditions, v1alpha1.ConditionReady).IsZero() {
		l.setCondition(v1alpha1.ConditionReady, conditions.False(v1alpha1.ReasonNamespaceForbidden, forbiddenMessage(namespace)))
	}
	return l.report(ctx)
}

// usable reports whether the service is accepted and its references are resolved.
func (l *serviceReconciliation) usable() bool {
	return l.decision.Accepted.IsTrue() && l.decision.ResolvedRefs.IsTrue()
}

// setConditions computes the conditions from the results.
func (l *serviceReconciliation) setConditions() {
	accepted, resolved := l.decision.Accepted, l.decision.ResolvedRefs
	if resolved.IsZero() {
		resolved = conditions.False(v1alpha1.ReasonPending, "references are not resolved because the service is not accepted")
	}
	if !accepted.IsTrue() || !resolved.IsTrue() {
		l.programmed = conditions.False(v1alpha1.ReasonPending, "the service is not accepted or its references are not resolved")
	}
	l.object.Status.ObservedGeneration = l.object.Generation
	l.setCondition(v1alpha1.ConditionAccepted, accepted)
	l.setCondition(v1alpha1.ConditionResolvedRefs, resolved)
	l.setCondition(v1alpha1.ConditionProgrammed, l.programmed)
	l.setCondition(v1alpha1.ConditionReady, firstFailing(accepted, resolved, l.programmed, l.ready))
	if l.degraded.IsZero() &&
		conditions.Get(l.object.Status.Conditions, v1alpha1.ConditionDegraded).Reason == v1alpha1.ReasonNamespaceForbidden {
		l.degraded = conditions.False(v1alpha1.ReasonAsExpected, "") // the relays can be read again
	}
	if !l.degraded.IsZero() {
		l.setCondition(v1alpha1.ConditionDegraded, l.degraded)
	}
}

func (l *serviceReconciliation) setCondition(kind string, v conditions.Condition) {
	conditions.Set(&l.object.Status.Conditions, kind, v, l.object.Generation, l.Now())
}

// report writes the status if it changed.
func (l *serviceReconciliation) report(ctx context.Context) error {
	if err := patchStatus(ctx, l.client, l.object, l.before, lockedPatch(l.before), "write the status"); err != nil {
		return err
	}
	l.before = l.object.DeepCopy()
	return nil
}

// setFinalizer adds or removes the finalizer. The finalizer is needed while there are objects that
// Kubernetes does not garbage-collect.
func (l *serviceReconciliation) setFinalizer(ctx context.Context, needed bool) error {
	if controllerutil.ContainsFinalizer(l.object, v1alpha1.Finalizer) == needed || needed && l.object.DeletionTimestamp != nil {
		return nil
	}
	status := l.object.Status
	next := l.before.DeepCopy()
	if needed {
		controllerutil.AddFinalizer(next, v1alpha1.Finalizer)
	} else {
		controllerutil.RemoveFinalizer(next, v1alpha1.Finalizer)
	}
	err := l.client.Patch(ctx, next, lockedPatch(l.before))
	if !needed {
		err = client.IgnoreNotFound(err)
	}
	if err != nil {
		return fmt.Errorf("write the finalizer: %w", err)
	}
	l.object = next
	l.before = next.DeepCopy()
	l.object.Status = status
	return nil
}

// finalize deletes what Kubernetes does not garbage-collect, and then removes the finalizer.
func (l *serviceReconciliation) finalize(ctx context.Context) error {
	if !controllerutil.ContainsFinalizer(l.object, v1alpha1.Finalizer) {
		return nil
	}
	l.object.Status.ObservedGeneration = l.object.Generation
	if e := l.object.Status.Egress; e != nil && e.Service != "" {
		if err := l.deleteFront(ctx, e.Service); err != nil {
			return err
		}
	}
	if v := l.object.Status.VIP; v != nil && v.Name != "" {
		gone, err := l.releaseVIP(ctx, v.Tailnet, v.Name)
		switch skip := l.object.Annotations[v1alpha1.SkipRemoteCleanupAnnotation] == "true"; {
		case err != nil && skip:
			l.Log.Warn(
				"keeping a tailnet service, because its annotation skips the cleanup",
				"service",
				objectName(l.object).String(),
				"vip",
				v.Name,
				"tailnet",
				v.Tailnet,
				"err",
				err,
			)
		case err != nil:
			return l.reportBlocked(ctx, v, err)
		case !gone && !skip:
			l.setCondition(
				v1alpha1.ConditionReady,
				conditions.False(v1alpha1.ReasonDeleting, "its service of the tailnet is being removed"),
			)
			return l.report(ctx)
		}
	}
	return l.setFinalizer(ctx, false)
}

// reportBlocked reports why the object cannot be deleted yet.
func (l *serviceReconciliation) reportBlocked(ctx context.Context, v *v1alpha1.VIPStatus, why error) error {
	reason, wait := failureReason(why)
	l.requeueAt(l.Now().Add(wait))
	message := fmt.Sprintf(
		"%s of the tailnet %s cannot be removed: %s; the annotation %s: \"true\" skips this cleanup",
		v.Name,
		v.Tailnet,
		conditions.Truncate(why.Error(), maxServiceMessage),
		v1alpha1.SkipRemoteCleanupAnnotation,
	)
	// The object may have been degraded for the same reason before its deletion.
	ready, was := conditions.Get(
		l.object.Status.Conditions,
		v1alpha1.ConditionReady,
	), conditions.Get(
		l.object.Status.Conditions,
		v1alpha1.ConditionDegraded,
	)
	if ready.Reason != v1alpha1.ReasonDeleting || was.Reason != reason || !was.IsTrue() {
		l.events.Eventf(l.object, nil, corev1.EventTypeWarning, "CleanupBlocked", "Delete", "%s", message)
	}
	l.setCondition(v1alpha1.ConditionDegraded, conditions.True(reason, conditions.Truncate(why.Error(), maxServiceMessage)))
	l.setCondition(v1alpha1.ConditionReady, conditions.False(v1alpha1.ReasonDeleting, message))
	return l.report(ctx)
}

// forget removes the state of a deleted object.
func (c *serviceReconciler) forget(key types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.vips, key)
	maps.DeleteFunc(c.written, func(_ types.NamespacedName, w writtenService) bool {
		return w.want.Annotations[serviceAnnotation] == key.String()
	})
}

// carryingGroup returns the group that carries the service, or nil if it does not exist yet.
func (l *serviceReconciliation) carryingGroup(ctx context.Context) (*v1alpha1.TailscaleProxyGroup, error) {
	if l.decision.Group.Name == "" {
		return nil, nil
	}
	g, err := find[v1alpha1.TailscaleProxyGroup](ctx, l.client, types.NamespacedName(l.decision.Group))
	return g, wrapError(err, "get the proxy group %s", l.decision.Group)
}

// portsExhausted reports whether a group has no free ports.
func portsExhausted(g *v1alpha1.TailscaleProxyGroup) bool {
	c := conditions.Get(g.Status.Conditions, v1alpha1.ConditionAccepted)
	return !c.IsTrue() && c.Reason == v1alpha1.ReasonPortsExhausted
}
