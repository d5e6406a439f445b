package apiproxy

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/tailplane/tailplane/internal/apiproxy/document"
)

func spread(change ...func(*document.Spread)) *document.Spread {
	s := &document.Spread{Members: []string{"east", "west", "north"}, Strategy: document.Hash, OwnerReferences: document.Follow, OnConflict: "reject", Read: "fail", Create: "fail"}
	for _, f := range change {
		f(s)
	}
	return s
}

func TestPlace(t *testing.T) {
	gold, err := labels.Parse("tier in (gold)")
	if err != nil {
		t.Fatal(err)
	}
	places := func(s *document.Spread) {
		s.Place = []document.Place{{Labels: "tier in (gold)", Cluster: "west", Selector: gold}}
	}
	none := func(s *document.Spread) { s.Strategy = document.None }
	spill := func(s *document.Spread) { s.Create = "spill" }
	only := func(c string) func(*document.Spread) {
		return func(s *document.Spread) { s.Weights = map[string]int{c: 1} }
	}
	owned := []OwnerReference{{"v1", "ConfigMap", "first", "1", false}, {"batch/v1", "CronJob", "second", "2", true}}
	down := func(names ...string) func(string) bool {
		return func(c string) bool { return slices.Contains(names, c) }
	}
	pinned := map[string]string{PinKey: "north"}
	for _, tt := range []struct {
		name   string
		spread *document.Spread
		object Object
		around Surroundings
		want   string // the cluster, or the status and a part of the message
	}{
		{"annotation", spread(places), Object{Annotations: pinned, Labels: map[string]string{"tier": "gold"}}, Surroundings{}, "north"},
		{"label", spread(), Object{Labels: pinned}, Surroundings{}, "north"},
		{"both alike", spread(), Object{Labels: pinned, Annotations: pinned}, Surroundings{}, "north"},
		{"both", spread(), Object{Labels: pinned, Annotations: map[string]string{PinKey: "east"}}, Surroundings{}, "422 name two clusters"},
		{"no member", spread(), Object{Labels: map[string]string{PinKey: "here"}}, Surroundings{}, "422 want one of east, west, north"},
		{"empty", spread(), Object{Labels: map[string]string{PinKey: ""}}, Surroundings{}, "422 want one of"},
		{"owner", spread(places), Object{OwnerReferences: owned, Labels: map[string]string{"tier": "gold"}}, Surroundings{Anchor: "north"}, "north"},
		{"owner elsewhere", spread(), Object{OwnerReferences: owned}, Surroundings{Anchor: "here"}, "422 its owner CronJob second is in cluster here, but the members are"},
		{"owner and pin", spread(), Object{OwnerReferences: owned, Labels: pinned}, Surroundings{Anchor: "east"}, "422 pinned to north"},
		{"owner and the same pin", spread(), Object{OwnerReferences: owned, Labels: pinned}, Surroundings{Anchor: "north"}, "north"},
		{"owner that nobody has", spread(none), Object{OwnerReferences: owned}, Surroundings{}, "422 nothing says"},
		{"owner, sheltered", spread(places, func(s *document.Spread) { s.OwnerReferences = document.Shelter }), Object{OwnerReferences: owned, Labels: map[string]string{"tier": "gold"}}, Surroundings{Anchor: "here"}, "west"},
		{"owner, kept", spread(only("west"), func(s *document.Spread) { s.OwnerReferences = document.Keep }), Object{OwnerReferences: owned}, Surroundings{Anchor: "east"}, "west"},
		{"event", spread(only("west")), Object{Involved: &Reference{Kind: "Pod", Name: "a"}}, Surroundings{Anchor: "north"}, "north"},
		{"event about what is at home", spread(only("west")), Object{Involved: &Reference{Kind: "Pod", Name: "a"}}, Surroundings{Anchor: "here"}, "west"},
		{"labels", spread(places, only("east")), Object{Labels: map[string]string{"tier": "gold"}}, Surroundings{}, "west"},
		{"other labels", spread(places, only("east")), Object{Labels: map[string]string{"tier": "iron"}}, Surroundings{}, "east"},
		{"none", spread(none), Object{Name: "a"}, Surroundings{}, "422 nothing says"},
		{"turns", spread(func(s *document.Spread) { s.Strategy = document.RoundRobin }), Object{Name: "a"}, Surroundings{Turn: 4}, "west"},
		{"chance", spread(func(s *document.Spread) { s.Strategy = document.Weighted }), Object{Name: "a"}, Surroundings{Chance: 0.7}, "north"},
		{"chance, weighted", spread(func(s *document.Spread) {
			s.Strategy, s.Weights = document.Weighted, map[string]int{"east": 70, "north": 30}
		}), Object{Name: "a"}, Surroundings{Chance: 0.699}, "east"},
		{"generateName", spread(), Object{GenerateName: "a-"}, Surroundings{Chance: 0.5}, "west"},
		{"nearly one", spread(), Object{GenerateName: "a-"}, Surroundings{Chance: 1 - 1e-16}, "north"},
		{"down", spread(only("east")), Object{Name: "a"}, Surroundings{Down: down("east")}, "503 cluster east"},
		{"down, with nowhere to spill", spread(only("east"), spill), Object{Name: "a"}, Surroundings{Down: down("east")}, "503 cluster east"},
		{"pinned to what is down", spread(spill), Object{Labels: pinned}, Surroundings{Down: down("north")}, "503 cluster north"},
		{"owner in what is down", spread(spill), Object{OwnerReferences: owned}, Surroundings{Anchor: "east", Down: down("east")}, "503 cluster east"},
		{"all down", spread(spill), Object{Name: "a"}, Surroundings{Down: func(string) bool { return true }}, "503"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := Place(tt.spread, &Request{Group: "batch", Resource: "jobs", Namespace: "n"}, &tt.object, tt.around)
			if r, ok := errors.AsType[*Refusal](err); ok {
				if got := fmt.Sprintf("%d %s", r.Status, r.Message); !strings.HasPrefix(got, tt.want[:3]) || !strings.Contains(got, strings.TrimPrefix(tt.want[3:], " ")) {
					t.Errorf("refused with %q, want %q", got, tt.want)
				}
				if r.Status == 503 && r.RetryAfter == 0 {
					t.Error("the client is not told to come back")
				}
				return
			}
			if p.Cluster != tt.want || p.Why == "" {
				t.Errorf("placed in %q (%s), want %q", p.Cluster, p.Why, tt.want)
			}
		})
	}
}

// TestSpill checks where objects spill. Without a name, the next healthy member gets the object. With a name,
// it is the next member in the object's order of preference, on every replica.
func TestSpill(t *testing.T) {
	s := spread(func(s *document.Spread) { s.Create = "spill" })
	r := &Request{Group: "batch", Resource: "jobs", Namespace: "n"}
	for i := range 100 {
		o := &Object{Name: fmt.Sprint("job-", i)}
		order := Rendezvous(s, r.Group, r.Resource, r.Namespace, o.Name)
		p, err := Place(s, r, o, Surroundings{Down: func(c string) bool { return c == order[0] }})
		if err != nil || p.Cluster != order[1] || !p.Spilled {
			t.Fatalf("placed in %+v, %v; it prefers %v", p, err, order)
		}
	}
}

// TestRendezvous checks that placements follow the weights, that an added member takes only the objects that
// prefer it, and that the order never changes, because existing placements depend on it.
func TestRendezvous(t *testing.T) {
	s := spread(func(s *document.Spread) { s.Weights = map[string]int{"east": 70, "west": 30} })
	counts := map[string]int{}
	const n = 20000
	for i := range n {
		order := Rendezvous(s, "batch", "jobs", "n", fmt.Sprint("job-", i))
		if len(order) != 2 {
			t.Fatalf("a member without weight is among %v", order)
		}
		counts[order[0]]++
	}
	if share := float64(counts["east"]) / n; math.Abs(share-0.7) > 0.02 {
		t.Errorf("east, with 70 of 100, gets %.3f", share)
	}
	more := spread(func(s *document.Spread) { s.Weights = map[string]int{"east": 70, "west": 30, "north": 50} })
	for i := range 2000 {
		name := fmt.Sprint("job-", i)
		was, is := Rendezvous(s, "batch", "jobs", "n", name)[0], Rendezvous(more, "batch", "jobs", "n", name)[0]
		if was != is && is != "north" {
			t.Fatalf("%s moved from %s to %s when north came", name, was, is)
		}
	}
	if got := Rendezvous(spread(), "batch", "jobs", "n", "job-1"); !slices.Equal(got, []string{"west", "north", "east"}) {
		t.Errorf("job-1 prefers %v: other versions of this program place it elsewhere", got)
	}
}

func TestKeepTogether(t *testing.T) {
	o := &Object{OwnerReferences: []OwnerReference{{"apps/v1", "ReplicaSet", "rs", "1", true}}}
	d := Decision{Kind: Single, Cluster: "east", Rule: "r", OwnerReferences: document.Follow}
	err := d.KeepTogether(o, "here")
	if r, ok := errors.AsType[*Refusal](err); !ok || r.Status != 422 || !strings.Contains(r.Message, "here") || !strings.Contains(r.Message, "east") {
		t.Errorf("an object is parted from its owner: %v", err)
	}
	for _, at := range []string{"", "east"} {
		if err := d.KeepTogether(o, at); err != nil {
			t.Errorf("owner in %q: %v", at, err)
		}
	}
	d.OwnerReferences = document.Keep
	if err := d.KeepTogether(o, "here"); err != nil {
		t.Errorf("keep: %v", err)
	}
}
