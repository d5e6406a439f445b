package findings

import (
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/fleet/truth"
)

// Rounds say when each organisation is compared. After a start they are spread over one
// period; that is all that need not outlast it. Make them with [NewRounds].
type Rounds struct {
	start time.Time
	every time.Duration

	mu   sync.Mutex
	last map[string]time.Time // by organisation
}

// NewRounds makes rounds that begin at start, one every so often.
func NewRounds(start time.Time, every time.Duration) *Rounds {
	return &Rounds{start: start, every: every, last: map[string]time.Time{}}
}

// Next is when an organisation is to be compared.
func (r *Rounds) Next(org string) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if last, ok := r.last[org]; ok {
		return truth.Next(org, last, r.every)
	}
	return truth.First(org, r.start, r.every)
}

// Done notes that an organisation is being compared now, and says when it is next.
func (r *Rounds) Done(org string, now time.Time) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last[org] = now
	return truth.Next(org, now, r.every)
}

// Drop forgets an organisation that has gone.
func (r *Rounds) Drop(org string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.last, org)
}
