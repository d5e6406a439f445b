package cli_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/tailplane/tailplane/internal/httpapi"
)

// patience is how late a test may see an immediate effect, because the machine may be busy.
const patience = 2 * time.Minute

// CL-07, CL-01, SGN-18: servers that misbehave. Each command ends within its time limit, with the right code and sentence, and changes
// nothing.
func TestCL07_hostile_servers(t *testing.T) {
	for _, tt := range []struct {
		kind   string
		login  int // exit code of login
		status int // of status; -1: not checked
		word   string
	}{
		{"pending", 4, -1, "not ready within"},
		{"pending-silent", 4, -1, "not ready within"},
		{"pending-once", 4, -1, "not ready within"},
		{"retry-huge", 4, -1, "not ready within"},
		{"retry-junk", 4, -1, "not ready within"},
		{"huge", 1, 1, "larger than"},
		{"slow", 4, 4, "did not answer within"},
		{"slow-login", 4, 4, "did not answer within"},
		{"silent", 4, 4, "did not answer within"},
		{"html", 1, 1, "the answer does not have the expected form"},
		{"junk", 1, 1, "the answer does not have the expected form"},
		{"wrong-types", 1, -1, "the answer does not have the expected form"},
		{"null", 1, -1, "does not have exactly one cluster"},
		{"list", 1, 1, "the answer does not have the expected form"},
		{"empty", 1, 1, "the answer does not have the expected form"},
		{"redirect-http", 1, 1, "follows no redirects"},
		{"redirect-self", 1, 1, "follows no redirects"},
		{"hangup", 5, 5, "closed the connection early"},
		{"escapes", 3, 3, "no\\u202egrant"},
		{"bad-expiry", 1, -1, "is not a time"},
		{"forbidden-plain", 3, 3, "403 Forbidden"},
		{"gateway", 5, 5, "502 Bad Gateway"},
	} {
		t.Run(tt.kind, func(t *testing.T) {
			t.Parallel()
			m := (*machine)(nil)
			timed := strings.Contains(tt.word, "within") // the others end without the time limit, however busy the machine is
			check := func(want int, word string, args ...string) {
				t.Helper()
				var r result
				for limit := time.Second; ; limit *= 4 {
					given, began := args, time.Now()
					if timed {
						given = append(slices.Clone(args), "--timeout", limit.String())
					}
					r = m.run(given...)
					if took := time.Since(began); took > limit+patience {
						t.Errorf("%v took %v", given, took)
					}
					if timed && word != "" {
						word = tt.word + " " + limit.String()
					}
					// On a busy machine, a short limit may expire before the server has misbehaved.
					if r.code == want && strings.Contains(r.err, word) || !timed || limit > time.Minute {
						break
					}
				}
				if r.code != want || r.out != "" || want == 0 || !strings.Contains(r.err, word) {
					t.Errorf("%v: code %d, want %d and %q\nstdout: %.400s\nstderr: %.2000s", args, r.code, want, word, r.out, r.err)
				}
				if len(r.err) > 64<<10 || strings.ContainsAny(r.err, "\x1b\x07\r\u202e\u009b") {
					t.Errorf("%v writes too much, or unprintable characters: %.2000q", args, r.err)
				}
			}
			// a server that proves its identity and then misbehaves
			srv, stop := newHostile(tt.kind, true)
			defer stop()
			m = newMachine(t, srv.URL)
			check(tt.login, tt.word, "login")
			check(tt.login, "", "credential", "--cluster", "prod-eu")
			if tt.status < 0 {
				return
			}
			check(tt.status, "", "status")
			if files := m.files(t); len(files) != 2 { // settings, known servers
				t.Errorf("files: %v", files)
			}
			// a server that misbehaves immediately
			srv, stop2 := newHostile(tt.kind, false)
			defer stop2()
			m = newMachine(t, srv.URL)
			for _, cmd := range [][]string{{"login"}, {"status"}, {"cluster-info"}, {"credential", "--cluster", "prod-eu"}, {"logout"}} {
				check(tt.status, "", cmd...)
			}
			if files := m.files(t); len(files) != 1 {
				t.Errorf("files: %v", files)
			}
		})
	}
}

// An old server does not report the expiry of the token. Then the credential has no expiry, and kubectl requests a new one when the token
// is refused.
func TestCredentialWithoutEnd(t *testing.T) {
	srv, stop := newHostile("no-expiry", true)
	defer stop()
	r := newMachine(t, srv.URL).run("credential", "--cluster", "prod-eu")
	var c struct{ Status map[string]string }
	if err := json.Unmarshal([]byte(r.out), &c); err != nil || r.code != 0 {
		t.Fatalf("code %d, %v\n%s%s", r.code, err, r.out, r.err)
	}
	if _, there := c.Status["expirationTimestamp"]; there || c.Status["token"] != canary {
		t.Errorf("status: %v", c.Status)
	}
}

// CL-01: tka does not follow a redirect, so its target gets no request.
func TestCL01_redirects_reach_nobody(t *testing.T) {
	var requested atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requested.Add(1) }))
	defer other.Close()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL+r.URL.Path, http.StatusTemporaryRedirect)
	}))
	defer srv.Close()
	m := newMachine(t, srv.URL)
	for _, cmd := range [][]string{{"login"}, {"status"}, {"logout"}, {"cluster-info"}, {"credential", "--cluster", "x"}} {
		if r := m.run(cmd...); r.code != 1 || !strings.Contains(r.err, "redirect") {
			t.Errorf("%v: code %d: %s", cmd, r.code, r.err)
		}
	}
	if n := requested.Load(); n > 0 {
		t.Errorf("the redirect target received %d requests", n)
	}
}

// CL-01: TLS errors are final: exit 3, one sentence, and no data in clear text.
func TestCL01_certificates(t *testing.T) {
	der, key, err := certificate("main", "main.example.ts.net")
	if err != nil {
		t.Fatal(err)
	}
	d, _ := newAccessServer(t, "prod-eu")
	srv := httptest.NewUnstartedServer(d)
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	srv.StartTLS()
	defer srv.Close()
	plain := httptest.NewServer(d)
	defer plain.Close()

	m := newMachine(t, srv.URL)
	m.write(t, "config/tka/config.yaml", "server: "+srv.URL+"\n")
	r := m.run("login")
	if r.code != 3 || !strings.Contains(r.err, "did not prove its identity") || !strings.Contains(r.err, "unknown authority") {
		t.Errorf("unknown authority: code %d: %s", r.code, r.err)
	}
	r = m.run("login", "--server", strings.Replace(plain.URL, "http://", "https://", 1))
	if r.code != 3 || !strings.Contains(r.err, "did not prove") {
		t.Errorf("plain http behind https://: code %d: %s", r.code, r.err)
	}
	if seen := d.received(); len(seen) > 0 {
		t.Errorf("requests despite TLS errors: %v", seen)
	}

	// It works if the machine knows the authority, and fails under another name.
	m.write(t, "ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	out := m.spawn(t, []string{"SSL_CERT_FILE=" + m.path("ca.pem")}, "login")
	if out.code != 0 {
		t.Errorf("with the right authority: code %d: %s", out.code, out.err)
	}
	out = m.spawn(t, []string{"SSL_CERT_FILE=" + m.path("ca.pem")}, "login", "--server", strings.Replace(srv.URL, "127.0.0.1", "localhost", 1))
	if out.code != 3 || !strings.Contains(out.err, "its certificate is for main.example.ts.net") {
		t.Errorf("under another name: code %d: %s", out.code, out.err)
	}
}

// tka uses the proxy of the environment for https. For http it uses the proxy only if it is on this machine or in the tailnet, because the
// proxy can read the traffic.
func TestCL01_proxies(t *testing.T) {
	var requested atomic.Pointer[string]
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requested.Store(new(r.Method + " " + r.Host))
		http.Error(w, "no", http.StatusBadGateway)
	}))
	defer proxy.Close()
	m := newMachine(t, "http://tka-lab")
	if r := m.spawn(t, []string{"HTTPS_PROXY=" + proxy.URL}, "status", "--server", "tka.example.ts.net"); r.code != 5 || requested.Load() == nil || *requested.Load() != "CONNECT tka.example.ts.net:443" {
		t.Errorf("https: code %d, requests %v: %s", r.code, requested.Load(), r.err)
	}
	requested.Store(nil)
	if r := m.spawn(t, []string{"HTTP_PROXY=" + proxy.URL}, "status"); r.code != 5 || requested.Load() == nil {
		t.Errorf("http through a proxy on this machine: code %d: %s", r.code, r.err)
	}
	if r := m.spawn(t, []string{"HTTP_PROXY=http://192.0.2.1:3128"}, "status"); r.code != 5 || !strings.Contains(r.err, "outside the tailnet") {
		t.Errorf("http through a proxy on another machine: code %d: %s", r.code, r.err)
	}
}

// SGN-18: an unreachable server is exit 5 for every command.
func TestUnreachable(t *testing.T) {
	srv := httptest.NewServer(nil)
	srv.Close() // no server listens there now
	m := newMachine(t, srv.URL)
	for _, cmd := range [][]string{{"login"}, {"status"}, {"logout"}, {"cluster-info"}, {"kubeconfig"}, {"credential", "--cluster", "x"}} {
		r := m.run(cmd...)
		if r.code != 5 || r.out != "" || !strings.Contains(r.err, "cannot be reached") || !strings.Contains(r.err, "\ntry: ") {
			t.Errorf("%v: code %d\n%s%s", cmd, r.code, r.out, r.err)
		}
	}
}

// CL-02, CL-05: a server cannot take over the context of another server's cluster.
func TestCL02_a_cluster_keeps_its_server(t *testing.T) {
	_, first := newAccessServer(t, "prod-eu")
	m := newMachine(t, first.URL)
	if r := m.run("login"); r.code != 0 {
		t.Fatal(r.err)
	}
	before := m.read(t, ".kube/config")

	impostor, stop := newHostile("no-expiry", true) // claims to be prod-eu with the same authority: a second replica
	defer stop()
	m.write(t, "config/tka/config.yaml", fmt.Sprintf("server: main\nservers:\n- {name: main, url: %q, insecureHTTP: true}\n- {name: other, url: %q, insecureHTTP: true}\n", first.URL, impostor.URL))
	m.write(t, ".kube/config", strings.Replace(before, "certificate-authority-data: ", "certificate-authority-data: AAAA", 1)) // now the authorities differ
	tampered := m.read(t, ".kube/config")
	r := m.run("login", "--server", "other")
	if r.code != 3 || !strings.Contains(r.err, "with a different certificate authority") || !strings.Contains(r.err, "You are signed in nevertheless") {
		t.Errorf("code %d: %s", r.code, r.err)
	}
	if m.read(t, ".kube/config") != tampered {
		t.Error("the kubeconfig was changed")
	}
	if r := m.run("shell", "--server", "other", "--", "true"); r.code != 3 || !strings.Contains(r.err, "with a different certificate authority") {
		t.Errorf("shell: code %d: %s", r.code, r.err)
	}

	// with --cluster, the server must serve that cluster
	if r := m.run("login", "--cluster", "prod-us"); r.code != 3 || !strings.Contains(r.err, "serves the cluster prod-eu, not prod-us") {
		t.Errorf("code %d: %s", r.code, r.err)
	}
	if r := m.run("credential", "--cluster", "prod-us"); r.code != 3 || r.out != "" {
		t.Errorf("credential for another cluster: code %d: %s%s", r.code, r.out, r.err)
	}
}

// CL-03, SGN-19: twenty processes sign in to twenty clusters at once, with one file. Afterwards the file has all entries, including the
// previous ones.
func TestCL03_twenty_merges_at_once(t *testing.T) {
	const n = 20
	var servers strings.Builder
	servers.WriteString("servers:\n")
	for i := range n {
		_, srv := newAccessServer(t, fmt.Sprintf("c%d", i))
		fmt.Fprintf(&servers, "- {name: s%d, url: %q, insecureHTTP: true}\n", i, srv.URL)
	}
	m := newMachine(t, "http://localhost")
	m.write(t, "config/tka/config.yaml", servers.String())
	m.write(t, ".kube/config", "apiVersion: v1\nkind: Config\n# mine\nusers:\n- name: mine\n  user: {token: abc}\ncurrent-context: mine\n")
	// Each process waits five seconds for the others. On a busy machine that may be too short; then a person tries again.
	patiently := func(args ...string) (r result) {
		for began := time.Now(); time.Since(began) < patience; {
			if r = m.spawn(t, nil, args...); !strings.Contains(r.err, "is held by another program") {
				break
			}
		}
		return r
	}
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if r := patiently("login", "--server", fmt.Sprintf("s%d", i)); r.code != 0 {
				t.Errorf("login %d: code %d: %s", i, r.code, r.err)
			}
		})
	}
	wg.Wait()
	k := readKube(t, m.path(".kube/config"))
	if len(k.Users) != n+1 || len(k.Clusters) != n || len(k.Contexts) != n || k.CurrentContext != "mine" || k.Users[0].Name != "mine" || k.Users[0].User["token"] != "abc" {
		t.Errorf("%d users, %d clusters, %d contexts, current %q", len(k.Users), len(k.Clusters), len(k.Contexts), k.CurrentContext)
	}
	if !strings.Contains(m.read(t, ".kube/config"), "# mine\n") {
		t.Error("the comment is missing")
	}
	left := m.files(t)
	if len(left) != 3 { // settings, kubeconfig, known servers
		t.Errorf("files left: %v", left)
	}

	// and sign out again
	for i := range n {
		wg.Go(func() {
			if r := patiently("logout", "--cluster", fmt.Sprintf("c%d", i)); r.code != 0 {
				t.Errorf("logout %d: code %d: %s", i, r.code, r.err)
			}
		})
	}
	wg.Wait()
	if k := readKube(t, m.path(".kube/config")); len(k.Users) != 1 || len(k.Clusters) != 0 || len(k.Contexts) != 0 || k.CurrentContext != "mine" {
		t.Errorf("after logout: %+v", k)
	}
}

// CL-03: tka does not use a file of another owner.
func TestCL03_foreign_owner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIP foreign owner: only root can give a file away")
	}
	_, srv := newAccessServer(t, "prod-eu")
	m := newMachine(t, srv.URL)
	m.write(t, ".kube/config", "kind: Config\n")
	if err := os.Chown(m.path(".kube/config"), 65534, 65534); err != nil {
		t.Skipf("SKIP foreign owner: %v", err)
	}
	r := m.run("login")
	if r.code != 1 || !strings.Contains(r.err, "belongs to another user") || !strings.Contains(r.err, "--kubeconfig") {
		t.Errorf("code %d: %s", r.code, r.err)
	}
	if m.read(t, ".kube/config") != "kind: Config\n" {
		t.Error("the file was changed")
	}
}

// CL-03: tka waits for a lock that another program holds. It reports a lock that a dead program left and does not break it.
func TestCL03_locks(t *testing.T) {
	_, srv := newAccessServer(t, "prod-eu")
	m := newMachine(t, srv.URL)
	m.write(t, ".kube/config.lock", "")
	if err := os.Chtimes(m.path(".kube/config.lock"), time.Time{}, time.Now().Add(-2*time.Minute)); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	r := m.run("login")
	if r.code != 1 || !strings.Contains(r.err, "config.lock has existed for 2m") || !strings.Contains(r.err, "remove "+m.path(".kube/config.lock")) {
		t.Errorf("stale: code %d: %s", r.code, r.err)
	}
	stale := time.Since(began)
	if _, err := os.Stat(m.path(".kube/config.lock")); err != nil {
		t.Errorf("the stale lock was broken: %v", err)
	}
	if _, err := os.Stat(m.path(".kube/config")); err == nil {
		t.Error("the kubeconfig was written despite the lock")
	}

	// a fresh lock that is released in time
	os.Remove(m.path(".kube/config.lock"))
	m.write(t, ".kube/config.lock", "")
	timer := time.AfterFunc(300*time.Millisecond, func() { os.Remove(m.path(".kube/config.lock")) })
	defer timer.Stop()
	if r := m.run("login"); r.code != 0 {
		t.Errorf("fresh: code %d: %s", r.code, r.err)
	}

	// a fresh lock that stays for five seconds
	m.write(t, ".kube/config.lock", "")
	began = time.Now()
	r = m.run("logout")
	took := time.Since(began)
	if r.code != 1 || took < 5*time.Second || !strings.Contains(r.err, "is held by another program") {
		t.Errorf("held: code %d after %v: %s", r.code, took, r.err)
	}
	if stale >= took {
		t.Errorf("waited %v for the stale lock and %v for a fresh one", stale, took)
	}
}

// SGN-19: if tka is killed at any moment, the kubeconfig is either the old one or the new one.
func TestCL03_killed_while_writing(t *testing.T) {
	_, srv := newAccessServer(t, "prod-eu")
	m := newMachine(t, srv.URL)
	mine := "apiVersion: v1\nkind: Config\nusers:\n- name: mine\n  user: {token: abc}\n" + strings.Repeat("# a long file\n", 20000)
	began := time.Now()
	m.write(t, ".kube/config", mine)
	if r := m.spawn(t, nil, "login"); r.code != 0 {
		t.Fatal(r.err)
	}
	whole := time.Since(began)
	for i := range 25 {
		m.write(t, ".kube/config", mine)
		os.Remove(m.path(".kube/config.lock"))
		cmd := m.command(nil, "login")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		timer := time.AfterFunc(whole*time.Duration(i)/20, func() { cmd.Process.Kill() })
		cmd.Wait()
		timer.Stop()
		k := readKube(t, m.path(".kube/config"))
		if len(k.Users) == 0 || k.Users[0].Name != "mine" || k.Users[0].User["token"] != "abc" || len(k.Users) != len(k.Contexts)+1 || len(k.Contexts) != len(k.Clusters) {
			t.Fatalf("killed after %v: %+v", whole*time.Duration(i)/20, k)
		}
	}
}

// CL-04: a token is only in the credential that kubectl requested and in the cache.
func TestCL04_tokens_are_nowhere(t *testing.T) {
	_, srv := newAccessServer(t, "prod-eu")
	m := newMachine(t, srv.URL)
	for _, cmd := range [][]string{{"login"}, {"login", "-o", "json"}, {"status", "-o", "yaml"}, {"kubeconfig"}, {"kubeconfig", "--out", m.path("out")}, {"cluster-info", "-o", "json"}, {"config", "-o", "json"}, {"logout", "--dry-run"}} {
		if r := m.run(cmd...); r.code != 0 || strings.Contains(r.out+r.err, canary) {
			t.Errorf("%v: code %d:\n%s%s", cmd, r.code, r.out, r.err)
		}
	}
	if r := m.run("credential", "--cluster", "prod-eu"); r.code != 0 || strings.Count(r.out, canary) != 1 || r.err != "" {
		t.Errorf("credential: code %d\n%s%s", r.code, r.out, r.err)
	}
	stored := 0
	for _, f := range m.files(t) {
		switch st, err := os.Stat(m.path(f)); {
		case err != nil || !strings.Contains(m.read(t, f), canary):
		case !strings.HasPrefix(f, ".cache/tka/tokens/") || st.Mode().Perm() != 0o600:
			t.Errorf("%s holds a token, with mode %v", f, st.Mode())
		default:
			stored++
		}
	}
	if stored != 1 {
		t.Errorf("%d files hold a token", stored)
	}
	m.run("logout")
	for _, f := range m.files(t) {
		if strings.Contains(f, ".tka-") || strings.HasSuffix(f, ".lock") || strings.Contains(f, "tokens") || strings.Contains(m.read(t, f), canary) {
			t.Errorf("still present after logout: %s", f)
		}
	}
}

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
		if err := dec.Decode(&c); err != nil || dec.More() || r.code != 0 || r.err != "" {
			t.Fatalf("code %d, %v: %s%s", r.code, err, r.out, r.err)
		}
		if c.APIVersion != version || c.Kind != "ExecCredential" || !strings.HasPrefix(c.Status.Token, canary) {
			t.Errorf("%+v", c)
		}
		if left := time.Until(c.Status.ExpirationTimestamp); left < 7*time.Hour || left > 8*time.Hour {
			t.Errorf("expires in %v", left)
		}
	}
	for _, env := range []string{"{", "[]", "null", `{"apiVersion":"client.authentication.k8s.io/v1alpha1"}`, `{"apiVersion":"\u001b[2J"}`} {
		m.env["KUBERNETES_EXEC_INFO"] = env
		if r := m.run("credential", "--cluster", "prod-eu"); r.code != 1 || r.out != "" || !strings.HasPrefix(r.err, "error: ") || strings.Contains(r.err, "\x1b") {
			t.Errorf("%s: code %d: %s%s", env, r.code, r.out, r.err)
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
	if r := m.run("credential", "--cluster", "prod-eu"); r.code != 3 || r.out != "" || !strings.Contains(r.err, "tka login --cluster prod-eu") {
		t.Errorf("not signed in: code %d: %s%s", r.code, r.out, r.err)
	}
	if seen := d.received(); len(seen) != 2 || seen[1] != "GET /api/v1alpha1/kubeconfig 404" {
		t.Errorf("asked: %v", seen)
	}
}

// CL-08: Ctrl-C ends tka at once, without a stack trace or a partial file. tka reports whether the sign-in still exists, as far as it
// knows.
func TestCL08_interrupted(t *testing.T) {
	for _, tt := range []struct {
		name, pattern string // of the request that gets no response
		says          string
	}{
		{"before the login is answered", "POST /api/v1alpha1/login", "The server may have signed you in; to check or to end the sign-in: tka status, tka logout"},
		{"while it waits for the access", "GET /api/v1alpha1/kubeconfig", "You are signed in nevertheless; to end the sign-in: tka logout"},
	} {
		for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
			t.Run(fmt.Sprint(tt.name, ", ", sig), func(t *testing.T) {
				d, _ := newAccessServer(t, "prod-eu")
				d.store.ready = -1
				reached := make(chan struct{})
				httpServer := http.NewServeMux()
				httpServer.Handle("/", d)
				httpServer.HandleFunc(tt.pattern, func(_ http.ResponseWriter, r *http.Request) {
					if r.Method == http.MethodPost { // carried out, but the response is lost
						d.ServeHTTP(httptest.NewRecorder(), r)
					}
					close(reached)
					<-r.Context().Done()
				})
				srv := httptest.NewServer(httpServer)
				t.Cleanup(srv.Close) // Close waits for its requests, until tka has ended
				m := newMachine(t, srv.URL)
				r := m.start(t, "login", "--timeout", "5m")
				select {
				case <-reached:
				case <-r.done:
				case <-time.After(patience):
				}
				r.Process.Signal(sig)
				r.waitExit(130)
				if errText := r.err.String(); !strings.Contains(errText, "error: interrupted\n") || !strings.Contains(errText, tt.says) {
					t.Errorf("stderr: %s", errText)
				}
				if signins := d.store.CountLive("alice@example.com"); signins != 1 {
					t.Errorf("%d sign-ins", signins)
				}
				if files := m.files(t); len(files) != 2 { // settings, known servers
					t.Errorf("files: %v", files)
				}
			})
		}
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
		if err != nil || bearer.Load() == nil || !strings.HasPrefix(*bearer.Load(), "Bearer "+canary) {
			t.Errorf("kubectl %v: %v, requests with %v\n%s", args, err, bearer.Load(), out)
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

// kube is a kubeconfig as kubectl reads it.
type kube struct {
	CurrentContext string `yaml:"current-context"`
	Users          []struct {
		Name string
		User map[string]any
	}
	Clusters []struct{ Name string }
	Contexts []struct{ Name string }
}

func readKube(t *testing.T, path string) (k kube) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err == nil {
		err = yaml.Unmarshal(b, &k)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return k
}

// command returns tka as a separate process on the machine. It is the test binary, which is in PATH under that name.
func (m *machine) command(env []string, args ...string) *exec.Cmd {
	cmd := exec.Command("tka", args...)
	cmd.Env = m.environ(env)
	return cmd
}

func (m *machine) environ(env []string) []string {
	all := []string{"PATH=" + os.Getenv("PATH")}
	for k, v := range m.env {
		all = append(all, k+"="+v)
	}
	return append(all, env...)
}

func (m *machine) spawn(t *testing.T, env []string, args ...string) result {
	t.Helper()
	cmd := m.command(env, args...)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	err := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Errorf("tka %v: %v", args, err)
	}
	return result{cmd.ProcessState.ExitCode(), out.String(), stderr.String()}
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
