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
// canary, and when to read it again; zero means no particular time. It deletes a canary that is no longer wanted.
func enforcementCondition(ctx context.Context, d deps, o *observed) (c fleet.Condition, retry time.Time) {
	ns := fleet.NamespaceOf(o.e, o.settings.Shared)
	if o.settings.Canary.Image == "" {
		old := meta.FindStatusCondition(o.e.Status.Conditions, isolation.ConditionEnforced)
		if old != nil && old.Message != isolation.EnforcementUnknown().Message {
			err := d.direct.Delete(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: isolation.CanaryName(o.e.Name)}})
			if client.IgnoreNotFound(err) != nil {
				// The next reconcile tries the deletion again.
				return fleet.Condition{Type: isolation.ConditionEnforced, Status: fleet.Unknown, Reason: old.Reason, Message: old.Message}, retry
			}
		}
		return isolation.EnforcementUnknown(), retry
	}
	var pods corev1.PodList
	if err := d.direct.List(ctx, &pods, client.InNamespace(ns), client.MatchingLabels(isolation.CanaryLabels(o.e.Name))); err != nil {
		return isolation.EnforcementCondition(nil), retry // before its RoleBinding exists, the fleet may not list pods there
	}
	c = isolation.EnforcementCondition(pods.Items)
	if c.Status == fleet.Unknown { // a result is expected soon
		retry = o.now.Add(enforcementRetry)
	}
	return c, retry
}
