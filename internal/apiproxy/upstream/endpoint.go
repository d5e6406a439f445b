package upstream

import (
	"sync/atomic"
	"time"
)

// An endpoint is one of the servers of the cluster.
type endpoint struct {
	host     string
	inFlight atomic.Int64
	missed   atomic.Int64 // when it could not be reached, in nanoseconds; 0: it could
}

// avoided is how long others are asked first after an endpoint could not be reached.
const avoided = 30 * time.Second

func (e *endpoint) avoid(now time.Time) bool {
	missed := e.missed.Load()
	return missed != 0 && now.Sub(time.Unix(0, missed)) < avoided
}

// pick returns the endpoint with the fewest requests in flight that was not tried
// yet, and one that could not be reached a moment ago only if there is no other.
func (c *Cluster) pick(tried []*endpoint) (best *endpoint) {
	now := c.Now()
next:
	for _, e := range c.endpoints {
		for _, t := range tried {
			if e == t {
				continue next
			}
		}
		switch {
		case best == nil, best.avoid(now) && !e.avoid(now):
			best = e
		case best.avoid(now) == e.avoid(now) && e.inFlight.Load() < best.inFlight.Load():
			best = e
		}
	}
	return best
}
