package kube

import (
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet/arc"
	"github.com/tailplane/tailplane/internal/plane"
)

// The sources of single runners.
const (
	runnersSource = "kubernetes:ephemeralrunners"
	podsSource    = "kubernetes:runnerpods"
)

// jobPodSelector selects the pods in which the fleet's runners run jobs. The pods of both forges have these labels.
const jobPodSelector = v1alpha1.OrgLabel + "," + v1alpha1.PoolLabel + "," + v1alpha1.ManagedByLabel + "=" + v1alpha1.ManagedBy + ",app.kubernetes.io/component=runner"

// runnerJoin joins runners with their pods and their organisations. A runner's organisation comes only from its enrollment, through the
// workload name, and never from the runner itself. Runners of unknown workloads are hidden. Callers must hold the lock of runners for every
// change.
type runnerJoin struct {
	store *plane.Store
	now   func() time.Time

	runners     map[string]arc.Runner // GitHub runners, by namespace/name
	pods        map[string]*corev1.Pod
	workloads   map[string]workload // by namespace/name of a workload
	workloadsOf map[string][]string // keys of posts, by enrollment
	sources     map[string]bool     // sources whose first list is complete
}

// workload identifies the pool and organisation of a workload's runners.
type workload struct{ id, org, configURL string }

func newRunnerJoin(b *plane.Store, now func() time.Time) *runnerJoin {
	return &runnerJoin{store: b, now: now, runners: map[string]arc.Runner{}, pods: map[string]*corev1.Pod{}, workloads: map[string]workload{}, workloadsOf: map[string][]string{}, sources: map[string]bool{}}
}

// setWorkloads updates the workloads of an enrollment. A nil e means that it was deleted.
func (w *runnerJoin) setWorkloads(name string, e *v1alpha1.RunnerEnrollment) {
	is := map[string]workload{}
	if e != nil {
		for _, s := range e.Status.Pools {
			if s.Namespace != "" && s.Workload != "" {
				is[s.Namespace+"/"+s.Workload] = workload{e.Spec.Forge + "/" + e.Name + "/" + s.Name, e.Name, e.Spec.ConfigURL}
			}
		}
	}
	same := len(is) == len(w.workloadsOf[name])
	for at, p := range is {
		same = same && w.workloads[at] == p
	}
	if same {
		return
	}
	for _, at := range w.workloadsOf[name] {
		if w.workloads[at].org == name {
			delete(w.workloads, at)
		}
	}
	maps.Copy(w.workloads, is)
	w.workloadsOf[name] = slices.Sorted(maps.Keys(is))
	w.updateAll()
}

// updateAll updates every runner in the plane's store. Unchanged runners cause no event.
func (w *runnerJoin) updateAll() {
	for _, source := range []string{runnersSource, podsSource} {
		if !w.sources[source] {
			continue
		}
		var all []plane.Object
		for _, o := range w.runnersFrom(source) {
			all = append(all, o)
		}
		w.store.Replace(plane.KindRunner, source, all)
	}
}

// runnersFrom returns the runners of a source.
func (w *runnerJoin) runnersFrom(source string) (all []plane.Runner) {
	now := w.now().UTC()
	if source == runnersSource {
		for _, key := range slices.Sorted(maps.Keys(w.runners)) {
			if o, own := w.convertRunner(w.runners[key], now); own {
				all = append(all, o)
			}
		}
		return all
	}
	for _, key := range slices.Sorted(maps.Keys(w.pods)) {
		if o, own := w.convertJobPod(w.pods[key], now); own {
			all = append(all, o)
		}
	}
	return all
}

// update updates the runner with the key, from the source that has it now.
func (w *runnerJoin) update(key string) {
	now := w.now().UTC()
	if r, found := w.runners[key]; found && w.sources[runnersSource] {
		if o, own := w.convertRunner(r, now); own {
			w.store.Set(plane.KindRunner, runnersSource, o)
			return
		}
	}
	if p, found := w.pods[key]; found && w.sources[podsSource] {
		if o, own := w.convertJobPod(p, now); own {
			w.store.Set(plane.KindRunner, podsSource, o)
			return
		}
	}
	w.store.Delete(plane.KindRunner, key)
}

// runnerSink returns the sink of the feed of GitHub runners.
func (w *runnerJoin) runnerSink() objectSink {
	return kindSink[unstructured.Unstructured, arc.Runner]{w.runners, arc.ReadRunner, w.update, func() { w.complete(runnersSource) }}
}

// podSink returns the sink of the feed of pods.
func (w *runnerJoin) podSink() objectSink {
	return kindSink[corev1.Pod, *corev1.Pod]{w.pods, whole, w.update, func() { w.complete(podsSource) }}
}

// complete records that the full list of a source has been read.
func (w *runnerJoin) complete(source string) {
	w.sources[source] = true
	w.updateAll()
}

// convertRunner converts a GitHub runner. It returns false if its workload belongs to no enrollment.
func (w *runnerJoin) convertRunner(r arc.Runner, now time.Time) (plane.Runner, bool) {
	at, own := w.workloads[r.Set.Namespace+"/"+r.Set.Name]
	if !own || r.Set.Namespace != r.Namespace {
		return plane.Runner{}, false
	}
	o := plane.Runner{ID: r.Namespace + "/" + r.Name, Namespace: r.Namespace, Name: r.Name, Kind: arc.RunnerKind, Pool: at.id, OrgName: at.org, State: stateOfRunner(r), Reason: clip(r.Reason), Message: clip(r.Message),
		Failures: new(r.Failures), LastFailure: orNil(r.LastFailure.UTC()), ForgeID: orNil(r.ID), ForgeName: clip(r.Registered), Created: r.Created.UTC(), ObservedAt: now}
	if j := r.Job; j != nil {
		o.Job = &plane.Job{ID: clip(j.ID), Name: clip(j.Name), Repository: clip(j.Repository), Workflow: clip(j.Workflow), Run: orNil(j.Run), URL: at.runURL(j.Repository, j.Run), Started: orNil(j.Started.UTC())}
	}
	if p := w.pods[o.ID]; p != nil && slices.ContainsFunc(p.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == r.UID }) {
		o.Pod = podOf(p)
	}
	return o, true
}

// stateOfRunner returns the state of a GitHub runner.
func stateOfRunner(r arc.Runner) string {
	switch {
	case r.Phase == arc.Failed:
		return plane.RunnerFailed
	case r.Phase == arc.Outdated:
		return plane.RunnerOutdated
	case r.Phase == arc.Succeeded:
		return plane.RunnerFinished
	case r.Busy():
		return plane.RunnerBusy
	case r.Ending:
		return plane.RunnerEnding
	case r.Phase != arc.Running:
		return plane.RunnerPending
	case !r.Ready:
		return plane.RunnerStarting
	}
	return plane.RunnerIdle
}

// The annotations that GitLab's runner sets on the pod of a job.
const (
	gitlabJob  = "job.runner.gitlab.com/id"
	gitlabName = "job.runner.gitlab.com/name"
	gitlabURL  = "job.runner.gitlab.com/url"
)

// convertJobPod converts the pod of a GitLab job. It returns false for other pods and for unknown workloads. Any account that can create pods can set
// these labels, so a pod counts only for an organisation with a workload of that pool in the pod's namespace.
func (w *runnerJoin) convertJobPod(p *corev1.Pod, now time.Time) (plane.Runner, bool) {
	if slices.ContainsFunc(p.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Kind == arc.RunnerKind }) {
		return plane.Runner{}, false
	}
	org := p.Labels[v1alpha1.OrgLabel]
	for _, key := range w.workloadsOf[org] {
		at := w.workloads[key]
		if namespace, _, _ := strings.Cut(key, "/"); namespace != p.Namespace || at.org != org || !strings.HasSuffix(at.id, "/"+p.Labels[v1alpha1.PoolLabel]) {
			continue
		}
		o := plane.Runner{ID: objectKey(p), Namespace: p.Namespace, Name: p.Name, Kind: "Pod", Pool: at.id, OrgName: org, State: stateOfPod(p), Reason: clip(p.Status.Reason), Message: clip(p.Status.Message),
			Pod: podOf(p), Created: p.CreationTimestamp.UTC(), ObservedAt: now}
		if job := p.Annotations[gitlabJob]; job != "" {
			o.Job = &plane.Job{ID: clip(job), Name: clip(p.Annotations[gitlabName]), URL: at.trustedURL(p.Annotations[gitlabURL]), Started: timeOrNil(p.Status.StartTime)}
		}
		return o, true
	}
	return plane.Runner{}, false
}

func stateOfPod(p *corev1.Pod) string {
	switch {
	case p.Status.Phase == corev1.PodFailed:
		return plane.RunnerFailed
	case p.Status.Phase == corev1.PodSucceeded:
		return plane.RunnerFinished
	case p.DeletionTimestamp != nil:
		return plane.RunnerEnding
	case p.Status.Phase == corev1.PodRunning:
		return plane.RunnerBusy
	}
	return plane.RunnerPending
}

var repositoryPattern = regexp.MustCompile(`^[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+$`)

// runURL returns the URL of a workflow run at the organisation's forge, or "" if it is not known.
func (p workload) runURL(of string, number int64) string {
	u, err := url.Parse(p.configURL)
	if err != nil || u.Scheme != "https" || number <= 0 || !repositoryPattern.MatchString(of) || strings.Contains(of, "..") {
		return ""
	}
	return fmt.Sprintf("https://%s/%s/actions/runs/%d", u.Host, of, number)
}

// trustedURL returns an untrusted URL if it is at the organisation's forge, and "" otherwise.
func (p workload) trustedURL(address string) string {
	ours, err := url.Parse(p.configURL)
	given, wrong := url.Parse(address)
	if err != nil || wrong != nil || ours.Scheme != "https" || given.Scheme != "https" || given.Host != ours.Host || given.User != nil || len(address) > maxText {
		return ""
	}
	return given.String()
}

// maxText is the maximum length of untrusted text about a runner, in bytes.
const maxText = 1000

// clip limits the length of untrusted text.
func clip(s string) string {
	if len(s) > maxText {
		s = s[:maxText]
	}
	return strings.ToValidUTF8(s, "")
}

func podOf(p *corev1.Pod) *plane.Pod {
	o := &plane.Pod{Phase: string(p.Status.Phase), Node: p.Spec.NodeName, Reason: clip(p.Status.Reason), Message: clip(p.Status.Message), Started: timeOrNil(p.Status.StartTime), Containers: []plane.Container{}}
	if o.Reason == "" { // a pod that cannot be scheduled says so in a condition
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
				o.Reason, o.Message = clip(c.Reason), clip(c.Message)
			}
		}
	}
	statuses := slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) // names are unique in a pod
	for i, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		is := plane.Container{Name: c.Name, Image: c.Image, Init: i < len(p.Spec.InitContainers), State: "Unknown"}
		for _, s := range statuses {
			if s.Name == c.Name {
				setContainerState(&is, s)
			}
		}
		o.Containers = append(o.Containers, is)
	}
	return o
}

func setContainerState(c *plane.Container, s corev1.ContainerStatus) {
	c.Ready, c.Restarts = s.Ready, int(s.RestartCount)
	switch is := s.State; {
	case is.Waiting != nil:
		c.State, c.Reason, c.Message = "Waiting", clip(is.Waiting.Reason), clip(is.Waiting.Message)
	case is.Running != nil:
		c.State, c.Started = "Running", timeOrNil(&is.Running.StartedAt)
	case is.Terminated != nil:
		c.State, c.Reason, c.Message = "Terminated", clip(is.Terminated.Reason), clip(is.Terminated.Message)
		c.ExitCode, c.Started = new(int(is.Terminated.ExitCode)), timeOrNil(&is.Terminated.StartedAt)
	}
}
