package multicluster

import (
	"bytes"
	"net/http"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tailplane/tailplane/internal/apiproxy"
)

// protobufMagic is the prefix of every Kubernetes protobuf body. A runtime.Unknown message follows it.
var protobufMagic = []byte("k8s\x00")

// messageFields holds the fields of a protobuf message by number. Readers of a field that may occur only once must
// refuse a repeated one.
type messageFields map[protowire.Number][][]byte

// splitMessage reads the length-delimited and varint fields of a message. It reduces a varint to a boolean and
// skips the other types.
func splitMessage(what string, b []byte) (messageFields, *apiproxy.Refusal) {
	p := messageFields{}
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil, apiproxy.NewBadRequest("%s is not protobuf", what)
		}
		b = b[n:]
		switch typ {
		case protowire.BytesType:
			v, n := protowire.ConsumeBytes(b)
			if n < 0 {
				return nil, apiproxy.NewBadRequest("%s is not protobuf", what)
			}
			p[num], b = append(p[num], v), b[n:]
		case protowire.VarintType:
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return nil, apiproxy.NewBadRequest("%s is not protobuf", what)
			}
			truth := []byte(nil)
			if v != 0 {
				truth = []byte{1}
			}
			p[num], b = append(p[num], truth), b[n:]
		default:
			if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
				return nil, apiproxy.NewBadRequest("%s is not protobuf", what)
			}
			b = b[n:]
		}
	}
	return p, nil
}

// single returns a field that may occur at most once; nil if it is absent.
func (p messageFields) single(what string, num protowire.Number) ([]byte, *apiproxy.Refusal) {
	if len(p[num]) > 1 {
		return nil, apiproxy.NewBadRequest("%s occurs twice in the body", what)
	}
	if len(p[num]) == 0 {
		return nil, nil
	}
	if v := p[num][0]; v != nil {
		return v, nil
	}
	return []byte{}, nil
}

// textSlot is a field of a message and the variable that receives its text.
type textSlot struct {
	num  protowire.Number
	name string
	to   *string
}

func (p messageFields) texts(slots ...textSlot) *apiproxy.Refusal {
	for _, s := range slots {
		v, refusal := p.single(s.name, s.num)
		if refusal != nil {
			return refusal
		}
		if !utf8.Valid(v) {
			return apiproxy.NewBadRequest("%s is not UTF-8", s.name)
		}
		*s.to = string(v)
	}
	return nil
}

// message parses a field that is itself a message; nil if it is absent.
func (p messageFields) message(what string, num protowire.Number) (messageFields, *apiproxy.Refusal) {
	v, refusal := p.single(what, num)
	if v == nil || refusal != nil {
		return nil, refusal
	}
	return splitMessage(what, v)
}

// decodeProtobuf reads the envelope and the fields of the object that decide its routing. The field numbers
// come from the generated.proto files of Kubernetes.
func decodeProtobuf(body []byte) (*requestObject, *apiproxy.Refusal) {
	rest, ok := bytes.CutPrefix(body, protobufMagic)
	if !ok {
		return nil, apiproxy.NewBadRequest("the body does not begin like Kubernetes protobuf")
	}
	envelope, refusal := splitMessage("the envelope", rest)
	if refusal != nil {
		return nil, refusal
	}
	var encoding, media string
	if refusal := envelope.texts(textSlot{3, "contentEncoding", &encoding}, textSlot{4, "contentType", &media}); refusal != nil {
		return nil, refusal
	}
	if encoding != "" || media != "" && media != "application/vnd.kubernetes.protobuf" {
		return nil, apiproxy.NewRefusal(http.StatusUnsupportedMediaType, "the envelope contains type %.60q with the encoding %.40q, which is not supported", media, encoding)
	}
	o := &requestObject{}
	kind, refusal := envelope.message("typeMeta", 1)
	if refusal == nil {
		refusal = kind.texts(textSlot{1, "apiVersion", &o.APIVersion}, textSlot{2, "kind", &o.Kind})
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

func (o *requestObject) protobufMetadata(raw messageFields) *apiproxy.Refusal {
	meta, refusal := raw.message("metadata", 1)
	if refusal != nil {
		return refusal
	}
	if refusal := meta.texts(textSlot{1, "name", &o.Name}, textSlot{2, "generateName", &o.GenerateName}, textSlot{3, "namespace", &o.Namespace}); refusal != nil {
		return refusal
	}
	for num, to := range map[protowire.Number]*map[string]string{11: &o.Labels, 12: &o.Annotations} {
		for _, entry := range meta[num] {
			e, refusal := splitMessage("a label or annotation", entry)
			var k, v string
			if refusal == nil {
				refusal = e.texts(textSlot{1, "a key", &k}, textSlot{2, "a value", &v})
			}
			if refusal != nil {
				return refusal
			}
			if *to == nil {
				*to = map[string]string{}
			}
			if _, twice := (*to)[k]; twice {
				return apiproxy.NewBadRequest("the label or annotation %.60q occurs twice in the body", k)
			}
			(*to)[k] = v
		}
	}
	for _, entry := range meta[13] {
		e, refusal := splitMessage("an owner reference", entry)
		var r ownerReference
		if refusal == nil {
			refusal = e.texts(textSlot{1, "kind", &r.Kind}, textSlot{3, "name", &r.Name}, textSlot{4, "uid", &r.UID}, textSlot{5, "apiVersion", &r.APIVersion})
		}
		if refusal != nil {
			return refusal
		}
		controller, refusal := e.single("controller", 6)
		if refusal != nil {
			return refusal
		}
		r.Controller = len(controller) > 0
		o.OwnerReferences = append(o.OwnerReferences, r)
	}
	return nil
}

func (o *requestObject) protobufKind(raw messageFields) *apiproxy.Refusal {
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
	p, refusal := raw.message("the object of the event", about)
	if p == nil || refusal != nil {
		return refusal
	}
	o.InvolvedObject = &objectReference{}
	return p.texts(textSlot{1, "kind", &o.InvolvedObject.Kind}, textSlot{2, "namespace", &o.InvolvedObject.Namespace}, textSlot{3, "name", &o.InvolvedObject.Name},
		textSlot{4, "uid", &o.InvolvedObject.UID}, textSlot{5, "apiVersion", &o.InvolvedObject.APIVersion})
}

func (o *requestObject) protobufReview(raw messageFields) *apiproxy.Refusal {
	spec, refusal := raw.message("spec", 2)
	if spec == nil || refusal != nil {
		return refusal
	}
	if o.Kind == "SelfSubjectRulesReview" {
		return spec.texts(textSlot{1, "namespace", &o.ReviewNamespace})
	}
	p, refusal := spec.message("resourceAttributes", 1)
	if p == nil || refusal != nil {
		return refusal
	}
	a := &reviewAttributes{}
	o.Attributes = a
	return p.texts(textSlot{1, "namespace", &a.Namespace}, textSlot{2, "verb", &a.Verb}, textSlot{3, "group", &a.Group}, textSlot{5, "resource", &a.Resource},
		textSlot{6, "subresource", &a.Subresource}, textSlot{7, "name", &a.Name})
}
