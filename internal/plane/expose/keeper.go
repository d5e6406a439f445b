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

// Node is a tailnet node that serves exactly one upstream, so a grant for the node covers only this upstream.
type Node interface {
	Run(context.Context) error
	Listen(context.Context) (net.Listener, error)
	Names() []string
	ConnContext(context.Context, net.Conn) context.Context
}

// Keeper keeps one upstream on the tailnet. Fields are required unless noted otherwise.
type Keeper struct {
	Upstream
	// Open creates the upstream's node, not yet running, and the function that identifies its callers.
	Open func(context.Context) (Node, func(*http.Request) (access.Caller, error), error)
	// Door holds the settings that all servers of the plane share, with the plane's Decide. Keeper sets Names and Identify from the node,
	// and replaces Decide by the upstream's.
	Door door.Door
	// Tell receives the state: the names that serve the upstream, or the error. It is optional.
	Tell func(names []string, err error)
	// Pause is the time before a failed node is started again.
	Pause time.Duration
}

// Run serves the upstream until ctx ends. It reports failures and retries, because one failed upstream must not end the others.
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
		_ = retry.Sleep(ctx, k.Pause) // the loop checks ctx itself
	}
}

// term runs the node once. The node stops last, because it carries the callers' connections.
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
