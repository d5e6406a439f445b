package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/kube"
)

// reconcileEnrollment reconciles one enrollment: gather, decide, act, report.
func (w *reconciler) reconcileEnrollment(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	e := &v1alpha1.RunnerEnrollment{}
	// The forge of an enrollment never changes, so the cached value is right. Nothing is queried
	// before there is a decision, and before it is this enrollment's turn at the forge.
	if w.deps.cached.Get(ctx, req.NamespacedName, e, client.UnsafeDisableDeepCopy) == nil {
		if _, _, ok := w.deps.state.allocationFor(e); !ok {
			return w.requestAllocation()
		}
		changed := e.Status.ObservedGeneration != 0 && e.Status.ObservedGeneration != e.Generation
		leave, err := w.deps.sessions.acquire(ctx, e.Spec.Forge, changed)
		switch {
		case errors.Is(err, errForgeBusy) && changed:
			return requeueIn(debounce)
		case errors.Is(err, errForgeBusy):
			return requeueIn(w.deps.settings.pollInterval / 4)
		case err != nil:
			return reconcile.Result{}, err
		}
		defer leave()
	}
	e = &v1alpha1.RunnerEnrollment{}
	err := w.deps.direct.Get(ctx, req.NamespacedName, e)
	if apierrors.IsNotFound(err) {
		w.deps.state.deleteOrg(req.Name)
		w.deps.sessions.delete(req.Name)
		w.deps.driftSchedule.delete(req.Name)
		w.deps.baselines.delete(req.Name)
		w.deps.triggers.allocation.enqueue("all")
		w.deps.enqueueHolds(ctx)
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("read the enrollment %s: %w", req.Name, err)
	}
	decided, conflicts, ok := w.deps.state.allocationFor(e)
	if !ok {
		return w.requestAllocation()
	}
	return reconcileAllocated(ctx, w.deps, enrollmentInput{e: e, allocation: decided, conflicts: conflicts})
}

// reconcileAllocated reconciles one enrollment that has an allocation.
func reconcileAllocated(ctx context.Context, d deps, in enrollmentInput) (reconcile.Result, error) {
	var o *observed
	var p plan
	var err error
	for _, in.live = range []bool{false, true} {
		in.now = d.now()
		if o, err = gather(ctx, d, in); err != nil {
			return reconcile.Result{}, fmt.Errorf("read the enrollment %s: %w", in.e.Name, err)
		}
		p = decide(o)
		// Law 7: cached data never justifies a removal. Before an irreversible action, gather the
		// state again without caches.
		if !p.includes(fleet.ActionKind.Irreversible) {
			break
		}
	}
	done, err := act(ctx, d, o, p)
	found := checkDrift(ctx, d, o, p, done)
	var retry time.Time
	if released := p.includes(func(k fleet.ActionKind) bool { return k == fleet.RemoveFinalizer }); !released || err != nil {
		ctx := context.WithoutCancel(ctx)
		var enforced fleet.Condition
		enforced, retry = enforcementCondition(ctx, d, o)
		err = errors.Join(err, writeStatus(ctx, d, o, status(o, p, done, found, enforced)))
	}
	switch {
	case kube.IsStale(err):
		return requeueIn(debounce)
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("enrollment %s: %w", in.e.Name, err)
	}
	return requeueIn(requeueAfter(o, p, done, d.settings.pollInterval, found.next, retry))
}

// requestAllocation triggers a new decision from the cache and requeues the enrollment. The decision
// triggers the enrollments that it concerns.
func (w *reconciler) requestAllocation() (reconcile.Result, error) {
	w.deps.triggers.allocation.enqueue("all")
	return requeueIn(2 * debounce)
}
