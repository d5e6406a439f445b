package plane

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/httpapi"
)

var asName = strings.NewReplacer("{forge}", "github", "{org}", "acme", "{pool}", "nix", "{namespace}", "runners", "{name}", "acme-nix-7xk2p-runner-q9w4z")

// ID-12, PLANE-04: every operation for every kind of caller. Each error is declared, each request has one audit entry, and no caller learns
// of another organisation (PL-05).
func TestRunnerRoles(t *testing.T) {
	var got strings.Builder
	for _, p := range runnerPersonas {
		for _, op := range (&RunnerService{Plane: new(Service)}).Routes() {
			o := newRunnerEnv()
			o.as(p.caller)
			_, path, _ := strings.Cut(op.Pattern, " ")
			switch path = asName.Replace(path); op.Pattern {
			case ListPods.Pattern:
				path += "?org=acme"
			case GetNamedConfig.Pattern:
				path += "?name=github/acme/nix"
			}
			a := o.get(t, path)
			what := fmt.Sprint(a.Status)
			var list []json.RawMessage
			switch {
			case a.Error != nil:
				what = strings.TrimSpace(fmt.Sprint(a.Status, " ", a.Error.Code, " ", strings.Join(a.Error.Have, " ")))
				if !slices.Contains(slices.Concat(httpapi.CommonRefusals(), op.Refusals), a.Error.Code) {
					t.Errorf("%s %s: refused with %s, which it does not declare", p.name, op.Pattern, a.Error.Code)
				}
			case json.Unmarshal(a.Data, &list) == nil:
				what = fmt.Sprint(a.Status, " ", len(list))
			}
			fmt.Fprintf(&got, "%-24s %-60s %s\n", p.name, op.Pattern, what)
			if len(o.entries) != 1 || strings.Contains(strings.ToLower(a.Text), "secret") {
				t.Errorf("%s %s: %d entries, %s", p.name, op.Pattern, len(o.entries), a.Text)
			}
		}
	}
	golden := filepath.Join("testdata", "runnerroles.golden")
	if *Update {
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(golden); err != nil || string(want) != got.String() {
		t.Errorf("not as in %s (%v); check it, and write it with -update:\n%s", golden, err, got.String())
	}
}

// PLANE-09, PL-05: a runner of another organisation is absent under every name. Pools that share a namespace each have only their own
// runners.
func TestPL05_Runners(t *testing.T) {
	o := newRunnerEnv()
	for _, p := range runnerPersonas[:1] {
		o.caller = p.caller
		for _, path := range []string{"/api/v1/runners/runners/globex-nix-7xk2p-runner-q9w4z", "/api/v1/runners/runners/nothing", "/api/v1/runners/other/acme-nix-7xk2p-runner-q9w4z", "/api/v1/pools/github/globex/nix/runners",
			"/api/v1/pools/github/globex/nix/events", "/api/v1/pools/github/globex/nix/config", "/api/v1/pools/gitlab/acme/nix/runners"} {
			if a := o.get(t, path); a.Status != http.StatusNotFound || strings.Contains(a.Text, "secret") {
				t.Errorf("%s: %s", path, a.Text)
			}
		}
	}
	for path, want := range map[string]int{"nix/runners": 2, "nix/jobs": 1, "docker/runners": 1, "docker/jobs": 0, "nix/runners?state=Idle": 1, "nix/runners?q=shop": 1} {
		if a := o.get(t, "/api/v1/pools/github/acme/"+path); len(dataOf[[]Runner](t, a)) != want || *a.Meta.Page.Total != want {
			t.Errorf("%s: %s", path, a.Text)
		}
	}
	for path, want := range map[string]int{"": 3, "?org=acme": 3, "?org=globex": 0, "?forge=gitlab": 0, "?q=secret": 0} {
		if a := o.get(t, "/api/k8s/pods"+path); len(dataOf[[]Runner](t, a)) != want || strings.Contains(a.Text, "globex") {
			t.Errorf("all of them, %q: %s", path, a.Text)
		}
	}
	for name, status := range map[string]int{"nix": http.StatusOK, "github/acme/nix": http.StatusOK, "github/globex/nix": http.StatusNotFound, "none": http.StatusNotFound, "": http.StatusUnprocessableEntity} {
		if a := o.get(t, "/api/gitops/config?name="+name); a.Status != status {
			t.Errorf("the configuration of %q: %s", name, a.Text)
		}
	}
	// The actions of a viewer.
	if a := dataOf[Runner](t, o.get(t, "/api/v1/runners/runners/acme-nix-7xk2p-runner-q9w4z")).Actions; a.Log.Allowed || a.Log.Why == "" {
		t.Errorf("%+v", a)
	}
}

// Law 7: the events are those of exactly this pool, newest first. If they cannot be read, they are null and the source says why. Unreported
// values are null too.
func TestUnknown(t *testing.T) {
	o := newRunnerEnv()
	var reasons []string
	for _, e := range dataOf[[]Event](t, o.get(t, "/api/v1/pools/github/acme/nix/events")) {
		reasons = append(reasons, e.Reason)
	}
	if !slices.Equal(reasons, []string{"FailedScheduling", "Degraded"}) {
		t.Errorf("%q", reasons)
	}
	o.fail = errAway
	a := o.get(t, "/api/v1/pools/github/acme/nix/events")
	if string(a.Data) != "null" || !slices.ContainsFunc(a.Meta.Sources, func(s Source) bool {
		return s.Name == eventsSource && s.Status == StatusDown && strings.Contains(s.Message, "refused")
	}) {
		t.Errorf("%s", a.Text)
	}
	d := dataOf[Diagnosis](t, o.get(t, "/api/v1/pools/github/acme/nix/diagnosis"))
	if len(d.Findings) != 1 || !strings.Contains(d.Findings[0].Cause, eventsSource) {
		t.Errorf("%+v", d)
	}
	if c := dataOf[Config](t, o.get(t, "/api/v1/pools/github/acme/nix/config")); len(c.Settings) != 1 || c.Settings[0].From != "RunnerPool nix" {
		t.Errorf("%+v", c)
	}
	o.service.Plane.Store = NewStore(o.service.Plane.Now)
	o.service.Plane.Store.Expect("kubernetes", KindPool, KindRunner)
	o.service.Plane.Store.Replace(KindPool, "kubernetes", []Object{Pool{ID: "github/acme/nix", Forge: "github", OrgName: "acme", Name: "nix", State: StateUnknown}})
	if a := o.get(t, "/api/v1/pools/github/acme/docker/runners"); a.Status != http.StatusNotFound {
		t.Errorf("%s", a.Text)
	}
	o.service.Plane.Store = NewStore(o.service.Plane.Now)
	o.service.Plane.Store.Expect("kubernetes", KindPool)
	if a := o.get(t, "/api/v1/pools/github/acme/nix/runners"); a.Status != http.StatusServiceUnavailable {
		t.Errorf("%s", a.Text)
	}
}

// The name of an object gives its workload, even after its runner is gone. If the names of several workloads match, the right one is found.
func TestWorkloadOf(t *testing.T) {
	workloads := []string{"acme-gh", "acme-gh-nix", "acme-gl"}
	for object, want := range map[string]string{
		"acme-gh": "acme-gh", "acme-gh-nix": "acme-gh-nix", "acme-gh-7xk2p": "acme-gh", "acme-gh-7xk2p-runner-q9w4z": "acme-gh", "acme-gh-nix-7xk2p-runner-q9w4z": "acme-gh-nix",
		"acme-gl-5d4f8b9c7-abcde": "acme-gl", "acme-gh-docker-7xk2p-runner-q9w4z": "", "acme-ghost": "", "acme": "", "": "", "other-acme-gh": "", "acme-gh-x/y": "",
	} {
		if got := workloadOf(object, workloads); got != want {
			t.Errorf("%q is of %q, want %q", object, got, want)
		}
	}
}

// A diagnosis lists the worst problem first, each with its evidence and the next step. It says nothing about what works.
func TestDiagnose(t *testing.T) {
	well := func(change func(*diagnosisInput)) diagnosisInput {
		f := diagnosisInput{Pool: Pool{ID: "github/acme/nix", State: PoolActive, EffectiveMax: new(3), Counts: Counts{Busy: new(1)}}, RunnersKnown: true, Events: []Event{},
			Enrollment: &Enrollment{Name: "acme", Phase: "Active"}, Forge: &Forge{Name: "github", Reachable: new(true)}}
		if change != nil {
			change(&f)
		}
		return f
	}
	for _, c := range []struct {
		why  string
		f    diagnosisInput
		want []string // severity, and a part of the cause
	}{
		{"all is well", well(nil), nil},
		{"unknown values are not errors", diagnosisInput{Pool: Pool{State: PoolActive}, RunnersKnown: true}, nil},
		{"held", well(func(f *diagnosisInput) {
			f.Pool.Holds, f.Pool.EffectiveMax, f.Pool.State = []string{"h"}, new(0), PoolPaused
		}), []string{"warning A hold pauses the pool"}},
		{"no capacity", well(func(f *diagnosisInput) { f.Pool.EffectiveMax = new(0) }), []string{"error The pool may have no runners"}},
		{"all busy", well(func(f *diagnosisInput) { f.Pool.Counts.Busy = new(3) }), []string{"warning The pool has its maximum"}},
		{"the organisation is suspended", well(func(f *diagnosisInput) { f.Enrollment.Phase = "Suspended" }), []string{"error The organisation's enrollment is Suspended"}},
		{"not yet", well(func(f *diagnosisInput) { f.Enrollment.Phase = "Provisioning" }), []string{"warning The organisation's enrollment is Provisioning"}},
		{"the forge is away, and held", well(func(f *diagnosisInput) { f.Pool.Holds, f.Forge.Reachable = []string{"h"}, new(false) }), []string{"error The forge github", "warning A hold pauses the pool"}},
		{"runners that fail alike are one finding", well(func(f *diagnosisInput) {
			r := Runner{ID: "r/1", State: RunnerFailed, Reason: "TooManyPodFailures"}
			f.Runners = []Runner{r, r, {ID: "r/2", State: RunnerPending}, {ID: "r/3", State: RunnerPending, Pod: &Pod{Containers: []Container{{Name: "runner", State: "Waiting", Reason: "ImagePullBackOff"}}}}}
		}), []string{"error 2 runners are Failed", "warning 1 runner is Pending"}},
		{"one that only starts", well(func(f *diagnosisInput) {
			f.Runners = []Runner{{State: RunnerPending, Pod: &Pod{Containers: []Container{{Name: "runner", State: "Waiting", Reason: "ContainerCreating"}}}}}
		}), nil},
		{"the cluster warns, often", well(func(f *diagnosisInput) {
			f.Events = []Event{{Type: "Warning", Reason: "FailedScheduling"}, {Type: "Warning", Reason: "FailedScheduling"}, {Type: "Normal", Reason: "Pulled"}}
		}), []string{"warning The cluster reports a warning: FailedScheduling"}},
		{"the runners are not known", well(func(f *diagnosisInput) {
			f.RunnersKnown, f.Sources = false, []Source{{Name: "kubernetes", Status: StatusDown}}
		}), []string{"warning The source kubernetes", "warning The runners are not known"}},
	} {
		got := diagnose(c.f)
		ok := len(got) == len(c.want)
		for i := range min(len(got), len(c.want)) {
			ok = ok && strings.HasPrefix(string(got[i].Severity)+" "+got[i].Cause, c.want[i]) && got[i].Next != ""
		}
		if !ok {
			t.Errorf("%s: %+v, want %q", c.why, got, c.want)
		}
	}
}
