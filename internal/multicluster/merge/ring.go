package merge

import (
	"sync"
	"time"
)

// ringSize is the number of positions in a ring.
const ringSize = 1024

// maxDistance is how far a resourceVersion must be from all that a cluster was seen to use before it counts as
// another cluster's. A cluster drops its history within minutes, and no cluster makes that many writes in
// this time.
const maxDistance = 10_000_000

// Ring maps the resourceVersions of recent events to the positions of clients of a collection. An event has
// the resourceVersion of its cluster. A client that disconnects between two events returns with a number that
// does not contain the positions of the other clusters, or even which cluster it is from. The ring therefore
// also records for which part of each cluster's history it has all events. A number that another cluster may
// also have used counts as unknown.
//
// The result is right only for clients that return to the adapter that sent the event, as clients of a
// sidecar do. Two clients can have the same event at different positions, and a ring that sent it to only one
// of them cannot detect that. A ring therefore returns nothing until it is old enough that clients of an
// earlier adapter process have reconnected.
//
// The zero Ring is empty and ready to use. It is safe for concurrent use.
type Ring struct {
	mu    sync.Mutex
	born  time.Time
	epoch uint64
	width int
	next  int
	keys  []uint64
	slots []uint8 // the slot of the event's cluster; several: more than one slot, or different positions
	// fields has width entries for each key.
	fields []uint64
	ranges [MaxSlots]knownRange
}

// minRingAge is the age from which a ring returns positions. It is longer than clients wait between two retries.
const minRingAge = 2 * time.Minute

const multipleSlots = 0xff

// knownRange is the known range of one cluster's resourceVersions.
type knownRange struct {
	from, to    uint64 // the ring has all events after from, up to and including to
	first, last uint64 // the range of initial objects, which are older
}

// reset empties a ring that is of another epoch or width.
func (r *Ring) reset(v Vector) {
	if r.epoch != v.Epoch || r.width != len(v.Fields) {
		r.epoch, r.width, r.next = v.Epoch, len(v.Fields), 0
		r.keys, r.slots, r.fields, r.ranges = nil, nil, nil, [MaxSlots]knownRange{}
	}
}

// Step describes what a stream sent to a client, or omitted, of one member.
type Step struct {
	Slot int
	// From and To mean that the client has all events of the member after From, up to and including To. Both
	// are 0 for an event outside the member's stream.
	From, To uint64
	// Sent is the resourceVersion of the event that the client received; 0: none.
	Sent uint64
	// Nowhere means that the client has no valid position after the step, because a related event is still
	// missing.
	Nowhere bool
}

// AddStep records a step. v is the client's position after it.
func (r *Ring) AddStep(s Step, v Vector, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.born.IsZero() {
		r.born = now
	}
	r.reset(v)
	if s.Sent > 0 {
		slot := uint8(s.Slot)
		if s.Nowhere {
			slot = multipleSlots
		}
		r.store(slot, s.Sent, v)
	}
	if s.To == 0 {
		return
	}
	switch known := &r.ranges[s.Slot]; {
	case known.to == 0 || s.From > known.to: // a gap
		known.from, known.to = s.From, s.To
	case s.To < known.from:
	default:
		known.from, known.to = min(known.from, s.From), max(known.to, s.To)
	}
}

// AddObject records an initial object of a stream.
func (r *Ring) AddObject(slot int, rv uint64, v Vector) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reset(v)
	s := &r.ranges[slot]
	if s.last == 0 {
		s.first, s.last = rv, rv
	}
	s.first, s.last = min(s.first, rv), max(s.last, rv)
	r.store(uint8(slot), rv, v)
}

func (r *Ring) store(slot uint8, rv uint64, v Vector) {
	for i, key := range r.keys {
		if key != rv {
			continue
		}
		if r.slots[i] != slot || !(Vector{v.Epoch, r.vectorAt(i)}).Equal(v) {
			r.slots[i] = multipleSlots
		}
		return
	}
	if len(r.keys) < ringSize {
		r.keys = append(r.keys, rv)
		r.slots = append(r.slots, slot)
		r.fields = append(r.fields, v.Fields...)
		return
	}
	for slot := range r.width { // the dropped event is no longer known, whichever cluster it is from
		if s := &r.ranges[slot]; s.from < r.keys[r.next] && r.keys[r.next] <= s.to {
			s.from = r.keys[r.next]
		}
	}
	r.keys[r.next], r.slots[r.next] = rv, slot
	copy(r.vectorAt(r.next), v.Fields)
	r.next = (r.next + 1) % ringSize
}

func (r *Ring) vectorAt(i int) []uint64 { return r.fields[i*r.width:][:r.width] }

// Get returns the position of a client that returns with resourceVersion rv.
func (r *Ring) Get(epoch, rv uint64, slots []int, now time.Time) (Vector, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.born.IsZero() || now.Sub(r.born) < minRingAge {
		return Vector{}, false
	}
	for i, key := range r.keys {
		if key != rv || r.epoch != epoch || r.slots[i] == multipleSlots {
			continue
		}
		for _, slot := range slots {
			if slot != int(r.slots[i]) && !r.ranges[slot].excludes(rv) {
				return Vector{}, false
			}
		}
		return Vector{epoch, append([]uint64(nil), r.vectorAt(i)...)}, true
	}
	return Vector{}, false
}

// excludes reports that the client cannot have rv from this cluster, because the ring would have its event.
func (s knownRange) excludes(rv uint64) bool {
	if s.last > 0 && s.first <= rv && rv <= s.last {
		return false
	}
	if s.from < rv && rv <= s.to {
		return true
	}
	return s.to > 0 && (rv > s.to && rv-s.to > maxDistance || rv <= s.from && s.from-rv > maxDistance)
}
