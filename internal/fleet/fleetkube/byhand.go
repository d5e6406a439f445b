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

// Of a runner that a person made at GitLab there is only its own token, and nothing to ask
// GitLab with: no number, no pause, no end. It takes jobs as long as a manager runs.
const (
	shapeByHand        = "gitlab-by-hand"
	reasonPauseByDrain = "PauseByDrain" // it takes no job because its managers were ended
)

// byHand says whether the credential is a token that a person made, and nothing else.
func (l *look) byHand() bool {
	return l.account != nil && l.account.GitLab != nil && !l.account.GitLab.Own().IsZero()
}

func (w *work) byHand() bool { return w.gitlab != nil && w.Shape == shapeByHand }

// handMade sees to a credential that is one runner: it serves one pool, by a workload that
// is of another shape than those of runners that were made by us.
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

// askByHand finds out from the cluster how such a runner stands.
func (l *look) askByHand(w *work) {
	m := w.gitlab
	w.Object, w.Jobs, w.ByHand = fleet.Is(m.deployment != nil), new(m.jobPods), true
	w.Stopped = fleet.Is(unmanned(m.deployment) && w.managers == 0)
	w.Ready = fleet.Is(m.deployment != nil && (m.deployment.Status.ReadyReplicas > 0 || w.capacity.Max == 0 || !l.only(w)))
	if w.capacity.Max == 0 && w.Stopped != fleet.Yes {
		w.reason = reasonPauseByDrain
	}
	// GitLab has it until a person says that they have seen to it.
	told := l.e.Annotations[v1alpha1.ForceCleanupAnnotation] != ""
	w.Remote = fleet.Is(!told || l.wanted(w) || w.Stopped != fleet.Yes || m.jobPods > 0)
}

// only says whether no other workload of a pool can take jobs.
func (l *look) only(w *work) bool {
	return !slices.ContainsFunc(l.works, func(x *work) bool { return x != w && x.Pool == w.Pool && x.Stopped != fleet.Yes })
}

// manager is a workload at GitLab as it is rendered. One that was made by hand has no
// manager while it may have no job, or another one takes them.
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

// keepOwn keeps the token of a runner that was made by hand, when there is another one.
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

// drainsToPause is the condition that says how such runners are paused; none if there is
// no such runner, and never was.
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
