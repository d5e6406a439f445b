package controller

import (
	"cmp"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
)

// An externalSet is an external scale set that takes jobs of an organisation.
type externalSet struct {
	pool string
	externalState
	seenAt *metav1.Time // first time that GitHub was seen to have a runner of it; nil: never
}

// externalSetsOf returns the adopted scale sets with the organisation's URL at GitHub. It omits a scale set
// with the name of a workload of the organisation, because their runners could not be
// distinguished.
func externalSetsOf(e *v1alpha1.RunnerEnrollment, pools map[string]*v1alpha1.RunnerPool, b *sharedState, own func(name string) bool) (all []externalSet) {
	scope, ok := fleet.ParseConfigURL(e.Spec.ConfigURL)
	for _, pool := range slices.Sorted(maps.Keys(pools)) {
		a, seen := b.externalOf(pool)
		if !ok || !seen || a.Objects == nil || pools[pool].Spec.Forge != e.Spec.Forge {
			continue
		}
		if of, valid := fleet.ParseConfigURL(a.Set.ConfigURL); !valid || of.String() != scope.String() || own(a.Set.Name) {
			continue
		}
		x := externalSet{pool: pool, externalState: a}
		for _, old := range e.Status.Adopted {
			if old.Name == pool {
				x.seenAt = old.SeenAt
			}
		}
		all = append(all, x)
	}
	return all
}

// observeExternalSets adds the observed state of external scale sets to o. Their desired state is not known to
// the fleet. online says which runners are online; controller is ARC's version.
func observeExternalSets(sets []externalSet, o *fleet.DriftInput, online map[int64]bool, eventual bool, controller string, now time.Time) {
	for i := range sets {
		a := &sets[i]
		x := fleet.DriftWorkload{Pool: a.pool, Name: a.Set.Name, External: true, Ending: a.Set.Ending, Allocated: a.Set.Max, Capacity: fleet.Capacity{Min: a.Set.Min, Max: a.Set.Max, Hold: a.Hold}}
		x.Cluster = scaleSetInCluster(a.Objects, a.State, nil, eventual, controller)
		x.Remote = scaleSetAtGitHub(a.Set.Name, o.Registered, online, o.Listed, a.seenAt != nil)
		if x.Remote.Registered == fleet.Yes {
			a.seenAt = cmp.Or(a.seenAt, new(metav1.NewTime(now.Truncate(time.Second))))
		}
		o.Workloads = append(o.Workloads, x)
	}
}

// externalSetsStatus returns the status entries of external scale sets.
func externalSetsStatus(sets []externalSet) (all []v1alpha1.EnrolledAdoption) {
	for _, a := range sets[:min(len(sets), 50)] {
		all = append(all, v1alpha1.EnrolledAdoption{Name: a.pool, Namespace: a.Set.Namespace, Workload: a.Set.Name, SeenAt: a.seenAt, AdoptedStatus: *externalStatus(a.externalState)})
	}
	return all
}
