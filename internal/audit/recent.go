package audit

import (
	"encoding/json"
	"slices"
	"sync"

	"github.com/tailplane/tailplane/internal/util/broadcast"
)

// recentSize is the minimum number of entries that a Trail keeps. Readers that are further behind
// must read the audit log.
const recentSize = 500

// A Recent holds the most recent entries of a Log for readers that follow it. Each reader has its
// own position, so a slow reader delays no other. The zero value is ready for use. A Trail is safe
// for concurrent use.
type Recent struct {
	mu      sync.Mutex
	latest  []Entry // the last recentSize entries, and at most as many before them
	first   uint64  // number of entries before latest[0]
	changed broadcast.Change
}

// Add adds an entry.
func (t *Recent) Add(e Entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.latest = append(t.latest, e)
	if over := len(t.latest) - recentSize; over >= recentSize {
		t.latest = slices.Clone(t.latest[over:])
		t.first += uint64(over)
	}
	t.changed.Notify()
}

// End returns the position after the last entry.
func (t *Recent) End() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.first + uint64(len(t.latest))
}

// Since returns the entries after a position, in order, and the position after them. ok is false if
// the Trail no longer has the entries from there.
func (t *Recent) Since(at uint64) (entries []Entry, end uint64, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	end = t.first + uint64(len(t.latest))
	if at < t.first || at > end {
		return nil, end, false
	}
	return t.latest[at-t.first : len(t.latest) : len(t.latest)], end, true
}

// Changed returns a channel that is closed when there are entries after the position.
func (t *Recent) Changed(at uint64) <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at != t.first+uint64(len(t.latest)) {
		return broadcast.Closed()
	}
	return t.changed.Next()
}

// Stored returns the entry as the audit log stores it, with suspected credentials removed (law 8).
// It returns false if the entry cannot be encoded.
func (e Entry) Stored() (Entry, bool) {
	body, err := encode(e)
	if err != nil {
		return Entry{}, false
	}
	var out Entry
	err = json.Unmarshal(slices.Concat([]byte("{"), body, []byte("}")), &out)
	return out, err == nil
}
