// Package observe implements the adapter's telemetry: metrics, traces, an audit log, a log line for each request, and
// the data of the admin server. It keeps law 8: none of them contains a secret. It also keeps law 10: text that a client
// chooses cannot create a series, end a line or change the direction of text.
//
// An [Observer] observes requests. The handler of a request begins a [Visit], reports each step to it, and ends it on
// every path. All four outputs come from these calls:
//
//	Begin -> Asked -> Routed -> Admit -> Call ... Call.End -> Opened (a stream) -> End
//	           \-> Refused ----------------------------------------------------/
package observe

import (
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/apiproxy/observe/record"
	"github.com/tailplane/tailplane/internal/apiproxy/observe/text"
)

// Observer observes requests. Fields without a remark are required.
type Observer struct {
	Metrics *Metrics
	// Tracer and Record are optional. They return the tracer and the audit log for a new request, according
	// to the current configuration; nil means none.
	Tracer func() *Tracer
	Record func() *record.Record
	Log    *slog.Logger
	Now    func() time.Time

	mu   sync.Mutex
	open map[*Visit]OpenStream
}

// Visit observes one request from its first byte to its last. Only the goroutine that handles the request may
// call its methods, except Call.
type Visit struct {
	o        *Observer
	r        *http.Request
	began    time.Time
	auditID  string
	tracer   *Tracer
	record   *record.Record
	span     trace.Span // nil: no trace
	followed bool       // the client started the trace
	req      *apiproxy.Request
	rule     string
	clusters []string
	cluster  string // the cluster label for metrics
	refusal  Refusal
	inFlight prometheus.Gauge // nil: not counted, or no longer counted
	stream   prometheus.Gauge // nil: not a stream
	kind     Stream
	recorded bool // a record of the beginning was written
	opened   time.Time
	ended    bool
}

// Outcome is how a request ended.
type Outcome struct {
	// Code is the status of the response. It is 0 if there was none, and [StatusGone] if the client
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

// Begin starts to observe a request. The caller must end the visit.
func (o *Observer) Begin(r *http.Request) *Visit {
	v := &Visit{o: o, r: r, began: o.Now(), auditID: auditIDOf(r.Header)}
	if o.Tracer != nil {
		v.tracer = o.Tracer()
		v.span, v.followed = v.tracer.start(r, v.began)
	}
	if o.Record != nil {
		v.record = o.Record()
	}
	return v
}

// AuditID returns the audit id of the request. The audit log, the log and, through Call, the clusters have
// the same id.
func (v *Visit) AuditID() string { return v.auditID }

// TraceID returns the trace id of the request, or "" if it is not traced.
func (v *Visit) TraceID() string { return traceID(v.span) }

// Asked records the parsed request. It may be called again with more details, such as the name of the created
// object. The visit keeps req.
func (v *Visit) Asked(req *apiproxy.Request) {
	v.req = req
	describe(v.span, req)
}

// Refused records that the adapter itself refuses the request. For a request without a valid local token use
// [Metrics.LocalAuthFailed] instead.
func (v *Visit) Refused(why Refusal) {
	if v.refusal == "" {
		v.refusal = why
		v.o.Metrics.Refused(why)
	}
}

// Routed records the rule that decided, "" for none, and the clusters: one, or several for a merged response.
func (v *Visit) Routed(rule string, clusters ...string) {
	m := v.o.Metrics
	v.rule, v.clusters, v.cluster = text.Clean(rule), make([]string, len(clusters)), Merged
	for i, c := range clusters {
		v.clusters[i] = text.Clean(c)
	}
	if len(clusters) == 1 {
		v.cluster = m.cluster(clusters[0])
	}
	m.routed.WithLabelValues(m.rule(rule), v.cluster).Inc()
	v.unfly()
	v.inFlight = m.inFlight.WithLabelValues(v.cluster)
	v.inFlight.Inc()
	routed(v.span, v.rule, v.cluster)
}

// Admit returns an error if the request must be recorded and cannot be. This applies to requests that give
// access to a container or issue a credential. Admit writes their first record, so the caller must call it
// last before it forwards the request.
func (v *Visit) Admit() error {
	if v.record == nil || !Guarded(v.req) {
		return nil
	}
	v.recorded = true
	if err := v.record.Require(v.line(StageReceived, v.o.Now(), nil)); err != nil {
		v.Refused(RefusedAudit)
		return err
	}
	return nil
}

// Opened records that a stream began, with the status that the client received.
func (v *Visit) Opened(code int) {
	if v.stream != nil || v.ended {
		return
	}
	v.unfly()
	if v.kind = StreamOf(v.req); v.kind == "" {
		v.kind = other
	}
	v.stream = v.o.Metrics.streams.WithLabelValues(v.cluster, string(v.kind))
	v.stream.Inc()
	v.o.Metrics.answered(v.cluster, v.req, code)
	v.opened = v.o.Now()
	if v.record != nil && !v.recorded {
		v.recorded = true
		v.record.Write(v.line(StageStarted, v.opened, &Outcome{Code: code}))
	}
	open := v.openStream()
	v.o.mu.Lock()
	defer v.o.mu.Unlock()
	if v.o.open == nil {
		v.o.open = map[*Visit]OpenStream{}
	}
	v.o.open[v] = open
}

func (v *Visit) unfly() {
	if v.inFlight != nil {
		v.inFlight.Dec()
		v.inFlight = nil
	}
}

// End records how the request ended. Only the first call has an effect.
func (v *Visit) End(out Outcome) {
	if v.ended {
		return
	}
	v.ended = true
	now := v.o.Now()
	m := v.o.Metrics
	v.unfly()
	if v.stream != nil {
		v.stream.Dec()
		v.o.mu.Lock()
		delete(v.o.open, v)
		v.o.mu.Unlock()
	} else {
		m.answered(v.cluster, v.req, out.Code)
		if v.req != nil && StreamOf(v.req) == "" {
			m.seconds.WithLabelValues(v.cluster, verbOf(v.req)).Observe(now.Sub(v.began).Seconds())
		}
	}
	failed := string(v.refusal)
	if out.Panicked {
		failed = "panic"
	}
	finish(v.span, out.Code, failed, now)
	if v.record != nil {
		stage := StageComplete
		if out.Panicked {
			stage = StagePanic
		}
		v.record.Write(v.line(stage, now, &out))
	}
	v.inspect(now, &out)
}

// Call observes one request to a cluster on behalf of a visit.
type Call struct {
	v       *Visit
	cluster string
	span    trace.Span
}

// Call starts to observe a request to a cluster. It sets the audit id in the header h and, if the visit is
// traced, the trace context. It is safe for concurrent use. The caller must end the call.
func (v *Visit) Call(cluster string, h http.Header) *Call {
	h["Audit-Id"] = []string{v.auditID}
	return &Call{v: v, cluster: cluster, span: v.tracer.call(v.span, v.followed, cluster, h, v.o.Now())}
}

// End records the status of the response, or the reason why there is none.
func (c *Call) End(code int, why Failure) {
	if why == "" && code >= http.StatusInternalServerError {
		why = FailedStatus
	}
	if why != "" {
		c.v.o.Metrics.UpstreamFailed(c.cluster, why)
		why = Failure(word(why, Failures()))
	}
	finish(c.span, code, string(why), c.v.o.Now())
}

// maxAuditID is the maximal length of an audit id that a client chooses.
const maxAuditID = 64

// auditIDOf returns the client's audit id, which API servers accept too. If there is none, it returns a new
// id in the form of API servers.
func auditIDOf(h http.Header) string {
	if ids := h["Audit-Id"]; len(ids) == 1 && goodAuditID(ids[0]) {
		return ids[0]
	}
	var b [16]byte
	rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	var s [36]byte
	for i, at := 0, 0; i < len(b); i++ {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			s[at] = '-'
			at++
		}
		hex.Encode(s[at:], b[i:i+1])
		at += 2
	}
	return string(s[:])
}

func goodAuditID(id string) bool {
	for _, c := range []byte(id) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && c != '-' {
			return false
		}
	}
	return id != "" && len(id) <= maxAuditID
}
