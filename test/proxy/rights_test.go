package proxy

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/testkit/testenv"
)

var update = flag.Bool("update", false, "write the golden files")

// rules returns the rights of a client in a namespace, as the API server reports them.
func rules(t *testing.T, k *kubernetes.Clientset, ns string) (lines []string) {
	t.Helper()
	r, err := k.AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(),
		&authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: ns}}, metav1.CreateOptions{})
	if err != nil || r.Status.Incomplete {
		t.Fatalf("rights in %s: %v, %+v", ns, err, r)
	}
	for _, rule := range r.Status.ResourceRules {
		line := ns + ": " + strings.Join(rule.APIGroups, ",") + "/" + strings.Join(rule.Resources, ",") + ": " + strings.Join(slices.Sorted(slices.Values(rule.Verbs)), " ")
		if len(rule.ResourceNames) > 0 {
			line += " of " + strings.Join(rule.ResourceNames, " ")
		}
		lines = append(lines, line)
	}
	for _, rule := range r.Status.NonResourceRules {
		lines = append(lines, ns+": "+strings.Join(rule.NonResourceURLs, " ")+": "+strings.Join(rule.Verbs, " "))
	}
	slices.Sort(lines)
	return lines
}

// PRX-03: the rights of the proxy's account, as the API server reports them, equal the golden file. The account makes no
// sign-in, gets no token of another account of the product, and admission bounds the life of its tokens. No manifest has
// a right to impersonate.
func TestPRX03_Rights(t *testing.T) {
	r := start(t)
	path, err := r.Cluster.ServiceAccountKubeconfig(t.Context(), testenv.SystemNamespace, "tailplane-proxy", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	k, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	plain := r.Cluster.AdminConfig()
	plain.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:default:nobody", Groups: []string{"system:serviceaccounts", "system:authenticated"}}
	nobody, err := kubernetes.NewForConfig(plain)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, ns := range []string{"kube-system", "default", testenv.SystemNamespace, testenv.SigninNamespace} {
		everybody := rules(t, nobody, ns)
		got = append(got, slices.DeleteFunc(rules(t, k, ns), func(line string) bool { return slices.Contains(everybody, line) })...)
	}
	text := strings.Join(got, "\n") + "\n"
	const golden = "testdata/rights.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("rights (-want +got):\n%s", diff)
	}
	t.Run("sign-ins", func(t *testing.T) { makesNoSignin(t, config) })
	t.Run("tokens", func(t *testing.T) { issuesNoOtherToken(t, k) })
	t.Run("manifests", hasNoImpersonation)
}

// makesNoSignin tries to create, change and delete sign-ins.
func makesNoSignin(t *testing.T, config *rest.Config) {
	r := start(t)
	alice := person(t, r, "rights-laptop", "alice@example.com")
	run(t, alice, 0, "tka", "login", "--role", "view")
	defer run(t, alice, 0, "tka", "logout")
	c, err := client.New(config, client.Options{Scheme: scheme(t)})
	if err != nil {
		t.Fatal(err)
	}
	var all v1alpha1.TkaSigninList
	if err := c.List(t.Context(), &all, client.InNamespace(testenv.SigninNamespace)); err != nil || len(all.Items) == 0 {
		t.Fatalf("control: %d sign-ins, %v", len(all.Items), err)
	}
	o := &all.Items[0]
	other := &v1alpha1.TkaSignin{ObjectMeta: metav1.ObjectMeta{Namespace: testenv.SigninNamespace, Name: "made"}, Spec: *o.Spec.DeepCopy()}
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"period":"24h"}}`))
	for name, err := range map[string]error{
		"create":       c.Create(t.Context(), other),
		"patch":        c.Patch(t.Context(), o.DeepCopy(), patch),
		"update":       c.Update(t.Context(), o.DeepCopy()),
		"patch status": c.Status().Patch(t.Context(), o.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"status":{"role":"edit"}}`))),
		"delete":       c.Delete(t.Context(), o.DeepCopy()),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want forbidden", name, err)
		}
	}
}

// issuesNoOtherToken requests tokens that the proxy never needs.
func issuesNoOtherToken(t *testing.T, k *kubernetes.Clientset) {
	r := start(t)
	admin, err := kubernetes.NewForConfig(r.Cluster.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	request := func(ns, name string, spec authenticationv1.TokenRequestSpec) error {
		_, err := k.CoreV1().ServiceAccounts(ns).CreateToken(t.Context(), name, &authenticationv1.TokenRequest{Spec: spec}, metav1.CreateOptions{})
		return err
	}
	hour := new(int64(time.Hour / time.Second))
	for _, account := range []string{"tailplane-operator", "tailplane-access", "tailplane-proxy", "default"} {
		if err := request(testenv.SystemNamespace, account, authenticationv1.TokenRequestSpec{ExpirationSeconds: hour}); !apierrors.IsForbidden(err) {
			t.Errorf("a token of %s: %v, want forbidden", account, err)
		}
	}
	for _, ns := range []string{"kube-system", "default"} {
		if err := request(ns, "default", authenticationv1.TokenRequestSpec{ExpirationSeconds: hour}); !apierrors.IsForbidden(err) {
			t.Errorf("a token of an account in %s: %v, want forbidden", ns, err)
		}
	}
	accounts, err := admin.CoreV1().ServiceAccounts(testenv.SigninNamespace).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(accounts.Items) == 0 {
		t.Fatalf("control: %d accounts, %v", len(accounts.Items), err)
	}
	name := accounts.Items[0].Name
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "x", UID: "y"}}
	for why, spec := range map[string]authenticationv1.TokenRequestSpec{
		"longer than the longest period": {ExpirationSeconds: new(int64(366 * 24 * time.Hour / time.Second))},
		"bound to a pod":                 {ExpirationSeconds: hour, BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}},
	} {
		if err := request(testenv.SigninNamespace, name, spec); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "tailplane-signin-tokens") {
			t.Errorf("%s: %v, want a refusal of the admission policy", why, err)
		}
	}
}

// hasNoImpersonation reads every chart and every rendered manifest.
func hasNoImpersonation(t *testing.T) {
	comment := regexp.MustCompile(`(?m)^\s*#.*$|\{\{-? */\*[\s\S]*?\*/ *-?\}\}`)
	files := 0
	for _, root := range []string{"../../charts", "../../deploy"} {
		err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() || !slices.Contains([]string{".yaml", ".tpl", ".txt", ".json"}, filepath.Ext(path)) {
				return err
			}
			b, err := os.ReadFile(path)
			if files++; strings.Contains(strings.ToLower(comment.ReplaceAllString(string(b), "")), "impersonat") {
				t.Errorf("%s names impersonation", path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if files < 50 {
		t.Errorf("only %d files were read", files)
	}
}

func scheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	return s
}
