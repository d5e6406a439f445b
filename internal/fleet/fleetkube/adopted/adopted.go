// Package adopted reports which external scale sets take jobs of an organisation, and their status.
// The fleet reports problems with them but does not repair them: that is the task of the people who
// manage them.
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

// A Set is an external scale set that takes jobs of an organisation.
type Set struct {
	pool string
	board.Adopted
	seenAt *metav1.Time // first time that GitHub was seen to have a runner of it; nil: never
}

// Of returns the adopted scale sets with the organisation's URL at GitHub. It omits a scale set
// with the name of a workload of the organisation, because their runners could not be
// distinguished.
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

// Compare adds the observed state of external scale sets to o. Their desired state is not known to
// the fleet. online says which runners are online; controller is ARC's version.
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

// Status returns the status entries of external scale sets.
func Status(sets []Set) (all []v1alpha1.EnrolledAdoption) {
	for _, a := range sets[:min(len(sets), 50)] {
		all = append(all, v1alpha1.EnrolledAdoption{Name: a.pool, Namespace: a.Set.Namespace, Workload: a.Set.Name, SeenAt: a.seenAt, AdoptedStatus: *board.AdoptedStatus(a.Adopted)})
	}
	return all
}
