// Package board stores the latest decision for all enrollments and the latest observation of each
// enrollment. From these it reports the status of holds, pools and forges. It implements law 7: it
// reports nothing that no reconcile has observed.
package board

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/arc"
	"github.com/tailplane/tailplane/internal/fleet/fleetkube/ledger"
)

// A Board stores the latest decision for all enrollments and the latest observation of each one. It
// is safe for concurrent use.
type Board struct {
	mu        sync.Mutex
	ledger    ledger.Ledger
	result    *ledger.Result // nil: no decision yet
	conflicts map[fleet.Key]fleet.Key
	seen      map[string]Sight // by enrollment
	groups    map[string]int64 // GitLab group IDs, by enrollment
	adopted   map[string]Adopted
}

// An Adopted is the observed state of an external scale set that a pool adopts.
type Adopted struct {
	Set     *arc.Set   // nil: there is no scale set to adopt
	Parts   *arc.Parts // nil if Set is nil
	State   arc.State
	Hold    string // name of the hold in force
	Held    bool   // the reconcile knew of a hold
	Trouble fleet.Trouble
}

// SawAdopted stores the state of the scale set that a pool adopts. It reports whether the state
// changed.
func (b *Board) SawAdopted(pool string, a Adopted) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	was, ok := b.adopted[pool]
	b.adopted[pool] = a
	return !ok || !reflect.DeepEqual(was, a)
}

// AdoptedBy returns the state of the scale set that a pool adopts; false if it was not observed
// yet.
func (b *Board) AdoptedBy(pool string) (Adopted, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a, ok := b.adopted[pool]
	return a, ok
}

// ForgetPool removes the state of a pool that is gone.
func (b *Board) ForgetPool(pool string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.adopted, pool)
}

// A Sight is the observation of one reconcile.
type Sight struct {
	Forge   string
	Uses    map[string]Use // by pool
	Rate    *int           // remaining requests to the forge; nil: not reported
	Expires time.Time      // of the credential; zero: never, or not known
}

// A Use is the observed state of an organisation's use of a pool.
type Use struct {
	ledger.Reading
	Stopped             fleet.Answer
	Jobs                *int
	Managers            int
	Reason              string // why an answer is missing
	Counts              Counts
	Stranded            *int // assigned jobs that cannot start; nil: not known, or it may have runners
	EffectiveMax, Drift int
	Failing             bool // the enrollment failed or is suspended, or a rule excludes it from the pool
}

// Plus adds another workload to a use. A value that is not known for one of them is not known for
// both, except the number of stranded jobs.
func (s Use) Plus(o Use) Use {
	plus := func(a, b *int) *int {
		if a == nil || b == nil {
			return nil
		}
		return new(*a + *b)
	}
	s.Counts = Counts{Idle: plus(s.Counts.Idle, o.Counts.Idle), Busy: plus(s.Counts.Busy, o.Counts.Busy), Pending: plus(s.Counts.Pending, o.Counts.Pending), Failed: plus(s.Counts.Failed, o.Counts.Failed)}
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

// Counts are numbers of runners. Nil means not known.
type Counts struct{ Idle, Busy, Pending, Failed *int }

// New returns an empty store.
func New() *Board {
	return &Board{seen: map[string]Sight{}, groups: map[string]int64{}, adopted: map[string]Adopted{}}
}

// Decided returns the decision for the current version of an enrollment; false if there is none.
func (b *Board) Decided(e *v1alpha1.RunnerEnrollment) (*ledger.Result, map[fleet.Key]fleet.Key, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.result == nil || b.result.Of[e.Name] != ledger.VersionOf(e) {
		return nil, nil, false
	}
	return b.result, b.conflicts, true
}

// Last returns the latest decision; nil if there is none.
func (b *Board) Last() *ledger.Result {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.result
}

// Saw stores an observation. It reports whether budgets or holds may depend on the change, and in
// which pools the runners became unhealthy or healthy again.
func (b *Board) Saw(org string, s Sight) (changed bool, pools []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	was, ok := b.seen[org]
	b.seen[org] = s
	for pool := range plus(s.Uses, was.Uses) {
		if s.Uses[pool].ill() != was.Uses[pool].ill() {
			pools = append(pools, pool)
		}
	}
	changed = !ok || !maps.EqualFunc(was.Uses, s.Uses, func(a, b Use) bool {
		return same(a.Demand, b.Demand) && a.Busy == b.Busy && a.InForce == b.InForce && a.Held == b.Held && a.Stopped == b.Stopped &&
			same(a.Jobs, b.Jobs) && a.Managers == b.Managers && a.Reason == b.Reason
	})
	return changed, pools
}

// plus returns the pools of both observations.
func plus(a, b map[string]Use) map[string]Use {
	all := maps.Clone(b)
	if all == nil {
		return a
	}
	maps.Copy(all, a)
	return all
}

// ill reports whether runners of a use fail or have drifted.
func (s Use) ill() bool { return s.Counts.Failed != nil && *s.Counts.Failed > 0 || s.Drift > 0 }

func same(a, b *int) bool { return (a == nil) == (b == nil) && (a == nil || *a == *b) }

// Forget removes the state of an enrollment that is gone.
func (b *Board) Forget(org string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.seen, org)
	delete(b.groups, org)
}

// Sights returns the latest observations, by enrollment.
func (b *Board) Sights() map[string]Sight {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.seen)
}

// Group stores the GitLab group ID of an enrollment.
func (b *Board) Group(org string, id int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.groups[org] = id
}

// Decide decides for all enrollments, based on the observations, and stores the result. It returns
// the earlier and the new result.
func (b *Board) Decide(v fleet.View, approved func(*v1alpha1.RunnerEnrollment) bool, conflicts map[fleet.Key]fleet.Key, now time.Time) (was, is *ledger.Result) {
	b.mu.Lock()
	defer b.mu.Unlock()
	readings := map[string]map[string]ledger.Reading{}
	for org, s := range b.seen {
		readings[org] = map[string]ledger.Reading{}
		for pool, use := range s.Uses {
			readings[org][pool] = use.Reading
		}
	}
	v.GroupIDs = maps.Clone(b.groups)
	was = b.result
	result := b.ledger.Decide(v, approved, readings, now)
	b.result, b.conflicts = &result, conflicts
	return was, b.result
}

// PoolsOf returns the pools that an enrollment uses, or in which it still has runners.
func PoolsOf(e *v1alpha1.RunnerEnrollment) (names []string) {
	for _, u := range e.Spec.Pools {
		names = append(names, u.Name)
	}
	for _, p := range e.Status.Pools {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
