package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/util/origin"
)

// A request is one request in progress.
type request struct {
	*handler
	w              http.ResponseWriter
	r              *http.Request
	originalHeader http.Header // the original request headers; only copies are passed on
	route          Route
	caller         access.Caller
	actor          *access.Caller // for whom the request acted; nil: for its caller
	entry          audit.Entry
	nonce          string        // nonce for the proof; "" if no proof was requested or can be given
	waited         time.Duration // time that the caller chose to wait
	stream         *Stream       // the stream that the request became; nil if it is not a stream
}

// processSafely calls process and converts a panic to an error, so that the request is audited like any
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
	return problem.New(problem.AuditUnavailable, "This server cannot write its audit log and processes no request without an audit entry.",
		"Try again. If the problem persists, contact the administrator of this server.").WithRetryAfter(time.Second)
}

// process runs all steps in order and returns the response.
func (v *request) process() (any, error) {
	if err := v.checkHost(); err != nil {
		return nil, err
	}
	if origin.IsCrossSite(v.r) && !v.isPageLink() {
		return nil, problem.New(problem.CrossOrigin, "The server refuses requests from pages of other sites.", "Use tka, or open the page of this server.")
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
			"Try again in a moment. If the problem persists, contact the administrator of this server.").WithRetryAfter(time.Second)
	}
	if err := checkNonce(nonces[0]); err != nil || len(nonces) > 1 {
		return problem.New(problem.BadRequest, NonceHeader+" must have one value of 16 to 64 bytes in base64url without padding.", "Send a new nonce, or no nonce.")
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
		return access.Permit{}, problem.New(problem.NoIdentity, "The connection now belongs to another caller.", "Connect again.")
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
		return problem.New(problem.WrongHost, "The host name in the request is not a name of this server.",
			fmt.Sprintf("Use a name of this server: %s.", names[0]))
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

// setActor sets the caller for whom the request acted, for the audit log.
func (v *request) setActor(actor access.Caller, known bool) {
	if !known {
		return
	}
	if v.entry.Args == nil {
		v.entry.Args = map[string]string{}
	}
	v.entry.Args["proxy"], v.actor = v.caller.Device.Name, &actor
}

// unknownRoute returns the route of requests without a match, for the audit log.
func unknownRoute() Route { return Route{Declaration: Declaration{Verb: "http.unknown"}} }

// findRoute returns the route of the request, or an error for an unknown path or method. It does not
// clean paths: a path that is not clean does not match.
func (v *request) findRoute() (Route, error) {
	notFound := problem.New(problem.NotFound, "No operation has this path.", "The API reference lists the operations.")
	if v.r.URL.Path == "" || path.Clean(v.r.URL.Path) != v.r.URL.Path || v.r.URL.RawPath != "" { // or it is escaped in an unusual way
		return unknownRoute(), notFound
	}
	_, pattern := v.mux.Handler(v.r)
	// HEAD is for pages only, because a GET may create something or become a stream.
	if rt, ok := v.routes[pattern]; ok && (rt.Page || v.r.Method != http.MethodHead) {
		v.mux.ServeHTTP(v.w, v.r) // sets the path values; the registered handlers do nothing, see newHandler
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
	return unknownRoute(), problem.New(problem.MethodNotAllowed, "This path does not support the method.", "Use "+allow+".")
}

// clip limits the length of a caller's text in an audit entry.
func clip(s string) string {
	return s[:min(len(s), 200)]
}

// An AuditIdentifiable response includes the audit ID of the request.
type AuditIdentifiable interface{ WithAuditID(id string) any }

// reply writes the response: a problem, a Shaped response, or JSON. It returns the status, and the
// code of a problem.
func (v *request) reply(resp any, err error) (int, problem.Code) {
	h := v.w.Header()
	v.setCommonHeaders()
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
		v.server.Log.Error("encoding the response failed", "audit", v.entry.RequestID, "err", encodeErr)
		err = encodeErr
	}
	if err != nil {
		shape = v.encodeRefusal(err)
		body, _ = shape.encode() // it contains strings only
	}
	maps.Copy(h, shape.Header)
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
		v.server.Log.Debug("sending the response failed", "audit", v.entry.RequestID, "err", err)
	}
	return shape.Status, problem.CodeOf(err)
}

// setCommonHeaders sets the headers of every response.
func (v *request) setCommonHeaders() {
	h := v.w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Request-Id", v.entry.RequestID)
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
