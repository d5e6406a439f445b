package apiproxy

import (
	"encoding/json"
	"mime"
	"net/http"
	"slices"
	"strings"
)

// ShelterKey is the annotation that keeps the owner references which the
// cluster's garbage collector must not see.
const ShelterKey = "mca.tailplane.dev/owner-references"

// A sheltered is a reference in the annotation, and where it was in the list.
type sheltered struct {
	At        int             `json:"at"`
	Reference json.RawMessage `json:"reference"`
}

// Shelter moves the owner references that are foreign to a cluster from what is
// written there into an annotation, so that its garbage collector does not take
// the object for an orphan (AD-11). [Restore] is its inverse. The body is a whole
// object, or a patch, in JSON; what cannot be rewritten is refused. A body
// without owner references is returned as it came. The error is a *[Refusal].
func Shelter(body []byte, contentType string, foreign func(OwnerReference) bool) ([]byte, error) {
	out, refusal := shelter(body, contentType, foreign)
	if refusal != nil {
		return nil, refusal
	}
	return out, nil
}

func shelter(body []byte, contentType string, foreign func(OwnerReference) bool) ([]byte, *Refusal) {
	media, _, err := mime.ParseMediaType(contentType)
	if contentType != "" && err != nil {
		return nil, refuse(http.StatusUnsupportedMediaType, "the Content-Type does not parse")
	}
	if !json.Valid(body) {
		if media == "application/apply-patch+yaml" {
			return nil, refuse(http.StatusUnsupportedMediaType, "objects of this rule are rewritten, and only JSON can be; JSON is YAML too")
		}
		return nil, bad("the body is not JSON")
	}
	switch media {
	case "", "application/json", "application/apply-patch+yaml", "application/merge-patch+json":
		return shelterObject(body, media == "application/merge-patch+json", foreign)
	case "application/strategic-merge-patch+json":
		return body, plainPatch(body)
	case "application/json-patch+json":
		return body, plainOperations(body)
	}
	return nil, refuse(http.StatusUnsupportedMediaType, "objects of this rule are rewritten, and only JSON can be")
}

// noOwners refuses a patch that cannot be rewritten.
func noOwners(what string) *Refusal {
	return refuse(http.StatusUnprocessableEntity, "%s changes owner references, which are sheltered from this cluster's garbage collector; update the object, or use a merge patch with the whole list", what)
}

// plainPatch refuses a strategic patch of owner references: it would be merged
// with a list that is not where the server looks.
func plainPatch(body []byte) *Refusal {
	return inMetadata(body, func(key string, value []byte) *Refusal {
		if key == "ownerReferences" || key == "$setElementOrder/ownerReferences" || key == "$deleteFromPrimitiveList/ownerReferences" {
			return noOwners("a strategic merge patch")
		}
		if key == "$patch" || key == "annotations" && (string(value) == "null" || strings.Contains(string(value), `"$patch"`)) {
			return noOwners("a patch that replaces metadata")
		}
		return nil
	})
}

func inMetadata(body []byte, f func(key string, value []byte) *Refusal) *Refusal {
	return members("the object", body, func(key string, value []byte) *Refusal {
		if key != "metadata" {
			return nil
		}
		return members(key, value, f)
	})
}

func plainOperations(body []byte) *Refusal {
	return items("the patch", body, func(op []byte) *Refusal {
		return members("an operation", op, func(key string, value []byte) *Refusal {
			var path string
			if key != "path" && key != "from" {
				return nil
			}
			if refusal := text(key, value, &path); refusal != nil {
				return refusal
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
func take(what string, b []byte) (all []member, refusal *Refusal) {
	refusal = members(what, b, func(key string, value []byte) *Refusal {
		all = append(all, member{key, value})
		return nil
	})
	return all, refusal
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
func shelterObject(body []byte, patch bool, foreign func(OwnerReference) bool) ([]byte, *Refusal) {
	top, refusal := take("the object", body)
	if refusal != nil {
		return nil, refusal
	}
	meta, refusal := take("metadata", orNull(value(top, "metadata")))
	if refusal != nil {
		return nil, refusal
	}
	annotations := value(meta, "annotations")
	if patch && string(annotations) == "null" {
		return nil, noOwners("a patch that removes all annotations")
	}
	notes, refusal := take("annotations", orNull(annotations))
	if refusal != nil {
		return nil, refusal
	}
	owners := value(meta, "ownerReferences")
	if owners == nil && value(notes, ShelterKey) == nil {
		return body, nil
	}
	var keep [][]byte
	var moved []sheltered
	at := 0
	refusal = items("ownerReferences", orNull(owners), func(item []byte) *Refusal {
		var r OwnerReference
		if refusal := r.fill(item); refusal != nil {
			return refusal
		}
		if foreign(r) {
			moved = append(moved, sheltered{at, item})
		} else {
			keep = append(keep, item)
		}
		at++
		return nil
	})
	if refusal != nil {
		return nil, refusal
	}
	var note []byte
	switch {
	case len(moved) > 0:
		list, err := json.Marshal(moved)
		if err != nil {
			return nil, bad("ownerReferences do not parse")
		}
		if note, err = json.Marshal(string(list)); err != nil {
			return nil, bad("ownerReferences do not parse")
		}
		meta = with(meta, "ownerReferences", array(keep))
	case patch && owners != nil:
		note = []byte("null")
	}
	notes = with(notes, ShelterKey, note) // what a client wrote there itself goes
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

// Restore returns an object in JSON with its sheltered owner references where the
// client wrote them. An object without any is returned as it came, and so is what
// somebody else broke.
func Restore(body []byte) []byte {
	if !json.Valid(body) || !strings.Contains(string(body), ShelterKey) {
		return body
	}
	top, refusal := take("the object", body)
	if refusal != nil {
		return body
	}
	meta, refusal := take("metadata", orNull(value(top, "metadata")))
	if refusal != nil {
		return body
	}
	notes, refusal := take("annotations", orNull(value(meta, "annotations")))
	note := value(notes, ShelterKey)
	if refusal != nil || note == nil {
		return body
	}
	var s string
	var moved []sheltered
	if json.Unmarshal(note, &s) != nil || json.Unmarshal([]byte(s), &moved) != nil {
		return body
	}
	var all [][]byte
	if refusal := items("ownerReferences", orNull(value(meta, "ownerReferences")), func(item []byte) *Refusal {
		all = append(all, item)
		return nil
	}); refusal != nil {
		return body
	}
	for _, m := range moved {
		all = slices.Insert(all, max(0, min(m.At, len(all))), []byte(m.Reference))
	}
	meta = with(meta, "ownerReferences", array(all))
	if notes = with(notes, ShelterKey, nil); len(notes) > 0 {
		meta = with(meta, "annotations", object(notes))
	} else {
		meta = with(meta, "annotations", nil)
	}
	return object(with(top, "metadata", object(meta)))
}
