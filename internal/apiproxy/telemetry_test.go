package apiproxy_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/multicluster/run"
)

// auditOutput is a stream that can fail.
type auditOutput struct {
	mu   sync.Mutex
	b    bytes.Buffer
	fail func(p []byte) (int, error) // nil: writes succeed
}

func (s *auditOutput) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		n, err := s.fail(p)
		s.b.Write(p[:n])
		return n, err
	}
	return s.b.Write(p)
}

func (s *auditOutput) set(fail func([]byte) (int, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = fail
}

func (s *auditOutput) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// auditLine is a parsed record of the audit log.
type auditLine struct {
	AuditID, Stage, Verb, RequestURI, UserAgent, Rule, TraceID, Level string
	ObjectRef                                                         struct{ Resource, Namespace, Name, APIGroup, APIVersion, Subresource string }
	ResponseStatus                                                    struct {
		Code            int
		Reason, Message string
	}
	Clusters                                 []string
	DurationMs                               *float64
	Bytes                                    *int64
	Lost                                     int64
	RequestReceivedTimestamp, StageTimestamp time.Time
}

func auditLines(t *testing.T, text string) (all []auditLine) {
	t.Helper()
	s := bufio.NewScanner(strings.NewReader(text))
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		var l auditLine
		if err := json.Unmarshal(s.Bytes(), &l); err != nil {
			t.Fatalf("%v: %q", err, s.Text())
		}
		all = append(all, l)
	}
	return all
}

// env is an observer with all features except traces.
type env struct {
	*apiproxy.Telemetry
	telemetry   *apiproxy.AuditLog
	output, log *auditOutput
	stop        func()
}

func newEnv(t *testing.T, conf apiproxy.AuditLogConfig) *env {
	t.Helper()
	s := &env{output: &auditOutput{}, log: &auditOutput{}}
	if conf.Path == "" && conf.Writer == nil {
		conf.Writer = s.output
	}
	log := slog.New(slog.NewJSONHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	conf.Log, conf.Now = log, time.Now
	rec, err := apiproxy.NewAuditLog(conf)
	if err != nil {
		t.Fatal(err)
	}
	s.Telemetry = &apiproxy.Telemetry{Metrics: apiproxy.NewMetrics("v1", apiproxy.BuiltinResources()), AuditLog: func() *apiproxy.AuditLog { return rec }, Log: log, Now: time.Now}
	s.telemetry = rec
	s.Metrics.SetConfig(1, []string{"here", "east", "west"}, []string{"production"})
	s.stop = runTelemetry(t, rec)
	return s
}

func runTelemetry(t *testing.T, r interface{ Run(context.Context) error }) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func request(method, target string) *http.Request {
	r := httptest.NewRequest(method, target, nil)
	r.Header.Set("User-Agent", "kubectl/v1.37.0")
	return r
}

func parsed(t testing.TB, r *http.Request) *apiproxy.Request {
	t.Helper()
	req, err := apiproxy.ParseRequest(r.Method, r.URL)
	if err != nil {
		t.Fatal(err)
	}
	return &req
}

// value returns the value of a series, given its text in a scrape.
func value(t *testing.T, m *apiproxy.Metrics, series string) string {
	t.Helper()
	for l := range strings.Lines(scrape(t, m)) {
		if v, ok := strings.CutPrefix(l, series+" "); ok {
			return strings.TrimSpace(v)
		}
	}
	return "absent"
}

func scrape(t *testing.T, m *apiproxy.Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	r := httptest.NewRequest("GET", "/metrics", nil)
	r.Host = "127.0.0.1"
	run.MetricsHandler(m, slog.New(slog.DiscardHandler)).ServeHTTP(w, r)
	if w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	return w.Body.String()
}

// ADP-23: AU-03: each request has exactly one record, a stream two, on every path.
func TestAU03OneLineForEachRequest(t *testing.T) {
	for _, c := range []struct {
		why, method, target string
		visit               func(v *apiproxy.RequestTelemetry, req *apiproxy.Request)
		stages              string
		code                int
	}{
		{"a read", "GET", "/api/v1/namespaces/a/pods/x", func(v *apiproxy.RequestTelemetry, req *apiproxy.Request) {
			v.SetRequest(req)
			v.SetRoute("", "here")
			v.End(apiproxy.Result{Code: 200, Bytes: 7})
		}, "ResponseComplete", 200},
		{"refused before it was read", "GET", "/api/v1/%2e%2e", func(v *apiproxy.RequestTelemetry, _ *apiproxy.Request) {
			v.SetRefused(apiproxy.RefusedForm)
			v.End(apiproxy.Result{Code: 400, Reason: "BadRequest", Message: "no"})
		}, "ResponseComplete", 400},
		{"aborted by the client", "GET", "/api/v1/pods", func(v *apiproxy.RequestTelemetry, req *apiproxy.Request) {
			v.SetRequest(req)
			v.SetRoute("", "here")
			v.End(apiproxy.Result{Code: apiproxy.StatusClientClosedRequest, Err: context.Canceled})
		}, "ResponseComplete", 499},
		{"a handler that panicked", "DELETE", "/api/v1/namespaces/a/pods/x", func(v *apiproxy.RequestTelemetry, req *apiproxy.Request) {
			v.SetRequest(req)
			v.End(apiproxy.Result{Code: 500, Panicked: true, Err: errors.New("boom")})
		}, "Panic", 500},
		{"a watch", "GET", "/api/v1/pods?watch=1", func(v *apiproxy.RequestTelemetry, req *apiproxy.Request) {
			v.SetRequest(req)
			v.SetRoute("", "east", "west")
			v.StreamOpened(200)
			v.StreamOpened(200)
			v.End(apiproxy.Result{Code: 200, Bytes: 9})
		}, "ResponseStarted ResponseComplete", 200},
		{"a watch that was refused", "GET", "/api/v1/pods?watch=1", func(v *apiproxy.RequestTelemetry, req *apiproxy.Request) {
			v.SetRequest(req)
			v.SetRoute("", "here")
			v.End(apiproxy.Result{Code: 403})
		}, "ResponseComplete", 403},
		{"an upgraded exec", "POST", "/api/v1/namespaces/a/pods/x/exec?command=sh", func(v *apiproxy.RequestTelemetry, req *apiproxy.Request) {
			v.SetRequest(req)
			v.SetRoute("", "here")
			if err := v.RequireAudit(); err != nil {
				t.Error(err)
			}
			v.StreamOpened(101)
			v.End(apiproxy.Result{Code: 101})
		}, "RequestReceived ResponseComplete", 101},
		{"ended twice", "PUT", "/api/v1/namespaces/a/pods/x", func(v *apiproxy.RequestTelemetry, req *apiproxy.Request) {
			v.SetRequest(req)
			v.End(apiproxy.Result{Code: 409})
			v.End(apiproxy.Result{Code: 200})
		}, "ResponseComplete", 409},
	} {
		t.Run(c.why, func(t *testing.T) {
			s := newEnv(t, apiproxy.AuditLogConfig{})
			r := request(c.method, c.target)
			v := s.Begin(r)
			id := v.AuditID()
			req, err := apiproxy.ParseRequest(r.Method, r.URL)
			if err != nil && c.code != 400 {
				t.Fatal(err)
			}
			c.visit(v, &req)
			s.stop()
			var stages []string
			all := auditLines(t, s.output.String())
			for _, l := range all {
				stages = append(stages, l.Stage)
				if l.AuditID != id || l.UserAgent != "kubectl/v1.37.0" {
					t.Errorf("%+v", l)
				}
			}
			if got := strings.Join(stages, " "); got != c.stages {
				t.Errorf("stages %q, want %q", got, c.stages)
			}
			switch last := all[len(all)-1]; {
			case last.ResponseStatus.Code != c.code:
				t.Errorf("last.ResponseStatus.Code = %v, want %v", last.ResponseStatus.Code, c.code)
			case last.DurationMs == nil:
				t.Error("last.DurationMs is nil")
			case last.Bytes == nil:
				t.Error("last.Bytes is nil")
			}
			if n := strings.Count(s.log.String(), `"msg":"request"`); n != 1 {
				t.Errorf("%d lines of log: %s", n, s.log)
			}
			if len(s.OpenStreams()) != 0 {
				t.Errorf("streams are still counted: %v", s.OpenStreams())
			}
			for _, series := range []string{`mca_requests_in_flight{cluster="here"}`, `mca_streams{cluster="here",kind="exec"}`, `mca_streams{cluster="merged",kind="watch"}`} {
				if got := value(t, s.Metrics, series); got != "0" && got != "absent" {
					t.Errorf("%s is %s", series, got)
				}
			}
		})
	}
}

// AU-03: of concurrent requests, no record has a field of another.
func TestAU03ManyAtOnce(t *testing.T) {
	s := newEnv(t, apiproxy.AuditLogConfig{Queue: 5000, QueueBytes: 16 << 20})
	var wg sync.WaitGroup
	for i := range 1000 {
		wg.Go(func() {
			r := request("GET", fmt.Sprintf("/api/v1/namespaces/ns-%d/pods/pod-%d", i, i))
			r.Header.Set("User-Agent", fmt.Sprint("agent-", i))
			v := s.Begin(r)
			req, err := apiproxy.ParseRequest(r.Method, r.URL)
			if err != nil {
				t.Error(err)
				return
			}
			v.SetRequest(&req)
			v.SetRoute("", "here")
			v.End(apiproxy.Result{Code: 200, Bytes: int64(i)})
		})
	}
	wg.Wait()
	s.stop()
	seen := map[string]bool{}
	for _, l := range auditLines(t, s.output.String()) {
		n := strings.TrimPrefix(l.ObjectRef.Name, "pod-")
		switch {
		case seen[n]:
			t.Errorf("seen[n] is true; %+v", l)
		case l.ObjectRef.Namespace != "ns-"+n:
			t.Errorf("l.ObjectRef.Namespace = %q, want %q", l.ObjectRef.Namespace, "ns-"+n)
		case l.UserAgent != "agent-"+n:
			t.Errorf("l.UserAgent = %q, want %q", l.UserAgent, "agent-"+n)
		case fmt.Sprint(*l.Bytes) != n:
			t.Errorf("fmt.Sprint(*l.Bytes) = %q, want %q", fmt.Sprint(*l.Bytes), n)
		}
		seen[n] = true
	}
	if len(seen) != 1000 {
		t.Errorf("%d visits", len(seen))
	}
	if got := value(t, s.Metrics, `mca_requests_total{cluster="here",code="200",group="",resource="pods",subresource="",verb="get"}`); got != "1000" {
		t.Errorf("counted %s", got)
	}
}

const (
	canaryLocal = "Q2FuYXJ5LWxvY2FsLXRva2VuLTAxMjM0NTY3ODlhYmNk"
	canaryReal  = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJjYW5hcnkifQ.c2lnbmF0dXJlQ0FOQVJZ"
	canaryBody  = "canary-body-of-a-secret"
)

// AU-01: tokens appear in no output, wherever a client puts them.
func TestAU01Canary(t *testing.T) {
	c := &collector{}
	srv := httptest.NewServer(c)
	defer srv.Close()
	s := newEnv(t, apiproxy.AuditLogConfig{})
	tracer, err := apiproxy.NewTracer(apiproxy.TraceConfig{Endpoint: srv.URL, Ratio: 1, Log: s.Log})
	if err != nil {
		t.Fatal(err)
	}
	s.Tracer = func() *apiproxy.Tracer { return tracer }
	stop := runTelemetry(t, tracer)
	for _, at := range []struct{ method, target string }{
		{"GET", "/api/v1/namespaces/" + canaryLocal + "/pods/" + canaryReal + "?labelSelector=token%3D" + url.QueryEscape(canaryBody)},
		{"POST", "/apis/" + canaryReal + "/" + canaryLocal + "/" + canaryLocal},
		{"GET", "/" + canaryReal},
		{"GET", "/api/v1/namespaces/a/pods/x/exec?command=" + canaryBody},
		{"GET", "/%2e%2e/" + canaryReal},
	} {
		r := httptest.NewRequest(at.method, at.target, strings.NewReader(canaryBody))
		for _, h := range []string{"Authorization", "Cookie", "X-Remote-User", "Impersonate-User", "Audit-Id", "Sec-Websocket-Protocol"} {
			r.Header.Set(h, canaryReal)
		}
		r.Header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
		r.Header.Set("Tracestate", "vendor="+canaryReal)
		r.Header.Set("User-Agent", "kubectl "+canaryLocal+" "+canaryReal)
		v := s.Begin(r)
		if req, err := apiproxy.ParseRequest(r.Method, r.URL); err == nil {
			v.SetRequest(&req)
		}
		v.SetRoute(canaryReal, canaryLocal)
		if err := v.RequireAudit(); err != nil {
			t.Error(err)
		}
		h := http.Header{}
		v.StartCall(canaryLocal, h).End(500, apiproxy.CallFailure(canaryReal))
		if strings.Contains(fmt.Sprint(h), canaryReal) {
			t.Errorf("sent on: %v", h)
		}
		v.StreamOpened(200)
		for _, o := range s.OpenStreams() {
			if b, err := json.Marshal(o); err != nil || containsCanary(string(b)) {
				t.Errorf("streams: %s %v", b, err)
			}
		}
		v.End(apiproxy.Result{Code: 500, Reason: canaryReal, Message: "said " + canaryLocal, Err: fmt.Errorf("with %s and %s", canaryReal, canaryLocal)})
	}
	stop()
	s.stop()
	if len(c.spans()) != 10 {
		t.Errorf("%d spans", len(c.spans()))
	}
	for where, text := range map[string]string{"record": s.output.String(), "log": s.log.String(), "metrics": scrape(t, s.Metrics), "traces": fmt.Sprint(c.spans())} {
		if text == "" || containsCanary(text) {
			t.Errorf("%s: %.2000s", where, text)
		}
	}
}

func containsCanary(s string) bool {
	return strings.Contains(s, canaryLocal) || strings.Contains(s, canaryReal) || strings.Contains(s, canaryBody) || strings.Contains(s, "eyJzdWIi")
}

// TestNamesAreKept checks that text that does not look like a credential is unchanged.
func TestNamesAreKept(t *testing.T) {
	s := newEnv(t, apiproxy.AuditLogConfig{})
	agent := "controller-manager/v1.37.0 (linux/amd64) kubernetes/4f3e2d1c0b9a8f7e6d5c4b3a29180f7e6d5c4b3a/leader-election"
	r := request("GET", "/apis/very.long.group.of.some.vendor.example.com/v1beta1/namespaces/a-rather-long-namespace-0123456789/things/thing-5d5f8c7b9d-x2k4p-0123456789-0123456789")
	r.Header.Set("User-Agent", agent)
	v := s.Begin(r)
	v.SetRequest(parsed(t, r))
	v.End(apiproxy.Result{Code: 200})
	s.stop()
	for _, text := range []string{s.output.String(), s.log.String()} {
		switch {
		case strings.Contains(text, "redacted"):
			t.Errorf("text = %q contains %q", text, "redacted")
		case !strings.Contains(text, agent):
			t.Errorf("text = %q does not contain %q", text, agent)
		case !strings.Contains(text, "thing-5d5f8c7b9d-x2k4p-0123456789-0123456789"):
			t.Errorf("text = %q does not contain %q", text, "thing-5d5f8c7b9d-x2k4p-0123456789-0123456789")
		}
	}
}

// AU-02: a line is one event, is printable, and parses back to the original text.
func TestAU02Hostile(t *testing.T) {
	hostile := "a\r\nb\x1b[31m\"}{\"code\":200\u202egnp.exe\u2028\u0085\u200b\x7f\U000e0041\xff"
	want := strings.ToValidUTF8(hostile, "\ufffd")
	for _, format := range []string{"json", "text"} {
		var log bytes.Buffer
		s := newEnv(t, apiproxy.AuditLogConfig{})
		s.Telemetry.Log = slog.New(slog.NewJSONHandler(&log, nil))
		if format == "text" {
			s.Telemetry.Log = slog.New(slog.NewTextHandler(&log, nil))
		}
		r := request("POST", "/x")
		r.Header["User-Agent"] = []string{hostile}
		v := s.Begin(r)
		v.SetRequest(&apiproxy.Request{Verb: "create", Group: hostile, Version: hostile, Resource: hostile, Namespace: hostile, Name: hostile})
		v.SetRoute("production", "east")
		v.End(apiproxy.Result{Code: 500, Message: hostile, Err: errors.New(hostile)})
		s.stop()
		for where, text := range map[string]string{"record": s.output.String(), format: log.String()} {
			if strings.Count(text, "\n") != 1 {
				t.Errorf("%s: not one line: %q", where, text)
			}
			for _, c := range strings.TrimSuffix(text, "\n") {
				if c < 0x20 || c >= 0x7f && c != '\ufffd' && c != 'µ' {
					t.Errorf("%s: %U in %q", where, c, text)
				}
			}
		}
		all := auditLines(t, s.output.String())
		switch l := all[0]; {
		case l.UserAgent != want:
			t.Errorf("it parses: l.UserAgent = %q, want %q", l.UserAgent, want)
		case l.ObjectRef.Name != want:
			t.Errorf("it parses: l.ObjectRef.Name = %q, want %q", l.ObjectRef.Name, want)
		case l.ResponseStatus.Message != want:
			t.Errorf("it parses: l.ResponseStatus.Message = %q, want %q", l.ResponseStatus.Message, want)
		case l.ResponseStatus.Code != 500:
			t.Errorf("it parses: l.ResponseStatus.Code = %v, want 500", l.ResponseStatus.Code)
		}
		if format == "json" {
			var l struct {
				Name, Agent, Err string
				Code             int
			}
			switch err := json.Unmarshal(log.Bytes(), &l); {
			case err != nil:
				t.Error(err)
			case l.Name != want:
				t.Errorf("l.Name = %q, want %q", l.Name, want)
			case l.Agent != want:
				t.Errorf("l.Agent = %q, want %q", l.Agent, want)
			case l.Err != want:
				t.Errorf("l.Err = %q, want %q", l.Err, want)
			case l.Code != 500:
				t.Errorf("l.Code = %v, want 500", l.Code)
			}
		}
	}
}

// TestLevels checks rule 11: writes and failures have level info, reads have level debug.
func TestLevels(t *testing.T) {
	for _, c := range []struct {
		method, target string
		out            apiproxy.Result
		level          string
	}{
		{"GET", "/api/v1/pods", apiproxy.Result{Code: 200}, "DEBUG"},
		{"GET", "/version", apiproxy.Result{Code: 200}, "DEBUG"},
		{"GET", "/api/v1/pods", apiproxy.Result{Code: 404}, "INFO"},
		{"GET", "/api/v1/pods", apiproxy.Result{}, "INFO"},
		{"POST", "/api/v1/namespaces/a/pods", apiproxy.Result{Code: 201}, "INFO"},
		{"GET", "/api/v1/namespaces/a/pods/x/exec", apiproxy.Result{Code: 101}, "INFO"},
		{"DELETE", "/api/v1/namespaces/a/pods/x", apiproxy.Result{Code: 200, Panicked: true}, "ERROR"},
	} {
		s := newEnv(t, apiproxy.AuditLogConfig{})
		r := request(c.method, c.target+"?pretty=secret-query")
		v := s.Begin(r)
		v.SetRequest(parsed(t, r))
		v.SetRoute("production", "east")
		v.End(c.out)
		s.stop()
		var l map[string]any
		switch err := json.Unmarshal([]byte(s.log.String()), &l); {
		case err != nil:
			t.Errorf("%v; %s; %s", err, c.method, c.target)
		case l["level"] != c.level:
			t.Errorf(`l["level"] = %v, want %v; %s; %s`, l["level"], c.level, c.method, c.target)
		case l["rule"] != "production":
			t.Errorf(`l["rule"] = %v, want %v; %s; %s`, l["rule"], "production", c.method, c.target)
		case l["cluster"] != "east":
			t.Errorf(`l["cluster"] = %v, want %v; %s; %s`, l["cluster"], "east", c.method, c.target)
		}
		if strings.Contains(s.log.String()+s.output.String(), "secret-query") {
			t.Errorf("the log has the query: %s%s", s.log, s.output)
		}
		if len(l) > 22 {
			t.Errorf("%d attributes", len(l))
		}
	}
}

func TestAuditIDs(t *testing.T) {
	s := newEnv(t, apiproxy.AuditLogConfig{})
	defer s.stop()
	for added, accepted := range map[string]bool{"6e8bf0f4-1111-4222-8333-944455556666": true, "": false, "UPPER": false, "a b": false, "a\n": false, strings.Repeat("a", 65): false} {
		r := request("GET", "/api")
		r.Header["Audit-Id"] = []string{added}
		v := s.Begin(r)
		if (v.AuditID() == added) != accepted {
			t.Errorf("%q became %q", added, v.AuditID())
		}
		h := http.Header{}
		v.StartCall("here", h).End(200, "")
		if h.Get("Audit-ID") != v.AuditID() {
			t.Errorf("the cluster received %q", h)
		}
		v.End(apiproxy.Result{Code: 200})
	}
	seen := map[string]bool{}
	for range 100 {
		id := s.Begin(request("GET", "/api")).AuditID()
		switch {
		case seen[id]:
			t.Errorf("seen[id] is true; %q", id)
		case len(id) != 36:
			t.Errorf("len(id) = %v, want 36", len(id))
		case id[14] != '4':
			t.Errorf("id[14] = %v, want '4'", id[14])
		}
		seen[id] = true
	}
}

func TestStreams(t *testing.T) {
	s := newEnv(t, apiproxy.AuditLogConfig{})
	r := request("GET", "/api/v1/namespaces/a/pods/x/log?follow=true")
	v := s.Begin(r)
	v.SetRequest(parsed(t, r))
	v.SetRoute("production", "east")
	if got := value(t, s.Metrics, `mca_requests_in_flight{cluster="east"}`); got != "1" {
		t.Errorf("in flight: %s", got)
	}
	v.StreamOpened(200)
	open := s.OpenStreams()
	switch {
	case len(open) != 1:
		t.Errorf("len(open) = %v, want 1", len(open))
	case open[0].Kind != apiproxy.StreamLog:
		t.Errorf("open[0].Kind = %q, want %q", open[0].Kind, apiproxy.StreamLog)
	case open[0].Name != "x":
		t.Errorf("open[0].Name = %q, want %q", open[0].Name, "x")
	case open[0].Clusters[0] != "east":
		t.Errorf("open[0].Clusters[0] = %q, want %q", open[0].Clusters[0], "east")
	case open[0].AuditID != v.AuditID():
		t.Errorf("open[0].AuditID = %q, want %q", open[0].AuditID, v.AuditID())
	}
	for series, want := range map[string]string{`mca_requests_in_flight{cluster="east"}`: "0", `mca_streams{cluster="east",kind="log"}`: "1",
		`mca_requests_total{cluster="east",code="200",group="",resource="pods",subresource="log",verb="get"}`: "1"} {
		if got := value(t, s.Metrics, series); got != want {
			t.Errorf("%s is %s, want %s", series, got, want)
		}
	}
	s.Metrics.SetConfig(2, []string{"here"}, nil) // east is removed; the end of the stream must not recreate its series
	v.End(apiproxy.Result{Code: 200})
	switch text := scrape(t, s.Metrics); {
	case strings.Contains(text, `"east"`):
		t.Errorf("text = %q contains %q", text, `"east"`)
	case strings.Contains(text, `"production"`):
		t.Errorf("text = %q contains %q", text, `"production"`)
	case !strings.Contains(text, "mca_config_epoch 2"):
		t.Errorf("text = %q does not contain %q", text, "mca_config_epoch 2")
	}
	s.stop()
}

func BenchmarkRequestTelemetry(b *testing.B) {
	rec, err := apiproxy.NewAuditLog(apiproxy.AuditLogConfig{Writer: io.Discard, Log: slog.New(slog.DiscardHandler), Now: time.Now})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- rec.Run(ctx) }()
	defer func() { cancel(); <-done }()
	r := request("GET", "/api/v1/namespaces/a/pods/x")
	req := parsed(b, r)
	for name, to := range map[string]*apiproxy.AuditLog{"unrecorded": nil, "recorded": rec} {
		b.Run(name, func(b *testing.B) {
			o := &apiproxy.Telemetry{Metrics: apiproxy.NewMetrics("v1", apiproxy.BuiltinResources()), AuditLog: func() *apiproxy.AuditLog { return to }, Log: slog.New(slog.NewJSONHandler(io.Discard, nil)), Now: time.Now}
			o.Metrics.SetConfig(1, []string{"here"}, nil)
			h := http.Header{}
			b.ReportAllocs()
			for b.Loop() {
				v := o.Begin(r)
				v.SetRequest(req)
				v.SetRoute("", "here")
				v.StartCall("here", h).End(200, "")
				v.End(apiproxy.Result{Code: 200, Bytes: 100})
			}
		})
	}
}
