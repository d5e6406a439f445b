package tsapi

import (
	"math/rand/v2"
	"time"
)

// A CircuitState says whether the client sends requests to the API.
type CircuitState string

// The states of the circuit breaker.
const (
	Closed   CircuitState = "Closed"   // requests are sent
	Open     CircuitState = "Open"     // too many failures: no requests for one minute
	HalfOpen CircuitState = "HalfOpen" // one request tests whether the API works again
)

// A circuit is a circuit breaker that counts consecutive failures.
//
//	Closed --5 failures--> Open --60 s--> HalfOpen --success--> Closed
//	                         ^--------------failure------|
//
// The caller must synchronise access.
type circuit struct {
	failures int
	until    time.Time // open until this time; zero: closed
	probing  bool      // the test request is in progress
	pause    time.Time // the API requested a pause until this time
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

// allow reports whether a request may be sent now. If not, it returns the reason and the time to
// wait. After a positive answer, the caller must call succeeded, failed, abandoned or limited.
func (c *circuit) allow(now time.Time) (why Class, wait time.Duration) {
	state := c.state(now)
	switch {
	case state == Open:
		return CircuitOpen, c.until.Sub(now)
	case state == HalfOpen && c.probing:
		return CircuitOpen, attemptTime
	case now.Before(c.pause):
		return RateLimited, c.pause.Sub(now)
	}
	c.probing = state == HalfOpen
	return OK, 0
}

// succeeded records that the API answered, even with a refusal.
func (c *circuit) succeeded() { c.failures, c.until, c.probing = 0, time.Time{}, false }

// failed records a failure and returns the time to wait, which is 0 after the first failure.
func (c *circuit) failed(now time.Time) time.Duration {
	c.failures++
	c.probing = false
	if c.failures >= circuitAfter {
		c.until = now.Add(circuitRest)
		return circuitRest
	}
	return backoff(c.failures, rand.Float64())
}

// release records that the caller left before the response, which is no information about the
// API.
func (c *circuit) release() { c.probing = false }

// limited records a rate limit and returns the time to wait. requested is the pause that the API
// requested; 0: none.
func (c *circuit) limited(now time.Time, requested time.Duration) time.Duration {
	c.succeeded()
	if requested <= 0 {
		requested = backoff(2, rand.Float64())
	}
	if until := now.Add(requested); until.After(c.pause) {
		c.pause = until
	}
	return c.pause.Sub(now)
}

// backoff returns the time to wait after this number of consecutive failures. random is in [0, 1).
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
