package cli_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tka admin check-policy asks the operator plane of the settings about the rules of its own capability, and names it beside the clusters. A
// plane that cannot be asked does not accept.
func TestCheckPolicyAtPlane(t *testing.T) {
	_, server := newAccessServer(t, "prod-eu")
	env := newPlaneEnv(t)
	m := newMachine(t, server.URL)
	const good = `{"role": "viewer", "orgs": ["acme"]}`
	policy := func(rule string) {
		t.Helper()
		m.write(t, "policy.hujson", `{"grants": [{"dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/access": [{"role": "view", "period": "1h"}],
			"tailplane.dev/cap/plane": [`+good+`,
			`+rule+`]}}]}`)
	}
	check := func(want int, says string, args ...string) {
		t.Helper()
		r := m.run(append([]string{"admin", "check-policy", m.path("policy.hujson")}, args...)...)
		if r.code != want || !strings.Contains(r.out+r.err, says) {
			t.Errorf("%v: code %d, want %d and %q\n%s%s", args, r.code, want, says, r.out, r.err)
		}
	}
	policy(`{"role": "viewer", "org": "acme"}`)
	check(0, "prod-eu") // no plane is configured
	if r := m.run("config", "plane.url", env.URL); r.code != 0 {
		t.Fatalf("config: %s", r.err)
	}
	check(3, `policy.hujson:3: (operator plane) refuses rule 2 of grant 1: The rule is invalid: "org" is not a field of a rule.`)
	check(0, "prod-eu", "-l", "env!=dev") // only clusters
	r := m.run("admin", "check-policy", m.path("policy.hujson"), "-o", "json")
	var list struct {
		Items []struct {
			Cluster, Server string
			Checked         int
		}
	}
	if err := json.Unmarshal([]byte(r.out), &list); err != nil || len(list.Items) != 2 {
		t.Fatalf("as JSON: %v\n%s", err, r.out)
	}
	got := list.Items[1]
	if diff := cmp.Diff([]any{"", env.URL, 2}, []any{got.Cluster, got.Server, got.Checked}); diff != "" {
		t.Errorf("the plane's item (-want +got):\n%s", diff)
	}
	policy(good)
	check(0, "(operator plane)")
	env.Close()
	check(5, "not asked")
	check(0, "not asked", "--skip-unreachable")
}
