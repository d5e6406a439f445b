// Package plane tests the operator plane's own program on a real tailnet and a real API server.
package plane

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/tailnettest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

var update = flag.Bool("update", false, "rewrite testdata/personas.golden")

// deadline is the timeout for conditions that hold at once on an idle machine.
const deadline = 2 * time.Minute

// basePolicy is the tailnet's policy with a placeholder for the plane's grants.
const basePolicy = `{
  "tagOwners": {"tag:tailplane": ["autogroup:admin"], "tag:ci": ["autogroup:admin"], "tag:robot": ["autogroup:admin"]},
  "grants": [
    {"src": ["*"], "dst": ["tag:tailplane"], "ip": ["tcp:443"]},
    {"src": ["alice@example.com", "bob@example.com"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/access": [{"role": "view", "period": "1h"}]}},
    %s
  ],
}`

// grants are the plane's own grants.
var grants = []string{
	`{"src": ["alice@example.com"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/plane": [{"role": "operator", "orgs": ["*"]}]}}`,
	`{"src": ["bob@example.com"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/plane": [{"role": "viewer", "orgs": ["globex"]}]}}`,
	`{"src": ["vic@example.com"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/plane": [{"role": "viewer", "orgs": ["acme"]}]}}`,
	`{"src": ["eve@example.com"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/plane": [{"role": "viewer", "orgs": ["*"]}]}}`,
	`{"src": ["ola@example.com"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/plane": [{"role": "operator", "orgs": ["initech"]}]}}`,
	`{"src": ["val@example.com"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/plane": [{"role": "viewer", "orgs": ["initech"]}]}}`,
	`{"src": ["typo@example.com"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/plane": [{"role": "viewer", "org": ["*"]}]}}`,
	`{"src": ["tag:robot"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/plane": [{"role": "viewer", "orgs": ["*"], "tags": ["tag:robot"]}]}}`,
	`{"src": ["tag:ci"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/plane": [{"role": "viewer", "orgs": ["*"]}]}}`,
}

func policyOf(grants []string) string {
	return fmt.Sprintf(basePolicy, strings.Join(grants, ",\n    "))
}

// ungrant removes the plane's grants that name a caller, until the test ends.
func ungrant(t *testing.T, r *testenv.Env, name string) {
	t.Helper()
	rest := slices.DeleteFunc(slices.Clone(grants), func(g string) bool { return strings.Contains(g, name) })
	if err := r.Net.SetPolicy(policyOf(rest)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Net.SetPolicy(policyOf(grants)); err != nil {
			t.Error(err)
		}
	})
}

func TestMain(m *testing.M) { testenv.Main(m) }

// system is what start has started.
var system struct {
	issuer     *testenv.Issuer
	upstream   *upstream
	prometheus *observed
	unnamed    error // the reason why nothing is exposed here
}

// enrollment makes amy an owner of acme, and every login of acme.dev a member.
const enrollment = `
apiVersion: tailplane.dev/v1alpha1
kind: RunnerEnrollment
metadata: {name: acme}
spec:
  forge: github
  configURL: https://github.com/acme
  groupID: 1
  pools: [{name: linux, allowPublic: false}]
  credentials: {secretName: acme}
  owners: [amy@acme.dev]
  members: ["*@acme.dev"]
`

// start returns the environment that all tests of this binary share: access server, operator and plane, each with its own account.
func start(t *testing.T) *testenv.Env {
	t.Helper()
	env := shared(t)
	t.Cleanup(func() {
		if t.Failed() {
			out := env.Plane.Output()
			t.Logf("the end of the plane's log:\n%s", out[max(0, len(out)-4000):])
		}
	})
	return env
}

var shared = testenv.SharedEnv(func(ctx context.Context, dir string) (_ *testenv.Env, err error) {
	s := &system
	if s.issuer, err = testenv.NewIssuer(); err != nil {
		return nil, err
	}
	testenv.AtEnd(func() error { s.issuer.Close(); return nil })
	s.upstream, s.prometheus = newUpstream(), &observed{listener: newListener()}
	testenv.AtEnd(func() error { s.upstream.srv.Close(); return nil })
	if err := s.prometheus.start(ctx, filepath.Join(dir, "prometheus")); err != nil {
		return nil, err
	}
	testenv.AtEnd(func() error { s.prometheus.close(); return nil })
	o := testenv.Options{Policy: policyOf(grants), Settings: map[string]string{
		"plane.roles": `[{login: pat@platform.dev, userID: "` + tailnettest.UserID("pat@platform.dev") + `", role: platform-admin}]`, "plane.emailDomains": `[acme.dev]`, "plane.contact": `"#platform"`,
		"plane.identity": "{oidc: " + s.issuer.Settings() + "}", "fleet.approval": "plane",
		"plane.logs": "{enabled: true}", "plane.prometheus": fmt.Sprintf("{url: %q}", s.prometheus.URL)}}
	if s.unnamed = testenv.CanName(ctx); s.unnamed == nil {
		o.Settings["plane.exposures"] = "[" + s.prometheus.exposure() + ", " + s.upstream.exposures() + "]"
		o.Hosts = map[string]string{"prometheus.monitoring.svc": "127.0.0.1", "grafana.monitoring.svc": "127.0.0.1", "attic.cache.svc": "127.0.0.1"}
	}
	env, err := testenv.Start(ctx, dir, o)
	if err != nil {
		return nil, err
	}
	if err := env.Cluster.Apply(ctx, []byte(enrollment)); err != nil {
		return env, err
	}
	return env, env.StartPlane(ctx)
})

// person returns a person whose device can reach the plane.
func person(t *testing.T, r *testenv.Env, host, login string, tags ...string) *testenv.Person {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	p, err := r.Person(ctx, host, login, tags...)
	if err == nil {
		err = r.Net.WaitPeer(ctx, p.Node, "dashboard")
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// until waits for a condition.
func until(t *testing.T, what string, true func() bool) {
	t.Helper()
	for end := time.Now().Add(deadline); !true(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("timed out waiting for:", what)
		}
	}
}

// wellRead waits until sources of the plane are healthy. On a timeout it reports their state.
func wellRead(t *testing.T, r *testenv.Env, p *testenv.Person, names ...string) {
	t.Helper()
	for end := time.Now().Add(deadline); ; time.Sleep(50 * time.Millisecond) {
		a, err := ask(t, r, p, "GET", "/api/v1/sources", "")
		if !slices.ContainsFunc(names, func(name string) bool { return !strings.Contains(a.body, `"`+name+`","status":"ok"`) }) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%q were never ok: %s, %v", names, a.body, err)
		}
	}
}

// An answer is a response envelope, unchanged.
type answer struct {
	status int
	header http.Header
	body   string

	Data json.RawMessage
	Meta struct {
		Sources []struct{ Name, Status, Message string }
	}
	Error *struct{ Code, Message string }
}

func (a answer) code() string {
	if a.Error == nil {
		return ""
	}
	return a.Error.Code
}

// count returns the number of objects in the data, or "" if the data is no list.
func (a answer) count() string {
	var list []json.RawMessage
	if json.Unmarshal(a.Data, &list) != nil || list == nil {
		return ""
	}
	return fmt.Sprint(len(list))
}

// ask sends one request to the plane as a person's device.
func ask(t *testing.T, r *testenv.Env, p *testenv.Person, method, path, body string, edit ...func(*http.Request)) (answer, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, r.Dashboard()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, e := range edit {
		e(req)
	}
	hc := p.HTTP()
	defer hc.CloseIdleConnections()
	res, err := hc.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	a := answer{status: res.StatusCode, header: res.Header, body: string(b)}
	_ = json.Unmarshal(b, &a) // a page is not JSON
	return a, err
}

func must(t *testing.T, a answer, err error) answer {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// signIn signs a person in and waits until the plane shows it.
func signIn(t *testing.T, r *testenv.Env, p, watcher *testenv.Person) (name string) {
	t.Helper()
	st, err := signin.Login.Call(t.Context(), p.Client(), signin.LoginRequest{})
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the plane shows it", func() bool {
		a, err := ask(t, r, watcher, "GET", "/api/v1/signins?limit=500", "")
		return err == nil && strings.Contains(a.body, `"`+st.Name+`"`)
	})
	return st.Name
}

// PLANE-04: the rights of each persona, over the real tailnet, with the real program.
func TestPLANE04_Personas(t *testing.T) {
	r := start(t)
	alice := person(t, r, "alice-laptop", "alice@example.com")
	bob := person(t, r, "bob-laptop", "bob@example.com")
	wellRead(t, r, alice, "kubernetes:runnerenrollments", "kubernetes:members")
	own, his := signIn(t, r, alice, alice), signIn(t, r, bob, alice)
	personas := []struct {
		name  string
		who   *testenv.Person
		after func(*testenv.Person) // runs before the request
	}{
		{"alice, operator of all", alice, nil},
		{"bob, viewer of globex", bob, nil},
		{"vic, viewer of acme", person(t, r, "vic-laptop", "vic@example.com"), nil},
		{"eve, viewer of all", person(t, r, "eve-laptop", "eve@example.com"), nil},
		{"pat, platform-admin by settings", person(t, r, "pat-laptop", "pat@platform.dev"), nil},
		{"amy, owner of acme", person(t, r, "amy-laptop", "amy@acme.dev"), nil},
		{"mel, of acme's domain", person(t, r, "mel-laptop", "mel@acme.dev"), nil},
		{"nel, of a domain that ends alike", person(t, r, "nel-laptop", "nel@notacme.dev"), nil},
		{"mallory, without a role", person(t, r, "mallory-laptop", "mallory@example.com"), nil},
		{"typo, whose rule is misspelt", person(t, r, "typo-laptop", "typo@example.com"), nil},
		{"a guest with the owner's login", person(t, r, "guest-laptop", "amy@acme.dev"), func(p *testenv.Person) {
			id, err := r.Net.ID(p.Node)
			if err != nil || !r.Net.Share(id) {
				t.Fatal("share", err)
			}
		}},
		{"tag:robot, whose rule names it", person(t, r, "robot", "", "tag:robot"), nil},
		{"tag:ci, whose rule does not", person(t, r, "ci", "", "tag:ci"), nil},
	}
	requests := []struct{ name, method, path, body string }{
		{"me", "GET", "/api/v1/me", ""},
		{"overview", "GET", "/api/v1/overview", ""},
		{"clusters", "GET", "/api/v1/clusters", ""},
		{"signins", "GET", "/api/v1/signins", ""},
		{"revoke alice's, dry", "DELETE", "/api/v1/signins/" + testenv.SigninNamespace + "/" + own + "?dryRun=true", `{"reason":"test"}`},
		{"revoke bob's, dry", "DELETE", "/api/v1/signins/" + testenv.SigninNamespace + "/" + his + "?dryRun=true", `{"reason":"test"}`},
		{"audit", "GET", "/api/v1/audit?limit=1", ""},
		{"the dashboard", "GET", "/", ""},
	}
	var got strings.Builder
	for _, p := range personas {
		if p.after != nil {
			p.after(p.who)
			until(t, p.name+" is seen so", func() bool {
				a, err := ask(t, r, p.who, "GET", "/api/v1/me", "")
				return err == nil && a.status != http.StatusOK
			})
		}
		for _, q := range requests {
			a, err := ask(t, r, p.who, q.method, q.path, q.body)
			a = must(t, a, err)
			count := a.count()
			if q.name == "audit" && count != "" { // the number of earlier requests of others varies
				count = "some"
			}
			fmt.Fprintf(&got, "%s\n", strings.TrimRight(fmt.Sprintf("%-36s %-22s %d %s %s", p.name, q.name, a.status, a.code(), count), " "))
			if a.status >= 400 && (strings.Contains(a.body, own) || strings.Contains(a.body, his)) {
				t.Errorf("%s: %s: a refusal that reveals data: %s", p.name, q.name, a.body)
			}
			if a.header.Get("Cache-Control") != "no-store" && q.name != "the dashboard" {
				t.Errorf("%s: %s: Cache-Control %q", p.name, q.name, a.header.Get("Cache-Control"))
			}
		}
	}
	const golden = "testdata/personas.golden"
	want, err := os.ReadFile(golden)
	if *update {
		err = os.WriteFile(golden, []byte(got.String()), 0o644)
	} else if got.String() != string(want) {
		t.Errorf("%s: got\n%s", golden, got.String())
	}
	if err != nil {
		t.Fatal(err)
	}

	// A caller without a role gets the contact to request one, and nothing else.
	a, err := ask(t, r, personas[8].who, "GET", "/", "", func(q *http.Request) { q.Header.Set("Accept", "text/html") })
	switch a = must(t, a, err); {
	case a.status != http.StatusForbidden:
		t.Errorf("the page for a caller without a role: a.status = %v, want %v", a.status, http.StatusForbidden)
	case !strings.Contains(a.body, "mallory@example.com"):
		t.Errorf("the page for a caller without a role: a.body = %q does not contain %q", a.body, "mallory@example.com")
	case !strings.Contains(a.body, "#platform"):
		t.Errorf("the page for a caller without a role: a.body = %q does not contain %q", a.body, "#platform")
	case !strings.Contains(a.body, "tag:tailplane"):
		t.Errorf("the page for a caller without a role: a.body = %q does not contain %q", a.body, "tag:tailplane")
	case strings.Contains(a.body, "/assets/"):
		t.Errorf("the page for a caller without a role: a.body = %q contains %q", a.body, "/assets/")
	}

	// An expired device is refused with its own problem code, and none of its open connections continues.
	late := person(t, r, "late-laptop", "alice@example.com")
	id, err := r.Net.ID(late.Node)
	if err != nil || !r.Net.Expire(id) {
		t.Fatal("expire", err)
	}
	until(t, "an expired device is refused", func() bool {
		short, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(short, "GET", r.Dashboard()+"/api/v1/me", nil)
		if err != nil {
			t.Fatal(err)
		}
		hc := late.HTTP()
		defer hc.CloseIdleConnections()
		res, err := hc.Do(req)
		if err != nil {
			return true // the tailnet itself no longer carries the request
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		return res.StatusCode == http.StatusUnauthorized && bytes.Contains(b, []byte("node_expired"))
	})
}
