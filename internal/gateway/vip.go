package gateway

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// ReconcileVIP and ReleaseVIP decide how one of several operators changes a tailnet service that has
// its own addresses. They follow law 7: a service with another or an unknown owner is never
// overwritten or deleted.
//
// Tailscale's API for services has no conditional writes; the last writer wins. Each operator
// therefore records itself in an annotation, writes only what it has just read, and reads again
// after a write. If a concurrent write removed its entry, it writes the entry again.

// A VIPService is a tailnet service as the API returns it.
type VIPService struct {
	Name        string
	Addrs       []netip.Addr // IPv4 first
	Comment     string
	Annotations map[string]string
	Ports       []string // such as tcp:443
	Tags        []string
}

// A DesiredVIP is the desired state of a service for one owner.
type DesiredVIP struct {
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

// A VIPAction is an action on a service.
type VIPAction string

// The actions.
const (
	VIPUnchanged VIPAction = "rest"   // nothing to do
	VIPWrite     VIPAction = "write"  // create the service, or replace it by Decision.Service
	VIPDelete    VIPAction = "delete" // the last owner leaves
	VIPRefuse    VIPAction = "refuse" // do not touch the service: see VIPDecision.Refusal
)

// A VIPRefusal is the reason for not touching a service.
type VIPRefusal string

// The reasons for Refuse.
const (
	VIPNotOwned  VIPRefusal = "NotOwned"  // another party or an unknown one created it
	VIPConflict  VIPRefusal = "Conflict"  // its first owner requires other ports or tags
	VIPDuplicate VIPRefusal = "Duplicate" // another operator has the same ID
)

// A VIPDecision is the next action of one owner on a service.
type VIPDecision struct {
	Action  VIPAction
	Service VIPService // for Write
	Refusal VIPRefusal // for Refuse
	Message string     // for Refuse: a sentence
	Owners  int        // number of owners after the action, including this one
}

func refuseVIP(refusal VIPRefusal, owners int, message string) VIPDecision {
	return VIPDecision{Action: VIPRefuse, Refusal: refusal, Message: message, Owners: owners}
}

// ReconcileVIP decides how an owner brings a service to the desired state. have is the service that was
// just read, or nil if it does not exist.
func ReconcileVIP(have *VIPService, desired DesiredVIP, me VIPOwner) VIPDecision {
	if have == nil {
		created := VIPService{Name: desired.Name, Ports: desired.Ports, Tags: desired.Tags, Comment: desired.Comment, Annotations: map[string]string{OwnersAnnotation: VIPOwners{}.With(me).String()}}
		if len(desired.Addrs) > 0 && desired.Addrs[0].Is4() {
			created.Addrs = desired.Addrs[:1:1] // clients that cached the old address still reach the service
		}
		return VIPDecision{Action: VIPWrite, Service: created, Owners: 1}
	}
	owners, err := vipOwners(have)
	if err != nil {
		return refuseVIP(VIPNotOwned, 0, "the service's owners cannot be read from its annotation "+OwnersAnnotation)
	}
	if owners.duplicated(me) {
		return refuseVIP(VIPDuplicate, owners.Len(), "another operator has the same id "+me.OperatorID+", for example in a copied cluster: change the id of one of them")
	}
	position := owners.index(me)
	foreignCount := foreignOwners(have)
	// A service without owners but with the owner's former addresses lost its annotation to a
	// concurrent write or to a manual change.
	lost := owners.Len() == 0 && foreignCount == 0 && len(desired.Addrs) > 0 && slices.Equal(have.Addrs, desired.Addrs)
	if position < 0 && !lost && !desired.Adopt {
		switch {
		case foreignCount > 0:
			return refuseVIP(VIPNotOwned, foreignCount, "the service belongs to Tailscale's operator; adopt takes it over")
		case owners.Len() == 0:
			return refuseVIP(VIPNotOwned, 0, "the operator did not create the service; adopt takes it over")
		}
	}
	next := cloneVIP(have)
	if position < 0 || owners.list[position].VIPOwner != me { // otherwise keep the text: two operators with different encodings must not alternate
		next.Annotations[OwnersAnnotation] = owners.With(me).String()
	}
	if position > 0 || position < 0 && owners.Len() > 0 { // an earlier owner decides about ports and tags
		if !equalSets(have.Ports, desired.Ports) || !equalSets(have.Tags, desired.Tags) {
			first := owners.list[0]
			return refuseVIP(VIPConflict, owners.Len(), fmt.Sprintf("the service's first owner, with operator %+.60q, has other ports or tags", first.OperatorID))
		}
	} else {
		if !equalSets(have.Ports, desired.Ports) {
			next.Ports = desired.Ports
		}
		if !equalSets(have.Tags, desired.Tags) {
			next.Tags = desired.Tags
		}
		next.Comment = desired.Comment
	}
	d := VIPDecision{Action: VIPWrite, Service: next, Owners: owners.With(me).Len() + foreignCount}
	if equalVIP(*have, next) {
		d.Action, d.Service = VIPUnchanged, VIPService{}
	}
	return d
}

// ReleaseVIP decides how an owner gives up a service. VIPUnchanged means that nothing is left to do. Before a
// deletion, the caller must get the decision Delete from two separate reads.
func ReleaseVIP(have *VIPService, me VIPOwner) VIPDecision {
	if have == nil {
		return VIPDecision{Action: VIPUnchanged}
	}
	owners, err := vipOwners(have)
	if err != nil {
		return VIPDecision{Action: VIPUnchanged} // the owners are unknown, so this operator must not delete the service
	}
	if owners.duplicated(me) {
		return refuseVIP(VIPDuplicate, owners.Len(), "another operator has the same id "+me.OperatorID+", so the owner of the service is unknown")
	}
	if owners.index(me) < 0 {
		return VIPDecision{Action: VIPUnchanged, Owners: owners.Len() + foreignOwners(have)}
	}
	owners = owners.Without(me)
	remaining := owners.Len() + foreignOwners(have)
	if remaining == 0 {
		return VIPDecision{Action: VIPDelete}
	}
	next := cloneVIP(have)
	if owners.Len() > 0 {
		next.Annotations[OwnersAnnotation] = owners.String()
	} else {
		delete(next.Annotations, OwnersAnnotation)
	}
	return VIPDecision{Action: VIPWrite, Service: next, Owners: remaining}
}

func vipOwners(s *VIPService) (VIPOwners, error) {
	text, ok := s.Annotations[OwnersAnnotation]
	if ok && text == "" {
		return VIPOwners{}, errors.New("owners of a service: the annotation is empty")
	}
	return ParseVIPOwners(text)
}

// foreignOwners returns the number of owners that Tailscale's operator recorded. An annotation that
// cannot be parsed counts as one owner.
func foreignOwners(s *VIPService) int {
	text, ok := s.Annotations[TailscaleOwnersAnnotation]
	if !ok {
		return 0
	}
	owners, err := ParseVIPOwners(text)
	if err != nil || text == "" {
		return 1
	}
	return owners.Len()
}

// cloneVIP copies the fields that are modified. It keeps the addresses, because the API rejects a
// write without the existing addresses.
func cloneVIP(s *VIPService) VIPService {
	next := *s
	next.Annotations = maps.Clone(s.Annotations)
	if next.Annotations == nil {
		next.Annotations = map[string]string{}
	}
	return next
}

func equalVIP(a, b VIPService) bool {
	return a.Name == b.Name && slices.Equal(a.Addrs, b.Addrs) && a.Comment == b.Comment && maps.Equal(a.Annotations, b.Annotations) &&
		equalSets(a.Ports, b.Ports) && equalSets(a.Tags, b.Tags)
}

func equalSets(a, b []string) bool {
	return slices.Equal(slices.Compact(slices.Sorted(slices.Values(a))), slices.Compact(slices.Sorted(slices.Values(b))))
}
