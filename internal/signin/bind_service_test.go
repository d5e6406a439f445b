package signin_test

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

const (
	dayRule   = `{"name":"day","period":"8h","bind":[{"role":"view"},{"role":"edit","namespaces":["shop"]}]}`
	nightRule = `{"name":"night","period":"8h","bind":[{"role":"view"},{"role":"edit","namespaceSelector":"team=jobs"}]}`
)

// Two rules with overlapping roles: each login gets one of them, never both. Two sessions of one
// device have different ones, and a rule that loses a role ends only the sign-in that it gave.
func TestTwoRulesWithSeveralRoles(t *testing.T) {
	alice := guarded("alice@example.com", "n1", dayRule, nightRule)
	store := newMemoryStore()
	h, _, entries := newHandler(store, func() (access.Caller, error) { return alice, nil })
	login := func(req signin.LoginRequest, want int) (st signin.Status, p problem.Error) {
		t.Helper()
		w := request(h, signin.Login.Declare(), req)
		if w.Code != want {
			t.Fatalf("login %+v: %d %s, want %d", req, w.Code, w.Body, want)
		}
		if err := json.Unmarshal(w.Body.Bytes(), &st); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
			t.Fatal(err)
		}
		return st, p
	}
	_, refused := login(signin.LoginRequest{}, http.StatusBadRequest)
	want := []problem.Choice{{Rule: "day", Role: "view,edit", Where: "view in the whole cluster, edit in shop", Period: "8h0m0s"},
		{Rule: "night", Role: "view,edit", Where: "view in the whole cluster, edit in the namespaces with the labels team=jobs", Period: "8h0m0s"}}
	if diff := cmp.Diff(want, refused.Choices); diff != "" {
		t.Errorf("choices (-want +got):\n%s", diff)
	}
	day, _ := login(signin.LoginRequest{Role: "day"}, http.StatusAccepted)
	night, _ := login(signin.LoginRequest{Role: "night", Session: "night"}, http.StatusAccepted)
	type shown struct {
		Role, Rule string
		Namespaces []string
		Bind       []signin.Role
	}
	show := func(st signin.Status) shown { return shown{st.Role, st.Rule, st.Namespaces, st.Bind} }
	wantDay := shown{"view,edit", "day", []string{}, []signin.Role{{Role: "view"}, {Role: "edit", Namespaces: []string{"shop"}}}}
	if diff := cmp.Diff(wantDay, show(day)); diff != "" {
		t.Errorf("day (-want +got):\n%s", diff)
	}
	wantNight := shown{"view,edit", "night", []string{}, []signin.Role{{Role: "view"}, {Role: "edit", Selector: "team=jobs"}}}
	night.Bind[1].Bound = nil // the store in memory binds the selector's namespaces nowhere
	if diff := cmp.Diff(wantNight, show(night)); diff != "" {
		t.Errorf("night (-want +got):\n%s", diff)
	}
	if got := (*entries)[len(*entries)-1].Args["role"]; got != "night" {
		t.Errorf("the audit entry has the role %q", got)
	}

	// The rule of the day loses a role. Its sign-in ends, and the other one stays.
	alice = guarded("alice@example.com", "n1", `{"name":"day","period":"8h","bind":[{"role":"view"}]}`, nightRule)
	policy, now := guardPolicy, time.Now()
	for name, ends := range map[string]bool{day.Name: true, night.Name: false} {
		s, there := store.GetCached(name)
		if !there {
			t.Fatalf("no sign-in %s", name)
		}
		if got := signin.Recheck(s, signin.DeviceState{Caller: alice}, policy, time.Minute, now); got.End != ends {
			t.Errorf("%s (%s) ends: %v %s, want %v", name, s.Binds, got.End, got.Reason, ends)
		}
	}
	if w := request(h, signin.GetKubeconfig.Declare(), nil); w.Code != http.StatusForbidden {
		t.Errorf("kubeconfig after the change: %d %s", w.Code, w.Body)
	}
	if _, there := store.GetCached(day.Name); there {
		t.Error("the sign-in is still there")
	}
	if _, there := store.GetCached(night.Name); !there {
		t.Error("the sign-in of the other session is gone")
	}
}

// A repeated login with the same roles in another order extends the sign-in. Fewer roles replace it.
func TestLoginWithOtherRoles(t *testing.T) {
	rules := []string{dayRule}
	store := newMemoryStore()
	h, _, _ := newHandler(store, func() (access.Caller, error) { return guarded("alice@example.com", "n1", rules...), nil })
	uid := func() string {
		t.Helper()
		if w := request(h, signin.Login.Declare(), signin.LoginRequest{}); w.Code != http.StatusAccepted {
			t.Fatalf("login: %d %s", w.Code, w.Body)
		}
		all := store.ListCached("alice@example.com")
		if len(all) != 1 {
			t.Fatalf("%d sign-ins", len(all))
		}
		return all[0].UID
	}
	first := uid()
	rules = []string{`{"period":"8h","bind":[{"role":"edit","namespaces":["shop"]},{"role":"view"}]}`}
	if again := uid(); again != first {
		t.Errorf("another order replaced the sign-in: %s, was %s", again, first)
	}
	rules = []string{eightHours}
	if fewer := uid(); fewer == first {
		t.Error("fewer roles extended the sign-in")
	}
}

// Whoami shows the roles of each rule, and which role needs namespaces.
func TestWhoamiShowsRoles(t *testing.T) {
	alice := guarded("alice@example.com", "n1", dayRule)
	h, _, _ := newHandler(newMemoryStore(), func() (access.Caller, error) { return alice, nil })
	var w signin.Whoami
	r := request(h, signin.GetWhoami.Declare(), nil)
	if err := json.Unmarshal(r.Body.Bytes(), &w); err != nil {
		t.Fatal(err)
	}
	if len(w.Rules) != 1 {
		t.Fatalf("rules: %+v", w.Rules)
	}
	if diff := cmp.Diff([]signin.Role{{Role: "view"}, {Role: "edit", Namespaces: []string{"shop"}}}, w.Rules[0].Bind); diff != "" {
		t.Errorf("bind (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(`A login gives the role "view" for 8h in the whole cluster, and the role "edit" for 8h in shop.`, w.Decision.Message); diff != "" {
		t.Errorf("message (-want +got):\n%s", diff)
	}
}
