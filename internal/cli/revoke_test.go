//go:build unix

package cli_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/gossip"
)

// The leaver's runbook: revoke --everywhere ends the sign-ins of one login in all clusters, each through its own context, and names every
// cluster that it could not reach. It ends no other login's, and nothing in a cluster that left.
func TestRevokeEverywhere(t *testing.T) {
	eu, euURL := newAccessServer(t, "prod-eu")
	us, usURL := newAccessServer(t, "prod-us")
	dead, deadURL := newAccessServer(t, "prod-dead") // its server is dead; its API server is not
	asia, asiaURL := newAccessServer(t, "prod-asia")
	left, leftURL := newAccessServer(t, "prod-left")
	m := newMachine(t, euURL.URL)
	allowHTTP(t, m, usURL.URL, deadURL.URL)
	eu.addCluster(euURL.URL, member(us, usURL.URL), member(dead, deadURL.URL))
	if r := m.run("login", "--all"); r.code != 0 {
		t.Fatal(r.out, r.err)
	}
	gone, unreached, away := member(left, leftURL.URL), member(asia, asiaURL.URL), member(dead, deadURL.URL)
	gone.State, away.State = gossip.Gone, gossip.Dead
	eu.addCluster(euURL.URL, member(us, usURL.URL), away, unreached, gone)
	deadURL.Close()

	const kubectl = `cluster=${*##*--context }
case "$1 $cluster" in
get*tka-prod-us) echo 'Unable to connect to the server: i/o timeout' >&2; exit 1;;
get*) cat <<'END'
` + twoSignins + `
END
;; delete*alice-2*tka-prod-dead) echo 'Error from server (Forbidden): no' >&2; exit 1;; esac`
	env := m.fakeKubectl(t, strings.ReplaceAll(kubectl, `"$1 $cluster"`, `"$1 $3 $cluster"`))
	asked := func(verb string) (all []string) {
		for line := range strings.Lines(m.read(t, "asked")) {
			if f := strings.Fields(line); f[0] == verb {
				all = append(all, f[2]+" "+f[len(f)-1])
			}
		}
		slices.Sort(all)
		return all
	}
	r := m.spawn(t, env, "revoke", "--everywhere", "alice@example.com", "--dry-run")
	if r.code != 5 || !strings.Contains(r.out, "Would end alice-1: view of alice@example.com on laptop in prod-eu.") {
		t.Errorf("--dry-run: code %d\n%s%s", r.code, r.out, r.err)
	}
	if got := asked("delete"); len(got) > 0 {
		t.Errorf("--dry-run deleted %q", got)
	}
	r = m.spawn(t, env, "revoke", "--everywhere", "alice@example.com")
	if r.code != 2 || !strings.Contains(r.err, "in prod-dead") {
		t.Errorf("without --yes: code %d\n%s%s", r.code, r.out, r.err)
	}
	if !strings.Contains(r.err, "not reached: prod-asia, prod-us") {
		t.Errorf("the question does not name the clusters that were not reached: %s", r.err)
	}
	r = m.spawn(t, env, "revoke", "--everywhere", "alice@example.com", "--yes", "-o", "json")
	want := []string{"alice-1 tka-prod-dead", "alice-1 tka-prod-eu", "alice-2 tka-prod-dead", "alice-2 tka-prod-eu"}
	if diff := cmp.Diff(want, asked("delete")); diff != "" {
		t.Errorf("deleted (-want +got):\n%s", diff)
	}
	var list struct {
		Kind  string
		Items []struct {
			Cluster, Name, Error string
			Revoked              bool
		}
		Unreached []struct{ Cluster, Error string }
	}
	if err := json.Unmarshal([]byte(r.out), &list); err != nil {
		t.Fatalf("%v: %s%s", err, r.out, r.err)
	}
	var got []string
	for _, i := range list.Items {
		state := "ended"
		if !i.Revoked {
			state = i.Error
		}
		got = append(got, i.Cluster+" "+i.Name+" "+state)
	}
	for _, u := range list.Unreached {
		got = append(got, u.Cluster+" "+u.Error)
	}
	if diff := cmp.Diff([]string{
		"prod-dead alice-1 ended", "prod-dead alice-2 kubectl: Error from server (Forbidden): no", "prod-eu alice-1 ended", "prod-eu alice-2 ended",
		"prod-asia the kubeconfig has no context of tka for it; tka login --all writes one", "prod-us kubectl: Unable to connect to the server: i/o timeout",
	}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if r.code == 0 || list.Kind != "RevocationList" {
		t.Errorf("code %d, kind %s", r.code, list.Kind)
	}
	for _, tt := range []struct {
		args string
		code int
		says string
	}{
		{"--everywhere --context x alice@example.com", 2, "cannot be combined"}, {"--session x alice@example.com", 2, "need --everywhere"},
		{"--everywhere -l env=none alice@example.com", 1, "No cluster matches"},
		{"--everywhere --session admin alice@example.com --yes", 1, "no context of tka for it"},
	} {
		if r := m.spawn(t, env, append([]string{"revoke"}, strings.Fields(tt.args)...)...); r.code != tt.code || !strings.Contains(r.out+r.err, tt.says) {
			t.Errorf("%s: code %d\n%s%s", tt.args, r.code, r.out, r.err)
		}
	}
}
