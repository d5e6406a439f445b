package board

import (
	"context"
	"maps"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/arc"
)

// Figures are what is counted of the fleet now, for metrics.
type Figures struct {
	Workloads []UseFigures
	Holds     int // that hold something
	Rates     []RateFigures
	Expiries  []ExpiryFigures // of credentials that end by themselves
}

// UseFigures are those of one organisation's use of one pool, or, of no
// organisation, of the scale set that a pool adopts. What is nil is not known.
type UseFigures struct {
	Forge, Org, Pool string
	Counts
	Stranded     *int // jobs that were given to it and cannot start
	EffectiveMax int
	Drift        int // findings
	Failing      bool
}

// RateFigures say how often a forge may still be asked for an organisation.
type RateFigures struct {
	Forge, Org string
	Remaining  int
}

// ExpiryFigures say when a credential ends.
type ExpiryFigures struct {
	Forge, Org string
	At         time.Time
}

// Figures returns what is counted now; false while what there is cannot be read.
func (w *Standing) Figures(ctx context.Context) (out Figures, ok bool) {
	var holds v1alpha1.RunnerHoldList
	var pools v1alpha1.RunnerPoolList
	for _, list := range []client.ObjectList{&holds, &pools} {
		if err := w.Known.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return Figures{}, false
		}
	}
	for i := range holds.Items {
		if !fleet.Lifted(&holds.Items[i], w.Now()) {
			out.Holds++
		}
	}
	sights := w.Board.Sights()
	for _, org := range slices.Sorted(maps.Keys(sights)) {
		s := sights[org]
		for _, pool := range slices.Sorted(maps.Keys(s.Uses)) {
			use := s.Uses[pool]
			out.Workloads = append(out.Workloads, UseFigures{Forge: s.Forge, Org: org, Pool: pool, Counts: use.Counts, Stranded: use.Stranded, EffectiveMax: use.EffectiveMax, Drift: use.Drift, Failing: use.Failing})
		}
		if s.Rate != nil {
			out.Rates = append(out.Rates, RateFigures{s.Forge, org, *s.Rate})
		}
		if !s.Expires.IsZero() {
			out.Expiries = append(out.Expiries, ExpiryFigures{s.Forge, org, s.Expires})
		}
	}
	for i := range pools.Items {
		if a, seen := w.Board.AdoptedBy(pools.Items[i].Name); seen && a.Set != nil {
			out.Workloads = append(out.Workloads, adopted(&pools.Items[i], a))
		}
	}
	return out, true
}

// adopted are the figures of the scale set that a pool adopts.
func adopted(p *v1alpha1.RunnerPool, a Adopted) UseFigures {
	figures := UseFigures{Forge: p.Spec.Forge, Pool: p.Name, EffectiveMax: a.Set.Max}
	if c := a.State.Counts; c != nil {
		figures.Counts = Counts{Idle: &c.Idle, Busy: &c.Busy, Pending: &c.Pending, Failed: &c.Failed}
	}
	if a.Trouble.Reason == arc.ReasonHoldOverwritten {
		figures.Drift = 1
	}
	return figures
}
