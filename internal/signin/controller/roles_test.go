//go:build unix

package controller

import (
	"context"
	"fmt"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/internal/signin"
)

// What AllowedBy says about the stored rules of a role equals what the authorizer of a real API server decides about a user who has that
// role and no other, in the whole cluster and in one namespace.
func TestAllowedBy_realAuthorizer(t *testing.T) {
	p := newProductEnv(t)
	shop := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "shop-"}}
	custom := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{GenerateName: "custom-"}, Rules: []rbacv1.PolicyRule{
		{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*/scale"}},
		{Verbs: []string{"update", "get"}, APIGroups: []string{"apps"}, Resources: []string{"deployments"}, ResourceNames: []string{"web"}},
		{Verbs: []string{"get"}, NonResourceURLs: []string{"/metrics/*", "/debug/pprof"}},
	}}
	for _, o := range []client.Object{shop, custom} {
		p.create(o)
	}
	questions := func(ns string) (all []signin.Attributes) {
		for _, verb := range []string{"get", "create", "update", "impersonate"} {
			for _, a := range []signin.Attributes{
				{Resource: "pods"}, {Resource: "pods", Subresource: "exec"}, {Resource: "secrets", Name: "x"}, {Resource: "nodes"},
				{Resource: "serviceaccounts"}, {Resource: "serviceaccounts", Subresource: "token"}, {Group: "apps", Resource: "deployments"},
				{Group: "apps", Resource: "deployments", Name: "web"}, {Group: "apps", Resource: "deployments", Subresource: "scale"}, {Group: "example.dev", Resource: "widgets"},
				{Path: "/metrics/slis"}, {Path: "/metrics"}, {Path: "/debug/pprof"}, {Path: "/debug/pprof/heap"},
			} {
				if a.Verb = verb; a.Path == "" {
					a.Namespace = ns
				}
				all = append(all, a)
			}
		}
		return all
	}
	for _, role := range []string{"view", "edit", "admin", "cluster-admin", "tailplane-edit", custom.Name} {
		ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}
		rules := RoleRules(p.clusterRole(role))
		wide, narrow := "wide-"+shop.Name+"-"+role, "narrow-"+shop.Name+"-"+role
		p.create(&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: wide}, RoleRef: ref, Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: wide}}})
		p.create(&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: narrow, Namespace: shop.Name}, RoleRef: ref, Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: narrow}}})
		for user, namespaces := range map[string][]string{wide: nil, narrow: {shop.Name}} {
			scale := signin.Attributes{Verb: "get", Group: "apps", Resource: "deployments", Subresource: "scale", Namespace: shop.Name} // every role has it
			p.until("the binding of "+user+" is in force", func() bool { return p.authorizes(user, scale) })
			for _, ns := range []string{shop.Name, "default", ""} {
				for _, a := range questions(ns) {
					if got, want := a.AllowedBy(rules, namespaces), p.authorizes(user, a); got != want {
						t.Errorf("%s in %v, %+v: got %v, want %v", role, namespaces, a, got, want)
					}
				}
			}
		}
	}
}

// authorizes reports whether the API server allows the user a request.
func (p *env) authorizes(user string, a signin.Attributes) bool {
	p.t.Helper()
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: user}}
	if a.Path != "" {
		review.Spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Verb: a.Verb, Path: a.Path}
	} else {
		review.Spec.ResourceAttributes = &authorizationv1.ResourceAttributes{Verb: a.Verb, Group: a.Group, Resource: a.Resource,
			Subresource: a.Subresource, Name: a.Name, Namespace: a.Namespace}
	}
	if err := p.admin.Create(p.t.Context(), review); err != nil {
		p.t.Fatal(fmt.Errorf("review of %s: %w", user, err))
	}
	return review.Status.Allowed
}

// create creates an object as an administrator, and deletes it after the test.
func (p *env) create(o client.Object) {
	p.t.Helper()
	if err := p.admin.Create(p.t.Context(), o); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		if err := p.admin.Delete(context.WithoutCancel(p.t.Context()), o); err != nil {
			p.t.Error(err)
		}
	})
}
