package planekube

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/plane/planefleet"
)

// The source of each fleet kind.
const (
	enrollmentsSource = "kubernetes:runnerenrollments"
	holdsSource       = "kubernetes:runnerholds"
	forgesSource      = "kubernetes:runnerforges"
)

// runners joins enrollments with their pools, forges and holds. Each kind may be readable without the others; fields that come from an
// unreadable kind are then unknown.
type runners struct {
	board *plane.Board
	now   func() time.Time

	mu          sync.Mutex // locked while any of the kinds is written to the plane's store, to keep the order
	enrollments map[string]*v1alpha1.RunnerEnrollment
	pools       map[string]*v1alpha1.RunnerPool
	forges      map[string]*v1alpha1.RunnerForge
	holds       map[string]*v1alpha1.RunnerHold
	rows        map[string][]row // what an enrollment has in the plane's store, except itself
	wake        time.Time        // when the next hold expires; zero: never
	workers     *workers         // the single runners
}

func newRunners(b *plane.Board, now func() time.Time) *runners {
	return &runners{board: b, now: now, enrollments: map[string]*v1alpha1.RunnerEnrollment{}, pools: map[string]*v1alpha1.RunnerPool{},
		forges: map[string]*v1alpha1.RunnerForge{}, holds: map[string]*v1alpha1.RunnerHold{}, rows: map[string][]row{}, workers: newWorkers(b, now)}
}

// row identifies an object in the plane's store.
type row struct {
	kind plane.Kind
	key  string
}

// kind is the companion of one of the four fleet kinds. Its feed calls it with the lock held.
type kind[T any] struct {
	known   map[string]*T
	changed func(is *T, name string) // one object has changed; nil: it was deleted
	read    func()                   // the full list has been read
}

// put, remove and replace implement [companion].
func (k kind[T]) put(o client.Object) {
	if is, ok := any(o).(*T); ok {
		k.known[o.GetName()] = is
		k.changed(is, o.GetName())
	}
}

func (k kind[T]) remove(o client.Object) {
	delete(k.known, o.GetName())
	k.changed(nil, o.GetName())
}

func (k kind[T]) replace(all []client.Object) {
	clear(k.known)
	for _, o := range all {
		if is, ok := any(o).(*T); ok {
			k.known[o.GetName()] = is
		}
	}
	k.read()
}

func (r *runners) enrollmentsKind() companion {
	return kind[v1alpha1.RunnerEnrollment]{r.enrollments, func(e *v1alpha1.RunnerEnrollment, name string) {
		now := r.now().UTC()
		if e == nil {
			r.board.Remove(plane.KindEnrollment, name)
		} else {
			r.board.Put(plane.KindEnrollment, enrollmentsSource, EnrollmentOf(e, now))
		}
		r.again(e, name, now)
		r.shared(now)
	}, func() {
		now := r.now().UTC()
		all := map[plane.Kind][]plane.Object{plane.KindEnrollment: nil, plane.KindPool: nil, plane.KindDrift: nil}
		for name := range r.rows {
			if r.enrollments[name] == nil {
				r.workers.enrolled(name, nil)
			}
		}
		clear(r.rows)
		for name, e := range r.enrollments {
			all[plane.KindEnrollment] = append(all[plane.KindEnrollment], EnrollmentOf(e, now))
			r.workers.enrolled(name, e)
			for kind, objects := range r.parts(e, now) {
				all[kind] = append(all[kind], objects...)
				for _, o := range objects {
					r.rows[name] = append(r.rows[name], row{kind, o.Key()})
				}
			}
		}
		for _, kind := range []plane.Kind{plane.KindEnrollment, plane.KindPool, plane.KindDrift} {
			r.board.Replace(kind, enrollmentsSource, all[kind])
		}
		r.shared(now)
	}}
}

func (r *runners) poolsKind() companion {
	return kind[v1alpha1.RunnerPool]{r.pools, func(_ *v1alpha1.RunnerPool, name string) {
		r.rework(func(e *v1alpha1.RunnerEnrollment) bool { return uses(e, name) })
		r.shared(r.now().UTC())
	}, func() { r.rework(nil); r.shared(r.now().UTC()) }}
}

func (r *runners) forgesKind() companion {
	return kind[v1alpha1.RunnerForge]{r.forges, func(f *v1alpha1.RunnerForge, name string) {
		if f == nil {
			r.board.Remove(plane.KindForge, name)
			return
		}
		r.board.Put(plane.KindForge, forgesSource, r.forge(f, r.now().UTC()))
	}, func() {
		var all []plane.Object
		for _, f := range r.forges {
			all = append(all, r.forge(f, r.now().UTC()))
		}
		r.board.Replace(plane.KindForge, forgesSource, all)
	}}
}

func (r *runners) holdsKind() companion {
	return kind[v1alpha1.RunnerHold]{r.holds, func(h *v1alpha1.RunnerHold, name string) {
		if h == nil {
			r.board.Remove(plane.KindHold, name)
			r.rework(nil)
			return
		}
		r.board.Put(plane.KindHold, holdsSource, r.hold(h, r.now().UTC()))
		r.rework(func(e *v1alpha1.RunnerEnrollment) bool { return touches(h.Spec.Scope, e) })
	}, func() {
		var all []plane.Object
		for _, h := range r.holds {
			all = append(all, r.hold(h, r.now().UTC()))
		}
		r.board.Replace(plane.KindHold, holdsSource, all)
		r.rework(nil)
	}}
}

// tick updates the plane's store if a hold has expired since. No other event announces that until the fleet writes its status.
func (r *runners) tick() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now().UTC()
	if r.wake.IsZero() || now.Before(r.wake) {
		return
	}
	r.shared(now)
	r.rework(nil)
}

// rework updates the runners of the enrollments that some admits; nil admits all. Unchanged objects cause no event.
func (r *runners) rework(some func(*v1alpha1.RunnerEnrollment) bool) {
	now := r.now().UTC()
	r.wake = time.Time{}
	for _, h := range r.holds {
		if at := h.Spec.ExpiresAt; at != nil && now.Before(at.Time) && (r.wake.IsZero() || at.Time.Before(r.wake)) {
			r.wake = at.Time
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.enrollments)) {
		if e := r.enrollments[name]; some == nil || some(e) {
			r.again(e, name, now)
		}
	}
}

// again updates what an enrollment has in the plane's store. A nil e means that the enrollment was deleted.
func (r *runners) again(e *v1alpha1.RunnerEnrollment, name string, now time.Time) {
	var rows []row
	r.workers.enrolled(name, e)
	if e != nil {
		for kind, objects := range r.parts(e, now) {
			for _, o := range objects {
				r.board.Put(kind, enrollmentsSource, o)
				rows = append(rows, row{kind, o.Key()})
			}
		}
	}
	for _, old := range r.rows[name] {
		if !slices.Contains(rows, old) {
			r.board.Remove(old.kind, old.key)
		}
	}
	if r.rows[name] = rows; rows == nil {
		delete(r.rows, name)
	}
}

// parts returns the pools and the drift of an enrollment.
func (r *runners) parts(e *v1alpha1.RunnerEnrollment, now time.Time) map[plane.Kind][]plane.Object {
	parts := map[plane.Kind][]plane.Object{}
	for _, p := range r.of(e, now) {
		parts[plane.KindPool] = append(parts[plane.KindPool], p)
	}
	for _, f := range e.Status.Findings {
		if f.Settled {
			parts[plane.KindDrift] = append(parts[plane.KindDrift], driftOf(e, f, now))
		}
	}
	return parts
}

// shared updates the holds and forges, because enrollments decide which organisations take part in them.
func (r *runners) shared(now time.Time) {
	for _, h := range r.holds {
		r.board.Put(plane.KindHold, holdsSource, r.hold(h, now))
	}
	for _, f := range r.forges {
		r.board.Put(plane.KindForge, forgesSource, r.forge(f, now))
	}
}

func uses(e *v1alpha1.RunnerEnrollment, pool string) bool {
	return slices.ContainsFunc(e.Spec.Pools, func(p v1alpha1.EnrolledPool) bool { return p.Name == pool }) ||
		slices.ContainsFunc(e.Status.Pools, func(p v1alpha1.EnrolledPoolStatus) bool { return p.Name == pool })
}

// touches reports whether a hold with the scope covers runners of the enrollment.
func touches(s v1alpha1.HoldScope, e *v1alpha1.RunnerEnrollment) bool {
	if s.All || s.Forge != "" {
		return s.All || s.Forge == e.Spec.Forge
	}
	return (s.Org == "" || s.Org == e.Name) && (s.Pool == "" || uses(e, s.Pool))
}

// of returns the pools of an enrollment: the requested ones, and those that are being removed.
func (r *runners) of(e *v1alpha1.RunnerEnrollment, now time.Time) (all []planefleet.Pool) {
	add := func(name string, use v1alpha1.PoolUse, most *int32) {
		p := planefleet.Pool{ID: e.Spec.Forge + "/" + e.Name + "/" + name, Name: name, Forge: e.Spec.Forge, OrgName: e.Name, Type: string(use), Isolation: string(e.Spec.Isolation),
			Holds: []string{}, Drift: []string{}, ObservedAt: now}
		if is := r.pools[name]; is != nil {
			p.RunsOn = fleet.RunsOn(is, e.Name)
			p.Scaling = &planefleet.Scaling{Min: int(is.Spec.Scaling.Min), Max: int(is.Spec.Scaling.Max), Budget: int(is.Spec.Scaling.Budget)}
			if most != nil {
				p.Scaling.Max = min(p.Scaling.Max, int(*most))
			}
		}
		status := workload(e, name)
		if status != nil {
			p.Counts = planefleet.Counts{Idle: whole(status.Idle), Busy: whole(status.Busy), Pending: whole(status.Pending), Failed: whole(status.Failed)}
			p.EffectiveMax, p.Allocated = whole(status.EffectiveMax), whole(status.Allocated)
			p.Assigned, p.Stranded = whole(status.Assigned), whole(status.Stranded)
			p.Controller = planefleet.Controller{Kind: status.Kind, Namespace: status.Namespace, Name: status.Workload}
			p.ScaleSetID, p.RunnerID, p.Drift = status.ScaleSetID, status.RunnerID, listed(status.Drift)
		}
		var in []*v1alpha1.RunnerHold
		for _, h := range r.holds {
			if fleet.ScopeIncludes(h.Spec.Scope, fleet.Target{Forge: e.Spec.Forge, Org: e.Name, Pool: name}) && !fleet.HoldLifted(h, now) {
				in = append(in, h)
			}
		}
		slices.SortFunc(in, func(a, b *v1alpha1.RunnerHold) int { return cmp.Compare(a.Name, b.Name) })
		for _, h := range in {
			p.Holds = append(p.Holds, h.Name)
		}
		p.State, p.StateReason = stateOf(e, name, status, in)
		p.Settings = settingsOf(e, r.pools[name], status, p.Holds)
		all = append(all, p)
	}
	for _, p := range e.Spec.Pools {
		add(p.Name, p.Type, p.Max)
	}
	for _, s := range e.Status.Pools {
		if !slices.ContainsFunc(all, func(p planefleet.Pool) bool { return p.Name == s.Name }) {
			add(s.Name, s.Type, nil)
		}
	}
	return all
}

// workload returns the fleet's status of a pool. If there are several workloads, it returns the desired one.
func workload(e *v1alpha1.RunnerEnrollment, pool string) (is *v1alpha1.EnrolledPoolStatus) {
	for i := range e.Status.Pools {
		if s := &e.Status.Pools[i]; s.Name == pool && (is == nil || is.Type == "" && s.Type != "") {
			is = s
		}
	}
	return is
}

// whole converts an optional int32 to an optional int.
func whole(n *int32) *int {
	if n == nil {
		return nil
	}
	return new(int(*n))
}

// forge converts a forge and adds the organisations that are enrolled there.
func (r *runners) forge(f *v1alpha1.RunnerForge, now time.Time) plane.Object {
	o := planefleet.Forge{ID: f.Name, Name: f.Name, Type: string(f.Spec.Type), URL: f.Spec.URL, Version: orNil(f.Status.Version), Conditions: conditionsOf(f.Status.Conditions), ObservedAt: now}
	if c := current(f.Status.Conditions, "Reachable"); c != "" && c != "Unknown" {
		o.Reachable = new(c == "True")
	}
	if l := f.Status.RateLimit; l != nil {
		o.RateLimit = &planefleet.RateLimit{Remaining: l.Remaining, ResetAt: moment(l.ResetAt)}
	}
	for _, name := range slices.Sorted(maps.Keys(r.enrollments)) {
		if r.enrollments[name].Spec.Forge == f.Name {
			o.EnrolledThere = append(o.EnrolledThere, name)
		}
	}
	return o
}

// hold converts a hold and adds the organisations that it covers.
func (r *runners) hold(h *v1alpha1.RunnerHold, now time.Time) plane.Object {
	o := HoldOf(h, now)
	for _, name := range slices.Sorted(maps.Keys(r.enrollments)) {
		if touches(h.Spec.Scope, r.enrollments[name]) {
			o.Held = append(o.Held, name)
		}
	}
	return o
}
