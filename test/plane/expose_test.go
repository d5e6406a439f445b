package plane

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tailplane/tailplane/testkit/testenv"
)

// An upstream is a service of the cluster that records its requests.
type upstream struct {
	srv *httptest.Server

	mu    sync.Mutex
	asked []*http.Request
}

func newUpstream() *upstream {
	u := &upstream{}
	u.srv = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u.mu.Lock()
		u.asked = append(u.asked, r.Clone(context.Background()))
		u.mu.Unlock()
		if r.URL.Path == "/elsewhere" {
			http.Redirect(w, r, "http://169.254.169.254/", http.StatusFound)
			return
		}
		w.Header().Set("Access-Control-Allow-Origin", "*")
		fmt.Fprint(w, "shown")
	}))
	return u
}

// took returns the recorded requests and clears them.
func (u *upstream) took() []*http.Request {
	u.mu.Lock()
	defer u.mu.Unlock()
	asked := u.asked
	u.asked = nil
	return asked
}

// exposures returns the settings that expose the upstream on the tailnet, as two services.
func (u *upstream) exposures() string {
	at, err := url.Parse(u.srv.URL)
	if err != nil {
		panic(err) // the test server always has a valid URL
	}
	return fmt.Sprintf(`{name: grafana, upstream: "http://grafana.monitoring.svc:%[1]s", access: observe.read, userHeader: X-WEBAUTH-USER, roleHeader: X-WEBAUTH-ROLE}, `+
		`{name: attic, upstream: "http://attic.cache.svc:%[1]s", access: identified}`, at.Port())
}

// at sends a request to an exposed service as a person's device.
func at(t *testing.T, r *testenv.Env, p *testenv.Person, host, method, path string, edit ...func(*http.Request)) (status int, header http.Header, body string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	if err := r.Net.WaitPeer(ctx, p.Node, host); err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(ctx, method, "https://"+host+"."+r.Net.Suffix()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range edit {
		e(req)
	}
	hc := p.HTTP()
	defer hc.CloseIdleConnections()
	res, err := hc.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Header, string(b)
}

// PLANE-03, PL-10: the program exposes services of the cluster on the tailnet. The test checks which caller may see
// which service, and the identity that the service receives. A refused request never reaches the service. One of the
// services is a real Prometheus.
func TestPLANE03_Exposures(t *testing.T) {
	r := start(t)
	if system.unnamed != nil {
		t.Skip("SKIP names of Services: ", system.unnamed)
	}
	eve, vic := person(t, r, "eve-look", "eve@example.com"), person(t, r, "vic-look", "vic@example.com")
	alice, pat := person(t, r, "alice-look", "alice@example.com"), person(t, r, "pat-look", "pat@platform.dev")
	mallory, ci := person(t, r, "mallory-look", "mallory@example.com"), person(t, r, "robot-look", "", "tag:robot")
	wellRead(t, r, alice, "exposure:prometheus", "exposure:grafana", "exposure:attic")
	switch a, err := ask(t, r, alice, "GET", "/api/v1/exposures", ""); {
	case err != nil:
		t.Errorf("the exposed services: %v", err)
	case strings.Count(a.body, `"state":"ok"`) != 3:
		t.Errorf("the exposed services: strings.Count(a.body, `\"state\":\"ok\"`) = %v, want 3", strings.Count(a.body, `"state":"ok"`))
	case !strings.Contains(a.body, `"name":"attic","address":"http`):
		t.Errorf("the exposed services: a.body = %q does not contain %q", a.body, `"name":"attic","address":"http`)
	}
	forged := func(q *http.Request) {
		q.Header["X-WEBAUTH-USER"] = []string{"pat@platform.dev", "root"}
		for name, value := range map[string]string{"X_WEBAUTH_USER": "root", "X-Webauth-Role": "Admin", "X-Tailscale-User": "root", "X-Forwarded-User": "root", "Authorization": "Basic cm9vdDpyb290",
			"Connection": "X-WEBAUTH-USER, X-Webauth-Role"} {
			q.Header[name] = []string{value}
		}
	}
	origin := func(q *http.Request) { q.Header.Set("Origin", "https://evil.example") }
	system.upstream.took()
	for _, x := range []struct {
		why          string
		who          *testenv.Person
		host         string
		method, path string
		edit         func(*http.Request)
		status       int
		user, role   string // as the service receives them
	}{
		{"a viewer of all", eve, "grafana", "GET", "/graph", nil, 200, "eve@example.com", "Viewer"},
		{"a caller with another name in a header", eve, "grafana", "GET", "/graph", forged, 200, "eve@example.com", "Viewer"},
		{"an operator of all", alice, "grafana", "GET", "/graph", forged, 200, "alice@example.com", "Editor"},
		{"a viewer of one organisation", vic, "grafana", "GET", "/graph", nil, 403, "", ""},
		{"a caller without a role", mallory, "grafana", "GET", "/graph", forged, 403, "", ""},
		{"a tagged node, whatever its rule", ci, "grafana", "GET", "/graph", nil, 403, "", ""},
		{"another site's page", eve, "grafana", "GET", "/graph", origin, 403, "", ""},
		{"administration", alice, "grafana", "POST", "/api/v1/admin/tsdb/delete_series", nil, 403, "", ""},
		{"administration, spelt otherwise", alice, "grafana", "POST", "/api/v1/Admin/tsdb/delete_series", nil, 404, "", ""},
		{"the end", alice, "grafana", "POST", "/-/quit", nil, 403, "", ""},
		{"administration by an administrator", pat, "grafana", "POST", "/-/reload", nil, 200, "pat@platform.dev", "Admin"},
		{"elsewhere", eve, "grafana", "GET", "/elsewhere", nil, 302, "eve@example.com", "Viewer"},
		{"an identified caller", mallory, "attic", "GET", "/cache", nil, 200, "", ""},
		{"a tagged node", ci, "attic", "GET", "/cache", nil, 403, "", ""},
	} {
		var edit []func(*http.Request)
		if x.edit != nil {
			edit = append(edit, x.edit)
		}
		status, header, body := at(t, r, x.who, x.host, x.method, x.path, edit...)
		asked := system.upstream.took()
		if status != x.status {
			t.Errorf("%s: %d %s, want %d", x.why, status, body, x.status)
		}
		if reached := status < 400; reached != (len(asked) == 1) || len(asked) > 1 {
			t.Errorf("%s: %d, but the service got %d requests", x.why, status, len(asked))
			continue
		} else if !reached {
			continue
		}
		got := asked[0].Header
		if !slices.Equal(got.Values("X-Webauth-User"), list(x.user)) || !slices.Equal(got.Values("X-Webauth-Role"), list(x.role)) {
			t.Errorf("%s: the service gets %v %v, want %q %q", x.why, got.Values("X-Webauth-User"), got.Values("X-Webauth-Role"), x.user, x.role)
		}
		for name := range got {
			switch {
			case strings.Contains(name, "_"):
				t.Errorf("%s: the service: name = %q contains %q; %s", x.why, name, "_", got.Get(name))
			case strings.HasPrefix(name, "X-Tailscale"):
				t.Errorf("%s: the service: name = %q starts with %q; %s", x.why, name, "X-Tailscale", got.Get(name))
			case strings.HasPrefix(name, "X-Forwarded"):
				t.Errorf("%s: the service: name = %q starts with %q; %s", x.why, name, "X-Forwarded", got.Get(name))
			case x.user != "" && name == "Authorization":
				t.Errorf(`%s: the service: x.user != "" && name == "Authorization", name = %s, %s`, x.why, name, got.Get(name))
			}
		}
		if header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: every page may read the answer", x.why)
		}
	}
	exposed(t, r, eve, alice, pat, vic, mallory, ci)
}

func list(one string) []string {
	if one == "" {
		return nil
	}
	return []string{one}
}
