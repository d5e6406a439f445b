package controller

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/isolation"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/util/secret"
)

// stopManagers stops the managers of a runner that the fleet cannot pause at GitLab. The managers finish
// their jobs first.
func (a *actor) stopManagers(ctx context.Context, t task) error {
	d := t.gitlab.deployment
	if d == nil || d.Spec.Replicas != nil && *d.Spec.Replicas == 0 {
		return nil
	}
	return a.deps.direct.Patch(ctx, d.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"replicas":0}}`)))
}

// createRunner creates a runner, paused and with our mark, and stores its token and its ID in the
// Secret. If the controller fails between the two, it finds the runner by the mark.
func (a *actor) createRunner(ctx context.Context, to fleet.DesiredWorkload) error {
	pool := a.o.pools[to.Pool]
	if pool == nil || a.o.session == nil || a.o.session.GitLab == nil || a.o.session.Group == 0 && !a.o.hasManualRunner() {
		return nil
	}
	name, revision := a.o.nextWorkloadName(to.Pool)
	key := fleet.Key{Namespace: to.Namespace, Name: name}
	if a.o.hasManualRunner() {
		return a.storeToken(ctx, key, to.Pool, to.Shape, revision, 0, a.o.session.GitLab.RunnerToken())
	}
	s := a.o.runnerSpec(pool)
	s.Paused, s.Description, s.Note = true, name, runnerMarker(a.e, to.Pool, name, revision)+"\n"+pausedNote+" until its manager is there"
	id, token, err := a.o.session.GitLab.CreateRunner(ctx, s)
	if err != nil {
		a.o.session.ScannedAt = time.Time{} // the runner may have been created in spite of the error
		return err
	}
	a.o.session.Runners[id] = runnerResult{}
	return a.storeToken(ctx, key, to.Pool, to.Shape, revision, id, token)
}

// resetToken gives a runner a new token, because the old one is lost.
func (a *actor) resetToken(ctx context.Context, t task) error {
	token, err := a.o.session.GitLab.ResetToken(ctx, t.RemoteID)
	if err != nil {
		return err
	}
	return a.storeToken(ctx, t.Key, t.Pool, t.Shape, t.Revision, t.RemoteID, token)
}

func (a *actor) storeToken(ctx context.Context, k fleet.Key, pool, shape string, revision int, id int64, token secret.Text) error {
	s := &corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: isolation.TokenName(k.Name),
			Labels: map[string]string{v1alpha1.ManagedByLabel: v1alpha1.ManagedBy, v1alpha1.OrgLabel: a.e.Name, v1alpha1.PoolLabel: pool},
			Annotations: map[string]string{runnerAnnotation: strconv.FormatInt(id, 10), shapeAnnotation: shape,
				revisionAnnotation: strconv.Itoa(revision), createdAnnotation: a.o.now.UTC().Format(time.RFC3339)}},
		Type: corev1.SecretTypeOpaque, Data: map[string][]byte{tokenKey: []byte(token.Reveal())}}
	if err := a.deps.direct.Create(ctx, s); err != nil {
		a.o.session.ScannedAt = time.Time{} // so that the runner is found by its mark
		return fmt.Errorf("store the token of runner %d: %w", id, err)
	}
	return nil
}

// applyManager brings the objects of a workload to the desired state.
func (a *actor) applyManager(ctx context.Context, t task) error {
	m := t.gitlab
	if m.token == nil || !t.plan.rendered {
		return nil
	}
	if t.Remote == fleet.Yes && !t.isManual() && !a.o.runnerMatches(t.workload) {
		s := a.o.runnerSpec(t.pool)
		s.Description, s.Note, s.Paused = m.runner.Description, m.runner.Note, m.runner.Paused
		if err := a.o.session.GitLab.UpdateRunner(ctx, t.RemoteID, s); err != nil {
			return err
		}
		delete(a.o.session.Runners, t.RemoteID)
	}
	unit := a.o.managerSpec(t.workload)
	if err := a.storeManualToken(ctx, t, unit.Token); err != nil {
		return err
	}
	managers, concurrent := isolation.ManagerCount(unit)
	if given := managers * concurrent; given != m.concurrent {
		notes := map[string]any{capacityAnnotation: strconv.Itoa(given)}
		if before, _ := a.o.capacityInForce(t.workload); before > given {
			notes[previousCapacityAnnotation] = fmt.Sprintf("%d %s", before, a.o.now.Add(configReloadTime).UTC().Format(time.RFC3339))
		}
		if err := a.patchAnnotations(ctx, m.token.DeepCopy(), notes); err != nil {
			return err
		}
	}
	for _, u := range t.plan.outdated {
		if err := applyObject(ctx, a.deps.direct, u); err != nil {
			return err
		}
	}
	if m.budget != nil && !t.plan.needsBudget {
		return kube.Delete(ctx, a.deps.direct, m.budget)
	}
	return nil
}

// applyPause writes whether a runner takes jobs. It does not resume a runner that a person paused.
func (a *actor) applyPause(ctx context.Context, t task) error {
	m := t.gitlab
	pause := t.plan.target.Max == 0
	if pause && (t.isManual() || t.Stopped != fleet.Yes && (a.o.session == nil || isDenied(m.runner.Err))) {
		return a.stopManagers(ctx, t)
	}
	if t.Remote != fleet.Yes || t.isManual() || m.runner.Err != nil || m.runner.Paused == pause {
		return nil
	}
	line, _, _ := strings.Cut(m.runner.Note, "\n")
	if _, _, _, managed := parseRunnerMarker(a.e, m.runner.Note); !managed {
		line = runnerMarker(a.e, t.Pool, t.Name, t.Revision)
	}
	if !pause && !strings.Contains(m.runner.Note, pausedNote) {
		t.done.drift = append(t.done.drift, reasonPausedByHand)
		return nil
	}
	note := line
	if pause {
		note += "\n" + pausedNote
		if t.plan.target.Hold != "" {
			note += ": hold " + t.plan.target.Hold
		}
	}
	r, err := a.o.session.GitLab.SetPaused(ctx, t.RemoteID, pause, note)
	if err != nil {
		delete(a.o.session.Runners, t.RemoteID)
		t.done.reason, t.done.stopped = reasonUnreachable, fleet.Unknown
		if pause && isDenied(err) {
			return a.stopManagers(ctx, t)
		}
		return err
	}
	t.done.runner = runnerResult{GitLabRunner: r, At: a.o.now}
	a.o.session.Runners[t.RemoteID] = t.done.runner
	t.done.stopped = fleet.AnswerOf(r.Paused)
	if pause {
		delete(a.o.session.Jobs, t.RemoteID)
		t.done.jobs = nil // the next reconcile queries the running jobs
	}
	return nil
}

// cancelJobs requests the end of all jobs that still run.
func (a *actor) cancelJobs(ctx context.Context, t task) error {
	const requirement = "A GitLab token needs the scope api to end them, and a role that may cancel jobs in their projects."
	var errs []error
	for _, job := range a.o.session.Jobs[t.RemoteID].Jobs {
		errs = append(errs, a.requestEnd(t, job.ID, requirement, func() error {
			return a.o.session.GitLab.CancelJob(ctx, job.Project, job.ID)
		}))
	}
	return errors.Join(errs...)
}

// deleteManager deletes all objects of a workload, its token last.
func (a *actor) deleteManager(ctx context.Context, t task) error {
	var all []client.Object
	if d := t.gitlab.deployment; d != nil {
		all = append(all, d)
	}
	if b := t.gitlab.budget; b != nil {
		all = append(all, b)
	}
	if s := a.o.secret(t.Namespace, isolation.ConfigName(t.Name)); s != nil {
		all = append(all, s)
	}
	if t.gitlab.token != nil && t.Remote == fleet.No {
		all = append(all, t.gitlab.token)
	}
	for _, o := range all {
		if err := kube.Delete(ctx, a.deps.direct, o); err != nil {
			return err
		}
	}
	return nil
}
