package fleetkube

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/arc"
	"github.com/tailplane/tailplane/internal/fleet/fleetkube/board"
	"github.com/tailplane/tailplane/internal/fleet/fleetkube/findings"
	"github.com/tailplane/tailplane/internal/fleet/fleetkube/ledger"
	"github.com/tailplane/tailplane/internal/fleet/truth"
)

const (
	mostDrift = 16
)

// report says how an enrollment stands: in its status, by an event when its phase
// changes, and on the board, for budgets and holds.
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
	s.ObservedGeneration, s.Phase, s.Offboard = l.e.Generation, r.Phase, r.Offboard
	for _, c := range l.amended(r.Conditions) {
		board.Say(&s.Conditions, c, l.e.Generation, l.now)
	}
	s.Pools = nil
	sight := board.Sight{Forge: l.e.Spec.Forge, Uses: map[string]board.Use{}}
	for _, w := range l.works {
		s.Pools = append(s.Pools, l.statusOf(w))
		sight.Uses[w.Pool] = add(sight.Uses[w.Pool], w)
	}
	for _, use := range l.e.Spec.Pools { // what was given stands there before there is anything to have it
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
	s.Pools = s.Pools[:min(len(s.Pools), 200)]
	l.credentialStatus(s)
	if s.Credential != nil && s.Credential.ExpiresAt != nil {
		sight.Expires = s.Credential.ExpiresAt.Time
	}
	if l.account != nil {
		if rate := l.account.Rate(); rate.Limit > 0 {
			sight.Rate = &rate.Remaining
		}
	}
	if (l.facts.Listed || l.unscanned) && l.forge != nil && l.board.Saw(l.e.Name, sight) {
		l.decisions.ring("all")
		l.ringHolds(ctx)
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

// tellDrift tells of what is new: once for each kind and workload.
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

// amended are the conditions that were decided, with what keeps the controllers from
// what was decided.
func (l *look) amended(conditions []fleet.Condition) []fleet.Condition {
	out := slices.Clone(conditions)
	troubles := l.troubles
	if l.lacksARC.Reason != "" {
		troubles = append([]fleet.Trouble{l.lacksARC}, troubles...)
	}
	if len(troubles) == 0 {
		return out
	}
	first := troubles[0]
	var texts []string
	for _, t := range troubles {
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

// statusOf is what is said of one workload.
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
	return p
}

// shareOf adds what was given of a pool.
func (l *look) shareOf(p v1alpha1.EnrolledPoolStatus) v1alpha1.EnrolledPoolStatus {
	share := l.share(p.Name)
	p.Allocated = new(int32(share.Allocated))
	if !share.ChangedAt.IsZero() {
		p.AllocatedAt = new(metav1.NewTime(share.ChangedAt.Truncate(time.Second)))
	}
	return p
}

// add adds a workload to what is seen of its use.
func add(s board.Use, w *work) board.Use {
	first := s == board.Use{}
	plus := func(a, b *int) *int {
		if first {
			return b
		}
		if a == nil || b == nil {
			return nil
		}
		return new(*a + *b)
	}
	s.Counts = board.Counts{Idle: plus(s.Counts.Idle, w.idle), Busy: plus(s.Counts.Busy, w.busy), Pending: plus(s.Counts.Pending, w.pending), Failed: plus(s.Counts.Failed, w.failed)}
	s.Jobs, s.Demand = plus(s.Jobs, w.Jobs), plus(s.Demand, w.demand)
	if n := w.stranded(); n != nil {
		if s.Stranded == nil {
			s.Stranded = new(int)
		}
		*s.Stranded += *n
	}
	if w.busy != nil {
		s.Busy += *w.busy
	}
	s.InForce += w.inForce
	s.EffectiveMax += w.now.Max
	s.Managers += w.managers
	s.Drift += len(w.drift)
	s.Held = s.Held || w.now.Mode != "" || w.capacity.Mode != ""
	s.Reason = cmp.Or(s.Reason, w.reason)
	switch {
	case first || w.Stopped == fleet.No:
		s.Stopped = w.Stopped
	case w.Stopped == fleet.Unknown && s.Stopped == fleet.Yes:
		s.Stopped = fleet.Unknown
	}
	return s
}

// credentialStatus says which credential is in use, and never what is in it.
func (l *look) credentialStatus(s *v1alpha1.RunnerEnrollmentStatus) {
	if l.account == nil || l.account.Identity.Kind == "" || l.facts.Credential.Valid != fleet.Yes {
		return // what was in use still is
	}
	id := l.account.Identity
	c := &v1alpha1.CredentialStatus{Kind: v1alpha1.CredentialKind(id.Kind), Fingerprint: l.facts.Credential.Fingerprint, CreatedAt: new(metav1.NewTime(l.now.Truncate(time.Second)))}
	if was := s.Credential; was != nil && was.Fingerprint == c.Fingerprint && was.CreatedAt != nil {
		c.CreatedAt = was.CreatedAt
	}
	if id.AppID != 0 {
		c.AppID = &id.AppID
	}
	if id.InstallationID != 0 {
		c.InstallationID = &id.InstallationID
	}
	if !id.ExpiresAt.IsZero() {
		c.ExpiresAt = new(metav1.NewTime(id.ExpiresAt.Truncate(time.Second)))
	}
	s.Credential = c
}
