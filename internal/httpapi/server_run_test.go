package httpapi_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
)

// pipes is a listener in memory, for tests with a fake clock.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }
func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	server, client := net.Pipe()
	select {
	case p.conns <- server:
		return client, nil
	case <-p.done:
		return nil, errors.New("no listener")
	}
}

func newTestServer(record func(audit.Entry) error) *httpapi.Server {
	return &httpapi.Server{
		Names:    func() []string { return []string{"127.0.0.1", "tka"} },
		Identify: func(*http.Request) (access.Caller, error) { return alice(view), nil },
		Decide: func(c access.Caller, v access.Verb, now time.Time) (access.Permit, error) {
			return access.Decide(c, v, policy, now)
		},
		Record: record, Log: slog.New(slog.DiscardHandler), Now: time.Now,
	}
}

func forget(audit.Entry) error { return nil }

// SGN-06: A wait may be longer than the read timeout, which net/http also applies after the request
// was read.
func TestALongWaitIsNotCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := newPipes()
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		var outcome httpapi.Outcome
		d := newTestServer(forget)
		d.Measure = func() func(httpapi.Outcome) { return func(o httpapi.Outcome) { outcome = o } }
		go func() {
			ended <- d.Run(ctx, ln, nil, slow.ServeAfter(func(ctx context.Context, _ access.Permit, a actionRequest) error {
				select {
				case <-time.After(time.Duration(a.Wait)):
					return nil
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}, func(context.Context, access.Permit, actionRequest) (response, error) {
				return response{Role: "waited"}, nil
			}))
		}()
		transport := &http.Transport{DialContext: ln.dial}
		c := httpapi.Client{HTTP: &http.Client{Transport: transport}, Base: "http://tka"}
		for range 2 { // the next request on the connection has a separate limit
			began := time.Now()
			got, err := slow.Call(t.Context(), c, actionRequest{Wait: httpapi.Duration(time.Minute)})
			switch {
			case err != nil:
				t.Error(err)
			case got.Role != "waited":
				t.Errorf("got.Role = %q, want %q", got.Role, "waited")
			case time.Since(began) != time.Minute:
				t.Errorf("time.Since(began) != time.Minute; got = %+v, %v, %v", got, err, time.Since(began))
			}
			switch {
			case outcome.Waited != time.Minute:
				t.Errorf("measured: outcome.Waited = %v, want %v", outcome.Waited, time.Minute)
			case outcome.Took != time.Minute:
				t.Errorf("measured: outcome.Took = %v, want %v", outcome.Took, time.Minute)
			case outcome.Verb != access.SigninKubeconfig:
				t.Errorf("measured: outcome.Verb = %q, want %q", outcome.Verb, access.SigninKubeconfig)
			case outcome.Status != 200:
				t.Errorf("measured: outcome.Status = %v, want 200", outcome.Status)
			}
		}
		transport.CloseIdleConnections()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A request in progress is finished when the server stops, and no further connection is accepted.
func TestStoppingLetsOthersFinish(t *testing.T) {
	acting, act := make(chan struct{}), make(chan struct{})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- newTestServer(forget).Run(ctx, ln, nil, write.Serve(func(ctx context.Context, _ access.Permit, _ actionRequest) (response, error) {
			close(acting)
			select {
			case <-act:
			case <-ctx.Done():
			}
			return response{Role: "done"}, ctx.Err()
		}))
	}()
	c := httpapi.Client{HTTP: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, Base: "http://" + ln.Addr().String()}
	served := make(chan error, 1)
	go func() { _, err := write.Call(t.Context(), c, actionRequest{}); served <- err }()
	<-acting
	stop()
	for began := time.Now(); ; {
		conn, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			break
		}
		conn.Close()
		if time.Since(began) > 2*time.Minute {
			t.Fatal("still listening")
		}
	}
	close(act)
	if err := <-served; err != nil {
		t.Errorf("who was being served: %v", err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// DS-02: One address cannot hold more connections than its limit, and each closed connection frees
// a slot.
func TestConnectionsOfOneAddress(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	d := newTestServer(forget)
	d.Limits.Connections = 3
	go func() {
		ended <- d.Run(ctx, ln, nil, read.Serve(func(context.Context, access.Permit, actionRequest) (response, error) { return response{}, nil }))
	}()
	served := func(c net.Conn) bool {
		c.SetDeadline(time.Now().Add(2 * time.Minute))
		io.WriteString(c, "GET /api/v1alpha1/login HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
		b := make([]byte, 12)
		_, err := io.ReadFull(c, b)
		return err == nil && string(b) == "HTTP/1.1 200"
	}
	dial := func() net.Conn {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	var held []net.Conn
	for i := range 3 {
		if held = append(held, dial()); !served(held[i]) {
			t.Fatalf("connection %d is refused", i+1)
		}
	}
	if c := dial(); served(c) {
		t.Error("a fourth connection is served")
	} else {
		c.Close()
	}
	for _, c := range held {
		c.Close()
	}
	for began := time.Now(); ; {
		c := dial()
		ok := served(c)
		c.Close()
		if ok {
			break
		}
		if time.Since(began) > 2*time.Minute {
			t.Fatal("closed connections still count")
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// With audit.required, no request is served without an audit entry, and results are not returned.
// When the audit log works again, so does the server.
func TestNothingWithoutARecord(t *testing.T) {
	h := newEnv(t, httpapi.Limits{})
	broken := true
	h.server.Record = func(audit.Entry) error {
		if broken {
			return errors.New("no space left on device")
		}
		return nil
	}
	if _, err := write.Call(t.Context(), h.Client, actionRequest{}); err != nil {
		t.Errorf("not required: %v", err)
	}
	h.server.MustRecord = []access.Verb{access.SigninLogin}
	acted := h.acted
	p := problem.From(second(write.Call(t.Context(), h.Client, actionRequest{})))
	switch {
	case p.Code != problem.AuditUnavailable:
		t.Errorf("p.Code = %q, want %q", p.Code, problem.AuditUnavailable)
	case p.RetryAfter == 0:
		t.Errorf("p.RetryAfter = %v", p.RetryAfter)
	case strings.Contains(p.Message, "device"):
		t.Errorf("p.Message = %q contains %q", p.Message, "device")
	}
	if h.acted != acted {
		t.Error("it acted, knowing that the record does not work")
	}
	if _, err := read.Call(t.Context(), h.Client, actionRequest{}); err != nil {
		t.Errorf("another operation: %v", err)
	}
	broken = false
	if _, err := write.Call(t.Context(), h.Client, actionRequest{}); problem.CodeOf(err) != problem.AuditUnavailable {
		t.Errorf("the visit that tries the record: %v", err)
	}
	if _, err := write.Call(t.Context(), h.Client, actionRequest{}); err != nil {
		t.Errorf("the record works again: %v", err)
	}
	broken = true
	if _, err := write.Call(t.Context(), h.Client, actionRequest{}); problem.CodeOf(err) != problem.AuditUnavailable {
		t.Errorf("the entry of this very visit is lost: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

// A panic is a failed request: the caller learns nothing, one audit entry is written, and the log
// has all details.
func TestPanicIsRecorded(t *testing.T) {
	var mu sync.Mutex
	var entries []audit.Entry
	var log strings.Builder
	d := newTestServer(func(e audit.Entry) error {
		mu.Lock()
		defer mu.Unlock()
		entries = append(entries, e)
		return nil
	})
	d.Log = slog.New(slog.NewTextHandler(&log, nil))
	var outcomes []httpapi.Outcome
	d.Measure = func() func(httpapi.Outcome) { return func(o httpapi.Outcome) { outcomes = append(outcomes, o) } }
	h := newEnv(t, httpapi.Limits{})
	h.Config.Handler = d.Handler(write.Serve(func(context.Context, access.Permit, actionRequest) (response, error) { panic("secret: /dev/sda1") }))
	p := problem.From(second(write.Call(t.Context(), h.Client, actionRequest{})))
	if p.Code != problem.Internal || strings.Contains(p.Message, "sda1") {
		t.Errorf("response %+v", p)
	}
	switch {
	case len(entries) != 1:
		t.Errorf("recorded: len(entries) = %v, want 1", len(entries))
	case entries[0].Result != audit.Failed:
		t.Errorf("recorded: entries[0].Result = %q, want %q", entries[0].Result, audit.Failed)
	case entries[0].RequestID != p.AuditID:
		t.Errorf("recorded: entries[0].RequestID = %q, want %q", entries[0].RequestID, p.AuditID)
	}
	switch {
	case !strings.Contains(log.String(), "sda1"):
		t.Errorf("logged: log.String() = %q does not contain %q", log.String(), "sda1")
	case !strings.Contains(log.String(), p.AuditID):
		t.Errorf("logged: log.String() = %q does not contain %q", log.String(), p.AuditID)
	case !strings.Contains(log.String(), "run_test.go"):
		t.Errorf("logged: log.String() = %q does not contain %q", log.String(), "run_test.go")
	}
	switch want := (httpapi.Outcome{Verb: access.SigninLogin, Status: 500, Code: problem.Internal}); {
	case len(outcomes) != 1:
		t.Errorf("measured: len(outcomes) = %v, want 1", len(outcomes))
	case outcomes[0].Verb != want.Verb:
		t.Errorf("measured: outcomes[0].Verb = %q, want %q", outcomes[0].Verb, want.Verb)
	case outcomes[0].Status != want.Status:
		t.Errorf("measured: outcomes[0].Status = %v, want %v", outcomes[0].Status, want.Status)
	case outcomes[0].Code != want.Code:
		t.Errorf("measured: outcomes[0].Code = %q, want %q", outcomes[0].Code, want.Code)
	}
}

// AU-06: The metrics of a request use closed sets of values, whatever the client sends.
func TestOutcomesAreOfAClosedSet(t *testing.T) {
	h := newEnv(t, httpapi.Limits{})
	var mu sync.Mutex
	seen := map[access.Verb]int{}
	h.server.Measure = func() func(httpapi.Outcome) {
		return func(o httpapi.Outcome) {
			mu.Lock()
			defer mu.Unlock()
			seen[o.Verb]++
			if o.Code != "" && !slices.Contains(problem.Codes(), o.Code) {
				t.Errorf("code %q", o.Code)
			}
		}
	}
	for _, target := range []string{"/a", "/b?x=1", "/api/v1alpha1/login", "/api/v1alpha1/login/x", "/%ff"} {
		for _, host := range []string{"", "evil.example", "x"} {
			raw(t, h, "GET", target, host, "")
			raw(t, h, "BREW", target, host, "")
		}
	}
	for v := range seen {
		if v != "" && v != access.SigninRead && v != access.SigninLogin && v != access.SigninKubeconfig {
			t.Errorf("measured the operation %q", v)
		}
	}
	if len(seen) < 2 {
		t.Errorf("measured %v", seen)
	}
}

// Section 3.6: The log aggregates repeated errors. Errors that the caller cannot see are logged in
// full.
func TestTheLogIsNotAmplified(t *testing.T) {
	h := newEnv(t, httpapi.Limits{})
	now := time.Now()
	h.server.Now = func() time.Time { return now }
	h.set(access.Caller{}, problem.New(problem.IdentityUnavailable, "Cannot ask.").WithCause(errors.New("localapi: timeout")))
	for range 200 {
		raw(t, h, "GET", "/api/v1alpha1/login", "", "")
	}
	now = now.Add(11 * time.Second)
	raw(t, h, "GET", "/api/v1alpha1/login", "", "")
	lines := strings.Split(strings.TrimSpace(h.log.String()), "\n")
	switch {
	case len(lines) != 2:
		t.Errorf("len(lines) = %v, want 2", len(lines))
	case !strings.Contains(lines[0], "localapi: timeout"):
		t.Errorf("lines[0] = %q does not contain %q", lines[0], "localapi: timeout")
	case !strings.Contains(lines[1], "alsoSince=199"):
		t.Errorf("lines[1] = %q does not contain %q", lines[1], "alsoSince=199")
	}
	h.log.Reset()
	h.set(access.Caller{}, problem.New(problem.NoIdentity, "Nobody.").WithCause(errors.New("peer not found")))
	for range 200 {
		raw(t, h, "GET", "/api/v1alpha1/login", "", "")
	}
	if h.log.Len() > 0 {
		t.Errorf("strangers write the log: %.400q", h.log.String())
	}
	h.set(alice(view), nil)
	for range 3 {
		write.Call(t.Context(), h.Client, actionRequest{Role: "boom"})
	}
	if n := strings.Count(h.log.String(), "on fire"); n != 3 {
		t.Errorf("%d of 3 internal errors are in the log", n)
	}
}
