package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/forge"
	"github.com/tailplane/tailplane/internal/fleet/isolation"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// These constants describe the Secret with a runner's token. The Secret represents the workload at
// GitLab: the controller creates it right after the runner, and deletes it after everything else.
const (
	tokenKey          = "token"
	runnerAnnotation  = "tailplane.dev/runner-id"
	createdAnnotation = "tailplane.dev/made" // creation time of the token
	// capacityAnnotation holds the number of jobs that the managers may run. previousCapacityAnnotation holds
	// the earlier number, and the time until which a manager may still use it: a manager reads its
	// configuration some time after a change.
	capacityAnnotation         = "tailplane.dev/given"
	previousCapacityAnnotation = "tailplane.dev/given-before"

	configReloadTime = 3 * time.Minute // within this time a manager has read its configuration
)

// A gitlabRunner is the state of one GitLab runner.
type gitlabRunner struct {
	token      *corev1.Secret // nil: the token is lost
	deployment *appsv1.Deployment
	budget     *unstructured.Unstructured // its PodDisruptionBudget; nil: there is none
	runner     runnerResult               // zero: it was not queried
	jobPods    int
	concurrent int
}

// readManagers collects the workloads at GitLab.
func readManagers(ctx context.Context, d deps, o *observed) error {
	of := map[string]*workload{}
	for i := range o.secrets {
		s := &o.secrets[i]
		name, isToken := isolation.WorkloadOfToken(s.Name)
		if !isToken || s.Labels[v1alpha1.PoolLabel] == "" || !isManagedFor(s, o.e.Name) {
			continue
		}
		id, _ := strconv.ParseInt(s.Annotations[runnerAnnotation], 10, 64)
		revision, _ := strconv.Atoi(s.Annotations[revisionAnnotation])
		created, _ := time.Parse(time.RFC3339, s.Annotations[createdAnnotation])
		if s.Annotations[shapeAnnotation] == shapeManual {
			created = time.Time{} // only a person can create a replacement
		}
		given, _ := strconv.Atoi(s.Annotations[capacityAnnotation])
		w := &workload{gitlab: &gitlabRunner{token: s, concurrent: given},
			Workload: fleet.Workload{Key: fleet.Key{Namespace: s.Namespace, Name: name}, Pool: s.Labels[v1alpha1.PoolLabel],
				Revision: max(
					revision,
					1,
				),
				Shape: s.Annotations[shapeAnnotation], Since: created, RemoteID: id, Denied: o.denialCount(name)}}
		of[s.Namespace+"/"+name] = w
		o.workloads = append(o.workloads, w)
	}
	pods, jobs, err := readManagerObjects(ctx, d, o, of)
	if err != nil {
		return err
	}
	if err := findLostRunners(ctx, o); err != nil {
		o.facts.Listed, o.unscanned = false, true
		o.failures = append(o.failures, fleet.Failure{Reason: reasonUnreachable, Message: err.Error()})
	}
	o.sortWorkloads()
	alone := map[string]int{} // workloads by pool
	for _, w := range o.workloads {
		alone[w.Namespace+"/"+w.Pool]++
	}
	for _, w := range o.workloads {
		o.resolvePool(w)
	}
	for _, w := range o.workloads {
		at := w.Namespace + "/" + w.Pool
		w.managers, w.gitlab.jobPods = pods[w.Namespace+"/"+w.Name], jobs[at]
		readRunner(ctx, d, o, w)
		if alone[at] == 1 {
			w.busy = new(jobs[at])
			w.demand = w.busy
			if w.gitlab.deployment != nil {
				w.idle = new(max(w.gitlab.concurrent-jobs[at], 0))
			}
		} else if w.Jobs != nil {
			w.busy, w.demand = w.Jobs, w.Jobs
		}
		var until time.Time
		w.inForce, until = o.capacityInForce(w)
		o.wake = retry.Earliest(o.wake, until)
	}
	return nil
}

// readManagerObjects adds the existing objects of managers to the workloads, which are by namespace and name. It
// counts the running manager pods, by namespace and instance, and the running job pods, by namespace and pool.
func readManagerObjects(ctx context.Context, d deps, o *observed, of map[string]*workload) (pods, jobs map[string]int, err error) {
	pods, jobs = map[string]int{}, map[string]int{}
	for _, ns := range o.namespaces {
		where := []client.ListOption{client.InNamespace(ns), client.MatchingLabels{v1alpha1.OrgLabel: o.e.Name}}
		var deployments appsv1.DeploymentList
		var list corev1.PodList
		if err := errors.Join(d.direct.List(ctx, &deployments, where...), d.direct.List(ctx, &list, where...)); err != nil {
			return nil, nil, fmt.Errorf("list managers in %s: %w", ns, err)
		}
		for i := range deployments.Items {
			if w := of[ns+"/"+deployments.Items[i].Name]; w != nil {
				w.gitlab.deployment = &deployments.Items[i]
			}
		}
		for _, p := range list.Items {
			if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
				continue
			}
			if instance := p.Labels["app.kubernetes.io/instance"]; instance != "" {
				pods[ns+"/"+instance]++
			} else {
				jobs[ns+"/"+p.Labels[v1alpha1.PoolLabel]]++
			}
		}
		budgets := policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudget")
		present, err := listManaged(ctx, d.direct, budgets, ns, client.MatchingLabels{v1alpha1.OrgLabel: o.e.Name})
		if err != nil {
			return nil, nil, err
		}
		for name, u := range present {
			if w := of[ns+"/"+name]; w != nil {
				w.gitlab.budget = u
			}
		}
	}
	return pods, jobs, nil
}

// findLostRunners finds runners with our mark whose token is lost. The response to their creation did not
// arrive, or the token was not stored.
func findLostRunners(ctx context.Context, o *observed) error {
	a := o.session
	ends := !o.e.DeletionTimestamp.IsZero()
	if a == nil || a.GitLab == nil || !hasFinalizer(o.e) || a.Identity.Kind == "" || len(a.Identity.Missing) > 0 {
		return nil
	}
	if a.Group == 0 {
		if a.Group = o.e.Spec.GroupID; a.Group == 0 {
			scope, _ := fleet.ParseConfigURL(o.e.Spec.ConfigURL)
			at, _ := fleet.ParseConfigURL(o.forge.Spec.URL)
			parts, ok := scope.Within(at)
			if !ok {
				return nil // a violation reports that
			}
			group, err := a.GitLab.Group(ctx, strings.Join(parts, "/"))
			if err != nil {
				return err
			}
			a.Group = group
		}
	}
	if o.e.Spec.GroupID == 0 {
		o.groupID = a.Group
	}
	scan := a.ScannedAt.IsZero() || ends && !a.ScannedAt.After(o.e.DeletionTimestamp.Time) || o.live
	var ids []int64
	for id, read := range a.Runners { // between two scans, read only the known lost runners again
		if forge.ClassOf(read.Err) != forge.NotFound {
			ids = append(ids, id)
		}
	}
	if scan {
		var err error
		if ids, err = a.GitLab.GroupRunners(ctx, a.Group); err != nil {
			return err
		}
	}
	for _, id := range ids {
		known := slices.ContainsFunc(o.workloads, func(w *workload) bool { return w.RemoteID == id })
		if known || scan && a.Unmarked[id] {
			continue
		}
		if err := readLostRunner(ctx, o, id); err != nil {
			return err
		}
	}
	if scan {
		a.ScannedAt = o.now
	}
	return nil
}

func readLostRunner(ctx context.Context, o *observed, id int64) error {
	r, err := o.session.GitLab.Runner(ctx, id)
	if forge.ClassOf(err) == forge.NotFound {
		delete(o.session.Runners, id)
		return nil
	}
	if err != nil {
		return err
	}
	pool, name, revision, ok := parseRunnerMarker(o.e, r.Note)
	if !ok {
		o.session.Unmarked[id] = true
		return nil
	}
	o.session.Runners[id] = runnerResult{GitLabRunner: r, At: o.now}
	key := fleet.Key{Namespace: fleet.NamespaceOf(o.e, o.settings.Shared), Name: name}
	o.workloads = append(o.workloads, &workload{gitlab: &gitlabRunner{},
		Workload: fleet.Workload{Key: key, Pool: pool, Revision: revision, Shape: "gitlab", RemoteID: id, Lost: true,
			Object: fleet.No, Denied: o.denialCount(name)}})
	return nil
}

// hasFinalizer reports whether the finalizer is set. Before that, nothing was created.
func hasFinalizer(e *v1alpha1.RunnerEnrollment) bool {
	return slices.Contains(e.Finalizers, v1alpha1.FleetFinalizer)
}

// readRunner reads the state of a runner from GitLab: rarely while the runner takes jobs, and often
// while a change is expected.
func readRunner(ctx context.Context, d deps, o *observed, w *workload) {
	m, a := w.gitlab, o.session
	left := m.token != nil || m.deployment != nil
	if w.isManual() {
		o.readManualRunner(w)
		return
	}
	if w.RemoteID == 0 || a == nil || a.GitLab == nil {
		w.Remote, w.reason = fleet.Unknown, reasonUnreachable
		w.Object = fleet.AnswerOf(m.deployment != nil)
		if o.hasNoManagers(w) {
			w.Stopped, w.Jobs = fleet.Yes, new(0)
		}
		return
	}
	// For a runner that may be ending, query GitLab for its running jobs. Pods do not show to which
	// of two runners of a pool they belong.
	expected := o.live || w.capacity.Mode != "" || !o.isDesired(w) || w.capacity.Max == 0 ||
		slices.ContainsFunc(o.workloads, func(x *workload) bool { return x != w && x.Pool == w.Pool })
	age := time.Duration(max(len(o.workloads), 1)) * 90 * time.Second // in addition, the group's runners are listed from time to time
	read, requested := a.Runners[w.RemoteID]
	unsettled := read.Err != nil || read.Status != "online" || read.Paused != (w.capacity.Max == 0) || m.deployment == nil
	if expected || unsettled {
		age = d.settings.pollInterval
		if read.Err != nil {
			age = max(age, noAnswerRetry)
			if e, ok := errors.AsType[*forge.Error](read.Err); ok {
				age = max(age, e.RetryAfter)
			}
		} else if !unsettled && read.Paused {
			age = 30 * time.Second // it is in the desired state
		}
	}
	if !requested || o.live || o.now.Sub(read.At) >= age {
		r, err := a.GitLab.Runner(ctx, w.RemoteID)
		read = runnerResult{GitLabRunner: r, At: o.now, Err: err}
		a.Runners[w.RemoteID] = read
	}
	m.runner = read
	switch class := forge.ClassOf(read.Err); {
	case read.Err == nil:
		w.Remote, w.Stopped = fleet.Yes, fleet.AnswerOf(read.Paused)
		w.Contacted = fleet.AnswerOf(!read.ContactedAt.IsZero())
		ready := m.deployment != nil && (m.deployment.Status.ReadyReplicas > 0 || o.isIdleWithoutManagers(w))
		w.Ready = fleet.AnswerOf(read.Status == "online" && ready)
	case class == forge.NotFound:
		w.Remote, w.Stopped, w.Ending = fleet.No, fleet.Yes, true // the runner is gone, so its objects can be deleted
		w.Object = fleet.AnswerOf(left)
	default:
		w.reason = reasonUnreachable
	}
	if w.Remote != fleet.No {
		w.Object = fleet.AnswerOf(m.deployment != nil)
	}
	if o.hasNoManagers(w) {
		w.Jobs = new(0)
		if w.Stopped == fleet.Unknown {
			w.Stopped = fleet.Yes
		}
		return
	}
	switch {
	case w.Remote == fleet.No:
		w.Jobs = new(m.jobPods)
	case expected || w.Stopped != fleet.No:
		w.Jobs = readJobs(ctx, d, o, w)
	default:
		w.Jobs = new(m.jobPods)
	}
}

// isIdleWithoutManagers reports whether a hold has ended the managers.
func (o *observed) isIdleWithoutManagers(w *workload) bool {
	return (w.capacity.Mode == v1alpha1.HoldDrain || w.capacity.Mode == v1alpha1.HoldStop) && scaledToZero(w.gitlab.deployment)
}

// scaledToZero reports whether a Deployment requests no managers and has none.
func scaledToZero(d *appsv1.Deployment) bool {
	return d == nil || d.Spec.Replicas != nil && *d.Spec.Replicas == 0 && d.Status.Replicas == 0 &&
		d.Status.ObservedGeneration == d.Generation
}

// hasNoManagers reports whether the cluster has neither a manager nor a job of the workload.
func (o *observed) hasNoManagers(w *workload) bool {
	return scaledToZero(w.gitlab.deployment) && w.managers == 0 && w.gitlab.jobPods == 0
}

// readJobs returns the number of jobs that a runner runs; nil if it is not known.
func readJobs(ctx context.Context, d deps, o *observed, w *workload) *int {
	read, requested := o.session.Jobs[w.RemoteID]
	age := d.settings.pollInterval
	if read.Err != nil {
		age = max(age, noAnswerRetry)
	} else if len(read.Jobs) == 0 && w.Stopped == fleet.Yes {
		age = time.Minute
	}
	// A number from before the pause may be lower than the current one.
	if !requested || o.live || o.now.Sub(read.At) >= age || w.Stopped != fleet.Yes {
		jobs, err := o.session.GitLab.RunningJobs(ctx, w.RemoteID)
		read = jobsResult{Jobs: jobs, At: o.now, Err: err}
		if w.Stopped != fleet.Yes {
			read.At = time.Time{}
		}
		o.session.Jobs[w.RemoteID] = read
	}
	if read.Err != nil {
		w.reason = cmp.Or(w.reason, reasonUnreachable)
		return nil
	}
	return new(len(read.Jobs))
}

// capacityInForce returns the largest number of jobs that the managers may still run, and when a larger earlier number
// expires; zero if there is none.
func (o *observed) capacityInForce(w *workload) (n int, until time.Time) {
	if w.Stopped == fleet.Yes || w.gitlab.deployment == nil {
		return 0, until
	}
	n = w.gitlab.concurrent
	if w.gitlab.token != nil {
		before, expires, _ := strings.Cut(w.gitlab.token.Annotations[previousCapacityAnnotation], " ")
		at, err := time.Parse(time.RFC3339, expires)
		if had, err2 := strconv.Atoi(before); err == nil && err2 == nil && o.now.Before(at) {
			return max(n, had), at
		}
	}
	return n, until
}

func (o *observed) secret(namespace, name string) *corev1.Secret {
	for i := range o.secrets {
		if o.secrets[i].Namespace == namespace && o.secrets[i].Name == name {
			return &o.secrets[i]
		}
	}
	return nil
}

// pausedNote is the line after the marker while the fleet pauses a runner.
const pausedNote = "paused by tailplane"

// runnerMarker returns the marker of a runner. The enrollment's UID distinguishes runners of different
// clusters.
func runnerMarker(e *v1alpha1.RunnerEnrollment, pool, name string, revision int) string {
	return fmt.Sprintf("tailplane %s %s %s %d", e.UID, pool, name, revision)
}

// parseRunnerMarker parses the marker of an enrollment from a note.
func parseRunnerMarker(e *v1alpha1.RunnerEnrollment, note string) (pool, name string, revision int, ok bool) {
	line, _, _ := strings.Cut(note, "\n")
	f := strings.Fields(line)
	if len(f) != 5 || f[0] != "tailplane" || f[1] != string(e.UID) {
		return "", "", 0, false
	}
	revision, err := strconv.Atoi(f[4])
	return f[2], f[3], revision, err == nil
}
