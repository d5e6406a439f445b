// Package httpapi is the HTTP server of the API. It enforces law 3 and law 4: every request passes the
// same steps in the same order, and no operation can be reached without them.
//
//	host -> same site -> identify -> rate -> route -> decide -> act -> record
//
// Every request writes one audit entry, whichever step ended it. Routine requests between servers
// write an entry only if they are refused. Many refusals of one kind share one entry.
package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi/framing"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/util/origin"
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
// Shaped bypasses the form.
type Encoder struct {
	EncodeResponse func(RequestInfo, any) Response
	EncodeRefusal  func(RequestInfo, *problem.Error) Response
}

// RequestInfo is the request data that a Form may use.
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
	switch {
	case d.Names == nil, d.Identify == nil, d.Decide == nil, d.Record == nil, d.Log == nil, d.Now == nil, d.Encoder != nil && (d.Encoder.EncodeResponse == nil || d.Encoder.EncodeRefusal == nil):
		panic("door: a required field is missing")
	}
	h := &handler{server: d, stopping: stopping, mux: http.NewServeMux(), routes: map[string]Route{}, limits: newLimiter(d.Limits), logSampler: logSampler{lastLogged: map[problem.Code]*sampleState{}},
		refusals: refusalAggregator{counts: map[refusalKey]*refusalCount{}}}
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
	bound := newConnLimiter(framing.Listener{Listener: ln, HTTP2: d.HTTP2}, d.Limits)
	hall := d.newHandler(stopping, routes)
	srv := &http.Server{
		Handler:     hall,
		BaseContext: func(net.Listener) context.Context { return requests },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			ctx = context.WithValue(ctx, connStartKey{}, d.Now())
			if connContext == nil {
				return ctx
			}
			return connContext(ctx, c)
		},
		ConnState:         bound.onStateChange,
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
	defer hall.recordAggregates(true)
	ticker := time.NewTicker(aggregationInterval)
	defer ticker.Stop()
	for ctx.Err() == nil {
		select {
		case err := <-served:
			return fmt.Errorf("serve: %w", err)
		case <-ticker.C:
			hall.recordAggregates(false)
		case <-ctx.Done():
		}
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
	defer cancel()
	if err := srv.Shutdown(grace); err != nil {
		d.Log.Warn("visits were cut off, as they did not end in time", "limit", shutdownTime)
		srv.Close()
	}
	<-served
	return nil
}

// connStartKey is the context key of the start time of a connection. net/http offers no other place for
// it.
type connStartKey struct{}

// A handler is the HTTP handler of a Door.
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

// A request is one request in progress.
type request struct {
	*handler
	w              http.ResponseWriter
	r              *http.Request
	originalHeader http.Header // the original request headers; only copies are passed on
	route          Route
	caller         access.Caller
	entry          audit.Entry
	nonce          string        // nonce for the proof; "" if no proof was requested or can be given
	waited         time.Duration // time that the caller chose to wait
	stream         *Stream       // the stream that the request became; nil if it is not a stream
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	now := h.server.Now()
	ended := func(Outcome) {}
	if h.server.Measure != nil {
		ended = h.server.Measure()
	}
	v := &request{handler: h, w: w, r: r, originalHeader: r.Header, entry: audit.Entry{Time: now, RequestID: audit.NewID(now), Surface: "http"}}
	resp, err := v.processSafely()
	v.entry.Actor = audit.ActorOf(v.caller)
	v.entry.Conclude(err)
	var rerr error
	routine := v.route.Routine || v.route.handle == nil && h.routineOnly // or the request was refused before a route was found
	if routine && err != nil {
		h.recordAggregates(false)
	}
	if !routine || err != nil && h.refusals.recordsSeparately(v.entry) {
		rerr = h.record(v.entry)
	}
	if rerr != nil {
		if err == nil && v.mustRecord() { // the operation succeeded, but its result must not be returned
			err = auditUnavailable()
		}
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
		h.server.Log.Error("audit entry lost", "audit", e.RequestID, "err", err)
	}
	return err
}

// recordStart writes the audit entry for the start of a stream.
func (v *request) recordStart(e audit.Entry) error {
	e.Actor = audit.ActorOf(v.caller)
	if err := v.record(e); err != nil && v.mustRecord() {
		return auditUnavailable()
	}
	return nil
}

// recordAggregates writes the aggregated refusals whose interval is over, or all of them.
func (h *handler) recordAggregates(all bool) {
	for _, e := range h.refusals.flush(h.server.Now(), all) {
		_ = h.record(e) // record has already logged the error
	}
}

// processSafely calls pass and converts a panic to an error, so that the request is audited like any
// other.
func (v *request) processSafely() (resp any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return v.process()
}

func (v *request) mustRecord() bool { return slices.Contains(v.server.MustRecord, v.route.Verb) }

func auditUnavailable() error {
	return problem.New(problem.AuditUnavailable, "This server cannot write its audit record, and does nothing without it.",
		"Try again; if it stays, tell whoever runs this server.").WithRetryAfter(time.Second)
}

// process runs all steps in order and returns the response.
func (v *request) process() (any, error) {
	if err := v.checkHost(); err != nil {
		return nil, err
	}
	if err := checkSameSite(v.r); err != nil && !v.isPageLink() {
		return nil, err
	}
	if err := v.identify(); err != nil {
		return nil, err
	}
	rt, lost := v.findRoute()
	v.route, v.entry.Verb = rt, rt.Verb
	if err := v.limits.admit(v.caller, rt.Verb, v.entry.Time); err != nil {
		return nil, err
	}
	if err := v.prepareProof(); err != nil {
		return nil, err
	}
	if lost != nil {
		v.entry.Args = map[string]string{"method": clip(v.r.Method), "path": clip(v.r.URL.Path)}
		return nil, lost
	}
	permit, err := v.decide()
	if err != nil {
		return nil, err
	}
	if v.auditFailed.Load() && v.mustRecord() { // the entry of this request tests the audit log again
		return nil, auditUnavailable()
	}
	return rt.handle(v, permit)
}

// prepareProof stores the requested nonce. It refuses the request if no proof can be given, because
// a response without a proof could come from any server.
func (v *request) prepareProof() error {
	nonces := v.r.Header.Values(NonceHeader)
	if len(nonces) == 0 || v.server.Key == nil {
		return nil
	}
	if _, ok := v.server.Key(); !ok {
		return problem.New(problem.Unavailable, "This server does not have the cluster's key yet, so it cannot prove which cluster it serves.",
			"Try again in a moment; if it stays, tell whoever runs this server.").WithRetryAfter(time.Second)
	}
	if err := checkNonce(nonces[0]); err != nil || len(nonces) > 1 {
		return problem.New(problem.BadRequest, NonceHeader+" is not one value of 16 to 64 bytes in base64url without padding.", "Send a fresh nonce, or none.")
	}
	v.nonce = nonces[0]
	return nil
}

// identify determines the caller and rejects callers that may make no request. Identify may read
// identity headers and remove them, so that later steps do not see them.
func (v *request) identify() error {
	clone := v.r.WithContext(v.r.Context())
	clone.Header = v.originalHeader.Clone()
	c, err := v.server.Identify(clone)
	v.caller = c
	if v.route.handle == nil { // only the first time; later another goroutine may read the request
		v.r = clone
	}
	if err != nil {
		return err
	}
	return access.Admit(c)
}

// decide evaluates the grants. It runs again after a wait, because the connection may then belong
// to a caller whose grant is gone.
func (v *request) decide() (access.Permit, error) {
	return v.server.Decide(v.caller, v.route.Verb, v.server.Now())
}

// renew identifies the caller and decides again. It returns an error if the caller is not the one
// that began the request.
func (v *request) renew() (access.Permit, error) {
	began := v.caller
	if err := v.identify(); err != nil {
		return access.Permit{}, err
	}
	if began.Identity() != v.caller.Identity() || began.Device.ID != v.caller.Device.ID {
		return access.Permit{}, problem.New(problem.NoIdentity, "The connection has become somebody else's.", "Connect again.")
	}
	return v.decide()
}

// checkHost rejects host names other than the listener's, for every method. To a browser, a web
// page whose name was rebound to this server's address is same-site.
func (v *request) checkHost() error {
	names := v.server.Names()
	if len(names) == 0 {
		return problem.New(problem.IdentityUnavailable, "This server is not connected to its tailnet.", "Try again in a moment.").WithRetryAfter(time.Second)
	}
	host := origin.Host(v.r)
	if host == "" || !slices.Contains(names, host) || !origin.IsOwnPort(v.r) {
		return problem.New(problem.WrongHost, "This server does not go by the name in the request.",
			fmt.Sprintf("Use one of its own names: %s.", names[0]))
	}
	return nil
}

// checkSameSite rejects requests that a browser sends for another site.
func checkSameSite(r *http.Request) error {
	if origin.IsCrossSite(r) {
		return problem.New(problem.CrossOrigin, "Requests from another site's page are refused.", "Use tka, or open the server's own page.")
	}
	return nil
}

// isPageLink reports whether a browser opens a page of this server through a link on another site. This
// shows the page to the user and reveals nothing to the other site.
func (v *request) isPageLink() bool {
	h := v.r.Header
	if v.r.Method != http.MethodGet || h.Get("Sec-Fetch-Mode") != "navigate" || h.Get("Sec-Fetch-Dest") != "document" || h.Get("Origin") != "" {
		return false
	}
	_, pattern := v.mux.Handler(v.r)
	return v.routes[pattern].Page
}

// unknownRoute returns the route of requests without a match, for the audit log.
func unknownRoute() Route { return Route{Declaration: Declaration{Verb: "http.unknown"}} }

// findRoute returns the route of the request, or an error for an unknown path or method. It does not
// clean paths: a path that is not clean does not match.
func (v *request) findRoute() (Route, error) {
	notFound := problem.New(problem.NotFound, "There is nothing at this path.", "The operations are listed in the API reference.")
	if v.r.URL.Path == "" || path.Clean(v.r.URL.Path) != v.r.URL.Path || v.r.URL.RawPath != "" { // or it is escaped in an unusual way
		return unknownRoute(), notFound
	}
	_, pattern := v.mux.Handler(v.r)
	// HEAD is for pages only, because a GET may create something or become a stream.
	if rt, ok := v.routes[pattern]; ok && (rt.Page || v.r.Method != http.MethodHead) {
		v.mux.ServeHTTP(v.w, v.r) // sets the path values; the registered handlers do nothing, see hall
		return rt, nil
	}
	var allowed []string
	for _, m := range []string{http.MethodDelete, http.MethodGet, http.MethodPatch, http.MethodPost, http.MethodPut} {
		clone := v.r.Clone(v.r.Context())
		clone.Method = m
		if _, pattern := v.mux.Handler(clone); v.routes[pattern].handle != nil {
			allowed = append(allowed, m)
		}
	}
	if len(allowed) == 0 {
		return unknownRoute(), notFound
	}
	allow := strings.Join(allowed, ", ")
	v.w.Header().Set("Allow", allow)
	return unknownRoute(), problem.New(problem.MethodNotAllowed, "This path does not take that method.", "Use "+allow+".")
}

// clip limits the length of a caller's text in an audit entry.
func clip(s string) string {
	if len(s) > 200 {
		return s[:200]
	}
	return s
}

// An AuditIdentifiable response includes the audit ID of the request.
type AuditIdentifiable interface{ WithAuditID(id string) any }

// reply writes the response: a problem, a Shaped response, or JSON. It returns the status, and the
// code of a problem.
func (v *request) reply(resp any, err error) (int, problem.Code) {
	h := v.w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Request-Id", v.entry.RequestID)
	if connStart, ok := v.r.Context().Value(connStartKey{}).(time.Time); ok && v.server.Limits.Age > 0 && v.server.Now().Sub(connStart) > v.server.Limits.Age {
		h.Set("Connection", "close") // HTTP/2 closes in a different way
	}
	if r, ok := resp.(AuditIdentifiable); ok && err == nil {
		resp = r.WithAuditID(v.entry.RequestID)
	}
	shape, about := Response{Status: http.StatusOK, Body: resp}, v.info()
	if s, ok := resp.(Responder); ok && err == nil {
		shape, err = s.EncodeResponse(about.Accept)
	} else if v.server.Encoder != nil && err == nil {
		shape = v.server.Encoder.EncodeResponse(about, resp)
	}
	body, encodeErr := shape.encode()
	if err == nil && encodeErr != nil {
		v.server.Log.Error("answer not encoded", "audit", v.entry.RequestID, "err", encodeErr)
		err = encodeErr
	}
	if err != nil {
		shape = v.encodeRefusal(err)
		body, _ = shape.encode() // it contains strings only
	}
	for name, values := range shape.Header {
		h[name] = values
	}
	if shape.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int((shape.RetryAfter+time.Second-1)/time.Second)))
	}
	if v.nonce != "" {
		if key, ok := v.server.Key(); ok {
			h.Set(ProofHeader, key.Prove(v.nonce, v.r.Host, body))
		}
	}
	h.Set("Content-Type", shape.ContentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	v.w.WriteHeader(shape.Status)
	if _, err := v.w.Write(body); err != nil && !errors.Is(err, net.ErrClosed) {
		v.server.Log.Debug("answer not sent", "audit", v.entry.RequestID, "err", err)
	}
	return shape.Status, problem.CodeOf(err)
}

func (v *request) info() RequestInfo {
	return RequestInfo{RequestID: v.entry.RequestID, Caller: v.caller, Accept: strings.Join(v.r.Header.Values("Accept"), ","), Path: clip(v.r.URL.Path), Now: v.server.Now()}
}

// encodeRefusal returns the response for an error.
func (v *request) encodeRefusal(err error) Response {
	p := *problem.From(err)
	p.AuditID = v.entry.RequestID
	if p.Advice == nil {
		p.Advice = []string{}
	}
	switch p.Code.Status() {
	case http.StatusAccepted, http.StatusTooManyRequests, http.StatusServiceUnavailable: // these statuses always carry Retry-After
		p.RetryAfter = max(p.RetryAfter, time.Second)
	}
	shape := Response{Status: p.Code.Status(), Body: &p}
	if v.server.Encoder != nil {
		shape = v.server.Encoder.EncodeRefusal(v.info(), &p)
	}
	shape.RetryAfter = p.RetryAfter
	return shape
}

// encode returns the body as bytes.
func (s *Response) encode() ([]byte, error) {
	if body, ok := s.Body.([]byte); ok {
		return body, nil
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s.Body); err != nil {
		return nil, err
	}
	s.ContentType = "application/json"
	return buf.Bytes(), nil
}
