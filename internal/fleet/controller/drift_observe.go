package controller

import (
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/arc"
	"github.com/tailplane/tailplane/internal/fleet/forge"
)

// scaleSetInCluster returns the cluster's state of a scale set. Only its listener knows the number of jobs
// that GitHub assigned to it; nil means not known.
func scaleSetInCluster(p *arc.Objects, s arc.State, assigned *int, eventual bool, controller string) fleet.ClusterState {
	c := fleet.ClusterState{Object: fleet.Yes, Intake: fleet.Unknown, Min: &p.Set.Min, Max: &p.Set.Max, Assigned: assigned, Running: s.Running, Version: p.Set.Version, Controller: controller}
	if p.KnowsListeners && !(s.WaitsForJobs && eventual) {
		c.Intake = fleet.AnswerOf(slices.ContainsFunc(p.Pods, func(pod arc.Pod) bool {
			return pod.Ready && slices.ContainsFunc(p.Listeners, func(l arc.Listener) bool { return l.UID == pod.Listener && l.UID != "" && !l.Ending })
		}))
	}
	if s.Counts != nil {
		c.Counted, c.Pods = fleet.Yes, new(s.Counts.Idle+s.Counts.Busy)
		for _, r := range p.Runners {
			c.Runners = append(c.Runners, r.Name)
			if r.Registered != "" && r.Registered != r.Name {
				c.Runners = append(c.Runners, r.Registered)
			}
		}
	}
	return c
}

// scaleSetAtGitHub returns GitHub's state of a scale set, as derived from its runners. seen says that
// GitHub had a runner of it earlier. GitHub shows scale sets themselves, and their labels, only to
// ARC.
func scaleSetAtGitHub(set string, runners []fleet.RegisteredRunner, online map[int64]bool, listed fleet.Answer, seen bool) fleet.ForgeState {
	r := fleet.ForgeState{Registered: fleet.AnswerOf(seen)}
	if listed != fleet.Yes {
		if !seen {
			r.Registered = fleet.Unknown
		}
		return r
	}
	r.Online = fleet.No
	for _, x := range runners {
		if !fleet.IsRunnerOfSet(set, x.Name) {
			continue
		}
		r.Registered = fleet.Yes
		if online[x.ID] {
			r.Online = fleet.Yes
		}
	}
	return r
}

// groupAccess returns a runner group as GitHub has it; nil if it is missing or not known.
func groupAccess(name string, groups []forge.RunnerGroup) *fleet.GroupAccess {
	i := slices.IndexFunc(groups, func(g forge.RunnerGroup) bool { return strings.EqualFold(g.Name, name) })
	if i < 0 {
		return nil
	}
	g := groups[i]
	return &fleet.GroupAccess{Name: g.Name, Selected: g.Visibility == "selected", Repositories: g.Repositories, AllowsPublic: g.AllowsPublic}
}

// managerInCluster returns the cluster's state of a GitLab runner with the given number of running managers.
func managerInCluster(d *appsv1.Deployment, managers int, now fleet.Capacity) fleet.ClusterState {
	c := fleet.ClusterState{Object: fleet.AnswerOf(d != nil), Pods: &managers}
	ends := now.Mode == v1alpha1.HoldDrain || now.Mode == v1alpha1.HoldStop
	switch {
	case d != nil && d.Status.ReadyReplicas > 0:
		c.Intake = fleet.Yes
	case now.Max > 0 || ends:
		c.Intake = fleet.No
	}
	return c // without capacity it needs no manager
}

// runnerAtGitLab returns GitLab's state of a runner, as last read.
func runnerAtGitLab(read runnerResult, exists fleet.Answer, id int64) fleet.ForgeState {
	r := fleet.ForgeState{Exists: exists, ID: id}
	if exists != fleet.Yes || read.Err != nil || read.ID != id {
		return r
	}
	r.Contacted, r.Paused = fleet.AnswerOf(!read.ContactedAt.IsZero()), fleet.AnswerOf(read.Paused)
	switch read.Status {
	case "online":
		r.Online = fleet.Yes
	case "offline", "stale", "never_contacted":
		r.Online = fleet.No
	}
	r.Options = runnerOptions(forge.RunnerSpec{Tags: read.Tags, RunUntagged: read.RunUntagged, Locked: read.Locked, Protected: read.Protected, MaximumTimeout: read.MaximumTimeout})
	if read.Version != "" {
		r.Versions = []string{read.Version}
	}
	return r
}

// runnerOptions returns the options of a runner at GitLab.
func runnerOptions(s forge.RunnerSpec) *fleet.RunnerOptions {
	return &fleet.RunnerOptions{Labels: slices.Concat([]string{}, s.Tags), RunUntagged: s.RunUntagged, Locked: s.Locked, Protected: s.Protected, MaximumTimeout: s.MaximumTimeout}
}
