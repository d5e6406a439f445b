package multicluster

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/multicluster/config"
)

// pinKey is the label or annotation with which an object selects its cluster.
const pinKey = "mca.tailplane.dev/cluster"

// placement is the cluster where a new object is created.
type placement struct {
	Cluster string
	Why     string // one sentence
	// Spilled reports that the intended cluster is down and Cluster is the next one.
	Spilled bool
}

// placementInput is the input of placeObject that does not come from the object.
type placementInput struct {
	// Anchor is the cluster that has the object's anchor, see [requestObject.anchor]. It is "" if the object has
	// none, or if no cluster has it.
	Anchor string
	// Down reports whether a cluster is unreachable. Nil means that none is.
	Down func(cluster string) bool
	// Chance is a random number in [0, 1). Turn is a counter that increases with each new object. Strategies
	// that do not use the name need them.
	Chance float64
	Turn   uint64
}

// placeObject returns the member of a spread that creates the object. The first of these that applies decides: the
// owner or involved object, the pin, the rule's places, the rule's strategy. A pin overrides the involved
// object of an Event. A pin that contradicts the owner's cluster is an error. The error is a *[apiproxy.Refusal].
//
// Callers must not use it for an existing object, which stays where it is.
func placeObject(s *config.Spread, r *apiproxy.Request, o *requestObject, input placementInput) (placement, error) {
	p, order, err := choosePlacement(s, r, o, input)
	if err != nil {
		return placement{}, err
	}
	if input.Down == nil || !input.Down(p.Cluster) {
		return p, nil
	}
	if s.Create == "spill" {
		for _, c := range order {
			if !input.Down(c) {
				return placement{
					Cluster: c,
					Spilled: true,
					Why:     fmt.Sprintf("%s is down, and the rule sends new objects to the next member", p.Cluster),
				}, nil
			}
		}
	}
	return placement{}, unavailable("cluster %s, which should get the object (%s), cannot be reached", p.Cluster, p.Why)
}

// choosePlacement returns the cluster of an object and the order of the other members to try if that cluster is down.
// The order is nil if no other cluster is allowed.
func choosePlacement(s *config.Spread, r *apiproxy.Request, o *requestObject, input placementInput) (placement, []string, error) {
	pin, err := o.pin(s.Members)
	if err != nil {
		return placement{}, nil, err
	}
	anchor, anchored := o.anchor()
	if anchored && input.Anchor != "" && (o.InvolvedObject != nil || s.OwnerReferences == config.FollowOwners) {
		member := slices.Contains(s.Members, input.Anchor)
		switch {
		case o.InvolvedObject != nil && !member, o.InvolvedObject != nil && pin != "":
		case !member:
			return placement{}, nil, refuseSeparation(anchor, input.Anchor, "the members are "+strings.Join(s.Members, ", "))
		case pin != "" && pin != input.Anchor:
			return placement{}, nil, refuseSeparation(anchor, input.Anchor, "the object is pinned to "+pin)
		default:
			return placement{Cluster: input.Anchor, Why: fmt.Sprintf("its %s %s is there", anchor.Kind, anchor.Name)}, nil, nil
		}
	}
	if pin != "" {
		return placement{Cluster: pin, Why: "it is pinned there"}, nil, nil
	}
	for _, place := range s.Place {
		if place.Selector.Matches(labels.Set(o.Labels)) {
			return placement{Cluster: place.Cluster, Why: "its labels are " + place.Labels}, nil, nil
		}
	}
	return applyStrategy(s, r, o, input)
}

// refuseSeparation returns the refusal for an object whose owner is in another cluster. The garbage collector of the
// object's cluster would not find the owner and would delete the object.
func refuseSeparation(owner objectReference, at, but string) *apiproxy.Refusal {
	return apiproxy.NewRefusal(
		http.StatusUnprocessableEntity,
		"its owner %s %s is in cluster %s, but %s: the garbage collector would delete the object as an orphan",
		owner.Kind,
		owner.Name,
		at,
		but,
	)
}

// checkSeparation returns an error if the decision puts the object in another cluster than its owner. anchor is
// the owner's cluster; "" means unknown.
func (d *Decision) checkSeparation(o *requestObject, anchor string) error {
	ref, ok := o.anchor()
	if !ok || o.InvolvedObject != nil || anchor == "" || anchor == d.Cluster || d.OwnerReferences != config.FollowOwners {
		return nil
	}
	return refuseSeparation(ref, anchor, "rule "+d.Rule+" sends the object to "+d.Cluster)
}

// pin returns the cluster that the object selects by pinKey.
func (o *requestObject) pin(members []string) (string, error) {
	label, labelled := o.Labels[pinKey]
	pin, annotated := o.Annotations[pinKey]
	switch {
	case !labelled && !annotated:
		return "", nil
	case labelled && annotated && label != pin:
		return "", apiproxy.NewRefusal(
			http.StatusUnprocessableEntity,
			"label and annotation %s have different clusters: %.63s and %.63s",
			pinKey,
			label,
			pin,
		)
	case labelled:
		pin = label
	}
	if !slices.Contains(members, pin) {
		return "", apiproxy.NewRefusal(
			http.StatusUnprocessableEntity,
			"%s is %.63q, want one of %s",
			pinKey,
			pin,
			strings.Join(members, ", "),
		)
	}
	return pin, nil
}

func applyStrategy(s *config.Spread, r *apiproxy.Request, o *requestObject, input placementInput) (placement, []string, error) {
	name := o.Name
	if r.Name != "" {
		name = r.Name // the name in the URL takes precedence
	}
	switch {
	case s.Strategy == config.StrategyNone:
		return placement{}, nil, apiproxy.NewRefusal(
			http.StatusUnprocessableEntity,
			"the object selects no cluster, and the rule does not choose one; set the label %s to one of %s",
			pinKey,
			strings.Join(s.Members, ", "),
		)
	case s.Strategy == config.StrategyRoundRobin:
		return placement{Cluster: s.Members[input.Turn%uint64(len(s.Members))], Why: "by round robin"}, nil, nil
	case s.Strategy == config.StrategyWeighted || name == "":
		order := weightedOrder(s, input.Chance)
		return placement{Cluster: order[0], Why: "by weighted random choice"}, order[1:], nil
	}
	order := rendezvousOrder(s, r.Group, r.Resource, r.Namespace, name)
	return placement{Cluster: order[0], Why: "by the weighted hash of its name"}, order[1:], nil
}

// rendezvousOrder returns the members of a spread that have a weight, in the order in which an object prefers
// them. It uses weighted rendezvous hashing: every replica computes the same order, and a new member takes
// only the objects that prefer it.
func rendezvousOrder(s *config.Spread, group, resource, namespace, name string) []string {
	type scored struct {
		member string
		score  float64
	}
	var all []scored
	for _, m := range s.Members {
		w := s.Weight(m)
		if w == 0 {
			continue
		}
		// Kubernetes names contain no NUL, so the joined text is unambiguous.
		sum := sha256.Sum256([]byte(strings.Join([]string{m, group, resource, namespace, name}, "\x00")))
		// The 53 bits of a float64 mantissa, never 0 or 1.
		u := (float64(binary.BigEndian.Uint64(sum[:8])>>11) + 0.5) / (1 << 53)
		all = append(all, scored{m, -float64(w) / math.Log(u)})
	}
	slices.SortStableFunc(all, func(a, b scored) int {
		return cmp.Or(cmp.Compare(b.score, a.score), strings.Compare(a.member, b.member))
	})
	order := make([]string, len(all))
	for i, s := range all {
		order[i] = s.member
	}
	return order
}

// weightedOrder returns the members that have a weight. The first one is chosen by chance, a number in [0, 1), in
// proportion to the weights. The others follow in order.
func weightedOrder(s *config.Spread, chance float64) []string {
	var order []string
	sum := 0
	for _, m := range s.Members {
		if w := s.Weight(m); w > 0 {
			order = append(order, m)
			sum += w
		}
	}
	at, i := int(chance*float64(sum)), 0
	for i < len(order)-1 && at >= s.Weight(order[i]) {
		at -= s.Weight(order[i])
		i++
	}
	return slices.Concat(order[i:], order[:i])
}
