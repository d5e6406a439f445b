package cli_test

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/signin"
)

// newServerWithAPI returns an access server whose cluster has a scripted API server. The API server knows pods and nodes, and lets a caller
// with the token get pods. End-to-end tests cover a real API server.
func newServerWithAPI(t *testing.T, rules ...string) (*accessServer, *httptest.Server) {
	t.Helper()
	api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/version" && !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer "+canary) {
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"kind":"Status","message":"Unauthorized"}`)
			return
		}
		switch r.URL.Path {
		case "/version":
			fmt.Fprint(w, `{"gitVersion":"v1.37.0"}`)
		case "/api":
			fmt.Fprint(w, `{"items":[{"metadata":{"name":""},"versions":[{"resources":[{"resource":"pods","singularResource":"pod","shortNames":["po"],"scope":"Namespaced"},{"resource":"nodes","scope":"Cluster"}]}]}]}`)
		case "/apis":
			fmt.Fprint(w, `{"items":[]}`)
		case "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews":
			var review struct {
				Spec struct {
					ResourceAttributes struct{ Verb, Resource, Namespace string }
				}
			}
			if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
				t.Error(err)
			}
			a := review.Spec.ResourceAttributes
			fmt.Fprintf(w, `{"status":{"allowed":%v,"reason":%q}}`, a.Verb == "get" && a.Resource == "pods", "asked in "+a.Namespace)
		case "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews":
			fmt.Fprint(w, `{"status":{"resourceRules":[{"apiGroups":[""]},{"apiGroups":["authorization.k8s.io"]}]}}`)
		default:
			t.Errorf("asked for %s", r.URL.Path)
		}
	}))
	t.Cleanup(api.Close)
	d := &accessServer{store: newSigninStore(0), cluster: "prod-eu", rules: rules}
	d.server, d.ca = api.URL, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.Certificate().Raw})
	d.start()
	srv := httptest.NewServer(d)
	t.Cleanup(srv.Close)
	return d, srv
}

// why shows each step from the identity to the API server's decision.
func TestWhy(t *testing.T) {
	d, srv := newServerWithAPI(t, grantRule("view/8h/1"), grantRule("edit/1h/0/shop"))
	d.lacks = []access.Verb{access.SigninRoles}
	d.start()
	m := newMachine(t, srv.URL)
	for _, tt := range []struct {
		args  []string
		code  int
		words []string
	}{
		{nil, 0, []string{"You are alice@example.com on alice-laptop.example.ts.net, in the tailnet example.com.", "serves prod-eu", "view   8h       1          all          chosen", "edit   1h       0          shop",
			"A login gives the role \"view\"", "This device is not signed in."}},
		{[]string{"get", "pods"}, 3, []string{"not signed in"}},
	} {
		r := m.run(append([]string{"why"}, tt.args...)...)
		for _, w := range tt.words {
			if !strings.Contains(r.out, w) {
				t.Errorf("why %v lacks %q\n%s%s", tt.args, w, r.out, r.err)
			}
		}
		if r.code != tt.code {
			t.Errorf("why %v: code %d: %s%s", tt.args, r.code, r.out, r.err)
		}
	}
	if r := m.run("login"); r.code != 0 {
		t.Fatal(r.err)
	}
	for _, tt := range []struct {
		args string
		code int
		word string
	}{
		{"get pods", 0, "get pods in default: allowed (asked in default)"},
		{"get po/web -n shop", 0, "get pods/web in shop: allowed (asked in shop)"},
		{"get pods -A", 0, "get pods in the whole cluster: allowed (asked in )"},
		{"delete pods -n shop", 3, "delete pods in shop: refused"},
		{"delete pods -n shop", 3, "try: You have another granted role that may allow it: tka login --role edit --namespace shop"},
		{"get nodes -n shop", 3, "get nodes in the whole cluster: refused"},
		{"get widgets", 3, "get widgets in default: refused"},
		{"get /metrics", 3, "get /metrics: refused"},
		{"get", 2, ""},
		{"get pods now", 2, ""},
		{"get pods -n shop -A", 2, ""},
		{"get pods -n $(x)", 2, ""},
	} {
		r := m.run(append([]string{"why"}, strings.Fields(tt.args)...)...)
		switch {
		case r.code != tt.code:
			t.Errorf("why: r.code = %v, want %v; %s", r.code, tt.code, tt.args)
		case !strings.Contains(r.out, tt.word):
			t.Errorf("why: r.out = %q does not contain %q; %s", r.out, tt.word, tt.args)
		case strings.Contains(r.out+r.err, canary):
			t.Errorf("why: r.out+r.err = %q contains %q; %s", r.out+r.err, canary, tt.args)
		}
	}
	d.lacks, d.roles = nil, map[access.Role][]signin.PolicyRule{
		"view": {{Verbs: []string{"get", "list"}, APIGroups: []string{""}, Resources: []string{"pods"}}},
		"edit": {{Verbs: []string{"get", "delete"}, APIGroups: []string{""}, Resources: []string{"pods"}}},
	}
	d.start()
	for args, want := range map[string]string{
		"delete pods -n shop": "try: Your role edit allows it: tka login --role edit --namespace shop",
		"delete pods -n blog": "try: Ask for a grant with a role that may delete pods in blog.",
		"create pods -n shop": "try: Ask for a grant with a role that may create pods in shop.",
		"get /metrics":        "try: Ask for a grant with a role that may get /metrics.",
	} {
		r := m.run(append([]string{"why"}, strings.Fields(args)...)...)
		if _, advice, _ := strings.Cut(r.out, "try: "); r.code != 3 || "try: "+advice != want+"\n" {
			t.Errorf("why %s: code %d, got %q, want %q", args, r.code, r.out, want)
		}
	}
	var info struct {
		APIVersion, Kind, Server, Cluster string
		Proved                            bool
		Caller                            struct{ Login string }
		Rules                             []struct{ Role string }
		Question                          struct{ Verb string }
		Answer                            struct{ Allowed bool }
	}
	r := m.run("why", "get", "pods", "-o", "json")
	switch err := json.Unmarshal([]byte(r.out), &info); {
	case err != nil:
		t.Errorf("%v; %s", err, r.out)
	case info.Kind != "Why":
		t.Errorf("info.Kind = %q, want %q; %s", info.Kind, "Why", r.out)
	case !info.Proved:
		t.Errorf("info.Proved is false; %v, info = %+v, %s", err, info, r.out)
	case info.Caller.Login != "alice@example.com":
		t.Errorf("info.Caller.Login = %q, want %q; %s", info.Caller.Login, "alice@example.com", r.out)
	case len(info.Rules) != 2:
		t.Errorf("len(info.Rules) = %v, want 2; %s", len(info.Rules), r.out)
	case !info.Answer.Allowed:
		t.Errorf("info.Answer.Allowed is false; %v, info = %+v, %s", err, info, r.out)
	}
}

// A caller without a grant gets that reason, from a new server and from a known one.
func TestWhyWithoutGrant(t *testing.T) {
	d, srv := newServerWithAPI(t)
	m := newMachine(t, srv.URL)
	r := m.run("why")
	switch {
	case r.code != 3:
		t.Errorf("code: r.code = %v, want 3; %s", r.code, r.err)
	case !strings.Contains(r.out, "alice@example.com has no tailplane.dev/cap/access grant"):
		t.Errorf("code: r.out = %q does not contain %q; %s", r.out, "alice@example.com has no tailplane.dev/cap/access grant", r.err)
	case !strings.Contains(r.out, "could not prove"):
		t.Errorf("code: r.out = %q does not contain %q; %s", r.out, "could not prove", r.err)
	case !strings.Contains(r.out, "try: Ask for a grant"):
		t.Errorf("code: r.out = %q does not contain %q; %s", r.out, "try: Ask for a grant", r.err)
	}
	d.rules = []string{grantRule("view/8h")}
	d.start()
	if r := m.run("login"); r.code != 0 {
		t.Fatal(r.err)
	}
	d.rules = nil
	d.start()
	r = m.run("why", "get", "pods")
	switch {
	case r.code != 3:
		t.Errorf("code: r.code = %v, want 3; %s", r.code, r.err)
	case !strings.Contains(r.out, "has no tailplane.dev/cap/access grant"):
		t.Errorf("code: r.out = %q does not contain %q; %s", r.out, "has no tailplane.dev/cap/access grant", r.err)
	case strings.Contains(r.out, "could not prove"):
		t.Errorf("code: r.out = %q contains %q; %s", r.out, "could not prove", r.err)
	case !strings.Contains(r.out, "signed in with the role view"):
		t.Errorf("code: r.out = %q does not contain %q; %s", r.out, "signed in with the role view", r.err)
	}
	// ending a sign-in needs no grant
	if r := m.run("logout"); r.code != 0 || !strings.Contains(r.out, "Signed out of prod-eu.") {
		t.Errorf("code %d\n%s%s", r.code, r.out, r.err)
	}
	if r := m.run("doctor"); r.code != 3 || !strings.Contains(r.out, "fail    grant         alice@example.com has no") {
		t.Errorf("code %d\n%s%s", r.code, r.out, r.err)
	}
}

// checkResults returns the findings in a doctor's output by name: "ok", "warn: message".
func checkResults(t *testing.T, r result) map[string]string {
	t.Helper()
	var info struct {
		Kind     string
		Findings []struct{ Name, State, Message string }
	}
	if err := json.Unmarshal([]byte(r.out), &info); err != nil || info.Kind != "Checkup" {
		t.Fatalf("%v: %s%s", err, r.out, r.err)
	}
	all := map[string]string{}
	for _, f := range info.Findings {
		all[f.Name] = f.State + ": " + f.Message
	}
	return all
}

func TestDoctor(t *testing.T) {
	_, srv := newServerWithAPI(t, grantRule("view/8h"))
	m := newMachine(t, srv.URL)
	check := func(code int, want map[string]string) {
		t.Helper()
		r := m.run("doctor", "-o", "json")
		all := checkResults(t, r)
		if r.code != code {
			t.Errorf("code %d, want %d\n%s%s", r.code, code, r.out, r.err)
		}
		for name, begin := range want {
			if !strings.HasPrefix(all[name], begin) {
				t.Errorf("%s is %q, want %q…", name, all[name], begin)
			}
		}
		if strings.Contains(r.out+r.err, canary) {
			t.Error("the token is shown")
		}
	}
	check(0, map[string]string{"settings": "ok", "server": "ok: The server " + srv.URL + " answers over http", "server proof": "warn: The server proved its identity with a key that is new to this machine: ed25519:",
		"clock": "ok", "grant": "ok", "sign-in": "warn: This device is not signed in.", "API server": "ok: The API server ", "rights": "skipped", "kubeconfig": "warn: The kubeconfig has no context tka-prod-eu",
		"plugin": "skipped", "tokens": "ok: tka caches tokens for kubectl on disk"})
	if r := m.run("login"); r.code != 0 {
		t.Fatal(r.err)
	}
	check(0, map[string]string{"server proof": "ok", "sign-in": "ok", "rights": "ok: The API server accepts the token; 1 rule", "kubeconfig": "ok: The context tka-prod-eu is the current one.", "plugin": "ok", "plugin policy": "ok"})

	// kubectl's own settings
	m.write(t, ".kube/kuberc", "apiVersion: kubectl.config.k8s.io/v1beta1\nkind: Preference\ncredentialPluginPolicy: Allowlist\ncredentialPluginAllowlist:\n- command: aws\n")
	check(1, map[string]string{"plugin policy": "fail: kubectl may not run the plugin"})
	for _, key := range []string{"command", "name"} {
		m.write(t, ".kube/kuberc", "credentialPluginPolicy: Allowlist\ncredentialPluginAllowlist:\n- "+key+": tka\n")
		check(0, map[string]string{"plugin policy": "ok: kubectl may run the plugin"})
	}

	// a kubeconfig with another address, and a stale lock
	config := m.read(t, ".kube/config")
	m.write(t, ".kube/config", strings.Replace(config, "https://127.0.0.1", "https://localhost", 1))
	check(1, map[string]string{"kubeconfig": "fail: The context tka-prod-eu has another"})
	m.write(t, ".kube/config", config)
	m.write(t, ".kube/config.lock", "")
	if err := os.Chtimes(m.path(".kube/config.lock"), time.Time{}, time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	check(0, map[string]string{"kubeconfig": "warn: A killed program left"})
	os.Remove(m.path(".kube/config.lock"))

	// output for people
	os.Remove(m.path(".kube/kuberc"))
	switch r := m.run("doctor"); {
	case r.code != 0:
		t.Errorf("code: r.code = %v, want 0; %s", r.code, r.err)
	case !strings.Contains(r.out, "\nok      sign-in       This device is signed in with the role view"):
		t.Errorf("code: r.out = %q does not contain %q; %s",
			r.out, "\nok      sign-in       This device is signed in with the role view", r.err)
	case !strings.Contains(r.out, "try: In ~/.kube/kuberc: credentialPluginPolicy: Allowlist"):
		t.Errorf("code: r.out = %q does not contain %q; %s", r.out, "try: In ~/.kube/kuberc: credentialPluginPolicy: Allowlist", r.err)
	}
	srv.Close()
	check(5, map[string]string{"server": "fail: The server " + srv.URL + " cannot be reached", "grant": "skipped", "API server": "skipped", "kubeconfig": "skipped"})
	m.write(t, "config/tka/config.yaml", "sever: x\n")
	r := m.run("doctor", "-o", "json") // the output format is in the settings too
	if all := checkResults(t, r); r.code != 2 || !strings.HasPrefix(all["settings"], "fail") {
		t.Errorf("code %d: %v", r.code, all)
	}
	switch r := m.run("doctor"); {
	case r.code != 2:
		t.Errorf("code: r.code = %v, want 2", r.code)
	case !strings.Contains(r.out, "fail    settings"):
		t.Errorf("code: r.out = %q does not contain %q", r.out, "fail    settings")
	case r.err != "":
		t.Errorf("code: r.err = %q, want none", r.err)
	}
}

// doctor uses the tailscale command if there is one.
func TestDoctorQueriesTheTailnet(t *testing.T) {
	_, srv := newServerWithAPI(t, grantRule("view/8h"))
	m := newMachine(t, srv.URL)
	bin := m.path("bin")
	for answer, want := range map[string]string{
		`{"BackendState":"Running","Self":{"DNSName":"alice.example.ts.net.","KeyExpiry":"2099-01-01T00:00:00Z"}}`: "ok: This machine is in the tailnet as alice.example.ts.net.",
		`{"BackendState":"NeedsLogin"}`: "fail: This machine is not in the tailnet",
		`boom`:                          "skipped: The tailscale command gives no answer",
	} {
		m.write(t, "bin/tailscale", "#!/bin/sh\necho '"+answer+"'\n")
		if err := os.Chmod(filepath.Join(bin, "tailscale"), 0o700); err != nil {
			t.Fatal(err)
		}
		r := m.spawn(t, []string{"PATH=" + bin + ":" + os.Getenv("PATH")}, "doctor", "-o", "json")
		if all := checkResults(t, r); !strings.HasPrefix(all["tailnet"], want) {
			t.Errorf("%s: %q", answer, all["tailnet"])
		}
	}
}
