// Package tsapi is a fake of Tailscale's HTTP API for one tailnet on loopback, and can inject the faults of such an
// API. It fails closed: it rejects a token without the scope, an unknown field and an unknown route, with an
// explanation. It never logs or records a secret.
package tsapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tailplane/tailplane/testkit/tailnettest/tailpolicy"
)

// API is the API of one tailnet, on 127.0.0.1. It reads and changes the tailnet itself: keys let nodes in, devices
// are the nodes, and the policy is the current one. API stores only clients, tokens and faults.
type API struct {
	domain  string
	net     Tailnet
	url     string
	closing <-chan struct{}
	stop    func()

	mu       sync.Mutex
	clients  map[string]*OAuthClient // by ID
	trusted  map[string]*TrustedIssuer
	tokens   map[string]*token
	requests []Request
	faults   []*Fault
}

// Request is one request that the API received, for assertions such as "no key was created in ten reconciles". It
// contains no secrets and no bodies.
type Request struct {
	At      time.Time
	Method  string
	Route   string // the pattern, such as "POST /tailnet/{tailnet}/keys"
	Path    string // after /api/v2
	Query   string
	Tailnet string   // tailnet in the path: "-" or the domain
	Client  string   // the OAuth client's ID; empty if it was not recognised
	Scopes  []string // scopes of the token in the request
	Status  int      // 0 if the response was not completed
}

// Start starts the API of the tailnet and listens until Close. In paths, the tailnet is domain or "-".
func Start(domain string, t Tailnet) (*API, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("tailscale API: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	a := &API{domain: domain, net: t, url: "http://" + ln.Addr().String(), closing: ctx.Done(),
		clients: map[string]*OAuthClient{}, trusted: map[string]*TrustedIssuer{}, tokens: map[string]*token{}}
	srv := &http.Server{Handler: a.handler(), ReadHeaderTimeout: 10 * time.Second}
	go srv.Serve(ln)
	a.stop = func() { cancel(); srv.Close() }
	return a, nil
}

// Close stops the API. It also ends requests that hang.
func (a *API) Close() { a.stop() }

// URL returns the base URL, without /api/v2, as clients of Tailscale's API expect it.
func (a *API) URL() string { return a.url }

// Requests returns the requests so far, oldest first.
func (a *API) Requests() []Request {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.requests)
}

// route is one route of the API. A handler returns the body of a 200 response, or an error. Errors are of type
// *apiError, except for a defect of the fake itself.
type route struct {
	pattern string // after /api/v2
	scope   string // scope that the token needs; empty: no token required
	handle  func(*call) (any, error)
}

// routes returns the whole API. Other paths return 501, because with 404 a client would assume that the object is
// gone.
func (a *API) routes() []route {
	return slices.Concat(
		[]route{
			{"POST /oauth/token", "", a.oauthToken},
			{"POST /oauth/token-exchange", "", a.exchangeToken},
		},
		a.keyRoutes(), a.deviceRoutes(), a.policyRoutes(), a.serviceRoutes())
}

// call is one authenticated request.
type call struct {
	*http.Request
	w     http.ResponseWriter
	body  []byte
	token *token // nil on routes without a scope
}

// decode decodes the body strictly: a misspelt field must not look like a default.
func (c *call) decode(v any) error {
	d := json.NewDecoder(bytes.NewReader(c.body))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return badRequest("cannot read the body: %v", err)
	}
	return nil
}

// apiError is an error response in the form of Tailscale's API.
type apiError struct {
	Status  int            `json:"-"`
	Message string         `json:"message"`
	Data    []apiErrorData `json:"data,omitempty"`
}

type apiErrorData struct {
	User   string   `json:"user,omitempty"`
	Errors []string `json:"errors,omitempty"`
}

func (e *apiError) Error() string { return e.Message }

func badRequest(format string, args ...any) error {
	return &apiError{Status: http.StatusBadRequest, Message: fmt.Sprintf(format, args...)}
}

func notFound(what string) error {
	return &apiError{Status: http.StatusNotFound, Message: what + " not found"}
}

func unsupported(c *call) (any, error) {
	return nil, &apiError{Status: http.StatusNotImplemented,
		Message: fmt.Sprintf("%s %s is not on the testbed, whose API has only the operations that Tailplane uses", c.Method, c.URL.Path)}
}

const apiBase = "/api/v2"

func (a *API) handler() http.Handler {
	mux := http.NewServeMux()
	for _, rt := range a.routes() {
		method, path, _ := strings.Cut(rt.pattern, " ")
		mux.Handle(method+" "+apiBase+path, a.serve(rt))
	}
	mux.Handle(apiBase+"/", a.serve(route{handle: unsupported}))
	mux.Handle("/", a.serve(route{handle: func(*call) (any, error) { return nil, notFound("page") }}))
	return mux
}

// serve returns the handler of a route: record, inject fault, authenticate, handle, respond.
func (a *API) serve(rt route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tok := a.tokenOf(r)
		entry := a.record(rt, r, tok)
		fault := a.fault(rt.pattern)
		if !fault.before(r, a.closing) {
			panic(http.ErrAbortHandler) // the client is gone, or the tailnet closes
		}
		// The response is completed before it is sent, so that a fault can change it.
		ans := &answer{header: http.Header{}, status: http.StatusOK}
		if fault.lets() {
			a.act(rt, ans, r, tok)
		}
		fault.after(ans)
		a.finish(entry, ans.status)
		ans.send(w, fault != nil && fault.Truncate)
	})
}

func (a *API) act(rt route, w *answer, r *http.Request, tok *token) {
	body, err := io.ReadAll(io.LimitReader(r.Body, tailpolicy.MaxSize+1))
	var out any
	if err == nil {
		err = a.allowed(rt, r, tok)
	}
	if err == nil {
		out, err = rt.handle(&call{Request: r, w: w, body: body, token: tok})
	}
	switch e := err.(type) {
	case nil:
		switch b := out.(type) {
		case []byte: // the handler has set the type
			w.Write(b)
		default:
			writeJSON(w, http.StatusOK, out)
		}
	case *apiError:
		writeJSON(w, e.Status, e)
	default:
		writeJSON(w, http.StatusInternalServerError, &apiError{Message: err.Error()})
	}
}

// allowed checks the token, its scope and the tailnet's name.
func (a *API) allowed(rt route, r *http.Request, tok *token) error {
	if rt.scope == "" {
		return nil
	}
	if tok == nil {
		return &apiError{Status: http.StatusUnauthorized, Message: "API token invalid"}
	}
	if !tok.may(rt.scope, r.Method == http.MethodGet) {
		return &apiError{Status: http.StatusForbidden, Message: "calling actor does not have enough permissions to perform this function"}
	}
	if t := r.PathValue("tailnet"); t != "" && t != "-" && t != a.domain {
		return notFound("tailnet")
	}
	return nil
}

func (a *API) record(rt route, r *http.Request, tok *token) int {
	e := Request{At: time.Now(), Method: r.Method, Route: rt.pattern, Path: strings.TrimPrefix(r.URL.Path, apiBase),
		Query: r.URL.RawQuery, Tailnet: r.PathValue("tailnet")}
	if tok != nil {
		e.Client, e.Scopes = tok.client, tok.scopes
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests = append(a.requests, e)
	return len(a.requests) - 1
}

func (a *API) finish(entry, status int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests[entry].Status = status
}

// answer is a response that has not been sent.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (w *answer) Header() http.Header         { return w.header }
func (w *answer) WriteHeader(code int)        { w.status = code }
func (w *answer) Write(b []byte) (int, error) { return w.body.Write(b) }

// send writes the response. If half is set, it writes the first half and then closes the connection.
func (w *answer) send(to http.ResponseWriter, half bool) {
	maps.Copy(to.Header(), w.header)
	b := w.body.Bytes()
	to.Header().Set("Content-Length", fmt.Sprint(len(b)))
	to.WriteHeader(w.status)
	if half {
		to.Write(b[:len(b)/2])
		http.NewResponseController(to).Flush()
		panic(http.ErrAbortHandler)
	}
	to.Write(b)
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(v)
}
