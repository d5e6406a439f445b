package controller

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/arc"
	"github.com/tailplane/tailplane/internal/fleet/isolation"
)

// namespaceTenants returns the enrollment as a tenant of its namespace, and the other tenants of that
// namespace.
func (l *enrollmentState) namespaceTenants(ctx context.Context) (own isolation.Tenant, others []isolation.Tenant, err error) {
	own = l.tenant(l.e, l.forge)
	namespace := fleet.NamespaceOf(l.e, l.deps.settings.isolation.Shared)
	if namespace != l.deps.settings.isolation.Shared {
		return own, nil, nil
	}
	var enrollments v1alpha1.RunnerEnrollmentList
	var forges v1alpha1.RunnerForgeList
	if err := errors.Join(l.deps.cached.List(ctx, &enrollments, client.UnsafeDisableDeepCopy), l.deps.cached.List(ctx, &forges, client.UnsafeDisableDeepCopy)); err != nil {
		return own, nil, err
	}
	byName := map[string]*v1alpha1.RunnerForge{}
	for i := range forges.Items {
		byName[forges.Items[i].Name] = &forges.Items[i]
	}
	for i := range enrollments.Items {
		e := &enrollments.Items[i]
		exists := fleet.NamespaceOf(e, l.deps.settings.isolation.Shared) == namespace && byName[e.Spec.Forge] != nil && mayRun(e)
		if e.Name != l.e.Name && exists && l.deps.settings.approval(e).Status == fleet.Yes {
			others = append(others, l.tenant(e, byName[e.Spec.Forge]))
		}
	}
	return own, others, nil
}

func (l *enrollmentState) tenant(e *v1alpha1.RunnerEnrollment, forge *v1alpha1.RunnerForge) isolation.Tenant {
	t := isolation.Tenant{Enrollment: e, Forge: forge}
	for _, use := range e.Spec.Pools {
		if pool := l.pools[use.Name]; pool != nil && !l.broken(e.Name, use.Name) {
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

// baselineSettings returns the settings for namespaces. Without ARC, they name a placeholder service
// account, and the caller does not apply the objects that only ARC needs.
func (l *enrollmentState) baselineSettings() isolation.Settings {
	s := l.settings
	s.CacheNamespaces = l.deps.settings.rules.CacheNamespaces
	if s.ARC.ServiceAccount == "" {
		s.ARC.Namespace, s.ARC.ServiceAccount = l.deps.settings.arcNamespace, "none"
	}
	return s
}

// checkBaseline compares the namespace with its desired state. It returns the problems that the
// caller must report.
func (l *enrollmentState) checkBaseline(ctx context.Context) ([]fleet.Failure, error) {
	if !mayRun(l.e) || l.facts.Approved.Status != fleet.Yes {
		return nil, nil
	}
	if l.forge.Spec.Type == v1alpha1.GitLab { // other organisations in the namespace may use GitHub
		if v, err := l.deps.arcCache.get(ctx, l.e.Name, false); err == nil && v.Synced {
			c, _ := arc.Choose(v.Controllers, fleet.NamespaceOf(l.e, l.deps.settings.isolation.Shared))
			l.settings.ARC = c.ARC()
		}
	}
	own, others, err := l.namespaceTenants(ctx)
	if err != nil {
		return nil, err
	}
	objects, err := isolation.Baseline(l.baselineSettings(), own, others...)
	switch {
	case errors.Is(err, isolation.ErrUnbounded):
		l.facts.Policies, l.facts.Unbounded = fleet.No, fleet.Failure{Reason: fleet.ReasonUnbounded, Message: err.Error()}
		l.facts.Namespace, l.facts.Access = fleet.No, fleet.No
		return nil, nil
	case err != nil:
		return []fleet.Failure{{Reason: reasonUnrendered, Message: err.Error()}}, nil
	}
	org := ""
	if fleet.NamespaceOf(l.e, l.deps.settings.isolation.Shared) != l.deps.settings.isolation.Shared {
		org = l.e.Name
	}
	missing := l.settings.ARC.ServiceAccount == ""
	retained := objects[:0]
	for _, o := range objects {
		if b, ok := o.(*rbacv1.RoleBinding); ok && missing && b.Name == isolation.ARCRole {
			continue
		}
		retained = append(retained, o)
	}
	l.baseline, err = l.deps.baselines.check(ctx, l.deps.direct, retained, l.e.Name, org, l.now, l.live)
	if errors.Is(err, errForeignNamespace) {
		return []fleet.Failure{{Reason: "NamespaceOfAnother", Message: err.Error()}}, nil
	}
	if err != nil {
		return nil, err
	}
	l.facts.Namespace, l.facts.Policies, l.facts.Access = l.baseline.Namespace, l.baseline.Policies, l.baseline.Access
	if missing && l.forge.Spec.Type == v1alpha1.GitHub {
		l.facts.Access = fleet.Unknown
	}
	return nil, nil
}

// readLeftovers finds out which objects of an ending enrollment are left.
func (l *enrollmentState) readLeftovers(ctx context.Context) error {
	if l.e.DeletionTimestamp.IsZero() || !hasFinalizer(l.e) {
		return nil
	}
	_, l.facts.RunnerGroups = l.remainingGroups(ctx)
	var source corev1.SecretList
	if err := l.deps.direct.List(ctx, &source, client.InNamespace(l.deps.settings.isolation.Namespace), client.MatchingLabels{v1alpha1.OrgLabel: l.e.Name}); err != nil {
		return err
	}
	l.facts.Secrets = fleet.AnswerOf(len(source.Items)+len(l.secrets) > 0)
	ns := &corev1.Namespace{}
	err := l.deps.direct.Get(ctx, client.ObjectKey{Name: fleet.OrgNamespace(l.e.Name)}, ns)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	left, err2 := listLeftovers(ctx, l.deps.direct, l.deps.settings.isolation.Shared, l.e.Name, true)
	rest, err3 := listLeftovers(ctx, l.deps.direct, l.deps.settings.isolation.Shared, l.e.Name, false)
	if err := errors.Join(err2, err3); err != nil {
		return err
	}
	l.facts.OwnNamespace = fleet.AnswerOf(err == nil && isManagedFor(ns, l.e.Name) || len(left) > 0)
	l.facts.OtherObjects = fleet.AnswerOf(len(rest) > 0)
	return nil
}
