package health_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/server/health"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/tailnet"
)

func newListener(m *health.Metrics) *health.Listener {
	return &health.Listener{Address: "127.0.0.1:0", Gatherer: m, Log: slog.New(slog.DiscardHandler)}
}

func get(t *testing.T, h http.Handler, target string, edit ...func(*http.Request)) (int, string) {
	t.Helper()
	r := httptest.NewRequest("GET", target, nil)
	r.Host = "127.0.0.1:8080"
	for _, f := range edit {
		f(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func TestReadiness(t *testing.T) {
	l := newListener(health.NewMetrics("v1", "abc"))
	h := l.Handler()
	var down error
	l.AddCheck("tailnet", func(context.Context) error { return down })
	l.AddCheck("kubernetes", func(context.Context) error { return errors.New("starting") })
	if status, body := get(t, h, "/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(body, "[-]kubernetes failed: starting") {
		t.Errorf("starting: %d %q", status, body)
	}
	l.AddCheck("kubernetes", func(context.Context) error { return nil }) // replaces the first check
	if status, body := get(t, h, "/readyz"); status != http.StatusOK || body != "ok\n" {
		t.Errorf("ready: %d %q", status, body)
	}
	if status, body := get(t, h, "/readyz?verbose"); status != http.StatusOK || body != "[+]tailnet ok\n[+]kubernetes ok\nok\n" {
		t.Errorf("verbose: %d %q", status, body)
	}
	down = errors.New("the node is Stopped") // the current state, not that of the start
	if status, body := get(t, h, "/readyz?verbose"); status != http.StatusServiceUnavailable || body != "[-]tailnet failed: the node is Stopped\n[+]kubernetes ok\nnot ready\n" {
		t.Errorf("tailnet lost: %d %q", status, body)
	}
	if status, body := get(t, h, "/livez"); status != http.StatusOK || body != "ok\n" {
		t.Errorf("alive without the tailnet: %d %q", status, body)
	}
	down = nil
	l.Stop()
	if status, body := get(t, h, "/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(body, "the process is stopping") {
		t.Errorf("stopping: %d %q", status, body)
	}
	if status, _ := get(t, h, "/livez"); status != http.StatusOK {
		t.Error("stopping is not alive")
	}
}

// A check that hangs fails, and it delays no other check.
func TestACheckThatHangs(t *testing.T) {
	l := newListener(health.NewMetrics("v1", "abc"))
	l.AddCheck("slow", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	l.AddCheck("quick", func(context.Context) error { return nil })
	began := time.Now()
	r := l.Results(t.Context())
	if took := time.Since(began); took > 2*time.Minute {
		t.Errorf("took %v", took)
	}
	if r[0].Err == nil || r[1].Err != nil {
		t.Errorf("%+v", r)
	}
}

// Law 4 holds here too: no web page can read the metrics.
func TestNoWebPageReadsMetrics(t *testing.T) {
	h := newListener(health.NewMetrics("v1", "abc")).Handler()
	host := func(name string) func(*http.Request) { return func(r *http.Request) { r.Host = name } }
	for name, want := range map[string]int{
		"10.1.2.3:8080": 200, "[fd00::1]:8080": 200, "127.0.0.1": 200, "localhost:8080": 200, "tailplane-access.tailplane-system.svc:8080": 200,
		"x.svc.cluster.local": 200, "evil.example": 421, "evil.example:8080": 421, "svc.evil.example": 421, "10.1.2.3.evil.example": 421, "": 421,
	} {
		if status, _ := get(t, h, "/metrics", host(name)); status != want {
			t.Errorf("Host %q: %d, want %d", name, status, want)
		}
	}
	if status, _ := get(t, h, "/livez", func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }); status != 403 {
		t.Errorf("cross-site: %d", status)
	}
	for _, target := range []string{"/", "/debug/pprof/", "/healthz", "/metrics/", "/api/v1alpha1/login"} {
		if status, _ := get(t, h, target); status != 404 {
			t.Errorf("%s: %d", target, status)
		}
	}
	if status, _ := get(t, h, "/metrics", func(r *http.Request) { r.Method = "POST" }); status != 405 {
		t.Errorf("POST: %d", status)
	}
}

func TestRun(t *testing.T) {
	m := health.NewMetrics("v1", "abc")
	l := newListener(m)
	var log logged
	l.Log = slog.New(slog.NewJSONHandler(&log, nil))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	var said struct{ Address string }
	for began := time.Now(); said.Address == ""; time.Sleep(time.Millisecond) {
		if err := json.Unmarshal([]byte(log.String()), &said); err == nil {
			break
		}
		if time.Since(began) > 2*time.Minute {
			t.Fatalf("no address in %q", log.String())
		}
	}
	res, err := http.Get("http://" + said.Address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(res.Body)
	res.Body.Close()
	if err != nil || !strings.Contains(string(b), `tailplane_build_info{commit="abc",version="v1"} 1`) {
		t.Errorf("%v %.300s", err, b)
	}
	other := newListener(m)
	other.Address = said.Address
	if err := other.Run(t.Context()); err == nil || !strings.Contains(err.Error(), said.Address) {
		t.Errorf("a taken address: %v", err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if c, err := net.Dial("tcp", said.Address); err == nil {
		c.Close()
		t.Error("it still listens")
	}
}

type logged struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestMetrics(t *testing.T) {
	m := health.NewMetrics("v1", "abc", access.SigninLogin, access.SigninKubeconfig)
	l := newListener(m)
	m.AddReadiness(l)
	m.SetRoles([]access.Role{"view", "edit"})
	m.AddSignins(func() ([]signin.Signin, bool) {
		ready := signin.Report{Phase: signin.PhaseReady, Bound: access.Binds{{Role: "view"}, {Role: "a role that is no longer listed"}}}
		return []signin.Signin{{Report: ready}, {Report: ready}, {Report: ready, Deleting: true}, {}}, true
	})
	m.AddNode(func() tailnet.Status { return tailnet.Status{State: "Running"} })
	begin := m.MeasureServer("tailnet")
	begin()(httpapi.Outcome{Verb: access.SigninLogin, Status: 202, Took: 30 * time.Millisecond})
	begin()(httpapi.Outcome{Verb: access.SigninKubeconfig, Status: 200, Took: 3 * time.Second, Waited: 2 * time.Second})
	begin()(httpapi.Outcome{Verb: access.SigninKubeconfig, Status: 202, Code: problem.NotReady})
	begin()(httpapi.Outcome{Status: 404, Code: problem.NotFound})
	begin() // still in flight
	m.AddAudit(func() audit.Stats {
		return audit.Stats{Entries: map[audit.Result]int64{audit.Refused: 1}, Dropped: 1, Up: true}
	}, func() int { return 2 })
	m.ObserveWhoIs(time.Millisecond)
	m.CountEnded(signin.CauseGrant)
	m.CountEnded("a cause that a stranger invented")
	m.ObserveReady(20 * time.Millisecond)
	m.CountStarted("edit", true)
	m.CountStarted("a role that is no longer listed", false)
	m.CountSwept()
	status, body := get(t, l.Handler(), "/metrics")
	if status != 200 {
		t.Fatal(body)
	}
	for _, line := range []string{
		`tailplane_audit_rolled_back 1`,
		`tailplane_requests_total{code="2xx",listener="tailnet",op="signin.login"} 1`,
		`tailplane_requests_total{code="2xx",listener="tailnet",op="signin.kubeconfig"} 2`,
		`tailplane_requests_total{code="4xx",listener="tailnet",op="unknown"} 1`,
		`tailplane_requests_in_flight{listener="tailnet"} 1`,
		`tailplane_request_seconds_sum{listener="tailnet",op="signin.kubeconfig"} 1`,
		`tailplane_kubeconfig_wait_seconds_sum 2`,
		`tailplane_refusals_total{reason="not_found"} 1`, `tailplane_refusals_total{reason="no_capability"} 0`,
		`tailplane_audit_entries_total{result="refused"} 1`, `tailplane_audit_entries_total{result="done"} 0`, `tailplane_audit_dropped_total 1`, `tailplane_audit_up 1`,
		`tailplane_whois_seconds_count 1`,
		`tailplane_signin_ready_seconds_bucket{le="0.025"} 1`, `tailplane_signin_ready_seconds_bucket{le="0.01"} 0`, `tailplane_signin_ready_seconds_count 1`,
		`tailplane_signin_sweep_deleted_total 1`,
		`tailplane_signin_ends_total{cause="grant"} 1`, `tailplane_signin_ends_total{cause="logout"} 0`,
		`tailplane_signins{phase="Ready"} 2`, `tailplane_signins{phase="Pending"} 1`, `tailplane_signins{phase="Ending"} 1`, `tailplane_signins{phase="Expired"} 0`,
		`tailplane_signins_by_role{role="view"} 2`, `tailplane_signins_by_role{role="edit"} 0`, `tailplane_signins_by_role{role="other"} 2`,
		`tailplane_signin_starts_total{privileged="true",role="edit"} 1`, `tailplane_signin_starts_total{privileged="false",role="edit"} 0`,
		`tailplane_signin_starts_total{privileged="false",role="other"} 1`,
		`tailplane_ready 1`, `tailplane_tailnet_up 1`,
	} {
		if !strings.Contains(body, "\n"+line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
	for _, absent := range []string{"tailplane_node_key_expiry_seconds ", `reason="not_ready"`, "made up"} {
		if strings.Contains(body, absent) {
			t.Errorf("there is %s", absent)
		}
	}
	if problems, err := promlint.New(strings.NewReader(body)).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

// AU-06: whatever is counted, only series with declared label values exist.
func TestSeriesDoNotGrow(t *testing.T) {
	m := health.NewMetrics("v1", "abc", access.SigninLogin)
	m.SetRoles([]access.Role{"view"})
	begin := m.MeasureServer("tailnet")
	visit := func(i int) {
		begin()(httpapi.Outcome{Verb: access.Verb(fmt.Sprint("verb", i)), Status: 400 + i%100, Code: problem.Code(fmt.Sprint("code", i)), Took: time.Duration(i)})
		m.CountEnded(signin.Cause(fmt.Sprint("cause", i)))
		m.CountStarted(access.Role(fmt.Sprint("role", i)), i%2 == 0)
	}
	visit(0)
	series := func() (n int) {
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
	before := series()
	for i := range 10_000 {
		visit(i)
	}
	if after := series(); after != before {
		t.Errorf("%d series, then %d", before, after)
	}
}
