package cli_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tailplane/tailplane/testkit/oidctest"
)

// A runnerServer is an access server whose rule requires a token of a job.
func newRunnerServer(t *testing.T) (*accessServer, *httptest.Server) {
	t.Helper()
	issuer := oidctest.New(t)
	d := &accessServer{store: newSigninStore(0), cluster: "prod-eu", issuer: issuer, tagged: true, rules: []string{fmt.Sprintf(
		`{"role":"edit","period":"1h","allowTagged":true,"oidc":{"issuer":%q,"claims":{"repository":"acme/shop"}}}`, issuer.URL)}}
	d.start()
	srv := httptest.NewServer(d)
	t.Cleanup(srv.Close)
	return d, srv
}

// newJob returns a machine that knows the key of the server, as a job does from its settings.
func newJob(t *testing.T, d *accessServer, srv *httptest.Server) *machine {
	m := newMachine(t, srv.URL)
	m.env["TKA_SERVER_KEY"] = d.key.Public().String()
	return m
}

// startGitHub starts what a runner of GitHub has for its jobs: an address that returns tokens for an audience.
func startGitHub(t *testing.T, m *machine, issuer *oidctest.Issuer, job string) *atomic.Int32 {
	t.Helper()
	asked := new(atomic.Int32)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if r.Header.Get("Authorization") != "Bearer request-secret" || r.URL.Query().Get("api-version") != "2" {
			t.Errorf("request for a token: %s", r.URL)
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		json.NewEncoder(w).Encode(map[string]any{"count": 1, "value": issuer.Token(t, "repo:acme/shop:"+job, r.URL.Query().Get("audience"), map[string]any{"repository": "acme/shop"})})
	}))
	t.Cleanup(srv.Close)
	m.env["ACTIONS_ID_TOKEN_REQUEST_URL"], m.env["ACTIONS_ID_TOKEN_REQUEST_TOKEN"] = srv.URL+"/token?api-version=2", "request-secret"
	return asked
}

// A job on GitHub signs in, works and signs out without a flag, and leaves no token of either kind on the disk.
func TestLoginWithTokenOfGitHub(t *testing.T) {
	d, srv := newRunnerServer(t)
	m := newJob(t, d, srv)
	if r := m.run("login"); r.code != 3 || !strings.Contains(r.err, "requires an OIDC token") {
		t.Errorf("without a token: %d %s", r.code, r.err)
	}
	asked := startGitHub(t, m, d.issuer, "main")
	if r := m.run("login"); r.code != 0 {
		t.Fatal(r.err)
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("%d requests for a token in one command", n)
	}
	for range 2 { // nothing is cached
		r := m.run("credential", "--cluster", "prod-eu")
		if r.code != 0 || !strings.Contains(r.out, canary) {
			t.Fatalf("credential: %d %s", r.code, r.err)
		}
	}
	for _, name := range m.files(t) {
		text := m.read(t, name)
		if strings.Contains(text, canary) || strings.Contains(text, "eyJhbGci") {
			t.Errorf("%s has a token", name)
		}
	}
	if r := m.run("whoami", "-o", "json"); !strings.Contains(r.out, "repo:acme/shop:main") {
		t.Errorf("whoami: %d %s %s", r.code, r.out, r.err)
	}
	// Another job of this machine sees nothing of it.
	startGitHub(t, m, d.issuer, "other")
	if r := m.run("credential", "--cluster", "prod-eu"); r.code != 3 {
		t.Errorf("credential of another job: %d %s", r.code, r.out)
	}
	startGitHub(t, m, d.issuer, "main")
	if r := m.run("logout"); r.code != 0 || len(d.store.signins) != 0 {
		t.Errorf("logout: %d %s; %d sign-ins", r.code, r.err, len(d.store.signins))
	}
}

// A token from the environment: GitLab's variable, or one that a flag names. kubectl's plugin gets the flag too.
func TestLoginWithTokenOfEnvironment(t *testing.T) {
	d, srv := newRunnerServer(t)
	token := func(subject, audience string, changes map[string]any) string {
		all := map[string]any{"repository": "acme/shop"}
		for name, value := range changes {
			all[name] = value
		}
		return d.issuer.Token(t, subject, audience, all)
	}
	m := newJob(t, d, srv)
	m.env["TKA_OIDC_TOKEN"] = token("job", "prod-eu", nil)
	if r := m.run("login"); r.code != 0 {
		t.Fatal(r.err)
	}
	delete(m.env, "TKA_OIDC_TOKEN")
	m.env["MY_TOKEN"] = token("mine", "prod-eu", nil)
	if r := m.run("login", "--oidc-token-env", "MY_TOKEN"); r.code != 0 {
		t.Fatal(r.err)
	}
	if text := m.read(t, ".kube/config"); !strings.Contains(text, "--oidc-token-env") {
		t.Errorf("the kubeconfig does not name the variable:\n%s", text)
	}
	if n := len(d.store.signins); n != 2 {
		t.Errorf("%d sign-ins, want 2", n)
	}
	before := len(d.received())
	for name, text := range map[string]string{
		"for another server":   token("job", "https://sts.amazonaws.com", nil),
		"of another issuer":    token("job", "prod-eu", map[string]any{"iss": "https://evil.example"}),
		"for two audiences":    token("job", "prod-eu", map[string]any{"aud": []string{"prod-eu", "x"}}),
		"that has expired":     token("job", "prod-eu", map[string]any{"exp": 1}),
		"that is not a token":  "hello",
		"with a line break":    token("job", "prod-eu", nil) + "\nX-Evil: 1",
		"without an end":       token("job", "prod-eu", map[string]any{"exp": nil}),
		"that is not a string": "a.b.c",
	} {
		m.env["MY_TOKEN"] = text
		r := m.run("login", "--oidc-token-env", "MY_TOKEN")
		if r.code != 3 || strings.Contains(r.err, text) {
			t.Errorf("a token %s: %d %s", name, r.code, r.err)
		}
	}
	for _, request := range d.received()[before:] {
		if !strings.Contains(request, "cluster-info") {
			t.Errorf("a token of no use was sent: %s", request)
		}
	}
	if r := m.run("login", "--oidc-token-env", "NONE"); r.code != 2 {
		t.Errorf("a variable that is not set: %d %s", r.code, r.err)
	}
}

// A server whose key this machine does not know gets no token, and neither does one that proves another key.
func TestNoTokenForUnknownServer(t *testing.T) {
	d, srv := newRunnerServer(t)
	m := newMachine(t, srv.URL)
	asked := startGitHub(t, m, d.issuer, "main")
	r := m.run("login")
	if r.code != 3 || !strings.Contains(r.err, "--server-key") {
		t.Errorf("first contact: %d %s", r.code, r.err)
	}
	d.checkRequests(t, requestInfo)
	other := newMachine(t, srv.URL)
	before := asked.Load()
	startGitHub(t, other, d.issuer, "main")
	if r := other.run("login", "--server-key", keyFor("other").Public().String()); r.code != 3 {
		t.Errorf("another key: %d %s", r.code, r.err)
	}
	if asked.Load() != before {
		t.Error("a token was requested for a server with another key")
	}
}

// A server that accepts no tokens gets none, and the command needs no request to the issuer.
func TestNoTokenForServerWithoutIssuers(t *testing.T) {
	_, srv := newAccessServer(t, "prod-eu")
	m := newMachine(t, srv.URL)
	asked := startGitHub(t, m, oidctest.New(t), "main")
	if r := m.run("login"); r.code != 0 {
		t.Fatal(r.err)
	}
	if n := asked.Load(); n > 0 {
		t.Errorf("%d requests for a token", n)
	}
}
