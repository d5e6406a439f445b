package audit

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// oddWords returns hostile texts that an attacker could send instead of a name.
func oddWords() []string {
	return []string{
		"line\r\nfeed", "line\nfeed\n{\"seq\":1,\"log\":\"AAAAAAAAAAAAAAAA\"}", "\x1b[2J\x1b]0;owned\x07", "\u202egnp.exe\u2066", "a\u2028b\u2029c\u0085d", "zero\u200bwidth\ufeff", "tag\U000e0041", "del\x7f", "\x00nul\x00",
		`"},"kind":"header","x":{"`, `\u000a\n`, "<script>alert(1)</script>", "$(touch pwned) `touch pwned`", "%0a%1b", "'; DROP TABLE audit; --", strings.Repeat("\x1b", 300),
	}
}

// AU-02. One request makes exactly one line in the audit log, whatever text an attacker sends in any place. Hostile
// text is escaped, so that no reader misinterprets it, and it decodes to the original.
//
// Guard: sanitize.JSON (called by audit's encoding), httpapi.clip; slog's JSON for logs; output.Escape in tka.
func TestAU02_OneEventIsOneLine(t *testing.T) {
	s := attacktest.Start(t)
	alice := s.Alice(t)
	log := attacktest.FileSize(t, s.Access.Log)
	host := "tka." + s.Net.Suffix()
	check := func(what string, m attacktest.LogMark, want func(e audit.Entry) bool) {
		t.Helper()
		if entries := m.Entries(t); len(entries) != 1 || !want(entries[0]) {
			t.Errorf("%s: recorded %+v", what, entries)
		}
		text, err := os.ReadFile(s.AuditFile())
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range string(text[m.Product:]) {
			if r != '\n' && !unicode.IsPrint(r) {
				t.Errorf("%s: the audit log contains %U", what, r)
			}
		}
	}
	clipped := func(word string) string { return word[:min(len(word), 200)] }
	for _, word := range oddWords() {
		if path := "/" + word; !strings.ContainsAny(word, "/") {
			m := s.Mark(t)
			a := s.Ask(t, alice, "GET", "/"+url.PathEscape(word), "")
			if a.Code() != problem.NotFound {
				t.Errorf("path %q: %v", word, a)
			}
			check("path "+fmt.Sprintf("%q", word), m, func(e audit.Entry) bool { return e.Args["path"] == clipped(path) && e.RequestID == a.Problem.AuditID })
		}
		body, err := json.Marshal(map[string]any{"role": word})
		if err != nil {
			t.Fatal(err)
		}
		m := s.Mark(t)
		a := s.Ask(t, alice, "POST", attacktest.API+"/login", string(body))
		if a.Code() != problem.RoleNotGranted && a.Code() != problem.BadRequest {
			t.Errorf("role %q: %v", word, a)
		}
		check("role "+fmt.Sprintf("%q", word), m, func(e audit.Entry) bool {
			role, there := e.Args["role"]
			return e.Result == audit.Refused && (!there || role == word || strings.HasPrefix(word, role) && len(role) >= 64)
		})
		if strings.ContainsRune(word, 0) {
			continue // a command argument cannot contain this
		}
		mach := s.NewMachine(t, alice)
		if r := mach.Exec(3, "tka", "login", "--role", word); !strings.Contains(r.Stderr, "error: ") {
			t.Errorf("tka login --role %q: %s", word, r.Stderr)
		}
	}
	// Bytes that no normal client sends in a header.
	for _, header := range []string{"User-Agent: \x1b[2J\u202e{\"seq\":1}", "User-Agent: " + strings.Repeat("\x1b", 4000), "X-Request-Id: 01\u2028AUDIT", "Referer: \x85\xff"} {
		m := s.Mark(t)
		w := s.Dial(t, alice)
		w.Send("GET /au02 HTTP/1.1\r\nHost: " + host + "\r\n" + header + "\r\n\r\n")
		if _, err := w.Receive(); err != nil {
			t.Fatal(err)
		}
		if n := len(m.Entries(t)); n > 1 { // refused before the server parses it as a request
			t.Errorf("%.40q: %d entries", header, n)
		}
	}
	m := s.Mark(t)
	s.Ask(t, alice, "GET", "/plain", "") // control
	check("a plain path", m, func(e audit.Entry) bool { return e.Args["path"] == "/plain" })

	// The logs are JSON lines too.
	lines := 0
	attacktest.ReadSince(t, s.Access.Log, log, func(line []byte) {
		lines++
		var said map[string]any
		if err := json.Unmarshal(line, &said); err != nil {
			t.Errorf("the log: %q: %v", line, err)
		}
		for _, r := range string(line) {
			if !unicode.IsPrint(r) {
				t.Errorf("the log contains %U: %.300q", r, line)
			}
		}
	})
	key := ""
	for line := range strings.Lines(s.Access.Output()) {
		if _, after, ok := strings.Cut(line, `"the audit log is open","key":"`); ok {
			key, _, _ = strings.Cut(after, `"`)
		}
	}
	attacktest.Eventually(t, attacktest.Long, "the record is what was written", func() bool { // the server may be writing a line
		r, err := s.NewMachine(t, alice).Run(t.Context(), "tka", "audit", "verify", "--key", key, s.AuditFile())
		return err == nil && r.Exit == 0
	})
}

// An auditedRequest is one request on its own connection, together with the expected audit log entry.
type auditedRequest struct {
	p    *testenv.Person
	raw  string
	want audit.Entry // its Args are a subset of the expected arguments
	gone bool        // the client does not wait for the answer
	conn net.Conn
}

// AU-03. Each request leaves one audit log entry, however it ends and whatever runs at the same time. This includes
// refused requests, requests whose client disconnected, and requests whose handler panicked. No entry contains data
// of another request.
//
// Guard: httpapi.(*handler).ServeHTTP and httpapi.(*request).processSafely: requests share no field. No operation upgrades or streams
// yet, so an upgrade request is handled as a plain request.
func TestAU03_OneEntryAVisit(t *testing.T) {
	s := attacktest.Start(t)
	host := "tka." + s.Net.Suffix()
	people := []*testenv.Person{s.Alice(t), s.Bob(t)}
	for i := range 3 {
		people = append(people, s.Person(t, fmt.Sprintf("au03-%d", i), []string{"alice@example.com", "bob@example.com", "ci@example.com"}[i]))
	}
	logins := map[*testenv.Person]string{people[0]: "alice@example.com", people[1]: "bob@example.com", people[2]: "alice@example.com", people[3]: "bob@example.com", people[4]: "ci@example.com"}

	t.Run("a thousand at once", func(t *testing.T) {
		const n = 1000
		visitors := make([]*auditedRequest, n)
		for i := range visitors {
			p := people[i%len(people)]
			v := &auditedRequest{p: p}
			id := fmt.Sprintf("au03-%04d-%s", i, p.Node.Hostname)
			switch kind := i / len(people) % 4; kind {
			case 0, 1: // unknown path; every second client does not wait
				v.raw = "GET /" + id + " HTTP/1.1\r\nHost: " + host + "\r\nUser-Agent: " + id + "\r\n\r\n"
				v.want = audit.Entry{Verb: "http.unknown", Code: problem.NotFound, Args: map[string]string{"path": "/" + id}}
				v.gone = kind == 1
			case 2: // a role that does not exist
				body := fmt.Sprintf(`{"role":%q}`, id)
				v.raw = fmt.Sprintf("POST %s/login HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", attacktest.API, host, len(body), body)
				v.want = audit.Entry{Verb: access.SigninLogin}
				if logins[p] == "alice@example.com" { // the server reads no body of a caller without any grant
					v.want.Args = map[string]string{"role": id}
				}
			case 3: // an upgrade to an unknown protocol
				v.raw = "GET /" + id + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
				v.want = audit.Entry{Verb: "http.unknown", Code: problem.NotFound, Args: map[string]string{"path": "/" + id}}
			}
			visitors[i] = v
		}
		// The test opens the connections first, a few at a time, each with a first request, because the server limits
		// how long it waits for that. Then all of them send requests at once.
		before := s.Mark(t)
		var wg sync.WaitGroup
		few := make(chan struct{}, 24)
		failed := make(chan error, n)
		for _, v := range visitors {
			wg.Go(func() {
				few <- struct{}{}
				defer func() { <-few }()
				err := v.connect(t.Context(), s, host)
				if err == nil {
					first := &auditedRequest{conn: v.conn, raw: "GET /first HTTP/1.1\r\nHost: " + host + "\r\n\r\n"}
					err = first.visit()
				}
				if err != nil {
					failed <- err
				}
			})
		}
		wg.Wait()
		defer func() {
			for _, v := range visitors {
				if v.conn != nil {
					v.conn.Close()
				}
			}
		}()
		if len(failed) > 0 {
			t.Fatal(<-failed)
		}
		settled := func(n int) func() bool { return func() bool { return len(before.Entries(t)) == n } }
		attacktest.Eventually(t, attacktest.Long, "the first visits are recorded", settled(n))
		m := s.Mark(t)
		began := time.Now()
		for _, v := range visitors {
			wg.Go(func() {
				if err := v.visit(); err != nil {
					failed <- err
				}
			})
		}
		wg.Wait()
		for len(failed) > 0 {
			t.Error(<-failed)
		}
		attacktest.Eventually(t, attacktest.Long, "all visits are recorded", func() bool { return len(m.Entries(t)) >= n })
		t.Logf("%d visits in %v", n, time.Since(began).Round(time.Millisecond))
		attacktest.Always(t, time.Second, "each is recorded once", func() bool { return len(m.Entries(t)) == n })
		entries := map[string][]audit.Entry{}
		ids := map[string]bool{}
		for _, e := range m.Entries(t) {
			of := e.Args["path"] + e.Args["role"]
			entries[of] = append(entries[of], e)
			if ids[e.RequestID] {
				t.Errorf("the id %s is there twice", e.RequestID)
			}
			ids[e.RequestID] = true
		}
		for _, v := range visitors {
			of := v.want.Args["path"] + v.want.Args["role"]
			got := entries[of]
			if of == "" {
				continue // counted below
			}
			if len(got) != 1 {
				t.Errorf("%s: %d entries", of, len(got))
				continue
			}
			e := got[0]
			name, _, _ := strings.Cut(e.Actor.Node, ".")
			switch {
			case e.Verb != v.want.Verb:
				t.Errorf("e.Verb = %q, want %q; %s", e.Verb, v.want.Verb, of)
			case v.want.Code != "" && e.Code != v.want.Code:
				t.Errorf(`v.want.Code != "" && e.Code != v.want.Code; %s, %+v`, of, e)
			case e.Result != audit.Refused:
				t.Errorf("e.Result = %q, want %q; %s", e.Result, audit.Refused, of)
			case name != v.p.Node.Hostname:
				t.Errorf("name = %q, want %q; %s", name, v.p.Node.Hostname, of)
			case e.Actor.Login != logins[v.p]:
				t.Errorf("e.Actor.Login = %q, want %q; %s", e.Actor.Login, logins[v.p], of)
			}
		}
		for _, e := range entries[""] {
			switch {
			case e.Verb != access.SigninLogin:
				t.Errorf("e.Verb = %q, want %q", e.Verb, access.SigninLogin)
			case e.Code != problem.NoCapability:
				t.Errorf("e.Code = %q, want %q", e.Code, problem.NoCapability)
			case e.Actor.Login == "alice@example.com":
				t.Errorf("e.Actor.Login = %q", e.Actor.Login)
			}
		}
	})
	t.Run("gone while it waits", func(t *testing.T) {
		p := people[2]
		if err := s.Operator.Stop(attacktest.Long); err != nil { // so that there is something to wait for
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Logout(t, p) })
		t.Cleanup(func() { s.RestartOperator(t) })
		if _, err := signin.Login.Call(t.Context(), s.APIClient(p), signin.LoginRequest{}); err != nil {
			t.Fatal(err)
		}
		m := s.Mark(t)
		const n, waiting = 4, `tailplane_requests_in_flight{listener="tailnet"}`
		var gone []net.Conn
		for range n {
			v := &auditedRequest{p: p}
			if err := v.connect(t.Context(), s, host); err != nil {
				t.Fatal(err)
			}
			defer v.conn.Close()
			if _, err := io.WriteString(v.conn, "GET "+attacktest.API+"/kubeconfig?wait=30s HTTP/1.1\r\nHost: "+host+"\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			gone = append(gone, v.conn)
		}
		attacktest.Eventually(t, attacktest.Long, "all of them wait", func() bool { return s.Samples(t, s.Access)[waiting] == n })
		if e := m.Entries(t); len(e) > 0 {
			t.Errorf("recorded before the end: %+v", e)
		}
		for _, conn := range gone {
			conn.Close()
		}
		attacktest.Eventually(t, attacktest.Long, "each is recorded", func() bool { return len(m.Entries(t)) >= n })
		attacktest.Always(t, time.Second, "once", func() bool { return len(m.Entries(t)) == n })
		for _, e := range m.Entries(t) {
			switch {
			case e.Verb != access.SigninKubeconfig:
				t.Errorf("e.Verb = %q, want %q", e.Verb, access.SigninKubeconfig)
			case e.Result == audit.Done:
				t.Errorf("e.Result = %q", e.Result)
			case e.Actor.Login != logins[p]:
				t.Errorf("e.Actor.Login = %q, want %q", e.Actor.Login, logins[p])
			}
		}
	})
	// No request makes a handler of the product panic. The test therefore runs the HTTP server with handlers that
	// panic.
	t.Run("a handler that panics", func(t *testing.T) {
		caller := access.Caller{Login: "alice@example.com", Device: access.Device{ID: "n1", Name: "desk"}, Via: access.ViaTailnet,
			Rules: []json.RawMessage{json.RawMessage(`{"role": "view", "period": "1h"}`)}}
		at := attacktest.NewIdentityServer([]string{"127.0.0.1"}, func(*http.Request) (access.Caller, error) { return caller, nil })
		for _, with := range []any{"a word", errors.New("an error"), http.ErrAbortHandler, nil, (*auditedRequest)(nil)} {
			op := httpapi.Op[struct{}, attacktest.Whoami]{Pattern: "GET /panic", Verb: access.SigninRead}
			srv := httptest.NewServer(at.Handler(at.Route, op.Serve(func(context.Context, access.Permit, struct{}) (attacktest.Whoami, error) { panic(with) })))
			c := httpapi.Client{HTTP: srv.Client(), Base: srv.URL}
			_, err := op.Call(t.Context(), c, struct{}{})
			e, _ := at.Entries()
			switch {
			case problem.CodeOf(err) != problem.Internal:
				t.Errorf("panic: problem.CodeOf(err) != problem.Internal; with = %v, %v, %+v", with, err, e)
			case len(e) != 1:
				t.Errorf("panic: len(e) = %v, want 1; with = %v", len(e), with)
			case e[0].Result != audit.Failed:
				t.Errorf("panic: e[0].Result = %q, want %q; with = %v", e[0].Result, audit.Failed, with)
			case strings.Contains(fmt.Sprint(err, e), "goroutine"):
				t.Errorf("panic: fmt.Sprint(err, e) = %q contains %q; with = %v", fmt.Sprint(err, e), "goroutine", with)
			}
			if _, err := at.Op.Call(t.Context(), c, struct{}{}); err != nil { // control, after the panic
				t.Errorf("after panic(%v): %v", with, err)
			}
			if e, _ := at.Entries(); len(e) != 1 || e[0].Result != audit.Done {
				t.Errorf("after panic(%v): recorded %+v", with, e)
			}
			srv.Close()
		}
	})
}

// connect connects to a server by its full name.
func (v *auditedRequest) connect(ctx context.Context, s *attacktest.Env, name string) error {
	ctx, cancel := context.WithTimeout(ctx, attacktest.Long)
	defer cancel()
	raw, err := v.p.Node.Dial(ctx, "tcp", name+":443")
	if err != nil {
		return err
	}
	conn := tls.Client(raw, &tls.Config{RootCAs: s.Roots, ServerName: name})
	v.conn = conn
	return conn.HandshakeContext(ctx)
}

// visit sends the request, and reads the answer or disconnects.
func (v *auditedRequest) visit() error {
	if err := v.conn.SetDeadline(time.Now().Add(attacktest.Long)); err != nil {
		return err
	}
	if _, err := io.WriteString(v.conn, v.raw); err != nil {
		return err
	}
	if v.gone {
		return v.conn.Close()
	}
	res, err := http.ReadResponse(bufio.NewReader(v.conn), nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return err
}
