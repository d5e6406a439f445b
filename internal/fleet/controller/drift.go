package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
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

// scaleSetInCluster returns the cluster's state of a scale set. Only its listener knows the number of jobs
// that GitHub assigned to it; nil means not known.
func scaleSetInCluster(p *arc.Objects, s arc.State, assigned *int, eventual bool, controller string) fleet.ClusterState {
	c := fleet.ClusterState{
		Object:     fleet.Yes,
		Intake:     fleet.Unknown,
		Min:        &p.Set.Min,
		Max:        &p.Set.Max,
		Assigned:   assigned,
		Running:    s.Running,
		Version:    p.Set.Version,
		Controller: controller,
	}
	if p.KnowsListeners && !(s.WaitsForJobs && eventual) {
		c.Intake = fleet.AnswerOf(slices.ContainsFunc(p.Pods, func(pod arc.Pod) bool {
			return pod.Ready &&
				slices.ContainsFunc(p.Listeners, func(l arc.Listener) bool { return l.UID == pod.Listener && l.UID != "" && !l.Ending })
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
func scaleSetAtGitHub(
	set string,
	runners []fleet.RegisteredRunner,
	online map[int64]bool,
	listed fleet.Answer,
	seen bool,
) fleet.ForgeState {
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
	return &fleet.GroupAccess{
		Name:         g.Name,
		Selected:     g.Visibility == "selected",
		Repositories: g.Repositories,
		AllowsPublic: g.AllowsPublic,
	}
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
	r.Options = runnerOptions(
		forge.RunnerSpec{
			Tags:           read.Tags,
			RunUntagged:    read.RunUntagged,
			Locked:         read.Locked,
			Protected:      read.Protected,
			MaximumTimeout: read.MaximumTimeout,
		},
	)
	if read.Version != "" {
		r.Versions = []string{read.Version}
	}
	return r
}

// runnerOptions returns the options of a runner at GitLab.
func runnerOptions(s forge.RunnerSpec) *fleet.RunnerOptions {
	return &fleet.RunnerOptions{
		Labels:         slices.Concat([]string{}, s.Tags),
		RunUntagged:    s.RunUntagged,
		Locked:         s.Locked,
		Protected:      s.Protected,
		MaximumTimeout: s.MaximumTimeout,
	}
}

// driftSchedule schedules the drift checks of all organisations. After a start, the first checks are
// spread over one period, so the schedule need not survive a restart. Create it with [newDriftSchedule].
type driftSchedule struct {
	start time.Time
	every time.Duration

	mu   sync.Mutex
	last map[string]time.Time // by organisation
}

// newDriftSchedule returns a schedule that begins at start, with a check of each organisation in every
// period.
func newDriftSchedule(start time.Time, every time.Duration) *driftSchedule {
	return &driftSchedule{start: start, every: every, last: map[string]time.Time{}}
}

// next returns the time of the next check of an organisation.
func (r *driftSchedule) next(org string) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if last, ok := r.last[org]; ok {
		return fleet.NextDriftCheck(org, last, r.every)
	}
	return fleet.FirstDriftCheck(org, r.start, r.every)
}

// done records that an organisation is checked now, and returns the time of its next check.
func (r *driftSchedule) done(org string, now time.Time) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last[org] = now
	return fleet.NextDriftCheck(org, now, r.every)
}

// delete removes an organisation that is gone.
func (r *driftSchedule) delete(org string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.last, org)
}

// conditionDrifted is the type of the condition that reports drift.
const conditionDrifted = "Drifted"

// maxFindings is the maximum number of findings in a status. The worst ones come first.
const maxFindings = 64

// findingsFromStatus reads the findings of an organisation from its status.
func findingsFromStatus(org string, list []v1alpha1.EnrollmentFinding) []fleet.Finding {
	out := make([]fleet.Finding, 0, len(list))
	for _, f := range list {
		out = append(
			out,
			fleet.Finding{
				Kind:        fleet.FindingKind(f.Kind),
				Severity:    fleet.Severity(f.Severity),
				Org:         org,
				Pool:        f.Pool,
				Workload:    f.Workload,
				Subject:     f.Subject,
				Desired:     f.Want,
				Actual:      f.Have,
				Evidence:    f.Evidence,
				Advice:      f.Next,
				FirstSeen:   f.FirstSeen.Time,
				ExplainedBy: f.ExplainedBy,
				Unconfirmed: f.Unconfirmed,
			},
		)
	}
	return out
}

// findingsToStatus converts findings for a status. It omits the mildest if there are too many.
func findingsToStatus(list []fleet.Finding, now time.Time) (out []v1alpha1.EnrollmentFinding) {
	for _, f := range list[:min(len(list), maxFindings)] {
		out = append(
			out,
			v1alpha1.EnrollmentFinding{
				ID:       f.ID(),
				Kind:     string(f.Kind),
				Severity: string(f.Severity),
				Pool:     f.Pool,
				Workload: f.Workload,
				Subject:  f.Subject,
				Want: truncate(
					f.Desired,
					512,
				),
				Have:     truncate(f.Actual, 512),
				Evidence: truncate(f.Evidence, 1024),
				Next:     truncate(f.Advice, 512),
				FirstSeen: metav1.NewTime(
					f.FirstSeen.Truncate(time.Second),
				),
				Settled:     f.Settled(now),
				ExplainedBy: f.ExplainedBy,
				Unconfirmed: f.Unconfirmed,
			},
		)
	}
	return out
}

// truncate shortens a text to at most n bytes, including an ellipsis.
func truncate(text string, n int) string {
	const ellipsis = "…"
	if text = strings.ToValidUTF8(text, ""); len(text) > n {
		text = strings.ToValidUTF8(text[:n-len(ellipsis)], "") + ellipsis
	}
	return text
}

// reportableFindings returns the findings that need a person's attention. Ghosts, and findings that a hold
// explains, stay in the list but are not drift.
func reportableFindings(list []fleet.Finding, now time.Time) []fleet.Finding {
	return slices.DeleteFunc(fleet.UnexplainedFindings(list, now), func(f fleet.Finding) bool { return f.Severity == fleet.SeverityInfo })
}

// newFindings returns the findings in reported that were not reported in was.
func newFindings(reported []fleet.Finding, was []v1alpha1.EnrollmentFinding) (out []fleet.Finding) {
	old := map[string]bool{}
	for _, f := range was {
		if f.Settled && f.ExplainedBy == "" && f.Severity != string(fleet.SeverityInfo) {
			old[f.ID] = true
		}
	}
	for _, f := range reported {
		if !old[f.ID()] {
			out = append(out, f)
		}
	}
	return out
}

// driftCondition returns the condition that reports drift, with the worst findings first.
func driftCondition(list []fleet.Finding, now time.Time) fleet.Condition {
	reported := reportableFindings(list, now)
	if len(reported) == 0 {
		c := fleet.Condition{
			Type:    conditionDrifted,
			Status:  fleet.No,
			Reason:  fleet.ReasonNone,
			Message: "Forge and cluster match the desired state.",
		}
		if n := len(list); n > 0 {
			c.Message += fmt.Sprintf(" Findings that need no action or may resolve: %d, see status.findings.", n)
		}
		return c
	}
	const shown = 3
	var texts []string
	for _, f := range reported[:min(len(reported), shown)] {
		texts = append(texts, findingMessage(f))
	}
	if n := len(reported) - shown; n > 0 {
		texts = append(texts, fmt.Sprintf("And %d more, see status.findings.", n))
	}
	return fleet.Condition{Type: conditionDrifted, Status: fleet.Yes, Reason: string(reported[0].Kind), Message: strings.Join(texts, " ")}
}

// findingMessage describes a finding in one or two sentences. It quotes text of others.
func findingMessage(f fleet.Finding) string {
	text := f.Evidence
	if f.Workload != "" {
		text = f.Workload + ": " + text
	}
	if f.Desired != "" || f.Actual != "" {
		text += fmt.Sprintf(" Desired: %s; actual: %s.", f.Desired, f.Actual)
	}
	if f.Unconfirmed {
		text += " The last check could not confirm it."
	}
	return truncate(text+" "+f.Advice, 512)
}
