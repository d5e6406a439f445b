package accessproxy

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

// lookupPause is the shortest time between two live reads of one sign-in. Informers of a caller who is not signed in ask
// again for ever, so a refusal must be cheap.
const lookupPause = time.Second

// maxLookups limits the remembered lookups.
const maxLookups = 10_000

// lookups confirm by a live read that a caller has no live sign-in, because the cache may lag behind a login that the
// caller has just seen succeed. Requests for the same sign-in share a read.
type lookups struct {
	mu  sync.Mutex
	all map[string]*lookup
}

type lookup struct {
	mu    sync.Mutex
	asked time.Time // when the last read began
	found signin.Signin
	ok    bool
	err   error
}

func (l *lookups) of(name string) *lookup {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == nil {
		l.all = map[string]*lookup{}
	}
	if len(l.all) >= maxLookups {
		clear(l.all) // the worst effect is one more read for each
	}
	one := l.all[name]
	if one == nil {
		one = &lookup{}
		l.all[name] = one
	}
	return one
}

// signin returns the stored sign-in called name: from the cache if it is live there, and otherwise from a live read that
// began after the request did.
func (p *Proxy) signin(ctx context.Context, name string, began time.Time) (signin.Signin, bool, error) {
	if s, ok := p.liveInCache(name); ok {
		return s, true, nil
	}
	one := p.lookups.of(name)
	one.mu.Lock()
	defer one.mu.Unlock()
	if !one.asked.IsZero() && !one.asked.Before(began) {
		return one.found, one.ok, one.err
	}
	if wait := one.asked.Add(lookupPause).Sub(p.Now()); wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return signin.Signin{}, false, context.Cause(ctx)
		}
		if s, ok := p.liveInCache(name); ok {
			return s, true, nil
		}
	}
	one.asked = p.Now()
	one.found, one.err = p.Signins.Get(context.WithoutCancel(ctx), name) // others wait for the same answer
	one.ok = one.err == nil
	switch {
	case errors.Is(one.err, signin.ErrNotFound):
		one.err = nil
	case one.err != nil:
		one.err = problem.New(problem.Unavailable, "The proxy cannot read the sign-in from the API server.", "Try again in a moment.").
			WithRetryAfter(time.Second).WithCause(one.err)
	}
	return one.found, one.ok, one.err
}

// liveInCache returns the cached sign-in if it gives access now, or will in a moment.
func (p *Proxy) liveInCache(name string) (signin.Signin, bool) {
	s, ok := p.Signins.GetCached(name)
	return s, ok && isLive(s, p.Now()) && !p.proof.isGone(s.Name, s.UID, s.Version)
}
