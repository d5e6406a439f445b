package access_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

const (
	github = "https://token.actions.githubusercontent.com"

	deploy = `{"name":"deploy","role":"edit","period":"1h","allowTagged":true,"oidc":{"issuer":"` + github + `","audience":"prod-eu",` +
		`"claims":{"repository":"acme/shop","environment":"prod","ref":"refs/heads/*"}}}`
	deployHere = `{"role":"ops","period":"1h","allowTagged":true,"oidc":{"issuer":"` + github + `","claims":{"repository":"acme/shop"}}}`
	viewTagged = `{"role":"view","period":"8h","allowTagged":true}`
)

var tokenPolicy = func() access.Policy {
	p := policy
	p.Issuers = map[string]string{github: "prod-eu"}
	return p
}()

// tokenOf returns a token that fits the rule deploy, with changes; "" removes a claim.
func tokenOf(changes map[string]string) access.Token {
	t := access.Token{Issuer: github, Subject: "repo:acme/shop:environment:prod", Audience: "prod-eu", ID: "1", Claims: map[string]string{
		"repository": "acme/shop", "environment": "prod", "ref": "refs/heads/main", "actor": "mallory"}}
	for name, value := range changes {
		switch name {
		case "iss":
			t.Issuer = value
		case "aud":
			t.Audience = value
		default:
			if t.Claims[name] = value; value == "" {
				delete(t.Claims, name)
			}
		}
	}
	return t
}

func loginWith(t *testing.T, c access.Caller, token *access.Token, request access.Request) (access.Permit, error) {
	t.Helper()
	p, err := access.Decide(c, access.SigninLogin, tokenPolicy, t0)
	if err != nil {
		t.Fatal(err)
	}
	if token != nil {
		p = p.WithToken(*token)
	}
	return p.Choose(request)
}

// A rule with "oidc" counts only if the token fits it byte for byte, and "*" only at the end of ref.
func TestRuleWithToken(t *testing.T) {
	fits := tokenOf(nil)
	with := func(name, value string) *access.Token {
		token := tokenOf(map[string]string{name: value})
		return &token
	}
	for _, tt := range []struct {
		name    string
		rules   []string
		token   *access.Token
		request access.Role
		code    problem.Code
		says    string // part of the refusal, or the role
	}{
		{"fits", []string{deploy}, &fits, "", "", "edit"},
		{"none sent", []string{deploy}, nil, "", problem.TokenRequired, github},
		{"other issuer", []string{deploy}, with("iss", "https://evil.example"), "", problem.TokenRefused, "the issuer is not"},
		{"issuer with a slash", []string{deploy}, with("iss", github+"/"), "", problem.TokenRefused, "the issuer is not"},
		{"other audience", []string{deploy}, with("aud", "prod-us"), "", problem.TokenRefused, `the audience is not "prod-eu"`},
		{"other repository", []string{deploy}, with("repository", "acme/shop2"), "", problem.TokenRefused, `rule "deploy": the claim "repository" is not "acme/shop"`},
		{"other case", []string{deploy}, with("repository", "Acme/shop"), "", problem.TokenRefused, `the claim "repository"`},
		{"no environment", []string{deploy}, with("environment", ""), "", problem.TokenRefused, `no claim "environment"`},
		{"other branch", []string{deploy}, with("ref", "refs/heads/x"), "", "", "edit"},
		{"pull request", []string{deploy}, with("ref", "refs/pull/7/merge"), "", problem.TokenRefused, `the claim "ref" is not "refs/heads/*"`},
		{"audience of the server", []string{deployHere}, &fits, "", "", "ops"},
		{"not that of the server", []string{deployHere}, with("aud", "other"), "", problem.TokenRefused, `the audience is not "prod-eu"`},
		{"plain rule without token", []string{deploy, viewTagged}, nil, "", "", "view"},
		{"plain rule, other token", []string{deploy, viewTagged}, with("repository", "x/y"), "", "", "view"},
		{"both fit", []string{deploy, viewTagged}, &fits, "", problem.AmbiguousRole, ""},
		{"asked without token", []string{deploy, viewTagged}, nil, "edit", problem.TokenRequired, "deploy"},
		{"asked by name", []string{deploy, viewTagged}, with("ref", "x"), "deploy", problem.TokenRefused, `"ref"`},
		{"asked for an unknown role", []string{deploy, viewTagged}, nil, "admin", problem.RoleNotGranted, ""},
		{"twin without token", []string{deployHere, `{"role":"ops","period":"1h","allowTagged":true}`}, &fits, "", "", "ops"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := loginWith(t, ci(tt.rules...), tt.token, access.Request{Role: tt.request})
			if code := problem.CodeOf(err); code != tt.code {
				t.Fatalf("%q (%v), want %q", code, err, tt.code)
			}
			if err == nil {
				if got := string(p.Binds().Role()); got != tt.says {
					t.Errorf("role %q, want %q", got, tt.says)
				}
				return
			}
			text := err.Error()
			if !strings.Contains(text, tt.says) {
				t.Errorf("%q does not say %q", text, tt.says)
			}
			for _, word := range []string{"mallory", "evil", "refs/pull"} {
				if strings.Contains(text, word) {
					t.Errorf("%q prints %q of the token", text, word)
				}
			}
		})
	}
}

// The permit has the claims that rules required, so that the re-check can repeat the decision.
func TestClaimsOfPermit(t *testing.T) {
	fits := tokenOf(nil)
	p, err := loginWith(t, ci(deploy, deployHere), &fits, access.Request{Role: "ops"})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"repository": "acme/shop", "environment": "prod", "ref": "refs/heads/main"}
	if diff := cmp.Diff(want, p.Claims()); diff != "" {
		t.Errorf("claims (-want +got):\n%s", diff)
	}
	if p, err = loginWith(t, ci(viewTagged), nil, access.Request{}); err != nil || p.Claims() != nil {
		t.Errorf("without a token: %v, %v", p.Claims(), err)
	}
}

// A rule with "oidc" never covers a sign-in without a token, nor one whose stored claims do not fit.
func TestCoveringWithToken(t *testing.T) {
	fits, other := tokenOf(nil), tokenOf(map[string]string{"environment": "test"})
	for _, tt := range []struct {
		rule  string
		token *access.Token
		want  bool
	}{{deploy, nil, false}, {deploy, &other, false}, {deploy, &fits, true}, {`{"role":"edit","period":"1h","allowTagged":true}`, nil, true},
		{`{"role":"edit","period":"1h","allowTagged":true}`, &other, true}} {
		p, err := access.Decide(ci(tt.rule), access.SigninKubeconfig, tokenPolicy, t0)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Covers(access.Binds{{Role: "edit"}}, tt.token); got != tt.want {
			t.Errorf("%s covers with %v: %v, want %v", tt.rule, tt.token, got, tt.want)
		}
	}
}

// The explanation says which rule needs which token, and whether the server knows the issuer.
func TestExplainToken(t *testing.T) {
	other := strings.Replace(deployHere, github, "https://gitlab.example.com", 1)
	p, err := access.Decide(ci(deploy, viewTagged, other), access.Whoami, tokenPolicy, t0)
	if err != nil {
		t.Fatal(err)
	}
	rules := p.Explain().Rules
	for i, want := range []string{"requires an OIDC token", "", "does not accept tokens of https://gitlab.example.com"} {
		if got := rules[i].Problem; !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("rule %d: %q, want %q", i, got, want)
		}
	}
	if rules = p.WithToken(tokenOf(nil)).Explain().Rules; rules[0].Problem != "" {
		t.Errorf("with a token: %q", rules[0].Problem)
	}
	if _, err := p.CheckRule([]byte(other)); problem.CodeOf(err) != problem.TokenRefused {
		t.Errorf("check of a rule of another issuer: %v", err)
	}
}

// The field is decoded strictly: what is misspelt or could match more than it says makes the rule invalid.
func TestParseTokenRule(t *testing.T) {
	many := map[string]string{}
	for i := range 17 {
		many[fmt.Sprint("c", i)] = "x"
	}
	text := func(v any) string { b, _ := json.Marshal(v); return string(b) }
	for _, tt := range []struct{ oidc, says string }{
		{`null`, "not an object"},
		{`[]`, "not an object"},
		{`{"issuer":"https://a","claims":{"a":"b"}}`, ""},
		{`{"issuer":"https://a","claims":{"sub":"repo:a/b"}}`, ""},
		{`{"issuer":"https://a"}`, `"claims" is missing`},
		{`{"claims":{"a":"b"}}`, `"issuer" is missing`},
		{`{"issuer":"github","claims":{"a":"b"}}`, "is not a URL"},
		{`{"issuer":"https://a b","claims":{"a":"b"}}`, "is not a URL"},
		{`{"issuer":"https://a","claims":{}}`, "0 claims"},
		{`{"issuer":"https://a","claims":` + text(many) + `}`, "17 claims"},
		{`{"issuer":"https://a","claims":{"a":"` + strings.Repeat("x", 254) + `"}}`, "253 bytes"},
		{`{"issuer":"https://a","claims":{"` + strings.Repeat("x", 254) + `":"a"}}`, "name of a claim"},
		{`{"issuer":"https://a","claims":{"a":""}}`, "253 bytes"},
		{`{"issuer":"https://a","claims":{"a":true}}`, "not a string"},
		{`{"issuer":"https://a","claims":{"a":["b"]}}`, "not a string"},
		{`{"issuer":"https://a","claims":{"a":"b","a":"c"}}`, "occurs twice"},
		{`{"issuer":"https://a","claims":{"a":"b*"}}`, `possible only in "ref"`},
		{`{"issuer":"https://a","claims":{"ref":"*"}}`, `possible only in "ref"`},
		{`{"issuer":"https://a","claims":{"ref":"a*b"}}`, `possible only in "ref"`},
		{`{"issuer":"https://a","claims":{"ref":"a**"}}`, `possible only in "ref"`},
		{`{"issuer":"https://a","claims":{"aud":"x"}}`, "the server checks it"},
		{`{"issuer":"https://a","audience":"","claims":{"a":"b"}}`, `"audience"`},
		{`{"issuer":"https://a","audience":["x"],"claims":{"a":"b"}}`, `"audience"`},
		{`{"issuer":"https://a","claim":{"a":"b"}}`, "not a field"},
		{`{"Issuer":"https://a","claims":{"a":"b"}}`, "not a field"},
	} {
		_, err := access.ParseGrant([]byte(`{"role":"view","period":"1h","oidc":` + tt.oidc + `}`))
		switch {
		case tt.says == "" && err != nil:
			t.Errorf("%s: %v", tt.oidc, err)
		case tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)):
			t.Errorf("%s: %v, want %q", tt.oidc, err, tt.says)
		}
	}
}

// checkTokenRule checks that the decoded rule is exactly the text, and within the limits.
func checkTokenRule(t *testing.T, raw []byte, oidc json.RawMessage, got *access.TokenRule) {
	t.Helper()
	if oidc == nil {
		if got != nil {
			t.Fatalf("a token rule from %q", raw)
		}
		return
	}
	var want struct {
		Issuer, Audience string
		Claims           map[string]string
	}
	if err := json.Unmarshal(oidc, &want); err != nil {
		t.Fatalf("%q: %v", raw, err)
	}
	if got == nil {
		t.Fatalf("no token rule from %q", raw)
	}
	if diff := cmp.Diff(access.TokenRule(want), *got); diff != "" {
		t.Fatalf("%q (-want +got):\n%s", raw, diff)
	}
	if len(got.Claims) == 0 || len(got.Claims) > 16 {
		t.Fatalf("%d claims of %q", len(got.Claims), raw)
	}
	for name, value := range got.Claims {
		before, after, isPattern := strings.Cut(value, "*")
		if isPattern && (name != "ref" || before+after != before || before == "") {
			t.Fatalf("a pattern %q in %q", value, raw)
		}
	}
}
