package apiproxy_test

import (
	"compress/gzip"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/tailplane/tailplane/internal/apiproxy"
)

// collector is an OTLP/HTTP receiver for JSON.
type collector struct {
	mu  sync.Mutex
	got []*tracepb.Span
	err error
}

func (c *collector) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	z, err := gzip.NewReader(r.Body)
	if err != nil {
		c.err = err
		return
	}
	b, err := io.ReadAll(z)
	if err != nil {
		c.err = err
		return
	}
	var data tracepb.TracesData
	if err := protojson.Unmarshal(b, &data); err != nil {
		c.err = fmt.Errorf("%w: %s", err, b)
		return
	}
	for _, r := range data.ResourceSpans {
		for _, s := range r.ScopeSpans {
			c.got = append(c.got, s.Spans...)
		}
	}
}

func (c *collector) spans() []*tracepb.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.got
}

// id reverses what protojson does to an id: it decodes hexadecimal as base64.
func id(b []byte) string { return base64.StdEncoding.EncodeToString(b) }

func attributes(s *tracepb.Span) map[string]string {
	all := map[string]string{}
	for _, a := range s.Attributes {
		if v := a.Value.GetStringValue(); v != "" {
			all[a.Key] = v
		} else {
			all[a.Key] = fmt.Sprint(a.Value.GetIntValue())
		}
	}
	return all
}

func newTracer(t *testing.T, endpoint string, ratio float64) *apiproxy.Tracer {
	t.Helper()
	tr, err := apiproxy.NewTracer(apiproxy.TraceConfig{Endpoint: endpoint, Ratio: ratio, Version: "v1", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func newTelemetry(tr *apiproxy.Tracer) *apiproxy.Telemetry {
	o := &apiproxy.Telemetry{Metrics: apiproxy.NewMetrics("v1", apiproxy.BuiltinResources()), Tracer: func() *apiproxy.Tracer { return tr }, Log: slog.New(slog.DiscardHandler), Now: time.Now}
	o.Metrics.SetConfig(1, []string{"here", "east", "west"}, []string{"batch"})
	return o
}

// ADP-22: Acceptance 22: a merged list is one trace with a parent span and a child for each member.
func TestMergedListIsOneTrace(t *testing.T) {
	c := &collector{}
	srv := httptest.NewServer(c)
	defer srv.Close()
	tr := newTracer(t, srv.URL, 1)
	stop := runTelemetry(t, tr)
	o := newTelemetry(tr)
	r := request("GET", "/apis/batch/v1/namespaces/jobs/jobs")
	v := o.Begin(r)
	v.SetRequest(parsed(t, r))
	v.SetRoute("batch", "here", "east", "west")
	var wg sync.WaitGroup
	headers := make([]http.Header, 3)
	for i, cluster := range []string{"here", "east", "west"} {
		headers[i] = http.Header{"Tracestate": {"somebody=else"}}
		wg.Go(func() {
			call := v.StartCall(cluster, headers[i])
			if cluster == "west" {
				call.End(0, apiproxy.FailedTimeout)
			} else {
				call.End(200, "")
			}
		})
	}
	wg.Wait()
	trace := v.TraceID()
	v.End(apiproxy.Result{Code: 200, Bytes: 5})
	stop()
	if c.err != nil {
		t.Fatal(c.err)
	}
	if len(c.spans()) != 4 || trace == "" {
		t.Fatalf("%d spans of the trace %q", len(c.spans()), trace)
	}
	var parent *tracepb.Span
	for _, s := range c.spans() {
		if s.Name == "mca.request" {
			parent = s
		}
	}
	switch {
	case parent == nil:
		t.Fatal("parent: parent is nil")
	case parent.Kind != tracepb.Span_SPAN_KIND_SERVER:
		t.Fatalf("parent: parent.Kind = %v, want %v", parent.Kind, tracepb.Span_SPAN_KIND_SERVER)
	case len(parent.ParentSpanId) != 0:
		t.Fatalf("parent: len(parent.ParentSpanId) = %v, want 0", len(parent.ParentSpanId))
	}
	switch a := attributes(parent); {
	case a["mca.verb"] != "list":
		t.Errorf(`a["mca.verb"] = %q, want %q`, a["mca.verb"], "list")
	case a["mca.group"] != "batch":
		t.Errorf(`a["mca.group"] = %q, want %q`, a["mca.group"], "batch")
	case a["mca.resource"] != "jobs":
		t.Errorf(`a["mca.resource"] = %q, want %q`, a["mca.resource"], "jobs")
	case a["mca.namespace"] != "jobs":
		t.Errorf(`a["mca.namespace"] = %q, want %q`, a["mca.namespace"], "jobs")
	case a["mca.rule"] != "batch":
		t.Errorf(`a["mca.rule"] = %q, want %q`, a["mca.rule"], "batch")
	case a["mca.cluster"] != "merged":
		t.Errorf(`a["mca.cluster"] = %q, want %q`, a["mca.cluster"], "merged")
	case a["http.response.status_code"] != "200":
		t.Errorf(`a["http.response.status_code"] = %q, want %q`, a["http.response.status_code"], "200")
	}
	children := map[string]*tracepb.Span{}
	for _, s := range c.spans() {
		if id(s.TraceId) != trace {
			t.Errorf("%s is in the trace %s", s.Name, id(s.TraceId))
		}
		if s != parent {
			children[attributes(s)["mca.cluster"]] = s
			switch {
			case s.Name != "mca.upstream":
				t.Errorf("s.Name = %q, want %q", s.Name, "mca.upstream")
			case s.Kind != tracepb.Span_SPAN_KIND_CLIENT:
				t.Errorf("s.Kind = %v, want %v", s.Kind, tracepb.Span_SPAN_KIND_CLIENT)
			case id(s.ParentSpanId) != id(parent.SpanId):
				t.Errorf("id(s.ParentSpanId) != id(parent.SpanId); %v", s)
			}
		}
	}
	switch {
	case len(children) != 3:
		t.Errorf("len(children) = %v, want 3", len(children))
	case attributes(children["west"])["error.type"] != "timeout":
		t.Errorf(`attributes(children["west"])["error.type"] != "timeout"; children = %v`, children)
	case children["west"].Status.GetCode() != tracepb.Status_STATUS_CODE_ERROR:
		t.Errorf(`children["west"].Status.GetCode() != tracepb.Status_STATUS_CODE_ERROR; children = %v`, children)
	}
	for i, cluster := range []string{"here", "east", "west"} { // each cluster receives its own span
		if got, want := headers[i].Get("Traceparent"), "00-"+trace+"-"+id(children[cluster].SpanId)+"-01"; got != want || headers[i].Get("Tracestate") != "" {
			t.Errorf("%s received %q, want %q; %v", cluster, got, want, headers[i])
		}
	}
	if s := tr.Stats(); s.Sent != 4 || s.Dropped+s.Failed != 0 {
		t.Errorf("%+v", s)
	}
}

// TestIncomingTraces checks that sampled traces of clients are continued, that unsampled ones are not, and
// that the ratio decides for requests without a trace.
func TestIncomingTraces(t *testing.T) {
	const trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	c := &collector{}
	srv := httptest.NewServer(c)
	defer srv.Close()
	tr := newTracer(t, srv.URL, math.SmallestNonzeroFloat64)
	stop := runTelemetry(t, tr)
	o := newTelemetry(tr)
	for header, sampled := range map[string]bool{
		"00-" + trace + "-" + parent + "-01": true,
		"00-" + trace + "-" + parent + "-00": false,
		"":                                   false,
		"00-" + strings.Repeat("0", 32) + "-" + parent + "-01": false,
		"junk\r\n": false,
	} {
		r := request("GET", "/api/v1/pods")
		if header != "" {
			r.Header["Traceparent"] = []string{header}
		}
		v := o.Begin(r)
		v.SetRequest(parsed(t, r))
		v.SetRoute("", "here")
		h := http.Header{"Traceparent": r.Header["Traceparent"], "Tracestate": {"somebody=else"}}
		v.StartCall("here", h).End(200, "")
		if (v.TraceID() == trace) != sampled {
			t.Errorf("%q: trace %q", header, v.TraceID())
		}
		if flag := map[bool]string{true: "-01", false: "-00"}[sampled]; !strings.HasSuffix(h.Get("Traceparent"), flag) {
			t.Errorf("%q: the cluster received %q", header, h.Get("Traceparent"))
		}
		if followed := strings.Contains(header, trace); (h.Get("Tracestate") != "") != followed {
			t.Errorf("%q: the cluster received the state %q", header, h.Get("Tracestate"))
		}
		v.End(apiproxy.Result{Code: 200})
	}
	stop()
	if len(c.spans()) != 2 || c.err != nil {
		t.Fatalf("%d spans, %v", len(c.spans()), c.err)
	}
	for _, s := range c.spans() {
		if id(s.TraceId) != trace || s.Name == "mca.request" && id(s.ParentSpanId) != parent {
			t.Errorf("%v", s)
		}
	}
}

// TestTracingOff checks that disabled tracing creates no tracer, does not change the client's headers and
// does not allocate.
func TestTracingOff(t *testing.T) {
	for _, c := range []apiproxy.TraceConfig{{}, {Endpoint: "http://x"}, {Ratio: 1}} {
		if tr, err := apiproxy.NewTracer(c); tr != nil || err != nil {
			t.Errorf("%+v: %v %v", c, tr, err)
		}
	}
	for _, ratio := range []float64{-1, 1.5, math.NaN(), math.Inf(1)} {
		if _, err := apiproxy.NewTracer(apiproxy.TraceConfig{Endpoint: "http://x", Ratio: ratio, Log: slog.New(slog.DiscardHandler)}); err == nil {
			t.Errorf("ratio %v", ratio)
		}
	}
	o := newTelemetry(nil)
	r := request("GET", "/api/v1/pods")
	v := o.Begin(r)
	h := http.Header{"Traceparent": {"00-x"}}
	v.StartCall("here", h).End(200, "")
	if v.TraceID() != "" || h.Get("Traceparent") != "00-x" {
		t.Errorf("%q %v", v.TraceID(), h)
	}
	v.End(apiproxy.Result{Code: 200})
	var off *apiproxy.Tracer
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := off.Run(ctx); err != nil || off.Stats().Sent != 0 {
		t.Error(err)
	}
}
