package planejobs

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
	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/plane/planefleet"
	"github.com/tailplane/tailplane/internal/problem"
)

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// office is a service behind a real server, with a store that the test fills.
type office struct {
	desk  *Desk
	board *plane.Board
	http.Handler

	mu      sync.Mutex
	caller  access.Caller
	events  map[string][]Event
	fail    error // of the events
	entries []audit.Entry
}

var policy = access.PlanePolicy{Capability: "tailplane.dev/cap/plane", Contact: "#platform",
	Orgs:     []access.Org{{Name: "acme", Owners: []string{"amy@acme.dev"}, Members: []string{"mel@acme.dev"}}, {Name: "globex", Owners: []string{"gus@globex.dev"}}},
	Settings: []access.Holder{{Login: "pat@platform.dev", Duty: access.Duty{Name: access.PlatformAdmin}}}}

func person(login string, rules ...string) access.Caller {
	c := access.Caller{Login: access.Login(login), UserID: "1", Device: access.Device{ID: "n-" + login, Name: "laptop.ts.net"}, Tailnet: "example.com", Via: access.ViaTailnet}
	for _, r := range rules {
		c.Rules = append(c.Rules, json.RawMessage(r))
	}
	return c
}

// personas are the callers of the tests.
var personas = []struct {
	name   string
	caller access.Caller
}{
	{"viewer acme", person("vic@example.com", `{"role":"viewer","orgs":["acme"]}`)}, {"viewer *", person("vera@example.com", `{"role":"viewer","orgs":["*"]}`)},
	{"operator acme (member)", person("mel@acme.dev")}, {"operator *", person("alice@example.com", `{"role":"operator","orgs":["*"]}`)}, {"org-admin acme (owner)", person("amy@acme.dev")},
	{"platform-admin", person("pat@platform.dev")}, {"org-admin globex (owner)", person("gus@globex.dev")}, {"nobody", person("mallory@evil.example")},
}

func newOffice() *office {
	o := &office{board: plane.NewBoard(func() time.Time { return noon }), caller: personas[3].caller}
	o.desk = &Desk{Plane: &plane.Desk{Board: o.board, Now: func() time.Time { return noon }}, Events: func(_ context.Context, namespace string) ([]Event, error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.events[namespace], o.fail
	}}
	d := door.Door{Names: func() []string { return []string{"dashboard"} },
		Identify: func(*http.Request) (access.Caller, error) {
			o.mu.Lock()
			defer o.mu.Unlock()
			return o.caller, nil
		},
		Decide: func(c access.Caller, v access.Verb, at time.Time) (access.Permit, error) {
			return access.DecidePlane(c, v, policy, at)
		},
		Record: func(e audit.Entry) error {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.entries = append(o.entries, e)
			return nil
		},
		Form: plane.Form(), Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return noon }}
	o.Handler = d.Handler(o.desk.Routes()...)
	row := func(org, pool string) planefleet.Pool {
		return planefleet.Pool{ID: "github/" + org + "/" + pool, Forge: "github", OrgName: org, Name: pool, State: planefleet.Active, Holds: []string{}, EffectiveMax: new(3),
			Controller: planefleet.Controller{Namespace: "runners", Name: org + "-" + pool}, Settings: []planefleet.Setting{{Name: "scaling.max", Value: "3", From: "RunnerPool " + pool}}}
	}
	runner := func(org, pool, name, state string, job *Job) Runner {
		return Runner{ID: "runners/" + name, Namespace: "runners", Name: name, Kind: kindRunner, Pool: "github/" + org + "/" + pool, OrgName: org, State: state, Job: job, Created: noon}
	}
	for k, all := range map[plane.Kind][]plane.Object{
		plane.KindPool: {row("acme", "nix"), row("acme", "docker"), row("globex", "nix")},
		plane.KindRunner: {runner("acme", "nix", "acme-nix-7xk2p-runner-q9w4z", Busy, &Job{ID: "j", Name: "build", Repository: "acme/shop"}), runner("acme", "nix", "acme-nix-7xk2p-runner-aaaaa", Idle, nil),
			runner("acme", "docker", "acme-docker-7xk2p-runner-q9w4z", Idle, nil), runner("globex", "nix", "globex-nix-7xk2p-runner-q9w4z", Busy, &Job{ID: "g", Name: "globex secret"})},
		plane.KindEnrollment: {planefleet.Enrollment{ID: "acme", Name: "acme", Forge: "github", Phase: "Active"}, planefleet.Enrollment{ID: "globex", Name: "globex", Forge: "github", Phase: "Active"}},
		plane.KindForge:      {planefleet.Forge{ID: "github", Name: "github", Type: "github", Reachable: new(true), EnrolledThere: []string{"acme", "globex"}}},
	} {
		o.board.Replace(k, "kubernetes", all)
	}
	o.board.Report(plane.Source{Name: "kubernetes", Status: plane.OK})
	told := func(kind, name, reason string, ago time.Duration) Event {
		return Event{Type: "Warning", Reason: reason, Message: "m", Kind: kind, Name: name, Count: 1, Last: noon.Add(-ago)}
	}
	o.events = map[string][]Event{
		"runners": {told("Pod", "acme-nix-7xk2p-runner-zzzzz", "FailedScheduling", time.Minute), told("Pod", "globex-nix-7xk2p-runner-zzzzz", "GlobexSecret", time.Second), told("Pod", "something", "Else", 0),
			told("AutoscalingRunnerSet", "acme-docker", "Docker", 0)},
		"default": {told("RunnerEnrollment", "acme", "Degraded", time.Hour), told("RunnerEnrollment", "globex", "GlobexSecret", 0), told("RunnerPool", "nix", "GlobexSecret", 0)},
	}
	return o
}

func (o *office) as(c access.Caller) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.caller = c
}

// answer is a response as a client decodes it.
type answer struct {
	Status int    `json:"-"`
	Text   string `json:"-"`
	Data   json.RawMessage
	Meta   struct {
		Page    *struct{ Total *int }
		Sources []plane.Source
	}
	Error *problem.Error
}

func (o *office) ask(t *testing.T, path string) answer {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	r.Host = "dashboard"
	w := httptest.NewRecorder()
	o.ServeHTTP(w, r)
	a := answer{Status: w.Code, Text: w.Body.String()}
	if err := json.NewDecoder(bytes.NewReader(w.Body.Bytes())).Decode(&a); err != nil {
		t.Fatalf("%s: %v: %s", path, err, w.Body)
	}
	return a
}

func data[T any](t *testing.T, a answer) (v T) {
	t.Helper()
	if a.Error != nil {
		t.Fatalf("%d %+v", a.Status, a.Error)
	}
	if err := json.Unmarshal(a.Data, &v); err != nil {
		t.Fatalf("%v: %s", err, a.Data)
	}
	return v
}

var errAway = errors.New("connection refused")
