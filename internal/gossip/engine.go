package gossip

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/problem"
)

// An engine is the gossip state machine of one node, without a network. It decides what the node believes, which peers it queries and how
// it responds. It has no goroutine, clock or lock; both Node and the simulator drive it.
type engine struct {
	set    Settings
	self   string
	sign   func([]byte) []byte
	open   func(Signed) (*Record, error) // parses a record; Merge verifies its signature
	rng    *rand.Rand
	netmap *Netmap

	own       *Record
	heartbeat uint64
	floor     uint64    // the greatest generation of this node's records ever seen
	unsaved   bool      // Memory has changed and must be saved
	raised    time.Time // when a peer's record last raised our generation

	view        *View
	members     map[string]*member
	list        []*member // the values of members, in the order in which they joined
	shuffled    []*member // the values of members, shuffled; requests draw their sample from it
	freeMembers []*member // allocated members that are not in use yet
	peers       map[string]*peer
	mark        uint64 // of the current digest
	learnedAt   uint64
	lastHeard   []Claim // buffer for the digest of a message that the engine reads
	reported    []Claim // buffer for the digest of a message that the engine sends

	selection selection // of the current round

	began     time.Time
	ticked    time.Duration // time of the last round
	swept     time.Duration // when forgotten members and pins were last swept
	succeeded time.Duration // time of the last exchange, in either direction
	isolated  bool
	dials     float64 // how many unverified members the engine may query now

	events     []Event
	statements []audit.SignedHead // that this node signed earlier and a peer returned
	stats      Stats
}

// A member is another node that has a record. Fields that the engine reads for every member in every message are in the struct itself, not
// behind a pointer, and come first.
type member struct {
	id    string
	order Order
	mark  uint64 // of the digest that lists it
	pulse
	state     State
	firstHand bool
	verified  bool
	died      time.Duration // when it died or left
	learned   uint64        // position among all records learned; deltas send the records known longest first
	peer      *peer
	entry     *Entry
	returned  *Record // an earlier record of the member, to be sent to it; nil: none
}

// together is how many members are allocated at once. Messages and rounds iterate over all members, which is faster when they are adjacent
// in memory.
const together = 32

// Times of a node.
const (
	late          = time.Second     // a round that starts this late was delayed locally, which says nothing about others
	silent        = 2 * time.Second // without any exchange for this long, the engine declares no member dead
	lonely        = 5 * time.Second // without any exchange for this long, the engine is isolated
	dialsPerSec   = 5               // to unverified members
	sweepTime     = 30 * time.Second
	doubtTime     = time.Minute // after this time, a dead member or one outside our tailnet no longer counts in several
	leaveTargets  = 3
	raiseEvery    = 10 * time.Second // at most, for our own generation
	deadlineFloor = 2 * time.Second
)

func newEngine(rules Rules, m Memory, sign func([]byte) []byte, rng *rand.Rand, now time.Time) *engine {
	return &engine{set: rules.Settings, self: rules.Self, sign: sign, open: parse, rng: rng, floor: m.Generation, view: NewView(rules, m),
		members: map[string]*member{}, peers: map[string]*peer{}, began: now, stats: newStats()}
}

// clock converts now to this node's monotonic time since the engine began. The engine uses no other clock for decisions.
func (e *engine) clock(now time.Time) time.Duration { return now.Sub(e.began) }

// deadline is the time limit of one exchange.
func (e *engine) deadline() time.Duration { return max(deadlineFloor, 4*e.set.Interval) }

func (e *engine) detector() detector {
	return detector{interval: e.set.Interval, members: len(e.list) + 1}
}

// announce sets the facts that this node announces from now on.
func (e *engine) announce(f Facts, s Status, now time.Time) error {
	o := Order{Generation: generationAt(now, e.floor), Version: 1}
	if e.own != nil {
		o = Order{e.own.Generation, e.own.Version + 1}
	}
	return e.seal(f, s, o)
}

func (e *engine) seal(f Facts, s Status, o Order) error {
	if f.Node != e.self {
		return fmt.Errorf("record: it is of the node %q, but this node is %q", f.Node, e.self)
	}
	r, err := Seal(f, o, s, e.sign)
	if err != nil {
		return err
	}
	if o.Generation > e.floor {
		e.floor, e.unsaved = o.Generation, true
	}
	e.own = r
	if next := e.view.withOwnPin(f); next != e.view {
		e.view, e.unsaved = next, true
	}
	return nil
}

// supersedeOwn handles a record of this node that a peer sent. It announces the node's own facts with a later generation in two cases: this
// process did not write the record, for example because it is from before a restart whose Memory is lost; or the peer has forgotten this
// node and returns the record that it buried, which may be the current one. A generation raises at most once in raiseEvery, because any
// member can repeat a record.
func (e *engine) supersedeOwn(r *Record, buried bool, now time.Time) {
	if e.own == nil {
		return
	}
	foreign := r.Order.Compare(e.own.Order) >= 0 && !r.Signed.equal(e.own.Signed)
	buried = buried && r.Generation >= e.own.Generation
	if !foreign && !buried {
		return
	}
	limit := uint64(maxGeneration) // no generation can be greater
	if r.Key != e.own.Key {
		limit = maxPrevKey
	}
	if r.Generation >= limit {
		e.stats.Rejected[Old]++
		return
	}
	if now.Sub(e.raised) < raiseEvery {
		return
	}
	e.raised = now
	detail := "a peer has a later record of this node than this process wrote"
	if !foreign {
		detail = "a peer had forgotten this node"
	}
	if err := e.seal(e.own.Facts, e.own.Status, Order{r.Generation + 1, 1}); err != nil {
		e.report(Event{Kind: EventConflict, Node: e.self, Cluster: e.own.ClusterID, Detail: err.Error()}, now)
		return
	}
	e.heartbeat = 0
	e.report(Event{Kind: EventRaised, Node: e.self, Cluster: e.own.ClusterID, Detail: detail}, now)
}

// recallOwn remembers the statements about audit logs in an earlier record of this node. Its caller has verified the signature.
func (e *engine) recallOwn(r *Record) {
	if e.own == nil || r.Generation >= e.own.Generation {
		return
	}
	for _, h := range r.Audit {
		if len(e.statements) < maxWitnessed && !slices.Contains(e.statements, h) {
			e.statements = append(e.statements, h)
		}
	}
}

// mergeRecords merges the records of a message.
func (e *engine) mergeRecords(from string, msg message, now time.Time) {
	if len(msg.Records) == 0 {
		return
	}
	d := Delivery{From: from, Netmap: e.netmap}
	for _, s := range msg.Records {
		r, err := e.open(s)
		if err != nil { // perhaps from a newer version with wider limits
			e.reject(from, Malformed, now)
			continue
		}
		d.Records = appendLatest(d.Records, r)
	}
	var changes []Change
	e.view, changes = Merge(e.view, d, now)
	moved := false
	for _, c := range changes {
		switch {
		case c.Own:
			e.supersedeOwn(c.Record, !msg.lists(e.self), now)
			e.recallOwn(c.Record)
		case c.Entry == nil:
			e.reject(from, c.Reason, now)
			if c.Reason == Signature { // an honest peer would not have kept this record, so it would not relay it
				e.backOff(from, now)
			}
		default:
			e.applyChange(c, from, now)
			moved = moved || c.Rekey
		}
	}
	if moved { // the old key no longer verifies any entry
		e.verify()
	}
}

// verify checks every member against the pins again, after the pins have changed.
func (e *engine) verify() {
	for _, m := range e.list {
		m.verified = e.view.Verified(m.entry)
	}
}

// appendLatest adds r to records and keeps only the latest record of each node, so that a message with a history of one node counts as its last
// record.
func appendLatest(records []*Record, r *Record) []*Record {
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

// applyChange applies a changed entry.
func (e *engine) applyChange(c Change, from string, now time.Time) {
	id, cluster, at := c.Record.Node, c.Entry.ClusterID, e.clock(now)
	m := e.members[id]
	if m == nil {
		m = e.newMember()
		*m = member{pulse: newPulse(at), id: id, state: Unknown, peer: e.peer(id, now)}
		e.members[id] = m
		e.list, e.shuffled = append(e.list, m), append(e.shuffled, m)
		e.report(Event{Kind: EventJoin, Node: id, Cluster: cluster}, now)
	}
	if m.order.Generation != c.Entry.Generation {
		contact, seen := m.contact, m.seen
		m.pulse = newPulse(at)
		m.contact, m.seen, m.state = contact, seen, Unknown
	}
	if m.order != c.Entry.Order {
		e.learnedAt++
		m.learned = e.learnedAt
	}
	m.entry, m.order, m.firstHand, m.verified = c.Entry, c.Entry.Order, c.Entry.FirstHand, e.view.Verified(c.Entry)
	if c.Entry.Status == Left && m.state != Gone {
		m.state, m.died = Gone, at
		e.report(Event{Kind: EventLeave, Node: id, Cluster: cluster}, now)
	}
	if c.Returned != nil {
		m.returned = c.Returned
	}
	for _, h := range c.Lost {
		e.report(Event{Kind: EventRolledBack, Node: id, Cluster: cluster, Detail: "its audit log no longer has the line " + h.String()}, now)
	}
	e.unsaved = e.unsaved || c.Pinned || c.Rekey || c.Proxy
	if c.Pinned || c.Rekey {
		kind := EventPin
		if c.Rekey {
			kind = EventRekey
		}
		e.report(Event{Kind: kind, Node: id, Cluster: cluster, Detail: c.Entry.Key.String()}, now)
	}
	if c.Entry.Conflict && (c.Was == nil || !c.Was.Conflict) {
		e.reject(from, c.Reason, now)
		e.report(Event{Kind: EventConflict, Node: id, Cluster: cluster, Detail: c.Detail}, now)
	}
}

// recordHeartbeat takes in the heartbeat that a message claims for m.
func (e *engine) recordHeartbeat(m *member, c Claim, firstHand bool, d detector, at time.Duration) {
	if c.Generation != m.order.Generation || m.state == Gone {
		return
	}
	if !d.recordClaim(&m.pulse, c.Heartbeat, firstHand, at) {
		e.stats.Rejected[Heartbeat]++ // not counted against from: an honest peer may relay a false number
	}
	if m.proven && !m.dead && (m.state == Unknown || m.state == Dead) && !e.isolated {
		m.state = Alive
	}
}

// recordContact records that an exchange with a peer succeeded.
func (e *engine) recordContact(from string, now time.Time) {
	at := e.clock(now)
	if silence := at - e.succeeded; e.isIsolated(at) { // the silence was this node's own, so it counts against no member
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

// isIsolated reports whether no peer has been heard for so long that this node suspects its own connection first.
func (e *engine) isIsolated(at time.Duration) bool {
	return at-e.succeeded > max(silent, 6*e.set.Interval) && e.hasSeveral(at)
}

// hasSeveral reports whether at least two other members should be heard. With only one, its silence is more likely than a failure of this
// node. Members that have left do not count. Members that have been dead, or out of our tailnet, for long do not count either: otherwise
// two members that went at one time would make this node distrust itself permanently.
func (e *engine) hasSeveral(at time.Duration) bool {
	n := 0
	for _, m := range e.list {
		if m.state == Gone || m.state == Dead && at-m.died > doubtTime || e.isAbsent(m, at) {
			continue
		}
		if n++; n == 2 {
			return true
		}
	}
	return false
}

// isAbsent reports whether m's node has been missing from our tailnet for long. Only nodes that were met have a time of absence. A netmap may
// be empty for a moment.
func (e *engine) isAbsent(m *member, at time.Duration) bool {
	since, ok := e.view.absent.Get(m.id)
	return ok && e.began.Add(at).Sub(since) > doubtTime
}

// updateStates updates the state of every member, once per round.
func (e *engine) updateStates(now time.Time) {
	at := e.clock(now)
	if at-e.ticked > e.set.Interval+e.set.Interval/10+late { // this process slept: the silence was its own
		for _, m := range e.list {
			m.restart(at)
		}
		e.succeeded = at
		e.stats.Late++
	}
	e.ticked = at
	e.isolated = (e.isolated || at-e.succeeded > max(lonely, 16*e.set.Interval)) && e.hasSeveral(at)
	d, quiet := e.detector(), e.isIsolated(at)
	var forget []string
	for _, m := range e.list {
		switch was := m.state; {
		case was == Gone, quiet && !e.isolated: // keep the state
		case e.isolated:
			if !m.dead {
				m.state = Unknown
			}
		default:
			m.state = d.state(&m.pulse, at, func() bool { return e.isUnresponsive(m, now) })
			if m.state == Dead && was != Dead {
				m.died = at
				e.report(Event{Kind: EventDeath, Node: m.id, Cluster: m.entry.ClusterID}, now)
			}
		}
		if m.gone() && at-m.died > e.set.ForgetAfter {
			forget = append(forget, m.id)
		}
	}
	if len(forget) > 0 || at-e.swept >= sweepTime {
		e.view = Forget(e.view, forget, now)
		e.dropMembers(forget)
	}
	if at-e.swept >= sweepTime {
		e.swept = at
		e.prunePins(now)
		e.reportCounts()
		e.forgetPeers(now)
	}
}

// isUnresponsive reports whether m has not responded to a direct request since it was last heard, or cannot be queried. Only then is m dead.
// Heartbeats that others relay may be false, and an overstated heartbeat looks like silence when the liar stops.
func (e *engine) isUnresponsive(m *member, now time.Time) bool {
	if _, there := e.netmap.Find(m.id); !there || m.peer.banned.isActive(now) || m.peer.unresponsive.isActive(now) {
		return true
	}
	return e.clock(m.peer.requestedAt) > max(m.last, m.contact) && now.Sub(m.peer.requestedAt) >= 2*e.set.Interval
}

// prunePins forgets the pins of nodes that have been missing from our tailnet for long.
func (e *engine) prunePins(now time.Time) {
	next, dropped := Prune(e.view, e.netmap, now)
	e.unsaved = e.unsaved || next.pinned != e.view.pinned || next.absent.Len() != e.view.absent.Len()
	for _, node := range dropped {
		cluster, _ := e.view.nodes.Get(node)
		e.report(Event{Kind: EventUnpin, Node: node, Cluster: cluster, Detail: "the node has been missing from the tailnet for a long time"}, now)
	}
	if e.view = next; len(dropped) > 0 {
		e.verify()
	}
}

func (m *member) gone() bool { return m.state == Dead || m.state == Gone }

func (e *engine) newMember() *member {
	if len(e.freeMembers) == 0 {
		made := make([]member, together)
		for i := range made {
			e.freeMembers = append(e.freeMembers, &made[len(made)-1-i])
		}
	}
	last := len(e.freeMembers) - 1
	m := e.freeMembers[last]
	e.freeMembers = e.freeMembers[:last]
	return m
}

func (e *engine) dropMembers(ids []string) {
	if len(ids) == 0 {
		return
	}
	for _, id := range ids {
		e.freeMembers = append(e.freeMembers, e.members[id])
		delete(e.members, id)
	}
	gone := func(m *member) bool { return e.members[m.id] != m }
	e.list, e.shuffled = slices.DeleteFunc(e.list, gone), slices.DeleteFunc(e.shuffled, gone)
	for _, m := range e.freeMembers[len(e.freeMembers)-len(ids):] {
		*m = member{}
	}
}

// isListed reports whether m is in digests. A member that has been dead for long is not, so all nodes forget it at about the same time.
func (e *engine) isListed(m *member, at time.Duration) bool {
	return !m.gone() || at-m.died <= e.set.ForgetAfter/2
}

func (e *engine) reject(from string, why Reason, now time.Time) {
	e.stats.Rejected[why]++
	e.peer(from, now).refused++
}

// errNotStarted is the response while this server has no record of its own.
func errNotStarted() error {
	return problem.New(problem.Unavailable, "Gossip has not started on this server yet.", "Try again in a moment.").WithRetryAfter(time.Second)
}

// errOtherNetwork is the response to a member of another gossip network.
func errOtherNetwork(network string) error {
	return problem.New(problem.BadRequest, "This server belongs to the gossip network "+network+", but the message belongs to another one.", "Set gossip.network to the same name on both servers.")
}
