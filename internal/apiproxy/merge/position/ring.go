package position

import "sync"

// ringSize is how many positions a ring remembers.
const ringSize = 1024

// A Ring remembers where a client of a collection stood after each of the last
// events. An event has the resourceVersion of its cluster, so a client that is
// cut off between two events comes back with a number that says nothing of the
// others. The zero Ring is empty; it may be used by many streams.
type Ring struct {
	mu     sync.Mutex
	epoch  uint64
	width  int
	next   int
	keys   []uint64
	fields []uint64 // width for each key; all of them ^0: several, so unknown
}

const several = ^uint64(0)

// Put remembers where a client stands after the event rv. Two different places
// after one number make it unknown.
func (r *Ring) Put(rv uint64, v Vector) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.epoch != v.Epoch || r.width != len(v.Fields) {
		r.epoch, r.width, r.next = v.Epoch, len(v.Fields), 0
		r.keys, r.fields = nil, nil
	}
	for i, key := range r.keys {
		if key != rv {
			continue
		}
		at := r.fields[i*r.width:][:r.width]
		for j, f := range v.Fields {
			if at[j] != f {
				for j := range at {
					at[j] = several
				}
				break
			}
		}
		return
	}
	if len(r.keys) < ringSize {
		r.keys = append(r.keys, rv)
		r.fields = append(r.fields, v.Fields...)
		return
	}
	r.keys[r.next] = rv
	copy(r.fields[r.next*r.width:], v.Fields)
	r.next = (r.next + 1) % ringSize
}

// Get is where a client stands that came back with rv.
func (r *Ring) Get(epoch, rv uint64) (Vector, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, key := range r.keys {
		at := r.fields[i*r.width:][:r.width]
		if key == rv && r.epoch == epoch && r.width > 0 && at[0] != several {
			return Vector{epoch, append([]uint64(nil), at...)}, true
		}
	}
	return Vector{}, false
}
