package cli_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/httpapi"
)

// CL-05: completion offers only plain names, whatever the files contain.
func TestCL05_completion_offers_names_only(t *testing.T) {
	_, srv := newAccessServer(t, "prod-eu")
	m := newMachine(t, srv.URL)
	if r := m.run("login"); r.code != 0 {
		t.Fatal(r.err)
	}
	if r := m.run("__complete", "login", "--cluster", ""); r.code != 0 || !strings.HasPrefix(r.out, "prod-eu\n") {
		t.Errorf("code %d: %s%s", r.code, r.out, r.err)
	}
	for _, name := range []string{"$(touch x)", "`touch x`", "a'b", "a\"b", "a;b", "a b", "\"a\\nb\""} {
		m.write(t, "state/tka/servers.yaml", fmt.Sprintf("servers:\n- url: %q\n  cluster: %q\n", srv.URL, name))
		r := m.run("__complete", "login", "--cluster", "")
		if first, _, _ := strings.Cut(r.out, "\n"); first != ":4" {
			t.Errorf("%q is offered: %s", name, r.out)
		}
		if r := m.run("login", "--cluster", "x"); r.code != 1 || !strings.Contains(r.err, "damaged") {
			t.Errorf("damaged state: code %d: %s", r.code, r.err)
		}
	}
}

// CL-06, SGN-20: the plugin in both versions, without a version, without a terminal, and on a machine without writable directories.
func TestCL06_the_plugin(t *testing.T) {
	d, srv := newAccessServer(t, "prod-eu")
	m := newMachine(t, srv.URL)
	if r := m.run("login"); r.code != 0 {
		t.Fatal(r.err)
	}
	for env, version := range map[string]string{
		"": "client.authentication.k8s.io/v1",
		`{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","spec":{"interactive":false}}`:                          "client.authentication.k8s.io/v1",
		`{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1beta1","spec":{"cluster":{"server":"x"}},"unknown":true}`: "client.authentication.k8s.io/v1beta1",
	} {
		m.env["KUBERNETES_EXEC_INFO"] = env
		r := m.run("credential", "--cluster", "prod-eu")
		var c struct {
			APIVersion, Kind string
			Status           struct {
				Token               string
				ExpirationTimestamp time.Time
			}
		}
		dec := json.NewDecoder(strings.NewReader(r.out))
		switch err := dec.Decode(&c); {
		case err != nil:
			t.Fatalf("code: %v; %s", err, r.out)
		case dec.More():
			t.Fatalf("code: dec.More() is true; %d, %v, %s, %s", r.code, err, r.out, r.err)
		case r.code != 0:
			t.Fatalf("code: r.code = %v, want 0; %s", r.code, r.out)
		case r.err != "":
			t.Fatalf("code: r.err = %q, want none; %s", r.err, r.out)
		}
		switch {
		case c.APIVersion != version:
			t.Errorf("c.APIVersion = %q, want %q", c.APIVersion, version)
		case c.Kind != "ExecCredential":
			t.Errorf("c.Kind = %q, want %q", c.Kind, "ExecCredential")
		case !strings.HasPrefix(c.Status.Token, canary):
			t.Errorf("c.Status.Token = %q does not start with %q", c.Status.Token, canary)
		}
		if left := time.Until(c.Status.ExpirationTimestamp); left < 7*time.Hour || left > 8*time.Hour {
			t.Errorf("expires in %v", left)
		}
	}
	for _, env := range []string{"{", "[]", "null", `{"apiVersion":"client.authentication.k8s.io/v1alpha1"}`, `{"apiVersion":"\u001b[2J"}`} {
		m.env["KUBERNETES_EXEC_INFO"] = env
		switch r := m.run("credential", "--cluster", "prod-eu"); {
		case r.code != 1:
			t.Errorf("r.code = %v, want 1; %s", r.code, env)
		case r.out != "":
			t.Errorf("r.out = %q, want none; %s", r.out, env)
		case !strings.HasPrefix(r.err, "error: "):
			t.Errorf("r.err = %q does not start with %q; %s", r.err, "error: ", env)
		case strings.Contains(r.err, "\x1b"):
			t.Errorf("r.err = %q contains %q; %s", r.err, "\x1b", env)
		}
	}
	delete(m.env, "KUBERNETES_EXEC_INFO")

	// without a writable directory, the plugin writes nothing and reports nothing about it
	if err := os.RemoveAll(m.path(".cache")); err != nil {
		t.Fatal(err)
	}
	m.write(t, ".cache", "")
	before := len(m.files(t))
	for i := range 3 {
		if r := m.run("credential", "--cluster", "prod-eu"); r.code != 0 || r.err != "" {
			t.Errorf("run %d: code %d: %s", i, r.code, r.err)
		}
	}
	if after := len(m.files(t)); after != before {
		t.Errorf("%d files before, %d after", before, after)
	}

	// the plugin does not sign in without --sign-in
	m.run("logout")
	d.mu.Lock()
	d.requests = nil
	d.mu.Unlock()
	switch r := m.run("credential", "--cluster", "prod-eu"); {
	case r.code != 3:
		t.Errorf("not signed in: code: r.code = %v, want 3", r.code)
	case r.out != "":
		t.Errorf("not signed in: code: r.out = %q, want none", r.out)
	case !strings.Contains(r.err, "tka login --cluster prod-eu"):
		t.Errorf("not signed in: code: r.err = %q does not contain %q", r.err, "tka login --cluster prod-eu")
	}
	if seen := d.received(); len(seen) != 2 || seen[1] != "GET /api/v1alpha1/kubeconfig 404" {
		t.Errorf("asked: %v", seen)
	}
}

// SGN-01 on a small scale: kubectl itself reads what login wrote and runs the plugin.
func TestKubectlUsesThePlugin(t *testing.T) {
	kubectl, err := exec.LookPath("kubectl")
	if err != nil {
		t.Skip("SKIP kubectl: it is not in PATH")
	}
	var bearer atomic.Pointer[string]
	api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		bearer.Store(new(r.Header.Get("Authorization")))
		fmt.Fprint(w, `{"kind":"APIVersions","versions":["v1"]}`)
	}))
	defer api.Close()
	d := &accessServer{store: newSigninStore(0), cluster: "prod-eu", rules: []string{`{"role":"view","period":"8h","namespaces":["shop"]}`}}
	d.server, d.ca = api.URL, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.Certificate().Raw})
	d.start()
	srv := httptest.NewServer(d)
	defer srv.Close()
	m := newMachine(t, srv.URL)
	if r := m.spawn(t, nil, "login"); r.code != 0 {
		t.Fatal(r.err)
	}
	for _, args := range [][]string{{"get", "--raw", "/api"}, {"--context", "tka-prod-eu", "get", "--raw", "/api"}} {
		bearer.Store(nil)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		cmd := exec.CommandContext(ctx, kubectl, args...)
		cmd.Env = m.environ(nil)
		out, err := cmd.CombinedOutput()
		cancel()
		switch {
		case err != nil:
			t.Errorf("kubectl: %v; args = %v; out = %s", err, args, out)
		case bearer.Load() == nil:
			t.Errorf("kubectl: bearer.Load() is nil; args = %v; out = %s", args, out)
		case !strings.HasPrefix(*bearer.Load(), "Bearer "+canary):
			t.Errorf("kubectl: *bearer.Load() = %q does not start with %q; args = %v; out = %s",
				*bearer.Load(), "Bearer "+canary, args, out)
		}
	}
	cmd := exec.Command(kubectl, "config", "view", "-o", "jsonpath={.contexts[0].context.namespace}")
	cmd.Env = m.environ(nil)
	if out, err := cmd.Output(); err != nil || string(out) != "shop" {
		t.Errorf("namespace of the context: %q, %v", out, err)
	}
}

// Budget of design section 8: tka is small and starts fast. The size is a limit. The time is only logged, because the machine may be busy.
func TestSizeAndStart(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIP size: builds the program")
	}
	bin := filepath.Join(t.TempDir(), "tka")
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", bin, "github.com/tailplane/tailplane/cmd/tka")
	if out, err := build.CombinedOutput(); err != nil {
		t.Skipf("SKIP size: go build: %v\n%s", err, out)
	}
	st, err := os.Stat(bin)
	if err != nil {
		t.Fatal(err)
	}
	best := time.Hour
	for range 10 {
		began := time.Now()
		if err := exec.Command(bin, "version").Run(); err != nil {
			t.Fatal(err)
		}
		best = min(best, time.Since(began))
	}
	t.Logf("tka on %s: %.1f MB stripped (bound 21.0), starts in %v (bound 30ms)", runtime.GOARCH, float64(st.Size())/1e6, best)
	d, srv := newAccessServer(t, "prod-eu")
	m := newMachine(t, srv.URL)
	if r := m.run("login"); r.code != 0 {
		t.Fatal(r.err)
	}
	best = time.Hour
	for range 20 {
		cmd := m.underShell(bin + " credential --cluster prod-eu")
		began := time.Now()
		if out, err := cmd.Output(); err != nil || !strings.Contains(string(out), canary) {
			t.Fatalf("%v: %s", err, out)
		}
		best = min(best, time.Since(began))
	}
	t.Logf("the plugin, warm, under a shell: %v (bound 20ms)", best)
	if d.store.tokens != 2 { // from login, and from the first credential
		t.Errorf("the server made %d tokens", d.store.tokens)
	}
	if st.Size() > 20<<20 {
		t.Errorf("tka has %d bytes", st.Size())
	}
	out, err := exec.Command("go", "list", "-deps", "github.com/tailplane/tailplane/cmd/tka").Output()
	if err != nil {
		t.Fatal(err)
	}
	for dep := range strings.Lines(string(out)) {
		for _, heavy := range []string{"tailscale.com/", "k8s.io/api/", "k8s.io/client-go/kubernetes", "k8s.io/client-go/rest", "k8s.io/client-go/transport"} {
			if strings.HasPrefix(dep, heavy) { // TestSmallPrograms checks the other packages of Kubernetes
				t.Errorf("tka links %s", dep)
			}
		}
	}
}

// If a server is busy or is still ending the last sign-in, tka repeats the request after the time in the response. It does not repeat it
// after a refusal.
func TestRetryAfterIsHonoured(t *testing.T) {
	for _, tt := range []struct {
		code   string
		status int
		after  string
		posts  int32 // requests to log in
		exit   int
	}{
		{"ending", 503, "1", 2, 0},
		{"conflict", 409, "1", 2, 0},
		{"rate_limited", 429, "1", 2, 0},
		{"rate_limited", 429, "3600", 1, 4},
		{"too_many_signins", 429, "1", 1, 3},
		{"unavailable", 503, "1", 1, 5},
		{"no_capability", 403, "1", 1, 3},
		{"internal", 500, "1", 1, 1},
		{"something_new", 418, "", 1, 3},
		{"something_newer", 500, "", 1, 1},
	} {
		t.Run(tt.code+tt.after, func(t *testing.T) {
			t.Parallel()
			d, _ := newAccessServer(t, "prod-eu")
			var posts atomic.Int32
			var first time.Time
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost && posts.Add(1) == 1 {
					first = time.Now()
					if tt.after != "" {
						w.Header().Set("Retry-After", tt.after)
					}
					body := fmt.Appendf(nil, `{"code":%q,"message":"Not now.","advice":["Wait."],"auditId":"01AUDIT"}`, tt.code)
					w.Header().Set(httpapi.ProofHeader, d.key.Prove(r.Header.Get(httpapi.NonceHeader), r.Host, body))
					w.WriteHeader(tt.status)
					w.Write(body)
					return
				}
				if since := time.Since(first); r.Method == http.MethodPost && since < time.Second {
					t.Errorf("the next request came after %v", since)
				}
				d.ServeHTTP(w, r)
			}))
			defer srv.Close()
			r := newMachine(t, srv.URL).run("login", "-q")
			if r.code != tt.exit || posts.Load() != tt.posts {
				t.Errorf("code %d after %d requests, want %d after %d: %s", r.code, posts.Load(), tt.exit, tt.posts, r.err)
			}
			if r.code != 0 && r.err != "error: Not now.\ntry: Wait.\naudit id: 01AUDIT\n" {
				t.Errorf("stderr: %q", r.err)
			}
		})
	}
}
