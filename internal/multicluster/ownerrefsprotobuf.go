package multicluster

import (
	"encoding/json"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers from the generated.proto files of Kubernetes.
const (
	fieldRaw             = 2 // of runtime.Unknown: the object
	fieldMetadata        = 1 // of each kind
	fieldAnnotations     = 12
	fieldOwnerReferences = 13
)

// protobufPrefix is the prefix of every Kubernetes protobuf body.
const protobufPrefix = "k8s\x00"

// protobufReference is an owner reference in JSON.
type protobufReference struct {
	APIVersion         string `json:"apiVersion"`
	Kind               string `json:"kind"`
	Name               string `json:"name"`
	UID                string `json:"uid"`
	Controller         *bool  `json:"controller,omitempty"`
	BlockOwnerDeletion *bool  `json:"blockOwnerDeletion,omitempty"`
}

// hideInProtobuf implements hideInObject for protobuf.
func hideInProtobuf(body []byte, foreign foreignFunc) ([]byte, error) {
	o, err := parseObject(body, "application/vnd.kubernetes.protobuf", "") // refuses duplicate fields
	if err != nil {
		return nil, err
	}
	if _, annotated := o.Annotations[ownersAnnotation]; !annotated && len(o.OwnerReferences) == 0 {
		return body, nil
	}
	envelope, err := changeField([]byte(strings.TrimPrefix(string(body), protobufPrefix)), fieldRaw, func(raw []byte) ([]byte, error) {
		return changeField(raw, fieldMetadata, func(meta []byte) ([]byte, error) { return hideInProtobufMeta(meta, foreign) })
	})
	if err != nil {
		return nil, err
	}
	return append([]byte(protobufPrefix), envelope...), nil
}

func hideInProtobufMeta(meta []byte, foreign foreignFunc) ([]byte, error) {
	var out []byte
	var moved []hiddenReference
	at := 0
	if err := eachProtobufField(meta, func(num protowire.Number, whole, value []byte) error {
		switch num {
		case fieldAnnotations:
			if key, err := stringField(value, 1); err != nil || key == ownersAnnotation {
				return err // drop an annotation that the client set itself
			}
		case fieldOwnerReferences:
			r, err := readReference(value)
			if err != nil {
				return err
			}
			isForeign, err := foreign(ownerReference{APIVersion: r.APIVersion, Kind: r.Kind, Name: r.Name, UID: r.UID, Controller: r.Controller != nil && *r.Controller})
			if err != nil {
				return err
			}
			at++
			if isForeign {
				text, err := json.Marshal(r)
				moved = append(moved, hiddenReference{at - 1, text})
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
	hidden, err := encodeHidden(moved)
	if err != nil {
		return nil, err
	}
	var entry []byte
	entry = protowire.AppendString(protowire.AppendTag(entry, 1, protowire.BytesType), ownersAnnotation)
	entry = protowire.AppendString(protowire.AppendTag(entry, 2, protowire.BytesType), hidden)
	return protowire.AppendBytes(protowire.AppendTag(out, fieldAnnotations, protowire.BytesType), entry), nil
}

// readReference reads an owner reference. An unknown field is an error, because it would be lost.
func readReference(b []byte) (r protobufReference, err error) {
	texts := map[protowire.Number]*string{1: &r.Kind, 3: &r.Name, 4: &r.UID, 5: &r.APIVersion}
	truths := map[protowire.Number]**bool{6: &r.Controller, 7: &r.BlockOwnerDeletion}
	err = eachProtobufField(b, func(num protowire.Number, whole, value []byte) error {
		switch _, typ, n := protowire.ConsumeTag(whole); {
		case texts[num] != nil && typ == protowire.BytesType:
			*texts[num] = string(value)
		case truths[num] != nil && typ == protowire.VarintType:
			v, _ := protowire.ConsumeVarint(whole[n:])
			*truths[num] = new(v != 0)
		default:
			return unsupportedMediaType("an owner reference has a field that the adapter does not know; send JSON")
		}
		return nil
	})
	return r, err
}

// changeField applies change to the message in field which.
func changeField(b []byte, which protowire.Number, change func([]byte) ([]byte, error)) ([]byte, error) {
	var out []byte
	err := eachProtobufField(b, func(num protowire.Number, whole, value []byte) error {
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

// stringField returns the string in field which, or "" if it is missing.
func stringField(b []byte, which protowire.Number) (s string, err error) {
	err = eachProtobufField(b, func(num protowire.Number, _, value []byte) error {
		if num == which {
			s = string(value)
		}
		return nil
	})
	return s, err
}

// eachProtobufField calls f for each field of a message. whole is the field with its tag. value is its content if it
// is length-delimited.
func eachProtobufField(b []byte, f func(num protowire.Number, whole, value []byte) error) error {
	for len(b) > 0 {
		num, typ, tag := protowire.ConsumeTag(b)
		if tag < 0 {
			return unsupportedMediaType("the body is not protobuf")
		}
		n := protowire.ConsumeFieldValue(num, typ, b[tag:])
		if n < 0 {
			return unsupportedMediaType("the body is not protobuf")
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
