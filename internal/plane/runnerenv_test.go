package plane

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
)

var runnerNoon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// runnerEnv is a service behind a real server, with a store that the test fills.
type runnerEnv struct {
	service *RunnerService
	store   *Store
	http.Handler

	mu      sync.Mutex
	caller  access.Caller
	events  map[string][]Event
	fail    error // of the events
	entries []audit.Entry
}

var runnerPolicy = access.PlanePolicy{Capability: "tailplane.dev/cap/plane", Contact: "#platform",
	Orgs:     []access.Org{{Name: "acme", Owners: []string{"amy@acme.dev"}, Members: []string{"mel@acme.dev"}}, {Name: "globex", Owners: []string{"gus@globex.dev"}}},
	Settings: []access.Holder{{Login: "pat@platform.dev", Role: access.PlaneRole{Name: access.PlatformAdmin}}}}

// runnerPersonas are the callers of the tests.
var runnerPersonas = []struct {
	name   string
	caller access.Caller
}{
	{"viewer acme", callerWith("vic@example.com", `{"role":"viewer","orgs":["acme"]}`)}, {"viewer *", callerWith("vera@example.com", `{"role":"viewer","orgs":["*"]}`)},
	{"operator acme (member)", callerWith("mel@acme.dev")}, {"operator *", callerWith("alice@example.com", `{"role":"operator","orgs":["*"]}`)}, {"org-admin acme (owner)", callerWith("amy@acme.dev")},
	{"platform-admin", callerWith("pat@platform.dev")}, {"org-admin globex (owner)", callerWith("gus@globex.dev")}, {"nobody", callerWith("mallory@evil.example")},
}

func newRunnerEnv() *runnerEnv {
	o := &runnerEnv{store: NewStore(func() time.Time { return runnerNoon }), caller: runnerPersonas[3].caller}
	o.service = &RunnerService{Plane: &Service{Store: o.store, Now: func() time.Time { return runnerNoon }}, ReadEvents: func(_ context.Context, namespace string) ([]Event, error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.events[namespace], o.fail
	}}
	d := httpapi.Server{Names: func() []string { return []string{"dashboard"} },
		Identify: func(*http.Request) (access.Caller, error) {
			o.mu.Lock()
			defer o.mu.Unlock()
			return o.caller, nil
		},
		Decide: func(c access.Caller, v access.Verb, at time.Time) (access.Permit, error) {
			return access.DecidePlane(c, v, runnerPolicy, at)
		},
		Record: func(e audit.Entry) error {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.entries = append(o.entries, e)
			return nil
		},
		Encoder: EnvelopeForm(), Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return runnerNoon }}
	o.Handler = Conformance.Handler(d.Handler(o.service.Routes()...))
	row := func(org, pool string) Pool {
		return Pool{ID: "github/" + org + "/" + pool, Forge: "github", OrgName: org, Name: pool, State: PoolActive, Holds: []string{}, EffectiveMax: new(3),
			Controller: Controller{Namespace: "runners", Name: org + "-" + pool}, Settings: []Setting{{Name: "scaling.max", Value: "3", From: "RunnerPool " + pool}}}
	}
	runner := func(org, pool, name, state string, job *Job) Runner {
		return Runner{ID: "runners/" + name, Namespace: "runners", Name: name, Kind: ephemeralRunner, Pool: "github/" + org + "/" + pool, OrgName: org, State: state, Job: job, Created: runnerNoon}
	}
	for k, all := range map[Kind][]Object{
		KindPool: {row("acme", "nix"), row("acme", "docker"), row("globex", "nix")},
		KindRunner: {runner("acme", "nix", "acme-nix-7xk2p-runner-q9w4z", RunnerBusy, &Job{ID: "j", Name: "build", Repository: "acme/shop"}), runner("acme", "nix", "acme-nix-7xk2p-runner-aaaaa", RunnerIdle, nil),
			runner("acme", "docker", "acme-docker-7xk2p-runner-q9w4z", RunnerIdle, nil), runner("globex", "nix", "globex-nix-7xk2p-runner-q9w4z", RunnerBusy, &Job{ID: "g", Name: "globex secret"})},
		KindEnrollment: {Enrollment{ID: "acme", Name: "acme", Forge: "github", Isolation: "None", Phase: "Active"}, Enrollment{ID: "globex", Name: "globex", Forge: "github", Phase: "Active"}},
		KindForge:      {Forge{ID: "github", Name: "github", Type: "github", Reachable: new(true), EnrolledOrgs: []string{"acme", "globex"}}},
	} {
		o.store.Replace(k, "kubernetes", all)
	}
	o.store.Report(Source{Name: "kubernetes", Status: StatusOK})
	reported := func(kind, name, reason string, ago time.Duration) Event {
		return Event{Type: "Warning", Reason: reason, Message: "m", Kind: kind, Name: name, Count: 1, Last: runnerNoon.Add(-ago)}
	}
	o.events = map[string][]Event{
		"runners": {reported("Pod", "acme-nix-7xk2p-runner-zzzzz", "FailedScheduling", time.Minute), reported("Pod", "globex-nix-7xk2p-runner-zzzzz", "GlobexSecret", time.Second), reported("Pod", "something", "Else", 0),
			reported("AutoscalingRunnerSet", "acme-docker", "Docker", 0)},
		"default": {reported("RunnerEnrollment", "acme", "Degraded", time.Hour), reported("RunnerEnrollment", "globex", "GlobexSecret", 0), reported("RunnerPool", "nix", "GlobexSecret", 0)},
	}
	return o
}

func (o *runnerEnv) as(c access.Caller) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.caller = c
}

func (o *runnerEnv) get(t *testing.T, path string) apiResponse {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	r.Host = "dashboard"
	w := httptest.NewRecorder()
	o.ServeHTTP(w, r)
	a := apiResponse{Status: w.Code, Text: w.Body.String()}
	if err := json.NewDecoder(bytes.NewReader(w.Body.Bytes())).Decode(&a); err != nil {
		t.Fatalf("%s: %v: %s", path, err, w.Body)
	}
	return a
}

var errAway = errors.New("connection refused")
