package gossip

import (
	"slices"
	"time"
)

// A peer is what we remember of the other end of a connection, whatever it says.
type peer struct {
	busy       int       // exchanges that we began and that are under way
	asked      time.Time // when the last one began
	knocked    time.Time // when the first one began since the member was heard, in whatever way
	tokens     float64   // requests that it may make now
	filled     time.Time // when tokens were counted last
	banned     pause     // it sent garbage: nothing either way until then
	away       pause     // it could not be reached: not asked until then
	introduced bool      // our record was sent to it with a request
	refused    uint64    // what it sent and did not count, since it was told last
	told       []told    // one for each kind of event that there was
}

// ConnectionsPerPeer is how many connections, and so exchanges, one peer may have.
const ConnectionsPerPeer = 4

// Limits of one peer.
const (
	requestsPerSec = 20
	requestsBurst  = 40
	firstBackoff   = time.Second
	longestBackoff = 5 * time.Minute
	longestAway    = time.Minute
	forgiven       = 4 // times its length a pause must have been over to count no more
	maxPeers       = 4096
)

// peer returns what is remembered of a node. Only nodes that WhoIs named, or
// that are in our netmap, come here.
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

// forgetPeers drops the peers of whom there is nothing to remember.
func (e *engine) forgetPeers(now time.Time) {
	for id, p := range e.peers {
		if _, there := e.netmap.Find(id); !there && p.busy == 0 && p.refused == 0 && !p.banned.holds(now) && e.members[id] == nil {
			delete(e.peers, id)
		}
	}
}

// free reports whether the peer may be asked. One that has not answered for two
// rounds may be asked again: else, with few members, one lost message would
// silence a path for as long as it takes to call somebody dead.
func (e *engine) free(p *peer, now time.Time) bool {
	waits := p.busy > 0 && (now.Sub(p.asked) < 2*e.set.Interval || p.busy == ConnectionsPerPeer)
	return !waits && !p.banned.holds(now) && !p.away.holds(now)
}

// admit takes a token for a request of the peer; it returns how long to wait
// when there is none, or while the peer is backed off.
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

// A pause is one of a series, each twice as long as the one before.
type pause struct {
	length time.Duration
	until  time.Time
}

// begin starts a pause, or begins the series anew when the last one has been over
// for long. One good message ends no series: every other one could be garbage.
func (p *pause) begin(now time.Time, longest time.Duration) {
	if now.Sub(p.until) > forgiven*p.length {
		p.length = 0
	}
	p.length = min(max(2*p.length, firstBackoff), longest)
	p.until = now.Add(p.length)
}

func (p *pause) holds(now time.Time) bool { return now.Before(p.until) }

// garbage backs off from a peer that sent what no server of ours sends.
func (e *engine) garbage(from string, now time.Time) {
	e.peer(from, now).banned.begin(now, longestBackoff)
}

// A told is how often one kind of event was told of one member.
type told struct {
	kind   EventKind
	left   float64 // how many may be told now
	filled time.Time
	more   uint64 // events since that were not told one by one
	last   *Event // of these
}

// What may be told of one member, of each kind: whatever it does, and whatever
// others say of it, must not fill the record. The rest is told as a number.
const (
	eventsBurst = 20
	eventsEach  = time.Minute // one more
)

// tell has ev recorded, on its own or in a sum.
func (e *engine) tell(ev Event, now time.Time) {
	p := e.peer(ev.Node, now)
	i := slices.IndexFunc(p.told, func(t told) bool { return t.kind == ev.Kind })
	if i < 0 {
		i = len(p.told)
		p.told = append(p.told, told{kind: ev.Kind, left: eventsBurst, filled: now})
	}
	t := &p.told[i]
	t.left = min(eventsBurst, t.left+float64(max(now.Sub(t.filled), 0))/float64(eventsEach))
	t.filled = now
	if t.left < 1 {
		last := ev // what is told at once need not be kept
		t.last = &last
		t.more++
		return
	}
	t.left--
	e.events = append(e.events, ev)
}

// sum tells what was not told one by one: events, and what peers sent and did not count.
func (e *engine) sum() {
	var ids []string
	for id, p := range e.peers {
		if p.refused > 0 || slices.ContainsFunc(p.told, func(t told) bool { return t.more > 0 }) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids) // so that a seed gives one trace
	for _, id := range ids {
		p := e.peers[id]
		for i := range p.told {
			if t := &p.told[i]; t.more > 0 {
				t.last.Count = t.more
				e.events = append(e.events, *t.last)
				t.more, t.last = 0, nil
			}
		}
		if p.refused > 0 {
			e.events = append(e.events, Event{Kind: EventRefused, Node: id, Count: p.refused})
			p.refused = 0
		}
	}
}
