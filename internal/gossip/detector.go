package gossip

import "time"

// A State is what this node believes about a member.
//
//	unknown -- heard directly, or a second heartbeat --> alive
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

// A detector derives each member's state from the heartbeats that this node sees. It is a phi accrual failure detector. Each node decides
// for itself: no other node's opinion makes a member dead.
type detector struct {
	interval time.Duration
	members  int // number of members; digests of more than maxDigest members are sampled
}

const (
	maxSamples   = 1000
	priorSamples = 5
	longestGap   = 10 * time.Second // a longer gap does not predict the next one
	hearsayLife  = time.Minute
)

// limits returns the phi above which a member is suspect and the phi above which it is dead. Sampled digests deliver heartbeats less
// evenly, so their limits are higher.
func (d detector) limits() (suspect, dead float64) {
	if d.members > maxDigest {
		return 8, 12
	}
	return 6, 10
}

// A pulse is the heartbeat history of one member. Times come from this node's monotonic clock and start with the engine.
type pulse struct {
	beat    uint64
	last    time.Duration // when beat last increased, or when this node began to listen
	base    uint64        // baseline for the plausibility of later claims
	baseAt  time.Duration // when a message claimed base
	claimed bool          // base is set
	proven  bool          // heard directly from the member, or seen to increase
	dead    bool
	n       int32 // number of gaps in sum
	sum     time.Duration
	seen    time.Duration // last sign of life, shown to people; negative: never
	contact time.Duration // last message from the member itself; negative: never
	since   time.Duration // when this node began to listen
}

// newPulse starts a pulse for a new generation.
func newPulse(now time.Duration) pulse {
	return pulse{last: now, since: now, contact: never, seen: never}
}

const never = time.Duration(-1)

// recordClaim takes in a heartbeat. The member sent it itself when firstHand; otherwise another member relayed it. claim returns false for a
// relayed heartbeat that is implausibly high, and then counts only the plausible part of it. So no peer can push another member's counter
// so far that the true heartbeats look old.
func (d detector) recordClaim(p *pulse, beat uint64, firstHand bool, now time.Duration) (plausible bool) {
	plausible = true
	if firstHand {
		moved := beat != p.beat
		p.beat, p.base, p.baseAt, p.claimed, p.contact = beat, beat, now, true, now
		if !p.dead || moved {
			d.recordBeat(p, moved, now)
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
		d.recordBeat(p, true, now)
		p.proven = true
	}
	return plausible
}

// recordBeat records that the member's heart beats.
func (d detector) recordBeat(p *pulse, moved bool, now time.Duration) {
	p.seen = now
	if p.dead { // start a fresh window
		p.dead, p.sum, p.n = false, 0, 0
		p.last = now
		return
	}
	if !moved { // the member itself sent a number that another peer had already overstated
		p.last = now
		return
	}
	if gap := now - p.last; gap <= longestGap {
		if p.n == maxSamples { // the sum decays instead of dropping the oldest gap; a ring buffer would need 8 kB per member
			p.sum -= p.sum / maxSamples
			p.n--
		}
		p.sum += gap
		p.n++
	}
	p.last = now
}

// phi is the ratio of the present gap to the usual gap.
func (d detector) phi(p *pulse, now time.Duration) float64 {
	mean := (p.sum + priorSamples*d.interval) / time.Duration(p.n+priorSamples)
	return float64(now-p.last) / float64(max(mean, d.interval))
}

// exceeds reports whether phi is above limit. A cheap comparison comes first, because each round calls beyond for every member: phi of a
// member that was heard lately is below the limit, whatever its usual gap is.
func (d detector) exceeds(limit float64, p *pulse, now time.Duration) bool {
	return float64(now-p.last) > limit*float64(d.interval) && d.phi(p, now) > limit
}

// state returns the state of p's member at now and records a death. A member is dead only if inVain reports that a direct request to it
// failed. state calls inVain only for members that have been silent.
func (d detector) state(p *pulse, now time.Duration, inVain func() bool) State {
	suspect, dead := d.limits()
	if !p.proven { // it has not sent a second heartbeat yet, so give it twice the time
		dead *= 2
	}
	switch {
	case p.dead, d.exceeds(dead, p, now) && inVain():
		p.dead = true
		return Dead
	case !p.proven:
		return Unknown
	case d.exceeds(suspect, p, now), now-max(p.contact, p.since) > d.hearsayTimeout():
		return Suspect
	}
	return Alive
}

// maybeDying reports whether the detector may soon declare p's member dead.
func (d detector) maybeDying(p *pulse, now time.Duration) bool {
	suspect, _ := d.limits()
	return !p.dead && d.exceeds(suspect, p, now)
}

// hearsayTimeout is how long a member stays alive when only other members report its heartbeats. It bounds how long a lying peer can keep a dead
// member alive.
func (d detector) hearsayTimeout() time.Duration {
	return max(hearsayLife, 5*time.Duration(d.members)*d.interval)
}

// restart resets the last heartbeat after a time in which this node could not listen. Silence during that time says nothing about the
// member.
func (p *pulse) restart(now time.Duration) {
	if !p.dead {
		p.last = now
	}
}
