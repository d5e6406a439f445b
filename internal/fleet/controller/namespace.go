package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/arc"
	"github.com/tailplane/tailplane/internal/fleet/isolation"
)

// namespaceTenants returns the enrollment as a tenant of its namespace, and the other tenants of that
// namespace.
func namespaceTenants(ctx context.Context, d deps, o *observed) (own isolation.Tenant, others []isolation.Tenant, err error) {
	own = o.tenant(o.e, o.forge)
	namespace := fleet.NamespaceOf(o.e, o.settings.Shared)
	if namespace != o.settings.Shared {
		return own, nil, nil
	}
	var enrollments v1alpha1.RunnerEnrollmentList
	var forges v1alpha1.RunnerForgeList
	err = errors.Join(
		d.cached.List(ctx, &enrollments, client.UnsafeDisableDeepCopy),
		d.cached.List(ctx, &forges, client.UnsafeDisableDeepCopy),
	)
	if err != nil {
		return own, nil, err
	}
	byName := fleet.ByName(forges.Items)
	for i := range enrollments.Items {
		e := &enrollments.Items[i]
		exists := fleet.NamespaceOf(e, o.settings.Shared) == namespace && byName[e.Spec.Forge] != nil && mayRun(e)
		if e.Name != o.e.Name && exists && d.settings.approval(e).Status == fleet.Yes {
			others = append(others, o.tenant(e, byName[e.Spec.Forge]))
		}
	}
	return own, others, nil
}

func (o *observed) tenant(e *v1alpha1.RunnerEnrollment, forge *v1alpha1.RunnerForge) isolation.Tenant {
	t := isolation.Tenant{Enrollment: e, Forge: forge}
	for _, use := range e.Spec.Pools {
		if pool := o.pools[use.Name]; pool != nil && !o.broken(e.Name, use.Name) {
			t.Pools = append(t.Pools, pool)
		}
	}
	return t
}

// mayRun reports whether a part of an enrollment may still run.
func mayRun(e *v1alpha1.RunnerEnrollment) bool {
	o := e.Status.Offboard
	if e.DeletionTimestamp.IsZero() || o == nil {
		return true
	}
	return o.Step == v1alpha1.StepStopIntake || o.Step == v1alpha1.StepDrain || o.Step == v1alpha1.StepDeregister
}

// A baselineResult is the state of the namespace of the runners. Its answers are unknown if it was not compared.
type baselineResult struct {
	baselineState
	unbounded fleet.Failure   // why the policies cannot restrict the jobs
	failures  []fleet.Failure // to report
}

// checkBaseline compares the namespace with its desired state.
func checkBaseline(ctx context.Context, d deps, o *observed) (r baselineResult, err error) {
	if !mayRun(o.e) || o.facts.Approved.Status != fleet.Yes {
		return r, nil
	}
	own, others, err := namespaceTenants(ctx, d, o)
	if err != nil {
		return r, err
	}
	settings := o.settings
	settings.CacheNamespaces = d.settings.rules.CacheNamespaces
	missing := settings.ARC.ServiceAccount == ""
	if missing { // a placeholder; the objects that only ARC needs are not applied
		settings.ARC.Namespace, settings.ARC.ServiceAccount = d.settings.arcNamespace, "none"
	}
	objects, err := isolation.Baseline(settings, own, others...)
	switch {
	case errors.Is(err, isolation.ErrUnbounded):
		r.Namespace, r.Policies, r.Access = fleet.No, fleet.No, fleet.No
		r.unbounded = fleet.Failure{Reason: fleet.ReasonUnbounded, Message: err.Error()}
		return r, nil
	case err != nil:
		r.failures = []fleet.Failure{{Reason: reasonUnrendered, Message: err.Error()}}
		return r, nil
	}
	org := ""
	if fleet.NamespaceOf(o.e, o.settings.Shared) != o.settings.Shared {
		org = o.e.Name
	}
	retained := objects[:0]
	for _, x := range objects {
		if b, ok := x.(*rbacv1.RoleBinding); ok && missing && b.Name == isolation.ARCRole {
			continue
		}
		retained = append(retained, x)
	}
	r.baselineState, err = d.baselines.check(ctx, d.direct, retained, o.e.Name, org, o.now, o.live)
	if errors.Is(err, errForeignNamespace) {
		return baselineResult{failures: []fleet.Failure{{Reason: "NamespaceOfAnother", Message: err.Error()}}}, nil
	}
	if err != nil {
		return baselineResult{}, err
	}
	if missing && o.forge.Spec.Type == v1alpha1.GitHub {
		r.Access = fleet.Unknown
	}
	return r, nil
}

// arcOfNamespace returns the ARC that serves the namespace of a GitLab enrollment: other organisations in it may use
// GitHub.
func arcOfNamespace(ctx context.Context, d deps, o *observed) isolation.ARC {
	if mayRun(o.e) && o.facts.Approved.Status == fleet.Yes {
		if v, err := d.arcCache.get(ctx, o.e.Name, false); err == nil && v.Synced {
			c, _ := arc.Choose(v.Controllers, fleet.NamespaceOf(o.e, o.settings.Shared))
			return c.ARC()
		}
	}
	return o.settings.ARC
}

// readLeftovers finds out which objects of an ending enrollment are left.
func readLeftovers(ctx context.Context, d deps, o *observed) error {
	if o.e.DeletionTimestamp.IsZero() || !hasFinalizer(o.e) {
		return nil
	}
	_, o.facts.RunnerGroups = remainingGroups(ctx, o)
	var source corev1.SecretList
	where := []client.ListOption{client.InNamespace(o.settings.Namespace), client.MatchingLabels{v1alpha1.OrgLabel: o.e.Name}}
	if err := d.direct.List(ctx, &source, where...); err != nil {
		return err
	}
	o.facts.Secrets = fleet.AnswerOf(len(source.Items)+len(o.secrets) > 0)
	ns := &corev1.Namespace{}
	err := d.direct.Get(ctx, client.ObjectKey{Name: fleet.OrgNamespace(o.e.Name)}, ns)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	left, err2 := listLeftovers(ctx, d.direct, o.settings.Shared, o.e.Name, true)
	rest, err3 := listLeftovers(ctx, d.direct, o.settings.Shared, o.e.Name, false)
	if err := errors.Join(err2, err3); err != nil {
		return err
	}
	o.facts.OwnNamespace = fleet.AnswerOf(err == nil && isManagedFor(ns, o.e.Name) || len(left) > 0)
	o.facts.OtherObjects = fleet.AnswerOf(len(rest) > 0)
	return nil
}

// listLeftovers returns the objects of an organisation in the shared namespace. With retained it returns the
// objects that the fleet manages there for the organisation. Otherwise it returns pods and
// Deployments. It never returns Secrets.
func listLeftovers(ctx context.Context, c client.Reader, shared, org string, retained bool) (left []unstructured.Unstructured, err error) {
	ns := &corev1.Namespace{}
	err = c.Get(ctx, client.ObjectKey{Name: shared}, ns)
	if err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	namespaced, _ := baselineKinds()
	for _, kind := range namespaced {
		keeps := kind.Kind != "Pod" && kind.Kind != "Deployment" && kind.Kind != "Secret"
		if kind.Kind == "Secret" || keeps != retained {
			continue
		}
		list := newList(kind)
		if err := c.List(ctx, list, client.InNamespace(shared), client.MatchingLabels{v1alpha1.OrgLabel: org}); err != nil {
			return nil, fmt.Errorf("list remaining objects: %w", err)
		}
		left = append(left, list.Items...)
	}
	return left, nil
}

// toUnstructured converts an object of a kind to its unstructured form; nil for nil.
func toUnstructured[T any](o *T, kind schema.GroupVersionKind) *unstructured.Unstructured {
	if o == nil {
		return nil
	}
	out, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil
	}
	u := &unstructured.Unstructured{Object: out}
	u.SetGroupVersionKind(kind)
	return u
}

// enforcementRetry is the requeue delay for a canary without a result.
const enforcementRetry = 10 * time.Second

// enforcementCondition reports whether the network enforces the policies, as measured by the organisation's
// canary, and when to read it again; zero means no particular time. It deletes a canary that is no longer wanted.
func enforcementCondition(ctx context.Context, d deps, o *observed) (c fleet.Condition, retry time.Time) {
	ns := fleet.NamespaceOf(o.e, o.settings.Shared)
	if o.settings.Canary.Image == "" {
		old := meta.FindStatusCondition(o.e.Status.Conditions, isolation.ConditionEnforced)
		if old != nil && old.Message != isolation.EnforcementUnknown().Message {
			err := d.direct.Delete(
				ctx,
				&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: isolation.CanaryName(o.e.Name)}},
			)
			if client.IgnoreNotFound(err) != nil {
				// The next reconcile tries the deletion again.
				return fleet.Condition{
					Type:    isolation.ConditionEnforced,
					Status:  fleet.Unknown,
					Reason:  old.Reason,
					Message: old.Message,
				}, retry
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
