package gossip

import (
	"crypto/ed25519"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/httpapi"
)

// A contact is a time in which two nodes could reach each other without a break.
type contact struct {
	since time.Duration
	lives [2]int
}

// reachTime is how long two nodes must be able to reach each other before each must see the other.
const reachTime = time.Minute

// sight checks the law that whoever can reach each other for 60 s sees each other. The time grows with the interval of the rounds.
func (s *sim) sight() {
	if len(s.nodes) > 100 || s.now-s.sighted < 5*time.Second { // more members may need longer
		return
	}
	s.sighted = s.now
	living := s.living()
	for _, a := range living {
		for _, b := range living {
			if a == b {
				continue
			}
			pair := [2]int{a.index, b.index}
			if !s.reach(a, b) {
				delete(s.contact, pair)
				continue
			}
			c, ok := s.contact[pair]
			if lives := [2]int{a.life, b.life}; !ok || c.lives != lives {
				s.contact[pair] = contact{s.now, lives}
				continue
			}
			if s.now-c.since <= max(reachTime, 200*s.set.Interval) || len(a.list) >= a.set.MaxMembers {
				continue
			}
			switch m := a.members[b.self]; {
			case m == nil:
				s.t.Fatalf("%v: node %d does not know node %d, which it can reach since %v", s.now, a.index, b.index, c.since)
			case m.gone(), m.state == Unknown && !a.isolated && a.clock(a.wall())-m.since > 10*time.Second:
				s.t.Fatalf("%v: node %d sees node %d %s, but can reach it since %v", s.now, a.index, b.index, m.state, c.since)
			}
		}
	}
}

// reach reports whether two nodes can exchange messages now.
func (s *sim) reach(a, b *simNode) bool {
	for _, n := range []*simNode{a, b} {
		if _, ok := s.netmap.Find(n.self); !ok || s.now < n.paused || n.own.Status == Left {
			return false
		}
	}
	return s.cut == nil || !s.cut(a, b) && !s.cut(b, a)
}

// apart lets a long time pass. After the deaths of its begin, the rounds are slow, and for its last minutes they are as before.
func (s *sim) apart(d time.Duration) {
	const begin, end = 10 * time.Second, time.Minute
	usual := s.set.Interval
	s.run(begin)
	if slow := d - begin - end; slow > 0 {
		s.pace(min(slow/100, 15*time.Minute))
		s.run(slow)
		s.pace(usual)
	}
	s.run(end)
}

// healed fails unless all nodes see each other within 60 s.
func (s *sim) healed() {
	s.t.Helper()
	took, ok := s.until(reachTime, func() bool { return s.allKnowAll() && s.allAlive() })
	if !ok {
		for _, a := range s.living() {
			for _, b := range s.living() {
				if m := a.members[b.self]; a != b && (m == nil || m.order != b.own.Order || m.state != Alive) {
					s.t.Errorf("node %d does not see node %d: %+v", a.index, b.index, m)
				}
			}
		}
		s.t.Fatalf("not healed after %v, with %d refusals", took, s.rejected(Buried))
	}
	s.t.Logf("healed after %v", took)
}

// suspend stops a machine. Its clock stands still, and messages to it are lost.
func (s *sim) suspend(n *simNode, d time.Duration) {
	cut := s.cut
	s.cut = func(a, b *simNode) bool { return s.now < n.paused && (a == n || b == n) || cut != nil && cut(a, b) }
	s.at(d, func() { n.offset -= d })
	s.pause(n, d)
}

// restart restarts a node with its memory.
func (s *sim) restart(nodes ...*simNode) {
	for _, n := range nodes {
		n.memory = n.view.memory(n.floor)
		s.stop(n)
		s.start(n)
	}
}

// halves cuts the network into two halves, and alone cuts off node 3.
func halves(a, b *simNode) bool { return a.index%2 != b.index%2 }
func alone(a, b *simNode) bool  { return (a.index == 3) != (b.index == 3) }

// cutFor cuts the network for a time. Some nodes restart before it is whole again.
func cutFor(cut func(a, b *simNode) bool, restart ...int) func(*sim, time.Duration) {
	return func(s *sim, d time.Duration) {
		s.cut = cut
		s.apart(d)
		for _, i := range restart {
			s.restart(s.nodes[i])
		}
		s.cut = nil
	}
}

// TestGO11_Heal: nodes that were apart for any time see each other within 60 s, without a restart, and idle rounds carry digests only again
// (GO-11, law 12). Red without Tombstone.Record, and without the raise above an equal record.
func TestGO11_Heal(t *testing.T) {
	const day = 24 * time.Hour
	lives := uint64(1)
	if *long {
		lives = uint64(*seeds)
	}
	pause := func(s *sim, d time.Duration) {
		s.pause(s.nodes[3], d)
		s.apart(d)
	}
	suspend := func(s *sim, d time.Duration) {
		s.suspend(s.nodes[3], d)
		s.apart(d)
	}
	for _, tt := range []struct {
		name  string
		d     time.Duration
		apart func(*sim, time.Duration)
	}{
		{"two halves", 10 * time.Minute, cutFor(halves)},
		{"two halves", time.Hour, cutFor(halves)},
		{"two halves that no longer list each other", 13 * time.Hour, cutFor(halves)},
		{"two halves that forgot each other", 25 * time.Hour, cutFor(halves)},
		{"two halves whose tombstones end", 8 * day, cutFor(halves)},
		{"two halves without tombstones", 10 * day, cutFor(halves)},
		{"two halves, and one of each restarts", 25 * time.Hour, cutFor(halves, 0, 1)},
		{"two halves, and one of them restarts", 8 * day, cutFor(halves, 0, 2, 4)},
		{"one is alone", time.Hour, cutFor(alone)},
		{"one is alone", 13 * time.Hour, cutFor(alone)},
		{"one is alone", 25 * time.Hour, cutFor(alone)},
		{"one is alone", 8 * day, cutFor(alone)},
		{"one is alone, and its peers restart", 25 * time.Hour, cutFor(alone, 0, 1, 2, 4, 5)},
		{"one is alone, and one peer restarts", 25 * time.Hour, cutFor(alone, 0)},
		{"all are alone", 25 * time.Hour, cutFor(func(_, _ *simNode) bool { return true })},
		{"one process pauses", time.Hour, pause},
		{"one process pauses", 25 * time.Hour, pause},
		{"one process pauses", 8 * day, pause},
		{"one machine is suspended", time.Hour, suspend},
		{"one machine is suspended", 25 * time.Hour, suspend},
		{"one machine is suspended", 8 * day, suspend},
		{"one is off, and loses its memory and its clock", 25 * time.Hour, func(s *sim, d time.Duration) {
			x := s.nodes[3]
			s.stop(x)
			s.apart(d)
			x.memory = Memory{}
			x.offset -= d + time.Hour
			s.start(x)
		}},
		{"two halves, and clocks jump", time.Hour, func(s *sim, d time.Duration) {
			s.cut = halves
			s.run(time.Minute)
			s.nodes[0].offset += 3 * day
			s.nodes[1].offset += 400 * day
			s.apart(d)
			s.cut = nil
		}},
	} {
		t.Run(fmt.Sprintf("%s for %v", tt.name, tt.d), func(t *testing.T) {
			for seed := range lives {
				heal(t, 800+seed, tt.d, tt.apart)
			}
		})
	}
}

func heal(t *testing.T, seed uint64, d time.Duration, apart func(*sim, time.Duration)) {
	s := settled(t, seed, 6, Settings{})
	s.run(2 * time.Second)
	apart(s, d)
	s.healed()
	s.run(5 * time.Second)
	s.reset()
	s.run(5 * time.Second)
	for _, n := range s.nodes {
		if got := n.stats.Messages[kindDelta]; got != 0 {
			t.Errorf("seed %d: node %d sent %d messages with records in idle rounds, want 0", seed, n.index, got)
		}
	}
}

// forget makes a node forget others, as it does when a day has passed.
func (n *simNode) forget(others ...*simNode) {
	var ids []string
	for _, o := range others {
		if n.members[o.facts.Node] != nil {
			ids = append(ids, o.facts.Node)
		}
	}
	n.view = Forget(n.view, ids, n.wall())
	n.dropMembers(ids)
}

// TestGO11_HealHundred: two halves of 100 nodes (40 with -short) that forgot each other see each other within 60 s (GO-11).
func TestGO11_HealHundred(t *testing.T) {
	n := 100
	if testing.Short() {
		n = 40
	}
	s := settled(t, 810, n, Settings{})
	s.cut = halves
	s.run(time.Second)
	for _, n := range s.nodes {
		for _, o := range s.nodes {
			if halves(n, o) {
				n.forget(o)
				n.peer(o.self, n.wall()).unresponsive = backoff{longestAway, n.wall().Add(s.between(0, longestAway/3))}
			}
		}
	}
	s.cut = nil
	s.healed()
}

// TestGO11_UnknownNodes: every tenth round queries a node that is not in the view, however many members are live.
func TestGO11_UnknownNodes(t *testing.T) {
	s := settled(t, 820, 40, Settings{})
	n, x := s.nodes[0], s.nodes[39]
	s.stop(x)
	n.forget(x)
	asked := 0
	for range 100 {
		s.now += s.set.Interval
		for _, c := range n.engine.tick(s.netmap, n.wall()) {
			if c.to.ID == x.self {
				asked++
			}
			n.peers[c.to.ID].busy--
		}
		for _, m := range n.list {
			m.last, m.contact, n.succeeded = n.clock(n.wall()), n.clock(n.wall()), n.clock(n.wall())
		}
	}
	if asked < 10 {
		t.Errorf("in 100 rounds it was queried %d times, want at least 10", asked)
	}
}

// TestGO11_OneWay: only one of two nodes can connect, and one has forgotten the other. The buried record is in the answer, or in the third
// message.
func TestGO11_OneWay(t *testing.T) {
	for name, caller := range map[string]int{"the forgotten one connects": 1, "the other one connects": 0} {
		t.Run(name, func(t *testing.T) {
			s := settled(t, 830, 2, Settings{})
			a, b, by, to := s.nodes[0], s.nodes[1], s.nodes[caller], s.nodes[1-caller]
			a.forget(b)
			to.rounds++ // ends its rounds; it still answers
			s.exchange(by, call{Peer{ID: to.self}, by.request(to.self, by.wall())})
			before := b.own.Generation
			s.run(3 * s.set.Interval)
			if got, want := b.own.Generation, before+1; got != want {
				t.Errorf("after one exchange its generation is %d, want %d", got, want)
			}
			if took, ok := s.until(10*time.Second, func() bool { return a.members[b.self] != nil && a.members[b.self].state == Alive }); !ok {
				t.Errorf("not seen after %v", took)
			}
		})
	}
}

// TestGO11_OldPeer: a server of an earlier version does not raise its generation. It gets its buried record at most every three seconds, and
// neither side backs off.
func TestGO11_OldPeer(t *testing.T) {
	s := settled(t, 840, 3, Settings{})
	old, n := s.nodes[0], s.nodes[1]
	old.raised = old.wall().Add(time.Hour)
	n.forget(old)
	s.reset()
	s.contact = map[[2]int]contact{}
	s.run(reachTime / 2)
	if n.members[old.self] != nil {
		t.Error("a buried record is taken")
	}
	// It answers with a buried record, sends one in a third message, and has its own record requested.
	if got, most := n.stats.Messages[kindDelta], uint64(reachTime/2/returnEvery)+2; got > most {
		t.Errorf("%d messages with records, want at most %d", got, most)
	}
	for _, why := range []Reason{Malformed, Signature, Rate} {
		if got := s.rejected(why); got != 0 {
			t.Errorf("%d rejections as %q, want 0", got, why)
		}
	}
}

// TestGO11_Raise: only a record that this node's cluster signed raises its generation, and not below it, not in vain, and not often. Red
// without the check of the key or the signature in mergeRecord, or without lists, maxPrevKey or raiseEvery in supersedeOwn.
func TestGO11_Raise(t *testing.T) {
	s := settled(t, 850, 3, Settings{})
	n, by := s.nodes[0], s.nodes[1]
	prev := ed25519.NewKeyFromSeed(make([]byte, 32))
	facts := n.facts
	facts.PrevKey = httpapi.PublicKey(prev.Public().(ed25519.PublicKey))
	facts.PrevSig = ed25519.Sign(prev, RekeyMessage(facts.ClusterID, facts.Key))
	s.announce(n, facts, Up)
	g := n.own.Generation
	record := func(o Order, key ed25519.PrivateKey) message {
		return message{Records: []Signed{forge(t, n.facts, o, key)}}
	}
	own := func() message { return message{Records: []Signed{n.own.Signed}} }
	listed := message{Records: []Signed{n.own.Signed}, Digest: []Claim{{Node: n.self, Order: n.own.Order}}}
	broken := forge(t, n.facts, Order{g + 5, 1}, n.key)
	broken.Signature = slices.Clone(broken.Signature)
	broken.Signature[0] ^= 1
	for _, tt := range []struct {
		why   string
		after time.Duration // with a new version at its begin
		msg   message
		want  uint64
	}{
		{"another member's key", 0, record(Order{g + 5, 1}, by.key), g},
		{"a broken signature", 0, message{Records: []Signed{broken}}, g},
		{"a bare number", 0, message{Digest: []Claim{{Node: n.self, Order: Order{g + 5, 1}}}}, g},
		{"the greatest generation, bare", 0, message{Digest: []Claim{{Node: n.self, Order: Order{maxGeneration, maxVersion}}}}, g},
		{"the greatest generation, by another key", 0, record(Order{maxGeneration, 1}, by.key), g},
		{"the greatest generation, signed", 0, record(Order{maxGeneration, 1}, n.key), g},
		{"a great generation, by the previous key", 0, record(Order{maxPrevKey, 1}, prev), g},
		{"an earlier generation", 0, record(Order{g - 1, 9}, n.key), g},
		{"the current record, from a peer that lists this node", 0, listed, g},
		{"the current record", 0, own(), g + 1},
		{"an earlier version of it", time.Minute, record(Order{g + 1, 1}, n.key), g + 2},
		{"a generation too soon", raiseEvery - time.Second, record(Order{g + 2, 1}, n.key), g + 2},
		{"a generation in time", time.Second, record(Order{g + 2, 1}, n.key), g + 3},
		{"the previous key", raiseEvery, record(Order{g + 6, 1}, prev), g + 7},
	} {
		if tt.after > 0 {
			s.announce(n, facts, Up)
		}
		s.now += tt.after
		n.peers[by.self].banned = backoff{}
		if tt.msg.Digest == nil && tt.want == g { // in both directions
			if _, err := n.handleRequest(by.self, n.encode(tt.msg), n.wall()); err != nil {
				t.Fatalf("%s: %v", tt.why, err)
			}
		}
		n.peers[by.self].banned = backoff{}
		third := n.handleResponse(by.self, n.encode(tt.msg), n.wall())
		if got := n.own.Generation; got != tt.want {
			t.Errorf("%s: the generation is %d, want %d", tt.why, got, tt.want)
		}
		if raised := tt.want > g; raised != (third != nil) {
			t.Errorf("%s: the third message has %d bytes", tt.why, len(third))
		}
		g = n.own.Generation
	}
	if got := n.floor; got != g {
		t.Errorf("the stored generation is %d, want %d", got, g)
	}
}

// TestGO11_ForgedBuriedRecords: a member that returns forged buried records in every message raises the generation of no other node, and does
// not keep two halves from healing. After a day apart each node raises its generation once.
func TestGO11_ForgedBuriedRecords(t *testing.T) {
	s := settled(t, 855, 7, Settings{})
	s.run(2 * time.Second)
	bad := s.nodes[6]
	forged := func(to *simNode) []byte {
		top := Order{maxGeneration, maxVersion}
		broken := Signed{to.own.Signed.Payload, slices.Clone(to.own.Signed.Signature)}
		broken.Signature[0] ^= 1
		digest := []Claim{{Node: bad.self, Order: bad.own.Order, Heartbeat: uint64(s.now)}, {Node: to.self, Order: top, Heartbeat: maxGeneration}}
		return bad.encode(message{Digest: digest, Records: []Signed{forge(t, to.facts, top, bad.key), broken}})
	}
	bad.hostile = func(to *simNode, _ []byte) []byte { return forged(to) }
	generations := func() (g []uint64) {
		for _, n := range s.living() {
			g = append(g, n.own.Generation)
		}
		return g
	}
	before := generations()
	for range 20 {
		for _, n := range s.living() {
			n.handleRequest(bad.self, forged(n), n.wall())
			s.handleCalls(n)
		}
		s.run(time.Second)
	}
	if got := generations(); !slices.Equal(got, before) {
		t.Errorf("the generations (-want +got):\n%s", cmp.Diff(before, got))
	}
	if s.rejected(Binding) == 0 {
		t.Error("the forged records are not counted")
	}
	cutFor(halves)(s, 25*time.Hour)
	s.healed()
	for i := range before {
		before[i]++
	}
	if got := generations(); !slices.Equal(got, before) {
		t.Errorf("the generations after a day apart (-want +got):\n%s", cmp.Diff(before, got))
	}
}

// TestGO11_HearsayStaysBuried: a stolen record of a dead node raises it nowhere, also not at a node that lost its tombstones in a restart.
// Only the buried node itself gets its record back.
func TestGO11_HearsayStaysBuried(t *testing.T) {
	s := settled(t, 860, 5, Settings{})
	s.run(2 * time.Second)
	x, thief := s.nodes[0], s.attacker(4)
	stolen := x.own
	s.stop(x)
	for _, n := range s.living() {
		n.forget(x)
	}
	s.restart(s.nodes[1])
	s.run(time.Second)
	claim := Claim{Node: x.self, Order: stolen.Order, Heartbeat: 1}
	for range 3 {
		for _, n := range s.living() {
			for _, m := range []message{{Records: []Signed{stolen.Signed}}, {Digest: []Claim{claim}}, {Digest: []Claim{claim}, Records: []Signed{stolen.Signed}}} {
				answer, err := n.handleRequest(thief.self, n.encode(m), n.wall())
				if err != nil {
					t.Fatal(err)
				}
				got, err := decode(answer, s.set.Network, nil, n.findMember)
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range got.Records {
					if r.equal(stolen.Signed) && n.index != 1 {
						t.Errorf("node %d returns the buried record to another node", n.index)
					}
				}
			}
		}
		s.run(10 * time.Second)
		for _, n := range s.living() {
			switch m := n.members[x.self]; {
			case m == nil:
			case n.index != 1:
				t.Errorf("node %d took the record", n.index)
			case m.state != Dead:
				t.Errorf("node %d, which restarted, sees it %s, want %s", n.index, m.state, Dead)
			}
		}
	}
	if s.rejected(Buried) == 0 {
		t.Error("the records are not counted as buried")
	}
}

// TestGO11_TombstonesAreBounded: buried records need bounded memory.
func TestGO11_TombstonesAreBounded(t *testing.T) {
	s := newSim(t, 870, 1, Settings{})
	v := NewView(Rules{Self: "nSELF", Settings: s.set}, Memory{})
	var ids []string
	for i := range maxTombstones + 100 {
		ids = append(ids, fmt.Sprintf("n%d", i))
		r := &Record{Facts: Facts{Node: ids[i]}, Order: Order{1, 1}, Signed: Signed{Payload: make([]byte, maxPayload)}}
		v.entries = v.entries.With(ids[i], &Entry{Record: r, FirstHand: i > 0})
	}
	v = Forget(v, ids[:1], simEpoch)
	if tomb, _ := v.tombs.Get(ids[0]); tomb.Record.Payload != nil {
		t.Error("the record of hearsay is kept")
	}
	v = Forget(v, ids[1:maxTombstones], simEpoch.Add(time.Second))
	v = Forget(v, ids[maxTombstones:], simEpoch.Add(time.Minute))
	if got := v.tombs.Len(); got != maxTombstones {
		t.Errorf("%d tombstones, want %d", got, maxTombstones)
	}
	last, _ := v.tombs.Get(ids[maxTombstones+99])
	if got := len(last.Record.Payload); got != maxPayload {
		t.Errorf("the last one has a record of %d bytes, want %d", got, maxPayload)
	}
}
