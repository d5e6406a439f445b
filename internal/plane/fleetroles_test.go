package plane

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
)

// Update is set by -update, for all tests of the package.
var Update = flag.Bool("update", false, "write the role matrices and the queries into testdata")

// ID-12, PLANE-04: every operation for every kind of caller, and holds of every scope. Each error is declared and each request has one
// audit entry. A refused caller learns nothing of another organisation.
func TestFleetRoles(t *testing.T) {
	with := func(c access.Caller, f func(*access.Caller)) access.Caller { f(&c); return c }
	tagged := func(rule string) access.Caller {
		return with(callerWith("", rule), func(c *access.Caller) {
			c.Device, c.Tags = access.Device{ID: "n-ci", Name: "ci.ts.net"}, []access.Tag{"tag:ci"}
		})
	}
	type visit struct{ pattern, path, body string }
	var visits []visit
	for _, op := range (&FleetService{Plane: new(Service)}).Routes() {
		method, path, _ := strings.Cut(op.Pattern, " ")
		path = strings.NewReplacer("{forge}", "github", "{org}", "acme", "{pool}", "gh-nix", "{name}", "shared", "/drift/{id}", "/drift/d1", "{id}", "0").Replace(path)
		body := `{"reason":"matrix"}`
		switch op.Pattern {
		case IgnoreDrift.Pattern:
			body = `{"reason":"matrix","expiresIn":"1h"}`
		case RefreshDrift.Pattern:
			body = `{}`
		case ConfirmAction.Pattern:
			body = `{"id":"0","phrase":"x"}`
		case CreateHold.Pattern:
			for _, s := range []string{`{"org":"acme","pool":"gh-nix"}`, `{"org":"acme"}`, `{"org":"globex","pool":"gh-nix"}`, `{"pool":"gh-nix"}`, `{"forge":"github"}`, `{"all":true}`} {
				visits = append(visits, visit{op.Pattern, path, `{"reason":"matrix","scope":` + s + `}`})
			}
			body = `{"reason":"matrix","mode":"Stop","scope":{"org":"acme","pool":"gh-nix"}}`
		}
		visits = append(visits, visit{op.Pattern, method + " " + path, body})
	}
	refusals := map[string][]problem.Code{}
	for _, op := range (&FleetService{Plane: new(Service)}).Routes() {
		refusals[op.Pattern] = slices.Concat(httpapi.CommonRefusals(), op.Refusals)
	}
	var got strings.Builder
	for _, p := range []struct {
		name   string
		caller access.Caller
		err    error
	}{
		{"viewer acme", callerWith("vic@example.com", `{"role":"viewer","orgs":["acme"]}`), nil}, {"viewer *", callerWith("vera@example.com", `{"role":"viewer","orgs":["*"]}`), nil},
		{"operator acme (member)", mel(), nil}, {"operator *", alice(), nil}, {"org-admin acme (owner)", amy(), nil}, {"org-admin *", callerWith("olga@example.com", `{"role":"org-admin","orgs":["*"]}`), nil},
		{"platform-admin", pat(), nil}, {"operator globex", callerWith("u@example.com", `{"role":"operator","orgs":["globex"]}`), nil}, {"nobody", callerWith("mallory@evil.example"), nil},
		{"shared in, owner's name", with(amy(), func(c *access.Caller) { c.Shared, c.Tailnet = true, "other.example" }), nil},
		{"tagged", tagged(`{"role":"operator","orgs":["*"]}`), nil}, {"tagged, let in", tagged(`{"role":"operator","orgs":["acme"],"tags":["tag:ci"]}`), nil},
		{"key expired", with(alice(), func(c *access.Caller) { c.Expired = true }), nil}, {"Funnel", with(alice(), func(c *access.Caller) { c.Via = access.ViaFunnel }), nil},
		{"unknown", access.Caller{}, problem.New(problem.NoIdentity, "Nobody.", "Connect directly.")}, {"WhoIs down", access.Caller{}, problem.New(problem.IdentityUnavailable, "Cannot ask.", "Try again.").WithRetryAfter(time.Second)},
	} {
		for _, v := range visits {
			o := newFleetEnv()
			o.caller, o.refused = p.caller, p.err
			have := o.names()
			method, path, ok := strings.Cut(v.path, " ")
			if !ok {
				method, path = http.MethodPost, v.path
			}
			a := o.do(t, method, path, v.body)
			what := fmt.Sprint(a.Status)
			var list []json.RawMessage
			switch {
			case a.Error != nil:
				what = strings.TrimSpace(fmt.Sprint(a.Status, " ", a.Error.Code, " ", strings.Join(a.Error.Have, " ")))
			case json.Unmarshal(a.Data, &list) == nil:
				what = fmt.Sprint(a.Status, " ", len(list))
			}
			scope := ""
			if v.pattern == CreateHold.Pattern {
				scope = " " + strings.NewReplacer(`{"reason":"matrix",`, "", `"`, "", "scope:", "", "}}", "}").Replace(v.body)
			}
			fmt.Fprintf(&got, "%-24s %-86s %s\n", p.name, v.pattern+scope, what)
			if len(o.entries) != 1 {
				t.Errorf("%s %s: %d entries", p.name, v.pattern, len(o.entries))
			}
			if a.Error == nil {
				continue
			}
			if !slices.Contains(refusals[v.pattern], a.Error.Code) {
				t.Errorf("%s %s: refused with %s, which it does not declare", p.name, v.pattern, a.Error.Code)
			}
			if strings.Contains(a.Text, "secret") || !slices.Equal(o.names(), have) {
				t.Errorf("%s %s: refused, and %s, %v", p.name, v.pattern, a.Text, o.names())
			}
		}
	}
	golden := filepath.Join("testdata", "fleetroles.golden")
	if *Update {
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
