package httpapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
)

// A streamEnv is a server on the operator plane whose caller and audit entries the test controls.
type streamEnv struct {
	httpapi.Server
	mu      sync.Mutex
	rules   string
	login   access.Login
	entries []audit.Entry
}

func newStreamEnv(t *testing.T) *streamEnv {
	t.Helper()
	d := &streamEnv{login: "alice@example.com", rules: `{"role":"viewer","orgs":["*"]}`}
	d.Server = httpapi.Server{
		Names: func() []string { return []string{"plane.example.ts.net"} },
		Identify: func(r *http.Request) (access.Caller, error) {
			d.mu.Lock()
			defer d.mu.Unlock()
			r.Header.Del("X-Forwarded-For")
			return access.Caller{Login: d.login, Device: access.Device{ID: "n1", Name: "laptop"}, Via: access.ViaTailnet, Rules: []json.RawMessage{json.RawMessage(d.rules)}}, nil
		},
		Decide: func(c access.Caller, v access.Verb, now time.Time) (access.Permit, error) {
			return access.DecidePlane(c, v, access.PlanePolicy{Capability: "c"}, now)
		},
		Record: func(e audit.Entry) error {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.entries = append(d.entries, e)
			return nil
		},
		Log: slog.New(slog.DiscardHandler), Now: time.Now,
	}
	return d
}

func (d *streamEnv) record() []audit.Entry {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.entries
}

func (d *streamEnv) grant(rules string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rules = rules
}

type commonRequest struct {
	Reason string `json:"reason,omitempty"`
	Key    string `json:"-" header:"Idempotency-Key"`
}

type removalRequest struct {
	commonRequest
	Namespace string `json:"-" path:"namespace"`
	Name      string `json:"-" path:"name"`
	DryRun    string `json:"-" query:"dryRun"`
}

// Path segments, headers and embedded fields arrive as the client of the same declaration sent
// them. A different spelling of a path is a different path.
func TestFields(t *testing.T) {
	d := newStreamEnv(t)
	op := httpapi.Op[removalRequest, map[string]string]{Pattern: "DELETE /things/{namespace}/{name}", Verb: access.PlaneSelf}
	srv := httptest.NewServer(d.Handler(op.Serve(func(_ context.Context, _ access.Permit, r removalRequest) (map[string]string, error) {
		return map[string]string{"reason": r.Reason, "key": r.Key, "namespace": r.Namespace, "name": r.Name, "dryRun": r.DryRun}, nil
	})))
	defer srv.Close()
	client := srv.Client()
	client.Transport = namedTransport{client.Transport}
	got, err := op.Call(t.Context(), httpapi.Client{HTTP: client, Base: srv.URL}, removalRequest{commonRequest{"because", "k1"}, "team-a", "x y", "true"})
	switch {
	case err != nil:
		t.Error(err)
	case got["reason"] != "because":
		t.Errorf(`got["reason"] = %q, want %q`, got["reason"], "because")
	case got["key"] != "k1":
		t.Errorf(`got["key"] = %q, want %q`, got["key"], "k1")
	case got["namespace"] != "team-a":
		t.Errorf(`got["namespace"] = %q, want %q`, got["namespace"], "team-a")
	case got["name"] != "x y":
		t.Errorf(`got["name"] = %q, want %q`, got["name"], "x y")
	case got["dryRun"] != "true":
		t.Errorf(`got["dryRun"] = %q, want %q`, got["dryRun"], "true")
	}
	for _, tt := range []struct {
		path, body string
		header     http.Header
		want       int
	}{
		{"/things/a/b", `{"reason":"x"}`, nil, 200},
		{"/things/a/b", `{"namespace":"x"}`, nil, 400}, // belongs in the path
		{"/things/a/b", `{"Reason":"x"}`, nil, 400},
		{"/things/a/b", ``, http.Header{"Idempotency-Key": {"a", "b"}}, 400},
		{"/things/a/b", ``, http.Header{"Idempotency-Key": {strings.Repeat("a", 513)}}, 400},
		{"/things/a/b?dryRun=1&dryRun=2", ``, nil, 400},
		{"/things/a%2Fb/c", ``, nil, 404}, // ID-11
		{"/things/a/%2e%2e", ``, nil, 404},
		{"/things/a/b/", ``, nil, 404},
		{"/things/a", ``, nil, 404},
		{"/things/a/" + strings.Repeat("b", 513), ``, nil, 404},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, srv.URL+tt.path, strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range tt.header {
			req.Header[k] = v
		}
		if tt.body != "" {
			req.Header.Set("Content-Type", "application/json")
		}
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != tt.want {
			t.Errorf("%s %q %v: %d, want %d", tt.path, tt.body, tt.header, res.StatusCode, tt.want)
		}
	}
}

// namedTransport sends requests with the server's host name.
type namedTransport struct{ next http.RoundTripper }

func (n namedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Host = "plane.example.ts.net"
	return n.next.RoundTrip(r)
}

func get(d *streamEnv, route httpapi.Route, edit func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "/s", nil)
	r.Host = "plane.example.ts.net"
	if edit != nil {
		edit(r)
	}
	w := httptest.NewRecorder()
	d.Handler(route).ServeHTTP(w, r)
	return w
}

var streaming = httpapi.Op[struct{}, struct{}]{Pattern: "GET /s", Verb: access.PlaneSelf}

// PL-03: A stream ends ten seconds after its permit was last renewed. It writes two audit entries.
func TestPL03_Renewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newStreamEnv(t)
		began := time.Now()
		var last error
		w := get(d, streaming.ServeStream(func(ctx context.Context, p access.Permit, _ struct{}, s *httpapi.Stream) error {
			if err := s.Begin("text/event-stream", nil); err != nil {
				return err
			}
			for tick := time.NewTicker(4 * time.Second); ; {
				select {
				case <-ctx.Done():
					return context.Cause(ctx)
				case <-tick.C:
					if time.Since(began) > time.Minute {
						d.grant(`{"role":"viewer","orgs":[]}`)
					}
					if _, last = s.Renew(); last != nil {
						io.WriteString(s, "event: bye\n\n")
						return last
					}
				}
			}
		}), nil)
		if took := time.Since(began); took < time.Minute || took > 70*time.Second {
			t.Errorf("it continued for %v", took)
		}
		switch {
		case problem.CodeOf(last) != problem.BadCapability:
			t.Errorf("problem.CodeOf(last) != problem.BadCapability; last = %v, %d, %v, %q", last, w.Code, w.Header(), w.Body)
		case w.Code != 200:
			t.Errorf("w.Code = %v, want 200", w.Code)
		case w.Body.String() != "event: bye\n\n":
			t.Errorf("w.Body.String() = %q, want %q", w.Body.String(), "event: bye\n\n")
		case w.Header().Get("Content-Type") != "text/event-stream":
			t.Errorf(`w.Header().Get("Content-Type") != "text/event-stream"; last = %v, %d, %v, %q`, last, w.Code, w.Header(), w.Body)
		}
		switch e := d.record(); {
		case len(e) != 2:
			t.Errorf("recorded: len(e) = %v, want 2", len(e))
		case e[0].RequestID != e[1].RequestID:
			t.Errorf("recorded: e[0].RequestID = %q, want %q", e[0].RequestID, e[1].RequestID)
		case e[0].Args["stream"] != "opened":
			t.Errorf(`recorded: e[0].Args["stream"] = %q, want %q`, e[0].Args["stream"], "opened")
		case e[1].Args["stream"] != "closed":
			t.Errorf(`recorded: e[1].Args["stream"] = %q, want %q`, e[1].Args["stream"], "closed")
		case e[0].Result != audit.Done:
			t.Errorf("recorded: e[0].Result = %q, want %q", e[0].Result, audit.Done)
		case e[1].Code != problem.BadCapability:
			t.Errorf("recorded: e[1].Code = %q, want %q", e[1].Code, problem.BadCapability)
		}
	})
	synctest.Test(t, func(t *testing.T) { // the connection changes its owner
		d := newStreamEnv(t)
		var last error
		get(d, streaming.ServeStream(func(ctx context.Context, _ access.Permit, _ struct{}, s *httpapi.Stream) error {
			d.mu.Lock()
			d.login = "bob@example.com"
			d.mu.Unlock()
			_, last = s.Renew()
			return last
		}), nil)
		if problem.CodeOf(last) != problem.NoIdentity {
			t.Errorf("renewed by another: %v", last)
		}
	})
	synctest.Test(t, func(t *testing.T) { // the permit is not renewed
		d, began := newStreamEnv(t), time.Now()
		get(d, streaming.ServeStream(func(ctx context.Context, _ access.Permit, _ struct{}, s *httpapi.Stream) error {
			if err := s.Begin("text/plain", nil); err != nil {
				return err
			}
			<-ctx.Done()
			return context.Cause(ctx)
		}), nil)
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("it continued for %v", took)
		}
	})
	synctest.Test(t, func(t *testing.T) { // the server renews the permit of a handler
		d, began := newStreamEnv(t), time.Now()
		var seen atomic.Value
		w := get(d, streaming.ServeHandler(func(w http.ResponseWriter, r *http.Request, _ access.Permit) {
			seen.Store(r.Header.Get("X-Forwarded-For"))
			w.WriteHeader(http.StatusTeapot)
			time.Sleep(time.Minute)
			d.grant(`{}`)
			<-r.Context().Done()
		}), func(r *http.Request) { r.Header.Set("X-Forwarded-For", "10.0.0.1") })
		switch took := time.Since(began); {
		case took < time.Minute:
			t.Errorf("it continued: took = %v, want at least %v", took, time.Minute)
		case took > 70*time.Second:
			t.Errorf("it continued: took = %v, want at most %v", took, 70*time.Second)
		case w.Code != http.StatusTeapot:
			t.Errorf("it continued: w.Code = %v, want %v", w.Code, http.StatusTeapot)
		}
		if seen.Load() != "" {
			t.Error("the handler sees a header that was taken away")
		}
		if e := d.record(); len(e) != 1 {
			t.Errorf("recorded %+v", e)
		}
	})
}

// An error before the stream begins is a normal response.
func TestStreamRefused(t *testing.T) {
	d := newStreamEnv(t)
	w := get(d, streaming.ServeStream(func(context.Context, access.Permit, struct{}, *httpapi.Stream) error {
		return problem.New(problem.Validation, "No.")
	}), nil)
	if w.Code != http.StatusUnprocessableEntity || !strings.Contains(w.Body.String(), "validation") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	d.Limits = httpapi.Limits{WaitersPerCaller: 1}
	entered := make(chan struct{})
	route := streaming.ServeStream(func(ctx context.Context, _ access.Permit, _ struct{}, s *httpapi.Stream) error {
		close(entered)
		<-ctx.Done()
		return ctx.Err()
	})
	h := d.Handler(route)
	ask := func(ctx context.Context) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/s", nil)
		r.Host = "plane.example.ts.net"
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	ctx, cancel := context.WithCancel(t.Context())
	var first sync.WaitGroup
	first.Go(func() { ask(ctx) })
	<-entered
	if code := ask(t.Context()).Code; code != http.StatusTooManyRequests {
		t.Errorf("one more is answered %d", code)
	}
	cancel()
	first.Wait()
}

// ID-10 and the plane: A link from another site can open a page, and nothing else.
func TestLinked(t *testing.T) {
	page := httpapi.Op[struct{}, struct{}]{Pattern: "GET /s", Verb: access.PlaneSelf, Page: true}
	serve := func(context.Context, access.Permit, struct{}) (struct{}, error) { return struct{}{}, nil }
	link := func(r *http.Request) {
		r.Header.Set("Sec-Fetch-Site", "cross-site")
		r.Header.Set("Sec-Fetch-Mode", "navigate")
		r.Header.Set("Sec-Fetch-Dest", "document")
	}
	for _, tt := range []struct {
		why   string
		route httpapi.Route
		edit  func(*http.Request)
		want  int
	}{
		{"a link to a page", page.Serve(serve), link, 200},
		{"a link to data", streaming.Serve(serve), link, 403},
		{"a frame", page.Serve(serve), func(r *http.Request) { link(r); r.Header.Set("Sec-Fetch-Dest", "iframe") }, 403},
		{"a script", page.Serve(serve), func(r *http.Request) { link(r); r.Header.Set("Sec-Fetch-Mode", "no-cors") }, 403},
		{"a foreign origin", page.Serve(serve), func(r *http.Request) { link(r); r.Header.Set("Origin", "https://evil.example") }, 403},
		{"a form", page.Serve(serve), func(r *http.Request) { link(r); r.Method = http.MethodPost }, 403},
	} {
		if w := get(newStreamEnv(t), tt.route, tt.edit); w.Code != tt.want {
			t.Errorf("%s: %d, want %d", tt.why, w.Code, tt.want)
		}
	}
}

// A form defines the encoding at both ends.
func TestForm(t *testing.T) {
	d := newStreamEnv(t)
	d.Encoder = &httpapi.Encoder{
		EncodeResponse: func(a httpapi.RequestInfo, resp any) httpapi.Response {
			return httpapi.Response{Status: 200, Body: map[string]any{"data": resp, "id": a.RequestID, "who": a.Caller.Login, "path": a.Path}}
		},
		EncodeRefusal: func(a httpapi.RequestInfo, p *problem.Error) httpapi.Response {
			return httpapi.Response{Status: p.Code.Status(), Body: map[string]any{"error": p, "id": a.RequestID}}
		},
	}
	op := httpapi.Op[struct{}, map[string]int]{Pattern: "GET /s", Verb: access.PlaneSelf}
	fail := false
	srv := httptest.NewServer(d.Handler(op.Serve(func(context.Context, access.Permit, struct{}) (map[string]int, error) {
		if fail {
			return nil, problem.New(problem.Unavailable, "Not now.").WithRetryAfter(7 * time.Second)
		}
		return map[string]int{"n": 1}, nil
	})))
	defer srv.Close()
	client := srv.Client()
	client.Transport = namedTransport{client.Transport}
	c := httpapi.Client{HTTP: client, Base: srv.URL, Open: func(status int, answer []byte) ([]byte, *problem.Error, error) {
		var e struct {
			Data  json.RawMessage
			Error *problem.Error
		}
		if err := json.Unmarshal(answer, &e); err != nil {
			return nil, nil, err
		}
		return e.Data, e.Error, nil
	}}
	if got, err := op.Call(t.Context(), c, struct{}{}); err != nil || got["n"] != 1 {
		t.Errorf("got %v, %v", got, err)
	}
	fail = true
	_, err := op.Call(t.Context(), c, struct{}{})
	switch p, ok := errors.AsType[*problem.Error](err); {
	case !ok:
		t.Errorf("refused: ok is false; %v", err)
	case p.Code != problem.Unavailable:
		t.Errorf("refused: p.Code = %q, want %q", p.Code, problem.Unavailable)
	case p.RetryAfter != 7*time.Second:
		t.Errorf("refused: p.RetryAfter = %v, want %v", p.RetryAfter, 7*time.Second)
	}
}
