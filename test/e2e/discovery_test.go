package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/gossip"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// manyPolicy allows servers to find each other on the gossip port, which people cannot reach.
const manyPolicy = `{
  "groups": {"group:platform": ["alice@example.com"]},
  "tagOwners": {"tag:tailplane": ["autogroup:admin"]},
  "grants": [
    {"src": ["*"], "dst": ["tag:tailplane"], "ip": ["tcp:443"]},
    {"src": ["tag:tailplane"], "dst": ["tag:tailplane"], "ip": ["tcp:7946"]},
    {"src": ["group:platform"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/access": [{"role": "view", "period": "8h"}]}},
  ],
}`

// sites starts several clusters, each with its own servers, on one tailnet.
func sites(t *testing.T, names ...string) []*testenv.Env {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var all []*testenv.Env
	t.Cleanup(func() {
		for _, r := range slices.Backward(all) {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	begin := func(i int, o testenv.Options) (*testenv.Env, error) {
		dir, err := os.MkdirTemp("", "site")
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		o.ClusterName = names[i]
		o.Settings = map[string]string{"api.limits": testenv.NoLimits}
		if i > 0 {
			o.Hostname = "tka-" + names[i]
		}
		return testenv.Start(ctx, dir, o)
	}
	first, err := begin(0, testenv.Options{Policy: manyPolicy})
	if err != nil {
		t.Fatal(err)
	}
	all = make([]*testenv.Env, 1, len(names))
	all[0] = first
	others := make([]*testenv.Env, len(names))
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	for i := range names[1:] {
		wg.Go(func() { others[i+1], errs[i+1] = begin(i+1, testenv.Options{Beside: first}) })
	}
	wg.Wait()
	for i := range names[1:] {
		if errs[i+1] != nil {
			err = errs[i+1]
			continue
		}
		all = append(all, others[i+1])
	}
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// memberlist sends a memberlist request to a server as p.
func memberlist(t *testing.T, p *testenv.Person, r *testenv.Env, query string) map[string]gossip.Cluster {
	t.Helper()
	a := ask(t, p, "GET", r.Server()+"/api/v1alpha1/memberlist"+query, "")
	var list []gossip.Cluster
	if err := json.Unmarshal(a.body, &list); a.status != 200 || err != nil {
		t.Fatalf("%d %s (%v)", a.status, a.body, err)
	}
	byName := map[string]gossip.Cluster{}
	for _, c := range list {
		byName[c.Name] = c
	}
	return byName
}

// DSC-01: three servers, each with its own cluster, find each other without any configuration. Each lists all
// clusters as verified. A server that dies is marked dead, and is available again after its restart.
func TestDSC01_ThreeClusters(t *testing.T) {
	all := sites(t, "east", "west", "north")
	began := time.Now()
	alice := person(t, all[0], "dsc-alice", "alice@example.com")
	for _, r := range all {
		if err := r.Net.WaitPeer(t.Context(), alice.Node, strings.TrimSuffix(strings.TrimPrefix(r.Server(), "https://"), "."+r.Net.Suffix())); err != nil {
			t.Fatal(err)
		}
	}
	complete := func(r *testenv.Env) bool {
		list := memberlist(t, alice, r, "")
		for _, name := range []string{"east", "west", "north"} {
			if c, ok := list[name]; !ok || !c.Verified || c.Conflict || c.State != gossip.Alive {
				return false
			}
		}
		return len(list) == 3
	}
	for _, r := range all {
		eventually(t, 60*time.Second, "every cluster is listed at "+r.Server(), func() bool { return complete(r) })
	}
	t.Logf("all listed at all within %v of the last start", time.Since(began).Round(time.Millisecond))
	west := memberlist(t, alice, all[0], "")["west"]
	switch {
	case west.URL != all[1].Server():
		t.Errorf("west as east lists: west.URL = %q, want %q", west.URL, all[1].Server())
	case west.APIEndpoint != all[1].Cluster.Server:
		t.Errorf("west as east lists: west.APIEndpoint = %q, want %q", west.APIEndpoint, all[1].Cluster.Server)
	case west.Self:
		t.Errorf("west as east lists: west.Self is true; west = %+v", west)
	case west.Labels["env"] != "demo":
		t.Errorf(`west as east lists: west.Labels["env"] = %q, want %q`, west.Labels["env"], "demo")
	case len(west.Members) != 1:
		t.Errorf("west as east lists: len(west.Members) = %v, want 1", len(west.Members))
	}
	if !memberlist(t, alice, all[1], "")["west"].Self {
		t.Error("west does not list itself")
	}
	// The server itself returns its key.
	info := ask(t, alice, "GET", all[1].Server()+"/api/v1alpha1/cluster-info", "")
	if !strings.Contains(string(info.body), west.Key.String()) {
		t.Errorf("the listed key %s differs from the server's key: %s", west.Key, info.body)
	}

	all[2].Access.Kill()
	began = time.Now()
	for _, r := range all[:2] {
		eventually(t, 60*time.Second, "north is dead", func() bool { return memberlist(t, alice, r, "?state=all")["north"].State == gossip.Dead })
	}
	t.Logf("called dead by both %v after it was killed", time.Since(began).Round(time.Millisecond))
	if _, listed := memberlist(t, alice, all[0], "")["north"]; listed {
		t.Error("a dead cluster is listed by default")
	}
	if err := all[2].StartAccess(t.Context()); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	for _, r := range all {
		eventually(t, 60*time.Second, "north is back", func() bool { return complete(r) })
	}
	t.Logf("alive everywhere %v after it served again", time.Since(began).Round(time.Millisecond))

	// A stopped server announces that it leaves, so no server has to suspect it.
	if err := all[1].Access.Stop(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	for _, r := range []*testenv.Env{all[0], all[2]} {
		eventually(t, 20*time.Second, "west has left", func() bool { return memberlist(t, alice, r, "?state=all")["west"].State == gossip.Gone })
	}
	// Pins are stored in the cluster, so they survive a restart (DSC-10).
	pins, errs, exit := kubectlAdmin(t, all[0], "get", "configmap", "-n", testenv.SystemNamespace, "tailplane-gossip-pins", "-o", "jsonpath={.data.pins\\.json}")
	switch {
	case exit != 0:
		t.Errorf("exit = %v, want 0; errs = %s", exit, errs)
	case !strings.Contains(pins, west.Key.String()):
		t.Errorf("pins = %q does not contain %q; errs = %s", pins, west.Key.String(), errs)
	case !strings.Contains(pins, west.ID):
		t.Errorf("pins = %q does not contain %q; errs = %s", pins, west.ID, errs)
	}

	// Other servers accept a key that is changed in the documented way, because the previous key signs it (DSC-10).
	old, errs, exit := kubectlAdmin(t, all[1], "get", "secret", "-n", testenv.SystemNamespace, "tailplane-cluster-key", "-o", "jsonpath={.data.ed25519}")
	if exit != 0 {
		t.Fatal(errs)
	}
	patch := fmt.Sprintf(`{"data":{"previous":%q,"ed25519":null}}`, old)
	if _, errs, exit := kubectlAdmin(t, all[1], "patch", "secret", "-n", testenv.SystemNamespace, "tailplane-cluster-key", "--type", "merge", "-p", patch); exit != 0 {
		t.Fatal(errs)
	}
	if err := all[1].StartAccess(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		eventually(t, 60*time.Second, "west is back with another key", func() bool { return complete(r) && memberlist(t, alice, r, "")["west"].Key != west.Key })
	}
	// The list is also stored in the cluster, for programs there.
	eventually(t, 60*time.Second, "the list is published", func() bool {
		list, _, _ := kubectlAdmin(t, all[0], "get", "configmap", "-n", testenv.SystemNamespace, "tailplane-members", "-o", "jsonpath={.data.members\\.json}")
		return strings.Contains(list, `"west"`) && strings.Contains(list, `"north"`)
	})

	// The commands that people use.
	out := run(t, alice, 0, "tka clusters")
	for _, name := range []string{"east", "west", "north"} {
		if !strings.Contains(out.Stdout, name) {
			t.Errorf("tka clusters: %s", out.Stdout)
		}
	}
	run(t, alice, 0, "tka login --cluster north")
	if got := run(t, alice, 0, "kubectl --context tka-north auth whoami"); !strings.Contains(got.Stdout, "alice-example-com-") {
		t.Errorf("%s", got.Stdout)
	}
	run(t, alice, 0, "tka login --all")
	run(t, alice, 0, "tka logout --all")

	events := map[string]int{}
	b, err := os.ReadFile(filepath.Join(all[0].Dir, "access", "audit.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		var e struct{ Verb string }
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		events[e.Verb]++
	}
	for _, verb := range []string{"gossip.join", "gossip.pin", "gossip.death", "gossip.leave", "gossip.rekey"} {
		if events[verb] == 0 {
			t.Errorf("the record has no %s: %v", verb, events)
		}
	}
	if events["gossip.exchange"] > 0 {
		t.Errorf("the record has %d exchanges", events["gossip.exchange"])
	}
	fmt.Fprintln(t.Output(), "recorded:", events)
}
