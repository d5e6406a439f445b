// Package ledger says what is given to whom: which rules enrollments break, and what
// each has of the budget of each pool, decided for all of them at one time. It keeps
// law 7: of an organisation whose runners nobody has looked at yet it is taken that
// they are as many as they may be.
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

// A Reading is what was seen of a use, all its workloads together.
type Reading struct {
	Busy    int
	Demand  *int // nil: not known
	InForce int  // the most that somebody may still work by, see [fleet.Org]
	Held    bool // a hold is in force: what it has stays as it is, unless others need it
}

// A Share is what an organisation has of a pool, and since when.
type Share struct {
	Allocated int
	ChangedAt time.Time // zero: it never had anything
}

// A Pool is how a pool is used.
type Pool struct{ Orgs, Allocated int }

// A Version tells one state of an enrollment's spec from another.
type Version struct {
	UID        types.UID
	Generation int64
	Deleted    bool
}

// A Result is everything that was decided at one time.
type Result struct {
	Of         map[string]Version // the enrollments that it was decided upon
	Violations map[string][]fleet.Violation
	Pruned     map[string]bool
	Shares     map[Use]Share
	Pools      map[string]Pool
	Wake       time.Time // when to decide again though nothing changes; zero: never
}

// A Ledger remembers what it gave until it stands in the objects. Its methods must not
// be called at the same time.
type Ledger struct {
	given map[given]Share
}

type given struct {
	uid  types.UID
	pool string
}

// Decide decides for all enrollments of a view. Readings are by organisation; one that
// is not among them was not looked at yet.
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

// VersionOf is the version of an enrollment.
func VersionOf(e *v1alpha1.RunnerEnrollment) Version {
	return Version{e.UID, e.Generation, !e.DeletionTimestamp.IsZero()}
}

// uses are the pools that an enrollment has, or still has runners of, each once.
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

// most is how many runners of a pool an organisation may have, before others have
// theirs: one that breaks a rule keeps what it has at most.
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

// stored is what the status of an enrollment says that it was given.
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
