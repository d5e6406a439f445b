package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/gossip"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// The number of access servers that find each other, and how long the test counts their idle traffic.
var (
	manyServers = flag.Int("many", 20, "access servers of TestManyServers, 4 to 40")
	manyWindow  = flag.Duration("many.window", 20*time.Second, "how long TestManyServers counts the traffic of idle servers")
)

// see waits until all given servers report the wanted number of members in each state.
func see(t *testing.T, those []*clusterEnv, what string, want map[gossip.State]int) time.Duration {
	t.Helper()
	began := time.Now()
	for _, s := range those {
		eventually(t, 90*time.Second, what+" at "+s.name, func() bool { return agrees(t, s, want) })
	}
	return time.Since(began).Round(10 * time.Millisecond)
}

func agrees(t *testing.T, s *clusterEnv, want map[gossip.State]int) bool {
	t.Helper()
	for state, n := range want {
		if in(t, s, state) != n {
			return false
		}
	}
	return true
}

// in returns how many members s reports in a state, including itself.
func in(t *testing.T, s *clusterEnv, state gossip.State) int {
	t.Helper()
	return int(series(t, s.process)[`tailplane_members{state="`+string(state)+`"}`])
}

// allList waits until ok accepts the list of each given server. The list is indexed by cluster name.
func allList(t *testing.T, p *testenv.Person, those []*clusterEnv, what string, ok func(map[string]gossip.Cluster) bool) time.Duration {
	t.Helper()
	began := time.Now()
	for _, s := range those {
		eventually(t, 90*time.Second, what+" at "+s.name, func() bool {
			list, err := s.lists(t.Context(), p)
			return err == nil && ok(list)
		})
	}
	return time.Since(began).Round(10 * time.Millisecond)
}

// TestManyServers runs twenty access servers as separate processes. It checks that:
//
//   - every server lists all others;
//   - idle servers stay within their traffic limit (DSC-02);
//   - a killed server is dead for all others and stays dead (DSC-03);
//   - others learn the new labels of a restarted server (DSC-05);
//   - two sides without a grant between them find each other when the grant is added (DSC-06).
//
// The servers differ from a real installation in one way: they share a single API server, because twenty would need 6
// GB. Each has its own namespaces, ServiceAccount, key, pins and cluster id, and no rights in the namespaces of the
// others. Only the address and the certificate authority of "its" API server are the same for all.
func TestManyServers(t *testing.T) {
	n := *manyServers
	if n < 4 || n > 40 {
		t.Fatalf("-many %d: the value must be 4 to 40", n)
	}
	all := stands(t, n)
	took := see(t, all, "all are alive", map[gossip.State]int{gossip.Alive: n})
	t.Logf("%d servers: all alive at all %v after the last one served", n, took)

	r := all[0].env
	alice := person(t, r, "many-alice", "alice@example.com")
	for _, s := range all {
		if err := r.Net.WaitPeer(t.Context(), alice.Node, "tka-"+s.name); err != nil {
			t.Fatal(err)
		}
	}
	keys := map[string]bool{}
	whole := func(list map[string]gossip.Cluster) bool {
		for _, s := range all {
			c, ok := list[s.name]
			if !ok || c.State != gossip.Alive || !c.Verified || c.Conflict || c.ID != s.name || c.URL != s.url() || len(c.Members) != 1 {
				return false
			}
			keys[c.Key.String()] = true
		}
		return len(list) == n
	}
	allList(t, alice, all, "all are listed and verified", whole)
	if len(keys) != n {
		t.Errorf("%d clusters have %d keys", n, len(keys))
	}

	countIdle(t, all)

	// One server is killed.
	x, others := all[1], slices.Delete(slices.Clone(all), 1, 2)
	x.process.Kill()
	gone := map[gossip.State]int{gossip.Alive: n - 1, gossip.Dead: 1}
	t.Logf("called dead by all %v after it was killed", see(t, others, "one is dead", gone))
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		for _, s := range others {
			if in(t, s, gossip.Dead) < 1 {
				t.Fatalf("the dead one is back at %s", s.name)
			}
		}
	}

	// It restarts with other labels.
	x.labels = "{env: changed, side: left}"
	serving, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := x.serve(serving); err != nil {
		t.Fatal(err)
	}
	took = allList(t, alice, all, "the new labels", func(list map[string]gossip.Cluster) bool {
		c := list[x.name]
		return c.State == gossip.Alive && c.Labels["env"] == "changed" && whole(list)
	})
	t.Logf("its new labels are everywhere %v after it served again", took)

	partAndJoin(t, all)
	took = allList(t, alice, all, "all are listed as before", whole)
	t.Logf("listed everywhere as before another %v later", took)
}

// partAndJoin removes the grant between two sides and restores it. A tailnet keeps existing TCP connections and
// refuses only new ones. The test therefore kills and restarts the servers on the right side, which closes the
// connections.
func partAndJoin(t *testing.T, all []*clusterEnv) {
	t.Helper()
	net := all[0].env.Net
	if err := net.SetPolicy(partedPolicy(false)); err != nil {
		t.Fatal(err)
	}
	var left, right []*clusterEnv
	for _, s := range all {
		if s.side == "left" {
			left = append(left, s)
		} else {
			right = append(right, s)
			s.process.Kill()
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := together(right, func(s *clusterEnv) error { return s.serve(ctx) }); err != nil {
		t.Fatal(err)
	}
	parted := func() {
		t.Helper()
		see(t, left, "the right side is dead", map[gossip.State]int{gossip.Alive: len(left), gossip.Dead: len(right)})
		see(t, right, "the right side is alone", map[gossip.State]int{gossip.Alive: len(right)})
	}
	parted()
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); { // ten rounds, in which servers also contact dead members
		for _, s := range left {
			if in(t, s, gossip.Alive) > len(left) {
				t.Fatalf("%s hears the right side, which no grant lets it", s.name)
			}
		}
		for _, s := range right {
			if in(t, s, gossip.Alive) > len(right) {
				t.Fatalf("%s hears the left side, which no grant lets it", s.name)
			}
		}
	}
	parted()
	if err := net.SetPolicy(partedPolicy(true)); err != nil {
		t.Fatal(err)
	}
	took := see(t, all, "all are alive again", map[gossip.State]int{gossip.Alive: len(all)})
	t.Logf("alive everywhere %v after the sides of %d and %d were joined again", took, len(left), len(right))
}

// countIdle counts the messages that servers exchange without news: DSC-02 on real processes. An exchange without a
// record has two messages.
func countIdle(t *testing.T, all []*clusterEnv) {
	t.Helper()
	type sample struct {
		at    time.Time
		of    map[string]float64
		wrote uint64
	}
	scrape := func() (out []sample) {
		for _, s := range all {
			out = append(out, sample{time.Now(), series(t, s.process), written(t, s.process)})
		}
		return out
	}
	before := scrape()
	select {
	case <-time.After(*manyWindow):
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
	var kB, messages, wrote, wire, worst float64
	var records, out, in float64
	for i, b := range scrape() {
		a := before[i]
		seconds := b.at.Sub(a.at).Seconds()
		since := func(name string) float64 { return b.of[name] - a.of[name] }
		sent := since(`tailplane_gossip_bytes_total{direction="out"}`) / seconds / 1000
		kB, worst = kB+sent, max(worst, sent)
		wrote += float64(b.wrote-a.wrote) / seconds / 1000
		wire += since(`tailplane_gossip_wire_bytes_total{direction="out"}`) / seconds / 1000
		for _, kind := range gossip.Kinds() {
			k := since(`tailplane_gossip_messages_total{direction="out",kind="` + kind + `"}`)
			out += k
			messages += k / seconds
			if kind == "delta" {
				records += k
			}
		}
		in += since(`tailplane_gossip_messages_total{direction="in",kind="any"}`)
		if f := since("tailplane_gossip_exchange_failures_total"); f > 0 {
			t.Logf("%s: %g exchanges broke off", all[i].name, f)
		}
	}
	n := float64(len(all))
	t.Logf("idle, each of %d: %.1f kB/s in %.1f messages/s, the busiest %.1f kB/s, without HTTP", len(all), kB/n, messages/n, worst)
	t.Logf("with HTTP %.1f kB/s, so it adds %.0f bytes to each message", wire/n, 1000*(wire-kB)/messages)
	if wire <= kB {
		t.Errorf("connections carried %.1f kB/s, and messages alone are %.1f", wire/n, kB/n)
	}
	if wrote > 0 {
		t.Logf("each process wrote %.1f kB/s in all: HTTP, TCP, WireGuard and the relay's frames, to the API server, its log", wrote/n)
	}
	budget := 120.0
	for _, b := range []struct {
		n  int
		kB float64
	}{{40, 50}, {20, 25}, {10, 15}} {
		if len(all) <= b.n {
			budget = b.kB
		}
	}
	switch {
	case kB == 0:
		t.Errorf("that is nothing: kB = %v", kB)
	case worst > budget:
		t.Errorf("that is nothing: worst = %v, want at most %v", worst, budget)
	case messages/n > 50:
		t.Errorf("that is nothing: messages/n = %v, want at most 50", messages/n)
	}
	if records > 0 {
		t.Errorf("%g of %g messages carried records though nothing had changed", records, out)
	}
	if in < out/2 { // some are in transit, and a busy machine loses some
		t.Errorf("%g messages were sent, and %g arrived", out, in)
	}
}

// written returns the number of bytes that a process has written in total. It returns 0 if the system does not report
// it.
func written(t *testing.T, p *testenv.Process) uint64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", p.PID()))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "wchar: "); ok {
			n, err := strconv.ParseUint(v, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	return 0
}
