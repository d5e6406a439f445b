package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

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
