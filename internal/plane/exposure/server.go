package exposure

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// Node is a tailnet node that serves exactly one upstream, so a grant for the node covers only this upstream.
type Node interface {
	Run(context.Context) error
	Listen(context.Context) (net.Listener, error)
	Names() []string
	ConnContext(context.Context, net.Conn) context.Context
}

// Server keeps one upstream on the tailnet. Fields are required unless noted otherwise.
type Server struct {
	Upstream
	// OpenNode creates the upstream's node, not yet running, and the function that identifies its callers.
	OpenNode func(context.Context) (Node, func(*http.Request) (access.Caller, error), error)
	// Door holds the settings that all servers of the plane share, with the plane's Decide. Keeper sets Names and Identify from the node,
	// and replaces Decide by the upstream's.
	Door httpapi.Server
	// Report receives the state: the names that serve the upstream, or the error. It is optional.
	Report func(names []string, err error)
	// RetryAfter is the time before a failed node is started again.
	RetryAfter time.Duration
}

// Run serves the upstream until ctx ends. It reports failures and retries, because one failed upstream must not end the others.
func (k Server) Run(ctx context.Context) {
	if k.Report == nil {
		k.Report = func([]string, error) {}
	}
	for ctx.Err() == nil {
		err := k.serve(ctx)
		if ctx.Err() != nil {
			return
		}
		k.Report(nil, err)
		k.Log.Warn("an exposed service is not on the tailnet", "exposure", k.Name, "err", err, "again", k.RetryAfter)
		_ = retry.Sleep(ctx, k.RetryAfter) // the loop checks ctx itself
	}
}

// serve runs the node once. The node stops last, because it carries the callers' connections.
func (k Server) serve(ctx context.Context) error {
	node, identify, err := k.OpenNode(ctx)
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
		server := k.Door
		server.Names, server.Identify, server.Decide = node.Names, identify, k.Decide(k.Door.Decide)
		k.Report(node.Names(), nil)
		err = server.Run(ctx, ln, node.ConnContext, k.Routes()...)
	}
	cancel()
	leave()
	atNode.Wait()
	if err = errors.Join(nodeErr, err); err == nil {
		err = errors.New("the node has stopped")
	}
	return err
}
