package apiproxy

import (
	"slices"
	"sync/atomic"
	"time"
)

// endpoint is one of the servers of the cluster.
type endpoint struct {
	host        string
	inFlight    atomic.Int64
	lastFailure atomic.Int64 // when a connection last failed, in Unix nanoseconds; 0: the last one succeeded
}

// endpointPenalty is how long other endpoints are preferred after a connection failed.
const endpointPenalty = 30 * time.Second

func (e *endpoint) failedRecently(now time.Time) bool {
	missed := e.lastFailure.Load()
	return missed != 0 && now.Sub(time.Unix(0, missed)) < endpointPenalty
}

// pick returns the untried endpoint with the fewest requests in flight. It returns an endpoint with a recent
// connection failure only if there is no other.
func (c *Upstream) pick(tried []*endpoint) (best *endpoint) {
	now := c.Now()
	for _, e := range c.endpoints {
		switch {
		case slices.Contains(tried, e):
		case best == nil, best.failedRecently(now) && !e.failedRecently(now):
			best = e
		case best.failedRecently(now) == e.failedRecently(now) && e.inFlight.Load() < best.inFlight.Load():
			best = e
		}
	}
	return best
}
