//go:build unix

package planekube

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/plane/planefleet"
	"github.com/tailplane/tailplane/internal/problem"
)

func is(kind string, status metav1.ConditionStatus, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: "Test", Message: message, LastTransitionTime: metav1.Now()}
}

// FLEET-03, PL-07: how runners stand is what the fleet has said. Paused and Drained
// are never said before it is confirmed, and what nobody has said is Unknown.
func TestFLEET03_State(t *testing.T) {
	enrolled := func(phase v1alpha1.EnrollmentPhase, conditions ...metav1.Condition) *v1alpha1.RunnerEnrollment {
		e := &v1alpha1.RunnerEnrollment{ObjectMeta: metav1.ObjectMeta{Name: "acme"}, Spec: v1alpha1.RunnerEnrollmentSpec{Pools: []v1alpha1.EnrolledPool{{Name: "nix"}}}}
		e.Status.Phase, e.Status.Conditions = phase, conditions
		return e
	}
	runs := func(change func(*v1alpha1.EnrolledPoolStatus)) *v1alpha1.EnrolledPoolStatus {
		s := &v1alpha1.EnrolledPoolStatus{Name: "nix", EffectiveMax: new(int32(3)), Allocated: new(int32(3)), Failed: new(int32(0))}
		if change != nil {
			change(s)
		}
		return s
	}
	held := func(by string) *v1alpha1.EnrolledPoolStatus {
		return runs(func(s *v1alpha1.EnrolledPoolStatus) { s.Hold, s.EffectiveMax = by, new(int32(0)) })
	}
	hold := func(mode v1alpha1.HoldMode, change func(*v1alpha1.RunnerHoldStatus)) *v1alpha1.RunnerHold {
		h := &v1alpha1.RunnerHold{ObjectMeta: metav1.ObjectMeta{Name: "h", Generation: 1}, Spec: v1alpha1.RunnerHoldSpec{Mode: mode, RequestedBy: "alice@example.com", Reason: "why"}}
		h.Status.ObservedGeneration = 1
		if change != nil {
			change(&h.Status)
		}
		return h
	}
	applied := func(s *v1alpha1.RunnerHoldStatus) {
		s.Conditions = []metav1.Condition{is("Applied", metav1.ConditionTrue, "")}
	}
	but := func(pool string) func(*v1alpha1.RunnerHoldStatus) {
		return func(s *v1alpha1.RunnerHoldStatus) {
			s.Targets, s.Applied, s.Failed = 3, 2, []v1alpha1.HoldFailure{{Org: "acme", Pool: pool, Reason: "ForgeUnreachable"}}
			s.Conditions = []metav1.Condition{is("Applied", metav1.ConditionFalse, "")}
		}
	}
	const active = v1alpha1.PhaseActive
	for _, c := range []struct {
		why  string
		e    *v1alpha1.RunnerEnrollment
		s    *v1alpha1.EnrolledPoolStatus
		in   []*v1alpha1.RunnerHold
		want string
	}{
		{"all is well", enrolled(active), runs(nil), nil, planefleet.Active},
		{"nobody has said anything", enrolled(""), nil, nil, planefleet.Unknown},
		{"nobody has said anything of the pool", enrolled(active), nil, nil, planefleet.Unknown},
		{"nobody knows how many there may be", enrolled(active), runs(func(s *v1alpha1.EnrolledPoolStatus) { s.EffectiveMax = nil }), nil, planefleet.Unknown},
		{"it is being made", enrolled(v1alpha1.PhaseProvisioning), runs(nil), nil, planefleet.Provisioning},
		{"its listener starts anew", enrolled(active, metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Reason: fleet.ReasonRestarts, Message: "It starts."}), runs(nil), nil, planefleet.Provisioning},
		{"it waits for approval", enrolled(v1alpha1.PhaseRequested), nil, nil, planefleet.Provisioning},
		{"its credential is refused", enrolled(v1alpha1.PhaseSuspended), runs(nil), nil, planefleet.Failing},
		{"a rule is broken, and it is held", enrolled(active, is("PolicyViolation", metav1.ConditionTrue, "no")), held("h"), []*v1alpha1.RunnerHold{hold("Pause", applied)}, planefleet.Failing},
		{"it ends", enrolled(v1alpha1.PhaseDraining), runs(nil), nil, planefleet.Draining},
		{"some have failed", enrolled(active), runs(func(s *v1alpha1.EnrolledPoolStatus) { s.Failed = new(int32(1)) }), nil, planefleet.Degraded},
		{"a hold that the fleet has not seen", enrolled(active), runs(nil), []*v1alpha1.RunnerHold{hold("Pause", func(s *v1alpha1.RunnerHoldStatus) { *s = v1alpha1.RunnerHoldStatus{} })}, planefleet.Pausing},
		{"a hold that the fleet has seen, and the forge not", enrolled(active), held("h"), []*v1alpha1.RunnerHold{hold("Pause", nil)}, planefleet.Pausing},
		{"a hold that is confirmed, but not for these", enrolled(active), runs(nil), []*v1alpha1.RunnerHold{hold("Pause", applied)}, planefleet.Pausing},
		{"a hold that was confirmed for an earlier generation", enrolled(active), held("h"), []*v1alpha1.RunnerHold{hold("Pause", func(s *v1alpha1.RunnerHoldStatus) { applied(s); s.ObservedGeneration = 0 })}, planefleet.Pausing},
		{"a hold that is confirmed", enrolled(active), held("h"), []*v1alpha1.RunnerHold{hold("Pause", applied)}, planefleet.Paused},
		{"a hold that failed for others", enrolled(active), held("h"), []*v1alpha1.RunnerHold{hold("Pause", but("docker"))}, planefleet.Paused},
		{"a hold that failed for these", enrolled(active), held("h"), []*v1alpha1.RunnerHold{hold("Pause", but("nix"))}, planefleet.Pausing},
		{"one that drains", enrolled(active), held("h"), []*v1alpha1.RunnerHold{hold("Drain", applied)}, planefleet.Draining},
		{"one that has drained", enrolled(active), held("h"), []*v1alpha1.RunnerHold{hold("Drain", func(s *v1alpha1.RunnerHoldStatus) {
			applied(s)
			s.Conditions = append(s.Conditions, is("Drained", metav1.ConditionTrue, ""))
		})}, planefleet.Drained},
		{"one that was lifted just now", enrolled(active), held("h"), nil, planefleet.Resuming},
	} {
		if got, why := stateOf(c.e, "nix", c.s, c.in); got != c.want || (why == "") != (got == planefleet.Active) {
			t.Errorf("%s: %s (%q), want %s", c.why, got, why, c.want)
		}
	}
}

// A pool says so where it is paused by the end of its managers.
func TestPausedByDrain(t *testing.T) {
	e := &v1alpha1.RunnerEnrollment{Status: v1alpha1.RunnerEnrollmentStatus{Phase: v1alpha1.PhaseActive}}
	h := &v1alpha1.RunnerHold{ObjectMeta: metav1.ObjectMeta{Name: "h"}, Spec: v1alpha1.RunnerHoldSpec{Mode: v1alpha1.HoldPause}}
	if state, why := stateOf(e, "nix", &v1alpha1.EnrolledPoolStatus{Name: "nix", Hold: "h", Drift: []string{"PauseByDrain"}}, []*v1alpha1.RunnerHold{h}); state != planefleet.Pausing || !strings.Contains(why, "managers are ended") {
		t.Errorf("%s: %s", state, why)
	}
}

// PLANE-09, FLEET-04: runners, organisations, forges and holds are shown as they are
// on a real API server, joined with each other, and holds are made and lifted there.
func TestRunners(t *testing.T) {
	p := newPlace(t, nil)
	board := p.watch(p.config)
	org, pool, forge := p.ns+"-o", p.ns+"-p", p.ns+"-f"
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }
	id := forge + "/" + org + "/" + pool
	row := func() planefleet.Pool { o, _ := objectOf[planefleet.Pool](board, plane.KindPool, id); return o }
	p.create(&v1alpha1.RunnerForge{ObjectMeta: named(forge), Spec: v1alpha1.RunnerForgeSpec{Type: v1alpha1.GitHub, URL: "https://github.com"},
		Status: v1alpha1.RunnerForgeStatus{Conditions: []metav1.Condition{is("Reachable", metav1.ConditionTrue, "")}}})
	e := &v1alpha1.RunnerEnrollment{ObjectMeta: named(org), Spec: v1alpha1.RunnerEnrollmentSpec{Forge: forge, ConfigURL: "https://github.com/" + org, Owners: []string{"amy@acme.dev"},
		Pools: []v1alpha1.EnrolledPool{{Name: pool}}, Credentials: v1alpha1.EnrollmentCredentials{SecretName: "s"}}}
	p.create(e)
	p.until("the runners are shown, and that nothing is known of them", func() bool {
		o := row()
		return o.State == planefleet.Unknown && o.Counts.Busy == nil && o.Scaling == nil && o.RunsOn == nil
	})
	p.create(&v1alpha1.RunnerPool{ObjectMeta: named(pool), Spec: v1alpha1.RunnerPoolSpec{Forge: forge, RunsOn: []string{"nix", "{org}"}, Scaling: v1alpha1.PoolScaling{Max: 5, Budget: 20}}})
	e.Status = v1alpha1.RunnerEnrollmentStatus{Phase: v1alpha1.PhaseActive, Pools: []v1alpha1.EnrolledPoolStatus{{Name: pool, Type: "Shared", EffectiveMax: new(int32(5)), Busy: new(int32(2)), Idle: new(int32(0))}},
		Adopted: []v1alpha1.EnrolledAdoption{{Name: "old", Namespace: "old-runners", Workload: "nix", AdoptedStatus: v1alpha1.AdoptedStatus{Max: new(int32(9)), Busy: new(int32(1)), Hold: "freeze"}}}}
	p.must(p.admin.Status().Update(t.Context(), e))
	p.until("they are active", func() bool { o := row(); return o.State == planefleet.Active && o.Scaling != nil })
	if o := row(); !slices.Equal(o.RunsOn, []string{"nix", org}) || o.Scaling.Max != 5 || *o.Counts.Busy != 2 || *o.Counts.Idle != 0 || o.Counts.Failed != nil || o.Assigned != nil || o.Stranded != nil || o.Org() != org {
		t.Errorf("%+v", o)
	}
	kept, _ := objectOf[planefleet.Enrollment](board, plane.KindEnrollment, org)
	if want := []planefleet.Adoption{{Pool: "old", Namespace: "old-runners", Workload: "nix", Max: new(9), Counts: planefleet.Counts{Busy: new(1)}, Hold: "freeze"}}; !reflect.DeepEqual(kept.Adopted, want) {
		t.Errorf("of what somebody else keeps it tells %+v", kept.Adopted)
	}
	p.until("the forge knows who is there", func() bool {
		f, _ := objectOf[planefleet.Forge](board, plane.KindForge, forge)
		return f.Reachable != nil && *f.Reachable && slices.Equal(f.EnrolledThere, []string{org})
	})

	found := v1alpha1.EnrollmentFinding{ID: p.ns, Kind: "LabelsDiffer", Severity: "warning", Pool: pool, Want: "nix", Have: "docker", Evidence: "other labels", Next: "put them back", FirstSeen: metav1.Now(), Settled: true}
	passing := found
	passing.ID, passing.Settled = p.ns+"-passing", false
	e.Status.Findings = []v1alpha1.EnrollmentFinding{found, passing}
	p.must(p.admin.Status().Update(t.Context(), e))
	p.until("what is not as it should be is shown", func() bool {
		d, there := objectOf[planefleet.Drift](board, plane.KindDrift, p.ns)
		return there && d.Org() == org && d.Kind == planefleet.DriftForge && *d.Have == "docker" && d.Forge == forge
	})
	if _, there := board.Get(plane.KindDrift, passing.ID); there {
		t.Error("what may pass is shown")
	}
	p.ignored(board, e)
	e.Status.Findings = nil
	p.must(p.admin.Status().Update(t.Context(), e))
	p.until("it is as it should be", func() bool { _, there := board.Get(plane.KindDrift, p.ns); return !there })

	holds, err := NewHolds(p.config, time.Now)
	p.must(err)
	mine := `{"role":"operator","orgs":["` + org + `"]}`
	in := func(v access.Verb) access.Permit {
		permit, err := p.permit("mel@acme.dev", mine, v).In(org)
		p.must(err)
		return permit
	}
	draft := planefleet.Draft{Name: p.ns + "-h", Scope: planefleet.Scope{Org: org, Pool: pool}, Mode: planefleet.Pause, Reason: "test", Digest: "d1"}
	if _, _, err := holds.Create(t.Context(), in(access.HoldsCreate), draft, true); err != nil {
		t.Errorf("asked whether: %v", err)
	}
	if err := p.admin.Get(t.Context(), client.ObjectKey{Name: draft.Name}, new(v1alpha1.RunnerHold)); !apierrors.IsNotFound(err) {
		t.Errorf("a dry run has made it: %v", err)
	}
	// PL-08: whatever the caller has checked before.
	for why, permit := range map[string]access.Permit{"no permit": {}, "one for something else": in(access.HoldsLift), "one that was not narrowed": p.permit("mel@acme.dev", mine, access.HoldsCreate)} {
		if _, _, err := holds.Create(t.Context(), permit, draft, false); problem.CodeOf(err) != problem.Internal {
			t.Errorf("%s: %v", why, err)
		}
	}
	wide := draft
	wide.Name, wide.Scope = p.ns+"-all", planefleet.Scope{All: true}
	if _, _, err := holds.Create(t.Context(), in(access.HoldsCreate), wide, false); problem.CodeOf(err) != problem.Internal {
		t.Errorf("everything, by a permit for one: %v", err)
	}
	h, created, err := holds.Create(t.Context(), in(access.HoldsCreate), draft, false)
	if err != nil || !created || h.RequestedBy != "mel@acme.dev" || h.UID == "" {
		t.Fatalf("%+v %v %v", h, created, err)
	}
	if again, created, err := holds.Create(t.Context(), in(access.HoldsCreate), draft, false); err != nil || created || again.UID != h.UID {
		t.Errorf("once more: %+v %v %v", again, created, err)
	}
	other := draft
	other.Digest = "d2"
	if _, _, err := holds.Create(t.Context(), in(access.HoldsCreate), other, false); problem.CodeOf(err) != problem.Conflict {
		t.Errorf("something else of that name: %v", err)
	}
	p.until("it holds, and that is not confirmed", func() bool {
		o := row()
		return o.State == planefleet.Pausing && slices.Equal(o.Holds, []string{h.Name})
	})
	stored := new(v1alpha1.RunnerHold)
	p.must(p.admin.Get(t.Context(), client.ObjectKey{Name: h.Name}, stored))
	stored.Status = v1alpha1.RunnerHoldStatus{ObservedGeneration: stored.Generation, Targets: 1, Applied: 1, Conditions: []metav1.Condition{is("Applied", metav1.ConditionTrue, "")}}
	p.must(p.admin.Status().Update(t.Context(), stored))
	e.Status.Pools[0].Hold, e.Status.Pools[0].EffectiveMax = h.Name, new(int32(0))
	e.Status.Pools[0].Assigned, e.Status.Pools[0].Stranded = new(int32(3)), new(int32(1))
	p.must(p.admin.Status().Update(t.Context(), e))
	p.until("they are paused", func() bool { return row().State == planefleet.Paused })
	if o := row(); o.Assigned == nil || *o.Assigned != 3 || o.Stranded == nil || *o.Stranded != 1 {
		t.Errorf("jobs that GitHub gave it: %v, %v", o.Assigned, o.Stranded)
	}

	stale := h
	stale.UID = "another"
	if err := holds.Lift(t.Context(), in(access.HoldsLift), stale, false); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("another one of its name: %v", err)
	}
	later := time.Now().Add(time.Hour).Truncate(time.Second)
	if _, err := holds.Reschedule(t.Context(), in(access.HoldsLift), stale, &later, false); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("the end of another one of its name: %v", err)
	}
	if _, err := holds.Reschedule(t.Context(), in(access.HoldsCreate), h, &later, false); problem.CodeOf(err) != problem.Internal {
		t.Errorf("the end, by a permit for something else: %v", err)
	}
	if _, err := holds.Reschedule(t.Context(), in(access.HoldsLift), h, &later, true); err != nil {
		t.Errorf("asked whether it would end later: %v", err)
	}
	moved, err := holds.Reschedule(t.Context(), in(access.HoldsLift), h, &later, false)
	if err != nil || moved.ExpiresAt == nil || !moved.ExpiresAt.Equal(later) || moved.Version == h.Version {
		t.Errorf("%+v, %v", moved, err)
	}
	if _, err := holds.Reschedule(t.Context(), in(access.HoldsLift), h, nil, false); problem.CodeOf(err) != problem.Conflict {
		t.Errorf("the end of what has changed meanwhile: %v", err)
	}
	if moved, err = holds.Reschedule(t.Context(), in(access.HoldsLift), moved, nil, false); err != nil || moved.ExpiresAt != nil {
		t.Errorf("%+v, %v", moved, err)
	}
	if err := errors.Join(holds.Lift(t.Context(), in(access.HoldsLift), h, true), holds.Lift(t.Context(), in(access.HoldsLift), h, false)); err != nil {
		t.Error(err)
	}
	p.until("they resume", func() bool {
		_, there := board.Get(plane.KindHold, h.Name)
		return row().State == planefleet.Resuming && !there
	})
	p.must(p.admin.Delete(t.Context(), e))
	p.until("all of it is gone", func() bool {
		_, row := board.Get(plane.KindPool, id)
		_, org := board.Get(plane.KindEnrollment, org)
		return !row && !org
	})
	if s := source(board, "runnerholds"); s.Status != plane.OK {
		t.Errorf("%+v", s)
	}
}

// ignored: what somebody ignores is kept in the cluster, shown by every replica, told
// again when its time is over or when it gets worse, and given up on demand.
func (p *place) ignored(board *plane.Board, e *v1alpha1.RunnerEnrollment) {
	p.Helper()
	var mu sync.Mutex
	now := time.Now().UTC().Truncate(time.Second)
	clock := func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
	other := plane.NewBoard(clock)
	s, err := NewIgnores(p.config, p.ns, other, clock)
	p.must(err)
	drift := func() planefleet.Drift { d, _ := objectOf[planefleet.Drift](board, plane.KindDrift, p.ns); return d }
	other.Put(plane.KindDrift, "kubernetes", drift())
	wide := p.permit("olga@example.com", `{"role":"operator","orgs":["*"]}`, access.ConfigPropose)
	in, err := wide.In(e.Name)
	p.must(err)
	until := now.Add(time.Hour)
	mine := planefleet.Ignored{By: "olga@example.com", Reason: "a trial", Until: until}
	if err := s.Keep(p.Context(), wide, drift(), mine, false); problem.CodeOf(err) != problem.Internal {
		p.Errorf("a permit that is for no organisation: %v", err)
	}
	if err := s.Keep(p.Context(), in, drift(), planefleet.Ignored{By: "olga@example.com", Reason: "for ever", Until: now.Add(9999 * time.Hour)}, false); problem.CodeOf(err) != problem.Validation {
		p.Errorf("for ever: %v", err)
	}
	p.must(s.Keep(p.Context(), in, drift(), mine, true))
	if d, _ := objectOf[planefleet.Drift](other, plane.KindDrift, p.ns); d.IgnoredUntil != nil {
		p.Error("a dry run has kept it")
	}
	p.must(s.Keep(p.Context(), in, drift(), mine, false))
	p.until("another replica shows that it is ignored", func() bool {
		d := drift()
		return d.Stands() == planefleet.Ignore && d.IgnoredUntil.Equal(until) && d.IgnoredBy == mine.By && d.IgnoredReason == mine.Reason
	})

	e.Status.Findings[0].Severity = "error"
	p.must(p.admin.Status().Update(p.Context(), e))
	p.until("what got worse is told", func() bool { return drift().Stands() == "error" })
	e.Status.Findings[0].Severity = "warning"
	p.must(p.admin.Status().Update(p.Context(), e))
	p.until("as it was it is ignored", func() bool { return drift().Stands() == planefleet.Ignore })

	here := func() planefleet.Drift { d, _ := objectOf[planefleet.Drift](other, plane.KindDrift, p.ns); return d }
	if here().Stands() != planefleet.Ignore {
		p.Errorf("where it was asked for: %+v", here())
	}
	mu.Lock()
	now = until
	mu.Unlock()
	if s.tick(); here().IgnoredUntil != nil || here().Stands() != "warning" {
		p.Errorf("its time is over: %+v", here())
	}
	mu.Lock()
	now = until.Add(-time.Hour) // the permit's
	mu.Unlock()
	p.must(s.Keep(p.Context(), in, drift(), planefleet.Ignored{By: mine.By, Reason: "mended"}, false))
	p.until("nobody ignores it any more", func() bool { return drift().IgnoredUntil == nil })

	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: IgnoredConfigMap}, Data: map[string]string{ignoredKey: "{"}}
	p.must(p.admin.Update(p.Context(), m))
	p.until("what cannot be read is said", func() bool { return source(board, "ignoreddrift").Status == plane.Degraded })
	if err := s.Keep(p.Context(), in, drift(), planefleet.Ignored{By: mine.By, Reason: "again", Until: until.Add(time.Hour)}, false); problem.CodeOf(err) != problem.Unavailable {
		p.Errorf("what cannot be read is written over: %v", err)
	}
	p.must(p.admin.Delete(p.Context(), m)) // then nothing is ignored
	p.until("where there is none all is well", func() bool { return source(board, "ignoreddrift").Status == plane.OK })
}
