package apiproxy

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/tailplane/tailplane/internal/apiproxy/document"
)

// PinKey is the label or annotation by which an object says where it wants to be made.
const PinKey = "mca.tailplane.dev/cluster"

// A Placement is where a new object is made.
type Placement struct {
	Cluster string
	Why     string // a sentence
	// Spilled says that the cluster it belongs to is down and this is the next.
	Spilled bool
}

// Surroundings are what decides about a new object beside itself.
type Surroundings struct {
	// Anchor is the cluster that has the object's anchor, see [Object.Anchor]; ""
	// if it has none or nobody has it.
	Anchor string
	// Down says whether a cluster cannot be reached. Nil: none is down.
	Down func(cluster string) bool
	// Chance is a number from 0 up to 1, and Turn counts up with each new object:
	// what strategies need that do not go by the name.
	Chance float64
	Turn   uint64
}

// Place says in which member of a spread the object of a create is made. What
// decides first, holds: its pin, its owner (or what an Event is about), the rule's
// places, the rule's strategy. The error is a *[Refusal].
//
// It is not asked about an object that exists: that stays where it is.
func Place(s *document.Spread, r *Request, o *Object, around Surroundings) (Placement, error) {
	p, order, refusal := place(s, r, o, around)
	if refusal != nil {
		return Placement{}, refusal
	}
	if around.Down == nil || !around.Down(p.Cluster) {
		return p, nil
	}
	if s.Create == "spill" {
		for _, c := range order {
			if !around.Down(c) {
				return Placement{Cluster: c, Spilled: true, Why: fmt.Sprintf("%s is down, and the rule lets new objects go to the next", p.Cluster)}, nil
			}
		}
	}
	refusal = refuse(http.StatusServiceUnavailable, "cluster %s, where the object would be made (%s), cannot be reached", p.Cluster, p.Why)
	refusal.RetryAfter = time.Second
	return Placement{}, refusal
}

// place returns where an object belongs, and in which order the members come if
// that one is down; no order if there is no other.
func place(s *document.Spread, r *Request, o *Object, around Surroundings) (Placement, []string, *Refusal) {
	pin, refusal := o.pin(s.Members)
	if refusal != nil {
		return Placement{}, nil, refusal
	}
	anchor, anchored := o.Anchor()
	if anchored && around.Anchor != "" && (o.Involved != nil || s.OwnerReferences == document.Follow) {
		member := slices.Contains(s.Members, around.Anchor)
		switch {
		case o.Involved != nil && !member, o.Involved != nil && pin != "":
		case !member:
			return Placement{}, nil, apart(anchor, around.Anchor, "the members are "+strings.Join(s.Members, ", "))
		case pin != "" && pin != around.Anchor:
			return Placement{}, nil, apart(anchor, around.Anchor, "the object is pinned to "+pin)
		default:
			return Placement{Cluster: around.Anchor, Why: fmt.Sprintf("it has %s %s beside it there", anchor.Kind, anchor.Name)}, nil, nil
		}
	}
	if pin != "" {
		return Placement{Cluster: pin, Why: "it is pinned there"}, nil, nil
	}
	for _, place := range s.Place {
		if place.Selector.Matches(labels.Set(o.Labels)) {
			return Placement{Cluster: place.Cluster, Why: "its labels are " + place.Labels}, nil, nil
		}
	}
	return strategy(s, r, o, around)
}

// apart refuses an object whose owner is where it cannot be: the garbage collector
// of another cluster would not know the owner, and delete the object.
func apart(owner Reference, at, but string) *Refusal {
	return refuse(http.StatusUnprocessableEntity, "its owner %s %s is in cluster %s, but %s: there it would be deleted as an orphan", owner.Kind, owner.Name, at, but)
}

// KeepTogether refuses an object that has to be in a cluster where its owner is not,
// as anchor says; "" is nowhere known.
func (d *Decision) KeepTogether(o *Object, anchor string) error {
	ref, ok := o.Anchor()
	if !ok || o.Involved != nil || anchor == "" || anchor == d.Cluster || d.OwnerReferences != document.Follow {
		return nil
	}
	return apart(ref, anchor, "rule "+d.Rule+" sends the object to "+d.Cluster)
}

// pin returns the cluster that the object names.
func (o *Object) pin(members []string) (string, *Refusal) {
	label, labelled := o.Labels[PinKey]
	pin, annotated := o.Annotations[PinKey]
	switch {
	case !labelled && !annotated:
		return "", nil
	case labelled && annotated && label != pin:
		return "", refuse(http.StatusUnprocessableEntity, "label and annotation %s name two clusters: %.63s and %.63s", PinKey, label, pin)
	case labelled:
		pin = label
	}
	if !slices.Contains(members, pin) {
		return "", refuse(http.StatusUnprocessableEntity, "%s is %.63q, want one of %s", PinKey, pin, strings.Join(members, ", "))
	}
	return pin, nil
}

func strategy(s *document.Spread, r *Request, o *Object, around Surroundings) (Placement, []string, *Refusal) {
	name := o.Name
	if r.Name != "" {
		name = r.Name // what the URL says, counts
	}
	switch {
	case s.Strategy == document.None:
		return Placement{}, nil, refuse(http.StatusUnprocessableEntity, "nothing says in which cluster the object is made, and the rule does not choose; set the label %s to one of %s", PinKey, strings.Join(s.Members, ", "))
	case s.Strategy == document.RoundRobin:
		return Placement{Cluster: s.Members[around.Turn%uint64(len(s.Members))], Why: "it is its turn"}, nil, nil
	case s.Strategy == document.Weighted || name == "":
		order := byChance(s, around.Chance)
		return Placement{Cluster: order[0], Why: "by chance, as the weights are"}, order[1:], nil
	}
	order := Rendezvous(s, r.Group, r.Resource, r.Namespace, name)
	return Placement{Cluster: order[0], Why: "by its name, as the weights are"}, order[1:], nil
}

// Rendezvous returns the members of a spread that have a weight, in the order in
// which an object prefers them. Every instance finds the same order, and a new
// member takes only what prefers it.
func Rendezvous(s *document.Spread, group, resource, namespace, name string) []string {
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
		// No name of Kubernetes has a NUL, so nothing else gives the same text.
		sum := sha256.Sum256([]byte(strings.Join([]string{m, group, resource, namespace, name}, "\x00")))
		// 53 bits, as a float has, and never 0 or 1.
		u := (float64(binary.BigEndian.Uint64(sum[:8])>>11) + 0.5) / (1 << 53)
		all = append(all, scored{m, -float64(w) / math.Log(u)})
	}
	slices.SortStableFunc(all, func(a, b scored) int {
		switch {
		case a.score > b.score:
			return -1
		case a.score < b.score:
			return 1
		}
		return strings.Compare(a.member, b.member)
	})
	order := make([]string, len(all))
	for i, s := range all {
		order[i] = s.member
	}
	return order
}

// byChance returns the members that have a weight: the one that chance, a number
// from 0 up to 1, falls on, and then those after it.
func byChance(s *document.Spread, chance float64) []string {
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
