package plane

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// A listener serves the metrics of the listener of a GitHub runner scale set, with the labels of its pod.
type listener struct {
	*httptest.Server

	text atomic.Pointer[string]
}

func newListener() *listener {
	l := &listener{}
	l.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if text := l.text.Load(); text != nil {
			w.Header().Set("Content-Type", "text/plain; version=0.0.4")
			fmt.Fprint(w, *text)
		}
	}))
	return l
}

// observed is the real Prometheus and its scrape target.
type observed struct {
	*testenv.Prometheus

	listener *listener
}

func (o *observed) start(ctx context.Context, dir string) (err error) {
	o.Prometheus, err = testenv.StartPrometheus(ctx, dir, o.settings(""))
	return err
}

// settings returns the configuration of a Prometheus that scrapes the listener like a pod. The target has the pod's
// namespace, so the listener's own label becomes exported_namespace.
func (o *observed) settings(further string) string {
	return "global: {scrape_interval: 1s}\nscrape_configs:\n- job_name: listener\n  static_configs: [{targets: [" + strings.TrimPrefix(o.listener.URL, "http://") + "], labels: {namespace: arc-systems}}]\n" + further
}

// exposure returns the setting that exposes it on the tailnet.
func (o *observed) exposure() string {
	return `{name: prometheus, upstream: "http://prometheus.monitoring.svc:` + o.URL[strings.LastIndex(o.URL, ":")+1:] + `", access: observe.read}`
}

func (o *observed) close() {
	o.listener.Close()
	if o.Prometheus == nil {
		return
	}
	if err := o.Stop(time.Minute); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// query returns the path of a Prometheus query.
func query(expr string) string { return "/api/v1/query?query=" + url.QueryEscape(expr) }

// value returns the value of a Prometheus answer with a single value, and "" otherwise.
func value(body string) string {
	var a struct {
		Data struct{ Result []struct{ Value [2]any } }
	}
	if json.Unmarshal([]byte(body), &a) != nil || len(a.Data.Result) != 1 {
		return ""
	}
	return fmt.Sprint(a.Data.Result[0].Value[1])
}

// exposed checks a real Prometheus behind the plane, for callers with and without the right to use it (PLANE-03).
func exposed(t *testing.T, r *testenv.Env, viewer, operator, admin *testenv.Person, strangers ...*testenv.Person) {
	t.Helper()
	get := func(p *testenv.Person, path string) (int, string) {
		t.Helper()
		status, _, body := at(t, r, p, "prometheus", http.MethodGet, path)
		return status, body
	}
	seen := func(expr, want string) {
		t.Helper()
		until(t, expr+" is "+want, func() bool {
			status, body := get(viewer, query(expr))
			return status == http.StatusOK && value(body) == want
		})
	}
	seen(`sum(up{job="listener"})`, "1")
	for _, p := range strangers {
		if status, body := get(p, query("up")); status != http.StatusForbidden || strings.Contains(body, "resultType") {
			t.Errorf("a stranger: %d %s", status, body)
		}
	}
	if status, header, _ := at(t, r, viewer, "prometheus", http.MethodGet, "/graph"); status != http.StatusFound || header.Get("Location") != "/query?" {
		t.Errorf("its first page: %d %s", status, header.Get("Location"))
	}

	// Administration is reserved to platform administrators: requests of other callers have no effect.
	remove := "/api/v1/admin/tsdb/delete_series?match[]=" + url.QueryEscape(`{job="listener"}`)
	ports, told, err := testenv.Listening(r.Plane.PID())
	well(t, err)
	probes := ""
	for _, port := range ports {
		res, err := (&http.Client{Timeout: 5 * time.Second}).Get("http://127.0.0.1:" + strconv.Itoa(port) + "/metrics")
		if err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				probes = "127.0.0.1:" + strconv.Itoa(port)
			}
		}
	}
	if told && probes == "" {
		t.Fatalf("none of the plane's ports %v has its metrics", ports)
	}
	well(t, system.prometheus.Set(system.prometheus.settings("- job_name: plane\n  static_configs: [{targets: ["+probes+"]}]\n")))
	for _, x := range []struct{ method, path string }{{"POST", "/-/reload"}, {"PUT", "/-/reload"}, {"POST", "/-/quit"}, {"PUT", "/-/quit"}, {"POST", remove}, {"PUT", remove}, {"POST", "/api/v1/admin/tsdb/snapshot"}} {
		for _, p := range []*testenv.Person{viewer, operator} {
			if status, _, body := at(t, r, p, "prometheus", x.method, x.path); status != http.StatusForbidden {
				t.Errorf("%s %s: %d %s", x.method, x.path, status, body)
			}
		}
	}
	if status, body := get(viewer, "/api/v1/status/config"); status != http.StatusOK || strings.Contains(body, "job_name: plane") {
		t.Errorf("it was reloaded: %d %s", status, body)
	}
	seen(`count(count_over_time(up{job="listener"}[1h]))`, "1")
	if status, _, body := at(t, r, admin, "prometheus", "POST", "/-/reload"); status != http.StatusOK {
		t.Errorf("the administrator reloads: %d %s", status, body)
	}
	if told {
		seen(`up{job="plane"}`, "1")
		seen(`min(tailplane_audit_up{job="plane"})`, "1") // the plane's own metrics
	}
	if status, _, body := at(t, r, admin, "prometheus", "POST", "/api/v1/admin/tsdb/snapshot"); status != http.StatusOK || !strings.Contains(body, `"success"`) {
		t.Errorf("the administrator's copy: %d %s", status, body)
	}

	// Prometheus stops, which the plane reports, and the plane recovers without help when it is back.
	system.prometheus.Kill()
	if status, body := get(viewer, query("up")); status != http.StatusServiceUnavailable || strings.Contains(body, "127.0.0.1") {
		t.Errorf("while it is away: %d %s", status, body)
	}
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	well(t, system.prometheus.Start(ctx))
	seen(`sum(up{job="listener"})`, "1")
}

const numbersOrg = `
apiVersion: tailplane.dev/v1alpha1
kind: RunnerEnrollment
metadata: {name: wayne}
spec:
  forge: github
  configURL: https://github.com/wayne
  groupID: 1
  pools: [{name: linux, allowPublic: false}]
  credentials: {secretName: wayne}
`

// history returns the metrics of a listener for every half minute since the given time. It starts with three jobs,
// has a gap of a quarter of an hour, and continues with five. In each step three jobs finish and ten start: half of
// them within five seconds and all within ten. Another organisation's runners are busier.
func history(since time.Time) string {
	var b strings.Builder
	say := func(metric, kind string, at func(i int) (labels string, v int)) {
		fmt.Fprintf(&b, "# TYPE %s %s\n", metric, kind)
		for i := range measured {
			if i >= 20 && i < 50 {
				continue
			}
			labels, v := at(i)
			fmt.Fprintf(&b, "%s{name=\"wayne-linux\",namespace=\"runners\",organization=\"wayne\"%s} %d %d\n", metric, labels, v, since.Add(time.Duration(i)*step).UnixMilli())
		}
	}
	running := func(i int) int {
		if i < 20 {
			return 3
		}
		return 5
	}
	say("gha_running_jobs", "gauge", func(i int) (string, int) { return "", running(i) })
	say("gha_assigned_jobs", "gauge", func(i int) (string, int) { return "", running(i) + 2 })
	say("gha_idle_runners", "gauge", func(i int) (string, int) { return "", 1 })
	say("gha_busy_runners", "gauge", func(i int) (string, int) { return "", running(i) })
	say("gha_max_runners", "gauge", func(i int) (string, int) { return "", 10 })
	say("gha_completed_jobs_total", "counter", func(i int) (string, int) { return `,job_result="succeeded"`, 3 * i })
	for _, le := range []struct {
		bound string
		of    int
	}{{"1", 0}, {"5", 5}, {"10", 10}, {"+Inf", 10}} {
		say("gha_job_startup_duration_seconds_bucket", "counter", func(i int) (string, int) { return `,le="` + le.bound + `"`, le.of * i })
	}
	fmt.Fprintf(&b, "# TYPE gha_running_jobs gauge\ngha_running_jobs{name=\"stark-linux\",namespace=\"runners\"} 100 %d\n", since.Add(60*step).UnixMilli())
	return b.String()
}

const (
	step     = 30 * time.Second // of the shortest window
	measured = 100
)

// PLANE-06, PLANE-09: time series come from a real Prometheus. They contain measured values, null where no value
// exists, and no runners of others. While Prometheus is away, the plane shows no values and reports that.
func TestPLANE06_Numbers(t *testing.T) {
	r := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	well(t, r.Cluster.Apply(ctx, []byte(numbersOrg)))
	objects, err := dynamic.NewForConfig(r.Cluster.AdminConfig())
	well(t, err)
	_, err = objects.Resource(schema.GroupVersionResource{Group: "tailplane.dev", Version: "v1alpha1", Resource: "runnerenrollments"}).Patch(ctx, "wayne", types.MergePatchType,
		[]byte(`{"status": {"phase": "Active", "pools": [{"name": "linux", "type": "Shared", "kind": "AutoscalingRunnerSet", "namespace": "runners", "workload": "wayne-linux"}]}}`), metav1.PatchOptions{}, "status")
	well(t, err)
	since := time.Now().Truncate(step).Add(-(measured + 5) * step)
	text := history(since)
	system.prometheus.listener.text.Store(&text)
	alice, bob := person(t, r, "alice-numbers", "alice@example.com"), person(t, r, "bob-numbers", "bob@example.com")

	type answered struct {
		Data plane.Metrics
		Meta struct{ Sources []plane.Source }
	}
	read := func(path string) (a answered) {
		t.Helper()
		got, err := ask(t, r, alice, http.MethodGet, path, "")
		if got = must(t, got, err); got.status == http.StatusOK && json.Unmarshal([]byte(got.body), &a) != nil {
			t.Fatalf("%s: %s", path, got.body)
		}
		return a
	}
	// of returns the value of a series at a step since the start.
	of := func(m plane.Metrics, name string, i int) *float64 {
		for _, s := range m.Series {
			for j, at := range s.Timestamps {
				if s.Name == name && at.Equal(since.Add(time.Duration(i)*step)) {
					return s.Values[j]
				}
			}
		}
		return new(math.Inf(-1)) // a value that equals no other
	}
	const pool = "/api/v1/pools/github/wayne/linux/metrics?window=1h"
	right := func(path string) {
		t.Helper()
		until(t, path+" has the numbers", func() bool { v := of(read(path).Data, "running", 99); return v != nil && *v == 5 })
		m := read(path).Data
		for i, want := range map[int]map[string]float64{
			15: {"running": 3, "waiting": 2, "idle": 1, "busy": 3, "max": 10, "completed": 0.1, "startup_p50": 5, "startup_p95": 9.5},
			90: {"running": 5, "waiting": 2, "idle": 1, "busy": 5, "max": 10, "completed": 0.1, "startup_p50": 5, "startup_p95": 9.5},
		} {
			for name, v := range want {
				if got := of(m, name, i); got == nil || math.Abs(*got-v) > 1e-6 {
					t.Errorf("%s: %s at %d is %v, want %v", path, name, i, got, v)
				}
			}
		}
		for _, name := range []string{"running", "waiting", "idle", "busy", "max", "completed", "startup_p50", "startup_p95"} {
			if v := of(m, name, 40); v != nil {
				t.Errorf("%s: %s was not measured, and is %v", path, name, *v)
			}
		}
	}
	right(pool)
	right("/api/metrics?window=1h&org=wayne")
	if got, err := ask(t, r, bob, http.MethodGet, pool, ""); must(t, got, err).status != http.StatusNotFound {
		t.Errorf("bob has no part in it: %s", got.body)
	}
	assistant := session(t, &mcp.CommandTransport{Command: command(t, r, alice)})
	numbers := func() string {
		t.Helper()
		res, err := assistant.CallTool(ctx, &mcp.CallToolParams{Name: "get_metrics", Arguments: map[string]any{"pool": "github/wayne/linux"}})
		well(t, err)
		return res.Content[0].(*mcp.TextContent).Text
	}
	if text := numbers(); !strings.Contains(strings.Join(strings.Fields(text), " "), "running jobs - 5 3 5") {
		t.Errorf("%s", text)
	}

	said := func(path string, status plane.SourceStatus) bool {
		a := read(path)
		for _, s := range a.Meta.Sources {
			if s.Name == plane.PrometheusSource {
				return s.Status == status && (a.Data.Series != nil) == (status == plane.StatusOK)
			}
		}
		return false
	}
	system.prometheus.Kill()
	until(t, "the plane reports that there are no metrics", func() bool { return said(pool, plane.StatusDown) })
	if text := numbers(); !strings.Contains(text, "no metrics over time") {
		t.Errorf("%s", text)
	}
	well(t, system.prometheus.Start(ctx))
	until(t, "there are numbers again", func() bool { return said(pool, plane.StatusOK) })
	right(pool)
}
