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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/forge"
	"github.com/tailplane/tailplane/internal/fleet/isolation"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/util/secret"
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
	token       *corev1.Secret // nil: the token is lost
	deployment  *appsv1.Deployment
	present     map[string]*unstructured.Unstructured // its objects, by kind
	runner      runnerResult                          // zero: it was not queried
	jobPods     int
	rendered    bool
	outdated    []*unstructured.Unstructured // its objects that differ from the desired state
	needsBudget bool                         // it must have a PodDisruptionBudget
	concurrent  int
}

// managers collects the workloads at GitLab.
func (l *enrollmentState) managers(ctx context.Context) error {
	of := map[string]*workload{}
	for i := range l.secrets {
		s := &l.secrets[i]
		name, isToken := isolation.WorkloadOfToken(s.Name)
		if !isToken || s.Labels[v1alpha1.PoolLabel] == "" || !isManagedFor(s, l.e.Name) {
			continue
		}
		id, _ := strconv.ParseInt(s.Annotations[runnerAnnotation], 10, 64)
		revision, _ := strconv.Atoi(s.Annotations[revisionAnnotation])
		created, _ := time.Parse(time.RFC3339, s.Annotations[createdAnnotation])
		if s.Annotations[shapeAnnotation] == shapeManual {
			created = time.Time{} // only a person can create a replacement
		}
		given, _ := strconv.Atoi(s.Annotations[capacityAnnotation])
		w := &workload{gitlab: &gitlabRunner{token: s, present: map[string]*unstructured.Unstructured{}, concurrent: given}, Workload: fleet.Workload{Key: fleet.Key{Namespace: s.Namespace, Name: name},
			Pool: s.Labels[v1alpha1.PoolLabel], Revision: max(revision, 1), Shape: s.Annotations[shapeAnnotation], Since: created, RemoteID: id, Denied: l.denialCount(name)}}
		of[s.Namespace+"/"+name] = w
		l.workloads = append(l.workloads, w)
	}
	pods := map[string]int{} // manager pods, by instance
	jobs := map[string]int{} // job pods, by pool
	for _, ns := range l.namespaces {
		where := []client.ListOption{client.InNamespace(ns), client.MatchingLabels{v1alpha1.OrgLabel: l.e.Name}}
		var deployments appsv1.DeploymentList
		var list corev1.PodList
		if err := errors.Join(l.direct.List(ctx, &deployments, where...), l.direct.List(ctx, &list, where...)); err != nil {
			return fmt.Errorf("list managers in %s: %w", ns, err)
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
		present, err := listManaged(ctx, l.direct, policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudget"), ns, client.MatchingLabels{v1alpha1.OrgLabel: l.e.Name})
		if err != nil {
			return err
		}
		for name, u := range present {
			if w := of[ns+"/"+name]; w != nil {
				w.gitlab.present["PodDisruptionBudget"] = u
			}
		}
	}
	if err := l.findLostRunners(ctx); err != nil {
		l.facts.Listed, l.unscanned = false, true
		l.failures = append(l.failures, fleet.Failure{Reason: reasonUnreachable, Message: err.Error()})
	}
	l.sortWorkloads()
	alone := map[string]int{} // workloads by pool
	for _, w := range l.workloads {
		alone[w.Namespace+"/"+w.Pool]++
	}
	for _, w := range l.workloads {
		l.resolvePool(w)
	}
	for _, w := range l.workloads {
		at := w.Namespace + "/" + w.Pool
		w.managers, w.gitlab.jobPods = pods[w.Namespace+"/"+w.Name], jobs[at]
		l.readRunner(ctx, w)
		if alone[at] == 1 {
			w.busy = new(jobs[at])
			w.demand = w.busy
			if w.gitlab.deployment != nil {
				w.idle = new(max(w.gitlab.concurrent-jobs[at], 0))
			}
		} else if w.Jobs != nil {
			w.busy, w.demand = w.Jobs, w.Jobs
		}
		w.inForce = l.capacityInForce(w)
	}
	return nil
}

// findLostRunners finds runners with our mark whose token is lost. The response to their creation did not
// arrive, or the token was not stored.
func (l *enrollmentState) findLostRunners(ctx context.Context) error {
	a := l.session
	ends := !l.e.DeletionTimestamp.IsZero()
	if a == nil || a.GitLab == nil || !hasFinalizer(l.e) || a.Identity.Kind == "" || len(a.Identity.Missing) > 0 {
		return nil
	}
	if a.Group == 0 {
		if a.Group = l.e.Spec.GroupID; a.Group == 0 {
			scope, _ := fleet.ParseConfigURL(l.e.Spec.ConfigURL)
			at, _ := fleet.ParseConfigURL(l.forge.Spec.URL)
			parts, ok := scope.Within(at)
			if !ok {
				return nil // a violation reports that
			}
			group, err := a.GitLab.Group(ctx, strings.Join(parts, "/"))
			if err != nil {
				return err
			}
			a.Group = group
			l.state.setGroupID(l.e.Name, group)
			l.allocationTrigger.enqueue("all")
		}
	}
	if !a.ScannedAt.IsZero() && (!ends || a.ScannedAt.After(l.e.DeletionTimestamp.Time)) && !l.live {
		return l.rereadLostRunners(ctx)
	}
	ids, err := a.GitLab.GroupRunners(ctx, a.Group)
	if err != nil {
		return err
	}
	for _, id := range ids {
		known := slices.ContainsFunc(l.workloads, func(w *workload) bool { return w.RemoteID == id })
		if known || a.Unmarked[id] {
			continue
		}
		if err := l.readLostRunner(ctx, id); err != nil {
			return err
		}
	}
	a.ScannedAt = l.now
	return nil
}

// rereadLostRunners reads the lost runners again.
func (l *enrollmentState) rereadLostRunners(ctx context.Context) error {
	for id, read := range l.session.Runners {
		known := slices.ContainsFunc(l.workloads, func(w *workload) bool { return w.RemoteID == id })
		if known || forge.ClassOf(read.Err) == forge.NotFound {
			continue
		}
		if err := l.readLostRunner(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

func (l *enrollmentState) readLostRunner(ctx context.Context, id int64) error {
	r, err := l.session.GitLab.Runner(ctx, id)
	if forge.ClassOf(err) == forge.NotFound {
		delete(l.session.Runners, id)
		return nil
	}
	if err != nil {
		return err
	}
	pool, name, revision, ok := parseRunnerMarker(l.e, r.Note)
	if !ok {
		l.session.Unmarked[id] = true
		return nil
	}
	l.session.Runners[id] = runnerResult{GitLabRunner: r, At: l.now}
	l.workloads = append(l.workloads, &workload{gitlab: &gitlabRunner{present: map[string]*unstructured.Unstructured{}}, Workload: fleet.Workload{Key: fleet.Key{Namespace: fleet.NamespaceOf(l.e, l.Isolation.Shared), Name: name},
		Pool: pool, Revision: revision, Shape: "gitlab", RemoteID: id, Lost: true, Object: fleet.No, Denied: l.denialCount(name)}})
	return nil
}

// hasFinalizer reports whether the finalizer is set. Before that, nothing was created.
func hasFinalizer(e *v1alpha1.RunnerEnrollment) bool {
	return slices.Contains(e.Finalizers, v1alpha1.FleetFinalizer)
}

// readRunner reads the state of a runner from GitLab: rarely while the runner takes jobs, and often
// while a change is expected.
func (l *enrollmentState) readRunner(ctx context.Context, w *workload) {
	m, a := w.gitlab, l.session
	left := m.token != nil || m.deployment != nil
	if w.isManual() {
		l.readManualRunner(w)
		return
	}
	if w.RemoteID == 0 || a == nil || a.GitLab == nil {
		w.Remote, w.reason = fleet.Unknown, reasonUnreachable
		w.Object = fleet.AnswerOf(m.deployment != nil)
		if l.hasNoManagers(w) {
			w.Stopped, w.Jobs = fleet.Yes, new(0)
		}
		return
	}
	// For a runner that may be ending, query GitLab for its running jobs. Pods do not show to which
	// of two runners of a pool they belong.
	expected := l.live || w.capacity.Mode != "" || !l.isDesired(w) || w.capacity.Max == 0 ||
		slices.ContainsFunc(l.workloads, func(x *workload) bool { return x != w && x.Pool == w.Pool })
	age := time.Duration(max(len(l.workloads), 1)) * 90 * time.Second // in addition, the group's runners are listed from time to time
	read, requested := a.Runners[w.RemoteID]
	unsettled := read.Err != nil || read.Status != "online" || read.Paused != (w.capacity.Max == 0) || m.deployment == nil
	if expected || unsettled {
		age = l.pollInterval
		if read.Err != nil {
			age = max(age, noAnswerRetry)
			if e, ok := errors.AsType[*forge.Error](read.Err); ok {
				age = max(age, e.RetryAfter)
			}
		} else if !unsettled && read.Paused {
			age = 30 * time.Second // it is in the desired state
		}
	}
	if !requested || l.live || l.now.Sub(read.At) >= age {
		r, err := a.GitLab.Runner(ctx, w.RemoteID)
		read = runnerResult{GitLabRunner: r, At: l.now, Err: err}
		a.Runners[w.RemoteID] = read
	}
	m.runner = read
	switch class := forge.ClassOf(read.Err); {
	case read.Err == nil:
		w.Remote, w.Stopped = fleet.Yes, fleet.AnswerOf(read.Paused)
		w.Contacted = fleet.AnswerOf(!read.ContactedAt.IsZero())
		ready := m.deployment != nil && (m.deployment.Status.ReadyReplicas > 0 || l.isIdleWithoutManagers(w))
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
	if l.hasNoManagers(w) {
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
		w.Jobs = l.readJobs(ctx, w)
	default:
		w.Jobs = new(m.jobPods)
	}
}

// isIdleWithoutManagers reports whether a hold has ended the managers.
func (l *enrollmentState) isIdleWithoutManagers(w *workload) bool {
	return (w.capacity.Mode == v1alpha1.HoldDrain || w.capacity.Mode == v1alpha1.HoldStop) && scaledToZero(w.gitlab.deployment)
}

// scaledToZero reports whether a Deployment requests no managers and has none.
func scaledToZero(d *appsv1.Deployment) bool {
	return d == nil || d.Spec.Replicas != nil && *d.Spec.Replicas == 0 && d.Status.Replicas == 0 && d.Status.ObservedGeneration == d.Generation
}

// hasNoManagers reports whether the cluster has neither a manager nor a job of the workload.
func (l *enrollmentState) hasNoManagers(w *workload) bool {
	return scaledToZero(w.gitlab.deployment) && w.managers == 0 && w.gitlab.jobPods == 0
}

// stopManagers stops the managers of a runner that the fleet cannot pause at GitLab. The managers finish
// their jobs first.
func (l *enrollmentState) stopManagers(ctx context.Context, w *workload) error {
	d := w.gitlab.deployment
	if d == nil || d.Spec.Replicas != nil && *d.Spec.Replicas == 0 {
		return nil
	}
	return l.direct.Patch(ctx, d, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"replicas":0}}`)))
}

// readJobs returns the number of jobs that a runner runs; nil if it is not known.
func (l *enrollmentState) readJobs(ctx context.Context, w *workload) *int {
	read, requested := l.session.Jobs[w.RemoteID]
	age := l.pollInterval
	if read.Err != nil {
		age = max(age, noAnswerRetry)
	} else if len(read.Jobs) == 0 && w.Stopped == fleet.Yes {
		age = time.Minute
	}
	// A number from before the pause may be lower than the current one.
	if !requested || l.live || l.now.Sub(read.At) >= age || w.Stopped != fleet.Yes {
		jobs, err := l.session.GitLab.RunningJobs(ctx, w.RemoteID)
		read = jobsResult{Jobs: jobs, At: l.now, Err: err}
		if w.Stopped != fleet.Yes {
			read.At = time.Time{}
		}
		l.session.Jobs[w.RemoteID] = read
	}
	if read.Err != nil {
		w.reason = cmp.Or(w.reason, reasonUnreachable)
		return nil
	}
	return new(len(read.Jobs))
}

// capacityInForce returns the largest number of jobs that the managers may still run.
func (l *enrollmentState) capacityInForce(w *workload) int {
	if w.Stopped == fleet.Yes || w.gitlab.deployment == nil {
		return 0
	}
	n := w.gitlab.concurrent
	if w.gitlab.token != nil {
		before, until, _ := strings.Cut(w.gitlab.token.Annotations[previousCapacityAnnotation], " ")
		at, err := time.Parse(time.RFC3339, until)
		if had, err2 := strconv.Atoi(before); err == nil && err2 == nil && l.now.Before(at) {
			n = max(n, had)
			l.wake = earliest(l.wake, at)
		}
	}
	return n
}

// compareManager compares a workload with its desired state.
func (l *enrollmentState) compareManager(_ context.Context, w *workload) {
	m := w.gitlab
	if w.use == nil || m.token == nil || w.Lost {
		return
	}
	unit := l.managerSpec(w)
	objects, err := isolation.Objects(l.settings, unit)
	if err != nil {
		w.Failure = fleet.Failure{Reason: reasonUnrendered, Message: err.Error()}
		return
	}
	managers, concurrent := isolation.ManagerCount(unit)
	// Settings that GitLab did not report stay unchanged.
	w.Current, m.rendered = w.Remote != fleet.Yes || w.isManual() || l.runnerMatches(w), true
	for _, o := range objects {
		u, err := prepareApply(o)
		if err != nil {
			w.Failure = fleet.Failure{Reason: reasonUnrendered, Message: err.Error()}
			return
		}
		var is *unstructured.Unstructured
		switch o := o.(type) {
		case *corev1.Secret:
			is = toUnstructured(l.secret(w.Namespace, o.Name))
		case *appsv1.Deployment:
			is = toUnstructured(m.deployment)
		default:
			is, m.needsBudget = m.present[u.GetKind()], true
		}
		if !upToDate(u, is) {
			m.outdated = append(m.outdated, u)
		}
	}
	w.Current = w.Current && len(m.outdated) == 0 && (m.needsBudget || m.present["PodDisruptionBudget"] == nil) && m.concurrent == managers*concurrent && unit.Token.Reveal() == string(m.token.Data[tokenKey])
}

func (l *enrollmentState) secret(namespace, name string) *corev1.Secret {
	for i := range l.secrets {
		if l.secrets[i].Namespace == namespace && l.secrets[i].Name == name {
			return &l.secrets[i]
		}
	}
	return nil
}

// runnerSpec returns the desired settings of a runner at GitLab.
func (l *enrollmentState) runnerSpec(pool *v1alpha1.RunnerPool) forge.RunnerSpec {
	s := forge.RunnerSpec{GroupID: l.session.Group, Tags: fleet.RunsOn(pool, l.e.Name), Locked: true, MaximumTimeout: time.Hour}
	if g := pool.Spec.GitLab; g != nil {
		s.RunUntagged, s.Locked, s.Protected, s.MaximumTimeout = g.RunUntagged, g.Locked, g.Protected, cmp.Or(g.MaximumTimeout.Duration, time.Hour)
	}
	return s
}

// runnerMatches reports whether the runner at GitLab has the desired settings.
func (l *enrollmentState) runnerMatches(w *workload) bool {
	want, is := l.runnerSpec(w.pool), w.gitlab.runner
	return slices.Equal(slices.Sorted(slices.Values(want.Tags)), slices.Sorted(slices.Values(is.Tags))) && want.RunUntagged == is.RunUntagged && want.Locked == is.Locked &&
		want.Protected == is.Protected && want.MaximumTimeout == is.MaximumTimeout
}

// createRunner creates a runner, paused and with our mark, and stores its token and its ID in the
// Secret. If the controller fails between the two, it finds the runner by the mark.
func (l *enrollmentState) createRunner(ctx context.Context, to fleet.DesiredWorkload) error {
	pool := l.pools[to.Pool]
	if pool == nil || l.session == nil || l.session.GitLab == nil || l.session.Group == 0 && !l.hasManualRunner() {
		return nil
	}
	var taken []string
	last := 0
	for _, w := range l.workloads {
		taken = append(taken, w.Name)
		if w.Pool == to.Pool {
			last = max(last, w.Revision)
		}
	}
	name, revision := fleet.NextWorkloadName(l.e.Name, to.Pool, last, taken)
	if l.hasManualRunner() {
		return l.storeToken(ctx, fleet.Key{Namespace: to.Namespace, Name: name}, to.Pool, to.Shape, revision, 0, l.session.GitLab.RunnerToken())
	}
	s := l.runnerSpec(pool)
	s.Paused, s.Description, s.Note = true, name, runnerMarker(l.e, to.Pool, name, revision)+"\n"+pausedNote+" until its manager is there"
	id, token, err := l.session.GitLab.CreateRunner(ctx, s)
	if err != nil {
		l.session.ScannedAt = time.Time{} // the runner may have been created in spite of the error
		return err
	}
	l.session.Runners[id] = runnerResult{}
	return l.storeToken(ctx, fleet.Key{Namespace: to.Namespace, Name: name}, to.Pool, to.Shape, revision, id, token)
}

// resetToken gives a runner a new token, because the old one is lost.
func (l *enrollmentState) resetToken(ctx context.Context, w *workload) error {
	token, err := l.session.GitLab.ResetToken(ctx, w.RemoteID)
	if err != nil {
		return err
	}
	return l.storeToken(ctx, w.Key, w.Pool, w.Shape, w.Revision, w.RemoteID, token)
}

func (l *enrollmentState) storeToken(ctx context.Context, k fleet.Key, pool, shape string, revision int, id int64, token secret.Text) error {
	s := &corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: isolation.TokenName(k.Name),
		Labels: map[string]string{v1alpha1.ManagedByLabel: v1alpha1.ManagedBy, v1alpha1.OrgLabel: l.e.Name, v1alpha1.PoolLabel: pool},
		Annotations: map[string]string{runnerAnnotation: strconv.FormatInt(id, 10), shapeAnnotation: shape, revisionAnnotation: strconv.Itoa(revision),
			createdAnnotation: l.now.UTC().Format(time.RFC3339)}},
		Type: corev1.SecretTypeOpaque, Data: map[string][]byte{tokenKey: []byte(token.Reveal())}}
	if err := l.direct.Create(ctx, s); err != nil {
		l.session.ScannedAt = time.Time{} // so that the runner is found by its mark
		return fmt.Errorf("store the token of runner %d: %w", id, err)
	}
	return nil
}

// applyManager brings the objects of a workload to the desired state.
func (l *enrollmentState) applyManager(ctx context.Context, w *workload) error {
	m := w.gitlab
	if m.token == nil || !m.rendered {
		return nil
	}
	if w.Remote == fleet.Yes && !w.isManual() && !l.runnerMatches(w) {
		s := l.runnerSpec(w.pool)
		s.Description, s.Note, s.Paused = m.runner.Description, m.runner.Note, m.runner.Paused
		if err := l.session.GitLab.UpdateRunner(ctx, w.RemoteID, s); err != nil {
			return err
		}
		delete(l.session.Runners, w.RemoteID)
	}
	unit := l.managerSpec(w)
	if err := l.storeManualToken(ctx, w, unit.Token); err != nil {
		return err
	}
	managers, concurrent := isolation.ManagerCount(unit)
	if given := managers * concurrent; given != m.concurrent {
		notes := map[string]any{capacityAnnotation: strconv.Itoa(given)}
		if before := l.capacityInForce(w); before > given {
			notes[previousCapacityAnnotation] = fmt.Sprintf("%d %s", before, l.now.Add(configReloadTime).UTC().Format(time.RFC3339))
		}
		if err := l.patchAnnotations(ctx, m.token, notes); err != nil {
			return err
		}
	}
	for _, u := range m.outdated {
		if err := applyObject(ctx, l.direct, u); err != nil {
			return err
		}
	}
	if old := m.present["PodDisruptionBudget"]; old != nil && !m.needsBudget {
		return kube.Delete(ctx, l.direct, old)
	}
	return nil
}

// applyPause writes whether a runner takes jobs. It does not resume a runner that a person paused.
func (l *enrollmentState) applyPause(ctx context.Context, w *workload) error {
	m := w.gitlab
	pause := w.target.Max == 0
	if pause && (w.isManual() || w.Stopped != fleet.Yes && (l.session == nil || isDenied(m.runner.Err))) {
		return l.stopManagers(ctx, w)
	}
	if w.Remote != fleet.Yes || w.isManual() || m.runner.Err != nil || m.runner.Paused == pause {
		return nil
	}
	line, _, _ := strings.Cut(m.runner.Note, "\n")
	if _, _, _, managed := parseRunnerMarker(l.e, m.runner.Note); !managed {
		line = runnerMarker(l.e, w.Pool, w.Name, w.Revision)
	}
	if !pause && !strings.Contains(m.runner.Note, pausedNote) {
		w.drift = append(w.drift, reasonPausedByHand)
		return nil
	}
	note := line
	if pause {
		note += "\n" + pausedNote
		if w.target.Hold != "" {
			note += ": hold " + w.target.Hold
		}
	}
	r, err := l.session.GitLab.SetPaused(ctx, w.RemoteID, pause, note)
	if err != nil {
		delete(l.session.Runners, w.RemoteID)
		w.reason, w.Stopped = reasonUnreachable, fleet.Unknown
		if pause && isDenied(err) {
			return l.stopManagers(ctx, w)
		}
		return err
	}
	m.runner = runnerResult{GitLabRunner: r, At: l.now}
	l.session.Runners[w.RemoteID] = m.runner
	w.Stopped = fleet.AnswerOf(r.Paused)
	if pause {
		delete(l.session.Jobs, w.RemoteID)
		w.Jobs = nil // the next reconcile queries the running jobs
	}
	return nil
}

// cancelJobs requests the end of all jobs that still run.
func (l *enrollmentState) cancelJobs(ctx context.Context, w *workload) error {
	var errs []error
	for _, job := range l.session.Jobs[w.RemoteID].Jobs {
		errs = append(errs, l.requestEnd(w, job.ID, "A GitLab token needs the scope api to end them, and a role that may cancel jobs in their projects.", func() error {
			return l.session.GitLab.CancelJob(ctx, job.Project, job.ID)
		}))
	}
	return errors.Join(errs...)
}

// deleteManager deletes all objects of a workload, its token last.
func (l *enrollmentState) deleteManager(ctx context.Context, w *workload) error {
	var all []client.Object
	if d := w.gitlab.deployment; d != nil {
		all = append(all, d)
	}
	for _, u := range w.gitlab.present {
		all = append(all, u)
	}
	if s := l.secret(w.Namespace, isolation.ConfigName(w.Name)); s != nil {
		all = append(all, s)
	}
	if w.gitlab.token != nil && w.Remote == fleet.No {
		all = append(all, w.gitlab.token)
	}
	for _, o := range all {
		if err := kube.Delete(ctx, l.direct, o); err != nil {
			return err
		}
	}
	return nil
}
