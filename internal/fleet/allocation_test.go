package fleet_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/fleet"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func org(name string, guarantee, limit, demand, busy, allocated int) fleet.OrgUsage {
	o := fleet.OrgUsage{Name: name, Guarantee: guarantee, Max: limit, Busy: busy, Allocated: allocated}
	if demand >= 0 {
		o.Demand = &demand
	}
	return o
}

// FLEET-09: shares for cases that a reader can check without a computer.
func TestFLEET09_Allocate(t *testing.T) {
	for _, c := range []struct {
		why    string
		budget int
		orgs   []fleet.OrgUsage
		want   []int
	}{
		{"nobody", 10, nil, nil},
		{"one organisation uses its maximum", 10, []fleet.OrgUsage{org("a", 0, 5, 0, 0, 0)}, []int{5}},
		{"unknown demand counts as the maximum", 10, []fleet.OrgUsage{org("a", 0, 9, -1, 0, 0), org("b", 0, 9, -1, 0, 0)}, []int{5, 5}},
		{"an odd one goes to the first name", 11, []fleet.OrgUsage{org("b", 0, 9, -1, 0, 0), org("a", 0, 9, -1, 0, 0)}, []int{6, 5}},
		{"demand before headroom", 10, []fleet.OrgUsage{org("a", 0, 9, 2, 0, 0), org("b", 0, 9, -1, 0, 0)}, []int{3, 7}},
		{"a guarantee is kept free", 10, []fleet.OrgUsage{org("a", 4, 9, 0, 0, 0), org("b", 0, 20, 30, 0, 0)}, []int{4, 6}},
		{"a guarantee is at most max", 10, []fleet.OrgUsage{org("a", 4, 2, 0, 0, 0), org("b", 0, 20, 30, 0, 0)}, []int{2, 8}},
		{"idle surplus stays", 10, []fleet.OrgUsage{org("a", 0, 9, 0, 0, 8), org("b", 0, 9, 0, 0, 2)}, []int{8, 2}},
		{"surplus is taken when another organisation needs it, and given later", 10, []fleet.OrgUsage{org("a", 0, 9, 0, 0, 8), org("b", 0, 9, 4, 2, 2)}, []int{4, 2}},
		{"busy capacity is not given twice", 10, []fleet.OrgUsage{org("a", 0, 9, 8, 8, 4), org("b", 0, 9, -1, 0, 0)}, []int{5, 2}},
		{"a lower maximum applies immediately", 10, []fleet.OrgUsage{org("a", 0, 3, 8, 8, 8)}, []int{3}},
		{"a lower budget applies immediately", 4, []fleet.OrgUsage{org("a", 0, 9, 0, 0, 5), org("b", 0, 9, 9, 5, 5)}, []int{1, 3}},
		{"the guarantees exceed the budget", 3, []fleet.OrgUsage{org("a", 2, 9, 0, 0, 0), org("b", 2, 9, 9, 0, 0)}, []int{2, 1}},
		{"nothing to give", 0, []fleet.OrgUsage{org("a", 2, 9, 9, 0, 0)}, []int{0}},
	} {
		t.Run(c.why, func(t *testing.T) {
			shares, _ := fleet.Allocate(c.budget, c.orgs, start)
			var got []int
			for _, s := range shares {
				got = append(got, s.Allocated)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%d, want %d", got, c.want)
			}
		})
	}
}

// FLEET-09: no share changes twice within a minute, unless it must.
func TestFLEET09_Pause(t *testing.T) {
	a, b := org("a", 0, 9, 0, 0, 9), org("b", 0, 9, 9, 1, 1)
	a.ChangedAt = start.Add(-10 * time.Second)
	shares, wake := fleet.Allocate(10, []fleet.OrgUsage{a, b}, start)
	if shares[0].Changed || shares[1].Changed {
		t.Errorf("ten seconds after a change: %+v", shares)
	}
	if want := a.ChangedAt.Add(fleet.ChangePause); !wake.Equal(want) {
		t.Errorf("wakes at %v, want %v", wake, want)
	}
	if shares, _ = fleet.Allocate(10, []fleet.OrgUsage{a, b}, wake); !shares[0].Changed {
		t.Errorf("a minute after: %+v", shares)
	}
	a.Max = 2
	if shares, _ = fleet.Allocate(10, []fleet.OrgUsage{a, b}, start); shares[0].Allocated != 2 {
		t.Errorf("a lower maximum waits: %+v", shares)
	}
	a.Max, a.ChangedAt = 9, start.Add(time.Hour) // the clock was wrong
	if shares, _ = fleet.Allocate(10, []fleet.OrgUsage{a, b}, start); !shares[0].Changed {
		t.Errorf("a change in the future holds it up: %+v", shares)
	}
}

// A pool simulates a pool in a cluster that confirms changes late, with jobs that start and end.
type pool struct {
	r      *rand.Rand
	budget int
	orgs   []fleet.OrgUsage
	demand []int // real demand
	late   []int // steps until the last change is confirmed
	forced bool  // the budget or a maximum was just lowered
}

func newPool(r *rand.Rand) *pool {
	p := &pool{r: r, budget: r.IntN(40)}
	rest := p.budget
	for i := range 1 + r.IntN(6) {
		o := fleet.OrgUsage{Name: fmt.Sprintf("org-%d", i), Max: r.IntN(p.budget + 2)}
		o.Guarantee = r.IntN(min(rest, o.Max) + 1)
		rest -= o.Guarantee
		p.orgs = append(p.orgs, o)
		p.demand, p.late = append(p.demand, 0), append(p.late, 0)
	}
	return p
}

// live starts and ends jobs, confirms due changes, and sets the visible demand.
func (p *pool) live(change int) {
	for i := range p.orgs {
		o := &p.orgs[i]
		if p.r.IntN(change) == 0 {
			p.demand[i] = p.r.IntN(p.budget + 5)
		}
		if p.late[i]--; p.late[i] <= 0 {
			o.InForce = o.Allocated
		}
		ended := p.r.IntN(o.Busy + 1)
		o.Busy -= ended
		if limit := min(p.demand[i], max(o.InForce, o.Allocated)); o.Busy < limit { // an older listener may still take jobs
			o.Busy += p.r.IntN(limit - o.Busy + 1)
		}
		o.Demand = new(min(p.demand[i], o.Allocated)) // a forge assigns no more jobs than there may be runners
		if p.r.IntN(4) == 0 {
			o.Demand = new(p.demand[i]) // or all waiting jobs are known
		}
		if p.r.IntN(20) == 0 {
			o.Demand = nil
		}
	}
}

func (p *pool) held() (sum int) {
	for _, o := range p.orgs {
		sum += max(o.Allocated, o.InForce, o.Busy)
	}
	return sum
}

// FLEET-09: the laws of Allocate hold over random pools and sequences, with jobs that run longer
// than a lower maximum, late confirmations and unknown numbers.
func TestFLEET09_Laws(t *testing.T) {
	for seed := range uint64(200) {
		p := newPool(rand.New(rand.NewPCG(seed, 9)))
		now := start
		for step := range 60 {
			p.forced = false
			if p.r.IntN(40) == 0 {
				p.budget, p.forced = p.budget/2+p.r.IntN(20), true
			}
			p.live(10)
			within := p.held() <= p.budget
			sound := 0
			for _, o := range p.orgs {
				sound += min(o.Guarantee, o.Max)
			}
			guaranteed := sound <= p.budget
			shares, wake := fleet.Allocate(p.budget, p.orgs, now)

			turned := slices.Clone(p.orgs)
			p.r.Shuffle(len(turned), func(i, j int) { turned[i], turned[j] = turned[j], turned[i] })
			if again, w := fleet.Allocate(p.budget, turned, now); !reflect.DeepEqual(again, shares) || !w.Equal(wake) {
				t.Fatalf("seed %d step %d: the order matters: %v, %v", seed, step, shares, again)
			}
			sum, fair := 0, 0
			for i, s := range shares {
				o := &p.orgs[i]
				sum, fair = sum+s.Allocated, fair+s.Fair
				least := min(o.Guarantee, o.Max)
				switch {
				case s.Name != o.Name || s.Allocated < 0 || s.Allocated > o.Max:
					t.Fatalf("seed %d step %d: %+v of %+v", seed, step, s, *o)
				case guaranteed && (s.Fair < least || s.Allocated < o.Allocated && s.Allocated < least):
					t.Fatalf("seed %d step %d: %+v goes below the guarantee of %+v", seed, step, s, *o)
				case s.Allocated > o.Allocated && !o.ChangedAt.IsZero() && now.Sub(o.ChangedAt) < fleet.ChangePause:
					t.Fatalf("seed %d step %d: %+v is raised %v after a change", seed, step, *o, now.Sub(o.ChangedAt))
				case s.Allocated < o.Allocated && o.Allocated <= o.Max && within && !p.forced && !o.ChangedAt.IsZero() && now.Sub(o.ChangedAt) < fleet.ChangePause:
					t.Fatalf("seed %d step %d: %+v is lowered %v after a change", seed, step, *o, now.Sub(o.ChangedAt))
				}
				if s.Changed != (s.Allocated != o.Allocated) {
					t.Fatalf("seed %d step %d: %+v of %+v", seed, step, s, *o)
				}
				if s.Changed {
					o.InForce = max(o.InForce, o.Allocated, s.Allocated) // until it is confirmed
					o.Allocated, o.ChangedAt, p.late[i] = s.Allocated, now, 1+p.r.IntN(4)
				}
			}
			if sum > p.budget || fair > p.budget {
				t.Fatalf("seed %d step %d: %d are allocated and %d are the fair share of %d", seed, step, sum, fair, p.budget)
			}
			if within && p.held() > p.budget {
				t.Fatalf("seed %d step %d: %d of %d are used: %+v", seed, step, p.held(), p.budget, p.orgs)
			}
			now = now.Add(time.Duration(p.r.IntN(50)) * time.Second)
		}
		// In a stable state, every organisation has its fair share, and no wait is pending.
		for i := range p.orgs {
			p.demand[i] = min(p.demand[i], p.orgs[i].Max)
		}
		for range 40 {
			now = now.Add(fleet.ChangePause)
			for i := range p.orgs {
				o := &p.orgs[i]
				o.InForce, o.Busy = o.Allocated, min(p.demand[i], o.Allocated)
				o.Demand = new(o.Busy)
			}
			shares, _ := fleet.Allocate(p.budget, p.orgs, now)
			for i, s := range shares {
				if s.Changed {
					p.orgs[i].Allocated, p.orgs[i].ChangedAt = s.Allocated, now
				}
			}
		}
		shares, wake := fleet.Allocate(p.budget, p.orgs, now.Add(fleet.ChangePause))
		for _, s := range shares {
			switch {
			case s.Changed:
				t.Fatalf("seed: s.Changed is true; seed = %d, shares = %+v, wake = %v, %+v", seed, shares, wake, p.orgs)
			case s.Allocated < s.Fair:
				t.Fatalf("seed: s.Allocated = %v, want at least %v; seed = %d; shares = %+v; %+v",
					s.Allocated, s.Fair, seed, shares, p.orgs)
			case !wake.IsZero():
				t.Fatalf("seed: wake.IsZero() is false; seed = %d, shares = %+v, wake = %v, %+v", seed, shares, wake, p.orgs)
			}
		}
	}
}

// FLEET-09: while there is enough capacity, oscillating demand does not change the shares.
// Otherwise no share changes more than once a minute.
func TestFLEET09_NoFlapping(t *testing.T) {
	for _, c := range []struct {
		budget, most int // changes in an hour
		why          string
	}{{20, 2, "enough for both"}, {12, 60 * 2, "not enough"}} {
		t.Run(c.why, func(t *testing.T) {
			orgs := []fleet.OrgUsage{{Name: "a", Max: 10}, {Name: "b", Max: 10, Guarantee: 2}}
			changes := 0
			for s := range 3600 {
				now := start.Add(time.Duration(s) * time.Second)
				swing := []int{0, 8}
				if s/10%2 == 0 {
					slices.Reverse(swing)
				}
				for i := range orgs {
					orgs[i].Busy = min(swing[i], orgs[i].Allocated)
					orgs[i].Demand, orgs[i].InForce = new(swing[i]), orgs[i].Allocated
				}
				shares, _ := fleet.Allocate(c.budget, orgs, now)
				for i, s := range shares {
					if !s.Changed {
						continue
					}
					if last := orgs[i].ChangedAt; !last.IsZero() && now.Sub(last) < fleet.ChangePause {
						t.Fatalf("%s changes %v after a change", s.Name, now.Sub(last))
					}
					orgs[i].Allocated, orgs[i].ChangedAt = s.Allocated, now
					changes++
				}
			}
			t.Logf("%d changes in an hour", changes)
			if changes > c.most || changes == 0 {
				t.Errorf("%d changes in an hour, want at most %d", changes, c.most)
			}
		})
	}
}

func BenchmarkAllocate(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	orgs := make([]fleet.OrgUsage, 500)
	for i := range orgs {
		orgs[i] = org(fmt.Sprintf("org-%03d", i), 1, 50, r.IntN(60), r.IntN(10), r.IntN(20))
	}
	for b.Loop() {
		fleet.Allocate(10000, orgs, start)
	}
}
