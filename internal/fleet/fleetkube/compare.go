package fleetkube

import (
	"context"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/arc"
	"github.com/tailplane/tailplane/internal/fleet/fleetkube/adopted"
	"github.com/tailplane/tailplane/internal/fleet/fleetkube/findings"
	"github.com/tailplane/tailplane/internal/fleet/fleetkube/mark"
	"github.com/tailplane/tailplane/internal/fleet/forge"
	"github.com/tailplane/tailplane/internal/fleet/truth"
)

// mostName is the maximum length of a stored name that others can write.
const mostName = 63

// compare finds differences between the forge, the cluster and the decisions, if a comparison is
// due. The earlier findings are in the status, so they survive a restart.
func (l *look) compare(ctx context.Context) {
	l.stands = findings.Read(l.e.Name, l.e.Status.Findings)
	if l.forge == nil || !l.e.DeletionTimestamp.IsZero() || l.facts.Approved.Status != fleet.Yes {
		if !l.e.DeletionTimestamp.IsZero() {
			l.stands = nil // the offboarding status reports its end
		}
		return
	}
	if next := l.rounds.Next(l.e.Name); next.After(l.now) {
		l.wake = earliest(l.wake, next)
		return
	}
	l.wake = earliest(l.wake, l.rounds.Done(l.e.Name, l.now))
	o := truth.Org{Name: l.e.Name, Forge: l.forge.Spec.Type, ForgeVersion: l.forge.Status.Version}
	if l.facts.Listed && !l.unscanned {
		o.Whole = fleet.Yes
	}
	if o.Forge == v1alpha1.GitHub {
		l.compareGitHub(ctx, &o)
	} else {
		l.compareGitLab(ctx, &o)
	}
	l.stands, l.compared = truth.Check(o, l.stands, l.now.Truncate(time.Second)), true
}

// workload returns the desired state of a workload.
func (l *look) workload(w *work) truth.Workload {
	x := truth.Workload{Pool: w.Pool, Name: w.Name, Ending: w.Ending || w.Lost || !l.wanted(w), Capacity: w.now}
	if w.use != nil {
		s := w.pool.Spec.Scaling
		s.Max = fleet.MaxOf(w.pool, *w.use)
		x.Allocated = fleet.Effective(fleet.Target{}, s, l.share(w.Pool).Allocated, nil, l.now).Max
		x.Options.Labels = fleet.RunsOn(w.pool, l.e.Name)
	}
	return x
}

func (l *look) compareGitHub(ctx context.Context, o *truth.Org) {
	online := map[int64]bool{}
	var groups []forge.RunnerGroup
	if l.account != nil && l.account.GitHub != nil {
		runners, err := l.account.GitHub.Runners(ctx)
		if l.heard(err) {
			o.Listed = fleet.Yes
		}
		for _, r := range runners {
			o.Registered = append(o.Registered, truth.Registered{ID: r.ID, Name: findings.Cut(r.Name, 2*mostName), Busy: r.Busy})
			online[r.ID] = r.Status == "online"
		}
		if slices.ContainsFunc(l.works, grouped) {
			groups, err = l.account.GitHub.RunnerGroups(ctx)
			l.heard(err)
		}
	}
	eventual := slices.ContainsFunc(l.arc.Controllers, func(c arc.Controller) bool { return c.Eventual })
	for _, w := range l.works {
		x := l.workload(w)
		x.Cluster = findings.ScaleSet(l.arc.Parts[w.Key], w.state, w.assigned, eventual, l.settings.ARC.Version)
		x.Remote = findings.AtGitHub(w.Name, o.Registered, online, o.Listed, w.seenAt != nil)
		if x.Remote.Registered == fleet.Yes && w.seenAt == nil {
			w.seenAt = new(metav1.NewTime(l.now.Truncate(time.Second)))
		}
		if grouped(w) {
			name := fleet.RunnerGroup(l.e, *w.use)
			x.Group = &truth.Group{Name: name, Selected: true, Repositories: w.use.Repositories, AllowsPublic: w.use.AllowPublic}
			x.Remote.Group = findings.Group(name, groups)
		}
		o.Workloads = append(o.Workloads, x)
	}
	adopted.Compare(l.adopted, o, online, eventual, l.settings.ARC.Version, l.now)
}

func grouped(w *work) bool { return w.use != nil && w.use.Type == v1alpha1.UseOrgPlusUser }

func (l *look) compareGitLab(ctx context.Context, o *truth.Org) {
	for _, w := range l.works {
		x := l.workload(w)
		x.Cluster = findings.Manager(w.gitlab.deployment, w.managers, w.now)
		if !w.byHand() { // GitLab cannot be queried about it
			if w.use != nil && l.account != nil {
				x.Options = *findings.Options(l.spec(w.pool))
			}
			x.Remote = findings.AtGitLab(w.gitlab.runner, w.Remote, w.RemoteID)
		}
		o.Workloads = append(o.Workloads, x)
	}
	if l.account == nil || l.account.GitLab == nil || l.account.Group == 0 {
		return
	}
	var err error
	o.Registered, err = l.marked(ctx)
	if l.heard(err) {
		o.Listed = fleet.Yes
	}
}

// marked returns the runners of the group that carry our mark.
func (l *look) marked(ctx context.Context) (all []truth.Registered, err error) {
	a := l.account
	ids, err := a.GitLab.GroupRunners(ctx, a.Group)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		if i := slices.IndexFunc(l.works, func(w *work) bool { return w.RemoteID == id }); i >= 0 {
			all = append(all, truth.Registered{ID: id, Name: l.works[i].Name})
			continue
		}
		if a.Strangers[id] {
			continue
		}
		r, err := a.GitLab.Runner(ctx, id)
		if forge.ClassOf(err) == forge.NotFound {
			continue
		}
		if err != nil {
			return nil, err
		}
		_, name, _, ours := mark.Read(l.e, r.Note)
		if !ours {
			a.Strangers[id] = true
			continue
		}
		jobs, err := a.GitLab.RunningJobs(ctx, id)
		if err != nil {
			return nil, err
		}
		all = append(all, truth.Registered{ID: id, Name: findings.Cut(name, mostName), Busy: len(jobs) > 0})
	}
	return all, nil
}

// heard reports whether a forge answered. A missing answer is not a finding: the old findings stay.
func (l *look) heard(err error) bool {
	if err != nil {
		l.Log.Warn("a forge cannot be compared with the cluster", "enrollment", l.e.Name, "err", err)
	}
	return err == nil
}

// drifts adds the settled findings to the workloads and to the troubles. It returns these findings.
func (l *look) drifts() (told []truth.Finding) {
	told = findings.Told(l.stands, l.now)
	for _, f := range told {
		for _, w := range l.works {
			if w.Name == f.Workload {
				w.drift = append(w.drift, string(f.Kind))
			}
		}
		if f.Severity == truth.Error {
			l.troubles = append(l.troubles, fleet.Trouble{Reason: string(f.Kind), Message: findings.Sentence(f)})
		}
	}
	for _, w := range l.works {
		slices.Sort(w.drift)
		w.drift = slices.Compact(w.drift)
	}
	return told
}
