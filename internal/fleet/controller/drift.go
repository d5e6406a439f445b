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

// A driftCheck is the result of [checkDrift].
type driftCheck struct {
	findings  []fleet.Finding // differences between forge, cluster and decisions
	compared  bool            // in this reconcile
	next      time.Time       // time of the next check; zero: none
	externals []externalSet
	seenAt    []*metav1.Time // of the observed workloads: first time that GitHub was seen to have a runner of it; nil: never
}

// checkDrift gathers again, after the actions, to find differences between the forge, the cluster and the decisions, if
// a comparison is due. The earlier findings are in the status, so they survive a restart.
func checkDrift(ctx context.Context, d deps, o *observed, p plan, done outcome) (c driftCheck) {
	c.externals = externalSetsOf(o.e, o.pools, d.state, func(name string) bool {
		return slices.ContainsFunc(o.workloads, func(w *workload) bool { return w.Name == name })
	})
	for _, w := range o.workloads {
		c.seenAt = append(c.seenAt, w.seenAt)
	}
	if !o.e.DeletionTimestamp.IsZero() {
		return c // the offboarding status reports its end
	}
	c.findings = findingsFromStatus(o.e.Name, o.e.Status.Findings)
	if o.forge == nil || o.facts.Approved.Status != fleet.Yes {
		return c
	}
	if c.next = d.driftSchedule.next(o.e.Name); c.next.After(o.now) {
		return c
	}
	c.next = d.driftSchedule.done(o.e.Name, o.now)
	in := fleet.DriftInput{Name: o.e.Name, Forge: o.forge.Spec.Type, ForgeVersion: o.forge.Status.Version}
	if o.facts.Listed && !o.unscanned {
		in.Complete = fleet.Yes
	}
	if in.Forge == v1alpha1.GitHub {
		observeGitHub(ctx, d, o, p, &c, &in)
	} else {
		observeGitLab(ctx, d, o, p, done, &in)
	}
	c.findings, c.compared = fleet.CheckDrift(in, c.findings, o.now.Truncate(time.Second)), true
	return c
}

// driftWorkload returns the desired state of a workload.
func (o *observed) driftWorkload(w *workload, target fleet.Capacity) fleet.DriftWorkload {
	x := fleet.DriftWorkload{Pool: w.Pool, Name: w.Name, Ending: w.Ending || w.Lost || !o.isDesired(w), Capacity: target}
	if w.use != nil {
		s := w.pool.Spec.Scaling
		s.Max = fleet.MaxRunners(w.pool, *w.use)
		x.Allocated = fleet.Effective(fleet.Target{}, s, o.share(w.Pool).Allocated, nil, o.now).Max
		x.Options.Labels = fleet.RunsOn(w.pool, o.e.Name)
	}
	return x
}

func observeGitHub(ctx context.Context, d deps, o *observed, p plan, c *driftCheck, in *fleet.DriftInput) {
	online := map[int64]bool{}
	var groups []forge.RunnerGroup
	if o.session != nil && o.session.GitHub != nil {
		runners, err := o.session.GitHub.Runners(ctx)
		if answered(d, o, err) {
			in.Listed = fleet.Yes
		}
		for _, r := range runners {
			in.Registered = append(in.Registered, fleet.RegisteredRunner{ID: r.ID, Name: truncate(r.Name, 2*maxStoredName), Busy: r.Busy})
			online[r.ID] = r.Status == "online"
		}
		if slices.ContainsFunc(o.workloads, hasRunnerGroup) {
			groups, err = o.session.GitHub.RunnerGroups(ctx)
			answered(d, o, err)
		}
	}
	eventual := slices.ContainsFunc(o.arcState.Controllers, func(c arc.Controller) bool { return c.Eventual })
	for i, w := range o.workloads {
		x := o.driftWorkload(w, p.workloads[i].target)
		x.Cluster = scaleSetInCluster(o.arcState.Objects[w.Key], w.state, w.assigned, eventual, o.settings.ARC.Version)
		x.Remote = scaleSetAtGitHub(w.Name, in.Registered, online, in.Listed, c.seenAt[i] != nil)
		if x.Remote.Registered == fleet.Yes && c.seenAt[i] == nil {
			c.seenAt[i] = new(metav1.NewTime(o.now.Truncate(time.Second)))
		}
		if hasRunnerGroup(w) {
			name := fleet.RunnerGroupName(o.e, *w.use)
			x.Group = &fleet.GroupAccess{Name: name, Selected: true, Repositories: w.use.Repositories, AllowsPublic: w.use.AllowPublic}
			x.Remote.Group = groupAccess(name, groups)
		}
		in.Workloads = append(in.Workloads, x)
	}
	observeExternalSets(c.externals, in, online, eventual, o.settings.ARC.Version, o.now)
}

func hasRunnerGroup(w *workload) bool { return w.use != nil && w.use.Type == v1alpha1.UseOrgPlusUser }

func observeGitLab(ctx context.Context, d deps, o *observed, p plan, done outcome, in *fleet.DriftInput) {
	for i, w := range o.workloads {
		x := o.driftWorkload(w, p.workloads[i].target)
		x.Cluster = managerInCluster(w.gitlab.deployment, w.managers, p.workloads[i].target)
		if !w.isManual() { // GitLab cannot be queried about it
			if w.use != nil && o.session != nil {
				x.Options = *runnerOptions(o.runnerSpec(w.pool))
			}
			x.Remote = runnerAtGitLab(done.workloads[i].runner, w.Remote, w.RemoteID)
		}
		in.Workloads = append(in.Workloads, x)
	}
	if o.session == nil || o.session.GitLab == nil || o.session.Group == 0 {
		return
	}
	var err error
	in.Registered, err = markedRunners(ctx, o)
	if answered(d, o, err) {
		in.Listed = fleet.Yes
	}
}

// markedRunners returns the runners of the group that carry our mark.
func markedRunners(ctx context.Context, o *observed) (all []fleet.RegisteredRunner, err error) {
	a := o.session
	ids, err := a.GitLab.GroupRunners(ctx, a.Group)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		if i := slices.IndexFunc(o.workloads, func(w *workload) bool { return w.RemoteID == id }); i >= 0 {
			all = append(all, fleet.RegisteredRunner{ID: id, Name: o.workloads[i].Name})
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
		_, name, _, managed := parseRunnerMarker(o.e, r.Note)
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
func answered(d deps, o *observed, err error) bool {
	if err != nil {
		d.log.Warn("cannot compare a forge with the cluster", "enrollment", o.e.Name, "err", err)
	}
	return err == nil
}
