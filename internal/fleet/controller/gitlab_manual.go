package controller

import (
	"context"
	"encoding/json"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/isolation"
)

// A runner that a person created at GitLab is known only by its own token. That token allows no API
// requests: the runner's ID is not known, and the fleet cannot pause or delete it. The runner takes
// jobs as long as a manager runs.
const (
	shapeManual        = "gitlab-by-hand"
	reasonPauseByDrain = "PauseByDrain" // it takes no jobs because its managers were stopped
)

// hasManualRunner reports whether the credential consists only of the token of a runner that a person
// created.
func (l *enrollmentState) hasManualRunner() bool {
	return l.session != nil && l.session.GitLab != nil && !l.session.GitLab.RunnerToken().IsZero()
}

func (w *workload) isManual() bool { return w.gitlab != nil && w.Shape == shapeManual }

// useManualRunner handles a credential that is a single runner. Such a runner serves one pool. Its
// workload has a different shape than runners that the fleet created.
func (l *enrollmentState) useManualRunner() {
	if !l.hasManualRunner() {
		return
	}
	if len(l.facts.Desired) > 1 {
		l.facts.Credential.Valid, l.facts.Credential.Reason = fleet.No, fleet.ReasonInvalid
		l.facts.Credential.Message = "A runner_token belongs to one runner with its tags, so it serves one pool. Use one pool, or put an access_token into the Secret."
		return
	}
	for i := range l.facts.Desired {
		l.facts.Desired[i].Shape = shapeManual
	}
}

// readManualRunner derives the state of such a runner from the cluster.
func (l *enrollmentState) readManualRunner(w *workload) {
	m := w.gitlab
	w.Object, w.Jobs, w.Manual = fleet.AnswerOf(m.deployment != nil), new(m.jobPods), true
	w.Stopped = fleet.AnswerOf(scaledToZero(m.deployment) && w.managers == 0)
	w.Ready = fleet.AnswerOf(m.deployment != nil && (m.deployment.Status.ReadyReplicas > 0 || w.capacity.Max == 0 || !l.isOnlyOpen(w)))
	if w.capacity.Max == 0 && w.Stopped != fleet.Yes {
		w.reason = reasonPauseByDrain
	}
	// GitLab has the runner until a person confirms its removal.
	reported := l.e.Annotations[v1alpha1.ForceCleanupAnnotation] != ""
	w.Remote = fleet.AnswerOf(!reported || l.isDesired(w) || w.Stopped != fleet.Yes || m.jobPods > 0)
}

// isOnlyOpen reports whether no other workload of the pool can take jobs.
func (l *enrollmentState) isOnlyOpen(w *workload) bool {
	return !slices.ContainsFunc(l.workloads, func(x *workload) bool { return x != w && x.Pool == w.Pool && x.Stopped != fleet.Yes })
}

// managerSpec returns the unit to render for a workload at GitLab. A runner that a person created gets
// no manager while it must take no jobs, or while another workload of the pool can take them.
func (l *enrollmentState) managerSpec(w *workload) isolation.WorkloadSpec {
	u := l.workloadSpec(w.pool, w.use, w.Name, w.capacity)
	u.Token = isolation.Token(w.gitlab.token.Data[tokenKey])
	u.Drained = w.Stopped == fleet.Yes && w.Jobs != nil && *w.Jobs == 0
	if u.Manual = w.isManual(); !u.Manual {
		return u
	}
	if l.hasManualRunner() {
		u.Token = isolation.Token(l.session.GitLab.RunnerToken().Reveal())
	}
	if !l.isOnlyOpen(w) {
		u.Capacity.Max = 0
	}
	return u
}

// storeManualToken stores the token of a runner that a person created, if the token has changed.
func (l *enrollmentState) storeManualToken(ctx context.Context, w *workload, token isolation.Token) error {
	if !w.isManual() || string(w.gitlab.token.Data[tokenKey]) == string(token) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"data": map[string][]byte{tokenKey: []byte(token)}})
	if err != nil {
		return err
	}
	return l.deps.direct.Patch(ctx, w.gitlab.token, client.RawPatch(types.MergePatchType, patch))
}

// pauseByDrainConditions returns the condition that explains how such runners are paused. It returns none if
// there is no such runner and never was.
func (l *enrollmentState) pauseByDrainConditions() (all []fleet.Condition) {
	c := fleet.Condition{Type: reasonPauseByDrain, Status: fleet.No, Reason: fleet.ReasonNone}
	has := meta.FindStatusCondition(l.e.Status.Conditions, c.Type) != nil
	for _, w := range l.workloads {
		if has = has || w.isManual(); w.isManual() && w.target.Max == 0 {
			c.Status, c.Reason, c.Message = fleet.Yes, reasonPauseByDrain, "The fleet has only the runner's token, so it cannot pause the runner at GitLab. It stops the managers instead; they finish their current jobs."
		}
	}
	if has {
		all = append(all, c)
	}
	return all
}
