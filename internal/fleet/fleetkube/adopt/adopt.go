// Package adopt applies holds to external scale sets, which another controller manages, and reports
// their status. It implements law 6: it writes only the minimum, the maximum and an annotation. It
// restores them when the hold is lifted or no pool adopts the scale set any more. It deletes no
// scale set.
package adopt

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/arc"
	"github.com/tailplane/tailplane/internal/fleet/fleetkube/arcworld"
	"github.com/tailplane/tailplane/internal/fleet/fleetkube/board"
)

// Reasons of the conditions of an adopting pool, in addition to those of package arc.
const (
	reasonNotFound  = "ScaleSetNotFound" // no scale set of that name
	reasonOurs      = "ScaleSetOurs"     // created by the fleet itself
	reasonTwice     = "AdoptedTwice"     // an older pool adopts it
	reasonForbidden = "AdoptForbidden"   // the fleet may not write there
	reasonWaits     = "NotRegistered"    // not at GitHub yet, or its listener does not run
)

// forbiddenEvery is the retry interval after a forbidden write. No event announces a new
// permission, so the fleet must poll.
const forbiddenEvery = 10 * time.Second

// A Keeper reconciles external scale sets. All fields are required.
type Keeper struct {
	World  *arcworld.World
	Known  client.Reader // cache of the fleet's own kinds
	Direct client.Client // reads live objects, and writes
	Board  *board.Board
	Log    *slog.Logger
	Now    func() time.Time
	// Seen is called with the pool when the observed state of its scale set has changed.
	Seen func(ctx context.Context, pool string)
}

// Name returns the name of a scale set in reconcile requests.
func Name(namespace, name string) string { return namespace + "/" + name }

// All returns the names of all scale sets that pools adopt.
func (k *Keeper) All(ctx context.Context) (names []string) {
	pools, err := k.pools(ctx)
	if err != nil {
		k.Log.Error("look up pools in the cache", "err", err)
	}
	for i := range pools {
		names = append(names, Name(pools[i].Spec.Adopt.Namespace, pools[i].Spec.Adopt.Name))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// pools returns the adopting pools, the oldest first.
func (k *Keeper) pools(ctx context.Context) ([]v1alpha1.RunnerPool, error) {
	var list v1alpha1.RunnerPoolList
	if err := k.Known.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	var out []v1alpha1.RunnerPool // shared with the cache: read only
	for _, p := range list.Items {
		if p.Spec.Adopt != nil {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b v1alpha1.RunnerPool) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return out, nil
}

// Look reconciles one scale set: it performs the next step that a hold, or the absence of a hold,
// requires.
func (k *Keeper) Look(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	namespace, name, _ := strings.Cut(req.Name, "/")
	pools, err := k.pools(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	pools = slices.DeleteFunc(pools, func(p v1alpha1.RunnerPool) bool {
		return p.Spec.Adopt.Namespace != namespace || p.Spec.Adopt.Name != name
	})
	if len(pools) == 0 && !k.World.Noted(namespace, name, arc.HeldAnnotation) {
		return reconcile.Result{}, nil // not adopted, and the fleet wrote nothing to it
	}
	now := k.Now()
	var capacity fleet.Capacity
	if len(pools) > 0 {
		if capacity, err = k.capacity(ctx, &pools[0], now); err != nil {
			return reconcile.Result{}, err
		}
	}
	s := board.Adopted{Hold: capacity.Hold, Held: capacity.Mode != ""}
	wrote, wake, err := k.settle(ctx, namespace, name, &s, now)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("look at the scale set %s, which a pool adopts: %w", req.Name, err)
	}
	for i := range pools {
		if i > 0 {
			s = board.Adopted{Trouble: fleet.Trouble{Reason: reasonTwice, Message: fmt.Sprintf("The pool %q adopts it already.", pools[0].Name)}}
		}
		if k.Board.SawAdopted(pools[i].Name, s) {
			k.Seen(ctx, pools[i].Name)
		}
	}
	nap := board.LongestNap
	for _, at := range []time.Time{wake, capacity.Wake} {
		if !at.IsZero() {
			nap = min(nap, max(at.Sub(now), 0)+time.Millisecond)
		}
	}
	switch {
	case wrote:
		nap = board.Quiet
	case s.Held && s.Trouble.Reason == reasonForbidden:
		nap = min(nap, forbiddenEvery)
	case s.Held && s.State.Stopped != fleet.Yes:
		nap = min(nap, k.World.Pace)
	case len(pools) == 0:
		return reconcile.Result{}, nil // restored, or not restorable; then the annotation shows it
	}
	return board.Soon(nap)
}

// capacity returns the capacity of an adopting pool under the holds. The pool belongs to no
// organisation.
func (k *Keeper) capacity(ctx context.Context, p *v1alpha1.RunnerPool, now time.Time) (fleet.Capacity, error) {
	var holds v1alpha1.RunnerHoldList
	if err := k.Known.List(ctx, &holds); err != nil {
		return fleet.Capacity{}, err
	}
	return fleet.Effective(fleet.Target{Forge: p.Spec.Forge, Pool: p.Name}, p.Spec.Scaling, 0, holds.Items, now), nil
}

// settle reads a scale set and performs one step.
func (k *Keeper) settle(ctx context.Context, namespace, name string, s *board.Adopted, now time.Time) (wrote bool, wake time.Time, err error) {
	u := arcworld.Of(arc.SetKind)
	err = k.Direct.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, u)
	switch {
	case apierrors.IsNotFound(err):
		s.Trouble = fleet.Trouble{Reason: reasonNotFound, Message: fmt.Sprintf("There is no scale set %s/%s.", namespace, name)}
		return false, wake, nil
	case err != nil:
		return false, wake, err
	}
	parts, err := k.World.Parts(u)
	if err != nil {
		return false, wake, err
	}
	s.Set, s.Parts = parts.Set, parts
	if s.Set.Ours {
		s.Set, s.Parts, s.Trouble = nil, nil, fleet.Trouble{Reason: reasonOurs, Message: "The fleet made this scale set itself."}
		return false, wake, nil
	}
	a := arc.Adopted(*s.Set, s.Held, now)
	s.Trouble, wake = a.Trouble, a.Wake
	err = k.write(ctx, u, a)
	switch {
	case err == nil:
		wrote = a.Apply != nil || a.Patch != nil
	case apierrors.IsConflict(err) || apierrors.IsInvalid(err): // a concurrent write, which ARC does often
		wrote, err = true, nil
	case apierrors.IsForbidden(err):
		s.Trouble, err = fleet.Trouble{Reason: reasonForbidden, Message: fmt.Sprintf("The fleet may not write scale sets in %s: name it in fleet.adoptNamespaces.", namespace)}, nil
	case apierrors.IsNotFound(err):
		wrote, err = true, nil
	default:
		return false, wake, err
	}
	s.State = parts.State()
	if wrote {
		s.State.Stopped = fleet.Unknown // until ARC has applied it
	}
	if s.Trouble.Reason == "" && s.State.Trouble.Reason != "" {
		s.Trouble = s.State.Trouble
	}
	if s.Trouble.Reason == "" && s.State.Registered == fleet.No {
		s.Trouble = fleet.Trouble{Reason: reasonWaits, Message: "GitHub has it not yet, or its listener does not run."}
	}
	return wrote, wake, err
}

// write applies the decision only to the version of the object that was read.
func (k *Keeper) write(ctx context.Context, u *unstructured.Unstructured, a arc.Adoption) error {
	switch {
	case a.Apply != nil:
		return k.Direct.Apply(ctx, client.ApplyConfigurationFromUnstructured(a.Apply), client.ForceOwnership, client.FieldOwner(arc.HoldManager))
	case a.Patch != nil:
		return k.Direct.Patch(ctx, u, client.RawPatch(types.JSONPatchType, a.Patch), client.FieldOwner(arc.HoldManager))
	}
	return nil
}
