package fleet_test

import (
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
)

// hold returns a hold that was created made minutes after start, and expires expires minutes after
// it; 0 means never.
func hold(name string, mode v1alpha1.HoldMode, s v1alpha1.HoldScope, created, expires int) v1alpha1.RunnerHold {
	h := v1alpha1.RunnerHold{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(start.Add(time.Duration(created) * time.Minute))},
		Spec: v1alpha1.RunnerHoldSpec{Scope: s, Mode: mode, Reason: "r", RequestedBy: "alice@example.com"}}
	if expires != 0 {
		h.Spec.ExpiresAt = new(metav1.NewTime(start.Add(time.Duration(expires) * time.Minute)))
	}
	return h
}

var (
	target = fleet.Target{Forge: "github", Org: "acme", Pool: "gh-nix"}
	all    = v1alpha1.HoldScope{All: true}
	forty  = v1alpha1.PoolScaling{Min: 2, Max: 40, Budget: 40}
)

// FLEET-04: how holds combine.
func TestFLEET04_Effective(t *testing.T) {
	at := func(minutes int) time.Time { return start.Add(time.Duration(minutes) * time.Minute) }
	held := func(mode v1alpha1.HoldMode, name string) fleet.Capacity {
		return fleet.Capacity{Mode: mode, Hold: name}
	}
	gone := hold("gone", v1alpha1.HoldStop, all, 0, 0)
	gone.DeletionTimestamp = new(metav1.NewTime(start))
	soon := hold("soon", v1alpha1.HoldStop, all, 0, 0)
	soon.Spec.Grace = &metav1.Duration{}
	for _, c := range []struct {
		why        string
		allocation int
		holds      []v1alpha1.RunnerHold
		at         int
		want       fleet.Capacity
		wake       int // minutes; 0: never
	}{
		{why: "none", allocation: 7, want: fleet.Capacity{Min: 2, Max: 7}},
		{why: "less than min", allocation: 1, want: fleet.Capacity{Min: 1, Max: 1}},
		{why: "more than max", allocation: 50, want: fleet.Capacity{Min: 2, Max: 40}},
		{why: "nothing allocated", want: fleet.Capacity{}},
		{why: "pause", allocation: 7, holds: []v1alpha1.RunnerHold{hold("a", v1alpha1.HoldPause, all, 0, 0)}, want: held(v1alpha1.HoldPause, "a")},
		{why: "the strongest", allocation: 7, holds: []v1alpha1.RunnerHold{hold("a", v1alpha1.HoldPause, all, 0, 0), hold("b", v1alpha1.HoldDrain, all, 1, 0)}, want: held(v1alpha1.HoldDrain, "b")},
		{why: "stop before drain", allocation: 7, holds: []v1alpha1.RunnerHold{soon, hold("b", v1alpha1.HoldDrain, all, 0, 0)}, want: fleet.Capacity{Mode: v1alpha1.HoldStop, Hold: "soon", CancelAt: start}},
		{why: "stop has a time", at: 1, holds: []v1alpha1.RunnerHold{hold("a", v1alpha1.HoldStop, all, 0, 0)}, want: fleet.Capacity{Mode: v1alpha1.HoldStop, Hold: "a", CancelAt: at(10)}, wake: 10},
		{why: "stop is late", at: 20, holds: []v1alpha1.RunnerHold{hold("a", v1alpha1.HoldStop, all, 0, 0)}, want: fleet.Capacity{Mode: v1alpha1.HoldStop, Hold: "a", CancelAt: at(10)}},
		{why: "the oldest of equals", holds: []v1alpha1.RunnerHold{hold("a", v1alpha1.HoldPause, all, 2, 0), hold("b", v1alpha1.HoldPause, all, 1, 0)}, want: held(v1alpha1.HoldPause, "b")},
		{why: "the first name of equals", holds: []v1alpha1.RunnerHold{hold("b", v1alpha1.HoldPause, all, 1, 0), hold("a", v1alpha1.HoldPause, all, 1, 0)}, want: held(v1alpha1.HoldPause, "a")},
		{why: "until it expires", at: 4, allocation: 7, holds: []v1alpha1.RunnerHold{hold("a", v1alpha1.HoldPause, all, 0, 5)}, want: held(v1alpha1.HoldPause, "a"), wake: 5},
		{why: "at its end it is over", at: 5, allocation: 7, holds: []v1alpha1.RunnerHold{hold("a", v1alpha1.HoldPause, all, 0, 5)}, want: fleet.Capacity{Min: 2, Max: 7}},
		{why: "one of two is over", at: 5, allocation: 7, holds: []v1alpha1.RunnerHold{hold("a", v1alpha1.HoldStop, all, 0, 5), hold("b", v1alpha1.HoldPause, all, 0, 9)}, want: held(v1alpha1.HoldPause, "b"), wake: 9},
		{why: "wakes at the first end", at: 1, holds: []v1alpha1.RunnerHold{hold("a", v1alpha1.HoldDrain, all, 0, 9), hold("b", v1alpha1.HoldPause, all, 0, 5)}, want: held(v1alpha1.HoldDrain, "a"), wake: 5},
		{why: "being deleted is lifted", allocation: 7, holds: []v1alpha1.RunnerHold{gone}, want: fleet.Capacity{Min: 2, Max: 7}},
		{why: "another's", allocation: 7, holds: []v1alpha1.RunnerHold{hold("a", v1alpha1.HoldPause, v1alpha1.HoldScope{Org: "other"}, 0, 5)}, want: fleet.Capacity{Min: 2, Max: 7}},
		{why: "a mode of a later version holds", holds: []v1alpha1.RunnerHold{hold("a", "Freeze", all, 0, 0)}, want: held("Freeze", "a")},
	} {
		t.Run(c.why, func(t *testing.T) {
			if c.wake != 0 {
				c.want.Wake = at(c.wake)
			}
			if got := fleet.Effective(target, forty, c.allocation, c.holds, at(c.at)); got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
}

// FLEET-04: the workloads in a scope. A new enrollment in the scope of a hold starts held.
func TestFLEET04_Scopes(t *testing.T) {
	for _, c := range []struct {
		scope v1alpha1.HoldScope
		want  bool
	}{
		{v1alpha1.HoldScope{All: true}, true},
		{v1alpha1.HoldScope{Forge: "github"}, true},
		{v1alpha1.HoldScope{Forge: "gitlab"}, false},
		{v1alpha1.HoldScope{Org: "acme"}, true},
		{v1alpha1.HoldScope{Org: "acm"}, false},
		{v1alpha1.HoldScope{Pool: "gh-nix"}, true},
		{v1alpha1.HoldScope{Pool: "gh"}, false},
		{v1alpha1.HoldScope{Org: "acme", Pool: "gh-nix"}, true},
		{v1alpha1.HoldScope{Org: "acme", Pool: "other"}, false},
		{v1alpha1.HoldScope{Org: "other", Pool: "gh-nix"}, false},
		{v1alpha1.HoldScope{}, false},
	} {
		if got := fleet.ScopeIncludes(c.scope, target); got != c.want {
			t.Errorf("%+v: %v", c.scope, got)
		}
	}
	everything := []v1alpha1.RunnerHold{hold("freeze", v1alpha1.HoldPause, all, 0, 0)}
	if got := fleet.Effective(fleet.Target{Forge: "new", Org: "new", Pool: "new"}, forty, 40, everything, start); got.Max != 0 || got.Hold != "freeze" {
		t.Errorf("a new enrollment starts with %+v", got)
	}
}

// FLEET-04: the laws of Effective over random holds. Order and repetition do not matter. Another
// hold never adds capacity. Without one hold, the others stay in force. Nothing changes before the
// reported wake time.
func TestFLEET04_Laws(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	modes := []v1alpha1.HoldMode{v1alpha1.HoldPause, v1alpha1.HoldDrain, v1alpha1.HoldStop}
	scopes := []v1alpha1.HoldScope{all, {Forge: "github"}, {Org: "acme"}, {Pool: "gh-nix"}, {Org: "other"}}
	force := map[v1alpha1.HoldMode]int{"": 0, v1alpha1.HoldPause: 1, v1alpha1.HoldDrain: 2, v1alpha1.HoldStop: 3}
	for range 2000 {
		var holds []v1alpha1.RunnerHold
		for i := range r.IntN(5) {
			holds = append(holds, hold(string(rune('a'+i)), modes[r.IntN(3)], scopes[r.IntN(5)], r.IntN(3), r.IntN(30)))
		}
		now, allocation := start.Add(time.Duration(r.IntN(40))*time.Minute), r.IntN(50)
		c := fleet.Effective(target, forty, allocation, holds, now)
		open := fleet.Effective(target, forty, allocation, nil, now)
		switch {
		case c.Mode == "" && (c.Min != open.Min || c.Max != open.Max):
			t.Fatalf(`c.Mode == "" && (c.Min != open.Min || c.Max != open.Max); holds = %+v, allocation = %d, %+v`, holds, allocation, c)
		case c.Mode != "" && c.Max+c.Min != 0:
			t.Fatalf(`c.Mode != "" && c.Max+c.Min != 0; holds = %+v, allocation = %d, %+v`, holds, allocation, c)
		case c.Min > c.Max:
			t.Fatalf("c.Min = %v, want at most %v; holds = %+v; allocation = %d", c.Min, c.Max, holds, allocation)
		}
		turned := append([]v1alpha1.RunnerHold(nil), holds...)
		r.Shuffle(len(turned), func(i, j int) { turned[i], turned[j] = turned[j], turned[i] })
		if again := fleet.Effective(target, forty, allocation, append(turned, turned...), now); again != c {
			t.Fatalf("%+v: %+v, in reverse order %+v", holds, c, again)
		}
		for i := range holds {
			fewer := append(append([]v1alpha1.RunnerHold(nil), holds[:i]...), holds[i+1:]...)
			if f := fleet.Effective(target, forty, allocation, fewer, now); force[f.Mode] > force[c.Mode] || f.Max < c.Max {
				t.Fatalf("without %s of %+v: %+v, with it %+v", holds[i].Name, holds, f, c)
			}
		}
		then := now.Add(time.Hour)
		if !c.Wake.IsZero() {
			if !c.Wake.After(now) {
				t.Fatalf("%+v at %v wakes at %v", holds, now, c.Wake)
			}
			then = c.Wake.Add(-time.Second)
		}
		if later := fleet.Effective(target, forty, allocation, holds, then); later != c {
			t.Fatalf("%+v: %+v, and before it wakes %+v", holds, c, later)
		}
	}
}

// A hold is applied as soon as every workload is proven to take no jobs, and not before: a missing
// answer proves nothing (FL-04).
func TestReportHold(t *testing.T) {
	find := func(r fleet.HoldReport, kind string) fleet.Condition {
		for _, c := range r.Conditions {
			if c.Type == kind {
				return c
			}
		}
		return fleet.Condition{}
	}
	h := hold("a", v1alpha1.HoldDrain, all, 0, 60)
	held := []fleet.HeldPool{{Org: "b", Pool: "p", Stopped: fleet.Unknown, Reason: fleet.ReasonUnreachable}, {Org: "a", Pool: "p", Stopped: fleet.Yes, Jobs: new(2)}}
	r := fleet.ReportHold(&h, held, start)
	switch {
	case r.Targets != 2:
		t.Errorf("one workload is unreachable: r.Targets = %v, want 2", r.Targets)
	case r.Applied != 1:
		t.Errorf("one workload is unreachable: r.Applied = %v, want 1", r.Applied)
	case r.Drained != 0:
		t.Errorf("one workload is unreachable: r.Drained = %v, want 0", r.Drained)
	case r.RemainingJobs != nil:
		t.Errorf("one workload is unreachable: r.RemainingJobs = %v, want nil", r.RemainingJobs)
	case find(r, "Applied").Status != fleet.No:
		t.Errorf(`one workload is unreachable: find(r, "Applied").Status != fleet.No; %+v`, r)
	case find(r, "Applied").Reason != fleet.ReasonUnreachable:
		t.Errorf(`one workload is unreachable: find(r, "Applied").Reason != fleet.ReasonUnreachable; %+v`, r)
	}
	if want := []v1alpha1.HoldFailure{{Pool: "p", Org: "b", Reason: fleet.ReasonUnreachable}}; !reflect.DeepEqual(r.Failed, want) {
		t.Errorf("failed: %v", r.Failed)
	}
	if want := start.Add(time.Hour); !r.Wake.Equal(want) || r.Delete {
		t.Errorf("wakes at %v, %v", r.Wake, r.Delete)
	}
	held = []fleet.HeldPool{{Org: "a", Pool: "p", Stopped: fleet.Yes, Jobs: new(2)}, {Org: "b", Pool: "p", Stopped: fleet.Yes, Jobs: new(0), Managers: 1}}
	switch r = fleet.ReportHold(&h, held, start); {
	case r.Applied != 2:
		t.Errorf("jobs and managers are left: r.Applied = %v, want 2", r.Applied)
	case find(r, "Applied").Status != fleet.Yes:
		t.Errorf(`jobs and managers are left: find(r, "Applied").Status != fleet.Yes; %+v`, r)
	case *r.RemainingJobs != 2:
		t.Errorf("jobs and managers are left: *r.RemainingJobs = %v, want 2", *r.RemainingJobs)
	case r.Drained != 0:
		t.Errorf("jobs and managers are left: r.Drained = %v, want 0", r.Drained)
	case find(r, "Drained").Status != fleet.No:
		t.Errorf(`jobs and managers are left: find(r, "Drained").Status != fleet.No; %+v`, r)
	}
	held[0].Jobs, held[1].Managers = new(0), 0
	if r = fleet.ReportHold(&h, held, start); find(r, "Drained").Status != fleet.Yes || *r.RemainingJobs != 0 {
		t.Errorf("nothing is left: %+v", r)
	}
	switch r = fleet.ReportHold(&h, held, start.Add(time.Hour)); {
	case find(r, "Expired").Status != fleet.Yes:
		t.Errorf(`at its end: find(r, "Expired").Status != fleet.Yes; %+v`, r)
	case find(r, "Applied").Status != fleet.No:
		t.Errorf(`at its end: find(r, "Applied").Status != fleet.No; %+v`, r)
	case r.Delete:
		t.Errorf("at its end: r.Delete is true; %+v", r)
	}
	if r = fleet.ReportHold(&h, held, r.Wake); !r.Delete {
		t.Errorf("a week after its end: %+v", r)
	}
	many := make([]fleet.HeldPool, 300)
	for i := range many {
		many[i] = fleet.HeldPool{Org: string(rune('a' + i)), Pool: "p", Reason: fleet.ReasonUnreachable}
	}
	if r = fleet.ReportHold(&h, many, start); len(r.Failed) != 100 || r.Targets != 300 {
		t.Errorf("%d failures are listed", len(r.Failed))
	}
}

// FLEET-03, the decision: a scale set has stopped if no listener would take a job and no pod of an
// older listener is left. A missing maximum is 0.
func TestFLEET03_Stopped(t *testing.T) {
	for _, c := range []struct {
		known     bool
		listeners []fleet.Listener
		pods      int
		want      fleet.Answer
	}{
		{false, nil, 0, fleet.Unknown},
		{true, nil, 0, fleet.Yes},
		{true, []fleet.Listener{{}}, 0, fleet.Yes},
		{true, []fleet.Listener{{Max: new(0)}}, 0, fleet.Yes},
		{true, []fleet.Listener{{Max: new(0)}}, 1, fleet.No},
		{true, []fleet.Listener{{}, {Max: new(3)}}, 0, fleet.No},
	} {
		if got := fleet.StoppedGitHub(c.known, c.listeners, c.pods); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
