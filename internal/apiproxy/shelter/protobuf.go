package shelter

import (
	"encoding/json"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tailplane/tailplane/internal/apiproxy"
)

// Field numbers from the generated.proto files of Kubernetes.
const (
	envelopeRaw     = 2 // of runtime.Unknown: the object
	objectMetadata  = 1 // of each kind
	metaAnnotations = 12
	metaOwners      = 13
)

// magic is the prefix of every Kubernetes protobuf body.
const magic = "k8s\x00"

// reference is an owner reference in JSON.
type reference struct {
	APIVersion         string `json:"apiVersion"`
	Kind               string `json:"kind"`
	Name               string `json:"name"`
	UID                string `json:"uid"`
	Controller         *bool  `json:"controller,omitempty"`
	BlockOwnerDeletion *bool  `json:"blockOwnerDeletion,omitempty"`
}

// shelterProtobuf implements shelterObject for protobuf.
func shelterProtobuf(body []byte, foreign Foreign) ([]byte, error) {
	o, err := apiproxy.Peek(body, "application/vnd.kubernetes.protobuf", "") // refuses duplicate fields
	if err != nil {
		return nil, err
	}
	if _, noted := o.Annotations[Key]; !noted && len(o.OwnerReferences) == 0 {
		return body, nil
	}
	envelope, err := inField([]byte(strings.TrimPrefix(string(body), magic)), envelopeRaw, func(raw []byte) ([]byte, error) {
		return inField(raw, objectMetadata, func(meta []byte) ([]byte, error) { return shelterMeta(meta, foreign) })
	})
	if err != nil {
		return nil, err
	}
	return append([]byte(magic), envelope...), nil
}

func shelterMeta(meta []byte, foreign Foreign) ([]byte, error) {
	var out []byte
	var moved []sheltered
	at := 0
	if err := eachField(meta, func(num protowire.Number, whole, value []byte) error {
		switch num {
		case metaAnnotations:
			if key, err := textField(value, 1); err != nil || key == Key {
				return err // drop an annotation that the client set itself
			}
		case metaOwners:
			r, err := readReference(value)
			if err != nil {
				return err
			}
			far, err := foreign(apiproxy.OwnerReference{APIVersion: r.APIVersion, Kind: r.Kind, Name: r.Name, UID: r.UID, Controller: r.Controller != nil && *r.Controller})
			if err != nil {
				return err
			}
			at++
			if far {
				text, err := json.Marshal(r)
				moved = append(moved, sheltered{at - 1, text})
				return err
			}
		}
		out = append(out, whole...)
		return nil
	}); err != nil {
		return nil, err
	}
	if len(moved) == 0 {
		return out, nil
	}
	note, err := noteOf(moved)
	if err != nil {
		return nil, err
	}
	var entry []byte
	entry = protowire.AppendString(protowire.AppendTag(entry, 1, protowire.BytesType), Key)
	entry = protowire.AppendString(protowire.AppendTag(entry, 2, protowire.BytesType), note)
	return protowire.AppendBytes(protowire.AppendTag(out, metaAnnotations, protowire.BytesType), entry), nil
}

// readReference reads an owner reference. An unknown field is an error, because it would be lost.
func readReference(b []byte) (r reference, err error) {
	texts := map[protowire.Number]*string{1: &r.Kind, 3: &r.Name, 4: &r.UID, 5: &r.APIVersion}
	truths := map[protowire.Number]**bool{6: &r.Controller, 7: &r.BlockOwnerDeletion}
	err = eachField(b, func(num protowire.Number, whole, value []byte) error {
		switch _, typ, n := protowire.ConsumeTag(whole); {
		case texts[num] != nil && typ == protowire.BytesType:
			*texts[num] = string(value)
		case truths[num] != nil && typ == protowire.VarintType:
			v, _ := protowire.ConsumeVarint(whole[n:])
			*truths[num] = new(v != 0)
		default:
			return unsupported("an owner reference has a field that this adapter does not know; send JSON")
		}
		return nil
	})
	return r, err
}

// inField applies change to the message in field which.
func inField(b []byte, which protowire.Number, change func([]byte) ([]byte, error)) ([]byte, error) {
	var out []byte
	err := eachField(b, func(num protowire.Number, whole, value []byte) error {
		if num != which {
			out = append(out, whole...)
			return nil
		}
		now, err := change(value)
		out = protowire.AppendBytes(protowire.AppendTag(out, which, protowire.BytesType), now)
		return err
	})
	return out, err
}

// textField returns the string in field which, or "" if it is missing.
func textField(b []byte, which protowire.Number) (s string, err error) {
	err = eachField(b, func(num protowire.Number, _, value []byte) error {
		if num == which {
			s = string(value)
		}
		return nil
	})
	return s, err
}

// eachField calls f for each field of a message. whole is the field with its tag. value is its content if it
// is length-delimited.
func eachField(b []byte, f func(num protowire.Number, whole, value []byte) error) error {
	for len(b) > 0 {
		num, typ, tag := protowire.ConsumeTag(b)
		if tag < 0 {
			return unsupported("the body is not protobuf")
		}
		n := protowire.ConsumeFieldValue(num, typ, b[tag:])
		if n < 0 {
			return unsupported("the body is not protobuf")
		}
		var value []byte
		if typ == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(b[tag:])
		}
		if err := f(num, b[:tag+n], value); err != nil {
			return err
		}
		b = b[tag+n:]
	}
	return nil
}
