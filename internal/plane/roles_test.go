package plane_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/accessproxy/recording"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
)

type persona struct {
	name   string
	caller access.Caller
	err    error
}

func personas() []persona {
	with := func(c access.Caller, f func(*access.Caller)) access.Caller { f(&c); return c }
	tagged := func(rule string) access.Caller {
		return with(person("", rule), func(c *access.Caller) {
			c.Device, c.Tags = access.Device{ID: "n-ci", Name: "ci.ts.net"}, []access.Tag{"tag:ci"}
		})
	}
	return []persona{
		{"viewer acme", vic(), nil},
		{"viewer *", person("vera@example.com", `{"role":"viewer","orgs":["*"]}`), nil},
		{"operator acme (member)", person("mel@acme.dev"), nil},
		{"operator *", alice(), nil},
		{"org-admin acme (owner)", person("amy@acme.dev"), nil},
		{"org-admin *", person("olga@example.com", `{"role":"org-admin","orgs":["*"]}`), nil},
		{"platform-admin", pat(), nil},
		{"viewer acme, operator globex", person("u@example.com", `{"role":"viewer","orgs":["acme"]}`, `{"role":"operator","orgs":["globex"]}`), nil},
		{"nobody", person("mallory@evil.example"), nil},
		{"a bad rule only", person("x@example.com", `{"role":"root","orgs":["*"]}`), nil},
		{"shared in, owner's name", with(person("amy@acme.dev"), func(c *access.Caller) { c.Shared, c.Tailnet = true, "other.example" }), nil},
		{"tagged", tagged(`{"role":"operator","orgs":["*"]}`), nil},
		{"tagged, let in", tagged(`{"role":"viewer","orgs":["*"],"tags":["tag:ci"]}`), nil},
		{"key expired", with(alice(), func(c *access.Caller) { c.Expired = true }), nil},
		{"Funnel", with(alice(), func(c *access.Caller) { c.Via = access.ViaFunnel }), nil},
		{"unknown", access.Caller{}, problem.New(problem.NoIdentity, "Nobody.", "Connect directly.")},
		{"WhoIs down", access.Caller{}, problem.New(problem.IdentityUnavailable, "Cannot ask.", "Try again.").WithRetryAfter(time.Second)},
	}
}

// ID-12, PLANE-04: every operation for every kind of caller, with the number of objects in the response. Each error is declared and each
// request has one audit entry (a stream has two). A refused caller learns nothing of the objects.
func TestRoles(t *testing.T) {
	var got strings.Builder
	for _, p := range personas() {
		for _, op := range new(plane.Service).Routes() {
			o := newEnv(clock).withObjects()
			o.caller, o.refused = p.caller, p.err
			method, path, _ := strings.Cut(op.Pattern, " ")
			path = strings.NewReplacer("{proxy}", "west-api.example.ts.net", "{stream}", "s1", "{id}", bobsRecording, "{namespace}", "tailplane", "{name}", "bob").Replace(path)
			ctx, cancel := context.WithCancel(t.Context())
			if op.Verb == access.FleetRead && strings.Contains(path, "events") {
				cancel() // the stream sends its first data, then ends
			}
			w := httptest.NewRecorder()
			body := `{"reason":"matrix"}`
			if op.Verb == access.PlanePolicyCheck {
				body = `{"grants":[]}`
			}
			r := httptest.NewRequestWithContext(ctx, method, path, strings.NewReader(body))
			if method != http.MethodGet {
				r.Header.Set("Content-Type", "application/json")
			}
			r.Host = "dashboard"
			o.ServeHTTP(w, r)
			cancel()
			fmt.Fprintf(&got, "%-30s %-45s %s\n", p.name, op.Pattern, outcome(t, w))

			entries := o.auditEntries()
			streamed := strings.HasPrefix(w.Header().Get("Content-Type"), "text/event-stream") || w.Header().Get("Content-Type") == recording.CastType
			if want := map[bool]int{false: 1, true: 2}[streamed]; len(entries) != want {
				t.Errorf("%s %s: %d entries", p.name, op.Pattern, len(entries))
			}
			var e envelope
			_ = json.Unmarshal(w.Body.Bytes(), &e) // streams have no envelope
			switch h := w.Header(); {
			case h.Get("Cache-Control") != "no-store":
				t.Errorf(`%s: h.Get("Cache-Control") != "no-store", %s, %v`, p.name, op.Pattern, h)
			case h.Get("X-Content-Type-Options") != "nosniff":
				t.Errorf(`%s: h.Get("X-Content-Type-Options") != "nosniff", %s, %v`, p.name, op.Pattern, h)
			case h.Get("X-Request-Id") != entries[0].RequestID:
				t.Errorf(`%s: h.Get("X-Request-Id") != entries[0].RequestID, %s, %v`, p.name, op.Pattern, h)
			}
			if w.Code == http.StatusOK {
				continue
			}
			if !slices.Contains(slices.Concat(httpapi.CommonRefusals(), op.Refusals), e.code()) {
				t.Errorf("%s %s: refused with %s, which it does not declare", p.name, op.Pattern, e.code())
			}
			switch {
			case e.Kind != "Error":
				t.Errorf("%s: e.Kind = %q, want %q; %s; %s", p.name, e.Kind, "Error", op.Pattern, w.Body)
			case string(e.Data) != "null":
				t.Errorf("%s: string(e.Data) = %q, want %q; %s; %s", p.name, string(e.Data), "null", op.Pattern, w.Body)
			case e.Error.Message == "":
				t.Errorf("%s: e.Error.Message is empty, %s, %s", p.name, op.Pattern, w.Body)
			case len(e.Error.Advice) == 0:
				t.Errorf("%s: len(e.Error.Advice) = %v; %s; %s", p.name, len(e.Error.Advice), op.Pattern, w.Body)
			case e.Meta.RequestID != entries[0].RequestID:
				t.Errorf("%s: e.Meta.RequestID = %q, want %q; %s; %s", p.name, e.Meta.RequestID, entries[0].RequestID, op.Pattern, w.Body)
			}
			if strings.Contains(w.Body.String(), "bob") || len(o.revocations()) > 0 { // PL-01
				t.Errorf("%s %s: refused, and %s, %v", p.name, op.Pattern, w.Body, o.revocations())
			}
		}
	}
	golden := filepath.Join("testdata", "roles.golden")
	if *plane.Update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	wants := strings.Split(string(want), "\n")
	for i, line := range strings.Split(got.String(), "\n") {
		if i >= len(wants) || wants[i] != line {
			t.Errorf("line %d is\n%s\nnot as in %s; check it, and write it with -update", i+1, line, golden)
		}
	}
}

// outcome summarises a response in a few words.
func outcome(t *testing.T, w *httptest.ResponseRecorder) string {
	t.Helper()
	if strings.HasPrefix(w.Header().Get("Content-Type"), "text/event-stream") {
		var snap struct {
			Objects map[plane.Kind][]json.RawMessage
		}
		for _, e := range parseEvents(w.Body.String()) {
			if e.name == "snapshot" {
				if err := json.Unmarshal([]byte(e.data), &snap); err != nil {
					t.Fatal(err)
				}
			}
		}
		var kinds []string
		for k, objects := range snap.Objects {
			kinds = append(kinds, fmt.Sprint(k, "=", len(objects)))
		}
		slices.Sort(kinds)
		return strings.Join(append([]string{fmt.Sprint(w.Code)}, kinds...), " ")
	}
	if w.Header().Get("Content-Type") == recording.CastType {
		return fmt.Sprint(w.Code, " a recording")
	}
	var e envelope
	if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil {
		t.Fatalf("%v: %s", err, w.Body)
	}
	if e.Error != nil {
		return strings.TrimSpace(fmt.Sprint(w.Code, " ", e.Error.Code, " ", strings.Join(e.Error.Have, " ")))
	}
	var list []json.RawMessage
	if json.Unmarshal(e.Data, &list) == nil {
		return fmt.Sprint(w.Code, " ", len(list))
	}
	return fmt.Sprint(w.Code)
}
