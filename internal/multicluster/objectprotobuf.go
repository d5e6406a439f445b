package multicluster

import (
	"bytes"
	"net/http"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/apiproxy/codec"
)

// protobufMagic is the prefix of every Kubernetes protobuf body. A runtime.Unknown message follows it.
var protobufMagic = []byte("k8s\x00")

// messageReader reads the messages of a body. It records the first refusal; after it, it reads only zero values.
type messageReader struct{ refusal *apiproxy.Refusal }

func (r *messageReader) refuse(format string, args ...any) {
	if r.refusal == nil {
		r.refusal = apiproxy.NewBadRequest(format, args...)
	}
}

// messageFields holds the fields of a protobuf message by number. A varint is reduced to a boolean, and the other types
// that are not length-delimited are skipped. Readers of a field that may occur only once must refuse a repeated one.
type messageFields map[protowire.Number][][]byte

// split returns the fields of a message.
func (r *messageReader) split(what string, b []byte) messageFields {
	p := messageFields{}
	m := codec.NewMessage(b)
	for m.Next() {
		switch {
		case m.Type == protowire.VarintType && m.N != 0:
			p[m.Num] = append(p[m.Num], []byte{1})
		case m.Type == protowire.VarintType || m.Type == protowire.BytesType:
			p[m.Num] = append(p[m.Num], m.Value)
		}
	}
	if m.Err != nil {
		r.refuse("%s is not protobuf", what)
	}
	return p
}

// single returns a field that may occur at most once; nil if it is absent.
func (r *messageReader) single(p messageFields, what string, num protowire.Number) []byte {
	switch {
	case len(p[num]) > 1:
		r.refuse("%s occurs twice in the body", what)
		return nil
	case len(p[num]) == 0:
		return nil
	}
	if v := p[num][0]; v != nil {
		return v
	}
	return []byte{}
}

// textSlot is a field of a message and the variable that receives its text.
type textSlot struct {
	num  protowire.Number
	name string
	to   *string
}

func (r *messageReader) texts(p messageFields, slots ...textSlot) {
	for _, s := range slots {
		v := r.single(p, s.name, s.num)
		if !utf8.Valid(v) {
			r.refuse("%s is not UTF-8", s.name)
		}
		*s.to = string(v)
	}
}

// message parses a field that is itself a message; nil if it is absent.
func (r *messageReader) message(p messageFields, what string, num protowire.Number) messageFields {
	v := r.single(p, what, num)
	if v == nil {
		return nil
	}
	return r.split(what, v)
}

// decodeProtobuf reads the envelope and the fields of the object that decide its routing. The field numbers
// come from the generated.proto files of Kubernetes.
func decodeProtobuf(body []byte) (*requestObject, error) {
	rest, ok := bytes.CutPrefix(body, protobufMagic)
	if !ok {
		return nil, apiproxy.NewBadRequest("the body does not begin like Kubernetes protobuf")
	}
	var r messageReader
	envelope := r.split("the envelope", rest)
	var encoding, media string
	r.texts(envelope, textSlot{3, "contentEncoding", &encoding}, textSlot{4, "contentType", &media})
	if r.refusal == nil && (encoding != "" || media != "" && media != "application/vnd.kubernetes.protobuf") {
		return nil, apiproxy.NewRefusal(
			http.StatusUnsupportedMediaType,
			"the envelope contains type %.60q with the encoding %.40q, which is not supported",
			media,
			encoding,
		)
	}
	o := &requestObject{}
	r.texts(r.message(envelope, "typeMeta", 1), textSlot{1, "apiVersion", &o.APIVersion}, textSlot{2, "kind", &o.Kind})
	raw := r.message(envelope, "raw", 2)
	r.metadata(o, r.message(raw, "metadata", 1))
	r.kind(o, raw)
	if r.refusal != nil {
		return nil, r.refusal
	}
	return o, nil
}

func (r *messageReader) metadata(o *requestObject, meta messageFields) {
	r.texts(meta, textSlot{1, "name", &o.Name}, textSlot{2, "generateName", &o.GenerateName}, textSlot{3, "namespace", &o.Namespace})
	for num, to := range map[protowire.Number]*map[string]string{11: &o.Labels, 12: &o.Annotations} {
		for _, entry := range meta[num] {
			var k, v string
			r.texts(r.split("a label or annotation", entry), textSlot{1, "a key", &k}, textSlot{2, "a value", &v})
			if *to == nil {
				*to = map[string]string{}
			}
			if _, twice := (*to)[k]; twice {
				r.refuse("the label or annotation %.60q occurs twice in the body", k)
			}
			(*to)[k] = v
		}
	}
	for _, entry := range meta[13] {
		e := r.split("an owner reference", entry)
		var ref ownerReference
		r.texts(
			e,
			textSlot{1, "kind", &ref.Kind},
			textSlot{3, "name", &ref.Name},
			textSlot{4, "uid", &ref.UID},
			textSlot{5, "apiVersion", &ref.APIVersion},
		)
		ref.Controller = len(r.single(e, "controller", 6)) > 0
		o.OwnerReferences = append(o.OwnerReferences, ref)
	}
}

// kind reads the fields that only some kinds have.
func (r *messageReader) kind(o *requestObject, raw messageFields) {
	var about protowire.Number
	switch {
	case o.Kind == "Event" && o.APIVersion == "v1":
		about = 2
	case o.Kind == "Event" && strings.HasPrefix(o.APIVersion, "events.k8s.io/"):
		about = 8
	case strings.HasPrefix(o.APIVersion, "authorization.k8s.io/"):
		r.review(o, r.message(raw, "spec", 2))
		return
	default:
		return
	}
	if p := r.message(raw, "the object of the event", about); p != nil {
		ref := &objectReference{}
		o.InvolvedObject = ref
		r.texts(p, textSlot{1, "kind", &ref.Kind}, textSlot{2, "namespace", &ref.Namespace}, textSlot{3, "name", &ref.Name},
			textSlot{4, "uid", &ref.UID}, textSlot{5, "apiVersion", &ref.APIVersion})
	}
}

func (r *messageReader) review(o *requestObject, spec messageFields) {
	if o.Kind == "SelfSubjectRulesReview" {
		r.texts(spec, textSlot{1, "namespace", &o.ReviewNamespace})
		return
	}
	if p := r.message(spec, "resourceAttributes", 1); p != nil {
		a := &reviewAttributes{}
		o.Attributes = a
		r.texts(
			p,
			textSlot{1, "namespace", &a.Namespace},
			textSlot{2, "verb", &a.Verb},
			textSlot{3, "group", &a.Group},
			textSlot{5, "resource", &a.Resource},
			textSlot{6, "subresource", &a.Subresource},
			textSlot{7, "name", &a.Name},
		)
	}
}
