//go:build unix

package arctest

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
)

var (
	roleResource    = schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"}
	bindingResource = schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"}
	accountResource = schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}
)

// rights are the rights that ARC's own chart gives to its controller: all of ARC's kinds in all namespaces, and the
// needs of its listeners in its own namespace. In the runners' namespaces, the creator of scale sets must grant the
// rest.
const rights = `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: %[1]s-gha-rs-controller}
rules:
- {apiGroups: [actions.github.com], resources: ["*"], verbs: [create, delete, get, list, patch, update, watch]}
- {apiGroups: [""], resources: [pods, serviceaccounts], verbs: [list, watch]}
- {apiGroups: [rbac.authorization.k8s.io], resources: [roles, rolebindings], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: %[1]s-gha-rs-controller}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %[1]s-gha-rs-controller}
subjects: [{kind: ServiceAccount, name: arc-gha-rs-controller, namespace: %[1]s}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: arc-gha-rs-controller-listener, namespace: %[1]s}
rules:
- {apiGroups: [""], resources: [pods], verbs: [create, delete, get]}
- {apiGroups: [""], resources: [pods/status], verbs: [get]}
- {apiGroups: [""], resources: [secrets, serviceaccounts], verbs: [create, delete, get, patch, update]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: arc-gha-rs-controller-listener, namespace: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: arc-gha-rs-controller-listener}
subjects: [{kind: ServiceAccount, name: arc-gha-rs-controller, namespace: %[1]s}]
`

// confine gives ARC the account of its Deployment, with the rights of its chart.
func (a *ARC) confine(ctx context.Context) error {
	if err := a.o.Cluster.Apply(ctx, fmt.Appendf(nil, rights, a.o.Namespace)); err != nil {
		return err
	}
	admin, err := kubernetes.NewForConfig(a.o.Cluster.AdminConfig())
	if err != nil {
		return err
	}
	token, err := admin.CoreV1().ServiceAccounts(a.o.Namespace).CreateToken(ctx, "arc-gha-rs-controller", &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(12 * 60 * 60))}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	a.client, err = dynamic.NewForConfig(a.o.Cluster.TokenConfig(token.Status.Token))
	return err
}

// equip creates the objects that a listener needs: an account and a configuration in its namespace, and the right to
// scale its runner set.
func (v *scaleSetView) equip(ctx context.Context) error {
	name := v.listener.GetName()
	labels := v.ours("runner-scale-set-listener")
	for _, o := range []struct {
		resource        schema.GroupVersionResource
		kind, namespace string
		rest            map[string]any
	}{
		{accountResource, "ServiceAccount", v.o.Namespace, nil},
		{secretResource, "Secret", v.o.Namespace, map[string]any{"stringData": map[string]any{"config.json": "the listener's configuration"}}},
		{roleResource, "Role", v.k.Namespace, map[string]any{"rules": []any{
			map[string]any{"apiGroups": []any{"actions.github.com"}, "resources": []any{"ephemeralrunnersets"}, "resourceNames": []any{text(v.listener, "spec", "ephemeralRunnerSetName")}, "verbs": []any{"patch"}},
			map[string]any{"apiGroups": []any{"actions.github.com"}, "resources": []any{"ephemeralrunners", "ephemeralrunners/status"}, "verbs": []any{"patch"}}}}},
		{bindingResource, "RoleBinding", v.k.Namespace, map[string]any{"roleRef": map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
			"subjects": []any{map[string]any{"kind": "ServiceAccount", "name": name, "namespace": v.o.Namespace}}}},
	} {
		if _, err := v.create(ctx, o.resource, o.kind, o.namespace, map[string]any{"name": name, "labels": labels}, o.rest); err != nil {
			return fmt.Errorf("%s of a listener: %w", o.kind, err)
		}
	}
	return nil
}

// strip deletes the objects of equip.
func (v *scaleSetView) strip(ctx context.Context) error {
	name := v.listener.GetName()
	for _, o := range []struct {
		resource  schema.GroupVersionResource
		namespace string
	}{{bindingResource, v.k.Namespace}, {roleResource, v.k.Namespace}, {secretResource, v.o.Namespace}, {accountResource, v.o.Namespace}} {
		if err := v.client.Resource(o.resource).Namespace(o.namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}
