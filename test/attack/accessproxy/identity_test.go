package accessproxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/proxytest"
)

// collector collects the first errors of many goroutines.
type collector struct {
	mu  sync.Mutex
	all []string
}

func (c *collector) add(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.all) < 20 {
		c.all = append(c.all, fmt.Sprintf(format, args...))
	}
}

func (c *collector) report(t *testing.T) {
	t.Helper()
	for _, s := range c.all {
		t.Error(s)
	}
}

// get sends a GET and returns the response and its body, for goroutines.
func get(ctx context.Context, hc *http.Client, path, session string) (*http.Response, string, error) {
	r, err := http.NewRequestWithContext(ctx, "GET", "https://"+proxytest.Name+path, nil)
	if err != nil {
		return nil, "", err
	}
	r.Header.Set("Authorization", "Bearer session."+session)
	res, err := hc.Do(r)
	if err != nil {
		return nil, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res, string(b), err
}

// PX-16. Streams of several sessions in one HTTP/2 connection each have the token of their own session, and those of two
// callers that of their own caller. A node that carries the connections of others is refused.
//
// Guard: readSession, findSignin and identify in internal/accessproxy; tokens are kept by the UID of a sign-in.
func TestPX16_SessionsAndCallersOfOneConnection(t *testing.T) {
	e := start(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Header.Get("Authorization")) })
	alice, bob := proxytest.Person("alice@example.com", "alice-laptop"), proxytest.Person("bob@example.com", "bob-laptop")
	owners := map[string]string{aliceAt + " default": e.alice.Name, bobAt + " default": e.bob.Name}
	for _, session := range []signin.Session{"one", "two"} {
		owners[aliceAt+" "+string(session)] = e.Signins.Login(alice, session, time.Hour).Name
		owners[bobAt+" "+string(session)] = e.Signins.Login(bob, session, time.Hour).Name
	}
	var wrong collector
	var wg sync.WaitGroup
	for _, at := range []string{aliceAt, bobAt} {
		hc := e.Client(t, at, true)
		var connections atomic.Int64
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
			if !i.Reused {
				connections.Add(1)
			}
		}})
		if _, _, err := get(ctx, hc, "/version", "one"); err != nil {
			t.Fatal(err)
		}
		places := make(chan struct{}, 200) // more streams than a connection has would open another one
		for i := range 600 {
			places <- struct{}{}
			session := []string{"default", "one", "two"}[i%3]
			path := "/api/v1/namespaces/shop/pods/p"
			if i%2 == 0 && session != "default" {
				path = "/s/" + session + path
			}
			wg.Go(func() {
				defer func() { <-places }()
				_, body, err := get(ctx, hc, path, session)
				if name := e.Signins.OwnerOfToken(strings.TrimPrefix(body, "Bearer ")); err != nil || name != owners[at+" "+session] {
					wrong.add("%s, session %s: the token of %q, want that of %q: %v", at, session, name, owners[at+" "+session], err)
				}
			})
		}
		wg.Wait()
		if n := connections.Load(); n != 1 {
			t.Errorf("%s: %d connections, want one", at, n)
		}
	}
	wrong.report(t)
	t.Run("real", attackSessions)
	t.Run("the sessions of another caller", func(t *testing.T) {
		e.Signins.Login(bob, "bobs", time.Hour)
		e.refused(t, "a session that only bob has", e.h2(t, "GET", "/api/v1/pods", "Authorization", "Bearer session.bobs"), http.StatusForbidden)
	})
	t.Run("a subnet router", func(t *testing.T) {
		router := proxytest.Person("alice@example.com", "alice-laptop", proxytest.ViewRule)
		router.Router = true
		e.Tailnet.Set(aliceAt, router)
		for _, k := range kinds {
			body := e.refused(t, k.name, e.raw(t, k.head+"Connection: "+k.connection+"\r\n\r\n"), http.StatusForbidden)
			if !strings.Contains(body, "routes") {
				t.Errorf("%s: %s, want a reason that names the routes", k.name, body)
			}
		}
		e.Tailnet.Set(aliceAt, proxytest.Person("alice@example.com", "alice-laptop", proxytest.ViewRule))
		if status, body := e.RawStatus(t, aliceAt, plainHead+"\r\n"); status != http.StatusOK { // control
			t.Errorf("without routes: status %d: %s", status, body)
		}
	})
}

// PX-13. Two callers interleave 10,000 requests and 100 upgrades over pooled connections. No identity, answer or audit
// entry crosses over.
//
// Guard: an exchange shares no state with another one; each token belongs to one sign-in; upgrades have connections of
// their own.
func TestPX13_NothingCrossesOver(t *testing.T) {
	e := start(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			proxytest.Switching(w, r)
			return
		}
		fmt.Fprintf(w, "%s %s", r.Header.Get("Authorization"), r.URL.Path)
	})
	const workers, each, upgrades = 8, 625, 50
	var wrong collector
	var wg sync.WaitGroup
	for at, owner := range map[string]signin.Signin{aliceAt: e.alice, bobAt: e.bob} {
		clients := []*http.Client{e.Client(t, at, true), e.Client(t, at, false)}
		for worker := range workers {
			wg.Go(func() {
				for i := range each {
					path := fmt.Sprintf("/api/v1/namespaces/%s/pods/p-%d-%d", owner.Name, worker, i)
					res, body, err := get(t.Context(), clients[i%2], path, "default")
					token, asked, _ := strings.Cut(strings.TrimPrefix(body, "Bearer "), " ")
					if err != nil {
						wrong.add("%s: %v", path, err)
						return
					}
					if name := e.Signins.OwnerOfToken(token); name != owner.Name || asked != path {
						wrong.add("%s: %s, the token of %q answers for %s", path, res.Status, name, asked)
					}
				}
			})
		}
		for i := range upgrades {
			wg.Go(func() {
				c, in := e.Raw(t, at, toService(wsHead)+"Connection: Upgrade\r\n\r\n")
				defer c.Close()
				text := fmt.Sprintf("hello %s %d\n", owner.Name, i)
				res, err := http.ReadResponse(in, nil)
				if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
					wrong.add("upgrade: %v", err)
					return
				}
				io.WriteString(c, text)
				if line, err := in.ReadString('\n'); line != strings.ToUpper(text) {
					wrong.add("upgrade: %q came back as %q, %v", text, line, err)
				}
			})
		}
	}
	wg.Wait()
	wrong.report(t)
	const all = 2 * (workers*each + upgrades)
	if n := e.API.Count(); n != all {
		t.Errorf("%d requests arrived, want %d", n, all)
	}
	attacktest.Eventually(t, attacktest.Soon, "all audit entries", func() bool { return len(e.Audit(0)) >= all })
	ids := map[string]bool{}
	for _, entry := range e.Audit(0) {
		owner := map[string]signin.Signin{"alice@example.com": e.alice, "bob@example.com": e.bob}[string(entry.Actor.Login)]
		if entry.Object != owner.Name || ids[entry.RequestID] {
			t.Fatalf("the entry of %s names the sign-in %s: %+v", entry.Actor.Login, entry.Object, entry)
		}
		if ns := entry.Args["namespace"]; ns != owner.Name && ns != "shop" {
			t.Fatalf("the entry of %s has the namespace %s", entry.Actor.Login, ns)
		}
		ids[entry.RequestID] = true
	}
	for _, got := range e.API.Arrived(0) {
		if !ids[got.Header.Get("Audit-Id")] {
			t.Fatalf("no audit entry has the id %q of %s", got.Header.Get("Audit-Id"), got.URI)
		}
	}
}

// hands are the ways in which a connection changes hands.
func hands() map[string]func(e *env) {
	return map[string]func(e *env){
		"retagged": func(e *env) {
			c := proxytest.Person("", "alice-laptop", proxytest.ViewRule)
			c.UserID, c.Tags = "", []access.Tag{"tag:ci"}
			e.Tailnet.Set(aliceAt, c)
		},
		"another owner": func(e *env) {
			e.Tailnet.Set(aliceAt, proxytest.Person("carol@example.com", "alice-laptop", proxytest.ViewRule))
		},
		"another device": func(e *env) {
			e.Tailnet.Set(aliceAt, proxytest.Person("alice@example.com", "new-laptop", proxytest.ViewRule))
		},
		"no grant": func(e *env) { e.Tailnet.Set(aliceAt, proxytest.Person("alice@example.com", "alice-laptop")) },
		"expired": func(e *env) {
			c := proxytest.Person("alice@example.com", "alice-laptop", proxytest.ViewRule)
			c.Expired = true
			e.Tailnet.Set(aliceAt, c)
		},
		"a router": func(e *env) {
			c := proxytest.Person("alice@example.com", "alice-laptop", proxytest.ViewRule)
			c.Router = true
			e.Tailnet.Set(aliceAt, c)
		},
		"removed": func(e *env) { e.Tailnet.Remove(aliceAt) },
	}
}

// watching answers a watch with one event and leaves it open; other requests with an empty object.
func watching(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if !r.URL.Query().Has("watch") {
		io.WriteString(w, "{}")
		return
	}
	io.WriteString(w, `{"type":"BOOKMARK","object":{}}`+"\n")
	http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

// A watch is an open watch of a client.
type watch struct {
	res   *http.Response
	lines *bufio.Scanner
}

// openWatch opens a watch and reads its first event.
func (e *env) openWatch(t *testing.T, hc *http.Client) *watch {
	t.Helper()
	res, err := hc.Do(proxytest.Request(t, "GET", "/api/v1/pods?watch=1", ""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	w := &watch{res, bufio.NewScanner(res.Body)}
	if !w.lines.Scan() || res.StatusCode != http.StatusOK {
		t.Fatalf("watch: %s, %q, %v", res.Status, w.lines.Text(), w.lines.Err())
	}
	return w
}

// ends waits for the end of the watch and returns what was left of it, and how long it took.
func (w *watch) ends(t *testing.T, what string) (rest string) {
	t.Helper()
	began := time.Now()
	done := make(chan string, 1)
	go func() {
		var b strings.Builder
		for w.lines.Scan() {
			b.WriteString(w.lines.Text() + "\n")
		}
		done <- b.String()
	}()
	select {
	case rest = <-done:
	case <-time.After(10 * time.Second):
		t.Errorf("%s: the watch is still open after %v", what, time.Since(began))
		return ""
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("%s: the watch was cut after %v, want 2 s at most", what, took)
	} else {
		t.Logf("%s: the watch was cut after %v", what, took.Round(time.Millisecond))
	}
	return rest
}

// PX-15. A connection changes hands while it is open. The next request on it is decided again, and never carried with the
// earlier permit; open streams are cut within 2 s.
//
// Guard: identify, watchTailnet and checkStreams in internal/accessproxy.
func TestPX15_ConnectionsThatChangeHands(t *testing.T) {
	t.Run("real", attackHands)
	for name, change := range hands() {
		t.Run(name, func(t *testing.T) {
			e := start(t, watching)
			var clients []*http.Client
			var watches []*watch
			for _, http2 := range []bool{false, true} {
				hc := e.Client(t, aliceAt, http2)
				clients = append(clients, hc)
				watches = append(watches, e.openWatch(t, hc))
				if res, body := proxytest.Do(t, hc, proxytest.Request(t, "GET", "/version", "")); res.StatusCode != http.StatusOK {
					t.Fatalf("before: %s: %s", res.Status, body)
				}
			}
			change(e)
			e.API.Quietly(t, "after", func() {
				for _, hc := range clients {
					res, err := hc.Do(proxytest.Request(t, "GET", "/version", ""))
					if err != nil {
						continue // the connection was closed
					}
					if res.Body.Close(); res.StatusCode != http.StatusForbidden {
						t.Errorf("after: %s, want 403", res.Status)
					}
				}
			})
			for i, w := range watches {
				if rest := w.ends(t, fmt.Sprintf("http2 %v", i == 1)); !strings.Contains(rest, `"type":"ERROR"`) || !strings.Contains(rest, `"code":403`) {
					t.Errorf("the watch ended with %q, want an ERROR event with 403", rest)
				}
			}
		})
		t.Run(name+" while the API server answers", func(t *testing.T) {
			var e *env
			var once sync.Once
			e = start(t, func(w http.ResponseWriter, r *http.Request) {
				once.Do(func() { change(e) })
				<-time.After(500 * time.Millisecond) // longer than the proxy waits to join changes of the tailnet
				watching(w, r)
			})
			res, body := proxytest.Do(t, e.Client(t, aliceAt, true), proxytest.Request(t, "GET", "/api/v1/pods?watch=1", ""))
			if res.StatusCode != http.StatusForbidden || strings.Contains(body, "BOOKMARK") {
				t.Errorf("the watch is answered by %s: %s, want 403 and no event", res.Status, body)
			}
		})
	}
}

// PX-03. While the proxy has no identity or no token for a request, nothing goes upstream: neither anonymously, nor with
// another sign-in's token. Afterwards the next request passes.
//
// Guard: the order of the steps in serve and forward in internal/accessproxy; tokens.get has no fallback.
func TestPX03_NoIdentityNoRequest(t *testing.T) {
	e := start(t, nil)
	ok := func(what string) {
		t.Helper()
		if status, body := e.RawStatus(t, aliceAt, plainHead+"Connection: close\r\n\r\n"); status != http.StatusOK {
			t.Fatalf("%s: status %d: %s", what, status, body)
		}
	}
	fail := func(f func() error) func() {
		return func() { e.OnDecide(func() (access.Permit, error) { return access.Permit{}, f() }) } // nil: a permit that permits nothing
	}
	for name, x := range map[string]struct {
		harm, mend func()
		status     int
	}{
		"the tailnet is silent":      {func() { e.Tailnet.SetDown(true) }, func() { e.Tailnet.SetDown(false) }, http.StatusServiceUnavailable},
		"the node has no name":       {func() { e.Tailnet.SetNames() }, func() { e.Tailnet.SetNames(proxytest.Name) }, http.StatusServiceUnavailable},
		"the policy fails":           {fail(func() error { return errors.New("policy " + mark) }), func() { e.OnDecide(nil) }, http.StatusInternalServerError},
		"the policy panics":          {fail(func() error { panic("policy " + mark) }), func() { e.OnDecide(nil) }, http.StatusInternalServerError},
		"a permit of nothing":        {fail(func() error { return nil }), func() { e.OnDecide(nil) }, http.StatusInternalServerError},
		"no token":                   {func() { e.failTokens(errors.New("no token: " + mark)) }, func() { e.failTokens(nil) }, http.StatusServiceUnavailable},
		"no admission policy":        {func() { e.failTokens(signin.ErrPolicyMissing) }, func() { e.failTokens(nil) }, http.StatusForbidden},
		"the account is gone":        {func() { e.failTokens(signin.ErrNotFound) }, func() { e.failTokens(nil) }, http.StatusForbidden},
		"another account":            {func() { e.failTokens(signin.ErrConflict) }, func() { e.failTokens(nil) }, http.StatusForbidden},
		"a panic at the token":       {func() { e.Signins.OnIssue(func(context.Context) error { panic(mark) }); e.newSignin() }, func() { e.failTokens(nil) }, http.StatusInternalServerError},
		"a sign-in that is not done": {func() { e.edit(func(s *signin.Signin) { s.Phase = signin.PhasePending }) }, func() { e.newSignin() }, http.StatusServiceUnavailable},
		"a sign-in that was refused": {func() { e.edit(func(s *signin.Signin) { s.Phase = signin.PhaseRefused }) }, func() { e.newSignin() }, http.StatusForbidden},
		"a sign-in that ends":        {func() { e.edit(func(s *signin.Signin) { s.Deleting = true }) }, func() { e.newSignin() }, http.StatusForbidden},
		"no sign-in":                 {func() { e.Signins.Logout(e.alice.Name) }, func() { e.newSignin() }, http.StatusForbidden},
		"no account in the status":   {func() { e.newSignin(); e.edit(func(s *signin.Signin) { s.ServiceAccountUID = "" }) }, func() { e.newSignin() }, http.StatusForbidden},
	} {
		ok("before: " + name)
		x.harm()
		e.API.Quietly(t, name, func() {
			for _, k := range kinds {
				if status, body := e.RawStatus(t, aliceAt, k.head+"Connection: "+k.connection+"\r\n\r\n"); status != x.status || strings.Contains(body, mark) {
					t.Errorf("%s, %s: status %d, want %d without the cause: %s", name, k.name, status, x.status, body)
				}
			}
		})
		x.mend()
		ok("after: " + name)
	}
}

// newSignin replaces alice's sign-in, so that the proxy has no token for it.
func (e *env) newSignin() {
	e.alice = e.Signins.Login(proxytest.Person("alice@example.com", "alice-laptop"), "", 2*time.Hour)
}

func (e *env) edit(change func(*signin.Signin)) { e.Signins.Edit(e.alice.Name, change) }

// failTokens makes requests for tokens fail with err, or succeed again, and replaces alice's sign-in.
func (e *env) failTokens(err error) {
	e.Signins.OnIssue(func(context.Context) error { return err })
	e.newSignin()
}
