package fleet

import (
	"cmp"
	"slices"
	"time"

	"github.com/tailplane/tailplane/internal/util/retry"
)

// ChangePause is the minimum time between two changes of an organisation's share of a pool. Each
// change makes ARC restart the listener, which takes no jobs during the restart.
const ChangePause = time.Minute

// An OrgUsage is one organisation in a pool. All numbers count runners. They include all workloads of
// the organisation, also while one workload replaces another.
type OrgUsage struct {
	Name      string
	Guarantee int
	Max       int
	// Demand is the number of running and waiting jobs. Nil means that the demand is not known;
	// Allocate then assumes Max.
	Demand *int
	Busy   int

	Allocated int       // the last allocation
	ChangedAt time.Time // time of the last change; zero: never
	// InForce is the largest maximum that a workload may still use: an earlier allocation, until
	// every workload is confirmed to use a newer one. A value below Allocated counts as Allocated.
	InForce int
}

// holds returns how much of the budget the organisation uses now, regardless of its next share.
func (o OrgUsage) holds() int { return max(o.Allocated, o.InForce, o.Busy) }

// A Share is the part of a pool's budget that an organisation gets.
type Share struct {
	Name      string
	Allocated int
	Changed   bool // differs from the last allocation
	// Fair is the share if every change could take effect at once. The organisation gets at least
	// Fair as soon as others are confirmed to use less.
	Fair int
}

// Allocate shares a budget among the organisations of a pool. It returns the shares sorted by name,
// independent of the order of orgs. It also returns the time of the next call if that call is
// needed before anything else changes; zero means none.
//
// The fair share of an organisation is its guarantee, plus the capacity that it can use. Allocate
// raises the lowest shares first. Unused capacity goes to organisations that grow, and stays with
// them until another organisation can use it. Allocate does not change a share only to make the
// distribution more even. It gives capacity taken from one organisation to another only when the
// first is confirmed to use its lower maximum. So the sum of allocated and busy runners stays
// within the budget if it was within it before. No share changes twice within [ChangePause], unless
// a maximum or the budget requires it.
//
// An organisation's visible demand is limited by its share, because a forge assigns no more jobs
// than there can be runners. Allocate therefore assumes a demand that is half as much again, and at
// least one more.
func Allocate(budget int, orgs []OrgUsage, now time.Time) ([]Share, time.Time) {
	b := newBudget(budget, orgs)
	b.enforceLimits()
	var wake time.Time
	paused := func(i int) bool {
		since := now.Sub(b.orgs[i].ChangedAt)
		if b.orgs[i].ChangedAt.IsZero() || since < 0 || since >= ChangePause {
			return false
		}
		wake = retry.Earliest(wake, b.orgs[i].ChangedAt.Add(ChangePause))
		return true
	}
	b.reclaim(paused)
	b.raise(paused)

	shares := make([]Share, len(b.orgs))
	for i, o := range b.orgs {
		shares[i] = Share{Name: o.Name, Allocated: b.allocated[i], Changed: b.allocated[i] != o.Allocated, Fair: b.fair[i]}
	}
	return shares, wake
}

// budget is the state of one allocation.
type budget struct {
	total     int
	orgs      []OrgUsage // sorted by name
	fair      []int
	full      []int // fair, plus the unused capacity
	allocated []int
}

func newBudget(total int, orgs []OrgUsage) *budget {
	b := &budget{
		total: max(total, 0),
		orgs:  slices.SortedFunc(slices.Values(orgs), func(a, b OrgUsage) int { return cmp.Compare(a.Name, b.Name) }),
	}
	n := len(b.orgs)
	zeros, guarantee, use, limit := make([]int, n), make([]int, n), make([]int, n), make([]int, n)
	for i, o := range b.orgs {
		limit[i] = max(o.Max, 0)
		guarantee[i] = min(max(o.Guarantee, 0), limit[i])
		use[i] = limit[i]
		if o.Demand != nil {
			d := max(*o.Demand, 0)
			use[i] = min(max(d+max(d/2, 1), guarantee[i]), limit[i])
		}
		b.allocated = append(b.allocated, o.Allocated)
	}
	if sum(guarantee) > b.total {
		b.fair = distribute(zeros, guarantee, b.total) // Check refuses such a pool
	} else {
		b.fair = distribute(guarantee, use, b.total)
	}
	b.full = distribute(b.fair, limit, b.total)
	return b
}

// distribute distributes total, the lowest shares first. Each entry gets at least its low and at most its
// high. The sum of lows must be at most total.
func distribute(low, high []int, total int) []int {
	at := func(level int) (sum int) {
		for i := range low {
			sum += max(low[i], min(level, high[i]))
		}
		return sum
	}
	top := slices.Max(append([]int{0}, high...))
	// Find the highest level for which total is enough.
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

// enforceLimits takes the capacity that exceeds a maximum or the budget.
func (b *budget) enforceLimits() {
	for i, o := range b.orgs {
		b.allocated[i] = min(b.allocated[i], max(o.Max, 0))
	}
	b.reduce(sum(b.allocated)-b.total, func(int) bool { return true })
}

func sum(list []int) (n int) {
	for _, x := range list {
		n += x
	}
	return n
}

// reduce takes n runners in total from organisations that exceed their fair share. It starts with the
// largest surplus, so that few shares change.
func (b *budget) reduce(n int, may func(i int) bool) {
	order := make([]int, len(b.orgs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(b.allocated[j]-b.fair[j], b.allocated[i]-b.fair[i]) })
	for _, i := range order {
		if n <= 0 {
			return
		}
		if surplus := b.allocated[i] - b.fair[i]; surplus > 0 && may(i) {
			cut := min(surplus, n)
			b.allocated[i] -= cut
			n -= cut
		}
	}
}

// reclaim takes the capacity that other organisations lack and do not get otherwise.
func (b *budget) reclaim(paused func(int) bool) {
	coming := b.total - sum(b.allocated) // capacity that becomes free when organisations use no more than their allocation
	lack := 0
	for i := range b.orgs {
		lack += max(b.fair[i]-b.allocated[i], 0)
	}
	b.reduce(lack-coming, func(i int) bool { return !paused(i) })
}

// raise raises organisations below their fair share from the free capacity. It then gives the rest
// to those whose shares change anyway.
func (b *budget) raise(paused func(int) bool) {
	free := b.total
	for _, o := range b.orgs {
		free -= o.holds()
	}
	raised := make([]bool, len(b.orgs))
	var low, high []int
	limit := func(to []int) {
		low, high = slices.Clone(b.allocated), slices.Clone(b.allocated)
		for i, o := range b.orgs {
			if raised[i] {
				high[i] = max(to[i], b.allocated[i])
				low[i] = min(high[i], max(b.allocated[i], o.holds())) // it already holds that much
			}
		}
	}
	for i, o := range b.orgs {
		raised[i] = b.allocated[i] < b.fair[i] && b.allocated[i] == o.Allocated && !paused(i)
	}
	for _, to := range [][]int{b.fair, b.full} {
		limit(to)
		before := sum(low)
		b.allocated = distribute(low, high, before+max(free, 0))
		free -= sum(b.allocated) - before
		for i, o := range b.orgs { // entries that got nothing keep their share
			raised[i] = raised[i] && b.allocated[i] > o.Allocated
		}
	}
}
