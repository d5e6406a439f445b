//go:build unix

package install

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tailplane/tailplane/testkit/kubetest"
)

// place returns the cluster that the tests of this file share, with the custom resources and the chart's namespace.
func place(t *testing.T) *kubetest.Cluster {
	t.Helper()
	return prepared(t, kubetest.Start(t))
}

// prepared adds the objects that the chart does not contain, and returns the cluster.
func prepared(t *testing.T, c *kubetest.Cluster) *kubetest.Cluster {
	t.Helper()
	definitions, err := runHelm(t, "template", crds)
	if err != nil {
		t.Fatal(err)
	}
	namespace := "apiVersion: v1\nkind: Namespace\nmetadata: {name: " + systems + ", labels: {pod-security.kubernetes.io/enforce: restricted}}"
	monitors := "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: servicemonitors.monitoring.coreos.com}\n" +
		"spec: {group: monitoring.coreos.com, scope: Namespaced, names: {plural: servicemonitors, singular: servicemonitor, kind: ServiceMonitor}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]}"
	priority := "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: platform}\nvalue: 1000\n"
	people := "apiVersion: v1\nkind: Namespace\nmetadata: {name: people}\n"
	var others strings.Builder // the namespaces in a profile of the gateway
	for _, ns := range slices.Concat(gatewayNamespaces, fleetNamespaces[1:3]) {
		fmt.Fprintf(&others, "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n", ns)
	}
	if err := c.Apply(t.Context(), []byte(others.String()), []byte(definitions), []byte(namespace), []byte(monitors), []byte(priority), []byte(people)); err != nil {
		t.Fatal(err)
	}
	return c
}

// configOf returns a client configuration with exactly an account's rights.
func configOf(t *testing.T, c *kubetest.Cluster, ns, account string) *rest.Config {
	t.Helper()
	path, err := c.ServiceAccountKubeconfig(t.Context(), ns, account, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	return config
}

func clientsOf(t *testing.T, config *rest.Config) *kubernetes.Clientset {
	t.Helper()
	config.QPS = -1
	k, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// rights returns the rights of a client in a namespace, as the API server reports them.
func rights(t *testing.T, k *kubernetes.Clientset, ns string) (lines []string) {
	t.Helper()
	r, err := k.AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(),
		&authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: ns}}, metav1.CreateOptions{})
	if err != nil || r.Status.Incomplete {
		t.Fatalf("rights in %s: %v, %+v", ns, err, r)
	}
	for _, r := range r.Status.ResourceRules {
		for _, group := range r.APIGroups {
			for _, resource := range r.Resources {
				if group != "" {
					resource += "." + group
				}
				line := resource + ": " + strings.Join(slices.Sorted(slices.Values(r.Verbs)), " ")
				if len(r.ResourceNames) > 0 {
					line += " of " + strings.Join(r.ResourceNames, " ")
				}
				lines = append(lines, line)
			}
		}
	}
	for _, r := range r.Status.NonResourceRules {
		lines = append(lines, strings.Join(r.NonResourceURLs, " ")+": "+strings.Join(r.Verbs, " "))
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}

// byRBAC and byPolicy report which of the two refused a request.
func byRBAC(err error) bool {
	return apierrors.IsForbidden(err) && !strings.Contains(err.Error(), "ValidatingAdmissionPolicy")
}

func byPolicy(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy")
}

// SGN-13, SI-12: the rights of each account of each profile, as the API server reports them, equal the golden file.
// The test also checks what the accounts cannot reach. Rights of every authenticated account are omitted.
func TestSGN13_Rights(t *testing.T) {
	c := place(t)
	admin := clientsOf(t, c.AdminConfig())
	anybody := c.AdminConfig()
	anybody.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:default:nobody", Groups: []string{"system:serviceaccounts", "system:authenticated"}}
	nobody := clientsOf(t, anybody)
	var got strings.Builder
	for _, p := range profiles(t) {
		fmt.Fprintf(&got, "# %s\n", p.name)
		out := render(t, p.values, "--no-hooks") // a pod cannot be applied over an existing one
		if err := c.Apply(t.Context(), []byte(out)); err != nil {
			t.Fatal(p.name, err)
		}
		signins, accounts := signins, []*unstructured.Unstructured(nil)
		for _, u := range objects(t, out) {
			switch u.GetKind() {
			case "ServiceAccount":
				accounts = append(accounts, u)
			case "ResourceQuota":
				signins = u.GetNamespace()
			}
		}
		for _, u := range accounts {
			account := u.GetName()
			k := clientsOf(t, configOf(t, c, u.GetNamespace(), account))
			namespaces := []string{signins, systems}
			if account == "tailplane-gateway" {
				namespaces = append(namespaces, gatewayNamespaces...)
			}
			if account == "tailplane-fleet" {
				namespaces = append(namespaces, fleetNamespaces...)
			}
			more := func(ns string, than []string) (lines []string) {
				than = append(than, rights(t, nobody, ns)...)
				return slices.DeleteFunc(rights(t, k, ns), func(line string) bool { return slices.Contains(than, line) })
			}
			everywhere := more("kube-public", nil)
			if more := more("kube-system", slices.Clone(everywhere)); len(more) > 0 {
				t.Errorf("%s: %s may in kube-system %v", p.name, account, more)
			}
			for _, line := range everywhere {
				fmt.Fprintf(&got, "%s everywhere: %s\n", account, line)
			}
			for _, ns := range namespaces {
				for _, line := range more(ns, slices.Clone(everywhere)) {
					fmt.Fprintf(&got, "%s in %s: %s\n", account, ns, line)
				}
			}
			outOfReach(t, p.name+": "+account, k, signins)
		}
		// The next profile starts without any objects.
		for _, u := range objects(t, out) {
			if u.GetKind() == "ClusterRoleBinding" {
				if err := admin.RbacV1().ClusterRoleBindings().Delete(t.Context(), u.GetName(), metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			if u.GetKind() == "RoleBinding" {
				if err := admin.RbacV1().RoleBindings(u.GetNamespace()).Delete(t.Context(), u.GetName(), metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	const golden = "testdata/rights.txt"
	want, err := os.ReadFile(golden)
	if *update {
		err = os.WriteFile(golden, []byte(got.String()), 0o644)
	} else if got.String() != string(want) {
		t.Errorf("%s: %s", golden, difference(string(want), got.String()))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// outOfReach tries operations that none of the product's accounts may do.
func outOfReach(t *testing.T, who string, k *kubernetes.Clientset, signins string) {
	t.Helper()
	ctx := t.Context()
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	binding := func(role string, s rbacv1.Subject) error {
		_, err := k.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "tailplane-test-0123456789abcdef0123", Labels: map[string]string{
				"app.kubernetes.io/managed-by": "tailplane", "tailplane.dev/signin-uid": "7e2b0f6e-0000-4000-8000-000000000002"}},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects: []rbacv1.Subject{s},
		}, dry)
		return err
	}
	ours := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: signins, Name: "x"}
	remove := metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}
	token := func(account string) error {
		_, err := k.CoreV1().ServiceAccounts(systems).CreateToken(ctx, account, &authenticationv1.TokenRequest{}, dry)
		return err
	}
	_, secrets := k.CoreV1().Secrets(systems).List(ctx, metav1.ListOptions{})
	_, everySecret := k.CoreV1().Secrets("").List(ctx, metav1.ListOptions{})
	_, foreign := k.CoreV1().Secrets(systems).Get(ctx, "tailplane-authkey", metav1.GetOptions{})
	_, pods := k.CoreV1().Pods(systems).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}, dry)
	_, role := k.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, dry)
	// The intended operations of the accounts must be allowed, otherwise the refusals below prove nothing. A policy
	// takes effect a moment after its creation.
	mallory := rbacv1.Subject{Kind: "User", APIGroup: rbacv1.GroupName, Name: "mallory"}
	// Only the operator, alone or in one process with all, creates bindings.
	if !strings.HasSuffix(who, ": tailplane-operator") && !strings.HasSuffix(who, ": tailplane") {
		if err := binding("view", ours); !byRBAC(err) {
			t.Errorf("%s binds view to a sign-in: %v", who, err)
		}
	} else {
		var err error
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			if err = binding("view", ours); err == nil && byPolicy(binding("view", mallory)) {
				break
			}
		}
		if err != nil {
			t.Errorf("%s binds view to a sign-in: %v", who, err)
		}
	}
	for what, err := range map[string]error{
		"binds cluster-admin":          binding("cluster-admin", ours),
		"binds admin":                  binding("admin", ours),
		"makes the operator's token":   token("tailplane-operator"),
		"makes the token of all":       token("tailplane"),
		"makes its own token":          token("tailplane-access"),
		"lists Secrets":                secrets,
		"lists Secrets everywhere":     everySecret,
		"reads the auth key's Secret":  foreign,
		"makes a pod":                  pods,
		"makes a role":                 role,
		"removes the admission policy": k.AdmissionregistrationV1().ValidatingAdmissionPolicies().Delete(ctx, "tailplane-signins", remove),
	} {
		if !byRBAC(err) {
			t.Errorf("%s %s: %v, want Forbidden", who, what, err)
		}
	}
	for what, err := range map[string]error{
		"binds a user":                     binding("view", mallory),
		"binds a foreign account":          binding("view", rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: "default"}),
		"removes a foreign binding":        k.RbacV1().ClusterRoleBindings().Delete(ctx, "cluster-admin", remove),
		"removes a foreign RoleBinding":    k.RbacV1().RoleBindings("kube-system").Delete(ctx, "system::leader-locking-kube-scheduler", remove),
		"removes the system's own binding": k.RbacV1().ClusterRoleBindings().Delete(ctx, "system:basic-user", remove),
	} {
		if !byRBAC(err) && !byPolicy(err) {
			t.Errorf("%s %s: %v, want it refused", who, what, err)
		}
	}
}
