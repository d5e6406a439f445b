package fleet

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/api/v1alpha1"
)

var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// healthyGitHub and healthyGitLab return organisations without findings.
func healthyGitHub() DriftInput {
	options := RunnerOptions{Labels: []string{"self-hosted", "nix"}}
	group := GroupAccess{Name: "tailplane-acme", Selected: true, Repositories: []string{"acme/app", "acme/web"}}
	return DriftInput{Name: "acme", Forge: v1alpha1.GitHub, Complete: Yes, Listed: Yes,
		Registered: []RegisteredRunner{{7, "acme-gh-nix-abc12-runner-x1y2z", true}, {8, "laptop", false}, {9, "acme-gh-nix-abc12-runner-too-long", false}},
		Workloads: []DriftWorkload{{Pool: "gh-nix", Name: "acme-gh-nix", Allocated: 3, Capacity: Capacity{Min: 0, Max: 3}, Options: options, Group: &group,
			Cluster: ClusterState{Object: Yes, Intake: Yes, Min: new(0), Max: new(3), Pods: new(1), Runners: []string{"acme-gh-nix-abc12-runner-x1y2z"}, Counted: Yes,
				Assigned: new(1), Running: new(1), Version: "0.14.2", Controller: "0.14.2"},
			Remote: ForgeState{Exists: Yes, Registered: Yes, Online: Yes, Options: &RunnerOptions{Labels: []string{"NIX", "self-hosted"}},
				Group: &GroupAccess{Name: "tailplane-acme", Selected: true, Repositories: []string{"Acme/Web", "acme/app"}}}}}}
}

func healthyGitLab() DriftInput {
	options := RunnerOptions{Labels: []string{"docker", "nix"}, Locked: true, Protected: true, MaximumTimeout: time.Hour}
	return DriftInput{Name: "group-c", Forge: v1alpha1.GitLab, ForgeVersion: "18.9.1-ee", Complete: Yes, Listed: Yes,
		Registered: []RegisteredRunner{{101, "group-c-gl-nix", false}},
		Workloads: []DriftWorkload{{Pool: "gl-nix", Name: "group-c-gl-nix", Allocated: 4, Capacity: Capacity{Max: 4}, Options: options,
			Cluster: ClusterState{Object: Yes, Intake: Yes, Pods: new(2)},
			Remote: ForgeState{Exists: Yes, ID: 101, Contacted: Yes, Online: Yes, Paused: No, Versions: []string{"18.9.0", "18.8.2"},
				Options: &RunnerOptions{Labels: []string{"nix", "docker"}, Locked: true, Protected: true, MaximumTimeout: time.Hour}}}}}
}

func paused(w *DriftWorkload, mode v1alpha1.HoldMode) {
	w.Capacity = Capacity{Mode: mode, Hold: "node-upgrade"}
	w.Cluster.Min, w.Cluster.Max = new(0), new(0)
	w.Remote.Paused = Yes
}

// A want is the checked part of a finding: its kind, its severity, its subject and the hold that
// explains it.
type want struct {
	kind     FindingKind
	severity Severity
	subject  string
	hold     string
}

// FLEET-06, FLEET-17: every kind of finding, one at a time.
func TestFindings(t *testing.T) {
	hub, lab := healthyGitHub, healthyGitLab
	covered := map[FindingKind]bool{}
	for _, test := range []struct {
		why   string
		org   func() DriftInput
		spoil func(*DriftInput, *DriftWorkload)
		want  []want
	}{
		{"all is well at GitHub", hub, func(*DriftInput, *DriftWorkload) {}, nil},
		{"all is well at GitLab", lab, func(*DriftInput, *DriftWorkload) {}, nil},

		{"the scale set is deleted", hub, func(_ *DriftInput, w *DriftWorkload) { w.Remote.Exists = No }, []want{{DriftMissing, SeverityError, "", ""}}},
		{"the runner is deleted", lab, func(_ *DriftInput, w *DriftWorkload) { w.Remote.Exists = No }, []want{{DriftMissing, SeverityError, "", ""}}},
		{"its object is not created yet", lab, func(_ *DriftInput, w *DriftWorkload) { w.Remote.Exists, w.Cluster.Object = No, No }, nil},
		{"it is being deleted", lab, func(_ *DriftInput, w *DriftWorkload) { w.Remote.Exists, w.Ending = No, true }, nil},

		{"jobs wait, but no runner ever registered", hub, func(_ *DriftInput, w *DriftWorkload) { w.Remote.Registered, w.Cluster.Pods = No, new(0) }, []want{{DriftNeverRegistered, SeverityError, "", ""}}},
		{"a runner must wait for jobs but never registered", hub, func(_ *DriftInput, w *DriftWorkload) {
			w.Remote.Registered, w.Cluster.Pods, w.Cluster.Assigned, w.Cluster.Running = No, new(0), new(0), new(0)
			w.Capacity.Min, w.Cluster.Min = 1, new(1)
		}, []want{{DriftNeverRegistered, SeverityError, "", ""}}},
		{"no job ever came", hub, func(_ *DriftInput, w *DriftWorkload) {
			w.Remote.Registered, w.Cluster.Pods, w.Cluster.Assigned, w.Cluster.Running = No, new(0), new(0), new(0)
		}, nil},

		{"no manager ever contacted the forge", lab, func(_ *DriftInput, w *DriftWorkload) { w.Remote.Contacted, w.Remote.Online = No, No }, []want{{DriftNeverContacted, SeverityError, "", ""}}},
		{"no manager runs, and none ever contacted the forge", lab, func(_ *DriftInput, w *DriftWorkload) {
			w.Remote.Contacted, w.Remote.Online, w.Cluster.Pods, w.Cluster.Intake = No, No, new(0), No
		}, []want{{DriftIntakeMissing, SeverityError, "", ""}}},

		{"managers lost the connection", lab, func(_ *DriftInput, w *DriftWorkload) { w.Remote.Online = No }, []want{{DriftOffline, SeverityError, "", ""}}},
		{"runners lost the connection", hub, func(_ *DriftInput, w *DriftWorkload) { w.Remote.Online = No }, []want{{DriftOffline, SeverityError, "", ""}}},

		{"paused at the forge by a person", lab, func(_ *DriftInput, w *DriftWorkload) { w.Remote.Paused = Yes }, []want{{DriftPausedOutside, SeverityWarning, "", ""}}},
		{"paused by a hold", lab, func(_ *DriftInput, w *DriftWorkload) { paused(w, v1alpha1.HoldPause) }, []want{{DriftPausedOutside, SeverityInfo, "", "node-upgrade"}}},
		{"paused without a share", lab, func(_ *DriftInput, w *DriftWorkload) { w.Capacity, w.Allocated, w.Remote.Paused = Capacity{}, 0, Yes }, nil},
		{"resumed at the forge during a hold", lab, func(_ *DriftInput, w *DriftWorkload) { paused(w, v1alpha1.HoldPause); w.Remote.Paused = No }, []want{{DriftOpenOutside, SeverityError, "", ""}}},
		{"resumed at the forge without a share", lab, func(_ *DriftInput, w *DriftWorkload) { w.Capacity, w.Allocated = Capacity{}, 0 }, []want{{DriftOpenOutside, SeverityError, "", ""}}},

		{"other labels", hub, func(_ *DriftInput, w *DriftWorkload) { w.Remote.Options.Labels = []string{"self-hosted", "docker"} }, []want{{DriftLabels, SeverityWarning, "", ""}}},
		{"fewer tags", lab, func(_ *DriftInput, w *DriftWorkload) { w.Remote.Options.Labels = []string{"nix"} }, []want{{DriftLabels, SeverityWarning, "", ""}}},
		{"tags in another case", lab, func(_ *DriftInput, w *DriftWorkload) { w.Remote.Options.Labels = []string{"nix", "Docker"} }, []want{{DriftLabels, SeverityWarning, "", ""}}},
		{"no tags", lab, func(_ *DriftInput, w *DriftWorkload) { w.Remote.Options.Labels = []string{} }, []want{{DriftLabels, SeverityWarning, "", ""}}},

		{"unprotected", lab, func(_ *DriftInput, w *DriftWorkload) { w.Remote.Options.Protected = false }, []want{{DriftOptions, SeverityError, "protected", ""}}},
		{"protected", lab, func(_ *DriftInput, w *DriftWorkload) { w.Options.Protected = false }, []want{{DriftOptions, SeverityWarning, "protected", ""}}},
		{"open to what has no tag", lab, func(_ *DriftInput, w *DriftWorkload) { w.Remote.Options.RunUntagged = true }, []want{{DriftOptions, SeverityError, "runUntagged", ""}}},
		{"unlocked", lab, func(_ *DriftInput, w *DriftWorkload) { w.Remote.Options.Locked = false }, []want{{DriftOptions, SeverityError, "locked", ""}}},
		{"another timeout", lab, func(_ *DriftInput, w *DriftWorkload) { w.Remote.Options.MaximumTimeout = 0 }, []want{{DriftOptions, SeverityWarning, "maximumTimeout", ""}}},

		{"a group for all", hub, func(_ *DriftInput, w *DriftWorkload) { w.Remote.Group.Selected = false }, []want{{DriftGroup, SeverityError, "visibility", ""}}},
		{"a repository more", hub, func(_ *DriftInput, w *DriftWorkload) {
			w.Remote.Group.Repositories = append(w.Remote.Group.Repositories, "acme/secret")
		}, []want{{DriftGroup, SeverityError, "repositories", ""}}},
		{"a repository fewer", hub, func(_ *DriftInput, w *DriftWorkload) { w.Remote.Group.Repositories = []string{"acme/app"} }, []want{{DriftGroup, SeverityWarning, "repositories", ""}}},
		{"public ones too", hub, func(_ *DriftInput, w *DriftWorkload) { w.Remote.Group.AllowsPublic = true }, []want{{DriftGroup, SeverityError, "public repositories", ""}}},
		{"public ones too, as configured", hub, func(_ *DriftInput, w *DriftWorkload) { w.Remote.Group.AllowsPublic, w.Group.AllowsPublic = true, true }, nil},
		{"a group that the fleet does not manage", hub, func(_ *DriftInput, w *DriftWorkload) { w.Group, w.Remote.Group.AllowsPublic = nil, true }, nil},

		{"a ghost", hub, func(_ *DriftInput, w *DriftWorkload) { w.Cluster.Runners = nil }, []want{{DriftGhost, SeverityInfo, "7", ""}}},
		{"two ghosts", hub, func(o *DriftInput, w *DriftWorkload) {
			w.Cluster.Runners = nil
			o.Registered = append(o.Registered, RegisteredRunner{12, "acme-gh-nix-zzzzz-runner-99999", false})
		}, []want{{DriftGhost, SeverityInfo, "12", ""}, {DriftGhost, SeverityInfo, "7", ""}}},
		{"an unknown runner with the fleet's marker", lab, func(o *DriftInput, _ *DriftWorkload) {
			o.Registered = append(o.Registered, RegisteredRunner{102, "group-c-gl-nix", false})
		}, []want{{DriftGhost, SeverityInfo, "102", ""}}},
		{"the rest of a deleted workload", lab, func(o *DriftInput, _ *DriftWorkload) {
			o.Registered = append(o.Registered, RegisteredRunner{90, "group-c-gl-old", true})
		}, []want{{DriftGhost, SeverityInfo, "90", ""}}},
		{"a runner whose ID is not recorded yet", lab, func(_ *DriftInput, w *DriftWorkload) { w.Remote.ID = 0 }, nil},

		{"jobs wait for runners that are not allowed", hub, func(_ *DriftInput, w *DriftWorkload) { paused(w, v1alpha1.HoldPause); w.Cluster.Assigned = new(4) },
			[]want{{DriftStranded, SeverityWarning, "", "node-upgrade"}, {DriftCapacity, SeverityInfo, "", "node-upgrade"}}},
		{"jobs wait for a share", hub, func(_ *DriftInput, w *DriftWorkload) {
			w.Capacity, w.Allocated, w.Cluster.Max, w.Cluster.Assigned = Capacity{}, 0, new(0), new(2)
		}, []want{{DriftStranded, SeverityWarning, "", ""}}},
		{"jobs are about to start", hub, func(_ *DriftInput, w *DriftWorkload) { w.Cluster.Assigned = new(3) }, nil},

		{"no listener", hub, func(_ *DriftInput, w *DriftWorkload) { w.Cluster.Intake = No }, []want{{DriftIntakeMissing, SeverityError, "", ""}}},
		{"no listener under a hold", hub, func(_ *DriftInput, w *DriftWorkload) { paused(w, v1alpha1.HoldStop); w.Cluster.Intake = No },
			[]want{{DriftIntakeMissing, SeverityError, "", ""}, {DriftCapacity, SeverityInfo, "", "node-upgrade"}}},
		{"drained managers", lab, func(_ *DriftInput, w *DriftWorkload) {
			paused(w, v1alpha1.HoldDrain)
			w.Cluster.Intake, w.Cluster.Pods, w.Remote.Online = No, new(0), No
		}, []want{{DriftIntakeMissing, SeverityInfo, "", "node-upgrade"}, {DriftPausedOutside, SeverityInfo, "", "node-upgrade"}}},
		{"no managers under a pause", lab, func(_ *DriftInput, w *DriftWorkload) {
			paused(w, v1alpha1.HoldPause)
			w.Cluster.Intake, w.Cluster.Pods = No, new(0)
		},
			[]want{{DriftIntakeMissing, SeverityError, "", ""}, {DriftPausedOutside, SeverityInfo, "", "node-upgrade"}}},

		{"held", hub, func(_ *DriftInput, w *DriftWorkload) { paused(w, v1alpha1.HoldPause); w.Cluster.Assigned = new(1) }, []want{{DriftCapacity, SeverityInfo, "", "node-upgrade"}}},
		{"written over", hub, func(_ *DriftInput, w *DriftWorkload) { w.Cluster.Max = new(9) }, []want{{DriftCapacity, SeverityWarning, "", ""}}},
		{"written over under a hold", hub, func(_ *DriftInput, w *DriftWorkload) { paused(w, v1alpha1.HoldPause); w.Cluster.Max = new(3) }, []want{{DriftCapacity, SeverityError, "", ""}}},

		{"another ARC", hub, func(_ *DriftInput, w *DriftWorkload) { w.Cluster.Controller = "0.13.1" }, []want{{DriftVersionSkew, SeverityError, "", ""}}},
		{"another patch of ARC", hub, func(_ *DriftInput, w *DriftWorkload) { w.Cluster.Controller = "0.14.0" }, nil},
		{"an ARC with an unknown version", hub, func(_ *DriftInput, w *DriftWorkload) { w.Cluster.Controller = "canary-abc" }, nil},
		{"an old manager", lab, func(_ *DriftInput, w *DriftWorkload) { w.Remote.Versions = []string{"17.11.0", "18.9.0"} }, []want{{DriftVersionSkew, SeverityWarning, "", ""}}},
	} {
		o := test.org()
		test.spoil(&o, &o.Workloads[0])
		shadow := test.org()
		test.spoil(&shadow, &shadow.Workloads[0])
		found := CheckDrift(o, nil, noon)
		if !reflect.DeepEqual(o, shadow) {
			t.Errorf("%s: the input is changed", test.why)
		}
		var got []want
		for _, f := range found {
			got = append(got, want{f.Kind, f.Severity, f.Subject, f.ExplainedBy})
			switch {
			case f.Org != o.Name:
				t.Errorf("%s: f.Org = %q, want %q", test.why, f.Org, o.Name)
			case f.Evidence == "":
				t.Errorf("%s: f.Evidence is empty, %+v", test.why, f)
			case f.Advice == "":
				t.Errorf("%s: f.Advice is empty, %+v", test.why, f)
			case !f.FirstSeen.Equal(noon):
				t.Errorf("%s: f.FirstSeen = %v, want %v", test.why, f.FirstSeen, noon)
			case f.Unconfirmed:
				t.Errorf("%s: f.Unconfirmed is true, %+v", test.why, f)
			case f.Severity.rank() < 0:
				t.Errorf("%s: f.Severity.rank() = %v, want at least 0", test.why, f.Severity.rank())
			}
			covered[f.Kind] = true
		}
		order := func(a, b want) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) }
		slices.SortFunc(got, order)
		slices.SortFunc(test.want, order)
		if !slices.Equal(got, test.want) {
			t.Errorf("%s:\n got %v\nwant %v", test.why, got, test.want)
		}
	}
	// The set of kinds is closed: each kind can be found and has a patience.
	if got := slices.Sorted(maps.Keys(covered)); !slices.Equal(got, FindingKinds()) {
		t.Errorf("found %v of %v", got, FindingKinds())
	}
}

// FLEET-16: the fleet does not announce a repair of an external scale set.
func TestFindingsOfOthers(t *testing.T) {
	o := healthyGitHub()
	w := &o.Workloads[0]
	w.Cluster.Version = "0.13.1"
	managed := CheckDrift(o, nil, noon)
	w.External = true
	others := CheckDrift(o, nil, noon)
	switch {
	case len(managed) != 1:
		t.Errorf("len(managed) = %v, want 1", len(managed))
	case len(others) != 1:
		t.Errorf("len(others) = %v, want 1", len(others))
	case managed[0].ID() != others[0].ID():
		t.Errorf("managed[0].ID() = %q, want %q", managed[0].ID(), others[0].ID())
	case !strings.Contains(managed[0].Advice, "The fleet changes its label"):
		t.Errorf("managed[0].Advice = %q does not contain %q", managed[0].Advice, "The fleet changes its label")
	case !strings.Contains(others[0].Advice, "The fleet does not manage this scale set"):
		t.Errorf("others[0].Advice = %q does not contain %q", others[0].Advice, "The fleet does not manage this scale set")
	}
}

// A finding keeps its identity while it lasts, is reported after a while, and goes only if it is
// known to be gone, not for a missing answer. FLEET-17.
func TestFindingsOverTime(t *testing.T) {
	o := healthyGitLab()
	w := &o.Workloads[0]
	w.Remote.Paused = Yes
	first := CheckDrift(o, nil, noon)
	switch {
	case len(first) != 1:
		t.Fatalf("at once: len(first) = %v, want 1", len(first))
	case first[0].Settled(noon):
		t.Fatalf("at once: first[0].Settled(noon) is true; first = %+v", first)
	case len(UnexplainedFindings(first, noon)) != 0:
		t.Fatalf("at once: len(UnexplainedFindings(first, noon)) != 0; first = %+v", first)
	}
	later := noon.Add(5 * time.Minute)
	second := CheckDrift(o, first, later)
	switch {
	case len(second) != 1:
		t.Fatalf("later: len(second) = %v, want 1", len(second))
	case second[0].ID() != first[0].ID():
		t.Fatalf("later: second[0].ID() = %q, want %q", second[0].ID(), first[0].ID())
	case !second[0].FirstSeen.Equal(noon):
		t.Fatalf("later: second[0].FirstSeen = %v, want %v", second[0].FirstSeen, noon)
	case len(UnexplainedFindings(second, later)) != 1:
		t.Fatalf("later: len(UnexplainedFindings(second, later)) != 1; second = %+v", second)
	}

	w.Remote = ForgeState{} // the forge does not answer
	o.Listed, o.ForgeVersion = Unknown, ""
	third := CheckDrift(o, second, later.Add(time.Hour))
	switch {
	case len(third) != 1:
		t.Fatalf("without an answer: len(third) = %v, want 1", len(third))
	case !third[0].Unconfirmed:
		t.Fatalf("without an answer: third[0].Unconfirmed is false; third = %+v", third)
	case !third[0].FirstSeen.Equal(noon):
		t.Fatalf("without an answer: third[0].FirstSeen = %v, want %v", third[0].FirstSeen, noon)
	}
	workloads := o.Workloads
	o.Workloads, o.Complete = nil, Unknown // nor does the cluster
	fourth := CheckDrift(o, third, later.Add(2*time.Hour))
	if len(fourth) != 1 || !fourth[0].Unconfirmed {
		t.Fatalf("without a list of workloads: %+v", fourth)
	}
	if got := CheckDrift(DriftInput{Name: "other", Forge: v1alpha1.GitLab, Complete: Yes, Listed: Yes}, fourth, noon); len(got) != 0 {
		t.Errorf("another organisation's: %+v", got)
	}
	o.Workloads, o.Complete = workloads, Yes
	o.Workloads[0].Remote = healthyGitLab().Workloads[0].Remote
	if got := CheckDrift(o, fourth, later); len(got) != 0 {
		t.Errorf("afterwards: %+v", got)
	}
	o.Workloads = nil
	if got := CheckDrift(o, fourth, later); len(got) != 0 {
		t.Errorf("of a deleted workload: %+v", got)
	}
}

// An Ignore needs a reason, expires, and covers only the severity of its time.
func TestIgnore(t *testing.T) {
	o := healthyGitLab()
	o.Workloads[0].Options.Protected = false // so that GitLab is stricter: a warning
	found := CheckDrift(o, nil, noon)
	now := noon.Add(time.Hour)
	i, err := NewFindingIgnore(found[0].ID(), found[0].Severity, "alice@example.com", " until Monday ", now.Add(time.Hour), now)
	if err != nil || i.Reason != "until Monday" {
		t.Fatalf("%+v, %v", i, err)
	}
	for why, test := range map[string]struct {
		ignore FindingIgnore
		at     time.Time
		hidden bool
	}{
		"no ignore rule": {FindingIgnore{}, now, false},
		"ignored":        {i, now, true},
		"expired":        {i, i.Until, false},
		"another one is": {FindingIgnore{ID: "x", Severity: SeverityError, Until: i.Until}, now, false},
	} {
		if got := test.ignore.Hides(found[0].ID(), found[0].Severity, test.at); got != test.hidden {
			t.Errorf("%s: hidden is %v", why, got)
		}
	}
	o.Workloads[0].Options.Protected, o.Workloads[0].Remote.Options.Protected = true, false // the same finding, but worse
	switch worse := CheckDrift(o, found, now); {
	case len(worse) != 1:
		t.Errorf("the finding got worse: len(worse) = %v, want 1", len(worse))
	case worse[0].ID() != i.ID:
		t.Errorf("the finding got worse: worse[0].ID() = %q, want %q", worse[0].ID(), i.ID)
	case i.Hides(worse[0].ID(), worse[0].Severity, now):
		t.Errorf("the finding got worse: i.Hides(worse[0].ID(), worse[0].Severity, now) is true; worse = %+v", worse)
	}
	for why, x := range map[string]struct {
		by, reason string
		until      time.Time
	}{
		"without a person": {"", "r", now.Add(time.Hour)},
		"without a reason": {"a", "  ", now.Add(time.Hour)},
		"until now":        {"a", "r", now},
		"without an end":   {"a", "r", now.Add(365 * 24 * time.Hour)},
	} {
		if _, err := NewFindingIgnore(found[0].ID(), found[0].Severity, x.by, x.reason, x.until, now); err == nil {
			t.Errorf("%s: it is ignored", why)
		}
	}
}

// Listed ghosts stay while the list is not available. A hold explains stranded jobs until they
// become urgent.
func TestGhostsAndStrandedOverTime(t *testing.T) {
	o := healthyGitHub()
	w := &o.Workloads[0]
	w.Cluster.Runners = nil
	ghosts := CheckDrift(o, nil, noon)
	o.Listed, o.Registered = Unknown, nil
	switch got := CheckDrift(o, ghosts, noon.Add(time.Hour)); {
	case len(got) != 1:
		t.Errorf("len(got) = %v, want 1", len(got))
	case got[0].Kind != DriftGhost:
		t.Errorf("got[0].Kind = %q, want %q", got[0].Kind, DriftGhost)
	case !got[0].Unconfirmed:
		t.Errorf("got[0].Unconfirmed is false; got = %+v", got)
	}
	o.Listed = Yes
	if got := CheckDrift(o, ghosts, noon.Add(time.Hour)); len(got) != 0 {
		t.Errorf("ghosts that are deleted: %+v", got)
	}

	paused(w, v1alpha1.HoldPause)
	w.Cluster.Assigned = new(5)
	waiting := CheckDrift(o, nil, noon)
	for hours, severity := range map[time.Duration]Severity{0: SeverityWarning, 19: SeverityWarning, 20: SeverityError, 30: SeverityError} {
		got := CheckDrift(o, waiting, noon.Add(hours*time.Hour))
		i := slices.IndexFunc(got, func(f Finding) bool { return f.Kind == DriftStranded })
		switch {
		case i < 0:
			t.Errorf("i = %v, want at least 0; hours = %d", i, hours)
		case got[i].Severity != severity:
			t.Errorf("got[i].Severity = %q, want %q; hours = %d", got[i].Severity, severity, hours)
		case got[i].ExplainedBy != "node-upgrade":
			t.Errorf("got[i].ExplainedBy = %q, want %q; hours = %d", got[i].ExplainedBy, "node-upgrade", hours)
		}
	}
}

// random returns an organisation with independent random values.
func random(r *rand.Rand) DriftInput {
	answer := func() Answer { return Answer(1 + r.IntN(2)) }
	number := func() *int { return new(r.IntN(4)) }
	flip := func() bool { return r.IntN(2) == 0 }
	words := func(of ...string) []string {
		return slices.DeleteFunc(of, func(string) bool { return flip() })
	}
	options := func() RunnerOptions {
		return RunnerOptions{Labels: words("a", "b", "c"), RunUntagged: flip(), Locked: flip(), Protected: flip(), MaximumTimeout: time.Duration(r.IntN(2)) * time.Hour}
	}
	group := func() *GroupAccess {
		return &GroupAccess{Selected: flip(), AllowsPublic: flip(), Repositories: words("x/a", "x/b")}
	}
	o := DriftInput{Name: "acme", Forge: []v1alpha1.ForgeType{v1alpha1.GitHub, v1alpha1.GitLab}[r.IntN(2)], ForgeVersion: "18.1", Complete: Yes, Listed: Yes}
	for i := range r.IntN(5) {
		name := "acme-" + strconv.Itoa(i)
		w := DriftWorkload{Pool: strconv.Itoa(r.IntN(2)), Name: name, Ending: r.IntN(5) == 0, Allocated: r.IntN(3), Capacity: Capacity{Min: r.IntN(2), Max: r.IntN(3)}, Options: options(), Group: group(),
			Cluster: ClusterState{Object: answer(), Intake: answer(), Min: number(), Max: number(), Pods: number(), Runners: words(name + "-aaaaa-runner-bbbbb"), Counted: Yes,
				Assigned: number(), Running: number(), Version: "0.14." + strconv.Itoa(r.IntN(2)), Controller: "0." + strconv.Itoa(13+r.IntN(2)) + ".1"},
			Remote: ForgeState{Exists: answer(), ID: int64(i + 1), Registered: answer(), Contacted: answer(), Online: answer(), Paused: answer(), Options: new(options()), Group: group(), Versions: words("17.1", "18.2")}}
		if flip() {
			w.Capacity = Capacity{Hold: "h", Mode: []v1alpha1.HoldMode{v1alpha1.HoldPause, v1alpha1.HoldDrain, v1alpha1.HoldStop}[r.IntN(3)]}
		}
		o.Workloads = append(o.Workloads, w)
		if flip() {
			o.Registered = append(o.Registered, RegisteredRunner{int64(i + r.IntN(3)), []string{name, name + "-aaaaa-runner-bbbbb"}[r.IntN(2)], flip()})
		}
	}
	return o
}

// forget makes some of the known values unknown.
func forget(r *rand.Rand, o DriftInput) DriftInput {
	o.Workloads = slices.Clone(o.Workloads)
	coin := func() bool { return r.IntN(3) == 0 }
	if coin() {
		o.Listed = Unknown
		o.Registered = nil
	}
	if coin() {
		o.ForgeVersion = ""
	}
	for i := range o.Workloads {
		w := &o.Workloads[i]
		for _, a := range []*Answer{&w.Cluster.Object, &w.Cluster.Intake, &w.Cluster.Counted, &w.Remote.Exists, &w.Remote.Registered, &w.Remote.Contacted, &w.Remote.Online, &w.Remote.Paused} {
			if coin() {
				*a = Unknown
			}
		}
		for _, n := range []**int{&w.Cluster.Min, &w.Cluster.Max, &w.Cluster.Pods, &w.Cluster.Assigned, &w.Cluster.Running} {
			if coin() {
				*n = nil
			}
		}
		if coin() {
			w.Remote.Options, w.Remote.Versions = nil, nil
		}
		if coin() {
			w.Remote.Group, w.Cluster.Version = nil, ""
		}
	}
	return o
}

// Laws over random organisations. FLEET-17: an unknown state is not a finding, and does not end a
// finding.
func TestLaws(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		o := random(r)
		known := CheckDrift(o, nil, noon)
		ids := map[string]bool{}
		for i, f := range known {
			if ids[f.ID()] {
				t.Fatalf("two findings of one name: %+v", f)
			}
			ids[f.ID()] = true
			if i > 0 && known[i-1].Severity.rank() < f.Severity.rank() {
				t.Fatal("the worst do not come first")
			}
			if settleTime[f.Kind] == 0 && f.Kind != DriftGroup {
				t.Fatalf("%s is not on the list", f.Kind)
			}
		}

		shuffled := o
		shuffled.Workloads, shuffled.Registered = slices.Clone(o.Workloads), slices.Clone(o.Registered)
		r.Shuffle(len(shuffled.Workloads), func(i, j int) {
			shuffled.Workloads[i], shuffled.Workloads[j] = shuffled.Workloads[j], shuffled.Workloads[i]
		})
		r.Shuffle(len(shuffled.Registered), func(i, j int) {
			shuffled.Registered[i], shuffled.Registered[j] = shuffled.Registered[j], shuffled.Registered[i]
		})
		if got := CheckDrift(shuffled, nil, noon); !reflect.DeepEqual(got, known) {
			t.Fatalf("in another order:\n%+v\n%+v", got, known)
		}

		dim := forget(r, o)
		for _, f := range CheckDrift(dim, nil, noon) {
			if !ids[f.ID()] {
				t.Fatalf("found without an answer: %+v", f)
			}
		}
		retained := CheckDrift(dim, known, noon.Add(time.Hour))
		if len(retained) != len(known) {
			t.Fatalf("%d of %d findings stay without an answer", len(retained), len(known))
		}
		for _, f := range retained {
			if !f.FirstSeen.Equal(noon) {
				t.Fatalf("it was seen before: %+v", f)
			}
		}
		if again := CheckDrift(o, retained, noon.Add(2*time.Hour)); len(again) != len(known) {
			t.Fatalf("%d findings, and %d when everything is known again", len(known), len(again))
		}
	}
}

// Foreign names cannot be mistaken for text of the fleet.
func TestHostileNames(t *testing.T) {
	evil := "a\x1b[31m\n\u202e"
	o := healthyGitLab()
	o.Workloads[0].Remote.Options.Labels = []string{evil}
	o.Workloads[0].Remote.Versions = []string{"17.1-" + evil}
	o.Registered = append(o.Registered, RegisteredRunner{5, evil, false})
	h := healthyGitHub()
	h.Workloads[0].Remote.Group.Repositories = []string{evil}
	n := 0
	for _, f := range append(CheckDrift(o, nil, noon), CheckDrift(h, nil, noon)...) {
		n++
		for _, text := range []string{f.Desired, f.Actual, f.Evidence, f.Advice} {
			if strings.ContainsFunc(text, func(r rune) bool { return !strconv.IsPrint(r) }) {
				t.Errorf("%q", text)
			}
		}
	}
	if n < 3 {
		t.Errorf("%d findings", n)
	}
}

// Checks of different organisations are spread in time and do not stay in step.
func TestSchedule(t *testing.T) {
	const every = 5 * time.Minute
	minutes := map[int]int{}
	for i := range 200 {
		org := "org-" + strconv.Itoa(i)
		at := FirstDriftCheck(org, noon, every)
		if at != FirstDriftCheck(org, noon, every) {
			t.Fatal("another time for the same")
		}
		if at.Before(noon) || !at.Before(noon.Add(every)) {
			t.Errorf("the first check at %v", at)
		}
		minutes[int(at.Sub(noon)/time.Minute)]++
		for range 20 {
			next := NextDriftCheck(org, at, every)
			if d := next.Sub(at); d < every*9/10 || d > every*11/10 {
				t.Errorf("the next check after %v", d)
			}
			at = next
		}
	}
	for m := range 5 {
		if minutes[m] < 20 { // of 40
			t.Errorf("%d of 200 are checked in minute %d", minutes[m], m)
		}
	}
	a, b := noon, noon
	for range 20 {
		a, b = NextDriftCheck("a", a, every), NextDriftCheck("b", b, every)
	}
	if a.Equal(b) {
		t.Error("two organisations stay in step")
	}
	if FirstDriftCheck("a", noon, 0) != noon || NextDriftCheck("a", noon, 0) != noon {
		t.Error("without a period")
	}
}
