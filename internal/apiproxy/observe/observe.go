// Package observe is what an adapter shows of its work: metrics, traces, an
// audit record, a line of its log for each request, and answers to who runs it.
// It keeps law 8, that no secret is in any of them, and law 10: what a stranger
// chooses makes no series, ends no line and turns no text around.
//
// An [Observer] takes in visits. Whoever handles a request begins a [Visit],
// tells it what happens, and ends it on every way out; from that come all four:
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

// An Observer takes in visits. Fields without a remark are required.
type Observer struct {
	Metrics *Metrics
	// Tracer and Record, optional, return what a visit that begins is traced and
	// recorded by, as the document that is served says: nil for not at all.
	Tracer func() *Tracer
	Record func() *record.Record
	Log    *slog.Logger
	Now    func() time.Time

	mu   sync.Mutex
	open map[*Visit]OpenStream
}

// A Visit is one request, from its first byte to its last. Its methods are for
// the goroutine that handles the request, but for Call.
type Visit struct {
	o        *Observer
	r        *http.Request
	began    time.Time
	auditID  string
	tracer   *Tracer
	record   *record.Record
	span     trace.Span // nil: no trace
	followed bool       // the trace is the client's
	req      *apiproxy.Request
	rule     string
	clusters []string
	cluster  string // of metrics
	refusal  Refusal
	inFlight prometheus.Gauge // nil: not counted, or no more
	stream   prometheus.Gauge // nil: it is none
	kind     Stream
	recorded bool // a line of its beginning was written
	opened   time.Time
	ended    bool
}

// An Outcome is how a visit ended.
type Outcome struct {
	// Code is the status of the answer; 0 is none, [StatusGone] that nobody waited for it.
	Code  int
	Bytes int64
	// Upgrade, for the log, is the protocol that the client asked to switch to.
	Upgrade string
	// Reason and Message are those of the Status that the adapter itself answered
	// with; of a cluster's answer they are empty, for bodies are not read.
	Reason, Message string
	// Err, for the log alone, is why it failed.
	Err      error
	Panicked bool
}

// Begin takes in a request. The visit must be ended.
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

// AuditID names the visit in the record, the log and, by Call, at the clusters.
func (v *Visit) AuditID() string { return v.auditID }

// TraceID names the visit's trace; "" if it is not traced.
func (v *Visit) TraceID() string { return traceID(v.span) }

// Asked says what the request asks for, once that is known. It may say more
// later, such as the name of what is created; req is kept.
func (v *Visit) Asked(req *apiproxy.Request) {
	v.req = req
	describe(v.span, req)
}

// Refused says that the adapter itself says no. A request without the local token
// is [Metrics.LocalAuthFailed] instead.
func (v *Visit) Refused(why Refusal) {
	if v.refusal == "" {
		v.refusal = why
		v.o.Metrics.Refused(why)
	}
}

// Routed says which rule decided, "" for none, and which clusters are asked: one,
// or several for a merged answer.
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

// Admit says whether the visit may go on to a cluster: what opens a way into a
// container, or gives out a credential, may not when it cannot be recorded. It
// writes the line of its beginning, and so is called last before it is sent.
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

// Opened says that a stream began, with the status that the client got.
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

// End says how the visit ended. Only the first End counts.
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

// A Call is one question to a cluster, on behalf of a visit.
type Call struct {
	v       *Visit
	cluster string
	span    trace.Span
}

// Call says that a cluster is about to be asked with the header h, into which it
// writes the visit's audit id and, if it is traced, the trace's context. It may
// be called by several goroutines. The call must be ended.
func (v *Visit) Call(cluster string, h http.Header) *Call {
	h["Audit-Id"] = []string{v.auditID}
	return &Call{v: v, cluster: cluster, span: v.tracer.call(v.span, v.followed, cluster, h, v.o.Now())}
}

// End says what came of the question: the status of the answer, or why there is none.
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

// maxAuditID is the longest that a client may choose for itself.
const maxAuditID = 64

// auditIDOf returns the audit id that the client chose, as it may at an API
// server, or a new one in the form that API servers use.
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
