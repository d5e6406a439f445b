package signin

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/access"
)

var (
	t0    = time.Date(2026, 11, 21, 11, 41, 8, 0, time.UTC)
	alice = Owner{Login: "alice@a.example", DeviceID: "n1", DeviceName: "laptop", Tailnet: "a.example"}
	rules = Rules{Roles: []access.Role{"view", "edit"}, Min: 10 * time.Minute, Max: 24 * time.Hour, MaxLife: 24 * time.Hour,
		KeepExpired: 10 * time.Minute, Reserved: []string{"tailplane-system", "tailplane-signins"}, RequireAdmissionPolicy: true, Recheck: 30 * time.Second}
)

// pendingFacts returns a sign-in that was just written, in a cluster that allows it.
func pendingFacts(change ...func(*Facts)) Facts {
	f := Facts{
		Signin:       Signin{Name: alice.Name(), UID: "s1", Generation: 1, Owner: alice, Binds: access.Binds{{Role: "view"}}, Period: 8 * time.Hour, AskedAt: t0, Created: t0},
		HasFinalizer: true, Roles: theRoles(), PolicyActive: true, Rules: rules,
	}
	for _, c := range change {
		c(&f)
	}
	return f
}

// liveFacts returns a provisioned sign-in.
func liveFacts(change ...func(*Facts)) Facts {
	f := pendingFacts()
	f.Account = &Account{UID: "a1", Owner: "s1", Signin: "s1"}
	f.Bindings = []Binding{bindingIn("")}
	step, _ := f.provision(f.End(f.Rules.MaxLife)), 0
	store(&f, step.Report, t0)
	for _, c := range change {
		c(&f)
	}
	return f
}

// theRoles are the roles of the cluster. None reaches other accounts.
func theRoles() map[access.Role]ClusterRole { return reachingRoles("") }

func reachingRoles(reaches string) map[access.Role]ClusterRole {
	return map[access.Role]ClusterRole{"view": {true, reaches}, "edit": {true, reaches}, "admin": {true, reaches}}
}

func inNamespaces(f *Facts) {
	f.Binds, f.Existing = access.Binds{{Role: "view", Namespaces: []string{"jobs", "shop"}}}, []string{"jobs", "shop"}
}

func bindingIn(ns string) Binding {
	return Binding{Namespace: ns, Name: BindingName(alice.Name()), UID: "b1" + ns, Role: "view", Account: alice.Name(), Signin: "s1"}
}

func withoutUID(b Binding) Binding { b.UID = ""; return b }

// store changes f as storing a report does.
func store(f *Facts, r Report, now time.Time) {
	f.Report = r
	if r.Phase == PhaseExpired && f.ExpiredAt.IsZero() {
		f.ExpiredAt = now
	}
}

// SGN-07: Every row of the table, with its reason.
func TestNext(t *testing.T) {
	end := t0.Add(8 * time.Hour)
	soon := t0.Add(time.Minute)
	dead := Account{UID: "a0", Owner: "s0", Signin: "s0"}
	tests := []struct {
		row  string
		why  string
		f    Facts
		now  time.Time
		deed Action
		step func(*Step) // expected step, apart from its name and report
		wake time.Time
	}{
		{"1", "deletion: rights first, then the account, then the sign-in", liveFacts(func(f *Facts) { f.Deleting = true }), soon, Revoke,
			func(s *Step) {
				s.DeleteBindings, s.DeleteAccount, s.TurnFirstUseOff, s.RemoveFinalizer = []Binding{bindingIn("")}, &Account{"a1", "s1", "s1", false}, true, true
			}, time.Time{}},
		{"1", "deletion with nothing left: not found is success", pendingFacts(func(f *Facts) { f.Deleting = true }), soon, Revoke,
			func(s *Step) { s.TurnFirstUseOff, s.RemoveFinalizer = true, true }, time.Time{}},
		{"1", "deletion that another finalizer delays: Tailplane's is off, so only the status is written", liveFacts(func(f *Facts) { f.Deleting, f.HasFinalizer, f.Account, f.Bindings = true, false, nil, nil }), soon, Revoke, nil, time.Time{}},
		{"1", "the same after the status was written: no write", pendingFacts(func(f *Facts) {
			f.Deleting, f.HasFinalizer = true, false
			store(f, f.unboundReport(PhaseEnding, ReasonEnding, "It is being deleted."), t0)
		}), soon, Keep, nil, time.Time{}},
		{"1", "deletion wins over expiry", liveFacts(func(f *Facts) { f.Deleting = true }), end.Add(time.Hour), Revoke,
			func(s *Step) {
				s.DeleteBindings, s.DeleteAccount, s.TurnFirstUseOff, s.RemoveFinalizer = []Binding{bindingIn("")}, &Account{"a1", "s1", "s1", false}, true, true
			}, time.Time{}},
		{"1", "deletion does not touch a foreign ServiceAccount", pendingFacts(func(f *Facts) { f.Deleting, f.Account = true, &Account{UID: "x"} }), soon, Revoke,
			func(s *Step) { s.TurnFirstUseOff, s.RemoveFinalizer = true, true }, time.Time{}},
		{"1", "deletion of an unused one, which leaves first use on", pendingFacts(func(f *Facts) { f.Deleting, f.DeletedAt, f.EndAsked = true, soon, EndAskedFor(CauseIdle, soon) }), soon, Revoke,
			func(s *Step) { s.RemoveFinalizer = true }, time.Time{}},
		{"2", "expired: remove the remaining objects", expired(end), end, Clear,
			func(s *Step) {
				s.DeleteBindings, s.DeleteAccount, s.RemoveFinalizer = []Binding{bindingIn("")}, &Account{"a1", "s1", "s1", false}, true
			}, end.Add(10 * time.Minute)},
		{"2", "expired and removed: the object stays readable", cleared(end), end.Add(time.Minute), Keep, nil, end.Add(10 * time.Minute)},
		{"2", "expired long enough: delete it", cleared(end), end.Add(10 * time.Minute), Remove, func(s *Step) { s.DeleteSignin = true }, time.Time{}},
		{"2", "expired is final, whatever is written later", cleared(end, func(f *Facts) { f.AskedAt, f.Generation = end, 2 }), end.Add(time.Minute), Clear, nil, end.Add(10 * time.Minute)},
		{"3", "the second of the end is no longer the sign-in's", liveFacts(), end, Expire, nil, end},
		{"3", "a nanosecond before it still is", liveFacts(), end.Add(-1), Keep, nil, end},
		{"3", "a sign-in that was not provisioned ends too", pendingFacts(), end, Expire, nil, end},
		{"3", "a refused one too", refused(), end, Expire, nil, end},
		{"3", "extended before the operator acted on the old end: it continues", liveFacts(func(f *Facts) { f.AskedAt, f.Generation = end.Add(-time.Second), 2 }), end.Add(time.Second), Extend, nil, end.Add(8*time.Hour - time.Second)},
		{"3", "maxLife ends it for any requested period", liveFacts(func(f *Facts) { f.AskedAt, f.Generation = t0.Add(20*time.Hour), 2 }), t0.Add(24 * time.Hour), Expire, nil, t0.Add(24 * time.Hour)},
		{"4", "role not on the list", pendingFacts(func(f *Facts) { f.Binds[0].Role = "cluster-admin" }), soon, Refuse, nil, end},
		{"4", "no role", pendingFacts(func(f *Facts) { f.Binds[0].Role = "" }), soon, Refuse, nil, end},
		{"4", "role removed from the list while bound: the binding is deleted", liveFacts(func(f *Facts) { f.Rules.Roles = []access.Role{"edit"} }), soon, Refuse,
			func(s *Step) {
				s.DeleteBindings, s.DeleteAccount = []Binding{bindingIn("")}, &Account{"a1", "s1", "s1", false}
			}, end},
		{"4", "role absent in the cluster: cannot be watched", pendingFacts(func(f *Facts) { f.Roles = nil }), soon, Refuse, nil, soon.Add(30 * time.Second)},
		{"4", "period below the least", pendingFacts(func(f *Facts) { f.Period = 10*time.Minute - 1 }), soon, Refuse, nil, t0.Add(10*time.Minute - time.Second)},
		{"4", "period above the most", pendingFacts(func(f *Facts) { f.Period, f.Rules.MaxLife = 25*time.Hour, 0 }), soon, Refuse, nil, t0.Add(25 * time.Hour)},
		{"4", "a negative period is over at once", pendingFacts(func(f *Facts) { f.Period = -time.Hour }), soon, Expire, nil, soon},
		{"4", "a name that is another owner's: forged", pendingFacts(func(f *Facts) { f.Name = "ceo-0123456789abcdef0123" }), soon, Refuse, nil, end},
		{"4", "a login of the same first part is another person", pendingFacts(func(f *Facts) { f.Owner.Login = "alice@b.example" }), soon, Refuse, nil, end},
		{"4", "requested more than a minute ahead: it waits for the clock", pendingFacts(func(f *Facts) { f.AskedAt, f.Rules.MaxLife = soon.Add(time.Hour), 0 }), soon, Refuse, nil, soon.Add(time.Hour - time.Minute)},
		{"4", "a minute ahead is tolerable", pendingFacts(func(f *Facts) { f.AskedAt = soon.Add(time.Minute) }), soon, Provision,
			func(s *Step) { s.CreateAccount, s.CreateBindings = true, []Binding{withoutUID(bindingIn(""))} }, soon.Add(time.Minute + 8*time.Hour)},
		{"4", "the year 9999: refused, and over when its life is", pendingFacts(func(f *Facts) { f.AskedAt = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC) }), soon, Refuse, nil, t0.Add(24 * time.Hour)},
		{"4", "no admission policy: any client might have written it", pendingFacts(func(f *Facts) { f.PolicyActive = false }), soon, Refuse, nil, soon.Add(30 * time.Second)},
		{"4", "no admission policy, and none required", pendingFacts(func(f *Facts) { f.PolicyActive, f.Rules.RequireAdmissionPolicy = false, false }), soon, Provision,
			func(s *Step) { s.CreateAccount, s.CreateBindings = true, []Binding{withoutUID(bindingIn(""))} }, end},
		{"4", "a reserved namespace", pendingFacts(inNamespaces, func(f *Facts) { f.Binds[0].Namespaces = []string{"shop", "tailplane-system"} }), soon, Refuse, nil, end},
		{"4", "none of the namespaces exists: one is watched for", pendingFacts(inNamespaces, func(f *Facts) { f.Existing = nil }), soon, Refuse, nil, end},
		{"4", "refused and reported: no write", refused(), soon, Keep, nil, end},
		{"4", "refused, and allowed now", refused(func(f *Facts) { f.Rules.Roles = []access.Role{"view", "admin"} }), soon, Provision,
			func(s *Step) {
				b := withoutUID(bindingIn(""))
				b.Role = "admin"
				s.CreateAccount, s.CreateBindings = true, []Binding{b}
			}, end},
		{"5", "its ServiceAccount is gone", liveFacts(func(f *Facts) { f.Account = nil }), soon, End, func(s *Step) { s.DeleteSignin = true }, soon},
		{"5", "another client recreated its ServiceAccount", liveFacts(func(f *Facts) { f.Account = &Account{UID: "a2"} }), soon, End, func(s *Step) { s.DeleteSignin = true }, soon},
		{"5", "its ServiceAccount is dying", liveFacts(func(f *Facts) { f.Account.Deleting = true }), soon, End, func(s *Step) { s.DeleteSignin = true }, soon},
		{"5", "its ServiceAccount was taken from it", liveFacts(func(f *Facts) { f.Account.Owner = "" }), soon, End, func(s *Step) { s.DeleteSignin = true }, soon},
		{"5b", "no ServiceAccount yet", pendingFacts(), soon, Provision, func(s *Step) { s.CreateAccount, s.CreateBindings = true, []Binding{withoutUID(bindingIn(""))} }, end},
		{"5b", "ours, from before we were killed", pendingFacts(func(f *Facts) { f.Account = &Account{UID: "a1", Owner: "s1", Signin: "s1"} }), soon, Provision,
			func(s *Step) { s.CreateBindings = []Binding{withoutUID(bindingIn(""))} }, end},
		{"5b", "left by a dead sign-in of that name", pendingFacts(func(f *Facts) { f.Account = new(dead) }), soon, Replace,
			func(s *Step) {
				s.DeleteAccount, s.CreateAccount, s.CreateBindings = new(dead), true, []Binding{withoutUID(bindingIn(""))}
			}, end},
		{"5b", "foreign: never adopted, it may have a token that lasts", pendingFacts(func(f *Facts) { f.Account = &Account{UID: "x", Owner: "somebody"} }), soon, Refuse, nil, end},
		{"6", "binding missing", liveFacts(func(f *Facts) { f.Bindings = nil }), soon, Correct, func(s *Step) { s.CreateBindings = []Binding{withoutUID(bindingIn(""))} }, end},
		{"6", "binding of another role: a roleRef cannot be changed, so it is deleted", liveFacts(func(f *Facts) { f.Bindings[0].Role = "edit" }), soon, Correct,
			func(s *Step) {
				b := bindingIn("")
				b.Role = "edit"
				s.DeleteBindings, s.CreateBindings = []Binding{b}, []Binding{withoutUID(bindingIn(""))}
			}, end},
		{"6", "binding with other subjects", liveFacts(func(f *Facts) { f.Bindings[0].Account = "" }), soon, Correct,
			func(s *Step) {
				b := bindingIn("")
				b.Account = ""
				s.DeleteBindings, s.CreateBindings = []Binding{b}, []Binding{withoutUID(bindingIn(""))}
			}, end},
		{"6", "binding without our labels", liveFacts(func(f *Facts) { f.Bindings[0].Signin = "" }), soon, Correct,
			func(s *Step) {
				b := bindingIn("")
				b.Signin = ""
				s.DeleteBindings, s.CreateBindings = []Binding{b}, []Binding{withoutUID(bindingIn(""))}
			}, end},
		{"6", "binding left by a dead sign-in", pendingFacts(func(f *Facts) { b := bindingIn(""); b.Signin = "s0"; f.Bindings = []Binding{b} }), soon, Replace,
			func(s *Step) {
				b := bindingIn("")
				b.Signin = "s0"
				s.DeleteBindings, s.CreateAccount, s.CreateBindings = []Binding{b}, true, []Binding{withoutUID(bindingIn(""))}
			}, end},
		{"6", "one binding too many, elsewhere", liveFacts(func(f *Facts) { f.Bindings = append(f.Bindings, bindingIn("kube-system")) }), soon, Correct,
			func(s *Step) { s.DeleteBindings = []Binding{bindingIn("kube-system")} }, end},
		{"6", "a copy of the binding under another name", liveFacts(func(f *Facts) { b := bindingIn(""); b.Name = "copy"; f.Bindings = append(f.Bindings, b) }), soon, Correct,
			func(s *Step) { b := bindingIn(""); b.Name = "copy"; s.DeleteBindings = []Binding{b} }, end},
		{"6", "a binding of the whole cluster in addition to those of namespaces", pendingFacts(inNamespaces, func(f *Facts) { f.Bindings = []Binding{bindingIn("")} }), soon, Provision,
			func(s *Step) {
				s.DeleteBindings, s.CreateAccount, s.CreateBindings = []Binding{bindingIn("")}, true, []Binding{withoutUID(bindingIn("jobs")), withoutUID(bindingIn("shop"))}
			}, end},
		{"6", "a namespace that is missing is left out, and reported", pendingFacts(inNamespaces, func(f *Facts) { f.Existing = []string{"shop"} }), soon, Provision,
			func(s *Step) {
				s.CreateAccount, s.CreateBindings = true, []Binding{withoutUID(bindingIn("shop"))}
				s.Report.MissingNamespaces = []string{"jobs"}
			}, end},
		{"6", "a namespace that was missing has appeared", liveFacts(func(f *Facts) {
			inNamespaces(f)
			f.Bound, f.MissingNamespaces, f.Bindings = access.Binds{{Role: "view", Namespaces: []string{"shop"}}}, []string{"jobs"}, []Binding{bindingIn("shop")}
		}), soon, Provision, func(s *Step) { s.CreateBindings = []Binding{withoutUID(bindingIn("jobs"))} }, end},
		{"6", "a namespace has gone, and the binding with it", liveFacts(func(f *Facts) {
			inNamespaces(f)
			f.Existing, f.Bound, f.Bindings = []string{"shop"}, access.Binds{{Role: "view", Namespaces: []string{"jobs", "shop"}}}, []Binding{bindingIn("shop")}
		}), soon, Provision, func(s *Step) { s.Report.MissingNamespaces = []string{"jobs"} }, end},
		{"7", "requested again: the end moves", liveFacts(func(f *Facts) { f.AskedAt, f.Generation = soon, 2 }), soon, Extend, nil, soon.Add(8 * time.Hour)},
		{"7", "a shorter period shortens", liveFacts(func(f *Facts) { f.Period, f.Generation = time.Hour, 2 }), soon, Extend, nil, t0.Add(time.Hour)},
		{"7", "maxLife bounds extensions", liveFacts(func(f *Facts) { f.AskedAt, f.Generation = t0.Add(20*time.Hour), 2 }), t0.Add(20 * time.Hour), Extend, nil, t0.Add(24 * time.Hour)},
		{"7", "no maxLife", liveFacts(func(f *Facts) { f.AskedAt, f.Generation, f.Rules.MaxLife = t0.Add(20*time.Hour), 2, 0 }), t0.Add(20 * time.Hour), Extend, nil, t0.Add(28 * time.Hour)},
		{"8", "all as wished: no write", liveFacts(), soon, Keep, nil, end},
		{"8", "a fraction of a second cannot be stored, so it is no difference", liveFacts(func(f *Facts) { f.Period += time.Second / 2 }), soon, Keep, nil, end},
	}
	for _, tt := range tests {
		t.Run(tt.row+" "+tt.why, func(t *testing.T) {
			step, wake := Next(tt.f, tt.now)
			want := Step{Action: tt.deed, Report: step.Report}
			if tt.step != nil {
				tt.step(&want)
			}
			if !reflect.DeepEqual(step, want) {
				t.Errorf("step\n%+v, want\n%+v", step, want)
			}
			if !wake.Equal(tt.wake) {
				t.Errorf("wake at %v, want %v", wake, tt.wake)
			}
			if tt.deed == Keep && !equalReports(step.Report, tt.f.Report) {
				t.Errorf("the action is Keep, but the report differs: %+v, stored is %+v", step.Report, tt.f.Report)
			}
		})
	}
}

func expired(at time.Time) Facts {
	f := liveFacts()
	step, _ := Next(f, at)
	store(&f, step.Report, at)
	return f
}

func cleared(at time.Time, change ...func(*Facts)) Facts {
	f := expired(at)
	step, _ := Next(f, at)
	carry(&f, step, at)
	for _, c := range change {
		c(&f)
	}
	return f
}

func refused(change ...func(*Facts)) Facts {
	f := pendingFacts(func(f *Facts) { f.Binds[0].Role = "admin" })
	step, _ := Next(f, t0)
	store(&f, step.Report, t0)
	for _, c := range change {
		c(&f)
	}
	return f
}

// carry changes the facts as the execution of a step does.
func carry(f *Facts, s Step, now time.Time) {
	f.Bindings = slices.DeleteFunc(slices.Clone(f.Bindings), func(b Binding) bool { return slices.Contains(s.DeleteBindings, b) })
	if len(f.Bindings) == 0 {
		f.Bindings = nil
	}
	if s.DeleteAccount != nil {
		f.Account = nil
	}
	r := s.Report
	if s.CreateAccount {
		f.Account = &Account{UID: "made" + now.String(), Owner: f.UID, Signin: f.UID}
		r.ServiceAccountUID = f.Account.UID
	}
	for _, b := range s.CreateBindings {
		b.UID = fmt.Sprint("made", b.Namespace, now)
		f.Bindings = append(f.Bindings, b)
	}
	store(f, r, now)
	if s.RemoveFinalizer {
		f.HasFinalizer = false
	}
	if s.DeleteSignin {
		f.Deleting = true
	}
}

// The report of a refusal: the reason, and that nothing is bound.
func TestNextRefusals(t *testing.T) {
	for reason, change := range map[string]func(*Facts){
		ReasonRoleNotAllowed:         func(f *Facts) { f.Binds[0].Role = "cluster-admin" },
		ReasonRoleNotFound:           func(f *Facts) { f.Roles = nil },
		ReasonNoNamespace:            func(f *Facts) { f.Binds[0].Namespaces = []string{"shop"} },
		ReasonNameTaken:              func(f *Facts) { f.Name = "else" },
		ReasonBadPeriod:              func(f *Facts) { f.Period = time.Minute },
		ReasonClockSkew:              func(f *Facts) { f.AskedAt = t0.Add(2 * time.Minute) },
		ReasonAdmissionPolicyMissing: func(f *Facts) { f.PolicyActive = false },
	} {
		t.Run(reason, func(t *testing.T) {
			for name, f := range map[string]Facts{"new": pendingFacts(change), "live": liveFacts(change)} {
				step, _ := Next(f, t0)
				r := step.Report
				switch {
				case step.Action != Refuse:
					t.Errorf("%s: step.Action = %q, want %q", name, step.Action, Refuse)
				case r.Reason != reason:
					t.Errorf("%s: r.Reason = %q, want %q", name, r.Reason, reason)
				case r.Message == "":
					t.Errorf("%s: r.Message is empty, %s, %+v", name, step.Action, r)
				case r.Phase != PhaseRefused:
					t.Errorf("%s: r.Phase = %q, want %q", name, r.Phase, PhaseRefused)
				case r.ObservedGeneration != f.Generation:
					t.Errorf("%s: r.ObservedGeneration = %v, want %v", name, r.ObservedGeneration, f.Generation)
				}
				switch {
				case len(r.Bound) > 0:
					t.Errorf("%s: a refusal reports a binding: r.Bound = %q, want none", name, r.Bound)
				case r.ServiceAccountUID != "":
					t.Errorf("%s: a refusal reports a binding: r.ServiceAccountUID = %q, want none", name, r.ServiceAccountUID)
				case !r.ValidUntil.IsZero():
					t.Errorf("%s: a refusal reports a binding: r.ValidUntil.IsZero() is false, %+v", name, r)
				}
				switch {
				case !reflect.DeepEqual(step.DeleteBindings, f.Bindings):
					t.Errorf("%s: a refusal must delete existing objects and keep the sign-: difference (-want +got):\n%s",
						name, cmp.Diff(f.Bindings, step.DeleteBindings))
				case (f.Account != nil) != (step.DeleteAccount != nil):
					t.Errorf("%s: a refusal must delete existing objects and keep the sign-: (f.Account != nil) != (step.DeleteAccount != nil), step = %+v",
						name, step)
				case step.RemoveFinalizer:
					t.Errorf("%s: a refusal must delete existing objects and keep the sign-: step.RemoveFinalizer is true, step = %+v",
						name, step)
				case step.DeleteSignin:
					t.Errorf("%s: a refusal must delete existing objects and keep the sign-: step.DeleteSignin is true, step = %+v",
						name, step)
				}
			}
		})
	}
}

// Failed never reports a sign-in as ready, expired or gone.
func TestFailedClaimsNothing(t *testing.T) {
	for _, action := range []Action{"", Keep, Provision, Replace, Extend, Correct, Refuse, Expire, Clear, Remove, End, Revoke} {
		f := liveFacts()
		r := Failed(f, Step{Action: action, Report: Report{Phase: PhaseRefused, Reason: ReasonRoleNotAllowed}}, ReasonForbidden, "no")
		over := action == Expire || action == Clear || action == Remove
		switch {
		case r.Phase == PhaseExpired:
			t.Errorf("r.Phase = %q; action = %q", r.Phase, action)
		case r.Phase == PhaseReady && !over:
			t.Errorf("r.Phase == PhaseReady && !over; action = %q, %+v", action, r)
		case !r.Bound.Equal(f.Bound):
			t.Errorf("r.Bound = %q, want %q; action = %q", r.Bound, f.Bound, action)
		case r.ServiceAccountUID != f.ServiceAccountUID:
			t.Errorf("r.ServiceAccountUID = %q, want %q; action = %q", r.ServiceAccountUID, f.ServiceAccountUID, action)
		}
	}
}

// anyFacts returns random facts, which may be inconsistent. The writer is not trusted, and the
// operator may find any state.
func anyFacts(r *rand.Rand) (Facts, time.Time) {
	pick := func(p float64) bool { return r.Float64() < p }
	when := func() time.Time { return t0.Add(time.Duration(r.Int64N(int64(60*time.Hour))) - 6*time.Hour) }
	if pick(.5) { // consistent facts with foreign changes
		f := []func() Facts{func() Facts { return pendingFacts() }, func() Facts { return liveFacts() }, func() Facts { return pendingFacts(inNamespaces) },
			func() Facts { return refused() }, func() Facts { return expired(t0.Add(8 * time.Hour)) }, func() Facts { return cleared(t0.Add(8 * time.Hour)) }}[r.IntN(6)]()
		for range r.IntN(3) {
			g, _ := anyFacts(r)
			switch r.IntN(8) {
			case 0:
				f.AskedAt, f.Generation = when(), f.Generation+1
			case 1:
				f.Account = g.Account
			case 2:
				f.Bindings = g.Bindings
			case 3:
				f.Deleting = true
			case 4:
				f.Period, f.Generation = g.Period, f.Generation+1
			case 5:
				f.Roles, f.PolicyActive, f.Existing, f.Selected = g.Roles, g.PolicyActive, g.Existing, g.Selected
			case 6:
				f.HasFinalizer = g.HasFinalizer
			case 7:
				f.Rules.Roles = []access.Role{"edit"}
			}
		}
		return f, when()
	}
	owner := alice
	f := Facts{
		Signin: Signin{Name: owner.Name(), UID: "s1", Generation: r.Int64N(3), Owner: owner, Binds: access.Binds{{Role: []access.Role{"view", "edit", "cluster-admin", ""}[r.IntN(4)]}},
			Period:  []time.Duration{0, -time.Hour, time.Minute, 10 * time.Minute, time.Hour, 8 * time.Hour, 24 * time.Hour, 100 * time.Hour, 1<<63 - 1}[r.IntN(9)],
			AskedAt: when(), Created: when(), Deleting: pick(.1),
			Phase: []Phase{"", PhasePending, PhaseReady, PhaseRefused, PhaseEnding, PhaseExpired}[r.IntN(6)], ObservedGeneration: r.Int64N(3)},
		HasFinalizer: pick(.8), PolicyActive: pick(.8), Rules: rules,
	}
	if pick(.1) {
		f.Name = "else"
	}
	if pick(.1) {
		f.Rules.MaxLife = 0
	}
	if pick(.9) {
		f.Roles = theRoles()
	}
	if pick(.4) {
		f.Binds = append(f.Binds, access.Bind{Role: []access.Role{"view", "edit", "edit", "cluster-admin"}[r.IntN(4)]})
	}
	for i := range f.Binds {
		if pick(.3) {
			f.Binds[i].Namespaces = []string{"jobs", "shop"}
			if pick(.1) {
				f.Binds[i].Namespaces = append(f.Binds[i].Namespaces, "tailplane-system")
			}
		}
		if pick(.3) {
			f.Binds[i].Selector = []access.Selector{"team=shop", "team=many", "team=", "none"}[r.IntN(4)]
		}
	}
	for _, ns := range []string{"jobs", "shop"} {
		if pick(.7) {
			f.Existing = append(f.Existing, ns)
		}
	}
	if pick(.9) {
		f.Selected = map[access.Selector][]string{"team=shop": slices.Clone(f.Existing), "team=many": {"shop", "tailplane-system"}}
		for i := range r.IntN(2) * 60 {
			f.Selected["team=many"] = append(f.Selected["team=many"], fmt.Sprint("n", i))
		}
	}
	if pick(.5) {
		f.ValidUntil = when().Truncate(time.Second)
		f.Bound, f.ServiceAccount, f.ServiceAccountUID = access.Binds{{Role: f.Binds[0].Role}}, f.Name, []string{"a1", "a2"}[r.IntN(2)]
	}
	if pick(.15) {
		f.ExpiredAt = when()
	}
	if pick(.6) {
		f.Account = &Account{UID: []string{"a1", "a2"}[r.IntN(2)], Owner: []string{"s1", "s0", ""}[r.IntN(3)], Signin: []string{"s1", "s0", ""}[r.IntN(3)], Deleting: pick(.1)}
	}
	for i := range r.IntN(4) {
		f.Bindings = append(f.Bindings, Binding{Namespace: []string{"", "jobs", "shop", "else"}[r.IntN(4)], Name: append(BindingNames(f.Name, f.Binds), "copy")[r.IntN(len(f.Binds)+1)], UID: fmt.Sprint("b", i),
			Role: []access.Role{"view", "edit", "cluster-admin", ""}[r.IntN(4)], Account: []string{f.Name, "", "else"}[r.IntN(3)], Signin: []string{"s1", "s0", ""}[r.IntN(3)]})
	}
	return f, when()
}

// isRequested reports whether the sign-in requests the role of b in its namespace.
func isRequested(f Facts, b Binding) bool {
	return slices.ContainsFunc(f.Binds, func(x access.Bind) bool {
		named := len(x.Namespaces) == 0 || slices.Contains(x.Namespaces, b.Namespace)
		selected := x.Selector == "" || slices.Contains(f.Selected[x.Selector], b.Namespace)
		return x.Role == b.Role && named && selected && (b.Namespace == "") == x.IsClusterWide()
	})
}

// SGN-07: The laws of Next, on random facts.
func TestNextLaws(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	seen := map[Action]int{}
	for range 200_000 {
		f, now := anyFacts(r)
		step, wake := Next(f, now)
		seen[step.Action]++
		fail := func(law string) { t.Fatalf("%s:\nfacts %+v\nnow %v\nstep %+v\nwake %v", law, f, now, step, wake) }

		if again, when := Next(f, now); !reflect.DeepEqual(step, again) || !wake.Equal(when) {
			fail("same input, same step")
		}
		for _, b := range step.CreateBindings {
			if !slices.Contains(f.Rules.Roles, b.Role) || b.Account != f.Name || f.Name != f.Owner.Name() || slices.Contains(f.Rules.Reserved, b.Namespace) ||
				!isRequested(f, b) || !now.Before(f.End(f.Rules.MaxLife)) || f.Deleting || !f.ExpiredAt.IsZero() {
				fail("no step grants what is not allowed")
			}
		}
		if step.CreateAccount && (len(step.CreateBindings) == 0 && len(f.Bindings) == 0) {
			fail("an account is created for a role")
		}
		if !f.ExpiredAt.IsZero() && !f.Deleting && step.Report.Phase != PhaseExpired {
			fail("expired is final")
		}
		after := f
		carry(&after, step, now)
		if wantAccess(after) && wake.IsZero() {
			fail("a sign-in that gives access must have a wake time")
		}
		if wantAccess(after) && step.Action != Expire && step.Action != End && wake.After(f.End(f.Rules.MaxLife)) {
			fail("a sign-in that gives access must be checked no later than its end")
		}
		if f.Account != nil && f.Account.Owner != f.UID && f.Account.Signin == "" && f.Account.UID != f.ServiceAccountUID && step.DeleteAccount != nil {
			fail("a foreign account must not be deleted")
		}
		if step.Report.Phase == PhaseReady && (step.Report.ValidUntil.IsZero() || !step.Report.ValidUntil.After(now) || len(step.Report.Bound) == 0 || !isPartOf(step.Report.Bound.Role(), f.Binds.Role())) && step.Action != End && step.Action != Revoke {
			fail("ready is what is bound, and not over")
		}
		if step.Action == Keep && step.IsDestructive() {
			fail("the action Keep must change nothing")
		}

		// Repeated execution reaches a stable state.
		for i := 0; ; i++ {
			if step.Action == Keep || step.Action == Remove || after.Deleting && !after.HasFinalizer && step.Action != End {
				break
			}
			if i == 5 {
				fail("it comes to rest")
			}
			step, wake = Next(after, now)
			carry(&after, step, now)
		}
		if rest, _ := Next(after, now); rest.Action != Keep && rest.Action != Remove && !after.Deleting {
			fail("no action is left at the end")
		}
	}
	for _, d := range []Action{Keep, Provision, Replace, Extend, Correct, Refuse, Expire, Clear, Remove, End, Revoke} {
		if seen[d] == 0 {
			t.Errorf("no facts led to %q: the laws were not tried on it", d)
		}
	}
	t.Log(seen)
}

func wantAccess(f Facts) bool {
	return f.Account != nil && f.Account.Owner == f.UID && slices.ContainsFunc(f.Bindings, func(b Binding) bool { return b.Account == f.Name && b.Signin == f.UID })
}

// SGN-07: Eight hours pass, with two failed extensions and a restart. The access ends at the exact
// second.
func TestEightHours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now().Truncate(time.Second)
		f := pendingFacts(func(f *Facts) { f.AskedAt, f.Created = start, start })
		writes, ended := 0, time.Time{}
		for range 20 {
			now := time.Now()
			step, wake := Next(f, now)
			if step.Action != Keep {
				writes++
			}
			carry(&f, step, now)
			if !wantAccess(f) && ended.IsZero() {
				ended = now
			}
			if step.Action == Remove {
				if got := ended.Sub(start); got != 8*time.Hour {
					t.Errorf("access ended after %v, want 8h0m0s", got)
				}
				if got := now.Sub(start); got != 8*time.Hour+10*time.Minute {
					t.Errorf("removed after %v, want 8h10m0s", got)
				}
				if writes != 4 { // provision, expire, clear, remove
					t.Errorf("%d steps wrote, want 4", writes)
				}
				return
			}
			if wake.IsZero() {
				t.Fatalf("asleep for ever after %+v", step)
			}
			time.Sleep(min(wake.Sub(now), 3*time.Hour)) // a restart checks earlier than necessary
		}
		t.Error("it never ended")
	})
}

func TestEightHoursExtended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now().Truncate(time.Second)
		f := pendingFacts(func(f *Facts) { f.AskedAt, f.Created = start, start })
		for range 20 {
			now := time.Now()
			if since := now.Sub(start); since == 6*time.Hour && f.Generation == 1 {
				f.AskedAt, f.Generation = now, 2
			}
			step, wake := Next(f, now)
			carry(&f, step, now)
			if step.Action == Expire {
				if got := now.Sub(start); got != 14*time.Hour {
					t.Errorf("over after %v, want 14h0m0s", got)
				}
				return
			}
			time.Sleep(min(wake.Sub(now), 2*time.Hour))
		}
		t.Error("it never ended")
	})
}
