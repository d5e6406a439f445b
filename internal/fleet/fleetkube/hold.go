package fleetkube

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/kube"
)

// ringHolds wakes all holds: what they hold may stand otherwise now.
func (w *crew) ringHolds(ctx context.Context) {
	var list v1alpha1.RunnerHoldList
	if err := w.known.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		w.Log.Error("look up holds in the cache", "err", err)
	}
	for i := range list.Items {
		w.holds.ring(list.Items[i].Name)
	}
}

// hold says how far a hold has come. What it does is done when enrollments are looked at.
func (w *crew) hold(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	h := &v1alpha1.RunnerHold{}
	var enrollments v1alpha1.RunnerEnrollmentList
	if err := w.direct.Get(ctx, req.NamespacedName, h); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if err := w.known.List(ctx, &enrollments, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, err
	}
	if !h.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil
	}
	now := w.Now()
	sights := w.board.sights()
	var held []fleet.Held
	for i := range enrollments.Items {
		e := &enrollments.Items[i]
		sight, seen := sights[e.Name]
		for _, pool := range poolsOf(e) {
			if !fleet.Holds(h.Spec.Scope, fleet.Target{Forge: e.Spec.Forge, Org: e.Name, Pool: pool}) {
				continue
			}
			t := fleet.Held{Org: e.Name, Pool: pool}
			use, has := sight.uses[pool]
			switch {
			case !seen: // it was not looked at yet
			case !has && !used(e, pool):
				continue // it had some, and has no more
			case !has:
				t.Reason = reasonUnreachable // its runners could not be listed
			default:
				t.Jobs, t.Managers, t.Reason = use.jobs, use.managers, use.reason
				// Before a look knew of a hold, that nothing takes jobs was a chance.
				if use.Held || use.stopped != fleet.Yes || use.effectiveMax == 0 {
					t.Stopped = use.stopped
				}
			}
			held = append(held, t)
		}
	}
	r := fleet.ReportHold(h, held, now)
	if r.Delete {
		return reconcile.Result{}, kube.Delete(ctx, w.direct, h)
	}
	if err := w.writeHold(ctx, h, r); err != nil {
		return reconcile.Result{}, err
	}
	if r.Wake.IsZero() {
		return reconcile.Result{}, nil
	}
	return soon(min(max(r.Wake.Sub(now), 0), longestNap))
}

func used(e *v1alpha1.RunnerEnrollment, pool string) bool {
	for _, u := range e.Spec.Pools {
		if u.Name == pool {
			return true
		}
	}
	return false
}

func (w *crew) writeHold(ctx context.Context, h *v1alpha1.RunnerHold, r fleet.HoldReport) error {
	was := h.DeepCopy()
	s := &h.Status
	s.ObservedGeneration, s.Targets, s.Applied, s.Drained, s.RemainingJobs, s.Failed = h.Generation, int32(r.Targets), int32(r.Applied), int32(r.Drained), number(r.RemainingJobs), r.Failed
	before := map[string]metav1.ConditionStatus{}
	for _, c := range s.Conditions {
		before[c.Type] = c.Status
	}
	for _, c := range r.Conditions {
		say(&s.Conditions, c, h.Generation, w.Now())
	}
	if apiequality.Semantic.DeepEqual(was.Status, *s) {
		return nil
	}
	if err := w.direct.Status().Patch(ctx, h, client.MergeFrom(was)); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("write the status of hold %s: %w", h.Name, err))
	}
	for _, kind := range []string{"Applied", "Drained", "Expired"} {
		if c := meta.FindStatusCondition(s.Conditions, kind); c != nil && c.Status == metav1.ConditionTrue && before[kind] != metav1.ConditionTrue {
			w.events.Eventf(h, nil, corev1.EventTypeNormal, kind, "Hold", "%s", c.Message)
		}
	}
	return nil
}

// pool says how a pool stands.
func (w *crew) pool(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	p := &v1alpha1.RunnerPool{}
	forge := &v1alpha1.RunnerForge{}
	if err := w.direct.Get(ctx, req.NamespacedName, p); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	result := w.board.last()
	if result == nil {
		return soon(4 * quiet)
	}
	ready := fleet.Condition{Type: "Ready", Status: fleet.Yes, Reason: fleet.ReasonReady, Message: "It can be used."}
	err := w.known.Get(ctx, client.ObjectKey{Name: p.Spec.Forge}, forge)
	switch fault := w.fault(p, forge.Spec.Type); {
	case apierrors.IsNotFound(err):
		ready.Status, ready.Reason, ready.Message = fleet.No, fleet.ReasonForgeNotFound, fmt.Sprintf("There is no RunnerForge %q.", p.Spec.Forge)
	case err != nil:
		return reconcile.Result{}, err
	case fault != "":
		ready.Status, ready.Reason, ready.Message = fleet.No, fleet.ReasonPoolInvalid, fault
	}
	worst := fleet.Condition{Type: "Degraded", Status: fleet.No, Reason: fleet.ReasonNone}
	for org, s := range w.board.sights() {
		use, has := s.uses[p.Name]
		if has && (use.failed != nil && *use.failed > 0 || use.drift > 0) {
			worst.Status, worst.Reason, worst.Message = fleet.Yes, "WorkloadsFail", fmt.Sprintf("Runners of %s fail, or are not as they should be.", org)
		}
	}
	was := p.DeepCopy()
	use := result.Pools[p.Name]
	p.Status.ObservedGeneration, p.Status.Orgs, p.Status.Allocated, p.Status.Budget = p.Generation, int32(use.Orgs), int32(use.Allocated), p.Spec.Scaling.Budget
	say(&p.Status.Conditions, ready, p.Generation, w.Now())
	say(&p.Status.Conditions, worst, p.Generation, w.Now())
	if apiequality.Semantic.DeepEqual(was.Status, p.Status) {
		return soon(longestNap)
	}
	return reconcile.Result{RequeueAfter: longestNap}, client.IgnoreNotFound(w.direct.Status().Patch(ctx, p, client.MergeFrom(was)))
}

// askEvery is how often a forge is asked for its version.
const askEvery = 15 * time.Minute

// forge says how a forge stands: as it answered those who asked it something.
func (w *crew) forge(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	f := &v1alpha1.RunnerForge{}
	if err := w.direct.Get(ctx, req.NamespacedName, f); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	was := f.DeepCopy()
	all := w.accounts.at(f.Name)
	reach := fleet.Condition{Type: "Reachable", Status: fleet.Unknown, Reason: fleet.ReasonNotChecked, Message: "Nobody who is enrolled there has a credential to ask it with."}
	var errs []error
	if len(all) > 0 && w.accounts.due(f.Name, w.Now(), f.Status.Version == "" && meta.FindStatusCondition(f.Status.Conditions, "Reachable") == nil) {
		version, err := all[0].askVersion(ctx)
		if err == nil {
			f.Status.Version = version[:min(len(version), 128)]
		}
		errs = append(errs, err)
	}
	f.Status.RateLimit = nil
	var answered, silent int64
	for _, a := range all {
		yes, no, why := a.reach()
		if !yes.IsZero() && yes.UnixNano() > answered {
			answered = yes.UnixNano()
		}
		if !no.IsZero() && no.UnixNano() > silent {
			silent = no.UnixNano()
			reach.Message = why
		}
		if r := a.rate(); r.Limit > 0 && (f.Status.RateLimit == nil || int64(r.Remaining) < f.Status.RateLimit.Remaining) {
			f.Status.RateLimit = &v1alpha1.ForgeRateLimit{Remaining: int64(max(r.Remaining, 0)), ResetAt: new(metav1.NewTime(r.Reset))}
		}
	}
	switch {
	case silent > answered:
		reach.Status, reach.Reason = fleet.No, reasonUnreachable
		reach.Message = "It did not answer: " + reach.Message + "."
	case answered > 0:
		reach.Status, reach.Reason, reach.Message = fleet.Yes, fleet.ReasonReady, "It answers."
	}
	ready := reach
	ready.Type = "Ready"
	f.Status.ObservedGeneration = f.Generation
	say(&f.Status.Conditions, reach, f.Generation, w.Now())
	say(&f.Status.Conditions, ready, f.Generation, w.Now())
	if err := errors.Join(errs...); err != nil {
		w.Log.Debug("ask a forge for its version", "forge", f.Name, "err", err)
	}
	if apiequality.Semantic.DeepEqual(was.Status, f.Status) {
		return soon(longestNap)
	}
	return reconcile.Result{RequeueAfter: longestNap}, client.IgnoreNotFound(w.direct.Status().Patch(ctx, f, client.MergeFrom(was)))
}
