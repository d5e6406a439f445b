package multicluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/apiproxy"
)

// ownersAnnotation is the annotation that stores the owner references that the cluster's garbage collector must not see.
const ownersAnnotation = "mca.tailplane.dev/owner-references"

// foreignFunc reports whether the owner does not exist in the cluster that receives the write.
type foreignFunc func(ownerReference) (bool, error)

// hiddenReference is a reference in the annotation, with its index in the original list.
type hiddenReference struct {
	At        int             `json:"at"`
	Reference json.RawMessage `json:"reference"`
}

// hideOwnerReferences moves foreign owner references of a write into an annotation, so that the cluster's garbage collector
// does not treat the object as an orphan (AD-11). [restoreOwnerReferences] reverses it. The body is a whole object in JSON or
// Kubernetes protobuf, or a patch. hideOwnerReferences refuses a body that it cannot rewrite and returns a body without
// owner references unchanged. The error is a *[apiproxy.Refusal], or that of foreign.
func hideOwnerReferences(body []byte, contentType string, foreign foreignFunc) ([]byte, error) {
	var failed error
	out, err := hideInBody(body, contentType, func(r ownerReference) (yes bool, err error) {
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
	return nil, apiproxy.NewBadRequest("%v", err)
}

// unsupportedMediaType returns the refusal of a body whose type cannot be rewritten.
func unsupportedMediaType(message string) error {
	return apiproxy.NewRefusal(http.StatusUnsupportedMediaType, "%s", message)
}

func hideInBody(body []byte, contentType string, foreign foreignFunc) ([]byte, error) {
	media, _, err := mime.ParseMediaType(contentType)
	if contentType != "" && err != nil {
		return nil, unsupportedMediaType("the Content-Type is invalid")
	}
	switch {
	case media == "application/vnd.kubernetes.protobuf":
		return hideInProtobuf(body, foreign)
	case json.Valid(body):
	case media == "application/yaml", media == "application/apply-patch+yaml":
		return body, checkYAML(body, media)
	default:
		return nil, errors.New("the body is not JSON")
	}
	switch media {
	case "", "application/json", "application/yaml", "application/apply-patch+yaml", "application/merge-patch+json":
		return hideInObject(body, media == "application/merge-patch+json", foreign)
	case "application/strategic-merge-patch+json":
		return body, checkStrategicPatch(body)
	case "application/json-patch+json":
		return body, checkJSONPatch(body)
	}
	return nil, unsupportedMediaType("the adapter rewrites objects of this rule, which is possible only for JSON")
}

// refuseOwnerChange returns the refusal of a patch that cannot be rewritten.
func refuseOwnerChange(what string) error {
	return apiproxy.NewRefusal(
		http.StatusUnprocessableEntity,
		"%s changes owner references, which the rule hides from this cluster's garbage collector; update the object, or use a merge patch with the whole list",
		what,
	)
}

// checkYAML refuses YAML with owner references, because YAML is not rewritten.
func checkYAML(body []byte, media string) error {
	o, err := parseObject(body, media, "")
	if err != nil {
		return err
	}
	if _, annotated := o.Annotations[ownersAnnotation]; annotated || len(o.OwnerReferences) > 0 {
		return unsupportedMediaType("this rule rewrites objects with owner references, which is not possible for YAML; send JSON")
	}
	return nil
}

// checkStrategicPatch refuses a strategic merge patch of owner references, because the server would merge it without
// the hidden ones. It also refuses directives that could remove the annotation.
func checkStrategicPatch(body []byte) error {
	replaces := func(key string) bool { return key == "$patch" || key == "$retainKeys" }
	return jsonMembers("the patch", body, func(key string, value []byte) error {
		switch {
		case replaces(key):
			return refuseOwnerChange("a patch that replaces the object")
		case key != "metadata":
			return nil
		}
		return jsonMembers(key, value, func(key string, value []byte) error {
			switch {
			case strings.Contains(key, "ownerReferences"): // directives contain the name too
				return refuseOwnerChange("a strategic merge patch")
			case replaces(key), key == "annotations" && string(value) == "null":
				return refuseOwnerChange("a patch that replaces metadata")
			case key != "annotations":
				return nil
			}
			return jsonMembers(key, value, func(key string, _ []byte) error {
				if replaces(key) || key == ownersAnnotation {
					return refuseOwnerChange("a patch of all annotations")
				}
				return nil
			})
		})
	})
}

func checkJSONPatch(body []byte) error {
	return jsonItems("the patch", body, func(op []byte) error {
		return jsonMembers("an operation", op, func(key string, value []byte) error {
			var path string
			if key != "path" && key != "from" {
				return nil
			}
			if err := jsonText(key, value, &path); err != nil {
				return err
			}
			const owners, annotation = "/metadata/ownerReferences", "/metadata/annotations/mca.tailplane.dev~1owner-references"
			switch {
			case path == "", path == "/metadata", path == "/metadata/annotations", path == annotation,
				path == owners, strings.HasPrefix(path, owners+"/"):
				return refuseOwnerChange("a JSON patch")
			}
			return nil
		})
	})
}

// hideInObject rewrites a whole object or a merge patch. If a list has no foreign references, a patch
// removes the annotation, and a whole object has none.
func hideInObject(body []byte, patch bool, foreign foreignFunc) ([]byte, error) {
	o, err := parseObjectFields(body)
	if err != nil {
		return nil, err
	}
	annotations := o.meta.Get("annotations")
	if patch && string(annotations) == "null" {
		return nil, refuseOwnerChange("a patch that removes all annotations")
	}
	owners := o.meta.Get("ownerReferences")
	if owners == nil && o.annotations.Get(ownersAnnotation) == nil {
		return body, nil
	}
	var keep [][]byte
	var moved []hiddenReference
	at := 0
	err = jsonItems("ownerReferences", owners, func(item []byte) error {
		var r ownerReference
		if err := r.parse(item); err != nil {
			return err
		}
		isForeign, err := foreign(r)
		if err != nil {
			return err
		}
		if isForeign {
			moved = append(moved, hiddenReference{at, item})
		} else {
			keep = append(keep, item)
		}
		at++
		return nil
	})
	if err != nil {
		return nil, err
	}
	var hidden []byte
	switch {
	case len(moved) > 0:
		text, err := encodeHidden(moved)
		if err != nil {
			return nil, err
		}
		hidden = jsonString(text)
		o.meta = o.meta.With("ownerReferences", jsonArray(keep))
	case patch && owners != nil:
		hidden = []byte("null")
	}
	o.annotations = o.annotations.With(ownersAnnotation, hidden) // drop an annotation that the client set itself
	if len(o.annotations) > 0 || annotations != nil {
		o.meta = o.meta.With("annotations", o.annotations.JSON())
	}
	return o.JSON(), nil
}

// encodeHidden returns the value of the annotation.
func encodeHidden(moved []hiddenReference) (string, error) {
	b, err := json.Marshal(moved)
	if err != nil {
		return "", errors.New("ownerReferences are invalid")
	}
	return string(b), nil
}

// restoreOwnerReferences restores the hidden owner references of a JSON object in their original order. It returns an object
// without any, or with an invalid annotation, unchanged.
func restoreOwnerReferences(body []byte) []byte {
	if !bytes.Contains(body, []byte(ownersAnnotation)) || !json.Valid(body) {
		return body
	}
	o, err := parseObjectFields(body)
	hidden := o.annotations.Get(ownersAnnotation)
	if err != nil || hidden == nil {
		return body
	}
	var s string
	var moved []hiddenReference
	if json.Unmarshal(hidden, &s) != nil || json.Unmarshal([]byte(s), &moved) != nil {
		return body
	}
	var all [][]byte
	if err := jsonItems("ownerReferences", o.meta.Get("ownerReferences"), func(item []byte) error {
		all = append(all, item)
		return nil
	}); err != nil {
		return body
	}
	for _, m := range moved {
		all = slices.Insert(all, max(0, min(m.At, len(all))), []byte(m.Reference))
	}
	o.meta = o.meta.With("ownerReferences", jsonArray(all))
	var rest []byte
	if o.annotations = o.annotations.With(ownersAnnotation, nil); len(o.annotations) > 0 {
		rest = o.annotations.JSON()
	}
	o.meta = o.meta.With("annotations", rest)
	return o.JSON()
}
