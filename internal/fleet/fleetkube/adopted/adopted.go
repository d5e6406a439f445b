// Package adopted says which scale sets of others take jobs of an organisation, and how
// they stand. It keeps the law that what is to be done about them is for who keeps them.
package adopted

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

// A Set is a scale set of somebody else's that takes jobs of an organisation.
type Set struct {
	pool string
	board.Adopted
	seenAt *metav1.Time // when GitHub was first seen to have a runner of it; nil: never
}

// Of are those that pools adopt which name the organisation's place at GitHub. One that has
// the name of a workload of its own is left out: nobody could tell their runners apart.
func Of(e *v1alpha1.RunnerEnrollment, pools map[string]*v1alpha1.RunnerPool, b *board.Board, own func(name string) bool) (all []Set) {
	place, ok := fleet.ParsePlace(e.Spec.ConfigURL)
	for _, pool := range slices.Sorted(maps.Keys(pools)) {
		a, seen := b.AdoptedBy(pool)
		if !ok || !seen || a.Parts == nil || pools[pool].Spec.Forge != e.Spec.Forge {
			continue
		}
		if of, valid := fleet.ParsePlace(a.Set.ConfigURL); !valid || of.String() != place.String() || own(a.Set.Name) {
			continue
		}
		x := Set{pool: pool, Adopted: a}
		for _, was := range e.Status.Adopted {
			if was.Name == pool {
				x.seenAt = was.SeenAt
			}
		}
		all = append(all, x)
	}
	return all
}

// Compare adds what cluster and forge have of them. What there should be of them is for who
// keeps them to say. Online says which runners are, controller is ARC's version.
func Compare(sets []Set, o *truth.Org, online map[int64]bool, eventual bool, controller string, now time.Time) {
	for i := range sets {
		a := &sets[i]
		x := truth.Workload{Pool: a.pool, Name: a.Set.Name, Foreign: true, Ending: a.Set.Ending, Allocated: a.Set.Max, Capacity: fleet.Capacity{Min: a.Set.Min, Max: a.Set.Max, Hold: a.Hold}}
		x.Cluster = findings.ScaleSet(a.Parts, a.State, nil, eventual, controller)
		x.Remote = findings.AtGitHub(a.Set.Name, o.Registered, online, o.Listed, a.seenAt != nil)
		if x.Remote.Registered == fleet.Yes {
			a.seenAt = cmp.Or(a.seenAt, new(metav1.NewTime(now.Truncate(time.Second))))
		}
		o.Workloads = append(o.Workloads, x)
	}
}

// Status is what is said of them.
func Status(sets []Set) (all []v1alpha1.EnrolledAdoption) {
	for _, a := range sets[:min(len(sets), 50)] {
		all = append(all, v1alpha1.EnrolledAdoption{Name: a.pool, Namespace: a.Set.Namespace, Workload: a.Set.Name, SeenAt: a.seenAt, AdoptedStatus: *board.AdoptedStatus(a.Adopted)})
	}
	return all
}
