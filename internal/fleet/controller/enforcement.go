package controller

import (
	"context"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/isolation"
)

// enforcementRetry is the requeue delay for a canary without a result.
const enforcementRetry = 10 * time.Second

// enforcementCondition reports whether the network enforces the policies, as measured by the organisation's
// canary. It deletes a canary that is no longer wanted.
func (l *enrollmentState) enforcementCondition(ctx context.Context) fleet.Condition {
	ns := fleet.NamespaceOf(l.o.e, l.o.settings.Shared)
	if l.o.settings.Canary.Image == "" {
		old := meta.FindStatusCondition(l.o.e.Status.Conditions, isolation.ConditionEnforced)
		if old != nil && old.Message != isolation.EnforcementUnknown().Message {
			err := l.deps.direct.Delete(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: isolation.CanaryName(l.o.e.Name)}})
			if client.IgnoreNotFound(err) != nil {
				// The next reconcile tries the deletion again.
				return fleet.Condition{Type: isolation.ConditionEnforced, Status: fleet.Unknown, Reason: old.Reason, Message: old.Message}
			}
		}
		return isolation.EnforcementUnknown()
	}
	var pods corev1.PodList
	if err := l.deps.direct.List(ctx, &pods, client.InNamespace(ns), client.MatchingLabels(isolation.CanaryLabels(l.o.e.Name))); err != nil {
		return isolation.EnforcementCondition(nil) // before its RoleBinding exists, the fleet may not list pods there
	}
	proof := isolation.EnforcementCondition(pods.Items)
	if proof.Status == fleet.Unknown { // a result is expected soon
		l.wake = earliest(l.wake, l.o.now.Add(enforcementRetry))
	}
	return proof
}
