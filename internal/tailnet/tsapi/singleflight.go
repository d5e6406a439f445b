package tsapi

import (
	"context"
	"errors"
	"sync"
)

var errDropped = errors.New("the client was retired")

// A flight merges concurrent fetches of the same value into one. The fetch uses the client's
// lifetime and not a caller's context.
type flight[T any] struct {
	mu  sync.Mutex
	now *fetch[T]
}

type fetch[T any] struct {
	done  chan struct{}
	value T
	err   error
}

// do returns the result of the current fetch, or starts f if there is none.
func (l *flight[T]) do(ctx context.Context, c *Client, f func(context.Context) (T, error)) (none T, err error) {
	l.mu.Lock()
	cur := l.now
	if cur == nil {
		cur = &fetch[T]{done: make(chan struct{})}
		if !c.start(func(ctx context.Context) {
			defer func() {
				l.mu.Lock()
				defer l.mu.Unlock()
				l.now = nil
				close(cur.done)
			}()
			cur.value, cur.err = f(ctx)
		}) {
			l.mu.Unlock()
			return none, errDropped
		}
		l.now = cur
	}
	l.mu.Unlock()
	select {
	case <-cur.done:
		return cur.value, cur.err
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
}
