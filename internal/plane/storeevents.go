package plane

import (
	"bytes"
	"encoding/json"
	"slices"
	"sync"

	"github.com/tailplane/tailplane/internal/util/broadcast"
)

// EventType is the type of an Event.
type EventType string

// The types of events.
const (
	EventUpsert       EventType = "upsert"
	EventDelete       EventType = "delete"
	EventSourceStatus EventType = "status"
	EventKnown        EventType = "known" // of a kind: its list is known from now on; before, it was not
)

// StoreEvent is one change in the store.
type StoreEvent struct {
	Revision uint64
	Type     EventType
	Kind     Kind
	Object   Object // the new object; for a Delete, the deleted one
	Source   Source // set for a EventSourceStatus

	text func() []byte
}

// JSON returns the object or the source of e as JSON. It is encoded once for all readers.
func (e StoreEvent) JSON() []byte { return e.text() }

// maxStoreEvents is the minimum number of events that the store keeps. A reader that is further behind must read everything again.
const maxStoreEvents = 2000

// Since returns the changes after a revision that see admits. Of each object or source it returns only the last change, in revision order.
// It also returns the revision to continue from.
//
// ok is false if the ring does not reach back to the revision, or if this store never had it. The caller must then read everything again.
func (b *Store) Since(after uint64, see func(StoreEvent) bool) (events []StoreEvent, revision uint64, ok bool) {
	b.mu.Lock()
	revision = b.revision
	if after < b.first || after > revision {
		b.mu.Unlock()
		return nil, revision, false
	}
	// Events in the ring are never modified, so this part is safe to read without the lock.
	part := b.events[after-b.first:]
	b.mu.Unlock()

	type about struct {
		kind Kind
		key  string
	}
	reported := map[about]bool{}
	for _, e := range slices.Backward(part) {
		if !see(e) {
			continue
		}
		of := about{e.Kind, e.Source.Name}
		if e.Object != nil {
			of.key = e.Object.Key()
		}
		if !reported[of] {
			reported[of] = true
			events = append(events, e)
		}
	}
	slices.Reverse(events)
	return events, revision, true
}

// Changed returns a channel that closes when the store's revision differs from revision.
func (b *Store) Changed(revision uint64) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.revision != revision {
		return broadcast.Closed()
	}
	return b.changed.Next()
}

// publish appends an event. Callers must hold mu. The ring only grows; when it reaches twice maxStoreEvents, the newer half moves to a new slice.
func (b *Store) publish(e StoreEvent) {
	b.revision++
	e.Revision = b.revision
	var reported any = e.Object
	if e.Type == EventSourceStatus {
		reported = e.Source
	}
	e.text = sync.OnceValue(func() []byte { return encode(reported) })
	b.events = append(b.events, e)
	if over := len(b.events) - maxStoreEvents; over >= maxStoreEvents {
		b.events = slices.Clone(b.events[over:])
		b.first += uint64(over)
	}
	b.changed.Notify()
}

// encode returns v as the HTTP server encodes it, without the newline.
func encode(v any) []byte {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return []byte("null") // objects are plain values, which can always be encoded
	}
	return bytes.TrimSuffix(text.Bytes(), []byte("\n"))
}
