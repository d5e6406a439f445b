package signin_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/signin"
)

// A login requests exactly what its body says. A body that is ambiguous or has unknown fields is
// rejected.
func FuzzLoginBody(f *testing.F) {
	for _, seed := range []string{
		"", " ", "{}", "null", "[]", `"view"`, "\xff", "{", `{"role":"view"`,
		`{"role":"view","period":"30m","namespaces":["shop"]}`,
		`{"role":"view","role":"cluster-admin"}`, `{"role":"view","\u0072ole":"edit"}`, `{"Role":"edit"}`, `{"ROLE":"edit","role":"view"}`,
		`{"namespace":["shop"]}`, `{"namespaces":"shop"}`, `{"namespaces":null}`, `{"namespaces":[]}`, `{"namespaces":[null,1]}`,
		`{"period":"24d"}`, `{"period":1}`, `{"period":"-1h"}`, `{"period":"9223372036854775807h"}`, `{"period":""}`,
		`{"role":"../x"}`, `{"role":"system:masters"}`, `{"role":"\u0000"}`, `{"role":{"a":[[[]]]}}`, `{"role":"view"}{"role":"edit"}`, `{"role":"view"} x`,
		"\ufeff{}", strings.Repeat("[", 5000), `{"role":"` + strings.Repeat("a", 17<<10) + `"}`,
	} {
		f.Add(seed)
	}
	grant, err := access.ParseGrant([]byte(`{"role":"view","period":"1h"}`))
	if err != nil {
		f.Fatal(err)
	}
	policy := access.Policy{Capability: "tailplane.dev/cap/access", Min: access.MinPeriod, Max: 24 * time.Hour, Roles: []access.Role{grant.Binds.Role()}}
	var asked *signin.LoginRequest
	h := (&httpapi.Server{
		Names: func() []string { return []string{"tka"} }, Log: slog.New(slog.DiscardHandler), Now: time.Now,
		Identify: func(*http.Request) (access.Caller, error) {
			return access.Caller{Login: "alice@example.com", Device: access.Device{ID: "n1", Name: "laptop"}, Via: access.ViaTailnet,
				Rules: []json.RawMessage{json.RawMessage(`{"role":"view","period":"1h"}`)}}, nil
		},
		Decide: func(c access.Caller, v access.Verb, now time.Time) (access.Permit, error) {
			return access.Decide(c, v, policy, now)
		},
		Record: func(audit.Entry) error { return nil },
	}).Handler(signin.Login.Serve(func(_ context.Context, _ access.Permit, r signin.LoginRequest) (signin.Accepted, error) {
		asked = &r
		return signin.Accepted{}, nil
	}))
	f.Fuzz(func(t *testing.T, body string) {
		asked = nil
		r := httptest.NewRequest("POST", signin.Base+"/login", strings.NewReader(body))
		r.Host = "tka"
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if (w.Code/100 == 2) != (asked != nil) || w.Code >= 500 {
			t.Fatalf("%q: %d %s", body, w.Code, w.Body)
		}
		if asked == nil || body == "" {
			return
		}
		var says map[string]any
		if err := json.Unmarshal([]byte(body), &says); err != nil || len(body) > 16<<10 {
			t.Fatalf("took %d bytes that are no object: %.200q", len(body), body)
		}
		for name := range says {
			if !slices.Contains([]string{"role", "period", "namespaces"}, name) {
				t.Errorf("took the field %q", name)
			}
		}
		if role, _ := says["role"].(string); role != string(asked.Role) {
			t.Errorf("%q asks for the role %q", body, asked.Role)
		}
		if list, _ := says["namespaces"].([]any); len(list) != len(asked.Namespaces) {
			t.Errorf("%q asks for the namespaces %q", body, asked.Namespaces)
		}
		if d := time.Duration(asked.Period); d != 0 {
			if text, _ := says["period"].(string); text == "" {
				t.Errorf("%q asks for %v", body, d)
			}
		}
	})
}
