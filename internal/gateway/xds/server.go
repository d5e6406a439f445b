// Package xds implements Envoy Gateway's extension hooks. It renders a gateway.Snapshot
// into Envoy routes, clusters and listeners. If a snapshot cannot be rendered, it uses the last
// good one. No call returns an error or removes resources from the request.
package xds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/envoyproxy/gateway/proto/extension"
	"google.golang.org/protobuf/proto"

	"github.com/tailplane/tailplane/internal/gateway"
)

// Result is the outcome of a call.
type Result string

const (
	Changed   Result = "changed"   // the answer contains changes
	Unchanged Result = "unchanged" // the answer equals the request
	Fallback  Result = "fallback"  // rendering the newest snapshot failed; the last good snapshot or the unchanged request was returned
	Stale     Result = "stale"     // Envoy Gateway requested a newer revision than the server has
)

// Results returns all values of Result, for metrics.
func Results() []Result { return []Result{Changed, Unchanged, Fallback, Stale} }

// Hook is one of the six calls, named as in Envoy Gateway's configuration.
type Hook string

const (
	RouteHook       Hook = "Route"
	VirtualHostHook Hook = "VirtualHost"
	ListenerHook    Hook = "HTTPListener"
	ClusterHook     Hook = "Cluster"
	EndpointsHook   Hook = "Endpoints"
	TranslationHook Hook = "Translation"
)

// Hooks returns all values of Hook.
func Hooks() []Hook {
	return []Hook{RouteHook, VirtualHostHook, ListenerHook, ClusterHook, EndpointsHook, TranslationHook}
}

// A Call is the measurement of one call.
type Call struct {
	Hook    Hook
	Result  Result
	Took    time.Duration
	In, Out int // bytes
}

// Server is the extension server. Fields are required unless documented otherwise.
type Server struct {
	Deadline   time.Duration // maximum time of one call; the caller's deadline may be earlier
	MaxMessage int           // maximum message size in bytes in both directions; must equal Envoy Gateway's maxMessageSize
	Log        *slog.Logger
	Measure    func(Call)
	Report     func(gateway.TranslationReport) // optional: called with the result of each Translation; must not block

	Reflection bool // turns on gRPC reflection for tools such as grpcurl

	extension.UnimplementedEnvoyGatewayExtensionServer

	open    atomic.Bool
	once    sync.Once
	first   chan struct{} // closed by the first snapshot
	current atomic.Pointer[published]
	hosts   sync.Map // Names of Gateways whose virtual hosts were requested since their last Translation
	good    sync.Map // Gateway Name -> the last *gateway.Snapshot that rendered without error
}

// published is a snapshot with a channel that is closed when a newer one replaces it.
type published struct {
	snapshot *gateway.Snapshot
	replaced chan struct{}
}

func (s *Server) validate() error {
	switch {
	case s.Deadline <= 0:
		return errors.New("extension server: the deadline is not set")
	case s.MaxMessage <= 0:
		return errors.New("extension server: the maximum message size is not set")
	case s.Log == nil || s.Measure == nil:
		return errors.New("extension server: log and metrics are required")
	}
	return nil
}

// Ready returns a channel that is closed when the first snapshot is published.
func (s *Server) Ready() <-chan struct{} {
	s.once.Do(func() { s.first = make(chan struct{}) })
	return s.first
}

// Open reports whether the server listens.
func (s *Server) Open() bool { return s.open.Load() }

// Publish makes n the snapshot for subsequent calls. The caller must not modify n afterwards and
// must not call Publish concurrently.
func (s *Server) Publish(n *gateway.Snapshot) {
	ready := s.Ready()
	was := s.current.Swap(&published{n, make(chan struct{})})
	if was != nil {
		close(was.replaced)
		return
	}
	select {
	case <-ready:
	default:
		close(s.first)
	}
}

// A call is the work of one hook. It can run on any snapshot.
type call[M proto.Message] struct {
	hook    Hook
	gateway gateway.Name // zero if the call names no Gateway; such calls share one last good snapshot
	request proto.Message
	echo    M                                                   // the answer without changes
	work    func(context.Context, *gateway.Snapshot) (M, error) // returns echo if nothing changes; must not modify request or echo
	stale   bool
}

// respond runs the work on the newest snapshot. If that fails, it uses the last good snapshot. If
// that fails too, it returns the answer without changes.
func respond[M proto.Message](ctx context.Context, s *Server, c call[M]) M {
	began := time.Now()
	limit := s.Deadline
	if d, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(d)-100*time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	m, result := respondWithin(ctx, s, c, limit/2)
	s.Measure(Call{Hook: c.hook, Result: result, Took: time.Since(began), In: proto.Size(c.request), Out: proto.Size(m)})
	return m
}

// respondWithin limits the first try to share, so that time is left for a second try.
func respondWithin[M proto.Message](ctx context.Context, s *Server, c call[M], share time.Duration) (M, Result) {
	now := s.current.Load()
	if now == nil {
		return c.echo, Unchanged
	}
	first, cancel := context.WithTimeout(ctx, share)
	m, err := attempt(first, c, now.snapshot)
	cancel()
	if err == nil {
		s.good.Store(c.gateway, now.snapshot)
		switch {
		case c.stale:
			return m, Stale
		case proto.Message(m) != proto.Message(c.echo):
			return m, Changed
		}
		return m, Unchanged
	}
	s.Log.Error("cannot answer a hook from the newest snapshot", "hook", c.hook, "gateway", c.gateway.String(), "err", err)
	if last, ok := s.good.Load(c.gateway); ok && last != now.snapshot {
		m, err := attempt(ctx, c, last.(*gateway.Snapshot))
		if err == nil {
			return m, Fallback
		}
		s.Log.Error("cannot answer a hook from the last good snapshot", "hook", c.hook, "gateway", c.gateway.String(), "err", err)
	}
	return c.echo, Fallback
}

// attempt runs the work in its own goroutine and waits at most until ctx ends, even if the work does
// not return.
func attempt[M proto.Message](ctx context.Context, c call[M], n *gateway.Snapshot) (M, error) {
	type outcome struct {
		m   M
		err error
	}
	done := make(chan outcome, 1)
	go func() {
		var o outcome
		defer func() {
			if p := recover(); p != nil {
				o.err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
			}
			done <- o
		}()
		o.m, o.err = c.work(ctx, n)
	}()
	select {
	case o := <-done:
		return o.m, o.err
	case <-ctx.Done():
		var none M
		return none, context.Cause(ctx)
	}
}

// PostRouteModify handles routes with a TailscaleService backend or with a policy on their
// HTTPRoute. The call does not name a Gateway. Rules that differ between Gateways are therefore
// applied by the hooks that know the Gateway.
func (s *Server) PostRouteModify(ctx context.Context, in *extension.PostRouteModifyRequest) (*extension.PostRouteModifyResponse, error) {
	echo := &extension.PostRouteModifyResponse{Route: in.GetRoute()}
	return respond(ctx, s, call[*extension.PostRouteModifyResponse]{hook: RouteHook, request: in, echo: echo,
		work: func(_ context.Context, n *gateway.Snapshot) (*extension.PostRouteModifyResponse, error) {
			key, named := ruleOf(in.GetRoute().GetName())
			rule, agreed, ok := n.Rule(key)
			if !named || !ok || !agreed {
				return echo, nil
			}
			r := applyRule(in.GetRoute(), rule)
			if r == in.GetRoute() {
				return echo, nil
			}
			return &extension.PostRouteModifyResponse{Route: r}, r.ValidateAll()
		}}), nil
}

// PostVirtualHostModify handles every virtual host.
func (s *Server) PostVirtualHostModify(
	ctx context.Context,
	in *extension.PostVirtualHostModifyRequest,
) (*extension.PostVirtualHostModifyResponse, error) {
	echo := &extension.PostVirtualHostModifyResponse{VirtualHost: in.GetVirtualHost()}
	name, section, ok := gatewayOf(in.GetVirtualHost())
	return respond(ctx, s, call[*extension.PostVirtualHostModifyResponse]{hook: VirtualHostHook, gateway: name, request: in, echo: echo,
		work: func(_ context.Context, n *gateway.Snapshot) (*extension.PostVirtualHostModifyResponse, error) {
			g := n.Gateways[name]
			if !ok || g == nil {
				return echo, nil
			}
			// This call does not see all clusters. Translation does, and removes routes to
			// clusters that cannot be used.
			h := renderHost(in.GetVirtualHost(), g, section, func(c string) bool { _, ok := g.Cluster(c); return ok })
			s.hosts.Store(name, true)
			if !h.changed {
				return echo, nil
			}
			return &extension.PostVirtualHostModifyResponse{VirtualHost: h.VirtualHost}, nil
		}}), nil
}

// PostHTTPListenerModify handles every listener, including Envoy Gateway's internal one.
func (s *Server) PostHTTPListenerModify(
	ctx context.Context,
	in *extension.PostHTTPListenerModifyRequest,
) (*extension.PostHTTPListenerModifyResponse, error) {
	echo := &extension.PostHTTPListenerModifyResponse{Listener: in.GetListener()}
	names := requestedRevisions(in.GetPostListenerContext().GetExtensionResources())
	return respond(ctx, s, call[*extension.PostHTTPListenerModifyResponse]{hook: ListenerHook, request: in, echo: echo,
		work: func(_ context.Context, n *gateway.Snapshot) (*extension.PostHTTPListenerModifyResponse, error) {
			l, err := renderListener(in.GetListener(), n, names)
			if err != nil || l == in.GetListener() {
				return echo, err
			}
			return &extension.PostHTTPListenerModifyResponse{Listener: l}, l.ValidateAll()
		}}), nil
}

// PostClusterModify handles the clusters of routes with a TailscaleService backend. Envoy Gateway
// also sends the clusters of the other backends of these routes.
func (s *Server) PostClusterModify(
	ctx context.Context,
	in *extension.PostClusterModifyRequest,
) (*extension.PostClusterModifyResponse, error) {
	echo := &extension.PostClusterModifyResponse{Cluster: in.GetCluster()}
	return respond(ctx, s, call[*extension.PostClusterModifyResponse]{hook: ClusterHook, request: in, echo: echo,
		work: func(_ context.Context, n *gateway.Snapshot) (*extension.PostClusterModifyResponse, error) {
			key, named := ruleOf(in.GetCluster().GetName())
			rule, agreed, ok := n.Rule(key)
			if !named || key.ClusterName() != in.GetCluster().GetName() || !ok || !agreed || rule.Sole == nil {
				return echo, nil
			}
			c, err := retarget(in.GetCluster(), *rule.Sole)
			return &extension.PostClusterModifyResponse{Cluster: c}, err
		}}), nil
}

// PostEndpointsModify changes nothing. Envoy Gateway is configured not to call it.
func (s *Server) PostEndpointsModify(
	ctx context.Context,
	in *extension.PostEndpointsModifyRequest,
) (*extension.PostEndpointsModifyResponse, error) {
	echo := &extension.PostEndpointsModifyResponse{LoadAssignment: in.GetLoadAssignment()}
	return respond(ctx, s, call[*extension.PostEndpointsModifyResponse]{hook: EndpointsHook, request: in, echo: echo,
		work: func(context.Context, *gateway.Snapshot) (*extension.PostEndpointsModifyResponse, error) {
			return echo, nil
		}}), nil
}

// PostTranslateModify is the last call, once for each Gateway, and receives all resources. It
// makes the changes that the other hooks did not make.
func (s *Server) PostTranslateModify(
	ctx context.Context,
	in *extension.PostTranslateModifyRequest,
) (*extension.PostTranslateModifyResponse, error) {
	echo := &extension.PostTranslateModifyResponse{
		Clusters:  in.GetClusters(),
		Secrets:   in.GetSecrets(),
		Listeners: in.GetListeners(),
		Routes:    in.GetRoutes(),
	}
	revisions := requestedRevisions(in.GetPostTranslateContext().GetExtensionResources())
	late := s.wait(ctx, revisions)
	var reports atomic.Pointer[[]gateway.TranslationReport] // an abandoned try may still write it
	out := respond(
		ctx,
		s,
		call[*extension.PostTranslateModifyResponse]{
			hook:    TranslationHook,
			gateway: soleGateway(revisions),
			request: in,
			echo:    echo,
			stale:   late,
			work: func(ctx context.Context, n *gateway.Snapshot) (*extension.PostTranslateModifyResponse, error) {
				t := translation{snapshot: n, in: echo, limit: s.MaxMessage / 10 * 9}
				out, err := t.render(ctx)
				if err != nil {
					return nil, err
				}
				all := t.reports(revisions)
				reports.Store(&all)
				return out, nil
			},
		},
	)
	if reports.Load() == nil {
		return out, nil
	}
	for _, r := range *reports.Load() {
		_, r.VirtualHosts = s.hosts.LoadAndDelete(r.Gateway)
		r.Incomplete = r.Received == 0 && !r.VirtualHosts
		if s.Report != nil {
			s.Report(r)
		}
	}
	return out, nil
}

// revisionTimeout is the time that a Translation waits for the requested snapshot. Other calls are served
// in the meantime.
const revisionTimeout = 250 * time.Millisecond

// wait waits until the snapshot has the requested revisions. It returns true if they did not
// arrive in time.
func (s *Server) wait(ctx context.Context, revisions map[gateway.Name]string) (late bool) {
	ctx, cancel := context.WithTimeout(ctx, revisionTimeout)
	defer cancel()
	for {
		now := s.current.Load()
		if now == nil {
			return false
		}
		late = false
		for name, revision := range revisions {
			if g := now.snapshot.Gateways[name]; revision != "" && (g == nil || g.Revision != revision) {
				late = true
			}
		}
		if !late {
			return false
		}
		select {
		case <-now.replaced:
		case <-ctx.Done():
			return true
		}
	}
}

// soleGateway returns the Gateway of a translation, or the zero Name if there are several.
func soleGateway(revisions map[gateway.Name]string) (name gateway.Name) {
	if len(revisions) != 1 {
		return gateway.Name{}
	}
	for name = range revisions {
	}
	return name
}
