package controller

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet/isolation"
)

// bindFleetRole restores the RoleBinding of the fleet's service account in a namespace that the fleet
// created. Without it, the fleet cannot even read there. org is the owner of the namespace; empty
// means the shared namespace.
func bindFleetRole(ctx context.Context, c client.Client, account types.NamespacedName, namespace, org string) error {
	b := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: isolation.FleetRole, Labels: map[string]string{v1alpha1.ManagedByLabel: v1alpha1.ManagedBy}},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: isolation.FleetRole},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: account.Name, Namespace: account.Namespace}}}
	if org != "" {
		b.Labels[v1alpha1.OrgLabel] = org
	}
	if err := c.Create(ctx, b); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create the fleet's RoleBinding in %s: %w", namespace, err)
	}
	return nil
}

// listLeftovers returns the objects of an organisation in the shared namespace. With kept it returns the
// objects that the fleet manages there for the organisation. Otherwise it returns pods and
// Deployments. It never returns Secrets.
func listLeftovers(ctx context.Context, c client.Reader, shared, org string, retained bool) (left []*unstructured.Unstructured, err error) {
	ns := &corev1.Namespace{}
	err = c.Get(ctx, client.ObjectKey{Name: shared}, ns)
	if err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	namespaced, _ := baselineKinds()
	for _, kind := range namespaced {
		keeps := kind.Kind != "Pod" && kind.Kind != "Deployment" && kind.Kind != "Secret"
		if kind.Kind == "Secret" || keeps != retained {
			continue
		}
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		if err := c.List(ctx, list, client.InNamespace(shared), client.MatchingLabels{v1alpha1.OrgLabel: org}); err != nil {
			return nil, fmt.Errorf("list remaining objects: %w", err)
		}
		for i := range list.Items {
			left = append(left, &list.Items[i])
		}
	}
	return left, nil
}

// toUnstructured converts an object to its unstructured form; nil for nil.
func toUnstructured[T interface {
	*corev1.Secret | *appsv1.Deployment
	client.Object
}](o T) *unstructured.Unstructured {
	if o == nil {
		return nil
	}
	out, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil
	}
	u := &unstructured.Unstructured{Object: out}
	switch any(o).(type) {
	case *corev1.Secret:
		u.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	case *appsv1.Deployment:
		u.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("Deployment"))
	}
	return u
}
