package exposure

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
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
	// Common holds the settings that all servers of the plane share, with the plane's Decide. Run sets Names and Identify from the node, and
	// replaces Decide by the upstream's.
	Common httpapi.Server
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
		server := k.Common
		server.Names, server.Identify, server.Decide = node.Names, identify, k.Decide(k.Common.Decide)
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

// UpstreamUse is the verb of an upstream that is open to every identified person. No role includes it, and it permits only that upstream.
const UpstreamUse access.Verb = "upstream.use"

// adminPatterns returns the patterns of paths that change Prometheus or stop it. They may lie below the upstream's own path.
func adminPatterns() (patterns []string) {
	for _, below := range []string{"", "/{a}", "/{a}/{b}"} {
		for _, p := range []string{"/-/reload", "/-/quit", "/api/v1/admin", "/api/v1/admin/{rest...}"} {
			patterns = append(patterns, below+p)
		}
	}
	return patterns
}

// Routes returns the routes of the upstream's server: every path, with the verb that it needs. It panics if Check would return an error.
func (u Upstream) Routes() []httpapi.Route {
	p := newProxy(u)
	if u.Access == AccessIdentified {
		return []httpapi.Route{u.route("/{path...}", UpstreamUse, p)}
	}
	routes := []httpapi.Route{u.route("/{path...}", access.ObserveRead, p)}
	for _, pattern := range adminPatterns() {
		routes = append(routes, u.route(pattern, access.ObserveAdmin, p))
	}
	return routes
}

func (u Upstream) route(pattern string, v access.Verb, p *proxy) httpapi.Route {
	op := httpapi.Op[struct{}, struct{}]{Pattern: pattern, Verb: v, Doc: "Use " + u.Name + ".", Page: true}
	return op.ServeHandler(func(w http.ResponseWriter, r *http.Request, permit access.Permit) { p.serve(w, r, permit, v) })
}

// Decide returns the Decide function of the upstream's server. plane is that of the operator plane. It admits only people, whatever a grant
// says about tags, because the exposed pages are for people.
func (u Upstream) Decide(plane func(access.Caller, access.Verb, time.Time) (access.Permit, error)) func(access.Caller, access.Verb, time.Time) (access.Permit, error) {
	return func(c access.Caller, v access.Verb, now time.Time) (access.Permit, error) {
		if err := access.Admit(c); err != nil {
			return access.Permit{}, err
		}
		if c.Tagged() {
			return access.Permit{}, problem.New(problem.TaggedNode, fmt.Sprintf("%s is a tagged node, which belongs to no person.", c.Device.Name),
				"Use a device that belongs to a person.")
		}
		if u.Access == AccessObserve {
			return plane(c, v, now)
		}
		switch {
		case v != UpstreamUse:
			return access.Permit{}, problem.New(problem.Internal, "internal error").WithCause(fmt.Errorf("no access rule covers the verb %q", v))
		case c.Shared:
			return access.Permit{}, problem.New(problem.ForeignNode, fmt.Sprintf("%s is shared in from another tailnet.", c.Device.Name),
				"Use a device of this tailnet.")
		}
		// The empty permit permits nothing: the upstream itself decides.
		return access.Permit{}, nil
	}
}

// grafanaRole returns the Grafana role for the permit's roles. Only a role for all organisations counts, as for observe.read.
func grafanaRole(p access.Permit) string {
	best := ""
	for _, d := range p.PlaneRoles() { // the widest first
		switch everywhere := slices.Contains(d.Orgs, access.AllOrgs); {
		case d.Name == access.PlatformAdmin:
			return "Admin"
		case !everywhere:
		case d.Name == access.OrgAdmin, d.Name == access.Operator:
			return "Editor"
		case d.Name == access.Viewer:
			best = "Viewer"
		}
	}
	return best
}
