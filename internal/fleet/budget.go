package fleet

import (
	"cmp"
	"slices"
	"time"
)

// ChangePause is the least time between two changes of what one organisation has of
// a pool: each change makes ARC start another listener, which takes no job meanwhile.
const ChangePause = time.Minute

// An Org is one organisation in a pool. The numbers are runners, of all its workloads
// together while one of them takes the place of another.
type Org struct {
	Name      string
	Guarantee int
	Max       int
	// Demand is how many jobs it has, running or waiting. Nil: not known, which
	// counts as Max.
	Demand *int
	Busy   int

	Allocated int       // what it was given last
	ChangedAt time.Time // when; zero: never
	// InForce is the largest maximum that somebody may still work by: what was
	// given before, until it is confirmed that nobody does. Less than Allocated
	// counts as Allocated.
	InForce int
}

// holds is how much of the budget an organisation has now, whatever it is given.
func (o Org) holds() int { return max(o.Allocated, o.InForce, o.Busy) }

// A Share is what an organisation is to have of a pool's budget.
type Share struct {
	Name      string
	Allocated int
	Changed   bool // it is not what it was given last
	// Fair is what it would have if everything could be changed at once. It has
	// that or more as soon as others have been seen to have less.
	Fair int
}

// Allocate shares a budget among the organisations of a pool, and says when to look
// again if that is not when something changes. The shares are sorted by name and do
// not depend on the order of orgs.
//
// Each organisation's fair share is its guarantee and then, the least first, what it
// has use for. What nobody has use for goes to those that grow, and stays where it
// is until somebody has use for it: a share is not changed because it could be
// nicer. What has to be taken from one is given to another only when it is confirmed
// that the first works by it, so the sum of what is given and of what is busy stays
// within the budget if it was. No share changes twice within [ChangePause], unless
// maximum or budget leave no choice.
//
// What an organisation shows of its demand is bounded by what it has: a forge assigns
// no more jobs than there may be runners. So it is taken to have use for half as much
// again, and for one at least.
func Allocate(budget int, orgs []Org, now time.Time) ([]Share, time.Time) {
	b := newBudget(budget, orgs)
	b.force()
	var wake time.Time
	paused := func(i int) bool {
		since := now.Sub(b.orgs[i].ChangedAt)
		if b.orgs[i].ChangedAt.IsZero() || since < 0 || since >= ChangePause {
			return false
		}
		if t := b.orgs[i].ChangedAt.Add(ChangePause); wake.IsZero() || t.Before(wake) {
			wake = t
		}
		return true
	}
	b.take(paused)
	b.give(paused)

	shares := make([]Share, len(b.orgs))
	for i, o := range b.orgs {
		shares[i] = Share{Name: o.Name, Allocated: b.to[i], Changed: b.to[i] != o.Allocated, Fair: b.fair[i]}
	}
	return shares, wake
}

// budget is an allocation in the making.
type budget struct {
	total int
	orgs  []Org // by name
	fair  []int
	full  []int // fair, and what nobody has use for
	to    []int
}

func newBudget(total int, orgs []Org) *budget {
	b := &budget{total: max(total, 0), orgs: slices.SortedFunc(slices.Values(orgs), func(a, b Org) int { return cmp.Compare(a.Name, b.Name) })}
	n := len(b.orgs)
	nothing, guarantee, use, most := make([]int, n), make([]int, n), make([]int, n), make([]int, n)
	guaranteed := 0
	for i, o := range b.orgs {
		most[i] = max(o.Max, 0)
		guarantee[i] = min(max(o.Guarantee, 0), most[i])
		guaranteed += guarantee[i]
		use[i] = most[i]
		if o.Demand != nil {
			d := max(*o.Demand, 0)
			use[i] = min(max(d+max(d/2, 1), guarantee[i]), most[i])
		}
		b.to = append(b.to, o.Allocated)
	}
	if guaranteed > b.total {
		b.fair = fill(nothing, guarantee, b.total) // Check refuses such a pool
	} else {
		b.fair = fill(guarantee, use, b.total)
	}
	b.full = fill(b.fair, most, b.total)
	return b
}

// fill shares total, the least first: each gets at least its low and at most its
// high. The sum of lows must be at most total.
func fill(low, high []int, total int) []int {
	at := func(level int) (sum int) {
		for i := range low {
			sum += max(low[i], min(level, high[i]))
		}
		return sum
	}
	top := 0
	for _, h := range high {
		top = max(top, h)
	}
	// The highest level that total is enough for.
	level, over := 0, top+1
	for level+1 < over {
		if mid := level + (over-level)/2; at(mid) <= total {
			level = mid
		} else {
			over = mid
		}
	}
	rest := total - at(level)
	out := make([]int, len(low))
	for i := range out {
		out[i] = max(low[i], min(level, high[i]))
		if rest > 0 && out[i] == level && out[i] < high[i] {
			out[i]++
			rest--
		}
	}
	return out
}

// force takes what must be taken: what is above a maximum, and above the budget.
func (b *budget) force() {
	sum := 0
	for i, o := range b.orgs {
		b.to[i] = min(b.to[i], max(o.Max, 0))
		sum += b.to[i]
	}
	b.cut(sum-b.total, func(int) bool { return true })
}

// cut takes n in all from those that have more than their fair share, from who has
// most of it first, so that few are changed.
func (b *budget) cut(n int, may func(i int) bool) {
	order := make([]int, len(b.orgs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(b.to[j]-b.fair[j], b.to[i]-b.fair[i]) })
	for _, i := range order {
		if n <= 0 {
			return
		}
		if surplus := b.to[i] - b.fair[i]; surplus > 0 && may(i) {
			cut := min(surplus, n)
			b.to[i] -= cut
			n -= cut
		}
	}
}

// take takes what others lack and will not get otherwise.
func (b *budget) take(paused func(int) bool) {
	lack, coming := 0, b.total // coming: what will be free when those that have more than they were given have it no more
	for i := range b.orgs {
		lack += max(b.fair[i]-b.to[i], 0)
		coming -= b.to[i]
	}
	b.cut(lack-coming, func(i int) bool { return !paused(i) })
}

// give raises who lacks something from what is free now, and then those further that
// are changed anyway.
func (b *budget) give(paused func(int) bool) {
	free := b.total
	for _, o := range b.orgs {
		free -= o.holds()
	}
	raised := make([]bool, len(b.orgs))
	var low, high []int
	limit := func(to []int) {
		low, high = slices.Clone(b.to), slices.Clone(b.to)
		for i, o := range b.orgs {
			if raised[i] {
				high[i] = max(to[i], b.to[i])
				low[i] = min(high[i], max(b.to[i], o.holds())) // it has that anyway
			}
		}
	}
	for i, o := range b.orgs {
		raised[i] = b.to[i] < b.fair[i] && b.to[i] == o.Allocated && !paused(i)
	}
	for _, to := range [][]int{b.fair, b.full} {
		limit(to)
		sum := 0
		for i := range low {
			sum += low[i]
		}
		before := sum
		next := fill(low, high, sum+max(free, 0))
		after := 0
		for i := range next {
			b.to[i] = next[i]
			after += next[i]
		}
		free -= after - before
		for i, o := range b.orgs { // who got nothing is not changed
			raised[i] = raised[i] && b.to[i] > o.Allocated
		}
	}
}
