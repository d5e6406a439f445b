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

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tailplane/tailplane/api/v1alpha1"
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
// 404, 410, 429 and not at all. It goes on where it was, in order, and what a forge will
// not forget is written down.
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
	odd, _ := y.runnerOf("fl2-odd-fl2-docker")
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
	ended, leaked := false, false
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
		e := &v1alpha1.RunnerEnrollment{ObjectMeta: metav1.ObjectMeta{Name: "fl2-odd"}}
		if y.there(t, e) && e.Status.Offboard != nil && slices.Contains(e.Status.Offboard.Leaked, odd.ID) {
			leaked = true
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
	if lives < 10 || !ended || !leaked {
		t.Errorf("%d lives, the job ended: %v, what GitLab keeps was written down: %v", lives, ended, leaked)
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

// FL-04. A forge that answers 429, 5xx, half, nothing or an empty page has nothing
// deleted and no hold called applied; without ARC, or with one of another version,
// scale sets stay, and what is deleted again and again is not made for ever. A condition
// says why each time.
//
// Guard: fleet.(*decision).live and end, for which no answer is Unknown; fleet.StoppedGitHub;
// arc.Choose, arc.Gate.
func TestFL04_NoAnswer(t *testing.T) {
	y := enter(t)
	y.pool(t, "fl4-nix", "github", 3)
	y.pool(t, "fl4-docker", "gitlab", 3)
	y.atGitHub(t, "fl4-hub", []string{"fl4-nix"})
	y.atGitLab(t, "fl4-lab", []string{"fl4-docker"})
	y.active(t, "fl4-hub")
	y.active(t, "fl4-lab")
	const set = "fl4-hub-fl4-nix"
	eventually(t, long, "both take jobs", func() bool {
		y.managersRun(t)
		r, _ := y.runnerOf("fl4-lab-fl4-docker")
		return !r.Paused && y.maxOf(t, sharedRunners, set) > 0
	})
	alice := y.visitor(t, "alice-yard", "alice@example.com")
	deletions := func(m mark) (all []string) {
		for _, k := range y.told(t, m) {
			if strings.HasPrefix(k.Verb, "delete") {
				all = append(all, k.String())
			}
		}
		return all
	}
	erased := func() (n int) {
		for _, c := range y.gitlab.Calls() {
			if c.Method == http.MethodDelete {
				n++
			}
		}
		return n
	}

	t.Run("a forge", func(t *testing.T) {
		t.Cleanup(func() { y.gitlab.Fault(nil) })
		m, before := y.mark(t), erased()
		runner, _ := y.runnerOf("fl4-lab-fl4-docker")
		var now atomic.Pointer[forgetest.Fault]
		faults := []forgetest.Fault{{Status: http.StatusServiceUnavailable}, {Status: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"1"}}}, {Status: http.StatusTooManyRequests}, {Hang: true}, {Drop: true}, {Cut: 10},
			{Status: http.StatusNotFound, Body: "<html>"}, {Status: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: "[]"}}
		now.Store(&faults[0])
		y.gitlab.Fault(func(*http.Request) *forgetest.Fault { return now.Load() })
		y.hold(t, "fl4-lab", "alice@example.com", v1alpha1.RunnerHoldSpec{Scope: v1alpha1.HoldScope{Org: "fl4-lab"}, Mode: v1alpha1.HoldPause})
		eventually(t, long, "the plane knows of it", func() bool {
			shown, _ := y.shown(t, alice, "gitlab", "fl4-lab", "fl4-docker")
			return slices.Contains(shown.Holds, "fl4-lab")
		})
		for i := range faults {
			now.Store(&faults[i])
			asked := len(y.gitlab.Calls())
			eventually(t, long, fmt.Sprintf("it is asked, and answers %+v", faults[i]), func() bool {
				y.look(t, "fl4-lab")
				<-time.After(100 * time.Millisecond)
				s, is := y.applied(t, "fl4-lab")
				if shown, a := y.shown(t, alice, "gitlab", "fl4-lab", "fl4-docker"); is || s.Applied > 0 || a.Status == http.StatusOK && shown.State != "Pausing" && shown.State != "Unknown" && shown.State != "Degraded" {
					t.Fatalf("with %+v: applied %v, %+v, shown as %s", faults[i], is, s, a.Body)
				}
				return len(y.gitlab.Calls()) > asked
			})
		}
		y.comes(t, "fl4-lab", "why is said", func(*v1alpha1.RunnerEnrollment) bool {
			s, _ := y.applied(t, "fl4-lab")
			return len(s.Failed) == 1 && s.Failed[0].Reason == "ForgeUnreachable"
		})
		f := &v1alpha1.RunnerForge{}
		f.Name = "gitlab"
		eventually(t, long, "the forge is said to be away", func() bool {
			y.look(t, "fl4-lab")
			return y.there(t, f) && meta.IsStatusConditionFalse(f.Status.Conditions, "Reachable")
		})
		if r, ok := y.runnerOf("fl4-lab-fl4-docker"); !ok || r.ID != runner.ID || r.Paused || erased() != before || len(deletions(m)) > 0 {
			t.Errorf("runner %+v, %d deletions there, here %q", r, erased()-before, deletions(m))
		}
		if y.secret(t, sharedRunners, "fl4-lab-fl4-docker-token") == nil {
			t.Error("its token has gone")
		}
		y.gitlab.Fault(nil)
		eventually(t, long, "the hold is confirmed", func() bool {
			_, is := y.applied(t, "fl4-lab")
			if r, _ := y.runnerOf("fl4-lab-fl4-docker"); is && !r.Paused {
				t.Fatal("it is called applied before GitLab has it")
			}
			return is
		})
		eventually(t, long, "the plane says so", func() bool {
			shown, _ := y.shown(t, alice, "gitlab", "fl4-lab", "fl4-docker")
			return shown.State == "Paused"
		})
	})

	t.Run("no ARC", func(t *testing.T) {
		m, uid := y.mark(t), y.setOf(t, sharedRunners, set).GetUID()
		_, err := y.arc.Upgrade(t.Context(), "0.14.2") // nothing works until it is started
		y.must(t, err)
		y.must(t, y.kube.AppsV1().Deployments("arc-systems").Delete(t.Context(), "arc-gha-rs-controller", deleteNow))
		y.says(t, "fl4-hub", "Ready", "False/ARCMissing")
		y.hold(t, "fl4-hub", "alice@example.com", v1alpha1.RunnerHoldSpec{Scope: v1alpha1.HoldScope{Org: "fl4-hub"}, Mode: v1alpha1.HoldPause})
		always(t, 3*time.Second, "it is not called applied while a listener would take jobs", func() bool {
			_, is := y.applied(t, "fl4-hub")
			return !is
		})
		if now := y.setOf(t, sharedRunners, set); now == nil || now.GetUID() != uid || now.GetDeletionTimestamp() != nil || len(deletions(m)) > 0 {
			t.Errorf("for want of ARC: %v, %q", now, deletions(m))
		}
		start, err := y.arc.Upgrade(t.Context(), "0.14.2")
		y.must(t, err)
		y.must(t, start(t.Context()))
		eventually(t, long, "the hold is confirmed", func() bool { _, is := y.applied(t, "fl4-hub"); return is })
		y.active0(t, "fl4-hub")
	})

	t.Run("another ARC", func(t *testing.T) {
		// It says 0.14.2 and is 0.13.1: whatever is made for the one the other deletes.
		start, err := y.arc.Upgrade(t.Context(), "0.13.1")
		y.must(t, err)
		eventually(t, long, "the label follows", func() bool {
			u := y.setOf(t, sharedRunners, set)
			return u != nil && u.GetLabels()["app.kubernetes.io/version"] == "0.13.1"
		})
		y.must(t, start(t.Context()))
		y.active0(t, "fl4-hub")
		m := y.mark(t)
		y.arcSays(t, "0.14.2")
		e := y.comes(t, "fl4-hub", "that it is deleted is said", func(e *v1alpha1.RunnerEnrollment) bool {
			return slices.ContainsFunc(e.Status.Conditions, conditionHas("ARCDeletesScaleSets"))
		})
		made := func() (n int) {
			for _, k := range y.told(t, m) {
				if k.ObjectRef.Resource == "autoscalingrunnersets" && (k.Verb == "create" || k.Verb == "patch") {
					n++
				}
			}
			return n
		}
		n := made()
		t.Logf("%d writes of the scale set before it was given up: %+v", n, e.Status.Conditions)
		if n > 10 {
			t.Errorf("it was written %d times", n)
		}
		always(t, 5*time.Second, "it is not made again", func() bool { return made() == n })
		start, err = y.arc.Upgrade(t.Context(), "0.14.2")
		y.must(t, err)
		y.must(t, start(t.Context()))
	})
}

// active0 waits until an enrollment is active, whatever holds it.
func (y *yard) active0(t *testing.T, org string) {
	t.Helper()
	y.comes(t, org, "it is active", func(e *v1alpha1.RunnerEnrollment) bool { return e.Status.Phase == v1alpha1.PhaseActive })
}

// arcSays has ARC's Deployment and pod say a version that its program does not have.
func (y *yard) arcSays(t *testing.T, version string) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"template":{"metadata":{"labels":{"app.kubernetes.io/version":%q}},"spec":{"containers":[{"name":"manager","image":"registry.invalid/arc:%s"}]}}}}`, version, version)
	_, err := y.kube.AppsV1().Deployments("arc-systems").Patch(t.Context(), "arc-gha-rs-controller", types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	y.must(t, err)
	pods, err := y.kube.CoreV1().Pods("arc-systems").List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/part-of=gha-rs-controller"})
	y.must(t, err)
	for _, p := range pods.Items {
		_, err := y.kube.CoreV1().Pods("arc-systems").Patch(t.Context(), p.Name, types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{"app.kubernetes.io/version":%q}}}`, version), metav1.PatchOptions{})
		y.must(t, err)
	}
}

var deleteNow = metav1.DeleteOptions{GracePeriodSeconds: new(int64)}

func conditionHas(reason string) func(metav1.Condition) bool {
	return func(c metav1.Condition) bool { return c.Reason == reason }
}
