package upstream

import (
	"sync/atomic"
	"time"
)

// endpoint is one of the servers of the cluster.
type endpoint struct {
	host     string
	inFlight atomic.Int64
	missed   atomic.Int64 // when a connection last failed, in Unix nanoseconds; 0: the last one succeeded
}

// avoided is how long other endpoints are preferred after a connection failed.
const avoided = 30 * time.Second

func (e *endpoint) avoid(now time.Time) bool {
	missed := e.missed.Load()
	return missed != 0 && now.Sub(time.Unix(0, missed)) < avoided
}

// pick returns the untried endpoint with the fewest requests in flight. It returns an endpoint with a recent
// connection failure only if there is no other.
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
