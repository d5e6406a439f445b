package controller

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/util/secret"
)

// withBinds returns a sign-in with several roles.
func withBinds(o signin.Owner, binds ...access.Bind) signin.Signin {
	s := newSignin(o, "", time.Hour)
	s.Binds = binds
	return s
}

// bindings returns the bindings of an account as "role namespace name".
func (p *env) bindings(account string) (found []string) {
	p.t.Helper()
	_, everywhere, somewhere := p.made()
	add := func(subjects []rbacv1.Subject, role, ns, name string) {
		if len(subjects) == 1 && subjects[0].Name == account {
			found = append(found, fmt.Sprintf("%s %s %s", role, ns, name))
		}
	}
	for _, b := range everywhere {
		add(b.Subjects, b.RoleRef.Name, "*", b.Name)
	}
	for _, b := range somewhere {
		add(b.Subjects, b.RoleRef.Name, b.Namespace, b.Name)
	}
	slices.Sort(found)
	return found
}

// logout ends a sign-in and waits until it is gone. Others may stay.
func (p *env) logout(s *Store, name string) {
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

// mayWrite reports whether the token may create a ConfigMap in a namespace.
func (p *env) mayWrite(token secret.Text, ns string) error {
	return p.clientFor(token).Create(p.t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, GenerateName: "bind-"}}, client.DryRunAll)
}

// Two sessions of one device have different roles. Each has exactly its own, in token and bindings,
// and ends alone.
func TestSeveralRoles(t *testing.T) {
	p := newEnv(t)
	p.operate()
	s, _ := p.open()
	shop := p.cluster.Namespace(t)
	owner := p.owner("alice@a.example", "laptop")
	day := p.login(s, withBinds(owner, access.Bind{Role: "view"}, access.Bind{Role: "edit", Namespaces: []string{shop}}))
	owner.Session = "deploy"
	deploy := p.login(s, withBinds(owner, access.Bind{Role: "edit", Namespaces: []string{shop}}, access.Bind{Role: "view", Namespaces: []string{shop}}))

	// 262121 starts the SHA-256 of edit.
	if diff := cmp.Diff([]string{"edit " + shop + " tailplane-" + day.Name + "-262121", "view * tailplane-" + day.Name}, p.bindings(day.Name)); diff != "" {
		t.Errorf("bindings (-want +got):\n%s", diff)
	}
	further := signin.BindingNames(deploy.Name, deploy.Binds)[1]
	if diff := cmp.Diff([]string{"edit " + shop + " tailplane-" + deploy.Name, "view " + shop + " " + further}, p.bindings(deploy.Name)); diff != "" {
		t.Errorf("bindings of the session (-want +got):\n%s", diff)
	}
	o := p.object(day.Name)
	if diff := cmp.Diff([]any{"view, edit (in namespaces)", 2, "view,edit", 2}, []any{o.Spec.Role, len(o.Spec.Bind), o.Status.Role, len(o.Status.Bind)}); diff != "" {
		t.Errorf("object (-want +got):\n%s", diff)
	}
	one, two := p.token(s, day), p.token(s, deploy)
	for what, err := range map[string]error{
		"day reads elsewhere": p.mayList(one, "default"), "day writes in its namespace": p.mayWrite(one, shop), "deploy writes in its namespace": p.mayWrite(two, shop),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, err := range map[string]error{"day writes elsewhere": p.mayWrite(one, "default"), "deploy reads elsewhere": p.mayList(two, "default")} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want Forbidden", what, err)
		}
	}

	p.logout(s, deploy.Name)
	if err := p.mayWrite(one, shop); err != nil {
		t.Errorf("after the session: %v", err)
	}
	if got := p.bindings(deploy.Name); len(got) > 0 {
		t.Errorf("bindings of the ended session: %q", got)
	}

	// A binding of a further role that another client deletes comes back.
	if err := p.admin.Delete(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "tailplane-" + day.Name + "-262121"}}); err != nil {
		t.Fatal(err)
	}
	p.until("the binding is back", func() bool { return len(p.bindings(day.Name)) == 2 })
	end(p, s, day.Name)
	p.nothingLeft()
}

// A sign-in that was removed by force leaves no binding of a further role.
func TestSweepFindsFurtherRoles(t *testing.T) {
	p := newEnv(t)
	p.operate()
	s, _ := p.open()
	shop := p.cluster.Namespace(t)
	x := p.login(s, withBinds(p.owner("alice@a.example", "laptop"), access.Bind{Role: "view"}, access.Bind{Role: "edit", Namespaces: []string{shop}}))
	o := p.object(x.Name)
	o.Finalizers = nil
	if err := p.admin.Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if err := p.admin.Delete(t.Context(), o); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	p.until("nothing is left", func() bool { return len(p.bindings(x.Name)) == 0 })
}

// SGN-14: A namespace that gets the label gets the binding, and one that loses it loses the binding.
// Other sign-ins see nothing of it.
func TestSelector(t *testing.T) {
	p := newEnv(t)
	p.operate()
	s, _ := p.open()
	shop, jobs := p.cluster.Namespace(t), p.cluster.Namespace(t)
	key := "team-" + p.ns
	label := func(ns string, value any) {
		t.Helper()
		patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, key, value)
		if err := p.admin.Patch(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
			t.Fatal(err)
		}
	}
	label(shop, `"shop"`)
	selector := access.Selector(key + "=shop")
	alice := p.login(s, withBinds(p.owner("alice@a.example", "laptop"), access.Bind{Role: "edit", Selector: selector}))
	bob := p.login(s, withBinds(p.owner("bob@a.example", "laptop"), access.Bind{Role: "edit", Namespaces: []string{shop}}))
	both := p.login(s, withBinds(p.owner("carol@a.example", "laptop"), access.Bind{Role: "view"}, access.Bind{Role: "edit", Selector: selector, Namespaces: []string{shop}}))
	if got := p.object(alice.Name).Spec; got.Role != "edit (in namespaces)" || got.Bind[0].NamespaceSelector != string(selector) {
		t.Errorf("spec: %+v", got)
	}
	token := p.token(s, alice)
	if err := p.mayWrite(token, shop); err != nil {
		t.Errorf("in %s: %v", shop, err)
	}
	if err := p.mayWrite(token, jobs); !apierrors.IsForbidden(err) {
		t.Errorf("in %s: %v, want Forbidden", jobs, err)
	}

	bound := func(namespaces ...string) func(signin.Signin, bool) bool {
		slices.Sort(namespaces)
		return func(x signin.Signin, there bool) bool {
			return there && x.State(time.Now()) == signin.Ready && slices.Equal(x.Bound.Namespaces(), namespaces)
		}
	}
	label(jobs, `"shop"`)
	p.await(s, alice.Name, bound(shop, jobs))
	if err := p.mayWrite(token, jobs); err != nil {
		t.Errorf("in %s with the label: %v", jobs, err)
	}
	label(shop, `"other"`)
	p.await(s, alice.Name, bound(jobs))
	if err := p.mayWrite(token, shop); !apierrors.IsForbidden(err) {
		t.Errorf("in %s without the label: %v, want Forbidden", shop, err)
	}
	p.await(s, both.Name, func(x signin.Signin, _ bool) bool { return x.Bound.Role() == "view" })
	if diff := cmp.Diff([]string{"view * tailplane-" + both.Name}, p.bindings(both.Name)); diff != "" {
		t.Errorf("bindings of both (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"edit " + shop + " tailplane-" + bob.Name}, p.bindings(bob.Name)); diff != "" {
		t.Errorf("bindings by name (-want +got):\n%s", diff)
	}

	// Without any namespace there is no access, and it comes back with the label.
	label(jobs, "null")
	no := p.await(s, alice.Name, in(signin.Refused))
	if no.Reason != signin.ReasonNoNamespace {
		t.Errorf("reason %s: %s", no.Reason, no.Message)
	}
	label(jobs, `"shop"`)
	p.await(s, alice.Name, bound(jobs))
	for _, name := range []string{alice.Name, bob.Name, both.Name} {
		p.logout(s, name)
	}
	p.nothingLeft()
}

// A selector that selects more than 50 namespaces binds in none of them.
func TestSelectorOfTooMany(t *testing.T) {
	p := newEnv(t)
	p.operate()
	s, _ := p.open()
	key := "many-" + p.ns
	for i := range 51 {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", p.ns, i), Labels: map[string]string{key: "yes"}}}
		if i == 50 {
			ns.Labels = nil
		}
		if err := p.admin.Create(t.Context(), ns); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.admin.Delete(context.Background(), ns) })
	}
	x := p.login(s, withBinds(p.owner("alice@a.example", "laptop"), access.Bind{Role: "view", Selector: access.Selector(key)}))
	if len(x.Bound.Namespaces()) != 50 {
		t.Errorf("bound in %d namespaces, want 50", len(x.Bound.Namespaces()))
	}
	last := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: p.ns + "-50"}}
	if err := p.admin.Patch(t.Context(), last, client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"metadata":{"labels":{%q:"yes"}}}`, key))); err != nil {
		t.Fatal(err)
	}
	no := p.await(s, x.Name, in(signin.Refused))
	if no.Reason != signin.ReasonTooManyNamespaces {
		t.Errorf("reason %s: %s", no.Reason, no.Message)
	}
	if got := p.bindings(x.Name); len(got) > 0 {
		t.Errorf("%d bindings", len(got))
	}
	end(p, s, x.Name)
}

// SI-02: bind is immutable, and a sign-in has either bind or namespaces.
func TestBindIsImmutable(t *testing.T) {
	p := newEnv(t)
	s, _ := p.open()
	x, err := s.Create(t.Context(), withBinds(p.owner("alice@a.example", "laptop"), access.Bind{Role: "view"}, access.Bind{Role: "edit", Namespaces: []string{"default"}}))
	if err != nil {
		t.Fatal(err)
	}
	if !x.Binds.Equal(access.Binds{{Role: "view"}, {Role: "edit", Namespaces: []string{"default"}}}) {
		t.Errorf("binds: %s", x.Binds)
	}
	for what, change := range map[string]func(*v1alpha1.TkaSigninSpec){
		"wider":               func(o *v1alpha1.TkaSigninSpec) { o.Bind[1].Namespaces = nil },
		"another role":        func(o *v1alpha1.TkaSigninSpec) { o.Bind[1].Role = "admin" },
		"one more":            func(o *v1alpha1.TkaSigninSpec) { o.Bind = append(o.Bind, v1alpha1.SigninBind{Role: "admin"}) },
		"none":                func(o *v1alpha1.TkaSigninSpec) { o.Bind = nil },
		"namespaces beside":   func(o *v1alpha1.TkaSigninSpec) { o.Namespaces = []string{"default"} },
		"a selector":          func(o *v1alpha1.TkaSigninSpec) { o.Bind[0].NamespaceSelector = "a=b" },
		"the summary as role": func(o *v1alpha1.TkaSigninSpec) { o.Role = "view" },
	} {
		o := p.object(x.Name)
		change(&o.Spec)
		if err := p.admin.Update(t.Context(), o); !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v, want Invalid", what, err)
		}
	}
	x.Rule = "day"
	if x, err = s.Extend(t.Context(), x); err != nil || x.Rule != "day" {
		t.Errorf("rule %q, %v", x.Rule, err)
	}
	x.Rule = ""
	if x, err = s.Extend(t.Context(), x); err != nil || x.Rule != "" {
		t.Errorf("rule %q, %v", x.Rule, err)
	}
}

// FuzzSelector checks that Kubernetes reads each selector that the server accepts, and reads it alike.
func FuzzSelector(f *testing.F) {
	for _, s := range []string{"team=shop", "a in (b,c),!d", "x.example/y notin (z),w", "a!=b,c", "in=in", "a in (in, notin)", "a=in"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := access.ParseSelector(text)
		if err != nil {
			return
		}
		parsed, err := labels.Parse(string(got))
		if err != nil {
			t.Fatalf("%q is %q, which Kubernetes does not read: %v", text, got, err)
		}
		if parsed.Matches(labels.Set{}) {
			t.Errorf("%q selects a namespace without labels", text)
		}
		again, err := access.ParseSelector(parsed.String())
		if err != nil || again != got {
			t.Errorf("%q is %q, which Kubernetes writes as %q: %q, %v", text, got, parsed, again, err)
		}
	})
}
