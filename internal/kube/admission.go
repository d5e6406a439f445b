package kube

import (
	"context"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// IsPolicyInForce reports whether the ValidatingAdmissionPolicy called name and its binding of the
// same name exist and deny what the policy refuses. It needs get on both, by name. An error means
// that it is not known.
func IsPolicyInForce(ctx context.Context, c client.Reader, name string) (bool, error) {
	key := client.ObjectKey{Name: name}
	p, b := new(admissionv1.ValidatingAdmissionPolicy), new(admissionv1.ValidatingAdmissionPolicyBinding)
	if err := c.Get(ctx, key, p); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	if err := c.Get(ctx, key, b); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	return p.DeletionTimestamp == nil && len(p.Spec.Validations) > 0 &&
		(p.Spec.FailurePolicy == nil || *p.Spec.FailurePolicy == admissionv1.Fail) &&
		b.DeletionTimestamp == nil && b.Spec.PolicyName == name && b.Spec.MatchResources == nil &&
		slices.Contains(b.Spec.ValidationActions, admissionv1.Deny), nil
}
