package gossip

import (
	"container/heap"
	"crypto/ed25519"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/netip"
	"runtime/debug"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/httpapi"
)

// A sim is many nodes in one virtual time, on a network with faults. It runs the same engine as Node and sends the messages that it
// encodes. The same seed gives the same trace: there are no goroutines, no real clock, and one source of randomness.
type sim struct {
	t      testing.TB
	seed   uint64
	rng    *rand.Rand
	now    time.Duration
	events queue
	count  uint64
	nodes  []*simNode
	byID   map[string]*simNode
	netmap *Netmap
	opened map[string]openResult // results of Open, which depend on nothing else
	trace  uint64

	loss   float64
	delay  [2]time.Duration // one way, minimum and maximum
	jitter time.Duration    // in addition, for half of the messages
	dup    float64
	cut    func(from, to *simNode) bool // drops everything
	set    Settings

	check    func(s *sim) // an additional law of a test, checked every virtual second
	contact  map[[2]int]contact
	sighted  time.Duration // when the law of sight was last checked
	expected map[string]map[Order]string
	checked  time.Duration
	behind   int // for allKnowAll
}

type openResult struct {
	r   *Record
	err error
}

// A simNode is one node: its engine, its clock and what it has sent.
type simNode struct {
	*engine
	sim     *sim
	index   int
	facts   Facts
	key     ed25519.PrivateKey
	offset  time.Duration // of its wall clock
	up      bool
	paused  time.Duration // it does nothing until then
	held    []func()      // events that came meanwhile
	life    int           // starts
	rounds  int           // series of rounds; a later series ends the one before
	memory  Memory
	bytes   uint64 // sent, headers included
	sent    uint64 // messages
	deaths  map[string]int
	hostile func(from *simNode, body []byte) []byte // responds instead of the engine
	onEvent func(Event)                             // receives each event
	orders  map[string]Order
	died    map[string]uint64 // heartbeat at which a member was dead
}

const headerBytes = 60 // of HTTP/2, for each message

var simEpoch = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

type event struct {
	at  time.Duration
	seq uint64
	do  func()
}

type queue []event

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(event)) }
func (q *queue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last] = event{}
	*q = (*q)[:last]
	return e
}

// newSim returns n nodes that are not up yet; each is a separate cluster.
func newSim(t testing.TB, seed uint64, n int, set Settings) *sim {
	t.Helper()
	set, err := set.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	s := &sim{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), byID: map[string]*simNode{}, opened: map[string]openResult{},
		delay: [2]time.Duration{5 * time.Millisecond, 25 * time.Millisecond}, set: set, expected: map[string]map[Order]string{}, contact: map[[2]int]contact{}}
	var peers []Peer
	for i := range n {
		node := s.newNode(i)
		s.nodes = append(s.nodes, node)
		s.byID[node.facts.Node] = node
		peers = append(peers, Peer{node.facts.Node, node.facts.Host, node.facts.IPs})
	}
	s.netmap = NewNetmap(peers)
	if n >= 1000 { // with a million entries, the laws are not checked all the time
		before := debug.SetGCPercent(400_000 / n)
		t.Cleanup(func() { debug.SetGCPercent(before) })
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the seed that failed: %d", seed)
		}
	})
	return s
}

func (s *sim) newNode(i int) *simNode {
	var seed [ed25519.SeedSize]byte
	binary.LittleEndian.PutUint64(seed[:], s.seed)
	binary.LittleEndian.PutUint64(seed[8:], uint64(i)+1)
	key := ed25519.NewKeyFromSeed(seed[:])
	h := fnv.New64a()
	h.Write(seed[:])
	host := fmt.Sprintf("tka-%d.tail1234.ts.net", i)
	n := &simNode{sim: s, index: i, key: key, deaths: map[string]int{}, orders: map[string]Order{}, died: map[string]uint64{}, facts: Facts{
		ClusterID: fmt.Sprintf("5e0c3f5a-6f0e-4f0c-9a63-%012d", i), ClusterName: fmt.Sprintf("prod-%d", i),
		Node: fmt.Sprintf("n%08XCNTRL%02d", uint32(h.Sum64()), i%100) + fmt.Sprint(i/100), Host: host,
		IPs:  []netip.Addr{netip.AddrFrom4([4]byte{100, 64, byte(i >> 8), byte(i)}), netip.MustParseAddr(fmt.Sprintf("fd7a:115c:a1e0::%x", i+1))},
		Port: 7946, URL: "https://" + host, APIEndpoint: fmt.Sprintf("https://k8s.prod-%d.example:6443", i), APIPort: 6443,
		CAHash: "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
		Labels: map[string]string{"env": "prod", "region": "eu-central"}, Software: "0.4.0", Key: httpapi.PublicKey(key.Public().(ed25519.PublicKey)),
	}}
	return n
}

func (n *simNode) sign(b []byte) []byte { return ed25519.Sign(n.key, b) }

// wall returns the time on the node's clock.
func (n *simNode) wall() time.Time { return simEpoch.Add(n.sim.now + n.offset) }

// at schedules do.
func (s *sim) at(d time.Duration, do func()) {
	s.count++
	heap.Push(&s.events, event{s.now + d, s.count, do})
}

func (s *sim) between(a, b time.Duration) time.Duration {
	if b <= a {
		return a
	}
	return a + time.Duration(s.rng.Int64N(int64(b-a)))
}

// start starts a node, or restarts it with its memory.
func (s *sim) start(n *simNode) {
	n.life++
	n.up = true
	n.engine = newEngine(Rules{n.facts.Node, n.facts.Key, s.set}, n.memory, n.sign, rand.New(rand.NewPCG(s.rng.Uint64(), s.rng.Uint64())), n.wall())
	n.engine.open = s.open
	s.announce(n, n.facts, Up)
	s.beginRounds(n)
}

// beginRounds begins a series of rounds.
func (s *sim) beginRounds(n *simNode) {
	n.rounds++
	life, series := n.life, n.rounds
	s.at(s.between(0, s.set.Interval), func() { s.tick(n, life, series) })
}

// pace changes the interval of all nodes. A long interval makes days of virtual time cheap.
func (s *sim) pace(interval time.Duration) {
	s.set.Interval = interval
	for _, n := range s.nodes {
		if n.engine != nil {
			n.engine.set.Interval = interval
			s.beginRounds(n)
		}
	}
}

func (s *sim) announce(n *simNode, f Facts, st Status) {
	if err := n.announce(f, st, n.wall()); err != nil {
		s.t.Fatal(err)
	}
	n.facts = f
	s.wrote(n)
}

// wrote records what a node has signed.
func (s *sim) wrote(n *simNode) {
	if s.expected[n.self] == nil {
		s.expected[n.self] = map[Order]string{}
	}
	s.expected[n.self][n.own.Order] = string(n.own.Signed.Payload)
}

func (s *sim) stop(n *simNode) { n.up = false }

// open is parse with a cache: thousands of nodes read the same bytes. It also verifies each signature only once.
func (s *sim) open(x Signed) (*Record, error) {
	key := string(x.Payload) + string(x.Signature)
	o, ok := s.opened[key]
	if !ok {
		if o.r, o.err = parse(x); o.err == nil {
			o.r.proven = o.r.isSignatureValid()
		}
		s.opened[key] = o
	}
	return o.r, o.err
}

// awake runs do on a node as soon as it is not paused, if the node has not restarted meanwhile.
func (n *simNode) awake(life int, do func()) {
	if !n.up || n.life != life {
		return
	}
	if n.sim.now < n.paused {
		n.held = append(n.held, func() { n.awake(life, do) })
		return
	}
	do()
}

// pause stops a process. It processes messages from that time when it wakes.
func (s *sim) pause(n *simNode, d time.Duration) {
	n.paused = s.now + d
	s.at(d, func() {
		held := n.held
		n.held = nil
		for _, do := range held {
			do()
		}
	})
}

func (s *sim) tick(n *simNode, life, series int) {
	n.awake(life, func() {
		if n.rounds != series {
			return
		}
		for _, c := range n.engine.tick(s.netmap, n.wall()) {
			s.exchange(n, c)
		}
		s.handleCalls(n)
		s.at(s.between(s.set.Interval*9/10, s.set.Interval*11/10), func() { s.tick(n, life, series) })
	})
}

// handleCalls processes the node's events.
func (s *sim) handleCalls(n *simNode) {
	for _, ev := range n.engine.events {
		if ev.Kind == EventDeath {
			n.deaths[ev.Node]++
		}
		if ev.Kind == EventRaised {
			s.wrote(n)
		}
		if n.onEvent != nil {
			n.onEvent(ev)
		}
	}
	n.engine.events = n.engine.events[:0]
}

// exchange runs one exchange of up to three messages. Each may be late, duplicate or lost. After a lost one, the caller waits until its
// deadline.
func (s *sim) exchange(a *simNode, c call) {
	b := s.byID[c.to.ID]
	life, over := a.life, false
	end := func(do func()) {
		if !over {
			over = true
			a.awake(life, do)
		}
	}
	s.at(min(a.deadline(), 5*time.Second), func() { end(func() { a.endExchange(c.to.ID, errors.New("no response"), a.wall()) }) })
	s.send(a, b, c.body, func(answer []byte, err error) {
		s.reply(b, a, answer, err, func(answer []byte, err error) {
			end(func() {
				if err != nil {
					a.endExchange(c.to.ID, errors.New("no response"), a.wall())
					return
				}
				third := a.handleResponse(c.to.ID, answer, a.wall())
				s.handleCalls(a)
				if third == nil {
					return
				}
				over = false
				s.send(a, b, third, func(answer []byte, err error) {
					s.reply(b, a, answer, err, func([]byte, error) { end(func() { a.endExchange(c.to.ID, nil, a.wall()) }) })
				})
			})
		})
	})
}

// send carries a request to b, and then calls then at b with b's response.
func (s *sim) send(a, b *simNode, body []byte, then func([]byte, error)) {
	life := b.life
	s.deliver(a, b, body, func() {
		b.awake(life, func() {
			if b.hostile != nil {
				if answer := b.hostile(a, body); answer != nil {
					then(answer, nil)
				}
				return
			}
			answer, err := b.engine.handleRequest(a.self, body, b.wall())
			s.handleCalls(b)
			then(answer, err)
		})
	})
}

func (s *sim) reply(b, a *simNode, body []byte, err error, then func([]byte, error)) {
	s.deliver(b, a, body, func() { then(body, err) })
}

// deliver simulates the network.
func (s *sim) deliver(from, to *simNode, body []byte, deliver func()) {
	from.bytes += uint64(len(body)) + headerBytes
	from.sent++
	s.trace = (s.trace ^ uint64(s.now) ^ uint64(len(body))<<40 ^ uint64(from.index)<<20 ^ uint64(to.index)) * 0x100000001b3
	if s.cut != nil && s.cut(from, to) {
		return
	}
	copies := 1
	if s.dup > 0 && s.rng.Float64() < s.dup {
		copies = 2
	}
	for range copies {
		if s.loss > 0 && s.rng.Float64() < s.loss {
			continue
		}
		d := s.between(s.delay[0], s.delay[1])
		if s.jitter > 0 {
			d += s.between(0, s.jitter)
		}
		s.at(d, deliver)
	}
}

// run lets virtual time pass.
func (s *sim) run(d time.Duration) { s.until(d, func() bool { return false }) }

// until lets time pass until done returns true, which it checks ten times a second. It returns the time that this took, and false after
// limit.
func (s *sim) until(limit time.Duration, done func() bool) (time.Duration, bool) {
	begin := s.now
	end := begin + limit
	next := begin
	for {
		for len(s.events) > 0 && s.events[0].at <= next {
			e := heap.Pop(&s.events).(event)
			s.now = e.at
			e.do()
		}
		s.now = next
		if s.now-s.checked >= time.Second*time.Duration(1+len(s.nodes)/100) {
			s.checked = s.now
			s.laws()
		}
		if done() {
			return s.now - begin, true
		}
		if next >= end {
			return limit, false
		}
		next = min(next+max(50*time.Millisecond, s.set.Interval/6), end)
	}
}

func (s *sim) startAll() {
	for _, n := range s.nodes {
		s.start(n)
	}
}

// living returns the nodes that are up and honest.
func (s *sim) living() (up []*simNode) {
	for _, n := range s.nodes {
		if n.up && n.hostile == nil {
			up = append(up, n)
		}
	}
	return up
}

// allKnowAll reports whether every node has the present record of every other. It first checks the node that lacked one last time.
func (s *sim) allKnowAll() bool {
	up := s.living()
	for i := range up {
		n := up[(i+s.behind)%len(up)]
		for _, o := range up {
			if m := n.members[o.self]; n != o && (m == nil || m.order != o.own.Order) {
				s.behind = (i + s.behind) % len(up)
				return false
			}
		}
	}
	return true
}

// everywhere reports whether the state of o at all others is among states.
func (s *sim) everywhere(o *simNode, states ...State) bool {
	for _, n := range s.living() {
		if n == o {
			continue
		}
		m := n.members[o.facts.Node]
		ok := false
		for _, st := range states {
			ok = ok || m != nil && m.state == st
		}
		if !ok {
			return false
		}
	}
	return true
}

// allAlive reports whether every node sees every other node alive.
func (s *sim) allAlive() bool {
	for _, o := range s.living() {
		if !s.everywhere(o, Alive) {
			return false
		}
	}
	return true
}

// deathsSeen counts the deaths of any node that any node saw.
func (s *sim) deathsSeen() (n int) {
	for _, node := range s.nodes {
		for _, d := range node.deaths {
			n += d
		}
	}
	return n
}

// laws checks the laws, in every simulation, once per virtual second.
func (s *sim) laws() {
	for _, n := range s.living() {
		if len(n.list) > s.set.MaxMembers || n.view.tombs.Len() > maxTombstones {
			s.t.Fatalf("%v: node %d: memory is not bounded", s.now, n.index)
		}
		for _, m := range n.list {
			if !m.verified {
				continue
			}
			last := n.orders[m.id]
			if m.order == last {
				continue
			}
			if m.order.Compare(last) < 0 {
				s.t.Fatalf("%v: node %d: %s went back from %v to %v", s.now, n.index, m.id, last, m.order)
			}
			n.orders[m.id] = m.order
			if truth, ours := s.expected[m.id]; ours && truth[m.order] != string(m.entry.Signed.Payload) {
				s.t.Fatalf("%v: node %d: the record of %s is not what it signed", s.now, n.index, m.id)
			}
		}
	}
	s.sight()
	if s.check != nil {
		s.check(s)
	}
}
