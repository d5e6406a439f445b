package run_test

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
	"github.com/tailplane/tailplane/internal/multicluster/run"
)

const localToken = "the-local-token"

func newTestTelemetry() *apiproxy.Telemetry {
	return &apiproxy.Telemetry{Metrics: apiproxy.NewMetrics("v1", apiproxy.BuiltinResources()), Log: slog.New(slog.DiscardHandler), Now: time.Now}
}

func newAdminServer(o *apiproxy.Telemetry) *run.AdminServer {
	return &run.AdminServer{
		Ready: func() error { return nil }, ValidToken: func(token string) bool { return token == localToken }, Gatherer: o.Metrics, Log: slog.New(slog.DiscardHandler),
		ReadyDetails: func() []string { return []string{"document of epoch 7"} },
		Config:       func() any { return map[string]any{"epoch": 7, "note": "a\u202eb"} },
		Clusters: func() []apiproxy.UpstreamStatus {
			return []apiproxy.UpstreamStatus{{Name: "here", Health: apiproxy.Health{State: "healthy", LastError: "long ago"}}, {Name: "east", Health: apiproxy.Health{State: "unhealthy", LastError: "\x1b[31mno\u202e"}}}
		},
		Streams: o.OpenStreams,
		Owners: func(key string) any {
			if key == "pods/a/x" {
				return map[string]string{"cluster": "east"}
			}
			return nil
		},
		Route: func(q run.RouteRequest) (any, error) {
			if _, err := apiproxy.ParseRequest(q.Method, q.URL); err != nil {
				return nil, err
			}
			if q.URL.Path == "/fail" {
				return nil, errors.New("secret cause")
			}
			return map[string]any{"cluster": "east", "rule": "batch", "body": q.Body, "agent": q.UserAgent}, nil
		},
	}
}

func sendRequest(h http.Handler, method, target, body string, edit ...func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	r.Host = "127.0.0.1:9006"
	for _, f := range edit {
		f(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func sendWithToken(r *http.Request) { r.Header.Set("Authorization", "Bearer "+localToken) }

// ADP-24: Acceptance 24: requests below /debug need the local token; probes and scrapes do not.
func TestDebugNeedsTheToken(t *testing.T) {
	o := newTestTelemetry()
	a := newAdminServer(o)
	a.Profiles = true
	h := a.Handler()
	for _, c := range []struct{ method, target, body string }{
		{"GET", "/debug/config", ""}, {"GET", "/debug/clusters", ""}, {"GET", "/debug/streams", ""}, {"GET", "/debug/owners?key=pods/a/x", ""},
		{"POST", "/debug/route", `{"method":"GET","path":"/api/v1/pods"}`}, {"GET", "/debug/pprof/goroutine?debug=1", ""}, {"GET", "/debug/pprof/profile?seconds=1", ""},
	} {
		for reason, edit := range map[string]func(*http.Request){
			"none": func(*http.Request) {}, "wrong": func(r *http.Request) { r.Header.Set("Authorization", "Bearer x") },
			"twice": func(r *http.Request) {
				r.Header["Authorization"] = []string{"Bearer " + localToken, "Bearer " + localToken}
			},
			"as basic": func(r *http.Request) { r.SetBasicAuth("x", localToken) },
			"in query": func(r *http.Request) { r.URL.RawQuery += "&token=" + localToken },
		} {
			if w := sendRequest(h, c.method, c.target, c.body, edit); w.Code != http.StatusUnauthorized || w.Header().Get("WWW-Authenticate") == "" {
				t.Errorf("%s with the token %s: %d", c.target, reason, w.Code)
			}
		}
		if strings.Contains(c.target, "profile?") {
			continue // a recorder does not support deadlines
		}
		if w := sendRequest(h, c.method, c.target, c.body, sendWithToken); w.Code != 200 || w.Body.Len() == 0 {
			t.Errorf("%s: %d %s", c.target, w.Code, w.Body)
		}
	}
	for _, target := range []string{"/debug", "/debug/", "/debug/none", "/debug%2Fconfig", "/%64ebug/config"} {
		if w := sendRequest(h, "GET", target, ""); w.Code == 200 || strings.Contains(w.Body.String(), "epoch") {
			t.Errorf("%s: %d %s", target, w.Code, w.Body)
		}
	}
	for _, target := range []string{"/healthz", "/readyz", "/readyz?verbose", "/metrics"} {
		if w := sendRequest(h, "GET", target, ""); w.Code != 200 {
			t.Errorf("%s: %d", target, w.Code)
		}
	}
}

func TestProfilesOnlyOnRequest(t *testing.T) {
	h := newAdminServer(newTestTelemetry()).Handler()
	for _, target := range []string{"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/profile"} {
		if w := sendRequest(h, "GET", target, "", sendWithToken); w.Code != 404 {
			t.Errorf("%s: %d", target, w.Code)
		}
	}
	a := newAdminServer(newTestTelemetry())
	a.Profiles = true
	srv := httptest.NewServer(a.Handler())
	defer srv.Close()
	for target, want := range map[string]int{"heap": 200, "goroutine?debug=2": 200, "nothing": 404, "profile?seconds=1": 200} {
		r, err := http.NewRequestWithContext(t.Context(), "GET", srv.URL+"/debug/pprof/"+target, nil)
		if err != nil {
			t.Fatal(err)
		}
		sendWithToken(r)
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
func TestAllowedHosts(t *testing.T) {
	o := newTestTelemetry()
	loopback, metricsHandler := newAdminServer(o).Handler(), run.MetricsHandler(o.Metrics, slog.New(slog.DiscardHandler))
	for host, want := range map[string][2]int{
		"127.0.0.1:9006": {200, 200}, "[::1]:9006": {200, 200}, "localhost": {200, 200}, "127.1.2.3": {200, 200}, "10.1.2.3:9007": {421, 200},
		"x.y.svc:9007": {421, 200}, "evil.example": {421, 421}, "127.0.0.1.evil.example": {421, 421}, "": {421, 421}, "svc.example": {421, 421},
	} {
		for i, h := range []http.Handler{loopback, metricsHandler} {
			if w := sendRequest(h, "GET", "/metrics", "", func(r *http.Request) { r.Host = host }); w.Code != want[i] {
				t.Errorf("%q at %d: %d, want %d", host, i, w.Code, want[i])
			}
		}
	}
	for name, value := range map[string]string{"Sec-Fetch-Site": "cross-site", "Origin": "http://127.0.0.1:9006"} {
		if w := sendRequest(loopback, "GET", "/healthz", "", func(r *http.Request) { r.Header.Set(name, value) }); w.Code != 403 {
			t.Errorf("%s: %d", name, w.Code)
		}
	}
	for _, target := range []string{"/", "//metrics", "/metrics/", "/./metrics", "/debug/config", "/healthz", "/readyz"} {
		if w := sendRequest(metricsHandler, "GET", target, "", sendWithToken); w.Code != 404 {
			t.Errorf("%s for others: %d", target, w.Code)
		}
	}
	if w := sendRequest(loopback, "POST", "/metrics", ""); w.Code != 405 {
		t.Errorf("POST: %d", w.Code)
	}
}

func TestReadiness(t *testing.T) {
	const verbose = "document of epoch 7\ncluster here: healthy since 0001-01-01T00:00:00Z\n" +
		`"cluster east: unhealthy since 0001-01-01T00:00:00Z: \x1b[31mno\u202e"` + "\nok\n"
	a := newAdminServer(newTestTelemetry())
	if w := sendRequest(a.Handler(), "GET", "/readyz?verbose", ""); w.Code != 200 || w.Body.String() != verbose {
		t.Errorf("%d %q", w.Code, w.Body)
	}
	if w := sendRequest(a.Handler(), "GET", "/readyz", ""); w.Body.String() != "ok\n" {
		t.Errorf("%q", w.Body)
	}
	a.Ready = func() error { return errors.New("stopping") }
	if w := sendRequest(a.Handler(), "GET", "/readyz", ""); w.Code != 503 || w.Body.String() != "not ready: stopping\n" {
		t.Errorf("%d %q", w.Code, w.Body)
	}
	if w := sendRequest(a.Handler(), "GET", "/healthz", ""); w.Code != 200 {
		t.Errorf("alive: %d", w.Code)
	}
}

func TestRouteRequests(t *testing.T) {
	h := newAdminServer(newTestTelemetry()).Handler()
	for _, c := range []struct {
		why, body string
		status    int
		holds     string
	}{
		{"a read", `{"method":"GET","path":"/api/v1/pods?limit=5","userAgent":"kubectl"}`, 200, `"rule": "batch"`},
		{"a create", `{"method":"POST","path":"/api/v1/namespaces/a/pods","body":{"metadata":{"name":"x"}}}`, 200, `"name": "x"`},
		{"refused", `{"method":"GET","path":"/api/v1//pods"}`, 200, `"reason": "BadRequest"`},
		{"no JSON", `x`, 400, "the body is not"}, {"two", `{"method":"GET","path":"/api"}{}`, 400, "data after the JSON object"},
		{"unknown field", `{"method":"GET","path":"/api","token":"x"}`, 400, "token"},
		{"no path", `{"method":"GET"}`, 400, "the body is not"}, {"a host", `{"method":"GET","path":"api"}`, 400, "the body is not"}, {"a method", `{"method":"BREW","path":"/api"}`, 400, "BREW"},
		{"an error", `{"method":"GET","path":"/fail"}`, 500, "internal error"},
		{"too long", `{"method":"GET","path":"/` + strings.Repeat("a", 3<<20) + `"}`, 400, "too large"},
	} {
		w := sendRequest(h, "POST", "/debug/route", c.body, sendWithToken)
		switch {
		case w.Code != c.status:
			t.Errorf("%s: w.Code = %v, want %v", c.why, w.Code, c.status)
		case !strings.Contains(w.Body.String(), c.holds):
			t.Errorf("%s: w.Body.String() = %q does not contain %q", c.why, w.Body.String(), c.holds)
		case strings.Contains(w.Body.String(), "secret cause"):
			t.Errorf("%s: w.Body.String() = %q contains %q", c.why, w.Body.String(), "secret cause")
		}
		if w.Code == 200 && !json.Valid(w.Body.Bytes()) {
			t.Errorf("%s: %s", c.why, w.Body)
		}
	}
	for target, want := range map[string]int{"/debug/owners?key=pods/a/x": 200, "/debug/owners?key=none": 404, "/debug/owners": 400, "/debug/owners?key=a&key=b": 400} {
		if w := sendRequest(h, "GET", target, "", sendWithToken); w.Code != want {
			t.Errorf("%s: %d", target, w.Code)
		}
	}
	if w := sendRequest(h, "GET", "/debug/config", "", sendWithToken); !strings.Contains(w.Body.String(), `a\u202eb`) {
		t.Errorf("%s", w.Body)
	}
}
