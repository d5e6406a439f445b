package tsapi

import (
	"math/rand/v2"
	"time"
)

// A CircuitState says whether the API is asked at all.
type CircuitState string

// The states of a circuit.
const (
	Closed   CircuitState = "Closed"   // it is asked
	Open     CircuitState = "Open"     // it failed too often: it is left alone for a minute
	HalfOpen CircuitState = "HalfOpen" // one request finds out whether it is well again
)

// A circuit keeps count of failures in a row.
//
//	Closed --5 failures--> Open --60 s--> HalfOpen --success--> Closed
//	                         ^--------------failure------|
//
// Its caller guards it.
type circuit struct {
	failures int
	until    time.Time // it is open; zero: closed
	probing  bool      // one is on its way to find out
	pause    time.Time // until when the API asked not to be asked
}

func (c *circuit) state(now time.Time) CircuitState {
	switch {
	case c.until.IsZero():
		return Closed
	case c.probing || !now.Before(c.until):
		return HalfOpen
	}
	return Open
}

// admit says whether to ask now; if not, why, and when to try again. Whoever is
// admitted must say how it ended: succeeded, failed or abandoned.
func (c *circuit) admit(now time.Time) (why Class, wait time.Duration) {
	switch c.state(now) {
	case Open:
		return CircuitOpen, c.until.Sub(now)
	case HalfOpen:
		if c.probing {
			return CircuitOpen, attemptTime
		}
		if now.Before(c.pause) {
			return RateLimited, c.pause.Sub(now)
		}
		c.probing = true
		return OK, 0
	}
	if now.Before(c.pause) {
		return RateLimited, c.pause.Sub(now)
	}
	return OK, 0
}

// succeeded: the API answered, be it with a refusal.
func (c *circuit) succeeded() { c.failures, c.until, c.probing = 0, time.Time{}, false }

// failed returns how long to wait: not at all after the first failure.
func (c *circuit) failed(now time.Time) time.Duration {
	c.failures++
	c.probing = false
	if c.failures >= circuitAfter {
		c.until = now.Add(circuitRest)
		return circuitRest
	}
	return backoff(c.failures, rand.Float64())
}

// abandoned: the caller left before there was an answer, which says nothing.
func (c *circuit) abandoned() { c.probing = false }

// limited: the API asked for a pause, if only by saying that it was asked too often.
func (c *circuit) limited(now time.Time, wish time.Duration) time.Duration {
	c.succeeded()
	if wish <= 0 {
		wish = backoff(2, rand.Float64())
	}
	if until := now.Add(wish); until.After(c.pause) {
		c.pause = until
	}
	return c.pause.Sub(now)
}

// backoff is how long to wait after so many failures in a row; random lies in [0, 1).
func backoff(failures int, random float64) time.Duration {
	if failures <= 1 {
		return 0
	}
	wait := lastBackoff
	if n := failures - 2; n < 9 {
		wait = min(firstBackoff<<n, lastBackoff)
	}
	return time.Duration(float64(wait) * (1 - jitter + 2*jitter*random))
}
