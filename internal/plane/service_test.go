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
		if w.Code != http.StatusOK || string(e.Data) != "null" || e.Meta.Page != nil || len(e.Meta.Sources) != 1 || e.Meta.Sources[0].Status != plane.StatusDown || e.Meta.Sources[0].Message == "" || e.Meta.Sources[0].Since.IsZero() {
			t.Errorf("%s, but the data is not known: %s", name, w.Body)
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
		if n := len(data[[]any](t, e)); n == 0 || e.Meta.Page == nil || *e.Meta.Page.Total != n || e.Meta.Sources[0].Status != plane.StatusOK {
			t.Errorf("%d %s: %+v", n, name, e.Meta)
		}
	}
	// The source goes down: its data stays, and the response names the source.
	o.store.Report(plane.Source{Name: "kubernetes", Status: plane.StatusDown, Message: "connection refused"})
	for _, name := range lists {
		_, e := o.do("GET", "/api/v1/"+name, "")
		if n := len(data[[]any](t, e)); n == 0 || e.Meta.Sources[0].Status != plane.StatusDown || e.Meta.Sources[0].Message != "connection refused" || !e.Meta.Sources[0].ObservedAt.Equal(noon) {
			t.Errorf("%d %s: %+v", n, name, e.Meta)
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
			if tag := f.Tag.Get("json"); f.Type.Kind() == reflect.Pointer && strings.Contains(tag, "omit") && name != "Signin.Actions" {
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
	if len(own) != 1 || own[0].Name != "vic" || *e.Meta.Page.Total != 1 || !own[0].Actions.Revoke.Allowed {
		t.Errorf("%+v of %d", own, *e.Meta.Page.Total)
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
	if over.Signins == nil || over.Signins.Total != 1 || over.Clusters != nil || len(over.Hidden) != 6 || len(over.Attention) != 0 {
		t.Errorf("%+v", over)
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
	if dry := data[plane.Revocation](t, e); !dry.DryRun || dry.Deleted || dry.RefusedBy != nil || len(o.revocations()) != 0 {
		t.Errorf("%+v, revoked %q", dry, o.revocations())
	}
	e = revoke("bob", `{"reason":"`+strings.Repeat("é", 500)+`"}`)
	if done := data[plane.Revocation](t, e); e.Kind != "Revocation" || done.ID != "tailplane/bob" || !done.Deleted || done.RefusedBy == nil || len(o.revocations()) != 1 {
		t.Errorf("%s, revoked %q", e.Data, o.revocations())
	}
	last := o.auditEntries()[len(o.auditEntries())-1]
	if last.Verb != access.SigninsRevoke || last.Args["signin"] != "tailplane/bob" || last.Reason == "" || last.Object != "tailplane/bob" || last.Result != audit.Done {
		t.Errorf("recorded %+v", last)
	}

	// A caller that sees all sign-ins but may end only its own receives the missing permission.
	o.as(person("vera@example.com", `{"role":"viewer","orgs":["*"]}`))
	if e := revoke("bob", `{"reason":"x"}`); e.code() != problem.Forbidden || e.Error.Needed == nil || e.Error.Needed.Verb != "signins.revoke" || !slices.Equal(e.Error.Have, []string{"viewer@*"}) {
		t.Errorf("%+v", e.Error)
	}
	_, e = o.do("GET", "/api/v1/signins", "")
	for _, s := range data[[]plane.Signin](t, e) {
		if s.Actions.Revoke.Allowed || s.Actions.Revoke.Why == "" {
			t.Errorf("%s: %+v", s.ID, s.Actions)
		}
	}
	// The list is unknown, so the answer is not "there is none".
	empty := newEnv(clock).as(alice())
	if w, e := empty.do("DELETE", "/api/v1/signins/tailplane/bob", `{"reason":"x"}`); e.code() != problem.Unavailable || w.Header().Get("Retry-After") == "" || e.Error.RetryAfterSeconds == 0 {
		t.Errorf("%+v", e.Error)
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
	if me.Login != "amy@acme.dev" || me.Node == "" || me.Via != access.ViaTailnet || me.Tags == nil || len(me.Roles) != 2 ||
		me.Roles[0].Role != "org-admin" || me.Roles[0].Source != "owner of acme" || me.Roles[1].Source != "grant" || !slices.Contains(me.Verbs["acme"], access.FleetRead) || len(me.Warnings) != 1 {
		t.Errorf("%s", e.Data)
	}
	o.as(person("mallory@evil.example"))
	if _, e := o.do("GET", "/api/v1/me", ""); e.code() != problem.NotAuthorized || e.Error.Seen == nil || e.Error.Seen.Login != "mallory@evil.example" || e.Error.Seen.Via != "tailnet" || e.Error.Seen.Node == "" {
		t.Errorf("%+v", e.Error)
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
	if len(rows) != 3 || w.Header().Get("Content-Type") != "application/jsonl" || w.Header().Get(plane.NextHeader) == "" {
		t.Errorf("%d lines, %v", len(rows), w.Header())
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
		if op.Verb == "" || op.Doc == "" || method != http.MethodGet && method != http.MethodDelete {
			t.Errorf("%s: %q", op.Pattern, op.Verb)
		}
		path = strings.NewReplacer("{namespace}", "tailplane", "{name}", "bob").Replace(path)
		for _, other := range []string{"HEAD", "POST", "PUT", "PATCH"} {
			if w, _ := o.do(other, path, `{"reason":"x"}`); w.Code != http.StatusMethodNotAllowed {
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
			path = strings.NewReplacer("{namespace}", "tailplane", "{name}", "bob").Replace(path)
			if w, e := o.do(method, path, `{"reason":"x"}`); w.Code != http.StatusInternalServerError || e.code() != problem.Internal || len(o.revocations()) > 0 {
				t.Errorf("%s, by a permit for %q: %d %s", op.Pattern, decided, w.Code, w.Body)
			}
		}
	}
}

// The client made from the same declarations reads the server's responses.
func TestClient(t *testing.T) {
	o := newEnv(clock).withObjects().as(alice())
	c := httpapi.Client{HTTP: &http.Client{Transport: direct{o}}, Base: "http://dashboard", Open: plane.ParseEnvelope}
	clusters, err := plane.ListClusters.Call(t.Context(), c, plane.ListRequest{Sort: "-name", Limit: 1})
	if err != nil || len(clusters.Data) != 1 || clusters.Data[0].Name != "c2" || clusters.Meta.Page.Next == "" || clusters.Meta.RequestID == "" || len(clusters.Meta.Sources) != 1 {
		t.Errorf("%+v, %v", clusters, err)
	}
	done, err := plane.RevokeSignin.Call(t.Context(), c, plane.RevokeRequest{Namespace: "tailplane", Name: "bob", Reason: "x", Key: "k", DryRun: true})
	if err != nil || !done.Data.DryRun {
		t.Errorf("%+v, %v", done, err)
	}
	if _, err = plane.RevokeSignin.Call(t.Context(), c, plane.RevokeRequest{Namespace: "tailplane", Name: "nobody", Reason: "x"}); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("%v", err)
	}
	if history, err := plane.ListAudit.Call(t.Context(), c, plane.HistoryRequest{Limit: 2}); err != nil || len(history.Data) != 2 || history.Kind != "AuditEntryList" {
		t.Errorf("%+v, %v", history, err)
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
		if err != nil || len(all.Data) != 2 || len(all.Meta.Sources) != 2 {
			t.Fatalf("%+v, %v", all, err)
		}
		return all.Data
	}
	if e := list()[0]; e.State != plane.StatusDown || e.Address != nil || e.Problem == "" {
		t.Errorf("before the first report: %+v", e)
	}
	o.store.Report(plane.Source{Name: "exposure:grafana", Status: plane.StatusDegraded, Message: "NameTaken: another node is grafana."})
	if e := list()[0]; e.State != plane.StatusDegraded || e.Address == nil || *e.Address != "https://grafana-1.tail1234.ts.net" || !strings.HasPrefix(e.Problem, "NameTaken") || e.Access != "observe.read" {
		t.Errorf("%+v", e)
	}
	o.store.Report(plane.Source{Name: "exposure:grafana", Status: plane.StatusDown, Message: "It is not on the tailnet."})
	if all := list(); all[0].Address != nil || all[0].State != plane.StatusDown || all[1].Name != "attic" || all[1].Access != "identified" {
		t.Errorf("%+v", all)
	}
}
