package apiproxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdkresource "go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// TraceConfig configures tracing. It corresponds to `tracing` in the configuration.
type TraceConfig struct {
	Endpoint  string  // of an OTLP/HTTP collector; "": no traces
	Ratio     float64 // of requests without a trace, 0 to 1; 0: no traces at all
	Version   string  // of the program
	Namespace string  // of the pod
	Transport http.RoundTripper
	Log       *slog.Logger
}

// Tracer creates the spans of requests. A nil Tracer creates none and costs nothing.
type Tracer struct {
	tracer   trace.Tracer
	exporter *TraceExporter
}

// Names of the spans.
const (
	spanRequest  = "mca.request"
	spanUpstream = "mca.upstream"
)

// Attributes of the spans.
const (
	attrVerb        = "mca.verb"
	attrGroup       = "mca.group"
	attrResource    = "mca.resource"
	attrSubresource = "mca.subresource"
	attrNamespace   = "mca.namespace"
	attrRule        = "mca.rule"
	attrCluster     = "mca.cluster"
	attrCode        = "http.response.status_code"
	attrError       = "error.type"
)

// NewTracer returns a Tracer, or nil if c disables tracing. The caller must call Run.
func NewTracer(c TraceConfig) (*Tracer, error) {
	if c.Endpoint == "" || c.Ratio == 0 {
		return nil, nil
	}
	if !(c.Ratio > 0 && c.Ratio <= 1) {
		return nil, fmt.Errorf("the trace ratio %v is not between 0 and 1", c.Ratio)
	}
	if c.Log == nil {
		return nil, errors.New("apiproxy: a tracer needs a logger")
	}
	attributes := []attribute.KeyValue{
		attribute.String("service.name", "mca"),
		attribute.String("service.version", cmp.Or(c.Version, "unknown")),
	}
	if c.Namespace != "" {
		attributes = append(attributes, attribute.String("k8s.namespace.name", c.Namespace))
	}
	out, err := NewTraceExporter(TraceExporterConfig{Endpoint: c.Endpoint, Resource: attributes, Transport: c.Transport, Log: c.Log})
	if err != nil {
		return nil, err
	}
	limits := sdktrace.SpanLimits{AttributeValueLengthLimit: -1, AttributeCountLimit: 16, EventCountLimit: 1, LinkCountLimit: 1}
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(c.Ratio))),
		sdktrace.WithRawSpanLimits(limits),
		sdktrace.WithResource(sdkresource.Empty()), // otherwise the SDK detects the host; the exporter has the resource
		sdktrace.WithSpanProcessor(out),
	)
	return &Tracer{
		tracer:   provider.Tracer("github.com/tailplane/tailplane/internal/apiproxy", trace.WithInstrumentationVersion(c.Version)),
		exporter: out,
	}, nil
}

// Run exports spans until ctx ends, then the pending ones. On a nil Tracer it only waits for ctx.
func (t *Tracer) Run(ctx context.Context) error {
	if t == nil {
		<-ctx.Done()
		return nil
	}
	return t.exporter.Run(ctx)
}

// Stats returns counters of spans.
func (t *Tracer) Stats() TraceExporterStats {
	if t == nil {
		return TraceExporterStats{}
	}
	return t.exporter.Stats()
}

// startRequest begins the span of a request. If the client sent a valid traceparent, the span is its child and
// followed is true. The client's tracestate is not used, because it may contain anything.
func (t *Tracer) startRequest(r *http.Request, now time.Time) (span trace.Span, followed bool) {
	if t == nil {
		return nil, false
	}
	ctx := context.Background() // not the request's context, which has nothing for the span
	if parents := r.Header["Traceparent"]; len(parents) == 1 {
		ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": parents[0]})
	}
	followed = trace.SpanContextFromContext(ctx).IsValid()
	_, span = t.tracer.Start(ctx, spanRequest, trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(now))
	return span, followed
}

// startCall begins the span of a request to a cluster and sets the trace context in its header.
func (t *Tracer) startCall(parent trace.Span, followed bool, cluster string, h http.Header, now time.Time) trace.Span {
	if t == nil || parent == nil {
		return nil
	}
	ctx, span := t.tracer.Start(
		trace.ContextWithSpan(context.Background(), parent),
		spanUpstream,
		trace.WithSpanKind(
			trace.SpanKindClient,
		),
		trace.WithTimestamp(now),
		trace.WithAttributes(attribute.String(attrCluster, Sanitize(cluster))),
	)
	if !followed {
		h.Del("Tracestate") // of another trace
	}
	h.Del("Traceparent")
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(h))
	return span
}

// describeRequest sets the attributes of the request on a span.
func describeRequest(span trace.Span, req *Request) {
	if span == nil || !span.IsRecording() || req == nil {
		return
	}
	attrs := make([]attribute.KeyValue, 0, 8)
	for _, a := range [...]struct{ key, value string }{
		{attrVerb, req.Verb}, {attrGroup, req.Group}, {attrResource, req.Resource}, {attrSubresource, req.Subresource}, {attrNamespace, req.Namespace},
	} {
		if a.value != "" {
			attrs = append(attrs, attribute.String(a.key, Sanitize(a.value)))
		}
	}
	span.SetAttributes(attrs...)
}

// endSpan ends a span. failed is a word from a closed set, "" for none.
func endSpan(span trace.Span, code int, failed string, now time.Time) {
	if span == nil {
		return
	}
	if span.IsRecording() {
		if code != 0 {
			span.SetAttributes(attribute.Int(attrCode, code))
		}
		if failed != "" {
			span.SetAttributes(attribute.String(attrError, failed))
		}
		if failed != "" || code >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, "")
		}
	}
	span.End(trace.WithTimestamp(now))
}

// spanTraceID returns the trace id of a span, for the log and the audit log.
func spanTraceID(span trace.Span) string {
	if span == nil || !span.SpanContext().IsSampled() {
		return ""
	}
	return span.SpanContext().TraceID().String()
}

// describeRoute sets the routing decision on a span.
func describeRoute(span trace.Span, rule, cluster string) {
	if span == nil || !span.IsRecording() {
		return
	}
	if rule != "" {
		span.SetAttributes(attribute.String(attrRule, rule))
	}
	span.SetAttributes(attribute.String(attrCluster, cluster))
}
