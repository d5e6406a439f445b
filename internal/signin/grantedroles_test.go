package signin_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/signin"
)

// roleRules are the rules of a cluster's roles.
var roleRules = map[access.Role][]signin.PolicyRule{
	"view": {{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}},
	"edit": {{Verbs: []string{"get", "create"}, APIGroups: []string{""}, Resources: []string{"pods", "secrets"}}},
}

// The granted roles come the least first, whatever their order in the policy, and only usable ones come.
func TestListRoles(t *testing.T) {
	edit, view := `{"role":"edit","period":"1h","namespaces":["blog","shop"]}`, `{"role":"view","period":"8h"}`
	shop, unlisted := `{"role":"edit","period":"2h","namespaces":["shop"]}`, `{"role":"deploy","period":"1h"}`
	for _, tt := range []struct {
		why     string
		rules   []string
		request signin.RolesRequest
		want    []signin.GrantedRole
	}{
		{"both allow it", []string{edit, view}, signin.RolesRequest{Verb: "get", Resource: "pods", Namespace: "shop"},
			[]signin.GrantedRole{{Role: "view", Allows: true}, {Role: "edit", Namespaces: []string{"blog", "shop"}, Allows: true}}},
		{"only the greater allows it", []string{view, edit}, signin.RolesRequest{Verb: "create", Resource: "pods", Namespace: "shop"},
			[]signin.GrantedRole{{Role: "view"}, {Role: "edit", Namespaces: []string{"blog", "shop"}, Allows: true}}},
		{"not in another namespace", []string{view, edit}, signin.RolesRequest{Verb: "create", Resource: "pods", Namespace: "other"},
			[]signin.GrantedRole{{Role: "view"}, {Role: "edit", Namespaces: []string{"blog", "shop"}}}},
		{"fewer namespaces first", []string{edit, shop, unlisted, view}, signin.RolesRequest{Verb: "create", Resource: "pods", Namespace: "shop"},
			[]signin.GrantedRole{{Role: "view"}, {Role: "edit", Namespaces: []string{"shop"}, Allows: true},
				{Role: "edit", Namespaces: []string{"blog", "shop"}, Allows: true}}},
		{"a role that needs namespaces is not usable", []string{`{"role":"edit","period":"1h"}`, view}, signin.RolesRequest{Verb: "create", Resource: "pods"},
			[]signin.GrantedRole{{Role: "view"}}},
		{"a path", []string{view}, signin.RolesRequest{Verb: "get", Path: "/healthz"}, []signin.GrantedRole{{Role: "view"}}},
	} {
		h, service, _ := newHandler(newMemoryStore(), func() (access.Caller, error) { return guarded("alice@example.com", "n1", tt.rules...), nil })
		service.ClusterWide = signin.ClusterWide{}
		service.RoleRules = func(_ context.Context, r access.Role) ([]signin.PolicyRule, error) { return roleRules[r], nil }
		w := request(h, signin.ListRoles.Declare(), tt.request)
		var got signin.GrantedRoles
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, got.Roles, cmpopts.EquateEmpty(), cmpopts.IgnoreUnexported(signin.GrantedRole{})); w.Code != http.StatusOK || diff != "" {
			t.Errorf("%s: got %d %s (-want +got):\n%s", tt.why, w.Code, w.Body, diff)
		}
	}
}

// A request that is not clear is refused. Roles that cannot be read give no answer, because an answer would be a guess.
func TestListRoles_refused(t *testing.T) {
	for _, tt := range []struct {
		query string
		fails error
		want  int
	}{
		{"?verb=get&resource=pods&namespace=shop", nil, http.StatusOK},
		{"?verb=get&resource=pods", errors.New("etcdserver: leader changed"), http.StatusServiceUnavailable},
		{"", nil, http.StatusBadRequest}, {"?verb=get", nil, http.StatusBadRequest}, {"?resource=pods", nil, http.StatusBadRequest},
		{"?verb=get&resource=pods&path=/healthz", nil, http.StatusBadRequest}, {"?verb=get&path=healthz", nil, http.StatusBadRequest},
		{"?verb=get&path=/healthz&namespace=shop", nil, http.StatusBadRequest}, {"?verb=get&resource=pods%0A", nil, http.StatusBadRequest},
	} {
		h, service, _ := newHandler(newMemoryStore(), func() (access.Caller, error) {
			return guarded("alice@example.com", "n1", `{"role":"view","period":"8h"}`), nil
		})
		service.RoleRules = func(_ context.Context, r access.Role) ([]signin.PolicyRule, error) { return roleRules[r], tt.fails }
		op := signin.ListRoles.Declare()
		op.Pattern += tt.query
		if w := request(h, op, nil); w.Code != tt.want {
			t.Errorf("%s: got %d %s, want %d", tt.query, w.Code, w.Body, tt.want)
		}
	}
}
