package fleet

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/testkit/arctest"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/forgetest"
)

// gitLabAnswers replaces GitLab's answers, selected by a part of the request path.
type gitLabAnswers struct {
	sync.Mutex
	of map[string]func(*http.Request) *forgetest.Fault
}

func (a *gitLabAnswers) set(path string, f func(*http.Request) *forgetest.Fault) {
	a.Lock()
	defer a.Unlock()
	a.of[path] = f
}

// toDeletion applies a fault to DELETE requests only.
func toDeletion(f forgetest.Fault) func(*http.Request) *forgetest.Fault {
	return func(r *http.Request) *forgetest.Fault {
		if r.Method != http.MethodDelete {
			return nil
		}
		return &f
	}
}

func says(status int) forgetest.Fault {
	return forgetest.Fault{Status: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: fmt.Sprintf(`{"message":"%d"}`, status)}
}

// answering lets the test replace GitLab's answers for some paths, until the test ends.
func (y *env) answering(t *testing.T) *gitLabAnswers {
	a := &gitLabAnswers{of: map[string]func(*http.Request) *forgetest.Fault{}}
	y.gitlab.Fault(func(r *http.Request) *forgetest.Fault {
		a.Lock()
		defer a.Unlock()
		for path, f := range a.of {
			if strings.HasSuffix(r.URL.Path, path) && f != nil {
				return f(r)
			}
		}
		return nil
	})
	t.Cleanup(func() { y.gitlab.Fault(nil) })
	return a
}

func runnerPath(id int64) string { return fmt.Sprintf("/runners/%d", id) }

// atGitHubHas reports whether GitHub has a scale set of that name.
func (y *env) atGitHubHas(name string) bool {
	return slices.ContainsFunc(y.github.ScaleSets(), func(s forgetest.GitHubScaleSet) bool { return s.Name == name })
}

// witnessed keeps an enrollment after the fleet has removed its finalizer, so that the test can read its final
// status. let releases it.
func (y *env) witnessed(t *testing.T, org string) (let func()) {
	t.Helper()
	const witness = "test.example/witness"
	change := func(f func(*v1alpha1.RunnerEnrollment)) {
		err := retry.RetryOnConflict(retry.DefaultBackoff, func() error { // the fleet writes too
			e := &v1alpha1.RunnerEnrollment{ObjectMeta: metav1.ObjectMeta{Name: org}}
			if !y.there(t, e) {
				return nil
			}
			was := e.DeepCopy()
			f(e)
			return y.KubeClient.Patch(context.WithoutCancel(t.Context()), e, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{}))
		})
		if client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	}
	change(func(e *v1alpha1.RunnerEnrollment) { controllerutil.AddFinalizer(e, witness) })
	let = func() {
		change(func(e *v1alpha1.RunnerEnrollment) { controllerutil.RemoveFinalizer(e, witness) })
	}
	t.Cleanup(let)
	return let
}

// later skips the 30 s wait after which the fleet retries a refused deletion. The fleet counts refusals in
// annotations, with the time of the last one.
func (y *env) later(t *testing.T, org string) {
	t.Helper()
	e := y.get(t, org)
	was := e.DeepCopy()
	for name, note := range e.Annotations {
		times, last, _ := strings.Cut(note, " ")
		if at, err := time.Parse(time.RFC3339, last); strings.HasPrefix(name, "tailplane.dev/denied-") && err == nil && time.Since(at) < time.Minute {
			e.Annotations[name] = times + " " + at.Add(-time.Hour).Format(time.RFC3339)
		}
	}
	if maps.Equal(was.Annotations, e.Annotations) {
		return
	}
	// The patch must not undo refusals that the fleet has counted in the meantime.
	if err := y.KubeClient.Patch(t.Context(), e, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})); !apierrors.IsConflict(err) {
		y.must(t, err)
	}
}

// released waits until the fleet has removed its finalizer from a witnessed enrollment.
func (y *env) released(t *testing.T, org string) *v1alpha1.RunnerEnrollment {
	t.Helper()
	return y.comes(t, org, "the fleet has removed its finalizer", func(e *v1alpha1.RunnerEnrollment) bool {
		return !slices.Contains(e.Finalizers, v1alpha1.FleetFinalizer)
	})
}

// killedAtEach deletes an enrollment and kills the fleet after each of its writes about it, to the API server and to
// GitLab. between checks the state while the fleet is stopped. drains ends the last job as soon as it may end.
// killedAtEach returns the writes.
func (y *env) killedAtEach(t *testing.T, g *attacktest.Gate, a *gitLabAnswers, org string, runner int64, drains, between func()) (wrote []string) {
	t.Helper()
	y.fleet.Kill()
	defer func() {
		g.Disarm()
		y.fleet.Kill()
		y.must(t, y.begin(context.WithoutCancel(t.Context()), fleetSettings))
	}()
	kubeconfig := y.KubeconfigThrough(t, g, attacktest.FleetNamespace, "tailplane-fleet")
	g.About(org)
	defer g.About("")
	told := map[string]bool{}
	if runner != 0 {
		a.set(runnerPath(runner), func(r *http.Request) *forgetest.Fault {
			if what := r.Method + " at GitLab"; r.Method != http.MethodGet && !told[what] {
				told[what], wrote = true, append(wrote, what)
				y.fleet.Kill()
				return &forgetest.Fault{Drop: true, After: true}
			}
			return nil
		})
		defer a.set(runnerPath(runner), nil)
	}
	y.leave(t, org)
	for !y.gone(t, org) {
		between()
		y.must(t, y.begin(t.Context(), fleetSettings, "--kubeconfig", kubeconfig))
		g.Arm(1, y.fleet)
		if !attacktest.Within(time.Minute, func() bool {
			y.managersRun(t)
			drains()
			select {
			case <-y.fleet.Done():
				return true
			default:
				return y.gone(t, org)
			}
		}) {
			t.Fatalf("%s: nothing is written any more, after %q", org, wrote)
		}
		a.Lock() // a write to GitLab in progress is now recorded
		wrote = append(wrote, g.Disarm()...)
		a.Unlock()
		y.fleet.Kill()
	}
	return wrote
}

// inOrder fails unless the requests include all steps in the given order.
func inOrder(t *testing.T, asked []attacktest.KubeRequest, steps ...string) {
	t.Helper()
	last := -1
	for _, step := range steps {
		verb, resource, _ := strings.Cut(step, " ")
		i := slices.IndexFunc(asked, func(k attacktest.KubeRequest) bool { return k.Verb == verb && k.ObjectRef.Resource == resource })
		if i <= last {
			t.Errorf("%q was first requested as number %d, after %d: %v", step, i, last, asked)
		}
		last = i
	}
}

// about returns the requests that concern an organisation.
func about(asked []attacktest.KubeRequest, org string) []attacktest.KubeRequest {
	return slices.DeleteFunc(asked, func(k attacktest.KubeRequest) bool { return !strings.Contains(k.RequestURI, org) })
}

// FL-02. Offboarding continues after a kill at any point, in its order: intake, drain, deregistration, workloads,
// Secrets, namespace. The credential stays until the forge has removed the runners, and the end also completes when a
// person deleted the credential early. 404 and 410 count as success. A forge that refuses permanently does not block
// offboarding: the fleet records the ids of the runners that remain there.
//
// Guard: fleet.(*decision).offboard, which derives each step from the existing objects; (*look).gather, which reads the
// live state before any irreversible step; fleet.(*decision).abandoned.
func TestFL02_Offboarding(t *testing.T) {
	y := start(t)
	a, g := y.answering(t), y.NewGate(t)
	y.pool(t, "fl2-nix", "github", 3)
	y.pool(t, "fl2-docker", "gitlab", 3)
	app, key := y.github.AddApp(t)
	y.github.AddAccount("fl2-app", "")
	installation := y.github.Install(app, "fl2-app", forgetest.Enough())
	y.credential(t, "fl2-app", map[string]string{"github_app_id": fmt.Sprint(app), "github_app_private_key": string(key)})
	y.enroll(t, "fl2-app", "github", y.github.URL+"/fl2-app", []string{"fl2-nix"})
	hubs, labs := []string{"fl2-hub", "fl2-copy", "fl2-source"}, []string{"fl2-lab", "fl2-401", "fl2-403", "fl2-404", "fl2-410", "fl2-none"}
	for _, org := range hubs {
		y.atGitHub(t, org, []string{"fl2-nix"}, apart)
	}
	for _, org := range labs {
		y.atGitLab(t, org, []string{"fl2-docker"})
	}
	runner := map[string]int64{}
	for _, org := range append(append([]string{"fl2-app"}, hubs...), labs...) {
		y.active(t, org)
		if r, ok := y.runnerOf(org + "-fl2-docker"); ok {
			runner[org] = r.ID
		}
	}
	attacktest.Eventually(t, attacktest.Long, "all take jobs", func() bool {
		y.managersRun(t)
		for org, id := range runner {
			if r, ok := y.runnerOf(org + "-fl2-docker"); !ok || r.ID != id || r.Paused {
				return false
			}
		}
		return y.maxOf(t, "tailplane-org-fl2-hub", "fl2-hub-fl2-nix") == 3
	})
	m := y.Mark(t)

	// Refusals take long: five of them, half a minute apart. They start in parallel with the rest.
	let := map[string]func(){}
	for _, org := range []string{"fl2-app", "fl2-401", "fl2-403", "fl2-none"} {
		let[org] = y.witnessed(t, org)
	}
	y.denied.Store(y.github.URL+"/fl2-app", true)
	y.github.Uninstall(installation)
	a.set(runnerPath(runner["fl2-401"]), toDeletion(says(http.StatusUnauthorized)))
	a.set(runnerPath(runner["fl2-403"]), toDeletion(says(http.StatusForbidden)))
	y.drop(t, y.secret(t, attacktest.FleetNamespace, "fl2-none-credential"))
	for org := range let {
		y.leave(t, org)
	}

	// drains reports whether an enrollment waits for its last job.
	drains := func(org string) bool {
		e := &v1alpha1.RunnerEnrollment{ObjectMeta: metav1.ObjectMeta{Name: org}}
		return y.there(t, e) && e.Status.Offboard != nil && e.Status.Offboard.Step == v1alpha1.StepDrain
	}

	t.Run("killed, at GitHub", func(t *testing.T) {
		const ns, set = "tailplane-org-fl2-hub", "fl2-hub-fl2-nix"
		y.arc.Assign(ns, set, arctest.Job{ID: "fl2", Repository: "fl2-hub/app", Run: 21})
		y.must(t, y.arc.Start(t.Context(), "fl2"))
		ran := false
		wrote := y.killedAtEach(t, g, a, "fl2-hub", 0, func() {
			if !ran && drains("fl2-hub") {
				y.must(t, y.arc.Finish(t.Context(), "fl2"))
				ran = true
			}
		}, func() {
			u := y.setOf(t, ns, set)
			if !ran && (u == nil || u.GetDeletionTimestamp() != nil) {
				t.Fatal("it is being deregistered while a job runs")
			}
			if y.atGitHubHas(set) && y.secret(t, attacktest.FleetNamespace, "fl2-hub-credential") == nil {
				t.Error("the credential was deleted before the scale set")
			}
			if u != nil {
				if name, _, _ := unstructured.NestedString(u.Object, "spec", "githubConfigSecret"); y.secret(t, ns, name) == nil {
					t.Errorf("the scale set exists, but its Secret %q does not", name)
				}
			}
		})
		t.Logf("killed after: %s", strings.Join(wrote, ", "))
		if len(wrote) < 6 || !ran {
			t.Errorf("%d writes, the job ended: %v", len(wrote), ran)
		}
		inOrder(t, about(y.told(t, m), "fl2-hub"), "patch autoscalingrunnersets", "delete autoscalingrunnersets", "delete secrets", "delete namespaces")
		y.nothingOf(t, "fl2-hub")
	})

	t.Run("killed, at GitLab", func(t *testing.T) {
		job := y.gitlab.StartJob(runner["fl2-lab"], 7)
		ran := false
		wrote := y.killedAtEach(t, g, a, "fl2-lab", runner["fl2-lab"], func() {
			if !ran && drains("fl2-lab") {
				y.gitlab.EndJob(job, "success")
				ran = true
			}
		}, func() {
			_, there := y.runnerOf("fl2-lab-fl2-docker")
			if !there && !ran {
				t.Fatal("it was deregistered while a job ran")
			}
			if !there {
				return
			}
			if y.secret(t, attacktest.FleetNamespace, "fl2-lab-credential") == nil || y.secret(t, attacktest.SharedRunners, "fl2-lab-fl2-docker-runner-token") == nil {
				t.Error("the credential was deleted before the runner")
			}
			if len(y.listed(t, things[5], "fl2-lab")) == 0 {
				t.Error("the managers were deleted before the runner")
			}
		})
		t.Logf("killed after: %s", strings.Join(wrote, ", "))
		switch {
		case len(wrote) < 6:
			t.Errorf("len(wrote) = %v, want at least 6", len(wrote))
		case !ran:
			t.Errorf("ran is false; %d, %v", len(wrote), ran)
		case !slices.Contains(wrote, "DELETE at GitLab"):
			t.Errorf("wrote = %v does not contain %q", wrote, "DELETE at GitLab")
		}
		inOrder(t, about(y.told(t, m), "fl2-lab"), "delete deployments", "delete secrets", "delete networkpolicies")
		y.nothingOf(t, "fl2-lab")
	})

	t.Run("objects that are already deleted", func(t *testing.T) {
		y.gitlab.RemoveRunner(runner["fl2-404"]) // another client deleted it first
		gone := says(http.StatusGone)
		gone.After = true
		a.set(runnerPath(runner["fl2-410"]), toDeletion(gone))
		y.drop(t, y.secret(t, attacktest.FleetNamespace, "fl2-source-credential"))
		copied, _, _ := unstructured.NestedString(y.setOf(t, "tailplane-org-fl2-copy", "fl2-copy-fl2-nix").Object, "spec", "githubConfigSecret")
		for _, org := range []string{"fl2-404", "fl2-410", "fl2-copy", "fl2-source"} {
			y.leave(t, org)
		}
		y.drop(t, y.secret(t, "tailplane-org-fl2-copy", copied))
		for _, org := range []string{"fl2-404", "fl2-410", "fl2-copy", "fl2-source"} {
			attacktest.Eventually(t, attacktest.Long, org+" is deleted", func() bool { y.managersRun(t); return y.gone(t, org) })
			y.nothingOf(t, org)
		}
		switch _, there := y.runnerOf("fl2-410-fl2-docker"); {
		case there:
			t.Errorf("a forge still has something: there is true; %+v", y.github.ScaleSets())
		case y.atGitHubHas("fl2-copy-fl2-nix"):
			t.Errorf(`a forge still has something: y.atGitHubHas("fl2-copy-fl2-nix") is true; %+v`, y.github.ScaleSets())
		case y.atGitHubHas("fl2-source-fl2-nix"):
			t.Errorf(`a forge still has something: y.atGitHubHas("fl2-source-fl2-nix") is true; %+v`, y.github.ScaleSets())
		}
	})

	t.Run("refused deletions", func(t *testing.T) {
		attacktest.Eventually(t, attacktest.Long, "all were refused five times", func() bool {
			over := true
			for org := range let {
				y.later(t, org)
				e := y.get(t, org)
				over = over && (e.Status.Phase == v1alpha1.PhaseFailed || !slices.Contains(e.Finalizers, v1alpha1.FleetFinalizer))
			}
			return over
		})
		for _, org := range []string{"fl2-401", "fl2-403", "fl2-none"} {
			e := y.released(t, org)
			if o := e.Status.Offboard; o == nil || !slices.Equal(o.Leaked, []int64{runner[org]}) {
				t.Errorf("%s: %d stays at GitLab, but the status has %+v", org, runner[org], o)
			}
			if _, there := y.runnerOf(org + "-fl2-docker"); !there {
				t.Errorf("%s: the runner does not exist: this test is not conclusive", org)
			}
			let[org]()
			y.nothingOf(t, org)
		}
		// At GitHub, a person decides.
		const set = "fl2-app-fl2-nix"
		y.comes(t, "fl2-app", "a person must decide", func(e *v1alpha1.RunnerEnrollment) bool { return e.Status.Phase == v1alpha1.PhaseFailed })
		y.says(t, "fl2-app", "DecisionNeeded", "True/ForgeCleanupSkipped")
		u := y.setOf(t, attacktest.SharedRunners, set)
		switch {
		case u == nil:
			t.Fatal("an object was deleted without an answer from GitHub or a person: u is nil")
		case len(u.GetFinalizers()) == 0:
			t.Fatalf("an object was deleted without an answer from GitHub or a person: len(u.GetFinalizers()) == 0; %v", u)
		case y.secret(t, attacktest.FleetNamespace, "fl2-app-credential") == nil:
			t.Fatal(`an object was deleted without an answer from GitHub or a person: y.secret(t, attacktest.FleetNamespace, "fl2-app-credential") is nil`)
		case !y.atGitHubHas(set):
			t.Fatalf("an object was deleted without an answer from GitHub or a person: y.atGitHubHas(set) is false; %v", u)
		}
		id := u.GetAnnotations()["runner-scale-set-id"]
		y.must(t, y.KubeClient.Patch(t.Context(), y.get(t, "fl2-app"), client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"tailplane.dev/force-cleanup":"the organisation has gone"}}}`))))
		e := y.released(t, "fl2-app")
		if o := e.Status.Offboard; o == nil || fmt.Sprint(o.Leaked) != "["+id+"]" {
			t.Errorf("%s stays at GitHub, but the status has %+v", id, o)
		}
		let["fl2-app"]()
		y.nothingOf(t, "fl2-app")
	})
}

// nothingOf fails if any object with an organisation's label is left.
func (y *env) nothingOf(t *testing.T, org string) {
	t.Helper()
	var left []string
	if !attacktest.Within(30*time.Second, func() bool { // pods end after their owners
		left = nil
		for _, kind := range things {
			left = append(left, y.listed(t, kind, org)...)
		}
		return len(left) == 0
	}) {
		t.Errorf("of %s is left: %q", org, left)
	}
	var ns corev1.NamespaceList
	y.must(t, y.KubeClient.List(t.Context(), &ns, client.MatchingLabels{v1alpha1.OrgLabel: org}))
	for _, n := range ns.Items {
		if n.DeletionTimestamp == nil {
			t.Errorf("namespace %s is left", n.Name)
		}
	}
}
