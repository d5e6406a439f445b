package fleetkube

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
	"github.com/tailplane/tailplane/internal/fleet/fleetkube/adopted"
	"github.com/tailplane/tailplane/internal/fleet/fleetkube/board"
	"github.com/tailplane/tailplane/internal/fleet/fleetkube/findings"
	"github.com/tailplane/tailplane/internal/fleet/fleetkube/ledger"
	"github.com/tailplane/tailplane/internal/fleet/truth"
)

const (
	mostDrift = 16
)

// report writes the status of an enrollment, sends an event when its phase changes, and updates the
// store that budgets and holds use.
func (l *look) report(ctx context.Context, step fleet.Step) error {
	was := l.e.DeepCopy()
	s := &l.e.Status
	phase := s.Phase
	r := step.Report
	told := l.drifts()
	s.Findings = findings.Status(l.stands, l.now)
	if l.compared || meta.FindStatusCondition(s.Conditions, findings.Drifted) != nil {
		r.Conditions = append(slices.Clone(r.Conditions), findings.Condition(l.stands, l.now))
	}
	r.Conditions = append(slices.Clone(r.Conditions), append(l.drainsToPause(), l.enforced(ctx))...)
	s.ObservedGeneration, s.Phase, s.Offboard = l.e.Generation, r.Phase, r.Offboard
	for _, c := range board.Amend(r.Conditions, l.told()) {
		board.Say(&s.Conditions, c, l.e.Generation, l.now)
	}
	s.Pools = nil
	sight := board.Sight{Forge: l.e.Spec.Forge, Uses: map[string]board.Use{}}
	for _, w := range l.works {
		s.Pools = append(s.Pools, l.statusOf(w))
		if before, has := sight.Uses[w.Pool]; has {
			sight.Uses[w.Pool] = before.Plus(useOf(w))
		} else {
			sight.Uses[w.Pool] = useOf(w)
		}
	}
	for _, use := range l.e.Spec.Pools { // show the allocation before a workload exists
		if _, has := sight.Uses[use.Name]; !has && l.pools[use.Name] != nil {
			s.Pools = append(s.Pools, l.shareOf(v1alpha1.EnrolledPoolStatus{Name: use.Name, Type: use.Type}))
			sight.Uses[use.Name] = board.Use{Reading: ledger.Reading{Demand: new(0)}, Stopped: fleet.Yes, Jobs: new(0)}
		}
	}
	failing := r.Phase == v1alpha1.PhaseFailed || r.Phase == v1alpha1.PhaseSuspended
	for pool, use := range sight.Uses {
		use.Failing = failing || l.broken(l.e.Name, pool)
		sight.Uses[pool] = use
	}
	s.Adopted = adopted.Status(l.adopted)
	s.Pools = s.Pools[:min(len(s.Pools), 200)]
	if l.account != nil && l.facts.Credential.Valid == fleet.Yes { // otherwise the earlier credential is still in use
		s.Credential = l.account.Status(s.Credential, l.facts.Credential.Fingerprint, l.now)
	}
	if s.Credential != nil && s.Credential.ExpiresAt != nil {
		sight.Expires = s.Credential.ExpiresAt.Time
	}
	if l.account != nil {
		if rate := l.account.Rate(); rate.Limit > 0 {
			sight.Rate = &rate.Remaining
		}
	}
	if (l.facts.Listed || l.unscanned) && l.forge != nil {
		changed, pools := l.board.Saw(l.e.Name, sight)
		if changed {
			l.decisions.ring("all")
			l.ringHolds(ctx)
		}
		l.crew.pools.ring(pools...)
	}
	l.forges.ring(l.e.Spec.Forge)
	if apiequality.Semantic.DeepEqual(was.Status, *s) {
		return nil
	}
	if err := l.direct.Status().Patch(ctx, l.e, client.MergeFrom(was)); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("write its status: %w", err))
	}
	if phase != r.Phase {
		kind := corev1.EventTypeNormal
		if r.Phase == v1alpha1.PhaseFailed || r.Phase == v1alpha1.PhaseSuspended {
			kind = corev1.EventTypeWarning
		}
		l.events.Eventf(l.e, nil, kind, string(r.Phase), "Reconcile", "%s", message(meta.FindStatusCondition(s.Conditions, "Ready")))
		l.Log.Info("an enrollment is in another phase", "enrollment", l.e.Name, "was", phase, "is", r.Phase)
	}
	l.tellDrift(findings.New(told, was.Status.Findings))
	return nil
}

// tellDrift sends an event for each new finding, once per kind and workload.
func (l *look) tellDrift(fresh []truth.Finding) {
	told := map[[2]string]bool{}
	for _, f := range fresh {
		if about := [2]string{string(f.Kind), f.Workload}; !told[about] && len(told) < mostDrift {
			told[about] = true
			l.events.Eventf(l.e, nil, corev1.EventTypeWarning, string(f.Kind), "Compare", "%s", findings.Sentence(f))
		}
	}
}

func message(c *metav1.Condition) string {
	if c == nil {
		return ""
	}
	return c.Message
}

// statusOf returns the status of one workload.
func (l *look) statusOf(w *work) v1alpha1.EnrolledPoolStatus {
	p := v1alpha1.EnrolledPoolStatus{Name: w.Pool, Namespace: w.Namespace, Workload: w.Name, Idle: board.Number(w.idle), Busy: board.Number(w.busy), Pending: board.Number(w.pending), Failed: board.Number(w.failed),
		Assigned: board.Number(w.assigned), Stranded: board.Number(w.stranded()), EffectiveMax: new(int32(w.now.Max)), Hold: w.now.Hold}
	if w.use != nil {
		p.Type = w.use.Type
		p = l.shareOf(p)
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
	p.SeenAt, p.Drift = w.seenAt, append(p.Drift, w.drift[:min(len(w.drift), mostDrift)]...)
	if w.byHand() && w.now.Mode != "" {
		p.Drift = append(p.Drift, reasonPauseByDrain)
	}
	return p
}

// shareOf adds the allocation from a pool.
func (l *look) shareOf(p v1alpha1.EnrolledPoolStatus) v1alpha1.EnrolledPoolStatus {
	share := l.share(p.Name)
	p.Allocated = new(int32(share.Allocated))
	if !share.ChangedAt.IsZero() {
		p.AllocatedAt = new(metav1.NewTime(share.ChangedAt.Truncate(time.Second)))
	}
	return p
}

// useOf returns the state of one workload as part of its use of the pool.
func useOf(w *work) board.Use {
	u := board.Use{Reading: ledger.Reading{Demand: w.demand, InForce: w.inForce, Held: w.now.Mode != "" || w.capacity.Mode != ""}, Stopped: w.Stopped, Jobs: w.Jobs, Managers: w.managers, Reason: w.reason,
		Counts: board.Counts{Idle: w.idle, Busy: w.busy, Pending: w.pending, Failed: w.failed}, Stranded: w.stranded(), EffectiveMax: w.now.Max, Drift: len(w.drift)}
	if w.busy != nil {
		u.Busy = *w.busy
	}
	return u
}

// told returns the problems that prevent the controllers from reaching the decided state, the most
// important one first.
func (l *look) told() []fleet.Trouble {
	if l.lacksARC.Reason == "" {
		return l.troubles
	}
	return append([]fleet.Trouble{l.lacksARC}, l.troubles...)
}
