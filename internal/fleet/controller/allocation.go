package controller

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/isolation"
)

// reconcileAllocation evaluates the rules and allocates the budgets for all enrollments.
func (w *reconciler) reconcileAllocation(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	v, err := w.view(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	conflicts := w.deps.arcCache.conflicts()
	now, startedAt := w.deps.now(), time.Now()
	old, is := w.deps.state.allocate(v, func(e *v1alpha1.RunnerEnrollment) bool { return w.deps.settings.approval(e).Status == fleet.Yes }, conflicts, now)
	if w.onAllocation != nil {
		w.onAllocation(time.Since(startedAt))
	}
	w.enqueueChanged(old, is)
	if is.Wake.IsZero() {
		return reconcile.Result{}, nil
	}
	return requeueIn(is.Wake.Sub(now))
}

// enqueueChanged triggers a reconcile of the enrollments and pools whose decisions have changed.
func (w *reconciler) enqueueChanged(old, is *allocation) {
	if old == nil {
		old = &allocation{}
	}
	for name, version := range is.Versions {
		switch {
		case old.Versions[name] != version: // its reconcile waits for this decision
			w.deps.triggers.enrollment.enqueueNow(name)
		case old.Pruned[name] != is.Pruned[name] || !slices.Equal(old.Violations[name], is.Violations[name]):
			w.deps.triggers.enrollment.enqueue(name)
		}
	}
	for use, share := range is.Shares {
		if old.Shares[use] != share {
			w.deps.triggers.enrollment.enqueue(use.Org)
		}
	}
	for name, pool := range is.Pools {
		if old.Pools[name] != pool {
			w.deps.triggers.pool.enqueue(name)
		}
	}
	for name := range old.Pools {
		if _, still := is.Pools[name]; !still {
			w.deps.triggers.pool.enqueue(name)
		}
	}
}

// view collects the input for the cross-object rules.
func (w *reconciler) view(ctx context.Context) (fleet.View, error) {
	var forges v1alpha1.RunnerForgeList
	var pools v1alpha1.RunnerPoolList
	var enrollments v1alpha1.RunnerEnrollmentList
	secrets := &metav1.PartialObjectMetadataList{}
	secrets.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("SecretList"))
	for _, list := range []client.ObjectList{&forges, &pools, &enrollments, secrets} {
		if err := w.deps.cached.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return fleet.View{}, err
		}
	}
	v := fleet.View{Forges: forges.Items, Pools: pools.Items, Enrollments: enrollments.Items, Rules: w.deps.settings.rules, Credentials: map[string]fleet.Credential{}, PoolFaults: map[string]string{}}
	labels := map[string]string{}
	for _, s := range secrets.Items {
		labels[s.Name] = s.Labels[v1alpha1.OrgLabel]
	}
	for _, e := range enrollments.Items {
		org, exists := labels[e.Spec.Credentials.SecretName]
		if !exists {
			continue
		}
		c := fleet.Credential{Org: org}
		if e.Status.Credential != nil && e.Status.Credential.AppID != nil {
			c.AppID = *e.Status.Credential.AppID
		}
		v.Credentials[e.Name] = c
	}
	types := map[string]v1alpha1.ForgeType{}
	for _, f := range forges.Items {
		types[f.Name] = f.Spec.Type
	}
	for i := range pools.Items {
		if fault := isolation.PoolFault(&pools.Items[i], types[pools.Items[i].Spec.Forge], w.deps.settings.isolation.Images); fault != "" {
			v.PoolFaults[pools.Items[i].Name] = fault
		}
	}
	return v, nil
}
