// Package accessproxy attacks the access proxy. Most rows use a proxy in this process in front of a recording API
// server, because they assert on the bytes that arrive there. The rows about identity and rights use the real program,
// a real tailnet and a real API server.
package accessproxy

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/proxytest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// Addresses of the devices.
const (
	aliceAt = "127.0.0.2"
	bobAt   = "127.0.0.3"
)

// Heads of requests without their last line.
const (
	plainHead = "GET /api/v1/namespaces/shop/pods HTTP/1.1\r\nHost: $HOST\r\nAuthorization: Bearer session.default\r\n"
	wsHead    = "GET /api/v1/namespaces/shop/pods/app/exec?command=id HTTP/1.1\r\nHost: $HOST\r\nAuthorization: Bearer session.default\r\nUpgrade: websocket\r\n" +
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n"
	spdyHead = "POST /api/v1/namespaces/shop/pods/app/exec?command=id HTTP/1.1\r\nHost: $HOST\r\nAuthorization: Bearer session.default\r\nUpgrade: SPDY/3.1\r\n" +
		"X-Stream-Protocol-Version: v4.channel.k8s.io\r\nContent-Length: 0\r\n"
)

// toService returns the head of an upgrade to a service of the cluster, whose bytes the proxy does not read. The bytes of
// wsHead and spdyHead must be frames.
func toService(head string) string {
	return strings.Replace(head, "pods/app/exec?command=id", "services/app/proxy/", 1)
}

// kinds are the heads of the three kinds of requests, with their connection options.
var kinds = []struct {
	name, head, connection string
	status                 int // with an API server that switches protocols
}{
	{"plain", plainHead, "", http.StatusOK},
	{"websocket", wsHead, "Upgrade", http.StatusSwitchingProtocols},
	{"spdy", spdyHead, "Upgrade", http.StatusSwitchingProtocols},
}

// An env is a proxy before a recording API server. Alice and bob are signed in.
type env struct {
	*proxytest.Front
	alice, bob signin.Signin // default sessions
}

func start(t *testing.T, serve http.HandlerFunc) *env {
	t.Helper()
	if serve == nil {
		serve = proxytest.Switching
	}
	e := &env{Front: proxytest.Start(t, proxytest.StartAPI(t, serve))}
	e.alice = e.Signins.Login(proxytest.Person("alice@example.com", "alice-laptop"), "", 2*time.Hour)
	e.bob = e.Signins.Login(proxytest.Person("bob@example.com", "bob-laptop"), "", 2*time.Hour)
	return e
}

// mark is a text that no request to the API server may contain. Tests put it into everything that must stay behind.
const mark = "canary-of-the-client"

var auditID = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// isFrom checks that a request carries the token of a sign-in as its only credential, one audit id, and no claim.
func (e *env) isFrom(t *testing.T, what string, got proxytest.Received, owner signin.Signin) {
	t.Helper()
	if name := e.Signins.OwnerOfToken(got.Token()); name != owner.Name {
		t.Errorf("%s: arrived with the credential %q of %q, want one of %q", what, got.Header["Authorization"], name, owner.Name)
	}
	ids := 0
	for name, values := range got.Header {
		plain := strings.ReplaceAll(strings.ToLower(name), "_", "-")
		if plain == "audit-id" {
			ids += len(values)
		}
		claims := slices.ContainsFunc([]string{"x-remote-", "tailscale-", "x-forwarded-", "proxy-", "tailplane-"}, func(p string) bool { return strings.HasPrefix(plain, p) })
		claims = claims || slices.Contains([]string{"cookie", "forwarded", "x-real-ip"}, plain)
		if claims || plain == "authorization" && name != "Authorization" {
			t.Errorf("%s: arrived with %s: %q", what, name, values)
		}
		if strings.Contains(strings.Join(values, " "), mark) && !strings.HasPrefix(plain, "impersonate-") {
			t.Errorf("%s: arrived with %s: %q", what, name, values)
		}
	}
	if id := got.Header.Get("Audit-Id"); ids != 1 || !auditID.MatchString(id) {
		t.Errorf("%s: arrived with %d audit ids, the first is %q", what, ids, id)
	}
	if len(got.Trailer) > 0 {
		t.Errorf("%s: arrived with the trailers %v", what, got.Trailer)
	}
}

// refused sends a request that the proxy itself must refuse. Nothing goes upstream, the status is one of statuses, and
// there is one audit entry with the audit id in the body.
func (e *env) refused(t *testing.T, what string, send func() (int, string), statuses ...int) (body string) {
	t.Helper()
	e.API.Quietly(t, what, func() {
		var status int
		status, body = send()
		if !slices.Contains(statuses, status) {
			t.Errorf("%s: status %d, want one of %d: %.300s", what, status, statuses, body)
		}
	})
	var results []audit.Result
	if !attacktest.Within(attacktest.Soon, func() bool {
		results = nil
		for _, entry := range e.Audit(0) {
			if strings.Contains(body, entry.RequestID) {
				results = append(results, entry.Result)
			}
		}
		return len(results) > 0
	}) || !slices.Equal(results, []audit.Result{audit.Refused}) {
		t.Errorf("%s: audit entries %q, want one that is refused: %.300s", what, results, body)
	}
	if strings.Contains(body, "eyJ") {
		t.Errorf("%s: the body has a token: %s", what, body)
	}
	return body
}

// unparsed sends bytes that are no valid request. The proxy answers 400 or closes the connection, and nothing goes
// upstream.
func (e *env) unparsed(t *testing.T, what, text string) {
	t.Helper()
	e.API.Quietly(t, what, func() {
		if status, body := e.RawStatus(t, aliceAt, text); status != 0 && status != http.StatusBadRequest {
			t.Errorf("%s: status %d, want 400 or a closed connection: %s", what, status, body)
		}
	})
}

// raw returns a function for refused that sends bytes.
func (e *env) raw(t *testing.T, text string) func() (int, string) {
	return func() (int, string) { return e.RawStatus(t, aliceAt, text) }
}

// h2 returns a function for refused that sends a request over HTTP/2.
func (e *env) h2(t *testing.T, method, path string, pairs ...string) func() (int, string) {
	return func() (int, string) {
		res, body := proxytest.Do(t, e.Client(t, aliceAt, true), proxytest.Request(t, method, path, "", pairs...))
		return res.StatusCode, body
	}
}

// entryOf waits for the audit entry with an id.
func (e *env) entryOf(t *testing.T, id string) (entry audit.Entry) {
	t.Helper()
	attacktest.Eventually(t, attacktest.Soon, "the audit entry "+id, func() bool {
		all := e.Audit(0)
		i := slices.IndexFunc(all, func(a audit.Entry) bool { return a.RequestID == id })
		if i >= 0 {
			entry = all[i]
		}
		return i >= 0
	})
	return entry
}
