package apiproxy

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestThresholds checks section 9: consecutive failures make a cluster unhealthy, and consecutive successes
// make it healthy, with the numbers of the configuration.
func TestThresholds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &health{since: time.Now(), failures: 2, successes: 3}
		try := func(o attempt) bool {
			done, ok := h.admit(time.Now())
			if ok {
				h.record(time.Now(), o, errors.New("connection refused"))
				done()
			}
			return ok
		}
		try(attemptUnreachable)
		if h.state == StateUnhealthy {
			t.Error("unhealthy after one")
		}
		try(attemptUnreachable)
		if h.state != StateUnhealthy || h.outages != 1 {
			t.Errorf("%s after two, %d outages", h.state, h.outages)
		}
		time.Sleep(2 * time.Second)
		switch first, second := try(attemptSucceeded), try(attemptSucceeded); {
		case !first:
			t.Errorf("first is false; %s", h.state)
		case !second:
			t.Errorf("second is false; %s", h.state)
		case h.state != StateUnhealthy:
			t.Errorf("h.state = %q, want %q", h.state, StateUnhealthy)
		}
		if !try(attemptUnreachable) || try(attemptSucceeded) {
			t.Error("no pause after a failure in between")
		}
		time.Sleep(10 * time.Second)
		for range 3 {
			if h.state != StateUnhealthy || !try(attemptSucceeded) {
				t.Errorf("%s", h.state)
			}
		}
		if h.state != StateHealthy || h.outages != 1 {
			t.Errorf("%s after three answers, %d outages", h.state, h.outages)
		}
	})
}

// TestProbeDue checks that a cluster is probed if it is in use and had no outcome, or if it is unhealthy. Unused
// clusters are not probed.
func TestProbeDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestUpstream(t, t.TempDir(), Limits{}, "east.example:6443")
		req := func(o attempt) {
			done, ok := c.health.admit(time.Now())
			if ok {
				c.health.record(time.Now(), o, errors.New("connection refused"))
				done()
			}
		}
		if req(attemptSucceeded); c.ProbeDue() {
			t.Error("due without a probe")
		}
		c.Probe = Probe{Path: "/readyz", Interval: 30 * time.Second}
		time.Sleep(29 * time.Second)
		if c.ProbeDue() {
			t.Error("due before its time")
		}
		time.Sleep(time.Second)
		if !c.ProbeDue() {
			t.Error("not due after an interval without an answer")
		}
		if req(attemptSucceeded); c.ProbeDue() {
			t.Error("due although it has just answered")
		}
		time.Sleep(inUseIntervals*c.Probe.Interval + time.Second)
		if c.ProbeDue() {
			t.Error("due although it is not in use")
		}
		for range defaultFailures {
			req(attemptUnreachable)
		}
		if c.ProbeDue() {
			t.Error("due in the pause after an outage")
		}
		time.Sleep(2 * time.Second)
		if !c.ProbeDue() {
			t.Error("not due after the pause")
		}
		done, _ := c.health.admit(time.Now())
		if c.ProbeDue() {
			t.Error("due during a trial request")
		}
		done()
		if (&Upstream{UpstreamConfig: c.UpstreamConfig}).ProbeDue() {
			t.Error("due although it is not in use yet")
		}
	})
}

// TestRunProbe checks that a probe counts like a request, except that a status of 500 or no response is a
// failure, because a probe concerns the cluster itself.
func TestRunProbe(t *testing.T) {
	var code, got atomic.Int64
	c, dir := serveTLS(t, func(w http.ResponseWriter, r *http.Request) {
		got.Add(1)
		switch {
		case r.URL.Path != "/readyz":
			t.Errorf("r.URL.Path = %q, want %q", r.URL.Path, "/readyz")
		case r.Method != "GET":
			t.Errorf("r.Method = %q, want %q", r.Method, "GET")
		case r.Header.Get("Authorization") != "Bearer one":
			t.Errorf(`r.Header.Get("Authorization") != "Bearer one"; %s, %s, %v`, r.Method, r.URL, r.Header)
		}
		if code.Load() == 0 {
			<-r.Context().Done()
			return
		}
		w.WriteHeader(int(code.Load()))
	}, Limits{})
	c.Probe = Probe{Path: "/readyz", Interval: time.Second, Timeout: 5 * time.Second, Failures: 2}
	c.health.failures = 2
	var took atomic.Int64
	c.OnProbe = func(d time.Duration) { took.Add(int64(d)) }
	state := func(want HealthState, why string) {
		t.Helper()
		if h := c.Health(); h.State != want {
			t.Errorf("%s: %s (%s), want %s", why, h.State, h.LastError, want)
		}
	}
	code.Store(403)
	c.RunProbe(t.Context())
	state(StateHealthy, "it says no, so it is there")
	code.Store(500)
	c.RunProbe(t.Context())
	state(StateHealthy, "one failure")
	c.RunProbe(t.Context())
	state(StateUnhealthy, "two failures")
	if _, err := c.Do(newTestRequest(t, "GET", "")); err == nil || !strings.Contains(err.Error(), "it answered 500 to GET /readyz") {
		t.Errorf("a request: %v", err)
	}
	if n := got.Load(); n != 3 || took.Load() <= 0 {
		t.Errorf("%d probes, which took %v", n, time.Duration(took.Load()))
	}
	c.health.nextTrial = time.Now()
	code.Store(200)
	c.RunProbe(t.Context())
	state(StateHealthy, "it is ready")
	c.Probe.Timeout = 50 * time.Millisecond
	code.Store(0)
	c.RunProbe(t.Context())
	c.RunProbe(t.Context())
	state(StateUnhealthy, "silence")
	if h := c.Health(); !strings.Contains(h.LastError, "no answer to GET /readyz in 50ms") {
		t.Error(h.LastError)
	}
	c.health.nextTrial = time.Now()
	writeFile(t, dir, "token", "")
	before := c.Health()
	c.RunProbe(t.Context())
	if c.Health() != before {
		t.Error("an empty token counts as the cluster's failure")
	}
	writeFile(t, dir, "token", "one")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	c.RunProbe(ended)
	if c.Health() != before {
		t.Error("the adapter's shutdown counts as the cluster's failure")
	}
}

// ADP-18: another cluster at the address gets no requests, at the start and after an outage. If the check is
// not possible, the log has a warning.
func TestIdentity(t *testing.T) {
	const path = "/api/v1/namespaces/kube-system"
	var uid, code atomic.Value
	uid.Store("its-own")
	code.Store(200)
	var checks, requests atomic.Int64
	c, _ := serveTLS(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != path {
			requests.Add(1)
			return
		}
		checks.Add(1)
		w.WriteHeader(code.Load().(int))
		io.WriteString(w, `{"metadata":{"uid":"`+uid.Load().(string)+`"}}`)
	}, Limits{})
	var log strings.Builder
	c.UID, c.Log = "its-own", slog.New(slog.NewTextHandler(&log, nil))
	try := func() error {
		a, err := c.Do(newTestRequest(t, "GET", ""))
		if err == nil {
			a.Close()
		}
		return err
	}
	counts := func(why string, wantChecks, wantRequests int64) {
		t.Helper()
		if checks.Load() != wantChecks || requests.Load() != wantRequests {
			t.Errorf("%s: %d checks and %d requests, want %d and %d", why, checks.Load(), requests.Load(), wantChecks, wantRequests)
		}
	}
	for range 3 {
		if err := try(); err != nil {
			t.Fatal(err)
		}
	}
	counts("the right one", 1, 3)

	c.health.recordIdentityMismatch(time.Now(), errors.New("an outage"))
	c.health.nextTrial = time.Now()
	uid.Store("another")
	err := try()
	switch why, sent := errorReason(err); {
	case why != FailedUnhealthy:
		t.Errorf("another one: why = %q, want %q", why, FailedUnhealthy)
	case sent:
		t.Errorf("another one: sent is true; %v", err)
	case !strings.Contains(err.Error(), "another cluster answers"):
		t.Errorf("another one: err.Error() = %q does not contain %q", err.Error(), "another cluster answers")
	}
	counts("another one", 2, 3)
	if h := c.Health(); h.State != StateUnhealthy || !strings.Contains(h.LastError, "another cluster") {
		t.Errorf("%+v", h)
	}
	c.Probe = Probe{Path: "/readyz", Interval: time.Second}
	c.health.nextTrial, c.identity.failed = time.Now(), time.Time{}
	c.RunProbe(t.Context())
	if h := c.Health(); h.State != StateUnhealthy {
		t.Errorf("after a check of another one: %s", h.State)
	}
	counts("a look", 3, 3)

	uid.Store("its-own")
	c.health.nextTrial, c.identity.failed = time.Now(), time.Time{}
	if err := try(); err != nil || c.Health().State != StateHealthy {
		t.Errorf("it is back: %v, %+v", err, c.Health())
	}
	counts("it is back", 4, 4)

	for _, tt := range []struct {
		why  string
		code int
		ok   bool
	}{{"it cannot say", 500, false}, {"there is no such namespace", 404, false}, {"the pod may not ask", 403, true}} {
		c.health.recordIdentityMismatch(time.Now(), errors.New("an outage"))
		c.health.outages++
		c.health.nextTrial, c.identity.failed = time.Now(), time.Time{}
		code.Store(tt.code)
		if err := try(); (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.why, err)
		}
	}
	if !strings.Contains(log.String(), "cannot be checked") {
		t.Error("the log does not report that the cluster is not checked")
	}
}

// TestOneServerDown checks section 9: of several servers, one that is down is tried last, and the cluster is
// degraded.
func TestOneServerDown(t *testing.T) {
	live, dir := serveTLS(t, func(w http.ResponseWriter, _ *http.Request) {}, Limits{})
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	var dials atomic.Int64
	c := NewUpstream(UpstreamConfig{Name: "east", Servers: []string{gone.Addr().String(), live.Servers[0]}, CAFile: filepath.Join(dir, "ca.crt"), TokenFile: filepath.Join(dir, "token"),
		Log: slog.New(slog.DiscardHandler), Now: time.Now,
		Dial: func(dial Dialer) Dialer {
			return func(ctx context.Context, network, addr string) (net.Conn, error) {
				if addr == gone.Addr().String() {
					dials.Add(1)
				}
				return dial(ctx, network, addr)
			}
		}})
	t.Cleanup(c.Close)
	for range 10 {
		a, err := c.Do(newTestRequest(t, "POST", ""))
		if err != nil {
			t.Fatal(err)
		}
		a.Close()
	}
	if n := dials.Load(); n != 1 {
		t.Errorf("the one that is down was dialled %d times", n)
	}
	if h := c.Health(); h.State != StateDegraded {
		t.Errorf("%+v", h)
	}
	c.endpoints[0].lastFailure.Store(time.Now().Add(-endpointPenalty).UnixNano())
	a, err := c.Do(newTestRequest(t, "POST", ""))
	if err != nil {
		t.Fatal(err)
	}
	a.Close()
	if n := dials.Load(); n != 2 {
		t.Errorf("the one that was down was dialled %d times", n)
	}
}
