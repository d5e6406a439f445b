package signin

import (
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// SI-15. A person with cluster-wide edit tries to reach Tailplane's own accounts. The admission policy refuses every
// write in the namespaces of Tailplane and in kube-system. It cannot see reads and impersonation; so a server with
// signin.clusterWide refuses the role in the whole cluster.
//
// Guard: deploy/base/policy-accounts.yaml; signin.ClusterWide, signin.ReachesAccounts.
func TestSI15_ClusterWideEdit(t *testing.T) {
	s := attacktest.Start(t)
	p := s.Person(t, "erin-laptop", "erin@example.com")
	s.SetPolicy(t, attacktest.Grant("erin@example.com", `{"role": "edit", "period": "1h"}`))
	s.WaitGranted(t, p)
	ctx, dry := t.Context(), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}

	t.Run("the second line", func(t *testing.T) {
		s.Login(t, p, signin.LoginRequest{})
		k := s.TokenClient(t, s.Kubeconfig(t, p).Token.Reveal())
		meta := metav1.ObjectMeta{Name: "theft"}
		for _, ns := range []string{testenv.SystemNamespace, testenv.SigninNamespace, "kube-system"} {
			_, token := k.CoreV1().ServiceAccounts(ns).CreateToken(ctx, "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
			for what, err := range map[string]error{
				"makes a token":     token,
				"makes a ConfigMap": attacktest.ErrorOf(k.CoreV1().ConfigMaps(ns).Create(ctx, &corev1.ConfigMap{ObjectMeta: meta}, dry)),
				"makes a Secret":    attacktest.ErrorOf(k.CoreV1().Secrets(ns).Create(ctx, &corev1.Secret{ObjectMeta: meta}, dry)),
				"makes an account":  attacktest.ErrorOf(k.CoreV1().ServiceAccounts(ns).Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta}, dry)),
				"executes":          k.CoreV1().RESTClient().Post().Namespace(ns).Resource("pods").Name("p").SubResource("exec").Param("command", "id").Do(ctx).Error(),
			} {
				if what == "executes" && apierrors.IsNotFound(err) {
					continue // there is no pod; the API server looks for it first
				}
				if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
					t.Errorf("%s in %s: %v, want refused by an admission policy", what, ns, err)
				}
			}
		}
		for _, account := range []string{"tailplane-access", "tailplane-operator"} {
			if _, err := k.CoreV1().ServiceAccounts(testenv.SystemNamespace).CreateToken(ctx, account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
				t.Errorf("a token of %s: %v, want Forbidden", account, err)
			}
		}
		if _, err := k.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: meta}, dry); err != nil {
			t.Errorf("control: a ConfigMap elsewhere: %v", err)
		}
		w, err := signin.GetWhoami.Call(ctx, s.APIClient(p), signin.WhoamiRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if text := strings.Join(w.Decision.Advice, "\n"); !w.Decision.Allowed || !strings.Contains(text, "signin.clusterWide is not set") {
			t.Errorf("without the setting: allowed %v, advice %q; want a warning about signin.clusterWide", w.Decision.Allowed, text)
		}
		s.Logout(t, p)
	})

	t.Run("with signin.clusterWide", func(t *testing.T) {
		name := s.AddReplica(t, "strict", "\nsignin:\n", "\nsignin:\n  clusterWide: []\n", "hostname: tka", "hostname: tka-strict")
		s.WaitPeer(t, p, strings.SplitN(name, ".", 2)[0])
		c := httpapi.Client{HTTP: s.HTTPClient(p), Base: "https://" + name}
		if _, err := signin.Login.Call(ctx, c, signin.LoginRequest{}); problem.CodeOf(err) != problem.RoleNeedsNamespaces {
			t.Errorf("edit in the whole cluster: %v, want %s", err, problem.RoleNeedsNamespaces)
		}
		if left := s.SignIns(t, "erin@example.com"); len(left) != 0 {
			t.Errorf("a refused login left %d sign-ins", len(left))
		}
		if _, err := signin.Login.Call(ctx, c, signin.LoginRequest{Namespaces: []string{"default"}}); err != nil {
			t.Errorf("edit in a namespace: %v", err)
		}
		s.Logout(t, p)
	})
}

// SI-16. Sessions of one device and those of another login do not reach each other. A forged session name is refused.
//
// Guard: signin.Owner.Name, signin.ParseSession, signin.TokenRules.Verify.
func TestSI16_Sessions(t *testing.T) {
	s := attacktest.Start(t)
	frank, mallory := s.Person(t, "frank-laptop", "frank@example.com"), s.Person(t, "mallet-laptop", "mallet@example.com")
	const rules = `{"role": "view", "period": "8h", "priority": 1}, {"role": "edit", "period": "30m"}`
	s.SetPolicy(t, attacktest.Grant("frank@example.com", rules), attacktest.Grant("mallet@example.com", rules))
	s.WaitGranted(t, frank)
	s.WaitGranted(t, mallory)
	ctx, c := t.Context(), s.APIClient(frank)
	kubeconfig := func(c httpapi.Client, session signin.Session) (signin.Kubeconfig, error) {
		return signin.GetKubeconfig.Call(ctx, c, signin.KubeconfigRequest{Session: session, Wait: httpapi.Duration(20e9)})
	}
	s.Login(t, frank, signin.LoginRequest{})
	plain := s.TokenClient(t, s.Kubeconfig(t, frank).Token.Reveal())
	if _, err := signin.Login.Call(ctx, c, signin.LoginRequest{Role: "edit", Session: "deploy"}); err != nil {
		t.Fatal(err)
	}
	k, err := kubeconfig(c, "deploy")
	if err != nil {
		t.Fatal(err)
	}
	elevated := s.TokenClient(t, k.Token.Reveal())
	write := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x"}}
	if _, err := elevated.CoreV1().ConfigMaps("default").Create(ctx, config, write); err != nil {
		t.Errorf("the elevated session writes: %v", err)
	}
	if _, err := plain.CoreV1().ConfigMaps("default").Create(ctx, config, write); !apierrors.IsForbidden(err) {
		t.Errorf("the default session writes: %v, want Forbidden", err)
	}
	if _, err := kubeconfig(s.APIClient(mallory), "deploy"); problem.CodeOf(err) != problem.NotSignedIn {
		t.Errorf("another login's session: %v, want %s", err, problem.NotSignedIn)
	}
	if _, err := signin.Logout.Call(ctx, s.APIClient(mallory), signin.LogoutRequest{Session: "deploy"}); problem.CodeOf(err) != problem.NotSignedIn {
		t.Errorf("another login ends the session: %v, want %s", err, problem.NotSignedIn)
	}
	for _, name := range []string{"../x", strings.Repeat("a", 64), "Deploy", "default", "req-1", "a%2fb"} {
		a := s.Ask(t, frank, "POST", signin.Base+"/login", `{"session": "`+name+`"}`)
		if a.Code() != problem.BadRequest {
			t.Errorf("session %q: %v, want %s", name, a, problem.BadRequest)
		}
	}
	if _, err := signin.Logout.Call(ctx, c, signin.LogoutRequest{Session: "deploy", Wait: httpapi.Duration(20e9)}); err != nil {
		t.Fatal(err)
	}
	attacktest.Eventually(t, attacktest.TokenCache, "the elevated token gives nothing", func() bool {
		return attacktest.ListPods(t, elevated, "default") != nil
	})
	if err := attacktest.ListPods(t, plain, "default"); err != nil {
		t.Errorf("the default session after the end of the elevated one: %v", err)
	}
}
