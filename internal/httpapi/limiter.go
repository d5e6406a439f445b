package httpapi

import (
	"cmp"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

// Limits limits the requests of callers to one server. A zero Rate means no limit.
type Limits struct {
	Verbs map[access.Verb]Rate // for each device and each login
	Other Rate                 // for each verb that is not in Verbs
	All   Rate                 // for all callers together
	// WaitersPerCaller and Waiters limit the number of waiting requests; 0: no limit.
	WaitersPerCaller, Waiters int
	// Connections limits the open connections of one address. AllConnections limits them for all
	// addresses together. 0: no limit.
	Connections, AllConnections int
	// Age is the maximum age of a connection. The server closes an older connection after the next
	// response. This matters because a tailnet applies revoked rules to new connections only. 0: no
	// limit.
	Age time.Duration
}

// A Rate is the rate of a token bucket.
type Rate struct {
	PerMinute float64
	Burst     int
}

// maxBuckets limits the memory that callers can use. Callers are devices of the tailnet, so a full
// table is exceptional.
const maxBuckets = 20_000

type bucketKey struct {
	caller string
	verb   access.Verb
}

type limiter struct {
	limits Limits
	all    *rate.Limiter

	mu               sync.Mutex
	buckets          map[bucketKey]*rate.Limiter
	waitersPerCaller map[string]int
	waiters          int
}

func newLimiter(l Limits) *limiter {
	return &limiter{limits: l, all: l.All.bucket(), buckets: map[bucketKey]*rate.Limiter{}, waitersPerCaller: map[string]int{}}
}

func (r Rate) bucket() *rate.Limiter {
	if r.PerMinute <= 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(r.PerMinute/60), max(r.Burst, 1))
}

// admit takes a token from the caller's device, the caller's login, and the bucket of all callers.
// A caller above its limit takes no token of the shared bucket. Otherwise one device could lock out
// all others (DS-01).
func (l *limiter) admit(c access.Caller, v access.Verb, now time.Time) error {
	each, ok := l.limits.Verbs[v]
	if !ok {
		each, v = l.limits.Other, ""
	}
	var wait time.Duration
	for _, who := range []string{"node:" + c.Device.ID, "login:" + string(c.Login)} {
		if strings.HasSuffix(who, ":") { // no login, or no known device
			continue
		}
		wait = max(wait, takeToken(l.bucket(bucketKey{who, v}, each), now))
	}
	if wait == 0 {
		wait = takeToken(l.all, now)
	}
	if wait > 0 {
		return problem.New(problem.RateLimited, "The server received too many requests.", fmt.Sprintf("Wait %v.", (wait+time.Second-1).Truncate(time.Second))).WithRetryAfter(wait)
	}
	return nil
}

// Admitter returns a function that applies the limits of a verb to callers that another caller names, such as the devices
// of an access proxy's requests. It has buckets of its own.
func (d *Server) Admitter(v access.Verb) func(access.Caller) error {
	l := newLimiter(d.Limits)
	return func(c access.Caller) error { return l.admit(c, v, d.Now()) }
}

// takeToken takes a token and returns 0, or returns how long to wait for one.
func takeToken(b *rate.Limiter, now time.Time) time.Duration {
	if b == nil {
		return 0
	}
	r := b.ReserveN(now, 1)
	wait := r.DelayFrom(now)
	if wait > 0 {
		r.CancelAt(now)
	}
	return wait
}

func (l *limiter) bucket(k bucketKey, r Rate) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, ok := l.buckets[k]
	if !ok {
		if len(l.buckets) >= maxBuckets {
			clear(l.buckets)
		}
		b = r.bucket()
		l.buckets[k] = b
	}
	return b
}

// acquireWaiter reserves a slot for a waiting request. The caller must call release.
func (l *limiter) acquireWaiter(c access.Caller) (release func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	who := cmp.Or(c.Device.ID, c.Identity())
	if p, a := l.limits.WaitersPerCaller, l.limits.Waiters; p > 0 && l.waitersPerCaller[who] >= p || a > 0 && l.waiters >= a {
		return nil, problem.New(problem.RateLimited, "Too many requests are already waiting.", "Wait until the other requests have a response.").WithRetryAfter(time.Second)
	}
	l.waitersPerCaller[who]++
	l.waiters++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.waiters--
		if l.waitersPerCaller[who]--; l.waitersPerCaller[who] == 0 {
			delete(l.waitersPerCaller, who)
		}
	}, nil
}
