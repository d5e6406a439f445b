package signin_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/identity"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/oidctest"
)

// usedTokens are used tokens in memory.
type usedTokens struct {
	devices map[string]string
	down    error
}

func (u *usedTokens) Use(_ context.Context, t access.Token, device string) error {
	key := t.Issuer + " " + t.ID
	switch have, used := u.devices[key]; {
	case u.down != nil:
		return u.down
	case used && have != device:
		return signin.ErrTokenUsed
	}
	u.devices[key] = device
	return nil
}

// A tokenEnv is a sign-in service that accepts the tokens of one issuer.
type tokenEnv struct {
	issuer  *oidctest.Issuer
	policy  access.Policy
	store   *memoryStore
	used    *usedTokens
	log     strings.Builder
	entries []audit.Entry
	caller  access.Caller
	handler http.Handler
}

func newTokenEnv(t *testing.T) *tokenEnv {
	t.Helper()
	e := &tokenEnv{issuer: oidctest.New(t), policy: guardPolicy, store: newMemoryStore(), used: &usedTokens{devices: map[string]string{}}}
	e.policy.Issuers = map[string]string{e.issuer.URL: "east"}
	verifier, err := identity.NewTokenVerifier([]identity.TokenIssuer{{URL: e.issuer.URL, KeysURL: e.issuer.KeysURL()}}, e.issuer.Client, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	service := &signin.Service{Store: e.store, Prefix: "tka-", MaxPerLogin: 3, RetryAfter: time.Second, MaxWait: time.Second, Now: time.Now,
		Cluster: signin.ClusterInfo{Name: "east", ServerURL: "https://k8s.example:6443", CAData: []byte("PEM")}, Tokens: verifier, UsedTokens: e.used}
	server := &httpapi.Server{
		Names: func() []string { return []string{"tka"} }, Identify: func(*http.Request) (access.Caller, error) { return e.caller, nil },
		Decide: func(c access.Caller, v access.Verb, now time.Time) (access.Permit, error) {
			return access.Decide(c, v, e.policy, now)
		},
		Record: func(entry audit.Entry) error { e.entries = append(e.entries, entry); return nil },
		Log:    slog.New(slog.NewTextHandler(&e.log, &slog.HandlerOptions{Level: slog.LevelDebug})), Now: time.Now,
	}
	e.handler = conformance.Handler(server.Handler(service.Routes()...))
	e.caller = e.runner("n1", e.rule("edit", `"repository":"acme/shop"`))
	return e
}

// rule returns a rule that requires the claims.
func (e *tokenEnv) rule(role, claims string) string {
	return fmt.Sprintf(`{"role":%q,"period":"1h","allowTagged":true,"oidc":{"issuer":%q,"claims":{%s}}}`, role, e.issuer.URL, claims)
}

func (e *tokenEnv) runner(device string, rules ...string) access.Caller {
	c := guarded("", device, rules...)
	c.Tags, c.Device.Name = []access.Tag{"tag:ci"}, "runner.tiny.ts.net"
	return c
}

func (e *tokenEnv) token(t *testing.T, job string, changes map[string]any) string {
	t.Helper()
	all := map[string]any{"repository": "acme/shop"}
	for name, value := range changes {
		all[name] = value
	}
	return e.issuer.Token(t, "repo:acme/shop:"+job, "east", all)
}

// do sends a request with a token, and decodes the answer into got if that is not nil.
func (e *tokenEnv) do(t *testing.T, op httpapi.Declaration, body any, token string, got any) problem.Code {
	t.Helper()
	w := requestWith(e.handler, op, body, http.Header{signin.TokenHeader: {token}})
	var p problem.Error
	if w.Code >= 400 {
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
			t.Fatalf("%s: %d %s", op.Pattern, w.Code, w.Body)
		}
		return p.Code
	}
	if got != nil {
		if err := json.Unmarshal(w.Body.Bytes(), got); err != nil {
			t.Fatalf("%s: %s: %v", op.Pattern, w.Body, err)
		}
	}
	return ""
}

func (e *tokenEnv) wantCode(t *testing.T, what string, want, got problem.Code) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// A login with a token stores what the re-check needs, and everything else needs the token again.
func TestSigninWithToken(t *testing.T) {
	e := newTokenEnv(t)
	first, again := e.token(t, "main", nil), e.token(t, "main", nil)
	e.wantCode(t, "login without token", problem.TokenRequired, e.do(t, signin.Login.Declare(), signin.LoginRequest{}, "", nil))
	var st signin.Status
	e.wantCode(t, "login", "", e.do(t, signin.Login.Declare(), signin.LoginRequest{}, first, &st))
	want := &signin.TokenIdentity{Issuer: e.issuer.URL, Subject: "repo:acme/shop:main", Claims: map[string]string{"repository": "acme/shop"}}
	if diff := cmp.Diff(want, st.Token); diff != "" {
		t.Errorf("token (-want +got):\n%s", diff)
	}
	s, _ := e.store.GetCached(st.Name)
	if s.Audience != "east" || s.Owner.Subject != "repo:acme/shop:main" {
		t.Errorf("stored: %q %q", s.Audience, s.Owner.Subject)
	}
	if got := e.entries[len(e.entries)-1].Args; got["issuer"] != e.issuer.URL || got["subject"] != "repo:acme/shop:main" {
		t.Errorf("audit entry: %v", got)
	}
	for _, op := range []httpapi.Declaration{signin.Read.Declare(), signin.GetKubeconfig.Declare(), signin.Logout.Declare()} {
		e.wantCode(t, op.Pattern+" without token", problem.NotSignedIn, e.do(t, op, struct{}{}, "", nil))
		e.wantCode(t, op.Pattern+" with a broken token", problem.TokenRefused, e.do(t, op, struct{}{}, first+"x", nil))
	}
	e.wantCode(t, "kubeconfig", "", e.do(t, signin.GetKubeconfig.Declare(), nil, again, nil))
	e.wantCode(t, "extend", "", e.do(t, signin.Login.Declare(), signin.LoginRequest{}, again, nil))
	if now, _ := e.store.GetCached(st.Name); now.UID != s.UID {
		t.Errorf("a repeated login replaced %s by %s", s.UID, now.UID)
	}
	other := e.issuer.Token(t, "repo:acme/shop:main", "west", map[string]any{"repository": "acme/shop"})
	e.wantCode(t, "another audience", problem.TokenRefused, e.do(t, signin.Read.Declare(), nil, other, nil))
	var who signin.Whoami
	e.wantCode(t, "whoami", "", e.do(t, signin.GetWhoami.Declare(), nil, again, &who))
	if who.Token == nil || who.Signin == nil {
		t.Errorf("whoami: %+v", who)
	}
	if !who.Rules[0].Chosen {
		t.Errorf("whoami: the rule is not chosen: %+v", who.Rules[0])
	}
	e.wantCode(t, "logout", "", e.do(t, signin.Logout.Declare(), struct{}{}, again, nil))
	if text := fmt.Sprint(e.log.String(), e.entries); strings.Contains(text, first) || strings.Contains(text, again) {
		t.Error("a token is in the log or in the audit log")
	}
}

// Two jobs on one runner's node: each sees and ends only its own sign-in. A job of a repository without a rule gets nothing.
func TestTwoJobsOnOneNode(t *testing.T) {
	e := newTokenEnv(t)
	one, two := e.token(t, "one", nil), e.token(t, "two", nil)
	var a, b signin.Status
	e.wantCode(t, "one", "", e.do(t, signin.Login.Declare(), signin.LoginRequest{}, one, &a))
	e.wantCode(t, "two before its login", problem.NotSignedIn, e.do(t, signin.GetKubeconfig.Declare(), nil, two, nil))
	e.wantCode(t, "two", "", e.do(t, signin.Login.Declare(), signin.LoginRequest{}, two, &b))
	if a.Name == b.Name {
		t.Fatalf("both jobs have the sign-in %s", a.Name)
	}
	for token, name := range map[string]string{one: a.Name, two: b.Name} {
		var all signin.Sessions
		e.wantCode(t, "sessions", "", e.do(t, signin.ListSessions.Declare(), nil, token, &all))
		if len(all.Sessions) != 1 || all.Sessions[0].Name != name {
			t.Errorf("sessions: %+v, want %s", all.Sessions, name)
		}
	}
	evil := e.issuer.Token(t, "repo:acme/other:one", "east", map[string]any{"repository": "acme/other"})
	e.wantCode(t, "another repository", problem.TokenRefused, e.do(t, signin.Login.Declare(), signin.LoginRequest{}, evil, nil))
	e.wantCode(t, "logout of two", "", e.do(t, signin.Logout.Declare(), struct{}{}, two, nil))
	e.wantCode(t, "one stays", "", e.do(t, signin.GetKubeconfig.Declare(), nil, one, nil))
}

// Two jobs with one subject and different claims: the one that no rule fits does not get the other's kubeconfig.
func TestSameSubjectOtherClaims(t *testing.T) {
	e := newTokenEnv(t)
	e.caller = e.runner("n1", e.rule("edit", `"repository":"acme/shop","job_workflow_ref":"deploy.yml"`), e.rule("view", `"repository":"acme/shop"`))
	deploy, lint := e.token(t, "main", map[string]any{"job_workflow_ref": "deploy.yml"}), e.token(t, "main", map[string]any{"job_workflow_ref": "lint.yml"})
	e.wantCode(t, "deploy", "", e.do(t, signin.Login.Declare(), signin.LoginRequest{Role: "edit"}, deploy, nil))
	e.wantCode(t, "kubeconfig for lint", problem.TokenRefused, e.do(t, signin.GetKubeconfig.Declare(), nil, lint, nil))
	e.wantCode(t, "kubeconfig for deploy", "", e.do(t, signin.GetKubeconfig.Declare(), nil, deploy, nil))
	e.wantCode(t, "edit for lint", problem.TokenRefused, e.do(t, signin.Login.Declare(), signin.LoginRequest{Role: "edit"}, lint, nil))
}

// A person's token on a shared tagged machine names the person: two people have two sign-ins, and nobody without a token has one.
func TestPersonOnSharedMachine(t *testing.T) {
	e := newTokenEnv(t)
	e.caller = e.runner("n1", e.rule("view", `"group":"sre"`), `{"role":"edit","period":"1h","allowTagged":true,"priority":-1}`)
	alice := e.issuer.Token(t, "alice", "east", map[string]any{"group": "sre"})
	bob := e.issuer.Token(t, "bob", "east", map[string]any{"group": "sre"})
	names := map[string]bool{}
	for _, token := range []string{alice, bob, ""} {
		var st signin.Status
		e.wantCode(t, "login", "", e.do(t, signin.Login.Declare(), signin.LoginRequest{}, token, &st))
		names[st.Name] = true
	}
	if len(names) != 3 {
		t.Errorf("%d sign-ins: %v", len(names), names)
	}
}

// A token counts once: another device of the same tag cannot replay it. A record that is full or unreadable refuses, and writes no sign-in.
func TestReplayOfToken(t *testing.T) {
	e := newTokenEnv(t)
	token := e.token(t, "main", nil)
	e.wantCode(t, "first device", "", e.do(t, signin.Login.Declare(), signin.LoginRequest{}, token, nil))
	e.caller = e.runner("n2", e.rule("edit", `"repository":"acme/shop"`))
	e.wantCode(t, "second device", problem.TokenRefused, e.do(t, signin.Login.Declare(), signin.LoginRequest{}, token, nil))
	e.used.down = errors.New("full")
	e.wantCode(t, "no record", problem.Unavailable, e.do(t, signin.Login.Declare(), signin.LoginRequest{}, e.token(t, "other", nil), nil))
	if all := e.store.ListCached("node:runner.tiny.ts.net"); len(all) != 1 {
		t.Errorf("%d sign-ins, want 1", len(all))
	}
}

// A valid token gives nothing to a device that the tailnet grants nothing, and causes no request to the issuer.
func TestTokenWithoutGrant(t *testing.T) {
	e := newTokenEnv(t)
	token := e.token(t, "main", nil)
	e.caller.Rules = nil
	e.caller.Tags = nil
	e.caller.Login = "mallory@example.com"
	e.wantCode(t, "login", problem.NoCapability, e.do(t, signin.Login.Declare(), signin.LoginRequest{}, token, nil))
	e.wantCode(t, "kubeconfig", problem.NoCapability, e.do(t, signin.GetKubeconfig.Declare(), nil, token, nil))
	e.caller.Device.ID = "" // the tailnet does not know the connection
	e.wantCode(t, "outside of the tailnet", problem.NoIdentity, e.do(t, signin.Login.Declare(), signin.LoginRequest{}, token, nil))
	if n := e.issuer.Asked(); n > 0 {
		t.Errorf("%d requests to the issuer", n)
	}
}

// Without the setting the server refuses tokens and does not ignore them. A header over the limit is refused as such.
func TestTokensNotAccepted(t *testing.T) {
	e := newTokenEnv(t)
	h, _, _ := newHandler(newMemoryStore(), func() (access.Caller, error) { return guarded("alice@example.com", "n1", eightHours), nil })
	w := requestWith(h, signin.Login.Declare(), signin.LoginRequest{}, http.Header{signin.TokenHeader: {e.token(t, "main", nil)}})
	if w.Code != http.StatusForbidden {
		t.Errorf("login: %d %s", w.Code, w.Body)
	}
	e.wantCode(t, "large", problem.BadRequest, e.do(t, signin.Login.Declare(), signin.LoginRequest{}, strings.Repeat("x", 9<<10), nil))
}

// The re-check ends a sign-in when its rule goes, when the rule wants other claims, and when a rule with a token replaces one without.
func TestRecheckWithToken(t *testing.T) {
	e := newTokenEnv(t)
	var st signin.Status
	e.wantCode(t, "login", "", e.do(t, signin.Login.Declare(), signin.LoginRequest{}, e.token(t, "main", map[string]any{"environment": "prod"}), &st))
	with, _ := e.store.GetCached(st.Name)
	without := live(e.runner("n1"), "edit", time.Now())
	rule, plain := e.rule("edit", `"repository":"acme/shop"`), `{"role":"edit","period":"1h","allowTagged":true}`
	for _, tt := range []struct {
		name string
		s    signin.Signin
		rule string
		ends bool
	}{
		{"same rule", with, rule, false},
		{"plain rule", with, plain, false},
		{"another claim", with, e.rule("edit", `"repository":"acme/web"`), true},
		{"a further claim that is not stored", with, e.rule("edit", `"repository":"acme/shop","environment":"prod"`), true},
		{"another issuer", with, strings.Replace(rule, e.issuer.URL, "https://evil.example", 1), true},
		{"another role", with, e.rule("view", `"repository":"acme/shop"`), true},
		{"a sign-in without token", without, rule, true},
		{"a sign-in without token, plain rule", without, plain, false},
	} {
		got := signin.Recheck(tt.s, signin.DeviceState{Caller: e.runner("n1", tt.rule)}, e.policy, time.Minute, time.Now())
		if got.End != tt.ends {
			t.Errorf("%s: ends %v (%s), want %v", tt.name, got.End, got.Reason, tt.ends)
		}
	}
	// A server whose settings no longer have the issuer ends the sign-in, also if the rule names the audience itself.
	delete(e.policy.Issuers, e.issuer.URL)
	for _, r := range []string{rule, strings.Replace(rule, `"claims"`, `"audience":"east","claims"`, 1)} {
		if got := signin.Recheck(with, signin.DeviceState{Caller: e.runner("n1", r)}, e.policy, time.Minute, time.Now()); !got.End {
			t.Errorf("an issuer that the server no longer accepts, and the rule %s: the sign-in goes on", r)
		}
	}
	e.policy.Issuers[e.issuer.URL] = "east"
	e.caller = e.runner("n1", plain, e.rule("view", `"repository":"acme/shop"`))
	e.caller.Rules = e.caller.Rules[1:] // the rule for edit is gone
	e.wantCode(t, "kubeconfig", problem.GrantRemoved, e.do(t, signin.GetKubeconfig.Declare(), nil, e.token(t, "main", nil), nil))
	if _, there := e.store.GetCached(st.Name); there {
		t.Error("the sign-in is still there")
	}
}

// The name of an owner without a token stays, and no issuer and subject give the name of another owner.
func TestOwnerNameWithToken(t *testing.T) {
	base := signin.Owner{Login: "node:runner", DeviceID: "n1", Tailnet: "example.com"}
	seen := map[string]string{}
	for _, o := range []signin.Owner{base, {Session: "s"}, {Issuer: "a", Subject: "b"}, {Issuer: "a", Subject: "b", Session: "s"}, {Issuer: "ab"}, {Issuer: "a", Subject: "c"},
		{Session: "oidc"}} {
		o.Login, o.DeviceID, o.Tailnet = base.Login, base.DeviceID, base.Tailnet
		if other, twice := seen[o.Name()]; twice {
			t.Errorf("%+v and %s have one name", o, other)
		}
		seen[o.Name()] = fmt.Sprintf("%+v", o)
	}
}

// A token prints as redacted, also as a part of a request.
func TestIDTokenPrintsRedacted(t *testing.T) {
	var log strings.Builder
	req := signin.LoginRequest{RequestToken: signin.RequestToken{Token: signin.NewIDToken("s3cret")}}
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "token", req.Token, "req", req)
	body, err := json.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprintf("%v %+v %#v %s %s %v", req, req, req, log.String(), body, req.AuditArgs()); strings.Contains(text, "s3cret") {
		t.Errorf("printed: %s", text)
	}
}
