// Package requests tests access requests with the real programs on a real tailnet and a real API server.
package requests

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/requests"
	"github.com/tailplane/tailplane/testkit/buildcache"
	"github.com/tailplane/tailplane/testkit/tailnettest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

const policy = `{
  "tagOwners": {"tag:tailplane": ["autogroup:admin"]},
  "grants": [
    {"src": ["*"], "dst": ["tag:tailplane"], "ip": ["tcp:443"]},
    {"src": ["alice@example.com"], "dst": ["tag:tailplane"], "app": {
      "tailplane.dev/cap/access": [{"role": "view", "period": "8h"}],
      "tailplane.dev/cap/requests": [{"role": "edit", "namespaces": ["shop"], "period": "2h"}]}},
    {"src": ["bob@example.com"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/requests": [{"approve": ["edit"], "namespaces": ["shop"]}]}},
  ],
}`

func TestMain(m *testing.M) {
	tailnettest.Quiet()
	os.Exit(m.Run())
}

// start starts a system in which access requests are on.
func start(t *testing.T) *testenv.Env {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	manifests, err := testenv.Manifests()
	if err != nil {
		t.Fatal(err)
	}
	c, err := buildcache.Open()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"policy-requests.yaml", "rbac-requests.yaml"} {
		b, err := os.ReadFile(filepath.Join(c.Root, "deploy/requests", name))
		if err != nil {
			t.Fatal(err)
		}
		manifests = append(manifests, b)
	}
	env, err := testenv.Start(ctx, t.TempDir(), testenv.Options{Policy: policy, Manifests: manifests, Settings: map[string]string{"requests.enabled": "true"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := env.Cluster.Apply(ctx, []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n")); err != nil {
		t.Fatal(err)
	}
	return env
}

func person(t *testing.T, env *testenv.Env, host, login string) *testenv.Person {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	p, err := env.Person(ctx, host, login)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// run runs a command as p and fails the test unless it exits with want.
func run(t *testing.T, p *testenv.Person, want int, words ...string) testenv.Result {
	t.Helper()
	r, err := p.Run(t.Context(), words[0], words[1:]...)
	if err != nil {
		t.Fatal(err)
	}
	if r.Exit != want {
		t.Fatalf("%s: exit %d, want %d\n%s%s", strings.Join(words, " "), r.Exit, want, r.Stdout, r.Stderr)
	}
	return r
}

func request(t *testing.T, r testenv.Result) (v requests.View) {
	t.Helper()
	if err := json.Unmarshal([]byte(r.Stdout), &v); err != nil {
		t.Fatalf("%v\n%s", err, r.Stdout)
	}
	return v
}

// REQ-01: One person asks and another one approves. One of two terminals has the role, and the other one keeps its own.
func TestREQ01AskApproveUse(t *testing.T) {
	env := start(t)
	alice, bob := person(t, env, "alice-laptop", "alice@example.com"), person(t, env, "bob-phone", "bob@example.com")
	run(t, alice, 0, "tka", "login")
	asked := request(t, run(t, alice, 0, "tka", "request", "--role", "edit", "--for", "10m", "--reason", "INC-42: payments stuck", "-o", "json"))
	if asked.State != requests.Pending || asked.Needed != 1 {
		t.Fatalf("got %+v", asked)
	}
	if early := run(t, alice, 3, "tka", "shell", "--request", asked.ID, "--", "true"); !strings.Contains(early.Stderr, "0 of 1 approval") {
		t.Errorf("before the approval: %s", early.Stderr)
	}
	run(t, alice, 3, "tka", "approve", asked.ID, "--seen", asked.Digest)          // not her own
	run(t, bob, 2, "tka", "approve", asked.ID)                                    // no terminal
	run(t, bob, 3, "tka", "approve", asked.ID, "--seen", strings.Repeat("0", 64)) // something else
	listed := run(t, bob, 0, "tka", "requests")
	if !strings.Contains(listed.Stdout, asked.ID) || !strings.Contains(listed.Stdout, "INC-42") {
		t.Errorf("bob sees\n%s", listed.Stdout)
	}
	if got := request(t, run(t, bob, 0, "tka", "approve", asked.ID[:12], "--seen", asked.Digest, "-m", "go", "-o", "json")); got.State != requests.Approved || got.Counted != 1 {
		t.Fatalf("after the approval: %+v", got)
	}
	create := []string{"kubectl", "create", "configmap", "elevated", "-n", "shop"}
	run(t, alice, 0, append([]string{"tka", "shell", "--keep", "--request", asked.ID, "--"}, create...)...)
	if other := run(t, alice, 1, append(create[:3:3], "other", "-n", "shop")...); !strings.Contains(other.Stderr, "forbidden") {
		t.Errorf("another terminal: %s", other.Stderr)
	}
	run(t, alice, 0, "kubectl", "get", "configmap", "elevated", "-n", "shop")
	// A used request joins its session, and a revoked one is over.
	run(t, alice, 0, "tka", "shell", "--keep", "--request", asked.ID, "--", "kubectl", "delete", "configmap", "elevated", "-n", "shop")
	if got := request(t, run(t, bob, 0, "tka", "request", "revoke", asked.ID, "-o", "json")); got.State != requests.Revoked {
		t.Errorf("after the revocation: %+v", got)
	}
	if late := run(t, alice, 3, "tka", "shell", "--request", asked.ID, "--", "true"); !strings.Contains(late.Stderr, "revoked") {
		t.Errorf("after the revocation: %s", late.Stderr)
	}
	run(t, alice, 0, "kubectl", "get", "pods", "-n", "shop")
}
