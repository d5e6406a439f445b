package controller

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/signin"
)

// withToken returns a sign-in of a job on a runner's node.
func withToken(o signin.Owner, subject string, period time.Duration) signin.Signin {
	o.Issuer, o.Subject = "https://issuer.example", subject
	s := newSignin(o, "view", period)
	s.Audience, s.Claims = "prod-eu", map[string]string{"repository": "acme/shop", "https://issuer.example/env": strings.Repeat("x", 1024)}
	return s
}

// Two jobs of one node have two sign-ins with two accounts, and the operator and the minting of tokens compute their names from what is stored.
func TestTokenOfJobIsPartOfOwner(t *testing.T) {
	p := newEnv(t)
	p.operate()
	s, _ := p.open()
	node := p.owner("node:runner.example.ts.net", "runner")
	one := p.login(s, withToken(node, "repo:acme/shop:one", time.Hour))
	two := p.login(s, withToken(node, "repo:acme/shop:two", time.Hour))
	if one.Name == two.Name || one.ServiceAccount == two.ServiceAccount {
		t.Errorf("both jobs have %s and %s", one.Name, one.ServiceAccount)
	}
	want := withToken(node, "repo:acme/shop:one", time.Hour)
	if diff := cmp.Diff([]any{want.Owner, want.Audience, want.Claims}, []any{one.Owner, one.Audience, one.Claims}); diff != "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}
	token, _, err := s.IssueToken(t.Context(), one, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.mayList(token, "default"); err != nil {
		t.Errorf("list pods as view: %v", err)
	}
	forged := two
	forged.Owner.Subject = one.Owner.Subject // as if somebody had written another subject
	if _, _, err := s.IssueToken(t.Context(), forged, time.Hour); !errors.Is(err, signin.ErrMismatch) {
		t.Errorf("a token for another subject: %v, want ErrMismatch", err)
	}
	for _, x := range []signin.Signin{one, two} {
		if err := s.Delete(t.Context(), x); err != nil {
			t.Fatal(err)
		}
		p.await(s, x.Name, gone)
	}
	p.nothingLeft()
}

// Nobody changes the token of a sign-in, adds one or removes it. The schema refuses what is out of its limits.
func TestTokenIsImmutable(t *testing.T) {
	p := newEnv(t)
	s, _ := p.open()
	with, err := s.Create(t.Context(), withToken(p.owner("node:a.example", "a"), "job", time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	without, err := s.Create(t.Context(), newSignin(p.owner("node:b.example", "b"), "view", time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(*v1alpha1.TkaSigninSpec){
		"issuer":       func(o *v1alpha1.TkaSigninSpec) { o.OIDC.Issuer = "https://evil.example" },
		"subject":      func(o *v1alpha1.TkaSigninSpec) { o.OIDC.Subject = "other" },
		"audience":     func(o *v1alpha1.TkaSigninSpec) { o.OIDC.Audience = "other" },
		"a claim":      func(o *v1alpha1.TkaSigninSpec) { o.OIDC.Claims["repository"] = "acme/web" },
		"a new claim":  func(o *v1alpha1.TkaSigninSpec) { o.OIDC.Claims["ref"] = "main" },
		"no claims":    func(o *v1alpha1.TkaSigninSpec) { o.OIDC.Claims = nil },
		"the removal":  func(o *v1alpha1.TkaSigninSpec) { o.OIDC = nil },
		"control text": func(o *v1alpha1.TkaSigninSpec) { o.OIDC.Subject = "a\nb" },
	} {
		o := p.object(with.Name)
		change(&o.Spec)
		if err := p.admin.Update(t.Context(), o); !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v, want Invalid", what, err)
		}
	}
	o := p.object(without.Name)
	o.Spec.OIDC = &v1alpha1.SigninToken{Issuer: "https://issuer.example", Subject: "job", Audience: "x"}
	if err := p.admin.Update(t.Context(), o); !apierrors.IsInvalid(err) {
		t.Errorf("a token for a sign-in without one: %v, want Invalid", err)
	}
	for what, change := range map[string]func(*signin.Signin){
		"an issuer that is no URL": func(s *signin.Signin) { s.Owner.Issuer = "issuer" },
		"no subject":               func(s *signin.Signin) { s.Owner.Subject = "" },
		"a long subject":           func(s *signin.Signin) { s.Owner.Subject = strings.Repeat("x", 1025) },
		"a long claim":             func(s *signin.Signin) { s.Claims["ref"] = strings.Repeat("x", 1025) },
		"many claims": func(s *signin.Signin) {
			for i := range 17 {
				s.Claims[fmt.Sprint(i)] = "x"
			}
		},
	} {
		x := withToken(p.owner("node:c.example", "c"), "job", time.Hour)
		change(&x)
		if _, err := s.Create(t.Context(), x); !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v, want Invalid", what, err)
		}
	}
	if _, err := s.Extend(t.Context(), with); err != nil {
		t.Errorf("extend: %v", err)
	}
	for _, x := range []signin.Signin{with, without} {
		removeObject(p, x.Name)
	}
}

// removeObject deletes a sign-in for which no operator runs.
func removeObject(p *env, name string) {
	p.t.Helper()
	o := p.object(name)
	o.Finalizers = nil
	if err := p.admin.Update(p.t.Context(), o); err != nil {
		p.t.Fatal(err)
	}
	if err := p.admin.Delete(p.t.Context(), o); err != nil {
		p.t.Fatal(err)
	}
}

// Two replicas and twenty devices that present one token at once: exactly one device wins, on the real API server.
func TestTokenCountsOnce(t *testing.T) {
	p := newEnv(t)
	token := jobToken("job-1", time.Now().Add(time.Hour))
	var replicas [2]*UsedTokens
	for i := range replicas {
		var err error
		if replicas[i], err = NewUsedTokens(p.accessConfig, p.ns, time.Now); err != nil {
			t.Fatal(err)
		}
	}
	if err := replicas[0].Use(t.Context(), token, "n0"); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("without the ConfigMap: %v", err)
	}
	if err := p.admin.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: UsedTokensConfigMap}}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	results := make([]error, 20)
	for i := range results {
		wg.Go(func() { results[i] = replicas[i%2].Use(t.Context(), token, fmt.Sprint("n", i)) })
	}
	wg.Wait()
	won := 0
	for i, err := range results {
		if err == nil {
			won++
		} else if !errors.Is(err, signin.ErrTokenUsed) {
			t.Errorf("device %d: %v", i, err)
		}
	}
	if won != 1 {
		t.Errorf("%d devices used one token", won)
	}
	// Different tokens at once do not disturb each other.
	for i := range results {
		wg.Go(func() {
			results[i] = replicas[i%2].Use(t.Context(), access.Token{Issuer: token.Issuer, ID: fmt.Sprint("own-", i), Expires: token.Expires}, fmt.Sprint("n", i))
		})
	}
	wg.Wait()
	for i, err := range results {
		if err != nil {
			t.Errorf("own token of device %d: %v", i, err)
		}
	}
}
