package xds

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/envoyproxy/gateway/proto/extension"

	"github.com/tailplane/tailplane/internal/gateway"
)

// PostRouteModify handles routes with a TailscaleService backend or with a policy on their
// HTTPRoute. The call does not name a Gateway. Rules that differ between Gateways are therefore
// applied by the hooks that know the Gateway.
func (s *Server) PostRouteModify(ctx context.Context, in *extension.PostRouteModifyRequest) (*extension.PostRouteModifyResponse, error) {
	echo := &extension.PostRouteModifyResponse{Route: in.GetRoute()}
	return respond(ctx, s, call[*extension.PostRouteModifyResponse]{hook: RouteHook, request: in, echo: echo,
		work: func(_ context.Context, n *gateway.Snapshot) (*extension.PostRouteModifyResponse, error) {
			key, ok := ruleOf(in.GetRoute().GetName())
			if !ok {
				return echo, nil
			}
			rule, agreed, ok := n.Rule(key)
			if !ok || !agreed {
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
func (s *Server) PostVirtualHostModify(ctx context.Context, in *extension.PostVirtualHostModifyRequest) (*extension.PostVirtualHostModifyResponse, error) {
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
func (s *Server) PostHTTPListenerModify(ctx context.Context, in *extension.PostHTTPListenerModifyRequest) (*extension.PostHTTPListenerModifyResponse, error) {
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
func (s *Server) PostClusterModify(ctx context.Context, in *extension.PostClusterModifyRequest) (*extension.PostClusterModifyResponse, error) {
	echo := &extension.PostClusterModifyResponse{Cluster: in.GetCluster()}
	return respond(ctx, s, call[*extension.PostClusterModifyResponse]{hook: ClusterHook, request: in, echo: echo,
		work: func(_ context.Context, n *gateway.Snapshot) (*extension.PostClusterModifyResponse, error) {
			key, ok := ruleOf(in.GetCluster().GetName())
			if !ok || key.ClusterName() != in.GetCluster().GetName() {
				return echo, nil
			}
			rule, agreed, ok := n.Rule(key)
			if !ok || !agreed || rule.Sole == nil {
				return echo, nil
			}
			c, err := retarget(in.GetCluster(), *rule.Sole)
			return &extension.PostClusterModifyResponse{Cluster: c}, err
		}}), nil
}

// PostEndpointsModify changes nothing. Envoy Gateway is configured not to call it.
func (s *Server) PostEndpointsModify(ctx context.Context, in *extension.PostEndpointsModifyRequest) (*extension.PostEndpointsModifyResponse, error) {
	echo := &extension.PostEndpointsModifyResponse{LoadAssignment: in.GetLoadAssignment()}
	return respond(ctx, s, call[*extension.PostEndpointsModifyResponse]{hook: EndpointsHook, request: in, echo: echo,
		work: func(context.Context, *gateway.Snapshot) (*extension.PostEndpointsModifyResponse, error) {
			return echo, nil
		}}), nil
}

// PostTranslateModify is the last call, once for each Gateway, and receives all resources. It
// makes the changes that the other hooks did not make.
func (s *Server) PostTranslateModify(ctx context.Context, in *extension.PostTranslateModifyRequest) (*extension.PostTranslateModifyResponse, error) {
	echo := &extension.PostTranslateModifyResponse{Clusters: in.GetClusters(), Secrets: in.GetSecrets(), Listeners: in.GetListeners(), Routes: in.GetRoutes()}
	revisions := requestedRevisions(in.GetPostTranslateContext().GetExtensionResources())
	late := s.wait(ctx, revisions)
	var reports atomic.Pointer[[]gateway.TranslationReport] // an abandoned try may still write it
	out := respond(ctx, s, call[*extension.PostTranslateModifyResponse]{hook: TranslationHook, gateway: soleGateway(revisions), request: in, echo: echo, stale: late,
		work: func(ctx context.Context, n *gateway.Snapshot) (*extension.PostTranslateModifyResponse, error) {
			t := translation{snapshot: n, in: echo, limit: s.MaxMessage / 10 * 9}
			out, err := t.render(ctx)
			if err != nil {
				return nil, err
			}
			all := t.reports(revisions)
			reports.Store(&all)
			return out, nil
		}})
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
