package gossip

import (
	"slices"
	"time"
)

// A peer is what the engine records about a node at the other end of a connection, independent of that node's records.
type peer struct {
	busy         int          // exchanges that this node began and that are under way
	queriedAt    time.Time    // when the last one began
	requestedAt  time.Time    // when the first one began since the member was last heard in any way
	tokens       float64      // requests that it may make now
	filled       time.Time    // when tokens were last updated
	banned       backoff      // it sent garbage: no traffic in either direction until then
	unresponsive backoff      // it was unreachable: not queried until then
	introduced   bool         // a request already carried our record to it
	returned     time.Time    // when it last got its buried record back
	refused      uint64       // rejected items since the last report
	limits       []eventLimit // one for each kind of event that occurred
}

// ConnectionsPerPeer is how many connections, and so exchanges, one peer may have.
const ConnectionsPerPeer = 4

// Limits of one peer.
const (
	requestsPerSec = 20
	requestsBurst  = 40
	firstBackoff   = time.Second
	longestBackoff = 5 * time.Minute
	longestAway    = 30 * time.Second // partitions must heal within a minute
	returnEvery    = 3 * time.Second
	forgiven       = 4 // a pause stops counting once it has been over for this many times its length
	maxPeers       = 4096
)

// peer returns the record of a node and creates it if needed. Callers must pass only nodes that WhoIs identified or that are in our netmap.
func (e *engine) peer(id string, now time.Time) *peer {
	p := e.peers[id]
	if p == nil {
		if len(e.peers) >= maxPeers {
			e.forgetPeers(now)
		}
		p = &peer{tokens: requestsBurst, filled: now}
		e.peers[id] = p
	}
	return p
}

// forgetPeers drops the peers that have no state worth keeping.
func (e *engine) forgetPeers(now time.Time) {
	for id, p := range e.peers {
		if _, there := e.netmap.Find(id); !there && p.busy == 0 && p.refused == 0 && !p.banned.isActive(now) && e.members[id] == nil {
			delete(e.peers, id)
		}
	}
}

// canQuery reports whether the engine may query the peer. It may query a peer again that has not responded for two rounds. Otherwise, with few
// members, one lost message would block a path for as long as it takes to declare a member dead.
func (e *engine) canQuery(p *peer, now time.Time) bool {
	waits := p.busy > 0 && (now.Sub(p.queriedAt) < 2*e.set.Interval || p.busy == ConnectionsPerPeer)
	return !waits && !p.banned.isActive(now) && !p.unresponsive.isActive(now)
}

// admit takes a token for a request of the peer. It returns how long the peer must wait when there is no token or while the peer is backed
// off.
func (p *peer) admit(now time.Time) time.Duration {
	if wait := p.banned.until.Sub(now); wait > 0 {
		return wait
	}
	p.tokens = min(requestsBurst, p.tokens+requestsPerSec*max(now.Sub(p.filled), 0).Seconds())
	p.filled = now
	if p.tokens < 1 {
		return time.Second / requestsPerSec
	}
	p.tokens--
	return 0
}

// A backoff is one of a series of backoffs, each twice as long as the one before.
type backoff struct {
	length time.Duration
	until  time.Time
}

// begin starts a pause. It starts a new series when the last pause has been over for long. One good message does not end a series, because
// a peer could alternate good messages and garbage.
func (p *backoff) begin(now time.Time, longest time.Duration) {
	if now.Sub(p.until) > forgiven*p.length {
		p.length = 0
	}
	p.length = min(max(2*p.length, firstBackoff), longest)
	p.until = now.Add(p.length)
}

func (p *backoff) isActive(now time.Time) bool { return now.Before(p.until) }

// backOff backs off from a peer that sent something that no Tailplane server sends.
func (e *engine) backOff(from string, now time.Time) {
	e.peer(from, now).banned.begin(now, longestBackoff)
}

// An eventLimit limits how often the engine reports one kind of event for one member.
type eventLimit struct {
	kind       EventKind
	left       float64 // how many it may report now
	filled     time.Time
	suppressed uint64 // events since then that were not reported individually
	last       *Event // the last of these
}

// Limits for the events of one member and kind. Nothing that a member does, or that others claim about it, may fill the audit log. The
// engine reports the remaining events as a count.
const (
	eventsBurst = 20
	eventsEach  = time.Minute // time until one more event is allowed
)

// report reports ev, individually or in a count.
func (e *engine) report(ev Event, now time.Time) {
	p := e.peer(ev.Node, now)
	i := slices.IndexFunc(p.limits, func(t eventLimit) bool { return t.kind == ev.Kind })
	if i < 0 {
		i = len(p.limits)
		p.limits = append(p.limits, eventLimit{kind: ev.Kind, left: eventsBurst, filled: now})
	}
	t := &p.limits[i]
	t.left = min(eventsBurst, t.left+float64(max(now.Sub(t.filled), 0))/float64(eventsEach))
	t.filled = now
	if t.left < 1 {
		last := ev // copied here, so events reported at once need no allocation
		t.last = &last
		t.suppressed++
		return
	}
	t.left--
	e.events = append(e.events, ev)
}

// reportCounts reports counts of the events that were not reported individually, and of rejected items by peer.
func (e *engine) reportCounts() {
	var ids []string
	for id, p := range e.peers {
		if p.refused > 0 || slices.ContainsFunc(p.limits, func(t eventLimit) bool { return t.suppressed > 0 }) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids) // so that one seed always gives the same trace
	for _, id := range ids {
		p := e.peers[id]
		for i := range p.limits {
			if t := &p.limits[i]; t.suppressed > 0 {
				t.last.Count = t.suppressed
				e.events = append(e.events, *t.last)
				t.suppressed, t.last = 0, nil
			}
		}
		if p.refused > 0 {
			e.events = append(e.events, Event{Kind: EventRefused, Node: id, Count: p.refused})
			p.refused = 0
		}
	}
}
