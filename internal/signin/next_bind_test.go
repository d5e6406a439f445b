package signin

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/access"
)

// withEdit adds the role edit in the namespace shop.
func withEdit(f *Facts) {
	f.Binds = access.Binds{{Role: "view"}, {Role: "edit", Namespaces: []string{"shop"}}}
	f.Existing = []string{"shop"}
}

// bySelector changes the second role to a selector that selects the namespaces.
func bySelector(namespaces ...string) func(*Facts) {
	return func(f *Facts) {
		f.Binds = access.Binds{{Role: "view"}, {Role: "edit", Selector: "team=shop"}}
		f.Selected = map[access.Selector][]string{"team=shop": namespaces}
	}
}

func editIn(ns string) Binding {
	return Binding{Namespace: ns, Name: BindingNames(alice.Name(), access.Binds{{Role: "view"}, {Role: "edit"}})[1], UID: "b2" + ns, Role: "edit", Account: alice.Name(), Signin: "s1"}
}

func TestBindingNames(t *testing.T) {
	got := BindingNames("alice-0123456789abcdef0123", access.Binds{{Role: "view"}, {Role: "edit"}, {Role: "system:x"}})
	want := []string{"tailplane-alice-0123456789abcdef0123", "tailplane-alice-0123456789abcdef0123-262121", "tailplane-alice-0123456789abcdef0123-2a165f"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

// SGN-07, SGN-14: Several roles, and namespaces that a selector selects.
func TestNextBinds(t *testing.T) {
	now := t0.Add(time.Minute)
	many := make([]string, 51)
	for i := range many {
		many[i] = fmt.Sprintf("n%02d", i)
	}
	type result struct {
		Action  Action
		Delete  []Binding
		Create  []Binding
		Phase   Phase
		Reason  string
		Bound   string
		Missing []string
	}
	live := func(change func(*Facts), bindings []Binding, more ...func(*Facts)) Facts {
		f := liveFacts(change)
		f.Bindings = bindings
		store(&f, f.provision(f.End(f.Rules.MaxLife)).Report, t0)
		for _, c := range more {
			c(&f)
		}
		return f
	}
	both := []Binding{bindingIn(""), editIn("shop")}
	for _, tt := range []struct {
		why  string
		f    Facts
		want result
	}{
		{"two roles are two bindings", pendingFacts(withEdit), result{Action: Provision, Create: []Binding{withoutUID(bindingIn("")), withoutUID(editIn("shop"))}, Phase: PhaseReady, Reason: ReasonProvisioned, Bound: "view in the whole cluster, edit in shop"}},
		{"the operator stopped between two bindings", pendingFacts(withEdit, func(f *Facts) { f.Account, f.Bindings = &Account{UID: "a1", Owner: "s1", Signin: "s1"}, both[:1] }),
			result{Action: Provision, Create: []Binding{withoutUID(editIn("shop"))}, Phase: PhaseReady, Reason: ReasonProvisioned, Bound: "view in the whole cluster, edit in shop"}},
		{"both are there", live(withEdit, both), result{Action: Keep, Phase: PhaseReady, Reason: ReasonProvisioned, Bound: "view in the whole cluster, edit in shop"}},
		{"the role of one under the name of the other", live(withEdit, both, func(f *Facts) {
			f.Bindings = []Binding{bindingIn(""), editIn("shop")}
			f.Bindings[1].Name = BindingName(alice.Name())
		}), result{Action: Correct, Delete: []Binding{{"shop", BindingName(alice.Name()), "b2shop", "edit", alice.Name(), "s1"}}, Create: []Binding{withoutUID(editIn("shop"))}, Phase: PhaseReady, Reason: ReasonProvisioned, Bound: "view in the whole cluster, edit in shop"}},
		{"one role in a namespace that is missing", pendingFacts(withEdit, func(f *Facts) { f.Existing = nil }),
			result{Action: Provision, Create: []Binding{withoutUID(bindingIn(""))}, Phase: PhaseReady, Reason: ReasonProvisioned, Bound: "view in the whole cluster", Missing: []string{"shop"}}},
		{"one role not on the list: nothing is bound", pendingFacts(withEdit, func(f *Facts) { f.Binds[1].Role = "cluster-admin" }), result{Action: Refuse, Phase: PhaseRefused, Reason: ReasonRoleNotAllowed}},
		{"one role removed from the list: all bindings go", live(withEdit, both, func(f *Facts) { f.Rules.Roles = []access.Role{"view"} }), result{Action: Refuse, Delete: both, Phase: PhaseRefused, Reason: ReasonRoleNotAllowed}},
		{"one role absent in the cluster", pendingFacts(withEdit, func(f *Facts) { delete(f.Roles, "edit") }), result{Action: Refuse, Phase: PhaseRefused, Reason: ReasonRoleNotFound}},
		{"a reserved namespace of the second role", pendingFacts(withEdit, func(f *Facts) { f.Binds[1].Namespaces = []string{"tailplane-system"} }), result{Action: Refuse, Phase: PhaseRefused, Reason: ReasonRoleNotAllowed}},
		{"a role twice", pendingFacts(withEdit, func(f *Facts) { f.Binds[1].Role = "view" }), result{Action: Refuse, Phase: PhaseRefused, Reason: ReasonRoleNotAllowed}},
		{"no roles", pendingFacts(func(f *Facts) { f.Binds = nil }), result{Action: Refuse, Phase: PhaseRefused, Reason: ReasonRoleNotAllowed}},
		{"SI-15: the second role needs namespaces", pendingFacts(withEdit, func(f *Facts) {
			f.Binds[1].Namespaces, f.Roles, f.Rules.ClusterWide = nil, map[access.Role]ClusterRole{"view": {true, ""}, "edit": {true, "read Secrets"}}, ClusterWide{}
		}), result{Action: Refuse, Phase: PhaseRefused, Reason: ReasonRoleNeedsNamespaces}},
		{"SI-15: it has them", pendingFacts(withEdit, func(f *Facts) {
			f.Roles, f.Rules.ClusterWide = map[access.Role]ClusterRole{"view": {true, ""}, "edit": {true, "read Secrets"}}, ClusterWide{}
		}), result{Action: Provision, Create: []Binding{withoutUID(bindingIn("")), withoutUID(editIn("shop"))}, Phase: PhaseReady, Reason: ReasonProvisioned, Bound: "view in the whole cluster, edit in shop"}},

		{"a selector", pendingFacts(bySelector("jobs", "shop")), result{Action: Provision, Create: []Binding{withoutUID(bindingIn("")), withoutUID(editIn("jobs")), withoutUID(editIn("shop"))}, Phase: PhaseReady, Reason: ReasonProvisioned, Bound: "view in the whole cluster, edit in jobs, shop"}},
		{"a namespace gets the label", live(bySelector("shop"), both, bySelector("jobs", "shop")), result{Action: Provision, Create: []Binding{withoutUID(editIn("jobs"))}, Phase: PhaseReady, Reason: ReasonProvisioned, Bound: "view in the whole cluster, edit in jobs, shop"}},
		{"a namespace loses the label", live(bySelector("shop"), both, bySelector()), result{Action: Provision, Delete: both[1:], Phase: PhaseReady, Reason: ReasonProvisioned, Bound: "view in the whole cluster"}},
		{"a reserved namespace has the label", pendingFacts(bySelector("shop", "tailplane-system")), result{Action: Provision, Create: []Binding{withoutUID(bindingIn("")), withoutUID(editIn("shop"))}, Phase: PhaseReady, Reason: ReasonProvisioned, Bound: "view in the whole cluster, edit in shop"}},
		{"names and a selector: both must fit", pendingFacts(bySelector("jobs", "shop"), func(f *Facts) { f.Binds[1].Namespaces, f.Existing = []string{"old", "shop"}, []string{"old", "shop"} }),
			result{Action: Provision, Create: []Binding{withoutUID(bindingIn("")), withoutUID(editIn("shop"))}, Phase: PhaseReady, Reason: ReasonProvisioned, Bound: "view in the whole cluster, edit in shop", Missing: []string{"old"}}},
		{"a selector that selects nothing, alone", pendingFacts(func(f *Facts) { f.Binds = access.Binds{{Role: "edit", Selector: "team=shop"}} }), result{Action: Refuse, Phase: PhaseRefused, Reason: ReasonNoNamespace}},
		{"a selector that is invalid", pendingFacts(func(f *Facts) { f.Binds = access.Binds{{Role: "edit", Selector: "!a"}} }), result{Action: Refuse, Phase: PhaseRefused, Reason: ReasonRoleNotAllowed}},
		{"too many namespaces: none is chosen by its name", live(bySelector("shop"), both, bySelector(many...)), result{Action: Refuse, Delete: both, Phase: PhaseRefused, Reason: ReasonTooManyNamespaces}},
		{"the most", pendingFacts(func(f *Facts) {
			f.Binds, f.Selected = access.Binds{{Role: "edit", Selector: "team=shop"}}, map[access.Selector][]string{"team=shop": many[:1]}
		}), result{Action: Provision, Create: []Binding{{"n00", BindingName(alice.Name()), "", "edit", alice.Name(), "s1"}}, Phase: PhaseReady, Reason: ReasonProvisioned, Bound: "edit in n00"}},
	} {
		step, _ := Next(tt.f, now)
		got := result{step.Action, step.DeleteBindings, step.CreateBindings, step.Report.Phase, step.Report.Reason, step.Report.Bound.String(), step.Report.MissingNamespaces}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.why, diff)
		}
	}
}
