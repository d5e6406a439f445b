// Package proxy tests the access proxy with the real kubectl on a real tailnet, in front of a real API server.
package proxy

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

const policy = `{
  "tagOwners": {"tag:tailplane": ["autogroup:admin"], "tag:ci": ["autogroup:admin"], "tag:recorder": ["autogroup:admin"]},
  "grants": [
    {"src": ["*"], "dst": ["tag:tailplane"], "ip": ["tcp:443"]},
    {"src": ["*"], "dst": ["tag:recorder"], "ip": ["tcp:80", "tcp:443"]},
    {"src": ["alice@example.com", "bob@example.com"], "dst": ["tag:recorder"], "app": {"tailplane.dev/cap/plane": [{"role": "viewer", "orgs": ["*"]}]}},
    {"src": ["carol@example.com"], "dst": ["tag:recorder"], "app": {"tailplane.dev/cap/plane": [{"role": "platform-admin", "orgs": ["*"]}]}},
    {"src": ["alice@example.com", "bob@example.com"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/access": [{"role": "view", "period": "8h", "priority": 1}]}},
    {"src": ["alice@example.com"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/access": [{"role": "edit", "period": "1h"}]}},
    {"src": ["carol@example.com"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/plane": [{"role": "operator", "orgs": ["*"]}]}},
    {"src": ["bob@example.com"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/plane": [{"role": "viewer", "orgs": ["*"]}]}},
    {"src": ["pat@example.com"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/plane": [{"role": "platform-admin", "orgs": ["*"]}]}},
    {"src": ["dave@example.com"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/access": [{"role": "edit", "period": "1h", "record": ["exec"]}]}},
    {"src": ["erin@example.com"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/access": [{"role": "edit", "period": "1h"}]}},
  ],
}`

func TestMain(m *testing.M) { testenv.Main(m) }

// system is what start has started.
var system struct {
	dir     string
	cluster *kubetest.Cluster
	egress  *kubetest.Egress // of the cluster's API server
	hop     *kubetest.Hop    // between the proxy and the API server
}

// start returns the environment that all tests of this binary share.
func start(t *testing.T) *testenv.Env {
	t.Helper()
	return shared(t)
}

var shared = testenv.SharedEnv(func(ctx context.Context, dir string) (_ *testenv.Env, err error) {
	s := &system
	s.dir = dir
	audits, recordings := filepath.Join(dir, "kube-audit.yaml"), filepath.Join(dir, "recordings")
	if err := os.WriteFile(audits, []byte(kubeAuditPolicy), 0o600); err != nil {
		return nil, err
	}
	if err := os.Mkdir(recordings, 0o700); err != nil {
		return nil, err
	}
	if s.egress, err = kubetest.StartEgress(dir); err != nil {
		return nil, err
	}
	testenv.AtEnd(func() error { s.egress.Close(); return nil })
	// The cluster's pods run in a node that speaks the kubelet's protocols.
	if s.cluster, err = kubetest.Run(ctx, kubetest.Options{Name: "east", FakeNode: true, Args: append(s.egress.Args(),
		"--audit-policy-file="+audits, "--audit-log-path="+filepath.Join(dir, "kube-audit.jsonl"), "--audit-log-mode=blocking-strict",
	)}); err != nil {
		return nil, err
	}
	testenv.AtEnd(s.cluster.Close)
	env, err := testenv.Start(ctx, dir, testenv.Options{Policy: policy, Cluster: s.cluster, Settings: map[string]string{
		"api.limits": testenv.NoLimits, "access.modes": "[proxy, token]", "signin.maxPerLogin": "100"}})
	if err != nil {
		return nil, err
	}
	if s.hop, err = kubetest.StartHop(strings.TrimPrefix(s.cluster.Server, "https://")); err != nil {
		return env, err
	}
	testenv.AtEnd(func() error { s.hop.Close(); return nil })
	env.Via = map[string]string{"proxy": s.hop.Addr().String()}
	env.Set("proxy.recording", "{dir: "+recordings+"}")
	env.Set("proxy.planes", "[tag:tailplane]")
	return env, env.StartProxy(ctx)
})

// person returns a person of the tailnet who has the kubeconfig of the proxy for each of the sessions as the context of
// that name; "" is the default session.
func person(t *testing.T, r *testenv.Env, host, login string, sessions ...string) *testenv.Person {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	p, err := r.Person(ctx, host, login)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Net.WaitPeer(ctx, p.Node, "east-api"); err != nil {
		t.Fatal(err)
	}
	for _, session := range append([]string{""}, sessions...) {
		path, name := r.ProxyServer(), "default"
		if session != "" {
			path, name = path+"/s/"+session, session
		}
		config := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: %[1]s
clusters: [{name: %[1]s, cluster: {server: "%[2]s", certificate-authority: %[3]s}}]
users: [{name: %[1]s, user: {token: session.%[1]s}}]
contexts: [{name: %[1]s, context: {cluster: %[1]s, user: %[1]s}}]
`, name, path, filepath.Join(r.Dir, "roots.pem"))
		if err := os.WriteFile(filepath.Join(p.Home, name+".kubeconfig"), []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// kubectl runs kubectl as p through the proxy, in the default session.
func kubectl(t *testing.T, p *testenv.Person, want int, args ...string) testenv.Result {
	t.Helper()
	return run(t, p, want, "kubectl", append([]string{"--kubeconfig", filepath.Join(p.Home, "default.kubeconfig")}, args...)...)
}

// run runs a program as p and fails the test unless it exits with want.
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

func TestKubectl(t *testing.T) {
	r := start(t)
	alice := person(t, r, "alice-laptop", "alice@example.com")
	got := kubectl(t, alice, 1, "get", "namespaces")
	if want := "alice@example.com is not signed in to east"; !strings.Contains(got.Stderr, want) || !strings.Contains(got.Stderr, "Run: tka login --cluster east") {
		t.Errorf("before the login: %s, want %q and the command", got.Stderr, want)
	}
	run(t, alice, 0, "tka", "login", "--role", "view")
	if got := kubectl(t, alice, 0, "get", "namespaces"); !strings.Contains(got.Stdout, "kube-system") {
		t.Errorf("get namespaces: %s", got.Stdout)
	}
	if got := kubectl(t, alice, 0, "auth", "whoami"); !strings.Contains(got.Stdout, "system:serviceaccount:tailplane-signins:alice-example-com-") {
		t.Errorf("whoami: %s", got.Stdout)
	}
	run(t, alice, 0, "tka", "logout")
	if got := kubectl(t, alice, 1, "get", "namespaces"); !strings.Contains(got.Stderr, "not signed in") {
		t.Errorf("after the logout: %s", got.Stderr)
	}
}
