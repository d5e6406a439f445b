package upstream

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// State is the health of a cluster. It results from real requests, and from probes if there are none.
type State string

// The states. A cluster that has received no request yet is unknown.
const (
	StateUnknown   State = "unknown"
	StateHealthy   State = "healthy"
	StateDegraded  State = "degraded" // fewer than 90 % of the last minute's requests succeeded, or one of its servers is down
	StateUnhealthy State = "unhealthy"
)

// Health is the health of a cluster.
type Health struct {
	State     State     `json:"state"`
	Since     time.Time `json:"since"`
	LastError string    `json:"lastError,omitempty"`
	Success   float64   `json:"success"` // success rate of the requests of the last minute, 0 to 1; 1 if there were none
}

// outcome is the result of one attempt.
type outcome int

const (
	noOutcome  outcome = iota
	answered           // with a status below 500
	complained         // a status of 500 or above, or no response: one API or webhook may be down, but not the cluster
	unreached          // no connection
)

const (
	strikes  = 3 // consecutive connection failures that make it unhealthy, unless the Probe sets another number
	shortest = time.Second
	longest  = 30 * time.Second
	slots    = 6 // of a minute
	slotTime = 10 * time.Second
)

// health is a circuit breaker. Outcomes change its state:
//
//	unknown -> healthy <-> degraded
//	   \          |           |
//	    +---------+-----------+--- 3 x unreached --> unhealthy -- 1 trial answered --> healthy
//
// While the cluster is unhealthy, every request fails at once, except for one trial at a time, after 1 to 30 seconds.
// health holds its lock only for counting.
type health struct {
	mu       sync.Mutex
	state    State // "" is unknown
	since    time.Time
	last     error
	failures int           // connection failures that make it unhealthy; 0: strikes
	recovers int           // successful trials that make it healthy; 0: one
	unmet    int           // consecutive connection failures
	met      int           // consecutive successful trials
	outages  int           // how often it became unhealthy
	used     time.Time     // when a caller last wanted to send a request
	heard    time.Time     // the time of the last outcome
	pause    time.Duration // until the next trial
	next     time.Time     // the time of the next trial
	trying   bool
	counts   [slots]count
	lastSlot int64
}

type count struct{ good, bad int }

// ask reports whether a request may be sent. The caller must call done after it, which ends a trial.
func (h *health) ask(now time.Time) (done func(), ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.used = now
	if h.state != StateUnhealthy {
		return func() {}, true
	}
	return h.trial(now)
}

// trial begins a trial if one is due. The caller must hold h.mu.
func (h *health) trial(now time.Time) (done func(), ok bool) {
	if h.trying || now.Before(h.next) {
		return nil, false
	}
	h.trying = true
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.trying = false
	}, true
}

// hear records an outcome.
func (h *health) hear(now time.Time, o outcome, err error) {
	if o == noOutcome {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.heard = now
	h.turn(now)
	c := &h.counts[h.lastSlot%slots]
	if o == answered {
		c.good++
	} else {
		c.bad++
		if err != nil {
			h.last = err
		}
	}
	if o != unreached {
		if h.state == StateUnhealthy {
			if h.met++; h.met < h.recovers {
				h.next = now
				return
			}
		}
		h.unmet, h.met, h.pause = 0, 0, 0
		to := StateHealthy
		if rate, all := h.rate(); all >= 10 && rate < 0.9 {
			to = StateDegraded
		}
		h.become(to, now)
		return
	}
	h.met = 0
	if h.unmet++; h.unmet >= cmp.Or(h.failures, strikes) {
		h.fall(now)
	}
}

// fall makes the cluster unhealthy, or extends the pause until the next trial.
func (h *health) fall(now time.Time) {
	h.pause = min(max(2*h.pause, shortest), longest)
	h.next = now.Add(h.pause + rand.N(h.pause/4))
	if h.state != StateUnhealthy {
		h.outages++
	}
	h.become(StateUnhealthy, now)
}

func (h *health) become(to State, now time.Time) {
	if h.state != to {
		h.state, h.since = to, now
	}
}

// turn clears the slots that are older than a minute.
func (h *health) turn(now time.Time) {
	slot := now.Unix() / int64(slotTime/time.Second)
	for i := max(h.lastSlot+1, slot-slots+1); i <= slot; i++ {
		h.counts[i%slots] = count{}
	}
	h.lastSlot = max(slot, h.lastSlot)
}

func (h *health) rate() (rate float64, all int) {
	good := 0
	for _, c := range h.counts {
		good += c.good
		all += c.good + c.bad
	}
	if all == 0 {
		return 1, 0
	}
	return float64(good) / float64(all), all
}

// err returns why no request is sent.
func (h *health) err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.last == nil {
		return errors.New("it does not answer")
	}
	return fmt.Errorf("it does not answer: %w", h.last)
}

// Health returns the health of the cluster.
func (c *Cluster) Health() Health {
	h := &c.health
	h.mu.Lock()
	defer h.mu.Unlock()
	h.turn(c.Now())
	rate, _ := h.rate()
	out := Health{State: h.state, Since: h.since, Success: rate}
	switch {
	case out.State == "":
		out.State = StateUnknown
	case out.State == StateHealthy && len(c.endpoints) > 1 && slices.ContainsFunc(c.endpoints, func(e *endpoint) bool { return e.missed.Load() != 0 }):
		out.State = StateDegraded
	}
	if h.last != nil {
		out.LastError = h.last.Error()
	}
	return out
}
