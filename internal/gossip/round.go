package gossip

import (
	"slices"
	"time"

	"github.com/tailplane/tailplane/internal/problem"
)

// A call is a request to be sent to a peer.
type call struct {
	to   Peer
	body []byte
}

// tick begins a round and returns the requests to send.
func (e *engine) tick(netmap *Netmap, now time.Time) []call {
	e.netmap = netmap
	elapsed := e.clock(now) - e.ticked
	e.heartbeat++
	e.updateStates(now)
	if e.own == nil {
		return nil
	}
	e.dials = min(e.dials+dialsPerSec*elapsed.Seconds(), dialsPerSec)
	var calls []call
	for _, p := range e.pickPeers(now) {
		calls = append(calls, call{p, e.request(p.ID, now)})
	}
	e.stats.Rounds++
	return calls
}

// A selection is the set of peers that one round queries, and the members from which it selects. The engine reuses its buffers.
type selection struct {
	picked          []Peer
	live            []*member
	dead            []*member
	unmet           []*member // members that have not sent their record themselves and match no pin
	suspect         []*member
	unasked         []*member // silent members without a request since they were last heard
	longest, latest *member   // with the longest and the latest contact, among those that may be queried
}

// pick adds the peer with that id to the selection, if the engine may query it.
func (e *engine) pick(s *selection, id string, now time.Time) bool {
	p, ok := e.netmap.Find(id)
	if !ok || id == e.self || !e.canQuery(e.peer(id, now), now) {
		return false
	}
	to := e.peers[id]
	to.busy++
	to.queriedAt = now
	if m := e.members[id]; m != nil && e.clock(to.requestedAt) <= max(m.last, m.contact) {
		to.requestedAt = now
	}
	s.picked = append(s.picked, p)
	return true
}

// candidates returns the selection before its first pick.
func (e *engine) candidates(now time.Time) *selection {
	s, at, d := &e.selection, e.clock(now), e.detector()
	*s = selection{live: s.live[:0], dead: s.dead[:0], unmet: s.unmet[:0]}
	for _, m := range e.list {
		if m.gone() {
			if m.state == Dead {
				s.dead = append(s.dead, m)
			}
			continue
		}
		s.live = append(s.live, m)
		if !m.verified && !m.firstHand {
			s.unmet = append(s.unmet, m)
		}
		older, newer := s.longest == nil || m.contact < s.longest.contact, s.latest == nil || m.contact > s.latest.contact
		silent := d.maybeDying(&m.pulse, at)
		if !older && !newer && m.state != Suspect && !silent || !e.canQuery(m.peer, now) {
			continue
		}
		if older {
			s.longest = m
		}
		if newer {
			s.latest = m
		}
		if m.state == Suspect {
			s.suspect = append(s.suspect, m)
		}
		if silent && e.clock(m.peer.requestedAt) <= max(m.last, m.contact) {
			s.unasked = append(s.unasked, m)
		}
	}
	return s
}

// unknownRounds is how often a round also queries a node of our tailnet that has no record here.
const unknownRounds = 10

// pickPeers selects the peers to query in this round.
func (e *engine) pickPeers(now time.Time) []Peer {
	s, fanout := e.candidates(now), e.set.Fanout
	pick := func(id string) bool { return e.pick(s, id, now) }
	// At least one pick is always random.
	some := func(of []*member) *member { return of[e.rng.IntN(len(of))] }
	if e.isolated && s.latest != nil {
		pick(s.latest.id)
	} else if s.longest != nil && (fanout > 1 || e.heartbeat%2 == 0) {
		pick(s.longest.id)
	}
	if len(s.suspect) > 0 && len(s.picked)+1 < fanout { // query a suspect directly before it can be declared dead
		pick(some(s.suspect).id)
	}
	for tries := 0; len(s.unmet) > 0 && len(s.picked)+1 < fanout && e.dials >= 1 && tries < fanout; tries++ {
		if pick(some(s.unmet).id) {
			e.dials--
			break
		}
	}
	for tries := 0; len(s.picked) < fanout && len(s.picked) < len(s.live) && tries < 4*fanout; tries++ {
		pick(some(s.live).id)
	}
	for range min(fanout, len(s.unasked)) { // many may fall silent at once
		pick(some(s.unasked).id)
	}
	// From time to time, query a dead member or a node of our tailnet that was never heard. So partitions of any length heal.
	unknown := max(e.netmap.Len()-len(e.list)-1, 0)
	if lost := len(s.dead) + unknown; e.rng.Float64()*float64(len(s.live)+1) < float64(lost) {
		if e.rng.IntN(lost) < len(s.dead) {
			pick(some(s.dead).id)
		} else {
			e.pickUnknownPeer(pick)
		}
	}
	if e.heartbeat%unknownRounds == 0 { // two halves with enough live members each would hardly meet
		e.pickUnknownPeer(pick)
	}
	for tries := 0; len(s.live) < fanout && len(s.picked) < fanout && tries < fanout; tries++ {
		e.pickUnknownPeer(pick)
	}
	return s.picked
}

// pickUnknownPeer picks a node that has no record here, seeds first.
func (e *engine) pickUnknownPeer(pick func(string) bool) {
	if e.netmap.Len() == 0 {
		return
	}
	for _, name := range e.set.Seeds {
		for _, p := range e.netmap.peers {
			if p.Name == name && e.members[p.ID] == nil && pick(p.ID) {
				return
			}
		}
	}
	first := e.rng.IntN(e.netmap.Len())
	for i := range e.netmap.peers {
		p := e.netmap.peers[(first+i)%e.netmap.Len()]
		if e.members[p.ID] == nil && pick(p.ID) {
			return
		}
	}
}

// claimTo returns what this node claims about m to a peer. About the peer itself it claims to have no record while that record did not come
// from the peer.
func (m *member) claimTo(to string) Claim {
	if m.id == to && !m.firstHand {
		return Claim{Node: m.id}
	}
	return Claim{Node: m.id, Order: m.order, Heartbeat: m.beat}
}

func (e *engine) claimOwn() Claim {
	return Claim{Node: e.self, Order: e.own.Order, Heartbeat: e.heartbeat}
}

// request is the first part of an exchange. It carries our own claim, and claims about the other members or a random sample of them. A peer
// that this node has not met does not know this node either, so the first request to it carries our record at once. Later requests do not,
// so idle rounds carry digests only.
func (e *engine) request(to string, now time.Time) []byte {
	digest := append(e.reported[:0], e.claimOwn())
	m := e.members[to]
	met := m != nil && m.firstHand
	if !met { // so that the peer sends its record and is verified
		claim := Claim{Node: to}
		if t, ok := e.view.tombs.Get(to); ok && !t.Hearsay { // a record of that generation would be refused
			claim.Order = Order{t.Generation, maxVersion}
		}
		digest = append(digest, claim)
	}
	at := e.clock(now)
	for i := range e.shuffled { // a partial shuffle
		if len(digest) == maxDigest {
			break
		}
		j := i + e.rng.IntN(len(e.shuffled)-i)
		e.shuffled[i], e.shuffled[j] = e.shuffled[j], e.shuffled[i]
		if m := e.shuffled[i]; e.isListed(m, at) && (m.id != to || m.firstHand) {
			digest = append(digest, m.claimTo(to))
		}
	}
	if len(digest) < maxDigest {
		for node, r := range e.view.refused.All() { // so that the peer does not send it again
			if len(digest) < maxDigest && e.members[node] == nil && node != to {
				digest = append(digest, Claim{Node: node, Order: r.Order})
			}
		}
	}
	e.reported = digest
	out := message{Digest: digest}
	if p := e.peer(to, now); !met && !p.introduced {
		p.introduced = true
		out.Records = e.delta(out, nil, true)
		return e.encodeMessage(out, kindDelta)
	}
	return e.encodeMessage(out, kindDigest)
}

// handleRequest processes a request and returns the response. The error is a problem. from is the caller as WhoIs identified it.
func (e *engine) handleRequest(from string, body []byte, now time.Time) ([]byte, error) {
	p := e.peer(from, now)
	if e.own == nil {
		return nil, errNotStarted()
	}
	if wait := p.admit(now); wait > 0 {
		e.reject(from, Rate, now)
		return nil, problem.New(problem.RateLimited, "The caller has sent too many requests.", "Wait.").WithRetryAfter(max(wait, time.Second))
	}
	m, err := e.decodeMessage(from, body, now)
	if err != nil {
		return nil, err
	}
	if from == e.self {
		return nil, problem.New(problem.BadRequest, "A server cannot gossip with itself.", "Send the message to another member.")
	}
	if !m.digest && len(m.Records) == 0 {
		e.reject(from, Malformed, now)
		e.backOff(from, now)
		return nil, problem.New(problem.BadRequest, "The message has no digest and no records.", "The API reference lists the fields.")
	}
	p.unresponsive = backoff{}
	e.recordContact(from, now)
	e.mergeRecords(from, m, now)
	if !m.digest {
		e.recordContact(from, now) // the record may have made it a member
		return e.encodeMessage(message{}, kindEmpty), nil
	}
	return e.respond(from, m.Digest, now), nil
}

// respond is the second part of an exchange. It carries the claims that are newer here or that this node wants, and the records that the
// caller lacks.
func (e *engine) respond(from string, digest []Claim, now time.Time) []byte {
	e.mark++
	reply := append(e.reported[:0], e.claimOwn())
	var out message
	var lacks []*member
	ownLacks := len(digest) < maxDigest // the caller listed all that it has
	asker, d, at := e.members[from], e.detector(), e.clock(now)
	for _, c := range digest {
		m := c.member
		if m == nil {
			if c.Node == e.self {
				ownLacks = c.Order.Compare(e.own.Order) < 0
				continue
			}
			m = e.members[c.Node] // a record in the same message created the member
		}
		if m == nil {
			if e.wants(c, c.Node == from) {
				reply = append(reply, Claim{Node: c.Node})
			} else if c.Node == from {
				out.Records = e.buried(c, now)
			}
			continue
		}
		m.mark = e.mark
		e.recordHeartbeat(m, c, m == asker, d, at)
		own := m.order
		if m == asker && !m.firstHand {
			own = Order{}
		}
		switch order := own.Compare(c.Order); {
		case order > 0:
			lacks = append(lacks, m)
			reply = append(reply, m.claimTo(from))
		case order < 0, m.beat > c.Heartbeat && m != asker:
			reply = append(reply, m.claimTo(from))
		}
	}
	if len(digest) < maxDigest {
		for _, m := range e.list {
			if m.mark == e.mark || m == asker || !e.isListed(m, at) {
				continue
			}
			lacks = append(lacks, m)
			if len(reply) < maxDigest {
				reply = append(reply, m.claimTo(from))
			}
		}
	} else if len(reply) > maxDigest {
		reply = reply[:maxDigest]
	}
	e.reported = reply
	kind := kindDigest
	out.Digest = reply
	out.Records = e.members[from].owed(out.Records)
	if out.Records = e.delta(out, lacks, ownLacks); len(out.Records) > 0 {
		kind = kindDelta
	}
	return e.encodeMessage(out, kind)
}

// wants reports whether this node wants the record of an unknown node that a claim mentions.
func (e *engine) wants(c Claim, firstHand bool) bool {
	if c.Generation == 0 || len(e.list) >= e.set.MaxMembers {
		return false
	}
	if _, ok := e.netmap.Find(c.Node); !ok {
		return false
	}
	if t, ok := e.view.tombs.Get(c.Node); ok && t.rejects(c.Generation, firstHand) {
		return false
	}
	r, refused := e.view.refused.Get(c.Node)
	return !refused || r.Order.Compare(c.Order) < 0
}

// buried returns the record of a peer that this node has forgotten, if that keeps out the peer's current record. The peer can then raise its
// generation. A number alone would not do: the peer cannot know that it is not invented.
func (e *engine) buried(c Claim, now time.Time) []Signed {
	t, ok := e.view.tombs.Get(c.Node)
	if !ok || !t.rejects(c.Generation, true) || len(e.list) >= e.set.MaxMembers {
		return nil
	}
	_, there := e.netmap.Find(c.Node)
	p := e.peer(c.Node, now)
	if !there || now.Sub(p.returned) < returnEvery {
		return nil
	}
	p.returned = now
	return []Signed{t.Record}
}

// delta returns the records of m and those of this node (if own) and of members that fit into m, those known longest first. The rest follows
// in later rounds.
func (e *engine) delta(m message, members []*member, own bool) []Signed {
	room := e.set.MaxMessageBytes - m.overhead()
	out := m.Records
	for _, s := range out {
		room -= sealedSize(s)
	}
	add := func(s Signed) bool {
		if size := sealedSize(s); size <= room {
			room -= size
			out = append(out, s)
		}
		return room > 0
	}
	if own {
		add(e.own.Signed)
	}
	slices.SortFunc(members, func(a, b *member) int { return int(int64(a.learned) - int64(b.learned)) })
	for _, m := range members {
		if !m.entry.Conflict && !add(m.entry.Signed) { // each node fetches conflicting records from the member itself
			break
		}
	}
	return out
}

// handleResponse processes the response to a request. It returns the third part of the exchange, the records that the peer lacks, or nil.
func (e *engine) handleResponse(from string, body []byte, now time.Time) []byte {
	p := e.peer(from, now)
	m, err := e.decodeMessage(from, body, now)
	if err != nil {
		e.endExchange(from, err, now)
		return nil
	}
	p.unresponsive = backoff{}
	e.recordContact(from, now)
	before := e.own
	e.mergeRecords(from, m, now)
	e.recordContact(from, now)
	var out message
	var lacks []*member
	own := e.own != before // the peer had forgotten this node
	queried, d, at := e.members[from], e.detector(), e.clock(now)
	for _, c := range m.Digest {
		m := c.member
		if m == nil {
			if c.Node == e.self {
				own = own || c.Order.Compare(e.own.Order) < 0
				continue
			}
			if m = e.members[c.Node]; m == nil { // a record in the same message created it, or was rejected
				if c.Node == from {
					out.Records = e.buried(c, now)
				}
				continue
			}
		}
		e.recordHeartbeat(m, c, m == queried, d, at)
		if m != queried && m.order.Compare(c.Order) > 0 {
			lacks = append(lacks, m)
		}
	}
	out.Records = e.members[from].owed(out.Records)
	if out.Records = e.delta(out, lacks, own); len(out.Records) == 0 {
		p.busy--
		return nil
	}
	return e.encodeMessage(out, kindDelta)
}

// endExchange ends an exchange, which failed with err if err is not nil.
func (e *engine) endExchange(to string, err error, now time.Time) {
	p := e.peer(to, now)
	p.busy--
	if err == nil {
		return
	}
	if e.stats.Failed++; e.members[to] == nil { // a node with our tag need not be a server
		p.unresponsive.begin(now, longestAway)
	}
}

// decodeMessage decodes a message. It backs off from the sender of a malformed message.
func (e *engine) decodeMessage(from string, body []byte, now time.Time) (message, error) {
	e.stats.MessagesIn++
	e.stats.BytesIn += uint64(len(body))
	m, err := decode(body, e.set.Network, e.lastHeard, e.findMember)
	if cap(m.Digest) > 0 {
		e.lastHeard = m.Digest[:0] // the buffer is free again before the next message
	}
	switch {
	case err == errNetwork:
		e.reject(from, Network, now)
		return m, errOtherNetwork(e.set.Network)
	case err != nil:
		e.reject(from, Malformed, now)
		e.backOff(from, now)
		return m, problem.New(problem.BadRequest, "The message is malformed: "+err.Error()+".", "This server supports version 1 of the gossip protocol.")
	}
	return m, nil
}

func (e *engine) findMember(id []byte) *member { return e.members[string(id)] }

// encodeMessage encodes and counts a message.
func (e *engine) encodeMessage(m message, kind string) []byte {
	m.Network = e.set.Network
	b := m.encode()
	e.stats.Messages[kind]++
	e.stats.BytesOut += uint64(len(b))
	return b
}
