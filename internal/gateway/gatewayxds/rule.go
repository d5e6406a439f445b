package gatewayxds

import (
	"regexp"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/tailplane/tailplane/internal/gateway"
)

const (
	metadataKey = "gateway.tailscale.com"
	// refused is no cluster: the share of requests that is given to it is answered with an error, as Envoy Gateway does it.
	refused = "invalid-backend-cluster"
	// otherHosts is a message without fields: not to one that was tried.
	otherHosts = "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
)

// pathOf returns which paths a route is for.
func pathOf(m *routev3.RouteMatch) gateway.Path {
	switch p := m.GetPathSpecifier().(type) {
	case *routev3.RouteMatch_Path:
		return gateway.Path{Kind: gateway.PathExact, Text: p.Path}
	case *routev3.RouteMatch_PathSeparatedPrefix:
		return gateway.Path{Kind: gateway.PathPrefix, Text: p.PathSeparatedPrefix}
	case *routev3.RouteMatch_Prefix:
		if p.Prefix == "/" || p.Prefix == "" {
			return gateway.Path{Kind: gateway.PathPrefix}
		}
		return gateway.Path{Kind: gateway.PathString, Text: p.Prefix}
	}
	return gateway.Path{Kind: gateway.PathUnknown}
}

// setPath makes a match one for p.
func setPath(m *routev3.RouteMatch, p gateway.Path) {
	switch {
	case p.Kind == gateway.PathExact:
		m.PathSpecifier = &routev3.RouteMatch_Path{Path: p.Text}
	case p.Kind == gateway.PathPrefix && p.Text != "":
		m.PathSpecifier = &routev3.RouteMatch_PathSeparatedPrefix{PathSeparatedPrefix: p.Text}
	case p.Kind == gateway.PathPrefix:
		m.PathSpecifier = &routev3.RouteMatch_Prefix{Prefix: "/"}
	default:
		m.PathSpecifier = &routev3.RouteMatch_Prefix{Prefix: p.Text}
	}
}

// forwards says whether a route sends requests on, or would if its rule had a backend. What its owner answers or redirects
// is left alone; Envoy Gateway's own answer for a rule without backends is status 500 and no word.
func forwards(r *routev3.Route) bool {
	switch a := r.GetAction().(type) {
	case *routev3.Route_Route:
		return true
	case *routev3.Route_DirectResponse:
		return a.DirectResponse.GetStatus() == 500 && a.DirectResponse.GetBody() == nil
	}
	return false
}

// applyRule returns the route as the rule wishes it, and the route itself if it wishes nothing. Applied again it changes
// nothing more.
func applyRule(r *routev3.Route, rule gateway.Rule) *routev3.Route {
	if !forwards(r) {
		return r
	}
	out := proto.CloneOf(r)
	stamp(out, rule.Policies)
	path := pathOf(r.GetMatch())
	for _, p := range rule.Paths {
		if p.Path.Relation(path) == gateway.Covers {
			share(out, []gateway.WeightedCluster{{Cluster: p.Cluster, Weight: 1}}, nil)
			return out
		}
	}
	switch {
	case len(rule.Default) > 0:
		share(out, rule.Default, nil)
	case rule.Sole != nil:
		retry(action(out))
	case len(rule.Mixed) > 0 || rule.RefusedWeight > 0:
		others := own(r, rule)
		if rule.RefusedWeight > 0 {
			others = append(weights{weight(refused, rule.RefusedWeight)}, others...)
		}
		share(out, rule.Mixed, others)
	}
	return out
}

// stamp notes which policies are in effect.
func stamp(r *routev3.Route, policies []gateway.PolicyStamp) {
	if len(policies) == 0 {
		return
	}
	list := &structpb.ListValue{}
	for _, p := range policies {
		list.Values = append(list.Values, structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
			"namespace": structpb.NewStringValue(p.Namespace), "name": structpb.NewStringValue(p.Name.Name), "generation": structpb.NewNumberValue(float64(p.Generation)),
		}}))
	}
	if r.Metadata == nil {
		r.Metadata = &corev3.Metadata{}
	}
	if r.Metadata.FilterMetadata == nil {
		r.Metadata.FilterMetadata = map[string]*structpb.Struct{}
	}
	r.Metadata.FilterMetadata[metadataKey] = &structpb.Struct{Fields: map[string]*structpb.Value{"policies": structpb.NewListValue(list)}}
}

// action returns the route's action that sends requests on, which it gets if it has none.
func action(r *routev3.Route) *routev3.RouteAction {
	if a := r.GetRoute(); a != nil {
		return a
	}
	a := &routev3.RouteAction{}
	r.Action = &routev3.Route_Route{Route: a}
	return a
}

type weights = []*routev3.WeightedCluster_ClusterWeight

func weight(cluster string, w uint32) *routev3.WeightedCluster_ClusterWeight {
	return &routev3.WeightedCluster_ClusterWeight{Name: cluster, Weight: wrapperspb.UInt32(w)}
}

// own returns what Envoy Gateway sends to backends that are not ours. One cluster for all of them has the sum of their
// weights; where it made a cluster of each, each has its own.
func own(r *routev3.Route, rule gateway.Rule) weights {
	if rule.OwnWeight == 0 {
		return nil
	}
	ours := map[string]bool{refused: true}
	for _, w := range rule.Mixed {
		ours[w.Cluster] = true
	}
	var all weights
	for _, w := range r.GetRoute().GetWeightedClusters().GetClusters() {
		if !ours[w.GetName()] {
			all = append(all, w)
		}
	}
	if len(all) == 0 {
		cluster := r.GetRoute().GetCluster()
		if cluster == "" || ours[cluster] {
			cluster = rule.Key.ClusterName()
		}
		return weights{weight(cluster, rule.OwnWeight)}
	}
	if len(all) == 1 && all[0].GetName() == rule.Key.ClusterName() {
		one := proto.CloneOf(all[0])
		one.Weight = wrapperspb.UInt32(rule.OwnWeight)
		return weights{one}
	}
	return all
}

// retry makes what no relay has taken go to another one, so that a relay that is gone ends no more than it carries. Only what
// was not sent is sent again, and what the route's owner wishes stays.
func retry(a *routev3.RouteAction) {
	if a.RetryPolicy != nil {
		return
	}
	a.RetryPolicy = &routev3.RetryPolicy{
		RetryOn: "connect-failure,refused-stream,reset-before-request", NumRetries: wrapperspb.UInt32(2),
		RetryHostPredicate: []*routev3.RetryPolicy_RetryHostPredicate{{Name: "envoy.retry_host_predicates.previous_hosts",
			ConfigType: &routev3.RetryPolicy_RetryHostPredicate_TypedConfig{TypedConfig: &anypb.Any{TypeUrl: otherHosts}}}},
		HostSelectionRetryMaxAttempts: 3,
	}
}

// share divides a route's requests.
func share(r *routev3.Route, ours []gateway.WeightedCluster, others weights) {
	all := others
	for _, w := range ours {
		all = append(all, weight(w.Cluster, w.Weight))
	}
	a := action(r)
	for _, w := range all {
		if w.GetName() == refused {
			a.ClusterNotFoundResponseCode = routev3.RouteAction_INTERNAL_SERVER_ERROR
		}
	}
	if len(others) == 0 {
		retry(a)
	}
	if len(all) == 1 {
		a.ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: all[0].GetName()}
		return
	}
	a.ClusterSpecifier = &routev3.RouteAction_WeightedClusters{WeightedClusters: &routev3.WeightedCluster{Clusters: all}}
}

// cut makes the route of a path rule out of the route that it is cut from: only path and destination change.
func cut(r *routev3.Route, p gateway.PathRule, name string, policies []gateway.PolicyStamp) (*routev3.Route, error) {
	out := proto.CloneOf(r)
	out.Name = name
	stamp(out, policies)
	setPath(out.Match, p.Path)
	a := action(out)
	if prefix := a.GetPrefixRewrite(); prefix != "" {
		// Envoy replaces what the match was, which is longer now: say what is to be replaced.
		a.PrefixRewrite = ""
		a.RegexRewrite = rewrite("^"+regexp.QuoteMeta(pathOf(r.Match).Text), prefix)
	}
	share(out, []gateway.WeightedCluster{{Cluster: p.Cluster, Weight: 1}}, nil)
	return out, out.ValidateAll()
}

func rewrite(pattern, substitution string) *matcherv3.RegexMatchAndSubstitute {
	return &matcherv3.RegexMatchAndSubstitute{Pattern: &matcherv3.RegexMatcher{Regex: pattern}, Substitution: substitution}
}
