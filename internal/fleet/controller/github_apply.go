package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/arc"
	"github.com/tailplane/tailplane/internal/fleet/forge"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// applySet brings a scale set to its desired state.
func (a *actor) applySet(ctx context.Context, t task) error {
	// applyCapacities sets the new capacity later.
	capacity := fleet.Capacity{Min: t.set.Min, Max: t.set.Max}
	return a.writeSet(ctx, setSpec{name: t.Name, shape: t.Shape, revision: t.Revision, pool: t.pool, use: t.use, capacity: capacity}, false)
}

// createSet creates a scale set.
func (a *actor) createSet(ctx context.Context, to fleet.DesiredWorkload) error {
	s, ok := newSet(a.o, to)
	if !ok {
		return nil
	}
	a.done.wake = retry.Earliest(a.done.wake, s.capacity.Wake)
	return a.writeSet(ctx, s, true)
}

func (a *actor) writeSet(ctx context.Context, s setSpec, isNew bool) error {
	if a.o.arcFailure.Reason != "" {
		return nil // the status reports that
	}
	set, err := renderSet(a.o, s, fleet.CredentialName(a.e.Name, a.o.facts.Credential.Fingerprint))
	if err != nil {
		a.fail(reasonUnrendered, err.Error())
		return nil
	}
	if ok, err := a.ensureRunnerGroup(ctx, s.use); err != nil || !ok {
		return err
	}
	if isNew {
		if other, taken := a.deps.arcCache.conflictWith(set); taken { // GitHub would give this set another set's jobs
			a.done.failures = append(a.done.failures, arc.ConflictFailure(other))
			return nil
		}
		if ok, err := a.passGate(ctx, set); err != nil || !ok {
			return err
		}
	}
	spec := set.Object["spec"].(map[string]any)
	spec["minRunners"], spec["maxRunners"] = int64(s.capacity.Min), int64(s.capacity.Max)
	return applyObject(ctx, a.deps.direct, set)
}

// passGate reports whether a scale set may be created, and records the decision.
func (a *actor) passGate(ctx context.Context, set *unstructured.Unstructured) (bool, error) {
	is, err := getObject(ctx, a.deps.direct, arc.Kind(arc.SetKind), client.ObjectKeyFromObject(set))
	switch {
	case err != nil || is != nil && is.GetDeletionTimestamp() != nil:
		return false, err
	case is != nil && isManagedFor(is, a.e.Name):
		return true, nil
	case is != nil: // its creator does not know the fleet's names
		a.fail(arc.ReasonConflict, fmt.Sprintf("The fleet did not create %s/%s.", is.GetNamespace(), is.GetName()))
		return false, nil
	}
	note := gateAnnotation + set.GetName()
	gate := decideGate(a.e.Annotations[note], a.o.settings.ARC.Version, a.o.now)
	if !gate.allowed {
		a.done.failures = append(a.done.failures, gate.failure)
		a.done.wake = retry.Earliest(a.done.wake, gate.until)
	}
	return gate.allowed, a.annotateEnrollment(ctx, note, gate.record)
}

// ensureRunnerGroup ensures the runner group that limits a pool to some repositories. Without the group,
// no runner may be registered, because the default group is open to all repositories.
func (a *actor) ensureRunnerGroup(ctx context.Context, use *v1alpha1.EnrolledPool) (bool, error) {
	if use.Type != v1alpha1.UseOrgPlusUser {
		return true, nil
	}
	name := fleet.RunnerGroupName(a.e, *use)
	no := func(err error) (bool, error) {
		switch forge.ClassOf(err) {
		case forge.NotFound, forge.Forbidden, forge.Invalid, forge.Refused:
			a.fail(reasonNoGroups, fmt.Sprintf("The runner group %q is not available, so nothing is registered: %v", name, err))
			return false, nil
		}
		return false, err
	}
	groups, err := a.o.session.GitHub.RunnerGroups(ctx)
	if err != nil {
		return no(err)
	}
	created := createdGroups(a.e)
	exists := slices.ContainsFunc(groups, func(g forge.RunnerGroup) bool { return strings.EqualFold(g.Name, name) })
	if !exists && !slices.Contains(created, name) { // record the name before the creation
		if err := a.annotateEnrollment(ctx, groupsAnnotation, strings.Join(append(created, name), ",")); err != nil {
			return false, err
		}
	}
	if _, _, err := a.o.session.GitHub.EnsureRunnerGroup(ctx, name, use.Repositories, use.AllowPublic); err != nil {
		return no(err)
	}
	return true, nil
}

// scale writes the capacity of a scale set.
func (a *actor) scale(ctx context.Context, t task) error {
	target := t.plan.target
	fixed := t.set.Ending || t.set.Phase == arc.Outdated || t.plan.failure.Reason == arc.ReasonConflict
	if fixed || t.set.Min == target.Min && t.set.Max == target.Max {
		return nil
	}
	u := newARCObject(arc.SetKind)
	u.SetNamespace(t.Namespace)
	u.SetName(t.Name)
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": t.set.UID},
		"spec": map[string]any{"minRunners": target.Min, "maxRunners": target.Max}})
	if err != nil {
		return err
	}
	if err := a.deps.direct.Patch(ctx, u, client.RawPatch(types.MergePatchType, patch)); err != nil {
		t.done.reason = reasonUnreachable
		return fmt.Errorf("scale %s: %w", t.Name, client.IgnoreNotFound(err))
	}
	t.done.inForce, t.done.stopped = max(t.inForce, target.Max), fleet.Unknown // until ARC has applied it
	return nil
}

// forceCancelAfter is the time after which mode Stop force-cancels a run that did not end.
const forceCancelAfter = 5 * time.Minute

// cancelRuns requests the end of all runs that still run.
func (a *actor) cancelRuns(ctx context.Context, t task) error {
	var errs []error
	force := !a.o.now.Before(t.plan.target.CancelAt.Add(forceCancelAfter))
	for _, job := range t.state.Jobs {
		if job.Run == 0 || job.Repository == "" || a.o.session == nil || a.o.session.GitHub == nil {
			continue
		}
		errs = append(errs, a.requestEnd(t, job.Run, "A GitHub App needs the permission Actions: write to end them.", func() error {
			err := a.o.session.GitHub.CancelRun(ctx, job.Repository, job.Run, force)
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
func (a *actor) requestEnd(t task, id int64, requirement string, request func() error) error {
	requested, err := a.o.session.requestEnd(id, a.o.now, request)
	class := forge.ClassOf(err)
	if class == "" || class == forge.NotFound {
		return nil
	}
	t.done.reason = cmp.Or(t.done.reason, reasonUnreachable)
	if class == forge.Forbidden {
		t.done.denial = fleet.Failure{Reason: reasonMayNotCancel,
			Message: fmt.Sprintf("The credential may not end the jobs of %s, so they continue. %s %v", t.Name, requirement, err)}
	}
	if !requested { // no request was sent; the error is an old one
		return nil
	}
	return err
}

// deleteRunnerGroups deletes the runner groups that were created for the enrollment.
func (a *actor) deleteRunnerGroups(ctx context.Context) error {
	left, _ := remainingGroups(ctx, a.o)
	for _, g := range left {
		if err := a.o.session.GitHub.DeleteRunnerGroup(ctx, g.ID); err != nil {
			return err
		}
	}
	return nil
}
