package controller

import (
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

const (
	maxDrift = 16
)

// report writes the status of an enrollment, sends an event when its phase changes, and updates the
// store that budgets and holds use.
func (l *enrollmentState) report(ctx context.Context, step fleet.Step) error {
	old := l.o.e.DeepCopy()
	s := &l.o.e.Status
	phase := s.Phase
	r := step.Report
	reported := l.addDrift()
	s.Findings = findingsToStatus(l.findings, l.o.now)
	if l.compared || meta.FindStatusCondition(s.Conditions, conditionDrifted) != nil {
		r.Conditions = append(slices.Clone(r.Conditions), driftCondition(l.findings, l.o.now))
	}
	r.Conditions = append(slices.Clone(r.Conditions), append(l.pauseByDrainConditions(), l.enforcementCondition(ctx))...)
	s.ObservedGeneration, s.Phase, s.Offboard = l.o.e.Generation, r.Phase, r.Offboard
	for _, c := range addFailures(r.Conditions, l.reportedFailures()) {
		setCondition(&s.Conditions, c, l.o.e.Generation, l.o.now)
	}
	s.Pools = nil
	obs := observation{Forge: l.o.e.Spec.Forge, Pools: map[string]poolObservation{}}
	for _, w := range l.o.workloads {
		s.Pools = append(s.Pools, l.statusOf(w))
		if before, has := obs.Pools[w.Pool]; has {
			obs.Pools[w.Pool] = before.plus(poolUseOf(w))
		} else {
			obs.Pools[w.Pool] = poolUseOf(w)
		}
	}
	for _, use := range l.o.e.Spec.Pools { // show the allocation before a workload exists
		if _, has := obs.Pools[use.Name]; !has && l.o.pools[use.Name] != nil {
			s.Pools = append(s.Pools, l.withShare(v1alpha1.EnrolledPoolStatus{Name: use.Name, Type: use.Type}))
			obs.Pools[use.Name] = poolObservation{poolUsage: poolUsage{Demand: new(0)}, Stopped: fleet.Yes, Jobs: new(0)}
		}
	}
	failing := r.Phase == v1alpha1.PhaseFailed || r.Phase == v1alpha1.PhaseSuspended
	for pool, use := range obs.Pools {
		use.Failing = failing || l.o.broken(l.o.e.Name, pool)
		obs.Pools[pool] = use
	}
	s.Adopted = externalSetsStatus(l.externals)
	s.Pools = s.Pools[:min(len(s.Pools), 200)]
	if l.o.session != nil && l.o.facts.Credential.Valid == fleet.Yes { // otherwise the earlier credential is still in use
		s.Credential = l.o.session.status(s.Credential, l.o.facts.Credential.Fingerprint, l.o.now)
	}
	if s.Credential != nil && s.Credential.ExpiresAt != nil {
		obs.Expires = s.Credential.ExpiresAt.Time
	}
	if l.o.session != nil {
		if rate := l.o.session.rate(); rate.Limit > 0 {
			obs.Rate = &rate.Remaining
		}
	}
	if (l.o.facts.Listed || l.o.unscanned) && l.o.forge != nil {
		changed, pools := l.deps.state.observe(l.o.e.Name, obs)
		if changed {
			l.deps.triggers.allocation.enqueue("all")
			l.deps.enqueueHolds(ctx)
		}
		l.deps.triggers.pool.enqueue(pools...)
	}
	l.deps.triggers.forge.enqueue(l.o.e.Spec.Forge)
	if apiequality.Semantic.DeepEqual(old.Status, *s) {
		return nil
	}
	if err := l.deps.direct.Status().Patch(ctx, l.o.e, client.MergeFrom(old)); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("write its status: %w", err))
	}
	if phase != r.Phase {
		kind := corev1.EventTypeNormal
		if r.Phase == v1alpha1.PhaseFailed || r.Phase == v1alpha1.PhaseSuspended {
			kind = corev1.EventTypeWarning
		}
		l.deps.events.Eventf(l.o.e, nil, kind, string(r.Phase), "Reconcile", "%s", conditionMessage(meta.FindStatusCondition(s.Conditions, "Ready")))
		l.deps.log.Info("the phase of an enrollment changed", "enrollment", l.o.e.Name, "was", phase, "is", r.Phase)
	}
	l.emitDriftEvents(newFindings(reported, old.Status.Findings))
	return nil
}

// emitDriftEvents sends an event for each new finding, once per kind and workload.
func (l *enrollmentState) emitDriftEvents(fresh []fleet.Finding) {
	reported := map[[2]string]bool{}
	for _, f := range fresh {
		if about := [2]string{string(f.Kind), f.Workload}; !reported[about] && len(reported) < maxDrift {
			reported[about] = true
			l.deps.events.Eventf(l.o.e, nil, corev1.EventTypeWarning, string(f.Kind), "Compare", "%s", findingMessage(f))
		}
	}
}

func conditionMessage(c *metav1.Condition) string {
	if c == nil {
		return ""
	}
	return c.Message
}

// statusOf returns the status of one workload.
func (l *enrollmentState) statusOf(w *workload) v1alpha1.EnrolledPoolStatus {
	p := v1alpha1.EnrolledPoolStatus{Name: w.Pool, Namespace: w.Namespace, Workload: w.Name, Idle: statusNumber(w.idle), Busy: statusNumber(w.busy), Pending: statusNumber(w.pending), Failed: statusNumber(w.failed),
		Assigned: statusNumber(w.assigned), Stranded: statusNumber(w.stranded()), EffectiveMax: new(int32(w.target.Max)), Hold: w.target.Hold}
	if w.use != nil {
		p.Type = w.use.Type
		p = l.withShare(p)
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
	p.SeenAt, p.Drift = w.seenAt, append(p.Drift, w.drift[:min(len(w.drift), maxDrift)]...)
	if w.isManual() && w.target.Mode != "" {
		p.Drift = append(p.Drift, reasonPauseByDrain)
	}
	return p
}

// withShare adds the allocation from a pool.
func (l *enrollmentState) withShare(p v1alpha1.EnrolledPoolStatus) v1alpha1.EnrolledPoolStatus {
	share := l.o.share(p.Name)
	p.Allocated = new(int32(share.Allocated))
	if !share.ChangedAt.IsZero() {
		p.AllocatedAt = new(metav1.NewTime(share.ChangedAt.Truncate(time.Second)))
	}
	return p
}

// poolUseOf returns the state of one workload as part of its use of the pool.
func poolUseOf(w *workload) poolObservation {
	u := poolObservation{poolUsage: poolUsage{Demand: w.demand, InForce: w.inForce, Held: w.target.Mode != "" || w.capacity.Mode != ""}, Stopped: w.Stopped, Jobs: w.Jobs, Managers: w.managers, Reason: w.reason,
		Counts: RunnerCounts{Idle: w.idle, Busy: w.busy, Pending: w.pending, Failed: w.failed}, Stranded: w.stranded(), EffectiveMax: w.target.Max, Drift: len(w.drift)}
	if w.busy != nil {
		u.Busy = *w.busy
	}
	return u
}

// reportedFailures returns the problems that prevent the controllers from reaching the decided state, the most
// important one first.
func (l *enrollmentState) reportedFailures() []fleet.Failure {
	if l.o.arcFailure.Reason == "" {
		return l.failures
	}
	return append([]fleet.Failure{l.o.arcFailure}, l.failures...)
}
