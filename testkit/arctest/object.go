//go:build unix

package arctest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

func text(u *unstructured.Unstructured, path ...string) string {
	s, _, _ := unstructured.NestedString(u.Object, path...)
	return s
}

func number(u *unstructured.Unstructured, path ...string) int64 {
	v, _, _ := unstructured.NestedFieldNoCopy(u.Object, path...)
	switch v := v.(type) {
	case int64:
		return v
	case string:
		n, _ := strconv.ParseInt(v, 10, 64)
		return n
	}
	return 0
}

// patch merges a change into an object and returns the result.
func (a *ARC) patch(ctx context.Context, resource schema.GroupVersionResource, u *unstructured.Unstructured, change map[string]any, manager string, subresources ...string) (*unstructured.Unstructured, error) {
	return patchBy(ctx, a.client, resource, u, change, manager, subresources...)
}

func patchBy(ctx context.Context, client *dynamic.DynamicClient, resource schema.GroupVersionResource, u *unstructured.Unstructured, change map[string]any, manager string, subresources ...string) (*unstructured.Unstructured, error) {
	b, err := json.Marshal(change)
	if err != nil {
		return nil, err
	}
	return client.Resource(resource).Namespace(u.GetNamespace()).Patch(ctx, u.GetName(), types.MergePatchType, b, metav1.PatchOptions{FieldManager: manager}, subresources...)
}

// status writes a part of an object's status, unless it is already there.
func (a *ARC) status(ctx context.Context, resource schema.GroupVersionResource, u *unstructured.Unstructured, status map[string]any) error {
	has, _, _ := unstructured.NestedMap(u.Object, "status")
	same := true
	for k, v := range status {
		h, there := has[k]
		same = same && there && fmt.Sprint(h) == fmt.Sprint(v)
	}
	if same {
		return nil
	}
	changed, err := a.patch(ctx, resource, u, map[string]any{"status": status}, "manager", "status")
	if err != nil {
		return gone(err)
	}
	u.Object = changed.Object
	return nil
}

// create creates an object. It leaves an existing object unchanged.
func (a *ARC) create(ctx context.Context, resource schema.GroupVersionResource, kind string, namespace string, meta, rest map[string]any) (*unstructured.Unstructured, error) {
	return createBy(ctx, a.client, resource, kind, namespace, meta, rest)
}

func createBy(ctx context.Context, client *dynamic.DynamicClient, resource schema.GroupVersionResource, kind string, namespace string, meta, rest map[string]any) (*unstructured.Unstructured, error) {
	o := map[string]any{"apiVersion": resource.GroupVersion().String(), "kind": kind, "metadata": meta}
	maps.Copy(o, rest)
	b, err := json.Marshal(o) // converts all numbers to the types that an API server returns
	if err != nil {
		return nil, err
	}
	u := new(unstructured.Unstructured)
	if err := u.UnmarshalJSON(b); err != nil {
		return nil, err
	}
	u, err = client.Resource(resource).Namespace(namespace).Create(ctx, u, metav1.CreateOptions{FieldManager: "manager"})
	if apierrors.IsAlreadyExists(err) {
		return nil, nil
	}
	return u, err
}

// ours returns the labels that ARC adds to all objects of a set: the set's own labels and its identity.
func (v *scaleSetView) ours(component string) map[string]any {
	labels := map[string]any{}
	for k, l := range v.set.GetLabels() {
		labels[k] = l
	}
	maps.Copy(labels, map[string]any{"actions.github.com/scale-set-name": v.k.Name, "actions.github.com/scale-set-namespace": v.k.Namespace,
		"app.kubernetes.io/part-of": "gha-runner-scale-set", "app.kubernetes.io/component": component, "app.kubernetes.io/version": v.set.GetLabels()["app.kubernetes.io/version"]})
	return labels
}

func controlledBy(u *unstructured.Unstructured) []any {
	return []any{map[string]any{"apiVersion": u.GetAPIVersion(), "kind": u.GetKind(), "name": u.GetName(), "uid": string(u.GetUID()), "controller": true, "blockOwnerDeletion": true}}
}

// place creates the controller's own pod.
func (a *ARC) place(ctx context.Context, version string) error {
	pod, err := createBy(ctx, a.admin, podResource, "Pod", a.o.Namespace, map[string]any{"name": podName, "labels": map[string]any{"app.kubernetes.io/part-of": "gha-rs-controller",
		"app.kubernetes.io/component": "controller-manager", "app.kubernetes.io/version": version, "app.kubernetes.io/name": "gha-rs-controller", "app.kubernetes.io/instance": "arc"}},
		map[string]any{"spec": map[string]any{"serviceAccountName": "arc-gha-rs-controller", "containers": []any{map[string]any{"name": "manager", "image": "gha-runner-scale-set-controller:" + version}}}})
	if err != nil {
		return fmt.Errorf("the fake ARC's pod: %w", err)
	}
	if pod == nil {
		return fmt.Errorf("the fake ARC's pod: there is one in namespace %s already", a.o.Namespace)
	}
	return a.ready(ctx, pod)
}

// ready sets the pod's status as a node would. On a cluster with a node, the node sets it.
func (a *ARC) ready(ctx context.Context, pod *unstructured.Unstructured) error {
	if text(pod, "spec", "nodeName") != "" || isReady(pod) {
		return nil
	}
	now := metav1.Now().UTC().Format("2006-01-02T15:04:05Z")
	var conditions []any
	for _, c := range []string{"PodScheduled", "Initialized", "ContainersReady", "Ready"} {
		conditions = append(conditions, map[string]any{"type": c, "status": "True", "lastTransitionTime": now})
	}
	_, err := patchBy(ctx, a.admin, podResource, pod, map[string]any{"status": map[string]any{"phase": "Running", "conditions": conditions, "podIP": "127.0.0.1", "podIPs": []any{map[string]any{"ip": "127.0.0.1"}}}}, "kubelet", "status")
	return gone(err)
}

func isReady(pod *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(pod.Object, "status", "conditions")
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["type"] == "Ready" {
			return c["status"] == "True"
		}
	}
	return false
}

// remove deletes a pod at once and reports whether it is gone.
func (a *ARC) remove(ctx context.Context, namespace, name string) (bool, error) {
	pods := a.client.Resource(podResource).Namespace(namespace)
	if err := pods.Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		return apierrors.IsNotFound(err), gone(err)
	}
	_, err := pods.Get(ctx, name, metav1.GetOptions{})
	return apierrors.IsNotFound(err), gone(err)
}
