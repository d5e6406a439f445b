package fleetkube

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
	shapeByHand        = "gitlab-by-hand"
	reasonPauseByDrain = "PauseByDrain" // it takes no jobs because its managers were stopped
)

// byHand reports whether the credential consists only of the token of a runner that a person
// created.
func (l *look) byHand() bool {
	return l.account != nil && l.account.GitLab != nil && !l.account.GitLab.Own().IsZero()
}

func (w *work) byHand() bool { return w.gitlab != nil && w.Shape == shapeByHand }

// handMade handles a credential that is a single runner. Such a runner serves one pool. Its
// workload has a different shape than runners that the fleet created.
func (l *look) handMade() {
	if !l.byHand() {
		return
	}
	if len(l.facts.Wanted) > 1 {
		l.facts.Credential.Valid, l.facts.Credential.Reason = fleet.No, fleet.ReasonInvalid
		l.facts.Credential.Message = "A runner_token is one runner with its tags, so it serves one pool. Use one pool, or put an access_token into the Secret."
		return
	}
	for i := range l.facts.Wanted {
		l.facts.Wanted[i].Shape = shapeByHand
	}
}

// askByHand derives the state of such a runner from the cluster.
func (l *look) askByHand(w *work) {
	m := w.gitlab
	w.Object, w.Jobs, w.ByHand = fleet.Is(m.deployment != nil), new(m.jobPods), true
	w.Stopped = fleet.Is(unmanned(m.deployment) && w.managers == 0)
	w.Ready = fleet.Is(m.deployment != nil && (m.deployment.Status.ReadyReplicas > 0 || w.capacity.Max == 0 || !l.only(w)))
	if w.capacity.Max == 0 && w.Stopped != fleet.Yes {
		w.reason = reasonPauseByDrain
	}
	// GitLab has the runner until a person confirms its removal.
	told := l.e.Annotations[v1alpha1.ForceCleanupAnnotation] != ""
	w.Remote = fleet.Is(!told || l.wanted(w) || w.Stopped != fleet.Yes || m.jobPods > 0)
}

// only reports whether no other workload of the pool can take jobs.
func (l *look) only(w *work) bool {
	return !slices.ContainsFunc(l.works, func(x *work) bool { return x != w && x.Pool == w.Pool && x.Stopped != fleet.Yes })
}

// manager returns the unit to render for a workload at GitLab. A runner that a person created gets
// no manager while it must take no jobs, or while another workload of the pool can take them.
func (l *look) manager(w *work) isolation.Unit {
	u := l.unit(w.pool, w.use, w.Name, w.capacity)
	u.Token = isolation.Token(w.gitlab.token.Data[tokenKey])
	u.Drained = w.Stopped == fleet.Yes && w.Jobs != nil && *w.Jobs == 0
	if u.ByHand = w.byHand(); !u.ByHand {
		return u
	}
	if l.byHand() {
		u.Token = isolation.Token(l.account.GitLab.Own().Reveal())
	}
	if !l.only(w) {
		u.Capacity.Max = 0
	}
	return u
}

// keepOwn stores the token of a runner that a person created, if the token has changed.
func (l *look) keepOwn(ctx context.Context, w *work, token isolation.Token) error {
	if !w.byHand() || string(w.gitlab.token.Data[tokenKey]) == string(token) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"data": map[string][]byte{tokenKey: []byte(token)}})
	if err != nil {
		return err
	}
	return l.direct.Patch(ctx, w.gitlab.token, client.RawPatch(types.MergePatchType, patch))
}

// drainsToPause returns the condition that explains how such runners are paused. It returns none if
// there is no such runner and never was.
func (l *look) drainsToPause() (all []fleet.Condition) {
	c := fleet.Condition{Type: reasonPauseByDrain, Status: fleet.No, Reason: fleet.ReasonNone}
	has := meta.FindStatusCondition(l.e.Status.Conditions, c.Type) != nil
	for _, w := range l.works {
		if has = has || w.byHand(); w.byHand() && w.now.Max == 0 {
			c.Status, c.Reason, c.Message = fleet.Yes, reasonPauseByDrain, "GitLab cannot be told to pause a runner of which there is only its token: its managers are ended, and finish the jobs that they have."
		}
	}
	if has {
		all = append(all, c)
	}
	return all
}
