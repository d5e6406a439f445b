package signin_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

// readSecrets are rules that reach every ServiceAccount.
var readSecrets = []signin.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"secrets"}}}

// SI-15: the access server refuses a sign-in to the whole cluster with a role that reaches every ServiceAccount, unless
// signin.clusterWide names it. A live sign-in is not extended, and keeps its tokens.
func TestSI15_Login(t *testing.T) {
	who := guarded("alice@example.com", "n1", `{"role":"edit","period":"1h","priority":1}`, `{"role":"view","period":"8h"}`)
	down := errors.New("etcdserver: leader changed")
	for _, tt := range []struct {
		why     string
		list    signin.ClusterWide
		request signin.LoginRequest
		fails   error
		want    problem.Code
	}{
		{"empty list", signin.ClusterWide{}, signin.LoginRequest{}, nil, problem.RoleNeedsNamespaces},
		{"another role is named", signin.ClusterWide{{Role: "view"}}, signin.LoginRequest{}, nil, problem.RoleNeedsNamespaces},
		{"only by request", signin.ClusterWide{{Role: "edit", ByRequest: true}}, signin.LoginRequest{}, nil, problem.RoleNeedsNamespaces},
		{"named", signin.ClusterWide{{Role: "edit"}}, signin.LoginRequest{}, nil, ""},
		{"no list", nil, signin.LoginRequest{}, nil, ""},
		{"narrowed to a namespace", signin.ClusterWide{}, signin.LoginRequest{Namespaces: []string{"shop"}}, nil, ""},
		{"a harmless role", signin.ClusterWide{}, signin.LoginRequest{Role: "view"}, nil, ""},
		{"the rules are not known", signin.ClusterWide{}, signin.LoginRequest{}, down, problem.Unavailable},
		{"no list, and the rules are not known", nil, signin.LoginRequest{}, down, ""},
	} {
		store := newMemoryStore()
		h, service, _ := newHandler(store, func() (access.Caller, error) { return who, nil })
		service.ClusterWide, service.RoleRules = tt.list, func(_ context.Context, r access.Role) ([]signin.PolicyRule, error) {
			if r == "edit" {
				return readSecrets, tt.fails
			}
			return nil, nil
		}
		w := request(h, signin.Login.Declare(), tt.request)
		var p problem.Error
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
			t.Fatal(err)
		}
		if p.Code != tt.want || (len(store.signins) == 1) != (tt.want == "") {
			t.Errorf("%s: got %d %q and %d sign-ins, want %q", tt.why, w.Code, p.Code, len(store.signins), tt.want)
		}
	}

	t.Run("a live sign-in", func(t *testing.T) {
		store := newMemoryStore()
		owner := signin.OwnerOf(who, "")
		before, err := store.Create(t.Context(), signin.Signin{Name: owner.Name(), Owner: owner, Binds: access.Binds{{Role: "edit"}}, Period: time.Hour, AskedAt: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		h, service, _ := newHandler(store, func() (access.Caller, error) { return who, nil })
		service.ClusterWide = signin.ClusterWide{}
		service.RoleRules = func(context.Context, access.Role) ([]signin.PolicyRule, error) { return readSecrets, nil }
		if w := request(h, signin.Login.Declare(), signin.LoginRequest{}); w.Code != http.StatusForbidden {
			t.Errorf("extend: got %d %s, want %d", w.Code, w.Body, http.StatusForbidden)
		}
		if diff := cmp.Diff(before, store.signins[owner.Name()]); diff != "" {
			t.Errorf("it changed (-want +got):\n%s", diff)
		}
		if w := request(h, signin.GetKubeconfig.Declare(), nil); w.Code != http.StatusOK {
			t.Errorf("kubeconfig: got %d %s, want %d", w.Code, w.Body, http.StatusOK)
		}
	})
}

// SI-15: whoami says which rules the server refuses, and warns about roles that it allows only because the setting is
// absent. A caller without a grant causes no call to the API server.
func TestSI15_Whoami(t *testing.T) {
	const refusal = `The role "edit" reaches every ServiceAccount when it is bound in the whole cluster: it may read Secrets. signin.clusterWide does not allow it.`
	const warning = `The role "edit" reaches every ServiceAccount when it is bound in the whole cluster: it may read Secrets. It is allowed because signin.clusterWide is not set.`
	type result struct {
		Allowed  bool
		Code     problem.Code
		Problems []string
		Advice   []string
		Looked   bool
	}
	rules := []string{`{"role":"edit","period":"1h","priority":1}`, `{"role":"edit","period":"1h","namespaces":["shop"]}`, `{"role":"view","period":"8h"}`}
	for _, tt := range []struct {
		why   string
		list  signin.ClusterWide
		rules []string
		want  result
	}{
		{"empty list", signin.ClusterWide{}, rules, result{false, problem.RoleNeedsNamespaces, []string{refusal, "", ""}, []string{
			"Sign in to the namespaces that you need: tka login --role edit --namespace NAME",
			"Ask an administrator to name namespaces in the grant, or to list the role in signin.clusterWide."}, true}},
		{"no list", nil, rules, result{true, "", []string{"", "", ""}, []string{warning}, true}},
		{"named", signin.ClusterWide{{Role: "edit"}}, rules, result{true, "", []string{"", "", ""}, []string{}, true}},
		{"no grant", signin.ClusterWide{}, nil, result{false, problem.NoCapability, nil, nil, false}},
	} {
		who, looked := guarded("alice@example.com", "n1", tt.rules...), false
		h, service, _ := newHandler(newMemoryStore(), func() (access.Caller, error) { return who, nil })
		service.ClusterWide, service.RoleRules = tt.list, func(_ context.Context, r access.Role) ([]signin.PolicyRule, error) {
			if looked = true; r == "edit" {
				return readSecrets, nil
			}
			return nil, nil
		}
		var got signin.Whoami
		if err := json.Unmarshal(request(h, signin.GetWhoami.Declare(), nil).Body.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		is := result{Allowed: got.Decision.Allowed, Code: got.Decision.Code, Advice: got.Decision.Advice, Looked: looked}
		for _, r := range got.Rules {
			is.Problems = append(is.Problems, r.Problem)
		}
		if tt.rules == nil {
			is.Advice = nil
		}
		if diff := cmp.Diff(tt.want, is); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.why, diff)
		}
	}
}
