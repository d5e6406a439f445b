package exposure

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
)

const long = 60 * time.Second

// upstream is a service of the cluster that records its requests.
type upstream struct {
	srv *httptest.Server

	mu       sync.Mutex
	requests []request
	do       http.HandlerFunc // answers, if set
}

// request is a request as the upstream received it.
type request struct {
	Method, Host, URI string
	Header            http.Header
	Body              int64
}

func newUpstream(t testing.TB) *upstream {
	t.Helper()
	u := &upstream{}
	u.srv = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u.mu.Lock()
		do := u.do
		u.mu.Unlock()
		n := int64(0)
		if r.Header.Get("Upgrade") == "" {
			n, _ = io.Copy(io.Discard, r.Body) // incomplete in one test
		}
		u.mu.Lock()
		u.requests = append(u.requests, request{r.Method, r.Host, r.RequestURI, r.Header.Clone(), n})
		u.mu.Unlock()
		if do != nil {
			do(w, r)
			return
		}
		fmt.Fprint(w, "shown")
	}))
	t.Cleanup(u.srv.Close)
	return u
}

// takeRequests returns the recorded requests and clears them.
func (u *upstream) takeRequests() []request {
	u.mu.Lock()
	defer u.mu.Unlock()
	requested := u.requests
	u.requests = nil
	return requested
}

func (u *upstream) answer(do http.HandlerFunc) { u.mu.Lock(); defer u.mu.Unlock(); u.do = do }

// transport connects to u under any name, because the test has no cluster DNS.
func (u *upstream) transport(t testing.TB) *http.Transport {
	tr := NewTransport()
	tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", u.srv.Listener.Addr().String())
	}
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

// env is an exposure behind its server, with one caller.
type env struct {
	addr   string
	caller atomic.Pointer[access.Caller] // the caller on every connection

	mu      sync.Mutex
	entries []audit.Entry
}

func (h *env) as(c access.Caller) { h.caller.Store(&c) }

// auditEntries waits for at least one audit entry and returns all. The entry of a long request is written at its end, perhaps after the
// response.
func (h *env) auditEntries(t testing.TB) []audit.Entry {
	t.Helper()
	for end := time.Now().Add(long); ; time.Sleep(time.Millisecond) {
		h.mu.Lock()
		entries := slices.Clone(h.entries)
		h.mu.Unlock()
		if len(entries) > 0 {
			return entries
		}
		if time.Now().After(end) {
			t.Fatal("the visit was not recorded")
		}
	}
}

var policy = access.PlanePolicy{Capability: "tailplane.dev/cap/plane"}

// person returns a caller with rules of the plane's capability.
func person(login string, rules ...string) access.Caller {
	c := access.Caller{Login: access.Login(login), Device: access.Device{ID: "n-" + login, Name: "laptop.example.ts.net"}, Via: access.ViaTailnet}
	for _, r := range rules {
		c.Rules = append(c.Rules, json.RawMessage(r))
	}
	return c
}

var (
	viewer   = person("vic@example.com", `{"role":"viewer","orgs":["*"]}`)
	operator = person("alice@example.com", `{"role":"operator","orgs":["*"]}`)
	scoped   = person("mel@example.com", `{"role":"operator","orgs":["acme"]}`)
	admin    = person("pat@example.com", `{"role":"platform-admin","orgs":["*"]}`)
	unknown  = person("mallory@example.com")
)

// open serves u with a real server on loopback.
func open(t testing.TB, u Upstream) *env {
	t.Helper()
	h := &env{}
	h.as(viewer)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h.addr = ln.Addr().String()
	h.serve(t, ln, u, httpapi.Server{
		Names:    func() []string { return []string{u.Name} },
		Identify: func(*http.Request) (access.Caller, error) { return *h.caller.Load(), nil }, // removes no header
	}, nil)
	return h
}

// serve serves u on ln. way is the server with its names and its identification of callers.
func (h *env) serve(t testing.TB, ln net.Listener, u Upstream, server httpapi.Server, connContext func(context.Context, net.Conn) context.Context) {
	t.Helper()
	if err := u.Check(); err != nil {
		t.Fatal(err)
	}
	d := &httpapi.Server{
		Names: server.Names, Identify: server.Identify, Now: time.Now, Log: slog.New(slog.DiscardHandler),
		Decide: u.Decide(func(c access.Caller, v access.Verb, now time.Time) (access.Permit, error) {
			return access.DecidePlane(c, v, policy, now)
		}),
		Record: func(e audit.Entry) error {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.entries = append(h.entries, e)
			return nil
		},
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx, ln, connContext, u.Routes()...) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func grafana(t testing.TB, u *upstream) Upstream {
	return Upstream{Name: "grafana", URL: "http://grafana.monitoring.svc:3000", Access: AccessObserve, UserHeader: "X-WEBAUTH-USER", RoleHeader: "X-WEBAUTH-ROLE",
		Transport: u.transport(t), Log: slog.New(slog.DiscardHandler), Now: time.Now}
}

func prometheus(t testing.TB, u *upstream) Upstream {
	return Upstream{Name: "prometheus", URL: "http://prometheus.monitoring.svc:9090", Access: AccessObserve, Transport: u.transport(t), Log: slog.New(slog.DiscardHandler), Now: time.Now}
}

func attic(t testing.TB, u *upstream) Upstream {
	return Upstream{Name: "attic", URL: "http://attic.cache.svc:8080", Access: AccessIdentified, Transport: u.transport(t), Log: slog.New(slog.DiscardHandler), Now: time.Now}
}

// answer is a response of the server or of the upstream behind it.
type answer struct {
	Status int
	Code   problem.Code // of an error
	Header http.Header
	Body   string
}

// do sends one request with the header lines unchanged.
func (h *env) do(t testing.TB, method, uri, host string, body io.Reader, lines ...string) answer {
	t.Helper()
	c, err := net.Dial("tcp", h.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(long))
	text := method + " " + uri + " HTTP/1.1\r\nHost: " + host + "\r\n"
	for _, l := range lines {
		text += l + "\r\n"
	}
	if _, err := io.WriteString(c, text+"\r\n"); err != nil {
		t.Fatal(err)
	}
	var sending sync.WaitGroup
	defer sending.Wait()
	defer c.Close()
	if body != nil {
		sending.Go(func() { io.Copy(c, body) }) // the response may come before the end of the body
	}
	return read(t, bufio.NewReader(c))
}

func read(t testing.TB, r *bufio.Reader) answer {
	t.Helper()
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	a := answer{Status: res.StatusCode, Header: res.Header, Body: string(b)}
	var refused problem.Error
	if res.Header.Get("Content-Type") == "application/json" && json.Unmarshal(b, &refused) == nil {
		a.Code = refused.Code
	}
	return a
}

// echo is a WebSocket server that sends back each message.
func echo(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true}) // the tests check Origin
	if err != nil {
		return
	}
	defer c.CloseNow()
	for {
		kind, message, err := c.Read(r.Context())
		if err != nil || c.Write(r.Context(), kind, message) != nil {
			return
		}
	}
}

// openSocket opens the WebSocket of the service grafana over connections of dial. It returns after one message has gone both ways.
func openSocket(t *testing.T, dial func(ctx context.Context, network, address string) (net.Conn, error), header http.Header) *websocket.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	c, _, err := websocket.Dial(ctx, "ws://grafana/api/live/ws", &websocket.DialOptions{HTTPClient: &http.Client{Transport: &http.Transport{DialContext: dial}}, HTTPHeader: header})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.CloseNow() })
	// The client masks each message with four random bytes. Every byte at every position gives every byte on the wire, the
	// end of a line included.
	message := make([]byte, 4*256)
	for i := range message {
		message[i] = byte(i / 4)
	}
	if err := c.Write(ctx, websocket.MessageBinary, message); err != nil {
		t.Fatal(err)
	}
	if _, got, err := c.Read(ctx); err != nil || !bytes.Equal(got, message) {
		t.Fatalf("%q, %v", got, err)
	}
	return c
}
