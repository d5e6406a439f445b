package plane

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
)

// thing is an object of one organisation, or of none.
type thing struct{ org, login, tailnet string }

func (o thing) Key() string         { return o.org }
func (o thing) Org() string         { return o.org }
func (o thing) Owner() Owner        { return Owner{o.login, o.tailnet} }
func (o thing) Observed() time.Time { return time.Time{} }
func (o thing) At(time.Time) Object { return o }

func view(t *testing.T, c access.Caller, rules ...string) Viewer {
	t.Helper()
	c.Via = access.ViaTailnet
	for _, r := range rules {
		c.Rules = append(c.Rules, json.RawMessage(r))
	}
	p, err := access.DecidePlane(c, access.PlaneSelf, access.PlanePolicy{Capability: "c"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return ViewerOf(p)
}

// PL-05, ID-13: objects of an organisation are visible to callers with a role there. Objects of a person are visible to that person. An
// object of an undecided kind is visible to no caller.
func TestPL05_Viewer(t *testing.T) {
	alice := access.Caller{Login: "alice@example.com", Tailnet: "example.com", Device: access.Device{ID: "n", Name: "laptop"}}
	shared := alice
	shared.Shared, shared.Tailnet = true, "other.example"
	unnamed := alice
	unnamed.Tailnet = ""
	ci := access.Caller{Tags: []access.Tag{"tag:ci"}, Tailnet: "example.com", Device: access.Device{ID: "n2", Name: "ci"}}
	const acme, everything = `{"role":"viewer","orgs":["acme"],"tags":["tag:ci"]}`, `{"role":"viewer","orgs":["*"],"tags":["tag:ci"]}`
	for _, c := range []struct {
		why  string
		who  Viewer
		verb access.Verb
		of   thing
		want bool
	}{
		{"of the caller's organisation", view(t, alice, acme), access.FleetRead, thing{org: "acme"}, true},
		{"of another", view(t, alice, acme), access.FleetRead, thing{org: "globex"}, false},
		{"of all", view(t, alice, acme), access.FleetRead, thing{}, false},
		{"of all, to a caller with a role for all", view(t, alice, everything), access.FleetRead, thing{}, true},
		{"the caller's own", view(t, alice, acme), access.SigninsRead, thing{login: "alice@example.com", tailnet: "example.com"}, true},
		{"the caller's own, of an unknown tailnet", view(t, alice, acme), access.SigninsRead, thing{login: "alice@example.com"}, true},
		{"the caller's own, for a caller of an unknown tailnet", view(t, unnamed, acme), access.SigninsRead, thing{login: "alice@example.com", tailnet: "example.com"}, true},
		{"a namesake's", view(t, alice, acme), access.SigninsRead, thing{login: "alice@example.com", tailnet: "other.example"}, false},
		{"a namesake's, as a guest", view(t, shared, acme), access.SigninsRead, thing{login: "alice@example.com", tailnet: "example.com"}, false},
		{"another person's, as a guest", view(t, shared, acme), access.SigninsRead, thing{login: "alice@example.com"}, false},
		{"the caller's own, as a guest", view(t, shared, acme), access.SigninsRead, thing{login: "alice@example.com", tailnet: "other.example"}, true},
		{"another letter case", view(t, alice, acme), access.SigninsRead, thing{login: "Alice@example.com", tailnet: "example.com"}, false},
		{"nobody's", view(t, alice, acme), access.SigninsRead, thing{}, false},
		{"a node's own", view(t, ci, acme), access.SigninsRead, thing{login: "node:ci", tailnet: "example.com"}, true},
		{"an object without an owner, to a node", view(t, ci, acme), access.SigninsRead, thing{}, false},
		{"the caller's own, for a verb without own objects", view(t, alice, acme), access.InfraRead, thing{login: "alice@example.com", tailnet: "example.com"}, false},
		{"no rule", view(t, alice, everything), Kind("pool2").readVerb(), thing{org: "acme"}, false},
		{"no verb", view(t, alice, everything), "", thing{login: "alice@example.com"}, false},
	} {
		if got := c.who.allows(c.verb, c.of); got != c.want {
			t.Errorf("%s: %t", c.why, got)
		}
	}
	if view(t, alice, everything).seesAny("pool2") {
		t.Error("a kind without a rule is listed")
	}
}

// FuzzListRequest checks that a forged cursor is refused and a real one continues the list. For all parameters, a page is not longer than
// requested, and pages end.
func FuzzListRequest(f *testing.F) {
	all := people(20)
	f.Add("u3", "Ready", "-login", 3, "")
	f.Add("", "", "device", 1, listCursor{Kind: KindSignin, ID: "t/s0003", Sort: "device", Value: "é"}.String())
	f.Add("\x00", "pending", "-", 500, "eyJrIjoic2lnbmluIn0")
	f.Fuzz(func(t *testing.T, q, state, sort string, limit int, mark string) {
		if new(Text).UnmarshalText([]byte(q)) != nil || new(Text).UnmarshalText([]byte(state)) != nil || new(Text).UnmarshalText([]byte(sort)) != nil {
			return // the server refuses it
		}
		limit = 1 + max(limit, -limit, 0)%maxLimit
		req := ListRequest{Q: Text(q), State: Text(state), Sort: Text(sort), Limit: PageLimit(limit), Cursor: Cursor(mark)}
		for turns := 0; ; turns++ {
			page, about, err := signins().page(all, "", req)
			if err != nil {
				if turns > 0 {
					t.Errorf("the cursor %q that was given out is refused: %v", req.Cursor, err)
				}
				return
			}
			if len(page) > limit || turns > len(all) {
				t.Fatalf("%d of at most %d, after %d pages", len(page), limit, turns)
			}
			if about.Next == "" {
				return
			}
			req.Cursor = Cursor(about.Next)
		}
	})
}
