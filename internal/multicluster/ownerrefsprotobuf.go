package multicluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tailplane/tailplane/internal/apiproxy/codec"
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
	if errors.Is(err, codec.ErrProtobuf) {
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
	m := codec.NewMessage(meta)
	for m.Next() {
		switch m.Num {
		case fieldAnnotations:
			key, err := stringField(m.Value, 1)
			if err != nil {
				return nil, err
			}
			if key == ownersAnnotation {
				continue // drop an annotation that the client set itself
			}
		case fieldOwnerReferences:
			r, err := readReference(m.Value)
			if err != nil {
				return nil, err
			}
			isForeign, err := foreign(
				ownerReference{
					APIVersion: r.APIVersion,
					Kind:       r.Kind,
					Name:       r.Name,
					UID:        r.UID,
					Controller: r.Controller != nil && *r.Controller,
				},
			)
			if err != nil {
				return nil, err
			}
			at++
			if isForeign {
				text, err := json.Marshal(r)
				if err != nil {
					return nil, err
				}
				moved = append(moved, hiddenReference{at - 1, text})
				continue
			}
		}
		out = append(out, m.Whole...)
	}
	if m.Err != nil {
		return nil, m.Err
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
	m := codec.NewMessage(b)
	for m.Next() {
		switch {
		case texts[m.Num] != nil && m.Type == protowire.BytesType:
			*texts[m.Num] = string(m.Value)
		case truths[m.Num] != nil && m.Type == protowire.VarintType:
			*truths[m.Num] = new(m.N != 0)
		default:
			return r, unsupportedMediaType("an owner reference has a field that the adapter does not know; send JSON")
		}
	}
	return r, m.Err
}

// changeField applies change to the message in field which.
func changeField(b []byte, which protowire.Number, change func([]byte) ([]byte, error)) ([]byte, error) {
	var out []byte
	m := codec.NewMessage(b)
	for m.Next() {
		if m.Num != which {
			out = append(out, m.Whole...)
			continue
		}
		now, err := change(m.Value)
		if err != nil {
			return nil, err
		}
		out = protowire.AppendBytes(protowire.AppendTag(out, which, protowire.BytesType), now)
	}
	return out, m.Err
}

// stringField returns the string in field which, or "" if it is missing.
func stringField(b []byte, which protowire.Number) (s string, err error) {
	m := codec.NewMessage(b)
	for m.Next() {
		if m.Num == which {
			s = string(m.Value)
		}
	}
	return s, m.Err
}
