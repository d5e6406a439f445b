// Package parts runs the parts of a cluster that must not end before it does. It keeps the law that nothing fails
// silently: a part that ends by itself, with or without an error, is the end of the whole, and its name is in the reason.
package parts

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Group is a number of parts that start and stop together.
type Group struct {
	ctx  context.Context
	end  context.CancelFunc
	fail context.CancelCauseFunc
	wg   sync.WaitGroup
}

// errSilent is the error of a part that returned none.
var errSilent = errors.New("it returned without an error")

// New returns an empty group. Its parts run until ctx ends or Stop is called; fail is called for each that ends earlier.
func New(ctx context.Context, fail context.CancelCauseFunc) *Group {
	g := &Group{fail: fail}
	g.ctx, g.end = context.WithCancel(ctx)
	return g
}

// Context is what the parts run in.
func (g *Group) Context() context.Context { return g.ctx }

// Go starts a part. What it returns after its context has ended is no failure, and is left out.
func (g *Group) Go(name string, run func(context.Context) error) {
	g.wg.Go(func() {
		err := run(g.ctx)
		if g.ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errSilent
		}
		g.fail(fmt.Errorf("%s ended by itself: %w", name, err))
	})
}

// Stop ends the parts and returns when all of them have returned.
func (g *Group) Stop() {
	g.end()
	g.wg.Wait()
}
