package access_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

func explain(t *testing.T, c access.Caller) access.Explanation {
	t.Helper()
	p, err := access.Decide(c, access.Whoami, policy, t0)
	if err != nil {
		t.Fatal(err)
	}
	return p.Explain()
}

// Section 3.5: The effect of each rule, and the decision.
func TestExplain(t *testing.T) {
	for _, tt := range []struct {
		name   string
		caller access.Caller
		rules  string // for each rule: "+" chosen, "-" usable and not chosen, or a part of the problem
		code   problem.Code
	}{
		{"one rule", alice(view), "+", ""},
		{"priority", alice(view, editTop), "- | +", ""},
		{"tie", alice(view, edit), "- | -", problem.AmbiguousRole},
		{"the same twice", alice(view, view), "+ | -", ""},
		{"no rule", alice(), "", problem.NoCapability},
		{"misspelt", alice(view, `{"role":"view","period":"8h","namespace":["a"]}`), `- | "namespace" is not a field`, problem.BadCapability},
		{"reserved namespace", alice(`{"role":"view","period":"8h","namespaces":["tailplane-system"]}`), "is reserved for Tailplane", problem.BadCapability},
		{"not on the list", alice(`{"role":"cluster-admin","period":"1h"}`), `does not grant the role "cluster-admin"`, problem.RoleNotAllowed},
		{"lower and not on the list", alice(editTop, `{"role":"cluster-admin","period":"1h"}`), "+ | does not grant", ""},
		{"too short", alice(`{"role":"view","period":"5m"}`), "shortest period is 10m0s", problem.PeriodOutOfBounds},
		{"clamped", alice(`{"role":"view","period":"100h"}`), "+", ""},
		{"tagged", ci(view), "does not admit tagged", problem.TaggedNode},
		{"tagged, let in", ci(edit, `{"role":"view","period":"8h","allowTagged":true}`), "does not admit tagged | +", ""},
		{"shared", shared(view), "does not admit devices that are shared from", problem.ForeignNode},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := explain(t, tt.caller)
			if got := problem.CodeOf(e.Refused); got != tt.code {
				t.Errorf("refused with %q (%v), want %q", got, e.Refused, tt.code)
			}
			var want []string
			if tt.rules != "" {
				want = strings.Split(tt.rules, " | ")
			}
			if len(e.Rules) != len(want) {
				t.Fatalf("%d rules: %+v", len(e.Rules), e.Rules)
			}
			for i, r := range e.Rules {
				ok := strings.Contains(r.Problem, want[i]) && !r.Chosen
				switch want[i] {
				case "+":
					ok = r.Chosen && r.Problem == ""
				case "-":
					ok = !r.Chosen && r.Problem == ""
				}
				if !ok {
					t.Errorf("rule %d: %+v, want %q", i+1, r, want[i])
				}
			}
		})
	}
	many := make([]string, 1000)
	for i := range many {
		many[i] = view
	}
	if e := explain(t, alice(many...)); len(e.Rules) > 64 || problem.CodeOf(e.Refused) != problem.BadCapability {
		t.Errorf("1000 rules: %d shown, %v", len(e.Rules), e.Refused)
	}
}

// Whoami is allowed for every identified caller, and for no other caller.
func TestWhoamiIsForTheIdentified(t *testing.T) {
	expired := alice(view)
	expired.Expired = true
	for code, c := range map[problem.Code]access.Caller{
		problem.FunnelRefused: {Via: access.ViaFunnel}, problem.NoIdentity: {Via: access.ViaTailnet}, problem.NodeExpired: expired,
	} {
		if _, err := access.Decide(c, access.Whoami, policy, t0); problem.CodeOf(err) != code {
			t.Errorf("%v, want %s", err, code)
		}
	}
	for _, c := range []access.Caller{alice(), alice(`{}`), ci(), shared()} {
		p, err := access.Decide(c, access.Whoami, policy, t0)
		if err != nil || p.OwnerOnly() == nil {
			t.Errorf("%s: %v", c.Identity(), err)
		}
		if _, err := p.Choose(access.Request{}); err == nil {
			t.Error("a permit to ask who one is chose a role")
		}
	}
}

// Law: An explanation equals the decision. It marks one rule if and only if a sign-in would
// succeed, and that rule gives what the permit gives.
func TestAnExplanationIsTheDecision(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	for range 20_000 {
		var rs []string
		for range r.IntN(5) {
			rs = append(rs, fmt.Sprintf(`{"role":%q,"period":%q,"priority":%d%s}`, pick("view", "edit", "cluster-admin"), pick("5m", "10m", "48h"), r.IntN(3),
				pick("", "", `,"namespaces":["a"]`, `,"namespaces":[]`, `,"allowTagged":true`, `,"allowShared":true`)))
		}
		c := alice(rs...)
		switch r.IntN(4) {
		case 0:
			c = ci(rs...)
		case 1:
			c = shared(rs...)
		}
		p, want := access.Decide(c, access.SigninLogin, policy, t0)
		if want == nil {
			p, want = p.Choose(access.Request{})
		}
		e := explain(t, c)
		chosen := slices.DeleteFunc(slices.Clone(e.Rules), func(r access.ExplainedRule) bool { return !r.Chosen })
		switch {
		case fmt.Sprint(e.Refused) != fmt.Sprint(want), len(e.Rules) != len(rs):
			t.Fatalf("rules %v: explained %v, decided %v", rs, e.Refused, want)
		case want != nil && len(chosen) != 0, want == nil && len(chosen) != 1:
			t.Fatalf("rules %v: decided %v, marked %+v", rs, want, chosen)
		case want == nil && (!chosen[0].Binds.Equal(p.Binds()) || min(chosen[0].Period, policy.Max) != p.Period()):
			t.Fatalf("rules %v: decided %s for %v, marked %+v", rs, p.Binds(), p.Period(), chosen)
		}
	}
}

// Section 2.5: Of several covering rules, the one with the highest priority counts, then the one
// with the longest period.
func TestCovering(t *testing.T) {
	for _, tt := range []struct {
		name       string
		caller     access.Caller
		namespaces []string
		period     time.Duration
		covered    bool
	}{
		{"one", alice(view), nil, 8 * time.Hour, true},
		{"longest", alice(`{"role":"view","period":"1h"}`, view), nil, 8 * time.Hour, true},
		{"priority before length", alice(view, `{"role":"view","period":"1h","priority":1}`), nil, time.Hour, true},
		{"a rule of another place does not count", alice(view, `{"role":"view","period":"1h","priority":1,"namespaces":["shop"]}`), nil, 8 * time.Hour, true},
		{"its own place does", alice(view, `{"role":"view","period":"1h","priority":1,"namespaces":["shop"]}`), []string{"shop"}, time.Hour, true},
		{"the server's maximum", alice(`{"role":"view","period":"100h"}`), nil, 24 * time.Hour, true},
		{"no longer valid", alice(edit), nil, 0, false},
		{"no grant", alice(), nil, 0, false},
	} {
		p, err := access.Decide(tt.caller, access.SigninKubeconfig, policy, t0)
		if err != nil {
			t.Fatal(err)
		}
		if period, covered := p.Covering(access.Binds{{Role: "view", Namespaces: tt.namespaces}}, nil); period != tt.period || covered != tt.covered {
			t.Errorf("%s: %v %v, want %v %v", tt.name, period, covered, tt.period, tt.covered)
		}
	}
}
