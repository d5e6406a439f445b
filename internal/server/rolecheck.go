package server

import (
	"context"
	"fmt"
	"log/slog"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/internal/access"
)

// checkRoles checks for each configured role whether it exists and whether this account may bind it, so that a mistake shows at the start
// and not at the first sign-in. It returns an error when the account may bind none of them.
func checkRoles(ctx context.Context, config *rest.Config, roles []access.Role, log *slog.Logger) error {
	k, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	bindable := 0
	for _, r := range roles {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Group: "rbac.authorization.k8s.io", Resource: "clusterroles", Verb: "bind", Name: string(r)},
		}}
		review, err := k.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("check whether this account may bind the role %s: %w", r, err)
		}
		if !review.Status.Allowed {
			log.Error("a role of signin.roles cannot be granted: this account lacks the right to bind it", "role", r)
			continue
		}
		bindable++
		if _, err := k.RbacV1().ClusterRoles().Get(ctx, string(r), metav1.GetOptions{}); apierrors.IsNotFound(err) {
			log.Warn("a role of signin.roles does not exist in the cluster", "role", r)
		} else if err != nil {
			log.Warn("reading a role of signin.roles failed", "role", r, "err", err)
		}
	}
	if bindable == 0 {
		return fmt.Errorf("this account may bind none of the roles of signin.roles (%v): grant it the verb bind on those ClusterRoles, by name", roles)
	}
	return nil
}
