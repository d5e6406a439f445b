package planemetrics

import (
	"context"
	"maps"
	"sync"
	"time"
)

// maxShared is the maximum number of cached results. Beyond that, each caller queries on its own.
const maxShared = 2000

// shared caches query results for callers with the same query, until the grid changes. A key names the pools, so organisations never share
// a result about different pools. Errors are not cached. The zero value is ready for use.
type shared struct {
	mu  sync.Mutex
	all map[string]*one
}

// one is a cached or running query.
type one struct {
	until    time.Time
	answered chan struct{}
	found    []Found // read it only after answered is closed
	err      error
}

// ask returns the cached result, or calls ask once for all callers with the key. That call continues, within its own limits, if the first
// caller leaves.
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
