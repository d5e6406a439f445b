package apiproxy_test

import (
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/tailplane/tailplane/internal/apiproxy"
)

// otlpCollector accepts posted spans, unless answer returns another response.
type otlpCollector struct {
	mu     sync.Mutex
	answer func(n int) (status int, header http.Header, body string) // nil: it accepts everything
	asked  int
	got    []*tracepb.ResourceSpans
	wrong  []error
}

func (c *otlpCollector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	if c.answer != nil {
		if status, header, body := c.answer(c.asked); status != http.StatusOK || body != "" {
			for k, v := range header {
				w.Header()[k] = v
			}
			w.WriteHeader(status)
			io.WriteString(w, body)
			if status != http.StatusOK {
				return
			}
		}
	}
	spans, err := decodeOTLP(r)
	if err != nil {
		c.wrong = append(c.wrong, err)
		return
	}
	c.got = append(c.got, spans...)
}

// decodeOTLP parses a request strictly, with the generated messages of OpenTelemetry.
func decodeOTLP(r *http.Request) ([]*tracepb.ResourceSpans, error) {
	if r.Method != "POST" || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/json" || r.Header.Get("Content-Encoding") != "gzip" {
		return nil, fmt.Errorf("%s %s %v", r.Method, r.URL, r.Header)
	}
	z, err := gzip.NewReader(r.Body)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(z)
	if err != nil {
		return nil, err
	}
	var data tracepb.TracesData
	if err := protojson.Unmarshal(b, &data); err != nil {
		return nil, fmt.Errorf("%w: %s", err, b)
	}
	return data.ResourceSpans, nil
}

// hexID reverses what protojson does to an id: it decodes hexadecimal as base64.
func hexID(b []byte) string { return base64.StdEncoding.EncodeToString(b) }

func (c *otlpCollector) spans() (all []*tracepb.Span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.got {
		for _, s := range r.ScopeSpans {
			all = append(all, s.Spans...)
		}
	}
	return all
}

func newExporter(t *testing.T, c apiproxy.TraceExporterConfig) *apiproxy.TraceExporter {
	t.Helper()
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	e, err := apiproxy.NewTraceExporter(c)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func exporterTracer(e *apiproxy.TraceExporter) trace.Tracer {
	return sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(e)).Tracer("test", trace.WithInstrumentationVersion("v1"))
}

// runExporter runs e until the returned function is called, which waits for its end.
func runExporter(t *testing.T, e *apiproxy.TraceExporter) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestSpansArrive(t *testing.T) {
	c := &otlpCollector{}
	srv := httptest.NewServer(c)
	defer srv.Close()
	e := newExporter(t, apiproxy.TraceExporterConfig{Endpoint: srv.URL, Resource: []attribute.KeyValue{attribute.String("service.name", "mca")}})
	stop := runExporter(t, e)
	tr := exporterTracer(e)
	remote := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1, 2, 3}, SpanID: trace.SpanID{4}, TraceFlags: trace.FlagsSampled, Remote: true})
	ctx, parent := tr.Start(trace.ContextWithRemoteSpanContext(t.Context(), remote), "parent", trace.WithSpanKind(trace.SpanKindServer))
	_, child := tr.Start(ctx, "child", trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attribute.String("s", "\u202e\"\n"), attribute.Int("i", 503),
		attribute.Bool("b", true), attribute.Float64("f", .5), attribute.StringSlice("l", []string{"x", "y"}), attribute.IntSlice("n", []int{1})))
	child.AddEvent("event", trace.WithAttributes(attribute.String("k", "v")))
	child.SetStatus(codes.Error, "why")
	child.End()
	parent.SetStatus(codes.Ok, "")
	parent.End()
	stop()
	spans := c.spans()
	if len(spans) != 2 || len(c.wrong) > 0 {
		t.Fatalf("%d spans, %v", len(spans), c.wrong)
	}
	got, above := spans[0], spans[1]
	switch {
	case hexID(above.TraceId) != "01020300000000000000000000000000":
		t.Errorf(`parent: hexID(above.TraceId) != "01020300000000000000000000000000"; above = %v`, above)
	case hexID(above.ParentSpanId) != "0400000000000000":
		t.Errorf(`parent: hexID(above.ParentSpanId) != "0400000000000000"; above = %v`, above)
	case above.Flags != 0x301:
		t.Errorf("parent: above.Flags = %v, want 0x301", above.Flags)
	}
	switch {
	case hexID(got.TraceId) != hexID(above.TraceId):
		t.Errorf("child: hexID(got.TraceId) != hexID(above.TraceId); got = %v", got)
	case hexID(got.ParentSpanId) != hexID(above.SpanId):
		t.Errorf("child: hexID(got.ParentSpanId) != hexID(above.SpanId); got = %v", got)
	case got.Flags != 0x101:
		t.Errorf("child: got.Flags = %v, want 0x101", got.Flags)
	}
	switch {
	case got.Kind != tracepb.Span_SPAN_KIND_CLIENT:
		t.Errorf("kinds and statuses: got.Kind = %v, want %v", got.Kind, tracepb.Span_SPAN_KIND_CLIENT)
	case above.Kind != tracepb.Span_SPAN_KIND_SERVER:
		t.Errorf("kinds and statuses: above.Kind = %v, want %v", above.Kind, tracepb.Span_SPAN_KIND_SERVER)
	case got.Status.GetCode() != tracepb.Status_STATUS_CODE_ERROR:
		t.Errorf("kinds and statuses: got.Status.GetCode() != tracepb.Status_STATUS_CODE_ERROR; got = %v, above = %v", got, above)
	case got.Status.GetMessage() != "why":
		t.Errorf(`kinds and statuses: got.Status.GetMessage() != "why"; got = %v, above = %v`, got, above)
	case above.Status.GetCode() != tracepb.Status_STATUS_CODE_OK:
		t.Errorf("kinds and statuses: above.Status.GetCode() != tracepb.Status_STATUS_CODE_OK; got = %v, above = %v", got, above)
	}
	switch {
	case got.StartTimeUnixNano == 0:
		t.Errorf("times and events: got.StartTimeUnixNano = %v", got.StartTimeUnixNano)
	case got.EndTimeUnixNano < got.StartTimeUnixNano:
		t.Errorf("times and events: got.EndTimeUnixNano = %v, want at least %v", got.EndTimeUnixNano, got.StartTimeUnixNano)
	case len(got.Events) != 1:
		t.Errorf("times and events: len(got.Events) = %v, want 1", len(got.Events))
	case got.Events[0].Name != "event":
		t.Errorf("times and events: got.Events[0].Name = %q, want %q", got.Events[0].Name, "event")
	}
	for i, want := range []string{`string_value:"\u202e\"\n"`, `int_value:503`, `bool_value:true`, `double_value:0.5`, `array_value:`, `string_value:"[1]"`} {
		if s := strings.ReplaceAll(got.Attributes[i].Value.String(), " ", ""); !strings.Contains(s, strings.ReplaceAll(want, `\u202e`, "\u202e")) {
			t.Errorf("attribute %d: %s, want %s", i, s, want)
		}
	}
	switch r := c.got[0].Resource.Attributes; {
	case len(r) != 1:
		t.Errorf("len(r) = %v, want 1", len(r))
	case r[0].Key != "service.name":
		t.Errorf("r[0].Key = %q, want %q", r[0].Key, "service.name")
	case c.got[0].ScopeSpans[0].Scope.Name != "test":
		t.Errorf("c.got[0].ScopeSpans[0].Scope.Name = %q, want %q", c.got[0].ScopeSpans[0].Scope.Name, "test")
	}
	if s := e.Stats(); s != (apiproxy.TraceExporterStats{Sent: 2}) {
		t.Errorf("%+v", s)
	}
}

func TestUnsampledSpansStay(t *testing.T) {
	e := newExporter(t, apiproxy.TraceExporterConfig{Endpoint: "http://127.0.0.1:1"})
	tr := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(e), sdktrace.WithSampler(sdktrace.NeverSample())).Tracer("test")
	_, s := tr.Start(t.Context(), "x")
	s.End()
	stop := runExporter(t, e)
	stop()
	if s := e.Stats(); s != (apiproxy.TraceExporterStats{}) {
		t.Errorf("%+v", s)
	}
}

// TestRetries checks that a collector that requests a retry gets one, after the requested wait.
func TestRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &otlpCollector{answer: func(n int) (int, http.Header, string) {
			switch n {
			case 1:
				return http.StatusTooManyRequests, http.Header{"Retry-After": {"20"}}, ""
			case 2:
				return http.StatusServiceUnavailable, nil, ""
			}
			return http.StatusOK, nil, ""
		}}
		var at []time.Time
		e := newExporter(t, apiproxy.TraceExporterConfig{Endpoint: "http://collector.example", Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			at = append(at, time.Now())
			w := httptest.NewRecorder()
			c.ServeHTTP(w, r)
			return w.Result(), nil
		})})
		stop := runExporter(t, e)
		_, s := exporterTracer(e).Start(t.Context(), "x")
		s.End()
		time.Sleep(time.Minute)
		stop()
		switch {
		case len(at) != 3:
			t.Fatalf("len(at) = %v, want 3", len(at))
		case len(c.spans()) != 1:
			t.Fatalf("len(c.spans()) = %v, want 1", len(c.spans()))
		case e.Stats() != (apiproxy.TraceExporterStats{Sent: 1}):
			t.Fatalf("e.Stats() = %v, want %v", e.Stats(), (apiproxy.TraceExporterStats{Sent: 1}))
		}
		if first := at[1].Sub(at[0]); first < 20*time.Second {
			t.Errorf("the request came after %v, want 20 s", first)
		}
		if second := at[2].Sub(at[1]); second < time.Second || second > 10*time.Second {
			t.Errorf("the next request came after %v", second)
		}
	})
}

// TestCollectorDown checks that spans are dropped and counted, with limited memory, while the collector
// accepts none.
func TestCollectorDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		requested := 0
		var log strings.Builder
		e := newExporter(t, apiproxy.TraceExporterConfig{Endpoint: "http://collector.example", Queue: 10, Log: slog.New(slog.NewTextHandler(&log, nil)),
			Transport: roundTripper(func(*http.Request) (*http.Response, error) { requested++; return nil, errors.New("connection refused") })})
		stop := runExporter(t, e)
		tr := exporterTracer(e)
		for range 100 {
			_, s := tr.Start(t.Context(), "x")
			s.End()
			synctest.Wait()
		}
		time.Sleep(10 * time.Second) // the SDK takes the first batch from the queue
		for range 100 {
			_, s := tr.Start(t.Context(), "x")
			s.End()
		}
		time.Sleep(5 * time.Minute)
		stop()
		s := e.Stats()
		switch {
		case s.Sent != 0:
			t.Errorf("s.Sent = %v, want 0", s.Sent)
		case s.Failed+s.Dropped != 200:
			t.Errorf("s.Failed+s.Dropped = %v, want 200", s.Failed+s.Dropped)
		case s.Dropped != 180:
			t.Errorf("s.Dropped = %v, want 180", s.Dropped)
		case requested < 3:
			t.Errorf("requested = %v, want at least 3", requested)
		case requested > 60:
			t.Errorf("requested = %v, want at most 60", requested)
		}
		if n := strings.Count(log.String(), "\n"); n != 1 {
			t.Errorf("%d lines of log:\n%s", n, log.String())
		}
	})
}

// TestRefusedForGood checks that spans that a collector rejects permanently are not sent again.
func TestRefusedForGood(t *testing.T) {
	for status, body := range map[int]string{http.StatusBadRequest: "", http.StatusFound: "", http.StatusOK: `{"partialSuccess":{"rejectedSpans":"1","errorMessage":"no"}}`} {
		c := &otlpCollector{answer: func(int) (int, http.Header, string) { return status, http.Header{"Location": {"/elsewhere"}}, body }}
		srv := httptest.NewServer(c)
		e := newExporter(t, apiproxy.TraceExporterConfig{Endpoint: srv.URL + "/"})
		stop := runExporter(t, e)
		_, s := exporterTracer(e).Start(t.Context(), "x")
		s.End()
		stop()
		srv.Close()
		if c.asked != 1 || e.Stats() != (apiproxy.TraceExporterStats{Failed: 1}) {
			t.Errorf("%d: asked %d times, %+v", status, c.asked, e.Stats())
		}
	}
}

func TestEndpoints(t *testing.T) {
	for endpoint, reason := range map[string]string{
		"": "none", "collector:4318": "no scheme", "ftp://x": "scheme", "http://": "no host", "http://u:s3cret@x": "user", "http://x/?token=s3cret": "query", "http://x\x7f": "no URL",
	} {
		if _, err := apiproxy.NewTraceExporter(apiproxy.TraceExporterConfig{Endpoint: endpoint, Log: slog.New(slog.DiscardHandler)}); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q (%s): %v", endpoint, reason, err)
		}
	}
	var requested []string
	for _, endpoint := range []string{"http://x:4318", "http://x:4318/", "http://x:4318/v1/traces", "http://x:4318/otlp/"} {
		e := newExporter(t, apiproxy.TraceExporterConfig{Endpoint: endpoint, Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			requested = append(requested, r.URL.Path)
			return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
		})})
		stop := runExporter(t, e)
		_, s := exporterTracer(e).Start(t.Context(), "x")
		s.End()
		stop()
	}
	if want := []string{"/v1/traces", "/v1/traces", "/v1/traces", "/otlp/v1/traces"}; !slices.Equal(requested, want) {
		t.Errorf("asked %q, want %q", requested, want)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
