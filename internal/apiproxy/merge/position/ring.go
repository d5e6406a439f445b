package position

import (
	"sync"
	"time"
)

// ringSize is how many positions a ring remembers.
const ringSize = 1024

// farApart is how far a number may be from all that a cluster was seen to give
// out before it is taken as not that cluster's. A cluster forgets its history
// within minutes, in which no cluster writes so often.
const farApart = 10_000_000

// A Ring remembers where a client of a collection stood after each of the last
// events. An event has the resourceVersion of its cluster, so a client that is
// cut off between two events comes back with a number that says nothing of the
// other clusters, and not even whose it is. So the ring remembers, too, which
// part of each cluster's history it has seen all events of: a number that some
// other cluster may have given out as well is unknown.
//
// It is right about clients that come back to where they got the event from, as
// those of a sidecar do. Two clients can have the same event and stand at
// different places, and a ring that sent it to one of them only cannot know: so a
// ring says nothing before it is so old that clients of an adapter that was there
// before it are back.
//
// The zero Ring is empty; it may be used by many streams.
type Ring struct {
	mu    sync.Mutex
	born  time.Time
	epoch uint64
	width int
	next  int
	keys  []uint64
	slots []uint8 // whose event it was; several: more than one, or at different places
	// fields are width for each key.
	fields []uint64
	seen   [MaxSlots]seen
}

// ripe is how old a ring is before it says anything: longer than clients wait
// between two tries.
const ripe = 2 * time.Minute

const several = 0xff

// seen is what a ring knows of one cluster's numbers.
type seen struct {
	from, to    uint64 // all events behind from, up to to, are in the ring
	first, last uint64 // of the objects that streams began with, which are older
}

// reset forgets what was of another document.
func (r *Ring) reset(v Vector) {
	if r.epoch != v.Epoch || r.width != len(v.Fields) {
		r.epoch, r.width, r.next = v.Epoch, len(v.Fields), 0
		r.keys, r.slots, r.fields, r.seen = nil, nil, nil, [MaxSlots]seen{}
	}
}

// A Step is what a stream sent to a client, or left out, of one member.
type Step struct {
	Slot int
	// From and To say that the client has got all of the member's events behind
	// From, up to To; both are 0 for what comes out of turn.
	From, To uint64
	// Sent is the number of the event that the client got; 0: none.
	Sent uint64
	// Nowhere says that the client stands nowhere after it, as it was sent before
	// what belongs with it.
	Nowhere bool
}

// Step remembers that a client took a step, after which it is at v.
func (r *Ring) Step(s Step, v Vector, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.born.IsZero() {
		r.born = now
	}
	r.reset(v)
	if s.Sent > 0 {
		slot := uint8(s.Slot)
		if s.Nowhere {
			slot = several
		}
		r.put(slot, s.Sent, v)
	}
	if s.To == 0 {
		return
	}
	switch known := &r.seen[s.Slot]; {
	case known.to == 0 || s.From > known.to: // there is a gap
		known.from, known.to = s.From, s.To
	case s.To < known.from:
	default:
		known.from, known.to = min(known.from, s.From), max(known.to, s.To)
	}
}

// Object remembers one of the objects that a stream began with.
func (r *Ring) Object(slot int, rv uint64, v Vector) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reset(v)
	s := &r.seen[slot]
	if s.last == 0 {
		s.first, s.last = rv, rv
	}
	s.first, s.last = min(s.first, rv), max(s.last, rv)
	r.put(uint8(slot), rv, v)
}

func (r *Ring) put(slot uint8, rv uint64, v Vector) {
	for i, key := range r.keys {
		if key != rv {
			continue
		}
		if r.slots[i] != slot || !(Vector{v.Epoch, r.at(i)}).Equal(v) {
			r.slots[i] = several
		}
		return
	}
	if len(r.keys) < ringSize {
		r.keys = append(r.keys, rv)
		r.slots = append(r.slots, slot)
		r.fields = append(r.fields, v.Fields...)
		return
	}
	for slot := range r.width { // what goes is not known any more, whoever's it was
		if s := &r.seen[slot]; s.from < r.keys[r.next] && r.keys[r.next] <= s.to {
			s.from = r.keys[r.next]
		}
	}
	r.keys[r.next], r.slots[r.next] = rv, slot
	copy(r.at(r.next), v.Fields)
	r.next = (r.next + 1) % ringSize
}

func (r *Ring) at(i int) []uint64 { return r.fields[i*r.width:][:r.width] }

// Get is where a client stands that came back with rv.
func (r *Ring) Get(epoch, rv uint64, slots []int, now time.Time) (Vector, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.born.IsZero() || now.Sub(r.born) < ripe {
		return Vector{}, false
	}
	for i, key := range r.keys {
		if key != rv || r.epoch != epoch || r.slots[i] == several {
			continue
		}
		for _, slot := range slots {
			if slot != int(r.slots[i]) && !r.seen[slot].excludes(rv) {
				return Vector{}, false
			}
		}
		return Vector{epoch, append([]uint64(nil), r.at(i)...)}, true
	}
	return Vector{}, false
}

// excludes says whether a client cannot have rv from this cluster, as an event
// of it would be in the ring.
func (s seen) excludes(rv uint64) bool {
	if s.last > 0 && s.first <= rv && rv <= s.last {
		return false
	}
	if s.from < rv && rv <= s.to {
		return true
	}
	return s.to > 0 && (rv > s.to && rv-s.to > farApart || rv <= s.from && s.from-rv > farApart)
}
