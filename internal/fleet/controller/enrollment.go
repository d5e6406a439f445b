package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/kube"
)

// An enrollmentState is the state of one reconcile of an enrollment: the observed input and the result.
type enrollmentState struct {
	deps     deps
	o        *observed
	failures []fleet.Failure // reported in addition to the decision
	wake     time.Time

	externals []externalSet
	findings  []fleet.Finding // differences between forge, cluster and decisions
	compared  bool            // in this reconcile
}

// compare compares the workloads with their desired state.
func (l *enrollmentState) compare() {
	for _, w := range l.o.workloads {
		if w.set != nil {
			l.compareSet(w)
		} else {
			l.compareManager(w)
		}
		l.o.facts.Workloads = append(l.o.facts.Workloads, w.Workload)
	}
	l.failures = append(l.failures, l.o.baseline.failures...)
}

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
	var l *enrollmentState
	var step fleet.Step
	for _, live := range []bool{false, true} {
		in := enrollmentInput{e: e, allocation: decided, conflicts: conflicts, now: w.deps.now(), live: live}
		o, err := gather(ctx, w.deps, in)
		if err != nil {
			return reconcile.Result{}, fmt.Errorf("read the enrollment %s: %w", e.Name, err)
		}
		l = &enrollmentState{deps: w.deps, o: o, failures: o.failures, wake: o.wake}
		l.compare()
		step = fleet.Next(o.facts, o.now)
		// Law 7: cached data never justifies a removal. Before an irreversible action, gather the
		// state again without caches.
		if !slices.ContainsFunc(step.Actions, func(a fleet.Action) bool { return a.Kind.Irreversible() }) {
			break
		}
	}
	err = errors.Join(l.doActions(ctx, step), l.applyCapacities(ctx, step.Open))
	l.externals = externalSetsOf(e, l.o.pools, w.deps.state, func(name string) bool {
		return slices.ContainsFunc(l.o.workloads, func(x *workload) bool { return x.Name == name })
	})
	l.checkDrift(ctx)
	released := slices.ContainsFunc(step.Actions, func(a fleet.Action) bool { return a.Kind == fleet.RemoveFinalizer })
	if !released || err != nil {
		err = errors.Join(err, l.report(context.WithoutCancel(ctx), step))
	}
	switch {
	case kube.IsStale(err):
		return requeueIn(debounce)
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("enrollment %s: %w", e.Name, err)
	}
	return requeueIn(l.requeueAfter(step))
}

// requestAllocation triggers a new decision from the cache and requeues the enrollment. The decision
// triggers the enrollments that it concerns.
func (w *reconciler) requestAllocation() (reconcile.Result, error) {
	w.deps.triggers.allocation.enqueue("all")
	return requeueIn(2 * debounce)
}

// requeueAfter returns the time until the next reconcile.
func (l *enrollmentState) requeueAfter(step fleet.Step) time.Duration {
	after := maxRequeueAfter
	for _, wake := range []time.Time{step.Wake, l.wake} {
		if !wake.IsZero() {
			after = min(after, max(wake.Sub(l.o.now), 0)+time.Millisecond)
		}
	}
	moves := len(step.Actions) > 0 || slices.Contains([]v1alpha1.EnrollmentPhase{v1alpha1.PhaseApproved, v1alpha1.PhaseProvisioning, v1alpha1.PhaseDraining}, step.Report.Phase) ||
		slices.ContainsFunc(step.Report.Conditions, func(c fleet.Condition) bool { return c.Type == "Progressing" && c.Status == fleet.Yes })
	for _, w := range l.o.workloads {
		moves = moves || w.target.Max == 0 && (w.Stopped != fleet.Yes || w.target.Mode != v1alpha1.HoldPause && (w.Jobs == nil || *w.Jobs > 0))
	}
	if moves {
		after = min(after, l.deps.settings.pollInterval)
	}
	for _, a := range step.Actions { // actions that take effect at once and have a next step
		switch a.Kind {
		case fleet.AddFinalizer, fleet.EnsureNamespace, fleet.CopyCredential, fleet.EnsureAccess, fleet.CreateRunner, fleet.DeleteCopy, fleet.DeleteSecrets, fleet.DeleteRunnerGroups:
			after = debounce
		}
	}
	return after
}
