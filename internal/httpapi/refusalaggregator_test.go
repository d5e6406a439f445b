package httpapi_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
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

// A recorder stores audit entries.
type recorder struct {
	mu      sync.Mutex
	entries []audit.Entry
}

func (b *recorder) write(e audit.Entry) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.entries = append(b.entries, e)
	return nil
}

// drain returns the entries since the last call, and the number of requests that they represent.
func (b *recorder) drain() (entries []audit.Entry, requests int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	entries, b.entries = b.entries, nil
	for _, e := range entries {
		n, err := strconv.Atoi(e.Args["count"])
		if err != nil {
			n = 1
		}
		requests += n
	}
	return entries, requests
}

// A server that is refused continuously has some separate entries and one aggregated entry. No
// request is missing, and requests of another caller or with another code are not included.
// Operations of people have one entry each. DSC-08, GO-05.
func TestRefusalsOfServersAreSummed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b recorder
		var caller access.Caller
		d := newTestServer(b.write)
		d.Identify = func(*http.Request) (access.Caller, error) { return caller, nil }
		d.Decide = func(c access.Caller, v access.Verb, now time.Time) (access.Permit, error) {
			return access.Decide(c, v, access.Policy{Members: []access.Tag{"tag:tailplane"}}, now)
		}
		h := d.Handler(exchange.Serve(func(_ context.Context, _ access.Permit, g gossip) (response, error) {
			return response{Role: g.text}, nil
		}))
		ask := func(node, tag, body string) {
			caller = access.Caller{Device: access.Device{ID: node, Name: "tka"}, Tags: []access.Tag{access.Tag(tag)}, Via: access.ViaTailnet}
			r := httptest.NewRequest(http.MethodPost, "/gossip/v1/exchange", strings.NewReader(body))
			r.Host = "tka"
			r.Header.Set("Content-Type", "application/json")
			h.ServeHTTP(httptest.NewRecorder(), r)
		}
		for range 500 {
			ask("n1", "tag:tailplane", "bad")
		}
		ask("n2", "tag:tailplane", "bad")
		ask("n1", "tag:ci", "bad")
		entries, requests := b.drain()
		switch {
		case len(entries) != 12:
			t.Errorf("len(entries) = %v, want 12", len(entries))
		case requests != 12:
			t.Errorf("requests = %v, want 12", requests)
		case entries[10].Actor.NodeID != "n2":
			t.Errorf("entries[10].Actor.NodeID = %q, want %q", entries[10].Actor.NodeID, "n2")
		case entries[11].Code != problem.NotAMember:
			t.Errorf("entries[11].Code = %q, want %q", entries[11].Code, problem.NotAMember)
		}
		time.Sleep(61 * time.Second)
		ask("n1", "tag:tailplane", "good")
		if entries, _ := b.drain(); len(entries) != 0 {
			t.Errorf("a visit that was served is recorded: %+v", entries)
		}
		ask("n1", "tag:tailplane", "bad")
		entries, requests = b.drain()
		if len(entries) != 2 || requests != 491 {
			t.Fatalf("%d entries of %d visits: %+v", len(entries), requests, entries)
		}
		for _, e := range entries {
			if e.Args["count"] != "" && (e.Args["count"] != "490" || e.Actor.NodeID != "n1" || e.Code != problem.BadRequest || e.Result != audit.Refused || e.RequestID == "" || e.Reason == "") {
				t.Errorf("the sum is %+v", e)
			}
		}
	})
}

// Refusals before a route is found are aggregated if only servers use the listener. Otherwise each
// has an entry.
func TestRefusalsBeforeTheRouteAreSummed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b recorder
		d := newTestServer(b.write)
		d.Identify = func(*http.Request) (access.Caller, error) {
			return access.Caller{Device: access.Device{ID: "n1", Name: "tka"}, Tags: []access.Tag{"tag:tailplane"}, Expired: true, Via: access.ViaTailnet}, nil
		}
		routine := exchange.Serve(func(_ context.Context, _ access.Permit, g gossip) (response, error) { return response{}, nil })
		people := read.Serve(func(context.Context, access.Permit, actionRequest) (response, error) { return response{}, nil })
		for _, tt := range []struct {
			routes []httpapi.Route
			want   int
		}{{[]httpapi.Route{routine}, 10}, {[]httpapi.Route{routine, people}, 30}} {
			h := d.Handler(tt.routes...)
			for range 30 {
				r := httptest.NewRequest(http.MethodPost, "/gossip/v1/exchange", strings.NewReader("hello"))
				r.Host = "tka"
				r.Header.Set("Content-Type", "application/json")
				h.ServeHTTP(httptest.NewRecorder(), r)
			}
			if entries, _ := b.drain(); len(entries) != tt.want || entries[0].Code != problem.NodeExpired {
				t.Errorf("%d routes: %d entries, want %d, the first %+v", len(tt.routes), len(entries), tt.want, entries[0])
			}
		}
	})
}

// Pending aggregated entries are written when the server stops, and every minute even without
// requests.
func TestAggregatesAreNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b recorder
		d := newTestServer(b.write)
		ln := newPipes()
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- d.Run(ctx, ln, nil, exchange.Serve(func(_ context.Context, _ access.Permit, g gossip) (response, error) { return response{}, nil }))
		}()
		client := &http.Client{Transport: &http.Transport{DialContext: ln.dial}}
		defer client.CloseIdleConnections()
		ask := func(n int) {
			for range n {
				res, err := client.Post("http://tka/gossip/v1/exchange", "application/json", strings.NewReader("bad"))
				if err != nil {
					t.Fatal(err)
				}
				res.Body.Close()
			}
		}
		ask(30)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if entries, requests := b.drain(); len(entries) != 11 || requests != 30 {
			t.Errorf("a minute later: %d entries of %d visits", len(entries), requests)
		}
		ask(30)
		stop()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if entries, requests := b.drain(); len(entries) != 11 || requests != 30 {
			t.Errorf("at the end: %d entries of %d visits", len(entries), requests)
		}
	})
}

// A connection that is too old is closed after a response, with each protocol. A node that may no
// longer connect then loses access. GO-06.
func TestOldConnectionsEnd(t *testing.T) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(proto, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ln := newPipes()
				dialled := 0
				dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
					dialled++
					return ln.dial(ctx, network, addr)
				}
				d := newTestServer(forget)
				d.HTTP2, d.Limits.Age = true, time.Minute
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() {
					ended <- d.Run(ctx, ln, nil, exchange.Serve(func(_ context.Context, _ access.Permit, g gossip) (response, error) { return response{}, nil }))
				}()
				tr := &http.Transport{DialContext: dial, Protocols: new(http.Protocols)}
				tr.Protocols.SetHTTP1(proto == "HTTP/1.1")
				tr.Protocols.SetUnencryptedHTTP2(proto == "HTTP/2.0")
				defer tr.CloseIdleConnections()
				for range 40 { // every ten seconds
					res, err := (&http.Client{Transport: tr}).Post("http://tka/gossip/v1/exchange", "application/json", strings.NewReader("x"))
					if err != nil {
						t.Fatal(err)
					}
					io.Copy(io.Discard, res.Body)
					res.Body.Close()
					if res.Proto != proto {
						t.Fatalf("answered by %s", res.Proto)
					}
					time.Sleep(10 * time.Second)
				}
				if dialled < 5 || dialled > 8 {
					t.Errorf("in 400 s it connected %d times", dialled)
				}
				tr.CloseIdleConnections()
				stop()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// The total number of connections is limited. DS-02.
func TestAllConnectionsAreBounded(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := newTestServer(forget)
	d.Limits.AllConnections = 3
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- d.Run(ctx, ln, nil, exchange.Serve(func(_ context.Context, _ access.Permit, g gossip) (response, error) { return response{}, nil }))
	}()
	served := func() (conn net.Conn, ok bool) {
		conn, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		conn.SetDeadline(time.Now().Add(time.Minute))
		io.WriteString(conn, "GET /nothing HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
		n, _ := conn.Read(make([]byte, 12))
		return conn, n == 12
	}
	var conns []net.Conn
	for i := range 5 {
		c, ok := served()
		defer c.Close()
		conns = append(conns, c)
		if ok != (i < 3) {
			t.Errorf("connection %d is served: %t", i+1, ok)
		}
	}
	conns[0].Close()
	for deadline := time.Now().Add(time.Minute); ; {
		c, ok := served()
		defer c.Close()
		if ok {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the place of one that has gone is not given to another")
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
