package multicluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
)

func testSecret(annotations map[string]string, owners ...metav1.OwnerReference) *corev1.Secret {
	return &corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"l": "1"},
		Annotations: annotations, OwnerReferences: owners, Finalizers: []string{"f"}}, Data: map[string][]byte{"x": {0, 1, 2}}}
}

func encodeSecret(t testing.TB, o runtime.Object) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := protobuf.NewSerializer(nil, nil).Encode(o, &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// secretScheme is the part of a scheme that a decoder needs.
type secretScheme struct{ runtime.ObjectTyper }

func (secretScheme) New(schema.GroupVersionKind) (runtime.Object, error) {
	return &corev1.Secret{}, nil
}
func (secretScheme) Recognizes(schema.GroupVersionKind) bool { return true }
func (secretScheme) ObjectKinds(runtime.Object) ([]schema.GroupVersionKind, bool, error) {
	return []schema.GroupVersionKind{{Version: "v1", Kind: "Secret"}}, false, nil
}

func decodeSecret(b []byte) (*corev1.Secret, error) {
	var s corev1.Secret
	_, _, err := protobuf.NewSerializer(secretScheme{}, secretScheme{}).Decode(b, nil, &s)
	return &s, err
}

// AD-11: an object that is written in protobuf is read back in JSON, with real encoders and decoders.
func TestProtobuf(t *testing.T) {
	near := metav1.OwnerReference{APIVersion: "v1", Kind: "A", Name: "n", UID: "near"}
	isForeign := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "B", Name: "f", UID: "far", Controller: new(true), BlockOwnerDeletion: new(false)}
	for why, tt := range map[string]struct {
		was  *corev1.Secret
		same bool // nothing changes
		left int  // references that the cluster sees
	}{
		"none":                         {testSecret(nil), true, 0},
		"near":                         {testSecret(map[string]string{"a": "b"}, near), true, 1},
		"far":                          {testSecret(nil, isForeign), false, 0},
		"both":                         {testSecret(map[string]string{"a": "b"}, isForeign, near, isForeign), false, 1},
		"the client's own annotation":  {testSecret(map[string]string{ownersAnnotation: "x"}), false, 0},
		"and with one that is far too": {testSecret(map[string]string{ownersAnnotation: "x"}, near, isForeign), false, 1},
	} {
		t.Run(why, func(t *testing.T) {
			body := encodeSecret(t, tt.was)
			got, err := hideOwnerReferences(body, ownersProtobufType, foreignUID)
			if err != nil {
				t.Fatal(err)
			}
			if same := bytes.Equal(got, body); same && !tt.same {
				t.Error("the object is unchanged")
			}
			stored, err := decodeSecret(got)
			if err != nil {
				t.Fatal(err)
			}
			if len(stored.OwnerReferences) != tt.left {
				t.Errorf("the cluster receives %v", stored.OwnerReferences)
			}
			b, err := json.Marshal(stored)
			if err != nil {
				t.Fatal(err)
			}
			var is corev1.Secret
			if err := json.Unmarshal(restoreOwnerReferences(b), &is); err != nil {
				t.Fatal(err)
			}
			delete(tt.was.Annotations, ownersAnnotation)
			if len(tt.was.Annotations) == 0 {
				tt.was.Annotations = nil
			}
			if len(is.Annotations) == 0 {
				is.Annotations = nil
			}
			is.TypeMeta = tt.was.TypeMeta
			if !reflect.DeepEqual(&is, tt.was) {
				t.Errorf("read back as\n%+v\nwant\n%+v", &is, tt.was)
			}
		})
	}
	no := errors.New("no")
	if _, err := hideOwnerReferences(encodeSecret(t, testSecret(nil, isForeign)), ownersProtobufType, func(ownerReference) (bool, error) { return false, no }); err != no {
		t.Errorf("the error of the foreign check: %v", err)
	}
}

// FuzzProtobuf checks that no foreign owner passes, and that unknown fields are refused.
func FuzzProtobuf(f *testing.F) {
	f.Add(encodeSecret(f, testSecret(map[string]string{"a": "b", ownersAnnotation: "x"}, metav1.OwnerReference{UID: "far1", Name: "f"}, metav1.OwnerReference{UID: "near"})))
	f.Add([]byte("k8s\x00\x12\x06\x0a\x04\x6a\x02\x22\x00"))
	f.Fuzz(func(t *testing.T, body []byte) {
		out, err := hideOwnerReferences(body, ownersProtobufType, foreignUID)
		if err != nil {
			return
		}
		o, err := parseObject(out, ownersProtobufType, "")
		if err != nil {
			t.Fatalf("%q becomes %q, which is refused: %v", body, out, err)
		}
		for _, r := range o.OwnerReferences {
			if isForeign, _ := foreignUID(r); isForeign {
				t.Fatalf("%q passes a foreign owner: %q", body, out)
			}
		}
		if s, err := decodeSecret(out); err == nil {
			for _, r := range s.OwnerReferences {
				if isForeign, _ := foreignUID(ownerReference{UID: string(r.UID)}); isForeign {
					t.Fatalf("%q passes a foreign owner: %q", body, out)
				}
			}
		}
	})
}
