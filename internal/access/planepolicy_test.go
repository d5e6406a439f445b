package access

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/problem"
)

func planeCaller(login string, rules ...string) Caller {
	c := Caller{Login: Login(login), Device: Device{ID: "n1", Name: "laptop.example.ts.net"}, Via: ViaTailnet}
	for _, r := range rules {
		c.Rules = append(c.Rules, json.RawMessage(r))
	}
	return c
}

var moment = time.Date(2026, 11, 22, 8, 0, 0, 0, time.UTC)

var planePolicy = PlanePolicy{Capability: "tailplane.dev/cap/plane", Contact: "#platform", EmailDomains: []string{"acme.dev"},
	Orgs:     []Org{{Name: "acme", Owners: []string{"amy@acme.dev"}, Members: []string{"*@acme.dev"}}, {Name: "globex", Owners: []string{"gil@globex.example", "*@gmail.com"}}},
	Settings: []Holder{{Login: "pat@platform.dev", Role: PlaneRole{Name: PlatformAdmin}}},
}

// PL-01: The roles of different callers, and callers without a role.
func TestPL01_Duties(t *testing.T) {
	for _, tt := range []struct {
		why    string
		caller Caller
		want   string
		code   problem.Code
	}{
		{"an owner is an administrator of the organisation, and its member", planeCaller("amy@acme.dev"), "org-admin@acme operator@acme", ""},
		{"whatever the case", planeCaller("Amy@ACME.dev"), "org-admin@acme operator@acme", ""},
		{"a member by domain", planeCaller("mel@acme.dev"), "operator@acme", ""},
		{"by the settings", planeCaller("pat@platform.dev"), "platform-admin@*", ""},
		{"a grant", planeCaller("alice@example.com", `{"role":"operator","orgs":["*"]}`), "operator@*", ""},
		{"grants add up", planeCaller("alice@example.com", `{"role":"viewer","orgs":["globex"]}`, `{"role":"operator","orgs":["acme","a"]}`), "operator@a,acme viewer@globex", ""},
		{"a bad rule hides no good one", planeCaller("alice@example.com", `{"role":"root","orgs":["*"]}`, `{"role":"viewer","orgs":["acme"]}`), "viewer@acme", ""},
		{"nobody's", planeCaller("mallory@evil.example"), "", problem.NotAuthorized},
		{"a domain that is not listed", planeCaller("gil@gmail.com"), "", problem.NotAuthorized},
		{"a domain that ends so", planeCaller("x@notacme.dev"), "", problem.NotAuthorized},
		{"two @", planeCaller("a@acme.dev@evil.example"), "", problem.NotAuthorized},
		{"a domain after another", planeCaller("a@evil.example@acme.dev"), "", problem.NotAuthorized},
		{"look-alike letters", planeCaller("аmy@acme.dev"), "", problem.NotAuthorized},
		{"a K of another kind", planeCaller("mel@acme.dev\u212a"), "", problem.NotAuthorized},
		{"no mail address", planeCaller("amy"), "", problem.NotAuthorized},
		{"no rule is valid", planeCaller("x@y.example", `{"role":"viewer"}`), "", problem.BadCapability},
		{"one field too many", planeCaller("x@y.example", `{"role":"viewer","orgs":["*"],"org":["a"]}`), "", problem.BadCapability},
		{"all, and one", planeCaller("x@y.example", `{"role":"viewer","orgs":["*","a"]}`), "", problem.BadCapability},
		{"no organisation", planeCaller("x@y.example", `{"role":"viewer","orgs":[]}`), "", problem.BadCapability},
		{"no list", planeCaller("x@y.example", `{"role":"viewer","orgs":"*"}`), "", problem.BadCapability},
	} {
		p, err := DecidePlane(tt.caller, PlaneSelf, planePolicy, moment)
		var got []string
		for _, d := range p.PlaneRoles() {
			got = append(got, d.String())
		}
		if problem.CodeOf(err) != tt.code || strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %v, %v; want %q, %q", tt.why, got, err, tt.want, tt.code)
		}
		if (err != nil) != (p.Require(PlaneSelf, moment) != nil) {
			t.Errorf("%s: a permit in addition to %v", tt.why, err)
		}
	}
	shared := planeCaller("amy@acme.dev")
	shared.Shared = true
	if _, err := DecidePlane(shared, PlaneSelf, planePolicy, moment); problem.CodeOf(err) != problem.NotAuthorized {
		t.Errorf("shared in from another tailnet: %v", err)
	}
	shared.Rules = []json.RawMessage{json.RawMessage(`{"role":"viewer","orgs":["acme"]}`)}
	if _, err := DecidePlane(shared, PlaneSelf, planePolicy, moment); err != nil {
		t.Errorf("shared in, with a grant: %v", err)
	}
	var many Caller = planeCaller("x@y.example")
	for range maxRules + 1 {
		many.Rules = append(many.Rules, json.RawMessage(`{"role":"platform-admin","orgs":["*"]}`))
	}
	if _, err := DecidePlane(many, PlaneSelf, planePolicy, moment); problem.CodeOf(err) != problem.BadCapability {
		t.Errorf("too many rules: %v", err)
	}
	_, err := DecidePlane(planeCaller("mallory@evil.example"), PlaneSelf, planePolicy, moment)
	switch p := problem.From(err); {
	case p.Seen == nil:
		t.Error("a caller without a role: p.Seen is nil")
	case p.Seen.Login != "mallory@evil.example":
		t.Errorf("a caller without a role: p.Seen.Login = %q, want %q", p.Seen.Login, "mallory@evil.example")
	case !strings.Contains(strings.Join(p.Advice, " "), "#platform"):
		t.Errorf(`a caller without a role: strings.Join(p.Advice, " ") = %q does not contain %q`, strings.Join(p.Advice, " "), "#platform")
	case !strings.Contains(strings.Join(p.Advice, " "), "tailplane.dev/cap/plane"):
		t.Errorf(`a caller without a role: strings.Join(p.Advice, " ") = %q does not contain %q`,
			strings.Join(p.Advice, " "), "tailplane.dev/cap/plane")
	}
}

// ID-01 to ID-03, on the plane: The checks run in this order, and a tagged node never gets the
// pages.
func TestPlaneOrder(t *testing.T) {
	all := `{"role":"platform-admin","orgs":["*"]}`
	tagged := Caller{Tags: []Tag{"tag:ci"}, Device: Device{ID: "n2", Name: "ci.example.ts.net"}, Via: ViaTailnet}
	with := func(c Caller, edit func(*Caller)) Caller { edit(&c); return c }
	rule := func(s string) func(*Caller) {
		return func(c *Caller) { c.Rules = []json.RawMessage{json.RawMessage(s)} }
	}
	for _, tt := range []struct {
		why    string
		caller Caller
		verb   Verb
		code   problem.Code
	}{
		{"Funnel first", with(planeCaller("a@b.example", all), func(c *Caller) { c.Via, c.Expired = ViaFunnel, true }), PlaneSelf, problem.FunnelRefused},
		{"no identity", with(planeCaller("", all), func(*Caller) {}), PlaneSelf, problem.NoIdentity},
		{"an unknown way", with(planeCaller("a@b.example", all), func(c *Caller) { c.Via = "x" }), PlaneSelf, problem.NoIdentity},
		{"expired", with(planeCaller("a@b.example", all), func(c *Caller) { c.Expired = true }), PlaneSelf, problem.NodeExpired},
		{"a tag without a rule for it", with(tagged, rule(all)), PlaneSelf, problem.TaggedNode},
		{"a rule for another tag", with(tagged, rule(`{"role":"viewer","orgs":["*"],"tags":["tag:x"]}`)), PlaneSelf, problem.TaggedNode},
		{"a rule for the tag", with(tagged, rule(`{"role":"viewer","orgs":["*"],"tags":["tag:ci"]}`)), InfraRead, ""},
		{"but never the pages", with(tagged, rule(`{"role":"viewer","orgs":["*"],"tags":["tag:ci"]}`)), PlaneApp, problem.TaggedNode},
		{"by a proxy", with(planeCaller("pat@platform.dev"), func(c *Caller) { c.Via, c.Device = ViaProxy, Device{} }), PlaneSelf, ""},
		{"a verb without a decision", planeCaller("a@b.example", all), "fleet.destroy", problem.Internal},
		{"a verb of sign-in", planeCaller("a@b.example", all), SigninLogin, problem.Internal},
	} {
		if _, err := DecidePlane(tt.caller, tt.verb, planePolicy, moment); problem.CodeOf(err) != tt.code {
			t.Errorf("%s: %v, want %q", tt.why, err, tt.code)
		}
	}
	proxied := with(planeCaller("alice@example.com", `{"role":"view","period":"8h"}`), func(c *Caller) { c.Via = ViaProxy })
	if _, err := Decide(proxied, SigninLogin, Policy{Roles: []Role{"view"}, Min: time.Minute, Max: 24 * time.Hour}, moment); problem.CodeOf(err) != problem.NoIdentity {
		t.Errorf("sign-in by a proxy's word: %v", err)
	}
}

// PLANE-09, PL-05: The scope of each role.
func TestReach(t *testing.T) {
	decide := func(v Verb, rules ...string) (Permit, error) {
		return DecidePlane(planeCaller("alice@example.com", rules...), v, planePolicy, moment)
	}
	const viewer, operator, everywhere = `{"role":"viewer","orgs":["acme"]}`, `{"role":"operator","orgs":["acme"]}`, `{"role":"operator","orgs":["*"]}`
	p, err := decide(FleetRead, viewer)
	switch {
	case err != nil:
		t.Errorf("a viewer of acme: %v", err)
	case !p.CanSee("acme"):
		t.Errorf(`a viewer of acme: p.CanSee("acme") is false; %+v, %v`, p, err)
	case p.CanSee("globex"):
		t.Errorf(`a viewer of acme: p.CanSee("globex") is true; %+v, %v`, p, err)
	case p.CanSee(""):
		t.Errorf(`a viewer of acme: p.CanSee("") is true; %+v, %v`, p, err)
	case p.Everywhere():
		t.Errorf("a viewer of acme: p.Everywhere() is true; %+v, %v", p, err)
	}
	if in, err := p.In("acme"); err != nil || in.Org() != "acme" {
		t.Errorf("in acme: %v", err)
	}
	if _, err := p.In("globex"); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("in globex: %v", err)
	}
	switch _, err := decide(InfraRead, viewer, operator); {
	case problem.CodeOf(err) != problem.Forbidden:
		t.Errorf("the clusters, for an operator of acme: problem.CodeOf(err) != problem.Forbidden; %v", err)
	case problem.From(err).Needed.Verb != "infra.read":
		t.Errorf(`the clusters, for an operator of acme: problem.From(err).Needed.Verb != "infra.read"; %v`, err)
	case fmt.Sprint(problem.From(err).Have) != "[operator@acme viewer@acme]":
		t.Errorf(`the clusters, for an operator of acme: fmt.Sprint(problem.From(err).Have) != "[operator@acme viewer@acme]"; %v`, err)
	}
	switch p, err := decide(InfraRead, everywhere); {
	case err != nil:
		t.Errorf("the clusters: %v", err)
	case !p.Everywhere():
		t.Errorf("the clusters: p.Everywhere() is false; %v", err)
	case !p.CanSee(""):
		t.Errorf(`the clusters: p.CanSee("") is false; %v`, err)
	}
	for _, tt := range []struct {
		verb    Verb
		rule    string
		ownOnly bool
	}{
		{SigninsRead, viewer, true}, {SigninsRead, `{"role":"viewer","orgs":["*"]}`, false}, {SigninsRevoke, `{"role":"viewer","orgs":["*"]}`, true}, {SigninsRevoke, everywhere, false},
		{SigninsRevoke, `{"role":"org-admin","orgs":["*"]}`, true}, {SigninsRevoke, `{"role":"platform-admin","orgs":["acme"]}`, false}, {AuditRead, everywhere, true}, {AuditRead, `{"role":"platform-admin","orgs":["*"]}`, false},
	} {
		switch p, err := decide(tt.verb, tt.rule); {
		case err != nil:
			t.Errorf("%v; %s; %s", err, tt.verb, tt.rule)
		case p.OwnOnly() != tt.ownOnly:
			t.Errorf("p.OwnOnly() = %v, want %v; %s; %s", p.OwnOnly(), tt.ownOnly, tt.verb, tt.rule)
		case p.Everywhere() == tt.ownOnly:
			t.Errorf("p.Everywhere() = %v, the same as tt.ownOnly; %s; %s", p.Everywhere(), tt.verb, tt.rule)
		}
	}
	const admin = `{"role":"org-admin","orgs":["acme"]}`
	switch p, err := decide(AuditRead, admin); {
	case err != nil:
		t.Errorf("the record, for an admin of acme: %v", err)
	case !p.CanSee("acme"):
		t.Errorf(`the record, for an admin of acme: p.CanSee("acme") is false; %+v, %v`, p, err)
	case p.CanSee("globex"):
		t.Errorf(`the record, for an admin of acme: p.CanSee("globex") is true; %+v, %v`, p, err)
	case p.Everywhere():
		t.Errorf("the record, for an admin of acme: p.Everywhere() is true; %+v, %v", p, err)
	case !slices.Contains(p.Verbs()["own"], AuditRead):
		t.Errorf(`the record, for an admin of acme: p.Verbs()["own"] = %v does not contain %q`, p.Verbs()["own"], AuditRead)
	case !slices.Contains(p.Verbs()["acme"], AuditRead):
		t.Errorf(`the record, for an admin of acme: p.Verbs()["acme"] = %v does not contain %q`, p.Verbs()["acme"], AuditRead)
	}
	if _, err := decide(AuditReadAll, admin, `{"role":"org-admin","orgs":["*"]}`); problem.CodeOf(err) != problem.Forbidden {
		t.Errorf("the whole record, for an admin of all organisations: %v", err)
	}
	p, _ = decide(PlaneSelf, viewer)
	switch v := p.Verbs(); {
	case !slices.Contains(v["acme"], FleetRead):
		t.Errorf(`verbs: v["acme"] = %v does not contain %q`, v["acme"], FleetRead)
	case slices.Contains(v[AllOrgs], FleetRead):
		t.Errorf("verbs: v[AllOrgs] = %v contains %q", v[AllOrgs], FleetRead)
	case !slices.Contains(v["own"], SigninsRevoke):
		t.Errorf(`verbs: v["own"] = %v does not contain %q`, v["own"], SigninsRevoke)
	case slices.Contains(v["acme"], InfraRead):
		t.Errorf(`verbs: v["acme"] = %v contains %q`, v["acme"], InfraRead)
	}
	switch {
	case (Permit{}).Everywhere():
		t.Error("no permit permits something: (Permit{}).Everywhere() is true")
	case (Permit{}).CanSee("acme"):
		t.Error(`no permit permits something: (Permit{}).CanSee("acme") is true`)
	case !(Permit{}).OwnOnly():
		t.Error("no permit permits something: (Permit{}).OwnOnly() is false")
	}
	for _, v := range PlaneVerbs() {
		for d, r := range verbScopes[v] {
			if r != always && d == PlatformAdmin {
				t.Errorf("%s is not a platform-admin's", v)
			}
		}
	}
}

// ID-16: A role of the settings with a user ID is not for another user with the same login, nor for the same login of another tailnet.
func TestID16_RolesByUserID(t *testing.T) {
	policy := PlanePolicy{Settings: []Holder{
		{Login: "pat@platform.dev", UserID: "7", Role: PlaneRole{Name: PlatformAdmin}},
		{Login: "kim", UserID: "8", Role: PlaneRole{Name: Viewer, Orgs: []string{"acme"}}},
		{Login: "lee", Role: PlaneRole{Name: Viewer, Orgs: []string{"acme"}}},
	}}
	as := func(login, id string) Caller { c := planeCaller(login); c.UserID = id; return c }
	shared, ambiguous := as("pat@platform.dev", "7"), as("pat@platform.dev", "7")
	shared.Shared, ambiguous.Ambiguous = true, true
	for _, tt := range []struct {
		why    string
		caller Caller
		code   problem.Code
	}{
		{"the person", as("pat@platform.dev", "7"), ""},
		{"the person, in another letter case", as("Pat@platform.dev", "7"), ""},
		{"a user whose login is a name", as("kim", "8"), ""},
		{"another user with the login", as("pat@platform.dev", "70"), problem.NotAuthorized},
		{"a caller without a user id", as("pat@platform.dev", ""), problem.NotAuthorized},
		{"the user under another login", as("pat@evil.example", "7"), problem.NotAuthorized},
		{"a name without a user id", as("lee", "9"), problem.NotAuthorized},
		{"the same id of another tailnet", shared, problem.NotAuthorized},
		{"while two users have the login", ambiguous, problem.IdentityAmbiguous},
	} {
		if _, err := DecidePlane(tt.caller, PlaneSelf, policy, moment); problem.CodeOf(err) != tt.code {
			t.Errorf("%s: %v, want code %q", tt.why, err, tt.code)
		}
	}
}

// ID-16: A caller whose login two users have is refused for every verb, also where callers without a grant are not.
func TestID16_EveryVerb(t *testing.T) {
	c := Caller{Login: "pat@platform.dev", UserID: "7", Device: Device{ID: "n1", Name: "laptop"}, Via: ViaTailnet, Rules: []json.RawMessage{json.RawMessage(`{"role":"view","period":"8h"}`)}, Ambiguous: true}
	for _, v := range []Verb{SigninLogin, SigninRead, SigninKubeconfig, SigninLogout, Whoami, ClusterInfo, ClusterMembers, GossipExchange} {
		if _, err := Decide(c, v, Policy{Roles: []Role{"view"}}, moment); problem.CodeOf(err) != problem.IdentityAmbiguous {
			t.Errorf("%s: %v, want code %q", v, err, problem.IdentityAmbiguous)
		}
	}
	for _, v := range PlaneVerbs() {
		if _, err := DecidePlane(c, v, planePolicy, moment); problem.CodeOf(err) != problem.IdentityAmbiguous {
			t.Errorf("%s: %v, want code %q", v, err, problem.IdentityAmbiguous)
		}
	}
}

func TestEmailDomain(t *testing.T) {
	for s, ok := range map[string]bool{"acme.dev": true, "ACME.dev": true, "gmail.com": false, "GMail.com": false, "github": false, "passkey": false, "": false, "localhost": false, "a@b.dev": false, "*.dev": false} {
		if d, err := ParseEmailDomain(s); (err == nil) != ok || ok && d != "acme.dev" {
			t.Errorf("%q: %q, %v", s, d, err)
		}
	}
}

func FuzzPlaneRole(f *testing.F) {
	f.Add([]byte(`{"role":"operator","orgs":["acme"],"tags":["tag:ci"]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		d, err := ParsePlaneRole(raw)
		if err != nil {
			return
		}
		switch _, err := ParsePlaneRoleName(string(d.Name)); {
		case err != nil:
			t.Error(err)
		case len(d.Orgs) == 0:
			t.Errorf("len(d.Orgs) = %v", len(d.Orgs))
		case !json.Valid(raw):
			t.Errorf("json.Valid(raw) is false; %q, %+v", raw, d)
		}
	})
}

// OwnOnly reports whether the permit is at most for objects of the caller.
func (p Permit) OwnOnly() bool { return p.widestScope() <= own }
