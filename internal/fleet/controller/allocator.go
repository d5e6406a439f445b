package controller

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/isolation"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// An orgPool is one organisation's use of one pool.
type orgPool struct{ Org, Pool string }

// A poolUsage is the observed state of a use, over all its workloads.
type poolUsage struct {
	Busy    int
	Demand  *int // nil: not known
	InForce int  // largest maximum that may still be in force, see [fleet.OrgUsage]
	Held    bool // a hold is in force: the share stays, unless others need it
}

// An orgShare is an organisation's allocation from a pool, and the time of its last change.
type orgShare struct {
	Allocated int
	ChangedAt time.Time // zero: it never had a share
}

// A poolTotals is the use of a pool.
type poolTotals struct{ Orgs, Allocated int }

// An enrollmentVersion identifies one state of an enrollment's spec.
type enrollmentVersion struct {
	UID        types.UID
	Generation int64
	Deleted    bool
}

// An allocation is the decision for all enrollments at one time.
type allocation struct {
	Versions   map[string]enrollmentVersion // the enrollments that the decision covers
	Violations map[string][]fleet.Violation
	Pruned     map[string]bool
	Shares     map[orgPool]orgShare
	Pools      map[string]poolTotals
	Wake       time.Time // time of the next decision if nothing changes; zero: never
}

// An allocator keeps the allocations until they are stored in the objects. Its methods are not safe for
// concurrent use.
type allocator struct {
	shares map[shareKey]orgShare
}

type shareKey struct {
	uid  types.UID
	pool string
}

// allocate decides for all enrollments of a view. readings are by organisation. An organisation
// without an entry was not observed yet.
func (l *allocator) allocate(
	v fleet.View,
	approved func(*v1alpha1.RunnerEnrollment) bool,
	readings map[string]map[string]poolUsage,
	now time.Time,
) allocation {
	r := allocation{
		Versions:   map[string]enrollmentVersion{},
		Violations: fleet.Check(v),
		Pruned:     fleet.Pruned(v.Enrollments),
		Shares:     map[orgPool]orgShare{},
		Pools:      map[string]poolTotals{},
	}
	before := l.shares
	l.shares = map[shareKey]orgShare{}
	orgs := map[string][]fleet.OrgUsage{}
	uids := map[string]types.UID{}
	pools := fleet.ByName(v.Pools)
	for i := range v.Enrollments {
		e := &v.Enrollments[i]
		r.Versions[e.Name], uids[e.Name] = versionOf(e), e.UID
		may := e.DeletionTimestamp.IsZero() && approved(e)
		seen, observed := readings[e.Name]
		for _, name := range poolsOf(e, slices.Collect(maps.Keys(seen))...) {
			pool := pools[name]
			if pool == nil {
				continue
			}
			had, ok := before[shareKey{e.UID, name}]
			if !ok {
				had = storedShare(e, name)
			}
			o := fleet.OrgUsage{
				Name:      e.Name,
				Guarantee: int(pool.Spec.Scaling.Guarantee),
				Allocated: had.Allocated,
				ChangedAt: had.ChangedAt,
			}
			if use := useOf(e, name); use != nil {
				p := r.Pools[name]
				p.Orgs++
				r.Pools[name] = p
				if may {
					o.Max = maxShare(pool, *use, r.Violations[e.Name], had.Allocated)
				}
			}
			if reading, ok := seen[name]; ok {
				o.Busy, o.Demand, o.InForce = reading.Busy, reading.Demand, reading.InForce
				if reading.Held {
					o.Max, o.Demand = min(o.Max, had.Allocated), nil
				}
			} else if !observed {
				o.InForce, o.Max = int(pool.Spec.Scaling.Max), min(o.Max, had.Allocated)
			}
			orgs[name] = append(orgs[name], o)
		}
	}
	for name, of := range orgs {
		shares, wake := fleet.Allocate(int(pools[name].Spec.Scaling.Budget), of, now)
		r.Wake = retry.Earliest(r.Wake, wake)
		p := r.Pools[name]
		changed := make(map[string]time.Time, len(of))
		for _, o := range of {
			changed[o.Name] = o.ChangedAt
		}
		for _, s := range shares {
			share := orgShare{Allocated: s.Allocated, ChangedAt: changed[s.Name]}
			if s.Changed {
				share.ChangedAt = now
			}
			r.Shares[orgPool{s.Name, name}] = share
			l.shares[shareKey{uids[s.Name], name}] = share
			p.Allocated += s.Allocated
		}
		r.Pools[name] = p
	}
	return r
}

// versionOf returns the version of an enrollment.
func versionOf(e *v1alpha1.RunnerEnrollment) enrollmentVersion {
	return enrollmentVersion{e.UID, e.Generation, !e.DeletionTimestamp.IsZero()}
}

// maxShare returns the maximum number of runners that an organisation may have in a pool, before the
// shares of others. An enrollment that breaks a rule gets at most its earlier share.
func maxShare(pool *v1alpha1.RunnerPool, use v1alpha1.EnrolledPool, broken []fleet.Violation, has int) int {
	n := int(fleet.MaxRunners(pool, use))
	for _, v := range broken {
		switch {
		case v.Pool != "" && v.Pool != pool.Name:
		case v.Effect >= fleet.EffectStop:
			return 0
		case v.Effect >= fleet.EffectBlock:
			n = min(n, has)
		}
	}
	return n
}

// storedShare returns the allocation in the status of an enrollment.
func storedShare(e *v1alpha1.RunnerEnrollment, pool string) (s orgShare) {
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

// reconcileAllocation evaluates the rules and allocates the budgets for all enrollments.
func (w *reconciler) reconcileAllocation(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	v, err := w.view(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	conflicts := w.deps.arcCache.conflicts()
	now, startedAt := w.deps.now(), time.Now()
	old, is := w.deps.state.allocate(
		v,
		func(e *v1alpha1.RunnerEnrollment) bool { return w.deps.settings.approval(e).Status == fleet.Yes },
		conflicts,
		now,
	)
	if w.onAllocation != nil {
		w.onAllocation(time.Since(startedAt))
	}
	w.enqueueChanged(old, is)
	if is.Wake.IsZero() {
		return reconcile.Result{}, nil
	}
	return requeueIn(is.Wake.Sub(now))
}

// enqueueChanged triggers a reconcile of the enrollments and pools whose decisions have changed.
func (w *reconciler) enqueueChanged(old, is *allocation) {
	old = cmp.Or(old, &allocation{})
	for name, version := range is.Versions {
		switch {
		case old.Versions[name] != version: // its reconcile waits for this decision
			w.deps.triggers.enrollment.enqueueNow(name)
		case old.Pruned[name] != is.Pruned[name] || !slices.Equal(old.Violations[name], is.Violations[name]):
			w.deps.triggers.enrollment.enqueue(name)
		}
	}
	for use, share := range is.Shares {
		if old.Shares[use] != share {
			w.deps.triggers.enrollment.enqueue(use.Org)
		}
	}
	for name, pool := range is.Pools {
		if old.Pools[name] != pool {
			w.deps.triggers.pool.enqueue(name)
		}
	}
	for name := range old.Pools {
		if _, still := is.Pools[name]; !still {
			w.deps.triggers.pool.enqueue(name)
		}
	}
}

// view collects the input for the cross-object rules.
func (w *reconciler) view(ctx context.Context) (fleet.View, error) {
	var forges v1alpha1.RunnerForgeList
	var pools v1alpha1.RunnerPoolList
	var enrollments v1alpha1.RunnerEnrollmentList
	secrets := &metav1.PartialObjectMetadataList{}
	secrets.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("SecretList"))
	for _, list := range []client.ObjectList{&forges, &pools, &enrollments, secrets} {
		if err := w.deps.cached.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return fleet.View{}, err
		}
	}
	v := fleet.View{
		Forges:      forges.Items,
		Pools:       pools.Items,
		Enrollments: enrollments.Items,
		Rules:       w.deps.settings.rules,
		Credentials: map[string]fleet.Credential{},
		PoolFaults:  map[string]string{},
	}
	labels := map[string]string{}
	for _, s := range secrets.Items {
		labels[s.Name] = s.Labels[v1alpha1.OrgLabel]
	}
	for _, e := range enrollments.Items {
		org, exists := labels[e.Spec.Credentials.SecretName]
		if !exists {
			continue
		}
		c := fleet.Credential{Org: org}
		if e.Status.Credential != nil && e.Status.Credential.AppID != nil {
			c.AppID = *e.Status.Credential.AppID
		}
		v.Credentials[e.Name] = c
	}
	types := map[string]v1alpha1.ForgeType{}
	for _, f := range forges.Items {
		types[f.Name] = f.Spec.Type
	}
	for i := range pools.Items {
		if fault := isolation.PoolFault(&pools.Items[i], types[pools.Items[i].Spec.Forge], w.deps.settings.isolation.Images); fault != "" {
			v.PoolFaults[pools.Items[i].Name] = fault
		}
	}
	return v, nil
}
