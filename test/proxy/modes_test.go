package proxy

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/testkit/testenv"
)

// newcomer returns a person of the tailnet with an empty home.
func newcomer(t *testing.T, r *testenv.Env, host, login string) *testenv.Person {
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
	return p
}

// PRX-02, PRX-19: tka login, and then kubectl with nothing else. Nothing on the disk works as a credential: not the kubeconfig, a cache or a
// state file, and another device cannot use a copy of the home.
func TestPRX02_LoginAndKubectl(t *testing.T) {
	r := start(t)
	alice := newcomer(t, r, "fresh-laptop", "alice@example.com")
	if got := run(t, alice, 0, "tka", "login", "--role", "view"); !strings.Contains(got.Stderr, "kubectl --context tka-east get pods") {
		t.Errorf("login: %s", got.Stderr)
	}
	if got := run(t, alice, 0, "kubectl", "get", "namespaces"); !strings.Contains(got.Stdout, "kube-system") {
		t.Errorf("get namespaces: %s", got.Stdout)
	}
	config, err := os.ReadFile(alice.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{"server: " + r.ProxyServer() + "/\n": true, "token: session.default\n": true, "certificate-authority": false, "exec": false} {
		if bytes.Contains(config, []byte(text)) != want {
			t.Errorf("the kubeconfig has %q: %v, want %v:\n%s", text, !want, want, config)
		}
	}
	for command, want := range map[string]string{
		"status": "proxy", "doctor": "The access proxy " + r.ProxyServer() + "/ carries requests to the API server: Kubernetes v", "why get pods": "get pods in default: allowed",
	} {
		if got := run(t, alice, 0, "tka", strings.Fields(command)...); !strings.Contains(got.Stdout, want) {
			t.Errorf("tka %s: %s, want %q", command, got.Both, want)
		}
	}
	if files := withCredentials(t, alice.Home); len(files) > 0 {
		t.Errorf("these files hold a credential: %v", files)
	}

	mallory := newcomer(t, r, "stolen-disk", "bob@example.com")
	if err := os.CopyFS(filepath.Join(mallory.Home, "copy"), os.DirFS(filepath.Join(alice.Home, ".kube"))); err != nil {
		t.Fatal(err)
	}
	got := run(t, mallory, 1, "kubectl", "--kubeconfig", filepath.Join(mallory.Home, "copy", "config"), "get", "namespaces")
	if want := "bob@example.com is not signed in to east"; !strings.Contains(got.Stderr, want) {
		t.Errorf("another person with the copy: %s, want %q", got.Stderr, want)
	}

	run(t, alice, 0, "tka", "kubeconfig", "--out", filepath.Join(alice.Home, "left.yaml"))
	run(t, alice, 0, "tka", "logout")
	if config, err = os.ReadFile(alice.Kubeconfig()); err != nil || bytes.Contains(config, []byte("tka-east")) {
		t.Errorf("after the logout: %v\n%s", err, config)
	}
	got = run(t, alice, 1, "kubectl", "--kubeconfig", filepath.Join(alice.Home, "left.yaml"), "get", "namespaces")
	if want := "Run: tka login --cluster east"; !strings.Contains(got.Stderr, want) {
		t.Errorf("a file that is left: %s, want %q", got.Stderr, want)
	}
}

// A JWT, which every token of Kubernetes is, and other secrets that must not lie around.
var credential = regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.|PRIVATE KEY|Bearer |client-key|"token":`)

// withCredentials returns the files below a directory that hold a credential.
func withCredentials(t *testing.T, dir string) (files []string) {
	t.Helper()
	seen := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		seen++
		text, err := os.ReadFile(path)
		if credential.Match(text) {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 3 { // the settings, the state and the kubeconfig
		t.Errorf("%s has %d files", dir, seen)
	}
	return files
}

// PRX-02, PRX-07: two shells at a time have two sessions, two roles and no credential in their environment or files, and the default session of
// the device stays as it was.
func TestPRX07_TwoShells(t *testing.T) {
	r := start(t)
	alice := newcomer(t, r, "shell-laptop", "alice@example.com")
	run(t, alice, 0, "tka", "login", "--role", "view")
	const script = `set -e
touch "$HOME/has-$1"
while [ ! -e "$HOME/has-$2" ]; do sleep 0.1; done
kubectl auth whoami -o jsonpath='{.status.userInfo.username}'; echo
kubectl auth can-i create deployments || true
cat "$KUBECONFIG"
env
`
	path := filepath.Join(alice.Home, "script")
	if err := os.WriteFile(path, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	results := make([]testenv.Result, 2)
	errs := make([]error, 2)
	var shells sync.WaitGroup
	for i, role := range []string{"view", "edit"} {
		other := []string{"view", "edit"}[1-i]
		shells.Go(func() {
			results[i], errs[i] = alice.Run(t.Context(), "tka", "shell", "--role", role, "--", "sh", path, role, other)
		})
	}
	shells.Wait()
	accounts := []string{accountOf(t, run(t, alice, 0, "kubectl", "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}").Stdout)}
	for i, want := range []string{"no", "yes"} {
		if errs[i] != nil || results[i].Exit != 0 {
			t.Fatalf("shell %d: %v, exit %d: %s", i, errs[i], results[i].Exit, results[i].Both)
		}
		lines := strings.Split(results[i].Stdout, "\n")
		accounts = append(accounts, accountOf(t, lines[0]))
		if lines[1] != want {
			t.Errorf("shell %d may create deployments: %q, want %q", i, lines[1], want)
		}
		if found := credential.FindString(results[i].Stdout); found != "" {
			t.Errorf("shell %d has a credential, %q:\n%s", i, found, results[i].Stdout)
		}
		if server := fmt.Sprintf("server: %s/s/shell-", r.ProxyServer()); !strings.Contains(results[i].Stdout, server) {
			t.Errorf("shell %d has no %q:\n%s", i, server, results[i].Stdout)
		}
	}
	slices.Sort(accounts)
	if n := len(slices.Compact(accounts)); n != 3 {
		t.Errorf("%d accounts for three sessions: %v", n, accounts)
	}
	if got := run(t, alice, 0, "tka", "status", "-o", "json"); strings.Contains(got.Stdout, `"session"`) {
		t.Errorf("a session of a shell is left: %s", got.Stdout)
	}
	if files := withCredentials(t, alice.Home); len(files) > 0 {
		t.Errorf("these files hold a credential: %v", files)
	}
}

func accountOf(t *testing.T, name string) string {
	t.Helper()
	if !strings.HasPrefix(name, "system:serviceaccount:tailplane-signins:") {
		t.Fatalf("%q is not an account of a sign-in", name)
	}
	return name
}

// Both modes of one cluster: a person changes the mode at login, which rewrites the person's own entry, and a session keeps the other mode.
func TestTwoModes(t *testing.T) {
	r := start(t)
	alice := newcomer(t, r, "both-laptop", "alice@example.com")
	run(t, alice, 0, "tka", "login", "--role", "view", "--mode", "token")
	run(t, alice, 0, "tka", "login", "--role", "edit", "--mode", "proxy")
	for context, mode := range map[string]string{"tka-east": "token", "tka-east-edit": "proxy"} {
		if got := run(t, alice, 0, "kubectl", "--context", context, "get", "namespaces"); !strings.Contains(got.Stdout, "kube-system") {
			t.Errorf("%s: %s", context, got.Both)
		}
		if got := run(t, alice, 0, "tka", "status", "--context", context, "-o", "json"); !strings.Contains(got.Stdout, fmt.Sprintf("%q: %q", "mode", mode)) {
			t.Errorf("%s: %s, want the mode %s", context, got.Stdout, mode)
		}
	}
	got := run(t, alice, 0, "tka", "login", "--role", "view")
	if want := "The context tka-east changed from the mode token to proxy."; !strings.Contains(got.Stderr, want) {
		t.Errorf("login: %s, want %q", got.Stderr, want)
	}
	if got := run(t, alice, 0, "kubectl", "get", "namespaces"); !strings.Contains(got.Stdout, "kube-system") {
		t.Errorf("get namespaces: %s", got.Both)
	}
	run(t, alice, 0, "tka", "logout", "--all")
}
