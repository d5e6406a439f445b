package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/kube/conditions"
)

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
	if l.degraded.IsZero() && conditions.Get(l.object.Status.Conditions, v1alpha1.ConditionDegraded).Reason == v1alpha1.ReasonNamespaceForbidden {
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
			l.Log.Warn("keeping a tailnet service, because its annotation skips the cleanup", "service", objectName(l.object).String(), "vip", v.Name, "tailnet", v.Tailnet, "err", err)
		case err != nil:
			return l.reportBlocked(ctx, v, err)
		case !gone && !skip:
			l.setCondition(v1alpha1.ConditionReady, conditions.False(v1alpha1.ReasonDeleting, "its service of the tailnet is being removed"))
			return l.report(ctx)
		}
	}
	return l.setFinalizer(ctx, false)
}

// reportBlocked reports why the object cannot be deleted yet.
func (l *serviceReconciliation) reportBlocked(ctx context.Context, v *v1alpha1.VIPStatus, why error) error {
	reason, wait := failureReason(why)
	l.requeueAt(l.Now().Add(wait))
	message := fmt.Sprintf("%s of the tailnet %s cannot be removed: %s; the annotation %s: \"true\" skips this cleanup", v.Name, v.Tailnet, conditions.Truncate(why.Error(), maxServiceMessage), v1alpha1.SkipRemoteCleanupAnnotation)
	// The object may have been degraded for the same reason before its deletion.
	ready, was := conditions.Get(l.object.Status.Conditions, v1alpha1.ConditionReady), conditions.Get(l.object.Status.Conditions, v1alpha1.ConditionDegraded)
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
