package gossip

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// TestRestart: one of several nodes restarts with other labels and its clock ten minutes back. The test varies the position of its id in
// the order, and runs with and without its memory. The new labels are everywhere in seconds (DSC-05, GO-10, GO-02). Red without the order
// in beaten and compare, and without both of last in generationAt and rise, of which each is enough.
func TestRestart(t *testing.T) {
	const n = 8
	var slowest time.Duration
	for _, remembers := range []bool{true, false} {
		for position := range n {
			s := settled(t, 600+uint64(position), n, Settings{})
			byID := slices.Clone(s.nodes)
			slices.SortFunc(byID, func(a, b *simNode) int { return strings.Compare(a.self, b.self) })
			x := byID[position]
			stale := x.own
			s.stop(x)
			s.run(time.Second)
			if x.memory = x.view.memory(x.floor); !remembers {
				x.memory = Memory{}
			}
			x.offset -= 10 * time.Minute
			x.facts.Labels = map[string]string{"env": "other"}
			s.start(x)
			took, ok := s.until(5*time.Second, s.allKnowAll)
			if !ok {
				t.Errorf("position %d, remembers %t: the new labels are not everywhere after %v", position, remembers, took)
			}
			slowest = max(slowest, took)
			for _, o := range s.nodes {
				if m := o.members[x.self]; m != nil && m.entry.Labels["env"] != "other" {
					t.Errorf("position %d, remembers %t: node %d has the labels %v", position, remembers, o.index, m.entry.Labels)
				}
			}
			// GO-02: its records from before the restart do not return, whichever node sends them.
			for _, o := range s.nodes {
				if o == x {
					continue
				}
				from := s.nodes[(o.index+1)%n]
				order := o.members[x.self].order
				if _, err := o.handleRequest(from.self, o.encode(message{Records: []Signed{stale.Signed}}), o.wall()); err != nil {
					t.Fatal(err)
				}
				if o.members[x.self].order != order {
					t.Errorf("position %d: node %d took a replayed record", position, o.index)
				}
			}
		}
	}
	t.Logf("the new labels are everywhere after %v at most", slowest)
	figures[0].check(t, "a restart", slowest, figures[0].join)
}

// encode encodes a message of this network, as any node could.
func (n *simNode) encode(m message) []byte {
	m.Network = n.set.Network
	return m.encode()
}

// TestLeave: a node that leaves reports it to a few others, and all know at once (DSC-05).
func TestLeave(t *testing.T) {
	s := settled(t, 620, 20, Settings{})
	s.reset()
	x := s.nodes[4]
	calls, err := x.leave(x.own.Facts, x.wall())
	if err != nil || len(calls) < leaveTargets {
		t.Fatalf("%d nodes can be notified: %v", len(calls), err)
	}
	s.wrote(x)
	for _, c := range calls[:leaveTargets] {
		s.exchange(x, c)
	}
	s.at(time.Second, func() { s.stop(x) })
	took, ok := s.until(5*time.Second, func() bool { return s.everywhere(x, Gone) })
	if !ok {
		t.Errorf("some nodes do not know it after %v", took)
	}
	t.Logf("all nodes know it after %v", took)
	figures[1].check(t, "a leave", took, figures[1].change)
	s.run(20 * time.Second)
	if !s.everywhere(x, Gone) || s.deathsSeen() != 0 {
		t.Error("a node that left does not keep this state, or is declared dead")
	}
	s.start(x)
	if _, ok := s.until(5*time.Second, func() bool { return s.everywhere(x, Alive) }); !ok {
		t.Error("who has left cannot come back")
	}
}

// TestPartition: for ten minutes the network is in halves, and each half declares the other dead. Then it recovers in ordinary rounds
// (DSC-06, GO-09). The clocks are ten minutes apart.
func TestPartition(t *testing.T) {
	s := newSim(t, 630, 10, Settings{})
	for i, n := range s.nodes {
		n.offset = time.Duration(i%3-1) * 10 * time.Minute
	}
	s.startAll()
	s.settle(time.Minute)
	s.cut = func(a, b *simNode) bool { return a.index%2 != b.index%2 }
	s.run(10 * time.Minute)
	for _, a := range s.nodes {
		for _, b := range s.nodes {
			if a == b {
				continue
			}
			want := Alive
			if s.cut(a, b) {
				want = Dead
			}
			if got := a.members[b.self].state; got != want {
				t.Errorf("in the partition, node %d sees %d %s", a.index, b.index, got)
			}
		}
	}
	x := s.nodes[3]
	facts := x.facts
	facts.Labels = map[string]string{"changed": "meanwhile"}
	s.announce(x, facts, Up)
	s.cut = nil
	if took, ok := s.until(30*time.Second, func() bool { return s.allKnowAll() && s.allAlive() }); !ok {
		t.Errorf("not healed after %v", took)
	} else {
		t.Logf("healed after %v", took)
	}
}

// TestAsymmetricLoss: messages from one node to another are always lost, and no node is declared dead because of it (DSC-06).
func TestAsymmetricLoss(t *testing.T) {
	s := settled(t, 640, 8, Settings{})
	s.reset()
	s.cut = func(a, b *simNode) bool { return a.index == 1 && b.index == 2 }
	s.run(40 * time.Second) // less than the lifetime of hearsay
	if d := s.deathsSeen(); d != 0 || !s.allAlive() {
		t.Errorf("%d deaths", d)
	}
}

// TestPause: a process that stood still for 30 s distrusts itself. It declares no node dead, and returns without a conflict (DSC-06,
// GO-04). Red without both of restart and askedInVain in review, of which each is enough.
func TestPause(t *testing.T) {
	s := settled(t, 650, 10, Settings{})
	x := s.nodes[2]
	s.pause(x, 30*time.Second)
	if _, ok := s.until(29*time.Second, func() bool { return s.everywhere(x, Dead) }); !ok {
		t.Error("who stands still is not seen dead")
	}
	s.reset()
	s.run(30 * time.Second)
	if d := len(x.deaths); d != 0 {
		t.Errorf("it called %d others dead", d)
	}
	if !s.allAlive() {
		t.Error("not all are alive afterwards")
	}
	for _, n := range s.nodes {
		for _, m := range n.list {
			if m.entry.Conflict {
				t.Errorf("node %d sees a conflict about %s", n.index, m.id)
			}
		}
	}
}

// TestIsolated: a node that hears no other declares none dead (GO-04). Red without quiet and isolated in review.
func TestIsolated(t *testing.T) {
	s := settled(t, 660, 6, Settings{})
	s.reset()
	x := s.nodes[1]
	s.cut = func(a, b *simNode) bool { return a == x || b == x }
	s.run(2 * time.Minute)
	snap := x.snapshot(x.wall())
	if !snap.Isolated || len(x.deaths) != 0 {
		t.Errorf("isolated: %t, deaths: %d", snap.Isolated, len(x.deaths))
	}
	for _, m := range snap.List {
		if !m.Self && (m.State != Unknown || m.LastSeen.IsZero() || x.wall().Sub(m.LastSeen) < time.Minute) {
			t.Errorf("%s is %s, last seen %v ago", m.Node, m.State, x.wall().Sub(m.LastSeen))
		}
	}
	s.cut = nil
	if _, ok := s.until(20*time.Second, s.allAlive); !ok || len(x.deaths) != 0 {
		t.Errorf("afterwards: all alive %t, deaths %d", ok, len(x.deaths))
	}
}

// TestOneHasLeft: if only one other node remains, silence is that node's failure. A node that has left need not be heard (GO-10).
func TestOneHasLeft(t *testing.T) {
	s := settled(t, 665, 3, Settings{})
	x, left, crashes := s.nodes[0], s.nodes[1], s.nodes[2]
	calls, err := left.leave(left.own.Facts, left.wall())
	if err != nil {
		t.Fatal(err)
	}
	s.wrote(left)
	for _, c := range calls {
		s.exchange(left, c)
	}
	s.at(time.Second, func() { s.stop(left) })
	if _, ok := s.until(5*time.Second, func() bool { return s.everywhere(left, Gone) }); !ok {
		t.Fatal("the other nodes do not know that it left")
	}
	s.run(5 * time.Second)
	s.reset()
	s.stop(crashes)
	s.run(time.Minute)
	if got := x.members[left.self].state; got != Gone {
		t.Errorf("who has left is %s", got)
	}
	if got := x.members[crashes.self].state; got != Dead || x.isolated {
		t.Errorf("who has crashed is %s, isolated: %t", got, x.isolated)
	}
}

// TestOneIsDead: a node that has been dead for long need not be heard either, so the next silence is the other node's failure (GO-10).
func TestOneIsDead(t *testing.T) {
	s := settled(t, 666, 3, Settings{})
	x, before, crashes := s.nodes[0], s.nodes[1], s.nodes[2]
	if _, ok := s.death(before); !ok {
		t.Fatal("no node declares it dead")
	}
	s.run(doubtTime + time.Second)
	s.reset()
	s.stop(crashes)
	if took, ok := s.until(10*time.Second, func() bool { return x.members[crashes.self].state == Dead }); !ok {
		t.Errorf("not seen dead after %v", took)
	}
	s.run(time.Minute)
	if got := x.members[crashes.self].state; got != Dead || x.isolated {
		t.Errorf("who has crashed is %s, isolated: %t", got, x.isolated)
	}
}

// TestIsolatedFromNoPeer: two nodes fall silent at once, and this node distrusts itself. When our tailnet has not had one of them for long,
// the other's silence is its own failure (GO-10). A node that is out of the netmap for a moment changes nothing (GO-04).
func TestIsolatedFromNoPeer(t *testing.T) {
	s := settled(t, 667, 3, Settings{})
	s.reset()
	x, removed, crashes := s.nodes[0], s.nodes[1], s.nodes[2]
	s.stop(removed)
	s.stop(crashes)
	s.run(20 * time.Second)
	all := s.netmap
	s.netmap = NewNetmap(slices.DeleteFunc(slices.Clone(all.peers), func(p Peer) bool { return p.ID == removed.self }))
	s.run(doubtTime / 2)
	s.netmap = all
	s.run(3 * sweepTime)
	if !x.isolated || len(x.deaths) != 0 {
		t.Errorf("isolated: %t, deaths: %d, without a contact", x.isolated, len(x.deaths))
	}
	s.netmap = NewNetmap(slices.DeleteFunc(slices.Clone(all.peers), func(p Peer) bool { return p.ID == removed.self }))
	s.run(doubtTime + 2*sweepTime)
	for _, m := range []*simNode{removed, crashes} {
		if got := x.members[m.self].state; got != Dead || x.isolated {
			t.Errorf("node %d is %s, isolated: %t", m.index, got, x.isolated)
		}
	}
	s.netmap = all
	s.start(crashes)
	if _, ok := s.until(10*time.Second, func() bool { return x.members[crashes.self].state == Alive && !x.isolated }); !ok {
		t.Error("who is there again is not seen")
	}
}

// TestForget: dead nodes leave the digests and then the view, and return only with a new generation (GO-02). Red without Tombstone.keeps.
func TestForget(t *testing.T) {
	s := settled(t, 670, 4, Settings{ForgetAfter: 2 * time.Minute})
	x := s.nodes[0]
	stale := x.own
	if _, ok := s.death(x); !ok {
		t.Fatal("no node declares it dead")
	}
	s.run(3*time.Minute + 40*time.Second) // and the sweep, every 128 rounds
	for _, o := range s.living() {
		if o.members[x.self] != nil || len(o.members) != 2 {
			t.Fatalf("node %d still has it", o.index)
		}
		if _, err := o.handleRequest(s.nodes[1+o.index%3].self, o.encode(message{Records: []Signed{stale.Signed}}), o.wall()); err != nil {
			t.Fatal(err)
		}
		if o.members[x.self] != nil || o.stats.Rejected[Buried] == 0 {
			t.Errorf("node %d took the record of a forgotten node", o.index)
		}
	}
	x.memory = Memory{} // even without its memory, its generation is later
	s.start(x)
	if _, ok := s.until(5*time.Second, func() bool { return s.everywhere(x, Alive) }); !ok {
		t.Error("a forgotten node cannot come back")
	}
}

// TestRelayKeepsBytes: fields of a newer version, with the signature, survive a relay through nodes that do not know them (DSC-12, GO-05).
func TestRelayKeepsBytes(t *testing.T) {
	s := newSim(t, 680, 5, Settings{})
	for _, n := range s.nodes {
		s.start(n)
	}
	x := s.nodes[0]
	payload := strings.Replace(string(x.own.Signed.Payload), `{"v":1,`, `{"v":1,"future":{"deep":[{"x":"y"}]},"more":"é",`, 1)
	r, err := Open(Signed{[]byte(payload), x.sign(signedMessage([]byte(payload)))})
	if err != nil {
		t.Fatal(err)
	}
	x.own = r
	s.wrote(x)
	s.cut = func(a, b *simNode) bool { return a.index+b.index != 1 && min(a.index, b.index) == 0 } // it reaches one node only
	if _, ok := s.until(10*time.Second, s.allKnowAll); !ok {
		t.Fatal("the record does not reach all through one relay")
	}
	for _, n := range s.nodes[1:] {
		if m := n.members[x.self]; string(m.entry.Signed.Payload) != payload || m.verified != (n.index == 1) {
			t.Errorf("node %d has %q, verified %t", n.index, m.entry.Signed.Payload, m.verified)
		}
	}
}
