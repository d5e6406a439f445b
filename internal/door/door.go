// Package door is the only way in. It keeps law 3 and law 4: a request passes
// in one order, and no operation can be reached any other way.
//
//	host -> same site -> identify -> rate -> route -> decide -> act -> record
//
// Every visit leaves one audit entry, whichever step ended it. Of routine ones,
// which servers make among themselves, only refusals do, and many of one kind are
// one entry.
package door

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/door/framing"
	"github.com/tailplane/tailplane/internal/problem"
)

// A Door lets callers in to routes. Fields without a remark are required.
type Door struct {
	// Names are the host names and addresses under which the listener is
	// reached, as the tailnet assigned them. None: the tailnet is not up.
	Names func() []string
	// Identify says who is at the other end of the request's connection. It may
	// return a caller beside an error, for the record.
	Identify func(*http.Request) (access.Caller, error)
	// Decide is access.Decide with the server's policy.
	Decide func(access.Caller, access.Verb, time.Time) (access.Permit, error)
	Record func(audit.Entry) error
	Limits Limits // the zero value limits nothing
	Log    *slog.Logger
	Now    func() time.Time

	// Key, optional, is the cluster's key, by which the server proves what it
	// serves; false while it is not at hand. Whoever asks for a proof then is
	// asked to come back, and never answered without one.
	Key func() (Key, bool)
	// MustRecord, optional, are the verbs that nobody is served without an audit
	// entry: while the record takes none, they are refused.
	MustRecord []access.Verb
	// HTTP2, optional, also takes HTTP/2 without TLS, by prior knowledge: for a
	// listener inside the tailnet, where WireGuard encrypts.
	HTTP2 bool
	// Form, optional, is how answers and refusals look on the wire. Without it they
	// are JSON as they are.
	Form *Form
	// Measure, optional, hears of each visit when it begins; the function that it
	// returns, of its end.
	Measure func() func(Outcome)
}

// A Form is how answers look on the wire. Both functions are required. What a
// response Shapes itself goes out as it is.
type Form struct {
	Answer func(About, any) Shape
	Refuse func(About, *problem.Error) Shape
}

// About is what a form may say of a visit.
type About struct {
	RequestID string
	Caller    access.Caller
	Accept    string // the request's
	Path      string
	Now       time.Time
}

// An Outcome is how one visit ended, in words of closed sets: it says nothing
// that a stranger chose.
type Outcome struct {
	Verb   access.Verb // of the operation; "" when none was found
	Status int
	Code   problem.Code // "" when it was served
	Took   time.Duration
	Waited time.Duration // of Took, for what the caller waits for by choice; 0: it did not wait
}

// Bounds of one request. The write time must exceed the longest wait of an operation.
const (
	maxBody      = 16 << 10
	maxHeader    = 16 << 10
	headerTime   = 5 * time.Second
	readTime     = 20 * time.Second
	writeTime    = 90 * time.Second
	idleTime     = 120 * time.Second
	shutdownTime = 10 * time.Second
	maxStreams   = 16 // of one HTTP/2 connection, at a time
)

// Handler returns the routes behind the door. It panics when a field is missing
// or two routes have one pattern: both are mistakes of the program.
func (d *Door) Handler(routes ...Route) http.Handler {
	return d.hall(context.Background(), routes)
}

// hall returns the handler of routes. Who waits is answered when stopping ends.
func (d *Door) hall(stopping context.Context, routes []Route) *hall {
	switch {
	case d.Names == nil, d.Identify == nil, d.Decide == nil, d.Record == nil, d.Log == nil, d.Now == nil, d.Form != nil && (d.Form.Answer == nil || d.Form.Refuse == nil):
		panic("door: a required field is missing")
	}
	h := &hall{door: d, stopping: stopping, mux: http.NewServeMux(), routes: map[string]Route{}, limits: newLimiter(d.Limits), tally: tally{said: map[problem.Code]*sum{}},
		sums: sums{of: map[sumKey]*refusals{}}}
	h.servers = !slices.ContainsFunc(routes, func(rt Route) bool { return !rt.Routine })
	for _, rt := range routes {
		h.mux.HandleFunc(rt.Pattern, func(http.ResponseWriter, *http.Request) {})
		h.routes[rt.Pattern] = rt
	}
	return h
}

// Run serves routes on ln until ctx ends: then it takes no more connections,
// answers who waits, and lets the others finish. connContext, when given, is
// net/http's hook of that name.
func (d *Door) Run(ctx context.Context, ln net.Listener, connContext func(context.Context, net.Conn) context.Context, routes ...Route) error {
	visits, endVisits := context.WithCancel(context.WithoutCancel(ctx))
	defer endVisits()
	stopping, endWaits := context.WithCancel(visits)
	defer endWaits()
	bound := newBounded(framing.Listener{Listener: ln, HTTP2: d.HTTP2}, d.Limits)
	hall := d.hall(stopping, routes)
	srv := &http.Server{
		Handler:     hall,
		BaseContext: func(net.Listener) context.Context { return visits },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			ctx = context.WithValue(ctx, bornKey{}, d.Now())
			if connContext == nil {
				return ctx
			}
			return connContext(ctx, c)
		},
		ConnState:         bound.hear,
		ReadHeaderTimeout: headerTime,
		ReadTimeout:       readTime,
		WriteTimeout:      writeTime,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(d.Log.Handler(), slog.LevelDebug), // strangers' TLS errors and the like
	}
	if d.HTTP2 {
		srv.Protocols = new(http.Protocols)
		srv.Protocols.SetHTTP1(true)
		srv.Protocols.SetUnencryptedHTTP2(true)
		srv.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: maxStreams}
	}
	srv.RegisterOnShutdown(endWaits) // after the listener has been closed
	served := make(chan error, 1)
	go func() { served <- srv.Serve(bound) }()
	defer hall.recordSums(true)
	sums := time.NewTicker(sumTime)
	defer sums.Stop()
	for ctx.Err() == nil {
		select {
		case err := <-served:
			return fmt.Errorf("serve: %w", err)
		case <-sums.C:
			hall.recordSums(false)
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

// bornKey is under what a request's context has the time of its connection's
// beginning: net/http has no other place for it.
type bornKey struct{}

// hall is the handler behind a Door.
type hall struct {
	door     *Door
	stopping context.Context // ends when the server is about to
	mux      *http.ServeMux
	routes   map[string]Route
	limits   *limiter
	servers  bool        // only servers have business here
	deaf     atomic.Bool // the record did not take its last entry
	tally    tally
	sums     sums
}

// A visit is one request on its way through.
type visit struct {
	*hall
	w      http.ResponseWriter
	r      *http.Request
	came   http.Header // of the request as it came: only copies of it are given away
	route  Route
	caller access.Caller
	entry  audit.Entry
	nonce  string        // to be answered with a proof; "": none is wanted, or not by somebody like this
	waited time.Duration // by choice
	stream *Stream       // what the visit became; nil: nothing that lasts
}

func (h *hall) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	now := h.door.Now()
	ended := func(Outcome) {}
	if h.door.Measure != nil {
		ended = h.door.Measure()
	}
	v := &visit{hall: h, w: w, r: r, came: r.Header, entry: audit.Entry{Time: now, RequestID: audit.NewID(now), Surface: "http"}}
	resp, err := v.survive()
	v.entry.Actor = audit.ActorOf(v.caller)
	v.entry.Conclude(err)
	var rerr error
	routine := v.route.Routine || v.route.run == nil && h.servers // or it was refused before anything was asked for
	if routine && err != nil {
		h.recordSums(false)
	}
	if !routine || err != nil && h.sums.own(v.entry) {
		rerr = h.record(v.entry)
	}
	if rerr != nil {
		if err == nil && v.mustRecord() { // what was made is not handed out
			err = auditUnavailable()
		}
	}
	if p := problem.From(err); p != nil && p.Cause() != nil {
		h.tally.say(h.door.Log, v, p, now)
	}
	status, code := 0, problem.CodeOf(err)
	if v.stream != nil && v.stream.began.Load() {
		status = http.StatusOK
	} else {
		status, code = v.reply(resp, err)
	}
	verb := v.route.Verb
	if v.route.run == nil {
		verb = ""
	}
	ended(Outcome{Verb: verb, Status: status, Code: code, Took: h.door.Now().Sub(now), Waited: v.waited})
}

// record writes e, and takes note whether that was possible.
func (h *hall) record(e audit.Entry) error {
	err := h.door.Record(e)
	if h.deaf.Store(err != nil); err != nil {
		h.door.Log.Error("audit entry lost", "audit", e.RequestID, "err", err)
	}
	return err
}

// openEntry records that a visit has become a stream.
func (v *visit) openEntry(e audit.Entry) error {
	e.Actor = audit.ActorOf(v.caller)
	if err := v.record(e); err != nil && v.mustRecord() {
		return auditUnavailable()
	}
	return nil
}

// recordSums writes the sums whose time is over, or all.
func (h *hall) recordSums(all bool) {
	for _, e := range h.sums.due(h.door.Now(), all) {
		_ = h.record(e) // which has told
	}
}

// survive is pass, and turns a panic into a visit that failed: it leaves its
// entry in the record like any other.
func (v *visit) survive() (resp any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return v.pass()
}

func (v *visit) mustRecord() bool { return slices.Contains(v.door.MustRecord, v.route.Verb) }

func auditUnavailable() error {
	return problem.New(problem.AuditUnavailable, "This server cannot write its audit record, and does nothing without it.",
		"Try again; if it stays, tell whoever runs this server.").After(time.Second)
}

// pass is the whole way through, in order. What it returns is answered.
func (v *visit) pass() (any, error) {
	if err := v.checkHost(); err != nil {
		return nil, err
	}
	if err := checkSite(v.r); err != nil && !v.linked() {
		return nil, err
	}
	if err := v.identify(); err != nil {
		return nil, err
	}
	rt, lost := v.find()
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
	if v.deaf.Load() && v.mustRecord() { // this visit's own entry tries the record again
		return nil, auditUnavailable()
	}
	return rt.run(v, permit)
}

// prepareProof takes note that a proof is wanted, and refuses when none can be
// given: an answer without it could be anybody's.
func (v *visit) prepareProof() error {
	nonces := v.r.Header.Values(NonceHeader)
	if len(nonces) == 0 || v.door.Key == nil {
		return nil
	}
	if _, ok := v.door.Key(); !ok {
		return problem.New(problem.Unavailable, "This server does not have the cluster's key yet, so it cannot prove which cluster it serves.",
			"Try again in a moment; if it stays, tell whoever runs this server.").After(time.Second)
	}
	if err := checkNonce(nonces[0]); err != nil || len(nonces) > 1 {
		return problem.New(problem.BadRequest, NonceHeader+" is not one value of 16 to 64 bytes in base64url without padding.", "Send a fresh nonce, or none.")
	}
	v.nonce = nonces[0]
	return nil
}

// identify asks who is calling, and refuses who may not even ask. Who answers may
// read headers and take them away: nobody after it sees them.
func (v *visit) identify() error {
	asked := v.r.WithContext(v.r.Context())
	asked.Header = v.came.Clone()
	c, err := v.door.Identify(asked)
	v.caller = c
	if v.route.run == nil { // the first time; later somebody may be reading it
		v.r = asked
	}
	if err != nil {
		return err
	}
	return access.Admit(c)
}

// decide asks the grants. Once more after a wait: the connection may by then
// belong to somebody whose grant is gone.
func (v *visit) decide() (access.Permit, error) {
	return v.door.Decide(v.caller, v.route.Verb, v.door.Now())
}

// renewed identifies and decides once more. Nobody goes on with what another one
// began.
func (v *visit) renewed() (access.Permit, error) {
	began := v.caller
	if err := v.identify(); err != nil {
		return access.Permit{}, err
	}
	if began.Identity() != v.caller.Identity() || began.Device.ID != v.caller.Device.ID {
		return access.Permit{}, problem.New(problem.NoIdentity, "The connection has become somebody else's.", "Connect again.")
	}
	return v.decide()
}

// checkHost refuses names that are not the listener's own, on every method: a
// web page whose name was rebound to our address is same-site to the browser.
func (v *visit) checkHost() error {
	names := v.door.Names()
	if len(names) == 0 {
		return problem.New(problem.IdentityUnavailable, "This server is not connected to its tailnet.", "Try again in a moment.").After(time.Second)
	}
	host := v.r.Host
	if h, port, err := net.SplitHostPort(host); err == nil {
		host = h
		if local, ok := v.r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
			if _, own, err := net.SplitHostPort(local.String()); err == nil && own != port {
				host = ""
			}
		}
	}
	host = strings.TrimSuffix(strings.ToLower(strings.Trim(host, "[]")), ".")
	if addr, err := netip.ParseAddr(host); err == nil {
		host = addr.String()
	}
	if host == "" || !slices.Contains(names, host) {
		return problem.New(problem.WrongHost, "This server does not go by the name in the request.",
			fmt.Sprintf("Use one of its own names: %s.", names[0]))
	}
	return nil
}

// checkSite refuses what a browser sends on behalf of another site. Go's own
// protection lets GET through by design; here a GET makes a token.
func checkSite(r *http.Request) error {
	refused := problem.New(problem.CrossOrigin, "Requests from another site's page are refused.",
		"Use tka, or open the server's own page.")
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
	default:
		return refused
	}
	if origin := r.Header.Get("Origin"); origin != "" {
		if u, err := url.Parse(origin); err != nil || u.Host == "" || !strings.EqualFold(u.Host, r.Host) {
			return refused
		}
	}
	if new(http.CrossOriginProtection).Check(r) != nil {
		return refused
	}
	return nil
}

// linked reports whether a browser opens a page of ours by a link on another
// site's: that shows it to who clicked, and nothing to the other site.
func (v *visit) linked() bool {
	h := v.r.Header
	if v.r.Method != http.MethodGet || h.Get("Sec-Fetch-Mode") != "navigate" || h.Get("Sec-Fetch-Dest") != "document" || h.Get("Origin") != "" {
		return false
	}
	_, pattern := v.mux.Handler(v.r)
	return v.routes[pattern].Page
}

// nowhere is the route of what is not there, for the record.
func nowhere() Route { return Route{Declaration: Declaration{Verb: "http.unknown"}} }

// find returns the route of the request, or the refusal of a path or method
// that is not there. A path that would first have to be cleaned is not there.
func (v *visit) find() (Route, error) {
	notFound := problem.New(problem.NotFound, "There is nothing at this path.", "The operations are listed in the API reference.")
	if v.r.URL.Path == "" || path.Clean(v.r.URL.Path) != v.r.URL.Path || v.r.URL.RawPath != "" { // or is spelt in a way of its own
		return nowhere(), notFound
	}
	_, pattern := v.mux.Handler(v.r)
	if rt, ok := v.routes[pattern]; ok && (rt.Page || v.r.Method != http.MethodHead) { // GET of what is no page may make something, or go on
		v.mux.ServeHTTP(v.w, v.r) // fills in the parts of the path, and nothing else: see hall
		return rt, nil
	}
	var allowed []string
	for _, m := range []string{http.MethodDelete, http.MethodGet, http.MethodPatch, http.MethodPost, http.MethodPut} {
		asked := v.r.Clone(v.r.Context())
		asked.Method = m
		if _, pattern := v.mux.Handler(asked); v.routes[pattern].run != nil {
			allowed = append(allowed, m)
		}
	}
	if len(allowed) == 0 {
		return nowhere(), notFound
	}
	allow := strings.Join(allowed, ", ")
	v.w.Header().Set("Allow", allow)
	return nowhere(), problem.New(problem.MethodNotAllowed, "This path does not take that method.", "Use "+allow+".")
}

// clip bounds what a stranger can put into one field of the record.
func clip(s string) string {
	if len(s) > 200 {
		return s[:200]
	}
	return s
}

// An Identifiable is a response that tells the caller the audit id of the visit.
type Identifiable interface{ WithAuditID(id string) any }

// reply answers: a problem, a response that shapes itself, or JSON. It returns
// the status, and the code of a problem.
func (v *visit) reply(resp any, err error) (int, problem.Code) {
	h := v.w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Request-Id", v.entry.RequestID)
	if born, ok := v.r.Context().Value(bornKey{}).(time.Time); ok && v.door.Limits.Age > 0 && v.door.Now().Sub(born) > v.door.Limits.Age {
		h.Set("Connection", "close") // HTTP/2 says it in its own way
	}
	if r, ok := resp.(Identifiable); ok && err == nil {
		resp = r.WithAuditID(v.entry.RequestID)
	}
	shape, about := Shape{Status: http.StatusOK, Body: resp}, v.about()
	if s, ok := resp.(Shaped); ok && err == nil {
		shape, err = s.Shape(about.Accept)
	} else if v.door.Form != nil && err == nil {
		shape = v.door.Form.Answer(about, resp)
	}
	body, encodeErr := shape.encode()
	if err == nil && encodeErr != nil {
		v.door.Log.Error("answer not encoded", "audit", v.entry.RequestID, "err", encodeErr)
		err = encodeErr
	}
	if err != nil {
		shape = v.refusal(err)
		body, _ = shape.encode() // strings only
	}
	for name, values := range shape.Header {
		h[name] = values
	}
	if shape.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int((shape.RetryAfter+time.Second-1)/time.Second)))
	}
	if v.nonce != "" {
		if key, ok := v.door.Key(); ok {
			h.Set(ProofHeader, key.Prove(v.nonce, v.r.Host, body))
		}
	}
	h.Set("Content-Type", shape.ContentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	v.w.WriteHeader(shape.Status)
	if _, err := v.w.Write(body); err != nil && !errors.Is(err, net.ErrClosed) {
		v.door.Log.Debug("answer not sent", "audit", v.entry.RequestID, "err", err)
	}
	return shape.Status, problem.CodeOf(err)
}

func (v *visit) about() About {
	return About{RequestID: v.entry.RequestID, Caller: v.caller, Accept: strings.Join(v.r.Header.Values("Accept"), ","), Path: clip(v.r.URL.Path), Now: v.door.Now()}
}

// refusal is the form of an error on the wire.
func (v *visit) refusal(err error) Shape {
	p := *problem.From(err)
	p.AuditID = v.entry.RequestID
	if p.Advice == nil {
		p.Advice = []string{}
	}
	switch p.Code.Status() {
	case http.StatusAccepted, http.StatusTooManyRequests, http.StatusServiceUnavailable: // always say when
		p.RetryAfter = max(p.RetryAfter, time.Second)
	}
	shape := Shape{Status: p.Code.Status(), Body: &p}
	if v.door.Form != nil {
		shape = v.door.Form.Refuse(v.about(), &p)
	}
	shape.RetryAfter = p.RetryAfter
	return shape
}

// encode returns the body as bytes.
func (s *Shape) encode() ([]byte, error) {
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
