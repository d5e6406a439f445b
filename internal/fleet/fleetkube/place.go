package fleetkube

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/arc"
	"github.com/tailplane/tailplane/internal/fleet/fleetkube/furnish"
	"github.com/tailplane/tailplane/internal/fleet/isolation"
)

// bind gives the fleet its rights in a namespace that it made, should they have been
// lost: without them it cannot even look there.
func (l *look) bind(ctx context.Context, namespace string) error {
	b := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: isolation.FleetRole, Labels: map[string]string{v1alpha1.ManagedByLabel: v1alpha1.ManagedBy}},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: isolation.FleetRole},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: l.Isolation.Account, Namespace: l.Isolation.Namespace}}}
	if namespace == fleet.OrgNamespace(l.e.Name) {
		b.Labels[v1alpha1.OrgLabel] = l.e.Name
	}
	if err := l.direct.Create(ctx, b); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("bind the fleet in %s: %w", namespace, err)
	}
	return nil
}

// tenants are those for whom the namespace of this enrollment is.
func (l *look) tenants(ctx context.Context) ([]isolation.Tenant, error) {
	var enrollments v1alpha1.RunnerEnrollmentList
	var forges v1alpha1.RunnerForgeList
	if err := errors.Join(l.known.List(ctx, &enrollments), l.known.List(ctx, &forges)); err != nil {
		return nil, err
	}
	byName := map[string]*v1alpha1.RunnerForge{}
	for i := range forges.Items {
		byName[forges.Items[i].Name] = &forges.Items[i]
	}
	namespace := fleet.NamespaceOf(l.e, l.Isolation.Shared)
	var all []isolation.Tenant
	for i := range enrollments.Items {
		e := &enrollments.Items[i]
		if e.Name == l.e.Name {
			e = l.e
		}
		if fleet.NamespaceOf(e, l.Isolation.Shared) != namespace || byName[e.Spec.Forge] == nil || !stays(e) || l.approved(e).Status != fleet.Yes {
			continue
		}
		t := isolation.Tenant{Enrollment: e, Forge: byName[e.Spec.Forge]}
		for _, use := range e.Spec.Pools {
			if pool := l.pools[use.Name]; pool != nil && !l.broken(e.Name, use.Name) {
				t.Pools = append(t.Pools, pool)
			}
		}
		if e != l.e { // what is wrong with another one does not keep this one from its own
			if _, err := isolation.Ground(l.groundSettings(), t); err != nil {
				continue
			}
		}
		all = append(all, t)
	}
	return all, nil
}

// stays says whether something of an enrollment may still run.
func stays(e *v1alpha1.RunnerEnrollment) bool {
	o := e.Status.Offboard
	if e.DeletionTimestamp.IsZero() || o == nil {
		return true
	}
	return o.Step == v1alpha1.StepStopIntake || o.Step == v1alpha1.StepDrain || o.Step == v1alpha1.StepDeregister
}

// groundSettings are the settings for namespaces: without ARC, what it needs there is
// rendered for nobody, and not made.
func (l *look) groundSettings() isolation.Settings {
	s := l.settings
	if s.ARC.ServiceAccount == "" {
		s.ARC.Namespace, s.ARC.ServiceAccount = l.ARCNamespace, "none"
	}
	return s
}

// lookAtGround compares the namespace with what it is to be.
func (l *look) lookAtGround(ctx context.Context) error {
	if !stays(l.e) || l.facts.Approved.Status != fleet.Yes {
		return nil
	}
	if l.forge.Spec.Type == v1alpha1.GitLab { // others there may be at GitHub
		if v, err := l.crew.arc.Look(ctx, l.e.Name, false); err == nil && v.Known {
			c, _ := arc.Choose(v.Controllers, fleet.NamespaceOf(l.e, l.Isolation.Shared))
			l.settings.ARC = c.ARC()
		}
	}
	tenants, err := l.tenants(ctx)
	if err != nil || len(tenants) == 0 {
		return err
	}
	objects, err := isolation.Ground(l.groundSettings(), tenants...)
	switch {
	case errors.Is(err, isolation.ErrUnbounded):
		l.facts.Policies, l.facts.Unbounded = fleet.No, fleet.Trouble{Reason: fleet.ReasonUnbounded, Message: err.Error()}
		l.facts.Namespace, l.facts.Access = fleet.No, fleet.No
		return nil
	case err != nil:
		l.troubles = append(l.troubles, fleet.Trouble{Reason: reasonUnrendered, Message: err.Error()})
		return nil
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
	l.ground, err = furnish.LookAt(ctx, l.direct, kept, org)
	if errors.Is(err, furnish.ErrForeign) {
		l.troubles = append(l.troubles, fleet.Trouble{Reason: "NamespaceOfAnother", Message: err.Error()})
		return nil
	}
	if err != nil {
		return err
	}
	l.facts.Namespace, l.facts.Policies, l.facts.Access = l.ground.Namespace, l.ground.Policies, l.ground.Access
	if lacks && l.forge.Spec.Type == v1alpha1.GitHub {
		l.facts.Access = fleet.Unknown
	}
	return nil
}

// ends finds out what is left of an enrollment that ends.
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
	left, err2 := l.leftInShared(ctx, true)
	rest, err3 := l.leftInShared(ctx, false)
	if err := errors.Join(err2, err3); err != nil {
		return err
	}
	l.facts.OwnNamespace = fleet.Is(err == nil && furnish.Ours(ns, l.e.Name) || len(left) > 0)
	l.facts.AnythingElse = fleet.Is(len(rest) > 0)
	return nil
}

// leftInShared are the objects of the organisation in the shared namespace: those that
// the fleet keeps there for it, or else all others but Secrets.
func (l *look) leftInShared(ctx context.Context, kept bool) (left []*unstructured.Unstructured, err error) {
	shared := &corev1.Namespace{}
	err = l.direct.Get(ctx, client.ObjectKey{Name: l.Isolation.Shared}, shared)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	namespaced, _ := furnish.Kinds()
	for _, kind := range namespaced {
		keeps := kind.Kind != "Pod" && kind.Kind != "Deployment" && kind.Kind != "Secret"
		if kind.Kind == "Secret" || keeps != kept {
			continue
		}
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		if err := l.direct.List(ctx, list, client.InNamespace(l.Isolation.Shared), client.MatchingLabels{v1alpha1.OrgLabel: l.e.Name}); err != nil {
			return nil, fmt.Errorf("look for what is left: %w", err)
		}
		for i := range list.Items {
			left = append(left, &list.Items[i])
		}
	}
	return left, nil
}
