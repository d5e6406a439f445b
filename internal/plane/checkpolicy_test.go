package plane_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/signin"
)

// The plane says which rules of its own capability it would refuse, in grants that can be for it. What it refuses gives a caller no role.
func TestCheckPolicy(t *testing.T) {
	o := newEnv(clock)
	o.service.Capability, o.service.Tags = "tailplane.dev/cap/plane", []string{"tag:tailplane"}
	o.as(person("vic@example.com", `{"role":"viewer","orgs":["acme"]}`))
	rules := []string{`{"role":"viewer","orgs":["*"]}`, `{"role":"viewer","org":["acme"]}`, `{"role":"admin","orgs":["*"]}`, `{"role":"operator","orgs":["*","acme"]}`}
	app := `{"tailplane.dev/cap/plane": [` + strings.Join(rules, ",") + `], "tailplane.dev/cap/access": [{"x": 1}]}`
	body := `{"grants": [{"dst": ["tag:other"], "app": ` + app + `}, {"dst": ["tag:tailplane"], "app": ` + app + `}]}`
	w, e := o.do("POST", plane.Base+"/check-policy", body)
	if w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	want := signin.PolicyCheck{Capability: "tailplane.dev/cap/plane", Checked: 4, Problems: []signin.PolicyProblem{
		{Grant: 1, Rule: 1, Message: `The rule is invalid: "org" is not a field of a rule.`},
		{Grant: 1, Rule: 2, Message: `The rule is invalid: "role": "admin" is not one of viewer, operator, org-admin, platform-admin.`},
		{Grant: 1, Rule: 3, Message: `The rule is invalid: "orgs": "*" means all organisations; do not list others with it.`},
	}}
	if diff := cmp.Diff(want, data[signin.PolicyCheck](t, e)); diff != "" {
		t.Errorf("check (-want +got):\n%s", diff)
	}
	refused := map[int]bool{1: true, 2: true, 3: true}
	for i, rule := range rules {
		_, err := access.DecidePlane(person("new@example.com", rule), access.PlaneSelf, policy, clock())
		if (err != nil) != refused[i] {
			t.Errorf("a caller with %s: %v, refused by the check: %v", rule, err, refused[i])
		}
	}
}
