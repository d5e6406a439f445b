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

// A State is how a cluster does, from what came of real requests, and of
// questions for it where there are none.
type State string

// The states. Unknown is a cluster that nobody has asked yet.
const (
	StateUnknown   State = "unknown"
	StateHealthy   State = "healthy"
	StateDegraded  State = "degraded" // under 90 % of a minute's requests succeed, or one of its servers is down
	StateUnhealthy State = "unhealthy"
)

// Health is how a cluster does.
type Health struct {
	State     State     `json:"state"`
	Since     time.Time `json:"since"`
	LastError string    `json:"lastError,omitempty"`
	Success   float64   `json:"success"` // of the last minute's requests, 0 to 1; 1 if there were none
}

// outcome is what came of one attempt.
type outcome int

const (
	noOutcome  outcome = iota
	answered           // with less than 500
	complained         // with 500 and more, or not at all: one API or webhook may be down, not the cluster
	unreached          // no connection came about
)

const (
	strikes  = 3 // times unreached in a row until it is unhealthy, unless a Probe says another number
	shortest = time.Second
	longest  = 30 * time.Second
	slots    = 6 // of a minute
	slotTime = 10 * time.Second
)

// health follows the outcomes.
//
//	unknown -> healthy <-> degraded
//	   \          |           |
//	    +---------+-----------+--- 3 x unreached --> unhealthy -- 1 trial answered --> healthy
//
// While it is unhealthy everybody is answered at once, but for one trial at a
// time, after 1 to 30 seconds. It locks no longer than it takes to count.
type health struct {
	mu       sync.Mutex
	state    State // "" is unknown
	since    time.Time
	last     error
	failures int           // so many times unreached make it unhealthy; 0: strikes
	recovers int           // so many trials answered make it healthy; 0: one
	unmet    int           // times unreached in a row
	met      int           // trials answered in a row
	outages  int           // how often it became unhealthy
	used     time.Time     // when somebody last wanted to ask it
	heard    time.Time     // when there last was an outcome
	pause    time.Duration // until the next trial
	next     time.Time     // when it may be
	trying   bool
	counts   [slots]count
	lastSlot int64
}

type count struct{ good, bad int }

// ask says whether to try the cluster; done ends a trial.
func (h *health) ask(now time.Time) (done func(), ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.used = now
	if h.state != StateUnhealthy {
		return func() {}, true
	}
	return h.trial(now)
}

// trial begins one, if it is time for it. The caller holds h.mu.
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

// hear counts an outcome.
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

// fall makes it unhealthy, or keeps it so for longer.
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

// turn empties the slots that are older than a minute.
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

// err is why nobody is asked.
func (h *health) err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.last == nil {
		return errors.New("it does not answer")
	}
	return fmt.Errorf("it does not answer: %w", h.last)
}

// Health returns how the cluster does.
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
