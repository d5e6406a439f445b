package inject

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
)

// admissionReview is an AdmissionReview response. The types are declared here, because all of k8s.io/api is too large
// for the adapter.
type admissionReview struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Response   admissionResponse `json:"response"`
}

type admissionResponse struct {
	UID       string            `json:"uid"`
	Allowed   bool              `json:"allowed"`
	Status    *admissionStatus  `json:"status,omitempty"`
	PatchType string            `json:"patchType,omitempty"`
	Patch     []byte            `json:"patch,omitempty"` // base64 in JSON
	Warnings  []string          `json:"warnings,omitempty"`
	Audit     map[string]string `json:"auditAnnotations,omitempty"`
}

type admissionStatus struct {
	Code    int    `json:"code"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

const reviewVersion = "admission.k8s.io/v1"

// admissionRequest is the request of an AdmissionReview.
type admissionRequest struct {
	uid, resource, operation string // resource is group, version, resource and subresource, such as v1/pods
	object, old              map[string]any
}

// parseReview parses an AdmissionReview in JSON. The error is for the sender.
func parseReview(body []byte) (admissionRequest, error) {
	root, err := decode(body)
	if err != nil {
		return admissionRequest{}, fmt.Errorf("the AdmissionReview cannot be read: %w", err)
	}
	var f fieldReader
	request := f.object(root, "", "request")
	resource := f.object(request, "request", "resource")
	version, kind := f.text(root, "", "apiVersion"), f.text(root, "", "kind")
	q := admissionRequest{
		uid: f.text(request, "request", "uid"), operation: f.text(request, "request", "operation"),
		object: f.object(request, "request", "object"), old: f.object(request, "request", "oldObject"),
	}
	q.resource = path.Join(f.text(resource, "request.resource", "group"), f.text(resource, "request.resource", "version"),
		f.text(resource, "request.resource", "resource"), f.text(request, "request", "subResource"))
	switch {
	case f.problem != "":
		return q, errors.New("the AdmissionReview cannot be read: " + f.problem)
	case version != reviewVersion || kind != "AdmissionReview":
		return q, fmt.Errorf("%.60q of %.60q is not an AdmissionReview of %s", kind, version, reviewVersion)
	case request == nil:
		return q, errors.New("the AdmissionReview has no request")
	case q.uid == "" || len(q.uid) > 128:
		return q, errors.New("the request of the AdmissionReview has no uid")
	}
	return q, nil
}

// Review answers an AdmissionReview in JSON. It returns an error, for the sender, only if body is not an
// AdmissionReview. In all other cases it returns a response, which may be a denial.
func Review(body []byte, o Options) ([]byte, Decision, error) {
	q, err := parseReview(body)
	if err != nil {
		return nil, Decision{}, err
	}
	o.Unlabelled = TryUnlabelled // the API server sends unlabelled pods only if the namespace has the label
	v := Decision{Outcome: Refused, Code: BadPod}
	switch {
	case q.resource == "v1/pods" && q.operation == "CREATE" && q.object != nil:
		v = decide(q.object, o)
	case q.resource == "v1/pods/ephemeralcontainers" && q.operation == "UPDATE" && q.object != nil && q.old != nil:
		v = ephemeral(q.old, q.object, o)
	default:
		v.Message = fmt.Sprintf(
			"this webhook is for CREATE of pods and UPDATE of pods/ephemeralcontainers, not for %.20q of %.60q; its registration is wrong",
			q.operation,
			q.resource,
		)
	}
	b, err := json.Marshal(admissionReview{reviewVersion, "AdmissionReview", newResponse(q.uid, v)})
	return b, v, err
}

// BadConfig is the code of a refused ConfigMap with an adapter configuration.
const BadConfig Code = "bad_config"

// configKey is the key of the configuration in a ConfigMap.
const configKey = "config.yaml"

// ReviewConfig answers an AdmissionReview of a ConfigMap that declares an adapter configuration. check
// returns the errors and warnings of a configuration, also with regard to the previous one, which is nil if
// there was none.
func ReviewConfig(body []byte, check func(doc, previous []byte) (wrong, warnings []string)) ([]byte, Decision, error) {
	q, err := parseReview(body)
	if err != nil {
		return nil, Decision{}, err
	}
	v := Decision{Outcome: Refused, Code: BadConfig}
	var f fieldReader
	text := f.strings(q.object, "", "data")
	doc, there := text[configKey]
	switch {
	case q.resource != "v1/configmaps" || q.operation != "CREATE" && q.operation != "UPDATE" || q.object == nil:
		v.Message = fmt.Sprintf(
			"this webhook is for CREATE and UPDATE of configmaps, not for %.20q of %.60q; its registration is wrong",
			q.operation,
			q.resource,
		)
	case f.problem != "":
		v.Message = "the ConfigMap cannot be read: " + f.problem
	case !there:
		v.Message = "the ConfigMap is labelled as an adapter's configuration, but has no " + configKey
	default:
		var previous []byte
		if old, there := new(fieldReader).strings(q.old, "", "data")[configKey]; there {
			previous = []byte(old)
		}
		wrong, warnings := check([]byte(doc), previous)
		if v = (Decision{Outcome: Unchanged, Warnings: warnings}); len(wrong) > 0 {
			v = Decision{Outcome: Refused, Code: BadConfig, Message: strings.Join(wrong, "; "), Warnings: warnings}
		}
	}
	b, err := json.Marshal(admissionReview{reviewVersion, "AdmissionReview", newResponse(q.uid, v)})
	return b, v, err
}

func newResponse(uid string, v Decision) admissionResponse {
	r := admissionResponse{
		UID:      uid,
		Allowed:  v.Outcome != Refused,
		Warnings: v.Warnings,
		Audit:    map[string]string{"outcome": string(v.Outcome)},
	}
	if v.Code != "" {
		r.Audit["reason"] = string(v.Code)
	}
	if !r.Allowed {
		doing := "the adapter cannot be injected"
		if v.Code == BadConfig {
			doing = "adapters would reject this configuration"
		}
		r.Status = &admissionStatus{403, "Forbidden", fmt.Sprintf("%s (%s): %s", doing, v.Code, v.Message)}
	}
	if len(v.Patch) > 0 {
		b, err := json.Marshal(v.Patch)
		if err != nil {
			panic(err) // it was decoded from JSON
		}
		r.PatchType, r.Patch = "JSONPatch", b
	}
	return r
}
