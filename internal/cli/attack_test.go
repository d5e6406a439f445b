package cli_test

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
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
				switch {
				case r.code != want:
					t.Errorf("r.code = %v, want %v; args = %v", r.code, want, args)
				case r.out != "":
					t.Errorf("r.out = %q, want none; args = %v", r.out, args)
				case want == 0:
					t.Errorf("want = %v; args = %v", want, args)
				case !strings.Contains(r.err, word):
					t.Errorf("r.err = %q does not contain %q; args = %v", r.err, word, args)
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
func TestCL01_redirects_are_not_followed(t *testing.T) {
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
	switch {
	case r.code != 3:
		t.Errorf("unknown authority: code: r.code = %v, want 3", r.code)
	case !strings.Contains(r.err, "did not prove its identity"):
		t.Errorf("unknown authority: code: r.err = %q does not contain %q", r.err, "did not prove its identity")
	case !strings.Contains(r.err, "unknown authority"):
		t.Errorf("unknown authority: code: r.err = %q does not contain %q", r.err, "unknown authority")
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
	switch r := m.spawn(t, []string{"HTTPS_PROXY=" + proxy.URL}, "status", "--server", "tka.example.ts.net"); {
	case r.code != 5:
		t.Errorf("https: code: r.code = %v, want 5; %s", r.code, r.err)
	case requested.Load() == nil:
		t.Errorf("https: code: requested.Load() is nil; %s", r.err)
	case *requested.Load() != "CONNECT tka.example.ts.net:443":
		t.Errorf("https: code: *requested.Load() = %q, want %q; %s", *requested.Load(), "CONNECT tka.example.ts.net:443", r.err)
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
		switch {
		case r.code != 5:
			t.Errorf("r.code = %v, want 5; %v", r.code, cmd)
		case r.out != "":
			t.Errorf("r.out = %q, want none; %v", r.out, cmd)
		case !strings.Contains(r.err, "cannot be reached"):
			t.Errorf("r.err = %q does not contain %q; %v", r.err, "cannot be reached", cmd)
		case !strings.Contains(r.err, "\ntry: "):
			t.Errorf("r.err = %q does not contain %q; %v", r.err, "\ntry: ", cmd)
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
	switch {
	case r.code != 3:
		t.Errorf("code: r.code = %v, want 3", r.code)
	case !strings.Contains(r.err, "with a different certificate authority"):
		t.Errorf("code: r.err = %q does not contain %q", r.err, "with a different certificate authority")
	case !strings.Contains(r.err, "You are signed in nevertheless"):
		t.Errorf("code: r.err = %q does not contain %q", r.err, "You are signed in nevertheless")
	}
	if m.read(t, ".kube/config") != tampered {
		t.Error("the kubeconfig was changed")
	}
	if r := m.run("shell", "--server", "other", "--", "true"); r.code != 1 || !strings.Contains(r.err, "is not that of the session") {
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
	switch {
	case len(k.Users) != n+1:
		t.Errorf("len(k.Users) = %v, want %v", len(k.Users), n+1)
	case len(k.Clusters) != n:
		t.Errorf("len(k.Clusters) = %v, want %v", len(k.Clusters), n)
	case len(k.Contexts) != n:
		t.Errorf("len(k.Contexts) = %v, want %v", len(k.Contexts), n)
	case k.CurrentContext != "mine":
		t.Errorf("k.CurrentContext = %q, want %q", k.CurrentContext, "mine")
	case k.Users[0].Name != "mine":
		t.Errorf("k.Users[0].Name = %q, want %q", k.Users[0].Name, "mine")
	case k.Users[0].User["token"] != "abc":
		t.Errorf(`k.Users[0].User["token"] = %v, want %v`, k.Users[0].User["token"], "abc")
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
	switch k := readKube(t, m.path(".kube/config")); {
	case len(k.Users) != 1:
		t.Errorf("after logout: len(k.Users) = %v, want 1", len(k.Users))
	case len(k.Clusters) != 0:
		t.Errorf("after logout: len(k.Clusters) = %v, want 0", len(k.Clusters))
	case len(k.Contexts) != 0:
		t.Errorf("after logout: len(k.Contexts) = %v, want 0", len(k.Contexts))
	case k.CurrentContext != "mine":
		t.Errorf("after logout: k.CurrentContext = %q, want %q", k.CurrentContext, "mine")
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
	switch {
	case r.code != 1:
		t.Errorf("code: r.code = %v, want 1", r.code)
	case !strings.Contains(r.err, "belongs to another user"):
		t.Errorf("code: r.err = %q does not contain %q", r.err, "belongs to another user")
	case !strings.Contains(r.err, "--kubeconfig"):
		t.Errorf("code: r.err = %q does not contain %q", r.err, "--kubeconfig")
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
	switch {
	case r.code != 1:
		t.Errorf("stale: code: r.code = %v, want 1", r.code)
	case !strings.Contains(r.err, "config.lock has existed for 2m"):
		t.Errorf("stale: code: r.err = %q does not contain %q", r.err, "config.lock has existed for 2m")
	case !strings.Contains(r.err, "remove "+m.path(".kube/config.lock")):
		t.Errorf(`stale: code: r.err = %q does not contain "remove "+m.path(".kube/config.lock")`, r.err)
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
	switch {
	case r.code != 1:
		t.Errorf("held: code: r.code = %v, want 1", r.code)
	case took < 5*time.Second:
		t.Errorf("held: code: took = %v, want at least %v", took, 5*time.Second)
	case !strings.Contains(r.err, "is held by another program"):
		t.Errorf("held: code: r.err = %q does not contain %q", r.err, "is held by another program")
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
		switch {
		case len(k.Users) == 0:
			t.Fatalf("killed: len(k.Users) = %v; %v", len(k.Users), whole*time.Duration(i)/20)
		case k.Users[0].Name != "mine":
			t.Fatalf("killed: k.Users[0].Name = %q, want %q; %v", k.Users[0].Name, "mine", whole*time.Duration(i)/20)
		case k.Users[0].User["token"] != "abc":
			t.Fatalf(`killed: k.Users[0].User["token"] = %v, want %v; %v`, k.Users[0].User["token"], "abc", whole*time.Duration(i)/20)
		case len(k.Users) != len(k.Contexts)+1:
			t.Fatalf("killed: len(k.Users) = %v, want %v; %v", len(k.Users), len(k.Contexts)+1, whole*time.Duration(i)/20)
		case len(k.Contexts) != len(k.Clusters):
			t.Fatalf("killed: len(k.Contexts) = %v, want %v; %v", len(k.Contexts), len(k.Clusters), whole*time.Duration(i)/20)
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
	switch r := m.run("credential", "--cluster", "prod-eu"); {
	case r.code != 0:
		t.Errorf("credential: code: r.code = %v, want 0", r.code)
	case strings.Count(r.out, canary) != 1:
		t.Errorf("credential: code: strings.Count(r.out, canary) = %v, want 1", strings.Count(r.out, canary))
	case r.err != "":
		t.Errorf("credential: code: r.err = %q, want none", r.err)
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
		switch {
		case strings.Contains(f, ".tka-"):
			t.Errorf("still present after logout: f = %q contains %q", f, ".tka-")
		case strings.HasSuffix(f, ".lock"):
			t.Errorf("still present after logout: f = %q ends with %q", f, ".lock")
		case strings.Contains(f, "tokens"):
			t.Errorf("still present after logout: f = %q contains %q", f, "tokens")
		case strings.Contains(m.read(t, f), canary):
			t.Errorf("still present after logout: strings.Contains(m.read(t, f), canary) is true; %s", f)
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
	all := []string{"PATH=" + os.Getenv("PATH"), "GORACE=" + raceOptions}
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
