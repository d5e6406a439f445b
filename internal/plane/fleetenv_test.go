package plane

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
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
)

var fleetNoon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// fleetEnv is a service behind a real server, with a store that the test fills. It stores the holds in place of the API server.
type fleetEnv struct {
	service *FleetService
	store   *Store
	http.Handler

	mu      sync.Mutex
	now     time.Time
	caller  access.Caller
	refused error
	entries []audit.Entry
	stored  map[string]Hold
	fail    error // of Create and Lift
}

var fleetPolicy = access.PlanePolicy{Capability: "tailplane.dev/cap/plane", Contact: "#platform",
	Orgs:     []access.Org{{Name: "acme", Owners: []string{"amy@acme.dev"}, Members: []string{"mel@acme.dev"}}, {Name: "globex", Owners: []string{"gus@globex.dev"}}},
	Settings: []access.Holder{{Login: "pat@platform.dev", Role: access.PlaneRole{Name: access.PlatformAdmin}}}}

func newFleetEnv() *fleetEnv {
	o := &fleetEnv{now: fleetNoon, stored: map[string]Hold{}}
	now := func() time.Time { o.mu.Lock(); defer o.mu.Unlock(); return o.now }
	o.store = NewStore(now)
	o.service = &FleetService{Plane: &Service{Store: o.store, Now: now, AuditEntries: o.newest}, CreateHold: o.create, LiftHold: o.lift, RescheduleHold: o.reschedule, IgnoreDrift: o.ignore, RefreshDrift: func() []Look { return []Look{{Source: "gitops:drift", Triggered: true}} }}
	d := httpapi.Server{Names: func() []string { return []string{"dashboard"} },
		Identify: func(*http.Request) (access.Caller, error) {
			o.mu.Lock()
			defer o.mu.Unlock()
			return o.caller, o.refused
		},
		Decide: func(c access.Caller, v access.Verb, at time.Time) (access.Permit, error) {
			return access.DecidePlane(c, v, fleetPolicy, at)
		},
		Record: func(e audit.Entry) error {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.entries = append(o.entries, e)
			return nil
		},
		Encoder: EnvelopeForm(), Log: slog.New(slog.DiscardHandler), Now: now}
	o.Handler = Conformance.Handler(d.Handler(slices.Concat(o.service.Routes(), o.service.Plane.Routes())...))
	o.addObjects()
	return o
}

func (o *fleetEnv) create(_ context.Context, p access.Permit, d HoldDraft, dryRun bool) (Hold, bool, error) {
	if err := p.Require(access.HoldsCreate, o.service.Plane.Now()); err != nil {
		return Hold{}, false, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fail != nil {
		return Hold{}, false, o.fail
	}
	h := Hold{ID: d.Name, Name: d.Name, UID: "u-" + d.Name, Version: "1", Scope: d.Scope, Mode: d.Mode, Reason: d.Reason, RequestedBy: p.Caller().Identity(), Created: o.now, ExpiresAt: d.ExpiresAt, State: HoldApplying,
		Failed: []HoldFailure{}, Digest: d.Digest, HeldOrgs: []string{"acme", "globex"}}
	if d.Scope.Org != "" {
		h.HeldOrgs = []string{d.Scope.Org}
	}
	if !dryRun {
		o.stored[h.Name] = h
	}
	return h, true, nil
}

func (o *fleetEnv) lift(_ context.Context, p access.Permit, h Hold, dryRun bool) error {
	if err := p.Require(access.HoldsLift, o.service.Plane.Now()); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.fail != nil:
		return o.fail
	case o.stored[h.Name].UID != h.UID:
		return problem.New(problem.NotFound, "The hold no longer exists.", "Look.")
	case !dryRun:
		delete(o.stored, h.Name)
	}
	return nil
}

func (o *fleetEnv) reschedule(_ context.Context, p access.Permit, h Hold, end *time.Time, dryRun bool) (Hold, error) {
	if err := p.Require(access.HoldsLift, o.service.Plane.Now()); err != nil {
		return Hold{}, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	is := o.stored[h.Name]
	if is.UID != h.UID || is.Version != h.Version {
		return Hold{}, problem.New(problem.Conflict, "The hold has changed in the meantime.", "Check the hold again.")
	}
	is.ExpiresAt = end
	if !dryRun {
		is.Version += "+"
		o.stored[h.Name] = is
	}
	return is, nil
}

// ignore sets the request on the object in the store.
func (o *fleetEnv) ignore(_ context.Context, p access.Permit, d Drift, i DriftIgnore, dryRun bool) error {
	if err := p.Require(access.ConfigPropose, o.service.Plane.Now()); err != nil {
		return err
	}
	if !dryRun {
		o.store.Set(KindDrift, "kubernetes", d.WithIgnore(i))
	}
	return nil
}

// newest reads the audit log, newest entry first.
func (o *fleetEnv) newest(_ context.Context, yield func(AuditEntry) bool) (damaged int, err error) {
	o.mu.Lock()
	all := slices.Clone(o.entries)
	o.mu.Unlock()
	for i, e := range slices.Backward(all) {
		if !yield(AuditEntry{Entry: e, Seq: uint64(i)}) {
			break
		}
	}
	return 0, nil
}

// update copies the stored holds to the plane's store, as the watch does.
func (o *fleetEnv) update() {
	o.mu.Lock()
	var all []Object
	for _, h := range o.stored {
		all = append(all, h)
	}
	o.mu.Unlock()
	o.store.Replace(KindHold, "kubernetes", all)
}

func (o *fleetEnv) names() (names []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for n := range o.stored {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

func poolOf(forge, org, pool string, change func(*Pool)) Pool {
	p := examplePoolObject()
	p.ID, p.Forge, p.OrgName, p.Name, p.Actions = forge+"/"+org+"/"+pool, forge, org, pool, nil
	if change != nil {
		change(&p)
	}
	return p
}

// addObjects puts two organisations in the plane's store. They share a pool, and one of them uses a forge that the other does not use.
func (o *fleetEnv) addObjects() {
	hidden := func(p *Pool) { p.Counts.Busy, p.StateReason, p.State = nil, "globex secret", PoolDegraded }
	for k, all := range map[Kind][]Object{
		KindPool: {poolOf("github", "acme", "gh-nix", nil), poolOf("github", "acme", "gh-docker", nil), poolOf("github", "globex", "gh-nix", hidden), poolOf("gitlab", "globex", "gl-docker", nil)},
		KindEnrollment: {Enrollment{ID: "acme", Name: "acme", Forge: "github", Isolation: "None", Phase: "Active", Owners: []string{"amy@acme.dev"}},
			Enrollment{ID: "globex", Name: "globex", Forge: "github", Isolation: "None", Phase: "Failed", Owners: []string{"gus@globex.dev"}}},
		KindForge: {Forge{ID: "github", Name: "github", Type: "github", Reachable: new(true), RateLimit: &RateLimit{Remaining: 7}, EnrolledOrgs: []string{"acme", "globex"},
			Conditions: []Condition{{Type: "Ready", Status: "False", Message: "globex secret"}}},
			Forge{ID: "gitlab", Name: "gitlab", Type: "gitlab", EnrolledOrgs: []string{"globex"}}},
		KindHold: {},
		KindDrift: {Drift{ID: "d1", OrgName: "acme", Forge: "github", Pool: "gh-nix", Field: "LabelsDiffer", Kind: DriftForge, Severity: "warning", Evidence: "other labels"},
			Drift{ID: "d2", OrgName: "globex", Forge: "github", Pool: "gh-nix", Field: "Offline", Kind: DriftForge, Severity: "error", Evidence: "globex secret"},
			Drift{ID: "d3", OrgName: "acme", Forge: "github", Pool: "gh-docker", Field: "CapacityDiffers", Kind: DriftActual, Severity: "info", ExplainedBy: "shared"}},
	} {
		o.store.Replace(k, "kubernetes", all)
	}
	o.store.Report(Source{Name: "kubernetes", Status: StatusOK})
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stored["others"] = Hold{ID: "others", Name: "others", UID: "u-others", Scope: Scope{Org: "globex"}, Mode: ModePause, Reason: "globex secret", RequestedBy: "gus@globex.dev", State: HoldApplied, HeldOrgs: []string{"globex"}}
	o.stored["shared"] = Hold{ID: "shared", Name: "shared", UID: "u-shared", Scope: Scope{Pool: "gh-nix"}, Mode: ModePause, Reason: "the image", RequestedBy: "alice@example.com", State: HoldApplying, HeldOrgs: []string{"acme", "globex"},
		Targets: new(2), Applied: new(1), Failed: []HoldFailure{{Pool: "gh-nix", Org: "globex", Reason: "ForgeUnreachable"}}}
	o.mu.Unlock()
	o.update()
	o.mu.Lock()
}

func (o *fleetEnv) as(c access.Caller) *fleetEnv {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.caller, o.refused = c, nil
	return o
}

func (o *fleetEnv) advance(d time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.now = o.now.Add(d)
}

func callerWith(login string, rules ...string) access.Caller {
	c := access.Caller{Login: access.Login(login), UserID: "1", Device: access.Device{ID: "n-" + login, Name: "laptop.ts.net"}, Tailnet: "example.com", Via: access.ViaTailnet}
	for _, r := range rules {
		c.Rules = append(c.Rules, json.RawMessage(r))
	}
	return c
}

func alice() access.Caller {
	return callerWith("alice@example.com", `{"role":"operator","orgs":["*"]}`)
}
func amy() access.Caller { return callerWith("amy@acme.dev") }
func mel() access.Caller { return callerWith("mel@acme.dev") }
func pat() access.Caller { return callerWith("pat@platform.dev") }

// apiResponse is a response as a client decodes it.
type apiResponse struct {
	Status int    `json:"-"`
	Text   string `json:"-"`
	Kind   string
	Data   json.RawMessage
	Meta   struct {
		Page    *struct{ Total *int }
		Sources []Source
	}
	Error *problem.Error
}

func (a apiResponse) code() problem.Code {
	if a.Error == nil {
		return ""
	}
	return a.Error.Code
}

func (o *fleetEnv) do(t *testing.T, method, path, body string, header ...string) apiResponse {
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
	a := apiResponse{Status: w.Code, Text: w.Body.String()}
	if err := json.NewDecoder(bytes.NewReader(w.Body.Bytes())).Decode(&a); err != nil {
		t.Fatalf("%s %s: %v: %s", method, path, err, w.Body)
	}
	return a
}

func dataOf[T any](t *testing.T, a apiResponse) (v T) {
	t.Helper()
	if a.Error != nil {
		t.Fatalf("%d %+v", a.Status, a.Error)
	}
	if err := json.Unmarshal(a.Data, &v); err != nil {
		t.Fatalf("%v: %s", err, a.Data)
	}
	return v
}
