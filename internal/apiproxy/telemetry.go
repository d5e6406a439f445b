package apiproxy

import (
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
)

// Telemetry observes requests. The handler of a request begins a [RequestTelemetry], reports each step to it, and ends
// it on every path. Metrics, traces, the audit log and the log come from these calls:
//
//	Begin -> SetRequest -> SetRoute -> RequireAudit -> StartCall ... CallTelemetry.End -> StreamOpened (a stream) -> End
//	              \-> SetRefused ----------------------------------------------------------------------/
//
// Fields without a remark are required.
type Telemetry struct {
	Metrics *Metrics
	// Tracer and AuditLog are optional. They return the tracer and the audit log for a new request, according
	// to the current configuration; nil means none.
	Tracer   func() *Tracer
	AuditLog func() *AuditLog
	Log      *slog.Logger
	Now      func() time.Time

	mu   sync.Mutex
	open map[*RequestTelemetry]OpenStream
}

// RequestTelemetry observes one request from its first byte to its last. Only the goroutine that handles the request may
// call its methods, except StartCall.
type RequestTelemetry struct {
	telemetry *Telemetry
	r         *http.Request
	began     time.Time
	auditID   string
	tracer    *Tracer
	auditLog  *AuditLog
	span      trace.Span // nil: no trace
	followed  bool       // the client started the trace
	req       *Request
	rule      string
	clusters  []string
	cluster   string // the cluster label for metrics
	refusal   RefusalReason
	inFlight  prometheus.Gauge // nil: not counted, or no longer counted
	stream    prometheus.Gauge // nil: not a stream
	kind      StreamKind
	recorded  bool // a record of the beginning was written
	opened    time.Time
	ended     bool
}

// Result is how a request ended.
type Result struct {
	// Code is the status of the response. It is 0 if there was none, and [StatusClientClosedRequest] if the client
	// disconnected first.
	Code  int
	Bytes int64
	// Upgrade is the protocol that the client requested an upgrade to, for the log.
	Upgrade string
	// Reason and Message are those of a Status that the adapter itself sent. They are empty for a cluster's
	// response, because bodies are not read.
	Reason, Message string
	// Err is why the request failed. It is used only for the log.
	Err      error
	Panicked bool
}

// Begin starts to observe a request. The caller must end the returned telemetry.
func (o *Telemetry) Begin(r *http.Request) *RequestTelemetry {
	v := &RequestTelemetry{telemetry: o, r: r, began: o.Now(), auditID: auditIDFrom(r.Header)}
	if o.Tracer != nil {
		v.tracer = o.Tracer()
		v.span, v.followed = v.tracer.startRequest(r, v.began)
	}
	if o.AuditLog != nil {
		v.auditLog = o.AuditLog()
	}
	return v
}

// AuditID returns the audit id of the request. The audit log, the log and, through StartCall, the clusters have
// the same id.
func (v *RequestTelemetry) AuditID() string { return v.auditID }

// TraceID returns the trace id of the request, or "" if it is not traced.
func (v *RequestTelemetry) TraceID() string { return spanTraceID(v.span) }

// SetRequest records the parsed request. It may be called again with more details, such as the name of the created
// object. The telemetry keeps req.
func (v *RequestTelemetry) SetRequest(req *Request) {
	v.req = req
	describeRequest(v.span, req)
}

// SetRefused records that the adapter itself refuses the request. For a request without a valid local token use
// [Metrics.LocalAuthFailed] instead.
func (v *RequestTelemetry) SetRefused(reason RefusalReason) {
	if v.refusal == "" {
		v.refusal = reason
		v.telemetry.Metrics.Refused(reason)
	}
}

// SetRoute records the rule that decided, "" for none, and the clusters: one, or several for a merged response.
func (v *RequestTelemetry) SetRoute(rule string, clusters ...string) {
	m := v.telemetry.Metrics
	v.rule, v.clusters, v.cluster = Sanitize(rule), make([]string, len(clusters)), MergedLabel
	for i, c := range clusters {
		v.clusters[i] = Sanitize(c)
	}
	if len(clusters) == 1 {
		v.cluster = m.cluster(clusters[0])
	}
	m.routed.WithLabelValues(m.rule(rule), v.cluster).Inc()
	v.leaveInFlight()
	v.inFlight = m.inFlight.WithLabelValues(v.cluster)
	v.inFlight.Inc()
	describeRoute(v.span, v.rule, v.cluster)
}

// RequireAudit returns an error if the request must be recorded and cannot be. This applies to requests that give
// access to a container or issue a credential. RequireAudit writes their first record, so the caller must call it
// last before it forwards the request.
func (v *RequestTelemetry) RequireAudit() error {
	if v.auditLog == nil || !NeedsAudit(v.req) {
		return nil
	}
	v.recorded = true
	if err := v.auditLog.Require(v.auditLine(StageReceived, v.telemetry.Now(), nil)); err != nil {
		v.SetRefused(RefusedAudit)
		return err
	}
	return nil
}

// StreamOpened records that a stream began, with the status that the client received.
func (v *RequestTelemetry) StreamOpened(code int) {
	if v.stream != nil || v.ended {
		return
	}
	v.leaveInFlight()
	if v.kind = StreamKindOf(v.req); v.kind == "" {
		v.kind = otherLabel
	}
	v.stream = v.telemetry.Metrics.streams.WithLabelValues(v.cluster, string(v.kind))
	v.stream.Inc()
	v.telemetry.Metrics.countResponse(v.cluster, v.req, code)
	v.opened = v.telemetry.Now()
	if v.auditLog != nil && !v.recorded {
		v.recorded = true
		v.auditLog.Write(v.auditLine(StageStarted, v.opened, &Result{Code: code}))
	}
	open := v.openStream()
	v.telemetry.mu.Lock()
	defer v.telemetry.mu.Unlock()
	if v.telemetry.open == nil {
		v.telemetry.open = map[*RequestTelemetry]OpenStream{}
	}
	v.telemetry.open[v] = open
}

func (v *RequestTelemetry) leaveInFlight() {
	if v.inFlight != nil {
		v.inFlight.Dec()
		v.inFlight = nil
	}
}

// End records how the request ended. Only the first call has an effect.
func (v *RequestTelemetry) End(out Result) {
	if v.ended {
		return
	}
	v.ended = true
	now := v.telemetry.Now()
	m := v.telemetry.Metrics
	v.leaveInFlight()
	if v.stream != nil {
		v.stream.Dec()
		v.telemetry.mu.Lock()
		delete(v.telemetry.open, v)
		v.telemetry.mu.Unlock()
	} else {
		m.countResponse(v.cluster, v.req, out.Code)
		if v.req != nil && StreamKindOf(v.req) == "" {
			m.seconds.WithLabelValues(v.cluster, verbLabel(v.req)).Observe(now.Sub(v.began).Seconds())
		}
	}
	failed := string(v.refusal)
	if out.Panicked {
		failed = "panic"
	}
	endSpan(v.span, out.Code, failed, now)
	if v.auditLog != nil {
		stage := StageComplete
		if out.Panicked {
			stage = StagePanic
		}
		v.auditLog.Write(v.auditLine(stage, now, &out))
	}
	v.logRequest(now, &out)
}

// CallTelemetry observes one request to a cluster on behalf of a client request.
type CallTelemetry struct {
	request *RequestTelemetry
	cluster string
	span    trace.Span
}

// StartCall starts to observe a request to a cluster. It sets the audit id in the header h and, if the client request is
// traced, the trace context. It is safe for concurrent use. The caller must end the call.
func (v *RequestTelemetry) StartCall(cluster string, h http.Header) *CallTelemetry {
	h["Audit-Id"] = []string{v.auditID}
	return &CallTelemetry{request: v, cluster: cluster, span: v.tracer.startCall(v.span, v.followed, cluster, h, v.telemetry.Now())}
}

// End records the status of the response, or the reason why there is none.
func (c *CallTelemetry) End(code int, reason CallFailure) {
	if reason == "" && code >= http.StatusInternalServerError {
		reason = FailedStatus
	}
	if reason != "" {
		c.request.telemetry.Metrics.UpstreamFailed(c.cluster, reason)
		reason = CallFailure(label(reason, CallFailures()))
	}
	endSpan(c.span, code, string(reason), c.request.telemetry.Now())
}

// maxAuditID is the maximal length of an audit id that a client chooses.
const maxAuditID = 64

// auditIDFrom returns the client's audit id, which API servers accept too. If there is none, it returns a new
// id in the form of API servers.
func auditIDFrom(h http.Header) string {
	if ids := h["Audit-Id"]; len(ids) == 1 && validAuditID(ids[0]) {
		return ids[0]
	}
	return NewAuditID()
}

// NewAuditID returns a new audit id in the form of API servers: a random UUID (RFC 9562, version 4).
func NewAuditID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	s := hex.AppendEncode(make([]byte, 0, 36), b[:4])
	for _, part := range [...][]byte{b[4:6], b[6:8], b[8:10], b[10:]} {
		s = hex.AppendEncode(append(s, '-'), part)
	}
	return string(s)
}

func validAuditID(id string) bool {
	for _, c := range []byte(id) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && c != '-' {
			return false
		}
	}
	return id != "" && len(id) <= maxAuditID
}
