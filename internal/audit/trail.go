package audit

import (
	"encoding/json"
	"slices"
	"sync"

	"github.com/tailplane/tailplane/internal/util/broadcast"
)

// trailSize is how many entries a Trail remembers at least: who is further behind reads
// the record.
const trailSize = 500

// A Trail has the latest entries of a Log, for whoever follows it. Readers share it,
// each with a place of its own: a slow one delays nobody. Its zero value is ready for
// use, and methods may be called at the same time.
type Trail struct {
	mu      sync.Mutex
	latest  []Entry // the last trailSize, and up to as many before them
	first   uint64  // how many came before latest[0]
	changed broadcast.Change
}

// Put adds an entry.
func (t *Trail) Put(e Entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.latest = append(t.latest, e)
	if over := len(t.latest) - trailSize; over >= trailSize {
		t.latest = slices.Clone(t.latest[over:])
		t.first += uint64(over)
	}
	t.changed.Notify()
}

// End is the place behind the last entry.
func (t *Trail) End() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.first + uint64(len(t.latest))
}

// Since returns the entries behind a place, as they were put, and the place behind them.
// It is false when the Trail does not go back to there.
func (t *Trail) Since(at uint64) (entries []Entry, end uint64, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	end = t.first + uint64(len(t.latest))
	if at < t.first || at > end {
		return nil, end, false
	}
	return t.latest[at-t.first : len(t.latest) : len(t.latest)], end, true
}

// Changed returns a channel that is closed when something is behind a place.
func (t *Trail) Changed(at uint64) <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at != t.first+uint64(len(t.latest)) {
		return broadcast.Already()
	}
	return t.changed.Next()
}

// Written is an entry as it stands in a record, without what looks like a credential
// (law 8). It is false for one that cannot be written.
func (e Entry) Written() (Entry, bool) {
	body, err := encode(e)
	if err != nil {
		return Entry{}, false
	}
	var out Entry
	err = json.Unmarshal(slices.Concat([]byte("{"), body, []byte("}")), &out)
	return out, err == nil
}
