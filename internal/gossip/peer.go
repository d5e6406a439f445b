package gossip

import "time"

// A peer is what we remember of the other end of a connection, whatever it says.
type peer struct {
	busy    int       // exchanges that we began and that are under way
	asked   time.Time // when the last one began
	tokens  float64   // requests that it may make now
	filled  time.Time // when tokens were counted last
	backoff time.Duration
	banned  time.Time // it sent garbage: nothing either way until then
	retry   time.Time // it could not be reached: not asked until then
	refused uint64    // what it sent and did not count, since it was told last
}

// Limits of one peer.
const (
	requestsPerSec = 20
	requestsBurst  = 40
	firstBackoff   = time.Second
	longestBackoff = 5 * time.Minute
	maxPeers       = 4096
)

// peer returns what is remembered of a node. Only nodes that WhoIs named, or
// that are in our netmap, come here.
func (e *engine) peer(id string, now time.Time) *peer {
	p := e.peers[id]
	if p == nil {
		if len(e.peers) >= maxPeers {
			e.sweep(now)
		}
		p = &peer{tokens: requestsBurst, filled: now}
		e.peers[id] = p
	}
	return p
}

// sweep forgets the peers of whom there is nothing to remember, and tells of
// those whose messages did not count.
func (e *engine) sweep(now time.Time) {
	for id, p := range e.peers {
		if p.refused > 0 {
			e.tell(Event{Kind: EventRefused, Node: id, Count: p.refused})
			p.refused = 0
		}
		if _, there := e.netmap.Find(id); !there && p.busy == 0 && p.banned.Before(now) && e.members[id] == nil {
			delete(e.peers, id)
		}
	}
}

// free reports whether the peer may be asked. One that has not answered for two
// rounds may be asked again: else, with few members, one lost message would
// silence a path for as long as it takes to call somebody dead.
func (e *engine) free(p *peer, now time.Time) bool {
	waits := p.busy > 0 && (now.Sub(p.asked) < 2*e.set.Interval || p.busy == connectionsPerPeer)
	return !waits && !now.Before(p.banned) && !now.Before(p.retry)
}

// admit takes a token for a request of the peer; it returns how long to wait
// when there is none, or while the peer is backed off.
func (p *peer) admit(now time.Time) time.Duration {
	if wait := p.banned.Sub(now); wait > 0 {
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

// retreat returns the end of a pause that is twice as long each time.
func (p *peer) retreat(now time.Time, longest time.Duration) time.Time {
	p.backoff = min(max(2*p.backoff, firstBackoff), longest)
	return now.Add(p.backoff)
}

// good ends the series that retreat counts.
func (p *peer) good() { p.backoff, p.retry = 0, time.Time{} }

// garbage backs off from a peer that sent what no server of ours sends.
func (e *engine) garbage(from string, now time.Time) {
	p := e.peer(from, now)
	p.banned = p.retreat(now, longestBackoff)
}
