package plane

import (
	"context"
	"maps"
	"sync"
	"time"
)

// maxCachedQueries is the maximum number of cached results. Beyond that, each caller queries on its own.
const maxCachedQueries = 2000

// queryCache caches query results for callers with the same query, until the grid changes. A key names the pools, so organisations never share
// a result about different pools. Errors are not cached. The zero value is ready for use.
type queryCache struct {
	mu  sync.Mutex
	all map[string]*cachedQuery
}

// cachedQuery is a cached or running query.
type cachedQuery struct {
	until    time.Time
	answered chan struct{}
	found    []QueryResult // read it only after answered is closed
	err      error
}

// do returns the cached result, or calls ask once for all callers with the key. That call continues, within its own limits, if the first
// caller leaves.
func (s *queryCache) do(ctx context.Context, key string, now, until time.Time, query func(context.Context) ([]QueryResult, error)) ([]QueryResult, error) {
	s.mu.Lock()
	maps.DeleteFunc(s.all, func(_ string, o *cachedQuery) bool { return !now.Before(o.until) })
	o, there := s.all[key]
	switch {
	case there:
	case len(s.all) >= maxCachedQueries:
		s.mu.Unlock()
		return query(ctx)
	default:
		o = &cachedQuery{until: until, answered: make(chan struct{})}
		if s.all == nil {
			s.all = map[string]*cachedQuery{}
		}
		s.all[key] = o
		go func() {
			o.found, o.err = query(context.WithoutCancel(ctx))
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

func (s *queryCache) forget(key string, o *cachedQuery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[key] == o {
		delete(s.all, key)
	}
}
