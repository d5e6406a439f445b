package plane_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/fleet/gitops"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/plane/metrics"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/testkit/buildcache"
)

func poolOf(forge, org, pool, kind string) plane.Pool {
	return plane.Pool{ID: forge + "/" + org + "/" + pool, Forge: forge, OrgName: org, Name: pool, State: plane.PoolActive, Controller: plane.Controller{Kind: kind, Namespace: "runners", Name: org + "-" + pool}}
}

// upstream answers like Prometheus' API.
type upstream struct {
	*httptest.Server
	mu       sync.Mutex
	requests []url.Values
	answer   func(q url.Values) (status int, body string)
}

func newUpstream(t *testing.T) *upstream {
	u := &upstream{answer: func(url.Values) (int, string) {
		return 200, `{"status":"success","data":{"resultType":"matrix","result":[]}}`
	}}
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u.mu.Lock()
		defer u.mu.Unlock()
		if r.Method != http.MethodPost || r.URL.Path != "/api/v1/query_range" || r.ParseForm() != nil {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		u.requests = append(u.requests, r.PostForm)
		status, body := u.answer(r.PostForm)
		w.Header().Set("Location", "http://evil.example/")
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}))
	t.Cleanup(u.Close)
	return u
}

func (u *upstream) answers(f func(q url.Values) (int, string)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.answer, u.requests = f, nil
}

func (u *upstream) queries() (all []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, q := range u.requests {
		all = append(all, q.Get("query"))
	}
	slices.Sort(all)
	return all
}

// metricsEnv is a service behind a real server.
type metricsEnv struct {
	http.Handler
	service    *plane.MetricsService
	prometheus *metrics.Client // nil: no Prometheus
	caller     access.Caller
	now        time.Time

	entries []audit.Entry
}

func metricsPerson(login, rule string) access.Caller {
	c := access.Caller{Login: access.Login(login), UserID: "1", Device: access.Device{ID: "n", Name: "laptop.ts.net"}, Tailnet: "example.com", Via: access.ViaTailnet}
	if rule != "" {
		c.Rules = []json.RawMessage{json.RawMessage(rule)}
	}
	return c
}

func newMetricsEnv(url string) *metricsEnv {
	// Each environment starts at the real current time, because queries run in real time until the permit ends.
	o := &metricsEnv{caller: metricsPerson("alice@example.com", `{"role":"viewer","orgs":["*"]}`), now: time.Now().UTC().Truncate(time.Second)}
	now := func() time.Time { return o.now }
	store := plane.NewStore(now)
	o.service = &plane.MetricsService{Plane: &plane.Service{Store: store, Now: now}}
	if url != "" {
		o.prometheus = &metrics.Client{URL: url, HTTP: metrics.HTTPClient(), Log: slog.New(slog.DiscardHandler), Now: now}
		o.service.Query = o.prometheus.Query
	}
	d := httpapi.Server{Names: func() []string { return []string{"dashboard"} }, Identify: func(*http.Request) (access.Caller, error) { return o.caller, nil },
		Decide: func(c access.Caller, v access.Verb, at time.Time) (access.Permit, error) {
			return access.DecidePlane(c, v, access.PlanePolicy{Capability: "tailplane.dev/cap/plane"}, at)
		},
		Record: func(e audit.Entry) error { o.entries = append(o.entries, e); return nil }, Encoder: plane.EnvelopeForm(), Log: slog.New(slog.DiscardHandler), Now: now}
	o.Handler = plane.Conformance.Handler(d.Handler(o.service.Routes()...))
	store.Replace(plane.KindPool, "kubernetes", []plane.Object{poolOf("github", "acme", "nix", "AutoscalingRunnerSet"), poolOf("github", "globex", "nix", "AutoscalingRunnerSet"), poolOf("gitlab", "globex", "docker", "Deployment")})
	store.Replace(plane.KindHold, "kubernetes", []plane.Object{plane.Hold{ID: "h", Name: "h", Scope: plane.Scope{Org: "acme", Pool: "nix"}, Mode: plane.ModePause, RequestedBy: "amy@acme.dev", Reason: "why", Created: o.now.Add(-10 * time.Minute), HeldOrgs: []string{"acme"}},
		plane.Hold{ID: "old", Name: "old", Scope: plane.Scope{All: true}, Created: o.now.Add(-2 * time.Hour), HeldOrgs: []string{"acme"}}})
	store.Report(plane.Source{Name: "kubernetes", Status: plane.StatusOK})
	return o
}

type metricsResponse struct {
	Status int `json:"-"`
	Data   plane.Metrics
	Meta   struct{ Sources []plane.Source }
	Error  json.RawMessage
}

func (o *metricsEnv) get(t *testing.T, path string) (a metricsResponse) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	r.Host = "dashboard"
	w := httptest.NewRecorder()
	o.ServeHTTP(w, r)
	a.Status = w.Code
	if err := json.NewDecoder(bytes.NewReader(w.Body.Bytes())).Decode(&a); err != nil {
		t.Fatalf("%s: %v: %s", path, err, w.Body)
	}
	return a
}

func (a metricsResponse) source() plane.Source {
	for _, s := range a.Meta.Sources {
		if s.Name == plane.PrometheusSource {
			return s
		}
	}
	return plane.Source{}
}

const nix = "/api/v1/pools/github/acme/nix/metrics"

// PLANE-06: values are where they were measured, and null elsewhere, on one grid of times. NaN and infinities count as missing.
func TestPLANE06_Gaps(t *testing.T) {
	u := newUpstream(t)
	o := newMetricsEnv(u.URL)
	from := o.now.Truncate(30 * time.Second).Add(-time.Hour)
	u.answers(func(q url.Values) (int, string) {
		switch {
		case q.Get("start") != fmt.Sprint(from.Unix()):
			t.Errorf(`q.Get("start") != fmt.Sprint(from.Unix()); %v`, q)
		case q.Get("end") != fmt.Sprint(from.Add(time.Hour).Unix()):
			t.Errorf(`q.Get("end") != fmt.Sprint(from.Add(time.Hour).Unix()); %v`, q)
		case q.Get("step") != "30":
			t.Errorf(`q.Get("step") != "30"; %v`, q)
		}
		values := fmt.Sprintf(`[[%d,"2"],[%d,"NaN"],[%d.000,"+Inf"],[%d,"0.5"]]`, from.Unix(), from.Unix()+30, from.Unix()+60, from.Unix()+3600)
		return 200, `{"status":"success","warnings":["x"],"data":{"resultType":"matrix","result":[{"metric":{"job_result":"succeeded"},"values":` + values + `}]}}`
	})
	a := o.get(t, nix)
	switch {
	case a.Status != 200:
		t.Fatalf("a.Status = %v, want 200", a.Status)
	case a.source().Status != plane.StatusOK:
		t.Fatalf("a.source().Status = %q, want %q", a.source().Status, plane.StatusOK)
	case a.Data.StepSeconds != 30:
		t.Fatalf("a.Data.StepSeconds = %v, want 30", a.Data.StepSeconds)
	case len(a.Data.Series) != 8:
		t.Fatalf("len(a.Data.Series) = %v, want 8", len(a.Data.Series))
	case len(a.Data.Markers) != 1:
		t.Fatalf("len(a.Data.Markers) = %v, want 1", len(a.Data.Markers))
	case a.Data.Markers[0].Ref != "h":
		t.Fatalf("a.Data.Markers[0].Ref = %q, want %q", a.Data.Markers[0].Ref, "h")
	}
	for _, s := range a.Data.Series {
		v := s.Values
		switch {
		case len(v) != 121:
			t.Errorf("len(v) = %v, want 121; %s", len(v), s.Name)
		case len(s.Timestamps) != 121:
			t.Errorf("len(s.Timestamps) = %v, want 121; %s", len(s.Timestamps), s.Name)
		case !s.Timestamps[0].Equal(from):
			t.Errorf("s.Timestamps[0] = %v, want %v; %s", s.Timestamps[0], from, s.Name)
		case *v[0] != 2:
			t.Errorf("*v[0] = %v, want 2; %s", *v[0], s.Name)
		case v[1] != nil:
			t.Errorf("v[1] = %v, want nil; %s", v[1], s.Name)
		case v[2] != nil:
			t.Errorf("v[2] = %v, want nil; %s", v[2], s.Name)
		case v[3] != nil:
			t.Errorf("v[3] = %v, want nil; %s", v[3], s.Name)
		case *v[120] != 0.5:
			t.Errorf("*v[120] = %v, want 0.5; %s", *v[120], s.Name)
		case *s.Summary.Last != 0.5:
			t.Errorf("*s.Summary.Last = %v, want 0.5; %s", *s.Summary.Last, s.Name)
		case *s.Summary.Max != 2:
			t.Errorf("*s.Summary.Max = %v, want 2; %s", *s.Summary.Max, s.Name)
		case *s.Summary.Min != 0.5:
			t.Errorf("*s.Summary.Min = %v, want 0.5; %s", *s.Summary.Min, s.Name)
		}
		if (s.Name == "completed") != (s.Labels["job_result"] == "succeeded") {
			t.Errorf("%s: %v", s.Name, s.Labels)
		}
	}
	u.answers(func(url.Values) (int, string) {
		return 200, `{"status":"success","data":{"resultType":"matrix","result":[]}}`
	})
	for _, s := range newMetricsEnv(u.URL).get(t, nix).Data.Series { // unmeasured series are visible as such
		if s.Summary != (plane.Summary{}) || slices.ContainsFunc(s.Values, func(v *float64) bool { return v != nil }) {
			t.Errorf("%s: %+v", s.Name, s.Summary)
		}
	}
}

// PLANE-06: without a Prometheus, or with one that fails, there are no values and the source says why. It is not queried again at once, and
// it recovers without a restart.
func TestPLANE06_Away(t *testing.T) {
	a := newMetricsEnv("").get(t, nix)
	switch {
	case a.Status != 200:
		t.Errorf("a.Status = %v, want 200", a.Status)
	case a.Data.Series != nil:
		t.Errorf("a.Data.Series = %v, want nil", a.Data.Series)
	case a.source().Status != plane.StatusDown:
		t.Errorf("a.source().Status = %q, want %q", a.source().Status, plane.StatusDown)
	case !strings.Contains(a.source().Message, "no Prometheus is set"):
		t.Errorf("a.source().Message = %q does not contain %q", a.source().Message, "no Prometheus is set")
	}
	u := newUpstream(t)
	fine := u.answer
	for why, f := range map[string]func(url.Values) (int, string){
		"another program": func(url.Values) (int, string) { return 200, "<html>" },
		"an error":        func(url.Values) (int, string) { return 422, `{"status":"error","errorType":"execution","error":"x"}` },
		"a redirect":      func(url.Values) (int, string) { return 302, "" },
		"a refusal":       func(url.Values) (int, string) { return 403, "" },
		"partial content": func(url.Values) (int, string) {
			return 206, `{"status":"success","data":{"resultType":"matrix","result":[]}}`
		},
		"success of an error": func(url.Values) (int, string) {
			return 422, `{"status":"success","data":{"resultType":"matrix","result":[]}}`
		},
		"nothing": func(url.Values) (int, string) { return 200, `{"status":"success"}` },
		"a vector": func(url.Values) (int, string) {
			return 200, `{"status":"success","data":{"resultType":"vector","result":[]}}`
		},
		"too large": func(url.Values) (int, string) {
			return 200, `{"status":"success` + strings.Repeat(" ", metrics.MaxBytes) + `"}`
		},
		"too many": func(url.Values) (int, string) {
			return 200, `{"status":"success","data":{"resultType":"matrix","result":[` + strings.Repeat(`{"values":[]},`, metrics.MaxSeries) + `{}]}}`
		},
		"a value that is 1": func(url.Values) (int, string) {
			return 200, `{"status":"success","data":{"resultType":"matrix","result":[{"values":[[1,1]]}]}}`
		},
	} {
		o := newMetricsEnv(u.URL)
		u.answers(f)
		switch a := o.get(t, nix); {
		case a.Status != 200:
			t.Errorf("%s: a.Status = %v, want 200", why, a.Status)
		case a.Data.Series != nil:
			t.Errorf("%s: a.Data.Series = %v, want nil", why, a.Data.Series)
		case a.source().Status != plane.StatusDown:
			t.Errorf("%s: a.source().Status = %q, want %q", why, a.source().Status, plane.StatusDown)
		case a.source().Message == "":
			t.Errorf("%s: a.source().Message is empty, %d, %+v", why, a.Status, a.Meta)
		case len(a.Data.Markers) != 1:
			t.Errorf("%s: len(a.Data.Markers) = %v, want 1", why, len(a.Data.Markers))
		}
		u.answers(fine)
		if a := o.get(t, nix); a.source().Status != plane.StatusDown || len(u.queries()) != 0 {
			t.Errorf("%s: a request at once: %q", why, u.queries())
		}
		o.now = o.now.Add(metrics.MaxPause)
		if a := o.get(t, nix); a.source().Status != plane.StatusOK || a.Data.Series == nil {
			t.Errorf("%s: it does not come back: %+v", why, a.source())
		}
	}
}

// AU-01, PLANE-06: no caller receives the URL or the credentials of the Prometheus. The log has the cause of a failure, without the
// password.
func TestPLANE06_NoAddress(t *testing.T) {
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	defer broken.Close()
	for at, want := range map[string]string{
		"127.0.0.1:1":                                     "it cannot be reached: nothing listens there.",
		"prometheus.invalid:9090":                         "it cannot be reached: its name could not be resolved.",
		strings.TrimPrefix(broken.URL, "http://"):         "its answer is incomplete.",
		strings.TrimPrefix(broken.URL, "http://") + "%zz": "its URL is not valid.",
	} {
		o := newMetricsEnv("http://scraper:hunter2@" + at)
		var log strings.Builder
		o.prometheus.Log = slog.New(slog.NewTextHandler(&log, nil))
		for range 2 { // the second time no query is sent
			w := httptest.NewRecorder()
			r := httptest.NewRequestWithContext(t.Context(), "GET", nix, nil)
			r.Host = "dashboard"
			o.ServeHTTP(w, r)
			said := w.Body.String()
			if !strings.Contains(said, want) {
				t.Errorf("%s: %s", at, said)
			}
			host, _, _ := strings.Cut(at, ":")
			for _, secret := range []string{"scraper", "hunter2", host, "query_range"} {
				if strings.Contains(said, secret) || secret != host && strings.Contains(log.String(), secret) {
					t.Errorf("%s: %q gets: %s\n%s", at, secret, said, &log)
				}
			}
		}
		if strings.Count(log.String(), "\n") != 1 {
			t.Errorf("%s: %s", at, &log)
		}
	}
}

// PLANE-09, MC-05: the queries are the plane's own, for exactly the workloads that the caller may see, whatever characters names contain.
func TestPLANE09_Questions(t *testing.T) {
	u := newUpstream(t)
	o := newMetricsEnv(u.URL)
	for _, path := range []string{nix + "?window=2h", nix + "?query=up", "/api/metrics?window=1h&step=1"} {
		if a := o.get(t, path); a.Status != http.StatusBadRequest {
			t.Errorf("%s: %+v", path, a)
		}
	}
	switch a := o.get(t, "/api/metrics"); {
	case a.Status != 200:
		t.Errorf("a.Status = %v, want 200", a.Status)
	case len(a.Data.Series) != 11:
		t.Errorf("len(a.Data.Series) = %v, want 11", len(a.Data.Series))
	case !strings.Contains(strings.Join(u.queries(), "\n"), "(acme-nix|globex-nix)"):
		t.Errorf(`strings.Join(u.queries(), "\n") = %q does not contain %q`, strings.Join(u.queries(), "\n"), "(acme-nix|globex-nix)")
	}
	named := func(want map[string]int) {
		t.Helper()
		for name, status := range want {
			if a := o.get(t, "/api/metrics/"+name); a.Status != status {
				t.Errorf("by the name %s: %d", name, a.Status)
			}
		}
	}
	named(map[string]int{"docker": http.StatusOK, "nix": http.StatusConflict, "none": http.StatusNotFound})
	o.caller = metricsPerson("vic@example.com", `{"role":"viewer","orgs":["acme"]}`)
	named(map[string]int{"docker": http.StatusNotFound, "nix": http.StatusOK})
	u.answers(u.answer)
	switch a := o.get(t, "/api/metrics?window=7d"); {
	case a.Status != 200:
		t.Errorf("a.Status = %v, want 200", a.Status)
	case a.Data.StepSeconds != 1800:
		t.Errorf("a.Data.StepSeconds = %v, want 1800", a.Data.StepSeconds)
	case strings.Contains(strings.Join(u.queries(), "\n"), "globex"):
		t.Errorf(`strings.Join(u.queries(), "\n") = %q contains %q`, strings.Join(u.queries(), "\n"), "globex")
	}
	for _, path := range []string{"/api/v1/pools/github/globex/nix/metrics", "/api/v1/pools/gitlab/globex/docker/metrics"} {
		if a := o.get(t, path); a.Status != http.StatusNotFound {
			t.Errorf("%s: %+v", path, a)
		}
	}
	o.caller = metricsPerson("mallory@evil.example", "")
	if a := o.get(t, nix); a.Status != http.StatusForbidden {
		t.Errorf("%+v", a)
	}
	for in, want := range map[string]string{`a"} or up{x="`: `"a\"} or up{x=\""`, `\`: `"\\"`, "a\nb\x7f": `"a\x0ab\x7f"`, "ü": `"ü"`} {
		if got := plane.QuotePromQL(in); got != want {
			t.Errorf("%q is quoted %s, want %s", in, got, want)
		}
	}
	if got := plane.MatchOneOf([]string{"a.b", "c|d"}, "-x"); got != `"(a\\.b|c\\|d)-x"` {
		t.Error(got)
	}
	var all strings.Builder
	for _, w := range plane.MetricsWindows {
		for _, q := range plane.SeriesQueries([]plane.Pool{poolOf("github", "acme", "nix", "AutoscalingRunnerSet"), poolOf("gitlab", "globex", "docker", "Deployment"), {ID: "nothing yet"}}, w) {
			fmt.Fprintf(&all, "%s %s (%s) %s\n", w.Name, q.Name, q.Unit, q.Expr)
		}
	}
	golden := filepath.Join("testdata", "metricsqueries.golden")
	if *plane.Update {
		if err := os.WriteFile(golden, []byte(all.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(golden); err != nil || string(want) != all.String() {
		t.Errorf("not as in %s (%v); check it, and write it with -update:\n%s", golden, err, all.String())
	}
}

// Callers with the same query within a step share a result. A different view causes a new query, and so does a failed one.
func TestQueriesAreShared(t *testing.T) {
	u := newUpstream(t)
	fine := u.answer
	o := newMetricsEnv(u.URL)
	requested := func(why, path string, want int) {
		t.Helper()
		u.answers(fine)
		if a := o.get(t, path); a.source().Status != plane.StatusOK || a.Data.Series == nil {
			t.Errorf("%s: %+v", why, a.source())
		}
		if n := len(u.queries()); n != want {
			t.Errorf("%s: %d questions, want %d", why, n, want)
		}
	}
	requested("the first", nix, 8)
	o.caller = metricsPerson("vic@example.com", `{"role":"viewer","orgs":["acme"]}`)
	requested("another caller, of the same", nix, 0)
	requested("all that he may see is the same", "/api/metrics", 0)
	requested("another window", nix+"?window=6h", 8)
	o.caller = metricsPerson("gus@globex.dev", `{"role":"viewer","orgs":["globex"]}`)
	requested("another organisation's", "/api/metrics", 13)
	o.now = o.now.Add(30 * time.Second)
	o.caller = metricsPerson("vic@example.com", `{"role":"viewer","orgs":["acme"]}`)
	requested("a step later", nix, 8)
	if n := o.service.Cached(); n > 8+8 {
		t.Errorf("%d stale answers are in the cache", n)
	}
	o.now = o.now.Add(30 * time.Second)
	u.answers(func(url.Values) (int, string) { return 500, "" })
	if a := o.get(t, nix); a.Data.Series != nil {
		t.Errorf("%+v", a.Data)
	}
	o.now = o.now.Add(metrics.MaxPause)
	requested("after a failure", nix, 8)
}

// Changes that took effect appear next to holds, for callers that may see them.
func TestMarkersOfChanges(t *testing.T) {
	o := newMetricsEnv("")
	at := func(id, kind, name, org string, s gitops.State, merged, applied *time.Time) plane.Object {
		return plane.NewChange(plane.StoredChange{Change: gitops.Change{ID: id, Ref: gitops.Ref{Kind: kind, Name: name}, Org: org, State: s, Title: id, Proposer: "amy@acme.dev", MergedAt: merged, AppliedAt: applied}}, o.now)
	}
	ago := func(d time.Duration) *time.Time { return new(o.now.Add(-d)) }
	o.service.Plane.Store.Replace(plane.KindChange, "kubernetes", []plane.Object{
		at("applied", "RunnerPool", "nix", "", gitops.StateApplied, ago(40*time.Minute), ago(30*time.Minute)), at("merged", "RunnerEnrollment", "acme", "acme", gitops.StateMerged, ago(5*time.Minute), nil),
		at("open", "RunnerPool", "nix", "", gitops.StateOpen, nil, nil), at("long ago", "RunnerPool", "nix", "", gitops.StateApplied, ago(3*time.Hour), ago(2*time.Hour)),
		at("another pool's", "RunnerPool", "docker", "", gitops.StateApplied, ago(time.Minute), ago(time.Minute)), at("another's", "RunnerEnrollment", "globex", "globex", gitops.StateMerged, ago(time.Minute), nil)})
	refs := func() (all []string) {
		for _, m := range o.get(t, nix).Data.Markers {
			all = append(all, m.Kind+" "+m.Ref)
		}
		return all
	}
	if got := refs(); !slices.Equal(got, []string{"change applied", "hold h", "change merged"}) {
		t.Errorf("%q", got)
	}
	o.caller = metricsPerson("vic@example.com", `{"role":"viewer","orgs":["acme"]}`)
	if got := refs(); !slices.Equal(got, []string{"hold h", "change merged"}) { // the pool belongs to the platform
		t.Errorf("a caller of acme gets %q", got)
	}
}

// ID-12, PLANE-04: every operation for every kind of caller. Each error is declared, each request has one audit entry, and no caller learns
// of another organisation.
func TestMetricsRoles(t *testing.T) {
	u := newUpstream(t)
	var got strings.Builder
	tagged := metricsPerson("", `{"role":"operator","orgs":["*"]}`)
	tagged.Tags = []access.Tag{"tag:ci"}
	for _, p := range []struct {
		name   string
		caller access.Caller
	}{
		{"viewer acme", metricsPerson("vic@example.com", `{"role":"viewer","orgs":["acme"]}`)}, {"viewer *", metricsPerson("vera@example.com", `{"role":"viewer","orgs":["*"]}`)},
		{"operator acme", metricsPerson("mel@acme.dev", `{"role":"operator","orgs":["acme"]}`)}, {"org-admin acme", metricsPerson("amy@acme.dev", `{"role":"org-admin","orgs":["acme"]}`)},
		{"operator globex", metricsPerson("u@example.com", `{"role":"operator","orgs":["globex"]}`)}, {"platform-admin", metricsPerson("pat@platform.dev", `{"role":"platform-admin","orgs":["*"]}`)},
		{"nobody", metricsPerson("mallory@evil.example", "")}, {"tagged", tagged},
	} {
		for _, op := range (&plane.MetricsService{Plane: new(plane.Service)}).Routes() {
			o := newMetricsEnv(u.URL)
			o.caller = p.caller
			_, path, _ := strings.Cut(op.Pattern, " ")
			a := o.get(t, strings.NewReplacer("{forge}", "github", "{org}", "acme", "{pool}", "nix", "{name}", "nix").Replace(path))
			what := fmt.Sprintf("%d %d series, %d markers", a.Status, len(a.Data.Series), len(a.Data.Markers))
			if a.Status != http.StatusOK {
				var refused problem.Error
				if err := json.Unmarshal(a.Error, &refused); err != nil || !slices.Contains(slices.Concat(httpapi.CommonRefusals(), op.Refusals), refused.Code) {
					t.Errorf("%s %s: refused with %s, which it does not declare: %v", p.name, op.Pattern, refused.Code, err)
				}
				what = strings.TrimSpace(fmt.Sprint(a.Status, " ", refused.Code, " ", strings.Join(refused.Have, " ")))
			}
			fmt.Fprintf(&got, "%-18s %-60s %s\n", p.name, op.Pattern, what)
			if len(o.entries) != 1 {
				t.Errorf("%s %s: %d entries", p.name, op.Pattern, len(o.entries))
			}
		}
	}
	golden := filepath.Join("testdata", "metricsroles.golden")
	if *plane.Update {
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(golden); err != nil || string(want) != got.String() {
		t.Errorf("not as in %s (%v); check it, and write it with -update:\n%s", golden, err, got.String())
	}
}

// Prometheus itself accepts every query.
func TestPrometheusAcceptsQueries(t *testing.T) {
	bin, err := buildcache.Lookup("prometheus")
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at, dir := ln.Addr().String(), t.TempDir()
	ln.Close()
	if err := os.WriteFile(filepath.Join(dir, "c.yml"), []byte("scrape_configs: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, bin, "--config.file="+filepath.Join(dir, "c.yml"), "--storage.tsdb.path="+dir, "--web.listen-address="+at)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); _ = cmd.Wait() }) // it was killed
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if res, err := http.Get("http://" + at + "/-/ready"); err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				break
			}
		}
		if time.Now().After(end) {
			t.Fatal("it is not ready")
		}
	}
	p := &metrics.Client{URL: "http://" + at, HTTP: metrics.HTTPClient(), Log: slog.New(slog.DiscardHandler), Now: time.Now}
	for _, w := range plane.MetricsWindows {
		for _, q := range plane.SeriesQueries([]plane.Pool{poolOf("github", "acme", "nix", "AutoscalingRunnerSet"), poolOf("gitlab", "globex", "docker", "Deployment")}, w) {
			if _, err := p.Query(t.Context(), q.Expr, plane.NewMetricsGrid(w, time.Now())); err != nil {
				t.Errorf("%s: %v", q.Expr, err)
			}
		}
	}
}
