package vip

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

// The annotations of a service that say whose it is.
const (
	Annotation          = "gateway.tailscale.com/owner-references" // ours
	TailscaleAnnotation = "tailscale.com/owner-references"         // that of Tailscale's own operator
)

const (
	mostText   = 64 << 10 // of an annotation
	mostOwners = 1000
)

// OperatorID returns what the operator of a release is called when nobody says
// otherwise: a release that is installed anew in the same cluster is the same.
func OperatorID(kubeSystemUID, namespace, release string) string {
	sum := sha256.Sum256([]byte(kubeSystemUID + "\x00" + namespace + "\x00" + release))
	return "tp-" + hex.EncodeToString(sum[:8])
}

// An Owner is one object of one operator that a service is kept for.
type Owner struct {
	OperatorID string   `json:"operatorID"`
	Instance   string   `json:"instance,omitempty"` // tells two operators of one id apart
	Resource   Resource `json:"resource,omitzero"`
}

// A Resource is the object.
type Resource struct {
	Kind      string `json:"kind,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	UID       string `json:"uid,omitempty"`
}

// same says whether o speaks of the object that me is of. Its UID does not count:
// an object that was made anew under its name has what the former one had.
func (o Owner) same(me Owner) bool {
	r := o.Resource
	r.UID = me.Resource.UID
	return o.OperatorID == me.OperatorID && o.Instance == me.Instance && r == me.Resource
}

// doubles says whether o is of another operator that has the id of me.
func (o Owner) doubles(me Owner) bool {
	return o.OperatorID == me.OperatorID && o.Instance != me.Instance
}

// Owners are those of a service, in the order in which they came. What others wrote
// beside what is understood here is kept as it is.
type Owners struct {
	list []entry
	rest map[string]json.RawMessage // of the annotation, without ownerRefs
}

type entry struct {
	Owner
	text json.RawMessage // as it was written; nil: it is to be written
}

// ParseOwners reads the annotation. The empty text is no owners. An error means that
// nobody knows whose the service is.
func ParseOwners(text string) (Owners, error) {
	var o Owners
	if text == "" {
		return o, nil
	}
	if len(text) > mostText {
		return o, fmt.Errorf("owners of a service: %d bytes are not read", len(text))
	}
	if err := decode([]byte(text), &o.rest); err != nil {
		return o, fmt.Errorf("owners of a service: %w", err)
	}
	list, ok := o.rest["ownerRefs"]
	if !ok {
		return o, errors.New("owners of a service: there is no list of them")
	}
	delete(o.rest, "ownerRefs")
	var all []json.RawMessage
	if err := decode(list, &all); err != nil {
		return o, fmt.Errorf("owners of a service: %w", err)
	}
	if len(all) > mostOwners {
		return o, fmt.Errorf("owners of a service: %d of them", len(all))
	}
	for _, one := range all {
		e := entry{text: one}
		if err := decode(one, &e.Owner); err != nil {
			return o, fmt.Errorf("an owner of a service: %w", err)
		}
		if e.OperatorID == "" {
			return o, errors.New("an owner of a service has no operatorID")
		}
		o.list = append(o.list, e)
	}
	return o, nil
}

func decode(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more follows")
	}
	return nil
}

// Len is how many there are.
func (o Owners) Len() int { return len(o.list) }

// index is the place of me among them; -1 if it is not one of them.
func (o Owners) index(me Owner) int {
	return slices.IndexFunc(o.list, func(e entry) bool { return e.same(me) })
}

// doubled says whether another operator with the id of me is among them.
func (o Owners) doubled(me Owner) bool {
	return slices.ContainsFunc(o.list, func(e entry) bool { return e.doubles(me) })
}

// With returns the owners and me: last, or in the place that it has.
func (o Owners) With(me Owner) Owners {
	o.list = slices.Clone(o.list)
	if i := o.index(me); i < 0 {
		o.list = append(o.list, entry{Owner: me})
	} else if o.list[i].Owner != me {
		o.list[i] = entry{Owner: me}
	}
	return o
}

// Without returns the owners but me.
func (o Owners) Without(me Owner) Owners {
	o.list = slices.DeleteFunc(slices.Clone(o.list), func(e entry) bool { return e.same(me) })
	return o
}

// String is the annotation.
func (o Owners) String() string {
	all := map[string]any{}
	for k, v := range o.rest {
		all[k] = v
	}
	list := []any{}
	for _, e := range o.list {
		if e.text != nil {
			list = append(list, e.text)
		} else {
			list = append(list, e.Owner)
		}
	}
	all["ownerRefs"] = list
	text, err := json.Marshal(all)
	if err != nil {
		panic(err) // what was parsed, and strings
	}
	return string(text)
}
