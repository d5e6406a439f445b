// Package vip decides how one of several operators changes a tailnet service that has its own
// addresses. It follows law 7: a service with another or an unknown owner is never overwritten or
// deleted.
//
// Tailscale's API for services has no conditional writes; the last writer wins. Each operator
// therefore records itself in an annotation, writes only what it has just read, and reads again
// after a write. If a concurrent write removed its entry, it writes the entry again.
package vip

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// A Service is a tailnet service as the API returns it.
type Service struct {
	Name        string
	Addrs       []netip.Addr // IPv4 first
	Comment     string
	Annotations map[string]string
	Ports       []string // such as tcp:443
	Tags        []string
}

// A Wish is the desired state of a service for one owner.
type Wish struct {
	Name    string
	Ports   []string
	Tags    []string
	Comment string

	// Adopt allows taking over a service that has no known owner or is owned by Tailscale's
	// operator.
	Adopt bool

	// Addrs are the addresses of the service while this owner had it. Empty if it never had it.
	Addrs []netip.Addr
}

// A Deed is an action on a service.
type Deed string

// The actions.
const (
	Rest   Deed = "rest"   // nothing to do
	Write  Deed = "write"  // create the service, or replace it by Decision.Service
	Delete Deed = "delete" // the last owner leaves
	Refuse Deed = "refuse" // do not touch the service: see Decision.Why
)

// A Why is the reason for not touching a service.
type Why string

// The reasons for Refuse.
const (
	NotOwned  Why = "NotOwned"  // another party or an unknown one created it
	Conflict  Why = "Conflict"  // its first owner requires other ports or tags
	Duplicate Why = "Duplicate" // another operator has the same ID
)

// A Decision is the next action of one owner on a service.
type Decision struct {
	Deed    Deed
	Service Service // for Write
	Why     Why     // for Refuse
	Message string  // for Refuse: a sentence
	Owners  int     // number of owners after the action, including this one
}

func refuse(why Why, owners int, message string) Decision {
	return Decision{Deed: Refuse, Why: why, Message: message, Owners: owners}
}

// Keep decides how an owner brings a service to the desired state. have is the service that was
// just read, or nil if it does not exist.
func Keep(have *Service, wish Wish, me Owner) Decision {
	if have == nil {
		made := Service{Name: wish.Name, Ports: wish.Ports, Tags: wish.Tags, Comment: wish.Comment, Annotations: map[string]string{Annotation: Owners{}.With(me).String()}}
		if len(wish.Addrs) > 0 && wish.Addrs[0].Is4() {
			made.Addrs = wish.Addrs[:1:1] // clients that cached the old address still reach the service
		}
		return Decision{Deed: Write, Service: made, Owners: 1}
	}
	owners, err := ownersOf(have)
	if err != nil {
		return refuse(NotOwned, 0, "whose the service is cannot be read from its annotation "+Annotation)
	}
	if owners.doubled(me) {
		return refuse(Duplicate, owners.Len(), "another operator has the id "+me.OperatorID+", as after a cluster was copied: give one of them another")
	}
	place := owners.index(me)
	theirs := foreign(have)
	// A service without owners but with the owner's former addresses lost its annotation to a
	// concurrent write or to a manual change.
	lost := owners.Len() == 0 && theirs == 0 && len(wish.Addrs) > 0 && slices.Equal(have.Addrs, wish.Addrs)
	if place < 0 && !lost && !wish.Adopt {
		switch {
		case theirs > 0:
			return refuse(NotOwned, theirs, "the service belongs to Tailscale's operator; adopt takes it over")
		case owners.Len() == 0:
			return refuse(NotOwned, 0, "somebody else made the service; adopt takes it over")
		}
	}
	next := clone(have)
	if place < 0 || owners.list[place].Owner != me { // otherwise keep the text: two operators with different encodings must not alternate
		next.Annotations[Annotation] = owners.With(me).String()
	}
	if place > 0 || place < 0 && owners.Len() > 0 { // an earlier owner decides about ports and tags
		if !equalSets(have.Ports, wish.Ports) || !equalSets(have.Tags, wish.Tags) {
			first := owners.list[0]
			return refuse(Conflict, owners.Len(), fmt.Sprintf("the service's first owner, of operator %+.60q, has other ports or tags", first.OperatorID))
		}
	} else {
		if !equalSets(have.Ports, wish.Ports) {
			next.Ports = wish.Ports
		}
		if !equalSets(have.Tags, wish.Tags) {
			next.Tags = wish.Tags
		}
		next.Comment = wish.Comment
	}
	d := Decision{Deed: Write, Service: next, Owners: owners.With(me).Len() + theirs}
	if equal(*have, next) {
		d.Deed, d.Service = Rest, Service{}
	}
	return d
}

// Leave decides how an owner gives up a service. Rest means that nothing is left to do. Before a
// deletion, the caller must get the decision Delete from two separate reads.
func Leave(have *Service, me Owner) Decision {
	if have == nil {
		return Decision{Deed: Rest}
	}
	owners, err := ownersOf(have)
	if err != nil {
		return Decision{Deed: Rest} // the owners are unknown, so this operator must not delete the service
	}
	if owners.doubled(me) {
		return refuse(Duplicate, owners.Len(), "another operator has the id "+me.OperatorID+", so that it is not known whose the service is")
	}
	if owners.index(me) < 0 {
		return Decision{Deed: Rest, Owners: owners.Len() + foreign(have)}
	}
	owners = owners.Without(me)
	left := owners.Len() + foreign(have)
	if left == 0 {
		return Decision{Deed: Delete}
	}
	next := clone(have)
	if owners.Len() > 0 {
		next.Annotations[Annotation] = owners.String()
	} else {
		delete(next.Annotations, Annotation)
	}
	return Decision{Deed: Write, Service: next, Owners: left}
}

func ownersOf(s *Service) (Owners, error) {
	text, ok := s.Annotations[Annotation]
	if ok && text == "" {
		return Owners{}, errors.New("owners of a service: an empty text")
	}
	return ParseOwners(text)
}

// foreign returns the number of owners that Tailscale's operator recorded. An annotation that
// cannot be parsed counts as one owner.
func foreign(s *Service) int {
	text, ok := s.Annotations[TailscaleAnnotation]
	if !ok {
		return 0
	}
	owners, err := ParseOwners(text)
	if err != nil || text == "" {
		return 1
	}
	return owners.Len()
}

// clone copies the fields that are modified. It keeps the addresses, because the API rejects a
// write without the existing addresses.
func clone(s *Service) Service {
	next := *s
	next.Annotations = maps.Clone(s.Annotations)
	if next.Annotations == nil {
		next.Annotations = map[string]string{}
	}
	return next
}

func equal(a, b Service) bool {
	return a.Name == b.Name && slices.Equal(a.Addrs, b.Addrs) && a.Comment == b.Comment && maps.Equal(a.Annotations, b.Annotations) &&
		equalSets(a.Ports, b.Ports) && equalSets(a.Tags, b.Tags)
}

func equalSets(a, b []string) bool {
	return slices.Equal(slices.Compact(slices.Sorted(slices.Values(a))), slices.Compact(slices.Sorted(slices.Values(b))))
}
