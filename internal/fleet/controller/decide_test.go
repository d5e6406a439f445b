package controller

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/arc"
)

// After two deletions by ARC, the gate refuses a creation for the same version, but not for another one.
func TestDecideGate(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	recorded := ""
	for i := range 2 {
		gate := decideGate(recorded, "0.14.2", now)
		switch {
		case !gate.allowed:
			t.Fatalf("creation: gate.allowed is false; %d, gate = %+v", i+1, gate)
		case gate.failure.Reason != "":
			t.Fatalf("creation: gate.failure.Reason = %q, want none; %d", gate.failure.Reason, i+1)
		case gate.record == recorded:
			t.Fatalf("creation: gate.record = %q, the same as recorded; %d", gate.record, i+1)
		}
		recorded = gate.record
		now = now.Add(time.Second)
	}
	gate := decideGate(recorded, "0.14.2", now)
	switch {
	case gate.allowed:
		t.Fatalf("third creation: gate.allowed is true; gate = %+v", gate)
	case gate.failure.Reason != arc.ReasonDeletes:
		t.Fatalf("third creation: gate.failure.Reason = %q, want %q", gate.failure.Reason, arc.ReasonDeletes)
	case !gate.until.After(now):
		t.Fatalf("third creation: gate.until.After(now) is false; gate = %+v", gate)
	case gate.record == recorded:
		t.Fatalf("third creation: gate.record = %q, the same as recorded", gate.record)
	}
	refused := decideGate(gate.record, "0.14.2", now.Add(time.Second))
	switch {
	case refused.allowed:
		t.Errorf("later: refused.allowed is true; refused = %+v", refused)
	case refused.record != gate.record:
		t.Errorf("later: refused.record = %q, want %q", refused.record, gate.record)
	case !refused.until.Equal(gate.until):
		t.Errorf("later: refused.until = %v, want %v", refused.until, gate.until)
	}
	if other := decideGate(gate.record, "0.15.0", now); !other.allowed {
		t.Errorf("another version: %+v", other)
	}
}

// Only an open workload of a used pool gets capacity. A closed workload keeps the hold, so that the status shows it.
func TestTargetOf(t *testing.T) {
	held := fleet.Capacity{Min: 1, Max: 3, Mode: v1alpha1.HoldStop, Hold: "h", CancelAt: time.Unix(9, 0)}
	closed := fleet.Capacity{Mode: v1alpha1.HoldStop, Hold: "h", CancelAt: time.Unix(9, 0)}
	free := fleet.Capacity{Min: 1, Max: 3}
	use := &v1alpha1.EnrolledPool{Name: "nix"}
	for i, x := range []struct {
		w    workload
		open bool
		want fleet.Capacity
	}{
		{workload{use: use, capacity: free}, true, free},
		{workload{use: use, capacity: held}, true, held},
		{workload{use: use, capacity: free}, false, fleet.Capacity{}},
		{workload{use: use, capacity: held}, false, closed},
		{workload{capacity: free}, true, fleet.Capacity{}},
	} {
		if got := targetOf(&x.w, x.open); got != x.want {
			t.Errorf("%d: got %+v, want %+v", i, got, x.want)
		}
	}
}

// The earliest wake counts, a workload that ends is polled, and an action with a next step is continued at once.
func TestRequeueAfter(t *testing.T) {
	now, poll := time.Unix(1000, 0), 2*time.Second
	idle := outcome{workloads: []workloadOutcome{{stopped: fleet.Yes, jobs: new(0)}}}
	busy := outcome{workloads: []workloadOutcome{{stopped: fleet.Yes, jobs: new(1)}}}
	step := func(kinds ...fleet.ActionKind) plan {
		p := plan{workloads: make([]workloadPlan, 1)}
		for _, k := range kinds {
			p.step.Actions = append(p.step.Actions, fleet.Action{Kind: k})
		}
		return p
	}
	for i, x := range []struct {
		p    plan
		done outcome
		wake time.Time
		want time.Duration
	}{
		{step(), idle, time.Time{}, maxRequeueAfter},
		{step(), idle, now.Add(5 * time.Second), 5*time.Second + time.Millisecond},
		{step(), idle, now.Add(-time.Second), time.Millisecond},
		{step(), busy, time.Time{}, poll},
		{step(fleet.StopIntake), idle, time.Time{}, poll},
		{step(fleet.AddFinalizer), idle, time.Time{}, debounce},
	} {
		o := &observed{enrollmentInput: enrollmentInput{now: now}}
		if got := requeueAfter(o, x.p, x.done, poll, x.wake); got != x.want {
			t.Errorf("%d: got %v, want %v", i, got, x.want)
		}
	}
}

// A decision changes nothing that it is based on, so that a second one is the same.
func TestDecideIsPure(t *testing.T) {
	e := &v1alpha1.RunnerEnrollment{ObjectMeta: metav1.ObjectMeta{Name: "acme", Finalizers: []string{v1alpha1.FleetFinalizer}}}
	w := &workload{Workload: fleet.Workload{Key: fleet.Key{Namespace: "ci", Name: "acme-nix"}, Object: fleet.Yes, Remote: fleet.Yes, RemoteID: 7},
		set: &arc.Set{}, drift: make([]string, 0, 4)}
	o := &observed{enrollmentInput: enrollmentInput{e: e, now: time.Unix(1000, 0)}, workloads: []*workload{w},
		failures: make([]fleet.Failure, 0, 4), facts: fleet.Facts{Enrollment: e, Forge: v1alpha1.GitHub, HasFinalizer: true, Listed: true}}
	first := decide(o)
	second := decide(o)
	switch {
	case len(o.facts.Workloads) != 0:
		t.Errorf("the observation changed: len(o.facts.Workloads) = %v, want 0", len(o.facts.Workloads))
	case len(o.failures) != 0:
		t.Errorf("the observation changed: len(o.failures) = %v, want 0", len(o.failures))
	case len(w.drift) != 0:
		t.Errorf("the observation changed: len(w.drift) = %v, want 0", len(w.drift))
	}
	if len(first.step.Actions) != len(second.step.Actions) || first.step.Report.Phase != second.step.Report.Phase {
		t.Errorf("first %+v, then %+v", first.step, second.step)
	}
}
