package identity

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// ID-04. Only a grant of exactly this capability for exactly this server gives access.
//
// Guard: access.(Policy).entitle, and tailnet.callerOf, which reads the values of one capability by its exact name.
func TestID04_NoCapability(t *testing.T) {
	s := attacktest.Start(t)
	p := s.Person(t, "judy-laptop", "judy@example.com")
	const rule = `{"role": "view", "period": "8h"}`
	good := attacktest.Grant("judy@example.com", rule)
	for what, near := range map[string]string{
		"none":                     attacktest.Grant("somebody@example.com", rule),
		"an empty list":            attacktest.Grant("judy@example.com", ""),
		"for another destination":  strings.Replace(good, "tag:tailplane", "tag:other", 1),
		"another letter case":      strings.Replace(good, "cap/access", "cap/Access", 1),
		"a slash more":             strings.Replace(good, "cap/access", "cap/access/", 1),
		"a longer name":            strings.Replace(good, "cap/access", "cap/access2", 1),
		"a shorter name":           strings.Replace(good, "cap/access", "cap/acces", 1),
		"another domain":           strings.Replace(good, "tailplane.dev", "tailplane.dev.evil.example", 1),
		"the operator plane's":     strings.Replace(good, "cap/access", "cap/plane", 1),
		"a login that begins so":   attacktest.Grant("judy@example.com.evil.example", rule),
		"a login in other letters": attacktest.Grant("Judy@example.com", rule),
	} {
		t.Run(what, func(t *testing.T) {
			s.SetPolicy(t, good)
			s.WaitGranted(t, p) // control, and proof that the policy change has arrived
			s.SetPolicy(t, near)
			attacktest.Eventually(t, attacktest.Soon, what, func() bool { return s.Ask(t, p, "GET", attacktest.API+"/login", "").Code() == problem.NoCapability })
			for _, rt := range guarded() {
				method, path := split(rt)
				if e := refusedWith(t, s, p, method, path, problem.NoCapability); e.Actor.Login != "judy@example.com" {
					t.Errorf("%s: recorded as %+v", rt.Pattern, e.Actor)
				}
			}
		})
	}
}

// ID-05. The server refuses a request when a rule is malformed, and reports the rule's number and field. The cost of
// this check is bounded. A malformed rule never widens, hides or replaces a valid one.
//
// Guard: access.ParseGrant and access.(Policy).parse; access.ParsePlaneRole and access.(PlanePolicy).rolesOf in the plane.
func TestID05_MalformedRules(t *testing.T) {
	s := attacktest.Start(t)
	p := s.Person(t, "mallory-laptop", "mallory@example.com")
	const good = `{"role": "view", "period": "8h"}`
	many := func(rule string, n int) string { return strings.TrimSuffix(strings.Repeat(rule+",", n), ",") }
	bad := map[string]string{
		"not an object":             `"view"`,
		"null":                      `null`,
		"a list":                    `[{"role": "edit", "period": "8h"}]`,
		"a number for a role":       `{"role": 7, "period": "8h"}`,
		"null for a role":           `{"role": null, "period": "8h"}`,
		"a list of roles":           `{"role": ["edit"], "period": "8h"}`,
		"a number for a period":     `{"role": "edit", "period": 8}`,
		"no period":                 `{"role": "edit"}`,
		"no role":                   `{"period": "8h"}`,
		"an unknown field":          `{"role": "edit", "period": "8h", "namespace": ["shop"]}`,
		"another letter case":       `{"Role": "edit", "period": "8h"}`,
		"null for namespaces":       `{"role": "edit", "period": "8h", "namespaces": null}`,
		"no namespaces":             `{"role": "edit", "period": "8h", "namespaces": []}`,
		"our own namespace":         `{"role": "edit", "period": "8h", "namespaces": ["tailplane-system"]}`,
		"a namespace twice":         `{"role": "edit", "period": "8h", "namespaces": ["shop", "shop"]}`,
		"a priority with a point":   `{"role": "edit", "period": "8h", "priority": 1.5}`,
		"a priority without end":    `{"role": "edit", "period": "8h", "priority": 1e999}`,
		"a string for a truth":      `{"role": "edit", "period": "8h", "allowTagged": "true"}`,
		"a long string":             `{"role": "` + strings.Repeat("a", 900_000) + `", "period": "8h"}`,
		"10,000 rules":              many(good, 10_000),
		"a deep list":               strings.Repeat("[", 2_000) + strings.Repeat("]", 2_000),
		"a deep value":              `{"role": "edit", "period": "8h", "namespaces": ` + strings.Repeat("[", 1_500) + strings.Repeat("]", 1_500) + `}`,
		"a template":                `{"role": "{{.Role}}", "period": "8h"}`,
		"an escape for a path":      `{"role": "..\u002fx", "period": "8h"}`,
		"a NUL":                     `{"role": "edit\u0000", "period": "8h"}`,
		"letters that are not ours": `{"role": "ｅdit", "period": "8h"}`,
	}
	before := attacktest.ResidentMemory(t, s.Access.PID())
	for what, rule := range bad {
		for _, order := range []struct{ name, rules string }{{" after a good one", good + "," + rule}, {" before a good one", rule + "," + good}, {" alone", rule}} {
			what := what + order.name
			s.SetPolicy(t, attacktest.Grant("mallory@example.com", good))
			s.WaitGranted(t, p)
			s.SetPolicy(t, attacktest.Grant("mallory@example.com", order.rules))
			var a attacktest.Answer
			var took time.Duration
			attacktest.Eventually(t, attacktest.Long, what, func() bool {
				began := time.Now()
				a = s.Ask(t, p, "GET", attacktest.API+"/login", "")
				took = time.Since(began)
				return a.Code() != problem.NotSignedIn
			})
			// With so many rules WhoIs itself fails, so the server cannot identify the caller.
			huge := strings.HasPrefix(what, "10,000") && a.Code() == problem.IdentityUnavailable
			if a.Code() != problem.BadCapability && !huge || took > attacktest.Soon {
				t.Errorf("%s: %.300v after %v", what, a, took)
				continue
			}
			for _, rt := range guarded() {
				method, path := split(rt)
				ans, e := s.Refused(t, what+", "+rt.Pattern, a.Code(), func() attacktest.Answer { return s.Ask(t, p, method, path, "") })
				switch {
				case !huge && !strings.Contains(ans.Problem.Message, "Rule "):
					t.Errorf(`%s: !huge && !strings.Contains(ans.Problem.Message, "Rule "), %.300s`, what, ans.Body)
				case len(ans.Body) > 2000:
					t.Errorf("%s: len(ans.Body) = %v, want at most 2000", what, len(ans.Body))
				case len(e.Error) > 1000:
					t.Errorf("%s: len(e.Error) = %v, want at most 1000", what, len(e.Error))
				}
			}
		}
	}
	if after := attacktest.ResidentMemory(t, s.Access.PID()); after > before+300<<20 {
		t.Errorf("the server grew from %d to %d MB", before>>20, after>>20)
	} else {
		t.Logf("the server had %d MB and has %d", before>>20, after>>20)
	}

	// The tailnet's own policy file cannot hold these rules. The test passes them to the HTTP server directly, with a
	// caller that the tailnet authenticates.
	t.Run("at the door", func(t *testing.T) {
		var rules []json.RawMessage
		at := attacktest.NewIdentityServer([]string{"127.0.0.1"}, func(*http.Request) (access.Caller, error) {
			return access.Caller{Login: "mallory@example.com", Device: access.Device{ID: "n1", Name: "laptop"}, Via: access.ViaTailnet, Rules: rules}, nil
		})
		srv := httptest.NewServer(at.Handler(at.Route))
		defer srv.Close()
		for what, rule := range map[string]string{
			"a field twice":            `{"role": "view", "role": "edit", "period": "8h"}`,
			"a field twice, escaped":   `{"role": "view", "\u0072ole": "edit", "period": "8h"}`,
			"something after it":       `{"role": "view", "period": "8h"} {"role": "edit", "period": "8h"}`,
			"half of it":               `{"role": "view", "period": "8h"`,
			"nothing":                  ``,
			"not UTF-8":                "{\"role\": \"vi\xffew\", \"period\": \"8h\"}",
			"10,000 deep":              strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000),
			"10,000 deep in a field":   `{"role": "view", "period": "8h", "namespaces": ` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + `}`,
			"a megabyte":               `{"role": "` + strings.Repeat("a", 1<<20) + `", "period": "8h"}`,
			"a megabyte of spaces":     `{"role": "view", ` + strings.Repeat(" ", 1<<20) + `"period": "8h"}`,
			"a number of 4,000 digits": `{"role": "view", "period": "8h", "priority": ` + strings.Repeat("9", 4_000) + `}`,
			"a comment":                `{"role": "view", /* all of it */ "period": "8h"}`,
		} {
			for _, list := range [][]string{{good, rule}, {rule, good}, {rule}, slices.Repeat([]string{rule}, 5_000)} {
				rules = nil
				for _, r := range list {
					rules = append(rules, json.RawMessage(r))
				}
				began := time.Now()
				_, err := at.Op.Call(t.Context(), httpapi.Client{HTTP: srv.Client(), Base: srv.URL}, struct{}{})
				took := time.Since(began)
				switch e, through := at.Entries(); {
				case problem.CodeOf(err) != problem.BadCapability:
					t.Errorf("%s: problem.CodeOf(err) != problem.BadCapability, %d, %v, took = %v, through = %+v",
						what, len(list), err, took, through)
				case len(through) > 0:
					t.Errorf("%s: len(through) = %v, want at most 0; %d", what, len(through), len(list))
				case len(e) != 1:
					t.Errorf("%s: len(e) = %v, want 1; %d", what, len(e), len(list))
				case len(e[0].Error) > 1000:
					t.Errorf("%s: len(e[0].Error) = %v, want at most 1000; %d", what, len(e[0].Error), len(list))
				case took > attacktest.Soon:
					t.Errorf("%s: took = %v, want at most %v; %d", what, took, attacktest.Soon, len(list))
				}
			}
		}
		rules = []json.RawMessage{json.RawMessage(good)}
		if got, err := at.Op.Call(t.Context(), httpapi.Client{HTTP: srv.Client(), Base: srv.URL}, struct{}{}); err != nil || got.Identity != "mallory@example.com" {
			t.Errorf("a good rule: %+v %v", got, err)
		}
	})
	// In the plane, rules add up. A malformed rule grants nothing, removes nothing, and is reported.
	t.Run("in the plane", func(t *testing.T) {
		var rules []json.RawMessage
		way := &httpapi.Server{Names: func() []string { return []string{"127.0.0.1"} }, Encoder: plane.EnvelopeForm(), Log: slog.New(slog.DiscardHandler), Now: time.Now,
			Identify: func(*http.Request) (access.Caller, error) {
				return access.Caller{Login: "mallory@example.com", Device: access.Device{ID: "n1", Name: "laptop"}, Via: access.ViaTailnet, Rules: rules}, nil
			},
			Decide: func(c access.Caller, v access.Verb, now time.Time) (access.Permit, error) {
				return access.DecidePlane(c, v, access.PlanePolicy{Capability: "tailplane.dev/cap/plane"}, now)
			},
			Record: func(audit.Entry) error { return nil }}
		desk := &plane.Service{Store: plane.NewStore(time.Now), Now: time.Now, Ready: func() bool { return true }}
		srv := httptest.NewServer(way.Handler(desk.Routes()...))
		defer srv.Close()
		const good = `{"role": "viewer", "orgs": ["acme"]}`
		for what, rule := range map[string]string{
			"a role that does not exist": `{"role": "root", "orgs": ["*"]}`,
			"another letter case":        `{"Role": "platform-admin", "orgs": ["*"]}`,
			"no organisation":            `{"role": "platform-admin"}`,
			"null for organisations":     `{"role": "platform-admin", "orgs": null}`,
			"a string for a list":        `{"role": "platform-admin", "orgs": "*"}`,
			"all, and one":               `{"role": "platform-admin", "orgs": ["*", "acme"]}`,
			"an unknown field":           `{"role": "platform-admin", "orgs": ["*"], "until": "never"}`,
			"a field twice":              `{"role": "viewer", "role": "platform-admin", "orgs": ["*"]}`,
			"something after it":         `{"role": "viewer", "orgs": ["*"]} {"role": "platform-admin", "orgs": ["*"]}`,
			"10,000 deep":                strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000),
			"a megabyte":                 `{"role": "` + strings.Repeat("a", 1<<20) + `", "orgs": ["*"]}`,
			"10,000 organisations":       `{"role": "platform-admin", "orgs": [` + many(`"a"`, 10_000) + `]}`,
		} {
			for _, list := range [][]string{{good, rule}, {rule, good}, {rule}, slices.Repeat([]string{rule}, 5_000)} {
				rules = nil
				for _, r := range list {
					rules = append(rules, json.RawMessage(r))
				}
				began := time.Now()
				me, err := plane.GetMe.Call(t.Context(), httpapi.Client{HTTP: srv.Client(), Base: srv.URL, Open: plane.ParseEnvelope}, plane.Empty{})
				if took := time.Since(began); took > attacktest.Soon {
					t.Errorf("%s, %d rules: took %v", what, len(list), took)
				}
				if !slices.Contains(list, good) {
					if problem.CodeOf(err) != problem.BadCapability {
						t.Errorf("%s, %d rules: %+v, %v", what, len(list), me.Data, err)
					}
					continue
				}
				switch {
				case err != nil:
					t.Errorf("%s next to a good one: %v", what, err)
				case len(me.Data.Warnings) != 1:
					t.Errorf("%s next to a good one: warnings %v, want 1", what, me.Data.Warnings)
				case len(me.Data.Roles) != 1:
					t.Errorf("%s next to a good one: roles %v, want 1", what, me.Data.Roles)
				case me.Data.Roles[0].Role != "viewer":
					t.Errorf("%s next to a good one: role %q, want viewer", what, me.Data.Roles[0].Role)
				case !slices.Equal(me.Data.Roles[0].Orgs, []string{"acme"}):
					t.Errorf("%s next to a good one: organisations %q, want acme", what, me.Data.Roles[0].Orgs)
				}
			}
		}
	})
}

// ID-06. When several rules apply, the server uses one of them, and only if the choice is clear. It never grants more
// than that rule: no union, and no "first match".
//
// Guard: access.Permit.Choose.
func TestID06_OneRuleIsUsed(t *testing.T) {
	s := attacktest.Start(t)
	p := s.Person(t, "erin-laptop", "erin@example.com")
	const view, edit = `{"role": "view", "period": "8h"}`, `{"role": "edit", "period": "1h"}`
	const shop, other = `{"role": "edit", "period": "1h", "namespaces": ["shop"]}`, `{"role": "edit", "period": "1h", "namespaces": ["default"]}`
	for _, tt := range []struct {
		name, rules, body string
		code              problem.Code // "" means permitted
		role              string
		namespaces        []string
	}{
		{"two, and no choice", view + "," + edit, `{}`, problem.AmbiguousRole, "", nil},
		{"the other way round", edit + "," + view, `{}`, problem.AmbiguousRole, "", nil},
		{"two, and a choice", view + "," + edit, `{"role":"edit"}`, "", "edit", nil},
		{"two, and the other choice", view + "," + edit, `{"role":"view"}`, "", "view", nil},
		{"two, and neither", view + "," + edit, `{"role":"cluster-admin"}`, problem.RoleNotGranted, "", nil},
		{"one, and another", view, `{"role":"edit"}`, problem.RoleNotGranted, "", nil},
		{"one, and another that the server knows", view, `{"role":"ghost"}`, problem.RoleNotGranted, "", nil},
		{"two of one role in two places", shop + "," + other, `{"role":"edit"}`, problem.AmbiguousRole, "", nil},
		{"both places at once", shop + "," + other, `{"role":"edit","namespaces":["shop","default"]}`, problem.AmbiguousRole, "", nil},
		{"a place that is not granted", shop, `{"namespaces":["default"]}`, problem.RoleNotGranted, "", nil},
		{"our own place", edit, `{"namespaces":["tailplane-system"]}`, problem.RoleNotGranted, "", nil},
		{"the place of sign-ins", edit, `{"namespaces":["tailplane-signins"]}`, problem.RoleNotGranted, "", nil},
		{"one place of the whole", edit, `{"namespaces":["shop"]}`, "", "edit", []string{"shop"}},
		{"the same twice", view + "," + view, `{}`, "", "view", nil},
		{"a tie below the top", view + "," + edit + `, {"role": "edit", "period": "30m", "priority": 5, "namespaces": ["shop"]}`, `{}`, "", "edit", []string{"shop"}},
		{"a tie at the top", `{"role": "view", "period": "8h", "priority": 5}, {"role": "edit", "period": "1h", "priority": 5},` + shop, `{}`, problem.AmbiguousRole, "", nil},
		{"a longer period than granted", edit, `{"period":"8h"}`, problem.PeriodOutOfBounds, "", nil},
		{"a role in other letters", edit, `{"role":"Edit"}`, problem.RoleNotGranted, "", nil},
		{"a role twice", view + "," + edit, `{"role":"view","role":"edit"}`, problem.BadRequest, "", nil},
		{"a role in another field", view + "," + edit, `{"Role":"edit"}`, problem.BadRequest, "", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s.SetPolicy(t)
			attacktest.Eventually(t, attacktest.Soon, "no grant", func() bool { return s.Ask(t, p, "GET", attacktest.API+"/login", "").Code() == problem.NoCapability })
			s.SetPolicy(t, attacktest.Grant("erin@example.com", tt.rules))
			s.WaitGranted(t, p)
			if tt.code != "" {
				a, _ := s.Refused(t, tt.name, tt.code, func() attacktest.Answer { return s.Ask(t, p, "POST", attacktest.API+"/login", tt.body) })
				if tt.code == problem.AmbiguousRole && len(a.Problem.Choices) < 2 {
					t.Errorf("the choices are not named: %v", a)
				}
				if n := len(s.SignIns(t, "erin@example.com")); n != 0 {
					t.Errorf("%d sign-ins are stored", n)
				}
				return
			}
			if a := s.Ask(t, p, "POST", attacktest.API+"/login", tt.body); a.Status != http.StatusAccepted {
				t.Fatalf("%v", a)
			}
			defer s.Logout(t, p)
			s.Kubeconfig(t, p)
			stored := s.SignIns(t, "erin@example.com")
			switch {
			case len(stored) != 1:
				t.Fatalf("stored: len(stored) = %v, want 1", len(stored))
			case stored[0].Spec.Role != tt.role:
				t.Fatalf("stored: stored[0].Spec.Role = %q, want %q", stored[0].Spec.Role, tt.role)
			case !slices.Equal(stored[0].Spec.Namespaces, tt.namespaces):
				t.Fatalf("stored: stored[0].Spec.Namespaces (-want +got):\n%s", cmp.Diff(tt.namespaces, stored[0].Spec.Namespaces))
			}
			var roles, places []string
			for _, b := range s.AccessOf(t, stored[0].Name) {
				if b.Kind != "ServiceAccount" {
					roles, places = append(roles, b.Role), append(places, b.Namespace)
				}
			}
			want := tt.namespaces
			if want == nil {
				want = []string{""}
			}
			if !slices.Equal(places, want) || slices.ContainsFunc(roles, func(r string) bool { return r != tt.role }) {
				t.Errorf("bound %v in %q, want %s in %q", roles, places, tt.role, want)
			}
		})
	}
}

// ID-13. Different people and different devices get different names, and no person reaches the sign-in of another. A
// login is never truncated, corrected or case-folded; two users whose logins differ in letter case only are refused (ID-16).
//
// Guard: signin.Owner.Name, signin.OwnerOf, access.ParseLogin, access.(Policy).entitle.
func TestID13_NamesThatCollide(t *testing.T) {
	s := attacktest.Start(t)
	logins := []string{"alice@a.com", "alice@b.com", "alice@github", "a.lice@a.com", "a-lice@a.com", "a_lice@a.com", "älice@a.com", "аlice@a.com", "alice+x@a.com",
		strings.Repeat("l", 60) + "@a.com", strings.Repeat("l", 61) + "@a.com", "アリス@例え.jp"}
	const rule = `{"role": "view", "period": "8h"}`
	s.SetPolicy(t, attacktest.Grant("*", rule))
	people, statuses := map[string]*testenv.Person{}, map[string]signin.Status{}
	label := regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	names := map[string]string{}
	for i, login := range logins {
		p := s.Person(t, fmt.Sprintf("twin-%d", i), login)
		s.WaitGranted(t, p)
		st := s.Login(t, p, signin.LoginRequest{})
		people[login], statuses[login] = p, st
		stored := s.SignIns(t, login)
		switch {
		case len(stored) != 1:
			t.Fatalf("len(stored) = %v, want 1", len(stored))
		case st.Username != login:
			t.Fatalf("st.Username = %q, want %q", st.Username, login)
		case stored[0].Name != st.Name:
			t.Fatalf("stored[0].Name = %q, want %q", stored[0].Name, st.Name)
		case !label.MatchString(st.Name):
			t.Fatalf("label.MatchString(st.Name) is false; login = %s, %+v, stored = %+v", login, st, stored)
		}
		if names[st.Name] != "" {
			t.Errorf("%s and %s are both %s", login, names[st.Name], st.Name)
		}
		names[st.Name] = login
	}
	// No person can read, extend or end the sign-in of another.
	first := s.SignIns(t, "alice@a.com")[0]
	for _, login := range logins[1:] {
		p := people[login]
		switch st, err := signin.Read.Call(t.Context(), s.APIClient(p), signin.ReadRequest{}); {
		case err != nil:
			t.Error(err)
		case st.Username != login:
			t.Errorf("st.Username = %q, want %q", st.Username, login)
		case st.Name != statuses[login].Name:
			t.Errorf("st.Name = %q, want %q", st.Name, statuses[login].Name)
		}
		s.Logout(t, p)
		for _, request := range []struct{ method, path string }{{"GET", "/login"}, {"GET", "/kubeconfig"}, {"POST", "/logout"}} {
			if a := s.Ask(t, p, request.method, attacktest.API+request.path, ""); a.Code() != problem.NotSignedIn {
				t.Errorf("%s, signed out, %s %s: %v", login, request.method, request.path, a)
			}
		}
		switch now := s.SignIns(t, "alice@a.com"); {
		case len(now) != 1:
			t.Fatalf("len(now) = %v, want 1; login = %s", len(now), login)
		case now[0].UID != first.UID:
			t.Fatalf("now[0].UID = %q, want %q; login = %s", now[0].UID, first.UID, login)
		case now[0].ResourceVersion != first.ResourceVersion:
			t.Fatalf("now[0].ResourceVersion = %q, want %q; login = %s", now[0].ResourceVersion, first.ResourceVersion, login)
		}
	}
	// Another device of the same person has a separate sign-in.
	phone := s.Person(t, "twin-phone", "alice@a.com")
	if a := s.Ask(t, phone, "GET", attacktest.API+"/login", ""); a.Code() != problem.NotSignedIn {
		t.Errorf("the phone sees the laptop's sign-in: %v", a)
	}
	if st := s.Login(t, phone, signin.LoginRequest{}); st.Name == first.Name {
		t.Errorf("phone and laptop are both %s", st.Name)
	}
	s.Logout(t, phone)

	t.Run("a shared-in user of the same login", func(t *testing.T) {
		guest := s.Person(t, "twin-guest", "alice@a.com")
		if id, err := s.Net.ID(guest.Node); err != nil || !s.Net.Share(id) {
			t.Fatal(err)
		}
		attacktest.Eventually(t, attacktest.Soon, "the guest is refused", func() bool { return s.Ask(t, guest, "GET", attacktest.API+"/login", "").Code() == problem.ForeignNode })
		for _, rt := range guarded() {
			method, path := split(rt)
			refusedWith(t, s, guest, method, path, problem.ForeignNode)
		}
		s.SetPolicy(t, attacktest.Grant("*", rule), attacktest.Grant("autogroup:shared", `{"role": "view", "period": "1h", "allowShared": true}`))
		s.WaitGranted(t, guest)
		st := s.Login(t, guest, signin.LoginRequest{})
		if st.Name == first.Name {
			t.Errorf("the guest is %s as well", st.Name)
		}
		s.Logout(t, guest)
	})
	if now := s.SignIns(t, "alice@a.com"); len(now) != 1 || now[0].UID != first.UID {
		t.Errorf("alice@a.com's sign-in: %+v", now)
	}
	t.Run("a malformed login", func(t *testing.T) {
		for _, login := range []string{"x@a.com@b.com", strings.Repeat("a", 300) + "@a.com"} {
			p := spareDevice(t, s, login)
			refusedWith(t, s, p, "POST", attacktest.API+"/login", problem.NoIdentity)
		}
	})
	// The test compares every pair of names that could collide, without a tailnet.
	t.Run("by the thousand", func(t *testing.T) {
		seen := map[string]signin.Owner{}
		try := func(o signin.Owner) {
			name := o.Name()
			if was, ok := seen[name]; ok && was != o {
				t.Errorf("%+v and %+v are both %s", was, o, name)
			}
			if !label.MatchString(name) || len(signin.BindingName(name)) > 253 {
				t.Errorf("%+v: %q", o, name)
			}
			seen[name] = o
		}
		parts := []string{"", "a", "b", "a@b", "@", "-", "_", ".", "a-b", "a_b", "a.b", "A", "é", strings.Repeat("a", 254), strings.Repeat("-", 254)}
		for _, tailnet := range parts {
			for _, login := range parts {
				for _, device := range parts {
					try(signin.Owner{Tailnet: tailnet, Login: login, DeviceID: device})
				}
			}
		}
	})
}

// ID-16. Two users of the tailnet with one login are refused by every operation, and only they. The sign-in that one of them had stays,
// and works again when the other's device is gone.
//
// Guard: tailnet.(Node).isAmbiguous, access.Admit.
func TestID16_TwoUsersOneLogin(t *testing.T) {
	s := attacktest.Start(t)
	s.SetPolicy(t, attacktest.Grant("*", `{"role": "view", "period": "8h"}`))
	pat, kim := s.Person(t, "pat-laptop", "pat@a.com"), s.Person(t, "kim-laptop", "kim@a.com")
	s.WaitGranted(t, pat)
	s.WaitGranted(t, kim)
	s.Login(t, pat, signin.LoginRequest{})
	had := s.SignIns(t, "pat@a.com")
	if len(had) != 1 {
		t.Fatalf("%d sign-ins, want 1", len(had))
	}
	read := func(p *testenv.Person) attacktest.Answer { return s.Ask(t, p, "GET", attacktest.API+"/login", "") }

	imposter := s.Person(t, "imposter-laptop", "PAT@a.com")
	attacktest.Eventually(t, attacktest.Soon, "both are refused", func() bool {
		return read(pat).Code() == problem.IdentityAmbiguous && read(imposter).Code() == problem.IdentityAmbiguous
	})
	ids := map[string]bool{}
	for _, p := range []*testenv.Person{pat, imposter} {
		for _, rt := range guarded() {
			method, path := split(rt)
			e := refusedWith(t, s, p, method, path, problem.IdentityAmbiguous)
			ids[e.Actor.UserID] = true
		}
	}
	if len(ids) != 2 || ids[""] {
		t.Errorf("the audit log has the user IDs %v, want two", ids)
	}
	if a := read(kim); a.Code() != problem.NotSignedIn {
		t.Errorf("another person: %v, want %q", a, problem.NotSignedIn)
	}

	id, err := s.Net.ID(imposter.Node)
	if err != nil {
		t.Fatal(err)
	}
	if !s.Net.Share(id) {
		t.Fatal("the imposter's device is not in the tailnet")
	}
	attacktest.Eventually(t, attacktest.Soon, "a device of another tailnet locks out no one", func() bool {
		return read(pat).Status == http.StatusOK && read(imposter).Code() == problem.ForeignNode
	})
	if now := s.SignIns(t, "pat@a.com"); len(now) != 1 || now[0].UID != had[0].UID {
		t.Errorf("the sign-in was %+v and is %+v", had, now)
	}
	s.Logout(t, pat)
}
