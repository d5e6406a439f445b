package controller

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/arc"
	"github.com/tailplane/tailplane/internal/fleet/forge"
)

// Annotations that the fleet writes.
const (
	shapeAnnotation    = "tailplane.dev/shape"         // on a workload: see fleet.ShapeHash
	revisionAnnotation = "tailplane.dev/revision"      // on a workload
	gateAnnotation     = "tailplane.dev/gate-"         // on an enrollment, with the workload's name as suffix: see arc.CreationGate
	deniedAnnotation   = "tailplane.dev/denied-"       // on an enrollment, with the workload's name as suffix: count and time of refusals
	groupsAnnotation   = "tailplane.dev/runner-groups" // on an enrollment: names of the runner groups that were created for it
)

// Reasons that the controllers set, in addition to those of package arc.
const (
	reasonUnreachable  = fleet.ReasonUnreachable
	reasonNoGroups     = "RunnerGroupsUnavailable" // GitHub has no runner groups for this organisation
	reasonNoLabels     = "LabelsUnsupported"       // ARC before 0.14 supports only the name of a scale set
	reasonUnrendered   = "CannotBeRendered"        // the settings and the pool do not fit together
	reasonMayNotCancel = "CancelForbidden"         // mode Stop, but the forge does not allow the credential to cancel jobs
	reasonPausedByHand = "PausedOutside"           // a person paused a runner at the forge
)

// readScaleSets collects the workloads at GitHub.
func readScaleSets(ctx context.Context, d deps, o *observed) (err error) {
	if o.arcState, err = d.arcCache.get(ctx, o.e.Name, o.live); err != nil {
		return err
	}
	namespace := fleet.NamespaceOf(o.e, o.settings.Shared)
	if !o.arcState.Synced {
		o.arcFailure = fleet.Failure{
			Reason:  arc.ReasonMissing,
			Message: "The actions-runner-controller is not installed, or cannot be read.",
		}
		abandoned := o.e.Annotations[v1alpha1.ForceCleanupAnnotation] != "" && !o.e.DeletionTimestamp.IsZero()
		o.facts.Listed = abandoned && d.arcCache.notInstalled(ctx)
		return nil
	}
	controller, failure := arc.Choose(o.arcState.Controllers, namespace)
	o.arcFailure, o.settings.ARC = failure, controller.ARC()
	for key, parts := range o.arcState.Objects {
		if parts.Set == nil || !parts.Set.Managed || parts.Set.Org != o.e.Name {
			continue
		}
		u := o.arcState.Sets[key]
		revision, _ := strconv.Atoi(u.GetAnnotations()[revisionAnnotation])
		s := parts.State()
		w := &workload{set: parts.Set, state: s, Workload: fleet.Workload{Key: key, Pool: parts.Set.Pool, Revision: max(revision, 1),
			Shape: u.GetAnnotations()[shapeAnnotation], Object: fleet.Yes, Ready: s.Registered, Stopped: s.Stopped, Jobs: s.Running,
			Ending: parts.Set.Ending, Remote: fleet.Yes, RemoteID: parts.Set.ID,
			Denied: o.denialCount(key.Name), Copies: s.Secrets, Failure: s.Failure}}
		o.resolvePool(w)
		w.inForce = parts.InForce(w.poolMax())
		for _, old := range o.e.Status.Pools {
			if old.Workload == w.Name && old.ScaleSetID != nil && *old.ScaleSetID == w.RemoteID {
				w.seenAt = old.SeenAt
			}
		}
		if c := s.Counts; c != nil {
			w.idle, w.busy, w.pending, w.failed, w.demand = &c.Idle, &c.Busy, &c.Pending, &c.Failed, new(c.Busy+c.Pending)
			if w.assigned = assignedJobs(d, parts, controller.MetricsPath); w.assigned != nil {
				w.demand = new(max(*w.assigned, c.Busy))
			}
		}
		if s.Counts != nil && w.Failure.Reason == "" {
			w.Failure = d.arcCache.crashLoop(parts, s.Counts.Desired, o.now)
		}
		if s.WaitsForJobs && slices.ContainsFunc(o.arcState.Controllers, func(c arc.Controller) bool { return c.Eventual }) {
			w.drift = append(w.drift, arc.ReasonResumeWaits)
		}
		if other, conflict := o.conflicts[key]; conflict {
			w.Failure = arc.ConflictFailure(other)
		}
		if o.arcFailure.Reason != "" {
			w.reason = reasonUnreachable
		}
		o.workloads = append(o.workloads, w)
	}
	o.sortWorkloads()
	return nil
}

// assignedJobs returns the number of jobs that GitHub assigned to a scale set, from the metrics of its
// listener.
func assignedJobs(d deps, parts *arc.Objects, path string) *int {
	i := slices.IndexFunc(parts.Pods, func(pod arc.Pod) bool {
		return pod.Ready && pod.Metrics.IsValid() &&
			slices.ContainsFunc(parts.Listeners, func(l arc.Listener) bool { return l.UID == pod.Listener && !l.Ending })
	})
	if i < 0 || path == "" {
		return nil
	}
	return d.listenerPoller.assigned(parts.Key, parts.Pods[i].Metrics, path)
}

// createdGroups returns the names of the runner groups that were created for an enrollment.
func createdGroups(e *v1alpha1.RunnerEnrollment) []string {
	if e.Annotations[groupsAnnotation] == "" {
		return nil
	}
	return strings.Split(e.Annotations[groupsAnnotation], ",")
}

// remainingGroups returns the runner groups that were created for the enrollment and still exist, and
// whether there are any.
func remainingGroups(ctx context.Context, o *observed) (left []forge.RunnerGroup, answer fleet.Answer) {
	created := createdGroups(o.e)
	if len(created) == 0 {
		return nil, fleet.No
	}
	if o.session == nil || o.session.GitHub == nil {
		return nil, fleet.Unknown
	}
	groups, err := o.session.GitHub.RunnerGroups(ctx)
	if err != nil {
		return nil, fleet.Unknown
	}
	for _, g := range groups {
		if slices.Contains(created, g.Name) && !g.Default {
			left = append(left, g)
		}
	}
	return left, fleet.AnswerOf(len(left) > 0)
}
