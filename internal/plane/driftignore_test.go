package plane

import (
	"net/http"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

// A caller that may propose changes for an organisation may ignore its drift, with a reason and an expiry, and no other drift (PL-05). The
// drift is listed as ignored and the action is audited.
func TestIgnoreDrift(t *testing.T) {
	o := newFleetEnv()
	const path, body = "/api/v1/drift/d1/ignore", `{"reason":"a trial","expiresIn":"72h"}`
	for why, x := range map[string]struct {
		who                access.Caller
		method, path, body string
		want               problem.Code
	}{
		"without an end":              {mel(), http.MethodPost, path, `{"reason":"r"}`, problem.Validation},
		"without a limit":             {mel(), http.MethodPost, path, `{"reason":"r","expiresIn":"9999h"}`, problem.Validation},
		"without a reason":            {mel(), http.MethodPost, path, `{"reason":" ","expiresIn":"1h"}`, problem.Validation},
		"another's":                   {mel(), http.MethodPost, "/api/v1/drift/d2/ignore", body, problem.NotFound},
		"an unknown drift":            {mel(), http.MethodPost, "/api/v1/drift/nothing/ignore", body, problem.NotFound},
		"an explained drift":          {mel(), http.MethodPost, "/api/v1/drift/d3/ignore", body, problem.Conflict},
		"a drift that is not ignored": {mel(), http.MethodDelete, path, `{"reason":"r"}`, problem.Conflict},
		"by a viewer":                 {callerWith("vic@example.com", `{"role":"viewer","orgs":["acme"]}`), http.MethodPost, path, body, problem.Forbidden},
	} {
		if a := o.as(x.who).do(t, x.method, x.path, x.body); a.code() != x.want {
			t.Errorf("%s: %d %s", why, a.Status, a.Text)
		}
	}
	if dry := dataOf[Ignoring](t, o.as(mel()).do(t, http.MethodPost, path+"?dryRun=true", body)); !dry.DryRun || dry.Drift.IgnoredUntil == nil {
		t.Errorf("%+v", dry)
	}
	list := func(state string) []Drift {
		t.Helper()
		return dataOf[[]Drift](t, o.as(mel()).do(t, http.MethodGet, "/api/v1/drift?state="+state, ""))
	}
	switch got := list("warning"); {
	case len(got) != 1:
		t.Errorf("after a dry run: len(got) = %v, want 1", len(got))
	case got[0].IgnoredUntil != nil:
		t.Errorf("after a dry run: got[0].IgnoredUntil = %v, want nil", got[0].IgnoredUntil)
	case !got[0].Actions.Ignore.Allowed:
		t.Errorf("after a dry run: got[0].Actions.Ignore.Allowed is false; got = %+v", got)
	case got[0].Actions.Unignore.Allowed:
		t.Errorf("after a dry run: got[0].Actions.Unignore.Allowed is true; got = %+v", got)
	}
	switch d := dataOf[Overview](t, o.as(mel()).do(t, http.MethodGet, "/api/v1/overview", "")).Drift; {
	case d == nil:
		t.Error("the overview counts: d is nil")
	case d.Total != 1:
		t.Errorf("the overview counts: d.Total = %v, want 1", d.Total)
	case d.States["warning"] != 1:
		t.Errorf(`the overview counts: d.States["warning"] = %v, want 1`, d.States["warning"])
	}
	done := dataOf[Ignoring](t, o.as(mel()).do(t, http.MethodPost, path, body))
	switch d := done.Drift; {
	case d.IgnoredUntil == nil:
		t.Error("d.IgnoredUntil is nil")
	case !d.IgnoredUntil.Equal(fleetNoon.Add(72 * time.Hour)):
		t.Errorf("d.IgnoredUntil = %v, want %v", d.IgnoredUntil, fleetNoon.Add(72*time.Hour))
	case d.IgnoredBy != "mel@acme.dev":
		t.Errorf("d.IgnoredBy = %q, want %q", d.IgnoredBy, "mel@acme.dev")
	case d.IgnoredReason != "a trial":
		t.Errorf("d.IgnoredReason = %q, want %q", d.IgnoredReason, "a trial")
	case !d.Actions.Unignore.Allowed:
		t.Errorf("d.Actions.Unignore.Allowed is false; %+v", d)
	}
	// Drift that a hold explains does not count either.
	if d := dataOf[Overview](t, o.as(mel()).do(t, http.MethodGet, "/api/v1/overview", "")).Drift; d == nil || d.Total != 0 {
		t.Errorf("the overview counts %+v", d)
	}
	switch got := list("ignored"); {
	case len(got) != 1:
		t.Errorf("len(got) = %v, want 1", len(got))
	case got[0].ID != "d1":
		t.Errorf("got[0].ID = %q, want %q", got[0].ID, "d1")
	case len(list("warning")) != 0:
		t.Errorf(`len(list("warning")) != 0; got = %+v`, got)
	}
	e := o.entries[len(o.entries)-4] // before the overview and the two lists
	switch {
	case e.Verb != access.ConfigPropose:
		t.Errorf("e.Verb = %q, want %q", e.Verb, access.ConfigPropose)
	case e.Object != "d1":
		t.Errorf("e.Object = %q, want %q", e.Object, "d1")
	case e.Org != "acme":
		t.Errorf("e.Org = %q, want %q", e.Org, "acme")
	case e.Reason != "a trial":
		t.Errorf("e.Reason = %q, want %q", e.Reason, "a trial")
	case e.Args["expiresIn"] == "":
		t.Errorf(`e.Args["expiresIn"] is empty; %+v`, e)
	}
	if back := dataOf[Ignoring](t, o.as(mel()).do(t, http.MethodDelete, path, `{"reason":"it is over"}`)); back.Drift.IgnoredUntil != nil || len(list("warning")) != 1 {
		t.Errorf("%+v", back)
	}
}

// An overlay applies to objects of all sources, present and future.
func TestOverlayOfDrift(t *testing.T) {
	o := newFleetEnv()
	is := true
	show := func(x Object) Object {
		if is && x.Key() == "d1" {
			return x.(Drift).WithIgnore(DriftIgnore{By: "mel@acme.dev", Reason: "r", Until: fleetNoon.Add(time.Hour)})
		}
		return x.(Drift).WithIgnore(DriftIgnore{})
	}
	at := o.store.Revision()
	o.store.Overlay(KindDrift, show)
	reported, _, _ := o.store.Since(at, func(StoreEvent) bool { return true })
	if len(reported) != 1 || reported[0].Object.(Drift).CurrentState() != DriftIgnored {
		t.Fatalf("reported %+v", reported)
	}
	d := reported[0].Object.(Drift)
	d.Evidence, d.IgnoredUntil = "still other labels", nil
	o.store.Set(KindDrift, "kubernetes", d)
	if x, _ := o.store.Get(KindDrift, "d1"); x.(Drift).CurrentState() != DriftIgnored {
		t.Errorf("put again: %+v", x)
	}
	is = false
	o.store.Overlay(KindDrift, show)
	if x, _ := o.store.Get(KindDrift, "d1"); x.(Drift).CurrentState() != "warning" {
		t.Errorf("no longer ignored: %+v", x)
	}
}
