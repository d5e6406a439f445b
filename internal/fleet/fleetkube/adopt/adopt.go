// Package adopt keeps holds on scale sets that somebody else keeps, and says how those
// stand. It keeps law 6: it writes two numbers and an annotation, gives them back when
// the hold is lifted or nobody adopts the set any more, and deletes nothing.
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

// Reasons of the conditions of a pool that adopts, beside those of arc.
const (
	reasonNotFound  = "ScaleSetNotFound" // there is none of that name
	reasonOurs      = "ScaleSetOurs"     // the fleet made it itself
	reasonTwice     = "AdoptedTwice"     // an older pool adopts it
	reasonForbidden = "AdoptForbidden"   // the fleet may not write there
	reasonWaits     = "NotRegistered"    // GitHub has it not yet, or its listener does not run
)

// forbiddenEvery is how often it is tried again to hold what may not be written: nobody
// tells when a right comes.
const forbiddenEvery = 10 * time.Second

// A Keeper looks at scale sets that somebody else keeps. All fields are required.
type Keeper struct {
	World  *arcworld.World
	Known  client.Reader // the cache of the fleet's own kinds
	Direct client.Client // reads what is so now, and writes
	Board  *board.Board
	Log    *slog.Logger
	Now    func() time.Time
	// Seen hears which pool's scale set was looked at, if what was seen is new.
	Seen func(ctx context.Context, pool string)
}

// Name names a scale set in a request.
func Name(namespace, name string) string { return namespace + "/" + name }

// All are the names of what pools adopt.
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

// pools are those that adopt, the oldest first.
func (k *Keeper) pools(ctx context.Context) ([]v1alpha1.RunnerPool, error) {
	var list v1alpha1.RunnerPoolList
	if err := k.Known.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	var out []v1alpha1.RunnerPool // which are the cache's: nothing of them is changed
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

// Look looks at one scale set, and does the next thing that a hold, or that there is
// none, asks for.
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
		return reconcile.Result{}, nil // nobody's, and nothing of ours is in it
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
		return reconcile.Result{}, nil // it was given back, or cannot be: then the set says so
	}
	return board.Soon(nap)
}

// capacity is what holds leave of a pool that adopts. It is of no organisation.
func (k *Keeper) capacity(ctx context.Context, p *v1alpha1.RunnerPool, now time.Time) (fleet.Capacity, error) {
	var holds v1alpha1.RunnerHoldList
	if err := k.Known.List(ctx, &holds); err != nil {
		return fleet.Capacity{}, err
	}
	return fleet.Effective(fleet.Target{Forge: p.Spec.Forge, Pool: p.Name}, p.Spec.Scaling, 0, holds.Items, now), nil
}

// settle reads a scale set and takes one step with it.
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
	case apierrors.IsConflict(err) || apierrors.IsInvalid(err): // somebody wrote meanwhile, as ARC does all the time
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
		s.State.Stopped = fleet.Unknown // until ARC has followed
	}
	if s.Trouble.Reason == "" && s.State.Trouble.Reason != "" {
		s.Trouble = s.State.Trouble
	}
	if s.Trouble.Reason == "" && s.State.Registered == fleet.No {
		s.Trouble = fleet.Trouble{Reason: reasonWaits, Message: "GitHub has it not yet, or its listener does not run."}
	}
	return wrote, wake, err
}

// write does what was decided, to what was looked at and to no later state.
func (k *Keeper) write(ctx context.Context, u *unstructured.Unstructured, a arc.Adoption) error {
	switch {
	case a.Apply != nil:
		return k.Direct.Apply(ctx, client.ApplyConfigurationFromUnstructured(a.Apply), client.ForceOwnership, client.FieldOwner(arc.HoldManager))
	case a.Patch != nil:
		return k.Direct.Patch(ctx, u, client.RawPatch(types.JSONPatchType, a.Patch), client.FieldOwner(arc.HoldManager))
	}
	return nil
}
