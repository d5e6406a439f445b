// Package board shows what was decided for all enrollments of runners together and what
// the last look at each of them saw, and says by it how holds, pools and forges stand.
// It keeps law 7: what no look has seen is not said.
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

// A Board shows what was decided for all enrollments together, and what the last look
// at each of them saw.
type Board struct {
	mu        sync.Mutex
	ledger    ledger.Ledger
	result    *ledger.Result // nil: nothing was decided yet
	conflicts map[fleet.Key]fleet.Key
	seen      map[string]Sight // by enrollment
	groups    map[string]int64 // GitLab's numbers of groups, by enrollment
	adopted   map[string]Adopted
}

// An Adopted is how a scale set stands that a pool adopts.
type Adopted struct {
	Set     *arc.Set   // nil: there is none that could be adopted
	Parts   *arc.Parts // with Set
	State   arc.State
	Hold    string // that is in force
	Held    bool   // the look knew of a hold
	Trouble fleet.Trouble
}

// SawAdopted puts up how the scale set stands that a pool adopts, and says whether that
// is new.
func (b *Board) SawAdopted(pool string, a Adopted) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	was, ok := b.adopted[pool]
	b.adopted[pool] = a
	return !ok || !reflect.DeepEqual(was, a)
}

// AdoptedBy is how the scale set stood that a pool adopts; false: nobody has looked.
func (b *Board) AdoptedBy(pool string) (Adopted, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a, ok := b.adopted[pool]
	return a, ok
}

// ForgetPool takes down what is of a pool that has gone.
func (b *Board) ForgetPool(pool string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.adopted, pool)
}

// A Sight is what one look saw.
type Sight struct {
	Forge   string
	Uses    map[string]Use // by pool
	Rate    *int           // how often the forge may still be asked; nil: it does not say
	Expires time.Time      // of the credential; zero: never, or not known
}

// A Use is how one use of a pool stands.
type Use struct {
	ledger.Reading
	Stopped             fleet.Answer
	Jobs                *int
	Managers            int
	Reason              string // why the answers are not better
	Counts              Counts
	Stranded            *int // jobs that were given to it and cannot start; nil: not known, or it may have runners
	EffectiveMax, Drift int
	Failing             bool // the enrollment has failed or is suspended, or a rule keeps it from the pool
}

// Plus is how a use stands with another workload beside: what is not known of one is not
// known of both, but for jobs that are stranded.
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

// Counts are of runners. What is nil is not known.
type Counts struct{ Idle, Busy, Pending, Failed *int }

// New makes a board that shows nothing yet.
func New() *Board {
	return &Board{seen: map[string]Sight{}, groups: map[string]int64{}, adopted: map[string]Adopted{}}
}

// Decided is what was decided upon that state of an enrollment; false: nothing was.
func (b *Board) Decided(e *v1alpha1.RunnerEnrollment) (*ledger.Result, map[fleet.Key]fleet.Key, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.result == nil || b.result.Of[e.Name] != ledger.VersionOf(e) {
		return nil, nil, false
	}
	return b.result, b.conflicts, true
}

// Last is what was decided last; nil: nothing was.
func (b *Board) Last() *ledger.Result {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.result
}

// Saw puts up what a look saw, and says whether budgets or holds may depend on what
// is new of it, and in which pools runners are found ill now, or well again.
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

// plus are all pools of two sights.
func plus(a, b map[string]Use) map[string]Use {
	all := maps.Clone(b)
	if all == nil {
		return a
	}
	maps.Copy(all, a)
	return all
}

// ill says whether runners of a use fail, or are not as they should be.
func (s Use) ill() bool { return s.Counts.Failed != nil && *s.Counts.Failed > 0 || s.Drift > 0 }

func same(a, b *int) bool { return (a == nil) == (b == nil) && (a == nil || *a == *b) }

// Forget takes down what is of an enrollment that has gone.
func (b *Board) Forget(org string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.seen, org)
	delete(b.groups, org)
}

// Sights are what the last looks saw, by enrollment.
func (b *Board) Sights() map[string]Sight {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.seen)
}

// Group puts up which number of GitLab's the group of an enrollment has.
func (b *Board) Group(org string, id int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.groups[org] = id
}

// Decide decides for all enrollments by what looks at them saw, and puts that up.
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

// PoolsOf are the pools that an enrollment uses, or still has runners of.
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
