package table_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/tailplane/tailplane/internal/gossip/table"
)

// TestTable: a table is a map that does not change.
func TestTable(t *testing.T) {
	var tab table.Table[int]
	rng := rand.New(rand.NewPCG(1, 2))
	want := map[string]int{}
	for i := range 1000 {
		k := fmt.Sprint(rng.IntN(300))
		before := tab
		old, had := before.Get(k)
		tab = tab.With(k, i)
		want[k] = i
		if again, still := before.Get(k); again != old || still != had {
			t.Fatal("a table changed")
		}
	}
	if got := maps.Collect(tab.All()); !maps.Equal(got, want) || tab.Len() != len(want) {
		t.Errorf("%d of %d", len(got), len(want))
	}
	tab = tab.Without(map[string]bool{"7": true})
	if _, ok := tab.Get("7"); ok || tab.Len() != len(want)-1 {
		t.Error("what was taken out is there")
	}
}
