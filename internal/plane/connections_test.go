package plane_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/accessproxy/connections"
	"github.com/tailplane/tailplane/internal/plane"
)

// proxy returns an access proxy with one open stream of a login. A proxy in o.proxiesDown does not answer.
func (o *env) proxy(name, login string) plane.AccessProxy {
	s := connections.Stream{ID: "s1", Kind: "exec", Login: login, Tailnet: "example.com", Device: "laptop", Signin: "signin", Resource: "pods/exec", Since: time.Date(2026, 11, 22, 11, 0, 0, 0, time.UTC)}
	down := func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.proxiesDown[name]
	}
	return plane.AccessProxy{Name: name,
		List: func(_ context.Context, req connections.ListRequest) (connections.List, error) {
			out := connections.List{Cluster: strings.TrimSuffix(name, "-api.example.ts.net"), Streams: []connections.Stream{}}
			if down() {
				return out, errors.New("connection refused")
			}
			if (req.Login == "" || string(req.Login) == login) && (req.ID == "" || string(req.ID) == s.ID) {
				out.Streams = append(out.Streams, s)
			}
			return out, nil
		},
		Cut: func(_ context.Context, req connections.CutRequest) (connections.Cut, error) {
			if down() {
				return connections.Cut{}, errors.New("connection refused")
			}
			o.mu.Lock()
			defer o.mu.Unlock()
			o.cuts = append(o.cuts, name+" "+req.ID+" for "+req.For+": "+req.Reason)
			return connections.Cut{Stream: s}, nil
		}}
}

// PRX-18: the plane asks all proxies. A proxy that is down is shown as down, and never as one without streams.
func TestPRX18_AllProxies(t *testing.T) {
	o := newEnv(time.Now)
	list := func(who access.Caller) (all []plane.Connection, e envelope) {
		t.Helper()
		res, e := o.as(who).do(http.MethodGet, "/api/v1/connections", "")
		if err := json.Unmarshal(e.Data, &all); err != nil || res.Code != http.StatusOK {
			t.Fatalf("%d %s, %v", res.Code, res.Body, err)
		}
		return all, e
	}
	owners := func(all []plane.Connection) (logins []string) {
		for _, c := range all {
			logins = append(logins, c.Login)
		}
		return logins
	}
	for _, x := range []struct {
		who  access.Caller
		want []string
	}{{pat(), []string{"amy@acme.dev", "bob@example.com"}}, {alice(), []string{"amy@acme.dev", "bob@example.com"}}, {vic(), nil}, {person("bob@example.com", `{"role":"viewer","orgs":["acme"]}`), []string{"bob@example.com"}}} {
		all, _ := list(x.who)
		if diff := cmp.Diff(x.want, owners(all)); diff != "" {
			t.Errorf("%s sees (-want +got):\n%s", x.who.Login, diff)
		}
	}
	o.setDown("west-api.example.ts.net")
	all, e := list(pat())
	if diff := cmp.Diff([]string{"amy@acme.dev"}, owners(all)); diff != "" {
		t.Errorf("with one proxy down (-want +got):\n%s", diff)
	}
	if s := e.Meta.Sources; len(s) != 2 || s[1].Status != plane.StatusDown {
		t.Errorf("sources with one proxy down: %+v", s)
	}
	o.setDown("east-api.example.ts.net")
	if all, e := list(pat()); all != nil || e.Meta.Page != nil {
		t.Errorf("with all proxies down: %v, %+v; want an unknown list", all, e.Meta)
	}
}

// setDown makes an access proxy silent.
func (o *env) setDown(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.proxiesDown == nil {
		o.proxiesDown = map[string]bool{}
	}
	o.proxiesDown[name] = true
}

// PRX-18: the roles that may revoke may cut, and a viewer cuts its own streams only. A cut names the person at the proxy.
func TestPRX18_RolesThatCut(t *testing.T) {
	o := newEnv(time.Now)
	const of = "/api/v1/connections/west-api.example.ts.net/s1/cut"
	for _, x := range []struct {
		why    string
		who    access.Caller
		path   string
		body   string
		status int
	}{
		{"a viewer of all organisations", person("wes@example.com", `{"role":"viewer","orgs":["*"]}`), of, `{"reason": "x"}`, http.StatusForbidden},
		{"a viewer of one organisation", vic(), of, `{"reason": "x"}`, http.StatusNotFound},
		{"no such stream", alice(), strings.Replace(of, "s1", "s2", 1), `{"reason": "x"}`, http.StatusNotFound},
		{"no such proxy", alice(), strings.Replace(of, "west", "north", 1), `{"reason": "x"}`, http.StatusNotFound},
		{"no reason", alice(), of, `{"reason": " "}`, http.StatusUnprocessableEntity},
		{"an operator", alice(), of, `{"reason": "maintenance"}`, http.StatusOK},
		{"the person itself", person("bob@example.com", `{"role":"viewer","orgs":["acme"]}`), of, `{"reason": "mine"}`, http.StatusOK},
	} {
		if res, _ := o.as(x.who).do(http.MethodPost, x.path, x.body); res.Code != x.status {
			t.Errorf("%s: %d %s, want %d", x.why, res.Code, res.Body, x.status)
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if diff := cmp.Diff([]string{"west-api.example.ts.net s1 for alice@example.com: maintenance", "west-api.example.ts.net s1 for bob@example.com: mine"}, o.cuts); diff != "" {
		t.Errorf("cuts (-want +got):\n%s", diff)
	}
}
