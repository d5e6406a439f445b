package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
)

// ReconcileVIP and ReleaseVIP decide how one of several operators changes a tailnet service that has
// its own addresses. They follow law 7: a service with another or an unknown owner is never
// overwritten or deleted.
//
// Tailscale's API for services has no conditional writes; the last writer wins. Each operator
// therefore records itself in an annotation, writes only what it has just read, and reads again
// after a write. If a concurrent write removed its entry, it writes the entry again.

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
	Service tsapi.Service // for Write
	Refusal VIPRefusal    // for Refuse
	Message string        // for Refuse: a sentence
	Owners  int           // number of owners after the action, including this one
}

func refuseVIP(refusal VIPRefusal, owners int, message string) VIPDecision {
	return VIPDecision{Action: VIPRefuse, Refusal: refusal, Message: message, Owners: owners}
}

// ReconcileVIP decides how an owner brings a service to the desired state. have is the service that was
// just read, or nil if it does not exist.
func ReconcileVIP(have *tsapi.Service, desired DesiredVIP, me VIPOwner) VIPDecision {
	if have == nil {
		created := tsapi.Service{
			Name:        desired.Name,
			Ports:       desired.Ports,
			Tags:        desired.Tags,
			Comment:     desired.Comment,
			Annotations: map[string]string{OwnersAnnotation: VIPOwners{}.With(me).String()},
		}
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
		return refuseVIP(
			VIPDuplicate,
			owners.Len(),
			"another operator has the same id "+me.OperatorID+", for example in a copied cluster: change the id of one of them",
		)
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
	if position < 0 ||
		owners.list[position].VIPOwner != me { // otherwise keep the text: two operators with different encodings must not alternate
		next.Annotations[OwnersAnnotation] = owners.With(me).String()
	}
	if position > 0 || position < 0 && owners.Len() > 0 { // an earlier owner decides about ports and tags
		if !equalSets(have.Ports, desired.Ports) || !equalSets(have.Tags, desired.Tags) {
			first := owners.list[0]
			return refuseVIP(
				VIPConflict,
				owners.Len(),
				fmt.Sprintf("the service's first owner, with operator %+.60q, has other ports or tags", first.OperatorID),
			)
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
		d.Action, d.Service = VIPUnchanged, tsapi.Service{}
	}
	return d
}

// ReleaseVIP decides how an owner gives up a service. VIPUnchanged means that nothing is left to do. Before a
// deletion, the caller must get the decision Delete from two separate reads.
func ReleaseVIP(have *tsapi.Service, me VIPOwner) VIPDecision {
	if have == nil {
		return VIPDecision{Action: VIPUnchanged}
	}
	owners, err := vipOwners(have)
	if err != nil {
		return VIPDecision{Action: VIPUnchanged} // the owners are unknown, so this operator must not delete the service
	}
	if owners.duplicated(me) {
		return refuseVIP(
			VIPDuplicate,
			owners.Len(),
			"another operator has the same id "+me.OperatorID+", so the owner of the service is unknown",
		)
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

func vipOwners(s *tsapi.Service) (VIPOwners, error) {
	text, ok := s.Annotations[OwnersAnnotation]
	if ok && text == "" {
		return VIPOwners{}, errors.New("owners of a service: the annotation is empty")
	}
	return ParseVIPOwners(text)
}

// foreignOwners returns the number of owners that Tailscale's operator recorded. An annotation that
// cannot be parsed counts as one owner.
func foreignOwners(s *tsapi.Service) int {
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
func cloneVIP(s *tsapi.Service) tsapi.Service {
	next := *s
	next.Annotations = maps.Clone(s.Annotations)
	if next.Annotations == nil {
		next.Annotations = map[string]string{}
	}
	return next
}

func equalVIP(a, b tsapi.Service) bool {
	return a.Name == b.Name && slices.Equal(a.Addrs, b.Addrs) && a.Comment == b.Comment && maps.Equal(a.Annotations, b.Annotations) &&
		equalSets(a.Ports, b.Ports) && equalSets(a.Tags, b.Tags)
}

func equalSets(a, b []string) bool {
	return slices.Equal(slices.Compact(slices.Sorted(slices.Values(a))), slices.Compact(slices.Sorted(slices.Values(b))))
}

// The annotations of a service that list its owners.
const (
	OwnersAnnotation          = "gateway.tailscale.com/owner-references" // written by Tailplane
	TailscaleOwnersAnnotation = "tailscale.com/owner-references"         // written by Tailscale's operator
)

const (
	maxOwnersText = 64 << 10 // limit of an annotation in bytes
	maxOwners     = 1000
)

// OperatorID returns the default ID of the operator of a release. A release that is reinstalled in
// the same cluster gets the same ID.
func OperatorID(kubeSystemUID, namespace, release string) string {
	sum := sha256.Sum256([]byte(kubeSystemUID + "\x00" + namespace + "\x00" + release))
	return "tp-" + hex.EncodeToString(sum[:8])
}

// A VIPOwner is an object of an operator that uses a service.
type VIPOwner struct {
	OperatorID string        `json:"operatorID"`
	Instance   string        `json:"instance,omitempty"` // distinguishes two operators with the same ID
	Resource   OwnerResource `json:"resource,omitzero"`
}

// An OwnerResource identifies the Kubernetes object.
type OwnerResource struct {
	Kind      string `json:"kind,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	UID       string `json:"uid,omitempty"`
}

// sameObject reports whether o and me identify the same object. The UID is ignored, because an object
// that was recreated with the same name keeps its service.
func (o VIPOwner) sameObject(me VIPOwner) bool {
	r := o.Resource
	r.UID = me.Resource.UID
	return o.OperatorID == me.OperatorID && o.Instance == me.Instance && r == me.Resource
}

// duplicates reports whether o belongs to another operator with the same ID as me.
func (o VIPOwner) duplicates(me VIPOwner) bool {
	return o.OperatorID == me.OperatorID && o.Instance != me.Instance
}

// VIPOwners are the owners of a service in the order of their arrival. Unknown fields that others
// wrote are preserved.
type VIPOwners struct {
	list []ownerEntry
	rest map[string]json.RawMessage // other fields of the annotation
}

type ownerEntry struct {
	VIPOwner
	text json.RawMessage // original text; nil for an owner that was added
}

// ParseVIPOwners parses the annotation. Empty text means no owners. After an error, the owners of the
// service are unknown.
func ParseVIPOwners(text string) (VIPOwners, error) {
	var o VIPOwners
	if text == "" {
		return o, nil
	}
	if len(text) > maxOwnersText {
		return o, fmt.Errorf("owners of a service: %d bytes are too long", len(text))
	}
	if err := json.Unmarshal([]byte(text), &o.rest); err != nil {
		return o, fmt.Errorf("owners of a service: %w", err)
	}
	list, ok := o.rest["ownerRefs"]
	if !ok {
		return o, errors.New("owners of a service: the list is missing")
	}
	delete(o.rest, "ownerRefs")
	var all []json.RawMessage
	if err := json.Unmarshal(list, &all); err != nil {
		return o, fmt.Errorf("owners of a service: %w", err)
	}
	if len(all) > maxOwners {
		return o, fmt.Errorf("owners of a service: %d owners are too many", len(all))
	}
	for _, one := range all {
		e := ownerEntry{text: one}
		if err := json.Unmarshal(one, &e.VIPOwner); err != nil {
			return o, fmt.Errorf("an owner of a service: %w", err)
		}
		if e.OperatorID == "" {
			return o, errors.New("an owner of a service has no operatorID")
		}
		o.list = append(o.list, e)
	}
	return o, nil
}

// Len returns the number of owners.
func (o VIPOwners) Len() int { return len(o.list) }

// index returns the position of me, or -1 if me is not an owner.
func (o VIPOwners) index(me VIPOwner) int {
	return slices.IndexFunc(o.list, func(e ownerEntry) bool { return e.sameObject(me) })
}

// duplicated reports whether another operator with the same ID as me is an owner.
func (o VIPOwners) duplicated(me VIPOwner) bool {
	return slices.ContainsFunc(o.list, func(e ownerEntry) bool { return e.duplicates(me) })
}

// With returns the owners with me added at the end, or updated in its position.
func (o VIPOwners) With(me VIPOwner) VIPOwners {
	o.list = slices.Clone(o.list)
	if i := o.index(me); i < 0 {
		o.list = append(o.list, ownerEntry{VIPOwner: me})
	} else if o.list[i].VIPOwner != me {
		o.list[i] = ownerEntry{VIPOwner: me}
	}
	return o
}

// Without returns the owners without me.
func (o VIPOwners) Without(me VIPOwner) VIPOwners {
	o.list = slices.DeleteFunc(slices.Clone(o.list), func(e ownerEntry) bool { return e.sameObject(me) })
	return o
}

// String returns the text of the annotation.
func (o VIPOwners) String() string {
	all := map[string]any{}
	for k, v := range o.rest {
		all[k] = v
	}
	list := []any{}
	for _, e := range o.list {
		if e.text != nil {
			list = append(list, e.text)
		} else {
			list = append(list, e.VIPOwner)
		}
	}
	all["ownerRefs"] = list
	text, err := json.Marshal(all)
	if err != nil {
		panic(err) // only parsed values and strings
	}
	return string(text)
}
