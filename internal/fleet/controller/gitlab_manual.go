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
	"github.com/tailplane/tailplane/internal/util/secret"
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
func (o *observed) hasManualRunner() bool {
	return o.session != nil && o.session.GitLab != nil && !o.session.GitLab.RunnerToken().IsZero()
}

func (w *workload) isManual() bool { return w.gitlab != nil && w.Shape == shapeManual }

// useManualRunner handles a credential that is a single runner. Such a runner serves one pool. Its
// workload has a different shape than runners that the fleet created.
func (o *observed) useManualRunner() {
	if !o.hasManualRunner() {
		return
	}
	if len(o.facts.Desired) > 1 {
		o.facts.Credential.Valid, o.facts.Credential.Reason = fleet.No, fleet.ReasonInvalid
		o.facts.Credential.Message = "A runner_token belongs to one runner with its tags, so it serves one pool. Use one pool, or put an access_token into the Secret."
		return
	}
	for i := range o.facts.Desired {
		o.facts.Desired[i].Shape = shapeManual
	}
}

// readManualRunner derives the state of such a runner from the cluster.
func (o *observed) readManualRunner(w *workload) {
	m := w.gitlab
	w.Object, w.Jobs, w.Manual = fleet.AnswerOf(m.deployment != nil), new(m.jobPods), true
	w.Stopped = fleet.AnswerOf(scaledToZero(m.deployment) && w.managers == 0)
	w.Ready = fleet.AnswerOf(m.deployment != nil && (m.deployment.Status.ReadyReplicas > 0 || w.capacity.Max == 0 || !o.isOnlyOpen(w)))
	if w.capacity.Max == 0 && w.Stopped != fleet.Yes {
		w.reason = reasonPauseByDrain
	}
	// GitLab has the runner until a person confirms its removal.
	reported := o.e.Annotations[v1alpha1.ForceCleanupAnnotation] != ""
	w.Remote = fleet.AnswerOf(!reported || o.isDesired(w) || w.Stopped != fleet.Yes || m.jobPods > 0)
}

// isOnlyOpen reports whether no other workload of the pool can take jobs.
func (o *observed) isOnlyOpen(w *workload) bool {
	return !slices.ContainsFunc(o.workloads, func(x *workload) bool { return x != w && x.Pool == w.Pool && x.Stopped != fleet.Yes })
}

// managerSpec returns the unit to render for a workload at GitLab. A runner that a person created gets
// no manager while it must take no jobs, or while another workload of the pool can take them.
func (o *observed) managerSpec(w *workload) isolation.WorkloadSpec {
	u := o.workloadSpec(w.pool, w.use, w.Name, w.capacity)
	u.Token = secret.New(string(w.gitlab.token.Data[tokenKey]))
	u.Drained = w.Stopped == fleet.Yes && w.Jobs != nil && *w.Jobs == 0
	if u.Manual = w.isManual(); !u.Manual {
		return u
	}
	if o.hasManualRunner() {
		u.Token = o.session.GitLab.RunnerToken()
	}
	if !o.isOnlyOpen(w) {
		u.Capacity.Max = 0
	}
	return u
}

// storeManualToken stores the token of a runner that a person created, if the token has changed.
func (a *actor) storeManualToken(ctx context.Context, t task, token secret.Text) error {
	if !t.isManual() || string(t.gitlab.token.Data[tokenKey]) == token.Reveal() {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"data": map[string][]byte{tokenKey: []byte(token.Reveal())}})
	if err != nil {
		return err
	}
	return a.deps.direct.Patch(ctx, t.gitlab.token.DeepCopy(), client.RawPatch(types.MergePatchType, patch))
}

// pauseByDrainConditions returns the condition that explains how such runners are paused. It returns none if
// there is no such runner and never was.
func pauseByDrainConditions(o *observed, p plan) (all []fleet.Condition) {
	c := fleet.Condition{Type: reasonPauseByDrain, Status: fleet.No, Reason: fleet.ReasonNone}
	has := meta.FindStatusCondition(o.e.Status.Conditions, c.Type) != nil
	for i, w := range o.workloads {
		if has = has || w.isManual(); w.isManual() && p.workloads[i].target.Max == 0 {
			c.Status, c.Reason, c.Message = fleet.Yes, reasonPauseByDrain, "The fleet has only the runner's token, so it cannot pause the runner at GitLab. It stops the managers instead; they finish their current jobs."
		}
	}
	if has {
		all = append(all, c)
	}
	return all
}
