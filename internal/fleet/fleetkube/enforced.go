package fleetkube

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

// unproved is the requeue delay for a canary without a result.
const unproved = 10 * time.Second

// enforced reports whether the network enforces the policies, as measured by the organisation's
// canary. It deletes a canary that is no longer wanted.
func (l *look) enforced(ctx context.Context) fleet.Condition {
	ns := fleet.NamespaceOf(l.e, l.Isolation.Shared)
	if l.Isolation.Canary.Image == "" {
		was := meta.FindStatusCondition(l.e.Status.Conditions, isolation.Enforced)
		if was != nil && was.Message != isolation.Unproved().Message {
			err := l.direct.Delete(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: isolation.CanaryName(l.e.Name)}})
			if client.IgnoreNotFound(err) != nil {
				// The next reconcile tries the deletion again.
				return fleet.Condition{Type: isolation.Enforced, Status: fleet.Unknown, Reason: was.Reason, Message: was.Message}
			}
		}
		return isolation.Unproved()
	}
	var pods corev1.PodList
	if err := l.direct.List(ctx, &pods, client.InNamespace(ns), client.MatchingLabels(isolation.CanaryLabels(l.e.Name))); err != nil {
		return isolation.Proof(nil) // before its RoleBinding exists, the fleet may not list pods there
	}
	proof := isolation.Proof(pods.Items)
	if proof.Status == fleet.Unknown { // a result is expected soon
		l.wake = earliest(l.wake, l.now.Add(unproved))
	}
	return proof
}
