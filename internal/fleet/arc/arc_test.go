package arc_test

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/arc"
)

// object parses YAML in the form of an API server's response: whole numbers are int64.
func object(t testing.TB, y string) *unstructured.Unstructured {
	t.Helper()
	j, err := yaml.YAMLToJSON([]byte(y))
	if err != nil {
		t.Fatal(err)
	}
	u := new(unstructured.Unstructured)
	if err := u.UnmarshalJSON(j); err != nil {
		t.Fatal(err)
	}
	return u
}

const head = "apiVersion: actions.github.com/v1alpha1\n"

func set(t testing.TB, y string) arc.Set {
	t.Helper()
	return arc.ReadSet(object(t, head+"kind: AutoscalingRunnerSet\n"+y))
}

// In a scale set, an unreadable maximum means no maximum; in a listener, it means unlimited jobs. A
// missing maximum means no maximum in a scale set, and 0 in a listener.
func TestNumbers(t *testing.T) {
	for _, c := range []struct {
		why, y                    string
		least, most, setLeast, of int
	}{
		{"given", "{minRunners: 1, maxRunners: 3}", 1, 3, 1, 3},
		{"zeros", "{minRunners: 0, maxRunners: 0}", 0, 0, 0, 0},
		{"nothing", "{}", 0, 0, 0, arc.Unlimited},
		{"null", "{minRunners: null, maxRunners: null}", 0, 0, 0, arc.Unlimited},
		{"text", `{minRunners: "1", maxRunners: "0"}`, 0, arc.Unlimited, 0, arc.Unlimited},
		{"negative", "{minRunners: -1, maxRunners: -1}", 0, arc.Unlimited, 0, arc.Unlimited},
		{"a part", "{maxRunners: 0.5}", 0, arc.Unlimited, 0, arc.Unlimited},
		{"whole, with a point", "{maxRunners: 2.0}", 0, 2, 0, 2},
		{"ARC's word for none", "{maxRunners: 2147483647}", 0, arc.Unlimited, 0, arc.Unlimited},
		{"more than that", "{maxRunners: 9223372036854775807}", 0, arc.Unlimited, 0, arc.Unlimited},
		{"a list", "{maxRunners: [0]}", 0, arc.Unlimited, 0, arc.Unlimited},
		{"spec is text", `"no"`, 0, arc.Unlimited, 0, arc.Unlimited},
	} {
		t.Run(c.why, func(t *testing.T) {
			l := arc.ReadListener(object(t, head+"kind: AutoscalingListener\nspec: "+c.y))
			if l.Min != c.least || l.Max != c.most {
				t.Errorf("listener: %d to %d", l.Min, l.Max)
			}
			if s := set(t, "spec: "+c.y); s.Min != c.setLeast || s.Max != c.of {
				t.Errorf("set: %d to %d", s.Min, s.Max)
			}
		})
	}
}

func TestReadSet(t *testing.T) {
	s := set(t, `
metadata:
  name: acme-nix
  namespace: runners
  uid: u1
  creationTimestamp: 2026-01-02T03:04:05Z
  labels: {app.kubernetes.io/version: 0.14.2, app.kubernetes.io/managed-by: tailplane, tailplane.dev/org: acme, tailplane.dev/pool: nix}
  annotations: {runner-scale-set-id: "7", actions.github.com/runner-scale-set-name: acme-nix, actions.github.com/runner-group-name: Default}
spec: {githubConfigUrl: https://github.com/acme, githubConfigSecret: acme-1, runnerGroup: g, runnerScaleSetLabels: [self-hosted, nix], minRunners: 0, maxRunners: 3}
status: {phase: Running, state: Pending}`)
	switch {
	case s.Name != "acme-nix":
		t.Errorf("s.Name = %q, want %q", s.Name, "acme-nix")
	case !s.Managed:
		t.Errorf("s.Managed is false; %+v", s)
	case s.Org != "acme":
		t.Errorf("s.Org = %q, want %q", s.Org, "acme")
	case s.Pool != "nix":
		t.Errorf("s.Pool = %q, want %q", s.Pool, "nix")
	case s.Version != "0.14.2":
		t.Errorf("s.Version = %q, want %q", s.Version, "0.14.2")
	case s.Secret != "acme-1":
		t.Errorf("s.Secret = %q, want %q", s.Secret, "acme-1")
	case s.ScaleSet != "acme-nix":
		t.Errorf("s.ScaleSet = %q, want %q", s.ScaleSet, "acme-nix")
	case s.RunnerGroup != "g":
		t.Errorf("s.RunnerGroup = %q, want %q", s.RunnerGroup, "g")
	case !slices.Equal(s.Labels, []string{"self-hosted", "nix"}):
		t.Errorf("s.Labels (-want +got):\n%s", cmp.Diff([]string{"self-hosted", "nix"}, s.Labels))
	case s.ID != 7:
		t.Errorf("s.ID = %v, want 7", s.ID)
	case s.Registered != "acme-nix":
		t.Errorf("s.Registered = %q, want %q", s.Registered, "acme-nix")
	case s.RegisteredGroup != "Default":
		t.Errorf("s.RegisteredGroup = %q, want %q", s.RegisteredGroup, "Default")
	case s.Phase != arc.Running:
		t.Errorf("s.Phase = %q, want %q", s.Phase, arc.Running)
	case s.Ending:
		t.Errorf("s.Ending is true; %+v", s)
	case s.Before != nil:
		t.Errorf("s.Before = %v, want nil", s.Before)
	case s.Created.IsZero():
		t.Errorf("s.Created.IsZero() is true; %+v", s)
	}
	if s := set(t, "status: {state: Running}"); s.Phase != arc.Running {
		t.Errorf("0.13's word: %+v", s)
	}
	for _, text := range []string{"", "0", "-1", "x", "1e3", "99999999999999999999"} {
		if s := set(t, fmt.Sprintf("metadata: {annotations: {runner-scale-set-id: %q}}", text)); s.ID != 0 {
			t.Errorf("number %q: %d", text, s.ID)
		}
	}
}

const now = "2026-01-02T03:04:05Z"

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// parts reads the objects of one scale set, runners/nix, from a YAML stream. Pods are pods of
// listeners in the namespace arc.
func parts(t testing.TB, stream string) arc.Objects {
	t.Helper()
	var sets []arc.Set
	var listeners []arc.Listener
	var pods []arc.Pod
	var runnerSets []arc.RunnerSet
	var runners []arc.Runner
	for doc := range strings.SplitSeq(stream, "---\n") {
		if strings.TrimSpace(doc) == "" {
			continue
		}
		u := object(t, head+doc)
		switch u.GetKind() {
		case arc.SetKind:
			sets = append(sets, arc.ReadSet(u))
		case arc.ListenerKind:
			listeners = append(listeners, arc.ReadListener(u))
		case arc.RunnerSetKind:
			runnerSets = append(runnerSets, arc.ReadRunnerSet(u))
		case arc.RunnerKind:
			runners = append(runners, arc.ReadRunner(u))
		case "Pod":
			var p corev1.Pod
			b, err := json.Marshal(u.Object)
			if err == nil {
				err = json.Unmarshal(b, &p)
			}
			if err != nil {
				t.Fatal(err)
			}
			if l, ok := arc.ReadPod(&p); ok {
				pods = append(pods, l)
			}
		default:
			t.Fatalf("unknown kind %q", u.GetKind())
		}
	}
	p := arc.GroupBySet(sets, listeners, pods, runnerSets, runners)[fleet.Key{Namespace: "runners", Name: "nix"}]
	if p == nil {
		t.Fatal("it has no objects")
	}
	p.KnowsListeners, p.KnowsRunners = true, true
	return *p
}

func setYAML(limit int, more string) string {
	return fmt.Sprintf("kind: AutoscalingRunnerSet\nmetadata: {name: nix, namespace: runners, uid: s, labels: {app.kubernetes.io/version: 0.14.2}, annotations: {runner-scale-set-id: '7'}%s}\nspec: {githubConfigSecret: one, maxRunners: %d}\nstatus: {phase: Running}\n---\n", more, limit)
}

func listenerYAML(uid, more string) string {
	return fmt.Sprintf("kind: AutoscalingListener\nmetadata: {name: nix-1-listener, namespace: arc, uid: %s}\nspec: {autoscalingRunnerSetNamespace: runners, autoscalingRunnerSetName: nix, githubConfigSecret: one%s}\n---\n", uid, more)
}

func podYAML(name, listener, status string) string {
	return fmt.Sprintf("kind: Pod\nmetadata: {name: %s, namespace: arc, labels: {actions.github.com/scale-set-name: nix, actions.github.com/scale-set-namespace: runners, app.kubernetes.io/component: runner-scale-set-listener}, ownerReferences: [{apiVersion: actions.github.com/v1alpha1, kind: AutoscalingListener, name: x, uid: %q}]}\nstatus: %s\n---\n", name, listener, status)
}

func runnerYAML(name, meta, status string) string {
	return fmt.Sprintf("kind: EphemeralRunner\nmetadata: {name: %s, namespace: runners, uid: %s, creationTimestamp: %s, ownerReferences: [{apiVersion: actions.github.com/v1alpha1, kind: EphemeralRunnerSet, name: nix-1, uid: e}]%s}\nspec: {githubConfigSecret: one}\nstatus: %s\n---\n", name, name, now, meta, status)
}

const (
	runnerSetYAML = "kind: EphemeralRunnerSet\nmetadata: {name: nix-1, namespace: runners, uid: e, creationTimestamp: 2026-01-02T03:04:05Z, ownerReferences: [{apiVersion: actions.github.com/v1alpha1, kind: AutoscalingRunnerSet, name: nix, uid: s}]}\nspec: {replicas: 4, ephemeralRunnerSpec: {githubConfigSecret: one}}\n---\n"
	up            = "{phase: Running, conditions: [{type: Ready, status: 'True'}]}"
	deleted       = ", deletionTimestamp: 2026-01-02T03:05:00Z"
)

// When a set is proven to take no jobs, and when it is registered.
func TestStopped(t *testing.T) {
	for _, c := range []struct {
		why, stream         string
		stopped, registered fleet.Answer
	}{
		{"open", setYAML(3, "") + listenerYAML("l", ", maxRunners: 3") + podYAML("p", "l", up), fleet.No, fleet.Yes},
		{"paused: zeros are left out", setYAML(0, "") + listenerYAML("l", "") + podYAML("p", "l", up), fleet.Yes, fleet.Yes},
		{"stop was requested, but the old listener still runs", setYAML(0, "") + listenerYAML("l", ", maxRunners: 3") + podYAML("p", "l", up), fleet.No, fleet.Yes},
		{"the old one is being deleted", setYAML(0, "") + strings.Replace(listenerYAML("l", ", maxRunners: 3"), "uid: l", "uid: l"+deleted, 1) + podYAML("p", "l", up), fleet.No, fleet.No},
		{"its pod is left", setYAML(0, "") + listenerYAML("l2", "") + podYAML("p", "l", up), fleet.No, fleet.No},
		{"together with the new one", setYAML(0, "") + listenerYAML("l2", "") + podYAML("p", "l", up) + podYAML("p2", "l2", up), fleet.No, fleet.Yes},
		{"its pod has ended", setYAML(0, "") + listenerYAML("l2", "") + podYAML("p", "l", "{phase: Failed}") + podYAML("p2", "l2", up), fleet.Yes, fleet.Yes},
		{"a pod without an owner", setYAML(0, "") + listenerYAML("l2", "") + podYAML("p", "", up), fleet.No, fleet.No},
		{"no listener", setYAML(0, ""), fleet.Yes, fleet.No},
		{"no listener yet", setYAML(3, ""), fleet.No, fleet.No},
		{"a number that cannot be parsed", setYAML(0, "") + listenerYAML("l", ", maxRunners: none") + podYAML("p", "l", up), fleet.No, fleet.Yes},
		{"it ends", setYAML(3, deleted), fleet.Yes, fleet.No},
		{"it is deleted, but its listener is not", listenerYAML("l", ", maxRunners: 3"), fleet.No, fleet.No},
		{"its pod is not ready", setYAML(3, "") + listenerYAML("l", ", maxRunners: 3") + podYAML("p", "l", "{phase: Running}"), fleet.No, fleet.No},
		{"its pod is being deleted", setYAML(3, "") + listenerYAML("l", ", maxRunners: 3") + strings.Replace(podYAML("p", "l", up), "name: p", "name: p"+deleted, 1), fleet.No, fleet.No},
		{"pending", strings.Replace(setYAML(3, ""), "phase: Running", "phase: Pending", 1) + listenerYAML("l", ", maxRunners: 3") + podYAML("p", "l", up), fleet.No, fleet.No},
		{"0.14 without a ready state", strings.Replace(setYAML(3, ""), "phase: Running", "", 1) + listenerYAML("l", ", maxRunners: 3") + podYAML("p", "l", up), fleet.No, fleet.No},
		{"0.13 needs no ready state", strings.NewReplacer("phase: Running", "", "0.14.2", "0.13.1").Replace(setYAML(3, "")) + listenerYAML("l", ", maxRunners: 3") + podYAML("p", "l", up), fleet.No, fleet.Yes},
		{"without a number", strings.Replace(setYAML(3, ""), "'7'", "'0'", 1) + listenerYAML("l", ", maxRunners: 3") + podYAML("p", "l", up), fleet.No, fleet.No},
		{"switched off", strings.Replace(setYAML(3, ""), "phase: Running", "phase: Outdated", 1), fleet.Yes, fleet.No},
	} {
		t.Run(c.why, func(t *testing.T) {
			p := parts(t, c.stream)
			if s := p.State(); s.Stopped != c.stopped || s.Registered != c.registered {
				t.Errorf("stopped %v, registered %v", s.Stopped, s.Registered)
			}
			// A missing list never makes a set stopped or registered.
			p.KnowsListeners, p.KnowsRunners = false, false
			switch s := p.State(); {
			case s.Stopped != fleet.Unknown:
				t.Errorf("without lists: s.Stopped = %v, want %v", s.Stopped, fleet.Unknown)
			case s.Registered == fleet.Yes:
				t.Errorf("without lists: s.Registered = %v", s.Registered)
			case s.Counts != nil:
				t.Errorf("without lists: s.Counts = %v, want nil", s.Counts)
			case s.Running != nil:
				t.Errorf("without lists: s.Running = %v, want nil", s.Running)
			case s.Live != nil:
				t.Errorf("without lists: s.Live = %v, want nil", s.Live)
			case s.WaitsForJobs:
				t.Errorf("without lists: s.WaitsForJobs is true; %+v", s)
			}
		})
	}
}

// FLEET-03: running jobs and runners that may still take one are counted, also on runners that are
// being deleted: they wait for their jobs.
func TestCounts(t *testing.T) {
	job := ", jobId: j1, jobRequestId: 9, jobRepositoryName: acme/app, jobWorkflowRef: acme/app/ci.yaml@main, workflowRunId: 77, jobDisplayName: build"
	p := parts(t, setYAML(5, "")+runnerSetYAML+
		strings.NewReplacer("name: nix-1", "name: nix-0", "replicas: 4", "replicas: 9", "uid: e", "uid: e0", "03:04:05", "03:00:00", "githubConfigSecret: one", "githubConfigSecret: old").Replace(runnerSetYAML)+
		runnerYAML("busy", "", "{phase: Running, ready: true"+job+"}")+
		runnerYAML("busy-ending", deleted, "{phase: Running, ready: true"+job+"}")+
		runnerYAML("done", "", "{phase: Succeeded"+job+"}")+
		runnerYAML("idle", "", "{phase: Running, ready: true}")+
		runnerYAML("idle-ending", deleted, "{phase: Running, ready: true}")+
		runnerYAML("starts", "", "{phase: Running}")+
		runnerYAML("pending", "", "{phase: Pending}")+
		runnerYAML("new", "", "{}")+
		runnerYAML("failed", "", "{phase: Failed, reason: TooManyPodFailures, message: \"no\\n\\e[31m image\"}")+
		runnerYAML("outdated", "", "{phase: Outdated}"))
	s := p.State()
	if want := (arc.Counts{Desired: 4, Pending: 3, Busy: 1, Idle: 1, Failed: 1}); *s.Counts != want {
		t.Errorf("%+v", *s.Counts)
	}
	switch {
	case *s.Running != 2:
		t.Errorf("*s.Running = %v, want 2", *s.Running)
	case *s.Live != 7:
		t.Errorf("*s.Live = %v, want 7", *s.Live)
	case len(s.Jobs) != 2:
		t.Errorf("len(s.Jobs) = %v, want 2", len(s.Jobs))
	case s.Jobs[0].Runner.Name != "busy":
		t.Errorf("s.Jobs[0].Runner.Name = %q, want %q", s.Jobs[0].Runner.Name, "busy")
	case s.Jobs[1].Runner.Name != "busy-ending":
		t.Errorf("s.Jobs[1].Runner.Name = %q, want %q", s.Jobs[1].Runner.Name, "busy-ending")
	}
	switch j := s.Jobs[0]; {
	case j.Repository != "acme/app":
		t.Errorf("j.Repository = %q, want %q", j.Repository, "acme/app")
	case j.Run != 77:
		t.Errorf("j.Run = %v, want 77", j.Run)
	case j.Name != "build":
		t.Errorf("j.Name = %q, want %q", j.Name, "build")
	case j.Request != 9:
		t.Errorf("j.Request = %v, want 9", j.Request)
	case j.ID != "j1":
		t.Errorf("j.ID = %q, want %q", j.ID, "j1")
	case !j.Started.IsZero():
		t.Errorf("j.Started.IsZero() is false; %+v", j)
	}
	if !slices.Equal(s.Secrets, []string{"old", "one"}) {
		t.Errorf("Secrets %q", s.Secrets)
	}
	switch {
	case s.Failure.Reason != arc.ReasonCrashLoop:
		t.Errorf("s.Failure.Reason = %q, want %q", s.Failure.Reason, arc.ReasonCrashLoop)
	case strings.ContainsAny(s.Failure.Message, "\n\x1b"):
		t.Errorf(`strings.ContainsAny(s.Failure.Message, "\n\x1b") is true; %+v`, s.Failure)
	case !strings.Contains(s.Failure.Message, "TooManyPodFailures: no [31m image"):
		t.Errorf("s.Failure.Message = %q does not contain %q", s.Failure.Message, "TooManyPodFailures: no [31m image")
	}
	if !s.WaitsForJobs {
		t.Error("a set with runners and no listener does not wait for them")
	}
}

// The start of a job is the time of the listener's write to the runner's status.
func TestStarted(t *testing.T) {
	u := object(t, head+"kind: EphemeralRunner\nmetadata: {name: a, managedFields: [{manager: manager, operation: Update, time: 2026-01-02T10:00:00Z, fieldsType: FieldsV1, fieldsV1: {f:status: {f:ready: {}}}},"+
		"{manager: ghalistener, operation: Update, subresource: status, time: 2026-01-02T09:00:00Z, fieldsType: FieldsV1, fieldsV1: {f:status: {f:jobId: {}}}}]}\nstatus: {jobId: x}")
	if r := arc.ReadRunner(u); !r.Job.Started.Equal(time.Date(2026, 1, 2, 9, 0, 0, 0, time.UTC)) {
		t.Errorf("%+v", r.Job)
	}
}

func deployment(name string, change func(*appsv1.Deployment)) *appsv1.Deployment {
	selector := map[string]string{"app.kubernetes.io/instance": name}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "arc", Name: name}}
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: selector}
	d.Spec.Template.Labels = map[string]string{"app.kubernetes.io/part-of": "gha-rs-controller", "app.kubernetes.io/version": "0.14.2"}
	d.Spec.Template.Spec = corev1.PodSpec{ServiceAccountName: "sa", Containers: []corev1.Container{{Name: "manager", Image: "registry.example:5000/controller:0.14.2", Args: []string{"--update-strategy=immediate"}}}}
	if change != nil {
		change(d)
	}
	return d
}

func pod(version string, ready bool, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "arc", Labels: map[string]string{"app.kubernetes.io/instance": "a", "app.kubernetes.io/version": version}}}
	if ready {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	if change != nil {
		change(p)
	}
	return p
}

// FLEET-10: discovery of the controller, and the cases in which the fleet must not use it.
func TestFLEET10_Discover(t *testing.T) {
	image := func(image string) func(*appsv1.Deployment) {
		return func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = image }
	}
	version := func(v string) func(*appsv1.Deployment) {
		return func(d *appsv1.Deployment) {
			d.Spec.Template.Labels["app.kubernetes.io/version"] = v
			d.Spec.Template.Spec.Containers[0].Image = "controller:latest"
		}
	}
	watches := func(ns string) func(*appsv1.Deployment) {
		return func(d *appsv1.Deployment) {
			d.Labels = map[string]string{"actions.github.com/controller-watch-single-namespace": ns}
		}
	}
	for _, c := range []struct {
		why    string
		all    []*appsv1.Deployment
		pods   []*corev1.Pod
		reason string
	}{
		{"none", nil, nil, arc.ReasonMissing},
		{"something else", []*appsv1.Deployment{deployment("a", func(d *appsv1.Deployment) { d.Spec.Template.Labels["app.kubernetes.io/part-of"] = "web" })}, nil, arc.ReasonMissing},
		{"on its way", []*appsv1.Deployment{deployment("a", func(d *appsv1.Deployment) { d.DeletionTimestamp = new(metav1.Now()) })}, nil, arc.ReasonMissing},
		{"one", []*appsv1.Deployment{deployment("a", nil)}, nil, ""},
		{"its image by digest alone", []*appsv1.Deployment{deployment("a", image("registry.example:5000/controller@sha256:00"))}, nil, ""},
		{"its image by digest too", []*appsv1.Deployment{deployment("a", image("controller:0.14.2@sha256:00"))}, nil, ""},
		{"a patch of its release", []*appsv1.Deployment{deployment("a", image("controller:0.14.1"))}, nil, ""},
		{"another image version than its label", []*appsv1.Deployment{deployment("a", image("controller:v0.13.1"))}, nil, arc.ReasonVersionUnknown},
		{"no label", []*appsv1.Deployment{deployment("a", version(""))}, nil, arc.ReasonVersionUnknown},
		{"0.13.1", []*appsv1.Deployment{deployment("a", version("0.13.1"))}, nil, ""},
		{"0.13.0", []*appsv1.Deployment{deployment("a", version("0.13.0"))}, nil, arc.ReasonVersionUnsupported},
		{"0.15.0", []*appsv1.Deployment{deployment("a", version("0.15.0"))}, nil, arc.ReasonVersionUnsupported},
		{"a build of developers", []*appsv1.Deployment{deployment("a", version("canary-1"))}, nil, arc.ReasonVersionUnsupported},
		{"for this namespace", []*appsv1.Deployment{deployment("a", watches("runners"))}, nil, ""},
		{"for another one", []*appsv1.Deployment{deployment("a", watches("elsewhere"))}, nil, arc.ReasonWatchesOther},
		{"for another one, by its argument", []*appsv1.Deployment{deployment("a", func(d *appsv1.Deployment) {
			d.Spec.Template.Spec.Containers[0].Args = []string{"--watch-single-namespace=elsewhere"}
		})}, nil, arc.ReasonWatchesOther},
		{"one for each", []*appsv1.Deployment{deployment("b", watches("elsewhere")), deployment("a", watches("runners"))}, nil, ""},
		{"two", []*appsv1.Deployment{deployment("b", nil), deployment("a", watches("runners"))}, nil, arc.ReasonAmbiguous},
		{"its pod works", []*appsv1.Deployment{deployment("a", nil)}, []*corev1.Pod{pod("0.14.2", true, nil)}, ""},
		{"the pod of another version works too", []*appsv1.Deployment{deployment("a", nil)}, []*corev1.Pod{pod("0.14.2", true, nil), pod("0.13.1", false, nil)}, arc.ReasonUpgrading},
		{"that pod has ended", []*appsv1.Deployment{deployment("a", nil)}, []*corev1.Pod{pod("0.13.1", false, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })}, ""},
		{"that pod has another owner", []*appsv1.Deployment{deployment("a", nil)}, []*corev1.Pod{pod("0.13.1", true, func(p *corev1.Pod) { p.Labels["app.kubernetes.io/instance"] = "b" })}, ""},
		{"that pod is of a patch of its release", []*appsv1.Deployment{deployment("a", nil)}, []*corev1.Pod{pod("0.14.0", true, nil)}, ""},
	} {
		t.Run(c.why, func(t *testing.T) {
			found := arc.Discover(c.all, c.pods)
			got, failure := arc.Choose(found, "runners")
			if failure.Reason != c.reason || (failure.Message == "") != (c.reason == "") {
				t.Fatalf("%+v", failure)
			}
			if c.reason == "" && (got.Deployment.Name != "a" || got.ServiceAccount != "sa" || got.ARC().Namespace != "arc" || got.ARC().Version == "") {
				t.Errorf("%+v", got)
			}
			if c.reason != "" && !reflect.DeepEqual(got, arc.Controller{}) {
				t.Errorf("with trouble there is a controller: %+v", got)
			}
		})
	}
	eventual := deployment("a", func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.Containers[0].Args = []string{"--update-strategy=eventual"}
	})
	if c := arc.Discover([]*appsv1.Deployment{eventual}, []*corev1.Pod{pod("0.14.2", true, nil)}); !c[0].Eventual || !c[0].Ready {
		t.Errorf("%+v", c)
	}
}

// FLEET-13: GitHub scale sets that two objects use, by name or by ID.
func TestConflicts(t *testing.T) {
	one := func(name, url, group, scaleSet string, id int64) arc.Set {
		return arc.Set{Key: fleet.Key{Namespace: "runners", Name: name}, ConfigURL: url, RunnerGroup: group, ScaleSet: scaleSet, ID: id}
	}
	for _, c := range []struct {
		why  string
		a, b arc.Set
		is   bool
	}{
		{"other names", one("a", "https://github.com/acme", "", "a", 1), one("b", "https://github.com/acme", "", "b", 2), false},
		{"one name", one("a", "https://github.com/acme", "", "nix", 0), one("b", "https://github.com/acme", "", "nix", 0), true},
		{"in another case, one URL in another spelling", one("a", "https://github.com/acme", "", "nix", 0), one("b", "https://GitHub.com:443/ACME/", "Default", "NIX", 0), true},
		{"in another group", one("a", "https://github.com/acme", "", "nix", 1), one("b", "https://github.com/acme", "gpu", "nix", 2), false},
		{"of another organisation", one("a", "https://github.com/acme", "", "nix", 1), one("b", "https://github.com/other", "", "nix", 1), false},
		{"one number", one("a", "https://github.com/acme", "", "a", 7), one("b", "https://github.com/acme", "", "b", 7), true},
		{"no number", one("a", "https://github.com/acme", "", "a", 0), one("b", "https://github.com/acme", "", "b", 0), false},
	} {
		t.Run(c.why, func(t *testing.T) {
			for _, all := range [][]arc.Set{{c.a, c.b}, {c.b, c.a}} {
				got := arc.Conflicts(all)
				if c.is != (got[c.a.Key] == c.b.Key && got[c.b.Key] == c.a.Key) || !c.is && len(got) != 0 {
					t.Errorf("%v", got)
				}
			}
		})
	}
	if c := arc.ConflictFailure(fleet.Key{Namespace: "n", Name: "m"}); c.Reason != arc.ReasonConflict || !strings.Contains(c.Message, "n/m") {
		t.Errorf("%+v", c)
	}
}

// FLEET-10: two deletions right after the creation of a set prevent the third creation, until ARC's
// version changes or an hour has passed. A much later deletion does not count.
func TestFLEET10_Gate(t *testing.T) {
	gone := func(g arc.CreationGate, version string, created time.Time, after time.Duration) arc.CreationGate {
		return arc.ParseCreationGate(g.Created(version, created).Removed(created.Add(after)).String())
	}
	once := gone(arc.CreationGate{}, "0.13.1", noon, time.Second)
	twice := gone(once, "0.13.1", noon.Add(time.Minute), time.Second)
	for _, c := range []struct {
		why     string
		g       arc.CreationGate
		version string
		at      time.Time
		stops   bool
	}{
		{"never", arc.CreationGate{}, "0.13.1", noon, false},
		{"once", once, "0.13.1", noon, false},
		{"twice", twice, "0.13.1", noon.Add(2 * time.Minute), true},
		{"twice, and ARC is another", twice, "0.14.2", noon.Add(2 * time.Minute), false},
		{"twice, an hour ago", twice, "0.13.1", noon.Add(61 * time.Minute), false},
		{"a third time after that", gone(twice, "0.13.1", noon.Add(61*time.Minute), time.Second), "0.13.1", noon.Add(62 * time.Minute), true},
		{"then a scale set that had lived was deleted", gone(twice, "0.13.1", noon.Add(61*time.Minute), 5*time.Minute), "0.13.1", noon.Add(67 * time.Minute), false},
		{"another version was accepted once", gone(twice, "0.14.2", noon.Add(5*time.Minute), time.Second), "0.14.2", noon.Add(6 * time.Minute), false},
		{"another client wrote to it", arc.ParseCreationGate("{\"deleted\": -5}"), "0.13.1", noon, false},
		{"no JSON", arc.ParseCreationGate("x"), "0.13.1", noon, false},
	} {
		t.Run(c.why, func(t *testing.T) {
			failure, wake := c.g.Allows(c.version, c.at)
			if (failure.Reason == arc.ReasonDeletes) != c.stops || wake.After(c.at) != c.stops {
				t.Errorf("%+v: %+v, %v", c.g, failure, wake)
			}
		})
	}
	if g := (arc.CreationGate{}).Removed(noon); g != (arc.CreationGate{}) {
		t.Errorf("a scale set that was never created counts as deleted: %+v", g)
	}
}

// ARC 0.14 endlessly replaces a runner whose pod failed. The sign is runners that end without a
// job. Runners that are no longer needed, or had a job, do not count.
func TestCrashTracker(t *testing.T) {
	runner := func(n int, change func(*arc.Runner)) arc.Runner {
		r := arc.Runner{UID: types.UID(fmt.Sprint("u", n)), Phase: arc.Pending, Reason: "ImagePullBackOff"}
		if change != nil {
			change(&r)
		}
		return r
	}
	for _, c := range []struct {
		why     string
		desired int
		change  func(*arc.Runner)
		is      bool
	}{
		{"their pods fail", 1, func(r *arc.Runner) { r.Failures = 4 }, true},
		{"they disappear while they are desired", 1, nil, true},
		{"they are not desired", 0, nil, false},
		{"they were ready", 1, func(r *arc.Runner) { r.Ready = true }, false},
		{"they had a job", 1, func(r *arc.Runner) { r.Job = &arc.Job{} }, false},
		{"their job has ended", 1, func(r *arc.Runner) { r.Phase = arc.Succeeded }, false},
	} {
		t.Run(c.why, func(t *testing.T) {
			var churn arc.CrashTracker
			at := noon
			for n := range 12 {
				r := runner(n, c.change)
				churn.Observe([]arc.Runner{r}, c.desired, at)
				churn.Observe(nil, c.desired, at.Add(10*time.Second))
				at = at.Add(30 * time.Second)
			}
			failure := churn.Failure()
			if (failure.Reason == arc.ReasonCrashLoop) != c.is || c.is && !strings.Contains(failure.Message, "ImagePullBackOff") {
				t.Errorf("%+v", failure)
			}
			churn.Observe(nil, c.desired, at.Add(time.Hour))
			if failure := churn.Failure(); failure.Reason != "" {
				t.Errorf("an hour later: %+v", failure)
			}
		})
	}
}

// FLEET-16: the decisions of a hold that need no API server.
func TestFLEET16_Decisions(t *testing.T) {
	held := func(note string) string {
		return fmt.Sprintf("metadata: {name: old, namespace: n, resourceVersion: '5', uid: u, annotations: {tailplane.dev/held-values: %q}}\n", note)
	}
	const fresh = `{"max":5,"at":"2026-01-02T11:59:00Z"}`
	for _, c := range []struct {
		why, y  string
		held    bool
		apply   string // the applied spec; empty: nothing
		note    string // the stored values
		patches bool
		reason  string
	}{
		{"nothing holds it", "spec: {maxRunners: 5}", false, "", "", false, ""},
		{"held for the first time", "spec: {minRunners: 1, maxRunners: 5}", true, `{"maxRunners":0,"minRunners":0}`, `{"min":1,"max":5,"at":"2026-01-02T12:00:00Z"}`, false, ""},
		{"it had no numbers", "spec: {}", true, `{"maxRunners":0,"minRunners":0}`, `{"at":"2026-01-02T12:00:00Z"}`, false, ""},
		{"held", held(fresh) + "spec: {minRunners: 0, maxRunners: 0}", true, "", "", false, ""},
		{"undone a minute after", held(fresh) + "spec: {minRunners: 0, maxRunners: 7}", true, `{"maxRunners":0,"minRunners":0}`, `{"max":7,"at":"2026-01-02T12:00:00Z","fought":"2026-01-02T12:00:00Z"}`, false, arc.ReasonHoldOverwritten},
		{"another number an hour after", held(`{"max":5,"at":"2026-01-02T11:00:00Z"}`) + "spec: {minRunners: 0, maxRunners: 7}", true, `{"maxRunners":0,"minRunners":0}`, `{"max":7,"at":"2026-01-02T12:00:00Z"}`, false, ""},
		{"the maximum was removed", held(`{"min":1,"max":5,"at":"2026-01-02T11:00:00Z"}`) + "spec: {minRunners: 0}", true, `{"maxRunners":0,"minRunners":0}`, `{"min":1,"at":"2026-01-02T12:00:00Z"}`, false, ""},
		{"undone lately", held(`{"max":5,"at":"2026-01-02T11:30:00Z","fought":"2026-01-02T11:30:00Z"}`) + "spec: {minRunners: 0, maxRunners: 0}", true, "", "", false, arc.ReasonHoldOverwritten},
		{"lifted", held(fresh) + "spec: {minRunners: 0, maxRunners: 0}", false, `{"maxRunners":5}`, `{"max":5}`, false, ""},
		{"given back", held(fresh) + "spec: {maxRunners: 5}", false, "", "", true, ""},
		{"it had zeros", held(`{"min":0,"max":0}`) + "spec: {minRunners: 0, maxRunners: 0}", false, "", "", true, ""},
		{"another client wrote before the hold was lifted", held(fresh) + "spec: {minRunners: 2, maxRunners: 9}", false, "", "", true, ""},
		{"the saved values cannot be parsed", held("five") + "spec: {minRunners: 0, maxRunners: 0}", false, "", "", false, arc.ReasonHeldUnreadable},
		{"a saved value must not be negative", held(`{"max":-5}`) + "spec: {minRunners: 0, maxRunners: 0}", true, "", "", false, arc.ReasonHeldUnreadable},
		{"it ends", strings.Replace(held(fresh), "name: old", "name: old"+deleted, 1) + "spec: {maxRunners: 5}", true, "", "", false, ""},
		{"the fleet created it", "metadata: {labels: {app.kubernetes.io/managed-by: tailplane}}\nspec: {maxRunners: 5}", true, "", "", false, ""},
		{"it is switched off", "spec: {maxRunners: 5}\nstatus: {phase: Outdated}", true, "", "", false, arc.ReasonOutdated},
	} {
		t.Run(c.why, func(t *testing.T) {
			a := arc.NextExternalWrite(set(t, c.y), c.held, noon)
			switch {
			case a.Failure.Reason != c.reason:
				t.Fatalf("a.Failure.Reason = %q, want %q", a.Failure.Reason, c.reason)
			case (a.Patch != nil) != c.patches:
				t.Fatalf("(a.Patch != nil) != c.patches; %+v", a)
			case (a.Apply != nil) != (c.apply != ""):
				t.Fatalf(`(a.Apply != nil) != (c.apply != ""); %+v`, a)
			}
			if a.Apply == nil {
				return
			}
			spec, err := json.Marshal(a.Apply.Object["spec"])
			if err != nil || string(spec) != c.apply {
				t.Errorf("spec %s: %v", spec, err)
			}
			if note := a.Apply.GetAnnotations()[arc.HeldAnnotation]; note != c.note {
				t.Errorf("kept: %s", note)
			}
			switch {
			case len(a.Apply.GetLabels()) != 0:
				t.Errorf("a hold writes more than it must: len(a.Apply.GetLabels()) != 0; %v", a.Apply)
			case len(a.Apply.GetAnnotations()) != 1:
				t.Errorf("a hold writes more than it must: len(a.Apply.GetAnnotations()) != 1; %v", a.Apply)
			case a.Apply.GetFinalizers() != nil:
				t.Errorf("a hold writes more than it must: a.Apply.GetFinalizers() is not nil; %v", a.Apply)
			}
		})
	}
}

// Foreign objects: the package reads them whatever they contain, and derives no wrong answer from
// them.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"metadata":{"name":"a","annotations":{"runner-scale-set-id":"7","tailplane.dev/held-values":"{}"},"labels":{"x":1},"ownerReferences":[{"kind":1}],"managedFields":[{"manager":"tailplane-hold","time":5}]},"spec":{"minRunners":1,"maxRunners":"x"},"status":{"failures":{"a":1}}}`))
	f.Add([]byte(`{"metadata":{"deletionTimestamp":"never","creationTimestamp":7},"spec":[],"status":"Running"}`))
	f.Add([]byte(`{"spec":{"maxRunners":1e300,"runnerScaleSetLabels":[1]},"status":{"jobId":"1","workflowRunId":-1,"failures":[1]}}`))
	f.Add([]byte(`{"metadata":{"annotations":{"tailplane.dev/held-values":"{\"max\":5,\"at\":\"9999-12-31T23:59:59-23:59\"}"}},"spec":{"minRunners":0,"maxRunners":0}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var o map[string]any
		if json.Unmarshal(b, &o) != nil {
			t.Skip()
		}
		u := &unstructured.Unstructured{Object: o}
		s, l, e, r := arc.ReadSet(u), arc.ReadListener(u), arc.ReadRunnerSet(u), arc.ReadRunner(u)
		var p corev1.Pod
		var pods []arc.Pod
		if json.Unmarshal(b, &p) == nil {
			if l, ok := arc.ReadPod(&p); ok {
				pods = append(pods, l)
			}
		}
		for _, n := range []int{s.Min, s.Max, l.Min, l.Max, e.Desired} {
			if n < 0 || n > math.MaxInt32 {
				t.Errorf("%d runners", n)
			}
		}
		parts := arc.Objects{Set: &s, Listeners: []arc.Listener{l}, Pods: pods, RunnerSets: []arc.RunnerSet{e}, Runners: []arc.Runner{r}, KnowsListeners: true, KnowsRunners: true}
		if state := parts.State(); state.Stopped == fleet.Yes && l.Max > 0 {
			t.Error("a listener that takes jobs is stopped")
		}
		parts.KnowsListeners, parts.KnowsRunners = false, false
		switch state := parts.State(); {
		case state.Stopped != fleet.Unknown:
			t.Errorf("without lists: state.Stopped = %v, want %v", state.Stopped, fleet.Unknown)
		case state.Running != nil:
			t.Errorf("without lists: state.Running = %v, want nil", state.Running)
		case state.Registered == fleet.Yes:
			t.Errorf("without lists: state.Registered = %v", state.Registered)
		}
		for _, held := range []bool{true, false} {
			if a := arc.NextExternalWrite(s, held, noon); a.Apply != nil && a.Patch != nil || a.Patch != nil && !json.Valid(a.Patch) {
				t.Errorf("%+v", a)
			}
		}
		arc.GroupBySet([]arc.Set{s}, []arc.Listener{l}, pods, []arc.RunnerSet{e}, []arc.Runner{r})
		arc.Conflicts([]arc.Set{s, s})
	})
}

// The fleet reads a listener's metrics only from the IP address of its own pod, at the port with
// that name. It never uses an address of the node or of a cloud's metadata service.
func TestListenerMetrics(t *testing.T) {
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "arc", Name: "nix-listener", OwnerReferences: []metav1.OwnerReference{{APIVersion: "actions.github.com/v1alpha1", Kind: arc.ListenerKind, UID: "l1", Controller: new(true)}}},
			Spec:   corev1.PodSpec{Containers: []corev1.Container{{Name: "proxy", Ports: []corev1.ContainerPort{{Name: "metrics", ContainerPort: 1}}}, {Name: "listener", Ports: []corev1.ContainerPort{{Name: "metrics", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}}}}},
			Status: corev1.PodStatus{PodIP: "10.1.2.3"}}
		if change != nil {
			change(p)
		}
		return p
	}
	for _, c := range []struct {
		why, want string // empty: no address
		change    func(*corev1.Pod)
	}{
		{"as ARC makes it", "10.1.2.3:8080", nil},
		{"IPv6", "[fd00::3]:8080", func(p *corev1.Pod) { p.Status.PodIP = "fd00::3" }},
		{"no metrics", "", func(p *corev1.Pod) { p.Spec.Containers[1].Ports = nil }},
		{"another port", "", func(p *corev1.Pod) { p.Spec.Containers[1].Ports[0].Name = "debug" }},
		{"by UDP", "", func(p *corev1.Pod) { p.Spec.Containers[1].Ports[0].Protocol = corev1.ProtocolUDP }},
		{"an invalid port", "", func(p *corev1.Pod) { p.Spec.Containers[1].Ports[0].ContainerPort = 70000 }},
		{"on the node's network", "", func(p *corev1.Pod) { p.Spec.HostNetwork = true }},
		{"no address yet", "", func(p *corev1.Pod) { p.Status.PodIP = "" }},
		{"a name", "", func(p *corev1.Pod) { p.Status.PodIP = "metadata.google.internal" }},
		{"metadata", "", func(p *corev1.Pod) { p.Status.PodIP = "169.254.169.254" }},
		{"metadata, dressed up", "", func(p *corev1.Pod) { p.Status.PodIP = "::ffff:169.254.169.254" }},
		{"link-local", "", func(p *corev1.Pod) { p.Status.PodIP = "fe80::1" }},
		{"with a zone", "", func(p *corev1.Pod) { p.Status.PodIP = "fd00::1%eth0" }},
		{"everywhere", "", func(p *corev1.Pod) { p.Status.PodIP = "0.0.0.0" }},
		{"many", "", func(p *corev1.Pod) { p.Status.PodIP = "224.0.0.1" }},
		{"only labelled as one", "", func(p *corev1.Pod) {
			p.OwnerReferences, p.Labels = nil, map[string]string{"app.kubernetes.io/component": "runner-scale-set-listener"}
		}},
		{"another API group's kind with that name", "", func(p *corev1.Pod) {
			p.OwnerReferences[0].APIVersion, p.Labels = "evil.example/v1", map[string]string{"app.kubernetes.io/component": "runner-scale-set-listener"}
		}},
	} {
		got, ok := arc.ReadPod(pod(c.change))
		switch {
		case !ok:
			t.Errorf("%s: ok is false, %v, %v", c.why, got.Metrics, ok)
		case got.Metrics.IsValid() != (c.want != ""):
			t.Errorf("%s: got.Metrics.IsValid() = %v, want %v", c.why, got.Metrics.IsValid(), (c.want != ""))
		case c.want != "" && got.Metrics.String() != c.want:
			t.Errorf(`%s: c.want != "" && got.Metrics.String() != c.want, %v, %v`, c.why, got.Metrics, ok)
		}
	}
	for args, want := range map[string]string{"": "/metrics", "--listener-metrics-endpoint=": "/metrics", "--listener-metrics-endpoint=/jobs": "/jobs", "--listener-metrics-endpoint=@evil": "/metrics"} {
		d := &appsv1.Deployment{}
		d.Spec.Template.Labels = map[string]string{"app.kubernetes.io/part-of": "gha-rs-controller"}
		d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "manager", Args: []string{args}}}
		if c := arc.Discover([]*appsv1.Deployment{d}, nil); len(c) != 1 || c[0].MetricsPath != want {
			t.Errorf("%q: %+v, want %s", args, c, want)
		}
	}
}
