package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
)

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
	l := &groupReconciliation{groupReconciler: c, result: result, report: report, group: g, before: g.DeepCopy(), gone: map[string]bool{}, existing: map[string]bool{}, deletedDevices: map[string]bool{},
		issue: map[string]bool{}, retained: map[string]bool{}}
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
	name := cmp.Or(l.report.Tailnet, deref(l.group.Spec.TailnetRef, v1alpha1.TailnetReference{}).Name,
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
	return client.IgnoreNotFound(l.patch(ctx, "remove the finalizer", func() { controllerutil.RemoveFinalizer(l.group, v1alpha1.Finalizer) }))
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
