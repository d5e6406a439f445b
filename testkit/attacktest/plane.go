package attacktest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"testing"

	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/testkit/testenv"
)

const PlaneAccount = "system:serviceaccount:" + testenv.SystemNamespace + ":tailplane-plane"

// PlaneEnv is a plane process that runs in addition to the shared system.
type PlaneEnv struct {
	*Env
	Issuer  *testenv.Issuer
	Unnamed error // reason why this machine cannot expose a service

	Mu    sync.Mutex
	Asked []*http.Request // requests that the exposed service received
}

// PlaneGrant returns a grant of the plane's capability.
func PlaneGrant(src, rules string) string {
	return fmt.Sprintf(`{"src": [%q], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/plane": [%s]}}`, src, rules)
}

const (
	EverywhereRule = `{"role": "operator", "orgs": ["*"]}`
	ViewerRule     = `{"role": "viewer", "orgs": ["*"]}`
)

// Took returns the requests that the exposed service received since the last call.
func (o *PlaneEnv) Took() []*http.Request {
	o.Mu.Lock()
	defer o.Mu.Unlock()
	asked := o.Asked
	o.Asked = nil
	return asked
}

// Visitor returns a person whose device reaches the plane.
func (o *PlaneEnv) Visitor(t *testing.T, host, login string, tags ...string) *testenv.Person {
	t.Helper()
	p := o.Person(t, host, login, tags...)
	o.WaitPeer(t, p, "dashboard")
	return p
}

// PlaneReply is a response of the plane.
type PlaneReply struct {
	Status int
	Header http.Header
	Body   string

	Data json.RawMessage
	Meta struct{ Page struct{ Total *int } }
	Err  struct{ Code problem.Code } `json:"error"`
}

// Request sends a request to the plane as p's device.
func (o *PlaneEnv) Request(t *testing.T, p *testenv.Person, method, path, body string, headers ...string) PlaneReply {
	t.Helper()
	req := o.NewRequest(t, method, path, body, headers...)
	at, err := url.Parse(o.Dashboard())
	if err != nil {
		t.Fatal(err)
	}
	if req.Host == req.URL.Host {
		req.Host = at.Host
	}
	req.URL.Host = at.Host
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i] == "Content-Type" { // replaces the default value
			req.Header.Set(headers[i], headers[i+1])
		}
	}
	a := Do(t, o.HTTPClient(p), req)
	r := PlaneReply{Status: a.Status, Header: a.Header, Body: a.Body}
	_ = json.Unmarshal([]byte(a.Body), &r) // a page is not JSON
	return r
}

// Allowed waits until the plane applies the current policy to p.
func (o *PlaneEnv) Allowed(t *testing.T, p *testenv.Person, want bool) {
	t.Helper()
	Eventually(t, Long, "the plane uses the current policy", func() bool {
		return (o.Request(t, p, "GET", "/api/v1/me", "").Status == http.StatusOK) == want
	})
}

// RecordedBy returns the plane's audit entries about a login, newest first.
func (o *PlaneEnv) RecordedBy(t *testing.T, login string) (out []audit.Entry) {
	t.Helper()
	if _, err := (plane.AuditLog{Path: o.PlaneAuditFile()}).ReadNewest(t.Context(), func(e plane.AuditEntry) bool {
		if e.Actor.Login == login {
			out = append(out, e.Entry)
		}
		return true
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

// Untouched fails if the plane has sent a write to the API server.
func (o *PlaneEnv) Untouched(t *testing.T, m LogMark, what string) {
	t.Helper()
	if wrote := m.Writes(t, PlaneAccount); len(wrote) > 0 {
		t.Errorf("%s: requests to the API server: %v", what, wrote)
	}
}
