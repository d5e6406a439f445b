//go:build unix

package planekube

import (
	"encoding/json"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

// permit is what the plane's door would give a caller with one rule.
func (p *place) permit(login, rule string, v access.Verb) access.Permit {
	p.Helper()
	permit, err := access.DecidePlane(access.Caller{Login: access.Login(login), Device: access.Device{ID: "n", Name: "n"}, Via: access.ViaTailnet, Rules: []json.RawMessage{[]byte(rule)}},
		v, access.PlanePolicy{Capability: "tailplane.dev/cap/plane"}, time.Now())
	p.must(err)
	return permit
}

// A sign-in is ended by its owner and by whom the permit is for all, exactly the one
// that there is, and by nobody else, whatever the caller of Revoke has checked
// before (PL-08). The answer says what has happened.
func TestPL08_Revoke(t *testing.T) {
	p := newPlace(t, nil)
	desk, err := NewSignins(p.config, p.ns, time.Now)
	p.must(err)
	const viewer, operator = `{"role":"viewer","orgs":["*"]}`, `{"role":"operator","orgs":["*"]}`
	alices := p.signin("alices", "alice@example.com")
	p.create(alices)
	there := func() bool {
		err := p.admin.Get(t.Context(), client.ObjectKeyFromObject(alices), new(v1alpha1.TkaSignin))
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		return err == nil
	}
	revoke := func(permit access.Permit, ns, name string, dry bool) (deleted bool, code problem.Code) {
		r, err := desk.Revoke(t.Context(), permit, ns, name, "test", dry)
		if r.Deleted != (r.RefusedBy != nil) {
			t.Errorf("%+v says two things", r)
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
		{"no permit", access.Permit{}, p.ns, "alices", problem.Internal},
		{"a permit for another thing", p.permit("alice@example.com", operator, access.SigninsRead), p.ns, "alices", problem.Internal},
		{"somebody else's", p.permit("vic@example.com", viewer, access.SigninsRevoke), p.ns, "alices", problem.NotFound},
		{"a login that begins like the owner's", p.permit("alice@example.com.evil.example", viewer, access.SigninsRevoke), p.ns, "alices", problem.NotFound},
		{"another namespace", p.permit("pat@example.com", operator, access.SigninsRevoke), "default", "alices", problem.NotFound},
		{"none", p.permit("pat@example.com", operator, access.SigninsRevoke), p.ns, "", problem.NotFound},
		{"one that there is not", p.permit("pat@example.com", operator, access.SigninsRevoke), p.ns, "bobs", problem.NotFound},
	} {
		if deleted, code := revoke(x.permit, x.ns, x.name, false); deleted || code != x.code {
			t.Errorf("%s: %v %q, want %q", x.why, deleted, code, x.code)
		}
	}
	all := p.permit("pat@example.com", operator, access.SigninsRevoke)
	if deleted, code := revoke(all, p.ns, "alices", true); deleted || code != "" || !there() {
		t.Errorf("a dry run: %v %q", deleted, code)
	}
	if !there() {
		t.Fatal("it is gone")
	}
	if deleted, code := revoke(p.permit("alice@example.com", viewer, access.SigninsRevoke), p.ns, "alices", false); !deleted || code != "" || there() {
		t.Errorf("one's own: %v %q", deleted, code)
	}
	if deleted, code := revoke(all, p.ns, "alices", false); deleted || code != problem.NotFound {
		t.Errorf("again: %v %q", deleted, code)
	}
	p.create(p.signin("bobs", "bob@example.com"))
	if deleted, code := revoke(all, p.ns, "bobs", false); !deleted || code != "" {
		t.Errorf("anybody's, by an operator of all: %v %q", deleted, code)
	}

	// An API server that cannot be asked has ended nothing.
	gate, through := newGate(t, p.config)
	desk, err = NewSignins(through, p.ns, time.Now)
	p.must(err)
	p.create(p.signin("carols", "carol@example.com"))
	gate.set(true, false)
	if deleted, code := revoke(all, p.ns, "carols", false); deleted || code != problem.Unavailable {
		t.Errorf("away: %v %q", deleted, code)
	}
}
