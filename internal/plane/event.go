package plane

import (
	"bytes"
	"encoding/json"
	"slices"
	"sync"

	"github.com/tailplane/tailplane/internal/util/broadcast"
)

// A Change is what an Event tells.
type Change string

// The changes.
const (
	Upsert       Change = "upsert"
	Delete       Change = "delete"
	SourceStatus Change = "status"
	Known        Change = "known" // of a kind: from now on there are its objects, or none, where nobody could tell
)

// An Event is one change of the Board.
type Event struct {
	Revision uint64
	Change   Change
	Kind     Kind
	Object   Object // what it is now; of a Delete, what it was
	Source   Source // of a SourceStatus

	text func() []byte // see JSON
}

// JSON is the object of e, or its source, on the wire: encoded once for all readers.
func (e Event) JSON() []byte { return e.text() }

// ringSize is how many events the Board remembers at least: who is further behind
// reads anew.
const ringSize = 2000

// Since returns what has changed after a revision among what see admits: of one
// object only the last change, in the order of the last changes; and the revision
// to go on from. It is false when the ring does not go back to there, or this
// Board has never been there: read anew.
func (b *Board) Since(after uint64, see func(Event) bool) (events []Event, revision uint64, ok bool) {
	b.mu.Lock()
	revision = b.revision
	if after < b.first || after > revision {
		b.mu.Unlock()
		return nil, revision, false
	}
	// Entries of the ring are never written to again, so the part that is read
	// here is safe while the Board goes on.
	part := b.ring[after-b.first:]
	b.mu.Unlock()

	type about struct {
		kind Kind
		key  string
	}
	told := map[about]bool{}
	for _, e := range slices.Backward(part) {
		if !see(e) {
			continue
		}
		of := about{e.Kind, e.Source.Name}
		if e.Object != nil {
			of.key = e.Object.Key()
		}
		if !told[of] {
			told[of] = true
			events = append(events, e)
		}
	}
	slices.Reverse(events)
	return events, revision, true
}

// Changed returns a channel that is closed when something is later than revision.
func (b *Board) Changed(revision uint64) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.revision != revision {
		return broadcast.Already()
	}
	return b.changed.Next()
}

// tell appends an event. The ring is a slice that only grows; when it has become
// twice its size, the later half moves on to a new one.
func (b *Board) tell(e Event) {
	b.revision++
	e.Revision = b.revision
	var told any = e.Object
	if e.Change == SourceStatus {
		told = e.Source
	}
	e.text = sync.OnceValue(func() []byte { return encode(told) })
	b.ring = append(b.ring, e)
	if over := len(b.ring) - ringSize; over >= ringSize {
		b.ring = slices.Clone(b.ring[over:])
		b.first += uint64(over)
	}
	b.changed.Notify()
}

// encode is JSON as the door writes it, without the newline.
func encode(v any) []byte {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return []byte("null") // objects are plain values: nothing in them cannot be written
	}
	return bytes.TrimSuffix(text.Bytes(), []byte("\n"))
}
