package gossip

import (
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/httpapi"
)

// attacker returns a member with a tag and its own key. Its messages come from the test and not from its engine.
func (s *sim) attacker(i int) *simNode {
	n := s.nodes[i]
	n.hostile = func(*simNode, []byte) []byte { return nil } // never responds
	return n
}

// attack sends a message of the attacker to every honest node, and returns the last response.
func (s *sim) attack(by *simNode, body []byte) (answer []byte, err error) {
	for _, n := range s.living() {
		answer, err = n.handleRequest(by.self, body, n.wall())
		s.handleCalls(n)
	}
	return answer, err
}

// forge signs facts with a key, whichever node they are about.
func forge(t *testing.T, f Facts, o Order, key ed25519.PrivateKey) Signed {
	t.Helper()
	f.Key = httpapi.PublicKey(key.Public().(ed25519.PublicKey))
	r, err := Seal(f, o, Up, func(b []byte) []byte { return ed25519.Sign(key, b) })
	if err != nil {
		t.Fatal(err)
	}
	return r.Signed
}

// rejected counts the items that honest nodes rejected.
func (s *sim) rejected(why Reason) (n uint64) {
	for _, node := range s.living() {
		n += node.stats.Rejected[why]
	}
	return n
}

// TestHostileMember: no message of a member with a tag changes the entry of another node, and every case is counted (DSC-08, GO-01, GO-02,
// GO-03). Red without any one of: judge's refusal of another key, take's checks of the netmap and of the signature, AllowedEndpoints.Check,
// claim's limit, admit's tokens.
func TestHostileMember(t *testing.T) {
	const top = maxGeneration
	tests := []struct {
		name   string
		why    Reason
		bodies func(t *testing.T, s *sim, bad, victim *simNode) [][]byte
	}{
		{"another's record of the greatest order, by the attacker's key", Binding, func(t *testing.T, s *sim, bad, victim *simNode) [][]byte {
			f := victim.facts
			f.APIEndpoint, f.Labels = "https://evil.example:6443", map[string]string{"evil": "yes"}
			return [][]byte{bad.encode(message{Records: []Signed{forge(t, f, Order{top, maxVersion}, bad.key)}})}
		}},
		{"another's record at the attacker's address", Binding, func(t *testing.T, s *sim, bad, victim *simNode) [][]byte {
			f := victim.facts
			f.Host, f.IPs, f.URL = bad.facts.Host, bad.facts.IPs, bad.facts.URL
			return [][]byte{bad.encode(message{Records: []Signed{forge(t, f, Order{top, 1}, bad.key)}})}
		}},
		{"a broken signature", Signature, func(t *testing.T, s *sim, bad, victim *simNode) [][]byte {
			r := victim.own.Signed
			payload := strings.Replace(string(r.Payload), `"version":1`, `"version":9`, 1)
			return [][]byte{bad.encode(message{Records: []Signed{{[]byte(payload), r.Signature}}})}
		}},
		{"a digest with the greatest generation and heartbeat for every node", Heartbeat, func(t *testing.T, s *sim, bad, victim *simNode) [][]byte {
			var d, e []Claim
			for _, n := range s.living() {
				d = append(d, Claim{Node: n.self, Order: Order{top, maxVersion}, Heartbeat: top})
				e = append(e, Claim{Node: n.self, Order: n.own.Order, Heartbeat: top})
			}
			return [][]byte{bad.encode(message{Digest: d}), bad.encode(message{Digest: e})}
		}},
		{"fake members by the thousand", Binding, func(t *testing.T, s *sim, bad, victim *simNode) (bodies [][]byte) {
			for i := range 20 { // 10 records per message
				var m message
				for j := range 10 {
					f := bad.facts
					f.Node = fmt.Sprintf("nFAKE%dCNTRL%d", i, j)
					f.ClusterID = fmt.Sprint("fake-", i, "-", j)
					m.Records = append(m.Records, forge(t, f, Order{1, 1}, bad.key))
					m.Digest = append(m.Digest, Claim{Node: f.Node, Order: Order{1, 1}, Heartbeat: 5})
				}
				bodies = append(bodies, bad.encode(m))
			}
			return bodies
		}},
		{"a node's own record by the key of another cluster, sent by a third", Binding, func(t *testing.T, s *sim, bad, victim *simNode) [][]byte {
			f := victim.facts
			f.ClusterID = bad.facts.ClusterID
			return [][]byte{bad.encode(message{Records: []Signed{forge(t, f, Order{top, 1}, bad.key)}})}
		}},
		{"a record with a private address", Endpoint, func(t *testing.T, s *sim, bad, victim *simNode) [][]byte {
			f := bad.facts
			f.APIEndpoint = "https://169.254.169.254:6443"
			return [][]byte{bad.encode(message{Records: []Signed{forge(t, f, Order{top - 1, 1}, bad.key)}})}
		}},
		{"a replayed record of another node", Old, func(t *testing.T, s *sim, bad, victim *simNode) [][]byte {
			stale := victim.own.Signed
			f := victim.facts
			f.Labels = map[string]string{"env": "changed"}
			s.announce(victim, f, Up)
			if _, ok := s.until(5*time.Second, s.allKnowAll); !ok {
				t.Fatal("the change is not everywhere")
			}
			return [][]byte{bad.encode(message{Records: []Signed{stale}})}
		}},
		{"garbage", Malformed, func(t *testing.T, s *sim, bad, victim *simNode) [][]byte {
			return [][]byte{{}}
		}},
		{"another network", Network, func(t *testing.T, s *sim, bad, victim *simNode) [][]byte {
			return [][]byte{message{Network: "other", digest: true}.encode()}
		}},
		{"a flood", Rate, func(t *testing.T, s *sim, bad, victim *simNode) (bodies [][]byte) {
			for range 100 {
				bodies = append(bodies, bad.encode(message{digest: true}))
			}
			return bodies
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := settled(t, 700, 6, Settings{})
			s.run(5 * time.Second)
			bad, victim := s.attacker(5), s.nodes[0]
			s.reset()
			for _, body := range tt.bodies(t, s, bad, victim) {
				s.attack(bad, body)
			}
			if s.rejected(tt.why) == 0 {
				t.Errorf("it is not counted as %q", tt.why)
			}
			s.run(20 * time.Second) // the laws are checked
			for _, n := range s.living() {
				for _, o := range s.living() {
					if n == o {
						continue
					}
					m := n.members[o.self]
					switch {
					case m == nil:
						t.Errorf("node: m is nil; %d", n.index)
					case !m.verified:
						t.Errorf("node: m.verified is false; %d, %+v, %d", n.index, m, o.index)
					case m.entry.Conflict:
						t.Errorf("node: m.entry.Conflict is true; %d, %+v, %d", n.index, m, o.index)
					case m.state != Alive:
						t.Errorf("node: m.state = %q, want %q; %d", m.state, Alive, n.index)
					case !m.entry.Signed.equal(o.own.Signed):
						t.Errorf("node: m.entry.Signed.equal(o.own.Signed) is false; %d, %+v, %d", n.index, m, o.index)
					}
				}
				if len(n.members) != 5 {
					t.Errorf("node %d knows %d members", n.index, len(n.members))
				}
				for who := range n.deaths {
					if who != bad.self {
						t.Errorf("node %d called %s dead", n.index, who)
					}
				}
			}
		})
	}
}

// TestFull: the number of members never exceeds the limit, further members are counted, and the accepted ones stay (DSC-07, DSC-08). Red
// without MaxMembers in take.
func TestFull(t *testing.T) {
	const most = 4
	s := newSim(t, 705, 10, Settings{MaxMembers: most})
	for _, n := range s.nodes[:most+1] {
		s.start(n)
	}
	s.settle(time.Minute)
	for _, n := range s.nodes[most+1:] {
		s.start(n)
	}
	s.run(30 * time.Second)
	for _, n := range s.nodes[:most+1] {
		switch {
		case len(n.members) != most:
			t.Errorf("node: len(n.members) = %v, want %v", len(n.members), most)
		case n.view.entries.Len() != most:
			t.Errorf("node: n.view.entries.Len() = %v, want %v", n.view.entries.Len(), most)
		case n.stats.Rejected[Size] == 0:
			t.Errorf("node: n.stats.Rejected[Size] = %v", n.stats.Rejected[Size])
		}
		for _, o := range s.nodes[:most+1] {
			if m := n.members[o.self]; n != o && (m == nil || m.state != Alive) {
				t.Errorf("node %d has lost node %d", n.index, o.index)
			}
		}
	}
}

// TestGarbageIsBackedOff: a node ignores a peer that sends garbage for a while, longer each time, and does not query it (GO-05).
func TestGarbageIsBackedOff(t *testing.T) {
	s := settled(t, 710, 3, Settings{})
	n, bad := s.nodes[0], s.attacker(2)
	var waits []time.Duration
	for range 12 {
		if _, err := n.handleRequest(bad.self, []byte("nonsense"), n.wall()); err == nil {
			t.Fatal("nonsense is answered")
		}
		wait := n.peers[bad.self].banned.until.Sub(n.wall())
		if _, err := n.handleRequest(bad.self, bad.encode(message{digest: true}), n.wall()); err == nil {
			t.Fatal("who is backed off is answered")
		}
		waits = append(waits, wait)
		s.run(wait)
	}
	switch {
	case waits[0] != time.Second:
		t.Errorf("it is backed off: waits[0] = %v, want %v", waits[0], time.Second)
	case waits[1] != 2*time.Second:
		t.Errorf("it is backed off: waits[1] = %v, want %v", waits[1], 2*time.Second)
	case waits[11] != 5*time.Minute:
		t.Errorf("it is backed off: waits[11] = %v, want %v", waits[11], 5*time.Minute)
	}
}

// TestConflictingCluster: a node that claims a known cluster gets a separate entry that is marked and never verified. It takes nothing from
// the cluster (GO-03, DSC-08). Red without the conflict of judge.
func TestConflictingCluster(t *testing.T) {
	s := newSim(t, 720, 5, Settings{})
	honest, thief := s.nodes[0], s.nodes[4]
	for _, n := range s.nodes[:4] {
		s.start(n)
	}
	s.settle(time.Minute)
	s.run(5 * time.Second)
	thief.facts.ClusterID, thief.facts.ClusterName = honest.facts.ClusterID, honest.facts.ClusterName
	s.start(thief)
	s.run(20 * time.Second)
	for _, n := range s.nodes[:4] {
		m := n.members[thief.self]
		switch {
		case m == nil:
			t.Fatalf("node: m is nil; %d", n.index)
		case !m.entry.Conflict:
			t.Fatalf("node: m.entry.Conflict is false; %d, %+v", n.index, m)
		case m.verified:
			t.Fatalf("node: m.verified is true; %d, %+v", n.index, m)
		}
		clusters, _ := n.snapshot(n.wall()).Clusters(true)
		var entries []string
		for _, c := range clusters {
			if c.ID == honest.facts.ClusterID {
				entries = append(entries, fmt.Sprintf("%s verified=%t conflict=%t", c.URL, c.Verified, c.Conflict))
			}
		}
		if len(entries) != 2 || n != honest && entries[0] != honest.facts.URL+" verified=true conflict=false" && entries[1] != honest.facts.URL+" verified=true conflict=false" {
			t.Errorf("node %d lists %q", n.index, entries)
		}
		if n.stats.Rejected[Binding] == 0 {
			t.Errorf("node %d did not count it", n.index)
		}
	}
}

// TestTwoReplicas: two servers of one cluster share its key and give one entry without a conflict (DSC-10).
func TestTwoReplicas(t *testing.T) {
	s := newSim(t, 730, 4, Settings{})
	a, b := s.nodes[0], s.nodes[1]
	b.facts.ClusterID, b.facts.ClusterName, b.facts.Key, b.key = a.facts.ClusterID, a.facts.ClusterName, a.facts.Key, a.key
	s.startAll()
	s.settle(time.Minute)
	s.run(5 * time.Second)
	for _, n := range s.nodes {
		clusters, hidden := n.snapshot(n.wall()).Clusters(false)
		if len(clusters) != 3 || hidden != 0 {
			t.Fatalf("node %d lists %d clusters", n.index, len(clusters))
		}
		for _, c := range clusters {
			switch {
			case !c.Verified:
				t.Errorf("node: c.Verified is false; %d, %+v", n.index, c)
			case c.Conflict:
				t.Errorf("node: c.Conflict is true; %d, %+v", n.index, c)
			case c.ID == a.facts.ClusterID && len(c.Members) != 2:
				t.Errorf("node: c.ID == a.facts.ClusterID && len(c.Members) != 2; %d, %+v", n.index, c)
			}
		}
	}
}

// TestEquivocation: if the key signs two records of one order, the first stays, is marked and counted, until the owner sends a newer one
// (DSC-08).
func TestEquivocation(t *testing.T) {
	s := settled(t, 740, 4, Settings{})
	s.run(3 * time.Second)
	two := s.nodes[3]
	n := s.nodes[0]
	f := two.facts
	f.Labels = map[string]string{"other": "words"}
	second := forge(t, f, two.own.Order, two.key)
	two.hostile = func(*simNode, []byte) []byte { return nil }
	two.up = false
	s.attack(s.nodes[1], two.encode(message{Records: []Signed{second}}))
	m := n.members[two.self]
	switch {
	case !m.entry.Conflict:
		t.Errorf("after two records of one order: m.entry.Conflict is false; %+v, %d", m.entry, n.stats.Rejected[Equivocation])
	case m.verified:
		t.Errorf("after two records of one order: m.verified is true; %+v, %d", m.entry, n.stats.Rejected[Equivocation])
	case !m.entry.Signed.equal(two.own.Signed):
		t.Errorf("after two records of one order: m.entry.Signed.equal(two.own.Signed) is false; %+v, %d",
			m.entry, n.stats.Rejected[Equivocation])
	case n.stats.Rejected[Equivocation] == 0:
		t.Errorf("after two records of one order: n.stats.Rejected[Equivocation] = %v", n.stats.Rejected[Equivocation])
	}
	later := forge(t, f, Order{two.own.Generation, two.own.Version + 1}, two.key)
	s.attack(two, two.encode(message{Records: []Signed{later}}))
	if !m.verified || m.entry.Conflict {
		t.Error("a newer record does not end it")
	}
}

// TestForgedHeartbeats: inflated heartbeats keep a dead node alive no longer than hearsay counts. They make no live node dead, neither while
// the liar sends them nor when it stops and the true numbers look old (DSC-08, GO-04). Red without askedInVain in review, and without the
// limit of claim.
func TestForgedHeartbeats(t *testing.T) {
	sizes := []int{8, 20}
	if *long {
		sizes = []int{100, 300} // with 300, digests are samples
	}
	for _, size := range sizes {
		t.Run(fmt.Sprint(size), func(t *testing.T) { lies(t, size) })
	}
}

func lies(t *testing.T, size int) {
	s := settled(t, 750, size, Settings{})
	s.run(5 * time.Second)
	bad, friend := s.attacker(size-1), s.nodes[size-2]
	lie := func() {
		for _, n := range s.living() {
			d := []Claim{{Node: friend.self, Order: friend.own.Order, Heartbeat: friend.heartbeat + uint64(s.now/s.set.Interval)}} // always more
			for i := range size - 1 {
				// The nodes that fit into a digest, in turn.
				o := s.nodes[(n.index+i+int(s.now/s.set.Interval))%(size-1)]
				if o != friend && o != n && len(d) < maxDigest {
					d = append(d, Claim{Node: o.self, Order: o.own.Order, Heartbeat: maxGeneration})
				}
			}
			n.handleRequest(bad.self, bad.encode(message{Digest: d}), n.wall())
			s.handleCalls(n)
		}
	}
	s.reset()
	s.stop(friend)
	began, ended := s.now, time.Duration(0)
	bound := max(hearsayLife, 5*time.Duration(size)*s.set.Interval) // from the design, section 4
	spared := func() {
		t.Helper()
		for _, n := range s.living() {
			for who := range n.deaths {
				if who != bad.self && who != friend.self {
					t.Fatalf("%v: node %d calls the living %s dead", s.now-began, n.index, who)
				}
			}
		}
	}
	for s.now < began+bound+40*time.Second {
		lie()
		s.run(300 * time.Millisecond)
		for _, n := range s.living() {
			if m := n.members[friend.self]; m.state == Alive {
				ended = s.now - began
			}
		}
		spared()
	}
	if ended > bound+3*time.Second {
		t.Errorf("the dead friend was alive for %v, longer than %v", ended, bound)
	}
	for range 5 { // it alternates between lies and silence
		for range 20 {
			s.run(time.Second)
			spared()
		}
		lie()
	}
	t.Logf("%d members: the dead friend was alive for %v of %v; %d lies are counted", size, ended, bound, s.rejected(Heartbeat))
	s.run(40 * time.Second) // its claims are forgotten
	spared()
	if !s.everywhere(friend, Dead) {
		t.Error("the dead friend is not dead when the lies have ended")
	}
	for _, n := range s.living() {
		for _, o := range s.living() {
			if n != o && n.members[o.self].state != Alive {
				t.Errorf("node %d sees %d %s", n.index, o.index, n.members[o.self].state)
			}
		}
	}
	if s.rejected(Heartbeat) == 0 {
		t.Error("the lies are not counted")
	}
}

// TestDirectRequestBeforeDeath: a heartbeat that lies have pushed ahead looks like silence when the lies end. A node is dead only after a failed
// direct request, or if it cannot be queried (DSC-08, GO-04). Red without askedInVain in review.
func TestDirectRequestBeforeDeath(t *testing.T) {
	s := settled(t, 755, 4, Settings{})
	n, x := s.nodes[0], s.nodes[1]
	m, now := n.members[x.self], n.wall()
	after := func(d time.Duration) State { // nothing else happens
		now = now.Add(d)
		n.ticked, n.succeeded = n.clock(now), n.clock(now)
		n.updateStates(now)
		return m.state
	}
	if got := after(time.Minute); got != Suspect {
		t.Errorf("silent, and not contacted: %s", got)
	}
	m.peer.requestedAt = now
	if got := after(s.set.Interval); got != Suspect {
		t.Errorf("just contacted: %s", got)
	}
	m.contact = n.clock(now)
	if got := after(time.Second); got != Suspect {
		t.Errorf("it has answered since: %s", got)
	}
	m.peer.requestedAt = now
	if got := after(2 * s.set.Interval); got != Dead {
		t.Errorf("contacted without a response: %s", got)
	}
	for _, o := range s.nodes[2:] {
		m = n.members[o.self]
		if m.state == Dead {
			t.Errorf("another node is dead: %s", o.self)
		}
		n.netmap = NewNetmap(nil)
	}
	if got := after(time.Second); got != Dead {
		t.Errorf("it is not in the tailnet, so it cannot be contacted: %s", got)
	}
}

// TestBombs: input that is too large, too deep or empty is rejected (GO-05). Red without maxDigest in claims, and without the checks of
// nesting or of duplicate names in the cursor.
func TestBombs(t *testing.T) {
	s := settled(t, 760, 2, Settings{})
	n, from := s.nodes[0], s.nodes[1].self
	entry := `["nA",1,1,1],`
	for name, body := range map[string]string{
		"nothing":               ``,
		"null":                  `null`,
		"a list":                `[]`,
		"no fields":             `{}`,
		"no digest, no records": `{"v":1,"net":"default"}`,
		"no network":            `{"v":1,"d":[]}`,
		"another version":       `{"v":2,"net":"default","d":[]}`,
		"a field twice":         `{"v":1,"v":1,"net":"default","d":[]}`,
		"a million entries":     `{"v":1,"net":"default","d":[` + strings.Repeat(entry, 1_000_000) + `["nA",1,1,1]]}`,
		"129 entries":           `{"v":1,"net":"default","d":[` + strings.Repeat(entry, 128) + `["nA",1,1,1]]}`,
		"a negative number":     `{"v":1,"net":"default","d":[["nA",-1,1,1]]}`,
		"a huge number":         `{"v":1,"net":"default","d":[["nA",18446744073709551616,1,1]]}`,
		"a fraction":            `{"v":1,"net":"default","d":[["nA",1.5,1,1]]}`,
		"a short entry":         `{"v":1,"net":"default","d":[["nA",1,1]]}`,
		"no node":               `{"v":1,"net":"default","d":[["",1,1,1]]}`,
		"a node of escapes":     `{"v":1,"net":"default","d":[["n\u001b[31m",1,1,1]]}`,
		"depth":                 `{"v":1,"net":"default","d":[],"x":` + strings.Repeat("[", 10000) + strings.Repeat("]", 10000) + `}`,
		"a record of nothing":   `{"v":1,"net":"default","r":[{}]}`,
		"not base64":            `{"v":1,"net":"default","r":[{"p":"?","s":"AAAA"}]}`,
		"something after it":    `{"v":1,"net":"default","d":[]} {}`,
	} {
		n.peers[from].banned = backoff{}
		n.peers[from].tokens = 1
		before := n.stats.Rejected[Malformed]
		if _, err := n.handleRequest(from, []byte(body), n.wall()); err == nil || n.stats.Rejected[Malformed] != before+1 {
			t.Errorf("%s: %v, counted %d", name, err, n.stats.Rejected[Malformed]-before)
		}
	}
	n.peers[from].banned, n.peers[from].tokens = backoff{}, 5
	if _, err := n.handleRequest(from, []byte(`{"v":1,"net":"default","d":[["nA",1,1,1,"more"]],"future":{"a":[1,null,"x"]}}`), n.wall()); err != nil {
		t.Errorf("fields of a newer version: %v", err)
	}
	large := base64.StdEncoding.EncodeToString(make([]byte, maxPayload+1))
	if _, err := n.handleRequest(from, []byte(`{"v":1,"net":"default","r":[{"p":"`+large+`","s":"AAAA"}]}`), n.wall()); err != nil || n.stats.Rejected[Malformed] == 0 {
		t.Errorf("a bad item next to good ones: %v", err)
	}
}

// TestNothingYet: a server without peers or seeds does not panic and sends nothing. It responds only once it has its own record.
func TestNothingYet(t *testing.T) {
	s := newSim(t, 770, 2, Settings{Seeds: []string{"tka-1.tail1234.ts.net"}})
	n := s.nodes[0]
	set := s.set
	set.MaxMembers = 10
	n.engine = newEngine(Rules{n.facts.Node, n.facts.Key, set}, Memory{}, n.sign, s.rng, simEpoch)
	if calls := n.engine.tick(nil, simEpoch.Add(time.Second)); len(calls) != 0 {
		t.Errorf("%d calls", len(calls))
	}
	if _, err := n.handleRequest("nOther", []byte(`{"v":1,"net":"default","d":[]}`), simEpoch.Add(time.Second)); err == nil {
		t.Error("it answers before it has a record")
	}
	if err := n.announce(n.facts, Up, simEpoch); err != nil {
		t.Fatal(err)
	}
	if calls := n.engine.tick(nil, simEpoch.Add(2*time.Second)); len(calls) != 0 {
		t.Errorf("%d calls without a netmap", len(calls))
	}
	if calls := n.engine.tick(s.netmap, simEpoch.Add(3*time.Second)); len(calls) != 1 || calls[0].to.Name != "tka-1.tail1234.ts.net" {
		t.Errorf("with a seed: %v", calls)
	}
}
