package exposure

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

// PLANE-03, without a real tailnet: who sees what, which identity the upstream receives, and that a refused request never reaches the
// upstream.
func TestPLANE03_WhoSeesWhat(t *testing.T) {
	t.Parallel()
	tagged := access.Caller{Tags: []access.Tag{"tag:ci"}, Device: access.Device{ID: "n9", Name: "ci.example.ts.net"}, Via: access.ViaTailnet,
		Rules: []json.RawMessage{json.RawMessage(`{"role":"viewer","orgs":["*"],"tags":["tag:ci"]}`)}}
	shared, expired, funnel := viewer, viewer, access.Caller{Via: access.ViaFunnel}
	shared.Shared, expired.Expired = true, true
	sharedUnknown := unknown
	sharedUnknown.Shared = true
	for _, tt := range []struct {
		who               string
		caller            access.Caller
		look, manage, use problem.Code // for Prometheus, its administration, and Attic; "": admitted
		role              string
	}{
		{"viewer", viewer, "", problem.Forbidden, "", "Viewer"},
		{"operator", operator, "", problem.Forbidden, "", "Editor"},
		{"admin of all organisations", person("o@example.com", `{"role":"org-admin","orgs":["*"]}`), "", problem.Forbidden, "", "Editor"},
		{"platform admin", admin, "", "", "", "Admin"},
		{"viewer, and operator of one", person("x@example.com", `{"role":"operator","orgs":["acme"]}`, `{"role":"viewer","orgs":["*"]}`), "", problem.Forbidden, "", "Viewer"},
		{"operator of one", scoped, problem.Forbidden, problem.Forbidden, "", ""},
		{"no role", unknown, problem.NotAuthorized, problem.NotAuthorized, "", ""},
		{"a tagged node with a grant", tagged, problem.TaggedNode, problem.TaggedNode, problem.TaggedNode, ""},
		{"a shared device with a grant", shared, "", problem.Forbidden, problem.ForeignNode, "Viewer"},
		{"a shared device", sharedUnknown, problem.NotAuthorized, problem.NotAuthorized, problem.ForeignNode, ""},
		{"an expired device", expired, problem.NodeExpired, problem.NodeExpired, problem.NodeExpired, ""},
		{"the internet", funnel, problem.FunnelRefused, problem.FunnelRefused, problem.FunnelRefused, ""},
		{"nobody", access.Caller{Via: access.ViaTailnet}, problem.NoIdentity, problem.NoIdentity, problem.NoIdentity, ""},
	} {
		t.Run(tt.who, func(t *testing.T) {
			t.Parallel()
			up := newUpstream(t)
			for _, try := range []struct {
				u      Upstream
				method string
				path   string
				want   problem.Code
			}{
				{grafana(t, up), "GET", "/api/dashboards/home?x=1", tt.look},
				{prometheus(t, up), "GET", "/", tt.look},
				{prometheus(t, up), "POST", "/api/v1/query", tt.look},
				{prometheus(t, up), "POST", "/api/v1/admin/tsdb/delete_series", tt.manage},
				{prometheus(t, up), "PUT", "/-/reload", tt.manage},
				{prometheus(t, up), "POST", "/-/quit", tt.manage},
				{prometheus(t, up), "GET", "/api/v1/admin", tt.manage},
				{prometheus(t, up), "POST", "/below/this/api/v1/admin/tsdb/snapshot", tt.manage},
				{attic(t, up), "PUT", "/_api/v1/upload-path", tt.use},
			} {
				h := open(t, try.u)
				h.as(tt.caller)
				a := h.do(t, try.method, try.path, try.u.Name, nil)
				requested, entries := up.takeRequests(), h.auditEntries(t)
				switch {
				case a.Code != try.want:
					t.Errorf("a.Code = %q, want %q; %s; %s", a.Code, try.want, try.method, try.path)
				case len(entries) != 1:
					t.Errorf("len(entries) = %v, want 1; %s; %s", len(entries), try.method, try.path)
				case entries[0].Code != try.want:
					t.Errorf("entries[0].Code = %q, want %q; %s; %s", entries[0].Code, try.want, try.method, try.path)
				}
				if try.want != "" {
					if len(requested) != 0 || a.Status != try.want.Status() {
						t.Errorf("%s %s: refused with %d, but the upstream got the request %v", try.method, try.path, a.Status, requested)
					}
					continue
				}
				switch {
				case a.Status != http.StatusOK:
					t.Errorf("a.Status = %v, want %v", a.Status, http.StatusOK)
					continue
				case a.Body != "shown":
					t.Errorf("a.Body = %q, want %q", a.Body, "shown")
					continue
				case len(requested) != 1:
					t.Errorf("len(requested) = %v, want 1", len(requested))
					continue
				case requested[0].URI != try.path:
					t.Errorf("requested[0].URI = %q, want %q", requested[0].URI, try.path)
					continue
				case requested[0].Method != try.method:
					t.Errorf("requested[0].Method = %q, want %q", requested[0].Method, try.method)
					continue
				case "http://"+requested[0].Host != try.u.URL:
					t.Errorf(`"http://"+requested[0].Host = %q, want %q`, "http://"+requested[0].Host, try.u.URL)
					continue
				}
				user, role := "", ""
				if try.u.UserHeader != "" {
					user, role = string(tt.caller.Login), tt.role
				}
				if got := requested[0].Header; got.Get("X-Webauth-User") != user || got.Get("X-Webauth-Role") != role {
					t.Errorf("%s %s: the upstream got the headers %v", try.method, try.path, got)
				}
			}
		})
	}
}

// PL-10: the upstream receives only the identity that the server knows, once, whatever identity headers the client sends, in any spelling,
// twice, or to be removed.
func TestPL10_TheUpstreamReceivesOnlyTheCaller(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	h := open(t, grafana(t, up))
	forged := []string{"X-WEBAUTH-USER: root@example.com", "X-WEBAUTH-ROLE: Admin", "X-Tailscale-User: root@example.com", "Tailscale-User-Login: root@example.com",
		"X-Forwarded-For: 100.64.0.99", "X-Forwarded-User: root@example.com", "Forwarded: for=100.64.0.99", "X-Real-Ip: 100.64.0.99", "Impersonate-User: root@example.com",
		"X-Remote-User: root@example.com", "X-Webauth-Email: root@example.com", "Authorization: Basic cm9vdEBleGFtcGxlLmNvbTp4", "Proxy-Authorization: Basic cm9vdA=="}
	respell := func(as func(string) string) (out []string) {
		for _, l := range forged {
			name, value, _ := strings.Cut(l, ":")
			out = append(out, as(name)+":"+value)
		}
		return out
	}
	tries := map[string][]string{
		"as they are":   forged,
		"small letters": respell(strings.ToLower),
		"with _":        respell(func(s string) string { return strings.ReplaceAll(s, "-", "_") }),
		"with one _":    respell(func(s string) string { return strings.Replace(s, "-", "_", 1) }),
		"with .":        respell(func(s string) string { return strings.ReplaceAll(s, "-", ".") }),
		"twice":         append(respell(strings.ToLower), forged...),
		"taken away":    {"Connection: X-WEBAUTH-USER, x-webauth-role, X_WEBAUTH_USER, Host, close"},
		"both":          append([]string{"Connection: X-WEBAUTH-USER, X-WEBAUTH-ROLE"}, forged...),
		"to http2":      {"Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA"},
	}
	for how, lines := range tries {
		a := h.do(t, "GET", "/", "grafana", nil, append(lines, "X-Kept: yes", "Cookie: grafana_session=s")...)
		requested := up.takeRequests()
		if a.Status != http.StatusOK || len(requested) != 1 {
			t.Errorf("%s: %+v, asked %v", how, a, requested)
			continue
		}
		got := requested[0].Header
		switch u, r := got["X-Webauth-User"], got["X-Webauth-Role"]; {
		case len(u) != 1:
			t.Errorf("%s: the upstream got the headers: len(u) = %v, want 1", how, len(u))
		case u[0] != "vic@example.com":
			t.Errorf("%s: the upstream got the headers: u[0] = %q, want %q", how, u[0], "vic@example.com")
		case len(r) != 1:
			t.Errorf("%s: the upstream got the headers: len(r) = %v, want 1", how, len(r))
		case r[0] != "Viewer":
			t.Errorf("%s: the upstream got the headers: r[0] = %q, want %q", how, r[0], "Viewer")
		}
		for name, values := range got {
			s := strings.ToLower(fmt.Sprint(name, values))
			switch {
			case strings.Contains(s, "root"):
				t.Errorf("%s: the upstream: s = %q contains %q; values = %q", how, s, "root", values)
			case strings.Contains(s, "100.64"):
				t.Errorf("%s: the upstream: s = %q contains %q; values = %q", how, s, "100.64", values)
			case strings.Contains(s, "authorization"):
				t.Errorf("%s: the upstream: s = %q contains %q; values = %q", how, s, "authorization", values)
			case strings.Contains(s, "upgrade"):
				t.Errorf("%s: the upstream: s = %q contains %q; values = %q", how, s, "upgrade", values)
			case strings.Contains(name, "_"):
				t.Errorf("%s: the upstream: name = %q contains %q; values = %q", how, name, "_", values)
			}
		}
		switch {
		case got.Get("X-Kept") != "yes":
			t.Errorf(`%s: the upstream: got.Get("X-Kept") != "yes", %+v`, how, requested[0])
		case got.Get("Cookie") != "grafana_session=s":
			t.Errorf(`%s: the upstream: got.Get("Cookie") != "grafana_session=s", %+v`, how, requested[0])
		case requested[0].Host != "grafana.monitoring.svc:3000":
			t.Errorf("%s: the upstream: requested[0].Host = %q, want %q", how, requested[0].Host, "grafana.monitoring.svc:3000")
		}
	}

	// An upstream with its own tokens receives them.
	cache := open(t, attic(t, up))
	cache.do(t, "GET", "/cache/nix-cache-info", "attic", nil, append(tries["as they are"][:1], "Authorization: Bearer of.attic.itself")...)
	switch requested := up.takeRequests(); {
	case len(requested) != 1:
		t.Errorf("attic: len(requested) = %v, want 1", len(requested))
	case requested[0].Header.Get("Authorization") != "Bearer of.attic.itself":
		t.Errorf(`attic: requested[0].Header.Get("Authorization") != "Bearer of.attic.itself"; requested = %+v`, requested)
	case requested[0].Header.Get("X-Webauth-User") != "":
		t.Errorf(`attic: requested[0].Header.Get("X-Webauth-User") != ""; requested = %+v`, requested)
	}
}

// A request from another site, in another spelling or by another method does not reach the upstream.
func TestPL10_RefusedBeforeDialing(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	h := open(t, prometheus(t, up))
	for _, tt := range []struct {
		why, method, uri, host string
		lines                  []string
		want                   problem.Code
	}{
		{"another host", "GET", "/", "prometheus.monitoring.svc:9090", nil, problem.WrongHost},
		{"a foreign page", "POST", "/api/v1/query", "prometheus", []string{"Origin: https://evil.example"}, problem.CrossOrigin},
		{"a picture on a foreign page", "GET", "/api/v1/query?query=up", "prometheus", []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: image"}, problem.CrossOrigin},
		{"a WebSocket of a foreign page", "GET", "/ws", "prometheus", []string{"Connection: Upgrade", "Upgrade: websocket", "Origin: https://evil.example"}, problem.CrossOrigin},
		{"a WebSocket of no page", "GET", "/ws", "prometheus", []string{"Connection: Upgrade", "Upgrade: websocket", "Origin: null"}, problem.CrossOrigin},
		{"two slashes", "POST", "//api/v1/admin/tsdb/snapshot", "prometheus", nil, problem.NotFound},
		{"dots", "POST", "/x/../api/v1/admin/tsdb/snapshot", "prometheus", nil, problem.NotFound},
		{"encoded dots", "POST", "/x/%2e%2e/api/v1/admin/tsdb/snapshot", "prometheus", nil, problem.NotFound},
		{"an encoded slash", "POST", "/api/v1%2Fadmin/tsdb/snapshot", "prometheus", nil, problem.NotFound},
		{"encoded letters", "POST", "/api/v1/%61dmin/tsdb/snapshot", "prometheus", nil, problem.NotFound},
		{"deep below", "POST", "/a/b/c/-/quit", "prometheus", nil, problem.NotFound},
		{"in capitals", "POST", "/API/v1/Admin/tsdb/snapshot", "prometheus", nil, problem.NotFound},
		{"another method", "PROPFIND", "/", "prometheus", nil, problem.MethodNotAllowed},
		{"TRACE", "TRACE", "/", "prometheus", nil, problem.MethodNotAllowed},
		{"a preflight", "OPTIONS", "/api/v1/query", "prometheus", nil, problem.MethodNotAllowed},
		{"11 MiB", "POST", "/api/v1/query", "prometheus", []string{fmt.Sprint("Content-Length: ", maxBody+1)}, problem.TooLarge},
	} {
		a := h.do(t, tt.method, tt.uri, tt.host, nil, tt.lines...)
		switch requested := up.takeRequests(); {
		case a.Code != tt.want:
			t.Errorf("%s: a.Code = %q, want %q", tt.why, a.Code, tt.want)
		case a.Status != tt.want.Status():
			t.Errorf("%s: a.Status = %v, want %v", tt.why, a.Status, tt.want.Status())
		case len(requested) != 0:
			t.Errorf("%s: len(requested) = %v, want 0", tt.why, len(requested))
		}
	}
	// The controls: a link on another site, and the site's own page.
	for _, lines := range [][]string{
		{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"},
		{"Origin: http://prometheus", "Sec-Fetch-Site: same-origin"},
	} {
		a := h.do(t, "GET", "/query", "prometheus", nil, lines...)
		switch requested := up.takeRequests(); {
		case a.Status != http.StatusOK:
			t.Errorf("a.Status = %v, want %v; lines = %v", a.Status, http.StatusOK, lines)
		case len(requested) != 1:
			t.Errorf("len(requested) = %v, want 1; lines = %v", len(requested), lines)
		case requested[0].Header.Get("Origin") != "" && requested[0].Header.Get("Origin") != "http://prometheus.monitoring.svc:9090":
			t.Errorf(`requested[0].Header.Get("Origin") != "" && requested[0].Header.Get("Origin") != "http://prometheus.monitoring.svc:9090"; lines = %v, %+v, requested = %+v`,
				lines, a, requested)
		}
	}
}

// Bodies are limited for Observe upstreams and streamed for others.
func TestBodies(t *testing.T) {
	t.Parallel()
	chunked := func(n int) io.Reader {
		block := strings.Repeat("a", 1<<20)
		var parts []io.Reader
		for range n {
			parts = append(parts, strings.NewReader(fmt.Sprintf("%x\r\n%s\r\n", len(block), block)))
		}
		return io.MultiReader(append(parts, strings.NewReader("0\r\n\r\n"))...)
	}
	for _, tt := range []struct {
		of   func(testing.TB, *upstream) Upstream
		mib  int
		want int
	}{
		{prometheus, 9, http.StatusOK}, {prometheus, 11, http.StatusRequestEntityTooLarge}, {attic, 11, http.StatusOK},
	} {
		up := newUpstream(t)
		u := tt.of(t, up)
		a := open(t, u).do(t, "POST", "/upload", u.Name, chunked(tt.mib), "Transfer-Encoding: chunked")
		if a.Status != tt.want {
			t.Errorf("%s, %d MiB: %d %s", u.Name, tt.mib, a.Status, a.Body)
		}
		for _, r := range up.takeRequests() {
			if tt.want == http.StatusOK && r.Body != int64(tt.mib)<<20 {
				t.Errorf("%s, %d MiB: the upstream got %d bytes", u.Name, tt.mib, r.Body)
			}
		}
	}
}

// PL-10: the client receives redirects under the name that it knows. An upstream cannot open its responses to other pages.
func TestPL10_Answers(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	below := prometheus(t, up)
	below.URL += "/prometheus/"
	for _, tt := range []struct {
		u        Upstream
		to, want string
	}{
		{prometheus(t, up), "/graph", "/graph"},
		{prometheus(t, up), "http://prometheus.monitoring.svc:9090/graph?a=b#c", "/graph?a=b#c"},
		{prometheus(t, up), "http://169.254.169.254/latest", "http://169.254.169.254/latest"},
		{prometheus(t, up), "//evil.example/x", "//evil.example/x"},
		{prometheus(t, up), "graph", "graph"},
		{below, "/prometheus/graph", "/graph"},
		{below, "http://prometheus.monitoring.svc:9090/prometheus/graph", "/graph"},
		{below, "/elsewhere", "/elsewhere"},
		// A path at the upstream must not become another host here.
		{prometheus(t, up), "http://prometheus.monitoring.svc:9090//evil.example/x", "/evil.example/x"},
		{below, "/prometheus//evil.example/x", "/evil.example/x"},
		{below, "/prometheus/%2fevil.example/x", "/evil.example/x"},
	} {
		up.answer(func(w http.ResponseWriter, r *http.Request) {
			for name, value := range map[string]string{"Location": tt.to, "Access-Control-Allow-Origin": "*", "Access-Control-Allow-Credentials": "true", "Alt-Svc": `h3=":443"`, "X-Kept": "yes"} {
				w.Header().Set(name, value)
			}
			w.WriteHeader(http.StatusFound)
		})
		a := open(t, tt.u).do(t, "GET", "/x", "prometheus", nil)
		switch {
		case a.Status != http.StatusFound:
			t.Errorf("a.Status = %v, want %v; %s; %s", a.Status, http.StatusFound, tt.to, tt.u.URL)
		case a.Header.Get("Location") != tt.want:
			t.Errorf(`a.Header.Get("Location") != tt.want; %s, %s, %+v`, tt.to, tt.u.URL, a)
		case a.Header.Get("X-Kept") != "yes":
			t.Errorf(`a.Header.Get("X-Kept") != "yes"; %s, %s, %+v`, tt.to, tt.u.URL, a)
		case a.Header.Get("Alt-Svc") != "":
			t.Errorf(`a.Header.Get("Alt-Svc") != ""; %s, %s, %+v`, tt.to, tt.u.URL, a)
		case a.Header.Get("Access-Control-Allow-Origin") != "":
			t.Errorf(`a.Header.Get("Access-Control-Allow-Origin") != ""; %s, %s, %+v`, tt.to, tt.u.URL, a)
		case a.Header.Get("Access-Control-Allow-Credentials") != "":
			t.Errorf(`a.Header.Get("Access-Control-Allow-Credentials") != ""; %s, %s, %+v`, tt.to, tt.u.URL, a)
		}
		if requested := up.takeRequests(); len(requested) != 1 {
			t.Errorf("%s: the upstream got %+v", tt.to, requested)
		} else if want := map[bool]string{false: "/x", true: "/prometheus/x"}[tt.u.URL == below.URL]; requested[0].URI != want {
			t.Errorf("asked %s, want %s", requested[0].URI, want)
		}
	}
}

// A failed upstream gives an error. An incomplete response does not look complete.
func TestBrokenUpstream(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	h := open(t, prometheus(t, up))
	up.answer(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "half of")
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	c, err := net.Dial("tcp", h.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(long))
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: prometheus\r\n\r\n")
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, err := io.ReadAll(res.Body); err == nil || string(b) != "half of" {
		t.Errorf("an answer that broke off: %q, %v", b, err)
	}
	up.srv.Close()
	if a := h.do(t, "GET", "/", "prometheus", nil); a.Code != problem.Unavailable || a.Header.Get("Retry-After") == "" {
		t.Errorf("an upstream that is gone: %+v", a)
	}
}

// A WebSocket is forwarded, and is closed when the role is lost (this part of PLANE-07).
func TestPL10_WebSocketIsCutWithTheRole(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	up.answer(echo)
	h := open(t, grafana(t, up))
	c := openSocket(t, func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, h.addr)
	}, http.Header{"Origin": {"http://grafana"}, "X-WEBAUTH-USER": {"root"}})
	requested := up.takeRequests()
	switch {
	case len(requested) != 1:
		t.Errorf("the upstream: len(requested) = %v, want 1", len(requested))
	case requested[0].Header.Get("X-Webauth-User") != "vic@example.com":
		t.Errorf(`the upstream: requested[0].Header.Get("X-Webauth-User") != "vic@example.com"; requested = %+v`, requested)
	case requested[0].Header.Get("Origin") != "http://grafana.monitoring.svc:3000":
		t.Errorf(`the upstream: requested[0].Header.Get("Origin") != "http://grafana.monitoring.svc:3000"; requested = %+v`, requested)
	}
	h.as(person("vic@example.com")) // without the rule
	deleted := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	if _, b, err := c.Read(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("%q, %v after %v", b, err, time.Since(deleted))
	}
	t.Logf("cut %v after the role was gone", time.Since(deleted).Round(100*time.Millisecond))
	if e := h.auditEntries(t); e[0].Actor.Login != "vic@example.com" || e[0].Verb != access.ObserveRead {
		t.Errorf("recorded %+v", e)
	}
}

// PLANE-01, PL-10: services that must not be exposed are refused at the start.
func TestPL10_NeverExposed(t *testing.T) {
	t.Parallel()
	good := grafana(t, newUpstream(t))
	good.Never = []string{"tailplane-system"}
	for to, ok := range map[string]bool{
		"http://prometheus.monitoring.svc:9090": true, "https://grafana.monitoring.svc.cluster.local": true, "http://attic.cache.svc:8080/x": true,
		"http://search.monitoring.svc": true, "http://marcs-blog.web.svc": true, // "arc" is not a separate word

		"http://arc-gha-rs-controller.arc-systems.svc:8080": false, "http://gha-runner-scale-set-controller.ci.svc": false, "http://actions-runner-controller.ci.svc": false,
		"http://metrics.arc-systems.svc": false, "http://web.gitlab-runners.svc": false, "http://runner-abc.ci.svc": false, "http://listener.arc-runners.svc": false,
		"http://postgres.db.svc": false, "http://attic-db-rw.cache.svc:5432": false, "http://main.postgresql.svc": false, "http://cnpg-webhook-service.cnpg-system.svc": false,
		"http://pgbouncer.db.svc:6432": false, "http://rustfs.cache.svc:9000": false, "http://rustfs-console.cache.svc:9001": false, "http://s3.rustfs.svc": false,
		"https://kubernetes.default.svc": false, "http://access.tailplane-system.svc": false,

		"http://10.0.0.1:9090": false, "http://[fd00::1]:9090": false, "http://127.0.0.1:9090": false, "http://169.254.169.254": false, "http://localhost:9090": false,
		"http://10-0-0-1.monitoring.pod.cluster.local": false, "http://prometheus.monitoring": false, "http://prometheus": false, "http://prometheus.example.com": false,
		"http://x.prometheus.monitoring.svc": false, "http://prometheus.monitoring.svc.evil.example": false, "http://Prometheus.monitoring.svc": false,
		"tcp://prometheus.monitoring.svc:9090": false, "http://admin:secret@prometheus.monitoring.svc": false, "http://prometheus.monitoring.svc?a=b": false,
		"http://prometheus.monitoring.svc/#a": false, "http://prometheus.monitoring.svc/%2e%2e": false, "prometheus.monitoring.svc:9090": false, "": false, "http://%zz:secret@x": false,
	} {
		u := good
		u.URL = to
		err := u.Check()
		if (err == nil) != ok {
			t.Errorf("%s: %v", to, err)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("the error contains the password: %v", err)
		}
	}
	for why, change := range map[string]func(*Upstream){
		"no name":                 func(u *Upstream) { u.Name = "" },
		"a name with a dot":       func(u *Upstream) { u.Name = "a.b" },
		"no access":               func(u *Upstream) { u.Access = "" },
		"another access":          func(u *Upstream) { u.Access = "public" },
		"headers for all":         func(u *Upstream) { u.Access = AccessIdentified },
		"a header that is HTTP's": func(u *Upstream) { u.UserHeader = "host" },
		"a header of browsers":    func(u *Upstream) { u.UserHeader = "Sec-Fetch-User" },
		"an invalid header":       func(u *Upstream) { u.UserHeader = "X User" },
		"a header with _":         func(u *Upstream) { u.UserHeader = "X_WEBAUTH_USER" },
		"a token":                 func(u *Upstream) { u.RoleHeader = "Authorization" },
		"one header for two":      func(u *Upstream) { u.RoleHeader = "x-webauth-user" },
		"a role without a user":   func(u *Upstream) { u.UserHeader = "" },
		"no way to reach it":      func(u *Upstream) { u.Transport = nil },
		"no log":                  func(u *Upstream) { u.Log = nil },
		"no clock":                func(u *Upstream) { u.Now = nil },
	} {
		u := good
		change(&u)
		if u.Check() == nil {
			t.Errorf("%s: accepted", why)
		}
	}
}

// Every path has a verb, and administration has its own.
func TestRoutes(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	verbs := map[string]access.Verb{}
	for _, rt := range prometheus(t, up).Routes() {
		verbs[rt.Pattern] = rt.Verb
	}
	switch {
	case len(verbs) != 13:
		t.Errorf("len(verbs) = %v, want 13", len(verbs))
	case verbs["/{path...}"] != access.ObserveRead:
		t.Errorf(`verbs["/{path...}"] = %q, want %q`, verbs["/{path...}"], access.ObserveRead)
	case verbs["/-/reload"] != access.ObserveAdmin:
		t.Errorf(`verbs["/-/reload"] = %q, want %q`, verbs["/-/reload"], access.ObserveAdmin)
	case verbs["/{a}/{b}/api/v1/admin/{rest...}"] != access.ObserveAdmin:
		t.Errorf(`verbs["/{a}/{b}/api/v1/admin/{rest...}"] = %q, want %q`, verbs["/{a}/{b}/api/v1/admin/{rest...}"], access.ObserveAdmin)
	}
	if routes := attic(t, up).Routes(); len(routes) != 1 || routes[0].Verb != UpstreamUse {
		t.Errorf("%v", routes)
	}
	if _, err := attic(t, up).Decide(nil)(viewer, access.ObserveRead, time.Now()); err == nil {
		t.Error("a verb without a rule is permitted")
	}
	p, err := attic(t, up).Decide(nil)(unknown, UpstreamUse, time.Now())
	switch {
	case err != nil:
		t.Errorf("an identified caller got a permit: %v", err)
	case p.Require(access.ObserveRead, time.Now()) == nil:
		t.Error("an identified caller got a permit: p.Require(access.ObserveRead, time.Now()) is nil, want an error")
	case p.Require(UpstreamUse, time.Now()) == nil:
		t.Error("an identified caller got a permit: p.Require(UpstreamUse, time.Now()) is nil, want an error")
	}
	// A permit for another verb, or none, permits nothing.
	read, err := access.DecidePlane(admin, access.ObserveRead, policy, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for v, permit := range map[access.Verb]access.Permit{access.ObserveAdmin: read, access.ObserveRead: {}} {
		w := httptest.NewRecorder()
		newProxy(prometheus(t, up)).serve(w, httptest.NewRequest("PUT", "/-/reload", nil), permit, v)
		if requested := up.takeRequests(); w.Code != http.StatusInternalServerError || len(requested) != 0 {
			t.Errorf("%s with the wrong permit: %d, asked %v", v, w.Code, requested)
		}
	}
	if NewTransport().Proxy != nil {
		t.Error("upstreams are reached by a proxy of the environment")
	}
}
