//go:build unix

package kube

import (
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
)

func condition(kind string, status metav1.ConditionStatus, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: "Test", Message: message, LastTransitionTime: metav1.Now()}
}

// FLEET-03, PL-07: the state of runners comes from the fleet. Paused and Drained appear only after confirmation, and unreported state is
// Unknown.
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
		s.Conditions = []metav1.Condition{condition("Applied", metav1.ConditionTrue, "")}
	}
	but := func(pool string) func(*v1alpha1.RunnerHoldStatus) {
		return func(s *v1alpha1.RunnerHoldStatus) {
			s.Targets, s.Applied, s.Failed = 3, 2, []v1alpha1.HoldFailure{{Org: "acme", Pool: pool, Reason: "ForgeUnreachable"}}
			s.Conditions = []metav1.Condition{condition("Applied", metav1.ConditionFalse, "")}
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
		{"all is well", enrolled(active), runs(nil), nil, plane.PoolActive},
		{"no status yet", enrolled(""), nil, nil, plane.StateUnknown},
		{"no status of the pool yet", enrolled(active), nil, nil, plane.StateUnknown},
		{"the maximum is not known", enrolled(active), runs(func(s *v1alpha1.EnrolledPoolStatus) { s.EffectiveMax = nil }), nil, plane.StateUnknown},
		{"it is being made", enrolled(v1alpha1.PhaseProvisioning), runs(nil), nil, plane.PoolProvisioning},
		{"its listener restarts", enrolled(active, metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Reason: fleet.ReasonRestarts, Message: "It starts."}), runs(nil), nil, plane.PoolProvisioning},
		{"it waits for approval", enrolled(v1alpha1.PhaseRequested), nil, nil, plane.PoolProvisioning},
		{"its credential is refused", enrolled(v1alpha1.PhaseSuspended), runs(nil), nil, plane.PoolFailing},
		{"a rule is broken, and it is held", enrolled(active, condition("PolicyViolation", metav1.ConditionTrue, "no")), held("h"), []*v1alpha1.RunnerHold{hold("Pause", applied)}, plane.PoolFailing},
		{"it ends", enrolled(v1alpha1.PhaseDraining), runs(nil), nil, plane.PoolDraining},
		{"some have failed", enrolled(active), runs(func(s *v1alpha1.EnrolledPoolStatus) { s.Failed = new(int32(1)) }), nil, plane.PoolDegraded},
		{"a hold that the fleet has not seen", enrolled(active), runs(nil), []*v1alpha1.RunnerHold{hold("Pause", func(s *v1alpha1.RunnerHoldStatus) { *s = v1alpha1.RunnerHoldStatus{} })}, plane.PoolPausing},
		{"a hold that the fleet has seen, and the forge not", enrolled(active), held("h"), []*v1alpha1.RunnerHold{hold("Pause", nil)}, plane.PoolPausing},
		{"a hold that is confirmed, but not for these", enrolled(active), runs(nil), []*v1alpha1.RunnerHold{hold("Pause", applied)}, plane.PoolPausing},
		{"a hold that was confirmed for an earlier generation", enrolled(active), held("h"), []*v1alpha1.RunnerHold{hold("Pause", func(s *v1alpha1.RunnerHoldStatus) { applied(s); s.ObservedGeneration = 0 })}, plane.PoolPausing},
		{"a hold that is confirmed", enrolled(active), held("h"), []*v1alpha1.RunnerHold{hold("Pause", applied)}, plane.PoolPaused},
		{"a hold that failed for others", enrolled(active), held("h"), []*v1alpha1.RunnerHold{hold("Pause", but("docker"))}, plane.PoolPaused},
		{"a hold that failed for these", enrolled(active), held("h"), []*v1alpha1.RunnerHold{hold("Pause", but("nix"))}, plane.PoolPausing},
		{"one that drains", enrolled(active), held("h"), []*v1alpha1.RunnerHold{hold("Drain", applied)}, plane.PoolDraining},
		{"one that has drained", enrolled(active), held("h"), []*v1alpha1.RunnerHold{hold("Drain", func(s *v1alpha1.RunnerHoldStatus) {
			applied(s)
			s.Conditions = append(s.Conditions, condition("Drained", metav1.ConditionTrue, ""))
		})}, plane.PoolDrained},
		{"one that was lifted just now", enrolled(active), held("h"), nil, plane.PoolResuming},
	} {
		if got, why := poolState(c.e, "nix", c.s, c.in); got != c.want || (why == "") != (got == plane.PoolActive) {
			t.Errorf("%s: %s (%q), want %s", c.why, got, why, c.want)
		}
	}
}

// A pool says so if it is paused by ending its managers.
func TestPausedByDrain(t *testing.T) {
	e := &v1alpha1.RunnerEnrollment{Status: v1alpha1.RunnerEnrollmentStatus{Phase: v1alpha1.PhaseActive}}
	h := &v1alpha1.RunnerHold{ObjectMeta: metav1.ObjectMeta{Name: "h"}, Spec: v1alpha1.RunnerHoldSpec{Mode: v1alpha1.HoldPause}}
	if state, why := poolState(e, "nix", &v1alpha1.EnrolledPoolStatus{Name: "nix", Hold: "h", Drift: []string{"PauseByDrain"}}, []*v1alpha1.RunnerHold{h}); state != plane.PoolPausing || !strings.Contains(why, "managers are stopped") {
		t.Errorf("%s: %s", state, why)
	}
}

// PLANE-09: runners, organisations, forges and holds appear as on a real API server, joined with each other. TestFLEET04_Holds in package
// act tests the making of holds.
func TestRunners(t *testing.T) {
	p := newEnv(t, nil)
	store := p.startWatch(p.Config)
	org, pool, forge := p.Namespace+"-o", p.Namespace+"-p", p.Namespace+"-f"
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }
	id := forge + "/" + org + "/" + pool
	row := func() plane.Pool { o, _ := objectOf[plane.Pool](store, plane.KindPool, id); return o }
	p.Create(&v1alpha1.RunnerForge{ObjectMeta: named(forge), Spec: v1alpha1.RunnerForgeSpec{Type: v1alpha1.GitHub, URL: "https://github.com"},
		Status: v1alpha1.RunnerForgeStatus{Conditions: []metav1.Condition{condition("Reachable", metav1.ConditionTrue, "")}}})
	e := &v1alpha1.RunnerEnrollment{ObjectMeta: named(org), Spec: v1alpha1.RunnerEnrollmentSpec{Forge: forge, ConfigURL: "https://github.com/" + org, Owners: []string{"amy@acme.dev"},
		Pools: []v1alpha1.EnrolledPool{{Name: pool}}, Credentials: v1alpha1.EnrollmentCredentials{SecretName: "s"}}}
	p.Create(e)
	p.Until("the runners are shown, and that nothing is known of them", func() bool {
		o := row()
		return o.State == plane.StateUnknown && o.Counts.Busy == nil && o.Scaling == nil && o.RunsOn == nil
	})
	p.Create(&v1alpha1.RunnerPool{ObjectMeta: named(pool), Spec: v1alpha1.RunnerPoolSpec{Forge: forge, RunsOn: []string{"nix", "{org}"}, Scaling: v1alpha1.PoolScaling{Max: 5, Budget: 20}}})
	e.Status = v1alpha1.RunnerEnrollmentStatus{Phase: v1alpha1.PhaseActive, Pools: []v1alpha1.EnrolledPoolStatus{{Name: pool, Type: "Shared", EffectiveMax: new(int32(5)), Busy: new(int32(2)), Idle: new(int32(0))}},
		Adopted: []v1alpha1.EnrolledAdoption{{Name: "old", Namespace: "old-runners", Workload: "nix", AdoptedStatus: v1alpha1.AdoptedStatus{Max: new(int32(9)), Busy: new(int32(1)), Hold: "freeze"}}}}
	p.Must(p.Admin.Status().Update(t.Context(), e))
	p.Until("they are active", func() bool { o := row(); return o.State == plane.PoolActive && o.Scaling != nil })
	switch o := row(); {
	case !slices.Equal(o.RunsOn, []string{"nix", org}):
		t.Errorf("o.RunsOn (-want +got):\n%s", cmp.Diff([]string{"nix", org}, o.RunsOn))
	case o.Scaling.Max != 5:
		t.Errorf("o.Scaling.Max = %v, want 5", o.Scaling.Max)
	case *o.Counts.Busy != 2:
		t.Errorf("*o.Counts.Busy = %v, want 2", *o.Counts.Busy)
	case *o.Counts.Idle != 0:
		t.Errorf("*o.Counts.Idle = %v, want 0", *o.Counts.Idle)
	case o.Counts.Failed != nil:
		t.Errorf("o.Counts.Failed = %v, want nil", o.Counts.Failed)
	case o.Assigned != nil:
		t.Errorf("o.Assigned = %v, want nil", o.Assigned)
	case o.Stranded != nil:
		t.Errorf("o.Stranded = %v, want nil", o.Stranded)
	case o.Org() != org:
		t.Errorf("o.Org() = %q, want %q", o.Org(), org)
	}
	stored, _ := objectOf[plane.Enrollment](store, plane.KindEnrollment, org)
	if want := []plane.Adoption{{Pool: "old", Namespace: "old-runners", Workload: "nix", Max: new(9), Counts: plane.Counts{Busy: new(1)}, Hold: "freeze"}}; !reflect.DeepEqual(stored.ExternalScaleSets, want) {
		t.Errorf("the external scale sets are %+v", stored.ExternalScaleSets)
	}
	p.Until("the forge lists its organisations", func() bool {
		f, _ := objectOf[plane.Forge](store, plane.KindForge, forge)
		return f.Reachable != nil && *f.Reachable && slices.Equal(f.EnrolledOrgs, []string{org})
	})

	found := v1alpha1.EnrollmentFinding{ID: p.Namespace, Kind: "LabelsDiffer", Severity: "warning", Pool: pool, Want: "nix", Have: "docker", Evidence: "other labels", Next: "put them back", FirstSeen: metav1.Now(), Settled: true}
	passing := found
	passing.ID, passing.Settled = p.Namespace+"-passing", false
	e.Status.Findings = []v1alpha1.EnrollmentFinding{found, passing}
	p.Must(p.Admin.Status().Update(t.Context(), e))
	p.Until("the drift is shown", func() bool {
		d, there := objectOf[plane.Drift](store, plane.KindDrift, p.Namespace)
		return there && d.Org() == org && d.Kind == plane.DriftForge && *d.Have == "docker" && d.Forge == forge
	})
	if _, there := store.Get(plane.KindDrift, passing.ID); there {
		t.Error("the temporary difference is shown")
	}
	p.ignored(store, e)
	e.Status.Findings = nil
	p.Must(p.Admin.Status().Update(t.Context(), e))
	p.Until("it is as it should be", func() bool { _, there := store.Get(plane.KindDrift, p.Namespace); return !there })

	h := &v1alpha1.RunnerHold{ObjectMeta: named(p.Namespace + "-h"), Spec: v1alpha1.RunnerHoldSpec{Scope: v1alpha1.HoldScope{Org: org, Pool: pool}, Mode: v1alpha1.HoldPause, Reason: "test", RequestedBy: "mel@acme.dev"}}
	p.Must(p.Admin.Create(t.Context(), h))
	p.Until("it holds, and that is not confirmed", func() bool {
		o := row()
		return o.State == plane.PoolPausing && slices.Equal(o.Holds, []string{h.Name})
	})
	h.Status = v1alpha1.RunnerHoldStatus{ObservedGeneration: h.Generation, Targets: 1, Applied: 1, Conditions: []metav1.Condition{condition("Applied", metav1.ConditionTrue, "")}}
	p.Must(p.Admin.Status().Update(t.Context(), h))
	e.Status.Pools[0].Hold, e.Status.Pools[0].EffectiveMax = h.Name, new(int32(0))
	e.Status.Pools[0].Assigned, e.Status.Pools[0].Stranded = new(int32(3)), new(int32(1))
	p.Must(p.Admin.Status().Update(t.Context(), e))
	p.Until("they are paused", func() bool { return row().State == plane.PoolPaused })
	switch o := row(); {
	case o.Assigned == nil:
		t.Error("jobs that GitHub gave: o.Assigned is nil")
	case *o.Assigned != 3:
		t.Errorf("jobs that GitHub gave: *o.Assigned = %v, want 3", *o.Assigned)
	case o.Stranded == nil:
		t.Error("jobs that GitHub gave: o.Stranded is nil")
	case *o.Stranded != 1:
		t.Errorf("jobs that GitHub gave: *o.Stranded = %v, want 1", *o.Stranded)
	}

	p.Must(p.Admin.Delete(t.Context(), h))
	p.Until("they resume", func() bool {
		_, there := store.Get(plane.KindHold, h.Name)
		return row().State == plane.PoolResuming && !there
	})
	p.Must(p.Admin.Delete(t.Context(), e))
	p.Until("all of it is gone", func() bool {
		_, row := store.Get(plane.KindPool, id)
		_, org := store.Get(plane.KindEnrollment, org)
		return !row && !org
	})
	if s := sourceOf(store, "runnerholds"); s.Status != plane.StatusOK {
		t.Errorf("%+v", s)
	}
}

// ignored checks ignored drift: it is stored in the cluster and shown by every replica. It is shown as drift again when it expires, gets
// worse, or is no longer ignored.
func (p *env) ignored(store *plane.Store, e *v1alpha1.RunnerEnrollment) {
	p.Helper()
	var mu sync.Mutex
	now := time.Now().UTC().Truncate(time.Second)
	clock := func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
	other := plane.NewStore(clock)
	api, err := Connect(p.Config, clock)
	p.Must(err)
	s := api.DriftIgnores(p.Namespace, other)
	drift := func() plane.Drift {
		d, _ := objectOf[plane.Drift](store, plane.KindDrift, p.Namespace)
		return d
	}
	other.Set(plane.KindDrift, "kubernetes", drift())
	wide := p.Permit("olga@example.com", `{"role":"operator","orgs":["*"]}`, access.ConfigPropose)
	in, err := wide.In(e.Name)
	p.Must(err)
	until := now.Add(time.Hour)
	own := plane.DriftIgnore{By: "olga@example.com", Reason: "a trial", Until: until}
	if err := s.Set(p.Context(), wide, drift(), own, false); problem.CodeOf(err) != problem.Internal {
		p.Errorf("a permit that is for no organisation: %v", err)
	}
	if err := s.Set(p.Context(), in, drift(), plane.DriftIgnore{By: "olga@example.com", Reason: "for ever", Until: now.Add(9999 * time.Hour)}, false); problem.CodeOf(err) != problem.Validation {
		p.Errorf("without a limit: %v", err)
	}
	p.Must(s.Set(p.Context(), in, drift(), own, true))
	if d, _ := objectOf[plane.Drift](other, plane.KindDrift, p.Namespace); d.IgnoredUntil != nil {
		p.Error("a dry run has stored it")
	}
	p.Must(s.Set(p.Context(), in, drift(), own, false))
	p.Until("another replica shows that it is ignored", func() bool {
		d := drift()
		return d.CurrentState() == plane.DriftIgnored && d.IgnoredUntil.Equal(until) && d.IgnoredBy == own.By && d.IgnoredReason == own.Reason
	})

	e.Status.Findings[0].Severity = "error"
	p.Must(p.Admin.Status().Update(p.Context(), e))
	p.Until("a worse drift is reported", func() bool { return drift().CurrentState() == "error" })
	e.Status.Findings[0].Severity = "warning"
	p.Must(p.Admin.Status().Update(p.Context(), e))
	p.Until("as it was it is ignored", func() bool { return drift().CurrentState() == plane.DriftIgnored })

	here := func() plane.Drift {
		d, _ := objectOf[plane.Drift](other, plane.KindDrift, p.Namespace)
		return d
	}
	if here().CurrentState() != plane.DriftIgnored {
		p.Errorf("after the request: %+v", here())
	}
	mu.Lock()
	now = until
	mu.Unlock()
	if s.tick(); here().IgnoredUntil != nil || here().CurrentState() != "warning" {
		p.Errorf("its time is over: %+v", here())
	}
	mu.Lock()
	now = until.Add(-time.Hour) // of the permit
	mu.Unlock()
	p.Must(s.Set(p.Context(), in, drift(), plane.DriftIgnore{By: own.By, Reason: "mended"}, false))
	p.Until("it is no longer ignored", func() bool { return drift().IgnoredUntil == nil })

	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: ignoresConfigMap}, Data: map[string]string{ignoredKey: "{"}}
	p.Must(p.Admin.Update(p.Context(), m))
	p.Until("unreadable content is reported", func() bool { return sourceOf(store, "ignoreddrift").Status == plane.StatusDegraded })
	if err := s.Set(p.Context(), in, drift(), plane.DriftIgnore{By: own.By, Reason: "again", Until: until.Add(time.Hour)}, false); problem.CodeOf(err) != problem.Unavailable {
		p.Errorf("unreadable content is overwritten: %v", err)
	}
	p.Must(p.Admin.Delete(p.Context(), m)) // nothing is ignored then
	p.Until("without the ConfigMap the status is ok", func() bool { return sourceOf(store, "ignoreddrift").Status == plane.StatusOK })
}
