//go:build unix

package controller

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/signin"
)

// withRequests turns access requests on.
func (p *env) withRequests() *env {
	p.rules.Requests = signin.RequestRules{RequestPolicy: access.RequestPolicy{Enabled: true}, Keep: 720 * time.Hour}
	return p
}

// approve adds approvals of these people to a request, bound to what it says now.
func (p *env) approve(name string, people ...string) {
	p.t.Helper()
	o := p.requestObject(name)
	before := o.DeepCopy()
	for i, login := range people {
		o.Status.Approvals = append(o.Status.Approvals, v1alpha1.RequestApproval{
			RequestPerson: v1alpha1.RequestPerson{Login: login, UserID: fmt.Sprint("approver-", login), Device: fmt.Sprint("device-of-", login, i)},
			Digest:        v1alpha1.RequestDigest(p.clusterID(), string(o.UID), o.Spec), At: metav1.Now()})
	}
	p.updateRequest(before, o)
}

func (p *env) requestObject(name string) *v1alpha1.TkaRequest {
	p.t.Helper()
	o := new(v1alpha1.TkaRequest)
	if err := p.admin.Get(p.t.Context(), client.ObjectKey{Namespace: p.ns, Name: name}, o); err != nil {
		p.t.Fatal(err)
	}
	return o
}

// updateRequest writes the status as the access server does: with the version that it read.
func (p *env) updateRequest(before, o *v1alpha1.TkaRequest) {
	p.t.Helper()
	if err := p.client(p.accessConfig).Status().Patch(p.t.Context(), o, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		p.t.Fatal(err)
	}
}

// signinOfRequest returns the sign-in that uses a request, as the access server creates it.
func (p *env) signinOfRequest(by signin.Owner, o *v1alpha1.TkaRequest) signin.Signin {
	by.Session = signin.Session(o.Name)
	return signin.Signin{Name: by.Name(), Owner: by, Binds: bindsOfList(o.Spec.Bind), Period: o.Spec.Period.Duration, AskedAt: time.Now(), Record: o.Spec.Record,
		ByRequest: signin.RequestRef{Name: o.Name, UID: string(o.UID), Digest: v1alpha1.RequestDigest(p.clusterID(), string(o.UID), o.Spec)}}
}

// use writes the use of a request by a stored sign-in.
func (p *env) use(name string, x signin.Signin, change ...func(*v1alpha1.RequestUse)) {
	p.t.Helper()
	o := p.requestObject(name)
	before := o.DeepCopy()
	o.Status.Use = &v1alpha1.RequestUse{At: metav1.NewTime(x.Created), Signin: x.Name, SigninUID: x.UID, Device: x.Owner.DeviceID, Period: o.Spec.Period}
	for _, c := range change {
		c(o.Status.Use)
	}
	p.updateRequest(before, o)
}

// elevate asks, approves and uses, and waits until the sign-in is ready.
func (p *env) elevate(s *Store, by signin.Owner, change ...func(*v1alpha1.TkaRequest)) (signin.Signin, *v1alpha1.TkaRequest) {
	p.t.Helper()
	o := p.ask(by, change...)
	p.approve(o.Name, "bob@a.example")
	x, err := s.Create(p.t.Context(), p.signinOfRequest(by, o))
	if err != nil {
		p.t.Fatal(err)
	}
	p.use(o.Name, x)
	return p.await(s, x.Name, in(signin.Ready)), o
}

func (p *env) revokeRequest(name string) {
	p.t.Helper()
	o := p.requestObject(name)
	before := o.DeepCopy()
	o.Status.Revoked = &v1alpha1.RequestAct{RequestPerson: v1alpha1.RequestPerson{Login: "bob@a.example", UserID: "u2", Device: "n2"}, At: metav1.Now(), Reason: "enough"}
	p.updateRequest(before, o)
}

func pendingWith(reason string) func(signin.Signin, bool) bool {
	return func(s signin.Signin, there bool) bool {
		return there && s.Phase == signin.PhasePending && s.Reason == reason
	}
}

// RQ-11, RQ-12: a sign-in by request gives nothing before its use, and ends when its request ends.
func TestRQ12_SigninOfARequest(t *testing.T) {
	p := newEnv(t).withRequests()
	stop := p.operate()
	s, _ := p.open()
	alice := p.owner("alice@a.example", "laptop")
	standing := p.login(s, newSignin(alice, "view", time.Hour))
	only := func() {
		t.Helper()
		p.until("only the standing sign-in is bound", func() bool {
			accounts, everywhere, somewhere := p.made()
			return len(accounts) == 1 && len(everywhere) == 1 && len(somewhere) == 0
		})
	}
	// Nothing is bound before the use.
	o := p.ask(alice)
	p.approve(o.Name, "bob@a.example")
	x, err := s.Create(t.Context(), p.signinOfRequest(alice, o))
	if err != nil {
		t.Fatal(err)
	}
	x = p.await(s, x.Name, pendingWith(signin.ReasonNotUsed))
	only()
	p.use(o.Name, x)
	x = p.await(s, x.Name, in(signin.Ready))
	if want := x.Created.Add(time.Hour); !x.ValidUntil.Equal(want) {
		t.Errorf("it ends at %v, want %v", x.ValidUntil, want)
	}
	// A login does not move the end.
	later := x
	later.AskedAt, later.Period = time.Now().Add(30*time.Second), 2*time.Hour
	later, err = s.Extend(t.Context(), p.now(s, later))
	if err != nil {
		t.Fatal(err)
	}
	refused := p.await(s, x.Name, in(signin.Refused))
	if refused.Reason != signin.ReasonRequestMismatch {
		t.Errorf("a longer period than approved: %s (%s)", refused.Reason, refused.Message)
	}
	later.Period = time.Hour
	if _, err = s.Extend(t.Context(), p.now(s, later)); err != nil {
		t.Fatal(err)
	}
	if x = p.await(s, x.Name, in(signin.Ready)); !x.ValidUntil.Equal(x.Created.Add(time.Hour)) {
		t.Errorf("after a login it ends at %v, want %v", x.ValidUntil, x.Created.Add(time.Hour))
	}
	// The request is deleted while it is used.
	if err := p.admin.Delete(t.Context(), p.requestObject(o.Name)); err != nil {
		t.Fatal(err)
	}
	p.await(s, x.Name, gone)
	only()

	// It is revoked while it is used: the operator ends the sign-in, and names the reason.
	y, o2 := p.elevate(s, alice)
	p.revokeRequest(o2.Name)
	p.await(s, y.Name, gone)
	only()
	p.events(y.Name, "Withdrawn")
	// It is revoked, or its request is deleted, between the use and the provisioning.
	stop()
	p.beforeProvisioning(s, alice, p.revokeRequest)
	p.beforeProvisioning(s, alice, func(name string) {
		if err := p.admin.Delete(t.Context(), p.requestObject(name)); err != nil {
			t.Fatal(err)
		}
	})
	only()
	p.operate()
	if now, err := s.Get(t.Context(), standing.Name); err != nil || now.State(time.Now()) != signin.Ready {
		t.Errorf("the standing sign-in: %+v, %v", now, err)
	}
	end(p, s, standing.Name)
	p.nothingLeft()
}

// beforeProvisioning uses a request while no operator runs, changes it, and then starts one.
func (p *env) beforeProvisioning(s *Store, by signin.Owner, change func(name string)) {
	p.t.Helper()
	o := p.ask(by)
	p.approve(o.Name, "bob@a.example")
	x, err := s.Create(p.t.Context(), p.signinOfRequest(by, o))
	if err != nil {
		p.t.Fatal(err)
	}
	p.use(o.Name, x)
	change(o.Name)
	defer p.operate()()
	p.await(s, x.Name, gone)
	p.neverBound(x)
}

// neverBound fails the test if the operator reported that it bound a role for x.
func (p *env) neverBound(x signin.Signin) {
	p.t.Helper()
	var list eventsv1.EventList
	if err := p.admin.List(p.t.Context(), &list, client.InNamespace(p.ns)); err != nil {
		p.t.Fatal(err)
	}
	for _, e := range list.Items {
		if e.Regarding.Name == x.Name && string(e.Regarding.UID) == x.UID && e.Reason == "Provisioned" {
			p.t.Errorf("%s was bound: %s", x.Name, e.Note)
		}
	}
}

// finish deletes a sign-in and waits until it is gone.
func (p *env) finish(s *Store, name string) {
	p.t.Helper()
	x, err := s.Get(p.t.Context(), name)
	if err == nil {
		err = s.Delete(p.t.Context(), x)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	p.await(s, name, gone)
}

// RQ-06, RQ-10, RQ-11: sign-ins that do not fit their request are refused, also if the access server wrote them.
func TestRQ11_ForgedSigninOfARequest(t *testing.T) {
	p := newEnv(t).withRequests()
	p.rules.Requests.Floor = map[access.Role]int{"edit": 1}
	p.operate()
	s, _ := p.open()
	alice, mallory := p.owner("alice@a.example", "laptop"), p.owner("mallory@a.example", "laptop")
	mallory.UserID = "u7"
	victim, victims := p.elevate(s, alice)
	ask := func(change ...func(*v1alpha1.TkaRequest)) *v1alpha1.TkaRequest {
		o := p.ask(alice, change...)
		p.approve(o.Name, "bob@a.example")
		return o
	}
	used := func(o *v1alpha1.TkaRequest, x signin.Signin) { p.use(o.Name, x) }
	for _, tt := range []struct {
		why, reason string
		forge       func() (signin.Signin, *v1alpha1.TkaRequest)
		use         func(*v1alpha1.TkaRequest, signin.Signin)
	}{
		{"the request of another person", signin.ReasonRequestMismatch, func() (signin.Signin, *v1alpha1.TkaRequest) { return p.signinOfRequest(mallory, victims), victims }, nil},
		{"a request that another sign-in has used", signin.ReasonRequestUsed, func() (signin.Signin, *v1alpha1.TkaRequest) { o := ask(); return p.signinOfRequest(alice, o), o },
			func(o *v1alpha1.TkaRequest, _ signin.Signin) { p.use(o.Name, victim) }},
		{"no approval", signin.ReasonNotApproved, func() (signin.Signin, *v1alpha1.TkaRequest) {
			o := p.ask(alice)
			return p.signinOfRequest(alice, o), o
		}, nil},
		{"self-service of a role with a floor", signin.ReasonNotApproved, func() (signin.Signin, *v1alpha1.TkaRequest) {
			o := p.ask(alice, func(o *v1alpha1.TkaRequest) { o.Spec.Approvals = 0 })
			return p.signinOfRequest(alice, o), o
		}, used},
		{"approvals of another digest", signin.ReasonNotApproved, func() (signin.Signin, *v1alpha1.TkaRequest) {
			o := p.ask(alice)
			if err := p.patchRequest(o.Name, `{"status":{"approvals":[`+byBob+`]}}`); err != nil {
				t.Fatal(err)
			}
			return p.signinOfRequest(alice, o), o
		}, used},
		{"an old digest", signin.ReasonRequestChanged, func() (signin.Signin, *v1alpha1.TkaRequest) {
			o := ask()
			x := p.signinOfRequest(alice, o)
			x.ByRequest.Digest = testDigest
			return x, o
		}, used},
		{"another role", signin.ReasonRequestMismatch, func() (signin.Signin, *v1alpha1.TkaRequest) {
			o := ask()
			x := p.signinOfRequest(alice, o)
			x.Binds = access.Binds{{Role: "view"}}
			return x, o
		}, used},
		{"the whole cluster instead of a namespace", signin.ReasonRequestMismatch, func() (signin.Signin, *v1alpha1.TkaRequest) {
			o := ask(func(o *v1alpha1.TkaRequest) { o.Spec.Bind[0].Namespaces = []string{"default"} })
			x := p.signinOfRequest(alice, o)
			x.Binds = access.Binds{{Role: "edit"}}
			return x, o
		}, used},
		{"without its record", signin.ReasonRequestMismatch, func() (signin.Signin, *v1alpha1.TkaRequest) {
			o := ask(func(o *v1alpha1.TkaRequest) { o.Spec.Record = []string{"exec"} })
			x := p.signinOfRequest(alice, o)
			x.Record = nil
			return x, o
		}, used},
		{"a request of another cluster", signin.ReasonRequestMismatch, func() (signin.Signin, *v1alpha1.TkaRequest) {
			o := ask(func(o *v1alpha1.TkaRequest) { o.Spec.Cluster.ID = "7e2b0f6e-0000-4000-8000-000000000000" })
			return p.signinOfRequest(alice, o), o
		}, used},
		{"a use at another time", signin.ReasonRequestMismatch, func() (signin.Signin, *v1alpha1.TkaRequest) { o := ask(); return p.signinOfRequest(alice, o), o },
			func(o *v1alpha1.TkaRequest, x signin.Signin) {
				p.use(o.Name, x, func(u *v1alpha1.RequestUse) { u.At = metav1.NewTime(x.Created.Add(24 * time.Hour)) })
			}},
		{"a role with a floor, without a request", signin.ReasonApprovalRequired, func() (signin.Signin, *v1alpha1.TkaRequest) { return newSignin(mallory, "edit", time.Hour), nil }, nil},
	} {
		t.Run(strings.ReplaceAll(tt.why, " ", "_"), func(t *testing.T) {
			want, o := tt.forge()
			x, err := s.Create(t.Context(), want)
			if err != nil {
				t.Fatal(err)
			}
			if tt.use != nil {
				tt.use(o, x)
			}
			if no := p.await(s, x.Name, in(signin.Refused)); no.Reason != tt.reason {
				t.Errorf("reason %s (%s), want %s", no.Reason, no.Message, tt.reason)
			}
			if accounts, everywhere, somewhere := p.made(); len(accounts)+len(everywhere)+len(somewhere) != 2 {
				t.Errorf("%d ServiceAccounts, %d and %d bindings, want those of the victim", len(accounts), len(everywhere), len(somewhere))
			}
			p.finish(s, x.Name)
		})
	}
	if now, err := s.Get(t.Context(), victim.Name); err != nil || now.State(time.Now()) != signin.Ready {
		t.Errorf("the victim's sign-in: %+v, %v", now, err)
	}
}

// RQ-06, RQ-10: an object that an administrator copies with its status, to this cluster or from another one, gives nothing.
// A request that is recreated under its name neither.
func TestRQ10_CopiedRequest(t *testing.T) {
	p := newEnv(t).withRequests()
	p.operate()
	s, _ := p.open()
	alice := p.owner("alice@a.example", "laptop")
	x, o := p.elevate(s, alice)
	original := p.requestObject(o.Name)
	again := original.DeepCopy()
	again.ObjectMeta = metav1.ObjectMeta{Namespace: p.ns, Name: o.Name}
	if err := p.admin.Delete(t.Context(), original); err != nil {
		t.Fatal(err)
	}
	if err := p.admin.Create(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	p.await(s, x.Name, gone)
	// Its status, with the old digest, is copied too: the approvals do not count.
	again = p.requestObject(o.Name)
	before := again.DeepCopy()
	again.Status.Approvals = original.Status.Approvals
	p.updateRequest(before, again)
	y, err := s.Create(t.Context(), p.signinOfRequest(alice, again))
	if err != nil {
		t.Fatal(err)
	}
	p.use(o.Name, y)
	if no := p.await(s, y.Name, in(signin.Refused)); no.Reason != signin.ReasonNotApproved {
		t.Errorf("reason %s (%s)", no.Reason, no.Message)
	}
	end(p, s, y.Name)
	p.nothingLeft()
}

// REQ-08: all roles of a request are bound before it is ready, and gone at its end. If one is missing, nothing is bound.
func TestREQ08_SeveralRoles(t *testing.T) {
	p := newEnv(t).withRequests()
	stop := p.operate()
	s, _ := p.open()
	ns := p.cluster.Namespace(t)
	several := func(more ...string) func(*v1alpha1.TkaRequest) {
		return func(o *v1alpha1.TkaRequest) {
			o.Spec.Bind = []v1alpha1.SigninBind{{Role: "view"}, {Role: "edit", Namespaces: append([]string{ns}, more...)}}
		}
	}
	x, _ := p.elevate(s, p.owner("alice@a.example", "laptop"), several())
	if _, everywhere, somewhere := p.made(); len(everywhere) != 1 || len(somewhere) != 1 {
		t.Errorf("when it is ready: %d ClusterRoleBindings and %d RoleBindings, want 1 and 1", len(everywhere), len(somewhere))
	}
	end(p, s, x.Name)
	p.nothingLeft()

	p.rules.Roles = append(p.rules.Roles, "missing")
	stop()
	p.operate()
	o := p.ask(p.owner("bob@b.example", "laptop"), func(o *v1alpha1.TkaRequest) { o.Spec.Bind = []v1alpha1.SigninBind{{Role: "view"}, {Role: "missing"}} })
	p.approve(o.Name, "carol@a.example")
	y, err := s.Create(t.Context(), p.signinOfRequest(p.owner("bob@b.example", "laptop"), o))
	if err != nil {
		t.Fatal(err)
	}
	p.use(o.Name, y)
	no := p.await(s, y.Name, in(signin.Refused))
	if _, everywhere, _ := p.made(); len(everywhere) > 0 || no.Reason != signin.ReasonRoleNotFound {
		t.Errorf("%d ClusterRoleBindings; reason %s (%s)", len(everywhere), no.Reason, no.Message)
	}
	end(p, s, y.Name)
}

// REQ-10: two requests of one role overlap. Each ends at its own time, and neither takes the other's binding.
func TestREQ10_OverlappingRequests(t *testing.T) {
	p := newEnv(t).withRequests()
	p.operate()
	s, _ := p.open()
	alice := p.owner("alice@a.example", "laptop")
	short := func(o *v1alpha1.TkaRequest) { o.Spec.Period.Duration = 8 * time.Second }
	long, _ := p.elevate(s, alice)
	first, _ := p.elevate(s, alice, short)
	if long.Name == first.Name {
		t.Fatalf("both are %s", long.Name)
	}
	if _, everywhere, _ := p.made(); len(everywhere) != 2 {
		t.Errorf("%d bindings, want 2", len(everywhere))
	}
	ended := p.await(s, first.Name, func(x signin.Signin, there bool) bool { return there && x.Phase == signin.PhaseExpired })
	if want := first.Created.Add(8 * time.Second); !ended.ValidUntil.Equal(want) {
		t.Errorf("the short one ended at %v, want %v", ended.ValidUntil, want)
	}
	p.until("one binding is left", func() bool { _, everywhere, _ := p.made(); return len(everywhere) == 1 })
	now, err := s.Get(t.Context(), long.Name)
	if err != nil || now.State(time.Now()) != signin.Ready {
		t.Errorf("the long one: %+v, %v", now, err)
	}
	if want := long.Created.Add(time.Hour); !now.ValidUntil.Equal(want) {
		t.Errorf("the long one ends at %v, want %v", now.ValidUntil, want)
	}
	p.finish(s, first.Name)
	p.finish(s, long.Name)
	p.nothingLeft()
}

// REQ-39: an operator without requests ends the sign-ins that use one, with a sentence, and reads no request.
func TestREQ39_RequestsOff(t *testing.T) {
	p := newEnv(t).withRequests()
	stop := p.operate()
	s, _ := p.open()
	x, _ := p.elevate(s, p.owner("alice@a.example", "laptop"))
	stop()
	p.rules.Requests = signin.RequestRules{}
	p.operate()
	if no := p.await(s, x.Name, in(signin.Refused)); no.Reason != signin.ReasonRequestsOff || no.Message == "" {
		t.Errorf("reason %s (%s)", no.Reason, no.Message)
	}
	end(p, s, x.Name)
	p.nothingLeft()
}

// REQ-23: the operator deletes final requests after the time for which it keeps them. It keeps a break-glass use until
// its review.
func TestREQ23_SweepsFinalRequests(t *testing.T) {
	p := newEnv(t).withRequests()
	alice := p.owner("alice@a.example", "laptop")
	alice.UserID = "u1"
	old := metav1.NewTime(time.Now().Add(-1000 * time.Hour).Truncate(time.Second))
	long := func(o *v1alpha1.TkaRequest) {
		o.Spec.AskedAt, o.Spec.PendingUntil = old, metav1.NewTime(old.Add(time.Hour))
	}
	glass := func(o *v1alpha1.TkaRequest) { long(o); o.Spec.BreakGlass, o.Spec.Approvals = true, 0 }
	with := func(change func(*v1alpha1.TkaRequest), status string) string {
		t.Helper()
		o := p.ask(alice, change)
		if err := p.patchRequest(o.Name, `{"status":{`+status+`}}`); err != nil {
			t.Fatal(err)
		}
		return o.Name
	}
	at := func(x metav1.Time) string { b, _ := json.Marshal(x); return string(b) }
	use := func(from metav1.Time) string {
		return strings.Replace(`"use":`+useText(alice.DeviceID, "1h"), `"2026-11-01T10:00:00Z"`, at(from), 1)
	}
	act := func(kind string, x metav1.Time) string {
		return `,"` + kind + `":` + strings.Replace(revoked1, `"2026-11-01T10:00:00Z"`, at(x), 1)
	}
	now := metav1.Now()
	keep := map[string]string{
		"pending": p.ask(alice).Name,
		"expired a short time ago": p.ask(alice, func(o *v1alpha1.TkaRequest) {
			o.Spec.AskedAt, o.Spec.PendingUntil = metav1.NewTime(now.Add(-2*time.Hour)), metav1.NewTime(now.Add(-time.Hour))
		}).Name,
		"used now":                     with(long, `"approvals":[`+byBob+`],`+use(now)),
		"usable":                       with(long, `"approvals":[`+byBob+`],"usableUntil":`+at(metav1.NewTime(now.Add(time.Hour)))),
		"break-glass without review":   with(glass, use(old)),
		"break-glass, revoked":         with(glass, use(old)+act("revoked", old)),
		"break-glass, reviewed lately": with(glass, use(old)+act("reviewed", now)),
	}
	remove := map[string]string{
		"expired":               p.ask(alice, long).Name,
		"used":                  with(long, `"approvals":[`+byBob+`],`+use(old)),
		"denied":                with(long, `"decision":`+strings.Replace(denied1, `"2026-11-01T10:00:00Z"`, at(old), 1)),
		"not used in time":      with(long, `"approvals":[`+byBob+`],"usableUntil":`+at(metav1.NewTime(old.Add(time.Hour)))),
		"break-glass, reviewed": with(glass, use(old)+act("reviewed", old)),
	}
	p.operate()
	there := func(name string) bool {
		err := p.admin.Get(t.Context(), client.ObjectKey{Namespace: p.ns, Name: name}, new(v1alpha1.TkaRequest))
		if client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
		return err == nil
	}
	for why, name := range remove {
		p.until(why+" is deleted", func() bool { return !there(name) })
	}
	for why, name := range keep {
		if !there(name) {
			t.Errorf("%s: deleted", why)
		}
	}
}
