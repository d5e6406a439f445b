package kube

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// The source of each fleet kind.
const (
	enrollmentsSource = "kubernetes:runnerenrollments"
	holdsSource       = "kubernetes:runnerholds"
	forgesSource      = "kubernetes:runnerforges"
)

// fleetJoin joins enrollments with their pools, forges and holds. Each kind may be readable without the others; fields that come from an
// unreadable kind are then unknown.
type fleetJoin struct {
	store *plane.Store
	now   func() time.Time

	mu          sync.Mutex // locked while any of the kinds is written to the plane's store, to keep the order
	enrollments map[string]*v1alpha1.RunnerEnrollment
	pools       map[string]*v1alpha1.RunnerPool
	forges      map[string]*v1alpha1.RunnerForge
	holds       map[string]*v1alpha1.RunnerHold
	derived     map[string][]storeKey         // what an enrollment has in the plane's store, except itself
	wake        time.Time                     // when the next hold expires; zero: never
	runners     *runnerJoin                   // the single runners
	orgs        *atomic.Pointer[[]access.Org] // the organisations and their people
}

func newFleetJoin(b *plane.Store, now func() time.Time, orgs *atomic.Pointer[[]access.Org]) *fleetJoin {
	return &fleetJoin{store: b, now: now, orgs: orgs, enrollments: map[string]*v1alpha1.RunnerEnrollment{}, pools: map[string]*v1alpha1.RunnerPool{},
		forges: map[string]*v1alpha1.RunnerForge{}, holds: map[string]*v1alpha1.RunnerHold{}, derived: map[string][]storeKey{}, runners: newRunnerJoin(b, now)}
}

// storeKey identifies an object in the plane's store.
type storeKey struct {
	kind plane.Kind
	key  string
}

func (r *fleetJoin) enrollmentSink() objectSink {
	return kindSink[v1alpha1.RunnerEnrollment, *v1alpha1.RunnerEnrollment]{r.enrollments, whole, func(name string) {
		e, now := r.enrollments[name], r.now().UTC()
		r.updateOrgs()
		if e == nil {
			r.store.Delete(plane.KindEnrollment, name)
		} else {
			r.store.Set(plane.KindEnrollment, enrollmentsSource, enrollmentOf(e, now))
		}
		r.update(e, name, now)
		r.updateShared(now)
	}, func() {
		now := r.now().UTC()
		r.updateOrgs()
		all := map[plane.Kind][]plane.Object{plane.KindEnrollment: nil, plane.KindPool: nil, plane.KindDrift: nil}
		for name := range r.derived {
			if r.enrollments[name] == nil {
				r.runners.setWorkloads(name, nil)
			}
		}
		clear(r.derived)
		for name, e := range r.enrollments {
			all[plane.KindEnrollment] = append(all[plane.KindEnrollment], enrollmentOf(e, now))
			r.runners.setWorkloads(name, e)
			for kind, objects := range r.derivedObjects(e, now) {
				all[kind] = append(all[kind], objects...)
				for _, o := range objects {
					r.derived[name] = append(r.derived[name], storeKey{kind, o.Key()})
				}
			}
		}
		for _, kind := range []plane.Kind{plane.KindEnrollment, plane.KindPool, plane.KindDrift} {
			r.store.Replace(kind, enrollmentsSource, all[kind])
		}
		r.updateShared(now)
	}}
}

func (r *fleetJoin) poolSink() objectSink {
	return kindSink[v1alpha1.RunnerPool, *v1alpha1.RunnerPool]{r.pools, whole, func(name string) {
		r.updateWhere(func(e *v1alpha1.RunnerEnrollment) bool { return usesPool(e, name) })
		r.updateShared(r.now().UTC())
	}, func() { r.updateWhere(nil); r.updateShared(r.now().UTC()) }}
}

func (r *fleetJoin) forgeSink() objectSink {
	return kindSink[v1alpha1.RunnerForge, *v1alpha1.RunnerForge]{r.forges, whole, func(name string) {
		show(r, plane.KindForge, forgesSource, name, r.forges[name], r.forgeOf)
	}, func() { showAll(r, plane.KindForge, forgesSource, r.forges, r.forgeOf) }}
}

func (r *fleetJoin) holdSink() objectSink {
	return kindSink[v1alpha1.RunnerHold, *v1alpha1.RunnerHold]{r.holds, whole, func(name string) {
		h := r.holds[name]
		show(r, plane.KindHold, holdsSource, name, h, r.holdOf)
		r.updateWhere(func(e *v1alpha1.RunnerEnrollment) bool { return h == nil || holdCovers(h.Spec.Scope, e) })
	}, func() { showAll(r, plane.KindHold, holdsSource, r.holds, r.holdOf); r.updateWhere(nil) }}
}

// show updates an object in the plane's store. A nil o means that it was deleted.
func show[T any](r *fleetJoin, k plane.Kind, source, name string, o *T, convert func(*T, time.Time) plane.Object) {
	if o == nil {
		r.store.Delete(k, name)
		return
	}
	r.store.Set(k, source, convert(o, r.now().UTC()))
}

// showAll replaces the objects of a kind in the plane's store.
func showAll[T any](r *fleetJoin, k plane.Kind, source string, objects map[string]*T, convert func(*T, time.Time) plane.Object) {
	var all []plane.Object
	for _, o := range objects {
		all = append(all, convert(o, r.now().UTC()))
	}
	r.store.Replace(k, source, all)
}

// updateOrgs lists the organisations and their people.
func (r *fleetJoin) updateOrgs() {
	var list []access.Org
	for _, name := range slices.Sorted(maps.Keys(r.enrollments)) {
		spec := r.enrollments[name].Spec
		list = append(list, access.Org{Name: name, Owners: spec.Owners, Members: spec.Members})
	}
	r.orgs.Store(&list)
}

// tick updates the plane's store if a hold has expired since. No other event announces that until the fleet writes its status.
func (r *fleetJoin) tick() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now().UTC()
	if r.wake.IsZero() || now.Before(r.wake) {
		return
	}
	r.updateShared(now)
	r.updateWhere(nil)
}

// updateWhere updates the runners of the enrollments that some admits; nil admits all. Unchanged objects cause no event.
func (r *fleetJoin) updateWhere(some func(*v1alpha1.RunnerEnrollment) bool) {
	now := r.now().UTC()
	r.wake = time.Time{}
	for _, h := range r.holds {
		if at := h.Spec.ExpiresAt; at != nil && now.Before(at.Time) {
			r.wake = retry.Earliest(r.wake, at.Time)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.enrollments)) {
		if e := r.enrollments[name]; some == nil || some(e) {
			r.update(e, name, now)
		}
	}
}

// update updates what an enrollment has in the plane's store. A nil e means that the enrollment was deleted.
func (r *fleetJoin) update(e *v1alpha1.RunnerEnrollment, name string, now time.Time) {
	var rows []storeKey
	r.runners.setWorkloads(name, e)
	if e != nil {
		for kind, objects := range r.derivedObjects(e, now) {
			for _, o := range objects {
				r.store.Set(kind, enrollmentsSource, o)
				rows = append(rows, storeKey{kind, o.Key()})
			}
		}
	}
	for _, old := range r.derived[name] {
		if !slices.Contains(rows, old) {
			r.store.Delete(old.kind, old.key)
		}
	}
	if r.derived[name] = rows; rows == nil {
		delete(r.derived, name)
	}
}

// derivedObjects returns the pools and the drift of an enrollment.
func (r *fleetJoin) derivedObjects(e *v1alpha1.RunnerEnrollment, now time.Time) map[plane.Kind][]plane.Object {
	parts := map[plane.Kind][]plane.Object{}
	for _, p := range r.poolsOf(e, now) {
		parts[plane.KindPool] = append(parts[plane.KindPool], p)
	}
	for _, f := range e.Status.Findings {
		if f.Settled {
			parts[plane.KindDrift] = append(parts[plane.KindDrift], driftOf(e, f, now))
		}
	}
	return parts
}

// updateShared updates the holds and forges, because enrollments decide which organisations take part in them.
func (r *fleetJoin) updateShared(now time.Time) {
	for _, h := range r.holds {
		r.store.Set(plane.KindHold, holdsSource, r.holdOf(h, now))
	}
	for _, f := range r.forges {
		r.store.Set(plane.KindForge, forgesSource, r.forgeOf(f, now))
	}
}

func usesPool(e *v1alpha1.RunnerEnrollment, pool string) bool {
	return slices.ContainsFunc(e.Spec.Pools, func(p v1alpha1.EnrolledPool) bool { return p.Name == pool }) ||
		slices.ContainsFunc(e.Status.Pools, func(p v1alpha1.EnrolledPoolStatus) bool { return p.Name == pool })
}

// holdCovers reports whether a hold with the scope covers runners of the enrollment.
func holdCovers(s v1alpha1.HoldScope, e *v1alpha1.RunnerEnrollment) bool {
	if s.All || s.Forge != "" {
		return s.All || s.Forge == e.Spec.Forge
	}
	return (s.Org == "" || s.Org == e.Name) && (s.Pool == "" || usesPool(e, s.Pool))
}

// poolsOf returns the pools of an enrollment: the requested ones, and those that are being removed.
func (r *fleetJoin) poolsOf(e *v1alpha1.RunnerEnrollment, now time.Time) (all []plane.Pool) {
	add := func(name string, use v1alpha1.PoolUse, most *int32) {
		p := plane.Pool{ID: e.Spec.Forge + "/" + e.Name + "/" + name, Name: name, Forge: e.Spec.Forge, OrgName: e.Name, Type: string(use), Isolation: string(e.Spec.Isolation),
			Holds: []string{}, Drift: []string{}, ObservedAt: now}
		if is := r.pools[name]; is != nil {
			p.RunsOn = fleet.RunsOn(is, e.Name)
			p.Scaling = &plane.Scaling{Min: int(is.Spec.Scaling.Min), Max: int(is.Spec.Scaling.Max), Budget: int(is.Spec.Scaling.Budget)}
			if most != nil {
				p.Scaling.Max = min(p.Scaling.Max, int(*most))
			}
		}
		status := poolStatusOf(e, name)
		if status != nil {
			p.Counts = plane.Counts{Idle: intOrNil(status.Idle), Busy: intOrNil(status.Busy), Pending: intOrNil(status.Pending), Failed: intOrNil(status.Failed)}
			p.EffectiveMax, p.Allocated = intOrNil(status.EffectiveMax), intOrNil(status.Allocated)
			p.Assigned, p.Stranded = intOrNil(status.Assigned), intOrNil(status.Stranded)
			p.Controller = plane.Controller{Kind: status.Kind, Namespace: status.Namespace, Name: status.Workload}
			p.ScaleSetID, p.RunnerID, p.Drift = status.ScaleSetID, status.RunnerID, nonNil(status.Drift)
		}
		var in []*v1alpha1.RunnerHold
		for _, hold := range slices.Sorted(maps.Keys(r.holds)) {
			h := r.holds[hold]
			if fleet.ScopeIncludes(h.Spec.Scope, fleet.Target{Forge: e.Spec.Forge, Org: e.Name, Pool: name}) && !fleet.HoldLifted(h, now) {
				in, p.Holds = append(in, h), append(p.Holds, hold)
			}
		}
		p.State, p.StateReason = poolState(e, name, status, in)
		p.Settings = settingsOf(e, r.pools[name], status, p.Holds)
		all = append(all, p)
	}
	for _, p := range e.Spec.Pools {
		add(p.Name, p.Type, p.Max)
	}
	for _, s := range e.Status.Pools {
		if !slices.ContainsFunc(all, func(p plane.Pool) bool { return p.Name == s.Name }) {
			add(s.Name, s.Type, nil)
		}
	}
	return all
}

// poolStatusOf returns the fleet's status of a pool. If there are several workloads, it returns the desired one.
func poolStatusOf(e *v1alpha1.RunnerEnrollment, pool string) (is *v1alpha1.EnrolledPoolStatus) {
	for i := range e.Status.Pools {
		if s := &e.Status.Pools[i]; s.Name == pool && (is == nil || is.Type == "" && s.Type != "") {
			is = s
		}
	}
	return is
}

// intOrNil converts an optional int32 to an optional int.
func intOrNil(n *int32) *int {
	if n == nil {
		return nil
	}
	return new(int(*n))
}

// forgeOf converts a forge and adds the organisations that are enrolled there.
func (r *fleetJoin) forgeOf(f *v1alpha1.RunnerForge, now time.Time) plane.Object {
	o := plane.Forge{ID: f.Name, Name: f.Name, Type: string(f.Spec.Type), URL: f.Spec.URL, Version: orNil(f.Status.Version), Conditions: conditionsOf(f.Status.Conditions), ObservedAt: now}
	if c := meta.FindStatusCondition(f.Status.Conditions, "Reachable"); c != nil && c.Status != metav1.ConditionUnknown {
		o.Reachable = new(c.Status == metav1.ConditionTrue)
	}
	if l := f.Status.RateLimit; l != nil {
		o.RateLimit = &plane.RateLimit{Remaining: l.Remaining, ResetAt: timeOrNil(l.ResetAt)}
	}
	for _, name := range slices.Sorted(maps.Keys(r.enrollments)) {
		if r.enrollments[name].Spec.Forge == f.Name {
			o.EnrolledOrgs = append(o.EnrolledOrgs, name)
		}
	}
	return o
}

// holdOf converts a hold and adds the organisations that it covers.
func (r *fleetJoin) holdOf(h *v1alpha1.RunnerHold, now time.Time) plane.Object {
	o := holdOf(h, now)
	for _, name := range slices.Sorted(maps.Keys(r.enrollments)) {
		if holdCovers(h.Spec.Scope, r.enrollments[name]) {
			o.HeldOrgs = append(o.HeldOrgs, name)
		}
	}
	return o
}

// fleetLease is the Lease that the fleet's leader renews every two seconds.
const fleetLease = "tailplane-fleet"

// maxFleetSilence is the maximum age of the last renewal. Another replica takes over after 15 s.
const maxFleetSilence = time.Minute

// fleetActivity records when the fleet was last active. A fleet without leader election has no Lease, which is not an error.
type fleetActivity struct {
	mu      sync.Mutex
	renewed time.Time // zero: no renewal seen
	held    bool
}

func (p *fleetActivity) set(o client.Object) {
	l, ok := o.(*coordinationv1.Lease)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.renewed, p.held = (time.Time{}), false; ok && l.Spec.RenewTime != nil {
		p.renewed, p.held = l.Spec.RenewTime.Time, l.Spec.HolderIdentity != nil && *l.Spec.HolderIdentity != ""
	}
}

func (p *fleetActivity) remove(o client.Object) {}

func (p *fleetActivity) replace(all []client.Object) {
	for _, o := range all {
		p.set(o)
	}
}

// stale returns what is wrong with the fleet's data, or "".
func (p *fleetActivity) stale(now time.Time) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.renewed.IsZero() || p.held && now.Sub(p.renewed) <= maxFleetSilence {
		return ""
	}
	return fmt.Sprintf("The fleet has not run since %s. The runners show its last report, and no controller changes them.", p.renewed.UTC().Format(time.RFC3339))
}
