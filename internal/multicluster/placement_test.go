package multicluster

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/multicluster/config"
)

func testSpread(change ...func(*config.Spread)) *config.Spread {
	s := &config.Spread{Members: []string{"east", "west", "north"}, Strategy: config.StrategyHash, OwnerReferences: config.FollowOwners, OnConflict: "reject", Read: "fail", Create: "fail"}
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
	places := func(s *config.Spread) {
		s.Place = []config.PlaceRule{{Labels: "tier in (gold)", Cluster: "west", Selector: gold}}
	}
	none := func(s *config.Spread) { s.Strategy = config.StrategyNone }
	spill := func(s *config.Spread) { s.Create = "spill" }
	only := func(c string) func(*config.Spread) {
		return func(s *config.Spread) { s.Weights = map[string]int{c: 1} }
	}
	owned := []ownerReference{{"v1", "ConfigMap", "first", "1", false}, {"batch/v1", "CronJob", "second", "2", true}}
	down := func(names ...string) func(string) bool {
		return func(c string) bool { return slices.Contains(names, c) }
	}
	pinned := map[string]string{pinKey: "north"}
	for _, tt := range []struct {
		name   string
		spread *config.Spread
		object requestObject
		around placementInput
		want   string // the cluster, or the status and a part of the message
	}{
		{"annotation", testSpread(places), requestObject{Annotations: pinned, Labels: map[string]string{"tier": "gold"}}, placementInput{}, "north"},
		{"label", testSpread(), requestObject{Labels: pinned}, placementInput{}, "north"},
		{"both alike", testSpread(), requestObject{Labels: pinned, Annotations: pinned}, placementInput{}, "north"},
		{"both", testSpread(), requestObject{Labels: pinned, Annotations: map[string]string{pinKey: "east"}}, placementInput{}, "422 have different clusters"},
		{"no member", testSpread(), requestObject{Labels: map[string]string{pinKey: "here"}}, placementInput{}, "422 want one of east, west, north"},
		{"empty", testSpread(), requestObject{Labels: map[string]string{pinKey: ""}}, placementInput{}, "422 want one of"},
		{"owner", testSpread(places), requestObject{OwnerReferences: owned, Labels: map[string]string{"tier": "gold"}}, placementInput{Anchor: "north"}, "north"},
		{"owner elsewhere", testSpread(), requestObject{OwnerReferences: owned}, placementInput{Anchor: "here"}, "422 its owner CronJob second is in cluster here, but the members are"},
		{"owner and pin", testSpread(), requestObject{OwnerReferences: owned, Labels: pinned}, placementInput{Anchor: "east"}, "422 pinned to north"},
		{"owner and the same pin", testSpread(), requestObject{OwnerReferences: owned, Labels: pinned}, placementInput{Anchor: "north"}, "north"},
		{"owner that nobody has", testSpread(none), requestObject{OwnerReferences: owned}, placementInput{}, "422 the object selects no cluster"},
		{"owner, sheltered", testSpread(places, func(s *config.Spread) { s.OwnerReferences = config.HideOwners }), requestObject{OwnerReferences: owned, Labels: map[string]string{"tier": "gold"}}, placementInput{Anchor: "here"}, "west"},
		{"owner, kept", testSpread(only("west"), func(s *config.Spread) { s.OwnerReferences = config.KeepOwners }), requestObject{OwnerReferences: owned}, placementInput{Anchor: "east"}, "west"},
		{"event", testSpread(only("west")), requestObject{InvolvedObject: &objectReference{Kind: "Pod", Name: "a"}}, placementInput{Anchor: "north"}, "north"},
		{"event about what is at home", testSpread(only("west")), requestObject{InvolvedObject: &objectReference{Kind: "Pod", Name: "a"}}, placementInput{Anchor: "here"}, "west"},
		{"labels", testSpread(places, only("east")), requestObject{Labels: map[string]string{"tier": "gold"}}, placementInput{}, "west"},
		{"other labels", testSpread(places, only("east")), requestObject{Labels: map[string]string{"tier": "iron"}}, placementInput{}, "east"},
		{"none", testSpread(none), requestObject{Name: "a"}, placementInput{}, "422 the object selects no cluster"},
		{"turns", testSpread(func(s *config.Spread) { s.Strategy = config.StrategyRoundRobin }), requestObject{Name: "a"}, placementInput{Turn: 4}, "west"},
		{"chance", testSpread(func(s *config.Spread) { s.Strategy = config.StrategyWeighted }), requestObject{Name: "a"}, placementInput{Chance: 0.7}, "north"},
		{"chance, weighted", testSpread(func(s *config.Spread) {
			s.Strategy, s.Weights = config.StrategyWeighted, map[string]int{"east": 70, "north": 30}
		}), requestObject{Name: "a"}, placementInput{Chance: 0.699}, "east"},
		{"generateName", testSpread(), requestObject{GenerateName: "a-"}, placementInput{Chance: 0.5}, "west"},
		{"nearly one", testSpread(), requestObject{GenerateName: "a-"}, placementInput{Chance: 1 - 1e-16}, "north"},
		{"down", testSpread(only("east")), requestObject{Name: "a"}, placementInput{Down: down("east")}, "503 cluster east"},
		{"down, with nowhere to spill", testSpread(only("east"), spill), requestObject{Name: "a"}, placementInput{Down: down("east")}, "503 cluster east"},
		{"pinned to what is down", testSpread(spill), requestObject{Labels: pinned}, placementInput{Down: down("north")}, "503 cluster north"},
		{"owner in what is down", testSpread(spill), requestObject{OwnerReferences: owned}, placementInput{Anchor: "east", Down: down("east")}, "503 cluster east"},
		{"all down", testSpread(spill), requestObject{Name: "a"}, placementInput{Down: func(string) bool { return true }}, "503"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := placeObject(tt.spread, &apiproxy.Request{Group: "batch", Resource: "jobs", Namespace: "n"}, &tt.object, tt.around)
			if r, ok := errors.AsType[*apiproxy.Refusal](err); ok {
				if got := fmt.Sprintf("%d %s", r.Status, r.Message); !strings.HasPrefix(got, tt.want[:3]) || !strings.Contains(got, strings.TrimPrefix(tt.want[3:], " ")) {
					t.Errorf("refused with %q, want %q", got, tt.want)
				}
				if r.Status == 503 && r.RetryAfter == 0 {
					t.Error("there is no Retry-After")
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
	s := testSpread(func(s *config.Spread) { s.Create = "spill" })
	r := &apiproxy.Request{Group: "batch", Resource: "jobs", Namespace: "n"}
	for i := range 100 {
		o := &requestObject{Name: fmt.Sprint("job-", i)}
		order := rendezvousOrder(s, r.Group, r.Resource, r.Namespace, o.Name)
		p, err := placeObject(s, r, o, placementInput{Down: func(c string) bool { return c == order[0] }})
		switch {
		case err != nil:
			t.Fatalf("placed: %v", err)
		case p.Cluster != order[1]:
			t.Fatalf("placed: p.Cluster = %q, want %q", p.Cluster, order[1])
		case !p.Spilled:
			t.Fatalf("placed: p.Spilled is false; %+v, %v, order = %v", p, err, order)
		}
	}
}

// TestRendezvous checks that placements follow the weights, that an added member takes only the objects that
// prefer it, and that the order never changes, because existing placements depend on it.
func TestRendezvous(t *testing.T) {
	s := testSpread(func(s *config.Spread) { s.Weights = map[string]int{"east": 70, "west": 30} })
	counts := map[string]int{}
	const n = 20000
	for i := range n {
		order := rendezvousOrder(s, "batch", "jobs", "n", fmt.Sprint("job-", i))
		if len(order) != 2 {
			t.Fatalf("a member without weight is among %v", order)
		}
		counts[order[0]]++
	}
	if share := float64(counts["east"]) / n; math.Abs(share-0.7) > 0.02 {
		t.Errorf("east, with 70 of 100, gets %.3f", share)
	}
	more := testSpread(func(s *config.Spread) { s.Weights = map[string]int{"east": 70, "west": 30, "north": 50} })
	for i := range 2000 {
		name := fmt.Sprint("job-", i)
		was, is := rendezvousOrder(s, "batch", "jobs", "n", name)[0], rendezvousOrder(more, "batch", "jobs", "n", name)[0]
		if was != is && is != "north" {
			t.Fatalf("%s moved from %s to %s after north was added", name, was, is)
		}
	}
	if got := rendezvousOrder(testSpread(), "batch", "jobs", "n", "job-1"); !slices.Equal(got, []string{"west", "north", "east"}) {
		t.Errorf("job-1 prefers %v: other versions of this program place it elsewhere", got)
	}
}

func TestCheckSeparation(t *testing.T) {
	o := &requestObject{OwnerReferences: []ownerReference{{"apps/v1", "ReplicaSet", "rs", "1", true}}}
	d := Decision{Kind: DecisionSingle, Cluster: "east", Rule: "r", OwnerReferences: config.FollowOwners}
	err := d.checkSeparation(o, "here")
	switch r, ok := errors.AsType[*apiproxy.Refusal](err); {
	case !ok:
		t.Errorf("an object is separated from its owner: ok is false; %v", err)
	case r.Status != 422:
		t.Errorf("an object is separated from its owner: r.Status = %v, want 422", r.Status)
	case !strings.Contains(r.Message, "here"):
		t.Errorf("an object is separated from its owner: r.Message = %q does not contain %q", r.Message, "here")
	case !strings.Contains(r.Message, "east"):
		t.Errorf("an object is separated from its owner: r.Message = %q does not contain %q", r.Message, "east")
	}
	for _, at := range []string{"", "east"} {
		if err := d.checkSeparation(o, at); err != nil {
			t.Errorf("owner in %q: %v", at, err)
		}
	}
	d.OwnerReferences = config.KeepOwners
	if err := d.checkSeparation(o, "here"); err != nil {
		t.Errorf("keep: %v", err)
	}
}
