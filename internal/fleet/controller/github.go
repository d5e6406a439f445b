package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/arc"
	"github.com/tailplane/tailplane/internal/fleet/forge"
	"github.com/tailplane/tailplane/internal/fleet/isolation"
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

// scaleSets collects the workloads at GitHub.
func (l *enrollmentState) scaleSets(ctx context.Context) (err error) {
	if l.arcState, err = l.deps.arcCache.get(ctx, l.e.Name, l.live); err != nil {
		return err
	}
	namespace := fleet.NamespaceOf(l.e, l.deps.settings.isolation.Shared)
	if !l.arcState.Synced {
		l.arcFailure = fleet.Failure{Reason: arc.ReasonMissing, Message: "The actions-runner-controller is not installed, or cannot be read."}
		l.facts.Listed = l.e.Annotations[v1alpha1.ForceCleanupAnnotation] != "" && !l.e.DeletionTimestamp.IsZero() && l.deps.arcCache.notInstalled(ctx)
		return nil
	}
	controller, failure := arc.Choose(l.arcState.Controllers, namespace)
	l.arcFailure, l.settings.ARC = failure, controller.ARC()
	for key, parts := range l.arcState.Objects {
		if parts.Set == nil || !parts.Set.Managed || parts.Set.Org != l.e.Name {
			continue
		}
		u := l.arcState.Sets[key]
		revision, _ := strconv.Atoi(u.GetAnnotations()[revisionAnnotation])
		s := parts.State()
		w := &workload{set: parts.Set, state: s, Workload: fleet.Workload{Key: key, Pool: parts.Set.Pool, Revision: max(revision, 1), Shape: u.GetAnnotations()[shapeAnnotation],
			Object: fleet.Yes, Ready: s.Registered, Stopped: s.Stopped, Jobs: s.Running, Ending: parts.Set.Ending, Remote: fleet.Yes, RemoteID: parts.Set.ID,
			Denied: l.denialCount(key.Name), Copies: s.Secrets, Failure: s.Failure}}
		l.resolvePool(w)
		w.inForce = parts.InForce(w.poolMax())
		for _, old := range l.e.Status.Pools {
			if old.Workload == w.Name && old.ScaleSetID != nil && *old.ScaleSetID == w.RemoteID {
				w.seenAt = old.SeenAt
			}
		}
		if c := s.Counts; c != nil {
			w.idle, w.busy, w.pending, w.failed, w.demand = &c.Idle, &c.Busy, &c.Pending, &c.Failed, new(c.Busy+c.Pending)
			if w.assigned = l.assignedJobs(parts, controller.MetricsPath); w.assigned != nil {
				w.demand = new(max(*w.assigned, c.Busy))
			}
		}
		if s.Counts != nil && w.Failure.Reason == "" {
			w.Failure = l.deps.arcCache.crashLoop(parts, s.Counts.Desired, l.now)
		}
		if s.WaitsForJobs && slices.ContainsFunc(l.arcState.Controllers, func(c arc.Controller) bool { return c.Eventual }) {
			w.drift = append(w.drift, arc.ReasonResumeWaits)
		}
		if other, conflict := l.conflicts[key]; conflict {
			w.Failure = arc.ConflictFailure(other)
		}
		if l.arcFailure.Reason != "" {
			w.reason = reasonUnreachable
		}
		l.workloads = append(l.workloads, w)
	}
	l.sortWorkloads()
	return nil
}

// assignedJobs returns the number of jobs that GitHub assigned to a scale set, from the metrics of its
// listener.
func (l *enrollmentState) assignedJobs(parts *arc.Objects, path string) *int {
	i := slices.IndexFunc(parts.Pods, func(pod arc.Pod) bool {
		return pod.Ready && pod.Metrics.IsValid() && slices.ContainsFunc(parts.Listeners, func(l arc.Listener) bool { return l.UID == pod.Listener && !l.Ending })
	})
	if i < 0 || path == "" {
		return nil
	}
	return l.deps.listenerPoller.assigned(parts.Key, parts.Pods[i].Metrics, path)
}

// stranded returns the number of jobs that are assigned to a scale set but cannot start, because it
// may have no runners. It returns nil if the number is not known, or if the scale set may have
// runners.
func (w *workload) stranded() *int {
	if w.assigned == nil || w.state.Running == nil || w.target.Max > 0 {
		return nil
	}
	return new(max(*w.assigned-*w.state.Running, 0))
}

// renderSet renders the desired AutoscalingRunnerSet of a workload, without its capacity.
func (l *enrollmentState) renderSet(name, shape string, revision int, pool *v1alpha1.RunnerPool, use *v1alpha1.EnrolledPool, credential string) (*unstructured.Unstructured, error) {
	unit := l.workloadSpec(pool, use, name, fleet.Capacity{})
	unit.Credential = credential
	set, err := isolation.ScaleSet(l.settings, unit)
	if err != nil {
		return nil, err
	}
	set.SetAnnotations(map[string]string{shapeAnnotation: shape, revisionAnnotation: strconv.Itoa(revision)})
	unstructured.RemoveNestedField(set.Object, "spec", "minRunners")
	unstructured.RemoveNestedField(set.Object, "spec", "maxRunners")
	return prepareApply(set)
}

// compareSet compares a workload with its desired state.
func (l *enrollmentState) compareSet(w *workload) {
	if w.use == nil || w.Shape == "" {
		return
	}
	credential := w.set.Secret
	if l.facts.Credential.Valid == fleet.Yes {
		credential = fleet.CredentialName(l.e.Name, l.facts.Credential.Fingerprint)
	}
	want, err := l.renderSet(w.Name, w.Shape, w.Revision, w.pool, w.use, credential)
	switch {
	case err != nil && l.arcFailure.Reason != "":
		w.Current = true // without ARC it cannot be changed anyway
	case err != nil:
		w.Failure = fleet.Failure{Reason: reasonUnrendered, Message: err.Error()}
	default:
		w.Current = upToDate(want, l.arcState.Sets[w.Key])
	}
	if !w.Current && w.Failure.Reason == arc.ReasonOutdated {
		w.Failure = fleet.Failure{} // the coming change repairs it
	}
	if w.Failure.Reason == arc.ReasonCrashLoop {
		l.failures = append(l.failures, w.Failure)
		w.drift, w.Failure = append(w.drift, arc.ReasonCrashLoop), fleet.Failure{}
	}
	if labels, err := isolation.SupportsLabels(l.settings.ARC.Version); err == nil && !labels {
		w.drift = append(w.drift, reasonNoLabels)
		l.failures = append(l.failures, fleet.Failure{Reason: reasonNoLabels, Message: fmt.Sprintf("This actions-runner-controller does not support labels: jobs select the runners with runs-on: %s.", w.Name)})
	}
}

// applySet brings a scale set to its desired state, or creates it.
func (l *enrollmentState) applySet(ctx context.Context, w *workload, to fleet.DesiredWorkload) error {
	if l.arcFailure.Reason != "" {
		return nil // the status reports that
	}
	credential := fleet.CredentialName(l.e.Name, l.facts.Credential.Fingerprint)
	name, revision, shape, pool := "", 0, to.Shape, l.pools[to.Pool]
	var capacity fleet.Capacity
	var use *v1alpha1.EnrolledPool
	if w != nil {
		name, revision, shape, pool, use = w.Name, w.Revision, w.Shape, w.pool, w.use
		capacity = fleet.Capacity{Min: w.set.Min, Max: w.set.Max} // apply sets the new capacity later
	} else {
		var taken []string
		for _, x := range l.workloads {
			taken = append(taken, x.Name)
			if x.Pool == to.Pool {
				revision = max(revision, x.Revision)
			}
		}
		name, revision = fleet.NextWorkloadName(l.e.Name, to.Pool, revision, taken)
		i := slices.IndexFunc(l.e.Spec.Pools, func(u v1alpha1.EnrolledPool) bool { return u.Name == to.Pool })
		if i < 0 || pool == nil {
			return nil
		}
		use = &l.e.Spec.Pools[i]
		if revision == 1 { // replaces no workload; a replacement must wait until the old one takes no jobs
			capacity = l.capacityOf(pool, use)
		}
	}
	set, err := l.renderSet(name, shape, revision, pool, use, credential)
	if err != nil {
		l.failures = append(l.failures, fleet.Failure{Reason: reasonUnrendered, Message: err.Error()})
		return nil
	}
	if ok, err := l.ensureRunnerGroup(ctx, use); err != nil || !ok {
		return err
	}
	if w == nil {
		if other, taken := l.deps.arcCache.conflictWith(set); taken { // GitHub would give this set another set's jobs
			l.failures = append(l.failures, arc.ConflictFailure(other))
			return nil
		}
		if ok, err := l.checkGate(ctx, set); err != nil || !ok {
			return err
		}
	}
	spec := set.Object["spec"].(map[string]any)
	spec["minRunners"], spec["maxRunners"] = int64(capacity.Min), int64(capacity.Max)
	return applyObject(ctx, l.deps.direct, set)
}

// checkGate prevents an endless loop of creation and deletion if ARC deletes a scale set right after its
// creation.
func (l *enrollmentState) checkGate(ctx context.Context, set *unstructured.Unstructured) (bool, error) {
	is, err := getObject(ctx, l.deps.direct, arc.Kind(arc.SetKind), client.ObjectKeyFromObject(set))
	if err != nil || is != nil && is.GetDeletionTimestamp() != nil {
		return false, err
	}
	if is != nil {
		if !isManagedFor(is, l.e.Name) { // its creator does not know the fleet's names
			l.failures = append(l.failures, fleet.Failure{Reason: arc.ReasonConflict, Message: fmt.Sprintf("The fleet did not create %s/%s.", is.GetNamespace(), is.GetName())})
			return false, nil
		}
		return true, nil
	}
	note := gateAnnotation + set.GetName()
	g, version := arc.ParseCreationGate(l.e.Annotations[note]), l.settings.ARC.Version
	refuse := func(t fleet.Failure, until time.Time) bool {
		if t.Reason != "" {
			l.failures = append(l.failures, t)
			l.wake = earliest(l.wake, until)
		}
		return t.Reason != ""
	}
	if refuse(g.Allows(version, l.now)) {
		return false, nil
	}
	if !g.CreatedAt.IsZero() {
		g = g.Removed(l.now)
		if refuse(g.Allows(version, l.now)) {
			return false, l.annotateEnrollment(ctx, note, g.String())
		}
	}
	return true, l.annotateEnrollment(ctx, note, g.Created(version, l.now).String())
}

// ensureRunnerGroup ensures the runner group that limits a pool to some repositories. Without the group,
// no runner may be registered, because the default group is open to all repositories.
func (l *enrollmentState) ensureRunnerGroup(ctx context.Context, use *v1alpha1.EnrolledPool) (bool, error) {
	if use.Type != v1alpha1.UseOrgPlusUser {
		return true, nil
	}
	name := fleet.RunnerGroupName(l.e, *use)
	no := func(err error) (bool, error) {
		switch forge.ClassOf(err) {
		case forge.NotFound, forge.Forbidden, forge.Invalid, forge.Refused:
			l.failures = append(l.failures, fleet.Failure{Reason: reasonNoGroups, Message: fmt.Sprintf("The runner group %q is not available, so nothing is registered: %v", name, err)})
			return false, nil
		}
		return false, err
	}
	groups, err := l.session.GitHub.RunnerGroups(ctx)
	if err != nil {
		return no(err)
	}
	created := createdGroups(l.e)
	exists := slices.ContainsFunc(groups, func(g forge.RunnerGroup) bool { return strings.EqualFold(g.Name, name) })
	if !exists && !slices.Contains(created, name) { // record the name before the creation
		if err := l.annotateEnrollment(ctx, groupsAnnotation, strings.Join(append(created, name), ",")); err != nil {
			return false, err
		}
	}
	if _, _, err := l.session.GitHub.EnsureRunnerGroup(ctx, name, use.Repositories, use.AllowPublic); err != nil {
		return no(err)
	}
	return true, nil
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
func (l *enrollmentState) remainingGroups(ctx context.Context) (left []forge.RunnerGroup, answer fleet.Answer) {
	created := createdGroups(l.e)
	if len(created) == 0 {
		return nil, fleet.No
	}
	if l.session == nil || l.session.GitHub == nil {
		return nil, fleet.Unknown
	}
	groups, err := l.session.GitHub.RunnerGroups(ctx)
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

// scale writes the capacity of a scale set.
func (l *enrollmentState) scale(ctx context.Context, w *workload) error {
	if w.set.Ending || w.set.Phase == arc.Outdated || w.Failure.Reason == arc.ReasonConflict || w.set.Min == w.target.Min && w.set.Max == w.target.Max {
		return nil
	}
	u := newARCObject(arc.SetKind)
	u.SetNamespace(w.Namespace)
	u.SetName(w.Name)
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": w.set.UID}, "spec": map[string]any{"minRunners": w.target.Min, "maxRunners": w.target.Max}})
	if err != nil {
		return err
	}
	if err := l.deps.direct.Patch(ctx, u, client.RawPatch(types.MergePatchType, patch)); err != nil {
		w.reason = reasonUnreachable
		return fmt.Errorf("scale %s: %w", w.Name, client.IgnoreNotFound(err))
	}
	w.inForce, w.Stopped = max(w.inForce, w.target.Max), fleet.Unknown // until ARC has applied it
	return nil
}

// forceCancelAfter is the time after which mode Stop force-cancels a run that did not end.
const forceCancelAfter = 5 * time.Minute

// cancelRuns requests the end of all runs that still run.
func (l *enrollmentState) cancelRuns(ctx context.Context, w *workload) error {
	var errs []error
	force := !l.now.Before(w.target.CancelAt.Add(forceCancelAfter))
	for _, job := range w.state.Jobs {
		if job.Run == 0 || job.Repository == "" || l.session == nil || l.session.GitHub == nil {
			continue
		}
		errs = append(errs, l.requestEnd(w, job.Run, "A GitHub App needs the permission Actions: write to end them.", func() error {
			err := l.session.GitHub.CancelRun(ctx, job.Repository, job.Run, force)
			if forge.ClassOf(err) == forge.Conflict { // it has ended
				return nil
			}
			return err
		}))
	}
	return errors.Join(errs...)
}

// requestEnd requests the end of a run or a job of a workload. If the credential lacks the permission, it
// records a denial that names the missing permission.
func (l *enrollmentState) requestEnd(w *workload, id int64, takes string, request func() error) error {
	requested, err := l.session.requestEnd(id, l.now, request)
	class := forge.ClassOf(err)
	if class == "" || class == forge.NotFound {
		return nil
	}
	w.reason = cmp.Or(w.reason, reasonUnreachable)
	if class == forge.Forbidden {
		w.denial = fleet.Failure{Reason: reasonMayNotCancel, Message: fmt.Sprintf("The credential may not end the jobs of %s, so they continue. %s %v", w.Name, takes, err)}
	}
	if !requested { // no request was sent; the error is an old one
		return nil
	}
	return err
}
