package controller

import (
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/fleet"
)

// driftSchedule schedules the drift checks of all organisations. After a start, the first checks are
// spread over one period, so the schedule need not survive a restart. Create it with [newDriftSchedule].
type driftSchedule struct {
	start time.Time
	every time.Duration

	mu   sync.Mutex
	last map[string]time.Time // by organisation
}

// newDriftSchedule returns a schedule that begins at start, with a check of each organisation in every
// period.
func newDriftSchedule(start time.Time, every time.Duration) *driftSchedule {
	return &driftSchedule{start: start, every: every, last: map[string]time.Time{}}
}

// next returns the time of the next check of an organisation.
func (r *driftSchedule) next(org string) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if last, ok := r.last[org]; ok {
		return fleet.NextDriftCheck(org, last, r.every)
	}
	return fleet.FirstDriftCheck(org, r.start, r.every)
}

// done records that an organisation is checked now, and returns the time of its next check.
func (r *driftSchedule) done(org string, now time.Time) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last[org] = now
	return fleet.NextDriftCheck(org, now, r.every)
}

// delete removes an organisation that is gone.
func (r *driftSchedule) delete(org string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.last, org)
}
