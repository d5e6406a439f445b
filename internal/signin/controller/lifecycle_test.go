//go:build unix

package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/util/secret"
	"github.com/tailplane/tailplane/testkit/kubetest"
)

// mayList checks whether a token may list pods, by listing them.
func (p *env) mayList(token secret.Text, ns string) error {
	p.t.Helper()
	return p.clientFor(token).List(p.t.Context(), &corev1.PodList{}, client.InNamespace(ns))
}

func (p *env) token(s *Store, x signin.Signin) secret.Text {
	p.t.Helper()
	token, _, err := s.IssueToken(p.t.Context(), x, time.Until(x.ValidUntil))
	if err != nil {
		p.t.Fatal(err)
	}
	return token
}

// events waits until an event with each of the reasons exists for a sign-in.
func (p *env) events(name string, reasons ...string) {
	p.t.Helper()
	var seen []string
	p.until(fmt.Sprintf("events %v about %s", reasons, name), func() bool {
		var list eventsv1.EventList
		if err := p.admin.List(p.t.Context(), &list, client.InNamespace(p.ns)); err != nil {
			p.t.Fatal(err)
		}
		seen = nil
		for _, e := range list.Items {
			if e.Regarding.Name == name && e.Regarding.Kind == "TkaSignin" {
				seen = append(seen, e.Reason)
			}
		}
		return !slices.ContainsFunc(reasons, func(r string) bool { return !slices.Contains(seen, r) })
	})
}

// The complete lifecycle of a sign-in: provisioned, used, logged out.
func TestLife(t *testing.T) {
	p := newEnv(t)
	p.operate()
	s, _ := p.open()
	alice := p.owner("alice@a.example", "laptop")

	ready := p.login(s, newSignin(alice, "view", time.Hour))
	if want := ready.AskedAt.Add(time.Hour); !ready.ValidUntil.Equal(want) || ready.Bound.Role() != "view" {
		t.Errorf("bound %s until %v, want view until %v", ready.Bound.Role(), ready.ValidUntil, want)
	}
	o := p.object(ready.Name)
	for kind, want := range map[string]metav1.ConditionStatus{v1alpha1.ConditionReady: "True", v1alpha1.ConditionProvisioned: "True", v1alpha1.ConditionExpired: "False"} {
		switch c := meta.FindStatusCondition(o.Status.Conditions, kind); {
		case c == nil:
			t.Errorf("condition %s: c is nil", kind)
		case c.Status != want:
			t.Errorf("condition %s: c.Status = %q, want %q", kind, c.Status, want)
		case c.ObservedGeneration != o.Generation:
			t.Errorf("condition %s: c.ObservedGeneration = %v, want %v", kind, c.ObservedGeneration, o.Generation)
		}
	}
	if at, err := time.Parse(time.RFC3339, o.Annotations[v1alpha1.LastAttemptAnnotation]); err != nil || time.Since(at) > deadline {
		t.Errorf("%s: %v", v1alpha1.LastAttemptAnnotation, o.Annotations)
	}
	accounts, everywhere, somewhere := p.made()
	switch {
	case len(accounts) != 1:
		t.Fatalf("len(accounts) = %v, want 1", len(accounts))
	case len(everywhere) != 1:
		t.Fatalf("len(everywhere) = %v, want 1", len(everywhere))
	case len(somewhere) != 0:
		t.Fatalf("len(somewhere) = %v, want 0", len(somewhere))
	}
	switch sa := accounts[0]; {
	case sa.Name != ready.Name:
		t.Errorf("ServiceAccount: sa.Name = %q, want %q", sa.Name, ready.Name)
	case !metav1.IsControlledBy(&sa, o):
		t.Errorf("ServiceAccount: metav1.IsControlledBy(&sa, o) is false; %+v", sa)
	case sa.AutomountServiceAccountToken == nil:
		t.Error("ServiceAccount: sa.AutomountServiceAccountToken is nil")
	case *sa.AutomountServiceAccountToken:
		t.Errorf("ServiceAccount: *sa.AutomountServiceAccountToken is true; %+v", sa)
	}
	switch b := everywhere[0]; {
	case b.Name != "tailplane-"+ready.Name:
		t.Errorf("ClusterRoleBinding: b.Name = %q, want %q", b.Name, "tailplane-"+ready.Name)
	case len(b.OwnerReferences) != 0:
		t.Errorf("ClusterRoleBinding: len(b.OwnerReferences) = %v, want 0", len(b.OwnerReferences))
	case b.Annotations[v1alpha1.LoginAnnotation] != "alice@a.example":
		t.Errorf("ClusterRoleBinding: got %q, want %q", b.Annotations[v1alpha1.LoginAnnotation], "alice@a.example")
	case b.Labels[v1alpha1.SigninUIDLabel] != string(o.UID):
		t.Errorf("ClusterRoleBinding: b.Labels[v1alpha1.SigninUIDLabel] = %q, want %q", b.Labels[v1alpha1.SigninUIDLabel], string(o.UID))
	}

	requested := time.Now()
	token, expires, err := s.IssueToken(t.Context(), ready, ready.ValidUntil.Sub(requested))
	if err != nil {
		t.Fatal(err)
	}
	if late := expires.Sub(ready.ValidUntil); late < -2*time.Second || late > time.Since(requested)+2*time.Second {
		t.Errorf("the token expires %v after the end of the sign-in", late)
	}
	if err := p.mayList(token, "default"); err != nil {
		t.Errorf("list pods as view: %v", err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example.test/c"}}}}
	if err := p.clientFor(token).Create(t.Context(), pod); !apierrors.IsForbidden(err) {
		t.Errorf("create a pod as view: %v, want Forbidden", err)
	}

	if err := s.Delete(t.Context(), ready); err != nil {
		t.Fatal(err)
	}
	p.await(s, ready.Name, gone)
	if err := p.mayList(token, "default"); !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) {
		t.Errorf("list pods after logout: %v, want Forbidden or Unauthorized", err)
	}
	p.nothingLeft()
	if _, err := s.Get(t.Context(), ready.Name); !errors.Is(err, signin.ErrNotFound) {
		t.Errorf("Get after logout: %v", err)
	}
	p.events(ready.Name, "Provisioned", "Revoked")
}

// Readiness is event-driven. From the creation of a sign-in to its readiness it takes tens of
// milliseconds, without polling.
func TestReadinessIsPushed(t *testing.T) {
	p := newEnv(t)
	p.operate()
	s, _ := p.open()
	var took []time.Duration
	for i := range 40 {
		start := time.Now()
		x := p.login(s, newSignin(p.owner("alice@a.example", fmt.Sprint("device", i)), "view", time.Hour))
		took = append(took, time.Since(start))
		if err := s.Delete(t.Context(), x); err != nil {
			t.Fatal(err)
		}
		p.await(s, x.Name, gone)
	}
	took = took[1:] // the API server initialises a new kind with its first object
	slices.Sort(took)
	t.Logf("from Create to Ready: p50 %v, max %v of %d", took[len(took)/2].Round(100*time.Microsecond), took[len(took)-1].Round(100*time.Microsecond), len(took))
	p.nothingLeft()
}

// alice@a.example and alice@b.example are two people. A laptop and a phone have separate sign-ins, and
// so have two sessions of the phone. Ending one leaves the others.
func TestTwoPeople(t *testing.T) {
	p := newEnv(t)
	p.operate()
	s, _ := p.open()
	a := p.login(s, newSignin(p.owner("alice@a.example", "laptop"), "view", time.Hour))
	b := p.login(s, newSignin(p.owner("alice@b.example", "laptop"), "edit", time.Hour))
	phone := p.login(s, newSignin(p.owner("alice@a.example", "phone"), "view", time.Hour))
	elevated := p.owner("alice@a.example", "phone")
	elevated.Session = "deploy"
	deploy := p.login(s, newSignin(elevated, "edit", time.Hour))
	switch {
	case a.Name == b.Name:
		t.Fatalf("a.Name = %q, the same as b.Name", a.Name)
	case a.ServiceAccountUID == b.ServiceAccountUID:
		t.Fatalf("a.ServiceAccountUID = %q, the same as b.ServiceAccountUID", a.ServiceAccountUID)
	case a.Name == phone.Name:
		t.Fatalf("a.Name = %q, the same as phone.Name", a.Name)
	case b.Bound.Role() != "edit":
		t.Fatalf("b.Bound.Role() = %q, want %q", b.Bound.Role(), "edit")
	case deploy.Name == phone.Name, deploy.Bound.Role() != "edit", phone.Bound.Role() != "view":
		t.Fatalf("sessions of the phone: %+v, %+v", phone, deploy)
	}
	p.until("the cache", func() bool { return len(s.ListCached("alice@a.example")) == 3 })
	if n := len(s.ListCached("alice@b.example")); n != 1 {
		t.Errorf("%d sign-ins of alice@b.example, want 1", n)
	}
	tokens := []secret.Text{p.token(s, b), p.token(s, phone)}
	for _, x := range []signin.Signin{a, deploy} {
		if err := s.Delete(t.Context(), x); err != nil {
			t.Fatal(err)
		}
		p.await(s, x.Name, gone)
	}
	for _, token := range tokens {
		if err := p.mayList(token, "default"); err != nil {
			t.Errorf("after another's logout: %v", err)
		}
	}
	if accounts, everywhere, _ := p.made(); len(accounts) != 2 || len(everywhere) != 2 {
		t.Errorf("%d ServiceAccounts and %d bindings are left, want 2", len(accounts), len(everywhere))
	}
	for _, x := range []signin.Signin{b, phone} {
		if err := s.Delete(t.Context(), x); err != nil {
			t.Fatal(err)
		}
		p.await(s, x.Name, gone)
	}
	p.nothingLeft()
}

// SGN-08: A repeated login changes the end and nothing else.
func TestExtend(t *testing.T) {
	p := newEnv(t)
	p.operate()
	s, _ := p.open()
	first := p.login(s, newSignin(p.owner("alice@a.example", "laptop"), "view", time.Hour))
	token := p.token(s, first)
	_, before, _ := p.made()

	for _, period := range []time.Duration{2 * time.Hour, 30 * time.Minute} { // longer, then shorter
		now, err := s.Get(t.Context(), first.Name)
		if err != nil {
			t.Fatal(err)
		}
		stale := now
		now.Period, now.AskedAt = period, time.Now()
		if now, err = s.Extend(t.Context(), now); err != nil {
			t.Fatal(err)
		}
		if now.State(time.Now()) == signin.Ready {
			t.Error("an extension is ready before the operator saw it")
		}
		if _, err := s.Extend(t.Context(), stale); !errors.Is(err, signin.ErrConflict) {
			t.Errorf("Extend of an old version: %v, want ErrConflict", err)
		}
		ready := p.await(s, first.Name, in(signin.Ready))
		if want := ready.AskedAt.Add(period); !ready.ValidUntil.Equal(want) {
			t.Errorf("valid until %v, want %v", ready.ValidUntil, want)
		}
		if ready.ServiceAccountUID != first.ServiceAccountUID {
			t.Error("an extension created another ServiceAccount")
		}
	}
	if _, after, _ := p.made(); len(after) != 1 || after[0].UID != before[0].UID {
		t.Error("an extension created another binding")
	}
	if err := p.mayList(token, "default"); err != nil {
		t.Errorf("the token from before the extension: %v", err)
	}
	p.events(first.Name, "Extended")
	end(p, s, first.Name)
}

func end(p *env, s *Store, name string) {
	p.t.Helper()
	x, err := s.Get(p.t.Context(), name)
	if errors.Is(err, signin.ErrNotFound) {
		p.nothingLeft()
		return
	}
	if err != nil {
		p.t.Fatal(err)
	}
	if err := s.Delete(p.t.Context(), x); err != nil && !errors.Is(err, signin.ErrNotFound) {
		p.t.Fatal(err)
	}
	p.await(s, name, gone)
	p.nothingLeft()
}

// When a sign-in expires, it loses all access, stays readable for a while, and is deleted.
func TestExpiry(t *testing.T) {
	p := newEnv(t)
	stop := p.operate()
	s, _ := p.open()
	ready := p.login(s, newSignin(p.owner("alice@a.example", "laptop"), "view", time.Hour))
	token := p.token(s, ready)
	if err := p.mayList(token, "default"); err != nil {
		t.Fatal(err)
	}
	ready.ValidUntil = p.shorten(s, ready)
	over := p.await(s, ready.Name, func(x signin.Signin, there bool) bool {
		return there && x.Phase == signin.PhaseExpired && len(x.Bound) == 0
	})
	late := time.Since(ready.ValidUntil)
	t.Logf("all was gone %v after the end", late.Round(time.Millisecond))
	if late < 0 {
		t.Error("it ended before its time")
	}
	if err := p.mayList(token, "default"); !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) {
		t.Errorf("after the end: %v, want Forbidden or Unauthorized", err)
	}
	if accounts, everywhere, _ := p.made(); len(accounts)+len(everywhere) > 0 {
		t.Errorf("after the end there are %d ServiceAccounts and %d bindings", len(accounts), len(everywhere))
	}
	if over.State(time.Now()) != signin.Ended || !over.ValidUntil.Equal(ready.ValidUntil) {
		t.Errorf("expired sign-in: %+v", over)
	}
	if _, _, err := s.IssueToken(t.Context(), ready, time.Hour); !errors.Is(err, signin.ErrNotFound) {
		t.Errorf("a token after the end: %v, want ErrNotFound", err)
	}
	o := p.object(ready.Name)
	if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionExpired); c == nil || c.Status != metav1.ConditionTrue {
		t.Errorf("condition Expired: %+v", c)
	}
	// The condition Expired never reverts, not even if an administrator writes the status.
	o.Status.Conditions = nil
	if err := p.admin.Status().Update(t.Context(), o); !apierrors.IsInvalid(err) {
		t.Errorf("taking the condition Expired back: %v, want Invalid", err)
	}
	p.events(ready.Name, "Expired")
	stop()
	p.rules.KeepExpired = time.Second
	p.operate()
	p.await(s, ready.Name, gone)
	p.nothingLeft()
}

// SI-07: An operator that was down when a sign-in expired acts after its restart.
func TestExpiryWhileAway(t *testing.T) {
	p := newEnv(t)
	stop := p.operate()
	s, _ := p.open()
	ready := p.login(s, newSignin(p.owner("alice@a.example", "laptop"), "view", time.Hour))
	stop()
	switch x, err := s.Get(t.Context(), ready.Name); {
	case err != nil:
		t.Errorf("at the end, without an operator: %v", err)
	case x.State(ready.ValidUntil.Add(-1)) != signin.Ready:
		t.Errorf("at the end, without an operator: x.State(ready.ValidUntil.Add(-1)) != signin.Ready; %+v, %v", x, err)
	case x.State(ready.ValidUntil) != signin.Ended:
		t.Errorf("at the end, without an operator: x.State(ready.ValidUntil) != signin.Ended; %+v, %v", x, err)
	}
	p.ahead = time.Hour
	p.operate()
	p.await(s, ready.Name, func(x signin.Signin, there bool) bool {
		return there && x.Phase == signin.PhaseExpired && len(x.Bound) == 0
	})
	end(p, s, ready.Name)
}

// SI-05: A different role creates a new sign-in. Two roles are never bound at the same time, and
// the old token stays invalid.
func TestReplace(t *testing.T) {
	p := newEnv(t)
	p.operate()
	s, _ := p.open()
	alice := p.owner("alice@a.example", "laptop")
	most := p.watchRoles(alice.Name())
	first := p.login(s, newSignin(alice, "edit", time.Hour))
	old := p.token(s, first)
	if err := p.mayList(old, "default"); err != nil { // from now on the API server caches the token
		t.Fatal(err)
	}
	for _, role := range []access.Role{"view", "edit", "view"} {
		now, err := s.Get(t.Context(), alice.Name())
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Delete(t.Context(), now); err != nil {
			t.Fatal(err)
		}
		p.await(s, now.Name, func(x signin.Signin, there bool) bool { return !there || x.UID != now.UID })
		next := p.login(s, newSignin(alice, role, time.Hour))
		if next.Bound.Role() != role || next.ServiceAccountUID == now.ServiceAccountUID {
			t.Errorf("replaced by %s: %+v", role, next)
		}
		_, everywhere, _ := p.made()
		if len(everywhere) != 1 || everywhere[0].RoleRef.Name != string(role) {
			t.Errorf("bound: %+v, want just %s", everywhere, role)
		}
	}
	replaced := time.Now()
	last := replaced // start of the last accepted request
	p.until("the old token is refused", func() bool {
		began := time.Now()
		err := p.mayList(old, "default")
		if err == nil {
			// The name is bound again, and the API server resolves a cached token to that name.
			last = began
		}
		return apierrors.IsUnauthorized(err)
	})
	t.Logf("the old token was taken for %v", last.Sub(replaced).Round(time.Millisecond))
	if took := last.Sub(replaced); took > revoked {
		t.Errorf("the old token was taken for %v", took)
	}
	if _, _, err := s.IssueToken(t.Context(), first, time.Hour); !errors.Is(err, signin.ErrConflict) {
		t.Errorf("a token for the ServiceAccount that was: %v, want ErrConflict", err)
	}
	if n := most(); n != 1 {
		t.Errorf("at some instant %d roles were bound, want at most 1", n)
	}
	end(p, s, alice.Name())
}

// watchRoles watches the bindings of one sign-in. The returned function returns the largest number
// that existed at one time.
func (p *env) watchRoles(name string) func() int {
	p.t.Helper()
	w, err := p.admin.Watch(p.t.Context(), &rbacv1.ClusterRoleBindingList{})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(w.Stop)
	most, now := 0, map[string]bool{}
	var mu sync.Mutex
	go func() {
		for e := range w.ResultChan() {
			b, ok := e.Object.(*rbacv1.ClusterRoleBinding)
			if !ok || !strings.Contains(b.Name, name) {
				continue
			}
			mu.Lock()
			if now[string(b.UID)] = true; e.Type == watch.Deleted {
				delete(now, string(b.UID))
			}
			most = max(most, len(now))
			mu.Unlock()
		}
	}()
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return most
	}
}

// SGN-14: The role is bound in the existing namespaces, and in the others when they are created.
func TestNamespaces(t *testing.T) {
	p := newEnv(t)
	p.operate()
	s, _ := p.open()
	here, later := p.cluster.Namespace(t), p.ns+"-later"
	namespaces := slices.Sorted(slices.Values([]string{here, later}))
	ready := p.login(s, newSignin(p.owner("alice@a.example", "laptop"), "edit", time.Hour, namespaces...))
	if !slices.Equal(ready.Bound.Namespaces(), []string{here}) || !slices.Equal(ready.MissingNamespaces, []string{later}) {
		t.Errorf("bound in %v, missing %v; want %s and %s", ready.Bound.Namespaces(), ready.MissingNamespaces, here, later)
	}
	token := p.token(s, ready)
	if err := p.mayList(token, here); err != nil {
		t.Errorf("in %s: %v", here, err)
	}
	if err := p.mayList(token, "default"); !apierrors.IsForbidden(err) {
		t.Errorf("in another namespace: %v, want Forbidden", err)
	}
	switch _, everywhere, somewhere := p.made(); {
	case len(everywhere) != 0:
		t.Errorf("bindings: len(everywhere) = %v, want 0", len(everywhere))
	case len(somewhere) != 1:
		t.Errorf("bindings: len(somewhere) = %v, want 1", len(somewhere))
	case somewhere[0].Namespace != here:
		t.Errorf("bindings: somewhere[0].Namespace = %q, want %q", somewhere[0].Namespace, here)
	}

	// A namespace is created and deleted again.
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: later}}
	if err := p.admin.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	ready = p.await(s, ready.Name, func(x signin.Signin, there bool) bool {
		return there && len(x.Bound.Namespaces()) == 2 && len(x.MissingNamespaces) == 0
	})
	if err := p.mayList(token, later); err != nil {
		t.Errorf("in %s: %v", later, err)
	}
	if err := p.admin.Delete(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	p.await(s, ready.Name, func(x signin.Signin, there bool) bool {
		return there && x.State(time.Now()) == signin.Ready && slices.Equal(x.MissingNamespaces, []string{later})
	})
	end(p, s, ready.Name)
}

func TestNoNamespace(t *testing.T) {
	p := newEnv(t)
	p.operate()
	s, _ := p.open()
	later := p.ns + "-none"
	want := newSignin(p.owner("alice@a.example", "laptop"), "view", time.Hour, later)
	if _, err := s.Create(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	no := p.await(s, want.Name, in(signin.Refused))
	if no.Reason != signin.ReasonNoNamespace {
		t.Errorf("reason %s: %s", no.Reason, no.Message)
	}
	if accounts, everywhere, somewhere := p.made(); len(accounts)+len(everywhere)+len(somewhere) > 0 {
		t.Error("an object was created for a refused sign-in")
	}
	p.events(want.Name, "Refused")
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: later}}
	if err := p.admin.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	p.await(s, want.Name, in(signin.Ready))
	// The only namespace is deleted, and all access with it.
	if err := p.admin.Delete(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	p.await(s, want.Name, in(signin.Refused))
	end(p, s, want.Name)
}

// A refused sign-in has a reason, creates nothing, and may be allowed later.
func TestRefused(t *testing.T) {
	p := newEnv(t)
	stop := p.operate()
	s, _ := p.open()
	for reason, want := range map[string]signin.Signin{
		signin.ReasonRoleNotAllowed: newSignin(p.owner("a@a.example", "d"), "cluster-admin", time.Hour),
		signin.ReasonBadPeriod:      newSignin(p.owner("b@a.example", "d"), "view", 25*time.Hour),
		signin.ReasonClockSkew: func() signin.Signin {
			x := newSignin(p.owner("c@a.example", "d"), "view", time.Hour)
			x.AskedAt = x.AskedAt.Add(time.Hour)
			return x
		}(),
	} {
		if _, err := s.Create(t.Context(), want); err != nil {
			t.Fatal(err)
		}
		if no := p.await(s, want.Name, in(signin.Refused)); no.Reason != reason {
			t.Errorf("reason %s (%s), want %s", no.Reason, no.Message, reason)
		}
	}
	reserved := newSignin(p.owner("d@a.example", "d"), "view", time.Hour, p.ns)
	if _, err := s.Create(t.Context(), reserved); err != nil {
		t.Fatal(err)
	}
	if no := p.await(s, reserved.Name, in(signin.Refused)); no.Reason != signin.ReasonRoleNotAllowed {
		t.Errorf("in our own namespace: %s", no.Reason)
	}
	// A role that is on the allow-list but missing in the cluster.
	stop()
	role := access.Role("role-of-" + p.ns)
	p.rules.Roles = append(slices.Clone(p.rules.Roles), role)
	p.operate()
	want := newSignin(p.owner("e@a.example", "d"), role, time.Hour)
	if _, err := s.Create(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	if no := p.await(s, want.Name, in(signin.Refused)); no.Reason != signin.ReasonRoleNotFound {
		t.Errorf("role that is not there: %s", no.Reason)
	}
	if accounts, everywhere, somewhere := p.made(); len(accounts)+len(everywhere)+len(somewhere) > 0 {
		t.Error("an object was created for a refused sign-in")
	}
	cr := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: string(role)}}
	if err := p.admin.Create(t.Context(), cr); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.admin.Delete(context.WithoutCancel(t.Context()), cr) })
	p.await(s, want.Name, in(signin.Ready))
	for _, o := range []string{"a@a.example", "b@a.example", "c@a.example", "d@a.example", "e@a.example"} {
		x, err := s.Get(t.Context(), p.owner(o, "d").Name())
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Delete(t.Context(), x); err != nil {
			t.Fatal(err)
		}
		p.await(s, x.Name, gone)
	}
	p.nothingLeft()
}

// The results and errors of a Store.
func TestStore(t *testing.T) {
	p := newEnv(t)
	p.operate()
	s, _ := p.open()
	ctx := t.Context()
	alice := p.owner("alice@a.example", "laptop")
	alice.DisplayName, alice.DeviceName = "Al\x1b[31mice\n", strings.Repeat("ü", 300)
	want := newSignin(alice, "view", time.Hour, "kube-public", "default")
	if _, err := s.Get(ctx, want.Name); !errors.Is(err, signin.ErrNotFound) {
		t.Errorf("Get of none: %v", err)
	}
	if err := s.Delete(ctx, signin.Signin{Name: want.Name, UID: "x"}); !errors.Is(err, signin.ErrNotFound) {
		t.Errorf("Delete of none: %v", err)
	}
	if _, err := s.Extend(ctx, want); !errors.Is(err, signin.ErrNotFound) {
		t.Errorf("Extend of none: %v", err)
	}
	if _, _, err := s.IssueToken(ctx, want, time.Hour); !errors.Is(err, signin.ErrConflict) {
		t.Errorf("Token without a ServiceAccount: %v", err)
	}
	made, err := s.Create(ctx, want)
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case made.Owner.Login != "alice@a.example":
		t.Errorf("made.Owner.Login = %q, want %q", made.Owner.Login, "alice@a.example")
	case made.Owner.DisplayName != "Al[31mice":
		t.Errorf("made.Owner.DisplayName = %q, want %q", made.Owner.DisplayName, "Al[31mice")
	case len([]rune(made.Owner.DeviceName)) != 253:
		t.Errorf("len([]rune(made.Owner.DeviceName)) = %v, want 253", len([]rune(made.Owner.DeviceName)))
	case !slices.Equal(made.Binds.Namespaces(), []string{"default", "kube-public"}):
		t.Errorf("made.Binds.Namespaces() (-want +got):\n%s", cmp.Diff([]string{"default", "kube-public"}, made.Binds.Namespaces()))
	case made.Period != time.Hour:
		t.Errorf("made.Period = %v, want %v", made.Period, time.Hour)
	case made.UID == "":
		t.Errorf("made.UID is empty; made = %+v", made)
	case made.Version == "":
		t.Errorf("made.Version is empty; made = %+v", made)
	case made.Generation != 1:
		t.Errorf("made.Generation = %v, want 1", made.Generation)
	}
	if _, err := s.Create(ctx, want); !errors.Is(err, signin.ErrExists) {
		t.Errorf("Create again: %v", err)
	}
	if err := s.Delete(ctx, signin.Signin{Name: want.Name, UID: "somebody-else"}); !errors.Is(err, signin.ErrNotFound) {
		t.Errorf("Delete of another UID: %v, want ErrNotFound", err)
	}
	ready := p.await(s, want.Name, in(signin.Ready))
	p.until("the cache", func() bool { x, there := s.GetCached(want.Name); return there && x.Phase == signin.PhaseReady })

	// A token lives at least ten minutes and is valid only for the account with that UID.
	token, expires, err := s.IssueToken(ctx, ready, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if life := time.Until(expires); life < 9*time.Minute || life > 11*time.Minute {
		t.Errorf("a token for a second lives %v, want ten minutes", life)
	}
	if fmt.Sprint(token) != secret.Redacted || fmt.Sprintf("%#v", token) != secret.Redacted {
		t.Error("a token prints itself")
	}
	other := ready
	other.ServiceAccountUID = "00000000-0000-0000-0000-000000000000"
	if _, _, err := s.IssueToken(ctx, other, time.Hour); !errors.Is(err, signin.ErrConflict) {
		t.Errorf("Token of another UID: %v, want ErrConflict", err)
	}

	// Waiting ends with the context, and the watch triggers it.
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if err := s.Await(short, want.Name, func(signin.Signin, bool) bool { return false }); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Await of what never is: %v", err)
	}
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			wait, cancel := context.WithTimeout(ctx, deadline)
			defer cancel()
			if err := s.Await(wait, want.Name, gone); err != nil {
				t.Errorf("one of 100 who wait: %v", err)
			}
		})
	}
	if err := s.Delete(ctx, ready); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if n := s.cache.Awaited(); n != 0 {
		t.Errorf("%d names have no waiter", n)
	}
	p.nothingLeft()
}

// The resource with kubectl: columns are filled, explain is complete, wait works.
func TestKubectl(t *testing.T) {
	p := newEnv(t)
	p.operate()
	s, _ := p.open()
	alice := p.owner("alice@a.example", "laptop")
	alice.Session = "deploy"
	ready := p.login(s, newSignin(alice, "view", time.Hour))
	kubectl := func(args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		defer cancel()
		out, errs, code := kubetest.Kubectl(ctx, p.cluster.Kubeconfig, args...)
		if code != 0 {
			t.Fatalf("kubectl %v: %d: %s", args, code, errs)
		}
		return out
	}
	lines := strings.Split(strings.TrimSpace(kubectl("get", "signin", "-n", p.ns)), "\n")
	head := strings.Fields(lines[0])
	if !slices.Equal(head, []string{"NAME", "USER", "DEVICE", "SESSION", "ROLE", "PHASE", "UNTIL", "AGE"}) {
		t.Errorf("columns %v", head)
	}
	row := strings.Fields(lines[1])
	if want := []string{alice.Name(), "alice@a.example", "laptop", "deploy", "view", "Ready", ready.ValidUntil.UTC().Format(time.RFC3339)}; len(row) != 8 || !slices.Equal(row[:7], want) {
		t.Errorf("row %v, want %v and an age", row, want)
	}
	if got := kubectl("get", "tailplane", "-n", p.ns, "-o", "name"); !strings.Contains(got, "tkasignin.tailplane.dev/"+alice.Name()) {
		t.Errorf("category tailplane: %s", got)
	}
	kubectl("wait", "--for=condition=Ready", "signin/"+alice.Name(), "-n", p.ns, "--timeout=2m")
	for field := range strings.SplitSeq(kubectl("explain", "signin", "--recursive"), "\n") {
		if strings.Contains(field, "<no description>") {
			t.Errorf("a field without description: %s", field)
		}
	}
	for _, field := range []string{"spec", "spec.user", "spec.device", "status", "status.serviceAccount"} {
		if got := kubectl("explain", "signin."+field); strings.Contains(got, "<no description>") {
			t.Errorf("explain signin.%s:\n%s", field, got)
		}
	}
	kubectl("delete", "signin", alice.Name(), "-n", p.ns)
	p.nothingLeft()
}
