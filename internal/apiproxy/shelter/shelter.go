// Package shelter keeps owner references from the garbage collectors of clusters
// that do not have the owner, and shows them to clients. It keeps the law that
// nothing is lost: a client reads back what it wrote, and what cannot be
// rewritten is refused.
package shelter

import (
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/apiproxy/jsonscan"
)

// Key is the annotation that keeps the owner references which the
// cluster's garbage collector must not see.
const Key = "mca.tailplane.dev/owner-references"

// A sheltered is a reference in the annotation, and where it was in the list.
type sheltered struct {
	At        int             `json:"at"`
	Reference json.RawMessage `json:"reference"`
}

// Write moves the owner references that are foreign to a cluster from what is
// written there into an annotation, so that its garbage collector does not take
// the object for an orphan (AD-11). [Read] is its inverse. The body is a whole
// object, or a patch, in JSON; what cannot be rewritten is refused. A body
// without owner references is returned as it came. The error is a *[apiproxy.Refusal].
func Write(body []byte, contentType string, foreign func(apiproxy.OwnerReference) bool) ([]byte, error) {
	out, err := write(body, contentType, foreign)
	if err == nil {
		return out, nil
	}
	if r, ok := errors.AsType[*apiproxy.Refusal](err); ok {
		return nil, r
	}
	return nil, &apiproxy.Refusal{Status: http.StatusBadRequest, Reason: "BadRequest", Message: err.Error()}
}

// unsupported refuses a body that cannot be rewritten for its type.
func unsupported(message string) error {
	return &apiproxy.Refusal{Status: http.StatusUnsupportedMediaType, Reason: "UnsupportedMediaType", Message: message}
}

func write(body []byte, contentType string, foreign func(apiproxy.OwnerReference) bool) ([]byte, error) {
	media, _, err := mime.ParseMediaType(contentType)
	if contentType != "" && err != nil {
		return nil, unsupported("the Content-Type does not parse")
	}
	if !json.Valid(body) {
		if media == "application/apply-patch+yaml" {
			return nil, unsupported("objects of this rule are rewritten, and only JSON can be; JSON is YAML too")
		}
		return nil, errors.New("the body is not JSON")
	}
	switch media {
	case "", "application/json", "application/apply-patch+yaml", "application/merge-patch+json":
		return shelterObject(body, media == "application/merge-patch+json", foreign)
	case "application/strategic-merge-patch+json":
		return body, plainPatch(body)
	case "application/json-patch+json":
		return body, plainOperations(body)
	}
	return nil, unsupported("objects of this rule are rewritten, and only JSON can be")
}

// noOwners refuses a patch that cannot be rewritten.
func noOwners(what string) error {
	return &apiproxy.Refusal{Status: http.StatusUnprocessableEntity, Reason: "Invalid", Message: what + " changes owner references, which are sheltered from this cluster's garbage collector; update the object, or use a merge patch with the whole list"}
}

// plainPatch refuses a strategic patch of owner references: it would be merged
// with a list that is not where the server looks.
func plainPatch(body []byte) error {
	return inMetadata(body, func(key string, value []byte) error {
		if key == "ownerReferences" || key == "$setElementOrder/ownerReferences" || key == "$deleteFromPrimitiveList/ownerReferences" {
			return noOwners("a strategic merge patch")
		}
		if key == "$patch" || key == "annotations" && (string(value) == "null" || strings.Contains(string(value), `"$patch"`)) {
			return noOwners("a patch that replaces metadata")
		}
		return nil
	})
}

func inMetadata(body []byte, f func(key string, value []byte) error) error {
	return jsonscan.Members("the object", body, func(key string, value []byte) error {
		if key != "metadata" {
			return nil
		}
		return jsonscan.Members(key, value, f)
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

// A member is one member of a JSON object, as it stands there.
type member struct {
	key   string
	value []byte
}

// take reads the members of an object, in their order.
func take(what string, b []byte) (all []member, err error) {
	err = jsonscan.Members(what, b, func(key string, value []byte) error {
		all = append(all, member{key, value})
		return nil
	})
	return all, err
}

// with returns the members with one more, or with another value of one; nil
// takes it out.
func with(all []member, key string, value []byte) []member {
	i := slices.IndexFunc(all, func(m member) bool { return m.key == key })
	switch {
	case i < 0 && value == nil:
		return all
	case i < 0:
		return append(all, member{key, value})
	case value == nil:
		return slices.Delete(all, i, i+1)
	}
	all[i].value = value
	return all
}

func value(all []member, key string) []byte {
	for _, m := range all {
		if m.key == key {
			return m.value
		}
	}
	return nil
}

func object(all []member) []byte {
	b := []byte{'{'}
	for i, m := range all {
		if i > 0 {
			b = append(b, ',')
		}
		key, _ := json.Marshal(m.key) // a string always has a form
		b = append(append(append(b, key...), ':'), m.value...)
	}
	return append(b, '}')
}

// shelterObject rewrites a whole object or a merge patch. In a patch a list
// without foreign references takes the annotation away; a whole object lacks it.
func shelterObject(body []byte, patch bool, foreign func(apiproxy.OwnerReference) bool) ([]byte, error) {
	top, err := take("the object", body)
	if err != nil {
		return nil, err
	}
	meta, err := take("metadata", orNull(value(top, "metadata")))
	if err != nil {
		return nil, err
	}
	annotations := value(meta, "annotations")
	if patch && string(annotations) == "null" {
		return nil, noOwners("a patch that removes all annotations")
	}
	notes, err := take("annotations", orNull(annotations))
	if err != nil {
		return nil, err
	}
	owners := value(meta, "ownerReferences")
	if owners == nil && value(notes, Key) == nil {
		return body, nil
	}
	var keep [][]byte
	var moved []sheltered
	at := 0
	err = jsonscan.Items("ownerReferences", orNull(owners), func(item []byte) error {
		var r apiproxy.OwnerReference
		if err := r.Read(item); err != nil {
			return err
		}
		if foreign(r) {
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
		list, err := json.Marshal(moved)
		if err != nil {
			return nil, errors.New("ownerReferences do not parse")
		}
		if note, err = json.Marshal(string(list)); err != nil {
			return nil, errors.New("ownerReferences do not parse")
		}
		meta = with(meta, "ownerReferences", array(keep))
	case patch && owners != nil:
		note = []byte("null")
	}
	notes = with(notes, Key, note) // what a client wrote there itself goes
	if len(notes) > 0 || annotations != nil {
		meta = with(meta, "annotations", object(notes))
	}
	return object(with(top, "metadata", object(meta))), nil
}

func orNull(b []byte) []byte {
	if b == nil {
		return []byte("null")
	}
	return b
}

func array(values [][]byte) []byte {
	b := []byte{'['}
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, v...)
	}
	return append(b, ']')
}

// Read returns an object in JSON with its sheltered owner references where the
// client wrote them. An object without any is returned as it came, and so is what
// somebody else broke.
func Read(body []byte) []byte {
	if !json.Valid(body) || !strings.Contains(string(body), Key) {
		return body
	}
	top, err := take("the object", body)
	if err != nil {
		return body
	}
	meta, err := take("metadata", orNull(value(top, "metadata")))
	if err != nil {
		return body
	}
	notes, err := take("annotations", orNull(value(meta, "annotations")))
	note := value(notes, Key)
	if err != nil || note == nil {
		return body
	}
	var s string
	var moved []sheltered
	if json.Unmarshal(note, &s) != nil || json.Unmarshal([]byte(s), &moved) != nil {
		return body
	}
	var all [][]byte
	if err := jsonscan.Items("ownerReferences", orNull(value(meta, "ownerReferences")), func(item []byte) error {
		all = append(all, item)
		return nil
	}); err != nil {
		return body
	}
	for _, m := range moved {
		all = slices.Insert(all, max(0, min(m.At, len(all))), []byte(m.Reference))
	}
	meta = with(meta, "ownerReferences", array(all))
	if notes = with(notes, Key, nil); len(notes) > 0 {
		meta = with(meta, "annotations", object(notes))
	} else {
		meta = with(meta, "annotations", nil)
	}
	return object(with(top, "metadata", object(meta)))
}
