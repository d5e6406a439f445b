package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/kube/conditions"
)

// The attachmentReconciler applies the decisions about Gateways. It makes Envoy Gateway translate
// again after a change, and it writes the status of TailscaleGateways and policies. It follows law
// 7: a status describes the actual state, not the requested one, and nothing is written unless a
// field of Tailplane differs.

// TranslationTimeout is the default time within which Envoy Gateway must request a change.
const TranslationTimeout = time.Minute

const (
	attachmentWorkers     = 4
	attachmentRequeueSoon = 200 * time.Millisecond // for a change that another process is about to make
)

// An attachmentReconciler applies the decisions of the Publisher. Fields are required unless documented
// otherwise.
type attachmentReconciler struct {
	*Runner
	TranslationTimeout time.Duration // optional: replaces the constant TranslationTimeout
	client             client.Client

	mu      sync.Mutex
	written map[types.UID]writtenPolicy // last written policy statuses
}

// Add registers the controllers with the manager's leader.
func (c *attachmentReconciler) Add(mgr manager.Manager) error {
	c.client, c.written = mgr.GetClient(), map[types.UID]writtenPolicy{}
	options := controller.Options{MaxConcurrentReconciles: attachmentWorkers, SkipNameValidation: new(true)}
	return errors.Join(
		builder.ControllerManagedBy(mgr).Named("tailscalegateway").
			For(&v1alpha1.TailscaleGateway{}).Owns(&v1alpha1.TailscaleRoutePolicy{}).Owns(&v1alpha1.TailscaleService{}).
			WatchesRawSource(c.Publisher.Changes(func(was, is *gateway.Result) []gateway.Name {
				if was == is { // a fault affects all attachments
					return slices.Collect(maps.Keys(is.Attachments))
				}
				return changedNames(was.Attachments, is.Attachments)
			})).
			WithOptions(options).Complete(reconcile.Func(c.reconcileAttachment)),
		builder.ControllerManagedBy(mgr).Named("tailscaleroutepolicy").
			For(&v1alpha1.TailscaleRoutePolicy{}).
			WatchesRawSource(c.Publisher.Changes(func(was, is *gateway.Result) []gateway.Name { return changedNames(was.Policies, is.Policies) })).
			WithOptions(options).Complete(reconcile.Func(c.reconcilePolicy)),
		builder.ControllerManagedBy(mgr).Named("gateway").
			Watches(&v1alpha1.TailscaleRoutePolicy{}, handler.EnqueueRequestsFromMapFunc(bareGatewayOf)).
			WatchesRawSource(c.Publisher.Changes(func(was, is *gateway.Result) []gateway.Name {
				before, now := was.Snapshot.Gateways, is.Snapshot.Gateways
				return append(removedNames(before, now), changedNames(before, now)...)
			})).
			WithOptions(options).Complete(reconcile.Func(c.reconcileBareGateway)),
	)
}

// requeueIfStale requeues soon if the object was stale, and otherwise returns the error.
func requeueIfStale(err error) (reconcile.Result, error) {
	if kube.IsStale(err) {
		return reconcile.Result{RequeueAfter: attachmentRequeueSoon}, nil
	}
	return reconcile.Result{}, err
}

// writtenPolicy is the last written status of a policy. Envoy Gateway erases the status when it writes
// its own part, including the transition times.
type writtenPolicy struct {
	name       types.NamespacedName
	generation int64
	conditions []metav1.Condition
	at         time.Time
}

// reconcilePolicy writes the status of a policy.
func (c *attachmentReconciler) reconcilePolicy(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var p v1alpha1.TailscaleRoutePolicy
	err := c.client.Get(ctx, req.NamespacedName, &p)
	if apierrors.IsNotFound(err) {
		c.forgetPolicy(req.NamespacedName)
	}
	if err != nil || p.DeletionTimestamp != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	result := c.Publisher.Result()
	if result == nil {
		return reconcile.Result{}, nil
	}
	report, decided := result.Policies[gateway.Name(req.NamespacedName)]
	if !decided || !c.Publisher.Includes(&p) {
		return reconcile.Result{RequeueAfter: attachmentRequeueSoon}, nil // the last decision does not include this generation
	}
	c.mu.Lock()
	last, previous := c.written[p.UID]
	c.mu.Unlock()
	now := c.Now()
	before := p.Status.Conditions
	if previous {
		before = slices.Concat(before, last.conditions) // if a type occurs twice, the first one counts
	}
	latest := conditionsOf(p.Generation, now, before, reportConditions(report.Accepted, report.ResolvedRefs, report.Programmed))
	if p.Status.ObservedGeneration == p.Generation && equalLists(p.Status.Rules, report.Rules) && equalLists(ownConditions(p.Status.Conditions), latest) {
		return reconcile.Result{}, nil
	}
	if wait := attachmentRequeueSoon - now.Sub(last.at); previous && wait > 0 && wait <= attachmentRequeueSoon {
		return reconcile.Result{RequeueAfter: wait}, nil // limit the rate of rewrites if another party also writes the status
	}
	status := v1alpha1.TailscaleRoutePolicyStatus{ObservedGeneration: p.Generation, Rules: report.Rules, Conditions: latest}
	if err := applyStatus(ctx, c.client, v1alpha1.FieldManager, "TailscaleRoutePolicy", &p, &status); err != nil {
		return requeueIfStale(fmt.Errorf("write the status of the policy %s: %w", req, err))
	}
	if previous && last.generation == p.Generation && len(p.Status.Conditions) == 0 && c.OnRestore != nil {
		c.OnRestore()
	}
	c.mu.Lock()
	c.written[p.UID] = writtenPolicy{req.NamespacedName, p.Generation, latest, now}
	c.mu.Unlock()
	return reconcile.Result{}, nil
}

func (c *attachmentReconciler) forgetPolicy(at types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.written, func(_ types.UID, w writtenPolicy) bool { return w.name == at })
}

func equalLists[T any](a, b []T) bool {
	return len(a) == 0 && len(b) == 0 || deepEqual(a, b)
}

// ownConditions returns the conditions of the types that Tailplane writes.
func ownConditions(all []metav1.Condition) (out []metav1.Condition) {
	for _, c := range all {
		switch c.Type {
		case v1alpha1.ConditionAccepted, v1alpha1.ConditionResolvedRefs, v1alpha1.ConditionProgrammed, v1alpha1.ConditionReady, v1alpha1.ConditionDegraded:
			out = append(out, c)
		}
	}
	slices.SortStableFunc(out, func(a, b metav1.Condition) int { return cmp.Compare(a.Type, b.Type) })
	return out
}

// reportConditions returns the conditions of a decision and the summary Ready.
func reportConditions(accepted, resolved, programmed conditions.Condition) map[string]conditions.Condition {
	all := map[string]conditions.Condition{v1alpha1.ConditionAccepted: accepted, v1alpha1.ConditionResolvedRefs: resolved, v1alpha1.ConditionProgrammed: programmed}
	all[v1alpha1.ConditionReady] = firstFailing(accepted, resolved, programmed, conditions.True(v1alpha1.ReasonReady, ""))
	return all
}

// firstFailing returns the first condition that is not true, or the last one.
func firstFailing(all ...conditions.Condition) conditions.Condition {
	for _, c := range all {
		if !c.IsTrue() {
			return c
		}
	}
	return all[len(all)-1]
}

// conditionsOf returns the conditions for a status. Their transition times stay if the conditions before have the same
// status.
func conditionsOf(generation int64, now time.Time, before []metav1.Condition, decided map[string]conditions.Condition) []metav1.Condition {
	var all []metav1.Condition
	for kind, v := range decided {
		if was := meta.FindStatusCondition(before, kind); was != nil {
			all = append(all, *was)
		}
		if v.IsZero() {
			v = conditions.False(v1alpha1.ReasonPending, "")
		}
		conditions.Set(&all, kind, v, generation, now)
	}
	return ownConditions(all)
}
