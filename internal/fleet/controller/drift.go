package controller

import (
	"context"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/arc"
	"github.com/tailplane/tailplane/internal/fleet/forge"
)

// maxStoredName is the maximum length of a stored name that others can write.
const maxStoredName = 63

// checkDrift finds differences between the forge, the cluster and the decisions, if a comparison is
// due. The earlier findings are in the status, so they survive a restart.
func (l *enrollmentState) checkDrift(ctx context.Context) {
	l.findings = findingsFromStatus(l.o.e.Name, l.o.e.Status.Findings)
	if l.o.forge == nil || !l.o.e.DeletionTimestamp.IsZero() || l.o.facts.Approved.Status != fleet.Yes {
		if !l.o.e.DeletionTimestamp.IsZero() {
			l.findings = nil // the offboarding status reports its end
		}
		return
	}
	if next := l.deps.driftSchedule.next(l.o.e.Name); next.After(l.o.now) {
		l.wake = earliest(l.wake, next)
		return
	}
	l.wake = earliest(l.wake, l.deps.driftSchedule.done(l.o.e.Name, l.o.now))
	o := fleet.DriftInput{Name: l.o.e.Name, Forge: l.o.forge.Spec.Type, ForgeVersion: l.o.forge.Status.Version}
	if l.o.facts.Listed && !l.o.unscanned {
		o.Complete = fleet.Yes
	}
	if o.Forge == v1alpha1.GitHub {
		l.observeGitHub(ctx, &o)
	} else {
		l.observeGitLab(ctx, &o)
	}
	l.findings, l.compared = fleet.CheckDrift(o, l.findings, l.o.now.Truncate(time.Second)), true
}

// driftWorkload returns the desired state of a workload.
func (l *enrollmentState) driftWorkload(w *workload) fleet.DriftWorkload {
	x := fleet.DriftWorkload{Pool: w.Pool, Name: w.Name, Ending: w.Ending || w.Lost || !l.o.isDesired(w), Capacity: w.target}
	if w.use != nil {
		s := w.pool.Spec.Scaling
		s.Max = fleet.MaxRunners(w.pool, *w.use)
		x.Allocated = fleet.Effective(fleet.Target{}, s, l.o.share(w.Pool).Allocated, nil, l.o.now).Max
		x.Options.Labels = fleet.RunsOn(w.pool, l.o.e.Name)
	}
	return x
}

func (l *enrollmentState) observeGitHub(ctx context.Context, o *fleet.DriftInput) {
	online := map[int64]bool{}
	var groups []forge.RunnerGroup
	if l.o.session != nil && l.o.session.GitHub != nil {
		runners, err := l.o.session.GitHub.Runners(ctx)
		if l.answered(err) {
			o.Listed = fleet.Yes
		}
		for _, r := range runners {
			o.Registered = append(o.Registered, fleet.RegisteredRunner{ID: r.ID, Name: truncate(r.Name, 2*maxStoredName), Busy: r.Busy})
			online[r.ID] = r.Status == "online"
		}
		if slices.ContainsFunc(l.o.workloads, hasRunnerGroup) {
			groups, err = l.o.session.GitHub.RunnerGroups(ctx)
			l.answered(err)
		}
	}
	eventual := slices.ContainsFunc(l.o.arcState.Controllers, func(c arc.Controller) bool { return c.Eventual })
	for _, w := range l.o.workloads {
		x := l.driftWorkload(w)
		x.Cluster = scaleSetInCluster(l.o.arcState.Objects[w.Key], w.state, w.assigned, eventual, l.o.settings.ARC.Version)
		x.Remote = scaleSetAtGitHub(w.Name, o.Registered, online, o.Listed, w.seenAt != nil)
		if x.Remote.Registered == fleet.Yes && w.seenAt == nil {
			w.seenAt = new(metav1.NewTime(l.o.now.Truncate(time.Second)))
		}
		if hasRunnerGroup(w) {
			name := fleet.RunnerGroupName(l.o.e, *w.use)
			x.Group = &fleet.GroupAccess{Name: name, Selected: true, Repositories: w.use.Repositories, AllowsPublic: w.use.AllowPublic}
			x.Remote.Group = groupAccess(name, groups)
		}
		o.Workloads = append(o.Workloads, x)
	}
	observeExternalSets(l.externals, o, online, eventual, l.o.settings.ARC.Version, l.o.now)
}

func hasRunnerGroup(w *workload) bool { return w.use != nil && w.use.Type == v1alpha1.UseOrgPlusUser }

func (l *enrollmentState) observeGitLab(ctx context.Context, o *fleet.DriftInput) {
	for _, w := range l.o.workloads {
		x := l.driftWorkload(w)
		x.Cluster = managerInCluster(w.gitlab.deployment, w.managers, w.target)
		if !w.isManual() { // GitLab cannot be queried about it
			if w.use != nil && l.o.session != nil {
				x.Options = *runnerOptions(l.o.runnerSpec(w.pool))
			}
			x.Remote = runnerAtGitLab(w.gitlab.runner, w.Remote, w.RemoteID)
		}
		o.Workloads = append(o.Workloads, x)
	}
	if l.o.session == nil || l.o.session.GitLab == nil || l.o.session.Group == 0 {
		return
	}
	var err error
	o.Registered, err = l.markedRunners(ctx)
	if l.answered(err) {
		o.Listed = fleet.Yes
	}
}

// markedRunners returns the runners of the group that carry our mark.
func (l *enrollmentState) markedRunners(ctx context.Context) (all []fleet.RegisteredRunner, err error) {
	a := l.o.session
	ids, err := a.GitLab.GroupRunners(ctx, a.Group)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		if i := slices.IndexFunc(l.o.workloads, func(w *workload) bool { return w.RemoteID == id }); i >= 0 {
			all = append(all, fleet.RegisteredRunner{ID: id, Name: l.o.workloads[i].Name})
			continue
		}
		if a.Unmarked[id] {
			continue
		}
		r, err := a.GitLab.Runner(ctx, id)
		if forge.ClassOf(err) == forge.NotFound {
			continue
		}
		if err != nil {
			return nil, err
		}
		_, name, _, managed := parseRunnerMarker(l.o.e, r.Note)
		if !managed {
			a.Unmarked[id] = true
			continue
		}
		jobs, err := a.GitLab.RunningJobs(ctx, id)
		if err != nil {
			return nil, err
		}
		all = append(all, fleet.RegisteredRunner{ID: id, Name: truncate(name, maxStoredName), Busy: len(jobs) > 0})
	}
	return all, nil
}

// answered reports whether a forge answered. A missing answer is not a finding: the old findings stay.
func (l *enrollmentState) answered(err error) bool {
	if err != nil {
		l.deps.log.Warn("cannot compare a forge with the cluster", "enrollment", l.o.e.Name, "err", err)
	}
	return err == nil
}

// addDrift adds the settled findings to the workloads and to the troubles. It returns these findings.
func (l *enrollmentState) addDrift() (reported []fleet.Finding) {
	reported = reportableFindings(l.findings, l.o.now)
	for _, f := range reported {
		for _, w := range l.o.workloads {
			if w.Name == f.Workload {
				w.drift = append(w.drift, string(f.Kind))
			}
		}
		if f.Severity == fleet.SeverityError {
			l.failures = append(l.failures, fleet.Failure{Reason: string(f.Kind), Message: findingMessage(f)})
		}
	}
	for _, w := range l.o.workloads {
		slices.Sort(w.drift)
		w.drift = slices.Compact(w.drift)
	}
	return reported
}
