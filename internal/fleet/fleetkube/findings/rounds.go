package findings

import (
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/fleet/truth"
)

// Rounds schedules the drift checks of all organisations. After a start, the first checks are
// spread over one period, so the schedule need not survive a restart. Create it with [NewRounds].
type Rounds struct {
	start time.Time
	every time.Duration

	mu   sync.Mutex
	last map[string]time.Time // by organisation
}

// NewRounds returns a schedule that begins at start, with a check of each organisation in every
// period.
func NewRounds(start time.Time, every time.Duration) *Rounds {
	return &Rounds{start: start, every: every, last: map[string]time.Time{}}
}

// Next returns the time of the next check of an organisation.
func (r *Rounds) Next(org string) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if last, ok := r.last[org]; ok {
		return truth.Next(org, last, r.every)
	}
	return truth.First(org, r.start, r.every)
}

// Done records that an organisation is checked now, and returns the time of its next check.
func (r *Rounds) Done(org string, now time.Time) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last[org] = now
	return truth.Next(org, now, r.every)
}

// Drop removes an organisation that is gone.
func (r *Rounds) Drop(org string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.last, org)
}
