package adminport_test

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/apiproxy/observe"
	"github.com/tailplane/tailplane/internal/apiproxy/observe/adminport"
)

const localToken = "the-local-token"

func observer() *observe.Observer {
	return &observe.Observer{Metrics: observe.NewMetrics("v1", observe.Builtin()), Log: slog.New(slog.DiscardHandler), Now: time.Now}
}

func port(o *observe.Observer) *adminport.Port {
	return &adminport.Port{
		Ready: func() error { return nil }, Opens: func(token string) bool { return token == localToken }, Gatherer: o.Metrics, Log: slog.New(slog.DiscardHandler),
		Verbose: func() []string { return []string{"document of epoch 7"} },
		Config:  func() any { return map[string]any{"epoch": 7, "note": "a\u202eb"} },
		Clusters: func() []observe.ClusterState {
			return []observe.ClusterState{{Name: "here", State: "healthy", LastError: "long ago"}, {Name: "east", State: "unhealthy", LastError: "\x1b[31mno\u202e"}}
		},
		Streams: o.Streams,
		Owners: func(key string) any {
			if key == "pods/a/x" {
				return map[string]string{"cluster": "east"}
			}
			return nil
		},
		Route: func(q adminport.RouteQuestion) (any, error) {
			if _, err := apiproxy.Parse(q.Method, q.URL); err != nil {
				return nil, err
			}
			if q.URL.Path == "/fail" {
				return nil, errors.New("secret cause")
			}
			return map[string]any{"cluster": "east", "rule": "batch", "body": q.Body, "agent": q.UserAgent}, nil
		},
	}
}

func ask(h http.Handler, method, target, body string, edit ...func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	r.Host = "127.0.0.1:9006"
	for _, f := range edit {
		f(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func withToken(r *http.Request) { r.Header.Set("Authorization", "Bearer "+localToken) }

// ADP-24: Acceptance 24: requests below /debug need the local token; probes and scrapes do not.
func TestDebugNeedsTheToken(t *testing.T) {
	o := observer()
	a := port(o)
	a.Profiles = true
	h := a.Handler()
	for _, c := range []struct{ method, target, body string }{
		{"GET", "/debug/config", ""}, {"GET", "/debug/clusters", ""}, {"GET", "/debug/streams", ""}, {"GET", "/debug/owners?key=pods/a/x", ""},
		{"POST", "/debug/route", `{"method":"GET","path":"/api/v1/pods"}`}, {"GET", "/debug/pprof/goroutine?debug=1", ""}, {"GET", "/debug/pprof/profile?seconds=1", ""},
	} {
		for why, edit := range map[string]func(*http.Request){
			"none": func(*http.Request) {}, "wrong": func(r *http.Request) { r.Header.Set("Authorization", "Bearer x") },
			"twice": func(r *http.Request) {
				r.Header["Authorization"] = []string{"Bearer " + localToken, "Bearer " + localToken}
			},
			"as basic": func(r *http.Request) { r.SetBasicAuth("x", localToken) },
			"in query": func(r *http.Request) { r.URL.RawQuery += "&token=" + localToken },
		} {
			if w := ask(h, c.method, c.target, c.body, edit); w.Code != http.StatusUnauthorized || w.Header().Get("WWW-Authenticate") == "" {
				t.Errorf("%s with the token %s: %d", c.target, why, w.Code)
			}
		}
		if strings.Contains(c.target, "profile?") {
			continue // a recorder does not support deadlines
		}
		if w := ask(h, c.method, c.target, c.body, withToken); w.Code != 200 || w.Body.Len() == 0 {
			t.Errorf("%s: %d %s", c.target, w.Code, w.Body)
		}
	}
	for _, target := range []string{"/debug", "/debug/", "/debug/none", "/debug%2Fconfig", "/%64ebug/config"} {
		if w := ask(h, "GET", target, ""); w.Code == 200 || strings.Contains(w.Body.String(), "epoch") {
			t.Errorf("%s: %d %s", target, w.Code, w.Body)
		}
	}
	for _, target := range []string{"/healthz", "/readyz", "/readyz?verbose", "/metrics"} {
		if w := ask(h, "GET", target, ""); w.Code != 200 {
			t.Errorf("%s: %d", target, w.Code)
		}
	}
}

func TestProfilesOnlyWhenAsked(t *testing.T) {
	h := port(observer()).Handler()
	for _, target := range []string{"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/profile"} {
		if w := ask(h, "GET", target, "", withToken); w.Code != 404 {
			t.Errorf("%s: %d", target, w.Code)
		}
	}
	a := port(observer())
	a.Profiles = true
	srv := httptest.NewServer(a.Handler())
	defer srv.Close()
	for target, want := range map[string]int{"heap": 200, "goroutine?debug=2": 200, "nothing": 404, "profile?seconds=1": 200} {
		r, err := http.NewRequestWithContext(t.Context(), "GET", srv.URL+"/debug/pprof/"+target, nil)
		if err != nil {
			t.Fatal(err)
		}
		withToken(r)
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s: %s", target, res.Status)
		}
	}
}

// Law 4: web pages and rebound DNS names are refused.
func TestWhoMayAsk(t *testing.T) {
	o := observer()
	loopback, far := port(o).Handler(), adminport.Metrics(o.Metrics, slog.New(slog.DiscardHandler))
	for host, want := range map[string][2]int{
		"127.0.0.1:9006": {200, 200}, "[::1]:9006": {200, 200}, "localhost": {200, 200}, "127.1.2.3": {200, 200}, "10.1.2.3:9007": {421, 200},
		"x.y.svc:9007": {421, 200}, "evil.example": {421, 421}, "127.0.0.1.evil.example": {421, 421}, "": {421, 421}, "svc.example": {421, 421},
	} {
		for i, h := range []http.Handler{loopback, far} {
			if w := ask(h, "GET", "/metrics", "", func(r *http.Request) { r.Host = host }); w.Code != want[i] {
				t.Errorf("%q at %d: %d, want %d", host, i, w.Code, want[i])
			}
		}
	}
	for name, value := range map[string]string{"Sec-Fetch-Site": "cross-site", "Origin": "http://127.0.0.1:9006"} {
		if w := ask(loopback, "GET", "/healthz", "", func(r *http.Request) { r.Header.Set(name, value) }); w.Code != 403 {
			t.Errorf("%s: %d", name, w.Code)
		}
	}
	for _, target := range []string{"/", "//metrics", "/metrics/", "/./metrics", "/debug/config", "/healthz", "/readyz"} {
		if w := ask(far, "GET", target, "", withToken); w.Code != 404 {
			t.Errorf("%s for others: %d", target, w.Code)
		}
	}
	if w := ask(loopback, "POST", "/metrics", ""); w.Code != 405 {
		t.Errorf("POST: %d", w.Code)
	}
}

func TestReadiness(t *testing.T) {
	const verbose = "document of epoch 7\ncluster here: healthy since 0001-01-01T00:00:00Z\n" +
		`"cluster east: unhealthy since 0001-01-01T00:00:00Z: \x1b[31mno\u202e"` + "\nok\n"
	a := port(observer())
	if w := ask(a.Handler(), "GET", "/readyz?verbose", ""); w.Code != 200 || w.Body.String() != verbose {
		t.Errorf("%d %q", w.Code, w.Body)
	}
	if w := ask(a.Handler(), "GET", "/readyz", ""); w.Body.String() != "ok\n" {
		t.Errorf("%q", w.Body)
	}
	a.Ready = func() error { return errors.New("stopping") }
	if w := ask(a.Handler(), "GET", "/readyz", ""); w.Code != 503 || w.Body.String() != "not ready: stopping\n" {
		t.Errorf("%d %q", w.Code, w.Body)
	}
	if w := ask(a.Handler(), "GET", "/healthz", ""); w.Code != 200 {
		t.Errorf("alive: %d", w.Code)
	}
}

func TestQuestions(t *testing.T) {
	h := port(observer()).Handler()
	for _, c := range []struct {
		why, body string
		status    int
		holds     string
	}{
		{"a read", `{"method":"GET","path":"/api/v1/pods?limit=5","userAgent":"kubectl"}`, 200, `"rule": "batch"`},
		{"a create", `{"method":"POST","path":"/api/v1/namespaces/a/pods","body":{"metadata":{"name":"x"}}}`, 200, `"name": "x"`},
		{"refused", `{"method":"GET","path":"/api/v1//pods"}`, 200, `"reason": "BadRequest"`},
		{"no JSON", `x`, 400, "question"}, {"two", `{"method":"GET","path":"/api"}{}`, 400, "follows"},
		{"unknown field", `{"method":"GET","path":"/api","token":"x"}`, 400, "token"},
		{"no path", `{"method":"GET"}`, 400, "question"}, {"a host", `{"method":"GET","path":"api"}`, 400, "question"}, {"a method", `{"method":"BREW","path":"/api"}`, 400, "BREW"},
		{"an error", `{"method":"GET","path":"/fail"}`, 500, "internal error"},
		{"too long", `{"method":"GET","path":"/` + strings.Repeat("a", 3<<20) + `"}`, 400, "too large"},
	} {
		w := ask(h, "POST", "/debug/route", c.body, withToken)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.holds) || strings.Contains(w.Body.String(), "secret cause") {
			t.Errorf("%s: %d %.300s", c.why, w.Code, w.Body)
		}
		if w.Code == 200 && !json.Valid(w.Body.Bytes()) {
			t.Errorf("%s: %s", c.why, w.Body)
		}
	}
	for target, want := range map[string]int{"/debug/owners?key=pods/a/x": 200, "/debug/owners?key=none": 404, "/debug/owners": 400, "/debug/owners?key=a&key=b": 400} {
		if w := ask(h, "GET", target, "", withToken); w.Code != want {
			t.Errorf("%s: %d", target, w.Code)
		}
	}
	if w := ask(h, "GET", "/debug/config", "", withToken); !strings.Contains(w.Body.String(), `a\u202eb`) {
		t.Errorf("%s", w.Body)
	}
}
