package access_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

const (
	day        = `{"name":"day","period":"8h","bind":[{"role":"view"},{"role":"edit","namespaces":["shop"]}]}`
	night      = `{"name":"night","period":"8h","bind":[{"role":"view"},{"role":"ops","namespaces":["jobs"]}]}`
	bySelector = `{"period":"1h","bind":[{"role":"view"},{"role":"edit","namespaceSelector":"team = shop"}]}`
)

// SGN-03: Rules with several roles, and the resulting decisions.
func TestBindDecision(t *testing.T) {
	manyRoles := make([]string, 9)
	for i := range manyRoles {
		manyRoles[i] = fmt.Sprintf(`{"role":"r%d"}`, i)
	}
	someNamespaces := make([]string, 26)
	for i := range someNamespaces {
		someNamespaces[i] = fmt.Sprintf("%q", fmt.Sprint("n", i))
	}
	list := "[" + strings.Join(someNamespaces, ",") + "]"
	for _, tt := range []struct {
		name   string
		caller access.Caller
		wish   access.Request
		code   problem.Code // "": permitted
		want   string
		why    string
	}{
		{name: "two roles", caller: alice(day), want: "view in the whole cluster, edit in shop", why: "the union is written in the policy"},
		{name: "one role in a list", caller: alice(`{"period":"1h","bind":[{"role":"edit","namespaces":["b","a"]}]}`), want: "edit in a, b", why: "like the short form"},
		{name: "the short form means the same", caller: alice(`{"period":"1h","bind":[{"role":"view"}]}`, `{"period":"1h","role":"view"}`), want: "view in the whole cluster", why: "identical rules collapse"},
		{name: "another order means the same", caller: alice(`{"period":"1h","bind":[{"role":"view"},{"role":"edit"}]}`, `{"period":"1h","bind":[{"role":"edit"},{"role":"view"}]}`), want: "view in the whole cluster, edit in the whole cluster", why: "identical rules collapse"},
		{name: "selector", caller: alice(bySelector), want: "view in the whole cluster, edit in the namespaces with the labels team=shop", why: "resolved by the operator"},
		{name: "short form with a selector", caller: alice(`{"role":"edit","period":"1h","namespaceSelector":"team in (b, a),!frozen"}`), want: "edit in the namespaces with the labels !frozen,team in (a,b)", why: "instead of namespaces"},

		{name: "two rules with overlapping roles", caller: alice(day, night), code: problem.AmbiguousRole, why: "never a union of rules"},
		{name: "a role of both", caller: alice(day, night), wish: access.Request{Role: "view"}, code: problem.AmbiguousRole, why: "both include it"},
		{name: "a role of one of them", caller: alice(day, night), wish: access.Request{Role: "ops"}, want: "view in the whole cluster, ops in jobs", why: "one includes it"},
		{name: "all roles of one of them", caller: alice(day, night), wish: access.Request{Role: "edit,view"}, want: "view in the whole cluster, edit in shop", why: "in any order"},
		{name: "by name", caller: alice(day, night), wish: access.Request{Role: "night"}, want: "view in the whole cluster, ops in jobs", why: "a person chooses it"},
		{name: "by name of two", caller: alice(day, strings.Replace(night, "night", "day", 1)), wish: access.Request{Role: "day"}, code: problem.AmbiguousRole, why: "still no rule decides"},
		{name: "by an unknown name", caller: alice(day), wish: access.Request{Role: "evening"}, code: problem.RoleNotGranted, why: "outside the granted set"},
		{name: "a rule with exactly the role", caller: alice(day, view), wish: access.Request{Role: "view"}, want: "view in the whole cluster", why: "it gives least"},
		{name: "an exact rule of lower priority", caller: alice(strings.Replace(day, `{`, `{"priority":5,`, 1), view), wish: access.Request{Role: "view"}, want: "view in the whole cluster", why: "choosing never widens"},
		{name: "roles of two rules", caller: alice(view, shop), wish: access.Request{Role: "view,edit"}, code: problem.RoleNotGranted, why: "never a union of rules"},

		{name: "narrowed", caller: alice(day), wish: access.Request{Namespaces: []string{"shop"}}, want: "view in shop, edit in shop", why: "both apply there"},
		{name: "narrowed to one role", caller: alice(day), wish: access.Request{Namespaces: []string{"jobs"}}, want: "view in jobs", why: "the other does not apply there"},
		{name: "narrowed outside", caller: alice(`{"period":"1h","bind":[{"role":"view","namespaces":["a"]},{"role":"edit","namespaces":["b"]}]}`), wish: access.Request{Namespaces: []string{"a", "c"}}, code: problem.RoleNotGranted, why: "never wider"},
		{name: "narrowed to our namespace", caller: alice(bySelector), wish: access.Request{Namespaces: []string{"tailplane-system"}}, code: problem.RoleNotGranted, why: "no role is granted there"},
		{name: "a selector narrowed", caller: alice(`{"role":"edit","period":"1h","namespaceSelector":"team=shop"}`), wish: access.Request{Namespaces: []string{"shop"}}, want: "edit in those of shop with the labels team=shop", why: "the label must still be there"},

		{name: "one of the roles not on the list", caller: alice(`{"period":"1h","bind":[{"role":"view"},{"role":"cluster-admin"}]}`), code: problem.RoleNotAllowed, why: "not silently less"},
		{name: "role beside bind", caller: alice(`{"period":"1h","role":"view","bind":[{"role":"edit"}]}`), code: problem.BadCapability, why: "which one?"},
		{name: "namespaces beside bind", caller: alice(`{"period":"1h","bind":[{"role":"edit"}],"namespaces":["shop"]}`), code: problem.BadCapability, why: "would widen to the cluster"},
		{name: "selector beside bind", caller: alice(`{"period":"1h","bind":[{"role":"edit"}],"namespaceSelector":"a=b"}`), code: problem.BadCapability, why: "would widen to the cluster"},
		{name: "selector beside namespaces", caller: alice(`{"period":"1h","role":"edit","namespaces":["shop"],"namespaceSelector":"a=b"}`), code: problem.BadCapability, why: "which one?"},
		{name: "no roles", caller: alice(`{"period":"1h","bind":[]}`), code: problem.BadCapability, why: "nothing to bind"},
		{name: "null roles", caller: alice(`{"period":"1h","bind":null}`), code: problem.BadCapability, why: "not a list"},
		{name: "a role twice", caller: alice(`{"period":"1h","bind":[{"role":"edit","namespaces":["a"]},{"role":"edit"}]}`), code: problem.BadCapability, why: "probably an error"},
		{name: "too many roles", caller: alice(`{"period":"1h","bind":[` + strings.Join(manyRoles, ",") + `]}`), code: problem.BadCapability, why: "9"},
		{name: "too many namespaces", caller: alice(`{"period":"1h","bind":[{"role":"view","namespaces":` + list + `},{"role":"edit","namespaces":` + list + `}]}`), code: problem.BadCapability, why: "52"},
		{name: "misspelt field of a role", caller: alice(`{"period":"1h","bind":[{"role":"edit","namespace":["shop"]}]}`), code: problem.BadCapability, why: "would widen to the cluster"},
		{name: "repeated field of a role", caller: alice(`{"period":"1h","bind":[{"role":"edit","role":"view"}]}`), code: problem.BadCapability, why: "which one?"},
		{name: "period of a role", caller: alice(`{"period":"1h","bind":[{"role":"edit","period":"1h"}]}`), code: problem.BadCapability, why: "one end for all roles"},
		{name: "a role without a name", caller: alice(`{"period":"1h","bind":[{"namespaces":["shop"]}]}`), code: problem.BadCapability, why: "required"},
		{name: "a list in the list", caller: alice(`{"period":"1h","bind":[[{"role":"edit"}]]}`), code: problem.BadCapability, why: "not descended into"},
		{name: "our namespace in a role", caller: alice(`{"period":"1h","bind":[{"role":"view"},{"role":"edit","namespaces":["tailplane-system"]}]}`), code: problem.BadCapability, why: "may not be named"},
		{name: "an odd name", caller: alice(`{"name":"Day work","period":"1h","role":"view"}`), code: problem.BadCapability, why: "people type it"},
		{name: "no name", caller: alice(`{"name":"","period":"1h","role":"view"}`), code: problem.BadCapability, why: "absent means none"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := access.Decide(tt.caller, access.SigninLogin, policy, t0)
			if err == nil {
				p, err = p.Choose(tt.wish)
			}
			if got := problem.CodeOf(err); got != tt.code {
				t.Fatalf("%s: %q (%v), want %q", tt.why, got, err, tt.code)
			}
			if diff := cmp.Diff(tt.want, p.Binds().String()); diff != "" {
				t.Errorf("%s: binds (-want +got):\n%s", tt.why, diff)
			}
		})
	}
}

func TestParseSelector(t *testing.T) {
	for text, want := range map[string]access.Selector{
		"team=shop": "team=shop", " team = shop , env!=prod": "env!=prod,team=shop", "team": "team", "a.example/team in ( b,a, a )": "a.example/team in (a,b)",
		"a notin (x),b": "a notin (x),b", "z,!y": "!y,z", "kubernetes.io/metadata.name in (shop)": "kubernetes.io/metadata.name in (shop)",
		"": "", "!a": "", "a!=b": "", "a notin (b)": "", "a=": "", "=a": "", "a==b": "", "a=b,": "", "a=b,a=c": "", "a in b": "", "a in ()": "", "a in (b": "", "a=b c": "",
		"a=b\x00": "", "A_-=b": "", "a=" + strings.Repeat("b", 64): "", "a/b/c=d": "", "in=a": "", "x gt 5": "", "a=b,c,d,e,f,g,h,i,j": "", strings.Repeat("a", 300): "",
		"a in (b),c in (d),e": "a in (b),c in (d),e", "a=b),(c": "",
	} {
		got, err := access.ParseSelector(text)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("ParseSelector(%q) = %q, %v, want %q", text, got, err, want)
		}
	}
}

// One rule must cover all roles of a sign-in.
func TestCoversBinds(t *testing.T) {
	for _, tt := range []struct {
		rules []string
		binds access.Binds
		want  bool
	}{
		{[]string{day}, access.Binds{{Role: "view"}, {Role: "edit", Namespaces: []string{"shop"}}}, true},
		{[]string{day}, access.Binds{{Role: "edit", Namespaces: []string{"shop"}}, {Role: "view"}}, true},
		{[]string{day}, access.Binds{{Role: "view", Namespaces: []string{"jobs"}}}, true},
		{[]string{day}, access.Binds{{Role: "view"}, {Role: "edit"}}, false},
		{[]string{view}, access.Binds{{Role: "view"}, {Role: "edit", Namespaces: []string{"shop"}}}, false},
		{[]string{view, shop}, access.Binds{{Role: "view"}, {Role: "edit", Namespaces: []string{"shop"}}}, false}, // two rules are two sign-ins
		{[]string{bySelector}, access.Binds{{Role: "edit", Selector: "team=shop"}}, true},
		{[]string{bySelector}, access.Binds{{Role: "edit", Selector: "team=shop", Namespaces: []string{"shop"}}}, true},
		{[]string{bySelector}, access.Binds{{Role: "edit", Namespaces: []string{"shop"}}}, false}, // the label may be gone
		{[]string{bySelector}, access.Binds{{Role: "edit", Selector: "team=jobs"}}, false},
		{[]string{edit}, access.Binds{{Role: "edit", Selector: "team=jobs"}}, true},
		{[]string{shop}, access.Binds{{Role: "edit", Selector: "team=jobs"}}, false},
		{[]string{day}, nil, false},
	} {
		p, err := access.Decide(alice(tt.rules...), access.SigninKubeconfig, policy, t0)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Covers(tt.binds, nil); got != tt.want {
			t.Errorf("%s covers %s: %v, want %v", tt.rules, tt.binds, got, tt.want)
		}
	}
}
