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

// unproved is how soon a canary that has not said anything yet is asked again.
const unproved = 10 * time.Second

// enforced says whether the network keeps the policies, as the organisation's canary finds
// out. One that is not wanted any more goes.
func (l *look) enforced(ctx context.Context) fleet.Condition {
	ns := fleet.NamespaceOf(l.e, l.Isolation.Shared)
	if l.Isolation.Canary.Image == "" {
		was := meta.FindStatusCondition(l.e.Status.Conditions, isolation.Enforced)
		if was != nil && was.Message != isolation.Unproved().Message {
			err := l.direct.Delete(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: isolation.CanaryName(l.e.Name)}})
			if client.IgnoreNotFound(err) != nil {
				return fleet.Condition{Type: isolation.Enforced, Status: fleet.Unknown, Reason: was.Reason, Message: was.Message} // and again at the next look
			}
		}
		return isolation.Unproved()
	}
	var pods corev1.PodList
	if err := l.direct.List(ctx, &pods, client.InNamespace(ns), client.MatchingLabels(isolation.CanaryLabels(l.e.Name))); err != nil {
		return isolation.Proof(nil) // before the fleet has bound itself there, it may not look
	}
	proof := isolation.Proof(pods.Items)
	if proof.Status == fleet.Unknown { // it is about to say
		l.wake = earliest(l.wake, l.now.Add(unproved))
	}
	return proof
}
