package gossip

import "time"

// A State is how sure we are that a member is there.
//
//	unknown -- heard of itself, or a second heartbeat --> alive
//	alive <-- a higher heartbeat -- suspect -- silence --> dead
//	dead  -- a higher heartbeat --> alive          any -- its own record says so --> left
type State string

// The states.
const (
	Alive   State = "alive"
	Suspect State = "suspect"
	Dead    State = "dead"
	Gone    State = "left"
	Unknown State = "unknown"
)

// States returns every state, the best one first.
func States() []State { return []State{Alive, Suspect, Unknown, Dead, Gone} }

// A detector says who is alive, from the heartbeats that we see: phi accrual,
// each node for itself. Nobody is dead on another's word.
type detector struct {
	interval time.Duration
	members  int // how many there are; digests of more than maxDigest are sampled
}

const (
	maxSamples   = 1000
	priorSamples = 5
	longestGap   = 10 * time.Second // a longer one says nothing about the next
	hearsayLife  = time.Minute
)

// limits returns the phi above which a member is suspect, and dead. Sampled
// digests bring heartbeats less evenly.
func (d detector) limits() (suspect, dead float64) {
	if d.members > maxDigest {
		return 8, 12
	}
	return 6, 10
}

// A pulse is what was heard of one member's heart. Times are those of our own
// monotonic clock, from the start of the engine.
type pulse struct {
	beat    uint64
	last    time.Duration // when it rose last, or when we began to listen
	base    uint64        // what later claims are measured against
	baseAt  time.Duration // when that was claimed
	claimed bool          // there is a base
	proven  bool          // heard of itself, or seen to rise
	dead    bool
	n       int32 // gaps in sum
	sum     time.Duration
	seen    time.Duration // when it gave a sign of life last, for people; negative: never
	contact time.Duration // when the node itself was heard last; negative: never
	since   time.Duration // when we began to listen
}

// listen starts a pulse for a new generation.
func listen(now time.Duration) pulse {
	return pulse{last: now, since: now, contact: never, seen: never}
}

const never = time.Duration(-1)

// claim is a heartbeat that the node itself sent when firstHand, and hearsay
// otherwise. It reports false for hearsay that cannot be, of which only the
// part that can be counts: so nobody can push another's counter so far that the
// true ones look old.
func (d detector) claim(p *pulse, beat uint64, firstHand bool, now time.Duration) (plausible bool) {
	plausible = true
	if firstHand {
		moved := beat != p.beat
		p.beat, p.base, p.baseAt, p.claimed, p.contact = beat, beat, now, true, now
		if !p.dead || moved {
			d.heard(p, moved, now)
			p.proven = true
		}
		return true
	}
	if !p.claimed || !p.proven && beat < p.beat {
		p.beat, p.base, p.baseAt, p.claimed = beat, beat, now, true
		return true
	}
	if limit := p.base + uint64(1.5*float64(now-p.baseAt)/float64(d.interval)) + 10; beat > limit {
		beat, plausible = limit, false
	}
	if beat > p.beat {
		p.beat = beat
		d.heard(p, true, now)
		p.proven = true
	}
	return plausible
}

// heard takes note that the heart beats.
func (d detector) heard(p *pulse, moved bool, now time.Duration) {
	p.seen = now
	if p.dead { // a fresh window
		p.dead, p.sum, p.n = false, 0, 0
		p.last = now
		return
	}
	if !moved { // the node itself, with a number that somebody else was ahead with
		p.last = now
		return
	}
	if gap := now - p.last; gap <= longestGap {
		if p.n == maxSamples { // the oldest are averaged out; a ring would take 8 kB for each member
			p.sum -= p.sum / maxSamples
			p.n--
		}
		p.sum += gap
		p.n++
	}
	p.last = now
}

// phi is how many times the usual gap the present one is.
func (d detector) phi(p *pulse, now time.Duration) float64 {
	mean := (p.sum + priorSamples*d.interval) / time.Duration(p.n+priorSamples)
	return float64(now-p.last) / float64(max(mean, d.interval))
}

// beyond reports whether phi is above limit. Of who was heard lately it is not,
// whatever the usual gap: that is asked of everybody in each round.
func (d detector) beyond(limit float64, p *pulse, now time.Duration) bool {
	return float64(now-p.last) > limit*float64(d.interval) && d.phi(p, now) > limit
}

// state says how p's member is at now, and remembers a death: of one that was
// asked itself, in vain. That is asked of nobody who was heard lately.
func (d detector) state(p *pulse, now time.Duration, inVain func() bool) State {
	suspect, dead := d.limits()
	if !p.proven { // it has not beaten yet, so give it twice the time
		dead *= 2
	}
	switch {
	case p.dead, d.beyond(dead, p, now) && inVain():
		p.dead = true
		return Dead
	case !p.proven:
		return Unknown
	case d.beyond(suspect, p, now), now-max(p.contact, p.since) > d.hearsay():
		return Suspect
	}
	return Alive
}

// silent reports whether p's member may soon be dead.
func (d detector) silent(p *pulse, now time.Duration) bool {
	suspect, _ := d.limits()
	return !p.dead && d.beyond(suspect, p, now)
}

// hearsay is how long a member is alive on the word of others alone. It bounds
// what a liar can do for a dead friend.
func (d detector) hearsay() time.Duration {
	return max(hearsayLife, 5*time.Duration(d.members)*d.interval)
}

// restart begins to listen anew, after a time in which we could not: silence in
// it says nothing about others.
func (p *pulse) restart(now time.Duration) {
	if !p.dead {
		p.last = now
	}
}
