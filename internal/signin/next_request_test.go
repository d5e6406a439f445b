package signin

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/access"
)

const digest = "d1"

var (
	theRequest = RequestRef{Name: "req-0123456789abcdef0123", UID: "q1", Digest: digest}
	elevated   = Owner{Login: "alice@a.example", UserID: "u1", DeviceID: "n1", DeviceName: "laptop", Tailnet: "a.example", Session: Session(theRequest.Name)}
)

func approval(n int) Approval {
	return Approval{Person: access.Person{Login: fmt.Sprintf("approver%d@a.example", n), UserID: fmt.Sprintf("a%d", n), Device: fmt.Sprintf("m%d", n)}, Digest: digest}
}

// byRequest returns a sign-in that uses a request for edit with one approval, for an hour.
func byRequest(change ...func(*Facts)) Facts {
	f := pendingFacts()
	f.Owner, f.Name, f.ByRequest, f.Period = elevated, elevated.Name(), theRequest, time.Hour
	f.Binds = access.Binds{{Role: "edit"}}
	f.Rules.Requests.Enabled, f.RequestPolicyActive = true, true
	f.Request = Request{
		Exists: true, UID: theRequest.UID, Digest: digest, IsHere: true, By: access.Person{Login: elevated.Login, UserID: elevated.UserID, Device: elevated.DeviceID},
		Binds: access.Binds{{Role: "edit"}}, Period: time.Hour, Approvals: 1, Approved: []Approval{approval(1)},
		Use: Use{At: t0, Signin: f.Name, SigninUID: "s1", Device: elevated.DeviceID, Period: time.Hour},
	}
	for _, c := range change {
		c(&f)
	}
	return f
}

// elevatedNow returns the same sign-in after it was provisioned.
func elevatedNow(change ...func(*Facts)) Facts {
	f := byRequest()
	f.Account = &Account{UID: "a1", Owner: "s1", Signin: "s1"}
	f.Bindings = []Binding{{Name: BindingName(f.Name), UID: "b1", Role: "edit", Account: f.Name, Signin: "s1"}}
	store(&f, f.provision(f.end()).Report, t0)
	for _, c := range change {
		c(&f)
	}
	return f
}

func unused(f *Facts) { f.Request.Use = Use{} }

// RQ-06, RQ-10, RQ-11, RQ-12, RQ-15: what the operator does with a sign-in that uses an access request.
func TestNextRequest(t *testing.T) {
	soon, end := t0.Add(10*time.Second), t0.Add(time.Hour)
	for _, tt := range []struct {
		why    string
		f      Facts
		now    time.Time
		action Action
		reason string
		wake   time.Time
	}{
		{"used and approved", byRequest(), soon, Provision, ReasonProvisioned, end},
		{"bound", elevatedNow(), soon, Keep, ReasonProvisioned, end},
		{"it ends with the use", elevatedNow(), end, Expire, ReasonExpired, end},
		{"a nanosecond before it does not", elevatedNow(), end.Add(-1), Keep, ReasonProvisioned, end},
		{"a later askedAt extends nothing", elevatedNow(func(f *Facts) { f.AskedAt = t0.Add(30 * time.Second) }), soon, Keep, ReasonProvisioned, end},
		{"the guard shortens it", elevatedNow(func(f *Facts) { f.Period = 20 * time.Minute }), soon, Extend, ReasonProvisioned, t0.Add(20 * time.Minute)},
		{"an approval shortens it", byRequest(func(f *Facts) { f.Request.Approved[0].Period = 30 * time.Minute }), soon, Provision, ReasonProvisioned, t0.Add(30 * time.Minute)},
		{"the use shortens it", byRequest(func(f *Facts) { f.Request.Use.Period = 15 * time.Minute }), soon, Provision, ReasonProvisioned, t0.Add(15 * time.Minute)},
		{"the lifetime shortens it", byRequest(func(f *Facts) { f.Rules.MaxLife = 40 * time.Minute }), soon, Provision, ReasonProvisioned, t0.Add(40 * time.Minute)},
		{"not used yet", byRequest(unused), soon, Wait, ReasonNotUsed, t0.Add(time.Minute)},
		{"not used for a minute", byRequest(unused), t0.Add(time.Minute), Withdraw, ReasonNotUsed, time.Time{}},
		{"refused, and not used for a minute", byRequest(unused, func(f *Facts) { f.Request.Approved = nil }), t0.Add(time.Minute), Withdraw, ReasonNotUsed, time.Time{}},
		{"its request is gone", elevatedNow(func(f *Facts) { f.Request = Request{} }), soon, Withdraw, ReasonRequestGone, time.Time{}},
		{"its request was recreated", elevatedNow(func(f *Facts) { f.Request.UID = "q2" }), soon, Withdraw, ReasonRequestGone, time.Time{}},
		{"its request is gone before the use", byRequest(func(f *Facts) { f.Request = Request{} }), soon, Withdraw, ReasonRequestGone, time.Time{}},
		{"revoked", elevatedNow(func(f *Facts) { f.Request.IsRevoked = true }), soon, Withdraw, ReasonRequestRevoked, time.Time{}},
		{"revoked before it was bound", byRequest(func(f *Facts) { f.Request.IsRevoked = true }), soon, Withdraw, ReasonRequestRevoked, time.Time{}},
		{"revoked after the end", elevatedNow(func(f *Facts) {
			f.Request.IsRevoked = true
			store(f, f.unboundReport(PhaseExpired, ReasonExpired, "It ended."), end)
			f.Account, f.Bindings = nil, nil
		}), end.Add(time.Minute), Clear, ReasonExpired, end.Add(10 * time.Minute)},
		{"deleted", elevatedNow(func(f *Facts) { f.Deleting = true }), soon, Revoke, ReasonProvisioned, time.Time{}},
		{"requests are off", elevatedNow(func(f *Facts) { f.Rules.Requests.Enabled = false }), soon, Refuse, ReasonRequestsOff, end},
		{"no admission policy", byRequest(func(f *Facts) { f.RequestPolicyActive = false }), soon, Refuse, ReasonAdmissionPolicyMissing, soon.Add(30 * time.Second)},
		{"unread after its end", elevatedNow(func(f *Facts) { f.Request = Request{Unread: true} }), end, Expire, ReasonExpired, end},
		{"another cluster", byRequest(func(f *Facts) { f.Request.IsHere = false }), soon, Refuse, ReasonRequestMismatch, end},
		{"an old digest", byRequest(func(f *Facts) { f.ByRequest.Digest = "d0" }), soon, Refuse, ReasonRequestChanged, end},
		{"another login", byRequest(func(f *Facts) { f.Request.By.Login = "bob@a.example" }), soon, Refuse, ReasonRequestMismatch, end},
		{"another user ID", byRequest(func(f *Facts) { f.Request.By.UserID = "u2" }), soon, Refuse, ReasonRequestMismatch, end},
		{"another device", byRequest(func(f *Facts) { f.Request.By.Device = "n2" }), soon, Refuse, ReasonRequestMismatch, end},
		{"another role", byRequest(func(f *Facts) { f.Binds = access.Binds{{Role: "view"}} }), soon, Refuse, ReasonRequestMismatch, end},
		{"more namespaces", byRequest(func(f *Facts) { f.Request.Binds = access.Binds{{Role: "edit", Namespaces: []string{"shop"}}} }), soon, Refuse, ReasonRequestMismatch, end},
		{"fewer roles", byRequest(func(f *Facts) { f.Request.Binds = append(f.Request.Binds, access.Bind{Role: "view"}) }), soon, Refuse, ReasonRequestMismatch, end},
		{"a longer period", byRequest(func(f *Facts) { f.Period = 2 * time.Hour }), soon, Refuse, ReasonRequestMismatch, end},
		{"without its record", byRequest(func(f *Facts) { f.Request.Record = []string{"exec"} }), soon, Refuse, ReasonRequestMismatch, end},
		{"with its record", byRequest(func(f *Facts) { f.Request.Record, f.Record = []string{"exec"}, []string{"attach", "exec"} }), soon, Provision, ReasonProvisioned, end},
		{"denied", byRequest(unused, func(f *Facts) { f.Request.IsDecided = true }), soon, Refuse, ReasonNotApproved, t0.Add(time.Minute)},
		{"used by another sign-in", byRequest(func(f *Facts) { f.Request.Use.SigninUID = "s2" }), soon, Refuse, ReasonRequestUsed, end},
		{"used by another name", byRequest(func(f *Facts) { f.Request.Use.Signin = "mallory" }), soon, Refuse, ReasonRequestUsed, end},
		{"used from another device", byRequest(func(f *Facts) { f.Request.Use.Device = "n2" }), soon, Refuse, ReasonRequestMismatch, end},
		{"used at another time", byRequest(func(f *Facts) { f.Request.Use.At = t0.Add(time.Hour) }), soon, Refuse, ReasonRequestMismatch, end},
		{"used for longer", byRequest(func(f *Facts) { f.Request.Use.Period = 2 * time.Hour }), soon, Refuse, ReasonRequestMismatch, end},
		{"not approved", byRequest(func(f *Facts) { f.Request.Approved = nil }), soon, Refuse, ReasonNotApproved, end},
		{"a live one that is not approved", elevatedNow(func(f *Facts) { f.Request.Approved = nil }), soon, Refuse, ReasonNotApproved, end},
		{"self-service", byRequest(func(f *Facts) { f.Request.Approvals, f.Request.Approved = 0, nil }), soon, Provision, ReasonProvisioned, end},
		{"self-service of a role with a floor", byRequest(func(f *Facts) { f.Request.Approvals, f.Request.Approved, f.Rules.Requests.Floor = 0, nil, floor(1) }), soon, Refuse, ReasonNotApproved, end},
		{"a floor above the approvals", byRequest(func(f *Facts) { f.Rules.Requests.Floor = floor(2) }), soon, Refuse, ReasonNotApproved, end},
		{"a floor that is raised while it lives", elevatedNow(func(f *Facts) { f.Rules.Requests.Floor = floor(2) }), soon, Keep, ReasonProvisioned, end},
		{"a floor that is raised, without its bindings", elevatedNow(func(f *Facts) { f.Rules.Requests.Floor, f.Bindings = floor(2), nil }), soon, Refuse, ReasonNotApproved, end},
		{"a floor that is met", byRequest(func(f *Facts) {
			f.Rules.Requests.Floor = floor(2)
			f.Request.Approved = append(f.Request.Approved, approval(2))
		}), soon, Provision, ReasonProvisioned, end},
		{"a floor below what was stored", byRequest(func(f *Facts) { f.Rules.Requests.Floor, f.Request.Approvals = floor(1), 2 }), soon, Refuse, ReasonNotApproved, end},
		{"break-glass that no setting lists", byRequest(breakGlass), soon, Refuse, ReasonNotApproved, end},
		{"break-glass", byRequest(breakGlass, listed), soon, Provision, ReasonProvisioned, end},
		{"break-glass of a role with a floor", byRequest(breakGlass, listed, func(f *Facts) { f.Rules.Requests.Floor = floor(2) }), soon, Provision, ReasonProvisioned, end},
		{"break-glass of another user ID", byRequest(breakGlass, listed, func(f *Facts) { f.Rules.Requests.BreakGlass[0].UserID = "u9" }), soon, Refuse, ReasonNotApproved, end},
		{"break-glass for longer", byRequest(breakGlass, listed, func(f *Facts) { f.Rules.Requests.BreakGlass[0].Period = time.Minute }), soon, Refuse, ReasonNotApproved, end},
		{"break-glass of another role", byRequest(breakGlass, listed, func(f *Facts) { f.Rules.Requests.BreakGlass[0].Roles = []access.Role{"view"} }), soon, Refuse, ReasonNotApproved, end},
		{"in another session", byRequest(func(f *Facts) { f.Owner.Session = "deploy"; f.Name = f.Owner.Name() }), soon, Refuse, ReasonNameTaken, end},
		{"a session of a request without one", byRequest(func(f *Facts) { f.ByRequest = RequestRef{} }), soon, Refuse, ReasonNameTaken, end},
		{"a role that reaches accounts, by request", byRequest(func(f *Facts) {
			f.Roles = reachingRoles("write pods")
			f.Rules.ClusterWide = ClusterWide{{"edit", true}}
		}), soon, Provision, ReasonProvisioned, end},
		{"a role that reaches accounts, not listed", byRequest(func(f *Facts) { f.Roles = reachingRoles("write pods"); f.Rules.ClusterWide = ClusterWide{} }), soon, Refuse, ReasonRoleNeedsNamespaces, soon.Add(30 * time.Second)},
	} {
		t.Run(strings.ReplaceAll(tt.why, " ", "_"), func(t *testing.T) {
			step, wake := Next(tt.f, tt.now)
			got := fmt.Sprintln(step.Action, step.Report.Reason, wake.UTC())
			if diff := cmp.Diff(fmt.Sprintln(tt.action, tt.reason, tt.wake.UTC()), got); diff != "" {
				t.Errorf("(-want +got):\n%s\n%s", diff, step.Report.Message)
			}
			gives := len(step.CreateBindings) > 0 || step.CreateAccount
			if gives != (tt.action == Provision) {
				t.Errorf("gives access: %v", gives)
			}
			if step.Action == Refuse || step.Action == Withdraw || step.Action == Wait {
				if len(step.DeleteBindings) != len(tt.f.Bindings) || step.DeleteAccount != tt.f.Account {
					t.Errorf("it leaves access: %+v", step)
				}
			}
		})
	}
}

func floor(n int) map[access.Role]int { return map[access.Role]int{"edit": n} }

func breakGlass(f *Facts) {
	f.Request.BreakGlass, f.Request.Approvals, f.Request.Approved = true, 0, nil
}

func listed(f *Facts) {
	f.Rules.Requests.BreakGlass = []BreakGlass{{Person: access.Person{Login: "Alice@a.example", UserID: "u1"}, Roles: []access.Role{"edit"}, Period: time.Hour}}
}

// RQ-15: a role with a floor is not had without a request. A sign-in that has it keeps it until its end.
func TestRQ15_FloorRefusesStanding(t *testing.T) {
	withFloor := func(f *Facts) { f.Rules.Requests.Floor = map[access.Role]int{"view": 2} }
	soon, end := t0.Add(time.Minute), t0.Add(8*time.Hour)
	for _, tt := range []struct {
		why    string
		f      Facts
		action Action
		phase  Phase
		reason string
		until  time.Time
	}{
		{"a new one", pendingFacts(withFloor), Refuse, PhaseRefused, ReasonApprovalRequired, time.Time{}},
		{"a running one", liveFacts(withFloor), Warn, PhaseReady, ReasonApprovalRequired, end},
		{"a running one in namespaces", liveFacts(inNamespaces, func(f *Facts) {
			f.Bindings = []Binding{bindingIn("jobs"), bindingIn("shop")}
			store(f, f.provision(f.end()).Report, t0)
		}, withFloor), Warn, PhaseReady, ReasonApprovalRequired, end},
		{"a running one whose binding is lost", liveFacts(withFloor, func(f *Facts) { f.Bindings = nil }), Refuse, PhaseRefused, ReasonApprovalRequired, time.Time{}},
		{"an extension", liveFacts(withFloor, func(f *Facts) { f.AskedAt, f.Generation = soon, 2 }), Warn, PhaseReady, ReasonApprovalRequired, end},
		{"another role", liveFacts(func(f *Facts) { f.Rules.Requests.Floor = floor(2) }), Keep, PhaseReady, ReasonProvisioned, end},
	} {
		step, _ := Next(tt.f, soon)
		got := fmt.Sprintln(step.Action, step.Report.Phase, step.Report.Reason, step.Report.ValidUntil)
		if diff := cmp.Diff(fmt.Sprintln(tt.action, tt.phase, tt.reason, tt.until), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.why, diff)
		}
	}
}

// RQ-01, RQ-03: approvals count by people other than the requester.
func TestRQ03_CountApprovers(t *testing.T) {
	by := func(login, id, device string) Approval {
		return Approval{access.Person{Login: login, UserID: id, Device: device}, digest, 0}
	}
	rules := RequestRules{RequestPolicy: access.RequestPolicy{SamePerson: [][]access.Person{
		{{Login: "alice@a.example", UserID: "u1"}, {Login: "alice-admin@a.example", UserID: "u9"}},
		{{Login: "bob@a.example", UserID: "u2"}, {Login: "bob-admin@a.example", UserID: "u8"}, {Login: "bob@b.example", UserID: "u7"}},
	}}}
	for _, tt := range []struct {
		why  string
		want int
		of   []Approval
	}{
		{"nobody", 0, nil},
		{"two people", 2, []Approval{by("bob@a.example", "u2", "n2"), by("carol@a.example", "u3", "n3")}},
		{"the requester", 0, []Approval{by("alice@a.example", "u1", "n9")}},
		{"the requester in another case", 0, []Approval{by("Alice@A.example", "x", "n9")}},
		{"the requester under a new login", 0, []Approval{by("al@a.example", "u1", "n9")}},
		{"the requester's other login", 0, []Approval{by("alice-admin@a.example", "u9", "n9")}},
		{"the requester's device", 0, []Approval{by("dave@a.example", "u5", "n1")}},
		{"one person twice", 1, []Approval{by("bob@a.example", "u2", "n2"), by("Bob@a.example", "u2", "n3")}},
		{"one person with two logins", 1, []Approval{by("bob@a.example", "u2", "n2"), by("bob-admin@a.example", "u8", "n3")}},
		{"two logins that a third joins", 1, []Approval{by("x@a.example", "u3", "n2"), by("y@a.example", "u4", "n3"), by("X@a.example", "u4", "n4")}},
		{"a login that joins another to the requester", 0, []Approval{by("x@a.example", "u3", "n2"), by("X@a.example", "u1", "n3")}},
		{"the same in the other order", 0, []Approval{by("X@a.example", "u1", "n3"), by("x@a.example", "u3", "n2")}},
		{"of another digest", 0, []Approval{{access.Person{Login: "bob@a.example", UserID: "u2", Device: "n2"}, "d0", 0}}},
		{"one of another digest", 1, []Approval{{access.Person{Login: "bob@a.example", UserID: "u2", Device: "n2"}, "d0", 0}, by("carol@a.example", "u3", "n3")}},
		{"two logins on one device", 1, []Approval{by("bob@a.example", "u2", "n2"), by("carol@a.example", "u3", "n2")}},
		{"people without user IDs", 2, []Approval{by("bob@a.example", "", "n2"), by("carol@a.example", "", "n3")}},
	} {
		got := rules.countApprovers(Request{Digest: digest, By: access.Person{Login: "alice@a.example", UserID: "u1", Device: "n1"}, Approved: tt.of})
		if got != tt.want {
			t.Errorf("%s: %d, want %d", tt.why, got, tt.want)
		}
	}
}
