package attack

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/fleet/arctest"
	"github.com/tailplane/tailplane/internal/fleet/forge/forgetest"
	"github.com/tailplane/tailplane/test/rig"
)

// behindGate starts the fleet so that it reaches the API server through g only. The
// yard's own must not run.
func (y *yard) behindGate(t *testing.T, g *gate) *rig.Process {
	t.Helper()
	y.runs++
	name := fmt.Sprint("fleet-", y.runs)
	path, err := y.Cluster.ServiceAccountKubeconfig(t.Context(), fleetNamespace, "tailplane-fleet", t.TempDir())
	y.must(t, err)
	g.only(t, path)
	p, err := y.Try(name, "fleet", nil, fleetSettings, "--kubeconfig", path, "--leader-elect=false", "--log-level=debug")
	y.must(t, err)
	t.Cleanup(p.Kill) // before the gate closes, which waits for its connections
	y.logs = append(y.logs, filepath.Join(y.Dir, name, "log"))
	return p
}

// unmake has GitLab refuse what a rule says of the deletion of a workload's runner; what
// it answers nil to is done.
func (y *yard) unmake(t *testing.T, rules map[string]func() *forgetest.Fault) {
	t.Helper()
	of := map[string]func() *forgetest.Fault{}
	for workload, rule := range rules {
		r, ok := y.runnerOf(workload)
		if !ok {
			t.Fatalf("%s has no runner", workload)
		}
		of[fmt.Sprint("/runners/", r.ID)] = rule
	}
	y.gitlab.Fault(func(r *http.Request) *forgetest.Fault {
		for path, rule := range of {
			if r.Method == http.MethodDelete && strings.HasSuffix(r.URL.Path, path) {
				return rule()
			}
		}
		return nil
	})
	t.Cleanup(func() { y.gitlab.Fault(nil) })
}

// FL-02. The fleet is killed after each write while organisations of both forges end, of
// one of them a job runs, its Secrets are removed by hand, and forges answer 401, 403,
// 404, 410, 429 and not at all. It goes on where it was, in order, and is not wedged by
// what a forge will not forget.
//
// Guard: fleet.(*decision).end, whose order each life finds again, and
// fleetkube.(*look).deregisterSet, which keeps the credential until GitHub has forgotten.
func TestFL02_Offboarding(t *testing.T) {
	y := enter(t)
	y.pool(t, "fl2-nix", "github", 3)
	y.pool(t, "fl2-docker", "gitlab", 3)
	y.atGitHub(t, "fl2-hub", []string{"fl2-nix"}, apart)
	for _, org := range []string{"fl2-lab", "fl2-odd"} {
		y.atGitLab(t, org, []string{"fl2-docker"})
	}
	for _, org := range []string{"fl2-hub", "fl2-lab", "fl2-odd"} {
		y.active(t, org)
	}
	const ns, set = "tailplane-org-fl2-hub", "fl2-hub-fl2-nix"
	eventually(t, long, "it takes jobs", func() bool { return y.maxOf(t, ns, set) > 0 })
	y.arc.Assign(ns, set, arctest.Job{ID: "fl2", Repository: "fl2-hub/app", Run: 21})
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	y.must(t, y.arc.Start(ctx, "fl2"))
	lab, _ := y.runnerOf("fl2-lab-fl2-docker")
	job := y.gitlab.StartJob(lab.ID, 7)
	var answers atomic.Int32
	y.unmake(t, map[string]func() *forgetest.Fault{
		"fl2-odd-fl2-docker": func() *forgetest.Fault {
			return &forgetest.Fault{Status: http.StatusForbidden, Body: `{"message":"403 Forbidden"}`}
		},
		"fl2-lab-fl2-docker": func() *forgetest.Fault {
			return []*forgetest.Fault{{Status: http.StatusUnauthorized, Body: `{"message":"401 Unauthorized"}`}, {Status: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"1"}}}, {Status: http.StatusGone, Body: `{}`},
				{Status: http.StatusNotFound, Body: "<html>"}, {Drop: true, After: true}, nil}[min(answers.Add(1)-1, 5)]
		},
	})
	m := y.mark(t)
	y.fleet.Kill()
	back := false
	restore := func() {
		if !back {
			back = true
			y.must(t, y.begin(context.WithoutCancel(t.Context()), fleetSettings))
		}
	}
	t.Cleanup(restore)
	g := y.gate(t)
	g.spare = []string{"/runnerforges/", "/runnerpools/", "/runnerholds/"} // of no organisation, and written again in each life
	for _, org := range []string{"fl2-hub", "fl2-lab", "fl2-odd"} {
		y.leave(t, org)
	}
	ended := false
	scaleSet := func() bool {
		return slices.ContainsFunc(y.github.ScaleSets(), func(s forgetest.GitHubScaleSet) bool { return s.Name == set })
	}
	// watch fails on what must never be, and does what happens meanwhile.
	watch := func() {
		if !ended && y.maxOf(t, ns, set) == 0 {
			if u := y.setOf(t, ns, set); u.GetDeletionTimestamp() != nil {
				t.Fatal("it is deregistered while its job runs")
			}
			// Somebody tidies up: the copy, and what it was made of.
			for _, name := range y.listed(t, things[1], "fl2-hub") {
				namespace, name, _ := strings.Cut(strings.TrimPrefix(name, "Secret "), "/")
				if s := y.secret(t, namespace, name); s != nil && namespace == ns {
					y.drop(t, s)
				}
			}
			ended = true
			y.must(t, y.arc.Finish(t.Context(), "fl2"))
		}
		if r, ok := y.runnerOf("fl2-lab-fl2-docker"); ok && r.Paused && job != 0 {
			if j, _ := y.gitlab.Job(job); j.Status != "running" {
				t.Fatalf("its job is %s", j.Status)
			}
			y.gitlab.EndJob(job, "success")
			job = 0
		} else if !ok && job != 0 {
			t.Fatal("its runner went while a job ran")
		}
		if there := y.secret(t, fleetNamespace, "fl2-hub-credential"); there == nil && scaleSet() {
			t.Fatal("the credential went before the scale set")
		}
		if _, ok := y.runnerOf("fl2-lab-fl2-docker"); ok && y.secret(t, fleetNamespace, "fl2-lab-credential") == nil {
			t.Fatal("the credential went before the runner")
		}
		y.managersRun(t)
	}
	lives := 0
	done := func() bool { return y.gone(t, "fl2-hub") && y.gone(t, "fl2-lab") && y.gone(t, "fl2-odd") }
	for end := time.Now().Add(2 * long); !done(); lives++ {
		if time.Now().After(end) {
			t.Fatalf("not done after %d lives", lives)
		}
		p := y.behindGate(t, g)
		g.arm(1, p)
		for struck := false; !struck && !done() && time.Now().Before(end); {
			select {
			case <-g.struck:
				struck = true
			case <-time.After(20 * time.Millisecond):
			}
			watch()
		}
		p.Kill()
	}
	t.Logf("%d lives", lives)
	restore()
	if lives < 10 || !ended {
		t.Errorf("%d lives, the job ended: %v", lives, ended)
	}
	if _, ok := y.runnerOf("fl2-odd-fl2-docker"); !ok {
		t.Error("GitLab was to keep a runner")
	}
	if _, ok := y.runnerOf("fl2-lab-fl2-docker"); ok || scaleSet() {
		t.Error("a forge still has what was to go")
	}
	if answers.Load() < 5 {
		t.Errorf("GitLab was asked %d times to forget a runner", answers.Load())
	}
	for _, org := range []string{"fl2-hub", "fl2-lab", "fl2-odd"} {
		for _, kind := range things {
			if left := y.listed(t, kind, org); len(left) > 0 {
				t.Errorf("left of %s: %q", org, left)
			}
		}
	}
	// The order, as the API server was asked.
	first := func(verb, resource, namespace, name string) int {
		return slices.IndexFunc(y.told(t, m), func(k kubeRequest) bool {
			return k.Verb == verb && k.ObjectRef.Resource == resource && (namespace == "" || k.ObjectRef.Namespace == namespace) && k.ObjectRef.Name == name
		})
	}
	order := []int{first("patch", "autoscalingrunnersets", ns, set), first("delete", "autoscalingrunnersets", ns, set), first("delete", "secrets", fleetNamespace, "fl2-hub-credential"), first("delete", "namespaces", "", ns)}
	if order[0] < 0 || !slices.IsSorted(order) {
		t.Errorf("intake, deregistration, Secret, namespace were written at %v: %v", order, y.told(t, m))
	}
}
