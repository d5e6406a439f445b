package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
)

// identityConfigMap is the name of a ConfigMap in the operator's namespace. Its UID distinguishes
// the operator from a copy in a cluster that was restored from this one.
const identityConfigMap = "tailplane-gateway-identity"

// identifyOperator returns the IDs that identify this operator to other operators. operatorID is id, or is
// derived from the cluster and the release if id is empty. instance is the UID of the
// identityConfigMap, which Identify creates if necessary.
func identifyOperator(ctx context.Context, c client.Client, namespace, release, id string) (operatorID, instance string, err error) {
	if id == "" {
		var ns corev1.Namespace
		if err := c.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, &ns); err != nil {
			return "", "", fmt.Errorf("read the cluster's ID: %w", err)
		}
		id = gateway.OperatorID(string(ns.UID), namespace, release)
	}
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: identityConfigMap, Labels: map[string]string{v1alpha1.ManagedLabel: "true"}}}
	err = c.Get(ctx, client.ObjectKeyFromObject(m), m)
	if apierrors.IsNotFound(err) {
		if err = c.Create(ctx, m); apierrors.IsAlreadyExists(err) { // another replica created it first
			err = c.Get(ctx, client.ObjectKeyFromObject(m), m)
		}
	}
	if err != nil {
		return "", "", fmt.Errorf("the ConfigMap with this operator's identity: %w", err)
	}
	return id, string(m.UID), nil
}
