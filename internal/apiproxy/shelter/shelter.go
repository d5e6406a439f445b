// Package shelter hides owner references from the garbage collectors of clusters that do not have the owner,
// and shows them to clients. It loses nothing: a client reads back what it wrote, and a request that cannot
// be rewritten is refused.
package shelter

import (
	"bytes"
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/apiproxy/jsonscan"
	"github.com/tailplane/tailplane/internal/apiproxy/rewrite"
)

// Key is the annotation that stores the owner references that the cluster's garbage collector must not see.
const Key = "mca.tailplane.dev/owner-references"

// Foreign reports whether the owner does not exist in the cluster that receives the write.
type Foreign func(apiproxy.OwnerReference) (bool, error)

// sheltered is a reference in the annotation, with its index in the original list.
type sheltered struct {
	At        int             `json:"at"`
	Reference json.RawMessage `json:"reference"`
}

// Write moves foreign owner references of a write into an annotation, so that the cluster's garbage collector
// does not treat the object as an orphan (AD-11). [Read] reverses it. The body is a whole object in JSON or
// Kubernetes protobuf, or a patch. Write refuses a body that it cannot rewrite and returns a body without
// owner references unchanged. The error is a *[apiproxy.Refusal], or that of foreign.
func Write(body []byte, contentType string, foreign Foreign) ([]byte, error) {
	var failed error
	out, err := write(body, contentType, func(r apiproxy.OwnerReference) (yes bool, err error) {
		yes, failed = foreign(r)
		return yes, failed
	})
	switch {
	case failed != nil:
		return nil, failed
	case err == nil:
		return out, nil
	}
	if r, ok := errors.AsType[*apiproxy.Refusal](err); ok {
		return nil, r
	}
	return nil, &apiproxy.Refusal{Status: http.StatusBadRequest, Reason: "BadRequest", Message: err.Error()}
}

// unsupported returns the refusal of a body whose type cannot be rewritten.
func unsupported(message string) error {
	return &apiproxy.Refusal{Status: http.StatusUnsupportedMediaType, Reason: "UnsupportedMediaType", Message: message}
}

func write(body []byte, contentType string, foreign Foreign) ([]byte, error) {
	media, _, err := mime.ParseMediaType(contentType)
	if contentType != "" && err != nil {
		return nil, unsupported("the Content-Type does not parse")
	}
	switch {
	case media == "application/vnd.kubernetes.protobuf":
		return shelterProtobuf(body, foreign)
	case json.Valid(body):
	case media == "application/yaml", media == "application/apply-patch+yaml":
		return body, plainYAML(body, media)
	default:
		return nil, errors.New("the body is not JSON")
	}
	switch media {
	case "", "application/json", "application/yaml", "application/apply-patch+yaml", "application/merge-patch+json":
		return shelterObject(body, media == "application/merge-patch+json", foreign)
	case "application/strategic-merge-patch+json":
		return body, plainPatch(body)
	case "application/json-patch+json":
		return body, plainOperations(body)
	}
	return nil, unsupported("objects of this rule are rewritten, and only JSON can be")
}

// noOwners returns the refusal of a patch that cannot be rewritten.
func noOwners(what string) error {
	return &apiproxy.Refusal{Status: http.StatusUnprocessableEntity, Reason: "Invalid", Message: what + " changes owner references, which are sheltered from this cluster's garbage collector; update the object, or use a merge patch with the whole list"}
}

// plainYAML refuses YAML with owner references, because YAML is not rewritten.
func plainYAML(body []byte, media string) error {
	o, err := apiproxy.Peek(body, media, "")
	if err != nil {
		return err
	}
	if _, noted := o.Annotations[Key]; noted || len(o.OwnerReferences) > 0 {
		return unsupported("an object with owner references is rewritten by this rule, and YAML cannot be; send JSON")
	}
	return nil
}

// plainPatch refuses a strategic merge patch of owner references, because the server would merge it without
// the hidden ones. It also refuses directives that could remove the annotation.
func plainPatch(body []byte) error {
	replaces := func(key string) bool { return key == "$patch" || key == "$retainKeys" }
	return jsonscan.Members("the patch", body, func(key string, value []byte) error {
		switch {
		case replaces(key):
			return noOwners("a patch that replaces the object")
		case key != "metadata":
			return nil
		}
		return jsonscan.Members(key, value, func(key string, value []byte) error {
			switch {
			case strings.Contains(key, "ownerReferences"): // directives contain the name too
				return noOwners("a strategic merge patch")
			case replaces(key), key == "annotations" && string(value) == "null":
				return noOwners("a patch that replaces metadata")
			case key != "annotations":
				return nil
			}
			return jsonscan.Members(key, value, func(key string, _ []byte) error {
				if replaces(key) || key == Key {
					return noOwners("a patch of all annotations")
				}
				return nil
			})
		})
	})
}

func plainOperations(body []byte) error {
	return jsonscan.Items("the patch", body, func(op []byte) error {
		return jsonscan.Members("an operation", op, func(key string, value []byte) error {
			var path string
			if key != "path" && key != "from" {
				return nil
			}
			if err := jsonscan.Text(key, value, &path); err != nil {
				return err
			}
			const owners, annotation = "/metadata/ownerReferences", "/metadata/annotations/mca.tailplane.dev~1owner-references"
			switch {
			case path == "", path == "/metadata", path == "/metadata/annotations", path == annotation,
				path == owners, strings.HasPrefix(path, owners+"/"):
				return noOwners("a JSON patch")
			}
			return nil
		})
	})
}

// shelterObject rewrites a whole object or a merge patch. If a list has no foreign references, a patch
// removes the annotation, and a whole object has none.
func shelterObject(body []byte, patch bool, foreign Foreign) ([]byte, error) {
	top, err := rewrite.Take("the object", body)
	if err != nil {
		return nil, err
	}
	meta, err := rewrite.Take("metadata", top.Get("metadata"))
	if err != nil {
		return nil, err
	}
	annotations := meta.Get("annotations")
	if patch && string(annotations) == "null" {
		return nil, noOwners("a patch that removes all annotations")
	}
	notes, err := rewrite.Take("annotations", annotations)
	if err != nil {
		return nil, err
	}
	owners := meta.Get("ownerReferences")
	if owners == nil && notes.Get(Key) == nil {
		return body, nil
	}
	var keep [][]byte
	var moved []sheltered
	at := 0
	err = items(owners, func(item []byte) error {
		var r apiproxy.OwnerReference
		if err := r.Read(item); err != nil {
			return err
		}
		far, err := foreign(r)
		if err != nil {
			return err
		}
		if far {
			moved = append(moved, sheltered{at, item})
		} else {
			keep = append(keep, item)
		}
		at++
		return nil
	})
	if err != nil {
		return nil, err
	}
	var note []byte
	switch {
	case len(moved) > 0:
		text, err := noteOf(moved)
		if err != nil {
			return nil, err
		}
		note = rewrite.Text(text)
		meta = meta.With("ownerReferences", rewrite.Array(keep))
	case patch && owners != nil:
		note = []byte("null")
	}
	notes = notes.With(Key, note) // drop an annotation that the client set itself
	if len(notes) > 0 || annotations != nil {
		meta = meta.With("annotations", notes.JSON())
	}
	return top.With("metadata", meta.JSON()).JSON(), nil
}

// noteOf returns the value of the annotation.
func noteOf(moved []sheltered) (string, error) {
	b, err := json.Marshal(moved)
	if err != nil {
		return "", errors.New("ownerReferences do not parse")
	}
	return string(b), nil
}

// items calls f for each owner reference; nil has none.
func items(owners []byte, f func(item []byte) error) error {
	if owners == nil {
		return nil
	}
	return jsonscan.Items("ownerReferences", owners, f)
}

// Read restores the hidden owner references of a JSON object in their original order. It returns an object
// without any, or with an invalid annotation, unchanged.
func Read(body []byte) []byte {
	if !bytes.Contains(body, []byte(Key)) || !json.Valid(body) {
		return body
	}
	top, err := rewrite.Take("the object", body)
	if err != nil {
		return body
	}
	meta, err := rewrite.Take("metadata", top.Get("metadata"))
	if err != nil {
		return body
	}
	notes, err := rewrite.Take("annotations", meta.Get("annotations"))
	note := notes.Get(Key)
	if err != nil || note == nil {
		return body
	}
	var s string
	var moved []sheltered
	if json.Unmarshal(note, &s) != nil || json.Unmarshal([]byte(s), &moved) != nil {
		return body
	}
	var all [][]byte
	if err := items(meta.Get("ownerReferences"), func(item []byte) error {
		all = append(all, item)
		return nil
	}); err != nil {
		return body
	}
	for _, m := range moved {
		all = slices.Insert(all, max(0, min(m.At, len(all))), []byte(m.Reference))
	}
	meta = meta.With("ownerReferences", rewrite.Array(all))
	if notes = notes.With(Key, nil); len(notes) > 0 {
		meta = meta.With("annotations", notes.JSON())
	} else {
		meta = meta.With("annotations", nil)
	}
	return top.With("metadata", meta.JSON()).JSON()
}
