package signin

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/buildcache"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// relayed reports whether a Role belongs to the gateway and is in a namespace for relays. The gateway creates relays
// there and needs the rights for that.
func relayed(kind, name, namespace string) bool {
	return kind == "Role" && strings.HasPrefix(name, "tailplane-gateway") && !slices.Contains([]string{"", testenv.SystemNamespace, testenv.SigninNamespace, "kube-system", "default"}, namespace)
}

// ofRunners lists the ClusterRoles that apply only in namespaces of runners. The chart binds them nowhere. Admission
// policies allow the fleet to bind them only in those namespaces (FLEET-14).
var ofRunners = []string{"tailplane-fleet-namespace", "tailplane-arc-manager", "tailplane-gitlab-manager", "tailplane-runner-kubernetes"}

// fleeting reports whether a role belongs to the fleet. It may be one of ofRunners, the fleet's role in its own or
// ARC's namespace, or the role that allows it to bind ofRunners.
func fleeting(kind, name, namespace string) bool {
	if kind == "ClusterRole" {
		return name == "tailplane-fleet" || slices.Contains(ofRunners, name)
	}
	return strings.HasPrefix(name, "tailplane-fleet") && !slices.Contains([]string{"", testenv.SystemNamespace, testenv.SigninNamespace, "kube-system"}, namespace)
}

// unlawful returns the violations in rules that apply in a namespace. An empty namespace means the whole cluster.
func unlawful(rules []rbacv1.PolicyRule, namespace string) []string {
	return unlawfulBut(rules, namespace, false, false, false)
}

// unlawfulBut is unlawful with exceptions: the rights that relays and runners need where they are created, and the
// read rights of the plane's watcher.
func unlawfulBut(rules []rbacv1.PolicyRule, namespace string, relays, runners, watcher bool) (wrong []string) {
	for _, r := range rules {
		bad := func(format string, args ...any) {
			wrong = append(wrong, fmt.Sprintf(format, args...)+fmt.Sprintf(" (%+v)", r))
		}
		for _, words := range [][]string{r.Verbs, r.APIGroups, r.Resources, r.ResourceNames, r.NonResourceURLs} {
			if slices.ContainsFunc(words, func(w string) bool { return strings.Contains(w, "*") }) {
				bad("a wildcard")
			}
		}
		has := func(verbs ...string) bool {
			return slices.ContainsFunc(r.Verbs, func(v string) bool { return slices.Contains(verbs, v) })
		}
		if has("escalate") || has("impersonate") || slices.ContainsFunc(r.Verbs, func(v string) bool { return strings.HasPrefix(v, "impersonate") }) {
			bad("escalate or impersonate")
		}
		if has("bind", "approve", "sign", "attest") && len(r.ResourceNames) == 0 {
			bad("%v of anything", r.Verbs)
		}
		if !relays && !runners && slices.Contains(r.Resources, "secrets") && (namespace == "" || namespace == testenv.SigninNamespace || len(r.ResourceNames) == 0 || has("list", "watch", "deletecollection", "create")) {
			bad("Secrets beyond named ones in our own namespace")
		}
		itself := relays && slices.Equal(r.ResourceNames, []string{"tailplane-gateway"}) && slices.Equal(r.Verbs, []string{"create"})
		if !itself && slices.Contains(r.Resources, "serviceaccounts/token") && (namespace != testenv.SigninNamespace && namespace != "people" || !slices.Equal(r.Verbs, []string{"create"})) {
			bad("tokens beyond those of sign-ins")
		}
		for _, resource := range r.Resources {
			if relays && slices.Contains([]string{"pods", "roles", "rolebindings"}, resource) {
				continue
			}
			if runners && slices.Contains([]string{"pods", "pods/exec", "pods/attach", "deployments", "roles", "rolebindings"}, resource) {
				continue
			}
			if resource == "pods" && slices.Equal(r.Verbs, []string{"get", "list", "watch"}) && slices.Equal(r.Resources, []string{"pods"}) && watcher {
				continue // the plane shows which clusters have an adapter
			}
			if slices.Contains([]string{"pods/exec", "pods/attach", "pods/portforward", "nodes/proxy", "pods", "deployments", "daemonsets", "certificatesigningrequests"}, resource) {
				bad("%s, which no account here needs", resource)
			}
			own := slices.Equal(r.ResourceNames, []string{"tailplane-inject"}) && !has("create", "update", "delete", "list", "deletecollection")
			if strings.HasSuffix(resource, "webhookconfigurations") && !own {
				bad("%s beyond the authority in our own", resource)
			}
			if strings.HasSuffix(resource, "roles") && has("create", "update", "patch", "delete") {
				bad("writes roles")
			}
			if strings.HasSuffix(resource, "bindings") && has("update", "patch") {
				bad("changes bindings")
			}
		}
	}
	return wrong
}

// checkManifests checks every role in a set of YAML documents and returns the number of roles.
func checkManifests(t *testing.T, what string, text []byte) (roles int) {
	t.Helper()
	for d := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
		var o struct {
			Kind     string
			Metadata metav1.ObjectMeta
			Rules    []rbacv1.PolicyRule
			RoleRef  rbacv1.RoleRef
			Subjects []rbacv1.Subject
		}
		if err := d.Decode(&o); errors.Is(err, io.EOF) {
			return roles
		} else if err != nil {
			if strings.Contains(err.Error(), "cannot unmarshal") {
				continue // its rules are of another type, such as those of an admission policy
			}
			t.Fatalf("%s: %v", what, err)
		}
		switch o.Kind {
		case "Role", "ClusterRole":
			roles++
			if o.Kind == "Role" && o.Metadata.Namespace == "" {
				t.Errorf("%s: the Role %s has no namespace", what, o.Metadata.Name)
			}
			if o.Metadata.Name == "tailplane-edit" {
				continue // for the sign-ins of people; the chart binds it to no account (SI-15)
			}
			for _, w := range unlawfulBut(o.Rules, o.Metadata.Namespace, relayed(o.Kind, o.Metadata.Name, o.Metadata.Namespace), fleeting(o.Kind, o.Metadata.Name, o.Metadata.Namespace), o.Metadata.Name == "tailplane-plane") {
				t.Errorf("%s: %s %s: %s", what, o.Kind, o.Metadata.Name, w)
			}
			for label := range o.Metadata.Labels {
				if strings.HasPrefix(label, "rbac.authorization.k8s.io/aggregate-to-") {
					for _, r := range o.Rules {
						if slices.ContainsFunc(r.Verbs, func(v string) bool { return !slices.Contains([]string{"get", "list", "watch"}, v) }) {
							t.Errorf("%s: %s rides on %s and writes: %+v", what, o.Metadata.Name, label, r)
						}
					}
				}
			}
		case "RoleBinding", "ClusterRoleBinding":
			if slices.Contains(ofRunners, o.RoleRef.Name) {
				t.Errorf("%s: %s %s grants a right that belongs only in namespaces of runners", what, o.Kind, o.Metadata.Name)
			}
			if o.RoleRef.Name == "tailplane-edit" {
				t.Errorf("%s: %s %s binds the role for people", what, o.Kind, o.Metadata.Name)
			}
			for _, x := range o.Subjects {
				// Envoy Gateway may read our kinds and write the status of policies. The roles themselves are checked
				// above.
				if x.Name == "envoy-gateway" && o.Kind == "ClusterRoleBinding" && slices.Contains([]string{"envoy-gateway-tailscale-extension", "tailplane-extension-reader"}, o.RoleRef.Name) {
					continue
				}
				switch {
				case x.Kind != "ServiceAccount":
					t.Errorf("%s: x.Kind = %q, want %q; %s", what, x.Kind, "ServiceAccount", o.Metadata.Name)
				case !strings.HasPrefix(x.Name, "tailplane"):
					t.Errorf("%s: x.Name = %q does not start with %q; %s", what, x.Name, "tailplane", o.Metadata.Name)
				case !strings.HasPrefix(o.RoleRef.Name, "tailplane"):
					t.Errorf("%s: o.RoleRef.Name = %q does not start with %q; %s", what, o.RoleRef.Name, "tailplane", o.Metadata.Name)
				}
			}
		}
	}
}

// SI-12. Each role's service account has the rights that it needs and none that lead to more. The test checks the
// manifests, the chart and the answers of the API server.
//
// Guard: deploy/base/rbac-*.yaml and charts/tailplane, the admission policies of deploy/base.
func TestSI12_Rights(t *testing.T) {
	s := attacktest.Start(t)
	ctx := t.Context()

	t.Run("the manifests", func(t *testing.T) {
		docs, err := testenv.Manifests()
		if err != nil {
			t.Fatal(err)
		}
		if n := checkManifests(t, "deploy/base", bytes.Join(docs, []byte("\n---\n"))); n < 5 {
			t.Errorf("only %d roles are checked", n)
		}
	})
	t.Run("the rendered chart", func(t *testing.T) {
		helm, err := buildcache.Lookup("helm")
		if err != nil {
			t.Fatal(err)
		}
		profiles, err := filepath.Glob("../../install/testdata/profiles/*.txtar")
		if err != nil || len(profiles) < 3 {
			t.Fatalf("profiles %v, %v", profiles, err)
		}
		for _, path := range profiles {
			a, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var values []byte
			for _, f := range a.Files {
				if strings.HasPrefix(f.Name, "values") {
					values = f.Data
				}
			}
			if values == nil {
				t.Fatalf("%s has no values", path)
			}
			cmd := exec.CommandContext(ctx, helm, "template", "tailplane", "../../../charts/tailplane", "--namespace", testenv.SystemNamespace, "--values", "-")
			cmd.Stdin = bytes.NewReader(values)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%s: %v: %s", path, err, &stderr)
			}
			if n := checkManifests(t, filepath.Base(path), out); n < 3 {
				t.Errorf("%s: only %d roles are checked", path, n)
			}
		}
	})
	t.Run("the rules review", func(t *testing.T) {
		for _, account := range []string{"tailplane-access", "tailplane-operator"} {
			k, err := kubernetes.NewForConfig(s.AccountConfig(t, account))
			if err != nil {
				t.Fatal(err)
			}
			for _, ns := range []string{testenv.SystemNamespace, testenv.SigninNamespace, "default", "kube-system", "shop"} {
				r, err := k.AuthorizationV1().SelfSubjectRulesReviews().Create(ctx, &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: ns}}, metav1.CreateOptions{})
				if err != nil || r.Status.Incomplete {
					t.Fatalf("%s in %s: %v %+v", account, ns, err, r)
				}
				var rules []rbacv1.PolicyRule
				for _, x := range r.Status.ResourceRules {
					rules = append(rules, rbacv1.PolicyRule{Verbs: x.Verbs, APIGroups: x.APIGroups, Resources: x.Resources, ResourceNames: x.ResourceNames})
				}
				if len(rules) < 2 {
					t.Errorf("%s in %s: %v: this review shows nothing", account, ns, rules)
				}
				for _, w := range unlawful(rules, ns) {
					t.Errorf("%s in %s: %s", account, ns, w)
				}
			}
		}
	})
	// The test sends requests to the API server that an attacker with the stolen account would try.
	access := s.AccountConfig(t, "tailplane-access")
	as := map[string]*kubernetes.Clientset{}
	for name, config := range map[string]*rest.Config{"access": access, "operator": s.AccountConfig(t, "tailplane-operator")} {
		var err error
		if as[name], err = kubernetes.NewForConfig(config); err != nil {
			t.Fatal(err)
		}
	}
	token := func(k *kubernetes.Clientset, ns, account string) error {
		_, err := k.CoreV1().ServiceAccounts(ns).CreateToken(ctx, account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		return err
	}
	bind := func(k *kubernetes.Clientset, role string, labels map[string]string, subject rbacv1.Subject) error {
		_, err := k.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "theft", Labels: labels},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}, Subjects: []rbacv1.Subject{subject}}, metav1.CreateOptions{})
		return err
	}
	labels := map[string]string{v1alpha1.ManagedByLabel: v1alpha1.ManagedBy, v1alpha1.SigninUIDLabel: "x", v1alpha1.SigninNamespaceLabel: testenv.SigninNamespace}
	signIn := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: testenv.SigninNamespace, Name: "theft"}
	self := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: testenv.SystemNamespace, Name: "tailplane-operator"}
	for what, err := range map[string]error{
		"access lists all Secrets":                  attacktest.ErrorOf(as["access"].CoreV1().Secrets("").List(ctx, metav1.ListOptions{})),
		"access lists our Secrets":                  attacktest.ErrorOf(as["access"].CoreV1().Secrets(testenv.SystemNamespace).List(ctx, metav1.ListOptions{})),
		"access makes the operator's token":         token(as["access"], testenv.SystemNamespace, "tailplane-operator"),
		"access makes its own token":                token(as["access"], testenv.SystemNamespace, "tailplane-access"),
		"access makes a controller's token":         token(as["access"], "kube-system", "namespace-controller"),
		"access binds":                              bind(as["access"], "view", labels, signIn),
		"access makes an account":                   attacktest.ErrorOf(as["access"].CoreV1().ServiceAccounts(testenv.SigninNamespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "theft"}}, metav1.CreateOptions{})),
		"operator makes a sign-in's token":          token(as["operator"], testenv.SigninNamespace, "default"),
		"operator makes its own token":              token(as["operator"], testenv.SystemNamespace, "tailplane-operator"),
		"operator reads our Secrets":                attacktest.ErrorOf(as["operator"].CoreV1().Secrets(testenv.SystemNamespace).Get(ctx, "tailplane-cluster-key", metav1.GetOptions{})),
		"operator lists all Secrets":                attacktest.ErrorOf(as["operator"].CoreV1().Secrets("").List(ctx, metav1.ListOptions{})),
		"operator binds cluster-admin":              bind(as["operator"], "cluster-admin", labels, signIn),
		"operator binds admin":                      bind(as["operator"], "admin", labels, signIn),
		"operator binds a listed role to itself":    bind(as["operator"], "edit", labels, self),
		"operator binds a listed role to a person":  bind(as["operator"], "edit", labels, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "mallory"}),
		"operator binds a listed role to all users": bind(as["operator"], "edit", labels, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:authenticated"}),
		"operator binds without labels":             bind(as["operator"], "edit", nil, signIn),
		"operator removes a foreign binding":        as["operator"].RbacV1().ClusterRoleBindings().Delete(ctx, "system:basic-user", metav1.DeleteOptions{}),
		"operator removes its own binding":          as["operator"].RbacV1().ClusterRoleBindings().Delete(ctx, "tailplane-operator", metav1.DeleteOptions{}),
		"operator writes a role":                    attacktest.ErrorOf(as["operator"].RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "theft"}}, metav1.CreateOptions{})),
		"operator removes the admission policy":     as["operator"].AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(ctx, "tailplane-signins", metav1.DeleteOptions{}),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want Forbidden", what, err)
		}
	}
	// Control: each account can do its own work.
	o := attacktest.ForgedSignIn("control@example.com", "n9", "view")
	c := s.ClientFor(t, access)
	if err := c.Create(ctx, o); err != nil {
		t.Errorf("access writes a sign-in: %v", err)
	}
	attacktest.Eventually(t, attacktest.Long, "operator provisions it", func() bool {
		return s.KubeClient.Get(ctx, client.ObjectKeyFromObject(o), o) == nil && ready(o).Reason == signin.ReasonProvisioned
	})
	if err := token(as["access"], testenv.SigninNamespace, o.Name); err != nil {
		t.Errorf("access makes a sign-in's token: %v", err)
	}
	if err := c.Delete(ctx, o); err != nil {
		t.Errorf("access ends a sign-in: %v", err)
	}
	s.Settles(t, "afterwards")
}
