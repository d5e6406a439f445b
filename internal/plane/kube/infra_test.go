package kube

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/plane"
)

// A sign-in shows the OIDC token with which it began: two jobs on one runner differ in it only.
func TestSigninShowsToken(t *testing.T) {
	o := &v1alpha1.TkaSignin{Spec: v1alpha1.TkaSigninSpec{User: v1alpha1.SigninUser{Login: "node:runner"}}}
	if got := signinOf(o, time.Now()).(plane.Signin).OIDC; got != nil {
		t.Errorf("without a token: %+v", got)
	}
	o.Spec.OIDC = &v1alpha1.SigninToken{Issuer: "https://issuer.example", Subject: "repo:acme/shop:main", Audience: "east",
		Claims: map[string]v1alpha1.SigninClaim{"repository": "acme/shop"}}
	want := &plane.SigninToken{Issuer: "https://issuer.example", Subject: "repo:acme/shop:main", Claims: map[string]string{"repository": "acme/shop"}}
	if diff := cmp.Diff(want, signinOf(o, time.Now()).(plane.Signin).OIDC); diff != "" {
		t.Errorf("token (-want +got):\n%s", diff)
	}
}
