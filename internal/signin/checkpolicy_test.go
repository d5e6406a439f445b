package signin_test

import (
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

var sentence = regexp.MustCompile(`^[A-Z].*\.$`)

// A server says which rules of a policy it would refuse, and why. It reads only its own capability, and only grants that can be for it.
func TestCheckPolicy(t *testing.T) {
	const capability = "tailplane.dev/cap/access"
	grant := func(dst string, rules ...string) signin.PolicyGrant {
		g := signin.PolicyGrant{Dst: strings.Fields(dst), App: map[string][]json.RawMessage{"tailplane.dev/cap/plane": {json.RawMessage(`{"x":1}`)}}}
		for _, r := range rules {
			g.App[capability] = append(g.App[capability], json.RawMessage(r))
		}
		return g
	}
	request1 := signin.PolicyRequest{Grants: []signin.PolicyGrant{
		grant("tag:tailplane", `{"role":"view","period":"8h"}`, `{"role":"view","period":"8h","colour":"red"}`),
		grant("tag:other", `{"rule":"of another cluster"}`),
		grant("tag:other *", `{"role":"admin","period":"8h"}`, `{"role":"edit","period":"8h"}`),
		grant("hosts-of-eu", `{"role":"view","period":"1m"}`, `{"role":"view","period":"2m","namespaces":["tailplane-system"]}`),
		grant("tag:tailplane"), // only other capabilities
	}}
	caller := guarded("alice@example.com", "n1", `{"role":"view","period":"8h"}`)
	h, service, _ := newHandler(newMemoryStore(), func() (access.Caller, error) { return caller, nil })
	service.Tags, service.ClusterWide = []string{"tag:tailplane"}, signin.ClusterWide{}
	service.RoleRules = func(_ context.Context, r access.Role) ([]signin.PolicyRule, error) {
		return map[access.Role][]signin.PolicyRule{"edit": readSecrets}[r], nil
	}
	w := request(h, signin.CheckPolicy.Declare(), request1)
	var got signin.PolicyCheck
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Capability != capability || got.Checked != 6 {
		t.Errorf("got the capability %q and %d checked rules, want %q and 6", got.Capability, got.Checked, capability)
	}
	type at struct {
		Grant, Rule int
		Says        string
	}
	want := []at{{0, 1, `"colour"`}, {2, 0, `"admin"`}, {2, 1, "signin.clusterWide"}, {3, 0, "1m"}, {3, 1, "2m"}}
	if !slices.EqualFunc(got.Problems, want, func(p signin.PolicyProblem, w at) bool {
		return p.Grant == w.Grant && p.Rule == w.Rule && strings.Contains(p.Message, w.Says)
	}) {
		t.Errorf("got %+v, want %+v", got.Problems, want)
	}
	for _, p := range got.Problems {
		if !sentence.MatchString(p.Message) {
			t.Errorf("%q is not a sentence", p.Message)
		}
	}

	// What it refuses here is what a caller with the rule is refused at login.
	for _, tt := range []struct {
		grant, rule int
		code        problem.Code
	}{{0, 0, ""}, {0, 1, problem.BadCapability}, {2, 0, problem.RoleNotAllowed}, {2, 1, problem.RoleNeedsNamespaces}} {
		caller = guarded("alice@example.com", "n1", string(request1.Grants[tt.grant].App[capability][tt.rule]))
		var refused problem.Error
		if err := json.Unmarshal(request(h, signin.Login.Declare(), signin.LoginRequest{}).Body.Bytes(), &refused); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.code, refused.Code); diff != "" {
			t.Errorf("login by rule %d of grant %d (-want +got):\n%s", tt.rule, tt.grant, diff)
		}
	}
}

func TestCheckPolicy_bounds(t *testing.T) {
	h, _, _ := newHandler(newMemoryStore(), func() (access.Caller, error) {
		return guarded("alice@example.com", "n1", `{"role":"view","period":"8h"}`), nil
	})
	for n, want := range map[int]int{0: http.StatusOK, signin.MaxPolicyGrants: http.StatusOK, signin.MaxPolicyGrants + 1: http.StatusBadRequest} {
		r := signin.PolicyRequest{Grants: make([]signin.PolicyGrant, n)}
		if w := request(h, signin.CheckPolicy.Declare(), r); w.Code != want {
			t.Errorf("%d grants: got %d %s, want %d", n, w.Code, w.Body, want)
		}
	}
}
