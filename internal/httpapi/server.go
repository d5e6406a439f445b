// Package httpapi is the HTTP server of the API. It enforces law 3 and law 4: every request passes the
// same steps in the same order, and no operation can be reached without them.
//
//	host -> same site -> identify -> rate -> route -> decide -> act -> record
//
// Every request writes one audit entry, whichever step ended it. Routine requests between servers
// write an entry only if they are refused. Many refusals of one kind share one entry.
package httpapi

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi/framing"
	"github.com/tailplane/tailplane/internal/problem"
)

// A Server is an HTTP server for a set of routes. Fields are required unless their comment says
// otherwise.
type Server struct {
	// Names returns the host names and addresses that the tailnet assigned to the listener. It
	// returns none while the tailnet is down.
	Names func() []string
	// Identify returns the caller behind the request's connection. It may return a caller together
	// with an error, for the audit log.
	Identify func(*http.Request) (access.Caller, error)
	// Decide is access.Decide with the server's policy.
	Decide func(access.Caller, access.Verb, time.Time) (access.Permit, error)
	Record func(audit.Entry) error
	Limits Limits // the zero value sets no limits
	Log    *slog.Logger
	Now    func() time.Time

	// Key, optional, returns the cluster's key for proofs, or false while the key is not available.
	// Requests for a proof are then refused with Retry-After, and never answered without a proof.
	Key func() (Key, bool)
	// MustRecord, optional, lists the verbs that require an audit entry. They are refused while the
	// audit log cannot be written.
	MustRecord []access.Verb
	// HTTP2, optional, also accepts HTTP/2 without TLS (prior knowledge). It is for a listener
	// inside the tailnet, where WireGuard encrypts.
	HTTP2 bool
	// Encoder, optional, defines the encoding of responses and refusals. The default is plain JSON.
	Encoder *Encoder
	// Measure, optional, is called at the start of each request. The function that it returns is
	// called at the end.
	Measure func() func(Outcome)
}

// An Encoder defines the encoding of responses. Both functions are required. A response that implements
// Responder bypasses the Encoder.
type Encoder struct {
	EncodeResponse func(RequestInfo, any) Response
	EncodeRefusal  func(RequestInfo, *problem.Error) Response
}

// RequestInfo is the request data that an Encoder may use.
type RequestInfo struct {
	RequestID string
	Caller    access.Caller
	Accept    string // the Accept header of the request
	Path      string
	Now       time.Time
}

// An Outcome is the result of one request, for metrics. All values come from closed sets; none
// comes from the caller.
type Outcome struct {
	Verb   access.Verb // of the operation; "" if no route matched
	Status int
	Code   problem.Code // "" if the request succeeded
	Took   time.Duration
	Waited time.Duration // the part of Took that the caller chose to wait, as in a long poll; 0: none
}

// Limits of one request. writeTime must exceed the longest wait of an operation.
const (
	maxBody      = 16 << 10
	maxHeader    = 16 << 10
	headerTime   = 5 * time.Second
	readTime     = 20 * time.Second
	writeTime    = 90 * time.Second
	idleTime     = 120 * time.Second
	shutdownTime = 10 * time.Second
	maxStreams   = 16 // concurrent streams of one HTTP/2 connection
)

// Handler returns an HTTP handler for the routes. It panics if a field is missing or if two routes
// have the same pattern, because both are programming errors.
func (d *Server) Handler(routes ...Route) http.Handler {
	return d.newHandler(context.Background(), routes)
}

// newHandler returns the handler of routes. Waiting requests are answered when stopping ends.
func (d *Server) newHandler(stopping context.Context, routes []Route) *handler {
	if d.Names == nil || d.Identify == nil || d.Decide == nil || d.Record == nil || d.Log == nil || d.Now == nil ||
		d.Encoder != nil && (d.Encoder.EncodeResponse == nil || d.Encoder.EncodeRefusal == nil) {
		panic("httpapi: a required field is missing")
	}
	h := &handler{server: d, stopping: stopping, mux: http.NewServeMux(), routes: map[string]Route{}, limits: newLimiter(d.Limits),
		logSampler: logSampler{lastLogged: map[problem.Code]sampleState{}}, refusals: refusalAggregator{counts: map[refusalKey]*refusalCount{}}}
	h.routineOnly = !slices.ContainsFunc(routes, func(rt Route) bool { return !rt.Routine })
	for _, rt := range routes {
		h.mux.HandleFunc(rt.Pattern, func(http.ResponseWriter, *http.Request) {})
		h.routes[rt.Pattern] = rt
	}
	return h
}

// Run serves routes on ln until ctx ends. Then it stops accepting connections, answers waiting
// requests, and lets the other requests finish. connContext, if not nil, is the hook of the same
// name of net/http.
func (d *Server) Run(ctx context.Context, ln net.Listener, connContext func(context.Context, net.Conn) context.Context, routes ...Route) error {
	requests, endRequests := context.WithCancel(context.WithoutCancel(ctx))
	defer endRequests()
	stopping, endWaits := context.WithCancel(requests)
	defer endWaits()
	bound := NewConnLimiter(framing.Listener{Listener: ln, HTTP2: d.HTTP2}, d.Limits.Connections, d.Limits.AllConnections)
	h := d.newHandler(stopping, routes)
	srv := &http.Server{
		Handler:     h,
		BaseContext: func(net.Listener) context.Context { return requests },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			ctx = context.WithValue(ctx, connStartKey{}, d.Now())
			if connContext == nil {
				return ctx
			}
			return connContext(ctx, c)
		},
		ConnState: func(c net.Conn, s http.ConnState) {
			bound.OnStateChange(c, s)
			framing.OnStateChange(c, s)
		},
		ReadHeaderTimeout: headerTime,
		ReadTimeout:       readTime,
		WriteTimeout:      writeTime,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(d.Log.Handler(), slog.LevelDebug), // TLS errors of clients and similar messages
	}
	if d.HTTP2 {
		srv.Protocols = new(http.Protocols)
		srv.Protocols.SetHTTP1(true)
		srv.Protocols.SetUnencryptedHTTP2(true)
		srv.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: maxStreams}
	}
	srv.RegisterOnShutdown(endWaits) // called after the listener is closed
	served := make(chan error, 1)
	go func() { served <- srv.Serve(bound) }()
	defer h.recordAggregates(true)
	ticker := time.NewTicker(aggregationInterval)
	defer ticker.Stop()
	for ctx.Err() == nil {
		select {
		case err := <-served:
			return fmt.Errorf("serve: %w", err)
		case <-ticker.C:
			h.recordAggregates(false)
		case <-ctx.Done():
		}
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
	defer cancel()
	if err := srv.Shutdown(grace); err != nil {
		d.Log.Warn("requests were interrupted because they did not end in time", "limit", shutdownTime)
		srv.Close()
	}
	<-served
	return nil
}

// connStartKey is the context key of the start time of a connection. net/http offers no other place for
// it.
type connStartKey struct{}

// A handler is the HTTP handler of a Server.
type handler struct {
	server      *Server
	stopping    context.Context // ends when the server begins to stop
	mux         *http.ServeMux
	routes      map[string]Route
	limits      *limiter
	routineOnly bool        // all routes are for servers only
	auditFailed atomic.Bool // the audit log rejected the last entry
	logSampler  logSampler
	refusals    refusalAggregator
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	now := h.server.Now()
	ended := func(Outcome) {}
	if h.server.Measure != nil {
		ended = h.server.Measure()
	}
	v := &request{handler: h, w: w, r: r, originalHeader: r.Header, entry: audit.Entry{Time: now, RequestID: audit.NewID(now), Surface: "http"}}
	resp, err := v.processSafely()
	if v.entry.Actor = audit.ActorOf(v.caller); v.actor != nil {
		v.entry.Actor = audit.ActorOf(*v.actor)
	}
	v.entry.Conclude(err)
	var rerr error
	routine := v.route.Routine || v.route.handle == nil && h.routineOnly // or the request was refused before a route was found
	if routine && err != nil {
		h.recordAggregates(false)
	}
	if !routine || err != nil && h.refusals.recordsSeparately(v.entry) {
		rerr = h.record(v.entry)
	}
	if rerr != nil && err == nil && v.mustRecord() { // the operation succeeded, but its result must not be returned
		err = auditUnavailable()
	}
	if p := problem.From(err); p != nil && p.Cause() != nil {
		h.logSampler.log(h.server.Log, v, p, now)
	}
	status, code := 0, problem.CodeOf(err)
	if v.stream != nil && v.stream.began.Load() {
		status = http.StatusOK
	} else {
		status, code = v.reply(resp, err)
	}
	verb := v.route.Verb
	if v.route.handle == nil {
		verb = ""
	}
	ended(Outcome{Verb: verb, Status: status, Code: code, Took: h.server.Now().Sub(now), Waited: v.waited})
}

// record writes e to the audit log and remembers whether that succeeded.
func (h *handler) record(e audit.Entry) error {
	err := h.server.Record(e)
	if h.auditFailed.Store(err != nil); err != nil {
		h.server.Log.Error("an audit entry is lost", "audit", e.RequestID, "err", err)
	}
	return err
}

// recordAggregates writes the aggregated refusals whose interval is over, or all of them.
func (h *handler) recordAggregates(all bool) {
	for _, e := range h.refusals.flush(h.server.Now(), all) {
		_ = h.record(e) // record has already logged the error
	}
}
