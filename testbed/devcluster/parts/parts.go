// Package parts runs the parts of a cluster that must not end before the cluster does. No failure is silent: if a
// part ends by itself, with or without an error, the whole cluster ends, and the reason contains the name of the
// part.
package parts

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Group is a set of parts that start and stop together.
type Group struct {
	ctx  context.Context
	end  context.CancelFunc
	fail context.CancelCauseFunc
	wg   sync.WaitGroup
}

// errSilent is the error for a part that returned nil.
var errSilent = errors.New("it returned without an error")

// New returns an empty group. Its parts run until ctx ends or the caller calls Stop. Group calls fail for each part
// that ends earlier.
func New(ctx context.Context, fail context.CancelCauseFunc) *Group {
	g := &Group{fail: fail}
	g.ctx, g.end = context.WithCancel(ctx)
	return g
}

// Context returns the context of the parts.
func (g *Group) Context() context.Context { return g.ctx }

// Go starts a part. An error after the end of its context is not a failure and is ignored.
func (g *Group) Go(name string, run func(context.Context) error) {
	g.wg.Go(func() {
		err := run(g.ctx)
		if g.ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errSilent
		}
		g.fail(fmt.Errorf("%s ended unexpectedly: %w", name, err))
	})
}

// Stop stops the parts and returns when all of them have returned.
func (g *Group) Stop() {
	g.end()
	g.wg.Wait()
}
