package multicluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tailplane/tailplane/internal/apiproxy"
)

// maxBody is the largest request body that the adapter inspects, in bytes. It is the API server's default
// limit.
const maxBody = 3 << 20

// maxYAML is the largest YAML body in bytes that is not JSON. A YAML node tree needs up to a hundred times
// the size of its text, and clusters do not store larger objects.
const maxYAML = 1 << 20

// requestObject holds the fields of a request body that decide where a new object is created.
type requestObject struct {
	APIVersion, Kind              string
	Namespace, Name, GenerateName string
	Labels, Annotations           map[string]string
	OwnerReferences               []ownerReference
	InvolvedObject                *objectReference  // of an Event: the object that it is about
	Attributes                    *reviewAttributes // of an access review; nil: it has no resource attributes
	ReviewNamespace               string            // of a SelfSubjectRulesReview
}

// ownerReference is an entry of metadata.ownerReferences.
type ownerReference struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
	Controller bool   `json:"controller"`
}

// objectReference names an object.
type objectReference struct {
	APIVersion, Kind, Namespace, Name, UID string
}

// anchor returns the object that must be in the same cluster as o. For an Event it is the involved object.
// Otherwise it is the controlling owner, or the first owner if none controls. An owner reference has no
// namespace: its namespace is that of the request.
func (o *requestObject) anchor() (objectReference, bool) {
	if o.InvolvedObject != nil {
		return *o.InvolvedObject, o.InvolvedObject.Name != ""
	}
	if len(o.OwnerReferences) == 0 {
		return objectReference{}, false
	}
	i := max(0, slices.IndexFunc(o.OwnerReferences, func(r ownerReference) bool { return r.Controller }))
	r := o.OwnerReferences[i]
	return objectReference{APIVersion: r.APIVersion, Kind: r.Kind, Name: r.Name, UID: r.UID}, true
}

// parseObject reads the fields of a body that decide its routing, without changing the body. It reads JSON, YAML and
// Kubernetes protobuf as strictly as the API server. It refuses a duplicate field, because two readers may
// each use a different one (AD-04). The error is a *[apiproxy.Refusal].
func parseObject(body []byte, contentType, contentEncoding string) (*requestObject, error) {
	if len(body) > maxBody {
		return nil, apiproxy.NewRefusal(http.StatusRequestEntityTooLarge, "the body is larger than %d bytes", maxBody)
	}
	if contentEncoding != "" && contentEncoding != "identity" {
		return nil, apiproxy.NewRefusal(http.StatusUnsupportedMediaType, "a body with the encoding %.40q is not supported", contentEncoding)
	}
	media := "application/json" // the API server's default for a body without a Content-Type
	if contentType != "" {
		var err error
		if media, _, err = mime.ParseMediaType(contentType); err != nil {
			return nil, apiproxy.NewRefusal(http.StatusUnsupportedMediaType, "the Content-Type is invalid")
		}
	}
	switch media {
	case "application/json", "application/merge-patch+json", "application/strategic-merge-patch+json":
		return decodeJSON(body)
	case "application/yaml", "application/apply-patch+yaml":
		if t := bytes.TrimLeft(body, " \t\r\n"); len(t) > 0 && t[0] == '{' && json.Valid(body) {
			return decodeJSON(body) // the result is the same, and JSON parsing needs less memory
		}
		if len(body) > maxYAML {
			return nil, apiproxy.NewRefusal(
				http.StatusRequestEntityTooLarge,
				"the body is YAML with more than %d bytes; send JSON",
				maxYAML,
			)
		}
		b, err := jsonFromYAML(body)
		if err != nil {
			return nil, err
		}
		return decodeJSON(b)
	case "application/vnd.kubernetes.protobuf":
		return decodeProtobuf(body)
	}
	return nil, apiproxy.NewRefusal(http.StatusUnsupportedMediaType, "a body of type %.60q is not supported; send JSON", media)
}

func decodeJSON(body []byte) (*requestObject, error) {
	o, err := readObjectJSON(body)
	if err != nil {
		return nil, apiproxy.NewBadRequest("%v", err)
	}
	return o, nil
}

func readObjectJSON(body []byte) (*requestObject, error) {
	if !json.Valid(body) {
		return nil, errors.New("the body is not JSON")
	}
	o := &requestObject{}
	var spec []byte
	err := jsonTexts(
		"the object",
		body,
		map[string]*string{"apiVersion": &o.APIVersion, "kind": &o.Kind},
		func(key string, value []byte) error {
			switch key {
			case "metadata":
				return o.metadata(value)
			case "spec":
				spec = value
			case "involvedObject", "regarding":
				o.InvolvedObject = &objectReference{}
				return o.InvolvedObject.parse(key, value)
			}
			return nil
		},
	)
	if err == nil && spec != nil && strings.HasPrefix(o.APIVersion, "authorization.k8s.io/") {
		err = o.reviewSpec(spec)
	}
	return o, err
}

func (o *requestObject) metadata(b []byte) error {
	texts := map[string]*string{"name": &o.Name, "generateName": &o.GenerateName, "namespace": &o.Namespace}
	return jsonTexts("metadata", b, texts, func(key string, value []byte) error {
		switch key {
		case "labels":
			return jsonTextMap(key, value, &o.Labels)
		case "annotations":
			return jsonTextMap(key, value, &o.Annotations)
		case "ownerReferences":
			return jsonItems(key, value, func(item []byte) error {
				var r ownerReference
				o.OwnerReferences = append(o.OwnerReferences, r)
				return o.OwnerReferences[len(o.OwnerReferences)-1].parse(item)
			})
		}
		return nil
	})
}

// parse sets r from a valid JSON object.
func (r *ownerReference) parse(b []byte) error {
	texts := map[string]*string{"apiVersion": &r.APIVersion, "kind": &r.Kind, "name": &r.Name, "uid": &r.UID}
	return jsonTexts("ownerReferences", b, texts, func(key string, value []byte) error {
		if key == "controller" {
			r.Controller = string(value) == "true"
		}
		return nil
	})
}

func (r *objectReference) parse(what string, b []byte) error {
	return jsonTexts(
		what,
		b,
		map[string]*string{"apiVersion": &r.APIVersion, "kind": &r.Kind, "namespace": &r.Namespace, "name": &r.Name, "uid": &r.UID},
		nil,
	)
}

func (o *requestObject) reviewSpec(b []byte) error {
	return jsonTexts("spec", b, map[string]*string{"namespace": &o.ReviewNamespace}, func(key string, value []byte) error {
		if key != "resourceAttributes" || string(value) == "null" {
			return nil
		}
		a := &reviewAttributes{}
		o.Attributes = a
		return jsonTexts(
			key,
			value,
			map[string]*string{"verb": &a.Verb, "group": &a.Group, "resource": &a.Resource, "subresource": &a.Subresource,
				"namespace": &a.Namespace, "name": &a.Name},
			nil,
		)
	})
}

// jsonFromYAML converts the fields of a YAML document that matter for routing to JSON. It keeps duplicate fields,
// so that the JSON reader refuses them.
func jsonFromYAML(body []byte) ([]byte, error) {
	d := yaml.NewDecoder(bytes.NewReader(body))
	var n, second yaml.Node
	if err := d.Decode(&n); err != nil || len(n.Content) != 1 || n.Content[0].Kind != yaml.MappingNode {
		return nil, apiproxy.NewBadRequest("the body is not a YAML mapping")
	}
	if err := d.Decode(&second); err == nil {
		return nil, apiproxy.NewBadRequest("the body is more than one YAML document")
	}
	var b bytes.Buffer
	if err := writeNodeJSON(&b, n.Content[0], true); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// writeNodeJSON writes a node as JSON. At the top level it replaces values that no reader uses by null.
func writeNodeJSON(b *bytes.Buffer, n *yaml.Node, top bool) error {
	if n.Kind == yaml.AliasNode || n.Anchor != "" || n.Style&yaml.TaggedStyle != 0 {
		return apiproxy.NewBadRequest("line %d of the body has an anchor, an alias or a tag, which are not supported", n.Line)
	}
	switch n.Kind {
	case yaml.MappingNode:
		b.WriteByte('{')
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			if key.Kind != yaml.ScalarNode || key.Tag == "!!merge" || key.Anchor != "" {
				return apiproxy.NewBadRequest("line %d of the body has a key that is not a string", key.Line)
			}
			if i > 0 {
				b.WriteByte(',')
			}
			b.Write(jsonString(key.Value))
			b.WriteByte(':')
			switch key.Value {
			case "apiVersion", "kind", "metadata", "spec", "involvedObject", "regarding":
			default:
				if top {
					b.WriteString("null")
					continue
				}
			}
			if err := writeNodeJSON(b, value, false); err != nil {
				return err
			}
		}
		b.WriteByte('}')
	case yaml.SequenceNode:
		b.WriteByte('[')
		for i, c := range n.Content {
			if i > 0 {
				b.WriteByte(',')
			}
			if err := writeNodeJSON(b, c, false); err != nil {
				return err
			}
		}
		b.WriteByte(']')
	default:
		switch n.Tag {
		case "!!str":
			b.Write(jsonString(n.Value))
		case "!!null":
			b.WriteString("null")
		case "!!bool":
			b.WriteString(strings.ToLower(n.Value))
		default:
			b.WriteByte('0') // a number; no field that matters is a number
		}
	}
	return nil
}
