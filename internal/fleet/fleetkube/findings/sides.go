package findings

import (
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/arc"
	"github.com/tailplane/tailplane/internal/fleet/fleetkube/account"
	"github.com/tailplane/tailplane/internal/fleet/forge"
	"github.com/tailplane/tailplane/internal/fleet/truth"
)

// ScaleSet returns the cluster's state of a scale set. Only its listener knows the number of jobs
// that GitHub assigned to it; nil means not known.
func ScaleSet(p *arc.Parts, s arc.State, assigned *int, eventual bool, controller string) truth.Cluster {
	c := truth.Cluster{Object: fleet.Yes, Intake: fleet.Unknown, Min: &p.Set.Min, Max: &p.Set.Max, Assigned: assigned, Running: s.Running, Version: p.Set.Version, Controller: controller}
	if p.KnowsListeners && !(s.WaitsForJobs && eventual) {
		c.Intake = fleet.Is(slices.ContainsFunc(p.Pods, func(pod arc.Pod) bool {
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

// AtGitHub returns GitHub's state of a scale set, as derived from its runners. seen says that
// GitHub had a runner of it earlier. GitHub shows scale sets themselves, and their labels, only to
// ARC.
func AtGitHub(set string, runners []truth.Registered, online map[int64]bool, listed fleet.Answer, seen bool) truth.Remote {
	r := truth.Remote{Registered: fleet.Is(seen)}
	if listed != fleet.Yes {
		if !seen {
			r.Registered = fleet.Unknown
		}
		return r
	}
	r.Online = fleet.No
	for _, x := range runners {
		if !truth.OfSet(set, x.Name) {
			continue
		}
		r.Registered = fleet.Yes
		if online[x.ID] {
			r.Online = fleet.Yes
		}
	}
	return r
}

// Group returns a runner group as GitHub has it; nil if it is missing or not known.
func Group(name string, groups []forge.RunnerGroup) *truth.Group {
	i := slices.IndexFunc(groups, func(g forge.RunnerGroup) bool { return strings.EqualFold(g.Name, name) })
	if i < 0 {
		return nil
	}
	g := groups[i]
	return &truth.Group{Name: g.Name, Selected: g.Visibility == "selected", Repositories: g.Repositories, AllowsPublic: g.AllowsPublic}
}

// Manager returns the cluster's state of a GitLab runner with the given number of running managers.
func Manager(d *appsv1.Deployment, managers int, now fleet.Capacity) truth.Cluster {
	c := truth.Cluster{Object: fleet.Is(d != nil), Pods: &managers}
	ends := now.Mode == v1alpha1.HoldDrain || now.Mode == v1alpha1.HoldStop
	switch {
	case d != nil && d.Status.ReadyReplicas > 0:
		c.Intake = fleet.Yes
	case now.Max > 0 || ends:
		c.Intake = fleet.No
	}
	return c // without capacity it needs no manager
}

// AtGitLab returns GitLab's state of a runner, as last read.
func AtGitLab(read account.RunnerRead, exists fleet.Answer, id int64) truth.Remote {
	r := truth.Remote{Exists: exists, ID: id}
	if exists != fleet.Yes || read.Err != nil || read.ID != id {
		return r
	}
	r.Contacted, r.Paused = fleet.Is(!read.ContactedAt.IsZero()), fleet.Is(read.Paused)
	switch read.Status {
	case "online":
		r.Online = fleet.Yes
	case "offline", "stale", "never_contacted":
		r.Online = fleet.No
	}
	r.Options = Options(forge.RunnerSpec{Tags: read.Tags, RunUntagged: read.RunUntagged, Locked: read.Locked, Protected: read.Protected, MaximumTimeout: read.MaximumTimeout})
	if read.Version != "" {
		r.Versions = []string{read.Version}
	}
	return r
}

// Options returns the options of a runner at GitLab.
func Options(s forge.RunnerSpec) *truth.Options {
	return &truth.Options{Labels: slices.Concat([]string{}, s.Tags), RunUntagged: s.RunUntagged, Locked: s.Locked, Protected: s.Protected, MaximumTimeout: s.MaximumTimeout}
}
