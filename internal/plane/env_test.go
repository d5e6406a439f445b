package plane_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
)

// env is a service behind a real server. The test sets the caller and sees the actions.
type env struct {
	service plane.Service
	store   *plane.Store
	door    httpapi.Server
	http.Handler

	mu          sync.Mutex
	caller      access.Caller
	refused     error
	entries     []audit.Entry
	recentAudit audit.Recent
	revoked     []string
	fail        error // of Revoke
	proxiesDown map[string]bool
	cuts        []string

	recorderFails error    // of the recorder
	replays       []string // what the recorder was asked for
}

var policy = access.PlanePolicy{Capability: "tailplane.dev/cap/plane", Contact: "#platform",
	Orgs:     []access.Org{{Name: "acme", Owners: []string{"amy@acme.dev"}, Members: []string{"mel@acme.dev"}}, {Name: "globex", Owners: []string{"gus@globex.dev"}}},
	Settings: []access.Holder{{Login: "pat@platform.dev", Role: access.PlaneRole{Name: access.PlatformAdmin}}}}

func newEnv(now func() time.Time) *env {
	o := &env{store: plane.NewStore(now)}
	o.service = plane.Service{Store: o.store, Now: now, Version: "v1", Commit: "c0ffee", Ready: func() bool { return true },
		RevokeSignin: func(_ context.Context, p access.Permit, namespace, name, reason string, dryRun bool) (plane.Revocation, error) {
			if err := p.Require(access.SigninsRevoke, now()); err != nil {
				return plane.Revocation{}, err
			}
			o.mu.Lock()
			defer o.mu.Unlock()
			if o.fail != nil {
				return plane.Revocation{}, o.fail
			}
			if dryRun {
				return plane.Revocation{}, nil
			}
			o.revoked = append(o.revoked, namespace+"/"+name+": "+reason)
			return plane.Revocation{Deleted: true, RefusedBy: new(now().Add(10 * time.Second))}, nil
		},
		Exposures: func() []plane.Exposure {
			return []plane.Exposure{{Name: "grafana", Address: new("https://grafana-1.tail1234.ts.net"), Access: "observe.read", Source: "exposure:grafana"},
				{Name: "attic", Address: new("https://attic.tail1234.ts.net"), Access: "identified", Source: "exposure:attic"}}
		},
		AuditEntries: func(ctx context.Context, yield func(plane.AuditEntry) bool) (int, error) {
			o.mu.Lock()
			entries := slices.Clone(o.entries)
			o.mu.Unlock()
			for i, e := range slices.Backward(entries) {
				if !yield(plane.AuditEntry{Entry: e, Seq: uint64(i + 1)}) {
					break
				}
			}
			return 0, nil
		}}
	o.service.RecentAudit = &o.recentAudit
	o.service.Recorder = o.recorder()
	proxies := []plane.AccessProxy{o.proxy("east-api.example.ts.net", "amy@acme.dev"), o.proxy("west-api.example.ts.net", "bob@example.com")}
	o.service.AccessProxies = func() []plane.AccessProxy { return proxies }
	o.door = httpapi.Server{Names: func() []string { return []string{"dashboard"} },
		Identify: func(r *http.Request) (access.Caller, error) {
			if login := r.Header.Get("Test-Login"); login != "" { // for tests with many people at once
				return person(login, `{"role":"operator","orgs":["*"]}`), nil
			}
			o.mu.Lock()
			defer o.mu.Unlock()
			return o.caller, o.refused
		},
		Decide: func(c access.Caller, v access.Verb, at time.Time) (access.Permit, error) {
			return access.DecidePlane(c, v, policy, at)
		},
		Record: func(e audit.Entry) error {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.entries = append(o.entries, e)
			o.recentAudit.Add(e)
			return nil
		},
		Encoder: plane.EnvelopeForm(), Log: slog.New(slog.DiscardHandler), Now: now}
	o.Handler = plane.Conformance.Handler(o.door.Handler(o.service.Routes()...))
	return o
}

// as sets the caller from now on.
func (o *env) as(c access.Caller) *env {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.caller, o.refused = c, nil
	return o
}

func (o *env) auditEntries() []audit.Entry {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.entries)
}

func (o *env) revocations() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.revoked)
}

// person returns a person on its own device.
func person(login string, rules ...string) access.Caller {
	c := access.Caller{Login: access.Login(login), DisplayName: "D. " + login, UserID: "1", Device: access.Device{ID: "n-" + login, Name: strings.ReplaceAll(login, "@", "-") + ".ts.net"},
		Tailnet: "example.com", Via: access.ViaTailnet}
	for _, r := range rules {
		c.Rules = append(c.Rules, json.RawMessage(r))
	}
	return c
}

func alice() access.Caller { return person("alice@example.com", `{"role":"operator","orgs":["*"]}`) }
func vic() access.Caller   { return person("vic@example.com", `{"role":"viewer","orgs":["acme"]}`) }
func pat() access.Caller   { return person("pat@platform.dev") }

// withObjects puts objects of each kind into the store, among them a sign-in of alice and one of bob.
func (o *env) withObjects() *env {
	b := o.store
	for k, objects := range map[plane.Kind][]plane.Object{
		plane.KindCluster:    {cluster("c1"), cluster("c2", func(c *plane.Cluster) { c.Health = "Dead" })},
		plane.KindSignin:     {signinOf("alice@example.com", "alice"), signinOf("bob@example.com", "bob")},
		plane.KindTailnet:    {plane.Tailnet{ID: "t", Name: "t"}},
		plane.KindGateway:    {plane.Gateway{ID: "ns/g", Name: "g"}},
		plane.KindRoute:      {plane.Route{ID: "HTTPRoute/ns/r", Resource: "HTTPRoute", Name: "r"}},
		plane.KindProxyGroup: {plane.ProxyGroup{ID: "ns/p", Name: "p", Type: "egress", Wanted: 2, Ready: new(0)}},
		plane.KindAdapter:    {plane.Adapter{ID: "ns/a", Pod: "a"}},
	} {
		b.Replace(k, "kubernetes", objects)
	}
	b.Report(plane.Source{Name: "kubernetes", Status: plane.StatusOK})
	return o
}

// do sends one request and returns the response with its envelope.
func (o *env) do(method, path, body string, header ...string) (*httptest.ResponseRecorder, envelope) {
	r := httptest.NewRequest(method, path, nil)
	if method != http.MethodGet {
		r = httptest.NewRequest(method, path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	r.Host = "dashboard"
	w := httptest.NewRecorder()
	o.ServeHTTP(w, r)
	var e envelope
	if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil {
		e.broken = fmt.Sprintf("%v: %s", err, w.Body)
	}
	return w, e
}

// envelope is an envelope as a client decodes it.
type envelope struct {
	APIVersion string
	Kind       string
	Data       json.RawMessage
	Meta       struct {
		RequestID, GeneratedAt, Revision string
		Page                             *struct {
			Next  string
			Limit int
			Total *int
		}
		Sources []plane.Source
	}
	Error *struct {
		Code              problem.Code
		Message           string
		Advice            []string
		Field             string
		Needed            *problem.Need
		Have              []string
		Seen              *problem.Seen
		RetryAfterSeconds int
	}
	broken string
}

func (e envelope) code() problem.Code {
	if e.Error == nil {
		return ""
	}
	return e.Error.Code
}

// data decodes the data of an envelope.
func data[T any](t *testing.T, e envelope) (v T) {
	t.Helper()
	if e.broken != "" || e.Error != nil {
		t.Fatalf("%s %+v", e.broken, e.Error)
	}
	if err := json.Unmarshal(e.Data, &v); err != nil {
		t.Fatalf("%v: %s", err, e.Data)
	}
	return v
}
