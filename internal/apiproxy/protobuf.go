package apiproxy

import (
	"bytes"
	"net/http"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// magic is the prefix of every Kubernetes protobuf body. A runtime.Unknown message follows it.
var magic = []byte("k8s\x00")

// parts holds the fields of a protobuf message by number. Readers of a field that may occur only once must
// refuse a repeated one.
type parts map[protowire.Number][][]byte

// takeApart reads the length-delimited and varint fields of a message. It reduces a varint to a boolean and
// skips the other types.
func takeApart(what string, b []byte) (parts, *Refusal) {
	p := parts{}
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil, bad("%s is not protobuf", what)
		}
		b = b[n:]
		switch typ {
		case protowire.BytesType:
			v, n := protowire.ConsumeBytes(b)
			if n < 0 {
				return nil, bad("%s is not protobuf", what)
			}
			p[num], b = append(p[num], v), b[n:]
		case protowire.VarintType:
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return nil, bad("%s is not protobuf", what)
			}
			truth := []byte(nil)
			if v != 0 {
				truth = []byte{1}
			}
			p[num], b = append(p[num], truth), b[n:]
		default:
			if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
				return nil, bad("%s is not protobuf", what)
			}
			b = b[n:]
		}
	}
	return p, nil
}

// one returns a field that may occur at most once; nil if it is absent.
func (p parts) one(what string, num protowire.Number) ([]byte, *Refusal) {
	if len(p[num]) > 1 {
		return nil, bad("%s is in the body twice", what)
	}
	if len(p[num]) == 0 {
		return nil, nil
	}
	if v := p[num][0]; v != nil {
		return v, nil
	}
	return []byte{}, nil
}

// slot is a field of a message and the variable that receives its text.
type slot struct {
	num  protowire.Number
	name string
	to   *string
}

func (p parts) texts(slots ...slot) *Refusal {
	for _, s := range slots {
		v, refusal := p.one(s.name, s.num)
		if refusal != nil {
			return refusal
		}
		if !utf8.Valid(v) {
			return bad("%s is not UTF-8", s.name)
		}
		*s.to = string(v)
	}
	return nil
}

// message parses a field that is itself a message; nil if it is absent.
func (p parts) message(what string, num protowire.Number) (parts, *Refusal) {
	v, refusal := p.one(what, num)
	if v == nil || refusal != nil {
		return nil, refusal
	}
	return takeApart(what, v)
}

// peekProtobuf reads the envelope and the fields of the object that decide its routing. The field numbers
// come from the generated.proto files of Kubernetes.
func peekProtobuf(body []byte) (*Object, *Refusal) {
	rest, ok := bytes.CutPrefix(body, magic)
	if !ok {
		return nil, bad("the body does not begin as Kubernetes' protobuf does")
	}
	envelope, refusal := takeApart("the envelope", rest)
	if refusal != nil {
		return nil, refusal
	}
	var encoding, media string
	if refusal := envelope.texts(slot{3, "contentEncoding", &encoding}, slot{4, "contentType", &media}); refusal != nil {
		return nil, refusal
	}
	if encoding != "" || media != "" && media != "application/vnd.kubernetes.protobuf" {
		return nil, refuse(http.StatusUnsupportedMediaType, "the envelope holds type %.60q in encoding %.40q, which cannot be looked into", media, encoding)
	}
	o := &Object{}
	kind, refusal := envelope.message("typeMeta", 1)
	if refusal == nil {
		refusal = kind.texts(slot{1, "apiVersion", &o.APIVersion}, slot{2, "kind", &o.Kind})
	}
	if refusal != nil {
		return nil, refusal
	}
	raw, refusal := envelope.message("raw", 2)
	if refusal == nil {
		refusal = o.protobufMetadata(raw)
	}
	if refusal == nil {
		refusal = o.protobufKind(raw)
	}
	return o, refusal
}

func (o *Object) protobufMetadata(raw parts) *Refusal {
	meta, refusal := raw.message("metadata", 1)
	if refusal != nil {
		return refusal
	}
	if refusal := meta.texts(slot{1, "name", &o.Name}, slot{2, "generateName", &o.GenerateName}, slot{3, "namespace", &o.Namespace}); refusal != nil {
		return refusal
	}
	for num, to := range map[protowire.Number]*map[string]string{11: &o.Labels, 12: &o.Annotations} {
		for _, entry := range meta[num] {
			e, refusal := takeApart("a label or annotation", entry)
			var k, v string
			if refusal == nil {
				refusal = e.texts(slot{1, "a key", &k}, slot{2, "a value", &v})
			}
			if refusal != nil {
				return refusal
			}
			if *to == nil {
				*to = map[string]string{}
			}
			if _, twice := (*to)[k]; twice {
				return bad("the label or annotation %.60q is in the body twice", k)
			}
			(*to)[k] = v
		}
	}
	for _, entry := range meta[13] {
		e, refusal := takeApart("an owner reference", entry)
		var r OwnerReference
		if refusal == nil {
			refusal = e.texts(slot{1, "kind", &r.Kind}, slot{3, "name", &r.Name}, slot{4, "uid", &r.UID}, slot{5, "apiVersion", &r.APIVersion})
		}
		if refusal != nil {
			return refusal
		}
		controller, refusal := e.one("controller", 6)
		if refusal != nil {
			return refusal
		}
		r.Controller = len(controller) > 0
		o.OwnerReferences = append(o.OwnerReferences, r)
	}
	return nil
}

func (o *Object) protobufKind(raw parts) *Refusal {
	var about protowire.Number
	switch {
	case o.Kind == "Event" && o.APIVersion == "v1":
		about = 2
	case o.Kind == "Event" && strings.HasPrefix(o.APIVersion, "events.k8s.io/"):
		about = 8
	case strings.HasPrefix(o.APIVersion, "authorization.k8s.io/"):
		return o.protobufReview(raw)
	default:
		return nil
	}
	p, refusal := raw.message("what the event is about", about)
	if p == nil || refusal != nil {
		return refusal
	}
	o.Involved = &Reference{}
	return p.texts(slot{1, "kind", &o.Involved.Kind}, slot{2, "namespace", &o.Involved.Namespace}, slot{3, "name", &o.Involved.Name},
		slot{4, "uid", &o.Involved.UID}, slot{5, "apiVersion", &o.Involved.APIVersion})
}

func (o *Object) protobufReview(raw parts) *Refusal {
	spec, refusal := raw.message("spec", 2)
	if spec == nil || refusal != nil {
		return refusal
	}
	if o.Kind == "SelfSubjectRulesReview" {
		return spec.texts(slot{1, "namespace", &o.ReviewNamespace})
	}
	p, refusal := spec.message("resourceAttributes", 1)
	if p == nil || refusal != nil {
		return refusal
	}
	a := &Attributes{}
	o.Attributes = a
	return p.texts(slot{1, "namespace", &a.Namespace}, slot{2, "verb", &a.Verb}, slot{3, "group", &a.Group}, slot{5, "resource", &a.Resource},
		slot{6, "subresource", &a.Subresource}, slot{7, "name", &a.Name})
}
