package multicluster

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"net/url"
	"reflect"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"sigs.k8s.io/yaml"

	"github.com/tailplane/tailplane/internal/apiproxy"
)

const (
	jsonType     = "application/json"
	yamlType     = "application/yaml"
	applyType    = "application/apply-patch+yaml"
	protobufType = "application/vnd.kubernetes.protobuf"
)

// encodeProtobuf returns an object in the three encodings that parseObject reads. It uses the encoders of Kubernetes.
func encodeProtobuf(t testing.TB, o runtime.Object) map[string][]byte {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, batchv1.AddToScheme, eventsv1.AddToScheme, authorizationv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	kinds, _, err := scheme.ObjectKinds(o)
	if err != nil {
		t.Fatal(err)
	}
	o.GetObjectKind().SetGroupVersionKind(kinds[0])
	j, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	y, err := yaml.JSONToYAML(j)
	if err != nil {
		t.Fatal(err)
	}
	var p bytes.Buffer
	if err := protobuf.NewSerializer(scheme, scheme).Encode(o, &p); err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{jsonType: j, yamlType: y, protobufType: p.Bytes()}
}

// AD-04: parseObject reads each encoding correctly.
func TestParseObject(t *testing.T) {
	meta := metav1.ObjectMeta{Name: "a", Namespace: "b", Labels: map[string]string{"tier": "gold", "x": ""}, Annotations: map[string]string{pinKey: "east"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "c", UID: "1"}, {APIVersion: "batch/v1", Kind: "CronJob", Name: "d", UID: "2", Controller: new(true), BlockOwnerDeletion: new(false)}}}
	want := requestObject{Name: "a", Namespace: "b", Labels: meta.Labels, Annotations: meta.Annotations,
		OwnerReferences: []ownerReference{{"v1", "ConfigMap", "c", "1", false}, {"batch/v1", "CronJob", "d", "2", true}}}
	with := func(o requestObject, apiVersion, kind string, f func(*requestObject)) requestObject {
		o.APIVersion, o.Kind = apiVersion, kind
		f(&o)
		return o
	}
	small := metav1.ObjectMeta{GenerateName: "g-"}
	about := corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: "b", Name: "p", UID: "9"}
	reference := &objectReference{"v1", "Pod", "b", "p", "9"}
	attributes := &authorizationv1.ResourceAttributes{Verb: "get", Group: "apps", Resource: "deployments", Subresource: "scale", Namespace: "b", Name: "n"}
	wantAttributes := &reviewAttributes{"get", "apps", "deployments", "scale", "b", "n"}
	for _, tt := range []struct {
		object runtime.Object
		want   requestObject
	}{
		{&batchv1.Job{ObjectMeta: meta, Spec: batchv1.JobSpec{Parallelism: new(int32(3))}}, with(want, "batch/v1", "Job", func(*requestObject) {})},
		{&corev1.Pod{ObjectMeta: small}, with(requestObject{GenerateName: "g-"}, "v1", "Pod", func(*requestObject) {})},
		{&corev1.Event{ObjectMeta: small, InvolvedObject: about}, with(requestObject{GenerateName: "g-"}, "v1", "Event", func(o *requestObject) { o.InvolvedObject = reference })},
		{&eventsv1.Event{ObjectMeta: small, Regarding: about}, with(requestObject{GenerateName: "g-"}, "events.k8s.io/v1", "Event", func(o *requestObject) { o.InvolvedObject = reference })},
		{&authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: attributes}}, with(requestObject{}, "authorization.k8s.io/v1", "SelfSubjectAccessReview", func(o *requestObject) { o.Attributes = wantAttributes })},
		{&authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: "u", ResourceAttributes: attributes}}, with(requestObject{}, "authorization.k8s.io/v1", "SubjectAccessReview", func(o *requestObject) { o.Attributes = wantAttributes })},
		{&authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/x"}}}, with(requestObject{}, "authorization.k8s.io/v1", "SelfSubjectAccessReview", func(*requestObject) {})},
		{&authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "b"}}, with(requestObject{}, "authorization.k8s.io/v1", "SelfSubjectRulesReview", func(o *requestObject) { o.ReviewNamespace = "b" })},
	} {
		for contentType, body := range encodeProtobuf(t, tt.object) {
			got, err := parseObject(body, contentType, "")
			if err != nil {
				t.Errorf("%s in %s: %v", tt.want.Kind, contentType, err)
				continue
			}
			if !reflect.DeepEqual(*got, tt.want) {
				t.Errorf("%s in %s: read %+v, want %+v", tt.want.Kind, contentType, *got, tt.want)
			}
		}
	}
	// Keys match exactly.
	got, err := parseObject([]byte(`{"Metadata":{"name":"wrong"},"metadata":{"Name":"wrong","name":"right","n\u0061mespace":"b"},"x":[{"metadata":{}},"}"],"y":1}`), "", "")
	switch {
	case err != nil:
		t.Error(err)
	case got.Name != "right":
		t.Errorf("got.Name = %q, want %q", got.Name, "right")
	case got.Namespace != "b":
		t.Errorf("got.Namespace = %q, want %q", got.Namespace, "b")
	}
	if got, err = parseObject([]byte("metadata: {name: a, labels: {tier: gold}}\nspec: {replicas: 1.5, x: &a [1]}\n"), applyType, ""); err == nil {
		t.Errorf("an anchor is read: %+v", got)
	}
}

// AD-04: parseObject refuses a body that cannot be routed with certainty, with the status that the API server uses.
func TestParseObjectRefuses(t *testing.T) {
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if err := errors.Join(func() error { _, err := z.Write([]byte("{}")); return err }(), z.Close()); err != nil {
		t.Fatal(err)
	}
	pod := encodeProtobuf(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}})[protobufType]
	doubled := append(bytes.Clone(pod), pod[4:]...)
	for _, tt := range []struct {
		name, body, contentType, encoding string
		status                            int
	}{
		{"metadata twice", `{"metadata":{"name":"a"},"metadata":{"name":"b"}}`, jsonType, "", 400},
		{"metadata twice, escaped", `{"metadata":{"name":"a"},"metad\u0061ta":{"name":"b"}}`, jsonType, "", 400},
		{"namespace twice", `{"metadata":{"namespace":"a","namespace":"b"}}`, jsonType, "", 400},
		{"a label twice", `{"metadata":{"labels":{"a":"1","a":"2"}}}`, jsonType, "", 400},
		{"the twentieth label twice", `{"metadata":{"labels":{` + labelsTwice() + `}}}`, jsonType, "", 400},
		{"labels twice", `{"metadata":{"labels":{},"labels":{}}}`, jsonType, "", 400},
		{"a number as name", `{"metadata":{"name":1}}`, jsonType, "", 400},
		{"a list as labels", `{"metadata":{"labels":[]}}`, jsonType, "", 400},
		{"a list", `[]`, jsonType, "", 400},
		{"a text", `"x"`, jsonType, "", 400},
		{"nothing", ``, jsonType, "", 400},
		{"half", `{"metadata":`, jsonType, "", 400},
		{"two", `{} {}`, jsonType, "", 400},
		{"YAML with a key twice", "metadata: {name: a}\nmetadata: {name: b}\n", yamlType, "", 400},
		{"YAML, JSON with a key twice", `{"metadata":{"name":"a","name":"b"}}`, applyType, "", 400},
		{"YAML documents", "metadata: {}\n---\nmetadata: {}\n", yamlType, "", 400},
		{"YAML alias", "metadata: &a {name: a}\nspec: *a\n", yamlType, "", 400},
		{"YAML merge", "metadata: {<<: {name: a}}\n", yamlType, "", 400},
		{"YAML tag", "metadata: {name: !!binary YQ==}\n", yamlType, "", 400},
		{"YAML number", "metadata: {name: 1}\n", yamlType, "", 400},
		{"YAML list", "- a\n", yamlType, "", 400},
		{"protobuf without magic", "x" + string(pod), protobufType, "", 400},
		{"protobuf cut", string(pod[:len(pod)-3]), protobufType, "", 400},
		{"protobuf doubled", string(doubled), protobufType, "", 400},
		{"protobuf garbage", "k8s\x00\xff\xff", protobufType, "", 400},
		{"gzip", zipped.String(), jsonType, "gzip", 415},
		{"CBOR", "\xd9\xd9\xf7\xa0", "application/cbor", "", 415},
		{"CBOR apply", "\xd9\xd9\xf7\xa0", "application/apply-patch+cbor", "", 415},
		{"form", "a=b", "application/x-www-form-urlencoded", "", 415},
		{"no type at all", "{}", ";", "", 415},
		{"YAML too large", "x: " + strings.Repeat("x", maxYAML), yamlType, "", 413},
		{"too large", `{"x":"` + strings.Repeat("x", maxBody) + `"}`, jsonType, "", 413},
	} {
		_, err := parseObject([]byte(tt.body), tt.contentType, tt.encoding)
		if r, ok := errors.AsType[*apiproxy.Refusal](err); !ok || r.Status != tt.status {
			t.Errorf("%s: %v, want %d", tt.name, err, tt.status)
		}
	}
}

// labelsTwice returns more labels than the fixed-size buffer of the reader holds, with one duplicate.
func labelsTwice() string {
	var b strings.Builder
	for _, c := range "abcdefghijklmnopqrstuvwxyz" {
		b.WriteString(`"` + string(c) + `":"",`)
	}
	return b.String() + `"t":""`
}

// FuzzParseObject checks that parseObject and a JSON decoder agree.
func FuzzParseObject(f *testing.F) {
	for contentType, body := range encodeProtobuf(f, &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"a": "b"}}, InvolvedObject: corev1.ObjectReference{Name: "x"}}) {
		f.Add(body, contentType)
	}
	f.Add([]byte(`{"metadata": {"labels" : null, "ownerReferences":[{"uid":"\ud83d\ude00"} , {}]} }`), jsonType)
	f.Add([]byte("metadata: {name: \"a\\u0062\"}\n"), applyType)
	f.Fuzz(func(t *testing.T, body []byte, contentType string) {
		o, err := parseObject(body, contentType, "")
		if err != nil {
			if r, ok := errors.AsType[*apiproxy.Refusal](err); !ok || r.Status < 400 {
				t.Fatalf("%v is not a refusal", err)
			}
			return
		}
		if contentType != jsonType {
			return
		}
		var generic map[string]any // its keys match exactly
		if err := json.Unmarshal(body, &generic); err != nil {
			t.Fatalf("%q is accepted but is not JSON: %v", body, err)
		}
		meta, _ := generic["metadata"].(map[string]any)
		name, _ := meta["name"].(string)
		labels, _ := meta["labels"].(map[string]any)
		if o.Name != name || len(o.Labels) != len(labels) {
			t.Fatalf("%q: read %+v", body, o)
		}
		for k, v := range labels {
			if s, _ := v.(string); o.Labels[k] != s {
				t.Fatalf("%q: read %+v", body, o)
			}
		}
	})
}

func TestCreates(t *testing.T) {
	for _, tt := range []struct {
		method, target, contentType string
		want                        bool
	}{
		{"POST", "/api/v1/namespaces/a/pods", jsonType, true},
		{"POST", "/api/v1/nodes", jsonType, true},
		{"POST", "/api/v1/namespaces/a/pods/b/binding", jsonType, false},
		{"POST", "/api/v1/namespaces/a/pods/b/eviction", jsonType, false},
		{"POST", "/api/v1/namespaces/a/pods/b/exec", "", false},
		{"PATCH", "/api/v1/namespaces/a/pods/b", applyType, true},
		{"PATCH", "/api/v1/namespaces/a/pods/b", "application/apply-patch+cbor", true},
		{"PATCH", "/api/v1/namespaces/a/pods/b", "application/merge-patch+json", false},
		{"PATCH", "/api/v1/namespaces/a/pods/b/status", applyType, false},
		{"PUT", "/api/v1/namespaces/a/pods/b", jsonType, false},
		{"PUT", "/api/v1/namespaces/a/services/b", jsonType, true},
		{"PUT", "/api/v1/namespaces/a/services/b/status", jsonType, false},
		{"PUT", "/apis/example.com/v1/namespaces/a/services/b", jsonType, false},
		{"PUT", "/apis/coordination.k8s.io/v1/namespaces/a/leases/b", jsonType, true},
		{"PUT", "/apis/events.k8s.io/v1/namespaces/a/events/b", jsonType, true},
		{"PUT", "/apis/rbac.authorization.k8s.io/v1/clusterroles/b", jsonType, true},
		{"GET", "/api/v1/namespaces/a/pods/b", "", false},
		{"DELETE", "/api/v1/namespaces/a/pods", "", false},
		{"POST", "/version", "", false},
	} {
		u, err := url.ParseRequestURI(tt.target)
		if err != nil {
			t.Fatal(err)
		}
		r, err := apiproxy.ParseRequest(tt.method, u)
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Creates(tt.contentType); got != tt.want {
			t.Errorf("%s %s with %q creates: %v, want %v", tt.method, tt.target, tt.contentType, got, tt.want)
		}
	}
}
