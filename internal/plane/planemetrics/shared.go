package planemetrics

import (
	"context"
	"maps"
	"sync"
	"time"
)

// maxShared is how many answers are kept. Beyond that each caller asks alone.
const maxShared = 2000

// shared are answers that callers have in common who ask the same for as long as the
// same would be answered. What differs in what it is about is not the same: a key names
// the pools, so that no organisation's view is another's. Failures are not kept. Its zero
// value is ready for use.
type shared struct {
	mu  sync.Mutex
	all map[string]*one
}

// one is a question that was asked.
type one struct {
	until    time.Time
	answered chan struct{}
	found    []Found // read it after answered
	err      error
}

// ask is the answer that is there, or that comes of ask: it goes on, within its own
// bounds, if the caller who asked first has left.
func (s *shared) ask(ctx context.Context, key string, now, until time.Time, ask func(context.Context) ([]Found, error)) ([]Found, error) {
	s.mu.Lock()
	maps.DeleteFunc(s.all, func(_ string, o *one) bool { return !now.Before(o.until) })
	o, there := s.all[key]
	switch {
	case there:
	case len(s.all) >= maxShared:
		s.mu.Unlock()
		return ask(ctx)
	default:
		o = &one{until: until, answered: make(chan struct{})}
		if s.all == nil {
			s.all = map[string]*one{}
		}
		s.all[key] = o
		go func() {
			o.found, o.err = ask(context.WithoutCancel(ctx))
			if o.err != nil {
				s.forget(key, o)
			}
			close(o.answered)
		}()
	}
	s.mu.Unlock()
	select {
	case <-o.answered:
		return o.found, o.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *shared) forget(key string, o *one) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[key] == o {
		delete(s.all, key)
	}
}
