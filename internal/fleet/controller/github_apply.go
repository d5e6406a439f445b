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
	unit := l.o.workloadSpec(pool, use, name, fleet.Capacity{})
	unit.Credential = credential
	set, err := isolation.ScaleSet(l.o.settings, unit)
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
	if l.o.facts.Credential.Valid == fleet.Yes {
		credential = fleet.CredentialName(l.o.e.Name, l.o.facts.Credential.Fingerprint)
	}
	want, err := l.renderSet(w.Name, w.Shape, w.Revision, w.pool, w.use, credential)
	switch {
	case err != nil && l.o.arcFailure.Reason != "":
		w.Current = true // without ARC it cannot be changed anyway
	case err != nil:
		w.Failure = fleet.Failure{Reason: reasonUnrendered, Message: err.Error()}
	default:
		w.Current = upToDate(want, l.o.arcState.Sets[w.Key])
	}
	if !w.Current && w.Failure.Reason == arc.ReasonOutdated {
		w.Failure = fleet.Failure{} // the coming change repairs it
	}
	if w.Failure.Reason == arc.ReasonCrashLoop {
		l.failures = append(l.failures, w.Failure)
		w.drift, w.Failure = append(w.drift, arc.ReasonCrashLoop), fleet.Failure{}
	}
	if labels, err := isolation.SupportsLabels(l.o.settings.ARC.Version); err == nil && !labels {
		w.drift = append(w.drift, reasonNoLabels)
		l.failures = append(l.failures, fleet.Failure{Reason: reasonNoLabels, Message: fmt.Sprintf("This actions-runner-controller does not support labels: jobs select the runners with runs-on: %s.", w.Name)})
	}
}

// applySet brings a scale set to its desired state, or creates it.
func (l *enrollmentState) applySet(ctx context.Context, w *workload, to fleet.DesiredWorkload) error {
	if l.o.arcFailure.Reason != "" {
		return nil // the status reports that
	}
	credential := fleet.CredentialName(l.o.e.Name, l.o.facts.Credential.Fingerprint)
	name, revision, shape, pool := "", 0, to.Shape, l.o.pools[to.Pool]
	var capacity fleet.Capacity
	var use *v1alpha1.EnrolledPool
	if w != nil {
		name, revision, shape, pool, use = w.Name, w.Revision, w.Shape, w.pool, w.use
		capacity = fleet.Capacity{Min: w.set.Min, Max: w.set.Max} // apply sets the new capacity later
	} else {
		var taken []string
		for _, x := range l.o.workloads {
			taken = append(taken, x.Name)
			if x.Pool == to.Pool {
				revision = max(revision, x.Revision)
			}
		}
		name, revision = fleet.NextWorkloadName(l.o.e.Name, to.Pool, revision, taken)
		i := slices.IndexFunc(l.o.e.Spec.Pools, func(u v1alpha1.EnrolledPool) bool { return u.Name == to.Pool })
		if i < 0 || pool == nil {
			return nil
		}
		use = &l.o.e.Spec.Pools[i]
		if revision == 1 { // replaces no workload; a replacement must wait until the old one takes no jobs
			capacity = l.o.capacityOf(pool, use)
			l.wake = earliest(l.wake, capacity.Wake)
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
		if !isManagedFor(is, l.o.e.Name) { // its creator does not know the fleet's names
			l.failures = append(l.failures, fleet.Failure{Reason: arc.ReasonConflict, Message: fmt.Sprintf("The fleet did not create %s/%s.", is.GetNamespace(), is.GetName())})
			return false, nil
		}
		return true, nil
	}
	note := gateAnnotation + set.GetName()
	g, version := arc.ParseCreationGate(l.o.e.Annotations[note]), l.o.settings.ARC.Version
	refuse := func(t fleet.Failure, until time.Time) bool {
		if t.Reason != "" {
			l.failures = append(l.failures, t)
			l.wake = earliest(l.wake, until)
		}
		return t.Reason != ""
	}
	if refuse(g.Allows(version, l.o.now)) {
		return false, nil
	}
	if !g.CreatedAt.IsZero() {
		g = g.Removed(l.o.now)
		if refuse(g.Allows(version, l.o.now)) {
			return false, l.annotateEnrollment(ctx, note, g.String())
		}
	}
	return true, l.annotateEnrollment(ctx, note, g.Created(version, l.o.now).String())
}

// ensureRunnerGroup ensures the runner group that limits a pool to some repositories. Without the group,
// no runner may be registered, because the default group is open to all repositories.
func (l *enrollmentState) ensureRunnerGroup(ctx context.Context, use *v1alpha1.EnrolledPool) (bool, error) {
	if use.Type != v1alpha1.UseOrgPlusUser {
		return true, nil
	}
	name := fleet.RunnerGroupName(l.o.e, *use)
	no := func(err error) (bool, error) {
		switch forge.ClassOf(err) {
		case forge.NotFound, forge.Forbidden, forge.Invalid, forge.Refused:
			l.failures = append(l.failures, fleet.Failure{Reason: reasonNoGroups, Message: fmt.Sprintf("The runner group %q is not available, so nothing is registered: %v", name, err)})
			return false, nil
		}
		return false, err
	}
	groups, err := l.o.session.GitHub.RunnerGroups(ctx)
	if err != nil {
		return no(err)
	}
	created := createdGroups(l.o.e)
	exists := slices.ContainsFunc(groups, func(g forge.RunnerGroup) bool { return strings.EqualFold(g.Name, name) })
	if !exists && !slices.Contains(created, name) { // record the name before the creation
		if err := l.annotateEnrollment(ctx, groupsAnnotation, strings.Join(append(created, name), ",")); err != nil {
			return false, err
		}
	}
	if _, _, err := l.o.session.GitHub.EnsureRunnerGroup(ctx, name, use.Repositories, use.AllowPublic); err != nil {
		return no(err)
	}
	return true, nil
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
	force := !l.o.now.Before(w.target.CancelAt.Add(forceCancelAfter))
	for _, job := range w.state.Jobs {
		if job.Run == 0 || job.Repository == "" || l.o.session == nil || l.o.session.GitHub == nil {
			continue
		}
		errs = append(errs, l.requestEnd(w, job.Run, "A GitHub App needs the permission Actions: write to end them.", func() error {
			err := l.o.session.GitHub.CancelRun(ctx, job.Repository, job.Run, force)
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
	requested, err := l.o.session.requestEnd(id, l.o.now, request)
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
