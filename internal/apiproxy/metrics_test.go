package apiproxy_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/tailplane/tailplane/internal/apiproxy"
)

// recordAllMetrics returns an observer on which every kind of event has happened.
func recordAllMetrics(t *testing.T) *apiproxy.Telemetry {
	o := newTelemetry(nil)
	m := o.Metrics
	m.RegisterSources(apiproxy.MetricSources{
		Clusters: func() []apiproxy.UpstreamStatus {
			return []apiproxy.UpstreamStatus{{Name: "here", Health: apiproxy.Health{State: "degraded"}}, {Name: "east", Health: apiproxy.Health{State: "unhealthy"}}, {Name: "stranger", Health: apiproxy.Health{State: "healthy"}}}
		},
		Owners:      func() int { return 3 },
		Certificate: func() time.Time { return time.Unix(1800000000, 0) },
		AuditLog:    func() apiproxy.AuditLogStats { return apiproxy.AuditLogStats{Written: 5, Lost: 1, Up: true} },
		Traces:      func() apiproxy.TraceExporterStats { return apiproxy.TraceExporterStats{Sent: 4, Dropped: 2, Failed: 1} },
	})
	m.ConfigReloaded(errors.New("no"))
	for _, w := range apiproxy.RefusalReasons() {
		m.Refused(w)
	}
	for _, w := range apiproxy.AuthFailureReasons() {
		m.LocalAuthFailed(w)
	}
	for _, w := range apiproxy.CallFailures() {
		m.UpstreamFailed("east", w)
	}
	for _, w := range apiproxy.WatchExpiries() {
		m.WatchExpired("east", w)
	}
	for _, w := range apiproxy.BookmarkReasons() {
		m.BookmarkSent(w)
	}
	for _, w := range apiproxy.LookupResults() {
		m.OwnerLookup(w)
	}
	for _, w := range apiproxy.ConflictResults() {
		m.ConflictResolved(w)
	}
	for _, w := range apiproxy.PartialReasons() {
		m.PartialResponse(w)
	}
	for _, w := range apiproxy.CacheNames() {
		m.CacheLookup(w, true)
		m.CacheLookup(w, false)
	}
	m.Connecting("east")(errors.New("refused"))
	m.Connecting("east")(nil)
	m.Connecting("here")
	m.Probed("east", time.Millisecond)
	m.Placed("batch", "east")
	m.WatchEvents("east", 12)
	m.MemberDown("west")
	for _, target := range []string{"/api/v1/pods", "/api/v1/pods?watch=1", "/api/v1/namespaces/a/pods/x/log", "/api/v1/namespaces/a/pods/x/exec",
		"/api/v1/namespaces/a/pods/x/attach", "/api/v1/namespaces/a/pods/x/portforward", "/api/v1/namespaces/a/pods/x/proxy/", "/version"} {
		r := request("GET", target)
		v := o.Begin(r)
		v.SetRequest(parsed(t, r))
		v.SetRoute("batch", "east")
		if apiproxy.StreamKindOf(parsed(t, r)) != "" {
			v.StreamOpened(200)
		}
		v.End(apiproxy.Result{Code: 200})
	}
	return o
}

// ADP-21: Acceptance 21: the metrics follow the rules of Prometheus.
func TestScrapeIsClean(t *testing.T) {
	text := scrape(t, recordAllMetrics(t).Metrics)
	if problems, err := promlint.New(strings.NewReader(text)).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	for _, want := range []string{
		`mca_cluster_healthy{cluster="here"} 1`, `mca_cluster_healthy{cluster="east"} 0`, `mca_owner_entries 3`, `mca_certificate_expiry_timestamp_seconds 1.8e+09`,
		`mca_config_epoch 1`, `mca_config_last_reload_success 0`, `mca_config_reloads_total 1`, `mca_build_info{version="v1"} 1`,
		`mca_audit_entries_total{result="lost"} 1`, `mca_trace_spans_total{result="dropped"} 2`, `mca_upstream_connections{cluster="east",state="open"} 1`,
		`mca_upstream_connections{cluster="here",state="connecting"} 1`, `mca_upstream_connects_total{cluster="east",result="failed"} 1`,
		`mca_routing_decisions_total{cluster="east",rule="batch"} 8`, `mca_placements_total{cluster="east",rule="batch"} 1`, `mca_watch_events_total{cluster="east"} 12`,
		`mca_watch_members_down{cluster="west"} 1`, `mca_refused_total{reason="impersonation"} 1`, `mca_local_auth_failures_total{reason="wrong"} 1`,
		`mca_request_duration_seconds_count{cluster="east",verb="list"} 1`, `mca_request_duration_seconds_count{cluster="east",verb="get"} 1`,
		`mca_requests_total{cluster="east",code="200",group="",resource="",subresource="",verb="get"} 1`, `mca_upstream_errors_total{cluster="east",reason="tls"} 1`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("without %s", want)
		}
	}
	if strings.Contains(text, "stranger") || strings.Contains(text, `verb="watch"} `) && strings.Contains(text, `mca_request_duration_seconds_count{cluster="east",verb="watch"}`) {
		t.Error("the metrics have a cluster that is not in the configuration, or the duration of a stream")
	}
	m := apiproxy.NewMetrics("v1", apiproxy.BuiltinResources())
	for _, c := range []struct {
		what func()
		want string
	}{
		{func() { m.SetConfig(1, nil, nil) }, "1"}, {func() { m.ConfigReloaded(errors.New("no")) }, "0"}, {func() { m.ConfigReloaded(nil) }, "1"},
	} {
		if c.what(); value(t, m, "mca_config_last_reload_success") != c.want {
			t.Errorf("success is not %s", c.want)
		}
	}
}

func series(t *testing.T, m *apiproxy.Metrics) (n int) {
	t.Helper()
	families, err := m.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		n += len(f.GetMetric())
	}
	return n
}

// AU-06: requests with arbitrary names add no series.
func TestAU06SeriesAreBounded(t *testing.T) {
	o := recordAllMetrics(t)
	r := rand.New(rand.NewPCG(1, 2))
	junk := func() string {
		// most requests with them can be parsed
		hostile := []string{"", "", "x", "é", "\u202e", "{}", "\"", "\n", "\xff", "./", "%2f"}
		return fmt.Sprintf("%x-%s", r.Uint64(), hostile[r.IntN(len(hostile))])
	}
	visit := func() {
		segment := func() string { return url.PathEscape(junk()) }
		paths := []string{
			"/api/v1/namespaces/" + segment() + "/pods/" + segment(),
			"/api/v1/namespaces/" + segment() + "/pods/" + segment() + "/" + segment(),
			"/apis/" + segment() + "/" + segment() + "/" + segment(),
			"/apis/apps/v1/" + segment() + "?watch=1", "/" + segment(), "/api/v1/" + segment(),
		}
		req := httptest.NewRequest("GET", paths[r.IntN(len(paths))], nil)
		req.Host = "junk"
		req.Header.Set("User-Agent", junk())
		req.Header.Set("Impersonate-User", junk())
		v := o.Begin(req)
		if p, err := apiproxy.ParseRequest(req.Method, req.URL); err == nil {
			v.SetRequest(&p)
			v.SetRoute(junk(), "east", junk())
			v.SetRoute(junk(), junk())
			v.StartCall(junk(), req.Header).End(r.IntN(3000), apiproxy.CallFailure(junk()))
			if p.Verb == "watch" {
				v.StreamOpened(200)
			}
		}
		v.SetRefused(apiproxy.RefusalReason(junk()))
		v.End(apiproxy.Result{Code: []int{404, 1000 + r.IntN(1000)}[r.IntN(2)]})
		m := o.Metrics
		m.LocalAuthFailed(apiproxy.AuthFailureReason(junk()))
		m.Placed(junk(), junk())
		m.WatchEvents(junk(), 1)
		m.WatchExpired(junk(), apiproxy.WatchExpiry(junk()))
		m.MemberDown(junk())()
		m.BookmarkSent(apiproxy.BookmarkReason(junk()))
		m.OwnerLookup(apiproxy.LookupResult(junk()))
		m.ConflictResolved(apiproxy.ConflictResult(junk()))
		m.PartialResponse(apiproxy.PartialReason(junk()))
		m.CacheLookup(apiproxy.CacheName(junk()), true)
		m.Connecting(junk())(nil)()
		m.Connecting(junk())(errors.New("no"))
		m.Probed(junk(), time.Second)
	}
	for range 1000 { // every combination of known words occurs
		visit()
	}
	before := series(t, o.Metrics)
	for range 10_000 {
		visit()
	}
	if after := series(t, o.Metrics); after != before || after > 1000 {
		t.Errorf("%d series, then %d", before, after)
	}
	families, err := o.Metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	allowed := regexp.MustCompile(`^([a-z]*|[1-5][0-9][0-9]|v1)$`) // the random text here contains a hyphen
	for _, f := range families {
		for _, one := range f.GetMetric() {
			for _, l := range one.GetLabel() {
				if !strings.HasPrefix(f.GetName(), "mca_") {
					continue // metrics of the runtime and the process
				}
				if !allowed.MatchString(l.GetValue()) {
					t.Errorf("%s has the label %s=%q", f.GetName(), l.GetName(), l.GetValue())
				}
			}
		}
	}
	if problems, err := promlint.New(strings.NewReader(scrape(t, o.Metrics))).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

// AU-06: a client that may create kinds cannot create unlimited series.
func TestManyResourcesAreOther(t *testing.T) {
	m := apiproxy.NewMetrics("v1", func(string, string, string) bool { return true })
	o := newTelemetry(nil)
	o.Metrics = m
	for i := range 3000 {
		r := request("GET", fmt.Sprintf("/apis/example.com/v1/things%d", i))
		v := o.Begin(r)
		v.SetRequest(parsed(t, r))
		v.End(apiproxy.Result{Code: 200})
	}
	if n := series(t, m); n < 1000 || n > 1200 {
		t.Errorf("%d series", n)
	}
	if got := value(t, m, `mca_requests_total{cluster="",code="200",group="other",resource="other",subresource="",verb="list"}`); got != "2000" {
		t.Errorf("%s others", got)
	}
}

// TestDial checks that connections are counted from the first attempt to the last Close.
func TestDial(t *testing.T) {
	m := newTelemetry(nil).Metrics
	srv := httptest.NewServer(http.NotFoundHandler())
	defer srv.Close()
	d := m.Dial("east", new(net.Dialer).DialContext)
	client := &http.Client{Transport: &http.Transport{DialContext: d}}
	res, err := client.Get(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		t.Fatal(err)
	}
	res.Body.Close() // the body was read completely, so the connection stays open
	open, made := `mca_upstream_connections{cluster="east",state="open"}`, `mca_upstream_connects_total{cluster="east",result="ok"}`
	if value(t, m, open) != "1" || value(t, m, made) != "1" {
		t.Error(scrape(t, m))
	}
	client.CloseIdleConnections()
	for began := time.Now(); value(t, m, open) != "0"; runtime.Gosched() {
		if time.Since(began) > time.Minute {
			t.Fatal(scrape(t, m))
		}
	}
	c, err := d(t.Context(), "tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	c.Close()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d(ended, "tcp", srv.Listener.Addr().String()); err == nil {
		t.Error("dialled")
	}
	for series, want := range map[string]string{open: "0", made: "2", `mca_upstream_connects_total{cluster="east",result="failed"}`: "1", `mca_upstream_connections{cluster="east",state="connecting"}`: "0"} {
		if got := value(t, m, series); got != want {
			t.Errorf("%s is %s, want %s", series, got, want)
		}
	}
}

func TestBuiltin(t *testing.T) {
	known := apiproxy.BuiltinResources()
	for _, yes := range [][3]string{{"", "pods", ""}, {"", "pods", "log"}, {"apps", "deployments", "scale"}, {"", "serviceaccounts", "token"}, {"batch", "jobs", "status"}} {
		if !known(yes[0], yes[1], yes[2]) {
			t.Errorf("%q is not known", yes)
		}
	}
	for _, no := range [][3]string{{"", "", ""}, {".", "pods", ""}, {"apps", "pods", ""}, {"", "pods", "x"}, {"", "pods:log", ""}, {"apps", "", ""}} {
		if known(no[0], no[1], no[2]) {
			t.Errorf("%q is known", no)
		}
	}
}

var update = flag.Bool("update", false, "write the tables of docs/reference/adapter-metrics.md")

const page = "../../docs/reference/adapter-metrics.md"

// TestMetricsPage checks that the page lists each metric with its labels and their possible values.
func TestMetricsPage(t *testing.T) {
	m := recordAllMetrics(t).Metrics
	families, err := m.Gather()
	if err != nil {
		t.Fatal(err)
	}
	descs := make(chan *prometheus.Desc)
	go func() { m.Describe(descs); close(descs) }()
	described := map[string]bool{}
	for d := range descs {
		described[regexp.MustCompile(`fqName: "([^"]+)"`).FindStringSubmatch(d.String())[1]] = true
	}
	// values come from the configuration, the clusters or the program
	chosen := []string{"cluster", "rule", "group", "resource", "subresource", "version", "code"}
	var b strings.Builder
	b.WriteString("| metric | type | labels | counts |\n|---|---|---|---|\n")
	for _, f := range families {
		delete(described, f.GetName())
		if !strings.HasPrefix(f.GetName(), "mca_") {
			continue // the page only mentions that they exist
		}
		values := map[string]map[string]bool{}
		var labels []string
		for _, one := range f.GetMetric() {
			for _, l := range one.GetLabel() {
				if values[l.GetName()] == nil {
					values[l.GetName()] = map[string]bool{}
					labels = append(labels, l.GetName())
				}
				values[l.GetName()][l.GetValue()] = true
			}
		}
		for i, l := range labels {
			if labels[i] = "`" + l + "`"; !slices.Contains(chosen, l) && l != "verb" {
				labels[i] += " (" + strings.Join(slices.Sorted(maps.Keys(values[l])), ", ") + ")"
			}
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.GetName(), strings.ToLower(f.GetType().String()), strings.Join(labels, ", "), f.GetHelp())
	}
	if len(described) > 0 {
		t.Errorf("described but not recorded: %v", described)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- metrics, written by the test -->\n", "<!-- end of metrics -->\n"
	before, rest, ok := strings.Cut(string(text), begin)
	is, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", page)
	}
	if is == b.String() {
		return
	}
	if !*update {
		t.Errorf("%s does not match the program; run go test -run MetricsPage -update\n%s", page, b.String())
		return
	}
	if err := os.WriteFile(page, []byte(before+begin+b.String()+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}
