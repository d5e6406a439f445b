// Package furnish applies objects to the cluster and reports whether they match the desired state.
// It implements law 7: an object that cannot be read counts neither as present nor as missing. It
// does not change objects of others.
package furnish

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
)

// appliedAnnotation holds a hash of the applied object. A changed hash also reveals fields that
// must no longer be there.
const appliedAnnotation = "tailplane.dev/applied"

// Wanted converts an object for server-side apply. It adds the hash of the object and removes
// fields that the Go type always writes, even if they are empty. The hash does not cover secret
// data.
func Wanted(o runtime.Object) (*unstructured.Unstructured, error) {
	out, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(out)}
	delete(u.Object, "status")
	for _, path := range [][]string{{"metadata", "creationTimestamp"}, {"metadata", "resourceVersion"}, {"spec", "template", "metadata", "creationTimestamp"}} {
		unstructured.RemoveNestedField(u.Object, path...)
	}
	hashed := maps.Clone(u.Object)
	delete(hashed, "data") // the data are compared directly
	text, err := json.Marshal(hashed)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	notes := u.GetAnnotations()
	if notes == nil {
		notes = map[string]string{}
	}
	notes[appliedAnnotation] = hex.EncodeToString(sum[:8])
	u.SetAnnotations(notes)
	return u, nil
}

// Settled reports whether the object has everything that is wanted. Additions of others are
// allowed, except in data, which the fleet owns completely.
func Settled(want, is *unstructured.Unstructured) bool {
	if is == nil {
		return false
	}
	had, _, _ := unstructured.NestedMap(is.Object, "data")
	data, _, _ := unstructured.NestedMap(want.Object, "data")
	return len(had) == len(data) && within(want.Object, is.Object)
}

func within(want, is any) bool {
	switch want := want.(type) {
	case nil:
		return true
	case map[string]any:
		is, _ := is.(map[string]any)
		for key, value := range want {
			if !within(value, is[key]) {
				return false
			}
		}
		return true
	case []any:
		is, _ := is.([]any)
		if len(want) != len(is) {
			return false
		}
		for i := range want {
			if !within(want[i], is[i]) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(want, is)
}

// Ours reports whether the fleet created an object for that organisation. The organisation "" means
// an object for all of them.
func Ours(o client.Object, org string) bool {
	return o.GetLabels()[v1alpha1.ManagedByLabel] == v1alpha1.ManagedBy && o.GetLabels()[v1alpha1.OrgLabel] == org
}

// Apply applies an object with server-side apply.
func Apply(ctx context.Context, c client.Client, u *unstructured.Unstructured) error {
	if err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(u.DeepCopy()), client.ForceOwnership); err != nil {
		return fmt.Errorf("apply %s %s: %w", u.GetKind(), client.ObjectKeyFromObject(u), err)
	}
	return nil
}

// Present returns the existing objects of one kind in one namespace, by name. It reads only objects
// that the fleet created.
func Present(ctx context.Context, c client.Reader, kind schema.GroupVersionKind, namespace string, labels client.MatchingLabels) (map[string]*unstructured.Unstructured, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	where := client.MatchingLabels{v1alpha1.ManagedByLabel: v1alpha1.ManagedBy}
	maps.Copy(where, labels)
	if err := c.List(ctx, list, client.InNamespace(namespace), where); err != nil {
		return nil, fmt.Errorf("list %s in %s: %w", kind.Kind, namespace, err)
	}
	out := map[string]*unstructured.Unstructured{}
	for i := range list.Items {
		out[list.Items[i].GetName()] = &list.Items[i]
	}
	return out, nil
}

// Get reads one object; nil if it does not exist.
func Get(ctx context.Context, c client.Reader, kind schema.GroupVersionKind, key client.ObjectKey) (*unstructured.Unstructured, error) {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(kind)
	err := c.Get(ctx, key, u)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look at %s %s: %w", kind.Kind, key, err)
	}
	return u, nil
}
