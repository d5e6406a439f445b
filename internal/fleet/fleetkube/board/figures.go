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

// Figures are the current values for the metrics of the fleet.
type Figures struct {
	Workloads []UseFigures
	Holds     int // holds in force
	Rates     []RateFigures
	Expiries  []ExpiryFigures // of credentials that expire
}

// UseFigures are the values for one organisation's use of one pool. With an empty Org, they are
// those of the external scale set that a pool adopts. Nil means not known.
type UseFigures struct {
	Forge, Org, Pool string
	Counts
	Stranded     *int // assigned jobs that cannot start
	EffectiveMax int
	Drift        int // number of findings
	Failing      bool
}

// RateFigures hold the remaining requests to a forge for an organisation.
type RateFigures struct {
	Forge, Org string
	Remaining  int
}

// ExpiryFigures hold the expiry of a credential.
type ExpiryFigures struct {
	Forge, Org string
	At         time.Time
}

// Figures returns the current values; false if the objects cannot be read.
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

// adopted returns the values for the scale set that a pool adopts.
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
