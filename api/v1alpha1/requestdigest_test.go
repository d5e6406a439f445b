package v1alpha1

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func digestedSpec() TkaRequestSpec {
	at := metav1.NewTime(time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC))
	return TkaRequestSpec{
		Cluster: RequestCluster{Name: "prod-eu", ID: "c1"},
		Requester: Requester{SigninUser: SigninUser{Login: "alice@example.com", ID: "u1", DisplayName: "Alice"}, Tags: []string{"tag:ci"},
			Device: SigninDevice{ID: "n1", Name: "laptop", Tailnet: "example.com"}},
		Rule: "edit-shop", Bind: []SigninBind{{Role: "edit", Namespaces: []string{"shop"}}, {Role: "view", NamespaceSelector: "team=shop"}},
		Period: metav1.Duration{Duration: time.Hour}, Approvals: 1, Reason: "INC-42", BreakGlass: true, Record: []string{"exec"},
		AskedAt: at, PendingUntil: metav1.NewTime(at.Add(8 * time.Hour)),
	}
}

// TestRequestDigest has the digest of one request, which must stay what it is: approvals have it.
func TestRequestDigest(t *testing.T) {
	if got, want := RequestDigest("c1", "r1", digestedSpec()), "acbb9283e93c43cd323ed64f868a57ee3bfe4fc63fca8589ef62d9e16b06172e"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestRequestDigestHasEachField changes each field of the spec, also those that a later definition adds.
func TestRequestDigestHasEachField(t *testing.T) {
	seen := map[string]string{RequestDigest("c1", "r1", digestedSpec()): "nothing"}
	check := func(what, digest string) {
		if other := seen[digest]; other != "" {
			t.Errorf("the digest is the same after a change of %s and of %s", other, what)
		}
		seen[digest] = what
	}
	check("the cluster", RequestDigest("c2", "r1", digestedSpec()))
	check("the UID", RequestDigest("c1", "r2", digestedSpec()))
	check("the border of two fields", RequestDigest("c1r", "1", digestedSpec()))
	eachLeaf(reflect.TypeFor[TkaRequestSpec](), nil, "spec", func(path string, index []func(reflect.Value) reflect.Value) {
		spec := digestedSpec()
		v := reflect.ValueOf(&spec).Elem()
		for _, step := range index {
			v = step(v)
		}
		switch x := v.Addr().Interface().(type) {
		case *metav1.Time:
			*x = metav1.NewTime(x.Add(time.Second))
		case *metav1.Duration:
			x.Duration++
		case *string:
			*x += "x"
		case *bool:
			*x = !*x
		case *int32:
			*x++
		default:
			t.Fatalf("%s: %T", path, x)
		}
		check(path, RequestDigest("c1", "r1", spec))
	})
}

// eachLeaf calls f for each field of the type, and for the first element of each list.
func eachLeaf(of reflect.Type, at []func(reflect.Value) reflect.Value, path string, f func(string, []func(reflect.Value) reflect.Value)) {
	next := func(step func(reflect.Value) reflect.Value) []func(reflect.Value) reflect.Value {
		return append(at[:len(at):len(at)], step)
	}
	switch {
	case of == reflect.TypeFor[metav1.Time](), of == reflect.TypeFor[metav1.Duration](), of.Kind() != reflect.Struct && of.Kind() != reflect.Slice:
		f(path, at)
	case of.Kind() == reflect.Slice:
		if of.Elem() == reflect.TypeFor[SigninBind]() {
			eachLeaf(of.Elem(), next(func(v reflect.Value) reflect.Value { return grown(v).Index(1) }), path+"[1]", f)
		}
		eachLeaf(of.Elem(), next(func(v reflect.Value) reflect.Value { return grown(v).Index(0) }), path+"[0]", f)
	default:
		for i := range of.NumField() {
			eachLeaf(of.Field(i).Type, next(func(v reflect.Value) reflect.Value { return v.Field(i) }), path+"."+of.Field(i).Name, f)
		}
	}
}

// grown returns the list, with one empty element if it was empty.
func grown(v reflect.Value) reflect.Value {
	if v.Len() == 0 {
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	}
	return v
}

// TestRequestDigestOfStoredObject computes the digest before and after the API server has stored the object.
func TestRequestDigestOfStoredObject(t *testing.T) {
	spec := digestedSpec()
	spec.AskedAt = metav1.NewTime(spec.AskedAt.Add(300 * time.Millisecond).In(time.FixedZone("x", 3600)))
	spec.Bind[0], spec.Bind[1] = spec.Bind[1], spec.Bind[0]
	raw, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	var stored TkaRequestSpec
	if err := json.Unmarshal(raw, &stored); err != nil {
		t.Fatal(err)
	}
	for what, spec := range map[string]TkaRequestSpec{"sent": spec, "stored": stored} {
		if got, want := RequestDigest("c1", "r1", spec), RequestDigest("c1", "r1", digestedSpec()); got != want {
			t.Errorf("%s: got %s, want %s", what, got, want)
		}
	}
}
