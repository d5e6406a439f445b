package apiproxy

import (
	"bytes"
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tailplane/tailplane/internal/apiproxy/jsonscan"
)

// MaxBody is the largest request body that the adapter inspects, in bytes. It is the API server's default
// limit.
const MaxBody = 3 << 20

// maxYAML is the largest YAML body in bytes that is not JSON. A YAML node tree needs up to a hundred times
// the size of its text, and clusters do not store larger objects.
const maxYAML = 1 << 20

// Object holds the fields of a request body that decide where a new object is created.
type Object struct {
	APIVersion, Kind              string
	Namespace, Name, GenerateName string
	Labels, Annotations           map[string]string
	OwnerReferences               []OwnerReference
	Involved                      *Reference  // of an Event: the object that it is about
	Attributes                    *Attributes // of an access review; nil: it has no resource attributes
	ReviewNamespace               string      // of a SelfSubjectRulesReview
}

// OwnerReference is an entry of metadata.ownerReferences.
type OwnerReference struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
	Controller bool   `json:"controller"`
}

// Reference names an object.
type Reference struct {
	APIVersion, Kind, Namespace, Name, UID string
}

// Anchor returns the object that must be in the same cluster as o. For an Event it is the involved object.
// Otherwise it is the controlling owner, or the first owner if none controls. An owner reference has no
// namespace: its namespace is that of the request.
func (o *Object) Anchor() (Reference, bool) {
	if o.Involved != nil {
		return *o.Involved, o.Involved.Name != ""
	}
	if len(o.OwnerReferences) == 0 {
		return Reference{}, false
	}
	i := max(0, slices.IndexFunc(o.OwnerReferences, func(r OwnerReference) bool { return r.Controller }))
	r := o.OwnerReferences[i]
	return Reference{APIVersion: r.APIVersion, Kind: r.Kind, Name: r.Name, UID: r.UID}, true
}

// Peek reads the fields of a body that decide its routing, without changing the body. It reads JSON, YAML and
// Kubernetes protobuf as strictly as the API server. It refuses a duplicate field, because two readers may
// each use a different one (AD-04). The error is a *[Refusal].
func Peek(body []byte, contentType, contentEncoding string) (*Object, error) {
	o, refusal := peek(body, contentType, contentEncoding)
	if refusal != nil {
		return nil, refusal
	}
	return o, nil
}

func peek(body []byte, contentType, contentEncoding string) (*Object, *Refusal) {
	if len(body) > MaxBody {
		return nil, refuse(http.StatusRequestEntityTooLarge, "the body is larger than %d bytes", MaxBody)
	}
	if contentEncoding != "" && contentEncoding != "identity" {
		return nil, refuse(http.StatusUnsupportedMediaType, "a body in encoding %.40q cannot be looked into", contentEncoding)
	}
	media := "application/json" // the API server's default for a body without a Content-Type
	if contentType != "" {
		var err error
		if media, _, err = mime.ParseMediaType(contentType); err != nil {
			return nil, refuse(http.StatusUnsupportedMediaType, "the Content-Type does not parse")
		}
	}
	switch media {
	case "application/json", "application/merge-patch+json", "application/strategic-merge-patch+json":
		return peekJSON(body)
	case "application/yaml", "application/apply-patch+yaml":
		if t := bytes.TrimLeft(body, " \t\r\n"); len(t) > 0 && t[0] == '{' && json.Valid(body) {
			return peekJSON(body) // the result is the same, and JSON parsing needs less memory
		}
		if len(body) > maxYAML {
			return nil, refuse(http.StatusRequestEntityTooLarge, "the body is YAML of more than %d bytes; send JSON", maxYAML)
		}
		b, refusal := jsonOf(body)
		if refusal != nil {
			return nil, refusal
		}
		return peekJSON(b)
	case "application/vnd.kubernetes.protobuf":
		return peekProtobuf(body)
	}
	return nil, refuse(http.StatusUnsupportedMediaType, "a body of type %.60q cannot be looked into; send JSON", media)
}

func peekJSON(body []byte) (*Object, *Refusal) {
	o, err := readJSON(body)
	if err != nil {
		return nil, bad("%v", err)
	}
	return o, nil
}

func readJSON(body []byte) (*Object, error) {
	if !json.Valid(body) {
		return nil, errors.New("the body is not JSON")
	}
	o := &Object{}
	var spec []byte
	err := jsonscan.Members("the object", body, func(key string, value []byte) error {
		switch key {
		case "apiVersion":
			return jsonscan.Text(key, value, &o.APIVersion)
		case "kind":
			return jsonscan.Text(key, value, &o.Kind)
		case "metadata":
			return o.metadata(value)
		case "spec":
			spec = value
		case "involvedObject", "regarding":
			o.Involved = &Reference{}
			return o.Involved.fill(key, value)
		}
		return nil
	})
	if err == nil && spec != nil && strings.HasPrefix(o.APIVersion, "authorization.k8s.io/") {
		err = o.reviewSpec(spec)
	}
	return o, err
}

func (o *Object) metadata(b []byte) error {
	return jsonscan.Members("metadata", b, func(key string, value []byte) error {
		switch key {
		case "name":
			return jsonscan.Text(key, value, &o.Name)
		case "generateName":
			return jsonscan.Text(key, value, &o.GenerateName)
		case "namespace":
			return jsonscan.Text(key, value, &o.Namespace)
		case "labels":
			return jsonscan.Texts(key, value, &o.Labels)
		case "annotations":
			return jsonscan.Texts(key, value, &o.Annotations)
		case "ownerReferences":
			return jsonscan.Items(key, value, func(item []byte) error {
				var r OwnerReference
				o.OwnerReferences = append(o.OwnerReferences, r)
				return o.OwnerReferences[len(o.OwnerReferences)-1].Read(item)
			})
		}
		return nil
	})
}

// Read sets r from a valid JSON object.
func (r *OwnerReference) Read(b []byte) error {
	return jsonscan.Members("ownerReferences", b, func(key string, value []byte) error {
		switch key {
		case "apiVersion":
			return jsonscan.Text(key, value, &r.APIVersion)
		case "kind":
			return jsonscan.Text(key, value, &r.Kind)
		case "name":
			return jsonscan.Text(key, value, &r.Name)
		case "uid":
			return jsonscan.Text(key, value, &r.UID)
		case "controller":
			r.Controller = string(value) == "true"
		}
		return nil
	})
}

func (r *Reference) fill(what string, b []byte) error {
	return jsonscan.Members(what, b, func(key string, value []byte) error {
		switch key {
		case "apiVersion":
			return jsonscan.Text(key, value, &r.APIVersion)
		case "kind":
			return jsonscan.Text(key, value, &r.Kind)
		case "namespace":
			return jsonscan.Text(key, value, &r.Namespace)
		case "name":
			return jsonscan.Text(key, value, &r.Name)
		case "uid":
			return jsonscan.Text(key, value, &r.UID)
		}
		return nil
	})
}

func (o *Object) reviewSpec(b []byte) error {
	return jsonscan.Members("spec", b, func(key string, value []byte) error {
		switch key {
		case "namespace":
			return jsonscan.Text(key, value, &o.ReviewNamespace)
		case "resourceAttributes":
			if string(value) == "null" {
				return nil
			}
			o.Attributes = &Attributes{}
			return jsonscan.Members(key, value, func(key string, value []byte) error {
				a := o.Attributes
				to, known := map[string]*string{"verb": &a.Verb, "group": &a.Group, "resource": &a.Resource, "subresource": &a.Subresource,
					"namespace": &a.Namespace, "name": &a.Name}[key]
				if !known {
					return nil
				}
				return jsonscan.Text(key, value, to)
			})
		}
		return nil
	})
}

// jsonOf converts the fields of a YAML document that matter for routing to JSON. It keeps duplicate fields,
// so that the JSON reader refuses them.
func jsonOf(body []byte) ([]byte, *Refusal) {
	d := yaml.NewDecoder(bytes.NewReader(body))
	var n, second yaml.Node
	if err := d.Decode(&n); err != nil || len(n.Content) != 1 || n.Content[0].Kind != yaml.MappingNode {
		return nil, bad("the body is not a YAML mapping")
	}
	if err := d.Decode(&second); err == nil {
		return nil, bad("the body is more than one YAML document")
	}
	var b bytes.Buffer
	if refusal := writeJSON(&b, n.Content[0], true); refusal != nil {
		return nil, refusal
	}
	return b.Bytes(), nil
}

// writeJSON writes a node as JSON. At the top level it replaces values that no reader uses by null.
func writeJSON(b *bytes.Buffer, n *yaml.Node, top bool) *Refusal {
	if n.Kind == yaml.AliasNode || n.Anchor != "" || n.Style&yaml.TaggedStyle != 0 {
		return bad("line %d of the body has an anchor, an alias or a tag, which are not looked into", n.Line)
	}
	switch n.Kind {
	case yaml.MappingNode:
		b.WriteByte('{')
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			if key.Kind != yaml.ScalarNode || key.Tag == "!!merge" || key.Anchor != "" {
				return bad("line %d of the body has a key that is not a text", key.Line)
			}
			if i > 0 {
				b.WriteByte(',')
			}
			writeText(b, key.Value)
			b.WriteByte(':')
			switch key.Value {
			case "apiVersion", "kind", "metadata", "spec", "involvedObject", "regarding":
			default:
				if top {
					b.WriteString("null")
					continue
				}
			}
			if refusal := writeJSON(b, value, false); refusal != nil {
				return refusal
			}
		}
		b.WriteByte('}')
	case yaml.SequenceNode:
		b.WriteByte('[')
		for i, c := range n.Content {
			if i > 0 {
				b.WriteByte(',')
			}
			if refusal := writeJSON(b, c, false); refusal != nil {
				return refusal
			}
		}
		b.WriteByte(']')
	default:
		switch n.Tag {
		case "!!str":
			writeText(b, n.Value)
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

func writeText(b *bytes.Buffer, s string) {
	out, _ := json.Marshal(s) // marshalling a string cannot fail
	b.Write(out)
}
