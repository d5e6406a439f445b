package expose

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// A Node is a node of the tailnet that an upstream is reached by, and nothing else
// is: what grants say of it is of this upstream alone.
type Node interface {
	Run(context.Context) error
	Listen(context.Context) (net.Listener, error)
	Names() []string
	ConnContext(context.Context, net.Conn) context.Context
}

// A Keeper keeps one upstream on the tailnet. Fields without a remark are required.
type Keeper struct {
	Upstream
	// Open makes the upstream's node, which has not run, and what says who comes to it.
	Open func(context.Context) (Node, func(*http.Request) (access.Caller, error), error)
	// Door has what all doors of the plane have: Decide is the plane's. Names and
	// Identify are the node's, Decide becomes the upstream's.
	Door door.Door
	// Tell, optional, hears how it stands: serving under names, or why not.
	Tell func(names []string, err error)
	// Pause is how long to wait before a node that failed is tried again.
	Pause time.Duration
}

// Run serves the upstream until ctx ends. What fails is told, and tried again: that
// one upstream has no node is no reason to end the others.
func (k Keeper) Run(ctx context.Context) {
	if k.Tell == nil {
		k.Tell = func([]string, error) {}
	}
	for ctx.Err() == nil {
		err := k.term(ctx)
		if ctx.Err() != nil {
			return
		}
		k.Tell(nil, err)
		k.Log.Warn("an exposed service is not on the tailnet", "exposure", k.Name, "err", err, "again", k.Pause)
		_ = retry.Sleep(ctx, k.Pause) // the loop looks at ctx itself
	}
}

// term is one life of the node. The node, on whose connections visitors are, goes last.
func (k Keeper) term(ctx context.Context) error {
	node, identify, err := k.Open(ctx)
	if err != nil {
		return err
	}
	nodeCtx, leave := context.WithCancel(context.WithoutCancel(ctx))
	defer leave()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var atNode sync.WaitGroup
	var nodeErr error
	atNode.Go(func() { defer cancel(); nodeErr = node.Run(nodeCtx) })
	ln, err := node.Listen(ctx)
	if err == nil {
		way := k.Door
		way.Names, way.Identify, way.Decide = node.Names, identify, k.Decide(k.Door.Decide)
		k.Tell(node.Names(), nil)
		err = way.Run(ctx, ln, node.ConnContext, k.Routes()...)
	}
	cancel()
	leave()
	atNode.Wait()
	if err = errors.Join(nodeErr, err); err == nil {
		err = errors.New("the node has ended")
	}
	return err
}
