package controller

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/arc"
)

const maxDrift = 16

// A statusReport is the result of [status].
type statusReport struct {
	status      v1alpha1.RunnerEnrollmentStatus
	drift       []fleet.Finding // the findings that need a person's attention
	observation observation
}

// status returns the status of an enrollment, and the observation that budgets and holds use. It changes none of its
// arguments. enforced is the condition of [enforcementCondition].
func status(o *observed, p plan, done outcome, found driftCheck, enforced fleet.Condition) (r statusReport) {
	r.drift = reportableFindings(found.findings, o.now)
	s := o.e.Status.DeepCopy()
	s.Findings = findingsToStatus(found.findings, o.now)
	conditions := slices.Clone(p.step.Report.Conditions)
	if found.compared || meta.FindStatusCondition(s.Conditions, conditionDrifted) != nil {
		conditions = append(conditions, driftCondition(found.findings, o.now))
	}
	conditions = append(append(conditions, pauseByDrainConditions(o, p)...), enforced)
	s.ObservedGeneration, s.Phase, s.Offboard = o.e.Generation, p.step.Report.Phase, p.step.Report.Offboard
	for _, c := range addFailures(conditions, reportedFailures(o, p, done, r.drift)) {
		setCondition(&s.Conditions, c, o.e.Generation, o.now)
	}
	s.Pools = nil
	obs := observation{Forge: o.e.Spec.Forge, Pools: map[string]poolObservation{}}
	for i, w := range o.workloads {
		x := reportedWorkload{w, p.workloads[i].target, done.workloads[i], driftOf(w, p.workloads[i], done.workloads[i], r.drift)}
		s.Pools = append(s.Pools, o.statusOf(x, found.seenAt[i]))
		use := poolUseOf(x)
		if before, has := obs.Pools[w.Pool]; has {
			use = before.plus(use)
		}
		obs.Pools[w.Pool] = use
	}
	for _, use := range o.e.Spec.Pools { // show the allocation before a workload exists
		if _, has := obs.Pools[use.Name]; !has && o.pools[use.Name] != nil {
			s.Pools = append(s.Pools, o.withShare(v1alpha1.EnrolledPoolStatus{Name: use.Name, Type: use.Type}))
			obs.Pools[use.Name] = poolObservation{poolUsage: poolUsage{Demand: new(0)}, Stopped: fleet.Yes, Jobs: new(0)}
		}
	}
	for pool, use := range obs.Pools {
		use.Failing = isFailing(s.Phase) || o.broken(o.e.Name, pool)
		obs.Pools[pool] = use
	}
	s.Adopted = externalSetsStatus(found.externals)
	s.Pools = s.Pools[:min(len(s.Pools), 200)]
	if o.session != nil && o.facts.Credential.Valid == fleet.Yes { // otherwise the earlier credential is still in use
		s.Credential = o.session.status(s.Credential, o.facts.Credential.Fingerprint, o.now)
	}
	if s.Credential != nil && s.Credential.ExpiresAt != nil {
		obs.Expires = s.Credential.ExpiresAt.Time
	}
	if o.session != nil {
		if rate := o.session.rate(); rate.Limit > 0 {
			obs.Rate = &rate.Remaining
		}
	}
	r.status, r.observation = *s, obs
	return r
}

// isFailing reports whether an enrollment failed or is suspended.
func isFailing(phase v1alpha1.EnrollmentPhase) bool {
	return phase == v1alpha1.PhaseFailed || phase == v1alpha1.PhaseSuspended
}

// writeStatus writes the status of an enrollment, sends an event when its phase changes, and updates the
// store that budgets and holds use.
func writeStatus(ctx context.Context, d deps, o *observed, r statusReport) error {
	if (o.facts.Listed || o.unscanned) && o.forge != nil {
		changed, pools := d.state.observe(o.e.Name, r.observation)
		if changed {
			d.triggers.allocation.enqueue("all")
			d.enqueueHolds(ctx)
		}
		d.triggers.pool.enqueue(pools...)
	}
	d.triggers.forge.enqueue(o.e.Spec.Forge)
	old := o.e.Status
	if apiequality.Semantic.DeepEqual(old, r.status) {
		return nil
	}
	e := o.e.DeepCopy()
	e.Status = *r.status.DeepCopy()
	if err := d.direct.Status().Patch(ctx, e, client.MergeFrom(o.e)); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("write its status: %w", err))
	}
	if phase := r.status.Phase; phase != old.Phase {
		kind := corev1.EventTypeNormal
		if isFailing(phase) {
			kind = corev1.EventTypeWarning
		}
		ready := cmp.Or(meta.FindStatusCondition(r.status.Conditions, "Ready"), &metav1.Condition{})
		d.events.Eventf(e, nil, kind, string(phase), "Reconcile", "%s", ready.Message)
		d.log.Info("the phase of an enrollment changed", "enrollment", e.Name, "was", old.Phase, "is", phase)
	}
	emitDriftEvents(d, e, newFindings(r.drift, old.Findings))
	return nil
}

// emitDriftEvents sends an event for each new finding, once per kind and workload.
func emitDriftEvents(d deps, e *v1alpha1.RunnerEnrollment, fresh []fleet.Finding) {
	reported := map[[2]string]bool{}
	for _, f := range fresh {
		if about := [2]string{string(f.Kind), f.Workload}; !reported[about] && len(reported) < maxDrift {
			reported[about] = true
			d.events.Eventf(e, nil, corev1.EventTypeWarning, string(f.Kind), "Compare", "%s", findingMessage(f))
		}
	}
}

// A reportedWorkload is a workload with everything that the status shows of it.
type reportedWorkload struct {
	*workload
	target fleet.Capacity
	done   workloadOutcome
	drift  []string
}

// driftOf returns the kinds of drift of a workload, sorted. drift are the findings to report.
func driftOf(w *workload, p workloadPlan, done workloadOutcome, drift []fleet.Finding) []string {
	kinds := slices.Concat(p.drift, done.drift)
	for _, f := range drift {
		if f.Workload == w.Name {
			kinds = append(kinds, string(f.Kind))
		}
	}
	slices.Sort(kinds)
	return slices.Compact(kinds)
}

// stranded returns the number of jobs that are assigned to a scale set but cannot start, because it
// may have no runners. It returns nil if the number is not known, or if the scale set may have
// runners.
func (w reportedWorkload) stranded() *int {
	if w.assigned == nil || w.state.Running == nil || w.target.Max > 0 {
		return nil
	}
	return new(max(*w.assigned-*w.state.Running, 0))
}

// statusOf returns the status of one workload.
func (o *observed) statusOf(w reportedWorkload, seenAt *metav1.Time) v1alpha1.EnrolledPoolStatus {
	p := v1alpha1.EnrolledPoolStatus{Name: w.Pool, Namespace: w.Namespace, Workload: w.Name,
		Idle: statusNumber(w.idle), Busy: statusNumber(w.busy), Pending: statusNumber(w.pending), Failed: statusNumber(w.failed),
		Assigned: statusNumber(
			w.assigned,
		),
		Stranded: statusNumber(w.stranded()), EffectiveMax: new(int32(w.target.Max)), Hold: w.target.Hold}
	if w.use != nil {
		p.Type = w.use.Type
		p = o.withShare(p)
	}
	p.Kind = arc.SetKind
	if w.gitlab != nil {
		p.Kind = "Deployment"
	}
	if w.RemoteID != 0 && w.set != nil {
		p.ScaleSetID = &w.RemoteID
	} else if w.RemoteID != 0 {
		p.RunnerID = &w.RemoteID
	}
	p.SeenAt, p.Drift = seenAt, append(p.Drift, w.drift[:min(len(w.drift), maxDrift)]...)
	if w.isManual() && w.target.Mode != "" {
		p.Drift = append(p.Drift, reasonPauseByDrain)
	}
	return p
}

// withShare adds the allocation from a pool.
func (o *observed) withShare(p v1alpha1.EnrolledPoolStatus) v1alpha1.EnrolledPoolStatus {
	share := o.share(p.Name)
	p.Allocated = new(int32(share.Allocated))
	if !share.ChangedAt.IsZero() {
		p.AllocatedAt = new(metav1.NewTime(share.ChangedAt.Truncate(time.Second)))
	}
	return p
}

// poolUseOf returns the state of one workload as part of its use of the pool.
func poolUseOf(w reportedWorkload) poolObservation {
	u := poolObservation{
		poolUsage: poolUsage{Demand: w.demand, InForce: w.done.inForce, Held: w.target.Mode != "" || w.capacity.Mode != ""},
		Stopped:   w.done.stopped, Jobs: w.done.jobs, Managers: w.managers, Reason: w.done.reason,
		Counts:   RunnerCounts{Idle: w.idle, Busy: w.busy, Pending: w.pending, Failed: w.failed},
		Stranded: w.stranded(), EffectiveMax: w.target.Max, Drift: len(w.drift),
	}
	if w.busy != nil {
		u.Busy = *w.busy
	}
	return u
}

// reportedFailures returns the problems that prevent the controllers from reaching the decided state, the most
// important one first. drift are the findings to report.
func reportedFailures(o *observed, p plan, done outcome, drift []fleet.Finding) (all []fleet.Failure) {
	if o.arcFailure.Reason != "" {
		all = append(all, o.arcFailure)
	}
	all = append(append(all, p.failures...), done.failures...)
	for _, f := range drift {
		if f.Severity == fleet.SeverityError {
			all = append(all, fleet.Failure{Reason: string(f.Kind), Message: findingMessage(f)})
		}
	}
	return all
}
