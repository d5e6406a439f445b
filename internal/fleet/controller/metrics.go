package controller

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

// Metrics are the current values for the metrics of the fleet.
type Metrics struct {
	Workloads []WorkloadMetrics
	Holds     int // holds in force
	Rates     []RateLimitMetrics
	Expiries  []ExpiryMetrics // of credentials that expire
}

// WorkloadMetrics are the values for one organisation's use of one pool. With an empty Org, they are
// those of the external scale set that a pool adopts. Nil means not known.
type WorkloadMetrics struct {
	Forge, Org, Pool string
	RunnerCounts
	Stranded     *int // assigned jobs that cannot start
	EffectiveMax int
	Drift        int // number of findings
	Failing      bool
}

// RateLimitMetrics hold the remaining requests to a forge for an organisation.
type RateLimitMetrics struct {
	Forge, Org string
	Remaining  int
}

// ExpiryMetrics hold the expiry of a credential.
type ExpiryMetrics struct {
	Forge, Org string
	At         time.Time
}

// metrics returns the current values; false if the objects cannot be read.
func (w *statusReconciler) metrics(ctx context.Context) (out Metrics, ok bool) {
	var holds v1alpha1.RunnerHoldList
	var pools v1alpha1.RunnerPoolList
	for _, list := range []client.ObjectList{&holds, &pools} {
		if err := w.Cached.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return Metrics{}, false
		}
	}
	for i := range holds.Items {
		if !fleet.HoldLifted(&holds.Items[i], w.Now()) {
			out.Holds++
		}
	}
	observations := w.State.observations()
	for _, org := range slices.Sorted(maps.Keys(observations)) {
		s := observations[org]
		for _, pool := range slices.Sorted(maps.Keys(s.Pools)) {
			use := s.Pools[pool]
			out.Workloads = append(out.Workloads, WorkloadMetrics{Forge: s.Forge, Org: org, Pool: pool, RunnerCounts: use.Counts, Stranded: use.Stranded, EffectiveMax: use.EffectiveMax, Drift: use.Drift, Failing: use.Failing})
		}
		if s.Rate != nil {
			out.Rates = append(out.Rates, RateLimitMetrics{s.Forge, org, *s.Rate})
		}
		if !s.Expires.IsZero() {
			out.Expiries = append(out.Expiries, ExpiryMetrics{s.Forge, org, s.Expires})
		}
	}
	for i := range pools.Items {
		if a, seen := w.State.externalOf(pools.Items[i].Name); seen && a.Set != nil {
			out.Workloads = append(out.Workloads, externalMetrics(&pools.Items[i], a))
		}
	}
	return out, true
}

// externalMetrics returns the values for the scale set that a pool adopts.
func externalMetrics(p *v1alpha1.RunnerPool, a externalState) WorkloadMetrics {
	metrics := WorkloadMetrics{Forge: p.Spec.Forge, Pool: p.Name, EffectiveMax: a.Set.Max}
	if c := a.State.Counts; c != nil {
		metrics.RunnerCounts = RunnerCounts{Idle: &c.Idle, Busy: &c.Busy, Pending: &c.Pending, Failed: &c.Failed}
	}
	if a.Failure.Reason == arc.ReasonHoldOverwritten {
		metrics.Drift = 1
	}
	return metrics
}
