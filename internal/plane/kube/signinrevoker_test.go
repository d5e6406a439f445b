//go:build unix

package kube

import (
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/testkit/kubetest"
)

// Only the owner of a sign-in, or a caller with a permit for all, can end it, and only the existing one. It does not matter what the caller
// of Revoke has checked (PL-08). The response says what happened.
func TestPL08_Revoke(t *testing.T) {
	p := newWriterEnv(t)
	api, err := Connect(p.Config, time.Now)
	p.Must(err)
	service := api.Signins(p.Namespace)
	const viewer, operator = `{"role":"viewer","orgs":["*"]}`, `{"role":"operator","orgs":["*"]}`
	alices := p.Signin("alices", "alice@example.com")
	p.Create(alices)
	found := func() bool {
		err := p.Admin.Get(t.Context(), client.ObjectKeyFromObject(alices), new(v1alpha1.TkaSignin))
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		return err == nil
	}
	revoke := func(permit access.Permit, ns, name string, dry bool) (deleted bool, code problem.Code) {
		r, err := service.Revoke(t.Context(), permit, ns, name, "test", dry)
		if r.Deleted != (r.RefusedBy != nil) {
			t.Errorf("%+v is ambiguous", r)
		}
		if err != nil {
			code = problem.CodeOf(err)
		}
		return r.Deleted, code
	}
	for _, x := range []struct {
		why      string
		permit   access.Permit
		ns, name string
		code     problem.Code
	}{
		{"no permit", access.Permit{}, p.Namespace, "alices", problem.Internal},
		{"a permit for another thing", p.Permit("alice@example.com", operator, access.SigninsRead), p.Namespace, "alices", problem.Internal},
		{"another person's", p.Permit("vic@example.com", viewer, access.SigninsRevoke), p.Namespace, "alices", problem.NotFound},
		{"a login that begins like the owner's", p.Permit("alice@example.com.evil.example", viewer, access.SigninsRevoke), p.Namespace, "alices", problem.NotFound},
		{"another namespace", p.Permit("pat@example.com", operator, access.SigninsRevoke), "default", "alices", problem.NotFound},
		{"none", p.Permit("pat@example.com", operator, access.SigninsRevoke), p.Namespace, "", problem.NotFound},
		{"one that there is not", p.Permit("pat@example.com", operator, access.SigninsRevoke), p.Namespace, "bobs", problem.NotFound},
	} {
		if deleted, code := revoke(x.permit, x.ns, x.name, false); deleted || code != x.code {
			t.Errorf("%s: %v %q, want %q", x.why, deleted, code, x.code)
		}
	}
	all := p.Permit("pat@example.com", operator, access.SigninsRevoke)
	switch deleted, code := revoke(all, p.Namespace, "alices", true); {
	case deleted:
		t.Errorf("a dry run: deleted is true; deleted = %v, code = %q", deleted, code)
	case code != "":
		t.Errorf("a dry run: code = %q, want none", code)
	case !found():
		t.Errorf("a dry run: found() is false; deleted = %v, code = %q", deleted, code)
	}
	if !found() {
		t.Fatal("it is gone")
	}
	switch deleted, code := revoke(p.Permit("alice@example.com", viewer, access.SigninsRevoke), p.Namespace, "alices", false); {
	case !deleted:
		t.Errorf("the caller's own: deleted is false; deleted = %v, code = %q", deleted, code)
	case code != "":
		t.Errorf("the caller's own: code = %q, want none", code)
	case found():
		t.Errorf("the caller's own: found() is true; deleted = %v, code = %q", deleted, code)
	}
	if deleted, code := revoke(all, p.Namespace, "alices", false); deleted || code != problem.NotFound {
		t.Errorf("again: %v %q", deleted, code)
	}
	p.Create(p.Signin("bobs", "bob@example.com"))
	if deleted, code := revoke(all, p.Namespace, "bobs", false); !deleted || code != "" {
		t.Errorf("another person's, by an operator of all: %v %q", deleted, code)
	}

	// An API server that does not respond has ended nothing.
	gate, through := kubetest.NewGate(t, p.Config)
	api, err = Connect(through, time.Now)
	p.Must(err)
	service = api.Signins(p.Namespace)
	p.Create(p.Signin("carols", "carol@example.com"))
	gate.Set(true, false)
	if deleted, code := revoke(all, p.Namespace, "carols", false); deleted || code != problem.Unavailable {
		t.Errorf("away: %v %q", deleted, code)
	}
}
