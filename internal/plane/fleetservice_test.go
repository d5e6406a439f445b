package plane

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/problem"
)

// PLANE-09, PL-05: a caller with a role in one organisation does not see objects of another: by id, in lists, totals, searches and cursors,
// and in shared objects.
func TestPL05_Organisations(t *testing.T) {
	for _, who := range []access.Caller{amy(), mel(), callerWith("vic@example.com", `{"role":"viewer","orgs":["acme"]}`)} {
		o := newFleetEnv().as(who)
		for _, path := range []string{"/api/v1/pools/github/globex/gh-nix", "/api/v1/pools/gitlab/globex/gl-docker", "/api/v1/enrollments/globex", "/api/v1/holds/others", "/api/v1/holds/nothing"} {
			if a := o.do(t, "GET", path, ""); a.Status != http.StatusNotFound || strings.Contains(a.Text, "secret") {
				t.Errorf("%s: %s", path, a.Text)
			}
		}
		for path, want := range map[string]int{"/api/v1/pools": 2, "/api/v1/pools?org=globex": 0, "/api/v1/pools?forge=github": 2, "/api/v1/pools?forge=gitlab": 0, "/api/v1/pools?q=globex": 0, "/api/v1/pools?q=secret": 0,
			"/api/v1/pools?state=Degraded": 0, "/api/v1/enrollments": 1, "/api/v1/enrollments?state=Failed": 0, "/api/v1/enrollments?q=gus": 0, "/api/v1/forges": 1, "/api/v1/drift": 2, "/api/v1/drift?state=error": 0, "/api/v1/drift?state=explained": 1, "/api/v1/drift?org=globex": 0, "/api/v1/drift?q=labels": 1, "/api/v1/holds": 1, "/api/v1/holds?q=secret": 0} {
			a := o.do(t, "GET", path, "")
			switch all := dataOf[[]json.RawMessage](t, a); {
			case len(all) != want:
				t.Errorf("%s: len(all) = %v, want %v", path, len(all), want)
			case *a.Meta.Page.Total != want:
				t.Errorf("%s: *a.Meta.Page.Total = %v, want %v", path, *a.Meta.Page.Total, want)
			case strings.Contains(a.Text, "secret"):
				t.Errorf("%s: a.Text = %q contains %q", path, a.Text, "secret")
			case strings.Contains(a.Text, "globex"):
				t.Errorf("%s: a.Text = %q contains %q", path, a.Text, "globex")
			}
		}
		a := o.do(t, "GET", "/api/runners", "")
		switch r := dataOf[Runners](t, a); {
		case len(r.Forges) != 1:
			t.Errorf("len(r.Forges) = %v, want 1", len(r.Forges))
		case len(r.Forges[0].Runners) != 2:
			t.Errorf("len(r.Forges[0].Runners) = %v, want 2", len(r.Forges[0].Runners))
		case r.Forges[0].Counts.Busy == nil:
			t.Error("r.Forges[0].Counts.Busy is nil")
		case *r.Forges[0].Counts.Busy != 4:
			t.Errorf("*r.Forges[0].Counts.Busy = %v, want 4", *r.Forges[0].Counts.Busy)
		case strings.Contains(a.Text, "globex"):
			t.Errorf("a.Text = %q contains %q", a.Text, "globex")
		}
		// An object of several organisations shows no total.
		switch h := dataOf[Hold](t, o.do(t, "GET", "/api/v1/holds/shared", "")); {
		case h.Targets != nil:
			t.Errorf("h.Targets = %v, want nil", h.Targets)
		case h.Applied != nil:
			t.Errorf("h.Applied = %v, want nil", h.Applied)
		case len(h.Failed) != 0:
			t.Errorf("len(h.Failed) = %v, want 0", len(h.Failed))
		case h.RequestedBy == "":
			t.Errorf("h.RequestedBy is empty; %+v", h)
		case h.Actions.Lift.Allowed:
			t.Errorf("h.Actions.Lift.Allowed is true; %+v", h)
		}
		if f := dataOf[[]Forge](t, o.do(t, "GET", "/api/v1/forges", "")); f[0].RateLimit != nil {
			t.Errorf("%+v", f)
		}
	}
	o := newFleetEnv().as(alice())
	first := o.do(t, "GET", "/api/v1/pools?limit=1", "")
	var page struct {
		Meta struct{ Page struct{ Next string } }
	}
	if err := json.Unmarshal([]byte(first.Text), &page); err != nil || page.Meta.Page.Next == "" {
		t.Fatalf("%v %s", err, first.Text)
	}
	cursor := url.QueryEscape(page.Meta.Page.Next)
	if a := o.do(t, "GET", "/api/v1/pools?org=acme&cursor="+cursor, ""); a.code() != problem.BadRequest {
		t.Errorf("a cursor of another choice: %s", a.Text)
	}
	if a := o.as(amy()).do(t, "GET", "/api/v1/pools?cursor="+cursor, ""); strings.Contains(a.Text, "globex") {
		t.Errorf("another caller's cursor: %s", a.Text)
	}
}

// FLEET-02: runners by forge. A sum with an unknown part is unknown, and what no source has reported is null.
func TestFLEET02_Runners(t *testing.T) {
	o := newFleetEnv().as(alice())
	r := dataOf[Runners](t, o.do(t, "GET", "/api/runners", ""))
	switch {
	case len(r.Forges) != 2:
		t.Errorf("len(r.Forges) = %v, want 2", len(r.Forges))
	case r.Forges[0].Forge != "github":
		t.Errorf("r.Forges[0].Forge = %q, want %q", r.Forges[0].Forge, "github")
	case r.Forges[0].Source != "ok":
		t.Errorf("r.Forges[0].Source = %q, want %q", r.Forges[0].Source, "ok")
	case len(r.Forges[0].Runners) != 3:
		t.Errorf("len(r.Forges[0].Runners) = %v, want 3", len(r.Forges[0].Runners))
	case !slices.Equal(r.Forges[0].Orgs, []string{"acme", "globex"}):
		t.Errorf("r.Forges[0].Orgs (-want +got):\n%s", cmp.Diff([]string{"acme", "globex"}, r.Forges[0].Orgs))
	case r.Forges[0].Counts.Busy != nil:
		t.Errorf("r.Forges[0].Counts.Busy = %v, want nil", r.Forges[0].Counts.Busy)
	case *r.Forges[0].Counts.Idle != 3:
		t.Errorf("*r.Forges[0].Counts.Idle = %v, want 3", *r.Forges[0].Counts.Idle)
	case r.Forges[1].Source != "unknown":
		t.Errorf("r.Forges[1].Source = %q, want %q", r.Forges[1].Source, "unknown")
	}
	o.store = NewStore(o.service.Plane.Now)
	o.service.Plane.Store = o.store
	o.store.Expect("kubernetes", KindPool)
	for _, path := range []string{"/api/runners", "/api/v1/pools"} {
		a := o.do(t, "GET", path, "")
		switch {
		case strings.Contains(string(a.Data), "["):
			t.Errorf("%s: string(a.Data) = %q contains %q; %s", path, string(a.Data), "[", a.Text)
		case len(a.Meta.Sources) != 1:
			t.Errorf("%s: len(a.Meta.Sources) = %v, want 1; %s", path, len(a.Meta.Sources), a.Text)
		case a.Meta.Sources[0].Status != StatusDown:
			t.Errorf("%s: a.Meta.Sources[0].Status = %q, want %q; %s", path, a.Meta.Sources[0].Status, StatusDown, a.Text)
		}
	}
	if a := o.do(t, "GET", "/api/v1/pools/github/acme/gh-nix", ""); a.code() != problem.Unavailable {
		t.Errorf("%s", a.Text)
	}
	// A pause must not fail for lack of data.
	if a := o.do(t, "POST", "/api/v1/holds", `{"scope":{"org":"acme","pool":"gh-nix"},"reason":"x"}`); !dataOf[Created](t, a).Created {
		t.Errorf("%s", a.Text)
	}
}

const narrow = `{"scope":{"org":"acme","pool":"gh-nix"},"reason":"a flaky image"}`

// PLANE-10, FL-06: a repeated request makes one hold, in the caller's name. With a key the hold is found by the key, and another request
// with the same key is a conflict.
func TestCreate(t *testing.T) {
	o := newFleetEnv().as(mel())
	first := dataOf[Created](t, o.do(t, "POST", "/api/v1/holds", narrow))
	switch {
	case !first.Created:
		t.Errorf("first.Created is false; first = %+v", first)
	case first.Hold.RequestedBy != "mel@acme.dev":
		t.Errorf("first.Hold.RequestedBy = %q, want %q", first.Hold.RequestedBy, "mel@acme.dev")
	case *first.Targets != 1:
		t.Errorf("*first.Targets = %v, want 1", *first.Targets)
	case !strings.HasPrefix(first.Hold.Name, "acme-gh-nix-"):
		t.Errorf("first.Hold.Name = %q does not start with %q", first.Hold.Name, "acme-gh-nix-")
	case len(first.Hold.Name) > 40:
		t.Errorf("len(first.Hold.Name) = %v, want at most 40", len(first.Hold.Name))
	}
	o.update()
	if again := dataOf[Created](t, o.do(t, "POST", "/api/v1/holds", narrow)); again.Created || again.Hold.Name != first.Hold.Name {
		t.Errorf("%+v", again)
	}
	if a := o.do(t, "POST", "/api/v1/pools/github/acme/gh-nix/pause", `{"reason":"a flaky image"}`); dataOf[Created](t, a).Hold.Name != first.Hold.Name {
		t.Errorf("%s", a.Text)
	}
	if a := o.do(t, "POST", "/api/v1/holds", strings.Replace(narrow, "flaky", "bad", 1)); a.code() != problem.Conflict {
		t.Errorf("another reason: %s", a.Text)
	}
	if other := dataOf[Created](t, o.as(amy()).do(t, "POST", "/api/v1/holds", narrow)); !other.Created || other.Hold.Name == first.Hold.Name {
		t.Errorf("another person's: %+v", other)
	}
	o.as(mel())
	one := dataOf[Created](t, o.do(t, "POST", "/api/v1/holds", narrow, "Idempotency-Key", "k1"))
	o.update()
	if !one.Created || one.Hold.Name == first.Hold.Name {
		t.Errorf("%+v", one)
	}
	if two := dataOf[Created](t, o.do(t, "POST", "/api/v1/holds", narrow, "Idempotency-Key", "k1")); two.Created || two.Hold.Name != one.Hold.Name {
		t.Errorf("%+v", two)
	}
	if a := o.do(t, "POST", "/api/v1/holds", strings.Replace(narrow, "gh-nix", "gh-docker", 1), "Idempotency-Key", "k1"); !dataOf[Created](t, a).Created {
		t.Errorf("another scope has another name: %s", a.Text)
	}
	o.update()
	if a := o.do(t, "POST", "/api/v1/holds", strings.Replace(narrow, "flaky", "bad", 1), "Idempotency-Key", "k1"); a.code() != problem.Conflict {
		t.Errorf("the same key: %s", a.Text)
	}
	// An expired hold keeps its name, and the next one has another.
	o.mu.Lock()
	h := o.stored[first.Hold.Name]
	h.State = HoldExpired
	o.stored[h.Name] = h
	o.mu.Unlock()
	o.update()
	if next := dataOf[Created](t, o.do(t, "POST", "/api/v1/holds", narrow)); !next.Created || next.Hold.Name == first.Hold.Name {
		t.Errorf("%+v", next)
	}
	before := len(o.names())
	switch dry := dataOf[Created](t, o.do(t, "POST", "/api/v1/holds?dryRun=true", `{"scope":{"org":"acme"},"reason":"x","expiresIn":"2h"}`)); {
	case dry.Created:
		t.Errorf("dry.Created is true; %+v", dry)
	case !dry.DryRun:
		t.Errorf("dry.DryRun is false; %+v", dry)
	case *dry.Targets != 2:
		t.Errorf("*dry.Targets = %v, want 2", *dry.Targets)
	case len(o.names()) != before:
		t.Errorf("len(o.names()) = %v, want %v", len(o.names()), before)
	case dry.Hold.ExpiresAt == nil:
		t.Error("dry.Hold.ExpiresAt is nil")
	case !dry.Hold.ExpiresAt.Equal(fleetNoon.Add(2 * time.Hour)):
		t.Errorf("dry.Hold.ExpiresAt = %v, want %v", dry.Hold.ExpiresAt, fleetNoon.Add(2*time.Hour))
	}
	for body, want := range map[string]problem.Code{
		`{"scope":{"org":"acme","pool":"gh-nix"}}`: problem.Validation, `{"scope":{},"reason":"x"}`: problem.Validation, `{"scope":{"all":true,"org":"acme"},"reason":"x"}`: problem.Validation,
		`{"scope":{"org":"*"},"reason":"x"}`: problem.Validation, `{"scope":{"pool":"*"},"reason":"x"}`: problem.Validation, `{"scope":{"forge":"*"},"reason":"x"}`: problem.Validation,
		`{"scope":{"org":"acme","pool":"gh-nix"},"reason":"x","mode":"Kill"}`: problem.Validation, `{"scope":{"org":"acme","pool":"gh-nix"},"reason":"x","expiresIn":"1s"}`: problem.Validation,
		`{"scope":{"org":"acme","pool":"gh-nix"},"reason":"x","requestedBy":"eve@example.com"}`: problem.BadRequest, `{"scope":{"org":"acme","pool":"nothing"},"reason":"x"}`: problem.NotFound,
		`{"scope":{"org":"globex"},"reason":"x"}`: problem.NotFound, `{"scope":{"all":true},"reason":"x"}`: problem.Forbidden, `{"scope":{"forge":"github"},"reason":"x"}`: problem.Forbidden,
		`{"scope":{"forge":"nothing"},"reason":"x"}`: problem.Forbidden, `{"scope":{"pool":"gh-nix"},"reason":"x"}`: problem.Forbidden,
		`{"scope":{"org":"acme","pool":"gh-nix"},"reason":"x","mode":"Stop"}`: problem.Forbidden,
	} {
		if a := o.do(t, "POST", "/api/v1/holds", body); a.code() != want {
			t.Errorf("%s: %s, want %s", body, a.Text, want)
		}
	}
	if a := o.as(amy()).do(t, "POST", "/api/v1/holds", `{"scope":{"org":"acme","pool":"gh-nix"},"reason":"x","mode":"Stop"}`); !dataOf[Created](t, a).Created {
		t.Errorf("an org-admin stops: %s", a.Text)
	}
}

// MC-02, PL-06: an action on more than one pool needs a second request, by the same caller and with the same arguments. It passes once.
func TestMC02_PauseWide(t *testing.T) {
	const all = `{"scope":{"all":true},"reason":"node upgrade"}`
	const said = `{"scope":{"all":true},"reason":"node upgrade","confirm":"PAUSE ALL"}`
	ask := func(o *fleetEnv, body string) apiResponse {
		return o.do(t, "POST", "/api/v1/holds", body, "Idempotency-Key", fmt.Sprint(len(o.names())))
	}
	o := newFleetEnv().as(alice())
	have := len(o.names())
	if a := ask(o, said); a.code() != problem.Confirmation || a.Status != http.StatusPreconditionRequired {
		t.Errorf("by the phrase alone: %s", a.Text)
	}
	o = newFleetEnv().as(alice())
	a := ask(o, all)
	switch {
	case a.code() != problem.Confirmation:
		t.Fatalf("a.code() = %q, want %q; %s", a.code(), problem.Confirmation, a.Text)
	case a.Error.Confirm == nil:
		t.Fatalf("a.Error.Confirm is nil; %s", a.Text)
	case a.Error.Confirm.Phrase != "PAUSE ALL":
		t.Fatalf("a.Error.Confirm.Phrase = %q, want %q; %s", a.Error.Confirm.Phrase, "PAUSE ALL", a.Text)
	case *a.Error.Confirm.Targets != 4:
		t.Fatalf("*a.Error.Confirm.Targets = %v, want 4; %s", *a.Error.Confirm.Targets, a.Text)
	}
	for why, body := range map[string]string{"another phrase": strings.Replace(said, "ALL", "all", 1), "another reason": strings.Replace(said, "node", "no", 1), "another mode": strings.Replace(said, `"reason"`, `"mode":"Drain","reason"`, 1),
		"another scope": strings.Replace(said, `"all":true`, `"forge":"github"`, 1)} {
		if a := ask(o, body); a.code() != problem.Confirmation {
			t.Errorf("%s: %s", why, a.Text)
		}
	}
	if a := ask(o.as(pat()), said); a.code() != problem.Confirmation {
		t.Errorf("another person: %s", a.Text)
	}
	// Of several concurrent requests at least one passes, and they make one hold.
	o.as(alice())
	var mu sync.Mutex
	var passed, refused int
	var wg sync.WaitGroup
	key := []string{"Idempotency-Key", "k"}
	for range 8 {
		wg.Go(func() {
			a := o.do(t, "POST", "/api/v1/holds", said, key...)
			mu.Lock()
			defer mu.Unlock()
			if a.Error == nil {
				passed++
			} else {
				refused++
			}
		})
	}
	wg.Wait()
	if passed < 1 || len(o.names()) != have+1 { // a refused request counts as a first one, so several may pass
		t.Errorf("%d passed, %d refused, %v", passed, refused, o.names())
	}
	o.update()
	if again := dataOf[Created](t, o.do(t, "POST", "/api/v1/holds", all, key...)); again.Created {
		t.Errorf("an existing hold needs no confirmation: %+v", again)
	}
	// The confirmation is valid for five minutes.
	o = newFleetEnv().as(alice())
	ask(o, all)
	o.advance(confirmLife)
	if a := ask(o, said); a.code() != problem.Confirmation {
		t.Errorf("too late: %s", a.Text)
	}
	if a := ask(o, said); !dataOf[Created](t, a).Created {
		t.Errorf("requested again: %s", a.Text)
	}
	// A failover clears the confirmations, and nothing is done without one.
	o = newFleetEnv().as(alice())
	ask(o, all)
	o.service.confirmations.all = nil
	if a := ask(o, said); a.code() != problem.Confirmation || len(o.names()) != have {
		t.Errorf("another process: %s", a.Text)
	}
}

// MC-02, PL-06: lifting a wide hold needs a code that a person received for exactly that. The code is valid for the same caller and once.
// Only the caller that paused everything, or a platform-admin, may lift that.
func TestMC02_LiftWide(t *testing.T) {
	setting := func(by access.Caller) (*fleetEnv, string) {
		o := newFleetEnv().as(by)
		o.do(t, "POST", "/api/v1/holds", `{"scope":{"all":true},"reason":"x"}`)
		name := dataOf[Created](t, o.do(t, "POST", "/api/v1/holds", `{"scope":{"all":true},"reason":"x","confirm":"PAUSE ALL"}`)).Hold.Name
		o.update()
		return o, name
	}
	lift := func(o *fleetEnv, name, reason, code string) apiResponse {
		return o.do(t, "DELETE", "/api/v1/holds/"+name, fmt.Sprintf(`{"reason":%q,"confirm":%q}`, reason, code))
	}
	o, name := setting(alice())
	for _, other := range []access.Caller{callerWith("otto@example.com", `{"role":"operator","orgs":["*"]}`), callerWith("olga@example.com", `{"role":"org-admin","orgs":["*"]}`), mel(), amy()} {
		if a := lift(o.as(other), name, "done", ""); a.code() != problem.Forbidden {
			t.Errorf("%s: %s", other.Login, a.Text)
		}
	}
	guest := alice()
	guest.Shared, guest.Tailnet = true, "other.example"
	if a := lift(o.as(guest), name, "done", ""); a.code() != problem.Forbidden {
		t.Errorf("a namesake of another tailnet: %s", a.Text)
	}
	if a := lift(o.as(callerWith("vic@example.com", `{"role":"viewer","orgs":["*"]}`)), name, "done", ""); a.code() != problem.Forbidden {
		t.Errorf("a viewer: %s", a.Text)
	}
	for _, who := range []access.Caller{alice(), pat()} {
		o, name := setting(alice())
		o.as(who)
		a := lift(o, name, "done", "")
		switch {
		case a.code() != problem.Confirmation:
			t.Fatalf("a.code() = %q, want %q; %s", a.code(), problem.Confirmation, a.Text)
		case a.Error.Confirm.ID == "":
			t.Fatalf("a.Error.Confirm.ID is empty; %s", a.Text)
		case a.Error.Confirm.Phrase != "":
			t.Fatalf("a.Error.Confirm.Phrase = %q, want none; %s", a.Error.Confirm.Phrase, a.Text)
		case a.Error.Confirm.Path != "/confirm/"+a.Error.Confirm.ID:
			t.Fatalf("a.Error.Confirm.Path = %q, want %q; %s", a.Error.Confirm.Path, "/confirm/"+a.Error.Confirm.ID, a.Text)
		}
		id := a.Error.Confirm.ID
		if a := lift(o, name, "done", "LIFT ALL"); a.code() != problem.Confirmation {
			t.Errorf("by the phrase: %s", a.Text)
		}
		requested := dataOf[Asked](t, o.do(t, "GET", "/api/v1/confirmations/"+id, ""))
		switch {
		case requested.Phrase != "LIFT ALL":
			t.Errorf("requested.Phrase = %q, want %q", requested.Phrase, "LIFT ALL")
		case requested.Args["reason"] != "done":
			t.Errorf(`requested.Args["reason"] = %q, want %q`, requested.Args["reason"], "done")
		case requested.Object != name:
			t.Errorf("requested.Object = %q, want %q", requested.Object, name)
		}
		confirm := func(phrase string) apiResponse {
			return o.do(t, "POST", "/api/v1/confirmations", fmt.Sprintf(`{"id":%q,"phrase":%q}`, id, phrase))
		}
		if a := confirm("lift all"); a.code() != problem.Validation {
			t.Errorf("%s", a.Text)
		}
		o.as(callerWith("otto@example.com", `{"role":"platform-admin","orgs":["*"]}`))
		for _, a := range []apiResponse{confirm("LIFT ALL"), o.do(t, "GET", "/api/v1/confirmations/"+id, "")} {
			if a.code() != problem.NotFound {
				t.Errorf("another person's: %s", a.Text)
			}
		}
		code := dataOf[Code](t, o.as(who).do(t, "POST", "/api/v1/confirmations", fmt.Sprintf(`{"id":%q,"phrase":"LIFT ALL"}`, id))).Code
		if a := lift(o.as(callerWith("otto@example.com", `{"role":"platform-admin","orgs":["*"]}`)), name, "done", code); a.code() != problem.Confirmation {
			t.Errorf("another person's code: %s", a.Text)
		}
		o.as(who)
		done := dataOf[Lifted](t, lift(o, name, "done", code))
		if !slices.Equal(done.Lifted, []string{name}) || !slices.Equal(done.Remaining, []string{"others", "shared"}) {
			t.Errorf("%+v", done)
		}
		o.mu.Lock()
		o.stored[name] = Hold{ID: name, Name: name, UID: "u-" + name, Scope: Scope{All: true}, RequestedBy: "alice@example.com"}
		o.mu.Unlock()
		o.update()
		if a := lift(o, name, "done", code); a.code() != problem.Confirmation {
			t.Errorf("the code a second time: %s", a.Text)
		}
		// A code used for another request becomes invalid.
		id = lift(o, name, "done", "").Error.Confirm.ID
		code = dataOf[Code](t, confirm("LIFT ALL")).Code
		if a := lift(o, name, "something else", code); a.code() != problem.Confirmation {
			t.Errorf("another reason: %s", a.Text)
		}
		if a := lift(o, name, "done", code); a.code() != problem.Confirmation {
			t.Errorf("a code that is void: %s", a.Text)
		}
	}
	// A hold of one pool needs no code, and the organisation's own people lift it.
	o = newFleetEnv().as(amy())
	name = dataOf[Created](t, o.do(t, "POST", "/api/v1/holds", narrow)).Hold.Name
	o.update()
	if dry := dataOf[Lifted](t, o.as(mel()).do(t, "POST", "/api/v1/pools/github/acme/gh-nix/resume?dryRun=true", `{"reason":"x"}`)); !slices.Equal(dry.Lifted, []string{name}) || !slices.Contains(o.names(), name) {
		t.Errorf("%+v", dry)
	}
	switch done := dataOf[Lifted](t, o.do(t, "POST", "/api/v1/pools/github/acme/gh-nix/resume", `{"reason":"x"}`)); {
	case !slices.Equal(done.Lifted, []string{name}):
		t.Errorf("done.Lifted (-want +got):\n%s", cmp.Diff([]string{name}, done.Lifted))
	case !slices.Equal(done.Remaining, []string{"shared"}):
		t.Errorf("done.Remaining (-want +got):\n%s", cmp.Diff([]string{"shared"}, done.Remaining))
	case slices.Contains(o.names(), name):
		t.Errorf("o.names() = %v contains %q", o.names(), name)
	}
	o.update()
	if a := o.do(t, "POST", "/api/v1/pools/github/acme/gh-nix/resume", `{"reason":"x"}`); a.code() != problem.Held || !strings.Contains(a.Text, "shared by alice@example.com") {
		t.Errorf("%s", a.Text)
	}
	if a := o.do(t, "POST", "/api/v1/pools/github/acme/gh-docker/resume", `{"reason":"x"}`); a.code() != problem.Conflict {
		t.Errorf("%s", a.Text)
	}
	if a := o.do(t, "DELETE", "/api/v1/holds/others", `{"reason":"x"}`); a.code() != problem.NotFound {
		t.Errorf("%s", a.Text)
	}
}

// The number of waiting confirmations is bounded.
func TestWaitingIsBounded(t *testing.T) {
	o := newFleetEnv().as(alice())
	var last apiResponse
	for i := range maxPendingPerCaller + 1 {
		last = o.do(t, "POST", "/api/v1/holds", fmt.Sprintf(`{"scope":{"all":true},"reason":"%d"}`, i))
	}
	if last.code() != problem.RateLimited || len(o.service.confirmations.all) != maxPendingPerCaller {
		t.Errorf("%s, and %d wait", last.Text, len(o.service.confirmations.all))
	}
	if a := o.as(pat()).do(t, "POST", "/api/v1/holds", `{"scope":{"all":true},"reason":"x"}`); a.code() != problem.Confirmation {
		t.Errorf("another person: %s", a.Text)
	}
}

// Columns, states and examples are consistent.
func TestTables(t *testing.T) {
	o := newFleetEnv().as(alice())
	for path, columns := range map[string][]string{"pools": keys(pools().Columns(Pool{})), "enrollments": keys(enrollments().Columns(Enrollment{})), "holds": keys(holds().Columns(Hold{})), "forges": keys(forges().Columns(Forge{}))} {
		for _, c := range columns {
			if a := o.do(t, "GET", "/api/v1/"+path+"?sort=-"+c, ""); a.Error != nil {
				t.Errorf("%s by %s: %s", path, c, a.Text)
			}
		}
	}
}

func keys[V any](m map[string]V) (all []string) {
	for k := range m {
		all = append(all, k)
	}
	return all
}

// Only a caller that may lift a hold may change its expiry. An earlier expiry of a hold of more than one pool needs a person's
// confirmation.
func TestReschedule(t *testing.T) {
	o := newFleetEnv().as(mel())
	made := dataOf[Created](t, o.do(t, "POST", "/api/v1/pools/github/acme/gh-docker/pause", `{"reason":"flaky"}`)).Hold
	o.update()
	path := "/api/v1/holds/" + made.Name
	for body, code := range map[string]problem.Code{`{"reason":"x","expiresIn":"1s"}`: problem.Validation, `{"reason":"x","expiresIn":"9000h"}`: problem.Validation, `{"expiresIn":"2h"}`: problem.Validation,
		`{"reason":"x","expiresAt":"2026-12-01T00:00:00Z"}`: problem.BadRequest} {
		if a := o.do(t, "PATCH", path, body); a.code() != code {
			t.Errorf("%s: %s", body, a.Text)
		}
	}
	if a := o.do(t, "PATCH", path, `{"reason":"x","expiresIn":"2h"}`, "If-Match", "7"); a.code() != problem.Conflict {
		t.Errorf("of another version: %s", a.Text)
	}
	if a := o.as(callerWith("vic@example.com", `{"role":"viewer","orgs":["acme"]}`)).do(t, "PATCH", path, `{"reason":"x"}`); a.code() != problem.Forbidden {
		t.Errorf("a viewer: %s", a.Text)
	}
	if a := o.as(callerWith("gus@globex.dev")).do(t, "PATCH", path, `{"reason":"x"}`); a.code() != problem.NotFound {
		t.Errorf("a caller of another organisation: %s", a.Text)
	}
	o.as(mel())
	switch r := dataOf[Rescheduled](t, o.do(t, "PATCH", path+"?dryRun=true", `{"reason":"x","expiresIn":"2h"}`)); {
	case !r.DryRun:
		t.Errorf("dry run: r.DryRun is false; %+v", r)
	case !r.Hold.ExpiresAt.Equal(fleetNoon.Add(2 * time.Hour)):
		t.Errorf("dry run: r.Hold.ExpiresAt = %v, want %v", r.Hold.ExpiresAt, fleetNoon.Add(2*time.Hour))
	case o.stored[made.Name].ExpiresAt != nil:
		t.Errorf("dry run: o.stored[made.Name].ExpiresAt = %v, want nil", o.stored[made.Name].ExpiresAt)
	}
	switch r := dataOf[Rescheduled](t, o.do(t, "PATCH", path, `{"reason":"it takes longer","expiresIn":"2h"}`, "If-Match", made.Version)); {
	case r.DryRun:
		t.Errorf("r.DryRun is true; %+v", r)
	case !r.Hold.ExpiresAt.Equal(fleetNoon.Add(2 * time.Hour)):
		t.Errorf("r.Hold.ExpiresAt = %v, want %v", r.Hold.ExpiresAt, fleetNoon.Add(2*time.Hour))
	case r.Hold.Actions == nil:
		t.Error("r.Hold.Actions is nil")
	}
	last := o.entries[len(o.entries)-1]
	switch {
	case last.Org != "acme":
		t.Errorf("recorded: last.Org = %q, want %q", last.Org, "acme")
	case last.Reason != "it takes longer":
		t.Errorf("recorded: last.Reason = %q, want %q", last.Reason, "it takes longer")
	case last.Object != made.Name:
		t.Errorf("recorded: last.Object = %q, want %q", last.Object, made.Name)
	case last.Args["expiresIn"] != "2h":
		t.Errorf(`recorded: last.Args["expiresIn"] = %q, want %q`, last.Args["expiresIn"], "2h")
	case last.Args["reason"] != "":
		t.Errorf(`recorded: last.Args["reason"] = %q, want none`, last.Args["reason"])
	}
	o.update()

	// A hold of an organisation, a pool or everything: a later expiry at once, an earlier one with a code.
	o.as(alice())
	o.do(t, "POST", "/api/v1/holds", `{"scope":{"all":true},"reason":"upgrade","expiresIn":"2h"}`)
	all := dataOf[Created](t, o.do(t, "POST", "/api/v1/holds", `{"scope":{"all":true},"reason":"upgrade","expiresIn":"2h","confirm":"PAUSE ALL"}`)).Hold
	o.update()
	path = "/api/v1/holds/" + all.Name
	if a := o.as(mel()).do(t, "PATCH", path, `{"reason":"x","expiresIn":"4h"}`); a.code() != problem.Forbidden {
		t.Errorf("a hold of all runners, by a caller of one organisation: %s", a.Text)
	}
	o.as(alice())
	if r := dataOf[Rescheduled](t, o.do(t, "PATCH", path, `{"reason":"longer","expiresIn":"4h"}`)); !r.Hold.ExpiresAt.Equal(fleetNoon.Add(4 * time.Hour)) {
		t.Errorf("%+v", r)
	}
	o.update()
	const sooner = `{"reason":"done early","expiresIn":"1m"%s}`
	a := o.do(t, "PATCH", path, fmt.Sprintf(sooner, ""))
	if a.code() != problem.Confirmation || a.Error.Confirm.ID == "" {
		t.Fatalf("earlier: %s", a.Text)
	}
	requested := dataOf[Asked](t, o.do(t, "GET", "/api/v1/confirmations/"+a.Error.Confirm.ID, ""))
	if requested.Phrase != "END ALL" || requested.Args["expiresIn"] != "1m" {
		t.Errorf("%+v", requested)
	}
	code := dataOf[Code](t, o.do(t, "POST", "/api/v1/confirmations", `{"id":"`+requested.ID+`","phrase":"END ALL"}`)).Code
	if a := o.do(t, "DELETE", path, `{"reason":"done early","confirm":"`+code+`"}`); a.code() != problem.Confirmation {
		t.Errorf("lifted with the code for an end: %s", a.Text)
	}
	requested = dataOf[Asked](t, o.do(t, "GET", "/api/v1/confirmations/"+o.do(t, "PATCH", path, fmt.Sprintf(sooner, "")).Error.Confirm.ID, ""))
	code = dataOf[Code](t, o.do(t, "POST", "/api/v1/confirmations", `{"id":"`+requested.ID+`","phrase":"END ALL"}`)).Code
	if r := dataOf[Rescheduled](t, o.do(t, "PATCH", path, fmt.Sprintf(sooner, `,"confirm":"`+code+`"`))); !r.Hold.ExpiresAt.Equal(fleetNoon.Add(time.Minute)) {
		t.Errorf("%+v", r)
	}
}

// PLANE-09: administrators of an organisation read all audit entries about it, by any actor. They do not read entries about others, about
// several organisations, or about sign-ins.
func TestRecordOfAnOrganisation(t *testing.T) {
	o := newFleetEnv().as(alice())
	for _, path := range []string{"/api/v1/pools/github/acme/gh-nix/pause", "/api/v1/pools/github/globex/gh-nix/pause"} {
		o.do(t, "POST", path, `{"reason":"a flaky image"}`)
	}
	o.do(t, "GET", "/api/v1/pools/github/acme/gh-nix", "")
	o.update()
	for _, name := range o.names() {
		if name != "others" && name != "shared" {
			o.do(t, "DELETE", "/api/v1/holds/"+name, `{"reason":"mended"}`)
		}
	}
	o.as(callerWith("gus@globex.dev")).do(t, "POST", "/api/v1/pools/github/acme/gh-nix/pause", `{"reason":"not mine"}`)
	for who, want := range map[string][]string{
		"amy@acme.dev":   {"refused gus@globex.dev not mine", "done alice@example.com mended", "done alice@example.com ", "done alice@example.com a flaky image"},
		"mel@acme.dev":   {},
		"gus@globex.dev": {"refused gus@globex.dev not mine", "done alice@example.com mended", "done alice@example.com a flaky image"},
	} {
		got := []string{}
		for _, e := range dataOf[[]audit.Entry](t, o.as(callerWith(who)).do(t, "GET", "/api/v1/audit", "")) {
			if e.Verb != access.AuditRead {
				got = append(got, string(e.Result)+" "+e.Actor.Login+" "+e.Reason)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s reads %q, want %q", who, got, want)
		}
	}
	if all := dataOf[[]audit.Entry](t, o.as(callerWith("otto@example.com", `{"role":"org-admin","orgs":["*"]}`)).do(t, "GET", "/api/v1/audit", "")); len(all) < 6 || slices.ContainsFunc(all, func(e audit.Entry) bool { return e.Org == "" && e.Actor.Login != "otto@example.com" }) {
		t.Errorf("an administrator of all organisations reads %+v", all)
	}
}
