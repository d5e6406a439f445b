// Package ledger computes the allocations: which rules the enrollments break, and the share of each
// enrollment in the budget of each pool. It decides for all enrollments at the same time. It
// implements law 7: an organisation without an observation counts as if it used its maximum.
package ledger

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
)

// A Use is one organisation's use of one pool.
type Use struct{ Org, Pool string }

// A Reading is the observed state of a use, over all its workloads.
type Reading struct {
	Busy    int
	Demand  *int // nil: not known
	InForce int  // largest maximum that may still be in force, see [fleet.Org]
	Held    bool // a hold is in force: the share stays, unless others need it
}

// A Share is an organisation's allocation from a pool, and the time of its last change.
type Share struct {
	Allocated int
	ChangedAt time.Time // zero: it never had a share
}

// A Pool is the use of a pool.
type Pool struct{ Orgs, Allocated int }

// A Version identifies one state of an enrollment's spec.
type Version struct {
	UID        types.UID
	Generation int64
	Deleted    bool
}

// A Result is the decision for all enrollments at one time.
type Result struct {
	Of         map[string]Version // the enrollments that the decision covers
	Violations map[string][]fleet.Violation
	Pruned     map[string]bool
	Shares     map[Use]Share
	Pools      map[string]Pool
	Wake       time.Time // time of the next decision if nothing changes; zero: never
}

// A Ledger keeps the allocations until they are stored in the objects. Its methods are not safe for
// concurrent use.
type Ledger struct {
	given map[given]Share
}

type given struct {
	uid  types.UID
	pool string
}

// Decide decides for all enrollments of a view. readings are by organisation. An organisation
// without an entry was not observed yet.
func (l *Ledger) Decide(v fleet.View, approved func(*v1alpha1.RunnerEnrollment) bool, readings map[string]map[string]Reading, now time.Time) Result {
	r := Result{Of: map[string]Version{}, Violations: fleet.Check(v), Pruned: fleet.Pruned(v.Enrollments), Shares: map[Use]Share{}, Pools: map[string]Pool{}}
	before := l.given
	l.given = map[given]Share{}
	orgs := map[string][]fleet.Org{}
	uids := map[string]types.UID{}
	pools := map[string]*v1alpha1.RunnerPool{}
	for i := range v.Pools {
		pools[v.Pools[i].Name] = &v.Pools[i]
	}
	for i := range v.Enrollments {
		e := &v.Enrollments[i]
		r.Of[e.Name], uids[e.Name] = VersionOf(e), e.UID
		may := e.DeletionTimestamp.IsZero() && approved(e)
		seen, looked := readings[e.Name]
		for _, name := range uses(e, seen) {
			pool := pools[name]
			if pool == nil {
				continue
			}
			had, ok := before[given{e.UID, name}]
			if !ok {
				had = stored(e, name)
			}
			o := fleet.Org{Name: e.Name, Guarantee: int(pool.Spec.Scaling.Guarantee), Allocated: had.Allocated, ChangedAt: had.ChangedAt}
			use := slices.IndexFunc(e.Spec.Pools, func(u v1alpha1.EnrolledPool) bool { return u.Name == name })
			if may && use >= 0 {
				o.Max = most(pool, e.Spec.Pools[use], r.Violations[e.Name], had.Allocated)
			}
			if use >= 0 {
				p := r.Pools[name]
				p.Orgs++
				r.Pools[name] = p
			}
			if reading, ok := seen[name]; ok {
				o.Busy, o.Demand, o.InForce = reading.Busy, reading.Demand, reading.InForce
				if reading.Held {
					o.Max, o.Demand = min(o.Max, had.Allocated), nil
				}
			} else if !looked {
				o.InForce, o.Max = int(pool.Spec.Scaling.Max), min(o.Max, had.Allocated)
			}
			orgs[name] = append(orgs[name], o)
		}
	}
	for name, of := range orgs {
		shares, wake := fleet.Allocate(int(pools[name].Spec.Scaling.Budget), of, now)
		if !wake.IsZero() && (r.Wake.IsZero() || wake.Before(r.Wake)) {
			r.Wake = wake
		}
		p := r.Pools[name]
		changed := make(map[string]time.Time, len(of))
		for _, o := range of {
			changed[o.Name] = o.ChangedAt
		}
		for _, s := range shares {
			share := Share{Allocated: s.Allocated, ChangedAt: changed[s.Name]}
			if s.Changed {
				share.ChangedAt = now
			}
			r.Shares[Use{s.Name, name}] = share
			l.given[given{uids[s.Name], name}] = share
			p.Allocated += s.Allocated
		}
		r.Pools[name] = p
	}
	return r
}

// VersionOf returns the version of an enrollment.
func VersionOf(e *v1alpha1.RunnerEnrollment) Version {
	return Version{e.UID, e.Generation, !e.DeletionTimestamp.IsZero()}
}

// uses returns the pools that an enrollment uses, or in which it still has runners, without
// duplicates.
func uses(e *v1alpha1.RunnerEnrollment, seen map[string]Reading) (names []string) {
	for _, u := range e.Spec.Pools {
		names = append(names, u.Name)
	}
	for _, p := range e.Status.Pools {
		names = append(names, p.Name)
	}
	for name := range seen {
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// most returns the maximum number of runners that an organisation may have in a pool, before the
// shares of others. An enrollment that breaks a rule gets at most its earlier share.
func most(pool *v1alpha1.RunnerPool, use v1alpha1.EnrolledPool, broken []fleet.Violation, has int) int {
	n := int(fleet.MaxOf(pool, use))
	for _, v := range broken {
		switch {
		case v.Pool != "" && v.Pool != pool.Name:
		case v.Effect >= fleet.Stops:
			return 0
		case v.Effect >= fleet.Bars:
			n = min(n, has)
		}
	}
	return n
}

// stored returns the allocation in the status of an enrollment.
func stored(e *v1alpha1.RunnerEnrollment, pool string) (s Share) {
	for _, p := range e.Status.Pools {
		if p.Name != pool || p.Allocated == nil {
			continue
		}
		s.Allocated = int(*p.Allocated)
		if p.AllocatedAt != nil {
			s.ChangedAt = p.AllocatedAt.Time
		}
	}
	return s
}
