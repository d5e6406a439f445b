package plane_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
)

var lists = []string{"clusters", "tailnets", "gateways", "routes", "proxygroups", "adapters", "signins"}

// PLANE-06, PL-07: unknown state is null in lists, numbers and the stream. The response names the source that is down, and since when.
func TestPL07_NeverFabricated(t *testing.T) {
	o := newEnv(clock).as(pat())
	for _, k := range []plane.Kind{plane.KindCluster, plane.KindSignin, plane.KindTailnet, plane.KindGateway, plane.KindRoute, plane.KindProxyGroup, plane.KindAdapter} {
		o.store.Expect("kubernetes", k)
	}
	for _, name := range lists {
		w, e := o.do("GET", "/api/v1/"+name, "")
		switch {
		case w.Code != http.StatusOK:
			t.Errorf("%s, but the data is not known: w.Code = %v, want %v", name, w.Code, http.StatusOK)
		case string(e.Data) != "null":
			t.Errorf("%s, but the data is not known: string(e.Data) = %q, want %q", name, string(e.Data), "null")
		case e.Meta.Page != nil:
			t.Errorf("%s, but the data is not known: e.Meta.Page = %v, want nil", name, e.Meta.Page)
		case len(e.Meta.Sources) != 1:
			t.Errorf("%s, but the data is not known: len(e.Meta.Sources) = %v, want 1", name, len(e.Meta.Sources))
		case e.Meta.Sources[0].Status != plane.StatusDown:
			t.Errorf("%s, but the data is not known: got %q, want %q", name, e.Meta.Sources[0].Status, plane.StatusDown)
		case e.Meta.Sources[0].Message == "":
			t.Errorf("%s, but the data is not known: e.Meta.Sources[0].Message is empty, %s", name, w.Body)
		case e.Meta.Sources[0].Since.IsZero():
			t.Errorf("%s, but the data is not known: e.Meta.Sources[0].Since.IsZero() is true, %s", name, w.Body)
		}
	}
	numbers := func() map[string]json.RawMessage {
		t.Helper()
		w, e := o.do("GET", "/api/v1/overview", "")
		v := data[map[string]json.RawMessage](t, e)
		if len(e.Meta.Sources) != 1 || string(v["hidden"]) != "[]" {
			t.Errorf("%s", w.Body)
		}
		return v
	}
	for _, name := range lists {
		if v := numbers()[name]; string(v) != "null" {
			t.Errorf("there are %s %s, but the number is not known", v, name)
		}
	}
	o.withObjects()
	for _, name := range lists {
		_, e := o.do("GET", "/api/v1/"+name, "")
		switch n := len(data[[]any](t, e)); {
		case n == 0:
			t.Errorf("n = %v; name = %s", n, name)
		case e.Meta.Page == nil:
			t.Errorf("e.Meta.Page is nil; name = %s", name)
		case *e.Meta.Page.Total != n:
			t.Errorf("*e.Meta.Page.Total = %v, want %v; name = %s", *e.Meta.Page.Total, n, name)
		case e.Meta.Sources[0].Status != plane.StatusOK:
			t.Errorf("e.Meta.Sources[0].Status = %q, want %q; name = %s", e.Meta.Sources[0].Status, plane.StatusOK, name)
		}
	}
	// The source goes down: its data stays, and the response names the source.
	o.store.Report(plane.Source{Name: "kubernetes", Status: plane.StatusDown, Message: "connection refused"})
	for _, name := range lists {
		_, e := o.do("GET", "/api/v1/"+name, "")
		switch n := len(data[[]any](t, e)); {
		case n == 0:
			t.Errorf("n = %v; name = %s", n, name)
		case e.Meta.Sources[0].Status != plane.StatusDown:
			t.Errorf("e.Meta.Sources[0].Status = %q, want %q; name = %s", e.Meta.Sources[0].Status, plane.StatusDown, name)
		case e.Meta.Sources[0].Message != "connection refused":
			t.Errorf("e.Meta.Sources[0].Message = %q, want %q; name = %s", e.Meta.Sources[0].Message, "connection refused", name)
		case !e.Meta.Sources[0].ObservedAt.Equal(noon):
			t.Errorf("e.Meta.Sources[0].ObservedAt = %v, want %v; name = %s", e.Meta.Sources[0].ObservedAt, noon, name)
		}
	}
	// An empty list is known.
	for _, k := range []plane.Kind{plane.KindCluster, plane.KindSignin} {
		o.store.Replace(k, "kubernetes", nil)
	}
	if v := numbers(); !strings.Contains(string(v["clusters"]), `"total":0`) || !strings.Contains(string(v["signins"]), `"total":0`) {
		t.Errorf("%s", v)
	}
	if _, e := o.do("GET", "/api/v1/clusters", ""); string(e.Data) != "[]" || *e.Meta.Page.Total != 0 {
		t.Errorf("%s %+v", e.Data, e.Meta)
	}
}

// Unknown is not zero in any object either. An object of which nothing is known has values only for names and for lists that are always
// reported.
func TestUnknownFieldsAreNull(t *testing.T) {
	for _, o := range []any{plane.Cluster{}, plane.Signin{}, plane.Tailnet{}, plane.Gateway{}, plane.Route{}, plane.ProxyGroup{}, plane.Adapter{}} {
		for f := range reflect.TypeOf(o).Fields() {
			name := fmt.Sprint(reflect.TypeOf(o).Name(), ".", f.Name)
			reported := []string{"Cluster.Port", "Cluster.Verified", "Cluster.Conflict", "Cluster.Self", "ProxyGroup.Wanted"} // always reported
			switch f.Type.Kind() {
			case reflect.Bool, reflect.Int:
				if !slices.Contains(reported, name) {
					t.Errorf("%s cannot be unknown", name)
				}
			}
			if tag := f.Tag.Get("json"); f.Type.Kind() == reflect.Pointer && strings.Contains(tag, "omit") && !slices.Contains([]string{"Signin.Actions", "Signin.OIDC"}, name) { // it is known that these are absent
				t.Errorf("%s is left out rather than null", name)
			}
		}
	}
}

// PL-05, PLANE-09: sign-ins of others are absent from lists, totals, searches, lookups by name, cursors and the audit log.
func TestPL05_OthersAreNotThere(t *testing.T) {
	o := newEnv(clock).withObjects()
	o.store.Set(plane.KindSignin, "kubernetes", signinOf("vic@example.com", "vic"))
	stranger := signinOf("vic@example.com", "namesake")
	stranger.Tailnet = "other.example"
	o.store.Set(plane.KindSignin, "kubernetes", stranger)

	o.as(alice())
	if w, _ := o.do("DELETE", "/api/v1/signins/tailplane/alice", `{"reason":"hers"}`); w.Code != http.StatusOK {
		t.Fatal(w.Body)
	}
	o.as(vic())
	_, e := o.do("GET", "/api/v1/signins", "")
	own := data[[]plane.Signin](t, e)
	switch {
	case len(own) != 1:
		t.Errorf("len(own) = %v, want 1", len(own))
	case own[0].Name != "vic":
		t.Errorf("own[0].Name = %q, want %q", own[0].Name, "vic")
	case *e.Meta.Page.Total != 1:
		t.Errorf("*e.Meta.Page.Total = %v, want 1", *e.Meta.Page.Total)
	case !own[0].Actions.Revoke.Allowed:
		t.Errorf("own[0].Actions.Revoke.Allowed is false; %+v, %d", own, *e.Meta.Page.Total)
	}
	for _, query := range []string{"?q=alice", "?q=bob", "?state=Ready&q=namesake"} {
		if _, e := o.do("GET", "/api/v1/signins"+query, ""); len(data[[]plane.Signin](t, e)) != 0 || *e.Meta.Page.Total != 0 {
			t.Errorf("%s: %s", query, e.Data)
		}
	}
	_, found := o.do("DELETE", "/api/v1/signins/tailplane/bob", `{"reason":"x"}`)
	_, absent := o.do("DELETE", "/api/v1/signins/tailplane/nobody", `{"reason":"x"}`)
	if found.code() != problem.NotFound || !reflect.DeepEqual(found.Error, absent.Error) {
		t.Errorf("an existing one: %+v; a missing one: %+v", found.Error, absent.Error)
	}
	_, v := o.do("GET", "/api/v1/overview", "")
	over := data[plane.Overview](t, v)
	switch {
	case over.Signins == nil:
		t.Error("over.Signins is nil")
	case over.Signins.Total != 1:
		t.Errorf("over.Signins.Total = %v, want 1", over.Signins.Total)
	case over.Clusters != nil:
		t.Errorf("over.Clusters = %v, want nil", over.Clusters)
	case len(over.Hidden) != 6:
		t.Errorf("len(over.Hidden) = %v, want 6", len(over.Hidden))
	case len(over.Attention) != 0:
		t.Errorf("len(over.Attention) = %v, want 0", len(over.Attention))
	}
	_, history := o.do("GET", "/api/v1/audit", "")
	for _, entry := range data[[]audit.Entry](t, history) {
		if entry.Actor.Login != "vic@example.com" {
			t.Errorf("vic reads %+v", entry)
		}
	}
	if want := []string{"tailplane/alice: hers"}; !slices.Equal(o.revocations(), want) {
		t.Errorf("revoked %q", o.revocations())
	}

	// A person of another tailnet whose login is spelt the same.
	shared := vic()
	shared.Shared, shared.Tailnet = true, "other.example"
	shared.Rules = []json.RawMessage{json.RawMessage(`{"role":"viewer","orgs":["acme"]}`)}
	o.as(shared)
	_, e = o.do("GET", "/api/v1/signins", "")
	if got := data[[]plane.Signin](t, e); len(got) != 1 || got[0].Name != "namesake" {
		t.Errorf("the namesake sees %+v", got)
	}
	shared.Device.ID = "n-elsewhere"
	for _, who := range []string{"alice@example.com", "vic@example.com"} {
		_, history = o.as(shared).do("GET", "/api/v1/audit?actor="+who, "")
		for _, entry := range data[[]audit.Entry](t, history) {
			if entry.Actor.NodeID != "n-elsewhere" {
				t.Errorf("the namesake reads %+v", entry)
			}
		}
	}
}

func TestRevoke(t *testing.T) {
	o := newEnv(clock).withObjects().as(alice())
	revoke := func(name, body string, header ...string) envelope {
		t.Helper()
		_, e := o.do("DELETE", "/api/v1/signins/tailplane/"+name, body, header...)
		return e
	}
	for why, c := range map[string]struct {
		body  string
		code  problem.Code
		field string
	}{
		"no reason":         {`{}`, problem.Validation, "reason"},
		"no word":           {`{"reason":" "}`, problem.Validation, "reason"},
		"too long":          {`{"reason":"` + strings.Repeat("é", 501) + `"}`, problem.Validation, "reason"},
		"two lines":         {`{"reason":"a\nb"}`, problem.Validation, "reason"},
		"ANSI":              {`{"reason":"\u001b[31mred"}`, problem.Validation, "reason"},
		"misspelt":          {`{"Reason":"x"}`, problem.BadRequest, ""},
		"twice":             {`{"reason":"x","reason":"y"}`, problem.BadRequest, ""},
		"something follows": {`{"reason":"x"}{}`, problem.BadRequest, ""},
	} {
		e := revoke("bob", c.body)
		if e.code() != c.code || e.Error.Field != c.field {
			t.Errorf("%s: %+v", why, e.Error)
		}
	}
	if len(o.revocations()) != 0 {
		t.Fatalf("revoked %q", o.revocations())
	}
	_, e := o.do("DELETE", "/api/v1/signins/tailplane/bob?dryRun=true", `{"reason":"x"}`)
	switch dry := data[plane.Revocation](t, e); {
	case !dry.DryRun:
		t.Errorf("dry.DryRun is false; %+v, %q", dry, o.revocations())
	case dry.Deleted:
		t.Errorf("dry.Deleted is true; %+v, %q", dry, o.revocations())
	case dry.RefusedBy != nil:
		t.Errorf("dry.RefusedBy = %v, want nil", dry.RefusedBy)
	case len(o.revocations()) != 0:
		t.Errorf("len(o.revocations()) = %v, want 0", len(o.revocations()))
	}
	e = revoke("bob", `{"reason":"`+strings.Repeat("é", 500)+`"}`)
	switch done := data[plane.Revocation](t, e); {
	case e.Kind != "Revocation":
		t.Errorf("e.Kind = %q, want %q", e.Kind, "Revocation")
	case done.ID != "tailplane/bob":
		t.Errorf("done.ID = %q, want %q", done.ID, "tailplane/bob")
	case !done.Deleted:
		t.Errorf("done.Deleted is false; %s, %q", e.Data, o.revocations())
	case done.RefusedBy == nil:
		t.Error("done.RefusedBy is nil")
	case len(o.revocations()) != 1:
		t.Errorf("len(o.revocations()) = %v, want 1", len(o.revocations()))
	}
	last := o.auditEntries()[len(o.auditEntries())-1]
	switch {
	case last.Verb != access.SigninsRevoke:
		t.Errorf("recorded: last.Verb = %q, want %q", last.Verb, access.SigninsRevoke)
	case last.Args["signin"] != "tailplane/bob":
		t.Errorf(`recorded: last.Args["signin"] = %q, want %q`, last.Args["signin"], "tailplane/bob")
	case last.Reason == "":
		t.Errorf("recorded: last.Reason is empty; last = %+v", last)
	case last.Object != "tailplane/bob":
		t.Errorf("recorded: last.Object = %q, want %q", last.Object, "tailplane/bob")
	case last.Result != audit.Done:
		t.Errorf("recorded: last.Result = %q, want %q", last.Result, audit.Done)
	}

	// A caller that sees all sign-ins but may end only its own receives the missing permission.
	o.as(person("vera@example.com", `{"role":"viewer","orgs":["*"]}`))
	switch e := revoke("bob", `{"reason":"x"}`); {
	case e.code() != problem.Forbidden:
		t.Errorf("e.code() = %q, want %q", e.code(), problem.Forbidden)
	case e.Error.Needed == nil:
		t.Error("e.Error.Needed is nil")
	case e.Error.Needed.Verb != "signins.revoke":
		t.Errorf("e.Error.Needed.Verb = %q, want %q", e.Error.Needed.Verb, "signins.revoke")
	case !slices.Equal(e.Error.Have, []string{"viewer@*"}):
		t.Errorf("e.Error.Have (-want +got):\n%s", cmp.Diff([]string{"viewer@*"}, e.Error.Have))
	}
	_, e = o.do("GET", "/api/v1/signins", "")
	for _, s := range data[[]plane.Signin](t, e) {
		if s.Actions.Revoke.Allowed || s.Actions.Revoke.Why == "" {
			t.Errorf("%s: %+v", s.ID, s.Actions)
		}
	}
	// The list is unknown, so the answer is not "there is none".
	empty := newEnv(clock).as(alice())
	switch w, e := empty.do("DELETE", "/api/v1/signins/tailplane/bob", `{"reason":"x"}`); {
	case e.code() != problem.Unavailable:
		t.Errorf("e.code() = %q, want %q", e.code(), problem.Unavailable)
	case w.Header().Get("Retry-After") == "":
		t.Errorf(`w.Header().Get("Retry-After") == ""; %+v`, e.Error)
	case e.Error.RetryAfterSeconds == 0:
		t.Errorf("e.Error.RetryAfterSeconds = %v", e.Error.RetryAfterSeconds)
	}
}

// A repeated write is made once. A failed write can be repeated.
func TestIdempotencyKey(t *testing.T) {
	var mu sync.Mutex
	now := noon
	o := newEnv(func() time.Time { mu.Lock(); defer mu.Unlock(); return now }).withObjects().as(alice())
	revoke := func(name, key string) envelope {
		_, e := o.do("DELETE", "/api/v1/signins/tailplane/"+name, `{"reason":"x"}`, "Idempotency-Key", key)
		return e
	}
	o.fail = errors.New("dial tcp: refused")
	if e := revoke("bob", "k"); e.code() != problem.Internal {
		t.Errorf("%+v", e.Error)
	}
	o.fail = nil
	first := data[plane.Revocation](t, revoke("bob", "k"))
	o.store.Delete(plane.KindSignin, "tailplane/bob")
	if again := data[plane.Revocation](t, revoke("bob", "k")); !reflect.DeepEqual(again, first) || len(o.revocations()) != 1 {
		t.Errorf("%+v, then %+v; done %q", first, again, o.revocations())
	}
	if e := revoke("alice", "k"); e.code() != problem.Conflict || len(o.revocations()) != 1 {
		t.Errorf("another request with the key: %+v, done %q", e.Error, o.revocations())
	}
	o.as(pat()) // another caller with the same key
	if e := revoke("bob", "k"); e.code() != problem.NotFound {
		t.Errorf("%+v", e.Error)
	}
	o.as(alice())
	mu.Lock()
	now = now.Add(11 * time.Minute)
	mu.Unlock()
	if e := revoke("bob", "k"); e.code() != problem.NotFound {
		t.Errorf("after its time: %+v", e.Error)
	}
	for _, bad := range []string{"", strings.Repeat("k", 129), "a b", "é"} {
		if new(plane.IdempotencyKey).UnmarshalText([]byte(bad)) == nil {
			t.Errorf("%q is a key", bad)
		}
	}
}

func TestMe(t *testing.T) {
	o := newEnv(clock).as(person("amy@acme.dev", `{"role":"viewer","orgs":["globex"]}`, `{"role":"root","orgs":["*"]}`))
	_, e := o.do("GET", "/api/v1/me", "")
	me := data[plane.Me](t, e)
	switch {
	case me.Login != "amy@acme.dev":
		t.Errorf("me.Login = %q, want %q; %s", me.Login, "amy@acme.dev", e.Data)
	case me.Node == "":
		t.Errorf("me.Node is empty; %s", e.Data)
	case me.Via != access.ViaTailnet:
		t.Errorf("me.Via = %q, want %q; %s", me.Via, access.ViaTailnet, e.Data)
	case me.Tags == nil:
		t.Errorf("me.Tags is nil; %s", e.Data)
	case len(me.Roles) != 2:
		t.Errorf("len(me.Roles) = %v, want 2; %s", len(me.Roles), e.Data)
	case me.Roles[0].Role != "org-admin":
		t.Errorf("me.Roles[0].Role = %q, want %q; %s", me.Roles[0].Role, "org-admin", e.Data)
	case me.Roles[0].Source != "owner of acme":
		t.Errorf("me.Roles[0].Source = %q, want %q; %s", me.Roles[0].Source, "owner of acme", e.Data)
	case me.Roles[1].Source != "grant":
		t.Errorf("me.Roles[1].Source = %q, want %q; %s", me.Roles[1].Source, "grant", e.Data)
	case !slices.Contains(me.Verbs["acme"], access.FleetRead):
		t.Errorf(`me.Verbs["acme"] = %v does not contain %q; %s`, me.Verbs["acme"], access.FleetRead, e.Data)
	case len(me.Warnings) != 1:
		t.Errorf("len(me.Warnings) = %v, want 1; %s", len(me.Warnings), e.Data)
	}
	o.as(person("mallory@evil.example"))
	switch _, e := o.do("GET", "/api/v1/me", ""); {
	case e.code() != problem.NotAuthorized:
		t.Errorf("e.code() = %q, want %q", e.code(), problem.NotAuthorized)
	case e.Error.Seen == nil:
		t.Error("e.Error.Seen is nil")
	case e.Error.Seen.Login != "mallory@evil.example":
		t.Errorf("e.Error.Seen.Login = %q, want %q", e.Error.Seen.Login, "mallory@evil.example")
	case e.Error.Seen.Via != "tailnet":
		t.Errorf("e.Error.Seen.Via = %q, want %q", e.Error.Seen.Via, "tailnet")
	case e.Error.Seen.Node == "":
		t.Errorf("e.Error.Seen.Node is empty; %+v", e.Error)
	}
}

// The audit log by pages, as JSON and as lines. Damaged lines are reported.
func TestAudit(t *testing.T) {
	o := newEnv(clock).withObjects().as(alice())
	for range 25 {
		o.do("GET", "/api/v1/me", "")
		o.do("GET", "/api/v1/clusters?sort=nothing", "")
	}
	o.as(pat())
	var got []string
	next := ""
	for {
		_, e := o.do("GET", "/api/v1/audit?limit=7&actor=alice@example.com&result=refused"+next, "")
		page := data[[]audit.Entry](t, e)
		for _, entry := range page {
			if entry.Result != audit.Refused || entry.Actor.Login != "alice@example.com" {
				t.Errorf("%+v", entry)
			}
			got = append(got, entry.RequestID)
		}
		if e.Meta.Page.Total != nil {
			t.Error("the total is set")
		}
		if e.Meta.Page.Next == "" {
			break
		}
		next = "&cursor=" + e.Meta.Page.Next
	}
	var want []string
	for _, e := range slices.Backward(o.auditEntries()) {
		if e.Actor.Login == "alice@example.com" && e.Result == audit.Refused {
			want = append(want, e.RequestID)
		}
	}
	if len(want) != 25 || !slices.Equal(got, want) {
		t.Errorf("%d entries, want %d", len(got), len(want))
	}
	// Without reads, refused requests and reads of logs remain.
	if err := o.door.Record(audit.Entry{Actor: audit.Actor{Login: "alice@example.com"}, Verb: access.LogsRead, Result: audit.Done}); err != nil {
		t.Fatal(err)
	}
	_, e := o.do("GET", "/api/v1/audit?limit=500&actor=alice@example.com&quiet=true", "")
	logs := 0
	for _, entry := range data[[]audit.Entry](t, e) {
		if entry.Verb == access.LogsRead {
			logs++
		} else if entry.Result == audit.Done {
			t.Errorf("the permitted reads are reported: %+v", entry)
		}
	}
	if all := len(data[[]audit.Entry](t, e)); all != 26 || logs != 1 {
		t.Errorf("%d entries, %d of logs", all, logs)
	}
	w, _ := o.do("GET", "/api/v1/audit?limit=3", "", "Accept", "application/jsonl")
	rows := strings.Split(strings.TrimSuffix(w.Body.String(), "\n"), "\n")
	switch {
	case len(rows) != 3:
		t.Errorf("len(rows) = %v, want 3", len(rows))
	case w.Header().Get("Content-Type") != "application/jsonl":
		t.Errorf(`w.Header().Get("Content-Type") != "application/jsonl"; %d, %v`, len(rows), w.Header())
	case w.Header().Get(plane.NextHeader) == "":
		t.Errorf(`w.Header().Get(plane.NextHeader) == ""; %d, %v`, len(rows), w.Header())
	}
	for _, line := range rows {
		d := json.NewDecoder(strings.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(new(audit.Entry)); err != nil {
			t.Errorf("%v: %s", err, line)
		}
	}
	for query, code := range map[string]problem.Code{"?result=x": problem.Validation, "?since=yesterday": problem.BadRequest, "?cursor=x": problem.BadRequest, "?limit=0": problem.BadRequest,
		"?cursor=" + strings.TrimPrefix(next, "&cursor="): problem.BadRequest, "?org=acme": "", "?since=2026-11-22T12:00:00Z": "", "?since=2026-11-22T12:00:01Z": ""} {
		_, e := o.do("GET", "/api/v1/audit"+query, "")
		if e.code() != code {
			t.Errorf("%s: %+v", query, e.Error)
		}
		if n := len(e.Data); strings.HasSuffix(query, "01Z") && n != len("[]") {
			t.Errorf("%s: %s", query, e.Data)
		}
	}
}

// inPath fills the variables of a path.
var inPath = strings.NewReplacer("{namespace}", "tailplane", "{name}", "bob", "{proxy}", "east-api.example.ts.net", "{stream}", "9392fdf7-363b-4154-8550-6808e60c92c3", "{id}", bobsRecording)

// ID-11, ID-12: unknown paths stay unknown in every spelling, and a GET changes nothing.
func TestID11_Paths(t *testing.T) {
	o := newEnv(clock).withObjects().as(pat())
	for _, path := range []string{"//api/v1/me", "/api/../api/v1/me", "/api/v1/me/", "/api/v1/%6de", "/api/v1/me%2f", "/API/v1/me", "/api/v1/signins;x", "/api/v1/pools", "/api/v1/holds", "/api/v1", "/api/runners", "/"} {
		if w, e := o.do("GET", path, ""); w.Code != http.StatusNotFound || e.code() != problem.NotFound {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	for _, op := range new(plane.Service).Routes() {
		method, path, _ := strings.Cut(op.Pattern, " ")
		posts := []string{plane.CheckPolicy.Pattern, plane.CutOne.Pattern} // the former only reads
		switch {
		case op.Verb == "":
			t.Errorf("op.Verb is empty; %s, %q", op.Pattern, op.Verb)
		case op.Doc == "":
			t.Errorf("op.Doc is empty; %s, %q", op.Pattern, op.Verb)
		case method != http.MethodGet && method != http.MethodDelete && !slices.Contains(posts, op.Pattern):
			t.Errorf("a method that changes; %s, %q", op.Pattern, op.Verb)
		}
		path = inPath.Replace(path)
		for _, other := range []string{"HEAD", "POST", "PUT", "PATCH"} {
			if w, _ := o.do(other, path, `{"reason":"x"}`); other != method && w.Code != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: %d", other, path, w.Code)
			}
		}
	}
	if len(o.revocations()) != 0 {
		t.Errorf("revoked %q", o.revocations())
	}
	// PLANE-08: a page of another site can change nothing and read nothing.
	for _, h := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Origin", "https://evil.example"}, {"Origin", "null"}, {"Content-Type", "text/plain"}} {
		if _, e := o.do("DELETE", "/api/v1/signins/tailplane/bob", `{"reason":"x"}`, h...); e.Error == nil || len(o.revocations()) != 0 {
			t.Errorf("%v: %s", h, e.Data)
		}
		if h[0] == "Content-Type" {
			continue // needs a body, which a GET does not have
		}
		if _, e := o.do("GET", "/api/v1/events", "", h...); e.code() != problem.CrossOrigin {
			t.Errorf("%v: %+v %s", h, e.Error, e.broken)
		}
	}
}

// PL-08: a server that decided about another verb lets no caller do anything.
func TestPL08_AnotherPermit(t *testing.T) {
	for _, decided := range []access.Verb{access.ObserveRead, ""} {
		o := newEnv(clock).withObjects().as(pat())
		o.door.Decide = func(c access.Caller, _ access.Verb, at time.Time) (access.Permit, error) {
			if decided == "" {
				return access.Permit{}, nil
			}
			return access.DecidePlane(c, decided, policy, at)
		}
		o.Handler = o.door.Handler(o.service.Routes()...)
		for _, op := range new(plane.Service).Routes() {
			method, path, _ := strings.Cut(op.Pattern, " ")
			path = inPath.Replace(path)
			body := `{"reason":"x"}`
			if op.Pattern == plane.CheckPolicy.Pattern {
				body = `{"grants":[]}`
			}
			switch w, e := o.do(method, path, body); {
			case w.Code != http.StatusInternalServerError:
				t.Errorf("w.Code = %v, want %v; %s; decided = %q", w.Code, http.StatusInternalServerError, op.Pattern, decided)
			case e.code() != problem.Internal:
				t.Errorf("e.code() = %q, want %q; %s; decided = %q", e.code(), problem.Internal, op.Pattern, decided)
			case len(o.revocations()) > 0:
				t.Errorf("len(o.revocations()) = %v, want at most 0; %s; decided = %q", len(o.revocations()), op.Pattern, decided)
			}
		}
	}
}

// The client made from the same declarations reads the server's responses.
func TestClient(t *testing.T) {
	o := newEnv(clock).withObjects().as(alice())
	c := httpapi.Client{HTTP: &http.Client{Transport: direct{o}}, Base: "http://dashboard", Open: plane.ParseEnvelope}
	clusters, err := plane.ListClusters.Call(t.Context(), c, plane.ListRequest{Sort: "-name", Limit: 1})
	switch {
	case err != nil:
		t.Error(err)
	case len(clusters.Data) != 1:
		t.Errorf("len(clusters.Data) = %v, want 1", len(clusters.Data))
	case clusters.Data[0].Name != "c2":
		t.Errorf("clusters.Data[0].Name = %q, want %q", clusters.Data[0].Name, "c2")
	case clusters.Meta.Page.Next == "":
		t.Errorf("clusters.Meta.Page.Next is empty; clusters = %+v, %v", clusters, err)
	case clusters.Meta.RequestID == "":
		t.Errorf("clusters.Meta.RequestID is empty; clusters = %+v, %v", clusters, err)
	case len(clusters.Meta.Sources) != 1:
		t.Errorf("len(clusters.Meta.Sources) = %v, want 1", len(clusters.Meta.Sources))
	}
	done, err := plane.RevokeSignin.Call(t.Context(), c, plane.RevokeRequest{Namespace: "tailplane", Name: "bob", Reason: "x", Key: "k", DryRun: true})
	if err != nil || !done.Data.DryRun {
		t.Errorf("%+v, %v", done, err)
	}
	if _, err = plane.RevokeSignin.Call(t.Context(), c, plane.RevokeRequest{Namespace: "tailplane", Name: "nobody", Reason: "x"}); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("%v", err)
	}
	switch history, err := plane.ListAudit.Call(t.Context(), c, plane.HistoryRequest{Limit: 2}); {
	case err != nil:
		t.Error(err)
	case len(history.Data) != 2:
		t.Errorf("len(history.Data) = %v, want 2", len(history.Data))
	case history.Kind != "AuditEntryList":
		t.Errorf("history.Kind = %q, want %q", history.Kind, "AuditEntryList")
	}
	for _, notOurs := range []string{"", "<html>", "{}", `{"apiVersion":"v1"}`, `{"apiVersion":"plane/v1"}`} {
		if _, refused, err := plane.ParseEnvelope(http.StatusBadGateway, []byte(notOurs)); err == nil || refused != nil {
			t.Errorf("%q is accepted as an answer: %v", notOurs, refused)
		}
	}
}

// direct is a transport to a handler.
type direct struct{ h *env }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	body := new(bytes.Buffer)
	if r.Body != nil {
		if _, err := body.ReadFrom(r.Body); err != nil {
			return nil, err
		}
	}
	var header []string
	for name := range r.Header {
		header = append(header, name, r.Header.Get(name))
	}
	w, _ := d.h.do(r.Method, r.URL.RequestURI(), body.String(), header...)
	return w.Result(), nil
}

// An exposed service is listed with its tailnet address and the status of its source. Unreported data is not invented.
func TestExposures(t *testing.T) {
	o := newEnv(clock).withObjects().as(alice())
	list := func() []plane.Exposure {
		t.Helper()
		all, err := plane.ListExposures.Call(t.Context(), httpapi.Client{HTTP: &http.Client{Transport: direct{o}}, Base: "http://dashboard", Open: plane.ParseEnvelope}, plane.Empty{})
		switch {
		case err != nil:
			t.Fatal(err)
		case len(all.Data) != 2:
			t.Fatalf("len(all.Data) = %v, want 2", len(all.Data))
		case len(all.Meta.Sources) != 2:
			t.Fatalf("len(all.Meta.Sources) = %v, want 2", len(all.Meta.Sources))
		}
		return all.Data
	}
	switch e := list()[0]; {
	case e.State != plane.StatusDown:
		t.Errorf("before the first report: e.State = %q, want %q", e.State, plane.StatusDown)
	case e.Address != nil:
		t.Errorf("before the first report: e.Address = %v, want nil", e.Address)
	case e.Problem == "":
		t.Errorf("before the first report: e.Problem is empty; %+v", e)
	}
	o.store.Report(plane.Source{Name: "exposure:grafana", Status: plane.StatusDegraded, Message: "NameTaken: another node is grafana."})
	switch e := list()[0]; {
	case e.State != plane.StatusDegraded:
		t.Errorf("e.State = %q, want %q", e.State, plane.StatusDegraded)
	case e.Address == nil:
		t.Error("e.Address is nil")
	case *e.Address != "https://grafana-1.tail1234.ts.net":
		t.Errorf("*e.Address = %q, want %q", *e.Address, "https://grafana-1.tail1234.ts.net")
	case !strings.HasPrefix(e.Problem, "NameTaken"):
		t.Errorf("e.Problem = %q does not start with %q", e.Problem, "NameTaken")
	case e.Access != "observe.read":
		t.Errorf("e.Access = %q, want %q", e.Access, "observe.read")
	}
	o.store.Report(plane.Source{Name: "exposure:grafana", Status: plane.StatusDown, Message: "It is not on the tailnet."})
	switch all := list(); {
	case all[0].Address != nil:
		t.Errorf("all[0].Address = %v, want nil", all[0].Address)
	case all[0].State != plane.StatusDown:
		t.Errorf("all[0].State = %q, want %q", all[0].State, plane.StatusDown)
	case all[1].Name != "attic":
		t.Errorf("all[1].Name = %q, want %q", all[1].Name, "attic")
	case all[1].Access != "identified":
		t.Errorf("all[1].Access = %q, want %q", all[1].Access, "identified")
	}
}
