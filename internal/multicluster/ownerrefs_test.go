package multicluster

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/apiproxy"
)

const (
	ownersJSONType     = "application/json"
	ownersYAMLType     = "application/yaml"
	ownersApplyType    = "application/apply-patch+yaml"
	ownersProtobufType = "application/vnd.kubernetes.protobuf"

	strategicType = "application/strategic-merge-patch+json"
)

func foreignUID(r ownerReference) (bool, error) { return strings.HasPrefix(r.UID, "far"), nil }

// AD-11: hideOwnerReferences removes foreign owners, and restoreOwnerReferences restores them.
func TestHideOwnerReferences(t *testing.T) {
	for _, tt := range []struct{ name, body, contentType, want string }{
		{"none", `{ "metadata": {"name":"a"} }`, ownersJSONType, `{ "metadata": {"name":"a"} }`},
		{"near", `{"metadata":{"ownerReferences":[{"uid":"near"}]}}`, ownersJSONType, `{"metadata":{"ownerReferences":[{"uid":"near"}]}}`},
		{"far", `{"metadata":{"ownerReferences":[{"uid":"far","kind":"A"}],"name":"a"},"spec":{"x":1.50}}`, ownersJSONType,
			`{"metadata":{"ownerReferences":[],"name":"a","annotations":{"mca.tailplane.dev/owner-references":"[{\"at\":0,\"reference\":{\"uid\":\"far\",\"kind\":\"A\"}}]"}},"spec":{"x":1.50}}`},
		{"near and far", `{"metadata":{"annotations":{"k":"v"},"ownerReferences":[{"uid":"near1"},{"uid":"far"},{"uid":"near2"}]}}`, "",
			`{"metadata":{"annotations":{"k":"v","mca.tailplane.dev/owner-references":"[{\"at\":1,\"reference\":{\"uid\":\"far\"}}]"},"ownerReferences":[{"uid":"near1"},{"uid":"near2"}]}}`},
		{"the client's own annotation", `{"metadata":{"annotations":{"mca.tailplane.dev/owner-references":"x"}}}`, ownersJSONType, `{"metadata":{"annotations":{}}}`},
		{"merge patch without far ones", `{"metadata":{"ownerReferences":[{"uid":"near"}]}}`, "application/merge-patch+json",
			`{"metadata":{"ownerReferences":[{"uid":"near"}],"annotations":{"mca.tailplane.dev/owner-references":null}}}`},
		{"merge patch of nothing", `{"metadata":{"ownerReferences":null}}`, "application/merge-patch+json",
			`{"metadata":{"ownerReferences":null,"annotations":{"mca.tailplane.dev/owner-references":null}}}`},
		{"merge patch of others", `{"spec":{}}`, "application/merge-patch+json", `{"spec":{}}`},
		{"strategic patch of others", `{"metadata":{"labels":{}}}`, "application/strategic-merge-patch+json", `{"metadata":{"labels":{}}}`},
		{"JSON patch of others", `[{"op":"add","path":"/metadata/labels/x","value":"1"}]`, "application/json-patch+json", `[{"op":"add","path":"/metadata/labels/x","value":"1"}]`},
		{"YAML without", "metadata: {name: a}", ownersYAMLType, "metadata: {name: a}"},
		{"applied YAML without", "metadata: {name: a}", ownersApplyType, "metadata: {name: a}"},
		{"apply", `{"metadata":{"ownerReferences":[{"uid":"far"}]}}`, ownersApplyType, `{"metadata":{"ownerReferences":[],"annotations":{"mca.tailplane.dev/owner-references":"[{\"at\":0,\"reference\":{\"uid\":\"far\"}}]"}}}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := hideOwnerReferences([]byte(tt.body), tt.contentType, foreignUID)
			if err != nil || string(got) != tt.want {
				t.Errorf("%s\n%v, want\n%s", got, err, tt.want)
			}
		})
	}
	for _, tt := range []struct {
		body, contentType string
		status            int
	}{
		{`[{"op":"remove","path":"/metadata/ownerReferences/0"}]`, "application/json-patch+json", 422},
		{`[{"op":"move","from":"/metadata/ownerReferences","path":"/x"}]`, "application/json-patch+json", 422},
		{`[{"op":"replace","path":"/metadata","value":{}}]`, "application/json-patch+json", 422},
		{`[{"op":"replace","p\u0061th":"","value":{}}]`, "application/json-patch+json", 422},
		{`[{"op":"add","path":"/metadata/annotations/mca.tailplane.dev~1owner-references","value":"x"}]`, "application/json-patch+json", 422},
		{`{"metadata":{"ownerReferences":[{"uid":"far"}]}}`, strategicType, 422},
		{`{"metadata":{"annotations":null}}`, "application/merge-patch+json", 422},
		{`{"metadata":{"ownerReferences":[{"uid":"a","uid":"far"}]}}`, ownersJSONType, 400},
		{"metadata: {ownerReferences: [{uid: near}]}", ownersApplyType, 415},
		{"metadata: {annotations: {mca.tailplane.dev/owner-references: x}}", ownersYAMLType, 415},
		{"metadata: {", ownersYAMLType, 400},
		{`{}`, ownersProtobufType, 400},
		{`{}`, "application/apply-patch+cbor", 415},
		{`{"$p\u0061tch":"replace"}`, strategicType, 422},
		{`{"metadata":{"$retainKeys":["name"]}}`, strategicType, 422},
		{`{"metadata":{"annotations":{"$p\u0061tch":"replace"}}}`, strategicType, 422},
		{`{"metadata":{"annotations":{"mca.tailplane.dev/owner-references":"x"}}}`, strategicType, 422},
		{`{"metadata":{"$setElementOrder/ownerReferences":[{"uid":"a"}]}}`, strategicType, 422},
		{`{`, ownersJSONType, 400},
	} {
		_, err := hideOwnerReferences([]byte(tt.body), tt.contentType, foreignUID)
		if r, ok := errors.AsType[*apiproxy.Refusal](err); !ok || r.Status != tt.status {
			t.Errorf("%s %s: %v, want %d", tt.contentType, tt.body, err, tt.status)
		}
	}
}

// FuzzOwnerReferences checks that a client reads back what it wrote.
func FuzzOwnerReferences(f *testing.F) {
	f.Add([]byte(`{"metadata":{"ownerReferences":[{"uid":"near1"},{"uid":"far"},{"uid":"near2"},{"uid":"far2","x":"<&>"}],"annotations":{"a":"b"}}}`))
	f.Add([]byte(`{"metadata":{"annotations":{"mca.tailplane.dev/owner-references":"[{\"at\":-1}]"}}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		restoreOwnerReferences(body) // of a hostile cluster
		sheltered, err := hideOwnerReferences(body, ownersJSONType, foreignUID)
		if err != nil {
			return
		}
		o, err := parseObject(sheltered, ownersJSONType, "")
		if err != nil {
			return // errors elsewhere do not matter here
		}
		for _, r := range o.OwnerReferences {
			if isForeign, _ := foreignUID(r); isForeign {
				t.Fatalf("%s\npasses a foreign owner:\n%s", body, sheltered)
			}
		}
		var was, is map[string]any
		if json.Unmarshal(body, &was) != nil || json.Unmarshal(restoreOwnerReferences(sheltered), &is) != nil {
			t.Fatalf("%s\nis restored as\n%s", body, restoreOwnerReferences(sheltered))
		}
		for _, object := range []map[string]any{was, is} { // the annotation is not the client's, and an empty map equals none
			meta, _ := object["metadata"].(map[string]any)
			annotationFields, _ := meta["annotations"].(map[string]any)
			delete(annotationFields, ownersAnnotation)
			if len(annotationFields) == 0 {
				delete(meta, "annotations")
			}
		}
		if !reflect.DeepEqual(was, is) {
			t.Fatalf("%s\nis restored as\n%s", body, restoreOwnerReferences(sheltered))
		}
	})
}
