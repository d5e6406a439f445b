//go:build unix

package arctest_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/arc"
	"github.com/tailplane/tailplane/testkit/arctest"
	"github.com/tailplane/tailplane/testkit/kubetest"
)

// env is an ARC on a real API server, in its own namespaces.
type env struct {
	*arctest.ARC
	t       *testing.T
	client  *dynamic.DynamicClient
	github  *arctest.ScaleSetFake
	ns, arc string // namespaces of the runners and of the controller
	version string
}

func newBench(t *testing.T, version string, eventual bool) *env {
	t.Parallel()
	c := kubetest.Start(t)
	client, err := dynamic.NewForConfig(c.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	b := &env{t: t, client: client, github: &arctest.ScaleSetFake{}, ns: c.Namespace(t), arc: c.Namespace(t), version: version}
	b.ARC = arctest.Start(t, arctest.Options{Cluster: c, Namespace: b.arc, Watch: b.ns, Version: version, Eventual: eventual, GitHub: b.github})
	b.apply("v1", "secrets", secret("one"))
	return b
}

func secret(name string) map[string]any {
	return map[string]any{"kind": "Secret", "metadata": map[string]any{"name": name}, "stringData": map[string]any{"github_token": "a token"}}
}

// set returns an AutoscalingRunnerSet as the fleet writes it.
func (b *env) set(name string, least, most int64) map[string]any {
	return map[string]any{"kind": "AutoscalingRunnerSet", "metadata": map[string]any{"name": name, "labels": map[string]any{"app.kubernetes.io/version": b.version, "tailplane.dev/org": "acme"}},
		"spec": map[string]any{"githubConfigUrl": "https://github.example/acme", "githubConfigSecret": "one", "runnerScaleSetName": name, "runnerScaleSetLabels": []any{"nix"}, "minRunners": least, "maxRunners": most,
			"template": map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": "runner", "image": "runner:1"}}}}}}
}

func resource(version, plural string) schema.GroupVersionResource {
	gv, err := schema.ParseGroupVersion(version)
	if err != nil {
		panic(err)
	}
	return gv.WithResource(plural)
}

const group = "actions.github.com/v1alpha1"

// apply applies an object as the fleet does.
func (b *env) apply(version, plural string, o map[string]any) {
	b.t.Helper()
	if err := b.tryApply(version, plural, o, "tailplane-fleet"); err != nil {
		b.t.Fatal(err)
	}
}

func (b *env) tryApply(version, plural string, o map[string]any, manager string) error {
	u := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(o)}
	u.SetAPIVersion(version)
	u.SetNamespace(b.ns)
	_, err := b.client.Resource(resource(version, plural)).Namespace(b.ns).Apply(b.t.Context(), u.GetName(), u, metav1.ApplyOptions{FieldManager: manager, Force: true})
	return err
}

func (b *env) list(ctx context.Context, namespace, version, plural string) ([]unstructured.Unstructured, error) {
	l, err := b.client.Resource(resource(version, plural)).Namespace(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return l.Items, nil
}

// parts reads all objects of a set, only through package arc.
func (b *env) parts(name string) (arc.Objects, error) {
	ctx := b.t.Context()
	var p arc.Objects
	sets, err := b.list(ctx, b.ns, group, "autoscalingrunnersets")
	if err != nil {
		return p, err
	}
	listeners, err := b.list(ctx, b.arc, group, "autoscalinglisteners")
	if err != nil {
		return p, err
	}
	runnerSets, err := b.list(ctx, b.ns, group, "ephemeralrunnersets")
	if err != nil {
		return p, err
	}
	runners, err := b.list(ctx, b.ns, group, "ephemeralrunners")
	if err != nil {
		return p, err
	}
	pods, err := b.pods(ctx)
	if err != nil {
		return p, err
	}
	var listening []arc.Pod
	for i := range pods {
		if l, ok := arc.ReadPod(pods[i]); ok {
			listening = append(listening, l)
		}
	}
	all := arc.GroupBySet(read(sets, arc.ReadSet), read(listeners, arc.ReadListener), listening, read(runnerSets, arc.ReadRunnerSet), read(runners, arc.ReadRunner))
	if found := all[fleet.Key{Namespace: b.ns, Name: name}]; found != nil {
		p = *found
	}
	p.KnowsListeners, p.KnowsRunners = true, true
	return p, nil
}

func read[T any](objects []unstructured.Unstructured, as func(*unstructured.Unstructured) T) (all []T) {
	for i := range objects {
		all = append(all, as(&objects[i]))
	}
	return all
}

func (b *env) pods(ctx context.Context) ([]*corev1.Pod, error) {
	items, err := b.list(ctx, b.arc, "v1", "pods")
	if err != nil {
		return nil, err
	}
	pods := make([]*corev1.Pod, len(items))
	for i := range items {
		pods[i] = &corev1.Pod{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(items[i].Object, pods[i]); err != nil {
			return nil, err
		}
	}
	return pods, nil
}

func (b *env) controllers() ([]arc.Controller, error) {
	items, err := b.list(b.t.Context(), b.arc, "apps/v1", "deployments")
	if err != nil {
		return nil, err
	}
	deployments := make([]*appsv1.Deployment, len(items))
	for i := range items {
		deployments[i] = &appsv1.Deployment{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(items[i].Object, deployments[i]); err != nil {
			return nil, err
		}
	}
	pods, err := b.pods(b.t.Context())
	if err != nil {
		return nil, err
	}
	return arc.Discover(deployments, pods), nil
}

// until waits for a state of a set.
func (b *env) until(what, name string, is func(arc.Objects, arc.State) bool) (arc.Objects, arc.State) {
	b.t.Helper()
	deadline := time.Now().Add(90 * time.Second)
	for {
		p, err := b.parts(name)
		s := p.State()
		if err == nil && is(p, s) {
			return p, s
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("%s: not within 90s: %v; %s", what, err, show(p, s))
		}
		time.Sleep(200 * time.Millisecond)
	}
}

func show(p arc.Objects, s arc.State) string {
	return fmt.Sprintf("set %+v, listeners %+v, pods %+v, runner sets %+v, runners %+v: %+v counts %+v", p.Set, p.Listeners, p.Pods, p.RunnerSets, p.Runners, s, s.Counts)
}

func registered(_ arc.Objects, s arc.State) bool { return s.Registered == fleet.Yes }

func gone(p arc.Objects, _ arc.State) bool { return p.Set == nil }

func (b *env) delete(name string) {
	b.t.Helper()
	if err := b.client.Resource(resource(group, "autoscalingrunnersets")).Namespace(b.ns).Delete(b.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		b.t.Fatal(err)
	}
}

func (b *env) start(id string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 90*time.Second)
	defer cancel()
	if err := b.Start(ctx, id); err != nil {
		b.t.Fatal(err)
	}
}

func (b *env) finish(id string) {
	b.t.Helper()
	if err := b.Finish(b.t.Context(), id); err != nil {
		b.t.Fatal(err)
	}
}

// FLEET-03: a scale set of each version is registered and runs jobs. It is paused while a job runs, and resumed. The
// pause is visible as a listener without numbers. It is not confirmed while the pod of the older listener exists.
func TestFLEET03_Pause(t *testing.T) {
	for _, version := range []string{"0.13.1", "0.14.2"} {
		t.Run(version, func(t *testing.T) {
			b := newBench(t, version, false)
			b.apply(group, "autoscalingrunnersets", b.set("nix", 0, 3))
			p, s := b.until("registered", "nix", registered)
			switch {
			case s.Stopped != fleet.No:
				t.Errorf("open: s.Stopped = %v, want %v; %s", s.Stopped, fleet.No, show(p, s))
			case p.Set.ID == 0:
				t.Errorf("open: p.Set.ID = %v; %s", p.Set.ID, show(p, s))
			case p.Listeners[0].Max != 3:
				t.Errorf("open: p.Listeners[0].Max = %v, want 3; %s", p.Listeners[0].Max, show(p, s))
			case s.Counts.Desired != 0:
				t.Errorf("open: s.Counts.Desired = %v, want 0; %s", s.Counts.Desired, show(p, s))
			}
			b.Assign(b.ns, "nix", arctest.Job{ID: "a", Repository: "acme/app", Workflow: "acme/app/.github/workflows/ci.yaml@refs/heads/main", Name: "build", Run: 77}, arctest.Job{ID: "b"}, arctest.Job{ID: "c"}, arctest.Job{ID: "d"})
			b.start("a")
			p, s = b.until("one busy, two idle", "nix", func(_ arc.Objects, s arc.State) bool {
				return s.Counts.Busy == 1 && s.Counts.Idle == 2 && s.Counts.Desired == 3
			})
			switch waiting, taken, running := b.Jobs(b.ns, "nix"); {
			case waiting != 1:
				t.Errorf("jobs: waiting = %v, want 1", waiting)
			case taken != 2:
				t.Errorf("jobs: taken = %v, want 2", taken)
			case running != 1:
				t.Errorf("jobs: running = %v, want 1", running)
			}
			j := s.Jobs[0]
			switch {
			case len(s.Jobs) != 1:
				t.Errorf("jobs: len(s.Jobs) = %v, want 1", len(s.Jobs))
			case j.Repository != "acme/app":
				t.Errorf("jobs: j.Repository = %q, want %q", j.Repository, "acme/app")
			case j.Run != 77:
				t.Errorf("jobs: j.Run = %v, want 77", j.Run)
			case j.Name != "build":
				t.Errorf("jobs: j.Name = %q, want %q", j.Name, "build")
			case j.Workflow == "":
				t.Errorf("jobs: j.Workflow is empty; %+v", s.Jobs)
			case j.Runner.Namespace != b.ns:
				t.Errorf("jobs: j.Runner.Namespace = %q, want %q", j.Runner.Namespace, b.ns)
			case time.Since(j.Started) > 10*time.Minute:
				t.Errorf("jobs: time.Since(j.Started) > 10*time.Minute; %+v", s.Jobs)
			}

			b.Linger(true)
			b.apply(group, "autoscalingrunnersets", b.set("nix", 0, 0))
			p, s = b.until("the listener ends", "nix", func(p arc.Objects, _ arc.State) bool { return len(p.Listeners) == 1 && p.Listeners[0].Ending })
			if s.Stopped != fleet.No {
				t.Errorf("confirmed while the old listener's pod is left: %s", show(p, s))
			}
			b.Linger(false)
			p, s = b.until("stopped", "nix", func(p arc.Objects, s arc.State) bool { return s.Stopped == fleet.Yes && s.Registered == fleet.Yes })
			if p.Listeners[0].Max != 0 {
				t.Errorf("stopped: %s", show(p, s))
			}
			listeners, err := b.list(t.Context(), b.arc, group, "autoscalinglisteners")
			if err != nil {
				t.Fatal(err)
			}
			if spec := listeners[0].Object["spec"].(map[string]any); spec["maxRunners"] != nil || spec["minRunners"] != nil {
				t.Errorf("the listener reports %v", spec)
			}
			p, s = b.until("only the job is left", "nix", func(_ arc.Objects, s arc.State) bool { return *s.Live == 1 && *s.Running == 1 })
			if _, taken, running := b.Jobs(b.ns, "nix"); taken != 2 || running != 1 {
				t.Errorf("%d jobs are stranded, %d run", taken, running)
			}
			b.finish("a")
			b.until("drained", "nix", func(p arc.Objects, s arc.State) bool { return *s.Running == 0 && *s.Live == 0 })

			b.apply(group, "autoscalingrunnersets", b.set("nix", 0, 3))
			b.start("b")
			p, s = b.until("resumed", "nix", func(_ arc.Objects, s arc.State) bool { return s.Stopped == fleet.No && s.Counts.Busy == 1 })
			if p.Set.Max != 3 || p.Listeners[0].Max != 3 {
				t.Errorf("resumed: %s", show(p, s))
			}
		})
	}
}

// FLEET-10: the controller deletes sets of other versions and no other sets. The gate detects that a set is created
// again and again, and stops after two attempts.
func TestFLEET10_VersionGate(t *testing.T) {
	b := newBench(t, "0.14.2", false)
	other := b.set("other", 0, 1)
	other["metadata"].(map[string]any)["labels"].(map[string]any)["app.kubernetes.io/version"] = "0.13.1"
	patch := b.set("patch", 0, 1)
	patch["metadata"].(map[string]any)["labels"].(map[string]any)["app.kubernetes.io/version"] = "0.14.0"

	var gate arc.CreationGate
	made := 0
	for range 5 {
		if trouble, wake := gate.Allows("0.13.1", time.Now()); trouble.Reason != "" {
			if trouble.Reason != arc.ReasonDeletes || !wake.After(time.Now()) {
				t.Errorf("%+v until %v", trouble, wake)
			}
			break
		}
		gate = arc.ParseCreationGate(gate.Created("0.13.1", time.Now()).String()) // as it is read back from its storage
		b.apply(group, "autoscalingrunnersets", other)
		made++
		b.until("deleted", "other", gone)
		gate = arc.ParseCreationGate(gate.Removed(time.Now()).String())
	}
	if made != 2 {
		t.Errorf("created %d times", made)
	}
	if sets := b.github.ScaleSets(); len(sets) != 0 {
		t.Errorf("at GitHub: %v", sets)
	}
	b.apply(group, "autoscalingrunnersets", patch)
	b.until("registered", "patch", registered)
}

// FLEET-10: during the replacement of the controller, after the old pod is gone, the sets get the new version. All of
// them keep their scale sets at GitHub. While the old pod runs, nothing may change.
func TestFLEET10_Upgrade(t *testing.T) {
	b := newBench(t, "0.13.1", false)
	names := []string{"nix", "docker"}
	before := map[string]int64{}
	for _, name := range names {
		b.apply(group, "autoscalingrunnersets", b.set(name, 0, 2))
		p, _ := b.until("registered", name, registered)
		before[name] = p.Set.ID
	}
	found, err := b.controllers()
	if err != nil {
		t.Fatal(err)
	}
	c, trouble := arc.Choose(found, b.ns)
	switch {
	case trouble != (fleet.Failure{}):
		t.Errorf("trouble = %v, want %v", trouble, (fleet.Failure{}))
	case c.Version != "0.13.1":
		t.Errorf("c.Version = %q, want %q", c.Version, "0.13.1")
	case c.ServiceAccount != "arc-gha-rs-controller":
		t.Errorf("c.ServiceAccount = %q, want %q", c.ServiceAccount, "arc-gha-rs-controller")
	case c.Eventual:
		t.Errorf("c.Eventual is true; %+v, trouble = %+v", c, trouble)
	case !c.Ready:
		t.Errorf("c.Ready is false; %+v, trouble = %+v", c, trouble)
	case c.Deployment.Namespace != b.arc:
		t.Errorf("c.Deployment.Namespace = %q, want %q", c.Deployment.Namespace, b.arc)
	}
	if _, trouble := arc.Choose(found, "elsewhere"); trouble.Reason != arc.ReasonWatchesOther {
		t.Errorf("another namespace: %+v", trouble)
	}

	b.Assign(b.ns, "nix", arctest.Job{ID: "a"})
	b.start("a")
	begin, err := b.Upgrade(t.Context(), "0.14.2")
	if err != nil {
		t.Fatal(err)
	}
	if found, err = b.controllers(); err != nil {
		t.Fatal(err)
	}
	switch c, trouble = arc.Choose(found, b.ns); {
	case trouble.Reason != "":
		t.Errorf("trouble.Reason = %q, want none", trouble.Reason)
	case c.Version != "0.14.2":
		t.Errorf("c.Version = %q, want %q", c.Version, "0.14.2")
	case c.Ready:
		t.Errorf("c.Ready is true; %+v, trouble = %+v", c, trouble)
	}
	b.version = c.Version
	for _, name := range names {
		b.apply(group, "autoscalingrunnersets", b.set(name, 0, 2))
	}
	if err := begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		p, s := b.until("registered again", name, func(p arc.Objects, s arc.State) bool { return s.Registered == fleet.Yes && p.Set.Phase == arc.Running })
		if p.Set.ID != before[name] {
			t.Errorf("%s: it was scale set %d: %s", name, before[name], show(p, s))
		}
	}
	b.finish("a")
	if sets := b.github.ScaleSets(); len(sets) != 2 {
		t.Errorf("at GitHub: %v", sets)
	}
}

// FLEET-07: a set is removed in ARC's order and waits for its last job. It hangs as long as its Secret is missing.
// The required Secrets are reported until the end.
func TestFLEET07_Deletion(t *testing.T) {
	b := newBench(t, "0.14.2", false)
	b.apply(group, "autoscalingrunnersets", b.set("nix", 1, 3))
	b.until("registered", "nix", registered)
	b.Assign(b.ns, "nix", arctest.Job{ID: "a"})
	b.start("a")
	b.until("another one waits", "nix", func(_ arc.Objects, s arc.State) bool { return s.Counts.Busy == 1 && s.Counts.Idle == 1 })
	b.delete("nix")
	p, s := b.until("its job is left", "nix", func(p arc.Objects, s arc.State) bool { return len(p.Listeners) == 0 && *s.Live == 1 })
	switch {
	case s.Stopped != fleet.Yes:
		t.Errorf("with a job left: s.Stopped = %v, want %v; %s", s.Stopped, fleet.Yes, show(p, s))
	case s.Registered != fleet.No:
		t.Errorf("with a job left: s.Registered = %v, want %v; %s", s.Registered, fleet.No, show(p, s))
	case *s.Running != 1:
		t.Errorf("with a job left: *s.Running = %v, want 1; %s", *s.Running, show(p, s))
	case len(s.Jobs) != 1:
		t.Errorf("with a job left: len(s.Jobs) = %v, want 1; %s", len(s.Jobs), show(p, s))
	case s.Counts.Busy != 1:
		t.Errorf("with a job left: s.Counts.Busy = %v, want 1; %s", s.Counts.Busy, show(p, s))
	case len(b.github.ScaleSets()) != 1:
		t.Errorf("with a job left: len(b.github.ScaleSets()) = %v, want 1; %s", len(b.github.ScaleSets()), show(p, s))
	}
	secrets := b.client.Resource(resource("v1", "secrets")).Namespace(b.ns)
	if err := secrets.Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	b.finish("a")
	p, s = b.until("no runner is left", "nix", func(p arc.Objects, s arc.State) bool { return len(p.RunnerSets) == 0 && len(p.Runners) == 0 })
	switch {
	case p.Set == nil:
		t.Errorf("without its Secret: p.Set is nil; %s", show(p, s))
	case len(s.Secrets) != 1:
		t.Errorf("without its Secret: len(s.Secrets) = %v, want 1; %s", len(s.Secrets), show(p, s))
	case s.Secrets[0] != "one":
		t.Errorf("without its Secret: s.Secrets[0] = %q, want %q; %s", s.Secrets[0], "one", show(p, s))
	case len(b.github.ScaleSets()) != 1:
		t.Errorf("without its Secret: len(b.github.ScaleSets()) = %v, want 1; %s", len(b.github.ScaleSets()), show(p, s))
	}
	b.said("tries again: the Secret one does not exist")
	b.apply("v1", "secrets", secret("one"))
	b.until("gone", "nix", gone)
	if sets := b.github.ScaleSets(); len(sets) != 0 {
		t.Errorf("at GitHub: %v", sets)
	}
	b.inOrder("listener is deleted", "job a has ended", "scale set 1 is deleted at GitHub", "its finalizer is removed")
}

// said waits until the log contains an action.
func (b *env) said(what string) {
	b.t.Helper()
	for deadline := time.Now().Add(90 * time.Second); !slices.ContainsFunc(b.Log(), func(l string) bool { return strings.Contains(l, what) }); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.t.Fatalf("it was not logged within 90s: %s: %q", what, b.Log())
		}
	}
}

// inOrder finds the lines in the log, each after the one before.
func (b *env) inOrder(lines ...string) {
	b.t.Helper()
	log := b.Log()
	for _, l := range lines {
		i := slices.IndexFunc(log, func(s string) bool { return strings.HasSuffix(s, l) })
		if i < 0 {
			b.t.Errorf("%q was not done, or not after the others: %q", l, b.Log())
			return
		}
		log = log[i+1:]
	}
}

// FLEET-03: with the strategy eventual, a set that is resumed while a job runs gets no listener before the job ends.
// This state is reported, and not treated as a permanent stop.
func TestFLEET03_Eventual(t *testing.T) {
	b := newBench(t, "0.14.2", true)
	found, err := b.controllers()
	switch {
	case err != nil:
		t.Fatal(err)
	case len(found) != 1:
		t.Fatalf("len(found) = %v, want 1", len(found))
	case !found[0].Eventual:
		t.Fatalf("found[0].Eventual is false; found = %+v, %v", found, err)
	}
	b.apply(group, "autoscalingrunnersets", b.set("nix", 0, 3))
	b.until("registered", "nix", registered)
	b.Assign(b.ns, "nix", arctest.Job{ID: "a"})
	b.start("a")
	b.apply(group, "autoscalingrunnersets", b.set("nix", 0, 0))
	b.until("stopped", "nix", func(p arc.Objects, s arc.State) bool { return s.Stopped == fleet.Yes && !s.WaitsForJobs })
	b.apply(group, "autoscalingrunnersets", b.set("nix", 0, 3))
	b.said("waits for the jobs of its runners before it listens")
	p, s := b.until("waits", "nix", func(_ arc.Objects, s arc.State) bool { return s.WaitsForJobs })
	if s.Stopped != fleet.No || s.Registered != fleet.No {
		t.Errorf("resumed during a job: %s", show(p, s))
	}
	b.finish("a")
	b.until("listens", "nix", func(p arc.Objects, s arc.State) bool {
		return s.Registered == fleet.Yes && !s.WaitsForJobs && p.Listeners[0].Max == 3
	})
}

// FLEET-08: another Secret name creates another runner set. The old one stays for its job and still needs the old
// Secret. FLEET-13: objects of another set with the same name are distinguished from missing objects.
func TestFLEET08_Rotation(t *testing.T) {
	b := newBench(t, "0.14.2", false)
	b.apply("v1", "secrets", secret("two"))
	b.apply(group, "autoscalingrunnersets", b.set("nix", 0, 3))
	b.until("registered", "nix", registered)
	b.Assign(b.ns, "nix", arctest.Job{ID: "a"})
	b.start("a")
	two := b.set("nix", 0, 3)
	two["spec"].(map[string]any)["githubConfigSecret"] = "two"
	b.apply(group, "autoscalingrunnersets", two)
	p, s := b.until("both are needed", "nix", func(p arc.Objects, s arc.State) bool {
		return len(p.RunnerSets) == 2 && len(p.Listeners) == 1 && p.Listeners[0].Secret == "two" && s.Registered == fleet.Yes
	})
	if !slices.Equal(s.Secrets, []string{"one", "two"}) || *s.Running != 1 {
		t.Errorf("in between: %s", show(p, s))
	}
	b.Assign(b.ns, "nix", arctest.Job{ID: "b"})
	b.start("b") // by the new one
	b.finish("a")
	b.until("the old one is deleted", "nix", func(p arc.Objects, s arc.State) bool {
		return len(p.RunnerSets) == 1 && slices.Equal(s.Secrets, []string{"two"}) && s.Counts.Busy == 1
	})
	if sets := b.github.ScaleSets(); len(sets) != 1 || !slices.Equal(sets[0].Labels, []string{"nix"}) {
		t.Errorf("at GitHub: %v", sets)
	}

	// Another owner's set with that name, in another namespace, uses the same scale set.
	twin := b.set("twin", 0, 1)
	twin["spec"].(map[string]any)["runnerScaleSetName"] = "NIX"
	b.apply(group, "autoscalingrunnersets", twin)
	q, _ := b.until("registered", "twin", registered)
	p, _ = b.until("registered", "nix", registered)
	if q.Set.ID != p.Set.ID {
		t.Fatalf("GitHub has two of one name: %d and %d", p.Set.ID, q.Set.ID)
	}
	if c := arc.Conflicts([]arc.Set{*p.Set, *q.Set}); c[p.Key] != q.Key || c[q.Key] != p.Key {
		t.Errorf("conflicts: %v", c)
	}
}

// FLEET-10: a set whose runners GitHub rejects is switched off, and returns with another image. ARC 0.13 has no such
// state: there, crashing runners are detected, and in 0.14 too.
func TestFLEET10_Outdated(t *testing.T) {
	b := newBench(t, "0.14.2", false)
	b.apply(group, "autoscalingrunnersets", b.set("nix", 1, 3))
	b.until("registered", "nix", registered)
	b.Reject(b.ns, "nix", true)
	p, s := b.until("off", "nix", func(p arc.Objects, s arc.State) bool {
		return s.Failure.Reason == arc.ReasonOutdated && len(p.Listeners) == 0 && p.Set.ID == 0
	})
	switch {
	case s.Registered != fleet.No:
		t.Errorf("off: s.Registered = %v, want %v; %s", s.Registered, fleet.No, show(p, s))
	case s.Stopped != fleet.Yes:
		t.Errorf("off: s.Stopped = %v, want %v; %s", s.Stopped, fleet.Yes, show(p, s))
	case len(b.github.ScaleSets()) != 0:
		t.Errorf("off: len(b.github.ScaleSets()) = %v, want 0; %s", len(b.github.ScaleSets()), show(p, s))
	}
	if a := arc.NextExternalWrite(*p.Set, true, time.Now()); a.Apply != nil || a.Patch != nil {
		t.Errorf("a hold would wake it: %+v", a)
	}
	b.Reject(b.ns, "nix", false)
	newer := b.set("nix", 1, 3)
	newer["spec"].(map[string]any)["template"] = map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": "runner", "image": "runner:2"}}}}
	b.apply(group, "autoscalingrunnersets", newer)
	_, s = b.until("back", "nix", func(_ arc.Objects, s arc.State) bool { return s.Registered == fleet.Yes && s.Counts.Idle == 1 })
	if s.Failure != (fleet.Failure{}) {
		t.Errorf("back: %+v", s.Failure)
	}
}

// Runners with failing pods: 0.13 gives up after five failures. 0.14 creates new runners forever, which is
// visible only in repeated observations.
func TestCrash(t *testing.T) {
	for _, version := range []string{"0.13.1", "0.14.2"} {
		t.Run(version, func(t *testing.T) {
			b := newBench(t, version, false)
			b.Crash(b.ns, "nix", "ImagePullBackOff")
			b.apply(group, "autoscalingrunnersets", b.set("nix", 1, 1))
			_, s := b.until("crashes", "nix", func(_ arc.Objects, s arc.State) bool { return s.Failure.Reason == arc.ReasonCrashLoop })
			if !strings.Contains(s.Failure.Message, "ImagePullBackOff") {
				t.Errorf("%+v", s.Failure)
			}
			if version == "0.13.1" {
				b.until("given up", "nix", func(_ arc.Objects, s arc.State) bool { return s.Counts.Failed == 1 })
			}
			b.Crash(b.ns, "nix", "")
		})
	}
}
