package fleetkube

import (
	"context"
	"maps"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/arc"
)

// Figures returns what is counted now; false while the controllers are not at work.
func (c *Controllers) Figures() (Figures, bool) {
	w := c.crew.Load()
	if w == nil || !c.Synced() {
		return Figures{}, false
	}
	var out Figures
	var holds v1alpha1.RunnerHoldList
	if err := w.known.List(context.Background(), &holds, client.UnsafeDisableDeepCopy); err != nil {
		return Figures{}, false
	}
	for i := range holds.Items {
		if !fleet.Lifted(&holds.Items[i], c.Now()) {
			out.Holds++
		}
	}
	sights := w.board.Sights()
	for _, org := range slices.Sorted(maps.Keys(sights)) {
		s := sights[org]
		for _, pool := range slices.Sorted(maps.Keys(s.Uses)) {
			use := s.Uses[pool]
			out.Workloads = append(out.Workloads, WorkloadFigures{Forge: s.Forge, Org: org, Pool: pool, Idle: use.Counts.Idle, Busy: use.Counts.Busy, Pending: use.Counts.Pending, Failed: use.Counts.Failed,
				EffectiveMax: use.EffectiveMax, Drift: use.Drift})
		}
		if s.Rate != nil {
			out.Rates = append(out.Rates, RateFigures{s.Forge, org, *s.Rate})
		}
		if !s.Expires.IsZero() {
			out.Expiries = append(out.Expiries, ExpiryFigures{s.Forge, org, s.Expires})
		}
	}
	var pools v1alpha1.RunnerPoolList
	if err := w.known.List(context.Background(), &pools, client.UnsafeDisableDeepCopy); err != nil {
		return Figures{}, false
	}
	for _, p := range pools.Items {
		a, seen := w.board.AdoptedBy(p.Name)
		if !seen || a.Set == nil {
			continue
		}
		figures := WorkloadFigures{Forge: p.Spec.Forge, Pool: p.Name, EffectiveMax: a.Set.Max}
		if c := a.State.Counts; c != nil {
			figures.Idle, figures.Busy, figures.Pending, figures.Failed = &c.Idle, &c.Busy, &c.Pending, &c.Failed
		}
		if a.Trouble.Reason == arc.ReasonHoldOverwritten {
			figures.Drift = 1
		}
		out.Workloads = append(out.Workloads, figures)
	}
	return out, true
}
