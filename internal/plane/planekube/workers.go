package planekube

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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet/arc"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/plane/planejobs"
)

// The sources of single runners.
const (
	workersSource = "kubernetes:ephemeralrunners"
	podsSource    = "kubernetes:runnerpods"
)

// jobPods selects the pods in which the fleet's runners run jobs. The pods of both forges have these labels.
const jobPods = v1alpha1.OrgLabel + "," + v1alpha1.PoolLabel + "," + v1alpha1.ManagedByLabel + "=" + v1alpha1.ManagedBy + ",app.kubernetes.io/component=runner"

// workers joins runners with their pods and their organisations. A runner's organisation comes only from its enrollment, through the
// workload name, and never from the runner itself. Runners of unknown workloads are hidden. Callers must hold the lock of runners for every
// change.
type workers struct {
	board *plane.Board
	now   func() time.Time

	runners map[string]arc.Runner // GitHub runners, by namespace/name
	pods    map[string]*corev1.Pod
	posts   map[string]post     // by namespace/name of a workload
	of      map[string][]string // keys of posts, by enrollment
	sources map[string]bool     // sources whose first list is complete
}

// post identifies the pool and organisation of a workload's runners.
type post struct{ id, org, configURL string }

func newWorkers(b *plane.Board, now func() time.Time) *workers {
	return &workers{board: b, now: now, runners: map[string]arc.Runner{}, pods: map[string]*corev1.Pod{}, posts: map[string]post{}, of: map[string][]string{}, sources: map[string]bool{}}
}

// enrolled updates the workloads of an enrollment. A nil e means that it was deleted.
func (w *workers) enrolled(name string, e *v1alpha1.RunnerEnrollment) {
	is := map[string]post{}
	if e != nil {
		for _, s := range e.Status.Pools {
			if s.Namespace != "" && s.Workload != "" {
				is[s.Namespace+"/"+s.Workload] = post{e.Spec.Forge + "/" + e.Name + "/" + s.Name, e.Name, e.Spec.ConfigURL}
			}
		}
	}
	same := len(is) == len(w.of[name])
	for at, p := range is {
		same = same && w.posts[at] == p
	}
	if same {
		return
	}
	for _, at := range w.of[name] {
		if w.posts[at].org == name {
			delete(w.posts, at)
		}
	}
	maps.Copy(w.posts, is)
	w.of[name] = slices.Sorted(maps.Keys(is))
	w.all()
}

// all updates every runner in the plane's store. Unchanged runners cause no event.
func (w *workers) all() {
	for _, source := range []string{workersSource, podsSource} {
		if !w.sources[source] {
			continue
		}
		var all []plane.Object
		for _, o := range w.rows(source) {
			all = append(all, o)
		}
		w.board.Replace(plane.KindRunner, source, all)
	}
}

// rows returns the runners of a source.
func (w *workers) rows(source string) (all []planejobs.Runner) {
	now := w.now().UTC()
	if source == workersSource {
		for _, key := range slices.Sorted(maps.Keys(w.runners)) {
			if o, ours := w.runner(w.runners[key], now); ours {
				all = append(all, o)
			}
		}
		return all
	}
	for _, key := range slices.Sorted(maps.Keys(w.pods)) {
		if o, ours := w.job(w.pods[key], now); ours {
			all = append(all, o)
		}
	}
	return all
}

// again updates the runner with the key, from the source that has it now.
func (w *workers) again(key string) {
	now := w.now().UTC()
	if r, there := w.runners[key]; there && w.sources[workersSource] {
		if o, ours := w.runner(r, now); ours {
			w.board.Put(plane.KindRunner, workersSource, o)
			return
		}
	}
	if p, there := w.pods[key]; there && w.sources[podsSource] {
		if o, ours := w.job(p, now); ours {
			w.board.Put(plane.KindRunner, podsSource, o)
			return
		}
	}
	w.board.Remove(plane.KindRunner, key)
}

// runnersKind returns the companion of the feed of GitHub runners.
func (w *workers) runnersKind() companion { return workersOf{w, workersSource} }

// podsKind returns the companion of the feed of pods.
func (w *workers) podsKind() companion { return workersOf{w, podsSource} }

// workersOf is the companion of one feed.
type workersOf struct {
	*workers
	source string
}

// put, remove and replace implement [companion].
func (w workersOf) put(o client.Object) {
	w.keep(o)
	w.again(id(o))
}

func (w workersOf) keep(o client.Object) {
	switch o := o.(type) {
	case *unstructured.Unstructured:
		w.runners[id(o)] = arc.ReadRunner(o)
	case *corev1.Pod:
		w.pods[id(o)] = o
	}
}

func (w workersOf) remove(o client.Object) {
	if w.source == workersSource {
		delete(w.runners, id(o))
	} else {
		delete(w.pods, id(o))
	}
	w.again(id(o))
}

func (w workersOf) replace(all []client.Object) {
	if w.source == workersSource {
		clear(w.runners)
	} else {
		clear(w.pods)
	}
	for _, o := range all {
		w.keep(o)
	}
	w.sources[w.source] = true
	w.all()
}

// runner converts a GitHub runner. It returns false if its workload belongs to no enrollment.
func (w *workers) runner(r arc.Runner, now time.Time) (planejobs.Runner, bool) {
	at, ours := w.posts[r.Set.Namespace+"/"+r.Set.Name]
	if !ours || r.Set.Namespace != r.Namespace {
		return planejobs.Runner{}, false
	}
	o := planejobs.Runner{ID: r.Namespace + "/" + r.Name, Namespace: r.Namespace, Name: r.Name, Kind: arc.RunnerKind, Pool: at.id, OrgName: at.org, State: stateOfRunner(r), Reason: short(r.Reason), Message: short(r.Message),
		Failures: new(r.Failures), LastFailure: orNil(r.LastFailure.UTC()), ForgeID: orNil(r.ID), ForgeName: short(r.Registered), Created: r.Created.UTC(), ObservedAt: now}
	if j := r.Job; j != nil {
		o.Job = &planejobs.Job{ID: short(j.ID), Name: short(j.Name), Repository: short(j.Repository), Workflow: short(j.Workflow), Run: orNil(j.Run), URL: at.run(j.Repository, j.Run)}
		if !j.Started.IsZero() {
			o.Job.Started = new(j.Started.UTC())
		}
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
		return planejobs.Failed
	case r.Phase == arc.Outdated:
		return planejobs.Outdated
	case r.Phase == arc.Succeeded:
		return planejobs.Finished
	case r.Busy():
		return planejobs.Busy
	case r.Ending:
		return planejobs.Ending
	case r.Phase != arc.Running:
		return planejobs.Pending
	case !r.Ready:
		return planejobs.Starting
	}
	return planejobs.Idle
}

// The annotations that GitLab's runner sets on the pod of a job.
const (
	gitlabJob  = "job.runner.gitlab.com/id"
	gitlabName = "job.runner.gitlab.com/name"
	gitlabURL  = "job.runner.gitlab.com/url"
)

// job converts the pod of a GitLab job. It returns false for other pods and for unknown workloads. Any account that can create pods can set
// these labels, so a pod counts only for an organisation with a workload of that pool in the pod's namespace.
func (w *workers) job(p *corev1.Pod, now time.Time) (planejobs.Runner, bool) {
	if slices.ContainsFunc(p.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Kind == arc.RunnerKind }) {
		return planejobs.Runner{}, false
	}
	org := p.Labels[v1alpha1.OrgLabel]
	for _, key := range w.of[org] {
		at := w.posts[key]
		if namespace, _, _ := strings.Cut(key, "/"); namespace != p.Namespace || at.org != org || !strings.HasSuffix(at.id, "/"+p.Labels[v1alpha1.PoolLabel]) {
			continue
		}
		o := planejobs.Runner{ID: id(p), Namespace: p.Namespace, Name: p.Name, Kind: "Pod", Pool: at.id, OrgName: org, State: stateOfPod(p), Reason: short(p.Status.Reason), Message: short(p.Status.Message),
			Pod: podOf(p), Created: p.CreationTimestamp.UTC(), ObservedAt: now}
		if job := p.Annotations[gitlabJob]; job != "" {
			o.Job = &planejobs.Job{ID: short(job), Name: short(p.Annotations[gitlabName]), URL: at.own(p.Annotations[gitlabURL]), Started: moment(p.Status.StartTime)}
		}
		return o, true
	}
	return planejobs.Runner{}, false
}

func stateOfPod(p *corev1.Pod) string {
	switch {
	case p.Status.Phase == corev1.PodFailed:
		return planejobs.Failed
	case p.Status.Phase == corev1.PodSucceeded:
		return planejobs.Finished
	case p.DeletionTimestamp != nil:
		return planejobs.Ending
	case p.Status.Phase == corev1.PodRunning:
		return planejobs.Busy
	}
	return planejobs.Pending
}

var repository = regexp.MustCompile(`^[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+$`)

// run returns the URL of a workflow run at the organisation's forge, or "" if it is not known.
func (p post) run(of string, number int64) string {
	u, err := url.Parse(p.configURL)
	if err != nil || u.Scheme != "https" || number <= 0 || !repository.MatchString(of) || strings.Contains(of, "..") {
		return ""
	}
	return fmt.Sprintf("https://%s/%s/actions/runs/%d", u.Host, of, number)
}

// own returns an untrusted URL if it is at the organisation's forge, and "" otherwise.
func (p post) own(address string) string {
	ours, err := url.Parse(p.configURL)
	theirs, wrong := url.Parse(address)
	if err != nil || wrong != nil || ours.Scheme != "https" || theirs.Scheme != "https" || theirs.Host != ours.Host || theirs.User != nil || len(address) > maxShort {
		return ""
	}
	return theirs.String()
}

// maxShort is the maximum length of untrusted text about a runner, in bytes.
const maxShort = 1000

// short limits the length of untrusted text.
func short(s string) string {
	if len(s) > maxShort {
		s = s[:maxShort]
	}
	return strings.ToValidUTF8(s, "")
}

func podOf(p *corev1.Pod) *planejobs.Pod {
	o := &planejobs.Pod{Phase: string(p.Status.Phase), Node: p.Spec.NodeName, Reason: short(p.Status.Reason), Message: short(p.Status.Message), Started: moment(p.Status.StartTime), Containers: []planejobs.Container{}}
	if o.Reason == "" { // a pod that cannot be scheduled says so in a condition
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
				o.Reason, o.Message = short(c.Reason), short(c.Message)
			}
		}
	}
	for _, group := range []struct {
		containers []corev1.Container
		statuses   []corev1.ContainerStatus
		init       bool
	}{{p.Spec.InitContainers, p.Status.InitContainerStatuses, true}, {p.Spec.Containers, p.Status.ContainerStatuses, false}} {
		for _, c := range group.containers {
			is := planejobs.Container{Name: c.Name, Image: c.Image, Init: group.init, State: "Unknown"}
			for _, s := range group.statuses {
				if s.Name == c.Name {
					stands(&is, s)
				}
			}
			o.Containers = append(o.Containers, is)
		}
	}
	return o
}

func stands(c *planejobs.Container, s corev1.ContainerStatus) {
	c.Ready, c.Restarts = s.Ready, int(s.RestartCount)
	switch is := s.State; {
	case is.Waiting != nil:
		c.State, c.Reason, c.Message = "Waiting", short(is.Waiting.Reason), short(is.Waiting.Message)
	case is.Running != nil:
		c.State, c.Started = "Running", moment(&is.Running.StartedAt)
	case is.Terminated != nil:
		c.State, c.Reason, c.Message = "Terminated", short(is.Terminated.Reason), short(is.Terminated.Message)
		c.ExitCode, c.Started = new(int(is.Terminated.ExitCode)), moment(&is.Terminated.StartedAt)
	}
}
