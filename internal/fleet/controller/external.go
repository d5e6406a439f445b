package controller

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/arc"
)

// Reasons of the conditions of an adopting pool, in addition to those of package arc.
const (
	reasonSetNotFound      = "ScaleSetNotFound" // no scale set of that name
	reasonSetManaged       = "ScaleSetOurs"     // created by the fleet itself
	reasonAdoptedTwice     = "AdoptedTwice"     // an older pool adopts it
	reasonAdoptForbidden   = "AdoptForbidden"   // the fleet may not write there
	reasonSetNotRegistered = "NotRegistered"    // not at GitHub yet, or its listener does not run
)

// forbiddenRetry is the retry interval after a forbidden write. No event announces a new
// permission, so the fleet must poll.
const forbiddenRetry = 10 * time.Second

// An externalReconciler reconciles external scale sets.
type externalReconciler struct{ deps }

// externalName returns the name of a scale set in reconcile requests.
func externalName(namespace, name string) string { return namespace + "/" + name }

// names returns the names of all scale sets that pools adopt.
func (k *externalReconciler) names(ctx context.Context) (names []string) {
	pools, err := k.pools(ctx)
	if err != nil {
		k.log.Error("list pools in the cache", "err", err)
	}
	for i := range pools {
		names = append(names, externalName(pools[i].Spec.Adopt.Namespace, pools[i].Spec.Adopt.Name))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// pools returns the adopting pools, the oldest first.
func (k *externalReconciler) pools(ctx context.Context) ([]v1alpha1.RunnerPool, error) {
	var list v1alpha1.RunnerPoolList
	if err := k.cached.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	// The pools are shared with the cache: read only.
	out := slices.DeleteFunc(list.Items, func(p v1alpha1.RunnerPool) bool { return p.Spec.Adopt == nil })
	slices.SortFunc(out, func(a, b v1alpha1.RunnerPool) int { return fleet.CompareAge(&a, &b) })
	return out, nil
}

// reconcile reconciles one scale set: it performs the next step that a hold, or the absence of a hold,
// requires.
func (k *externalReconciler) reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	namespace, name, _ := strings.Cut(req.Name, "/")
	pools, err := k.pools(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	pools = slices.DeleteFunc(pools, func(p v1alpha1.RunnerPool) bool {
		return p.Spec.Adopt.Namespace != namespace || p.Spec.Adopt.Name != name
	})
	if len(pools) == 0 && !k.arcCache.hasAnnotation(namespace, name, arc.HeldAnnotation) {
		return reconcile.Result{}, nil // not adopted, and the fleet wrote nothing to it
	}
	now := k.now()
	var capacity fleet.Capacity
	if len(pools) > 0 {
		if capacity, err = k.capacity(ctx, &pools[0], now); err != nil {
			return reconcile.Result{}, err
		}
	}
	s := externalState{Hold: capacity.Hold, Held: capacity.Mode != ""}
	written, wake, err := k.applyHold(ctx, namespace, name, &s, now)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("read the adopted scale set %s: %w", req.Name, err)
	}
	for i := range pools {
		if i > 0 {
			s = externalState{
				Failure: fleet.Failure{Reason: reasonAdoptedTwice, Message: fmt.Sprintf("The pool %q adopts it already.", pools[0].Name)},
			}
		}
		if k.state.observeExternal(pools[i].Name, s) {
			k.triggers.pool.enqueue(pools[i].Name)
			k.enqueueHolds(ctx)
		}
	}
	after := maxRequeueAfter
	for _, at := range []time.Time{wake, capacity.Wake} {
		if !at.IsZero() {
			after = min(after, max(at.Sub(now), 0)+time.Millisecond)
		}
	}
	switch {
	case written:
		after = debounce
	case s.Held && s.Failure.Reason == reasonAdoptForbidden:
		after = min(after, forbiddenRetry)
	case s.Held && s.State.Stopped != fleet.Yes:
		after = min(after, k.arcCache.PollInterval)
	case len(pools) == 0:
		return reconcile.Result{}, nil // restored, or not restorable; then the annotation shows it
	}
	return requeueIn(after)
}

// capacity returns the capacity of an adopting pool under the holds. The pool belongs to no
// organisation.
func (k *externalReconciler) capacity(ctx context.Context, p *v1alpha1.RunnerPool, now time.Time) (fleet.Capacity, error) {
	var holds v1alpha1.RunnerHoldList
	if err := k.cached.List(ctx, &holds); err != nil {
		return fleet.Capacity{}, err
	}
	return fleet.Effective(fleet.Target{Forge: p.Spec.Forge, Pool: p.Name}, p.Spec.Scaling, 0, holds.Items, now), nil
}

// applyHold reads a scale set and performs one step.
func (k *externalReconciler) applyHold(
	ctx context.Context,
	namespace, name string,
	s *externalState,
	now time.Time,
) (written bool, wake time.Time, err error) {
	u := newARCObject(arc.SetKind)
	err = k.direct.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, u)
	switch {
	case apierrors.IsNotFound(err):
		s.Failure = fleet.Failure{Reason: reasonSetNotFound, Message: fmt.Sprintf("There is no scale set %s/%s.", namespace, name)}
		return false, wake, nil
	case err != nil:
		return false, wake, err
	}
	parts, err := k.arcCache.objects(u)
	if err != nil {
		return false, wake, err
	}
	s.Set, s.Objects = parts.Set, parts
	if s.Set.Managed {
		s.Set, s.Objects, s.Failure = nil, nil, fleet.Failure{Reason: reasonSetManaged, Message: "The fleet created this scale set itself."}
		return false, wake, nil
	}
	a := arc.NextExternalWrite(*s.Set, s.Held, now)
	s.Failure, wake = a.Failure, a.Wake
	err = k.apply(ctx, u, a)
	switch {
	case err == nil:
		written = a.Apply != nil || a.Patch != nil
	case apierrors.IsConflict(err) || apierrors.IsInvalid(err) || apierrors.IsNotFound(err): // a concurrent write, which ARC does often
		written, err = true, nil
	case apierrors.IsForbidden(err):
		s.Failure, err = fleet.Failure{
			Reason:  reasonAdoptForbidden,
			Message: fmt.Sprintf("The fleet may not write scale sets in %s: name it in fleet.adoptNamespaces.", namespace),
		}, nil
	default:
		return false, wake, err
	}
	s.State = parts.State()
	if written {
		s.State.Stopped = fleet.Unknown // until ARC has applied it
	}
	s.Failure = cmp.Or(s.Failure, s.State.Failure)
	if s.Failure.Reason == "" && s.State.Registered == fleet.No {
		s.Failure = fleet.Failure{
			Reason:  reasonSetNotRegistered,
			Message: "It is not registered at GitHub yet, or its listener does not run.",
		}
	}
	return written, wake, err
}

// apply applies the decision only to the version of the object that was read.
func (k *externalReconciler) apply(ctx context.Context, u *unstructured.Unstructured, a arc.ExternalWrite) error {
	switch {
	case a.Apply != nil:
		return k.direct.Apply(
			ctx,
			client.ApplyConfigurationFromUnstructured(a.Apply),
			client.ForceOwnership,
			client.FieldOwner(arc.HoldManager),
		)
	case a.Patch != nil:
		return k.direct.Patch(ctx, u, client.RawPatch(types.JSONPatchType, a.Patch), client.FieldOwner(arc.HoldManager))
	}
	return nil
}

// An externalSet is an external scale set that takes jobs of an organisation.
type externalSet struct {
	pool string
	externalState
	seenAt *metav1.Time // first time that GitHub was seen to have a runner of it; nil: never
}

// externalSetsOf returns the adopted scale sets with the organisation's URL at GitHub. It omits a scale set
// with the name of a workload of the organisation, because their runners could not be
// distinguished.
func externalSetsOf(
	e *v1alpha1.RunnerEnrollment,
	pools map[string]*v1alpha1.RunnerPool,
	b *sharedState,
	own func(name string) bool,
) (all []externalSet) {
	scope, ok := fleet.ParseConfigURL(e.Spec.ConfigURL)
	for _, pool := range slices.Sorted(maps.Keys(pools)) {
		a, seen := b.externalOf(pool)
		if !ok || !seen || a.Objects == nil || pools[pool].Spec.Forge != e.Spec.Forge {
			continue
		}
		if of, valid := fleet.ParseConfigURL(a.Set.ConfigURL); !valid || of.String() != scope.String() || own(a.Set.Name) {
			continue
		}
		x := externalSet{pool: pool, externalState: a}
		for _, old := range e.Status.Adopted {
			if old.Name == pool {
				x.seenAt = old.SeenAt
			}
		}
		all = append(all, x)
	}
	return all
}

// observeExternalSets adds the observed state of external scale sets to o. Their desired state is not known to
// the fleet. online says which runners are online; controller is ARC's version.
func observeExternalSets(sets []externalSet, o *fleet.DriftInput, online map[int64]bool, eventual bool, controller string, now time.Time) {
	for i := range sets {
		a := &sets[i]
		x := fleet.DriftWorkload{
			Pool:      a.pool,
			Name:      a.Set.Name,
			External:  true,
			Ending:    a.Set.Ending,
			Allocated: a.Set.Max,
			Capacity:  fleet.Capacity{Min: a.Set.Min, Max: a.Set.Max, Hold: a.Hold},
		}
		x.Cluster = scaleSetInCluster(a.Objects, a.State, nil, eventual, controller)
		x.Remote = scaleSetAtGitHub(a.Set.Name, o.Registered, online, o.Listed, a.seenAt != nil)
		if x.Remote.Registered == fleet.Yes {
			a.seenAt = cmp.Or(a.seenAt, new(metav1.NewTime(now.Truncate(time.Second))))
		}
		o.Workloads = append(o.Workloads, x)
	}
}

// externalSetsStatus returns the status entries of external scale sets.
func externalSetsStatus(sets []externalSet) (all []v1alpha1.EnrolledAdoption) {
	for _, a := range sets[:min(len(sets), 50)] {
		all = append(
			all,
			v1alpha1.EnrolledAdoption{
				Name:          a.pool,
				Namespace:     a.Set.Namespace,
				Workload:      a.Set.Name,
				SeenAt:        a.seenAt,
				AdoptedStatus: *externalStatus(a.externalState),
			},
		)
	}
	return all
}
