package proxy

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/testkit/testenv"
)

// PRX-19: an API server with a public certificate. Kubeconfigs name no authority, and kubectl, tka, the access server and the proxy verify with the
// roots of their system. A server whose system does not have the root does not start.
func TestPRX19_PublicCertificate(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIP -short: this test needs a cluster")
	}
	dir, err := os.MkdirTemp("", "proxy")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	r, err := testenv.Start(ctx, dir, testenv.Options{Policy: policy, Settings: map[string]string{"api.limits": testenv.NoLimits, "access.modes": "[token, proxy]", "cluster.caData": "system"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := r.StartProxy(ctx); err != nil {
		t.Fatal(err)
	}
	alice := newcomer(t, r, "alice-laptop", "alice@example.com")
	for mode, server := range map[string]string{"token": r.Cluster.Server, "proxy": r.ProxyServer()} {
		run(t, alice, 0, "tka", "login", "--role", "view", "--mode", mode)
		config, err := os.ReadFile(alice.Kubeconfig())
		if err != nil {
			t.Fatal(err)
		}
		if text := string(config); !strings.Contains(text, "server: "+server) || strings.Contains(text, "certificate-authority") {
			t.Errorf("mode %s: the kubeconfig is\n%s", mode, text)
		}
		if got := run(t, alice, 0, "kubectl", "get", "namespaces"); !strings.Contains(got.Stdout, "kube-system") {
			t.Errorf("mode %s: %s", mode, got.Both)
		}
		run(t, alice, 0, "tka", "doctor")
		out := filepath.Join(alice.Home, mode+".yaml")
		run(t, alice, 0, "tka", "kubeconfig", "--mode", mode, "--out", out)
		run(t, alice, 0, "kubectl", "--kubeconfig", out, "get", "namespaces")
	}
	bob, err := r.Person(ctx, "bob-laptop", "bob@example.com")
	if err != nil {
		t.Fatal(err)
	}
	roots := filepath.Join(bob.Home, "roots.pem") // without that of the API server
	if err := os.WriteFile(roots, r.RootsPEM, 0o600); err != nil {
		t.Fatal(err)
	}
	bob.Vars = append(bob.Vars, "SSL_CERT_FILE="+roots)
	run(t, bob, 0, "tka", "login", "--mode", "token")
	if got := run(t, bob, 1, "kubectl", "get", "namespaces"); !strings.Contains(got.Stderr, "x509") {
		t.Errorf("kubectl trusts an authority that its system does not have: %s", got.Both)
	}

	settings, err := r.Settings("access")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfigs, err := filepath.Glob(filepath.Join(r.Dir, "access", "*.kubeconfig"))
	if err != nil || len(kubeconfigs) != 1 {
		t.Fatalf("%d kubeconfigs of the access server: %v", len(kubeconfigs), err)
	}
	own := strings.ReplaceAll(string(settings), r.AuditFile(), filepath.Join(dir, "untrusted.jsonl"))
	other, err := r.Try("untrusted", "access", []string{"SSL_CERT_FILE=" + roots}, own, "--kubeconfig", kubeconfigs[0])
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-other.Done():
	case <-ctx.Done():
		t.Fatal("the server does not end")
	}
	if other.ExitCode() == 0 || !strings.Contains(other.Output(), "does not verify with the roots of the system") {
		t.Errorf("a server that does not trust the API server: exit %d\n%s", other.ExitCode(), other.Output())
	}
}
