package gossip

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestTable: a table never changes, whatever is derived from it.
func TestTable(t *testing.T) {
	type moment struct {
		tab  sortedMap[int]
		want map[string]int
	}
	var tab sortedMap[int]
	rng := rand.New(rand.NewPCG(1, 2))
	want := map[string]int{}
	past := []moment{{tab, maps.Clone(want)}}
	for i := range 3000 {
		k := fmt.Sprint(rng.IntN(400))
		switch rng.IntN(200) {
		case 0:
			past = append(past, moment{tab, maps.Clone(want)})
		case 1: // another change of an earlier table, which must not affect the others
			of := past[rng.IntN(len(past))]
			of.tab.With(k, -1)
			of.tab.Without(k)
		case 2:
			some := slices.Collect(maps.Keys(want))
			some = some[:min(len(some), 60)]
			for _, k := range some {
				delete(want, k)
			}
			tab = tab.Without(some...)
		default:
			tab = tab.With(k, i)
			want[k] = i
		}
		got, has := tab.Get(k)
		if v, ok := want[k]; got != v || has != ok {
			t.Fatalf("%s is %d (%t), want %d (%t)", k, got, has, v, ok)
		}
	}
	for _, m := range append(past, moment{tab, want}) {
		var keys []string
		for k, v := range m.tab.All() {
			if got, ok := m.tab.Get(k); !ok || got != v {
				t.Fatalf("%s is %d in the list, and %d (%t) when asked for", k, v, got, ok)
			}
			keys = append(keys, k)
		}
		switch got := maps.Collect(m.tab.All()); {
		case !maps.Equal(got, m.want):
			t.Fatalf("got (-want +got):\n%s", cmp.Diff(m.want, got))
		case m.tab.Len() != len(m.want):
			t.Fatalf("m.tab.Len() = %v, want %v", m.tab.Len(), len(m.want))
		case !slices.IsSorted(keys):
			t.Fatalf("slices.IsSorted(keys) is false; %d, %d, %d, %t", len(got), len(m.want), m.tab.Len(), slices.IsSorted(keys))
		}
	}
	if tab = tab.Without(slices.Collect(maps.Keys(want))...); tab.Len() != 0 {
		t.Error("not empty")
	}
	if _, ok := tab.Get("7"); ok {
		t.Error("what was taken out is there")
	}
	for range tab.All() {
		t.Error("an empty table yields")
	}
}
