// Package e2e tests the real programs on a real tailnet and a real API server.
package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/testkit/testenv"
)

const policy = `{
  "groups": {
    "group:viewers": ["alice@example.com", "alice@b.example", "carol@example.com", "dave@example.com"],
    "group:two": ["erin@example.com"],
    "group:bad": ["mallory@example.com"],
  },
  "tagOwners": {"tag:tailplane": ["autogroup:admin"], "tag:ci": ["autogroup:admin"], "tag:robot": ["autogroup:admin"]},
  "grants": [
    {"src": ["*"], "dst": ["tag:tailplane"], "ip": ["tcp:443"]},
    {"src": ["group:viewers"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/access": [{"role": "view", "period": "8h", "priority": 1}]}},
    {"src": ["alice@example.com"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/access": [{"role": "edit", "period": "1h", "namespaces": ["shop"]}]}},
    {"src": ["group:two"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/access": [{"role": "view", "period": "8h"}, {"role": "edit", "period": "1h"}]}},
    {"src": ["group:bad"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/access": [{"role": "view", "period": "8h", "namespace": ["shop"]}]}},
    {"src": ["tag:tailplane"], "dst": ["tag:tailplane"], "ip": ["tcp:7946"]},
    {"src": ["tag:robot"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/access": [{"role": "view", "period": "1h", "allowTagged": true}]}},
    {"src": ["tag:ci"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/access": [{"role": "view", "period": "1h"}]}},
  ],
}`

func TestMain(m *testing.M) { testenv.Main(m) }

// start returns the environment that all tests of this binary share. Rate limits are off, because one machine plays all callers.
func start(t *testing.T) *testenv.Env {
	t.Helper()
	return system(t)
}

var system = testenv.SharedEnv(func(ctx context.Context, dir string) (*testenv.Env, error) {
	env, err := testenv.Start(ctx, dir, testenv.Options{Policy: policy, Settings: map[string]string{"api.limits": testenv.NoLimits}})
	if err != nil {
		return nil, err
	}
	return env, env.Cluster.Apply(ctx, []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n"))
})

func person(t *testing.T, r *testenv.Env, host, login string, tags ...string) *testenv.Person {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	p, err := r.Person(ctx, host, login, tags...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// run runs a command as p and fails the test unless it exits with want.
func run(t *testing.T, p *testenv.Person, want int, command string) testenv.Result {
	t.Helper()
	words := strings.Fields(command)
	r, err := p.Run(t.Context(), words[0], words[1:]...)
	if err != nil {
		t.Fatal(err)
	}
	if r.Exit != want {
		t.Fatalf("%s: exit %d, want %d\n%s%s", command, r.Exit, want, r.Stdout, r.Stderr)
	}
	return r
}

// eventually waits until ok returns true, up to limit, and returns the time that it took.
func eventually(t *testing.T, limit time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	for began := time.Now(); ; {
		if ok() {
			return time.Since(began)
		}
		if time.Since(began) > limit {
			t.Fatalf("%s: not within %v", what, limit)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func clients(t *testing.T, r *testenv.Env) (client.Client, *kubernetes.Clientset) {
	t.Helper()
	s := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(r.Cluster.AdminConfig(), client.Options{Scheme: s})
	if err != nil {
		t.Fatal(err)
	}
	k, err := kubernetes.NewForConfig(r.Cluster.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	return c, k
}

// signins returns the sign-ins of a login. For "" it returns all sign-ins.
func signins(t *testing.T, r *testenv.Env, login string) (out []v1alpha1.TkaSignin) {
	t.Helper()
	c, _ := clients(t, r)
	var list v1alpha1.TkaSigninList
	if err := c.List(t.Context(), &list, client.InNamespace(testenv.SigninNamespace)); err != nil {
		t.Fatal(err)
	}
	for _, s := range list.Items {
		if login == "" || s.Spec.User.Login == login {
			out = append(out, s)
		}
	}
	return out
}

// left returns the ServiceAccounts and bindings with a sign-in's name.
func left(t *testing.T, r *testenv.Env, name string) (out []string) {
	t.Helper()
	_, k := clients(t, r)
	accounts, err := k.CoreV1().ServiceAccounts(testenv.SigninNamespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range accounts.Items {
		if a.Name == name {
			out = append(out, "serviceaccount/"+a.Name)
		}
	}
	wide, err := k.RbacV1().ClusterRoleBindings().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range wide.Items {
		if len(b.Subjects) == 1 && b.Subjects[0].Name == name {
			out = append(out, "clusterrolebinding/"+b.Name)
		}
	}
	narrow, err := k.RbacV1().RoleBindings("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range narrow.Items {
		if len(b.Subjects) == 1 && b.Subjects[0].Name == name {
			out = append(out, "rolebinding/"+b.Namespace+"/"+b.Name)
		}
	}
	return out
}

// entries returns all entries of the audit log, by the request id that callers receive.
func entries(t *testing.T, r *testenv.Env) map[string][]audit.Entry {
	t.Helper()
	f, err := os.Open(r.AuditFile())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := map[string][]audit.Entry{}
	for s := bufio.NewScanner(f); s.Scan(); {
		var e audit.Entry
		if err := json.Unmarshal(s.Bytes(), &e); err != nil {
			t.Fatalf("audit line %q: %v", s.Text(), err)
		}
		out[e.RequestID] = append(out[e.RequestID], e)
	}
	return out
}
