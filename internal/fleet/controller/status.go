package controller

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
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
	"github.com/tailplane/tailplane/internal/fleet/isolation"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/kube/conditions"
)

const (
	// maxRequeueAfter is the longest time between two reconciles. It bounds the delay for changes
	// without an event.
	maxRequeueAfter = time.Minute
	// debounce is the time within which several triggers cause one reconcile.
	debounce = 50 * time.Millisecond

	maxMessage = 1024 // characters of a message in a status
)

// A statusReconciler writes the status of holds, pools and forges.
type statusReconciler struct{ deps }

// reconcileHold writes the progress of a hold. The reconciles of enrollments apply the hold.
func (w *statusReconciler) reconcileHold(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	h := &v1alpha1.RunnerHold{}
	var enrollments v1alpha1.RunnerEnrollmentList
	if err := w.direct.Get(ctx, req.NamespacedName, h); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if err := w.cached.List(ctx, &enrollments, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, err
	}
	if !h.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil
	}
	now := w.now()
	observations := w.state.observations()
	var held []fleet.HeldPool
	for i := range enrollments.Items {
		e := &enrollments.Items[i]
		obs, seen := observations[e.Name]
		for _, pool := range poolsOf(e) {
			if !fleet.ScopeIncludes(h.Spec.Scope, fleet.Target{Forge: e.Spec.Forge, Org: e.Name, Pool: pool}) {
				continue
			}
			t := fleet.HeldPool{Org: e.Name, Pool: pool}
			use, has := obs.Pools[pool]
			switch {
			case !seen: // not observed yet
			case !has && useOf(e, pool) == nil:
				continue // it had runners and has none any more
			case !has:
				t.Reason = fleet.ReasonUnreachable // its runners could not be listed
			default:
				t.Jobs, t.Managers, t.Reason = use.Jobs, use.Managers, use.Reason
				// If the reconcile did not know of the hold yet, a stopped workload is a
				// coincidence.
				if use.Held || use.Stopped != fleet.Yes || use.EffectiveMax == 0 {
					t.Stopped = use.Stopped
				}
			}
			held = append(held, t)
		}
	}
	adopted, err := w.heldExternalSets(ctx, h)
	if err != nil {
		return reconcile.Result{}, err
	}
	r := fleet.ReportHold(h, append(held, adopted...), now)
	if r.Delete {
		return reconcile.Result{}, kube.Delete(ctx, w.direct, h)
	}
	if err := w.writeHold(ctx, h, r); err != nil {
		return reconcile.Result{}, err
	}
	if r.Wake.IsZero() {
		return reconcile.Result{}, nil
	}
	return requeueIn(min(max(r.Wake.Sub(now), 0), maxRequeueAfter))
}

// heldExternalSets returns the external scale sets in the scope of a hold.
func (w *statusReconciler) heldExternalSets(ctx context.Context, h *v1alpha1.RunnerHold) (held []fleet.HeldPool, err error) {
	var pools v1alpha1.RunnerPoolList
	if err := w.cached.List(ctx, &pools, client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	for i := range pools.Items {
		p := &pools.Items[i]
		if p.Spec.Adopt == nil || !fleet.ScopeIncludes(h.Spec.Scope, fleet.Target{Forge: p.Spec.Forge, Pool: p.Name}) {
			continue
		}
		t := fleet.HeldPool{Pool: p.Name}
		switch a, seen := w.state.externalOf(p.Name); {
		case !seen:
		case a.Set == nil:
			continue // no scale set takes jobs, or it is counted already
		default:
			t.Jobs = a.State.Running
			if a.Held {
				t.Stopped = a.State.Stopped
			}
			if t.Stopped != fleet.Yes {
				t.Reason = a.Failure.Reason
			}
		}
		held = append(held, t)
	}
	return held, nil
}

func (w *statusReconciler) writeHold(ctx context.Context, h *v1alpha1.RunnerHold, r fleet.HoldReport) error {
	old := h.DeepCopy()
	s := &h.Status
	s.ObservedGeneration, s.Targets, s.Applied, s.Drained, s.RemainingJobs, s.Failed = h.Generation, int32(
		r.Targets,
	), int32(
		r.Applied,
	), int32(
		r.Drained,
	), statusNumber(
		r.RemainingJobs,
	), r.Failed
	before := map[string]metav1.ConditionStatus{}
	for _, c := range s.Conditions {
		before[c.Type] = c.Status
	}
	for _, c := range r.Conditions {
		setCondition(&s.Conditions, c, h.Generation, w.now())
	}
	if apiequality.Semantic.DeepEqual(old.Status, *s) {
		return nil
	}
	if err := w.direct.Status().Patch(ctx, h, client.MergeFrom(old)); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("write the status of hold %s: %w", h.Name, err))
	}
	for _, kind := range []string{"Applied", "Drained", "Expired"} {
		if c := meta.FindStatusCondition(s.Conditions, kind); c != nil && c.Status == metav1.ConditionTrue &&
			before[kind] != metav1.ConditionTrue {
			w.events.Eventf(h, nil, corev1.EventTypeNormal, kind, "Hold", "%s", c.Message)
		}
	}
	return nil
}

// reconcilePool writes the status of a pool.
func (w *statusReconciler) reconcilePool(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	p := &v1alpha1.RunnerPool{}
	forge := &v1alpha1.RunnerForge{}
	if err := w.direct.Get(ctx, req.NamespacedName, p); err != nil {
		if apierrors.IsNotFound(err) {
			w.state.deletePool(req.Name)
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	result := w.state.lastAllocation()
	if result == nil {
		return requeueIn(4 * debounce)
	}
	ready := fleet.Condition{Type: "Ready", Status: fleet.Yes, Reason: fleet.ReasonReady, Message: "It can be used."}
	err := w.cached.Get(ctx, client.ObjectKey{Name: p.Spec.Forge}, forge)
	fault := ""
	if p.Spec.Adopt == nil { // an external scale set has its own template
		fault = isolation.PoolFault(p, forge.Spec.Type, w.settings.isolation.Images)
	}
	switch {
	case apierrors.IsNotFound(err):
		ready.Status, ready.Reason, ready.Message = fleet.No, fleet.ReasonForgeNotFound, fmt.Sprintf(
			"There is no RunnerForge %q.",
			p.Spec.Forge,
		)
	case err != nil:
		return reconcile.Result{}, err
	case fault != "":
		ready.Status, ready.Reason, ready.Message = fleet.No, fleet.ReasonPoolInvalid, fault
	}
	worst := fleet.Condition{Type: "Degraded", Status: fleet.No, Reason: fleet.ReasonNone}
	observations := w.state.observations()
	for _, org := range slices.Sorted(maps.Keys(observations)) { // sorted, so that the message is stable
		if observations[org].Pools[p.Name].unhealthy() {
			worst.Status, worst.Reason, worst.Message = fleet.Yes, "WorkloadsFail", fmt.Sprintf(
				"Runners of %s fail or differ from the desired state.",
				org,
			)
			break
		}
	}
	old := p.DeepCopy()
	p.Status.Adopted = nil
	if p.Spec.Adopt != nil && ready.Reason != fleet.ReasonForgeNotFound {
		w.setExternalStatus(p, forge, &ready, &worst)
	}
	use := result.Pools[p.Name]
	p.Status.ObservedGeneration, p.Status.Orgs, p.Status.Allocated, p.Status.Budget = p.Generation, int32(
		use.Orgs,
	), int32(
		use.Allocated,
	), p.Spec.Scaling.Budget
	setCondition(&p.Status.Conditions, ready, p.Generation, w.now())
	setCondition(&p.Status.Conditions, worst, p.Generation, w.now())
	if apiequality.Semantic.DeepEqual(old.Status, p.Status) {
		return requeueIn(maxRequeueAfter)
	}
	return reconcile.Result{RequeueAfter: maxRequeueAfter}, client.IgnoreNotFound(w.direct.Status().Patch(ctx, p, client.MergeFrom(old)))
}

// setExternalStatus sets the status of the external scale set that a pool adopts.
func (w *statusReconciler) setExternalStatus(p *v1alpha1.RunnerPool, forge *v1alpha1.RunnerForge, ready, worst *fleet.Condition) {
	no := func(c *fleet.Condition, is fleet.Answer, reason, message string) {
		c.Status, c.Reason, c.Message = is, reason, message
	}
	a, seen := w.state.externalOf(p.Name)
	switch {
	case forge.Spec.Type != v1alpha1.GitHub:
		no(ready, fleet.No, fleet.ReasonPoolInvalid, "Only GitHub scale sets can be adopted.")
		return
	case !seen:
		no(ready, fleet.Unknown, fleet.ReasonNotChecked, "The fleet has not checked the scale set yet.")
		return
	case a.Failure.Reason != "":
		no(worst, fleet.Yes, a.Failure.Reason, a.Failure.Message)
	}
	switch {
	case a.Set == nil:
		no(ready, fleet.No, a.Failure.Reason, a.Failure.Message)
		return
	case a.State.Registered != fleet.Yes:
		no(ready, a.State.Registered, cmp.Or(a.Failure.Reason, fleet.ReasonNotChecked), a.Failure.Message)
	default:
		no(ready, fleet.Yes, fleet.ReasonReady, "The fleet does not manage it, and it works.")
	}
	p.Status.Adopted = externalStatus(a)
}

// externalStatus returns the status entry of an external scale set.
func externalStatus(a externalState) *v1alpha1.AdoptedStatus {
	s := &v1alpha1.AdoptedStatus{Min: statusNumber(&a.Set.Min), Max: statusNumber(&a.Set.Max), Hold: a.Hold}
	if a.Set.ID != 0 {
		s.ScaleSetID = new(a.Set.ID)
	}
	if c := a.State.Counts; c != nil {
		s.Idle, s.Busy, s.Pending, s.Failed = statusNumber(
			&c.Idle,
		), statusNumber(
			&c.Busy,
		), statusNumber(
			&c.Pending,
		), statusNumber(
			&c.Failed,
		)
	}
	return s
}

// reconcileForge writes the status of a forge, as derived from its responses to the sessions.
func (w *statusReconciler) reconcileForge(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	f := &v1alpha1.RunnerForge{}
	// Read from the cache: every reconcile of an enrollment triggers this one, and most have
	// nothing to write.
	if err := w.cached.Get(ctx, req.NamespacedName, f); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	old := f.DeepCopy()
	all := w.sessions.usable(f.Name)
	reach := fleet.Condition{
		Type:    "Reachable",
		Status:  fleet.Unknown,
		Reason:  fleet.ReasonNotChecked,
		Message: "No enrollment of this forge has a usable credential.",
	}
	if len(all) > 0 &&
		w.sessions.versionDue(
			f.Name,
			w.now(),
			f.Status.Version == "" && meta.FindStatusCondition(f.Status.Conditions, "Reachable") == nil,
		) {
		version, err := all[0].client.Version(ctx)
		if err != nil {
			w.log.Debug("get a forge's version", "forge", f.Name, "err", err)
		} else {
			f.Status.Version = version[:min(len(version), 128)]
		}
	}
	before := f.Status.RateLimit
	f.Status.RateLimit = nil
	limit := 0
	var answered, silent int64
	for _, a := range all {
		yes, no, why := a.lastContact()
		if !yes.IsZero() && yes.UnixNano() > answered {
			answered = yes.UnixNano()
		}
		if !no.IsZero() && no.UnixNano() > silent {
			silent = no.UnixNano()
			reach.Message = why
		}
		if r := a.rate(); r.Limit > 0 && (f.Status.RateLimit == nil || int64(r.Remaining) < f.Status.RateLimit.Remaining) {
			f.Status.RateLimit, limit = &v1alpha1.ForgeRateLimit{
				Remaining: int64(max(r.Remaining, 0)),
				ResetAt:   new(metav1.NewTime(r.Reset)),
			}, r.Limit
		}
	}
	if rateSteady(before, f.Status.RateLimit, int64(limit), w.now()) {
		f.Status.RateLimit = before
	}
	switch {
	case silent > answered:
		reach.Status, reach.Reason = fleet.No, fleet.ReasonUnreachable
		reach.Message = "It did not answer: " + reach.Message + "."
	case answered > 0:
		reach.Status, reach.Reason, reach.Message = fleet.Yes, fleet.ReasonReady, "It answers."
	}
	ready := reach
	ready.Type = "Ready"
	f.Status.ObservedGeneration = f.Generation
	setCondition(&f.Status.Conditions, reach, f.Generation, w.now())
	setCondition(&f.Status.Conditions, ready, f.Generation, w.now())
	if apiequality.Semantic.DeepEqual(old.Status, f.Status) {
		return requeueIn(maxRequeueAfter)
	}
	return reconcile.Result{RequeueAfter: maxRequeueAfter}, client.IgnoreNotFound(w.direct.Status().Patch(ctx, f, client.MergeFrom(old)))
}

// rateSteady reports whether the stored rate limit is close enough to the current one. Each request
// changes the limit a little, and must not cause a status write.
func rateSteady(current, is *v1alpha1.ForgeRateLimit, limit int64, now time.Time) bool {
	if current == nil || is == nil || current.ResetAt == nil || !now.Before(current.ResetAt.Time) {
		return current == is
	}
	return max(current.Remaining-is.Remaining, is.Remaining-current.Remaining) <= limit/10 && is.Remaining > limit/5
}

// addFailures adds to the decided conditions the problems that prevent the controllers from reaching the
// decided state.
func addFailures(conditions []fleet.Condition, failures []fleet.Failure) []fleet.Condition {
	out := slices.Clone(conditions)
	if len(failures) == 0 {
		return out
	}
	first := failures[0]
	var texts []string
	for _, t := range failures {
		if !slices.Contains(texts, t.Message) {
			texts = append(texts, t.Message)
		}
	}
	for i := range out {
		c := &out[i]
		switch {
		case c.Type == "Ready" && c.Status != fleet.Yes && slices.Contains([]string{fleet.ReasonProvisioning, fleet.ReasonListIncomplete}, c.Reason):
			c.Reason, c.Message = first.Reason, first.Message
		case c.Type == "Degraded" && c.Status != fleet.Yes:
			c.Status, c.Reason, c.Message = fleet.Yes, first.Reason, strings.Join(texts, " ")
		}
	}
	return out
}

// setCondition sets one condition.
func setCondition(all *[]metav1.Condition, c fleet.Condition, generation int64, now time.Time) {
	conditions.Set(all, c.Type, conditions.Condition{
		Status: metav1.ConditionStatus(
			c.Status.String(),
		),
		Reason: cmp.Or(c.Reason, fleet.ReasonNone), Message: conditions.Truncate(c.Message, maxMessage),
	}, generation, now)
}

// statusNumber converts a number for a status; nil means not known.
func statusNumber(n *int) *int32 {
	if n == nil {
		return nil
	}
	return new(int32(*n))
}

// requeueIn returns a result that requeues the request after d.
func requeueIn(d time.Duration) (reconcile.Result, error) {
	return reconcile.Result{RequeueAfter: max(d, time.Millisecond)}, nil
}
