package arc_test

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/arc"
)

// FLEET-20: 500 pools of 20 organisations each, with a listener and two runners.
func BenchmarkGroup(b *testing.B) {
	var sets []arc.Set
	var listeners []arc.Listener
	var pods []arc.Pod
	var runnerSets []arc.RunnerSet
	var runners []arc.Runner
	for n := range 10_000 {
		k := fleet.Key{Namespace: fmt.Sprint("tailplane-org-", n%20), Name: fmt.Sprint("set-", n)}
		sets = append(sets, arc.Set{Key: k, ID: int64(n + 1), ConfigURL: fmt.Sprintf("https://github.com/org-%d", n%20), ScaleSet: k.Name, Max: 3, Phase: arc.Running})
		uid := types.UID(fmt.Sprint(n))
		listeners = append(listeners, arc.Listener{Key: k, UID: uid, Set: k, Max: 3})
		pods = append(pods, arc.Pod{Key: k, Set: k, Listener: uid, Ready: true})
		runnerSets = append(runnerSets, arc.RunnerSet{Key: k, Set: k})
		for i := range 2 {
			runners = append(runners, arc.Runner{Key: fleet.Key{Namespace: k.Namespace, Name: fmt.Sprint(k.Name, i)}, RunnerSet: k.Name, Phase: arc.Running})
		}
	}
	b.Run("Group", func(b *testing.B) {
		for b.Loop() {
			for _, p := range arc.GroupBySet(sets, listeners, pods, runnerSets, runners) {
				p.KnowsListeners, p.KnowsRunners = true, true
				if p.State().Registered != fleet.Yes {
					b.Fatal("not registered")
				}
			}
		}
	})
	b.Run("Conflicts", func(b *testing.B) {
		for b.Loop() {
			if c := arc.Conflicts(sets); len(c) > 0 {
				b.Fatal(c)
			}
		}
	})
}
