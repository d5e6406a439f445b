// Package firstuse tests sign-in on first use with the real kubectl on a real tailnet, in front of a real API server.
package firstuse

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/testenv"
)

const policy = `{
  "tagOwners": {"tag:tailplane": ["autogroup:admin"], "tag:east-proxy": ["autogroup:admin"], "tag:west-proxy": ["autogroup:admin"]},
  "grants": [
    {"src": ["*"], "dst": ["tag:tailplane", "tag:east-proxy"], "ip": ["tcp:443"]},
    {"src": ["alice@example.com", "carol@example.com"], "dst": ["tag:tailplane", "tag:east-proxy"], "app": {"tailplane.dev/cap/access": [{"role": "view", "period": "8h", "onUse": true}]}},
    {"src": ["alice@example.com"], "dst": ["tag:tailplane", "tag:east-proxy"], "app": {"tailplane.dev/cap/access": [{"role": "edit", "period": "1h", "priority": 1}]}},
    {"src": ["bob@example.com"], "dst": ["tag:tailplane", "tag:east-proxy"], "app": {"tailplane.dev/cap/access": [{"role": "view", "period": "8h"}]}},
  ],
}`

func TestMain(m *testing.M) { testenv.Main(m) }

// admin is the client of an administrator, after the first call of start.
var admin client.Client

// start returns the environment that all tests of this binary share.
func start(t *testing.T) *testenv.Env {
	t.Helper()
	return system(t)
}

var system = testenv.SharedEnv(func(ctx context.Context, dir string) (*testenv.Env, error) {
	env, err := testenv.Start(ctx, dir, testenv.Options{Policy: policy,
		Settings: map[string]string{"api.limits": testenv.NoLimits, "access.modes": "[proxy, token]", "access.proxyTags": "[tag:east-proxy]"}})
	if err != nil {
		return nil, err
	}
	return env, startProxy(ctx, env)
})

// startProxy starts the proxy with the cluster's key, which the access server announces.
func startProxy(ctx context.Context, r *testenv.Env) error {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	var err error
	if admin, err = client.New(r.Cluster.AdminConfig(), client.Options{Scheme: scheme}); err != nil {
		return err
	}
	p, err := r.Person(ctx, "key-laptop", "bob@example.com")
	if err != nil {
		return err
	}
	info, err := signin.GetClusterInfo.Call(ctx, p.Client(), signin.ClusterInfoRequest{})
	if err != nil {
		return err
	}
	r.Set("proxy.tags", "[tag:east-proxy]")
	r.Set("proxy.access", fmt.Sprintf("{servers: [tka], key: %q}", info.Key))
	return r.StartProxy(ctx)
}

// person returns a person of the tailnet with a kubeconfig of the proxy, which holds no secret.
func person(t *testing.T, host, login string) *testenv.Person {
	t.Helper()
	r := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	p, err := r.Person(ctx, host, login)
	if err == nil {
		err = r.Net.WaitPeer(ctx, p.Node, "east-api")
	}
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: east
clusters: [{name: east, cluster: {server: "%s", certificate-authority: %s}}]
users: [{name: east, user: {token: session.default}}]
contexts: [{name: east, context: {cluster: east, user: east}}]
`, r.ProxyServer(), filepath.Join(r.Dir, "roots.pem"))
	if err := os.WriteFile(filepath.Join(p.Home, "config"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

// kubectl runs kubectl through the proxy and fails the test unless it exits with want.
func kubectl(t *testing.T, p *testenv.Person, want int, args ...string) testenv.Result {
	t.Helper()
	return run(t, p, want, "kubectl", append([]string{"--kubeconfig", filepath.Join(p.Home, "config")}, args...)...)
}

func run(t *testing.T, p *testenv.Person, want int, program string, args ...string) testenv.Result {
	t.Helper()
	r, err := p.Run(t.Context(), program, args...)
	if err != nil {
		t.Fatal(err)
	}
	if r.Exit != want {
		t.Fatalf("%s %s: exit %d, want %d\n%s%s", program, strings.Join(args, " "), r.Exit, want, r.Stdout, r.Stderr)
	}
	return r
}

// signins returns the stored sign-ins of a login.
func signins(t *testing.T, login string) (found []v1alpha1.TkaSignin) {
	t.Helper()
	var all v1alpha1.TkaSigninList
	if err := admin.List(t.Context(), &all, client.InNamespace(testenv.SigninNamespace)); err != nil {
		t.Fatal(err)
	}
	for _, o := range all.Items {
		if o.Spec.User.Login == login {
			found = append(found, o)
		}
	}
	return found
}

// eventually waits until done is true.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(30 * time.Second)
	for !done() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("%s: not within 30 s", what)
		}
	}
}

// PRX-08: with a rule that says onUse, kubectl is the only command. The sign-in has the role of that rule only, belongs to
// the device, and is recorded as the device's.
func TestPRX08_FirstCommand(t *testing.T) {
	r := start(t)
	alice := person(t, "alice-laptop", "alice@example.com")
	began := time.Now()
	if got := kubectl(t, alice, 0, "get", "namespaces"); !strings.Contains(got.Stdout, "kube-system") {
		t.Errorf("get namespaces: %s", got.Stdout)
	}
	t.Logf("the first command took %v", time.Since(began).Round(time.Millisecond))
	all := signins(t, "alice@example.com")
	if len(all) != 1 {
		t.Fatalf("%d sign-ins, want 1", len(all))
	}
	if s := all[0].Spec; fmt.Sprint(s.OnUse, s.Role, s.Idle) != fmt.Sprint(true, "view", &metav1.Duration{Duration: 30 * time.Minute}) {
		t.Errorf("the sign-in is %+v, want the role view of the rule with onUse", s)
	}
	entry := auditEntry(t, r, "signin.firstUse", alice.Node.Hostname)
	if entry.Actor.Login+entry.Actor.Via != "alice@example.comproxy" || !strings.HasPrefix(entry.Args["proxy"], "east-api.") {
		t.Errorf("the audit entry is %+v, want alice through the proxy", entry)
	}
}

type entry struct {
	Verb  string
	Actor struct{ Login, Node, Via string }
	Args  map[string]string
}

// auditEntry returns the first entry of a verb for a node.
func auditEntry(t *testing.T, r *testenv.Env, verb, host string) (found entry) {
	t.Helper()
	b, err := os.ReadFile(r.AuditFile())
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		var e entry
		if json.Unmarshal([]byte(line), &e) == nil && e.Verb == verb && strings.HasPrefix(e.Actor.Node, host+".") {
			return e
		}
	}
	t.Fatalf("no entry of %s by %s in the audit log", verb, host)
	return found
}

// PRX-08: a person whose rules have no onUse gets the command to sign in.
func TestPRX08_NoRule(t *testing.T) {
	bob := person(t, "bob-laptop", "bob@example.com")
	if got := kubectl(t, bob, 1, "get", "namespaces"); !strings.Contains(got.Stderr, "Run: tka login --cluster east") {
		t.Errorf("without onUse: %s", got.Stderr)
	}
	if all := signins(t, "bob@example.com"); len(all) != 0 {
		t.Errorf("%d sign-ins, want none", len(all))
	}
}

// PRX-08: several first commands at once make one sign-in, and none of them fails.
func TestPRX08_Race(t *testing.T) {
	carol := person(t, "carol-laptop", "carol@example.com")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			got, err := carol.Run(t.Context(), "kubectl", "--kubeconfig", filepath.Join(carol.Home, "config"), "get", "namespaces")
			if err != nil || got.Exit != 0 {
				t.Errorf("exit %d, %v: %s", got.Exit, err, got.Stderr)
			}
		})
	}
	wg.Wait()
	if all := signins(t, "carol@example.com"); len(all) != 1 {
		t.Errorf("%d sign-ins, want 1", len(all))
	}
}

// PRX-08: a client that asks again for ever makes no sign-in after a logout, nor after a revoke by an administrator of the
// cluster. A login turns first use on again.
func TestPRX08_AfterLogoutAndRevoke(t *testing.T) {
	dave := person(t, "carol-desktop", "carol@example.com")
	live := func() (found []v1alpha1.TkaSignin) {
		for _, o := range signins(t, "carol@example.com") {
			if strings.HasPrefix(o.Spec.Device.Name, "carol-desktop.") {
				found = append(found, o)
			}
		}
		return found
	}
	marked := func() bool {
		var m corev1.ConfigMap
		if err := admin.Get(t.Context(), client.ObjectKey{Namespace: testenv.SystemNamespace, Name: "tailplane-first-use"}, &m); err != nil {
			t.Fatal(err)
		}
		for key, value := range m.Data {
			if strings.HasPrefix(key, "carol-example-com-") && strings.Contains(value, " ") {
				return true
			}
		}
		return false
	}
	stays := func(what string) {
		t.Helper()
		for range 3 {
			if got := kubectl(t, dave, 1, "get", "namespaces"); !strings.Contains(got.Stderr, "Run: tka login") {
				t.Errorf("%s: %s, want the login command", what, got.Stderr)
			}
		}
		if all := live(); len(all) != 0 {
			t.Errorf("%s: %d sign-ins, want none", what, len(all))
		}
	}
	kubectl(t, dave, 0, "get", "namespaces")
	run(t, dave, 0, "tka", "logout")
	stays("after the logout")
	run(t, dave, 0, "tka", "login")
	if marked() {
		t.Error("the login left the mark")
	}
	kubectl(t, dave, 0, "get", "namespaces")
	for _, o := range live() {
		if o.Spec.OnUse {
			t.Error("the login left onUse")
		}
		if err := admin.Delete(t.Context(), &o, client.Preconditions{UID: new(o.UID)}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the sign-in is gone", func() bool { return len(live()) == 0 })
	if !marked() {
		t.Error("the revoke left no mark")
	}
	stays("after the revoke")
}

// PRX-08: the proxy's account alone makes no sign-in, and a sign-in that began before a mark is not bound.
func TestPRX08_Operator(t *testing.T) {
	start(t)
	erin := person(t, "carol-tablet", "carol@example.com")
	kubectl(t, erin, 0, "get", "namespaces")
	var m corev1.ConfigMap
	key := client.ObjectKey{Namespace: testenv.SystemNamespace, Name: "tailplane-first-use"}
	if err := admin.Get(t.Context(), key, &m); err != nil {
		t.Fatal(err)
	}
	if m.Data == nil {
		m.Data = map[string]string{}
	}
	m.Data["full"] = metav1.Now().UTC().Format(time.RFC3339)
	if err := admin.Update(t.Context(), &m); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := admin.Get(ctx, key, &m); err != nil {
			t.Fatal(err)
		}
		delete(m.Data, "full")
		if err := admin.Update(ctx, &m); err != nil {
			t.Error(err)
		}
	})
	kubectl(t, erin, 0, "get", "namespaces") // a live sign-in goes on
	frank := person(t, "carol-phone", "carol@example.com")
	if got := kubectl(t, frank, 1, "get", "namespaces"); !strings.Contains(got.Stderr, "Run: tka login") {
		t.Errorf("with full: %s, want the login command", got.Stderr)
	}
}
