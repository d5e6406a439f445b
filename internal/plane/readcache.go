package plane

import (
	"cmp"
	"context"
	"maps"
	"sync"
	"time"
)

// maxCachedReads is the default of [ReadCache.Max].
const maxCachedReads = 2000

// ReadCache shares the results of reads among callers with the same key, until a result expires. It does not cache errors. The zero value is
// ready for use.
type ReadCache[T any] struct {
	// Max is the maximum number of cached results. Beyond that, each caller reads on its own. 0: maxCachedReads.
	Max int

	mu  sync.Mutex
	all map[string]*cachedRead[T]
}

// cachedRead is a cached or running read.
type cachedRead[T any] struct {
	until time.Time
	done  chan struct{}
	found T // read it only after done is closed
	err   error
}

// Do returns the cached result, or calls read once for all callers with the key. That call continues, within its own limits, if the first
// caller leaves. The caller must not modify the result.
func (c *ReadCache[T]) Do(ctx context.Context, key string, now, until time.Time, read func(context.Context) (T, error)) (found T, err error) {
	c.mu.Lock()
	maps.DeleteFunc(c.all, func(_ string, o *cachedRead[T]) bool { return !now.Before(o.until) })
	o, there := c.all[key]
	switch {
	case there:
	case len(c.all) >= cmp.Or(c.Max, maxCachedReads):
		c.mu.Unlock()
		return read(ctx)
	default:
		o = &cachedRead[T]{until: until, done: make(chan struct{})}
		if c.all == nil {
			c.all = map[string]*cachedRead[T]{}
		}
		c.all[key] = o
		go func() {
			o.found, o.err = read(context.WithoutCancel(ctx))
			if o.err != nil {
				c.forget(key, o)
			}
			close(o.done)
		}()
	}
	c.mu.Unlock()
	select {
	case <-o.done:
		return o.found, o.err
	case <-ctx.Done():
		return found, ctx.Err()
	}
}

func (c *ReadCache[T]) forget(key string, o *cachedRead[T]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all[key] == o {
		delete(c.all, key)
	}
}
