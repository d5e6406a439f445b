package multicluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers from the generated.proto files of Kubernetes.
const (
	fieldRaw             = 2 // of runtime.Unknown: the object
	fieldMetadata        = 1 // of each kind
	fieldAnnotations     = 12
	fieldOwnerReferences = 13
)

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
	envelope, err := changeField(bytes.TrimPrefix(body, protobufMagic), fieldRaw, func(raw []byte) ([]byte, error) {
		return changeField(raw, fieldMetadata, func(meta []byte) ([]byte, error) { return hideInProtobufMeta(meta, foreign) })
	})
	if errors.Is(err, errNotProtobuf) {
		err = unsupportedMediaType("the body is not protobuf")
	}
	if err != nil {
		return nil, err
	}
	return slices.Concat(protobufMagic, envelope), nil
}

func hideInProtobufMeta(meta []byte, foreign foreignFunc) ([]byte, error) {
	var out []byte
	var moved []hiddenReference
	at := 0
	if err := eachProtobufField(meta, func(field protobufField) error {
		switch field.num {
		case fieldAnnotations:
			if key, err := stringField(field.value, 1); err != nil || key == ownersAnnotation {
				return err // drop an annotation that the client set itself
			}
		case fieldOwnerReferences:
			r, err := readReference(field.value)
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
		out = append(out, field.whole...)
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
	err = eachProtobufField(b, func(field protobufField) error {
		switch num := field.num; {
		case texts[num] != nil && field.typ == protowire.BytesType:
			*texts[num] = string(field.value)
		case truths[num] != nil && field.typ == protowire.VarintType:
			*truths[num] = new(field.n != 0)
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
	err := eachProtobufField(b, func(field protobufField) error {
		if field.num != which {
			out = append(out, field.whole...)
			return nil
		}
		now, err := change(field.value)
		out = protowire.AppendBytes(protowire.AppendTag(out, which, protowire.BytesType), now)
		return err
	})
	return out, err
}

// stringField returns the string in field which, or "" if it is missing.
func stringField(b []byte, which protowire.Number) (s string, err error) {
	err = eachProtobufField(b, func(field protobufField) error {
		if field.num == which {
			s = string(field.value)
		}
		return nil
	})
	return s, err
}

// protobufField is one field of a message.
type protobufField struct {
	num   protowire.Number
	typ   protowire.Type
	whole []byte // the field with its tag
	value []byte // the content of a length-delimited field
	n     uint64 // the value of a varint
}

var errNotProtobuf = errors.New("the document is not protobuf")

// eachProtobufField calls f for each field of a message. It returns the first error of f, or errNotProtobuf.
func eachProtobufField(b []byte, f func(protobufField) error) error {
	for len(b) > 0 {
		num, typ, tag := protowire.ConsumeTag(b)
		if tag < 0 {
			return errNotProtobuf
		}
		field := protobufField{num: num, typ: typ}
		size := 0
		switch typ {
		case protowire.BytesType:
			field.value, size = protowire.ConsumeBytes(b[tag:])
		case protowire.VarintType:
			field.n, size = protowire.ConsumeVarint(b[tag:])
		default:
			size = protowire.ConsumeFieldValue(num, typ, b[tag:])
		}
		if size < 0 {
			return errNotProtobuf
		}
		field.whole, b = b[:tag+size], b[tag+size:]
		if err := f(field); err != nil {
			return err
		}
	}
	return nil
}
