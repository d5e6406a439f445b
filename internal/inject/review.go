package inject

import (
	"encoding/json"
	"errors"
	"fmt"
)

// An answer is an AdmissionReview of ours. Its types are few; the whole of
// k8s.io/api would not fit into the adapter.
type answer struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Response   response `json:"response"`
}

type response struct {
	UID       string            `json:"uid"`
	Allowed   bool              `json:"allowed"`
	Status    *denial           `json:"status,omitempty"`
	PatchType string            `json:"patchType,omitempty"`
	Patch     []byte            `json:"patch,omitempty"` // base64 in JSON
	Warnings  []string          `json:"warnings,omitempty"`
	Audit     map[string]string `json:"auditAnnotations,omitempty"`
}

type denial struct {
	Code    int    `json:"code"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

const reviewVersion = "admission.k8s.io/v1"

// Review answers an AdmissionReview in JSON. An error says why body is none, and
// is for whoever sent it; everything else is an answer, if only a denial.
func Review(body []byte, o Options) ([]byte, Verdict, error) {
	o.Unlabelled = TryUnlabelled // who did not ask is here because the namespace did
	root, err := decode(body)
	if err != nil {
		return nil, Verdict{}, fmt.Errorf("the AdmissionReview cannot be read: %w", err)
	}
	var f form
	request := f.object(root, "", "request")
	uid := f.text(request, "request", "uid")
	resource := f.object(request, "request", "resource")
	version, kind := f.text(root, "", "apiVersion"), f.text(root, "", "kind")
	group, apiVersion, plural := f.text(resource, "request.resource", "group"), f.text(resource, "request.resource", "version"), f.text(resource, "request.resource", "resource")
	subresource, operation := f.text(request, "request", "subResource"), f.text(request, "request", "operation")
	object, old := f.object(request, "request", "object"), f.object(request, "request", "oldObject")
	switch {
	case f.wrong != "":
		return nil, Verdict{}, errors.New("the AdmissionReview cannot be read: " + f.wrong)
	case version != reviewVersion || kind != "AdmissionReview":
		return nil, Verdict{}, fmt.Errorf("%.60q of %.60q is not AdmissionReview of %s", kind, version, reviewVersion)
	case request == nil:
		return nil, Verdict{}, errors.New("the AdmissionReview has no request")
	case uid == "" || len(uid) > 128:
		return nil, Verdict{}, errors.New("the request of the AdmissionReview has no uid")
	}

	v := Verdict{Outcome: Refused, Code: BadPod}
	switch pods := group == "" && apiVersion == "v1" && plural == "pods"; {
	case pods && operation == "CREATE" && subresource == "" && object != nil:
		v = decide(object, o)
	case pods && operation == "UPDATE" && subresource == "ephemeralcontainers" && object != nil && old != nil:
		v = ephemeral(old, object, o)
	default:
		v.Message = fmt.Sprintf("this webhook is for CREATE of pods and UPDATE of pods/ephemeralcontainers, not for %.20q of %.60q; its registration is wrong", operation, plural+"/"+subresource)
	}
	b, err := json.Marshal(answer{reviewVersion, "AdmissionReview", respond(uid, v)})
	return b, v, err
}

func respond(uid string, v Verdict) response {
	r := response{UID: uid, Allowed: v.Outcome != Refused, Warnings: v.Warnings, Audit: map[string]string{"outcome": string(v.Outcome)}}
	if v.Code != "" {
		r.Audit["reason"] = string(v.Code)
	}
	if !r.Allowed {
		r.Status = &denial{403, "Forbidden", fmt.Sprintf("the adapter cannot be injected (%s): %s", v.Code, v.Message)}
	}
	if len(v.Patch) > 0 {
		b, err := json.Marshal(v.Patch)
		if err != nil {
			panic(err) // it was made of JSON
		}
		r.PatchType, r.Patch = "JSONPatch", b
	}
	return r
}
