package planefleet

import (
	"bytes"
	"context"
	"encoding/json"
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
	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
)

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// office is a service behind a real server, with a store that the test fills. It stores the holds in place of the API server.
type office struct {
	desk  *Desk
	board *plane.Board
	http.Handler

	mu      sync.Mutex
	now     time.Time
	caller  access.Caller
	refused error
	entries []audit.Entry
	stored  map[string]Hold
	fail    error // of Create and Lift
}

var policy = access.PlanePolicy{Capability: "tailplane.dev/cap/plane", Contact: "#platform",
	Orgs:     []access.Org{{Name: "acme", Owners: []string{"amy@acme.dev"}, Members: []string{"mel@acme.dev"}}, {Name: "globex", Owners: []string{"gus@globex.dev"}}},
	Settings: []access.Holder{{Login: "pat@platform.dev", Duty: access.Duty{Name: access.PlatformAdmin}}}}

func newOffice() *office {
	o := &office{now: noon, stored: map[string]Hold{}}
	now := func() time.Time { o.mu.Lock(); defer o.mu.Unlock(); return o.now }
	o.board = plane.NewBoard(now)
	o.desk = &Desk{Plane: &plane.Desk{Board: o.board, Now: now, Entries: o.newest}, Create: o.create, Lift: o.lift, Reschedule: o.reschedule, Ignore: o.ignore, LookAgain: func() []Look { return []Look{{Source: "gitops:drift", Asked: true}} }}
	d := door.Door{Names: func() []string { return []string{"dashboard"} },
		Identify: func(*http.Request) (access.Caller, error) {
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
			return nil
		},
		Form: plane.Form(), Log: slog.New(slog.DiscardHandler), Now: now}
	o.Handler = d.Handler(slices.Concat(o.desk.Routes(), o.desk.Plane.Routes())...)
	o.fill()
	return o
}

func (o *office) create(_ context.Context, p access.Permit, d Draft, dryRun bool) (Hold, bool, error) {
	if err := p.Require(access.HoldsCreate, o.desk.Plane.Now()); err != nil {
		return Hold{}, false, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fail != nil {
		return Hold{}, false, o.fail
	}
	h := Hold{ID: d.Name, Name: d.Name, UID: "u-" + d.Name, Version: "1", Scope: d.Scope, Mode: d.Mode, Reason: d.Reason, RequestedBy: p.Caller().Identity(), Created: o.now, ExpiresAt: d.ExpiresAt, State: Applying,
		Failed: []HoldFailure{}, Digest: d.Digest, Held: []string{"acme", "globex"}}
	if d.Scope.Org != "" {
		h.Held = []string{d.Scope.Org}
	}
	if !dryRun {
		o.stored[h.Name] = h
	}
	return h, true, nil
}

func (o *office) lift(_ context.Context, p access.Permit, h Hold, dryRun bool) error {
	if err := p.Require(access.HoldsLift, o.desk.Plane.Now()); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.fail != nil:
		return o.fail
	case o.stored[h.Name].UID != h.UID:
		return problem.New(problem.NotFound, "There is no such hold any more.", "Look.")
	case !dryRun:
		delete(o.stored, h.Name)
	}
	return nil
}

func (o *office) reschedule(_ context.Context, p access.Permit, h Hold, end *time.Time, dryRun bool) (Hold, error) {
	if err := p.Require(access.HoldsLift, o.desk.Plane.Now()); err != nil {
		return Hold{}, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	is := o.stored[h.Name]
	if is.UID != h.UID || is.Version != h.Version {
		return Hold{}, problem.New(problem.Conflict, "The hold has changed meanwhile.", "Look at it again.")
	}
	is.ExpiresAt = end
	if !dryRun {
		is.Version += "+"
		o.stored[h.Name] = is
	}
	return is, nil
}

// ignore sets the request on the object in the store.
func (o *office) ignore(_ context.Context, p access.Permit, d Drift, i Ignored, dryRun bool) error {
	if err := p.Require(access.ConfigPropose, o.desk.Plane.Now()); err != nil {
		return err
	}
	if !dryRun {
		o.board.Put(plane.KindDrift, "kubernetes", d.Ignoring(i))
	}
	return nil
}

// newest reads the audit log, newest entry first.
func (o *office) newest(_ context.Context, yield func(plane.Recorded) bool) (damaged int, err error) {
	o.mu.Lock()
	all := slices.Clone(o.entries)
	o.mu.Unlock()
	for i, e := range slices.Backward(all) {
		if !yield(plane.Recorded{Entry: e, Seq: uint64(i)}) {
			break
		}
	}
	return 0, nil
}

// seen copies the stored holds to the plane's store, as the watch does.
func (o *office) seen() {
	o.mu.Lock()
	var all []plane.Object
	for _, h := range o.stored {
		all = append(all, h)
	}
	o.mu.Unlock()
	o.board.Replace(plane.KindHold, "kubernetes", all)
}

func (o *office) names() (names []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for n := range o.stored {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

func runners(forge, org, pool string, change func(*Pool)) Pool {
	p := examplePool()
	p.ID, p.Forge, p.OrgName, p.Name, p.Actions = forge+"/"+org+"/"+pool, forge, org, pool, nil
	if change != nil {
		change(&p)
	}
	return p
}

// fill puts two organisations in the plane's store. They share a pool, and one of them uses a forge that the other does not use.
func (o *office) fill() {
	hidden := func(p *Pool) { p.Counts.Busy, p.StateReason, p.State = nil, "globex secret", Degraded }
	for k, all := range map[plane.Kind][]plane.Object{
		plane.KindPool: {runners("github", "acme", "gh-nix", nil), runners("github", "acme", "gh-docker", nil), runners("github", "globex", "gh-nix", hidden), runners("gitlab", "globex", "gl-docker", nil)},
		plane.KindEnrollment: {Enrollment{ID: "acme", Name: "acme", Forge: "github", Phase: "Active", Owners: []string{"amy@acme.dev"}},
			Enrollment{ID: "globex", Name: "globex", Forge: "github", Phase: "Failed", Owners: []string{"gus@globex.dev"}}},
		plane.KindForge: {Forge{ID: "github", Name: "github", Type: "github", Reachable: new(true), RateLimit: &RateLimit{Remaining: 7}, EnrolledThere: []string{"acme", "globex"},
			Conditions: []plane.Condition{{Type: "Ready", Status: "False", Message: "globex secret"}}},
			Forge{ID: "gitlab", Name: "gitlab", Type: "gitlab", EnrolledThere: []string{"globex"}}},
		plane.KindHold: {},
		plane.KindDrift: {Drift{ID: "d1", OrgName: "acme", Forge: "github", Pool: "gh-nix", Field: "LabelsDiffer", Kind: DriftForge, Severity: "warning", Evidence: "other labels"},
			Drift{ID: "d2", OrgName: "globex", Forge: "github", Pool: "gh-nix", Field: "Offline", Kind: DriftForge, Severity: "error", Evidence: "globex secret"},
			Drift{ID: "d3", OrgName: "acme", Forge: "github", Pool: "gh-docker", Field: "CapacityDiffers", Kind: DriftActual, Severity: "info", ExplainedBy: "shared"}},
	} {
		o.board.Replace(k, "kubernetes", all)
	}
	o.board.Report(plane.Source{Name: "kubernetes", Status: plane.OK})
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stored["others"] = Hold{ID: "others", Name: "others", UID: "u-others", Scope: Scope{Org: "globex"}, Mode: Pause, Reason: "globex secret", RequestedBy: "gus@globex.dev", State: Applied, Held: []string{"globex"}}
	o.stored["shared"] = Hold{ID: "shared", Name: "shared", UID: "u-shared", Scope: Scope{Pool: "gh-nix"}, Mode: Pause, Reason: "the image", RequestedBy: "alice@example.com", State: Applying, Held: []string{"acme", "globex"},
		Targets: new(2), Applied: new(1), Failed: []HoldFailure{{Pool: "gh-nix", Org: "globex", Reason: "ForgeUnreachable"}}}
	o.mu.Unlock()
	o.seen()
	o.mu.Lock()
}

func (o *office) as(c access.Caller) *office {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.caller, o.refused = c, nil
	return o
}

func (o *office) later(d time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.now = o.now.Add(d)
}

func person(login string, rules ...string) access.Caller {
	c := access.Caller{Login: access.Login(login), UserID: "1", Device: access.Device{ID: "n-" + login, Name: "laptop.ts.net"}, Tailnet: "example.com", Via: access.ViaTailnet}
	for _, r := range rules {
		c.Rules = append(c.Rules, json.RawMessage(r))
	}
	return c
}

func alice() access.Caller { return person("alice@example.com", `{"role":"operator","orgs":["*"]}`) }
func amy() access.Caller   { return person("amy@acme.dev") }
func mel() access.Caller   { return person("mel@acme.dev") }
func pat() access.Caller   { return person("pat@platform.dev") }

// answer is a response as a client decodes it.
type answer struct {
	Status int    `json:"-"`
	Text   string `json:"-"`
	Kind   string
	Data   json.RawMessage
	Meta   struct {
		Page    *struct{ Total *int }
		Sources []plane.Source
	}
	Error *problem.Error
}

func (a answer) code() problem.Code {
	if a.Error == nil {
		return ""
	}
	return a.Error.Code
}

func (o *office) ask(t *testing.T, method, path, body string, header ...string) answer {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	r.Host = "dashboard"
	if method != http.MethodGet {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	o.ServeHTTP(w, r)
	a := answer{Status: w.Code, Text: w.Body.String()}
	if err := json.NewDecoder(bytes.NewReader(w.Body.Bytes())).Decode(&a); err != nil {
		t.Fatalf("%s %s: %v: %s", method, path, err, w.Body)
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
