//go:build unix

package controller

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/signin"
)

// SGN-15, SI-02: If a user changes the created objects, the operator repairs them or ends the
// sign-in, and emits an event. Access never outlives the sign-in.
func TestTamper(t *testing.T) {
	p := newEnv(t)
	p.operate()
	s, _ := p.open()
	update := func(o client.Object) {
		t.Helper()
		if err := p.admin.Update(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(o client.Object) {
		t.Helper()
		if err := p.admin.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	corrected := func(x signin.Signin, was victim) bool {
		_, everywhere, somewhere := p.made()
		return len(everywhere) == 1 && len(somewhere) == 0 && everywhere[0].UID != was.binding.UID && p.invariants() == nil
	}
	ended := func(x signin.Signin, _ victim) bool {
		accounts, everywhere, somewhere := p.made()
		return len(accounts)+len(everywhere)+len(somewhere) == 0 && p.invariants() == nil
	}
	tests := []struct {
		name   string
		tamper func(victim)
		then   func(signin.Signin, victim) bool
		event  string
	}{
		{"the binding is deleted", func(w victim) { remove(w.binding) }, corrected, "Corrected"},
		{"a subject is added to the binding", func(w victim) {
			w.binding.Subjects = append(w.binding.Subjects, rbacv1.Subject{Kind: "User", APIGroup: rbacv1.GroupName, Name: "mallory"})
			update(w.binding)
		}, corrected, "Corrected"},
		{"the binding's subject is another", func(w victim) {
			w.binding.Subjects = []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "default"}}
			update(w.binding)
		}, corrected, "Corrected"},
		{"the binding has no subjects", func(w victim) { w.binding.Subjects = nil; update(w.binding) }, corrected, "Corrected"},
		{"the binding is recreated with another role", func(w victim) {
			remove(w.binding)
			b := w.binding.DeepCopy()
			b.ObjectMeta = metav1.ObjectMeta{Name: b.Name, Labels: b.Labels}
			b.RoleRef.Name = "cluster-admin"
			// If the operator is faster, there is nothing to repair.
			if err := p.admin.Create(t.Context(), b); err != nil && !apierrors.IsAlreadyExists(err) {
				t.Fatal(err)
			}
		}, corrected, "Corrected"},
		{"the binding's labels are removed", func(w victim) { w.binding.Labels = nil; update(w.binding) }, corrected, "Corrected"},
		{"the binding's labels name another sign-in", func(w victim) {
			w.binding.Labels[v1alpha1.SigninUIDLabel] = "7e2b0f6e-0000-4000-8000-000000000000"
			update(w.binding)
		}, corrected, "Replaced"},
		{"the ServiceAccount is deleted", func(w victim) { remove(w.account) }, ended, "Revoked"},
		{"the ServiceAccount is recreated", func(w victim) {
			remove(w.account)
			if err := p.admin.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: w.account.Name}}); err != nil {
				t.Fatal(err)
			}
		}, func(x signin.Signin, w victim) bool {
			_, everywhere, _ := p.made()
			_, err := p.readState(x.Name)
			return len(everywhere) == 0 && apierrors.IsNotFound(err)
		}, "Revoked"},
		{"the ServiceAccount is taken from its sign-in", func(w victim) { w.account.OwnerReferences = nil; update(w.account) }, ended, "Revoked"},
		{"the finalizer is removed by hand", func(w victim) { w.signin.Finalizers = nil; update(w.signin); remove(w.signin) }, ended, ""},
		{"the sign-in is deleted by an administrator", func(w victim) { remove(w.signin) }, ended, "Revoked"},
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			x := p.login(s, newSignin(p.owner(fmt.Sprintf("alice-%d@a.example", i), "laptop"), "view", time.Hour))
			token := p.token(s, x)
			if err := p.mayList(token, "default"); err != nil {
				t.Fatal(err)
			}
			w := victim{account: new(corev1.ServiceAccount), binding: new(rbacv1.ClusterRoleBinding), signin: new(v1alpha1.TkaSignin)}
			for key, o := range map[client.ObjectKey]client.Object{
				{Namespace: p.ns, Name: x.Name}: w.account, {Name: "tailplane-" + x.Name}: w.binding,
			} {
				if err := p.admin.Get(t.Context(), key, o); err != nil {
					t.Fatal(err)
				}
			}
			w.signin = p.object(x.Name)
			tt.tamper(w)
			p.until("corrected or ended", func() bool { return tt.then(x, w) })
			if tt.event != "" {
				p.events(x.Name, tt.event)
			}
			if _, err := p.readState(x.Name); err == nil {
				if err := p.mayList(token, "default"); err != nil {
					t.Errorf("after the correction: %v", err)
				}
				end(p, s, x.Name)
			} else if err := p.mayList(token, "default"); !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) {
				t.Errorf("after the end: %v", err)
			}
			// The operator must not remove a ServiceAccount that it did not create.
			_ = client.IgnoreNotFound(p.admin.Delete(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: x.Name}}))
		})
	}
}

// A victim contains the objects of one sign-in.
type victim struct {
	account *corev1.ServiceAccount
	binding *rbacv1.ClusterRoleBinding
	signin  *v1alpha1.TkaSignin
}

// SGN-15: The operator never adopts an existing ServiceAccount, which may have a permanent token.
// It replaces an account that it created for an earlier sign-in.
func TestPremadeAccount(t *testing.T) {
	p := newEnv(t)
	p.operate()
	s, _ := p.open()
	foreign := newSignin(p.owner("alice@a.example", "laptop"), "view", time.Hour)
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: foreign.Name}}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: "lasting", Annotations: map[string]string{corev1.ServiceAccountNameKey: foreign.Name}}, Type: corev1.SecretTypeServiceAccountToken}
	for _, o := range []client.Object{sa, secret} {
		if err := p.admin.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Create(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	no := p.await(s, foreign.Name, in(signin.Refused))
	if no.Reason != signin.ReasonNameTaken {
		t.Errorf("reason %s (%s), want NameTaken", no.Reason, no.Message)
	}
	if _, everywhere, _ := p.made(); len(everywhere) != 0 {
		t.Error("a foreign ServiceAccount was bound")
	}
	// After the account is deleted, the sign-in can be provisioned.
	if err := p.admin.Delete(t.Context(), sa); err != nil {
		t.Fatal(err)
	}
	p.await(s, foreign.Name, in(signin.Ready))
	end(p, s, foreign.Name)

	// An account of an earlier sign-in with that name, according to its labels.
	mine := newSignin(p.owner("bob@a.example", "laptop"), "view", time.Hour)
	left := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: mine.Name,
		Labels: map[string]string{v1alpha1.ManagedByLabel: v1alpha1.ManagedBy, v1alpha1.SigninNamespaceLabel: p.ns, v1alpha1.SigninUIDLabel: "7e2b0f6e-0000-4000-8000-000000000001"}}}
	if err := p.admin.Create(t.Context(), left); err != nil {
		t.Fatal(err)
	}
	if ready := p.login(s, mine); ready.ServiceAccountUID == string(left.UID) {
		t.Error("a ServiceAccount of a dead sign-in was used again")
	}
	end(p, s, mine.Name)
}

// SI-02: When the namespace of the sign-ins is deleted, the bindings in other namespaces are
// removed, and the deletion does not hang.
func TestNamespaceTerminating(t *testing.T) {
	p := newEnv(t)
	p.operate()
	s, _ := p.open()
	var names []string
	for i := range 3 {
		x := p.login(s, newSignin(p.owner(fmt.Sprintf("alice-%d@a.example", i), "laptop"), "view", time.Hour))
		names = append(names, x.Name)
	}
	if err := p.admin.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: p.ns}}); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		p.await(s, name, gone)
	}
	p.nothingLeft()
	p.until("the namespace is gone", func() bool {
		return apierrors.IsNotFound(p.admin.Get(t.Context(), client.ObjectKey{Name: p.ns}, new(corev1.Namespace)))
	})
}
