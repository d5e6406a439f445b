package signin_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/util/secret"
)

var update = flag.Bool("update", false, "write the role matrix into testdata")

// A memoryStore is a store in memory whose sign-ins are ready at once. It counts the calls that a real
// store would send to the API server.
type memoryStore struct {
	mu      sync.Mutex
	signins map[string]signin.Signin
	stale   map[string]signin.Signin // in the cache only
	calls   int
	next    int
	down    error
}

func newMemoryStore(have ...signin.Signin) *memoryStore {
	m := &memoryStore{signins: map[string]signin.Signin{}}
	for _, s := range have {
		m.signins[s.Name] = s
	}
	return m
}

func (m *memoryStore) call(f func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls++
	if m.down != nil {
		return m.down
	}
	return f()
}
func (m *memoryStore) Get(_ context.Context, name string) (s signin.Signin, err error) {
	err = m.call(func() error {
		var there bool
		if s, there = m.signins[name]; !there {
			return signin.ErrNotFound
		}
		return nil
	})
	return s, err
}
func (m *memoryStore) GetCached(name string) (signin.Signin, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s, there := m.stale[name]; there {
		return s, true
	}
	s, there := m.signins[name]
	return s, there
}
func (m *memoryStore) ListCached(login string) (all []signin.Signin) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.signins {
		if s.Owner.Login == login {
			all = append(all, s)
		}
	}
	return all
}
func (m *memoryStore) Create(_ context.Context, s signin.Signin) (signin.Signin, error) {
	return s, m.call(func() error {
		if _, there := m.signins[s.Name]; there {
			return signin.ErrExists
		}
		m.next++
		s.UID, s.Created, s.Phase, s.ValidUntil = fmt.Sprint("uid", m.next), s.AskedAt, signin.PhaseReady, s.AskedAt.Add(s.Period)
		s.Bound, s.ServiceAccount, s.ServiceAccountUID = s.Binds, s.Name, "sa"+s.UID
		m.signins[s.Name] = s
		return nil
	})
}
func (m *memoryStore) Extend(_ context.Context, s signin.Signin) (signin.Signin, error) {
	return s, m.call(func() error {
		s.ValidUntil = s.AskedAt.Add(s.Period)
		m.signins[s.Name] = s
		return nil
	})
}
func (m *memoryStore) Delete(_ context.Context, s signin.Signin) error {
	return m.call(func() error {
		if m.signins[s.Name].UID != s.UID {
			return signin.ErrNotFound
		}
		delete(m.signins, s.Name)
		return nil
	})
}
func (m *memoryStore) Await(ctx context.Context, name string, done func(signin.Signin, bool) bool) error {
	for !done(m.GetCached(name)) {
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
func (m *memoryStore) IssueToken(_ context.Context, s signin.Signin, life time.Duration) (secret.Text, time.Time, error) {
	return secret.New("t0k3n"), time.Now().Add(life), m.call(func() error { return nil })
}

// newHandler returns an HTTP handler for the sign-in service with a store.
func newHandler(store signin.Store, who func() (access.Caller, error)) (http.Handler, *signin.Service, *[]audit.Entry) {
	var entries []audit.Entry
	service := &signin.Service{Store: store, Prefix: "tka-", MaxPerLogin: 2, RetryAfter: time.Second, MaxWait: time.Second, Now: time.Now,
		Cluster: signin.ClusterInfo{Name: "east", ServerURL: "https://k8s.example:6443", CAData: []byte("PEM")}}
	d := &httpapi.Server{
		Names: func() []string { return []string{"tka"} }, Identify: func(*http.Request) (access.Caller, error) { return who() },
		Decide: func(c access.Caller, v access.Verb, now time.Time) (access.Permit, error) {
			return access.Decide(c, v, guardPolicy, now)
		},
		Record: func(e audit.Entry) error { entries = append(entries, e); return nil },
		Log:    slog.New(slog.DiscardHandler), Now: time.Now,
	}
	return conformance.Handler(d.Handler(service.Routes()...)), service, &entries
}

func request(h http.Handler, op httpapi.Declaration, body any) *httptest.ResponseRecorder {
	return requestWith(h, op, body, nil)
}

// requestWith sends a request with headers; an empty one is not sent.
func requestWith(h http.Handler, op httpapi.Declaration, body any, header http.Header) *httptest.ResponseRecorder {
	method, path, _ := strings.Cut(op.Pattern, " ")
	if q, is := body.(signin.RolesRequest); is {
		path += "?" + url.Values{"verb": {string(q.Verb)}, "group": {string(q.Group)}, "resource": {string(q.Resource)},
			"namespace": {string(q.Namespace)}, "path": {string(q.Path)}}.Encode()
	}
	r := httptest.NewRequest(method, path, nil)
	if method != http.MethodGet {
		b, err := json.Marshal(body)
		if err != nil {
			panic(err)
		}
		r = httptest.NewRequest(method, path, strings.NewReader(string(b)))
		r.Header.Set("Content-Type", "application/json")
	}
	for name, values := range header {
		if values[0] != "" {
			r.Header.Set(name, values[0])
		}
	}
	r.Host = "tka"
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// ID-12, SGN-02: Every operation for every kind of caller, with and without a sign-in. Each refusal
// is one that the operation declares, and writes one audit entry. A caller that is refused because
// of its identity causes no call to the API server (DS-01).
func TestRoles(t *testing.T) {
	alice := guarded("alice@example.com", "n1", eightHours)
	with := func(f func(*access.Caller)) access.Caller { c := alice; f(&c); return c }
	type persona struct {
		name   string
		caller access.Caller
		err    error
	}
	tagged := func(rules ...string) access.Caller {
		c := guarded("", "n1", rules...)
		c.Tags = []access.Tag{"tag:ci"}
		return c
	}
	personas := []persona{
		{"granted", alice, nil},
		{"granted, two rules", guarded("alice@example.com", "n1", eightHours, `{"role":"edit","period":"8h"}`), nil},
		{"granted, role not on the list", guarded("alice@example.com", "n1", `{"role":"cluster-admin","period":"8h"}`), nil},
		{"granted, too short", guarded("alice@example.com", "n1", `{"role":"view","period":"5m"}`), nil},
		{"granted another role", guarded("alice@example.com", "n1", `{"role":"edit","period":"8h"}`), nil},
		{"no grant", guarded("alice@example.com", "n1"), nil},
		{"invalid rule", guarded("alice@example.com", "n1", `{"role":"view"}`), nil},
		{"tagged", tagged(eightHours), nil},
		{"tagged, let in", tagged(`{"role":"view","period":"8h","allowTagged":true}`), nil},
		{"shared in", with(func(c *access.Caller) { c.Shared = true }), nil},
		{"shared in, let in", with(func(c *access.Caller) {
			c.Shared, c.Rules = true, guarded("", "", `{"role":"view","period":"8h","allowShared":true}`).Rules
		}), nil},
		{"key expired", with(func(c *access.Caller) { c.Expired = true }), nil},
		{"Funnel", access.Caller{Via: access.ViaFunnel}, nil},
		{"unknown", access.Caller{}, problem.New(problem.NoIdentity, "Nobody.", "Connect directly.")},
		{"hollow", access.Caller{Via: access.ViaTailnet}, nil},
		{"WhoIs down", access.Caller{}, problem.New(problem.IdentityUnavailable, "Cannot ask.", "Try again.")},
	}
	var got strings.Builder
	for _, p := range personas {
		for _, state := range []string{"not signed in", "signed in"} {
			for _, op := range signin.Operations() {
				store := newMemoryStore()
				if state == "signed in" {
					s := live(p.caller, "view", time.Now())
					s.Bound, s.ServiceAccount = access.Binds{{Role: "view"}}, s.Name
					store = newMemoryStore(s)
				}
				h, _, entries := newHandler(store, func() (access.Caller, error) { return p.caller, p.err })
				body := any(struct{}{})
				if op.Verb == access.SigninRoles {
					body = op.Example
				}
				w := request(h, op, body)
				var said problem.Error
				if err := json.Unmarshal(w.Body.Bytes(), &said); err != nil {
					t.Fatalf("%s %s: %s", p.name, op.Pattern, w.Body)
				}
				fmt.Fprintf(&got, "%-30s %-14s %-18s %d %s\n", p.name, state, op.Verb, w.Code, said.Code)
				if len(*entries) != 1 || (*entries)[0].Code != said.Code {
					t.Errorf("%s %s %s: recorded %+v", p.name, state, op.Verb, *entries)
				}
				if said.Code == "" {
					continue
				}
				if !slices.Contains(slices.Concat(httpapi.CommonRefusals(), op.Refusals), said.Code) {
					t.Errorf("%s %s: %s is refused with %s, which it does not declare", p.name, state, op.Verb, said.Code)
				}
				switch {
				case len(said.Advice) == 0:
					t.Errorf("%s: len(said.Advice) = %v; %s", p.name, len(said.Advice), op.Verb)
				case said.Message == "":
					t.Errorf("%s: said.Message is empty, %s, said = %+v", p.name, op.Verb, said)
				case said.AuditID != (*entries)[0].RequestID:
					t.Errorf("%s: said.AuditID = %q, want %q; %s", p.name, said.AuditID, (*entries)[0].RequestID, op.Verb)
				}
				if state == "not signed in" && slices.Contains(refusedIdentities, said.Code) && store.calls > 0 {
					t.Errorf("%s %s: refused with %s after %d calls of the API server", p.name, op.Verb, said.Code, store.calls)
				}
			}
		}
	}
	text := strings.ReplaceAll(got.String(), " \n", "\n")
	golden := filepath.Join("testdata", "roles.txt")
	if *update {
		if err := os.WriteFile(golden, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(text, "\n") {
		if wants := strings.Split(string(want), "\n"); i >= len(wants) || wants[i] != line {
			t.Errorf("line %d is\n%s\nnot as in %s; look, and write it with -update", i+1, line, golden)
		}
	}
}

// refusedIdentities lists the refusals that depend on the caller and not on the request.
var refusedIdentities = []problem.Code{problem.WrongHost, problem.CrossOrigin, problem.FunnelRefused, problem.NoIdentity, problem.IdentityUnavailable,
	problem.NodeExpired, problem.IdentityAmbiguous, problem.ForeignNode, problem.TaggedNode, problem.NoCapability, problem.BadCapability, problem.AmbiguousRole,
	problem.RoleNotGranted, problem.RoleNotAllowed, problem.PeriodOutOfBounds}

// Section 3.5: whoami returns the caller's data, with the audit ID of the request.
func TestWhoami(t *testing.T) {
	alice := guarded("alice@example.com", "n1", eightHours, `{"role":"edit","period":"1h","namespaces":["shop"],"priority":2}`)
	store := newMemoryStore()
	who := alice
	h, service, entries := newHandler(store, func() (access.Caller, error) { return who, nil })
	ask := func() (w signin.Whoami) {
		t.Helper()
		*entries = nil
		res := request(h, signin.GetWhoami.Declare(), nil)
		d := json.NewDecoder(res.Body)
		d.DisallowUnknownFields()
		if err := d.Decode(&w); err != nil || res.Code != http.StatusOK {
			t.Fatalf("%d %v", res.Code, err)
		}
		switch {
		case w.AuditID == "":
			t.Errorf("audit id: w.AuditID is empty; %q, %+v", w.AuditID, *entries)
		case w.AuditID != (*entries)[0].RequestID:
			t.Errorf("audit id: w.AuditID = %q, want %q", w.AuditID, (*entries)[0].RequestID)
		case w.AuditID != res.Header().Get("X-Request-Id"):
			t.Errorf(`audit id: w.AuditID = %q, want res.Header().Get("X-Request-Id")`, w.AuditID)
		case (*entries)[0].Verb != access.Whoami:
			t.Errorf("audit id: (*entries)[0].Verb = %q, want %q", (*entries)[0].Verb, access.Whoami)
		}
		return w
	}
	w := ask()
	switch {
	case w.Caller.Login != "alice@example.com":
		t.Errorf("w.Caller.Login = %q, want %q", w.Caller.Login, "alice@example.com")
	case w.Caller.NodeID != "n1":
		t.Errorf("w.Caller.NodeID = %q, want %q", w.Caller.NodeID, "n1")
	case w.Caller.Tailnet != "example.com":
		t.Errorf("w.Caller.Tailnet = %q, want %q", w.Caller.Tailnet, "example.com")
	case len(w.Rules) != 2:
		t.Errorf("len(w.Rules) = %v, want 2", len(w.Rules))
	case w.Signin != nil:
		t.Errorf("w.Signin = %v, want nil", w.Signin)
	}
	switch {
	case w.Rules[0].Chosen:
		t.Errorf("w.Rules[0].Chosen is true; %+v, %+v", w.Rules, w.Decision)
	case !w.Rules[1].Chosen:
		t.Errorf("w.Rules[1].Chosen is false; %+v, %+v", w.Rules, w.Decision)
	case !w.Decision.Allowed:
		t.Errorf("w.Decision.Allowed is false; %+v, %+v", w.Rules, w.Decision)
	case !strings.Contains(w.Decision.Message, `"edit" for 1h in shop`):
		t.Errorf("w.Decision.Message = %q does not contain %q", w.Decision.Message, `"edit" for 1h in shop`)
	}
	if res := request(h, signin.Login.Declare(), signin.LoginRequest{}); res.Code != http.StatusAccepted {
		t.Fatal(res.Body)
	}
	switch w = ask(); {
	case w.Signin == nil:
		t.Error("signed: w.Signin is nil")
	case w.Signin.Role != "edit":
		t.Errorf("signed: w.Signin.Role = %q, want %q", w.Signin.Role, "edit")
	case w.Signin.State != signin.Ready:
		t.Errorf("signed: w.Signin.State = %q, want %q", w.Signin.State, signin.Ready)
	}
	// The grant is gone: the response has the reason and the existing sign-in, without a call to
	// the API server.
	who = guarded("alice@example.com", "n1")
	before := store.calls
	switch w = ask(); {
	case w.Decision.Allowed:
		t.Errorf("without a grant: w.Decision.Allowed is true; %+v", w)
	case w.Decision.Code != problem.NoCapability:
		t.Errorf("without a grant: w.Decision.Code = %q, want %q", w.Decision.Code, problem.NoCapability)
	case len(w.Decision.Advice) == 0:
		t.Errorf("without a grant: len(w.Decision.Advice) = %v", len(w.Decision.Advice))
	case w.Signin == nil:
		t.Error("without a grant: w.Signin is nil")
	case len(w.Rules) != 0:
		t.Errorf("without a grant: len(w.Rules) = %v, want 0", len(w.Rules))
	}
	if store.calls != before {
		t.Errorf("a caller without a grant cost %d calls", store.calls-before)
	}
	// The API server is down and the cache is empty. The response must not be "no sign-in".
	who, store.signins, store.down = alice, map[string]signin.Signin{}, errors.New("dial tcp: refused")
	if res := request(h, signin.GetWhoami.Declare(), nil); res.Code != http.StatusServiceUnavailable {
		t.Errorf("%d %s", res.Code, res.Body)
	}
	_ = service
}

// Section 2.6, and the causes in the metrics.
func TestServiceReportsEnds(t *testing.T) {
	alice := guarded("alice@example.com", "n1", eightHours, `{"role":"edit","period":"8h"}`)
	who := alice
	store := newMemoryStore()
	h, service, _ := newHandler(store, func() (access.Caller, error) { return who, nil })
	var causes []signin.Cause
	service.Ended = func(_ signin.Signin, c signin.Cause) { causes = append(causes, c) }
	want := func(status int, code problem.Code, res *httptest.ResponseRecorder) {
		t.Helper()
		var p problem.Error
		_ = json.Unmarshal(res.Body.Bytes(), &p) // a kubeconfig has no code
		if res.Code != status || p.Code != code {
			t.Fatalf("%d %s, want %d %s", res.Code, res.Body, status, code)
		}
		if (status == 202 || status == 429 || status == 503) && res.Header().Get("Retry-After") == "" {
			t.Errorf("%d without Retry-After", status)
		}
	}
	login := func(role string) *httptest.ResponseRecorder {
		return request(h, signin.Login.Declare(), signin.LoginRequest{Role: role})
	}
	want(202, "", login("view"))
	want(202, "", login("edit"))
	want(202, "", login("edit"))
	who = guarded("alice@example.com", "n1", eightHours)
	want(403, problem.GrantRemoved, request(h, signin.GetKubeconfig.Declare(), nil))
	want(404, problem.NotSignedIn, request(h, signin.GetKubeconfig.Declare(), nil))
	want(202, "", login(""))
	want(200, "", request(h, signin.Logout.Declare(), struct{}{}))
	if !slices.Equal(causes, []signin.Cause{signin.CauseReplaced, signin.CauseGrant, signin.CauseLogout}) {
		t.Errorf("ended by %v", causes)
	}
	// The guard ended the sign-in first, and the operator has not removed it yet.
	s := live(alice, "edit", time.Now())
	s.Deleting = true
	store.signins[s.Name] = s
	want(403, problem.GrantRemoved, request(h, signin.GetKubeconfig.Declare(), nil))
	who = guarded("alice@example.com", "n1")
	want(403, problem.NoCapability, request(h, signin.GetKubeconfig.Declare(), nil))
	// The operator has removed it, and the cache of the access server still has it.
	delete(store.signins, s.Name)
	store.stale = map[string]signin.Signin{s.Name: s}
	for _, op := range []httpapi.Declaration{signin.GetKubeconfig.Declare(), signin.Logout.Declare()} {
		want(403, problem.NoCapability, request(h, op, struct{}{}))
	}
	store.stale = nil
	store.signins[s.Name] = s
	who = alice
	want(404, problem.NotSignedIn, request(h, signin.GetKubeconfig.Declare(), nil))
	delete(store.signins, s.Name)
	for i := range 3 {
		who = guarded("alice@example.com", fmt.Sprint("m", i), eightHours)
		if i < 2 {
			want(202, "", login(""))
		} else {
			want(429, problem.TooManySignins, login(""))
		}
	}
	store.down = errors.New("dial tcp: refused")
	for _, op := range []httpapi.Declaration{signin.Login.Declare(), signin.Read.Declare(), signin.GetKubeconfig.Declare(), signin.Logout.Declare()} {
		want(503, problem.Unavailable, request(h, op, struct{}{}))
	}
}
