package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
)

type actionRequest struct {
	Role string           `json:"role,omitempty"`
	For  httpapi.Duration `json:"for,omitzero"`
	Wait httpapi.Duration `json:"-" query:"wait"`
}

func (a actionRequest) AuditArgs() map[string]string { return map[string]string{"role": a.Role} }

type response struct {
	Role string `json:"role"`
	Wait string `json:"wait"`
}

func (response) AuditObject() string { return "thing" }

var (
	write = httpapi.Op[actionRequest, response]{Pattern: "POST /api/v1alpha1/login", Verb: access.SigninLogin, Doc: "write"}
	read  = httpapi.Op[actionRequest, response]{Pattern: "GET /api/v1alpha1/login", Verb: access.SigninRead, Doc: "read"}
	slow  = httpapi.Op[actionRequest, response]{Pattern: "GET /api/v1alpha1/kubeconfig", Verb: access.SigninKubeconfig, Doc: "wait"}
)

var policy = access.Policy{Capability: "tailplane.dev/cap/access", Roles: []access.Role{"view"}, Min: access.MinPeriod, Max: time.Hour}

func alice(rules ...string) access.Caller {
	c := access.Caller{Login: "alice@example.com", Device: access.Device{ID: "n1", Name: "laptop"}, Via: access.ViaTailnet}
	for _, r := range rules {
		c.Rules = append(c.Rules, json.RawMessage(r))
	}
	return c
}

const view = `{"role":"view","period":"1h"}`

// An env is a test environment: a server with scripted callers and audit entries that the test can
// read.
type env struct {
	*httptest.Server
	httpapi.Client
	mu       sync.Mutex
	caller   access.Caller
	identify error
	entries  []audit.Entry
	acted    int
	permit   access.Permit // of the last operation
	log      bytes.Buffer
	wait     func(context.Context) error
	server   *httpapi.Server
}

func (h *env) set(c access.Caller, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.caller, h.identify, h.entries, h.acted = c, err, nil, 0
}

// end returns the one entry of the last request, and how often an operation ran.
func (h *env) end(t *testing.T) (audit.Entry, int) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.entries) != 1 {
		t.Errorf("%d audit entries for one visit", len(h.entries))
		return audit.Entry{}, h.acted
	}
	e, n := h.entries[0], h.acted
	h.entries, h.acted = nil, 0
	return e, n
}

func newEnv(t *testing.T, limits httpapi.Limits) *env {
	h := &env{caller: alice(view)}
	act := func(_ context.Context, p access.Permit, req actionRequest) (response, error) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.acted++
		h.permit = p
		if req.Role == "boom" {
			return response{}, errors.New("secret: the disk at /dev/sda1 is on fire")
		}
		return response{Role: req.Role, Wait: time.Duration(req.Wait).String()}, nil
	}
	d := &httpapi.Server{
		Names: func() []string { return []string{"tka.tiny.ts.net", "127.0.0.1"} },
		Identify: func(*http.Request) (access.Caller, error) {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.caller, h.identify
		},
		Decide: func(c access.Caller, v access.Verb, now time.Time) (access.Permit, error) {
			return access.Decide(c, v, policy, now)
		},
		Record: func(e audit.Entry) error {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.entries = append(h.entries, e)
			return nil
		},
		Limits: limits, Log: slog.New(slog.NewTextHandler(&h.log, nil)), Now: time.Now,
	}
	h.server = d
	h.Server = httptest.NewServer(d.Handler(write.Serve(act), read.Serve(act), slow.ServeAfter(func(ctx context.Context, _ access.Permit, _ actionRequest) error {
		if h.wait != nil {
			return h.wait(ctx)
		}
		return nil
	}, act)))
	t.Cleanup(h.Server.Close)
	h.Client = httpapi.Client{HTTP: h.Server.Client(), Base: h.Server.URL}
	return h
}

func TestNothingActsWithoutAPermit(t *testing.T) {
	h := newEnv(t, httpapi.Limits{})
	for _, tt := range []struct {
		name   string
		caller access.Caller
		err    error
		code   problem.Code
	}{
		{"permitted", alice(view), nil, ""},
		{"Funnel", access.Caller{Via: access.ViaFunnel}, nil, problem.FunnelRefused},
		{"unknown", access.Caller{}, problem.New(problem.NoIdentity, "nobody").WithCause(errors.New("peer not found")), problem.NoIdentity},
		{"WhoIs is broken", access.Caller{}, errors.New("localapi: connection refused"), problem.Internal},
		{"hollow", access.Caller{Via: access.ViaTailnet}, nil, problem.NoIdentity},
		{"no grant", alice(), nil, problem.NoCapability},
		{"bad grant", alice(`{"role":"view"}`), nil, problem.BadCapability},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h.set(tt.caller, tt.err)
			_, err := write.Call(t.Context(), h.Client, actionRequest{Role: "view"})
			if got := problem.CodeOf(err); got != tt.code {
				t.Fatalf("Call: %v; want code %q", err, tt.code)
			}
			e, acted := h.end(t)
			if (acted == 1) != (tt.code == "") || e.Code != tt.code {
				t.Errorf("acted %d times, recorded %+v", acted, e)
			}
			if err != nil {
				p := problem.From(err)
				if p.AuditID == "" || p.AuditID != e.RequestID {
					t.Errorf("response has the id %q, recorded %q", p.AuditID, e.RequestID)
				}
				if strings.Contains(err.Error(), "localapi") || strings.Contains(err.Error(), "peer not found") {
					t.Error("an internal cause was shown")
				}
			} else if diff := cmp.Diff([]string{"thing", "view", "alice@example.com"}, []string{e.Object, e.Args["role"], string(e.Actor.Login)}); diff != "" {
				t.Errorf("recorded (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAnInternalErrorStaysInside(t *testing.T) {
	h := newEnv(t, httpapi.Limits{})
	_, err := write.Call(t.Context(), h.Client, actionRequest{Role: "boom"})
	p := problem.From(err)
	if p.Code != problem.Internal || strings.Contains(fmt.Sprint(p), "disk") {
		t.Errorf("got %v", err)
	}
	if !strings.Contains(h.log.String(), "on fire") || !strings.Contains(h.log.String(), p.AuditID) {
		t.Errorf("the log has no cause or no audit id: %s", h.log.String())
	}
}

// raw sends a request byte by byte, as an attacker could.
func raw(t *testing.T, h *env, method, target, host, body string, headers ...string) (int, http.Header, string) {
	t.Helper()
	c, err := net.Dial("tcp", h.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(2 * time.Minute))
	if host == "" {
		host = h.Listener.Addr().String()
	}
	fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\nContent-Length: %d\r\n", method, target, host, len(body))
	for _, s := range headers {
		fmt.Fprintf(c, "%s\r\n", s)
	}
	fmt.Fprintf(c, "\r\n%s", body)
	b, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, _ := strings.Cut(string(b), "\r\n\r\n")
	var status int
	fmt.Sscanf(head, "HTTP/1.1 %d", &status)
	hdr := http.Header{}
	for l := range strings.SplitSeq(head, "\r\n") {
		if k, v, ok := strings.Cut(l, ": "); ok {
			hdr.Add(k, v)
		}
	}
	return status, hdr, rest
}

// Law 4 and the rows ID-09 to ID-11 on a server without a tailnet.
func TestRequestChecks(t *testing.T) {
	h := newEnv(t, httpapi.Limits{})
	const path = "/api/v1alpha1/login"
	jsonType := "Content-Type: application/json"
	for _, tt := range []struct {
		name, method, target, host, body string
		headers                          []string
		code                             problem.Code
	}{
		{name: "plain", method: "GET", target: path},
		{name: "name", method: "GET", target: path, host: "tka.tiny.ts.net"},
		{name: "name, letter case, final dot", method: "GET", target: path, host: "TKA.tiny.ts.net."},
		{name: "rebound name", method: "GET", target: path, host: "evil.example", code: problem.WrongHost},
		{name: "rebound name, POST", method: "POST", target: path, host: "evil.example", code: problem.WrongHost},
		{name: "other port", method: "GET", target: path, host: "tka.tiny.ts.net:1", code: problem.WrongHost},
		{name: "absolute form, other host", method: "GET", target: "http://evil.example" + path, code: problem.WrongHost},
		{name: "foreign origin", method: "POST", target: path, headers: []string{"Origin: https://evil.example"}, code: problem.CrossOrigin},
		{name: "null origin", method: "GET", target: path, headers: []string{"Origin: null"}, code: problem.CrossOrigin},
		{name: "cross-site GET", method: "GET", target: path, headers: []string{"Sec-Fetch-Site: cross-site"}, code: problem.CrossOrigin},
		{name: "same-site GET", method: "GET", target: path, headers: []string{"Sec-Fetch-Site: same-site"}, code: problem.CrossOrigin},
		{name: "same-origin GET", method: "GET", target: path, headers: []string{"Sec-Fetch-Site: same-origin"}},
		{name: "form", method: "POST", target: path, body: "role=view", headers: []string{"Content-Type: text/plain"}, code: problem.MediaType},
		{name: "empty body of any type", method: "POST", target: path, headers: []string{"Content-Type: text/plain"}},
		{name: "body", method: "POST", target: path, body: `{"role":"view"}`, headers: []string{jsonType}},
		{name: "unknown field", method: "POST", target: path, body: `{"rolle":"view"}`, headers: []string{jsonType}, code: problem.BadRequest},
		{name: "letter case", method: "POST", target: path, body: `{"Role":"view"}`, headers: []string{jsonType}, code: problem.BadRequest},
		{name: "twice", method: "POST", target: path, body: `{"role":"view","role":"edit"}`, headers: []string{jsonType}, code: problem.BadRequest},
		{name: "wrong type", method: "POST", target: path, body: `{"role":1}`, headers: []string{jsonType}, code: problem.BadRequest},
		{name: "bad duration", method: "POST", target: path, body: `{"for":"1d"}`, headers: []string{jsonType}, code: problem.BadRequest},
		{name: "no time at all", method: "POST", target: path, body: `{"for":"0s"}`, headers: []string{jsonType}, code: problem.BadRequest},
		{name: "two objects", method: "POST", target: path, body: `{}{}`, headers: []string{jsonType}, code: problem.BadRequest},
		{name: "not an object", method: "POST", target: path, body: `[]`, headers: []string{jsonType}, code: problem.BadRequest},
		{name: "too large", method: "POST", target: path, body: `{"role":"` + strings.Repeat("x", 17<<10) + `"}`, headers: []string{jsonType}, code: problem.TooLarge},
		{name: "parameter", method: "GET", target: "/api/v1alpha1/kubeconfig?wait=25s"},
		{name: "unknown parameter", method: "GET", target: path + "?x=1", code: problem.BadRequest},
		{name: "parameter twice", method: "GET", target: "/api/v1alpha1/kubeconfig?wait=1s&wait=2s", code: problem.BadRequest},
		{name: "negative wait", method: "GET", target: "/api/v1alpha1/kubeconfig?wait=-1s", code: problem.BadRequest},
		{name: "unparsable wait", method: "GET", target: "/api/v1alpha1/kubeconfig?wait=soon", code: problem.BadRequest},
		{name: "semicolon", method: "GET", target: "/api/v1alpha1/kubeconfig?wait=1s;x=1", code: problem.BadRequest},
		{name: "unknown path", method: "GET", target: "/nothing", code: problem.NotFound},
		{name: "root", method: "GET", target: "/", code: problem.NotFound},
		{name: "double slash", method: "POST", target: "//api/v1alpha1/login", code: problem.NotFound},
		{name: "dots", method: "POST", target: "/x/../api/v1alpha1/login", code: problem.NotFound},
		{name: "escaped dots", method: "POST", target: "/x/%2e%2e/api/v1alpha1/login", code: problem.NotFound},
		{name: "escaped slash", method: "POST", target: "/api%2Fv1alpha1/login", code: problem.NotFound},
		{name: "upper case", method: "POST", target: "/API/V1alpha1/login", code: problem.NotFound},
		{name: "trailing slash", method: "POST", target: path + "/", code: problem.NotFound},
		{name: "path parameter", method: "POST", target: path + ";x", code: problem.NotFound},
		{name: "longer", method: "POST", target: path + "X", code: problem.NotFound},
		{name: "escaped question mark", method: "POST", target: path + "%3Fx", code: problem.NotFound},
		{name: "wrong method", method: "DELETE", target: path, code: problem.MethodNotAllowed},
		{name: "HEAD", method: "HEAD", target: path, code: problem.MethodNotAllowed},
		{name: "OPTIONS", method: "OPTIONS", target: path, code: problem.MethodNotAllowed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h.set(alice(view), nil)
			status, hdr, body := raw(t, h, tt.method, tt.target, tt.host, tt.body, tt.headers...)
			e, acted := h.end(t)
			if want := tt.code; want == "" && (status != http.StatusOK || acted != 1) || want != "" && (status != want.Status() || e.Code != want || acted != 0) {
				t.Errorf("answered %d %s, acted %d times, recorded %+v", status, body, acted, e)
			}
			if hdr.Get("Cache-Control") != "no-store" || hdr.Get("X-Request-Id") != e.RequestID {
				t.Errorf("headers %v", hdr)
			}
			for k := range hdr {
				if strings.HasPrefix(k, "Access-Control-") || k == "Server" {
					t.Errorf("header %s", k)
				}
			}
			if tt.code == problem.MethodNotAllowed && hdr.Get("Allow") != "GET, POST" {
				t.Errorf("Allow: %q", hdr.Get("Allow"))
			}
		})
	}
}

// Only admitted callers learn that a path does not exist (ID-12).
func TestUnknownCallersLearnNoPaths(t *testing.T) {
	h := newEnv(t, httpapi.Limits{})
	h.set(access.Caller{Via: access.ViaFunnel}, nil)
	for _, target := range []string{"/nothing", "/api/v1alpha1/login", "/swagger/index.html"} {
		if status, _, body := raw(t, h, "GET", target, "", ""); status != http.StatusForbidden {
			t.Errorf("%s: %d %s", target, status, body)
		}
	}
}

// The permissions after the wait count (SGN-06): a caller that is no longer admitted is refused,
// and the operation learns that the grant is gone.
func TestDecidedAgainAfterTheWait(t *testing.T) {
	h := newEnv(t, httpapi.Limits{})
	become := func(c access.Caller) {
		h.wait = func(context.Context) error {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.caller = c
			return nil
		}
	}
	expired := alice(view)
	expired.Expired = true
	become(expired)
	_, err := slow.Call(t.Context(), h.Client, actionRequest{Wait: httpapi.Duration(time.Second)})
	if problem.CodeOf(err) != problem.NodeExpired {
		t.Errorf("after the wait: %v", err)
	}
	if e, acted := h.end(t); acted != 0 || e.Code != problem.NodeExpired {
		t.Errorf("acted %d times, recorded %+v", acted, e)
	}
	h.set(alice(view), nil)
	become(alice())
	if _, err := slow.Call(t.Context(), h.Client, actionRequest{Wait: httpapi.Duration(time.Second)}); err != nil {
		t.Error(err)
	}
	if _, acted := h.end(t); acted != 1 || problem.CodeOf(h.permit.OwnerOnly()) != problem.NoCapability {
		t.Errorf("acted %d times, with a permit that says %v", acted, h.permit.OwnerOnly())
	}
}

func TestLimits(t *testing.T) {
	h := newEnv(t, httpapi.Limits{Verbs: map[access.Verb]httpapi.Rate{access.SigninLogin: {PerMinute: 1, Burst: 2}}, WaitersPerCaller: 1})
	for i := range 3 {
		_, err := write.Call(t.Context(), h.Client, actionRequest{})
		if i < 2 && err != nil {
			t.Fatal(i, err)
		}
		if i == 2 {
			if p := problem.From(err); p.Code != problem.RateLimited || p.RetryAfter <= 0 {
				t.Errorf("third: %v, retry after %v", err, p.RetryAfter)
			}
		}
	}
	if _, err := read.Call(t.Context(), h.Client, actionRequest{}); err != nil {
		t.Errorf("another operation is limited too: %v", err)
	}
	h.set(access.Caller{Login: "bob@example.com", Device: access.Device{ID: "n2", Name: "b"}, Via: access.ViaTailnet, Rules: alice(view).Rules}, nil)
	if _, err := write.Call(t.Context(), h.Client, actionRequest{}); err != nil {
		t.Errorf("another person is limited too: %v", err)
	}

	hold, held := make(chan struct{}), make(chan struct{})
	h.wait = func(context.Context) error { close(held); <-hold; return nil }
	done := make(chan error, 1)
	go func() { _, err := slow.Call(t.Context(), h.Client, actionRequest{}); done <- err }()
	<-held
	if _, err := slow.Call(t.Context(), h.Client, actionRequest{}); problem.CodeOf(err) != problem.RateLimited {
		t.Errorf("second waiter: %v", err)
	}
	close(hold)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestStoppingAnswersThoseWhoWait(t *testing.T) {
	waiting := make(chan struct{})
	d := &httpapi.Server{
		Names:    func() []string { return []string{"127.0.0.1"} },
		Identify: func(*http.Request) (access.Caller, error) { return alice(view), nil },
		Decide: func(c access.Caller, v access.Verb, now time.Time) (access.Permit, error) {
			return access.Decide(c, v, policy, now)
		},
		Record: func(audit.Entry) error { return nil }, Log: slog.New(slog.DiscardHandler), Now: time.Now,
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- d.Run(ctx, ln, nil, slow.ServeAfter(func(ctx context.Context, _ access.Permit, _ actionRequest) error {
			close(waiting)
			<-ctx.Done()
			return ctx.Err()
		}, func(context.Context, access.Permit, actionRequest) (response, error) { return response{}, nil }))
	}()
	clone := make(chan error, 1)
	go func() {
		_, err := slow.Call(t.Context(), httpapi.Client{HTTP: http.DefaultClient, Base: "http://" + ln.Addr().String()}, actionRequest{})
		clone <- err
	}()
	<-waiting
	stop()
	if err := <-clone; problem.CodeOf(err) != problem.Unavailable {
		t.Errorf("the waiting caller got %v", err)
	}
	if err := <-ended; err != nil {
		t.Errorf("Run: %v", err)
	}
}

// A response may come from a server that is not Tailplane. The client reports that instead of
// accepting it.
func TestCallDoubtsTheServer(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"HTML":       func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") },
		"HTML error": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "<html>", http.StatusForbidden) },
		"huge":       func(w http.ResponseWriter, _ *http.Request) { w.Write(bytes.Repeat([]byte(" "), 2<<20)) },
		"broken off": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "10")
			io.WriteString(w, "{")
		},
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(handler)
			defer srv.Close()
			if got, err := read.Call(t.Context(), httpapi.Client{HTTP: srv.Client(), Base: srv.URL}, actionRequest{}); err == nil || got != (response{}) {
				t.Errorf("believed %+v, %v", got, err)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(`{"role":"view","for":"1h"}`, "wait=1s")
	f.Add(`{"role":"view"}{}`, "")
	d := &httpapi.Server{
		Names:    func() []string { return []string{"tka"} },
		Identify: func(*http.Request) (access.Caller, error) { return alice(view), nil },
		Decide: func(c access.Caller, v access.Verb, now time.Time) (access.Permit, error) {
			return access.Decide(c, v, policy, now)
		},
		Record: func(audit.Entry) error { return nil }, Log: slog.New(slog.DiscardHandler), Now: time.Now,
	}
	h := d.Handler(write.Serve(func(_ context.Context, _ access.Permit, a actionRequest) (response, error) {
		return response{Role: a.Role}, nil
	}))
	f.Fuzz(func(t *testing.T, body, query string) {
		r := httptest.NewRequest("POST", "/api/v1alpha1/login", strings.NewReader(body))
		r.Host, r.URL.RawQuery = "tka", query
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusOK {
			return
		}
		var m map[string]any
		if body != "" && (json.Unmarshal([]byte(body), &m) != nil || len(m) > 2) {
			t.Errorf("took %q", body)
		}
	})
}

func TestDurationsReadAsPeopleWriteThem(t *testing.T) {
	for d, want := range map[time.Duration]string{8 * time.Hour: "8h", 90 * time.Minute: "1h30m", 30 * time.Second: "30s", 20 * time.Minute: "20m", 10 * time.Hour: "10h",
		time.Hour + time.Second: "1h0m1s", 0: "0s", time.Millisecond: "1ms"} {
		if got := httpapi.Duration(d).String(); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
		if back, err := time.ParseDuration(want); err != nil || back != d {
			t.Errorf("%s is read as %v (%v)", want, back, err)
		}
	}
}
