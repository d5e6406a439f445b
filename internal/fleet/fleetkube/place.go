package fleetkube

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/arc"
	"github.com/tailplane/tailplane/internal/fleet/fleetkube/furnish"
	"github.com/tailplane/tailplane/internal/fleet/isolation"
)

// tenants returns the enrollment as a tenant of its namespace, and the other tenants of that
// namespace.
func (l *look) tenants(ctx context.Context) (own isolation.Tenant, others []isolation.Tenant, err error) {
	own = l.tenant(l.e, l.forge)
	namespace := fleet.NamespaceOf(l.e, l.Isolation.Shared)
	if namespace != l.Isolation.Shared {
		return own, nil, nil
	}
	var enrollments v1alpha1.RunnerEnrollmentList
	var forges v1alpha1.RunnerForgeList
	if err := errors.Join(l.known.List(ctx, &enrollments, client.UnsafeDisableDeepCopy), l.known.List(ctx, &forges, client.UnsafeDisableDeepCopy)); err != nil {
		return own, nil, err
	}
	byName := map[string]*v1alpha1.RunnerForge{}
	for i := range forges.Items {
		byName[forges.Items[i].Name] = &forges.Items[i]
	}
	for i := range enrollments.Items {
		e := &enrollments.Items[i]
		there := fleet.NamespaceOf(e, l.Isolation.Shared) == namespace && byName[e.Spec.Forge] != nil && stays(e)
		if e.Name != l.e.Name && there && l.approved(e).Status == fleet.Yes {
			others = append(others, l.tenant(e, byName[e.Spec.Forge]))
		}
	}
	return own, others, nil
}

func (l *look) tenant(e *v1alpha1.RunnerEnrollment, forge *v1alpha1.RunnerForge) isolation.Tenant {
	t := isolation.Tenant{Enrollment: e, Forge: forge}
	for _, use := range e.Spec.Pools {
		if pool := l.pools[use.Name]; pool != nil && !l.broken(e.Name, use.Name) {
			t.Pools = append(t.Pools, pool)
		}
	}
	return t
}

// stays reports whether a part of an enrollment may still run.
func stays(e *v1alpha1.RunnerEnrollment) bool {
	o := e.Status.Offboard
	if e.DeletionTimestamp.IsZero() || o == nil {
		return true
	}
	return o.Step == v1alpha1.StepStopIntake || o.Step == v1alpha1.StepDrain || o.Step == v1alpha1.StepDeregister
}

// groundSettings returns the settings for namespaces. Without ARC, they name a placeholder service
// account, and the caller does not apply the objects that only ARC needs.
func (l *look) groundSettings() isolation.Settings {
	s := l.settings
	s.CacheNamespaces = l.Rules.CacheNamespaces
	if s.ARC.ServiceAccount == "" {
		s.ARC.Namespace, s.ARC.ServiceAccount = l.ARCNamespace, "none"
	}
	return s
}

// lookAtGround compares the namespace with its desired state. It returns the problems that the
// caller must report.
func (l *look) lookAtGround(ctx context.Context) ([]fleet.Trouble, error) {
	if !stays(l.e) || l.facts.Approved.Status != fleet.Yes {
		return nil, nil
	}
	if l.forge.Spec.Type == v1alpha1.GitLab { // other organisations in the namespace may use GitHub
		if v, err := l.crew.arc.Look(ctx, l.e.Name, false); err == nil && v.Known {
			c, _ := arc.Choose(v.Controllers, fleet.NamespaceOf(l.e, l.Isolation.Shared))
			l.settings.ARC = c.ARC()
		}
	}
	own, others, err := l.tenants(ctx)
	if err != nil {
		return nil, err
	}
	objects, err := isolation.Ground(l.groundSettings(), own, others...)
	switch {
	case errors.Is(err, isolation.ErrUnbounded):
		l.facts.Policies, l.facts.Unbounded = fleet.No, fleet.Trouble{Reason: fleet.ReasonUnbounded, Message: err.Error()}
		l.facts.Namespace, l.facts.Access = fleet.No, fleet.No
		return nil, nil
	case err != nil:
		return []fleet.Trouble{{Reason: reasonUnrendered, Message: err.Error()}}, nil
	}
	org := ""
	if fleet.NamespaceOf(l.e, l.Isolation.Shared) != l.Isolation.Shared {
		org = l.e.Name
	}
	lacks := l.settings.ARC.ServiceAccount == ""
	kept := objects[:0]
	for _, o := range objects {
		if b, ok := o.(*rbacv1.RoleBinding); ok && lacks && b.Name == isolation.ARCRole {
			continue
		}
		kept = append(kept, o)
	}
	l.ground, err = l.grounds.LookAt(ctx, l.direct, kept, l.e.Name, org, l.now, l.live)
	if errors.Is(err, furnish.ErrForeign) {
		return []fleet.Trouble{{Reason: "NamespaceOfAnother", Message: err.Error()}}, nil
	}
	if err != nil {
		return nil, err
	}
	l.facts.Namespace, l.facts.Policies, l.facts.Access = l.ground.Namespace, l.ground.Policies, l.ground.Access
	if lacks && l.forge.Spec.Type == v1alpha1.GitHub {
		l.facts.Access = fleet.Unknown
	}
	return nil, nil
}

// ends finds out which objects of an ending enrollment are left.
func (l *look) ends(ctx context.Context) error {
	if l.e.DeletionTimestamp.IsZero() || !holds(l.e) {
		return nil
	}
	_, l.facts.RunnerGroups = l.groupsLeft(ctx)
	var source corev1.SecretList
	if err := l.direct.List(ctx, &source, client.InNamespace(l.Isolation.Namespace), client.MatchingLabels{v1alpha1.OrgLabel: l.e.Name}); err != nil {
		return err
	}
	l.facts.Secrets = fleet.Is(len(source.Items)+len(l.secrets) > 0)
	ns := &corev1.Namespace{}
	err := l.direct.Get(ctx, client.ObjectKey{Name: fleet.OrgNamespace(l.e.Name)}, ns)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	left, err2 := furnish.Left(ctx, l.direct, l.Isolation.Shared, l.e.Name, true)
	rest, err3 := furnish.Left(ctx, l.direct, l.Isolation.Shared, l.e.Name, false)
	if err := errors.Join(err2, err3); err != nil {
		return err
	}
	l.facts.OwnNamespace = fleet.Is(err == nil && furnish.Ours(ns, l.e.Name) || len(left) > 0)
	l.facts.AnythingElse = fleet.Is(len(rest) > 0)
	return nil
}
