package access_test

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

var requestPolicy = func() access.Policy {
	pol := policy
	pol.Requests = access.RequestPolicy{Enabled: true, Capability: "tailplane.dev/cap/requests", Floor: map[access.Role]int{"ops": 2},
		SamePerson: [][]access.Person{{{Login: "alice@example.com", UserID: "1"}, {Login: "alice-admin@example.com", UserID: "9"}}}}
	return pol
}()

func bob(rs ...string) access.Caller {
	return access.Caller{Login: "bob@example.com", UserID: "2", Device: access.Device{ID: "b1", Name: "phone.tiny.ts.net"},
		Tailnet: "example.com", Via: access.ViaTailnet, RequestRules: rules(rs...)}
}

func asking(rs ...string) access.Caller {
	c := alice()
	c.RequestRules = rules(rs...)
	return c
}

// TestREQ15ApproveRuleCoversEveryBinding is the table of approve rules against the roles of a request.
func TestREQ15ApproveRuleCoversEveryBinding(t *testing.T) {
	const (
		editAny   = `{"approve":["edit"]}`
		editShop  = `{"approve":["edit"],"namespaces":["shop"]}`
		editTwo   = `{"approve":["edit"],"namespaces":["shop","shop-jobs"]}`
		bothAny   = `{"approve":["edit","view"]}`
		bothShop  = `{"approve":["edit","view"],"namespaces":["shop"]}`
		viewAny   = `{"approve":["view"]}`
		opsAny    = `{"approve":["ops"]}`
		askedEdit = `{"role":"edit","period":"1h"}`
	)
	bind := func(role access.Role, ns ...string) access.Bind { return access.Bind{Role: role, Namespaces: ns} }
	labelled := access.Bind{Role: "edit", Selector: "team=shop"}
	for _, x := range []struct {
		name  string
		rules []string
		binds access.Binds
		may   bool
	}{
		{"no rule", nil, access.Binds{bind("edit", "shop")}, false},
		{"only a rule to ask", []string{askedEdit}, access.Binds{bind("edit", "shop")}, false},
		{"anywhere, in one", []string{editAny}, access.Binds{bind("edit", "shop")}, true},
		{"anywhere, in two", []string{editAny}, access.Binds{bind("edit", "shop", "web")}, true},
		{"anywhere, in the cluster", []string{editAny}, access.Binds{bind("edit")}, true},
		{"anywhere, by labels", []string{editAny}, access.Binds{labelled}, true},
		{"one, in one", []string{editShop}, access.Binds{bind("edit", "shop")}, true},
		{"one, in another", []string{editShop}, access.Binds{bind("edit", "web")}, false},
		{"one, in two", []string{editShop}, access.Binds{bind("edit", "shop", "web")}, false},
		{"one, in the cluster", []string{editShop}, access.Binds{bind("edit")}, false},
		{"one, by labels", []string{editShop}, access.Binds{labelled}, false},
		{"two, in one", []string{editTwo}, access.Binds{bind("edit", "shop")}, true},
		{"two, in both", []string{editTwo}, access.Binds{bind("edit", "shop", "shop-jobs")}, true},
		{"two, in three", []string{editTwo}, access.Binds{bind("edit", "shop", "shop-jobs", "web")}, false},
		{"another role", []string{viewAny}, access.Binds{bind("edit", "shop")}, false},
		{"a wider role", []string{opsAny}, access.Binds{bind("edit", "shop")}, false},
		{"both roles", []string{bothAny}, access.Binds{bind("edit", "shop"), bind("view")}, true},
		{"both roles in one, in one", []string{bothShop}, access.Binds{bind("edit", "shop"), bind("view", "shop")}, true},
		{"both roles in one, one in the cluster", []string{bothShop}, access.Binds{bind("edit", "shop"), bind("view")}, false},
		{"both roles in one, one in another", []string{bothShop}, access.Binds{bind("edit", "shop"), bind("view", "web")}, false},
		{"one of two roles", []string{editAny}, access.Binds{bind("edit", "shop"), bind("view", "shop")}, false},
		{"the other of two roles", []string{viewAny}, access.Binds{bind("edit", "shop"), bind("view", "shop")}, false},
		{"two rules do not add up", []string{editAny, viewAny}, access.Binds{bind("edit", "shop"), bind("view", "shop")}, false},
		{"two rules, each namespace one", []string{editShop, `{"approve":["edit"],"namespaces":["web"]}`}, access.Binds{bind("edit", "shop", "web")}, false},
		{"two rules, one covers", []string{viewAny, bothAny}, access.Binds{bind("edit", "shop"), bind("view", "shop")}, true},
		{"a rule to ask beside", []string{askedEdit, editShop}, access.Binds{bind("edit", "shop")}, true},
		{"two roles of three", []string{bothAny}, access.Binds{bind("edit", "shop"), bind("view", "shop"), bind("ops", "shop")}, false},
		{"three roles of three", []string{`{"approve":["edit","view","ops"]}`}, access.Binds{bind("edit", "shop"), bind("view"), bind("ops", "web")}, true},
		{"another case of the role", []string{`{"approve":["Edit"]}`}, access.Binds{bind("edit", "shop")}, false},
		{"an invalid rule beside", []string{editAny, `{"approve":["edit"],"allowTagged":true}`}, access.Binds{bind("edit", "shop")}, false},
		{"every role", []string{`{"approve":["*"]}`}, access.Binds{bind("edit", "shop")}, false},
		{"no role", []string{`{"approve":[]}`}, access.Binds{bind("edit", "shop")}, false},
		{"no binding", []string{editAny}, nil, false},
	} {
		t.Run(x.name, func(t *testing.T) {
			p, err := access.Decide(bob(x.rules...), access.RequestRead, requestPolicy, t0)
			if err == nil {
				err = p.MayDecide(access.PersonOf(alice()), x.binds)
			}
			if got := err == nil; got != x.may {
				t.Errorf("may decide = %t (%v), want %t", got, err, x.may)
			}
		})
	}
}

// RQ-01: Requesters do not decide about their own requests.
func TestRQ01NobodyDecidesAboutAnOwnRequest(t *testing.T) {
	const rule = `{"approve":["edit"]}`
	for name, change := range map[string]func(*access.Caller){
		"the same login":                func(c *access.Caller) { c.Login, c.UserID = "alice@example.com", "7" },
		"another letter case":           func(c *access.Caller) { c.Login = "Alice@Example.com" },
		"a letter case beyond ASCII":    func(c *access.Caller) { c.Login = "ALICE@EXAMPLE.COM" },
		"an account of the same person": func(c *access.Caller) { c.Login, c.UserID = "alice-admin@example.com", "9" },
		"the user ID of that account":   func(c *access.Caller) { c.Login, c.UserID = "renamed@example.com", "9" },
		"a renamed login":               func(c *access.Caller) { c.UserID = "1" },
		"another login of the device":   func(c *access.Caller) { c.Device.ID = "n1" },
		"an own second device":          func(c *access.Caller) { c.Login, c.UserID, c.Device.ID = "alice@example.com", "1", "n7" },
	} {
		t.Run(name, func(t *testing.T) {
			c := bob(rule)
			change(&c)
			p, err := access.Decide(c, access.RequestApprove, requestPolicy, t0)
			if err != nil {
				t.Fatal(err)
			}
			if got := problem.CodeOf(p.MayDecide(access.PersonOf(alice()), access.Binds{{Role: "edit"}})); got != problem.SelfApproval {
				t.Errorf("got %q, want %q", got, problem.SelfApproval)
			}
		})
	}
}

// RQ-02 and RQ-16: Who can never decide.
func TestRQ02WhoDecidesNever(t *testing.T) {
	const rule = `{"approve":["edit"]}`
	tagged := ci()
	tagged.RequestRules = rules(rule, `{"role":"edit","period":"1h","allowTagged":true}`)
	foreign, expired, funnel, served := bob(rule), bob(rule), bob(rule), bob(rule)
	foreign.Shared, expired.Expired, funnel.Via, served.Via = true, true, access.ViaFunnel, access.ViaServe
	off := requestPolicy
	off.Requests.Enabled = false
	for _, x := range []struct {
		name string
		c    access.Caller
		pol  access.Policy
		want problem.Code
	}{
		{"a tagged node", tagged, requestPolicy, problem.NoCapability},
		{"a shared device", foreign, requestPolicy, problem.ForeignNode},
		{"an expired device", expired, requestPolicy, problem.NodeExpired},
		{"through Funnel", funnel, requestPolicy, problem.FunnelRefused},
		{"through a proxy", served, requestPolicy, problem.NoIdentity},
		{"allowTagged", bob(`{"approve":["edit"],"allowTagged":true}`), requestPolicy, problem.BadCapability},
		{"allowShared", bob(`{"approve":["edit"],"allowShared":true}`), requestPolicy, problem.BadCapability},
		{"no rule", bob(), requestPolicy, problem.NoCapability},
		{"requests are off", bob(rule), off, problem.NotEnabled},
	} {
		t.Run(x.name, func(t *testing.T) {
			if _, err := access.Decide(x.c, access.RequestApprove, x.pol, t0); problem.CodeOf(err) != x.want {
				t.Errorf("got %q (%v), want %q", problem.CodeOf(err), err, x.want)
			}
		})
	}
}

// Each capability is judged alone.
func TestEachCapabilityIsJudgedAlone(t *testing.T) {
	const good, bad = `{"role":"edit","period":"1h"}`, `{"role":"edit","for":"1h"}`
	for _, x := range []struct {
		name              string
		standing, request string
		verb              access.Verb
		want              problem.Code
	}{
		{"a bad request rule refuses no login", view, bad, access.SigninLogin, ""},
		{"a bad request rule refuses a request", view, bad, access.RequestCreate, problem.BadCapability},
		{"a bad standing rule refuses no request", bad, good, access.RequestCreate, ""},
		{"a bad standing rule refuses the roles", bad, good, access.SigninRoles, problem.BadCapability},
		{"a request rule admits to the proxy", "", good, access.APIRequest, ""},
		{"an approve rule admits to no proxy", "", `{"approve":["edit"]}`, access.APIRequest, problem.NoCapability},
		{"an approve rule admits to no login", "", `{"approve":["edit"]}`, access.SigninLogin, problem.NoCapability},
		{"an approve rule does not let ask", "", `{"approve":["edit"]}`, access.RequestCreate, problem.NoCapability},
		{"a rule to ask does not let approve", "", good, access.RequestApprove, problem.NoCapability},
		{"one may always cancel", "", "", access.RequestCancel, ""},
		{"a stranger learns nothing", "", "", access.RequestRead, ""},
		{"a stranger lists nothing", "", "", access.RequestList, problem.NoCapability},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := alice()
			if x.standing != "" {
				c.Rules = rules(x.standing)
			}
			if x.request != "" {
				c.RequestRules = rules(x.request)
			}
			if _, err := access.Decide(c, x.verb, requestPolicy, t0); problem.CodeOf(err) != x.want {
				t.Errorf("got %q (%v), want %q", problem.CodeOf(err), err, x.want)
			}
		})
	}
}

// RQ-14: A rule to ask covers nothing standing, and gives no login without a request.
func TestRQ14ARuleToAskGivesNothingStanding(t *testing.T) {
	c := asking(`{"role":"edit","period":"1h"}`)
	p, err := access.Decide(c, access.SigninLogin, requestPolicy, t0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Choose(access.Request{Role: "edit"}); problem.CodeOf(err) != problem.NoCapability {
		t.Errorf("a login without a request: %v", err)
	}
	if p.Covers(access.Binds{{Role: "edit"}}, nil) {
		t.Error("the rule covers a standing sign-in")
	}
	c = alice(edit)
	p, err = access.Decide(c, access.RequestUse, requestPolicy, t0)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok, err := p.TermsNow(access.Binds{{Role: "edit"}}); ok || err != nil {
		t.Errorf("a standing rule covers a request: %t, %v", ok, err)
	}
}

func TestAsk(t *testing.T) {
	for _, x := range []struct {
		name  string
		rules []string
		wish  access.Request
		want  access.Ask
		code  problem.Code
	}{
		{"the default is one approval", []string{edit}, access.Request{}, access.Ask{Binds: access.Binds{{Role: "edit"}}, Period: time.Hour, Approvals: 1}, ""},
		{"narrowed", []string{shop}, access.Request{Namespaces: []string{"shop"}, Period: 30 * time.Minute},
			access.Ask{Binds: access.Binds{{Role: "edit", Namespaces: []string{"shop"}}}, Period: 30 * time.Minute, Approvals: 1}, ""},
		{"RQ-15: the floor", []string{`{"role":"ops","period":"1h","approvals":1}`}, access.Request{}, access.Ask{Binds: access.Binds{{Role: "ops"}}, Period: time.Hour, Approvals: 2}, ""},
		{"RQ-15: the floor of one of the roles", []string{`{"name":"all","bind":[{"role":"edit"},{"role":"ops"}],"period":"1h","approvals":0}`}, access.Request{Role: "all"},
			access.Ask{Rule: "all", Binds: access.Binds{{Role: "edit"}, {Role: "ops"}}, Period: time.Hour, Approvals: 2}, ""},
		{"REQ-12: self-service", []string{`{"role":"edit","period":"1h","approvals":0}`}, access.Request{}, access.Ask{Binds: access.Binds{{Role: "edit"}}, Period: time.Hour}, ""},
		{"the fewest approvals of equal rules", []string{edit, `{"role":"edit","period":"1h","approvals":0}`}, access.Request{}, access.Ask{Binds: access.Binds{{Role: "edit"}}, Period: time.Hour}, ""},
		{"two rules", []string{edit, view}, access.Request{}, access.Ask{}, problem.AmbiguousRole},
		{"a role without a rule", []string{edit}, access.Request{Role: "view"}, access.Ask{}, problem.RoleNotGranted},
		{"a role that the server does not give", []string{`{"role":"admin","period":"1h"}`}, access.Request{}, access.Ask{}, problem.RoleNotAllowed},
		{"too long", []string{edit}, access.Request{Period: 2 * time.Hour}, access.Ask{}, problem.PeriodOutOfBounds},
		{"another namespace", []string{shop}, access.Request{Namespaces: []string{"web"}}, access.Ask{}, problem.RoleNotGranted},
		{"no reason", []string{edit}, access.Request{Reason: "-"}, access.Ask{}, problem.ReasonRequired},
	} {
		t.Run(x.name, func(t *testing.T) {
			p, err := access.Decide(asking(x.rules...), access.RequestCreate, requestPolicy, t0)
			if err != nil {
				t.Fatal(err)
			}
			if x.wish.Reason += "why"; x.wish.Reason == "-why" {
				x.wish.Reason = ""
			}
			got, err := p.Ask(x.wish)
			if problem.CodeOf(err) != x.code {
				t.Fatalf("got %v, want %q", err, x.code)
			}
			same := got.Binds.Equal(x.want.Binds) && got.Period == x.want.Period && got.Approvals == x.want.Approvals
			if !same || got.Rule != x.want.Rule {
				t.Errorf("got %+v, want %+v", got, x.want)
			}
		})
	}
}

// The record of a standing rule applies to a request too: an elevation is not the way around a recording.
func TestAskKeepsTheRecordOfStandingRules(t *testing.T) {
	c := asking(`{"role":"edit","namespaces":["shop"],"period":"1h"}`)
	c.Rules = rules(`{"role":"view","period":"1h","record":["exec"]}`, `{"role":"view","namespaces":["web"],"period":"1h","record":["attach"]}`)
	p, err := access.Decide(c, access.RequestCreate, requestPolicy, t0)
	if err != nil {
		t.Fatal(err)
	}
	ask, err := p.Ask(access.Request{Reason: "why"})
	if want := []string{"exec"}; err != nil || !slices.Equal(ask.Record, want) {
		t.Errorf("got %q, %v, want %q", ask.Record, err, want)
	}
}

// RQ-15: A role with a floor is given by a request only, also while requests are off.
func TestRQ15FloorRefusesStandingGrants(t *testing.T) {
	pol := requestPolicy
	pol.Requests.Enabled = false
	p, err := access.Decide(alice(`{"role":"ops","period":"1h"}`), access.SigninLogin, pol, t0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Choose(access.Request{}); problem.CodeOf(err) != problem.ApprovalRequired {
		t.Errorf("got %v, want %s", err, problem.ApprovalRequired)
	}
	if !p.Covers(access.Binds{{Role: "ops"}}, nil) {
		t.Error("a floor ends a live sign-in")
	}
}

// REQ-35: The decoder of request rules never panics, and permits nothing that a strict reading refuses.
func FuzzREQ35ParseRequestRule(f *testing.F) {
	for _, s := range []string{edit, shop, `{"approve":["edit"],"namespaces":["shop"]}`, `{"name":"all","bind":[{"role":"edit"}],"period":"1h","approvals":0}`,
		`{"approve":["edit"],"approve":["view"]}`, `{"role":"edit","period":"1h","approvals":6}`, `{"role":"edit","period":"1h","approvals":-0}`,
		`{"role":"edit","period":"1h","onUse":true}`, `{"role":"edit","period":"1h","priority":1}`, `{"Approve":["edit"]}`, `{} {}`, `null`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := access.ParseRequestRule(raw)
		if err != nil {
			return
		}
		if !json.Valid(raw) {
			t.Fatalf("%q is not JSON", raw)
		}
		if asks := len(r.Binds) > 0; asks == (r.Approve != nil) {
			t.Fatalf("%q: %+v", raw, r)
		}
		if r.Approvals < 0 || r.Approvals > 5 {
			t.Fatalf("%q: %d approvals", raw, r.Approvals)
		}
		if r.AllowShared || r.OnUse {
			t.Fatalf("%q: %+v", raw, r)
		}
	})
}

func TestParseRequestRuleRefuses(t *testing.T) {
	for _, raw := range []string{
		`{"role":"edit"}`, `{"period":"1h"}`, `{"approve":["edit"],"period":"1h"}`, `{"approve":["edit"],"role":"edit"}`, `{"approve":["edit"],"approvals":1}`,
		`{"approve":["edit"],"namespaceSelector":"a=b"}`, `{"approve":["edit"],"name":"x"}`, `{"approve":["edit","edit"]}`, `{"approve":"edit"}`,
		`{"role":"edit","period":"1h","approvals":6}`, `{"role":"edit","period":"1h","approvals":-1}`, `{"role":"edit","period":"1h","approvals":1.5}`, `{"role":"edit","period":"1h","approvals":"1"}`,
		`{"role":"edit","period":"1h","priority":1}`, `{"role":"edit","period":"1h","idle":"30m"}`, `{"role":"edit","period":"1h","onUse":true}`, `{"role":"edit","period":"1h","allowShared":true}`,
		`{"role":"edit","period":"1h","reason":"required"}`, `{"bind":[{"role":"edit"}],"period":"1h"}`, `{"name":"x","bind":[{"role":"edit"}],"role":"edit","period":"1h"}`,
	} {
		if r, err := access.ParseRequestRule([]byte(raw)); err == nil {
			t.Errorf("%s: got %+v", raw, r)
		}
	}
}
