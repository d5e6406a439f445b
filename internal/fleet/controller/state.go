package controller

import (
	"cmp"
	"context"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/arc"
)

// A sharedState stores the latest decision for all enrollments and the latest observation of each one. It
// is safe for concurrent use.
type sharedState struct {
	mu        sync.Mutex
	allocator allocator
	last      *allocation // nil: no decision yet
	conflicts map[fleet.Key]fleet.Key
	byOrg     map[string]observation // by enrollment
	groupIDs  map[string]int64       // GitLab group IDs, by enrollment
	externals map[string]externalState
}

// An externalState is the observed state of an external scale set that a pool adopts.
type externalState struct {
	Set     *arc.Set     // nil: there is no scale set to adopt
	Objects *arc.Objects // nil if Set is nil
	State   arc.State
	Hold    string // name of the hold in force
	Held    bool   // the reconcile knew of a hold
	Failure fleet.Failure
}

// observeExternal stores the state of the scale set that a pool adopts. It reports whether the state
// changed.
func (b *sharedState) observeExternal(pool string, a externalState) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old, ok := b.externals[pool]
	b.externals[pool] = a
	return !ok || !reflect.DeepEqual(old, a)
}

// externalOf returns the state of the scale set that a pool adopts; false if it was not observed
// yet.
func (b *sharedState) externalOf(pool string) (externalState, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a, ok := b.externals[pool]
	return a, ok
}

// deletePool removes the state of a pool that is gone.
func (b *sharedState) deletePool(pool string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.externals, pool)
}

// An observation is the observation of one reconcile.
type observation struct {
	Forge   string
	Pools   map[string]poolObservation // by pool
	Rate    *int                       // remaining requests to the forge; nil: not reported
	Expires time.Time                  // of the credential; zero: never, or not known
}

// A poolObservation is the observed state of an organisation's use of a pool.
type poolObservation struct {
	poolUsage
	Stopped             fleet.Answer
	Jobs                *int
	Managers            int
	Reason              string // why an answer is missing
	Counts              RunnerCounts
	Stranded            *int // assigned jobs that cannot start; nil: not known, or it may have runners
	EffectiveMax, Drift int
	Failing             bool // the enrollment failed or is suspended, or a rule excludes it from the pool
}

// plus adds another workload to a use. A value that is not known for one of them is not known for
// both, except the number of stranded jobs.
func (s poolObservation) plus(o poolObservation) poolObservation {
	plus := func(a, b *int) *int {
		if a == nil || b == nil {
			return nil
		}
		return new(*a + *b)
	}
	s.Counts = RunnerCounts{
		Idle:    plus(s.Counts.Idle, o.Counts.Idle),
		Busy:    plus(s.Counts.Busy, o.Counts.Busy),
		Pending: plus(s.Counts.Pending, o.Counts.Pending),
		Failed:  plus(s.Counts.Failed, o.Counts.Failed),
	}
	s.Jobs, s.Demand = plus(s.Jobs, o.Jobs), plus(s.Demand, o.Demand)
	s.Busy += o.Busy
	s.InForce += o.InForce
	s.EffectiveMax += o.EffectiveMax
	s.Managers += o.Managers
	s.Drift += o.Drift
	s.Held = s.Held || o.Held
	s.Reason = cmp.Or(s.Reason, o.Reason)
	switch {
	case s.Stranded == nil:
		s.Stranded = o.Stranded
	case o.Stranded != nil:
		s.Stranded = plus(s.Stranded, o.Stranded)
	}
	switch {
	case o.Stopped == fleet.No:
		s.Stopped = o.Stopped
	case o.Stopped == fleet.Unknown && s.Stopped == fleet.Yes:
		s.Stopped = fleet.Unknown
	}
	return s
}

// RunnerCounts are numbers of runners. Nil means not known.
type RunnerCounts struct{ Idle, Busy, Pending, Failed *int }

// newSharedState returns an empty store.
func newSharedState() *sharedState {
	return &sharedState{byOrg: map[string]observation{}, groupIDs: map[string]int64{}, externals: map[string]externalState{}}
}

// allocationFor returns the decision for the current version of an enrollment; false if there is none.
func (b *sharedState) allocationFor(e *v1alpha1.RunnerEnrollment) (*allocation, map[fleet.Key]fleet.Key, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.last == nil || b.last.Versions[e.Name] != versionOf(e) {
		return nil, nil, false
	}
	return b.last, b.conflicts, true
}

// lastAllocation returns the latest decision; nil if there is none.
func (b *sharedState) lastAllocation() *allocation {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last
}

// observe stores an observation. It reports whether budgets or holds may depend on the change, and in
// which pools the runners became unhealthy or healthy again.
func (b *sharedState) observe(org string, s observation) (changed bool, pools []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old, ok := b.byOrg[org]
	b.byOrg[org] = s
	both := map[string]poolObservation{}
	maps.Copy(both, old.Pools)
	maps.Copy(both, s.Pools)
	for pool := range both {
		if s.Pools[pool].unhealthy() != old.Pools[pool].unhealthy() {
			pools = append(pools, pool)
		}
	}
	changed = !ok || !maps.EqualFunc(old.Pools, s.Pools, func(a, b poolObservation) bool {
		return sameInt(a.Demand, b.Demand) && a.Busy == b.Busy && a.InForce == b.InForce && a.Held == b.Held && a.Stopped == b.Stopped &&
			sameInt(a.Jobs, b.Jobs) && a.Managers == b.Managers && a.Reason == b.Reason
	})
	return changed, pools
}

// unhealthy reports whether runners of a use fail or have drifted.
func (s poolObservation) unhealthy() bool {
	return s.Counts.Failed != nil && *s.Counts.Failed > 0 || s.Drift > 0
}

func sameInt(a, b *int) bool { return (a == nil) == (b == nil) && (a == nil || *a == *b) }

// deleteOrg removes the state of an enrollment that is gone.
func (b *sharedState) deleteOrg(org string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.byOrg, org)
	delete(b.groupIDs, org)
}

// observations returns the latest observations, by enrollment.
func (b *sharedState) observations() map[string]observation {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.byOrg)
}

// setGroupID stores the GitLab group ID of an enrollment. It reports whether the ID is a new one.
func (b *sharedState) setGroupID(org string, id int64) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	changed = b.groupIDs[org] != id
	b.groupIDs[org] = id
	return changed
}

// allocate decides for all enrollments, based on the observations, and stores the result. It returns
// the earlier and the new result.
func (b *sharedState) allocate(
	v fleet.View,
	approved func(*v1alpha1.RunnerEnrollment) bool,
	conflicts map[fleet.Key]fleet.Key,
	now time.Time,
) (old, is *allocation) {
	b.mu.Lock()
	defer b.mu.Unlock()
	readings := map[string]map[string]poolUsage{}
	for org, s := range b.byOrg {
		readings[org] = map[string]poolUsage{}
		for pool, use := range s.Pools {
			readings[org][pool] = use.poolUsage
		}
	}
	v.GroupIDs = maps.Clone(b.groupIDs)
	old = b.last
	result := b.allocator.allocate(v, approved, readings, now)
	b.last, b.conflicts = &result, conflicts
	return old, b.last
}

// poolsOf returns the pools that an enrollment uses, or in which it still has runners, and more pools. It returns
// each pool once.
func poolsOf(e *v1alpha1.RunnerEnrollment, more ...string) []string {
	names := slices.Clone(more)
	for _, u := range e.Spec.Pools {
		names = append(names, u.Name)
	}
	for _, p := range e.Status.Pools {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

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
		if err := w.cached.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return Metrics{}, false
		}
	}
	for i := range holds.Items {
		if !fleet.HoldLifted(&holds.Items[i], w.now()) {
			out.Holds++
		}
	}
	observations := w.state.observations()
	for _, org := range slices.Sorted(maps.Keys(observations)) {
		s := observations[org]
		for _, pool := range slices.Sorted(maps.Keys(s.Pools)) {
			use := s.Pools[pool]
			out.Workloads = append(
				out.Workloads,
				WorkloadMetrics{
					Forge:        s.Forge,
					Org:          org,
					Pool:         pool,
					RunnerCounts: use.Counts,
					Stranded:     use.Stranded,
					EffectiveMax: use.EffectiveMax,
					Drift:        use.Drift,
					Failing:      use.Failing,
				},
			)
		}
		if s.Rate != nil {
			out.Rates = append(out.Rates, RateLimitMetrics{s.Forge, org, *s.Rate})
		}
		if !s.Expires.IsZero() {
			out.Expiries = append(out.Expiries, ExpiryMetrics{s.Forge, org, s.Expires})
		}
	}
	for i := range pools.Items {
		if a, seen := w.state.externalOf(pools.Items[i].Name); seen && a.Set != nil {
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
