package accessproxy

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/proxytest"
)

// streaming answers watches with an event, logs with a line, and upgrades by switching, and leaves them open.
func streaming(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Header.Get("Upgrade") != "":
		proxytest.Switching(w, r)
	case strings.HasSuffix(r.URL.Path, "/log"):
		w.Header().Set("Content-Type", "text/plain")
		io.WriteString(w, "a line\n")
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	default:
		watching(w, r)
	}
}

// openStreams opens one stream of each kind and returns a function that waits for their ends. PRX-06 has exec, attach and
// port-forward with a real node.
func (e *env) openStreams(t *testing.T) (end func(t *testing.T, began time.Time)) {
	t.Helper()
	type stream struct {
		kind string
		in   *bufio.Reader
	}
	var all []stream
	open := func(kind, head string, status int, first string) {
		c, in := e.Raw(t, aliceAt, head)
		res, err := http.ReadResponse(in, nil)
		if err != nil || res.StatusCode != status {
			t.Fatalf("%s: %v, %v", kind, res, err)
		}
		body := in
		if status == http.StatusOK {
			body = bufio.NewReader(res.Body)
		} else {
			io.WriteString(c, first)
		}
		if line, err := body.ReadString('\n'); err != nil {
			t.Fatalf("%s: %q, %v", kind, line, err)
		}
		all = append(all, stream{kind, body})
	}
	const auth = " HTTP/1.1\r\nHost: $HOST\r\nAuthorization: Bearer session.default\r\n"
	open("watch", "GET /api/v1/pods?watch=1"+auth+"\r\n", http.StatusOK, "")
	open("log", "GET /api/v1/namespaces/shop/pods/app/log?follow=true"+auth+"\r\n", http.StatusOK, "")
	open("websocket", toService(wsHead)+"Connection: Upgrade\r\n\r\n", http.StatusSwitchingProtocols, "hello\n")
	open("spdy", toService(spdyHead)+"Connection: Upgrade\r\n\r\n", http.StatusSwitchingProtocols, "hello\n")
	return func(t *testing.T, began time.Time) {
		t.Helper()
		for _, s := range all {
			rest, err := io.ReadAll(s.in)
			took := time.Since(began)
			t.Logf("%s: cut after %v with %.160q, %v", s.kind, took.Round(time.Millisecond), rest, err)
			if took > 2*time.Second {
				t.Errorf("%s: cut after %v, want 2 s at most", s.kind, took)
			}
			switch {
			case s.kind == "watch" && !(strings.Contains(string(rest), `"type":"ERROR"`) && strings.Contains(string(rest), `"code":403`)):
				t.Errorf("the watch ended with %q, want an ERROR event with 403", rest)
			case s.kind == "log" && err == nil:
				t.Errorf("the log ended with %q as if it were complete", rest)
			}
		}
	}
}

// PX-12. A sign-in's end, a logout and a removed grant cut all open streams within 2 s, and refuse new requests.
//
// Guard: streams.watch, checkStreams and findSignin in internal/accessproxy.
func TestPX12_StreamsEndWithTheSignin(t *testing.T) {
	for name, end := range map[string]func(e *env) time.Time{
		"logout": func(e *env) time.Time { e.Signins.Logout(e.alice.Name); return time.Now() },
		"the deadline": func(e *env) time.Time {
			at := time.Now().Add(1500 * time.Millisecond)
			e.edit(func(s *signin.Signin) { s.ValidUntil = at })
			<-time.After(time.Until(at))
			return at
		},
		"the grant goes": func(e *env) time.Time {
			e.Tailnet.Set(aliceAt, proxytest.Person("alice@example.com", "alice-laptop"))
			return time.Now()
		},
		"another sign-in of the same name": func(e *env) time.Time { e.newSignin(); return time.Now() },
		"refused by the operator": func(e *env) time.Time {
			e.edit(func(s *signin.Signin) { s.Phase = signin.PhaseRefused })
			return time.Now()
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := start(t, streaming)
			wait := e.openStreams(t)
			began := end(e)
			wait(t, began)
			if name == "another sign-in of the same name" {
				return
			}
			e.API.Quietly(t, "a new request", func() {
				for _, k := range kinds {
					if status, body := e.RawStatus(t, aliceAt, k.head+"Connection: "+k.connection+"\r\n\r\n"); status != http.StatusForbidden {
						t.Errorf("a new %s: status %d, want 403: %s", k.name, status, body)
					}
				}
			})
		})
	}
	t.Run("the watch of the sign-ins is dead", func(t *testing.T) { // only the proofs show the end, each 5 s
		e := start(t, streaming)
		wait := e.openStreams(t)
		e.Signins.Freeze(true)
		e.Signins.Logout(e.alice.Name)
		attacktest.Eventually(t, 15*time.Second, "the streams are cut", func() bool { return len(e.Proxy.Kinds()) == 0 })
		wait(t, time.Now())
		e.API.Quietly(t, "a new request", func() {
			if status, body := e.RawStatus(t, aliceAt, plainHead+"\r\n"); status != http.StatusForbidden {
				t.Errorf("a new request: status %d, want 403: %s", status, body)
			}
		})
	})
}

// forgeries are changes of a sign-in's status by an account with that right, or of fields that must not change.
var forgeries = map[string]func(s *signin.Signin){
	"another account":             func(s *signin.Signin) { s.ServiceAccount = "admin" },
	"another account's UID":       func(s *signin.Signin) { s.ServiceAccountUID = "sa-of-bob" },
	"a later end":                 func(s *signin.Signin) { s.ValidUntil = s.ValidUntil.Add(48 * time.Hour) },
	"another role":                func(s *signin.Signin) { s.Bound = access.Binds{{Role: "edit"}} },
	"one more role":               func(s *signin.Signin) { s.Bound = append(s.Bound[:1:1], access.Bind{Role: "edit"}) },
	"no role":                     func(s *signin.Signin) { s.Bound = nil },
	"the role in other places":    func(s *signin.Signin) { s.Bound = access.Binds{{Role: "view", Namespaces: []string{"kube-system"}}} },
	"another owner":               func(s *signin.Signin) { s.Owner.Login = "bob@example.com" },
	"another device":              func(s *signin.Signin) { s.Owner.DeviceID = "n-bob-laptop" },
	"another session":             func(s *signin.Signin) { s.Owner.Session = "deploy" },
	"a request of the far future": func(s *signin.Signin) { s.AskedAt = s.AskedAt.Add(48 * time.Hour); s.ValidUntil = s.End(0) },
}

// PX-20. A sign-in whose status names another account, a later end or a role that was not requested gives no token. The
// request is refused, also where the proxy has a token from before, open streams end, and the log says why.
//
// Guard: mismatch in internal/accessproxy and signin.TokenRules.Verify.
func TestPX20_ForgedStatus(t *testing.T) {
	for name, forge := range forgeries {
		t.Run(name, func(t *testing.T) {
			for _, warm := range []bool{false, true} {
				e := start(t, streaming)
				var wait func(*testing.T, time.Time)
				if warm {
					wait = e.openStreams(t)
				}
				issued := e.Signins.Issued(e.alice.Name)
				e.edit(forge)
				e.API.Quietly(t, name, func() {
					for _, k := range kinds {
						if status, body := e.RawStatus(t, aliceAt, k.head+"Connection: "+k.connection+"\r\n\r\n"); status != http.StatusForbidden {
							t.Errorf("a token before: %v, %s: status %d, want 403: %s", warm, k.name, status, body)
						}
					}
				})
				if n := e.Signins.Issued(e.alice.Name) - issued; n != 0 {
					t.Errorf("a token before: %v: %d tokens were made", warm, n)
				}
				if name == "another account's UID" {
					continue // the account could have been recreated, so its streams and the log are those of a sign-in that has ended
				}
				if log := e.Log.String(); !strings.Contains(log, "level=ERROR") || !strings.Contains(log, e.alice.Name) {
					t.Errorf("a token before: %v: the log has no error that names the sign-in:\n%s", warm, log)
				}
				if warm {
					attacktest.Eventually(t, 15*time.Second, "the streams are cut", func() bool { return len(e.Proxy.Kinds()) == 0 })
					wait(t, time.Now())
				}
			}
		})
	}
	t.Run("real", attackForgedStatus)
}
