// Package vip decides what one operator of several does with a service of a tailnet
// that has addresses of its own. It keeps law 7: what is somebody else's, or cannot
// be told whose it is, is never written over and never deleted.
//
// The API that keeps services knows no conditions and the last writer wins. So each
// operator names itself in an annotation, writes only what it has just read, and
// reads again after it wrote: a name that was lost to somebody who wrote at the same
// time is written again.
package vip

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// A Service is one of the tailnet, as its API has it.
type Service struct {
	Name        string
	Addrs       []netip.Addr // IPv4 first
	Comment     string
	Annotations map[string]string
	Ports       []string // such as tcp:443
	Tags        []string
}

// A Wish is what an owner wants of a service.
type Wish struct {
	Name    string
	Ports   []string
	Tags    []string
	Comment string

	// Adopt takes over a service that has no owner that we know, or that of
	// Tailscale's operator.
	Adopt bool

	// Addrs are the addresses that the service had when it was this owner's; none if
	// it never was.
	Addrs []netip.Addr
}

// A Deed is what is to be done with a service.
type Deed string

// The deeds.
const (
	Rest   Deed = "rest"   // it is as it should be
	Write  Deed = "write"  // replace it, or make it, as Decision.Service
	Delete Deed = "delete" // the last owner leaves
	Refuse Deed = "refuse" // it is not for us to touch: see Decision.Why
)

// A Why says why a service is not touched.
type Why string

// The reasons to refuse.
const (
	NotOwned  Why = "NotOwned"  // somebody else made it, or nobody knows who
	Conflict  Why = "Conflict"  // its first owner wants other ports or tags
	Duplicate Why = "Duplicate" // another operator has our id
)

// A Decision is what one owner does with a service next.
type Decision struct {
	Deed    Deed
	Service Service // of Write
	Why     Why     // of Refuse
	Message string  // of Refuse, a sentence
	Owners  int     // that the service has with it, ours included
}

func refuse(why Why, owners int, message string) Decision {
	return Decision{Deed: Refuse, Why: why, Message: message, Owners: owners}
}

// Keep decides what an owner does so that a service is as it wishes. have is the
// service as it was just read; nil if there is none.
func Keep(have *Service, wish Wish, me Owner) Decision {
	if have == nil {
		made := Service{Name: wish.Name, Ports: wish.Ports, Tags: wish.Tags, Comment: wish.Comment, Annotations: map[string]string{Annotation: Owners{}.With(me).String()}}
		if len(wish.Addrs) > 0 && wish.Addrs[0].Is4() {
			made.Addrs = wish.Addrs[:1:1] // who knows the old address still finds it
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
	// One that has no owners, and the addresses that were ours, lost our name: to
	// somebody who wrote at the same time, or by hand.
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
	if place < 0 || owners.list[place].Owner != me { // else the text stays: two who spell it differently must not take turns
		next.Annotations[Annotation] = owners.With(me).String()
	}
	if place > 0 || place < 0 && owners.Len() > 0 { // another one came first, and decides
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

// Leave decides what an owner does so that nothing of a service is its own any more.
// Rest means that nothing is. To delete, Leave must say so of two readings.
func Leave(have *Service, me Owner) Decision {
	if have == nil {
		return Decision{Deed: Rest}
	}
	owners, err := ownersOf(have)
	if err != nil {
		return Decision{Deed: Rest} // nobody's that we know, so not ours to delete
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

// foreign is how many owners Tailscale's operator has named. A text of it that we do
// not understand names one.
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

// clone copies what is changed. The addresses come along: to write a service without
// those that it has is an error.
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
