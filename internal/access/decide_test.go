package access_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

var (
	t0     = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	policy = access.Policy{Capability: "tailplane.dev/cap/access", Roles: []access.Role{"view", "edit", "ops"},
		Min: access.MinPeriod, Max: 24 * time.Hour, Reserved: []string{"tailplane-system", "tailplane-signins"}}
)

func rules(texts ...string) (out []json.RawMessage) {
	for _, s := range texts {
		out = append(out, json.RawMessage(s))
	}
	return out
}

func alice(rs ...string) access.Caller {
	return access.Caller{Login: "alice@example.com", UserID: "1", Device: access.Device{ID: "n1", Name: "laptop.tiny.ts.net"},
		Tailnet: "example.com", Via: access.ViaTailnet, Rules: rules(rs...)}
}

func ci(rs ...string) access.Caller {
	return access.Caller{Device: access.Device{ID: "n2", Name: "runner.tiny.ts.net"}, Tags: []access.Tag{"tag:ci"},
		Tailnet: "example.com", Via: access.ViaTailnet, Rules: rules(rs...)}
}

func shared(rs ...string) access.Caller {
	c := alice(rs...)
	c.Shared = true
	return c
}

const (
	view    = `{"role":"view","period":"8h"}`
	edit    = `{"role":"edit","period":"1h"}`
	editTop = `{"role":"edit","period":"1h","priority":5}`
	shop    = `{"role":"edit","period":"1h","namespaces":["shop","shop-jobs"]}`
)

// SGN-03: Sets of grants and requests, and the resulting decisions.
func TestLoginDecision(t *testing.T) {
	many := make([]string, 65)
	for i := range many {
		many[i] = fmt.Sprintf(`{"role":"view","period":"1h","priority":%d}`, i)
	}
	manyNamespaces := make([]string, 51)
	for i := range manyNamespaces {
		manyNamespaces[i] = fmt.Sprintf("%q", fmt.Sprint("n", i))
	}
	with := func(c access.Caller, f func(*access.Caller)) access.Caller { f(&c); return c }
	tests := []struct {
		name   string
		caller access.Caller
		wish   access.Request
		code   problem.Code // "": permitted
		role   access.Role
		ns     string
		period time.Duration
		why    string
	}{
		{name: "one rule", caller: alice(view), role: "view", period: 8 * time.Hour, why: "the usual case"},
		{name: "whole cluster", caller: alice(edit), role: "edit", period: time.Hour, why: "no namespaces means the cluster"},
		{name: "namespaces", caller: alice(shop), role: "edit", ns: "shop shop-jobs", period: time.Hour, why: "a namespaced grant"},
		{name: "namespaces are sorted", caller: alice(`{"role":"edit","period":"1h","namespaces":["b","a"]}`), role: "edit", ns: "a b", period: time.Hour, why: "order means nothing"},
		{name: "identical rules", caller: alice(view, view), role: "view", period: 8 * time.Hour, why: "they collapse to one"},
		{name: "identical but for the order of namespaces", caller: alice(shop, `{"role":"edit","period":"60m","namespaces":["shop-jobs","shop"]}`), role: "edit", ns: "shop shop-jobs", period: time.Hour, why: "the same thing"},
		{name: "tie", caller: alice(view, edit), code: problem.AmbiguousRole, why: "no rule decides; the result is never a union or the first rule"},
		{name: "tie of one role", caller: alice(edit, shop), code: problem.AmbiguousRole, why: "one is wider than the other"},
		{name: "tie at the top", caller: alice(view, editTop, `{"role":"ops","period":"1h","priority":5}`), code: problem.AmbiguousRole, why: "two of priority 5"},
		{name: "tie below a unique top", caller: alice(view, edit, `{"role":"ops","period":"1h","priority":9}`), role: "ops", period: time.Hour, why: "lower ties do not matter"},
		{name: "priority", caller: alice(view, editTop), role: "edit", period: time.Hour, why: "the higher wins"},
		{name: "negative priority", caller: alice(view, `{"role":"edit","period":"1h","priority":-1}`), role: "view", period: 8 * time.Hour, why: "0 is above -1"},
		{name: "chosen role", caller: alice(view, edit), wish: access.Request{Role: "view"}, role: "view", period: 8 * time.Hour, why: "the caller may choose among what is granted"},
		{name: "chosen lower role", caller: alice(view, editTop), wish: access.Request{Role: "view"}, role: "view", period: 8 * time.Hour, why: "choosing never widens"},
		{name: "chosen role, several rules", caller: alice(edit, `{"role":"edit","period":"2h","priority":1}`), wish: access.Request{Role: "edit"}, role: "edit", period: 2 * time.Hour, why: "highest priority among them"},
		{name: "chosen role, tie", caller: alice(edit, shop, view), wish: access.Request{Role: "edit"}, code: problem.AmbiguousRole, why: "still no rule decides"},
		{name: "ungranted role", caller: alice(view), wish: access.Request{Role: "edit"}, code: problem.RoleNotGranted, why: "outside the granted set"},
		{name: "role not on the list", caller: alice(`{"role":"cluster-admin","period":"1h"}`), code: problem.RoleNotAllowed, why: "the server's list includes every granted role"},
		{name: "system role not on the list", caller: alice(`{"role":"system:masters","period":"1h"}`), code: problem.RoleNotAllowed, why: "only by exact name"},
		{name: "narrowed", caller: alice(shop), wish: access.Request{Namespaces: []string{"shop"}}, role: "edit", ns: "shop", period: time.Hour, why: "a subset"},
		{name: "cluster narrowed", caller: alice(edit), wish: access.Request{Namespaces: []string{"x"}}, role: "edit", ns: "x", period: time.Hour, why: "any namespace but ours"},
		{name: "widened", caller: alice(shop), wish: access.Request{Namespaces: []string{"shop", "other"}}, code: problem.RoleNotGranted, why: "never wider"},
		{name: "one of our namespaces requested", caller: alice(edit), wish: access.Request{Namespaces: []string{"tailplane-signins"}}, code: problem.RoleNotGranted, why: "no role is granted there"},
		{name: "malformed namespace requested", caller: alice(edit), wish: access.Request{Namespaces: []string{"../x"}}, code: problem.BadRequest, why: "no such name"},
		{name: "shorter", caller: alice(view), wish: access.Request{Period: 30 * time.Minute}, role: "view", period: 30 * time.Minute, why: "a shorter period is allowed"},
		{name: "longer", caller: alice(edit), wish: access.Request{Period: 2 * time.Hour}, code: problem.PeriodOutOfBounds, why: "more may not"},
		{name: "requested below the minimum", caller: alice(view), wish: access.Request{Period: 9*time.Minute + 59*time.Second}, code: problem.PeriodOutOfBounds, why: "the API server issues no shorter token"},
		{name: "granted below the minimum", caller: alice(`{"role":"view","period":"9m59s"}`), code: problem.PeriodOutOfBounds, why: "SI-04: names the rule"},
		{name: "zero period", caller: alice(`{"role":"view","period":"0s"}`), code: problem.PeriodOutOfBounds, why: "SI-04"},
		{name: "negative period", caller: alice(`{"role":"view","period":"-1h"}`), code: problem.PeriodOutOfBounds, why: "SI-04"},
		{name: "above the maximum", caller: alice(`{"role":"view","period":"10000h"}`), role: "view", period: 24 * time.Hour, why: "SI-04: clamped, not refused"},
		{name: "days are no Go duration", caller: alice(`{"role":"view","period":"24d"}`), code: problem.BadCapability, why: "SI-04"},
		{name: "unit missing", caller: alice(`{"role":"view","period":"1h1"}`), code: problem.BadCapability, why: "SI-04"},
		{name: "overflow", caller: alice(`{"role":"view","period":"99999999999h"}`), code: problem.BadCapability, why: "SI-04"},
		{name: "no rule", caller: alice(), code: problem.NoCapability, why: "nothing granted"},
		{name: "misspelt field", caller: alice(`{"role":"edit","period":"1h","namespace":["shop"]}`), code: problem.BadCapability, why: "would widen to the cluster"},
		{name: "other letter case", caller: alice(`{"Role":"edit","period":"1h"}`), code: problem.BadCapability, why: "encoding/json would accept it"},
		{name: "duplicate field", caller: alice(`{"role":"view","role":"edit","period":"1h"}`), code: problem.BadCapability, why: "which one?"},
		{name: "empty namespaces", caller: alice(`{"role":"edit","period":"1h","namespaces":[]}`), code: problem.BadCapability, why: "not all"},
		{name: "null namespaces", caller: alice(`{"role":"edit","period":"1h","namespaces":null}`), code: problem.BadCapability, why: "not all"},
		{name: "repeated namespace", caller: alice(`{"role":"edit","period":"1h","namespaces":["a","a"]}`), code: problem.BadCapability, why: "a typing error"},
		{name: "too many namespaces", caller: alice(`{"role":"edit","period":"1h","namespaces":[` + strings.Join(manyNamespaces, ",") + `]}`), code: problem.BadCapability, why: "51"},
		{name: "our namespace", caller: alice(`{"role":"edit","period":"1h","namespaces":["tailplane-system"]}`), code: problem.BadCapability, why: "may not be named"},
		{name: "role is no string", caller: alice(`{"role":7,"period":"1h"}`), code: problem.BadCapability, why: "wrong type"},
		{name: "role missing", caller: alice(`{"period":"1h"}`), code: problem.BadCapability, why: "required"},
		{name: "role empty", caller: alice(`{"role":"","period":"1h"}`), code: problem.BadCapability, why: "SI-03"},
		{name: "role with a slash", caller: alice(`{"role":"a/b","period":"1h"}`), code: problem.BadCapability, why: "SI-03"},
		{name: "role climbs", caller: alice(`{"role":"..","period":"1h"}`), code: problem.BadCapability, why: "SI-03"},
		{name: "role escaped", caller: alice(`{"role":"a%2fb","period":"1h"}`), code: problem.BadCapability, why: "SI-03"},
		{name: "role templated", caller: alice(`{"role":"{{.Login}}","period":"1h"}`), code: problem.BadCapability, why: "SI-03"},
		{name: "period missing", caller: alice(`{"role":"view"}`), code: problem.BadCapability, why: "required"},
		{name: "period is a number", caller: alice(`{"role":"view","period":3600}`), code: problem.BadCapability, why: "nanoseconds or seconds?"},
		{name: "priority is a fraction", caller: alice(`{"role":"view","period":"1h","priority":1.5}`), code: problem.BadCapability, why: "wrong type"},
		{name: "priority overflows", caller: alice(`{"role":"view","period":"1h","priority":4294967296}`), code: problem.BadCapability, why: "32 bits"},
		{name: "flag is a string", caller: alice(`{"role":"view","period":"1h","allowTagged":"yes"}`), code: problem.BadCapability, why: "wrong type"},
		{name: "null", caller: alice(`null`), code: problem.BadCapability, why: "not an object"},
		{name: "list", caller: alice(`[` + view + `]`), code: problem.BadCapability, why: "not an object"},
		{name: "string", caller: alice(`"view"`), code: problem.BadCapability, why: "not an object"},
		{name: "trailing data", caller: alice(view + `}`), code: problem.BadCapability, why: "not one object"},
		{name: "two objects", caller: alice(view + view), code: problem.BadCapability, why: "not one object"},
		{name: "broken off", caller: alice(`{"role":"view","period":"1h"`), code: problem.BadCapability, why: "not JSON"},
		{name: "nested", caller: alice(`{"role":"view","period":"1h","namespaces":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + `}`), code: problem.BadCapability, why: "too large, and not descended into"},
		{name: "nested a little", caller: alice(`{"role":"view","period":"1h","namespaces":[["a"]]}`), code: problem.BadCapability, why: "not descended into"},
		{name: "huge", caller: alice(`{"role":"` + strings.Repeat("a", 1<<20) + `","period":"1h"}`), code: problem.BadCapability, why: "over 4 KiB"},
		{name: "many rules", caller: alice(many...), code: problem.BadCapability, why: "over 64"},
		{name: "a bad rule next to a good one", caller: alice(view, `{"rolle":"view"}`), code: problem.BadCapability, why: "a bad rule neither widens nor is passed over"},
		{name: "a bad rule and a chosen good one", caller: alice(view, `{}`), wish: access.Request{Role: "view"}, code: problem.BadCapability, why: "the same"},
		{name: "not UTF-8", caller: alice("{\"role\":\"vi\xffew\",\"period\":\"1h\"}"), code: problem.BadCapability, why: "encoding/json would replace it"},
		{name: "reason required", caller: alice(`{"role":"view","period":"1h","reason":"required"}`), code: problem.ReasonRequired, why: "none is given"},
		{name: "reason given", caller: alice(`{"role":"view","period":"1h","reason":"required"}`), wish: access.Request{Reason: "INC-7"}, role: "view", period: time.Hour, why: "it is given"},
		{name: "reason not required", caller: alice(view), wish: access.Request{Reason: "INC-7"}, role: "view", period: 8 * time.Hour, why: "it may be given"},
		{name: "reason of another word", caller: alice(`{"role":"view","period":"1h","reason":"optional"}`), code: problem.BadCapability, why: "one word only"},
		{name: "reason true", caller: alice(`{"role":"view","period":"1h","reason":true}`), code: problem.BadCapability, why: "wrong type"},
		{name: "required by one of two rules", caller: alice(`{"role":"view","period":"1h","reason":"required"}`, `{"role":"view","period":"1h"}`), role: "view", period: time.Hour, why: "the other gives the same without it, in either order"},
		{name: "required by one of two rules, the other way round", caller: alice(`{"role":"view","period":"1h"}`, `{"role":"view","period":"1h","reason":"required"}`), role: "view", period: time.Hour, why: "the same"},
		{name: "tagged", caller: ci(view), code: problem.TaggedNode, why: "requests come from users"},
		{name: "tagged without any rule", caller: ci(), code: problem.TaggedNode, why: "row 8 is before row 9"},
		{name: "tagged, opted in", caller: ci(`{"role":"view","period":"1h","allowTagged":true}`), role: "view", period: time.Hour, why: "a grant admits it"},
		{name: "tagged, opted in next to another", caller: ci(`{"role":"view","period":"1h","allowTagged":true}`, editTop), role: "view", period: time.Hour, why: "only the admitting grants count"},
		{name: "shared in", caller: shared(view), code: problem.ForeignNode, why: "another tailnet's"},
		{name: "shared in, opted in", caller: shared(`{"role":"view","period":"1h","allowShared":true}`, editTop), role: "view", period: time.Hour, why: "a grant admits it"},
		{name: "Funnel", caller: with(alice(view), func(c *access.Caller) { c.Via = access.ViaFunnel }), code: problem.FunnelRefused, why: "first of all"},
		{name: "Funnel without an identity", caller: access.Caller{Via: access.ViaFunnel}, code: problem.FunnelRefused, why: "before the identity is checked"},
		{name: "nobody", caller: access.Caller{Via: access.ViaTailnet}, code: problem.NoIdentity, why: "no empty subject ever"},
		{name: "no way", caller: with(alice(view), func(c *access.Caller) { c.Via = "" }), code: problem.NoIdentity, why: "the default branch"},
		{name: "no device", caller: with(alice(view), func(c *access.Caller) { c.Device = access.Device{} }), code: problem.NoIdentity, why: "the device is the credential"},
		{name: "person and tag", caller: with(ci(view), func(c *access.Caller) { c.Login = "alice@example.com" }), code: problem.NoIdentity, why: "cannot be both"},
		{name: "expired", caller: with(alice(view), func(c *access.Caller) { c.Expired = true }), code: problem.NodeExpired, why: "WhoIs still answers for it"},
		{name: "expired and tagged", caller: with(ci(view), func(c *access.Caller) { c.Expired = true }), code: problem.NodeExpired, why: "row 5 is before row 8"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := access.Decide(tt.caller, access.SigninLogin, policy, t0)
			if err == nil {
				p, err = p.Choose(tt.wish)
			}
			if got := problem.CodeOf(err); got != tt.code {
				t.Fatalf("%s: %q (%v), want %q", tt.why, got, err, tt.code)
			}
			if err != nil {
				if p.Binds().Role() != "" || p.Require(access.SigninLogin, t0) == nil {
					t.Error("a refusal came with a useful permit")
				}
				if e := problem.From(err); e.Message == "" || len(e.Advice) == 0 {
					t.Errorf("a refusal without a sentence or advice: %+v", e)
				}
				return
			}
			switch {
			case p.Binds().Role() != tt.role:
				t.Errorf("%s: p.Binds().Role() = %q, want %q", tt.why, p.Binds().Role(), tt.role)
			case strings.Join(p.Binds().Namespaces(), " ") != tt.ns:
				t.Errorf(`%s: strings.Join(p.Binds().Namespaces(), " ") = %q, want %q`, tt.why, strings.Join(p.Binds().Namespaces(), " "), tt.ns)
			case p.Period() != tt.period:
				t.Errorf("%s: p.Period() = %v, want %v", tt.why, p.Period(), tt.period)
			}
			if !p.Until().Equal(t0.Add(tt.period)) {
				t.Errorf("until %v", p.Until())
			}
		})
	}
	if len(tests) < 40 {
		t.Errorf("SGN-03 requires 40 grant sets, got %d", len(tests))
	}
}

func TestAmbiguityNamesTheChoices(t *testing.T) {
	p, err := access.Decide(alice(view, shop), access.SigninLogin, policy, t0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.Choose(access.Request{})
	got := problem.From(err).Choices
	want := []problem.Choice{{Role: "view", Period: "8h0m0s"}, {Role: "edit", Namespaces: []string{"shop", "shop-jobs"}, Period: "1h0m0s"}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("choices %v", got)
	}
}

func TestClampingIsReported(t *testing.T) {
	p, err := access.Decide(alice(`{"role":"view","period":"10000h"}`), access.SigninLogin, policy, t0)
	if err != nil {
		t.Fatal(err)
	}
	if q, err := p.Choose(access.Request{}); err != nil || !q.Clamped() {
		t.Errorf("clamped %v, %v", q.Clamped(), err)
	}
}

// The result of each verb for a caller with a grant and for a caller without one.
func TestVerbs(t *testing.T) {
	for _, tt := range []struct {
		verb            access.Verb
		granted, nobody problem.Code
		ownerOnly       bool // for the caller without a grant
	}{
		{access.SigninLogin, "", problem.NoCapability, false},
		{access.SigninRead, "", problem.NoCapability, false},
		{access.SigninKubeconfig, "", "", true},
		{access.ClusterInfo, "", problem.NoCapability, false},
		{access.SigninLogout, "", "", true},
		{access.ClusterMembers, "", problem.NoCapability, false},
		{access.GossipExchange, problem.NotAMember, problem.NotAMember, false},
		{"signin.unheardOf", problem.Internal, problem.Internal, false},
		{"", problem.Internal, problem.Internal, false},
	} {
		p, err := access.Decide(alice(view), tt.verb, policy, t0)
		if problem.CodeOf(err) != tt.granted || err == nil && p.OwnerOnly() != nil {
			t.Errorf("%q with a grant: %v", tt.verb, err)
		}
		p, err = access.Decide(alice(), tt.verb, policy, t0)
		if problem.CodeOf(err) != tt.nobody {
			t.Errorf("%q without a grant: %v", tt.verb, err)
		}
		if err == nil && (p.OwnerOnly() != nil) != tt.ownerOnly {
			t.Errorf("%q without a grant: owner only: %v", tt.verb, p.OwnerOnly())
		}
	}
}

// A typing error in the policy refuses a kubeconfig, but revokes nothing.
func TestABrokenRuleIsNoWithdrawal(t *testing.T) {
	if _, err := access.Decide(alice(view, `{}`), access.SigninKubeconfig, policy, t0); problem.CodeOf(err) != problem.BadCapability {
		t.Errorf("kubeconfig next to an invalid rule: %v", err)
	}
	if p, err := access.Decide(alice(view, `{}`), access.SigninLogout, policy, t0); err != nil || p.OwnerOnly() == nil {
		t.Errorf("logout next to an invalid rule: %v", err)
	}
}

func TestAPermitIsForOneVerbAndATime(t *testing.T) {
	p, err := access.Decide(alice(view), access.SigninRead, policy, t0)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Require(access.SigninRead, t0); err != nil {
		t.Error(err)
	}
	if p.Require(access.SigninKubeconfig, t0) == nil {
		t.Error("a permit to read did for a kubeconfig")
	}
	if p.Require(access.SigninRead, p.Until()) == nil {
		t.Error("a permit outlived its end")
	}
	if _, err := p.Choose(access.Request{}); err == nil {
		t.Error("a permit to read chose a role")
	}
	var zero access.Permit
	if zero.Require("", t0) == nil || zero.Covers(access.Binds{{Role: "view"}}, nil) {
		t.Error("the zero Permit permits something")
	}
}

func TestCovers(t *testing.T) {
	for _, tt := range []struct {
		rule       string
		role       access.Role
		namespaces []string
		want       bool
	}{
		{view, "view", nil, true},
		{view, "view", []string{"shop"}, true},
		{view, "edit", nil, false},
		{shop, "edit", []string{"shop"}, true},
		{shop, "edit", []string{"shop", "other"}, false},
		{shop, "edit", nil, false},
		{`{"role":"cluster-admin","period":"1h"}`, "cluster-admin", nil, false}, // no longer on the allow-list
	} {
		p, err := access.Decide(alice(tt.rule), access.SigninKubeconfig, policy, t0)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Covers(access.Binds{{Role: tt.role, Namespaces: tt.namespaces}}, nil); got != tt.want {
			t.Errorf("%s covers %s in %v: %v", tt.rule, tt.role, tt.namespaces, got)
		}
	}
}

// isIn reports whether one of the granted roles gives what b gives.
func isIn(b access.Bind, granted access.Binds) bool {
	return slices.ContainsFunc(granted, func(g access.Bind) bool {
		within := len(g.Namespaces) == 0 || len(b.Namespaces) > 0 && !slices.ContainsFunc(b.Namespaces, func(n string) bool { return !slices.Contains(g.Namespaces, n) })
		return g.Role == b.Role && (g.Selector == "" || g.Selector == b.Selector) && within
	})
}

// Law (SGN-03): The chosen role is always a granted role, with the namespaces of a rule for that
// role. Without a grant there is no permit.
func TestTheChosenRuleIsOneOfTheGranted(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	for range 20_000 {
		var rs []string
		for range r.IntN(4) {
			places := []string{"", "", `,"namespaces":["a"]`, `,"namespaces":["a","b"]`, `,"namespaces":[]`, `,"namespaceSelector":"team=x"`}
			roles := fmt.Sprintf(`"role":%q%s`, pick("view", "edit", "ops", "cluster-admin"), pick(places...))
			if r.IntN(3) == 0 {
				roles = fmt.Sprintf(`"name":%q,"bind":[{"role":%q%s},{"role":%q%s}]`, pick("day", "night"), pick("view", "ops"), pick(places...), pick("edit", "cluster-admin", "ops"), pick(places...))
			}
			rs = append(rs, fmt.Sprintf(`{%s,"period":%q,"priority":%d}`, roles, pick("5m", "10m", "1h", "48h"), r.IntN(3)))
		}
		request := access.Request{Role: access.Role(pick("", "", "view", "edit", "edit,view", "day")), Period: time.Duration(r.IntN(3)) * 20 * time.Minute}
		if r.IntN(3) == 0 {
			request.Namespaces = []string{pick("a", "b", "c", "tailplane-system")}
		}
		p, err := access.Decide(alice(rs...), access.SigninLogin, policy, t0)
		if err == nil {
			p, err = p.Choose(request)
		}
		if err != nil {
			continue
		}
		ok := slices.ContainsFunc(rs, func(rule string) bool {
			g, err := access.ParseGrant([]byte(rule))
			return err == nil && p.Period() <= g.Period && !slices.ContainsFunc(p.Binds(), func(b access.Bind) bool { return !isIn(b, g.Binds) })
		})
		switch {
		case !ok:
			t.Fatalf("rules: ok is false; %v, request = %+v, %s, %v, %v", rs, request, p.Binds().Role(), p.Binds().Namespaces(), p.Period())
		case slices.ContainsFunc(p.Binds(), func(b access.Bind) bool { return !slices.Contains(policy.Roles, b.Role) }):
			t.Fatalf("rules: policy.Roles = %v does not contain all of %q; %v; request = %+v", policy.Roles, p.Binds().Role(), rs, request)
		case p.Period() < policy.Min:
			t.Fatalf("rules: p.Period() = %v, want at least %v; %v; request = %+v", p.Period(), policy.Min, rs, request)
		case p.Period() > policy.Max:
			t.Fatalf("rules: p.Period() = %v, want at most %v; %v; request = %+v", p.Period(), policy.Max, rs, request)
		case slices.Contains(p.Binds().Namespaces(), "tailplane-system"):
			t.Fatalf("rules: p.Binds().Namespaces() = %v contains %q; %v; request = %+v", p.Binds().Namespaces(), "tailplane-system", rs, request)
		}
	}
}

// ID-13: Logins that ParseLogin must reject.
func TestParseLogin(t *testing.T) {
	for s, ok := range map[string]bool{
		"alice@example.com": true, "alice@github": true, "a.lice+x@a.com": true, "älice@a.com": true, "passkey-user": true,
		"": false, "x@a.com@b.com": false, "@a.com": false, "alice@": false, "a b@c": false, "a\nb@c": false, "a\x00@c": false,
		"a\u202eb@c": false, "a\xff@c": false, strings.Repeat("a", 300) + "@c": false, "a\u200b@c": false,
	} {
		if _, err := access.ParseLogin(s); (err == nil) != ok {
			t.Errorf("ParseLogin(%q): %v", s, err)
		}
	}
}

// FuzzParseGrant checks that ParseGrant never panics and accepts nothing that strict decoding would
// reject.
func FuzzParseGrant(f *testing.F) {
	for _, s := range []string{view, shop, editTop, `{}`, `null`, `{"role":"view","period":"1h","namespaces":null}`, day, bySelector,
		`{"period":"1h","bind":[{"role":"view"},{"role":"view"}]}`, `{"period":"1h","bind":[{"role":"view","namespaceSelector":"!a,b in (x, y),c notin (z),d!=e,f"}]}`,
		`{"period":"1h","bind":[],"role":"view"}`, `{"period":"1h","bind":[{}]}`, `{"period":"1h","bind":[[{"role":"view"}]]}`, `{"period":"1h","bind":{"role":"view"}}`,
		deploy, `{"role":"view","period":"1h","oidc":{"issuer":"https://a","claims":{}}}`, `{"role":"view","period":"1h","oidc":{"issuer":"https://a","claims":{"ref":"*"}}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		g, err := access.ParseGrant(raw)
		if err != nil {
			return
		}
		var m map[string]json.RawMessage
		if json.Unmarshal(raw, &m) != nil {
			t.Fatalf("took what is no JSON: %q", raw)
		}
		for k := range m {
			if !slices.Contains([]string{"role", "period", "priority", "namespaces", "namespaceSelector", "name", "bind", "allowTagged", "allowShared", "reason", "oidc"}, k) {
				t.Fatalf("took the field %q", k)
			}
		}
		if err := g.Binds.Validate(); err != nil {
			t.Fatalf("%q: %v", raw, err)
		}
		if _, several := m["bind"]; several != (m["role"] == nil) {
			t.Fatalf("bind and role of %q", raw)
		}
		checkTokenRule(t, raw, m["oidc"], g.Token)
		texts := []map[string]json.RawMessage{m}
		if m["bind"] != nil {
			if err := json.Unmarshal(m["bind"], &texts); err != nil {
				t.Fatal(err)
			}
		}
		for i, b := range g.Binds {
			if _, err := access.ParseRole(string(b.Role)); err != nil {
				t.Fatal(err)
			}
			if _, named := texts[i]["namespaces"]; named != (len(b.Namespaces) > 0) {
				t.Fatalf("namespaces %v of %q", b.Namespaces, raw)
			}
			if _, named := texts[i]["namespaceSelector"]; named != (b.Selector != "") {
				t.Fatalf("selector %v of %q", b.Selector, raw)
			}
			if again, err := access.ParseSelector(string(b.Selector)); b.Selector != "" && (err != nil || again != b.Selector) {
				t.Fatalf("the selector %q becomes %q, %v", b.Selector, again, err)
			}
		}
	})
}

func FuzzParseLogin(f *testing.F) {
	f.Add("alice@example.com")
	f.Fuzz(func(t *testing.T, s string) {
		l, err := access.ParseLogin(s)
		if err == nil && string(l) != s {
			t.Errorf("%q became %q", s, l)
		}
	})
}
