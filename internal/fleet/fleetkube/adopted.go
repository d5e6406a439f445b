package fleetkube

import (
	"cmp"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/fleetkube/board"
	"github.com/tailplane/tailplane/internal/fleet/fleetkube/findings"
	"github.com/tailplane/tailplane/internal/fleet/truth"
)

// An adoptee is a scale set of somebody else's that takes jobs of this organisation.
type adoptee struct {
	pool string
	board.Adopted
	seenAt *metav1.Time // when GitHub was first seen to have a runner of it; nil: never
}

// adoptees are those that pools adopt which name the organisation's place at GitHub.
func (l *look) adoptees() (all []adoptee) {
	own, ok := fleet.ParsePlace(l.e.Spec.ConfigURL)
	for _, pool := range slices.Sorted(maps.Keys(l.pools)) {
		a, seen := l.board.AdoptedBy(pool)
		if !ok || !seen || a.Parts == nil || l.pools[pool].Spec.Forge != l.e.Spec.Forge {
			continue
		}
		of, valid := fleet.ParsePlace(a.Set.ConfigURL)
		if !valid || of.String() != own.String() || slices.ContainsFunc(l.works, func(w *work) bool { return w.Name == a.Set.Name }) {
			continue
		}
		x := adoptee{pool: pool, Adopted: a}
		for _, was := range l.e.Status.Adopted {
			if was.Name == pool {
				x.seenAt = was.SeenAt
			}
		}
		all = append(all, x)
	}
	return all
}

// compareAdopted is what cluster and forge have of them. What there should be of them is for
// who keeps them to say.
func (l *look) compareAdopted(o *truth.Org, online map[int64]bool, eventual bool) {
	for i := range l.adopted {
		a := &l.adopted[i]
		x := truth.Workload{Pool: a.pool, Name: a.Set.Name, Foreign: true, Ending: a.Set.Ending, Allocated: a.Set.Max, Capacity: fleet.Capacity{Min: a.Set.Min, Max: a.Set.Max, Hold: a.Hold}}
		x.Cluster = findings.ScaleSet(a.Parts, a.State, nil, eventual, l.settings.ARC.Version)
		x.Remote = findings.AtGitHub(a.Set.Name, o.Registered, online, o.Listed, a.seenAt != nil)
		if x.Remote.Registered == fleet.Yes {
			a.seenAt = cmp.Or(a.seenAt, new(metav1.NewTime(l.now.Truncate(time.Second))))
		}
		o.Workloads = append(o.Workloads, x)
	}
}

// adoptedStatus is what is said of them.
func (l *look) adoptedStatus() (all []v1alpha1.EnrolledAdoption) {
	for _, a := range l.adopted[:min(len(l.adopted), 50)] {
		all = append(all, v1alpha1.EnrolledAdoption{Name: a.pool, Namespace: a.Set.Namespace, Workload: a.Set.Name, SeenAt: a.seenAt, AdoptedStatus: *board.AdoptedStatus(a.Adopted)})
	}
	return all
}
