package controller

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

// prepareApply converts an object for server-side apply. It adds the hash of the object and removes
// fields that the Go type always writes, even if they are empty. The hash does not cover secret
// data.
func prepareApply(o runtime.Object) (*unstructured.Unstructured, error) {
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

// upToDate reports whether the object has everything that is wanted. Additions of others are
// allowed, except in data, which the fleet owns completely.
func upToDate(want, is *unstructured.Unstructured) bool {
	if is == nil {
		return false
	}
	had, _, _ := unstructured.NestedMap(is.Object, "data")
	data, _, _ := unstructured.NestedMap(want.Object, "data")
	return len(had) == len(data) && isSubset(want.Object, is.Object)
}

func isSubset(want, is any) bool {
	switch want := want.(type) {
	case nil:
		return true
	case map[string]any:
		is, _ := is.(map[string]any)
		for key, value := range want {
			if !isSubset(value, is[key]) {
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
			if !isSubset(want[i], is[i]) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(want, is)
}

// isManagedFor reports whether the fleet created an object for that organisation. The organisation "" means
// an object for all of them.
func isManagedFor(o client.Object, org string) bool {
	return o.GetLabels()[v1alpha1.ManagedByLabel] == v1alpha1.ManagedBy && o.GetLabels()[v1alpha1.OrgLabel] == org
}

// applyObject applies an object with server-side apply.
func applyObject(ctx context.Context, c client.Client, u *unstructured.Unstructured) error {
	if err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(u.DeepCopy()), client.ForceOwnership); err != nil {
		return fmt.Errorf("apply %s %s: %w", u.GetKind(), client.ObjectKeyFromObject(u), err)
	}
	return nil
}

// listManaged returns the existing objects of one kind in one namespace, by name. It reads only objects
// that the fleet created.
func listManaged(ctx context.Context, c client.Reader, kind schema.GroupVersionKind, namespace string, labels client.MatchingLabels) (map[string]*unstructured.Unstructured, error) {
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

// getObject reads one object; nil if it does not exist.
func getObject(ctx context.Context, c client.Reader, kind schema.GroupVersionKind, key client.ObjectKey) (*unstructured.Unstructured, error) {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(kind)
	err := c.Get(ctx, key, u)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get %s %s: %w", kind.Kind, key, err)
	}
	return u, nil
}
