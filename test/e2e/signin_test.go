package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// SGN-01: the whole flow with the real programs.
func TestSGN01_Flow(t *testing.T) {
	r := start(t)
	alice := person(t, r, "alice-laptop", "alice@example.com")

	if got := run(t, alice, 0, "tka login --use"); !strings.Contains(got.Stdout+got.Stderr, "view") {
		t.Errorf("the output of login is %q %q", got.Stdout, got.Stderr)
	}
	run(t, alice, 0, "kubectl get pods -n shop") // with the exec plugin
	if got := run(t, alice, 1, "kubectl create configmap x -n shop"); !strings.Contains(got.Stderr, "forbidden") {
		t.Errorf("create under view: %s", got.Stderr)
	}
	var st signin.Status
	if err := json.Unmarshal([]byte(run(t, alice, 0, "tka status -o json").Stdout), &st); err == nil && st.Username != "" && st.Username != "alice@example.com" {
		t.Errorf("status %+v", st)
	}

	// The token expires with the sign-in and is stored nowhere.
	held := filepath.Join(alice.Home, "held")
	run(t, alice, 0, "tka kubeconfig --token --out "+held)
	config, err := clientcmd.LoadFromFile(held)
	if err != nil {
		t.Fatal(err)
	}
	token := ""
	for _, u := range config.AuthInfos {
		token = u.Token
	}
	claims := tokenClaims(t, token)
	s := signins(t, r, "alice@example.com")
	if len(s) != 1 || s[0].Status.ValidUntil == nil {
		t.Fatalf("sign-ins %+v", s)
	}
	if d := time.Unix(claims.Exp, 0).Sub(s[0].Status.ValidUntil.Time).Abs(); d > 2*time.Second {
		t.Errorf("the token expires %v from the sign-in's end", d)
	}
	if claims.Sub != "system:serviceaccount:"+testenv.SigninNamespace+":"+s[0].Name {
		t.Errorf("the token is for %s", claims.Sub)
	}
	for _, kind := range []string{"secrets,configmaps,serviceaccounts,events", "tkasignins", "clusterrolebindings,rolebindings"} {
		out, errs, exit := kubectlAdmin(t, r, "get", kind, "-A", "-o", "yaml")
		if exit != 0 {
			t.Fatal(errs)
		}
		if strings.Contains(out, token) || strings.Contains(out, strings.Split(token, ".")[2]) {
			t.Errorf("the token lies in %s", kind)
		}
	}
	for _, path := range []string{alice.Kubeconfig(), r.AuditFile(), r.Access.Log, r.Operator.Log} {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), strings.Split(token, ".")[2]) {
			t.Errorf("the token lies in %s", path)
		}
	}

	// Logout: the token has no rights at once, becomes invalid when the API server's token cache expires, and nothing
	// is left.
	user := heldClient(t, r, token)
	if _, err := user.CoreV1().Pods("shop").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	run(t, alice, 0, "tka logout")
	began := time.Now()
	_, err = user.CoreV1().Pods("shop").List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) {
		t.Errorf("after logout: %v", err)
	}
	eventually(t, 12*time.Second, "the token is refused as unknown", func() bool {
		_, err := user.CoreV1().Pods("shop").List(t.Context(), metav1.ListOptions{})
		return apierrors.IsUnauthorized(err)
	})
	t.Logf("SGN-10: 401 %v after logout", time.Since(began).Round(100*time.Millisecond))
	if l := left(t, r, s[0].Name); len(l) > 0 {
		t.Errorf("left after logout: %v", l)
	}
	run(t, alice, 3, "tka kubeconfig --token")
}

type claims struct {
	Exp int64  `json:"exp"`
	Sub string `json:"sub"`
}

// The operator sets the end; an extension moves it; another role replaces the sign-in.
func TestExtendAndReplace(t *testing.T) {
	r := start(t)
	alice := person(t, r, "alice-desk", "alice@example.com")
	c := alice.Client()
	for _, tt := range []struct {
		req  signin.LoginRequest
		role string
		ns   string
	}{
		{signin.LoginRequest{}, "view", ""},
		{signin.LoginRequest{Period: httpapi.Duration(30 * time.Minute)}, "view", ""},
		{signin.LoginRequest{Role: "edit"}, "edit", "shop"},
		{signin.LoginRequest{Role: "view"}, "view", ""},
	} {
		if _, err := signin.Login.Call(t.Context(), c, tt.req); err != nil {
			t.Fatal(err)
		}
		k, err := signin.GetKubeconfig.Call(t.Context(), c, signin.KubeconfigRequest{Wait: httpapi.Duration(20 * time.Second)})
		if err != nil {
			t.Fatal(err)
		}
		if k.Namespace != tt.ns {
			t.Errorf("context namespace %q, want %q", k.Namespace, tt.ns)
		}
		st, err := signin.Read.Call(t.Context(), c, signin.ReadRequest{})
		switch {
		case err != nil:
			t.Errorf("status: %v", err)
		case st.Role != tt.role:
			t.Errorf("status: st.Role = %q, want %q", st.Role, tt.role)
		case st.State != signin.Ready:
			t.Errorf("status: st.State = %q, want %q", st.State, signin.Ready)
		}
		if l := left(t, r, st.Name); len(l) != 2 {
			t.Errorf("as %s there are %v; want one account and one binding", tt.role, l)
		}
	}
	if _, err := signin.Logout.Call(t.Context(), c, signin.LogoutRequest{}); err != nil {
		t.Error(err)
	}
}

// ID-13, SGN-02: logins that differ after the @ are different people, and each device has a separate sign-in.
func TestTwoAlices(t *testing.T) {
	r := start(t)
	a, b := person(t, r, "a1", "alice@example.com"), person(t, r, "b1", "alice@b.example")
	for _, p := range []*testenv.Person{a, b} {
		run(t, p, 0, "tka login")
	}
	names := map[string]bool{}
	for _, login := range []string{"alice@example.com", "alice@b.example"} {
		for _, s := range signins(t, r, login) {
			names[s.Name] = true
		}
	}
	if len(names) < 2 {
		t.Errorf("sign-ins %v", names)
	}
	run(t, b, 0, "tka logout")
	run(t, a, 0, "kubectl get pods -n shop --context tka-east")
	if n := len(signins(t, r, "alice@b.example")); n != 0 {
		t.Errorf("%d sign-ins of the other alice are left", n)
	}
	run(t, a, 0, "tka logout")
}

// SGN-02: the refusals of the contract, on a real tailnet, for each persona and operation. Each refusal makes one
// audit log entry and no write.
func TestSGN02_Refusals(t *testing.T) {
	r := start(t)
	type persona struct {
		name string
		c    httpapi.Client
		want [4]problem.Code // login, read, kubeconfig, logout
	}
	bob := person(t, r, "bob", "bob@example.com")
	shared := person(t, r, "guest", "carol@example.com")
	id, err := r.Net.ID(shared.Node)
	if err != nil || !r.Net.Share(id) {
		t.Fatal(err)
	}
	dave := person(t, r, "dave", "dave@example.com")
	funnel := dave.Client()
	funnel.HTTP.Transport = withHeader{funnel.HTTP.Transport, "Tailscale-Funnel-Request", "?1"}
	rebound := dave.Client()
	rebound.HTTP.Transport = withHeader{rebound.HTTP.Transport, "Host", "evil.example"}
	page := dave.Client()
	page.HTTP.Transport = withHeader{page.HTTP.Transport, "Sec-Fetch-Site", "cross-site"}
	all := func(c problem.Code) [4]problem.Code { return [4]problem.Code{c, c, c, c} }
	for _, p := range []persona{
		{"no grant", bob.Client(), all(problem.NoCapability)},
		{"tagged", person(t, r, "ci", "", "tag:ci").Client(), all(problem.TaggedNode)},
		{"shared in", shared.Client(), all(problem.ForeignNode)},
		{"invalid rule", person(t, r, "mallory", "mallory@example.com").Client(), all(problem.BadCapability)},
		{"Funnel", funnel, all(problem.FunnelRefused)},
		{"another host name", rebound, all(problem.WrongHost)},
		{"another site's page", page, all(problem.CrossOrigin)},
		{"two rules and no choice", person(t, r, "erin", "erin@example.com").Client(),
			[4]problem.Code{problem.AmbiguousRole, problem.NotSignedIn, problem.NotSignedIn, problem.NotSignedIn}},
		{"granted, not signed in", dave.Client(), [4]problem.Code{"", problem.NotSignedIn, problem.NotSignedIn, problem.NotSignedIn}},
	} {
		t.Run(p.name, func(t *testing.T) {
			before := writes(t, r)
			ops := []func() error{
				func() error { _, err := signin.Login.Call(t.Context(), p.c, signin.LoginRequest{}); return err },
				func() error { _, err := signin.Read.Call(t.Context(), p.c, signin.ReadRequest{}); return err },
				func() error {
					_, err := signin.GetKubeconfig.Call(t.Context(), p.c, signin.KubeconfigRequest{})
					return err
				},
				func() error { _, err := signin.Logout.Call(t.Context(), p.c, signin.LogoutRequest{}); return err },
			}
			for i, op := range ops {
				if p.want[i] == "" {
					continue
				}
				var got problem.Code
				eventually(t, 5*time.Second, "the refusal", func() bool { // a change of sharing reaches the server within milliseconds
					err := op()
					if err == nil {
						t.Fatalf("operation %d was permitted", i)
					}
					p, ok := errors.AsType[*problem.Error](err)
					if !ok {
						t.Fatalf("operation %d: %v", i, err)
					}
					got = p.Code
					e := entries(t, r)[p.AuditID]
					if len(e) != 1 || e[0].Code != p.Code {
						t.Errorf("operation %d: %d audit entries of %s: %+v", i, len(e), p.AuditID, e)
					}
					if p.Message == "" || len(p.Advice) == 0 {
						t.Errorf("operation %d: no sentence or advice: %+v", i, p)
					}
					return got == p.Code
				})
				if got != p.want[i] {
					t.Errorf("operation %d: %s, want %s", i, got, p.want[i])
				}
			}
			if after := writes(t, r); after != before {
				t.Errorf("refusals wrote: %s, then %s", before, after)
			}
		})
	}
	t.Run("tagged with an opted-in grant", func(t *testing.T) {
		robot := person(t, r, "robot", "", "tag:robot")
		st, err := signin.Login.Call(t.Context(), robot.Client(), signin.LoginRequest{})
		if err != nil || !strings.HasPrefix(st.Username, "node:robot.") {
			t.Errorf("%+v, %v", st, err)
		}
		if _, err := signin.Logout.Call(t.Context(), robot.Client(), signin.LogoutRequest{}); err != nil {
			t.Error(err)
		}
	})
	t.Run("not ready", func(t *testing.T) {
		if err := r.Operator.Stop(10 * time.Second); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := r.StartOperator(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := signin.Logout.Call(t.Context(), dave.Client(), signin.LogoutRequest{}); err != nil {
				t.Error(err)
			}
		}()
		if _, err := signin.Login.Call(t.Context(), dave.Client(), signin.LoginRequest{}); err != nil {
			t.Fatal(err)
		}
		_, err := signin.GetKubeconfig.Call(t.Context(), dave.Client(), signin.KubeconfigRequest{})
		p := problem.From(err)
		switch {
		case p.Code != problem.NotReady:
			t.Errorf("p.Code = %q, want %q", p.Code, problem.NotReady)
		case p.RetryAfter != time.Second:
			t.Errorf("p.RetryAfter = %v, want %v", p.RetryAfter, time.Second)
		case p.State != "pending":
			t.Errorf("p.State = %q, want %q", p.State, "pending")
		}
	})
}

// The grant moves from one person to the other while both are connected.
func TestLivePolicy(t *testing.T) {
	r := start(t)
	frank, grace := person(t, r, "frank", "frank@example.com"), person(t, r, "grace", "grace@example.com")
	original := r.Net.Policy()
	defer func() {
		if err := r.Net.SetPolicy(original); err != nil {
			t.Fatal(err)
		}
	}()
	grant := func(login string) {
		t.Helper()
		if err := r.Net.SetPolicy(strings.Replace(original, `"dave@example.com"]`, fmt.Sprintf(`"dave@example.com", %q]`, login), 1)); err != nil {
			t.Fatal(err)
		}
	}
	login := func(p *testenv.Person) error {
		_, err := signin.Login.Call(t.Context(), p.Client(), signin.LoginRequest{})
		return err
	}
	grant("frank@example.com")
	t.Logf("granted after %v", eventually(t, 2*time.Second, "frank is let in", func() bool { return login(frank) == nil }).Round(time.Millisecond))
	run(t, frank, 0, "tka login --use")
	run(t, frank, 0, "kubectl get pods -n shop")
	if err := login(grace); problem.CodeOf(err) != problem.NoCapability {
		t.Errorf("grace: %v", err)
	}
	grant("grace@example.com")
	t.Logf("moved after %v", eventually(t, 2*time.Second, "grace is let in", func() bool { return login(grace) == nil }).Round(time.Millisecond))
	// SI-10: a removed grant gives no kubeconfig. Either this request ends the sign-in, or the server has already
	// ended it after the policy change.
	_, err := signin.GetKubeconfig.Call(t.Context(), frank.Client(), signin.KubeconfigRequest{})
	if c := problem.CodeOf(err); c != problem.GrantRemoved && c != problem.NoCapability {
		t.Errorf("frank's kubeconfig: %v", err)
	}
	eventually(t, 5*time.Second, "frank's sign-in is gone", func() bool { return len(signins(t, r, "frank@example.com")) == 0 })
	if got := run(t, frank, 3, "tka login"); !strings.Contains(got.Stderr, "frank@example.com has no") {
		t.Errorf("frank gets %q", got.Stderr)
	}
	if _, err := signin.Logout.Call(t.Context(), grace.Client(), signin.LogoutRequest{}); err != nil {
		t.Error(err)
	}
	if st := run(t, grace, 0, "tka logout"); strings.Contains(st.Stderr, "error") { // it is correct that there was no sign-in
		t.Errorf("logout again: %s", st.Stderr)
	}
}

// SGN-04 in part: an existing client sends no Accept header and an empty body, and reads three strings.
func TestSGN04_ExistingClients(t *testing.T) {
	r := start(t)
	p := person(t, r, "old", "carol@example.com")
	status, body := raw(t, p, r, "POST", "/api/v1alpha1/login")
	var three struct{ Username, Role, Until string }
	switch err := json.Unmarshal([]byte(body), &three); {
	case status != 202:
		t.Fatalf("login: status = %v, want 202; body = %s", status, body)
	case err != nil:
		t.Fatalf("login: %v; body = %s", err, body)
	case three.Username != "carol@example.com":
		t.Fatalf("login: three.Username = %q, want %q; body = %s", three.Username, "carol@example.com", body)
	case three.Role != "view":
		t.Fatalf("login: three.Role = %q, want %q; body = %s", three.Role, "view", body)
	}
	if _, err := time.Parse(time.RFC3339, three.Until); err != nil {
		t.Error(err)
	}
	eventually(t, 20*time.Second, "the kubeconfig", func() bool { status, body = raw(t, p, r, "GET", "/api/v1alpha1/kubeconfig"); return status == 200 })
	if !regexp.MustCompile(`^\{"kind":"Config","apiVersion":"v1","clusters":\{"east":\{"server":"https://[^"]+","certificate-authority-data":"[^"]+"\}\},"users":\{"tka-east":\{"token":"[^"]+"\}\}`).MatchString(body) {
		t.Errorf("kubeconfig: %s", strings.SplitN(body, "token", 2)[0])
	}
	if status, body = raw(t, p, r, "GET", "/api/v1alpha1/login"); status != 200 || !strings.Contains(body, `"provisioned":true`) {
		t.Errorf("read: %d %s", status, body)
	}
	switch status, body = raw(t, p, r, "GET", "/api/v1alpha1/cluster-info"); {
	case status != 200:
		t.Errorf("cluster-info: status = %v, want 200", status)
	case !strings.Contains(body, `"ca_data":"`):
		t.Errorf("cluster-info: body = %q does not contain %q", body, `"ca_data":"`)
	case !strings.Contains(body, `"server_url":"https://`):
		t.Errorf("cluster-info: body = %q does not contain %q", body, `"server_url":"https://`)
	}
	if status, body = raw(t, p, r, "POST", "/api/v1alpha1/logout"); status != 200 || !strings.Contains(body, `"state":"ended"`) {
		t.Errorf("logout: %d %s", status, body)
	}
	switch status, body = raw(t, p, r, "GET", "/api/v1alpha1/kubeconfig"); {
	case status != 404:
		t.Errorf("signed out: status = %v, want 404", status)
	case !strings.Contains(body, `"message"`):
		t.Errorf("signed out: body = %q does not contain %q", body, `"message"`)
	case !strings.Contains(body, `"advice"`):
		t.Errorf("signed out: body = %q does not contain %q", body, `"advice"`)
	}
}

func heldClient(t *testing.T, r *testenv.Env, token string) *kubernetes.Clientset {
	t.Helper()
	config := rest.AnonymousClientConfig(r.Cluster.AdminConfig())
	config.BearerToken, config.QPS = token, -1
	k, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return k
}
