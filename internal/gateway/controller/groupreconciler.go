package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/kube"
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
	direct, err := client.New(
		mgr.GetConfig(),
		client.Options{
			HTTPClient: mgr.GetHTTPClient(),
			Scheme:     mgr.GetScheme(),
			Mapper:     mgr.GetRESTMapper(),
			FieldOwner: v1alpha1.FieldManager,
		},
	)
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
	return was.Generation != is.Generation || !deepEqual(was.Status.VIP, is.Status.VIP) ||
		is.Spec.VIPService != nil && mayHost(was) != mayHost(is)
}

// changedGroups returns the groups whose decision changed.
func (c *groupReconciler) changedGroups(was, is *gateway.Result) (out []gateway.Name) {
	for name, report := range is.Groups {
		previous, ok := was.Groups[name]
		if !ok || previous != report || !slices.Equal(was.RequiredPorts[name], is.RequiredPorts[name]) {
			out = append(out, name)
		}
	}
	for _, name := range append(changedNames(was.DesiredGroups, is.DesiredGroups), removedNames(was.DesiredGroups, is.DesiredGroups)...) {
		out = append(out, gateway.Name{Namespace: c.Namespace, Name: name})
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

const maxGroupActions = 24 // per reconcile; a complete deletion of a group needs fewer

// A groupReconciliation is one reconcile of one group.
type groupReconciliation struct {
	*groupReconciler
	nextTime
	result *gateway.Result
	report gateway.GroupReport
	group  *v1alpha1.TailscaleProxyGroup // as last written
	before *v1alpha1.TailscaleProxyGroup // as read at the start

	tailnet *v1alpha1.TailscaleTailnet // nil if unknown or missing
	api     *tsapi.Client              // nil if there is none
	version tsapi.Version

	// The current objects.
	set    *appsv1.StatefulSet // nil if there is none
	pods   map[int]*corev1.Pod
	state  map[int]*corev1.Secret
	config map[int]*corev1.Secret
	certs  map[string]*corev1.Secret // those of the operator, by name
	facts  gateway.GroupFacts

	// Results of this reconcile.
	gone, existing map[string]bool // devices, according to the API
	deletedDevices map[string]bool // devices that are deleted from the tailnet
	keysDeleted    bool            // for a deletion: no unrecorded key is left
	forbidden      bool            // the namespace cannot be read now
	failure        *tsapi.Error
	blocked        bool
	conflicts      []string           // names that objects of other owners have
	omitted        []string           // services that are left out, with the reason
	allocated      int                // number of newly allocated ports
	table          *gateway.PortTable // nil if it was not read
	refused        []gateway.PortKey
	issue          map[string]bool // names of used certificates; true if the relays issue them
	retained       map[string]bool // names of certificates that must not be deleted
	issuedKeys     []issuedKey
	deleted        []string // devices
}

// reconcileGroup reconciles a group once and returns the latest time of the next reconcile.
func (c *groupReconciler) reconcileGroup(ctx context.Context, key types.NamespacedName) (time.Time, error) {
	result := c.Publisher.Result()
	if result == nil {
		return time.Time{}, nil // the first decision triggers the next reconcile
	}
	g := &v1alpha1.TailscaleProxyGroup{}
	if err := c.direct.Get(ctx, key, g); err != nil {
		if apierrors.IsNotFound(err) {
			return time.Time{}, c.createDesired(ctx, key, result)
		}
		return time.Time{}, err
	}
	report, known := result.Groups[gateway.Name(key)]
	if !known && g.DeletionTimestamp == nil {
		return time.Time{}, nil // new group without a decision
	}
	l := &groupReconciliation{
		groupReconciler: c,
		result:          result,
		report:          report,
		group:           g,
		before:          g.DeepCopy(),
		gone:            map[string]bool{},
		existing:        map[string]bool{},
		deletedDevices:  map[string]bool{},
		issue:           map[string]bool{},
		retained:        map[string]bool{},
	}
	if unused, err := l.updateDesired(ctx); unused || err != nil {
		return l.wake, err
	}
	err := l.run(ctx)
	if kube.IsStale(err) {
		return time.Time{}, err // the facts are outdated, so they are not reported
	}
	if l.group.DeletionTimestamp != nil && !controllerutil.ContainsFinalizer(l.group, v1alpha1.Finalizer) {
		c.forget(g.UID)
		return time.Time{}, err
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return time.Time{}, err // the operator stops: do not report incomplete facts
	}
	return l.wake, errors.Join(err, l.writeStatus(context.WithoutCancel(ctx), err))
}

func (l *groupReconciliation) run(ctx context.Context) error {
	if err := l.findTailnet(ctx); err != nil {
		return err
	}
	alive := l.group.DeletionTimestamp == nil && l.report.Accepted.IsTrue()
	if !l.manages(l.group.Namespace) {
		return l.leaveUnmanaged(ctx)
	}
	if err := l.gather(ctx); err != nil {
		return err
	}
	if l.forbidden {
		return l.leaveUnmanaged(ctx)
	}
	if l.group.DeletionTimestamp == nil && !alive && len(l.facts.Ordinals) > 0 {
		return l.withdrawServices(ctx)
	}
	if alive {
		if step := gateway.NextGroupStep(l.facts, l.Now()); step.Action == gateway.GroupAddFinalizer { // before any object is created
			if err := l.addFinalizer(ctx); err != nil {
				return err
			}
		}
		if err := l.applyObjects(ctx); err != nil {
			return err
		}
	}
	if err := l.runActions(ctx); err != nil {
		return err
	}
	if alive && !l.forbidden {
		return l.applyStatefulSet(ctx)
	}
	return nil
}

// runActions executes the actions that gateway.NextGroupStep returns, one after the other.
func (l *groupReconciliation) runActions(ctx context.Context) error {
	for range maxGroupActions {
		if err := l.gather(ctx); err != nil || l.forbidden {
			return err
		}
		step := gateway.NextGroupStep(l.facts, l.Now())
		if step.Action == gateway.GroupWait {
			l.requeueAt(step.Wake)
			l.blocked = step.Blocked
			if l.api == nil && l.tailnetReady() { // the client is being created, and no event reports it
				l.requeueAt(l.Now().Add(groupRequeueSoon))
			}
			return nil
		}
		l.Log.Debug("proxy group", "group", l.group.Namespace+"/"+l.group.Name, "deed", step.Action, "ordinals", step.Ordinals)
		if err := l.act(ctx, step); err != nil || step.Action == gateway.GroupRemoveFinalizer {
			return err
		}
	}
	l.requeueAt(l.Now().Add(groupRequeueSoon))
	return nil
}

// findTailnet finds the tailnet of the group and its client.
func (l *groupReconciliation) findTailnet(ctx context.Context) error {
	name := cmp.Or(l.report.Tailnet, ptr.Deref(l.group.Spec.TailnetRef, v1alpha1.TailnetReference{}).Name,
		l.group.Labels[v1alpha1.TailnetLabel]) // the label has the tailnet that was the default
	if name == "" {
		return nil
	}
	var err error
	if l.tailnet, err = find[v1alpha1.TailscaleTailnet](ctx, l.cache, client.ObjectKey{Name: name}); err != nil {
		return fmt.Errorf("get the tailnet: %w", err)
	}
	if api, version, ok := l.Clients.Get(name); ok && l.tailnet != nil && version.UID == string(l.tailnet.UID) {
		l.api, l.version = api, version
	}
	return nil
}

// tailnetReady reports whether keys can be requested for the tailnet.
func (l *groupReconciliation) tailnetReady() bool {
	return l.tailnet != nil && isReady(l.tailnet)
}

// act executes a step. It returns only Kubernetes errors; failures of Tailscale's API are recorded
// for the next decision.
func (l *groupReconciliation) act(ctx context.Context, step gateway.GroupStep) error {
	switch step.Action {
	case gateway.GroupAddFinalizer:
		return l.addFinalizer(ctx)
	case gateway.GroupRemoveFinalizer:
		return l.removeFinalizer(ctx)
	case gateway.GroupRecordDevices:
		return l.recordDevices(ctx)
	case gateway.GroupDeleteSet:
		return l.delete(ctx, l.set, client.PropagationPolicy(metav1.DeletePropagationForeground))
	case gateway.GroupRestartPods:
		for _, i := range step.Ordinals {
			l.Log.Warn("a relay's state Secret was deleted while it ran; its pod is replaced", "pod", l.pods[i].Name)
			if err := l.delete(ctx, l.pods[i]); err != nil {
				return err
			}
		}
		return nil
	case gateway.GroupRemoveUsedKeys:
		for _, i := range step.Ordinals {
			if err := l.writeKey(ctx, i, gateway.AuthKeyState{ID: l.facts.Ordinals[i].Key.ID, Until: l.facts.Ordinals[i].Key.Until}, ""); err != nil {
				return err
			}
		}
		return nil
	case gateway.GroupDeletePendingKeys:
		return l.deletePendingKeys(ctx, step.Ordinals)
	case gateway.GroupCheckDevices:
		return l.checkDevices(ctx, step.Ordinals)
	case gateway.GroupIssueKeys:
		return l.issueKeys(ctx, step.Ordinals)
	case gateway.GroupDeleteKeys:
		return l.deleteKeys(ctx, step.Ordinals)
	case gateway.GroupDeleteSecrets:
		for _, i := range step.Ordinals {
			for _, s := range []*corev1.Secret{l.config[i], l.state[i]} {
				// Delete only the version that was read: a new device in the Secret must not be
				// lost.
				if s != nil {
					if err := l.delete(ctx, s, client.Preconditions{UID: &s.UID, ResourceVersion: &s.ResourceVersion}); err != nil {
						return err
					}
				}
			}
		}
		l.keysDeleted = true // the keys were deleted first, and this operator deleted their records itself
		return nil
	case gateway.GroupDeleteDevices:
		return l.deleteDevices(ctx, step.Devices)
	}
	return fmt.Errorf("unknown action %q", step.Action)
}

// delete deletes exactly o. If o no longer exists, that is success.
func (l *groupReconciliation) delete(ctx context.Context, o client.Object, more ...client.DeleteOption) error {
	err := l.direct.Delete(ctx, o, append([]client.DeleteOption{client.Preconditions{UID: new(o.GetUID())}}, more...)...)
	return wrapError(client.IgnoreNotFound(err), "delete %s", o.GetName())
}

// addFinalizer adds the finalizer and records the tailnet, because the default tailnet may be another one
// when the group is deleted.
func (l *groupReconciliation) addFinalizer(ctx context.Context) error {
	return l.patch(ctx, "add the finalizer", func() {
		controllerutil.AddFinalizer(l.group, v1alpha1.Finalizer)
		metav1.SetMetaDataLabel(&l.group.ObjectMeta, v1alpha1.TailnetLabel, l.report.Tailnet)
	})
}

func (l *groupReconciliation) removeFinalizer(ctx context.Context) error {
	return client.IgnoreNotFound(
		l.patch(ctx, "remove the finalizer", func() { controllerutil.RemoveFinalizer(l.group, v1alpha1.Finalizer) }),
	)
}

// patch changes the metadata of the group with optimistic locking.
func (l *groupReconciliation) patch(ctx context.Context, doing string, change func()) error {
	return patchMetadata(ctx, l.direct, l.group, doing, change)
}

// leaveUnmanaged handles a group in a namespace that the operator does not manage or cannot read.
func (l *groupReconciliation) leaveUnmanaged(ctx context.Context) error {
	l.facts = gateway.GroupFacts{}
	if l.group.DeletionTimestamp == nil || !controllerutil.ContainsFinalizer(l.group, v1alpha1.Finalizer) {
		return nil
	}
	if l.group.Annotations[v1alpha1.SkipRemoteCleanupAnnotation] == "true" {
		return l.removeFinalizer(ctx)
	}
	l.blocked = true
	return nil
}
