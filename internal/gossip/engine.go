package gossip

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tailplane/tailplane/internal/problem"
)

// An engine is one node's gossip without its network: what it believes, whom it
// asks and what it answers. It has no goroutine, clock or lock of its own; a
// Node and the simulator drive the same one.
type engine struct {
	set    Settings
	self   string
	sign   func([]byte) []byte
	open   func(Signed) (*Record, error) // reads; who signed it Merge asks
	rng    *rand.Rand
	netmap *Netmap

	own       *Record
	heartbeat uint64
	floor     uint64 // the greatest generation of ours ever seen
	unsaved   bool   // memory has changed

	view    *View
	members map[string]*member
	list    []*member // the same, as they came
	deck    []*member // the same, shuffled: a request draws its sample here
	spare   []*member // of those that were made together, the ones that are nobody yet
	peers   map[string]*peer
	mark    uint64 // of the digest at hand
	learned uint64
	heard   []Claim // room for the digest of a message that we read
	said    []Claim // and of one that we send

	live, dead, unmet []*member // room for what one round looks at

	began     time.Time
	ticked    time.Duration // the last round
	swept     time.Duration // when it was looked last what may be forgotten
	succeeded time.Duration // the last exchange, in either direction
	isolated  bool
	dials     float64 // how many unverified members may be asked now

	events []Event
	stats  Stats
}

// A member is another node that has a record. What every message asks of every
// member stands here and not behind a pointer, and that first.
type member struct {
	id    string
	order Order
	mark  uint64 // of the digest that lists it
	pulse
	state     State
	firstHand bool
	verified  bool
	died      time.Duration // or left
	learned   uint64        // when, among all records: deltas are filled oldest-known-first
	peer      *peer
	entry     *Entry
}

// together is how many members are made at once: messages and rounds look at all
// of them, which is quicker when they are neighbours in memory.
const together = 32

// Times of a node.
const (
	late          = time.Second     // a round that is this late was held up by something that says nothing about others
	silent        = 2 * time.Second // without any exchange: nobody is called dead
	lonely        = 5 * time.Second // the same: we are isolated
	dialsPerSec   = 5               // to members that are not verified
	sweepTime     = 30 * time.Second
	doubtTime     = time.Minute // after it, the silence of who is dead, or not in our tailnet, is no riddle any more
	leaveTargets  = 3
	deadlineFloor = 2 * time.Second
)

func newEngine(set Settings, rules Rules, m Memory, sign func([]byte) []byte, rng *rand.Rand, now time.Time) *engine {
	return &engine{set: set, self: rules.Self, sign: sign, open: parse, rng: rng, floor: m.Generation, view: NewView(rules, m),
		members: map[string]*member{}, peers: map[string]*peer{}, began: now, stats: newStats()}
}

// clock is now by our own monotonic clock; nothing is decided by another one.
func (e *engine) clock(now time.Time) time.Duration { return now.Sub(e.began) }

// deadline is how long one exchange may take.
func (e *engine) deadline() time.Duration { return max(deadlineFloor, 4*e.set.Interval) }

func (e *engine) detector() detector {
	return detector{interval: e.set.Interval, members: len(e.list) + 1}
}

// announce makes f what this node says of itself from now on.
func (e *engine) announce(f Facts, s Status, now time.Time) error {
	o := Order{Generation: generationAt(now, e.floor), Version: 1}
	if e.own != nil {
		o = Order{e.own.Generation, e.own.Version + 1}
	}
	return e.seal(f, s, o)
}

func (e *engine) seal(f Facts, s Status, o Order) error {
	if f.Node != e.self {
		return fmt.Errorf("record: it is of the node %q, and we are %q", f.Node, e.self)
	}
	r, err := Seal(f, o, s, e.sign)
	if err != nil {
		return err
	}
	if o.Generation > e.floor {
		e.floor, e.unsaved = o.Generation, true
	}
	e.own = r
	if next := e.view.owning(f); next != e.view {
		e.view, e.unsaved = next, true
	}
	return nil
}

// rise answers a record of ours that we did not write, such as one of before a
// restart whose memory is lost: ours gets a later generation.
func (e *engine) rise(r *Record, now time.Time) {
	if e.own == nil || r.Order.Compare(e.own.Order) < 0 || r.Signed.equal(e.own.Signed) {
		return
	}
	if r.Generation >= maxGeneration {
		e.stats.Rejected[Old]++ // nothing is greater
		return
	}
	if err := e.seal(e.own.Facts, e.own.Status, Order{r.Generation + 1, 1}); err != nil {
		e.tell(Event{Kind: EventConflict, Node: e.self, Cluster: e.own.ClusterID, Detail: err.Error()}, now)
		return
	}
	e.heartbeat = 0
	e.tell(Event{Kind: EventRaised, Node: e.self, Cluster: e.own.ClusterID, Detail: "there was a later record of ours than we wrote"}, now)
}

// receive merges the records of a message.
func (e *engine) receive(from string, sealed []Signed, now time.Time) {
	if len(sealed) == 0 {
		return
	}
	d := Delivery{From: from, Netmap: e.netmap}
	for _, s := range sealed {
		r, err := e.open(s)
		if err != nil { // perhaps of a newer version with wider limits
			e.reject(from, Malformed, now)
			continue
		}
		d.Records = latest(d.Records, r)
	}
	var changes []Change
	e.view, changes = Merge(e.view, d, now)
	moved := false
	for _, c := range changes {
		switch {
		case c.Own:
			e.rise(c.Record, now)
		case c.Entry == nil:
			e.reject(from, c.Reason, now)
			if c.Reason == Signature { // no honest peer relays this: it would not have kept it
				e.garbage(from, now)
			}
		default:
			e.enter(c, from, now)
			moved = moved || c.Rekey
		}
	}
	if moved { // what the old key vouched for is not verified any more
		e.verify()
	}
}

// verify asks the pins about everybody, after they have changed.
func (e *engine) verify() {
	for _, m := range e.list {
		m.verified = e.view.Verified(m.entry)
	}
}

// latest adds r to records, of which it keeps one for each node: a message that
// tells a long story of one node is told as its end.
func latest(records []*Record, r *Record) []*Record {
	for i, have := range records {
		if have.Node == r.Node {
			if r.Order.Compare(have.Order) > 0 {
				records[i] = r
			}
			return records
		}
	}
	return append(records, r)
}

// enter takes a changed entry in.
func (e *engine) enter(c Change, from string, now time.Time) {
	id, cluster, at := c.Record.Node, c.Entry.ClusterID, e.clock(now)
	m := e.members[id]
	if m == nil {
		m = e.newMember()
		*m = member{pulse: listen(at), id: id, state: Unknown, peer: e.peer(id, now)}
		e.members[id] = m
		e.list, e.deck = append(e.list, m), append(e.deck, m)
		e.tell(Event{Kind: EventJoin, Node: id, Cluster: cluster}, now)
	}
	if m.order.Generation != c.Entry.Generation {
		contact, seen := m.contact, m.seen
		m.pulse = listen(at)
		m.contact, m.seen, m.state = contact, seen, Unknown
	}
	if m.order != c.Entry.Order {
		e.learned++
		m.learned = e.learned
	}
	m.entry, m.order, m.firstHand, m.verified = c.Entry, c.Entry.Order, c.Entry.FirstHand, e.view.Verified(c.Entry)
	if c.Entry.Status == Left && m.state != Gone {
		m.state, m.died = Gone, at
		e.tell(Event{Kind: EventLeave, Node: id, Cluster: cluster}, now)
	}
	if c.Pinned || c.Rekey {
		e.unsaved = true
		kind := EventPin
		if c.Rekey {
			kind = EventRekey
		}
		e.tell(Event{Kind: kind, Node: id, Cluster: cluster, Detail: c.Entry.Key.String()}, now)
	}
	if c.Entry.Conflict && (c.Was == nil || !c.Was.Conflict) {
		e.reject(from, c.Reason, now)
		e.tell(Event{Kind: EventConflict, Node: id, Cluster: cluster, Detail: c.Detail}, now)
	}
}

// hear takes in what a message says about m in numbers.
func (e *engine) hear(m *member, c Claim, firstHand bool, d detector, at time.Duration) {
	if c.Generation != m.order.Generation || m.state == Gone {
		return
	}
	if !d.claim(&m.pulse, c.Heartbeat, firstHand, at) {
		e.stats.Rejected[Heartbeat]++ // not held against from, who may say honestly what it was told
	}
	if m.proven && !m.dead && (m.state == Unknown || m.state == Dead) && !e.isolated {
		m.state = Alive
	}
}

// contact takes note that an exchange with a peer has succeeded.
func (e *engine) contact(from string, now time.Time) {
	at := e.clock(now)
	if silence := at - e.succeeded; e.quiet(at) { // it was ours, so it is nobody's
		for _, m := range e.list {
			if !m.dead {
				m.last += silence
				m.proven = m.proven && !e.isolated
			}
		}
	}
	e.succeeded, e.isolated = at, false
	if m := e.members[from]; m != nil {
		m.contact = at
	}
}

// quiet reports whether nothing has come from anybody for so long that we doubt
// ourselves first.
func (e *engine) quiet(at time.Duration) bool {
	return at-e.succeeded > max(silent, 6*e.set.Interval) && e.several(at)
}

// several reports whether there are two others who should be heard. With one there
// is nobody else to doubt. Who has left says nothing any more, and neither does who
// has been dead for long or was taken out of our tailnet: else two that went at one
// time would have us doubt ourselves for ever.
func (e *engine) several(at time.Duration) bool {
	n := 0
	for _, m := range e.list {
		if m.state == Gone || m.state == Dead && at-m.died > doubtTime || e.absent(m, at) {
			continue
		}
		if n++; n == 2 {
			return true
		}
	}
	return false
}

// absent reports whether our tailnet has not had m's node for long, which is noted
// of those that were met; a netmap may be empty for a moment.
func (e *engine) absent(m *member, at time.Duration) bool {
	since, ok := e.view.absent.Get(m.id)
	return ok && e.began.Add(at).Sub(since) > doubtTime
}

// review looks at everybody once a round.
func (e *engine) review(now time.Time) {
	at := e.clock(now)
	if at-e.ticked > e.set.Interval+e.set.Interval/10+late { // we slept: silence in that time was ours
		for _, m := range e.list {
			m.restart(at)
		}
		e.succeeded = at
		e.stats.Late++
	}
	e.ticked = at
	e.isolated = (e.isolated || at-e.succeeded > max(lonely, 16*e.set.Interval)) && e.several(at)
	d, quiet := e.detector(), e.quiet(at)
	var forget []string
	for _, m := range e.list {
		switch was := m.state; {
		case was == Gone, quiet && !e.isolated: // as it was
		case e.isolated:
			if !m.dead {
				m.state = Unknown
			}
		default:
			m.state = d.state(&m.pulse, at, func() bool { return e.askedInVain(m, now) })
			if m.state == Dead && was != Dead {
				m.died = at
				e.tell(Event{Kind: EventDeath, Node: m.id, Cluster: m.entry.ClusterID}, now)
			}
		}
		if m.gone() && at-m.died > e.set.ForgetAfter {
			forget = append(forget, m.id)
		}
	}
	if len(forget) > 0 || at-e.swept >= sweepTime {
		e.view = Forget(e.view, forget, now)
		e.drop(forget)
	}
	if at-e.swept >= sweepTime {
		e.swept = at
		e.prune(now)
		e.sum()
		e.forgetPeers(now)
	}
}

// askedInVain reports whether m was asked itself since it was heard last, and has
// not answered, or cannot be asked. Only then is it dead: what others say of its
// heart may be made up, and a number that is ahead of it looks like silence when
// the liar stops.
func (e *engine) askedInVain(m *member, now time.Time) bool {
	if _, there := e.netmap.Find(m.id); !there || m.peer.banned.holds(now) || m.peer.away.holds(now) {
		return true
	}
	return e.clock(m.peer.knocked) > max(m.last, m.contact) && now.Sub(m.peer.knocked) >= 2*e.set.Interval
}

// prune forgets the pins of nodes that are long gone from our tailnet.
func (e *engine) prune(now time.Time) {
	next, dropped := Prune(e.view, e.netmap, now)
	e.unsaved = e.unsaved || next.pinned != e.view.pinned || next.absent.Len() != e.view.absent.Len()
	for _, node := range dropped {
		cluster, _ := e.view.nodes.Get(node)
		e.tell(Event{Kind: EventUnpin, Node: node, Cluster: cluster, Detail: "our tailnet has not had the node for long"}, now)
	}
	if e.view = next; len(dropped) > 0 {
		e.verify()
	}
}

func (m *member) gone() bool { return m.state == Dead || m.state == Gone }

func (e *engine) newMember() *member {
	if len(e.spare) == 0 {
		made := make([]member, together)
		for i := range made {
			e.spare = append(e.spare, &made[len(made)-1-i])
		}
	}
	last := len(e.spare) - 1
	m := e.spare[last]
	e.spare = e.spare[:last]
	return m
}

func (e *engine) drop(ids []string) {
	if len(ids) == 0 {
		return
	}
	for _, id := range ids {
		e.spare = append(e.spare, e.members[id])
		delete(e.members, id)
	}
	gone := func(m *member) bool { return e.members[m.id] != m }
	e.list, e.deck = slices.DeleteFunc(e.list, gone), slices.DeleteFunc(e.deck, gone)
	for _, m := range e.spare[len(e.spare)-len(ids):] {
		*m = member{}
	}
}

// listed reports whether m is in digests: who is long dead is not, so that all
// forget it at about one time.
func (e *engine) listed(m *member, at time.Duration) bool {
	return !m.gone() || at-m.died <= e.set.ForgetAfter/2
}

func (e *engine) reject(from string, why Reason, now time.Time) {
	e.stats.Rejected[why]++
	e.peer(from, now).refused++
}

// errOther is what a member of another gossip network is told.
func errOther(network string) error {
	return problem.New(problem.BadRequest, "This server is in the gossip network "+network+", and the message is of another one.", "Set gossip.network to the same name on both.")
}
