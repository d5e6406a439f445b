package fleetkube

import (
	"context"
	"maps"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
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
	sights := w.board.sights()
	for _, org := range slices.Sorted(maps.Keys(sights)) {
		s := sights[org]
		for _, pool := range slices.Sorted(maps.Keys(s.uses)) {
			use := s.uses[pool]
			out.Workloads = append(out.Workloads, WorkloadFigures{Forge: s.forge, Org: org, Pool: pool, Idle: use.idle, Busy: use.busy, Pending: use.pending, Failed: use.failed,
				EffectiveMax: use.effectiveMax, Drift: use.drift})
		}
		if s.rate != nil {
			out.Rates = append(out.Rates, RateFigures{s.forge, org, *s.rate})
		}
		if !s.expires.IsZero() {
			out.Expiries = append(out.Expiries, ExpiryFigures{s.forge, org, s.expires})
		}
	}
	return out, true
}
