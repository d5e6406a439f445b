package gossip

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestPrune: a pin outlives its node by a week, and the key of a cluster outlives its last node by months. A restart does not reset these
// times (DSC-10, GO-03).
func TestPrune(t *testing.T) {
	c := newMergeEnv(t, Rules{})
	a, b, other := c.s.nodes[0], c.s.nodes[1], c.s.nodes[2]
	b.facts.ClusterID, b.facts.Key, b.key = a.facts.ClusterID, a.facts.Key, a.key // two servers of one cluster
	for _, n := range []*simNode{a, b, other} {
		if ch := c.record(n, forge(t, n.facts, Order{1, 1}, n.key)); !ch.Pinned {
			t.Fatalf("%+v", ch)
		}
	}
	size := c.v.pinned
	here := func(nodes ...*simNode) *Netmap {
		peers := []Peer{{ID: "nSELF"}}
		for _, n := range nodes {
			peers = append(peers, Peer{ID: n.facts.Node})
		}
		return NewNetmap(peers)
	}
	now := simEpoch
	after := func(d time.Duration, m *Netmap) []string {
		now = now.Add(d)
		next, dropped := Prune(c.v, m, now)
		c.v = NewView(*c.v.rules, next.memory(0)) // a restart
		if c.v.pinned != next.pinned {
			t.Fatalf("after a restart, pins need %d bytes, before it %d", c.v.pinned, next.pinned)
		}
		return dropped
	}
	pins := func() string {
		m := c.v.memory(0)
		return fmt.Sprintf("%d nodes, %d clusters, %d absent", len(m.Nodes), len(m.Clusters), len(m.Absent))
	}
	day := 24 * time.Hour
	after(time.Hour, nil)
	if dropped := after(365*day, nil); len(dropped) > 0 || pins() != "3 nodes, 2 clusters, 0 absent" {
		t.Errorf("an empty netmap: dropped %v, %s", dropped, pins())
	}
	after(0, here())
	if dropped := after(6*day, here(a)); len(dropped) > 0 || pins() != "3 nodes, 2 clusters, 2 absent" {
		t.Errorf("one is back: dropped %v, %s", dropped, pins())
	}
	if dropped := after(2*day, here(a)); !slices.Equal(dropped, []string{b.facts.Node}) || pins() != "2 nodes, 2 clusters, 1 absent" {
		t.Errorf("after a week: dropped %v, %s", dropped, pins())
	}
	if dropped := after(81*day, here(a)); len(dropped) > 0 {
		t.Errorf("before its time the key of a cluster is dropped: %v", dropped)
	}
	switch dropped := after(2*day, here(a)); {
	case !slices.Equal(dropped, []string{other.facts.Node}):
		t.Errorf("after months: dropped: dropped (-want +got):\n%s", cmp.Diff([]string{other.facts.Node}, dropped))
	case pins() != "1 nodes, 1 clusters, 0 absent":
		t.Errorf(`after months: dropped: pins() != "1 nodes, 1 clusters, 0 absent"; dropped = %v, %s, %d`, dropped, pins(), c.v.pinned)
	case c.v.pinned >= size:
		t.Errorf("after months: dropped: c.v.pinned = %v, want less than %v", c.v.pinned, size)
	}
	// The machine's clock was years ahead when the time was recorded.
	after(0, here())
	now = now.Add(-3 * 365 * day)
	after(0, here())
	switch dropped := after(91*day, here()); {
	case !slices.Equal(dropped, []string{a.facts.Node}):
		t.Errorf("after the clock was set back: dropped: dropped (-want +got):\n%s", cmp.Diff([]string{a.facts.Node}, dropped))
	case pins() != "0 nodes, 0 clusters, 0 absent":
		t.Errorf(`after the clock was set back: dropped: pins() != "0 nodes, 0 clusters, 0 absent"; dropped = %v, %s, %d`,
			dropped, pins(), c.v.pinned)
	case c.v.pinned != 0:
		t.Errorf("after the clock was set back: dropped: c.v.pinned = %v, want 0", c.v.pinned)
	}
}

// TestPinsAreBounded: pins always fit into the object that stores them. When room is short, pins of nodes that have been gone for a day are
// dropped.
func TestPinsAreBounded(t *testing.T) {
	c := newMergeEnv(t, Rules{})
	a := c.s.nodes[0]
	var gone []Peer
	for i := 0; ; i++ { // ids of the greatest length
		f := a.facts
		f.Node, f.ClusterID = fmt.Sprintf("n%063d", i), fmt.Sprintf("c%0127d", i)
		p := Peer{f.Node, f.Host, f.IPs}
		r, err := Open(forge(t, f, Order{1, 1}, a.key))
		if err != nil {
			t.Fatal(err)
		}
		c.v.rules.MaxMembers = i + 10
		v, ch := Merge(c.v, Delivery{f.Node, []*Record{r}, NewNetmap([]Peer{p})}, simEpoch)
		if c.v = v; !ch[0].Pinned {
			if ch[0].Entry == nil || v.Verified(ch[0].Entry) {
				t.Errorf("beyond the bound: %+v", ch[0])
			}
			break
		}
		gone = append(gone, p)
	}
	m := c.v.memory(0)
	for node := range m.Nodes {
		m.Absent[node] = simEpoch.Unix()
	}
	stored := 0
	for node, cluster := range m.Nodes {
		stored += len(fmt.Sprintf("%q:%q,%q:%d,", node, cluster, node, m.Absent[node]))
	}
	for cluster, key := range m.Clusters {
		stored += len(fmt.Sprintf("%q:%q,", cluster, key.String()))
	}
	t.Logf("%d nodes, %d bytes counted, %d stored", len(gone), c.v.pinned, stored)
	switch {
	case stored > c.v.pinned:
		t.Errorf("stored = %v, want at most %v", stored, c.v.pinned)
	case c.v.pinned > maxPinned:
		t.Errorf("c.v.pinned = %v, want at most %v", c.v.pinned, maxPinned)
	case len(gone) < 1000:
		t.Errorf("len(gone) = %v, want at least 1000", len(gone))
	}
	here := NewNetmap([]Peer{{ID: "nSELF"}})
	c.v, _ = Prune(c.v, here, simEpoch)
	if _, dropped := Prune(c.v, here, simEpoch.Add(23*time.Hour)); len(dropped) > 0 {
		t.Errorf("%d are dropped within a day", len(dropped))
	}
	v, dropped := Prune(c.v, here, simEpoch.Add(25*time.Hour))
	switch {
	case v.isCrowded():
		t.Errorf("after a day: v.isCrowded() is true; %d, %d, %d", len(dropped), len(gone), v.pinned)
	case len(dropped) == 0:
		t.Errorf("after a day: len(dropped) = %v", len(dropped))
	case len(dropped) == len(gone):
		t.Errorf("after a day: len(dropped) = %v, the same as len(gone)", len(dropped))
	}
	if again := NewView(*v.rules, v.memory(0)); again.pinned != v.pinned {
		t.Errorf("%d bytes are counted, and %d are left", v.pinned, again.pinned)
	}
}

// TestCheapQuestionsFirst: Merge verifies the signature only of records that would change something (GO-05).
func TestCheapQuestionsFirst(t *testing.T) {
	c := newMergeEnv(t, Rules{})
	a, b := c.s.nodes[0], c.s.nodes[1]
	c.record(a, forge(t, a.facts, Order{5, 5}, a.key))
	unsigned := func(f Facts, o Order) Signed {
		r := forge(t, f, o, a.key)
		r.Signature = make([]byte, len(r.Signature))
		return r
	}
	stranger, elsewhere, fresh := a.facts, b.facts, b.facts
	stranger.Node = "nNOBODY"
	elsewhere.APIEndpoint = "https://10.0.0.1:6443"
	fresh.ClusterID = "fresh"
	for _, tt := range []struct {
		what string
		from *simNode
		s    Signed
		why  Reason
	}{
		{"not a node of this tailnet", b, unsigned(stranger, Order{9, 9}), Binding},
		{"older than the stored record", b, unsigned(a.facts, Order{5, 4}), Old},
		{"of another cluster than pinned", b, unsigned(func() Facts { f := a.facts; f.ClusterID = "other"; return f }(), Order{9, 9}), Binding},
		{"hearsay that points into a house", a, unsigned(elsewhere, Order{9, 9}), Endpoint},
		{"later than the stored record", b, unsigned(a.facts, Order{5, 6}), Signature},
		{"of the same order", b, unsigned(a.facts, Order{5, 5}), Signature},
		{"a new node", a, unsigned(fresh, Order{1, 1}), Signature},
		{"to be remembered as refused", b, unsigned(elsewhere, Order{9, 9}), Signature},
	} {
		r, err := parse(tt.s)
		if err != nil {
			t.Fatal(err)
		}
		v, ch := Merge(c.v, Delivery{tt.from.facts.Node, []*Record{r}, c.s.netmap}, simEpoch)
		switch {
		case len(ch) != 1:
			t.Errorf("%s: len(ch) = %v, want 1", tt.what, len(ch))
		case ch[0].Reason != tt.why:
			t.Errorf("%s: ch[0].Reason = %q, want %q", tt.what, ch[0].Reason, tt.why)
		case ch[0].Entry != nil:
			t.Errorf("%s: ch[0].Entry = %v, want nil", tt.what, ch[0].Entry)
		}
		if v != c.v {
			t.Errorf("%s: the view has changed", tt.what)
		}
	}
	self := a.facts
	self.Node = "nSELF"
	c.v.rules.Key = a.facts.Key
	r, err := parse(unsigned(self, Order{9, 9}))
	if err != nil {
		t.Fatal(err)
	}
	if _, ch := Merge(c.v, Delivery{b.facts.Node, []*Record{r}, c.s.netmap}, simEpoch); ch[0].Own || ch[0].Reason != Signature {
		t.Errorf("in our name: %+v", ch[0])
	}
}

// TestRefusalsCostNoSnapshot: a message without changes leaves the view unchanged, so peers cannot force a new snapshot with every message.
func TestRefusalsCostNoSnapshot(t *testing.T) {
	s := settled(t, 780, 4, Settings{})
	s.run(3 * time.Second)
	n, bad := s.nodes[0], s.attacker(3)
	before := n.view
	for _, r := range []Signed{
		forge(t, s.nodes[1].facts, Order{maxGeneration, 1}, bad.key),
		forge(t, bad.facts, Order{1, 1}, bad.key),
		s.nodes[2].own.Signed,
	} {
		if _, err := n.handleRequest(bad.self, bad.encode(message{Records: []Signed{r}}), n.wall()); err != nil {
			t.Fatal(err)
		}
	}
	if n.view != before || len(n.events) != 0 {
		t.Error("what does not count makes a new view")
	}
}

// TestEventsAreBounded: whatever a member does, the audit log gets a limited number of entries about it, and a count of the rest (DSC-08,
// GO-05).
func TestEventsAreBounded(t *testing.T) {
	s := settled(t, 790, 4, Settings{})
	s.run(3 * time.Second)
	n, bad := s.nodes[0], s.attacker(3)
	var reported, summed [2]int // of the member, and of the others
	n.onEvent = func(ev Event) {
		i := 1
		if ev.Node == bad.self {
			i = 0
		}
		reported[i]++
		if ev.Kind == EventLeave {
			summed[i] += max(1, int(ev.Count))
		}
	}
	s.stop(bad) // its engine stops: the test sends its messages
	left, start := 0, bad.own.Generation+1
	for i := range uint64(600) { // it leaves and comes back nine times a second
		for version, status := range []Status{Up, Left} {
			r, err := Seal(bad.facts, Order{start + i, uint64(version) + 1}, status, bad.sign)
			if err != nil {
				t.Fatal(err)
			}
			bad.own = r
			s.wrote(bad)
			if _, err := n.handleRequest(bad.self, bad.encode(message{Records: []Signed{r.Signed}}), n.wall()); err != nil {
				t.Fatal(err)
			}
			if m := n.members[bad.self]; m.state == Gone {
				left++
			}
			s.run(55 * time.Millisecond)
		}
	}
	s.run(sweepTime + time.Second)
	t.Logf("it left %d times: %d entries, which sum up %d; of others %d", left, reported[0], summed[0], reported[1])
	switch {
	case reported[0] > 3*(eventsBurst+5):
		t.Errorf("reported[0] = %v, want at most %v; left = %d", reported[0], 3*(eventsBurst+5), left)
	case summed[0] < 550:
		t.Errorf("summed[0] = %v, want at least 550; left = %d", summed[0], left)
	case reported[1] > 5:
		t.Errorf("reported[1] = %v, want at most 5; left = %d", reported[1], left)
	}
}

// TestLargestRecordFits: the largest record fits together with the longest digest of ordinary ids into the smallest configurable message.
func TestLargestRecordFits(t *testing.T) {
	m := message{Network: strings.Repeat("n", 63)}
	for i := range maxDigest {
		m.Digest = append(m.Digest, Claim{Node: fmt.Sprintf("nVQ1kLDx%05dCNTRL", i), Order: Order{1763726400, 12}, Heartbeat: 1 << 20})
	}
	empty := len(m.encode())
	if over := m.overhead(); over < empty || over > empty+20 {
		t.Errorf("the digest has %d bytes, counted as %d", empty, over)
	}
	m.Records = []Signed{{make([]byte, maxPayload), make([]byte, 64)}}
	if size := len(m.encode()); size > 12<<10 {
		t.Errorf("it has %d bytes", size)
	}
	if _, err := (Settings{MaxMessageBytes: 12<<10 - 1}).WithDefaults(); err == nil {
		t.Error("less may be set")
	}
	if _, err := (Settings{MaxMessageBytes: MaxMessage + 1}).WithDefaults(); err == nil {
		t.Error("more than is read may be set")
	}
}
