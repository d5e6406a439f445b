package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/forge"
	"github.com/tailplane/tailplane/internal/fleet/isolation"
	"github.com/tailplane/tailplane/internal/kube"
)

// stopManagers stops the managers of a runner that the fleet cannot pause at GitLab. The managers finish
// their jobs first.
func (l *enrollmentState) stopManagers(ctx context.Context, w *workload) error {
	d := w.gitlab.deployment
	if d == nil || d.Spec.Replicas != nil && *d.Spec.Replicas == 0 {
		return nil
	}
	return l.deps.direct.Patch(ctx, d, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"replicas":0}}`)))
}

// compareManager compares a workload with its desired state.
func (l *enrollmentState) compareManager(w *workload) {
	m := w.gitlab
	if w.use == nil || m.token == nil || w.Lost {
		return
	}
	unit := l.o.managerSpec(w)
	objects, err := isolation.Objects(l.o.settings, unit)
	if err != nil {
		w.Failure = fleet.Failure{Reason: reasonUnrendered, Message: err.Error()}
		return
	}
	managers, concurrent := isolation.ManagerCount(unit)
	// Settings that GitLab did not report stay unchanged.
	w.Current, m.rendered = w.Remote != fleet.Yes || w.isManual() || l.o.runnerMatches(w), true
	for _, o := range objects {
		u, err := prepareApply(o)
		if err != nil {
			w.Failure = fleet.Failure{Reason: reasonUnrendered, Message: err.Error()}
			return
		}
		var is *unstructured.Unstructured
		switch o := o.(type) {
		case *corev1.Secret:
			is = toUnstructured(l.o.secret(w.Namespace, o.Name))
		case *appsv1.Deployment:
			is = toUnstructured(m.deployment)
		default:
			is, m.needsBudget = m.present[u.GetKind()], true
		}
		if !upToDate(u, is) {
			m.outdated = append(m.outdated, u)
		}
	}
	w.Current = w.Current && len(m.outdated) == 0 && (m.needsBudget || m.present["PodDisruptionBudget"] == nil) && m.concurrent == managers*concurrent && string(unit.Token) == string(m.token.Data[tokenKey])
}

// runnerMatches reports whether the runner at GitLab has the desired settings.
func (o *observed) runnerMatches(w *workload) bool {
	want, is := o.runnerSpec(w.pool), w.gitlab.runner
	return slices.Equal(slices.Sorted(slices.Values(want.Tags)), slices.Sorted(slices.Values(is.Tags))) && want.RunUntagged == is.RunUntagged && want.Locked == is.Locked &&
		want.Protected == is.Protected && want.MaximumTimeout == is.MaximumTimeout
}

// createRunner creates a runner, paused and with our mark, and stores its token and its ID in the
// Secret. If the controller fails between the two, it finds the runner by the mark.
func (l *enrollmentState) createRunner(ctx context.Context, to fleet.DesiredWorkload) error {
	pool := l.o.pools[to.Pool]
	if pool == nil || l.o.session == nil || l.o.session.GitLab == nil || l.o.session.Group == 0 && !l.o.hasManualRunner() {
		return nil
	}
	var taken []string
	last := 0
	for _, w := range l.o.workloads {
		taken = append(taken, w.Name)
		if w.Pool == to.Pool {
			last = max(last, w.Revision)
		}
	}
	name, revision := fleet.NextWorkloadName(l.o.e.Name, to.Pool, last, taken)
	if l.o.hasManualRunner() {
		return l.storeToken(ctx, fleet.Key{Namespace: to.Namespace, Name: name}, to.Pool, to.Shape, revision, 0, l.o.session.GitLab.RunnerToken())
	}
	s := l.o.runnerSpec(pool)
	s.Paused, s.Description, s.Note = true, name, runnerMarker(l.o.e, to.Pool, name, revision)+"\n"+pausedNote+" until its manager is there"
	id, token, err := l.o.session.GitLab.CreateRunner(ctx, s)
	if err != nil {
		l.o.session.ScannedAt = time.Time{} // the runner may have been created in spite of the error
		return err
	}
	l.o.session.Runners[id] = runnerResult{}
	return l.storeToken(ctx, fleet.Key{Namespace: to.Namespace, Name: name}, to.Pool, to.Shape, revision, id, token)
}

// resetToken gives a runner a new token, because the old one is lost.
func (l *enrollmentState) resetToken(ctx context.Context, w *workload) error {
	token, err := l.o.session.GitLab.ResetToken(ctx, w.RemoteID)
	if err != nil {
		return err
	}
	return l.storeToken(ctx, w.Key, w.Pool, w.Shape, w.Revision, w.RemoteID, token)
}

func (l *enrollmentState) storeToken(ctx context.Context, k fleet.Key, pool, shape string, revision int, id int64, token forge.Secret) error {
	s := &corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: isolation.TokenName(k.Name),
		Labels: map[string]string{v1alpha1.ManagedByLabel: v1alpha1.ManagedBy, v1alpha1.OrgLabel: l.o.e.Name, v1alpha1.PoolLabel: pool},
		Annotations: map[string]string{runnerAnnotation: strconv.FormatInt(id, 10), shapeAnnotation: shape, revisionAnnotation: strconv.Itoa(revision),
			createdAnnotation: l.o.now.UTC().Format(time.RFC3339)}},
		Type: corev1.SecretTypeOpaque, Data: map[string][]byte{tokenKey: []byte(token.Reveal())}}
	if err := l.deps.direct.Create(ctx, s); err != nil {
		l.o.session.ScannedAt = time.Time{} // so that the runner is found by its mark
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
	if w.Remote == fleet.Yes && !w.isManual() && !l.o.runnerMatches(w) {
		s := l.o.runnerSpec(w.pool)
		s.Description, s.Note, s.Paused = m.runner.Description, m.runner.Note, m.runner.Paused
		if err := l.o.session.GitLab.UpdateRunner(ctx, w.RemoteID, s); err != nil {
			return err
		}
		delete(l.o.session.Runners, w.RemoteID)
	}
	unit := l.o.managerSpec(w)
	if err := l.storeManualToken(ctx, w, unit.Token); err != nil {
		return err
	}
	managers, concurrent := isolation.ManagerCount(unit)
	if given := managers * concurrent; given != m.concurrent {
		notes := map[string]any{capacityAnnotation: strconv.Itoa(given)}
		if before, _ := l.o.capacityInForce(w); before > given {
			notes[previousCapacityAnnotation] = fmt.Sprintf("%d %s", before, l.o.now.Add(configReloadTime).UTC().Format(time.RFC3339))
		}
		if err := l.patchAnnotations(ctx, m.token, notes); err != nil {
			return err
		}
	}
	for _, u := range m.outdated {
		if err := applyObject(ctx, l.deps.direct, u); err != nil {
			return err
		}
	}
	if old := m.present["PodDisruptionBudget"]; old != nil && !m.needsBudget {
		return kube.Delete(ctx, l.deps.direct, old)
	}
	return nil
}

// applyPause writes whether a runner takes jobs. It does not resume a runner that a person paused.
func (l *enrollmentState) applyPause(ctx context.Context, w *workload) error {
	m := w.gitlab
	pause := w.target.Max == 0
	if pause && (w.isManual() || w.Stopped != fleet.Yes && (l.o.session == nil || isDenied(m.runner.Err))) {
		return l.stopManagers(ctx, w)
	}
	if w.Remote != fleet.Yes || w.isManual() || m.runner.Err != nil || m.runner.Paused == pause {
		return nil
	}
	line, _, _ := strings.Cut(m.runner.Note, "\n")
	if _, _, _, managed := parseRunnerMarker(l.o.e, m.runner.Note); !managed {
		line = runnerMarker(l.o.e, w.Pool, w.Name, w.Revision)
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
	r, err := l.o.session.GitLab.SetPaused(ctx, w.RemoteID, pause, note)
	if err != nil {
		delete(l.o.session.Runners, w.RemoteID)
		w.reason, w.Stopped = reasonUnreachable, fleet.Unknown
		if pause && isDenied(err) {
			return l.stopManagers(ctx, w)
		}
		return err
	}
	m.runner = runnerResult{GitLabRunner: r, At: l.o.now}
	l.o.session.Runners[w.RemoteID] = m.runner
	w.Stopped = fleet.AnswerOf(r.Paused)
	if pause {
		delete(l.o.session.Jobs, w.RemoteID)
		w.Jobs = nil // the next reconcile queries the running jobs
	}
	return nil
}

// cancelJobs requests the end of all jobs that still run.
func (l *enrollmentState) cancelJobs(ctx context.Context, w *workload) error {
	var errs []error
	for _, job := range l.o.session.Jobs[w.RemoteID].Jobs {
		errs = append(errs, l.requestEnd(w, job.ID, "A GitLab token needs the scope api to end them, and a role that may cancel jobs in their projects.", func() error {
			return l.o.session.GitLab.CancelJob(ctx, job.Project, job.ID)
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
	if s := l.o.secret(w.Namespace, isolation.ConfigName(w.Name)); s != nil {
		all = append(all, s)
	}
	if w.gitlab.token != nil && w.Remote == fleet.No {
		all = append(all, w.gitlab.token)
	}
	for _, o := range all {
		if err := kube.Delete(ctx, l.deps.direct, o); err != nil {
			return err
		}
	}
	return nil
}
