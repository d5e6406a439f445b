//go:build unix

package controller

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/signin"
)

// clusterRole returns a ClusterRole, whose rules the controller manager has filled in if it is aggregated.
func (p *env) clusterRole(name string) *rbacv1.ClusterRole {
	p.t.Helper()
	role := new(rbacv1.ClusterRole)
	p.until("the ClusterRole "+name+" has rules", func() bool {
		if err := p.admin.Get(p.t.Context(), client.ObjectKey{Name: name}, role); err != nil {
			p.t.Fatal(err)
		}
		return len(role.Rules) > 0
	})
	return role
}

// SI-15: what the stock roles of a real API server reach, and tailplane-edit.
func TestSI15_StockRoles(t *testing.T) {
	p := newProductEnv(t)
	const edit = "impersonate accounts, create tokens of ServiceAccounts, read Secrets, write pods, execute commands in pods, write workloads"
	for name, want := range map[string]string{
		"view": "", "edit": edit, "admin": edit, "tailplane-view": "",
		"cluster-admin":  "impersonate accounts, create tokens of ServiceAccounts, read Secrets, write pods, add containers to pods, execute commands in pods, write workloads, reach pods through their nodes, give rights that it does not have",
		"tailplane-edit": "write pods, execute commands in pods, write workloads",
	} {
		if got := signin.ReachesAccounts(RoleRules(p.clusterRole(name))); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

// rightsOf returns the rights of a role, one a line.
func rightsOf(role *rbacv1.ClusterRole) map[string]bool {
	rights := map[string]bool{}
	for _, r := range role.Rules {
		for _, group := range r.APIGroups {
			for _, resource := range r.Resources {
				for _, verb := range r.Verbs {
					rights[fmt.Sprintf("%s/%s %s", cmp.Or(group, "core"), resource, verb)] = true
				}
			}
		}
	}
	return rights
}

// SI-15: tailplane-edit is the edit of Kubernetes without impersonation, tokens and Secrets.
func TestSI15_TailplaneEdit(t *testing.T) {
	p := newProductEnv(t)
	want := rightsOf(p.clusterRole("edit"))
	for right := range want {
		if strings.HasSuffix(right, " impersonate") || strings.HasPrefix(right, "core/serviceaccounts/token ") || strings.HasPrefix(right, "core/secrets ") ||
			strings.HasPrefix(right, "tailplane.dev/") { // aggregated from tailplane-view
			delete(want, right)
		}
	}
	got := rightsOf(p.clusterRole("tailplane-edit"))
	if diff := gocmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got))); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// SI-15: the operator refuses a role that needs namespaces. A role that comes to reach every ServiceAccount after it
// was bound takes nothing down: the sign-in keeps its access until its end, is not extended, and an event says why.
func TestSI15_RoleThatChanges(t *testing.T) {
	p := newEnv(t)
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "support-" + p.ns}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list"}}}}
	if err := p.admin.Create(t.Context(), role); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.admin.Delete(context.WithoutCancel(t.Context()), role) })
	name := access.Role(role.Name)
	p.rules.Roles, p.rules.ClusterWide = append(p.rules.Roles, name), signin.ClusterWide{}
	p.operate()
	s, _ := p.open()

	refused := newSignin(p.owner("bob@a.example", "laptop"), "edit", time.Hour)
	if _, err := s.Create(t.Context(), refused); err != nil {
		t.Fatal(err)
	}
	if x := p.await(s, refused.Name, in(signin.Refused)); x.Reason != signin.ReasonRoleNeedsNamespaces || !strings.Contains(x.Message, "read Secrets") {
		t.Errorf("edit in the whole cluster: %s %q, want %s", x.Reason, x.Message, signin.ReasonRoleNeedsNamespaces)
	}
	p.events(refused.Name, "Refused")
	end(p, s, refused.Name)
	end(p, s, p.login(s, newSignin(p.owner("bob@a.example", "laptop"), "edit", time.Hour, "default")).Name)

	alice := p.login(s, newSignin(p.owner("alice@a.example", "laptop"), name, time.Hour))
	token := p.clientFor(p.token(s, alice))
	role.Rules = append(role.Rules, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get"}})
	if err := p.admin.Update(t.Context(), role); err != nil {
		t.Fatal(err)
	}
	// Another writer asks for a longer life, as an access server that has not seen the change would.
	p.until("the operator has read the role again", func() bool {
		x := p.now(s, newSignin(alice.Owner, name, 2*time.Hour))
		if _, err := s.Extend(t.Context(), x); err != nil {
			t.Fatal(err)
		}
		return p.await(s, alice.Name, in(signin.Ready)).Reason == signin.ReasonRoleNeedsNamespaces
	})
	frozen := p.await(s, alice.Name, in(signin.Ready))
	p.events(alice.Name, signin.ReasonRoleNeedsNamespaces)
	ends := frozen.ValidUntil
	if _, err := s.Extend(t.Context(), p.now(s, newSignin(alice.Owner, name, 20*time.Hour))); err != nil {
		t.Fatal(err)
	}
	again := p.await(s, alice.Name, in(signin.Ready))
	if !again.ValidUntil.Equal(ends) {
		t.Errorf("the end moved from %v to %v", ends, again.ValidUntil)
	}
	if err := token.List(t.Context(), &corev1.ConfigMapList{}, client.InNamespace("default")); err != nil {
		t.Errorf("the token of a sign-in that is not extended: %v", err)
	}
	p.token(s, again)
	if got, err := s.RoleRules(t.Context(), access.Role("missing-"+name)); err != nil || got != nil {
		t.Errorf("a missing role has the rules %v, %v; want none", got, err)
	}
	end(p, s, alice.Name)
}
