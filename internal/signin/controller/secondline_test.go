//go:build unix

package controller

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/internal/signin"
)

const systemNamespace = "tailplane-system"

// writer sends the requests of one account with which it could take over another one. Each is a dry run, except the
// command, which no kubelet executes.
type writer struct {
	t  *testing.T
	k  *kubernetes.Clientset
	ns string // the namespace that is attacked
}

func newWriter(t *testing.T, config *rest.Config, ns string) writer {
	t.Helper()
	k, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return writer{t, k, ns}
}

// attempts returns the results of the requests, by what they do.
func (w writer) attempts() map[string]error {
	ctx, dry := w.t.Context(), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	meta := metav1.ObjectMeta{Name: "theft", Namespace: w.ns}
	second := func(_ any, err error) error { return err }
	labels := map[string]string{"app": "theft"}
	spec := restrictedPod
	exec := w.k.CoreV1().RESTClient().Post().Namespace(w.ns).Resource("pods").Name("tailplane-probe").SubResource("exec").Param("command", "true").Param("container", "c").Param("stdout", "true")
	return map[string]error{
		"makes a pod":        second(w.k.CoreV1().Pods(w.ns).Create(ctx, &corev1.Pod{ObjectMeta: meta, Spec: spec}, dry)),
		"makes a Deployment": second(w.k.AppsV1().Deployments(w.ns).Create(ctx, &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec}}}, dry)),
		"makes a ConfigMap":  second(w.k.CoreV1().ConfigMaps(w.ns).Create(ctx, &corev1.ConfigMap{ObjectMeta: meta}, dry)),
		"makes a Secret":     second(w.k.CoreV1().Secrets(w.ns).Create(ctx, &corev1.Secret{ObjectMeta: meta}, dry)),
		"makes an account":   second(w.k.CoreV1().ServiceAccounts(w.ns).Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta}, dry)),
		"makes a token":      second(w.k.CoreV1().ServiceAccounts(w.ns).CreateToken(ctx, "default", &authenticationv1.TokenRequest{}, dry)),
		"executes a command": exec.Do(ctx).Error(),
		"removes ConfigMaps": w.k.CoreV1().ConfigMaps(w.ns).DeleteCollection(ctx, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}, metav1.ListOptions{LabelSelector: "app=theft"}),
	}
}

// byPolicy reports whether the named admission policy refused the request.
func byPolicy(err error, name string) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy '"+name+"'")
}

// probe makes the pod in which attempts executes a command, and the ConfigMap that it removes.
func (p *env) probe(ns string) {
	p.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "tailplane-probe"}, Spec: restrictedPod}
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "tailplane-probe", Labels: map[string]string{"app": "theft"}}}
	for _, o := range []client.Object{pod, config} {
		p.until(fmt.Sprintf("a %T in %s", o, ns), func() bool {
			err := p.admin.Create(p.t.Context(), o.DeepCopyObject().(client.Object))
			return err == nil || apierrors.IsAlreadyExists(err)
		})
		p.t.Cleanup(func() { _ = p.admin.Delete(context.WithoutCancel(p.t.Context()), o, client.GracePeriodSeconds(0)) })
	}
}

// restrictedPod fits the pod security standard of the namespaces. Its node does not exist.
var restrictedPod = corev1.PodSpec{NodeName: "n1", ServiceAccountName: "default",
	SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: new(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
	Containers: []corev1.Container{{Name: "c", Image: "example.test/c",
		SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}}}}

// bindEverywhere gives a user or account a ClusterRole in the whole cluster until the test ends.
func (p *env) bindEverywhere(name, role string, subject rbacv1.Subject) {
	p.t.Helper()
	b := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}, Subjects: []rbacv1.Subject{subject}}
	if err := p.admin.Create(p.t.Context(), b); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = p.admin.Delete(context.WithoutCancel(p.t.Context()), b) })
}

// administer is the right that the second lines ask for.
var administer = rbacv1.PolicyRule{APIGroups: []string{"tailplane.dev"}, Resources: []string{"systems"}, Verbs: []string{"administer"}}

// SI-15: a person with cluster-wide edit writes nothing in the namespaces of Tailplane and in kube-system, and connects
// to nothing there. Elsewhere the role gives what it gives, also to a second tenant.
func TestSI15_AccountsWriteNothingInProtectedNamespaces(t *testing.T) {
	p := newProductEnv(t)
	p.operate()
	s, _ := p.open()
	p.clusterRole("edit")
	mine := p.cluster.Namespace(t)
	for _, ns := range []string{systemNamespace, "kube-system", mine} {
		p.probe(ns)
	}
	alice := p.login(s, newSignin(p.owner("alice@a.example", "laptop"), "edit", time.Hour))
	bob := p.login(s, newSignin(p.owner("bob@b.example", "laptop"), "edit", time.Hour, mine))
	asAlice, asBob := p.cluster.TokenConfig(p.token(s, alice).Reveal()), p.cluster.TokenConfig(p.token(s, bob).Reveal())
	for _, ns := range []string{systemNamespace, p.ns, "kube-system"} {
		for what, err := range newWriter(t, asAlice, ns).attempts() {
			if ns == p.ns && (what == "executes a command" || what == "removes ConfigMaps") {
				continue // the quota allows no pod there, and there is no ConfigMap
			}
			if !byPolicy(err, "tailplane-signin-accounts") && !(ns == p.ns && byPolicy(err, TokenPolicy)) {
				t.Errorf("alice %s in %s: %v, want denied by the policy", what, ns, err)
			}
		}
	}
	// The namespace itself, with a role that may delete namespaces.
	removes := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "removes-namespaces"}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: []string{"delete"}}}}
	if err := p.admin.Create(t.Context(), removes); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.admin.Delete(context.WithoutCancel(t.Context()), removes) })
	p.bindEverywhere(removes.Name, removes.Name, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: p.ns, Name: alice.Name})
	p.until("the policy refuses to remove the namespace", func() bool {
		err := newWriter(t, asAlice, mine).k.CoreV1().Namespaces().Delete(t.Context(), systemNamespace, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			t.Fatal("alice removes the namespace")
		}
		return byPolicy(err, "tailplane-signin-accounts")
	})
	// Control: the same requests elsewhere.
	for who, config := range map[string]*rest.Config{"alice": asAlice, "bob": asBob} {
		for what, err := range newWriter(t, config, mine).attempts() {
			if apierrors.IsForbidden(err) {
				t.Errorf("%s %s in %s: %v", who, what, mine, err)
			}
		}
	}

	t.Run("the authorizer check", func(t *testing.T) {
		role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "administers-systems"}, Rules: []rbacv1.PolicyRule{administer}}
		if err := p.admin.Create(t.Context(), role); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.admin.Delete(context.WithoutCancel(t.Context()), role) })
		p.bindEverywhere("administers-systems", role.Name, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: p.ns, Name: alice.Name})
		w := newWriter(t, asAlice, systemNamespace)
		p.until("alice may administer", func() bool {
			_, err := w.k.CoreV1().ConfigMaps(systemNamespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err == nil
		})
	})
	for _, x := range []signin.Signin{alice, bob} {
		if err := s.Delete(t.Context(), x); err != nil {
			t.Error(err)
		}
		p.await(s, x.Name, gone)
	}
}

// SI-15: the list of writers of the system namespace. It starts in Audit and refuses nobody. With Deny, a foreign
// account with every right writes nothing there, but still drains a node.
func TestSI15_SystemNamespaceWriters(t *testing.T) {
	p := newProductEnv(t)
	const policy = "tailplane-system-writers"
	p.bindEverywhere("foreign-upgrader", "admin", rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "foreign-upgrader"})
	p.clusterRole("admin")
	foreign := p.cluster.AdminConfig()
	foreign.Impersonate = rest.ImpersonationConfig{UserName: "foreign-upgrader", Groups: []string{"system:authenticated"}}
	p.probe(systemNamespace)
	w := newWriter(t, foreign, systemNamespace)
	p.until("the role is in force", func() bool {
		_, err := w.k.CoreV1().Pods(systemNamespace).Get(t.Context(), "tailplane-probe", metav1.GetOptions{})
		return err == nil
	})
	for what, err := range w.attempts() {
		if byPolicy(err, policy) {
			t.Errorf("in Audit, a foreign account %s: %v", what, err)
		}
	}

	set := func(ctx context.Context, action admissionv1.ValidationAction) {
		t.Helper()
		b := new(admissionv1.ValidatingAdmissionPolicyBinding)
		if err := p.admin.Get(ctx, client.ObjectKey{Name: policy}, b); err != nil {
			t.Fatal(err)
		}
		if was := b.Spec.ValidationActions; action == admissionv1.Deny && (len(was) != 1 || was[0] != admissionv1.Audit) {
			t.Errorf("the binding starts with %v, want %v", was, admissionv1.Audit)
		}
		b.Spec.ValidationActions = []admissionv1.ValidationAction{action}
		if err := p.admin.Update(ctx, b); err != nil {
			t.Fatal(err)
		}
	}
	set(t.Context(), admissionv1.Deny)
	refused := func() bool { return byPolicy(w.attempts()["makes a ConfigMap"], policy) }
	t.Cleanup(func() {
		set(context.WithoutCancel(t.Context()), admissionv1.Audit)
		w.t = t
	})
	p.until("the policy refuses", refused)
	for what, err := range w.attempts() {
		if !byPolicy(err, policy) {
			t.Errorf("a foreign account %s: %v, want denied by the policy", what, err)
		}
	}
	// The writers of the namespace.
	configMap := func(user string, groups ...string) error {
		config := p.cluster.AdminConfig()
		config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: append(groups, "system:authenticated")}
		p.bindEverywhere("writer-"+strings.NewReplacer(":", "-").Replace(user), "cluster-admin-of-configmaps", rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user})
		var err error
		p.until("the role of "+user+" is in force", func() bool {
			_, err = newWriter(t, config, systemNamespace).k.CoreV1().ConfigMaps(systemNamespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err == nil || byPolicy(err, policy)
		})
		return err
	}
	writes := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "cluster-admin-of-configmaps"}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"create"}}}}
	if err := p.admin.Create(t.Context(), writes); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.admin.Delete(context.WithoutCancel(t.Context()), writes) })
	for user, groups := range map[string][]string{
		"system:serviceaccount:" + systemNamespace + ":tailplane-operator": {"system:serviceaccounts", "system:serviceaccounts:" + systemNamespace},
		"system:serviceaccount:kube-system:replicaset-controller":          {"system:serviceaccounts", "system:serviceaccounts:kube-system"},
		"system:node:n1":                 {"system:nodes"},
		"system:kube-controller-manager": nil, "system:kube-scheduler": nil, "system:cloud-controller-manager": nil,
	} {
		if err := configMap(user, groups...); err != nil {
			t.Errorf("%s writes: %v", user, err)
		}
	}
	if err := p.admin.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: "x"}}, client.DryRunAll); err != nil {
		t.Errorf("an administrator writes: %v", err)
	}

	// A drain: cordon is elsewhere; the pods are evicted or deleted, and the new ones are bound by the scheduler.
	drain := map[string]error{
		"evicts a pod":  w.k.CoreV1().Pods(systemNamespace).EvictV1(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: "tailplane-probe"}, DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}}),
		"deletes a pod": w.k.CoreV1().Pods(systemNamespace).Delete(t.Context(), "tailplane-probe", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}),
	}
	_, drain["writes a Lease"] = w.k.CoordinationV1().Leases(systemNamespace).Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	_, drain["writes an Event"] = w.k.CoreV1().Events(systemNamespace).Create(t.Context(), &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: systemNamespace}, InvolvedObject: corev1.ObjectReference{Namespace: systemNamespace}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	for what, err := range drain {
		if byPolicy(err, policy) || strings.Contains(fmt.Sprint(err), "ValidatingAdmissionPolicy") {
			t.Errorf("a foreign account %s: %v", what, err)
		}
	}
}
