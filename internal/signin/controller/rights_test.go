//go:build unix

package controller

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/util/retry"
	"github.com/tailplane/tailplane/testkit/kubetest"
)

// product is a cluster with the manifests. Tests of permissions and policies share it. It ends with
// the test binary.
var product = sync.OnceValues(func() (*kubetest.Cluster, error) {
	return kubetest.Run(context.Background(), kubetest.Options{Name: "product"})
})

// manifests returns the files of deploy: CRDs, base and access requests.
func manifests(t testing.TB) (docs [][]byte) {
	t.Helper()
	for _, folder := range []string{"crds", "base", "requests"} {
		names, err := filepath.Glob("../../../deploy/" + folder + "/*.yaml")
		if err != nil || len(names) == 0 {
			t.Fatalf("no manifests in deploy/%s: %v", folder, err)
		}
		for _, name := range names {
			if filepath.Base(name) != "kustomization.yaml" {
				docs = append(docs, files(t, name)...)
			}
		}
	}
	return docs
}

// newProductEnv returns an environment in the product's namespace, in which the operator and the
// store use their ServiceAccounts. Tests that use it run sequentially and must clean up.
func newProductEnv(t *testing.T) *env {
	t.Helper()
	kubetest.SkipIfShort(t)
	c, err := product()
	if err != nil {
		t.Fatal(err)
	}
	return newProductEnvOn(t, c)
}

func newProductEnvOn(t *testing.T, c *kubetest.Cluster) *env {
	t.Helper()
	install, _ := installed.LoadOrStore(c, sync.OnceValue(func() error { return c.Apply(context.Background(), manifests(t)...) }))
	if err := install.(func() error)(); err != nil {
		t.Fatal(err)
	}
	p := newEnvOn(t, c, "tailplane-signins")
	p.rules.RequireAdmissionPolicy = true
	dir := t.TempDir()
	account := func(name string) *rest.Config {
		path, err := c.ServiceAccountKubeconfig(t.Context(), "tailplane-system", name, dir)
		if err != nil {
			t.Fatal(err)
		}
		config, err := kube.Config(path)
		if err != nil {
			t.Fatal(err)
		}
		return config
	}
	p.accessConfig, p.operatorConfig = account("tailplane-access"), account("tailplane-operator")
	// A policy takes a moment to be in force.
	p.until("the policies are in force", func() bool {
		forged := objectOf(newSignin(p.owner("mallory@a.example", "laptop"), "view", time.Hour), p.ns)
		token := p.admin.SubResource("token").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: "default"}}, &authenticationv1.TokenRequest{})
		request := p.admin.Create(t.Context(), p.newRequest(p.owner("mallory@a.example", "laptop")), client.DryRunAll)
		b := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "no-labels"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"}}
		return denied(p.admin.Create(t.Context(), forged, client.DryRunAll)) && denied(token) && denied(request) && denied(p.client(p.operatorConfig).Create(t.Context(), b, client.DryRunAll))
	})
	return p
}

func (p *env) client(config *rest.Config) client.Client {
	p.t.Helper()
	c, err := client.New(config, client.Options{Scheme: p.admin.Scheme(), Mapper: p.admin.RESTMapper()})
	if err != nil {
		p.t.Fatal(err)
	}
	return c
}

// user returns a client with the given permissions in the namespace of the sign-ins.
func (p *env) user(name string, rules ...rbacv1.PolicyRule) client.Client {
	p.t.Helper()
	m := metav1.ObjectMeta{Namespace: p.ns, Name: name}
	role := &rbacv1.Role{ObjectMeta: m, Rules: rules}
	binding := &rbacv1.RoleBinding{ObjectMeta: m, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: name}}}
	for _, o := range []client.Object{role, binding} {
		if err := p.admin.Create(p.t.Context(), o); err != nil {
			p.t.Fatal(err)
		}
		p.t.Cleanup(func() { _ = p.admin.Delete(context.WithoutCancel(p.t.Context()), o) })
	}
	config := p.cluster.AdminConfig()
	config.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: []string{"system:authenticated"}}
	p.allowed(config, rules[0])
	return p.client(config)
}

// allowed waits until the API server has read the role and its binding: it authorises from a cache.
func (p *env) allowed(config *rest.Config, rule rbacv1.PolicyRule) {
	p.t.Helper()
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		p.t.Fatal(err)
	}
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
		Namespace: p.ns, Group: rule.APIGroups[0], Resource: rule.Resources[0], Verb: rule.Verbs[0]}}}
	for ctx := p.t.Context(); ; {
		got, err := c.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			p.t.Fatal(err)
		}
		if got.Status.Allowed {
			return
		}
		if err := retry.Sleep(ctx, 10*time.Millisecond); err != nil {
			p.t.Fatalf("the role of %s is not in force: %v", config.Impersonate.UserName, err)
		}
	}
}

// denied reports whether one of Tailplane's admission policies rejected the request.
func denied(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'tailplane-") ||
		apierrors.IsInvalid(err) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'tailplane-")
}

// byRBAC reports whether RBAC rejected the request.
func byRBAC(err error) bool { return apierrors.IsForbidden(err) && !denied(err) }

// The manifests give each program the permissions it needs, including leader election.
func TestManifestsSuffice(t *testing.T) {
	p := newProductEnv(t)
	p.lease = "tailplane-system"
	p.operate()
	s, _ := p.open()
	alice := p.owner("alice@a.example", "laptop")
	for _, namespaces := range [][]string{nil, {"default"}} {
		ready := p.login(s, newSignin(alice, "view", time.Hour, namespaces...))
		p.token(s, ready)
		ready.AskedAt = time.Now().Add(2 * time.Second)
		if _, err := s.Extend(t.Context(), p.now(s, ready)); err != nil {
			t.Fatal(err)
		}
		ready = p.await(s, ready.Name, in(signin.Ready))
		p.events(ready.Name, "Provisioned")
		end(p, s, ready.Name)
		p.events(ready.Name, "Revoked")
	}
	short := p.login(s, newSignin(alice, "view", time.Hour))
	p.shorten(s, short)
	p.await(s, short.Name, func(x signin.Signin, there bool) bool {
		return there && x.Phase == signin.PhaseExpired && x.Bound.Role() == ""
	})
	end(p, s, short.Name)
}

// now returns want with the stored version.
func (p *env) now(s *Store, want signin.Signin) signin.Signin {
	p.t.Helper()
	have, err := s.Get(p.t.Context(), want.Name)
	if err != nil {
		p.t.Fatal(err)
	}
	have.Period, have.AskedAt = want.Period, want.AskedAt
	return have
}

// SGN-12, SI-01: Only the access server can write a sign-in.
func TestForged(t *testing.T) {
	p := newProductEnv(t)
	p.operate()
	s, _ := p.open()
	ctx := t.Context()
	all := rbacv1.PolicyRule{APIGroups: []string{v1alpha1.Group}, Resources: []string{"tkasignins", "tkasignins/status"}, Verbs: []string{"get", "list", "create", "update", "patch", "delete"}}
	mallory := p.user("mallory", all)
	server, operator := p.client(p.accessConfig), p.client(p.operatorConfig)

	forged := func(role access.Role) *v1alpha1.TkaSignin {
		return objectOf(newSignin(p.owner("ceo@a.example", "laptop"), role, time.Hour), p.ns)
	}
	for name, c := range map[string]client.Client{"a tenant": mallory, "an administrator": p.admin} {
		if err := c.Create(ctx, forged("cluster-admin")); !denied(err) {
			t.Errorf("%s creates a sign-in: %v, want denied", name, err)
		}
	}
	if err := operator.Create(ctx, forged("view")); !byRBAC(err) {
		t.Errorf("the operator creates a sign-in: %v, want Forbidden", err)
	}
	bare := forged("view")
	bare.Finalizers = nil
	if err := server.Create(ctx, bare); !denied(err) {
		t.Errorf("the access server creates a sign-in without finalizer: %v, want denied", err)
	}

	alice := p.login(s, newSignin(p.owner("alice@a.example", "laptop"), "view", time.Hour))
	change := func(c client.Client, f func(*v1alpha1.TkaSignin)) error {
		o := p.object(alice.Name)
		f(o)
		return c.Update(ctx, o)
	}
	status := func(c client.Client, f func(*v1alpha1.TkaSignin)) error {
		o := p.object(alice.Name)
		f(o)
		return c.Status().Update(ctx, o)
	}
	longer := func(o *v1alpha1.TkaSignin) { o.Spec.Period.Duration = 20 * time.Hour }
	elsewhere := func(o *v1alpha1.TkaSignin) { o.Status.Role = "cluster-admin" }
	noFinalizer := func(o *v1alpha1.TkaSignin) { o.Finalizers = nil }
	for what, err := range map[string]error{
		"a tenant extends":                        change(mallory, longer),
		"an administrator extends":                change(p.admin, longer),
		"the operator extends":                    change(operator, longer),
		"a tenant writes the status":              status(mallory, elsewhere),
		"an administrator writes the status":      status(p.admin, elsewhere),
		"a tenant removes the finalizer":          change(mallory, noFinalizer),
		"an administrator removes the finalizer":  change(p.admin, noFinalizer),
		"the access server removes the finalizer": change(server, noFinalizer),
		"a tenant sets a label of Tailplane":      change(mallory, func(o *v1alpha1.TkaSignin) { metav1.SetMetaDataLabel(&o.ObjectMeta, "tailplane.dev/x", "y") }),
		"a tenant changes an annotation of Tailplane": change(mallory, func(o *v1alpha1.TkaSignin) {
			metav1.SetMetaDataAnnotation(&o.ObjectMeta, v1alpha1.LastAttemptAnnotation, "never")
		}),
		"a tenant removes an annotation of Tailplane": change(mallory, func(o *v1alpha1.TkaSignin) { delete(o.Annotations, v1alpha1.LastAttemptAnnotation) }),
	} {
		if !denied(err) {
			t.Errorf("%s: %v, want denied", what, err)
		}
	}
	if err := status(server, elsewhere); !byRBAC(err) {
		t.Errorf("the access server writes the status: %v, want Forbidden", err)
	}
	for what, err := range map[string]error{
		"a tenant sets another label": change(mallory, func(o *v1alpha1.TkaSignin) { metav1.SetMetaDataLabel(&o.ObjectMeta, "team", "x") }),
		"a tenant adds a finalizer":   change(mallory, func(o *v1alpha1.TkaSignin) { o.Finalizers = append(o.Finalizers, "example.test/x") }),
		"a tenant removes that label": change(mallory, func(o *v1alpha1.TkaSignin) { o.Finalizers = []string{v1alpha1.SigninFinalizer} }),
	} {
		if err != nil && !apierrors.IsConflict(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// Deleting is always allowed. The garbage collector also works: foreground deletion waits until
	// it removes its finalizer.
	if err := mallory.Delete(ctx, p.object(alice.Name), client.PropagationPolicy(metav1.DeletePropagationForeground)); err != nil {
		t.Errorf("a tenant ends a sign-in: %v", err)
	}
	p.await(s, alice.Name, gone)
	p.nothingLeft()
}

// SGN-12: Without the policy, the operator provisions nothing. After the policy is back, it
// provisions what the access server wrote.
func TestPolicyMissing(t *testing.T) {
	p := newProductEnv(t)
	p.operate()
	s, _ := p.open()
	ctx := t.Context()
	missing := func(o, again client.Object) {
		t.Helper()
		if err := p.admin.Delete(ctx, o); err != nil {
			t.Fatal(err)
		}
		// Cached answers are valid for a while.
		want := newSignin(p.owner("alice@a.example", "laptop"), "view", time.Hour)
		var no signin.Signin
		p.until("nothing is provisioned without "+o.GetName(), func() bool {
			if _, err := s.Create(ctx, want); err != nil {
				t.Fatal(err)
			}
			no = p.await(s, want.Name, func(x signin.Signin, there bool) bool { return there && x.State(time.Now()) != signin.Pending })
			if no.State(time.Now()) == signin.Refused {
				return true
			}
			end(p, s, want.Name)
			return false
		})
		if no.Reason != signin.ReasonAdmissionPolicyMissing {
			t.Errorf("reason %s (%s)", no.Reason, no.Message)
		}
		if accounts, everywhere, _ := p.made(); len(accounts)+len(everywhere) > 0 {
			t.Error("an object was created without the policy")
		}
		if err := p.admin.Create(ctx, again); err != nil {
			t.Fatal(err)
		}
		p.await(s, want.Name, in(signin.Ready))
		end(p, s, want.Name)
	}
	key := client.ObjectKey{Name: AdmissionPolicy}
	policy, binding := new(admissionv1.ValidatingAdmissionPolicy), new(admissionv1.ValidatingAdmissionPolicyBinding)
	for _, o := range []client.Object{policy, binding} {
		if err := p.admin.Get(ctx, key, o); err != nil {
			t.Fatal(err)
		}
	}
	missing(policy, &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: key.Name, Labels: policy.Labels}, Spec: policy.Spec})
	missing(binding, &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: key.Name, Labels: binding.Labels}, Spec: binding.Spec})
}

// SGN-12, SI-01: Even without the policy and the requirement, a forged sign-in gets no role outside
// the allow-list and no name of another owner.
func TestForgedWithoutPolicy(t *testing.T) {
	p := newEnv(t)
	p.operate()
	s, _ := p.open()
	for _, tt := range []struct {
		why, reason string
		forge       func(*v1alpha1.TkaSignin)
	}{
		{"a role that is not listed", signin.ReasonRoleNotAllowed, func(o *v1alpha1.TkaSignin) { o.Spec.Role = "cluster-admin" }},
		{"a name of no user and device", signin.ReasonNameTaken, func(o *v1alpha1.TkaSignin) { o.Name = "ceo-0123456789abcdef0123" }},
		{"another login under this name", signin.ReasonNameTaken, func(o *v1alpha1.TkaSignin) { o.Spec.User.Login = "ceo@a.example" }},
		{"our own namespace", signin.ReasonRoleNotAllowed, func(o *v1alpha1.TkaSignin) { o.Spec.Namespaces = []string{p.ns} }},
		{"a template", signin.ReasonRoleNotAllowed, func(o *v1alpha1.TkaSignin) { o.Spec.Role = "{{ .Values.role }}" }},
		{"a path", signin.ReasonRoleNotAllowed, func(o *v1alpha1.TkaSignin) { o.Spec.Role = "../clusterroles/admin" }},
	} {
		t.Run(tt.why, func(t *testing.T) {
			o := objectOf(newSignin(p.owner("mallory@a.example", "laptop"), "view", time.Hour), p.ns)
			tt.forge(o)
			if err := p.admin.Create(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			if no := p.await(s, o.Name, in(signin.Refused)); no.Reason != tt.reason {
				t.Errorf("reason %s (%s), want %s", no.Reason, no.Message, tt.reason)
			}
			if accounts, everywhere, somewhere := p.made(); len(accounts)+len(everywhere)+len(somewhere) > 0 {
				t.Error("an object was created for it")
			}
			p.events(o.Name, "Refused")
			end(p, s, o.Name)
		})
	}
}

// SGN-13, SI-12: Each account has exactly these permissions.
func TestRights(t *testing.T) {
	p := newProductEnv(t)
	everybody := p.cluster.AdminConfig()
	everybody.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:default:nobody", Groups: []string{"system:serviceaccounts", "system:authenticated"}}
	rights := func(config *rest.Config, ns string) (lines []string) {
		t.Helper()
		config = rest.CopyConfig(config)
		review := &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: ns}}
		c, err := client.New(config, client.Options{Scheme: p.admin.Scheme()})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Create(t.Context(), review); err != nil {
			t.Fatal(err)
		}
		for _, r := range review.Status.ResourceRules {
			for _, group := range r.APIGroups {
				for _, res := range r.Resources {
					if group != "" {
						res += "." + group
					}
					line := res + ": " + strings.Join(slices.Sorted(slices.Values(r.Verbs)), " ")
					if len(r.ResourceNames) > 0 {
						line += " of " + strings.Join(r.ResourceNames, " ")
					}
					lines = append(lines, line)
				}
			}
		}
		return lines
	}
	cluster := []string{
		"clusterrolebindings.rbac.authorization.k8s.io: create delete get list watch",
		"clusterroles.rbac.authorization.k8s.io: bind get of view edit",
		"namespaces: get list watch",
		"rolebindings.rbac.authorization.k8s.io: create delete get list watch",
		"tkasignins.tailplane.dev: delete get list patch update watch",
		"tkasignins/status.tailplane.dev: patch update",
		"validatingadmissionpolicies.admissionregistration.k8s.io: get of tailplane-signins tailplane-signin-bindings tailplane-signin-tokens tailplane-signin-accounts tailplane-system-writers",
		"validatingadmissionpolicies.admissionregistration.k8s.io: get of tailplane-requests",
		"validatingadmissionpolicybindings.admissionregistration.k8s.io: get of tailplane-requests",
		"validatingadmissionpolicybindings.admissionregistration.k8s.io: get of tailplane-signins tailplane-signin-bindings tailplane-signin-tokens tailplane-signin-accounts tailplane-system-writers",
	}
	reads := []string{ // of the access server, in the whole cluster
		"clusterroles.rbac.authorization.k8s.io: get of view edit",
		"namespaces: get of kube-system",
		"validatingadmissionpolicies.admissionregistration.k8s.io: get of tailplane-signins tailplane-signin-tokens",
		"validatingadmissionpolicybindings.admissionregistration.k8s.io: get of tailplane-signins tailplane-signin-tokens",
		"validatingadmissionpolicies.admissionregistration.k8s.io: get of tailplane-requests",
		"validatingadmissionpolicybindings.admissionregistration.k8s.io: get of tailplane-requests",
	}
	for _, tt := range []struct {
		account string
		config  *rest.Config
		ns      string
		want    []string
	}{
		{"access", p.accessConfig, "tailplane-signins", append([]string{
			"serviceaccounts/token: create",
			"serviceaccounts: get",
			"tkarequests.tailplane.dev: create get list watch",
			"tkarequests/status.tailplane.dev: patch",
			"tkasignins.tailplane.dev: create delete get list patch update watch",
		}, reads...)},
		{"access", p.accessConfig, "tailplane-system", append([]string{
			"configmaps: get update of tailplane-gossip-pins tailplane-members",
			"configmaps: get update of tailplane-oidc-used tailplane-first-use",
			"leases.coordination.k8s.io: get of tailplane-operator tailplane-plane tailplane-proxy",
			"leases.coordination.k8s.io: get of tailplane-operator",
			"leases.coordination.k8s.io: get update of tailplane-access",
			"secrets: get patch update of tailplane-access-0 tailplane-cluster-key tailplane-audit-key",
		}, reads...)},
		{"access", p.accessConfig, "default", reads},
		{"access", p.accessConfig, "kube-system", reads},
		{"operator", p.operatorConfig, "tailplane-signins", append([]string{
			"events.events.k8s.io: create patch",
			"serviceaccounts: create delete get list watch",
			"tkarequests.tailplane.dev: delete get list watch",
		}, cluster...)},
		{"operator", p.operatorConfig, "tailplane-system", append([]string{
			"configmaps: get update of tailplane-first-use",
			"leases.coordination.k8s.io: create",
			"leases.coordination.k8s.io: get patch update of tailplane-operator",
			"secrets: get update of tailplane-operator-audit-key",
		}, cluster...)},
		{"operator", p.operatorConfig, "default", cluster},
		{"operator", p.operatorConfig, "kube-system", cluster},
	} {
		common := rights(everybody, tt.ns)
		have := slices.DeleteFunc(rights(tt.config, tt.ns), func(s string) bool { return slices.Contains(common, s) })
		slices.Sort(have)
		want := slices.Sorted(slices.Values(tt.want))
		if !slices.Equal(have, want) {
			t.Errorf("%s in %s may\n\t%s\nwant\n\t%s", tt.account, tt.ns, strings.Join(have, "\n\t"), strings.Join(want, "\n\t"))
		}
	}
}

// SGN-13: Actions that these permissions do not allow.
func TestForbiddenActions(t *testing.T) {
	p := newProductEnv(t)
	ctx := t.Context()
	server, operator := p.client(p.accessConfig), p.client(p.operatorConfig)
	account := func(ns, name string) *corev1.ServiceAccount {
		return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	}
	labels := map[string]string{v1alpha1.ManagedByLabel: v1alpha1.ManagedBy, v1alpha1.SigninNamespaceLabel: p.ns, v1alpha1.SigninUIDLabel: "7e2b0f6e-0000-4000-8000-000000000002"}
	crb := func(change func(*rbacv1.ClusterRoleBinding)) *rbacv1.ClusterRoleBinding {
		b := &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "tailplane-test-0123456789abcdef0123", Labels: labels},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: p.ns, Name: "x"}},
		}
		if change != nil {
			change(b)
		}
		return b
	}
	rb := func(ns, kind, role string) *rbacv1.RoleBinding {
		return &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "tailplane-test-0123456789abcdef0123", Labels: labels},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: role}, Subjects: crb(nil).Subjects}
	}
	token := func(c client.Client, sa *corev1.ServiceAccount) error {
		return c.SubResource("token").Create(ctx, sa, &authenticationv1.TokenRequest{})
	}
	create := func(c client.Client, o client.Object) error { return c.Create(ctx, o, client.DryRunAll) }

	for what, err := range map[string]error{
		"access binds":                              create(server, crb(nil)),
		"access makes the operator's token":         token(server, account("tailplane-system", "tailplane-operator")),
		"access makes its own token":                token(server, account("tailplane-system", "tailplane-access")),
		"access makes a ServiceAccount":             create(server, account(p.ns, "x")),
		"access reads Secrets":                      server.List(ctx, &corev1.SecretList{}, client.InNamespace("tailplane-system")),
		"operator makes a token":                    token(operator, account(p.ns, "default")),
		"operator reads Secrets":                    operator.List(ctx, &corev1.SecretList{}, client.InNamespace(p.ns)),
		"operator lists ClusterRoles":               operator.List(ctx, &rbacv1.ClusterRoleList{}),
		"operator binds cluster-admin":              create(operator, crb(func(b *rbacv1.ClusterRoleBinding) { b.RoleRef.Name = "cluster-admin" })),
		"operator binds admin, which is not listed": create(operator, crb(func(b *rbacv1.ClusterRoleBinding) { b.RoleRef.Name = "admin" })),
		"operator binds a Role":                     create(operator, rb("kube-system", "Role", "extension-apiserver-authentication-reader")),
	} {
		if !byRBAC(err) {
			t.Errorf("%s: %v, want Forbidden", what, err)
		}
	}
	for what, err := range map[string]error{
		"operator binds a user": create(operator, crb(func(b *rbacv1.ClusterRoleBinding) {
			b.Subjects = []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "mallory"}}
		})),
		"operator binds a foreign account": create(operator, crb(func(b *rbacv1.ClusterRoleBinding) { b.Subjects[0].Namespace = "default" })),
		"operator binds a foreign account as second": create(operator, crb(func(b *rbacv1.ClusterRoleBinding) {
			b.Subjects = append(b.Subjects, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: "default"})
		})),
		"operator binds no subject":                create(operator, crb(func(b *rbacv1.ClusterRoleBinding) { b.Subjects = nil })),
		"operator binds without labels":            create(operator, crb(func(b *rbacv1.ClusterRoleBinding) { b.Labels = nil })),
		"operator binds in tailplane-system":       create(operator, rb("tailplane-system", "ClusterRole", "view")),
		"operator binds in tailplane-signins":      create(operator, rb(p.ns, "ClusterRole", "view")),
		"operator deletes its own right":           operator.Delete(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "tailplane-operator"}}, client.DryRunAll),
		"operator deletes cluster-admin's binding": operator.Delete(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "cluster-admin"}}, client.DryRunAll),
		"an administrator makes a sign-in's token": token(p.admin, account(p.ns, "default")),
	} {
		if !denied(err) {
			t.Errorf("%s: %v, want denied by a policy", what, err)
		}
	}
	// SI-14: the access server's own account gets no token of another form.
	for what, spec := range map[string]authenticationv1.TokenRequestSpec{
		"a token for longer than signin.period.max": {ExpirationSeconds: new(int64(24*60*60 + 1))},
		"a token bound to a Secret":                 {BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Secret", APIVersion: "v1", Name: "x"}},
	} {
		if err := server.SubResource("token").Create(ctx, account(p.ns, "default"), &authenticationv1.TokenRequest{Spec: spec}); !denied(err) {
			t.Errorf("access makes %s: %v, want denied by a policy", what, err)
		}
	}
	day := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(24 * 60 * 60))}}
	if err := server.SubResource("token").Create(ctx, account(p.ns, "default"), day, &client.SubResourceCreateOptions{CreateOptions: client.CreateOptions{DryRun: []string{metav1.DryRunAll}}}); err != nil {
		t.Errorf("access makes a token for signin.period.max: %v", err)
	}
	// A binding that was changed, or whose role is no longer on the list, can be deleted.
	for i, b := range []*rbacv1.ClusterRoleBinding{
		crb(nil),
		crb(func(b *rbacv1.ClusterRoleBinding) { b.RoleRef.Name = "cluster-admin" }),
		crb(func(b *rbacv1.ClusterRoleBinding) { b.Subjects[0].Namespace = "default" }),
		crb(func(b *rbacv1.ClusterRoleBinding) { b.Labels = nil }),
	} {
		if err := p.admin.Create(ctx, b); err != nil {
			t.Fatal(err)
		}
		if err := operator.Delete(ctx, b); err != nil {
			t.Errorf("operator deletes binding %d, which was a sign-in's: %v", i, err)
			_ = p.admin.Delete(ctx, b)
		}
	}
	if err := create(operator, rb("default", "ClusterRole", "edit")); err != nil {
		t.Errorf("operator binds edit in a namespace: %v", err)
	}
}

// SI-12: The rules in the manifests, as written.
func TestManifestRules(t *testing.T) {
	seen := 0
	for _, doc := range manifests(t) {
		d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(doc), 4096)
		for {
			var o struct {
				Kind     string
				Metadata metav1.ObjectMeta
				Rules    []rbacv1.PolicyRule
			}
			if err := d.Decode(&o); err != nil {
				break
			}
			if o.Kind == "" {
				continue
			}
			if o.Kind == "CustomResourceDefinition" {
				continue
			}
			if o.Metadata.Labels["app.kubernetes.io/name"] != "tailplane" || o.Metadata.Labels["app.kubernetes.io/part-of"] != "tailplane" {
				t.Errorf("%s %s has no labels of Tailplane", o.Kind, o.Metadata.Name)
			}
			for _, r := range o.Rules {
				seen++
				all := strings.Join(slices.Concat(r.APIGroups, r.Resources, r.Verbs), " ")
				where := fmt.Sprintf("%s %s: %s", o.Kind, o.Metadata.Name, all)
				switch {
				case strings.Contains(all, "*"):
					t.Errorf("too much: %s: all = %q contains %q", where, all, "*")
				case slices.Contains(r.Verbs, "escalate"):
					t.Errorf("too much: %s: r.Verbs = %v contains %q", where, r.Verbs, "escalate")
				case slices.Contains(r.Verbs, "impersonate"):
					t.Errorf("too much: %s: r.Verbs = %v contains %q", where, r.Verbs, "impersonate")
				case slices.Contains(r.Verbs, "deletecollection") && o.Metadata.Name != "tailplane-edit": // a role for people
					t.Errorf("too much: %s: r.Verbs = %v contains %q", where, r.Verbs, "deletecollection")
				}
				if slices.Contains(r.Verbs, "bind") && len(r.ResourceNames) == 0 {
					t.Errorf("binds what it likes: %s", where)
				}
				if slices.Contains(r.Resources, "secrets") && len(r.ResourceNames) == 0 {
					t.Errorf("any Secret: %s", where)
				}
			}
		}
	}
	if seen < 8 {
		t.Errorf("looked at %d rules only", seen)
	}
}

// The kustomize base and the component for access requests list every file.
func TestKustomizeBase(t *testing.T) {
	count := func(docs ...[]byte) (n int) {
		for _, doc := range docs {
			n += bytes.Count(append([]byte("\n"), doc...), []byte("\nkind: "))
		}
		return n
	}
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	var built [][]byte
	for _, folder := range []string{"base", "requests"} {
		out, errs, code := kubetest.Kubectl(ctx, "", "kustomize", "../../../deploy/"+folder)
		if code != 0 {
			t.Fatalf("kubectl kustomize %s: %d: %s", folder, code, errs)
		}
		built = append(built, []byte(out))
	}
	if have, want := count(built...), count(manifests(t)...); have != want || want < 20 {
		t.Errorf("kustomize builds %d objects, the files have %d", have, want)
	}
}

// No pod can run as a sign-in's account, and no token of it can be stored.
func TestQuota(t *testing.T) {
	p := newProductEnv(t)
	ctx := t.Context()
	q := new(corev1.ResourceQuota)
	if err := p.admin.Get(ctx, client.ObjectKey{Namespace: p.ns, Name: "tailplane-signins"}, q); err != nil {
		t.Fatal(err)
	}
	// The testbed has no quota controller. The test does its part by hand: it copies the limits and
	// the usage. The API server enforces them.
	q.Status.Hard, q.Status.Used = q.Spec.Hard, corev1.ResourceList{}
	for k := range q.Spec.Hard {
		q.Status.Used[k] = resource.MustParse("0")
	}
	if err := p.admin.Status().Update(ctx, q); err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: "lasting", Annotations: map[string]string{corev1.ServiceAccountNameKey: "default"}}, Type: corev1.SecretTypeServiceAccountToken}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: "p"}, Spec: corev1.PodSpec{
		SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: new(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
		Containers: []corev1.Container{{Name: "c", Image: "example.test/c",
			SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}}}}}
	for _, o := range []client.Object{secret, pod} {
		p.until(fmt.Sprintf("the quota refuses a %T", o), func() bool {
			err := p.admin.Create(ctx, o, client.DryRunAll)
			return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota")
		})
	}
}

// SGN-12: Namespace deletion works with the policies on.
func TestNamespaceDeletionUnderPolicies(t *testing.T) {
	p := newProductEnvOn(t, kubetest.New(t, kubetest.Options{Name: "ending"}))
	p.operate()
	s, _ := p.open()
	x := p.login(s, newSignin(p.owner("alice@a.example", "laptop"), "view", time.Hour))
	over := p.login(s, newSignin(p.owner("bob@a.example", "laptop"), "view", time.Hour))
	p.shorten(s, over)
	p.await(s, over.Name, func(x signin.Signin, there bool) bool { return there && x.Phase == signin.PhaseExpired })
	if err := p.admin.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: p.ns}}); err != nil {
		t.Fatal(err)
	}
	// The permissions of the access server are deleted with the namespace, so the test reads as
	// administrator.
	p.until("the sign-in is gone", func() bool { _, err := p.readState(x.Name); return apierrors.IsNotFound(err) })
	// The rest is done by Kubernetes, which retries after 8 s or more.
	ns, began := new(corev1.Namespace), time.Now()
	for !apierrors.IsNotFound(p.admin.Get(t.Context(), client.ObjectKey{Name: p.ns}, ns)) {
		if time.Since(began) > 5*deadline {
			t.Fatalf("the namespace is still there after %v: %+v", 5*deadline, ns.Status)
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Logf("the namespace was gone %v after the sign-ins", time.Since(began).Round(time.Millisecond))
	p.nothingLeft()
}

// Sign-ins in the operator's namespace would let the access server create a token of the operator.
func TestSameNamespaceIsRefused(t *testing.T) {
	p := &env{t: t, ns: "one", lease: "one", rules: signin.Rules{Roles: []access.Role{"view"}, Min: time.Minute, Max: time.Hour, KeepExpired: time.Minute, Recheck: time.Second}}
	if err := p.operator(&rest.Config{Host: "https://127.0.0.1:1"}).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "a separate namespace") {
		t.Errorf("Run: %v", err)
	}
	p.ns, p.rules.Roles = "two", nil
	if err := p.operator(&rest.Config{Host: "https://127.0.0.1:1"}).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "needs configuration") {
		t.Errorf("Run without roles: %v", err)
	}
}
