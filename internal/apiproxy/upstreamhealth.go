package apiproxy

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// HealthState is the health of a cluster. It results from real requests, and from probes if there are none.
type HealthState string

// The states. A cluster that has received no request yet is unknown.
const (
	StateUnknown   HealthState = "unknown"
	StateHealthy   HealthState = "healthy"
	StateDegraded  HealthState = "degraded" // fewer than 90 % of the last minute's requests succeeded, or one of its servers is down
	StateUnhealthy HealthState = "unhealthy"
)

// Health is the health of a cluster.
type Health struct {
	State     HealthState `json:"state"`
	Since     time.Time   `json:"since"`
	LastError string      `json:"lastError,omitempty"`
	Success   float64     `json:"success"` // success rate of the requests of the last minute, 0 to 1; 1 if there were none
}

// attempt is the result of one attempt.
type attempt int

const (
	attemptCanceled    attempt = iota
	attemptSucceeded           // with a status below 500
	attemptServerError         // a status of 500 or above, or no response: one API or webhook may be down, but not the cluster
	attemptUnreachable         // no connection
)

const (
	defaultFailures = 3 // consecutive connection failures that make it unhealthy, unless the Probe sets another number
	minTrialPause   = time.Second
	maxTrialPause   = 30 * time.Second
	healthSlots     = 6 // of a minute
	healthSlotTime  = 10 * time.Second
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
	mu                   sync.Mutex
	state                HealthState // "" is unknown
	since                time.Time
	lastErr              error
	failures             int           // connection failures that make it unhealthy; 0: strikes
	successes            int           // successful trials that make it healthy; 0: one
	consecutiveFailures  int           // consecutive connection failures
	consecutiveSuccesses int           // consecutive successful trials
	outages              int           // how often it became unhealthy
	lastUsed             time.Time     // when a caller last wanted to send a request
	lastOutcome          time.Time     // the time of the last outcome
	pause                time.Duration // until the next trial
	nextTrial            time.Time     // the time of the next trial
	trying               bool
	counts               [healthSlots]attemptCount
	lastSlot             int64
}

type attemptCount struct{ good, bad int }

// admit reports whether a request may be sent. The caller must call done after it, which ends a trial.
func (h *health) admit(now time.Time) (done func(), ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lastUsed = now
	if h.state != StateUnhealthy {
		return func() {}, true
	}
	return h.trial(now)
}

// trial begins a trial if one is due. The caller must hold h.mu.
func (h *health) trial(now time.Time) (done func(), ok bool) {
	if h.trying || now.Before(h.nextTrial) {
		return nil, false
	}
	h.trying = true
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.trying = false
	}, true
}

// record records an outcome.
func (h *health) record(now time.Time, o attempt, err error) {
	if o == attemptCanceled {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lastOutcome = now
	h.advanceSlots(now)
	c := &h.counts[h.lastSlot%healthSlots]
	if o == attemptSucceeded {
		c.good++
	} else {
		c.bad++
		if err != nil {
			h.lastErr = err
		}
	}
	if o != attemptUnreachable {
		if h.state == StateUnhealthy {
			if h.consecutiveSuccesses++; h.consecutiveSuccesses < h.successes {
				h.nextTrial = now
				return
			}
		}
		h.consecutiveFailures, h.consecutiveSuccesses, h.pause = 0, 0, 0
		to := StateHealthy
		if rate, all := h.successRate(); all >= 10 && rate < 0.9 {
			to = StateDegraded
		}
		h.setState(to, now)
		return
	}
	h.consecutiveSuccesses = 0
	if h.consecutiveFailures++; h.consecutiveFailures >= cmp.Or(h.failures, defaultFailures) {
		h.setUnhealthy(now)
	}
}

// setUnhealthy makes the cluster unhealthy, or extends the pause until the next trial.
func (h *health) setUnhealthy(now time.Time) {
	h.pause = min(max(2*h.pause, minTrialPause), maxTrialPause)
	h.nextTrial = now.Add(h.pause + rand.N(h.pause/4))
	if h.state != StateUnhealthy {
		h.outages++
	}
	h.setState(StateUnhealthy, now)
}

func (h *health) setState(to HealthState, now time.Time) {
	if h.state != to {
		h.state, h.since = to, now
	}
}

// advanceSlots clears the slots that are older than a minute.
func (h *health) advanceSlots(now time.Time) {
	slot := now.Unix() / int64(healthSlotTime/time.Second)
	for i := max(h.lastSlot+1, slot-healthSlots+1); i <= slot; i++ {
		h.counts[i%healthSlots] = attemptCount{}
	}
	h.lastSlot = max(slot, h.lastSlot)
}

func (h *health) successRate() (rate float64, all int) {
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
	if h.lastErr == nil {
		return errors.New("it does not answer")
	}
	return fmt.Errorf("it does not answer: %w", h.lastErr)
}

// Health returns the health of the cluster.
func (c *Upstream) Health() Health {
	h := &c.health
	h.mu.Lock()
	defer h.mu.Unlock()
	h.advanceSlots(c.Now())
	rate, _ := h.successRate()
	out := Health{State: h.state, Since: h.since, Success: rate}
	switch {
	case out.State == "":
		out.State = StateUnknown
	case out.State == StateHealthy && len(c.endpoints) > 1 && slices.ContainsFunc(c.endpoints, func(e *endpoint) bool { return e.lastFailure.Load() != 0 }):
		out.State = StateDegraded
	}
	if h.lastErr != nil {
		out.LastError = h.lastErr.Error()
	}
	return out
}
