package xds

import (
	"cmp"
	"encoding/json"
	"regexp"
	"strconv"
	"strings"

	"github.com/envoyproxy/gateway/proto/extension"
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
	// missingCluster is the name of a cluster that does not exist. Envoy answers requests to it with an
	// error. Envoy Gateway uses the same name.
	missingCluster = "invalid-backend-cluster"
	// otherHostsType is the type of a message without fields. The predicate excludes hosts that were
	// already tried.
	otherHostsType = "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
)

// pathOf returns the set of paths that a route matches.
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

// setPath makes m match the paths in p.
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

// forwards reports whether a route forwards requests, or would if its rule had a backend. Routes
// that the owner answers directly or redirects are not changed. Envoy Gateway's own answer for a
// rule without backends is status 500 without a body.
func forwards(r *routev3.Route) bool {
	switch a := r.GetAction().(type) {
	case *routev3.Route_Route:
		return true
	case *routev3.Route_DirectResponse:
		return a.DirectResponse.GetStatus() == 500 && a.DirectResponse.GetBody() == nil
	}
	return false
}

// applyRule returns a changed copy of r, or r itself if the rule changes nothing. It is
// idempotent.
func applyRule(r *routev3.Route, rule gateway.Rule) *routev3.Route {
	if !forwards(r) {
		return r
	}
	out := proto.CloneOf(r)
	recordPolicies(out, rule.Policies)
	path := pathOf(r.GetMatch())
	for _, p := range rule.Paths {
		if p.Path.Relation(path) == gateway.PathCovers {
			distribute(out, []gateway.WeightedCluster{{Cluster: p.Cluster, Weight: 1}}, nil)
			return out
		}
	}
	switch {
	case len(rule.Default) > 0:
		distribute(out, rule.Default, nil)
	case rule.Sole != nil:
		addRetry(forwardAction(out))
	case len(rule.Mixed) > 0 || rule.RefusedWeight > 0:
		others := otherBackends(r, rule)
		if rule.RefusedWeight > 0 {
			others = append(weights{weight(missingCluster, rule.RefusedWeight)}, others...)
		}
		distribute(out, rule.Mixed, others)
	}
	return out
}

// recordPolicies records the policies in effect in the metadata of a route.
func recordPolicies(r *routev3.Route, policies []gateway.PolicyStamp) {
	if len(policies) == 0 {
		return
	}
	list := &structpb.ListValue{}
	for _, p := range policies {
		list.Values = append(list.Values, structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
			"namespace": structpb.NewStringValue(
				p.Namespace,
			), "name": structpb.NewStringValue(p.Name.Name), "generation": structpb.NewNumberValue(float64(p.Generation)),
		}}))
	}
	r.Metadata = cmp.Or(r.Metadata, &corev3.Metadata{})
	if r.Metadata.FilterMetadata == nil {
		r.Metadata.FilterMetadata = map[string]*structpb.Struct{}
	}
	r.Metadata.FilterMetadata[metadataKey] = &structpb.Struct{Fields: map[string]*structpb.Value{"policies": structpb.NewListValue(list)}}
}

// forwardAction returns the forwarding action of a route. It adds one if the route has none.
func forwardAction(r *routev3.Route) *routev3.RouteAction {
	a := cmp.Or(r.GetRoute(), &routev3.RouteAction{})
	r.Action = &routev3.Route_Route{Route: a}
	return a
}

type weights = []*routev3.WeightedCluster_ClusterWeight

func weight(cluster string, w uint32) *routev3.WeightedCluster_ClusterWeight {
	return &routev3.WeightedCluster_ClusterWeight{Name: cluster, Weight: wrapperspb.UInt32(w)}
}

// otherBackends returns the weights of the backends that are not TailscaleServices. If Envoy Gateway made
// one cluster for all of them, it gets the sum of their weights. If it made one cluster each,
// their weights are kept.
func otherBackends(r *routev3.Route, rule gateway.Rule) weights {
	if rule.OwnWeight == 0 {
		return nil
	}
	tailplane := map[string]bool{missingCluster: true}
	for _, w := range rule.Mixed {
		tailplane[w.Cluster] = true
	}
	var all weights
	for _, w := range r.GetRoute().GetWeightedClusters().GetClusters() {
		if !tailplane[w.GetName()] {
			all = append(all, w)
		}
	}
	if len(all) == 0 {
		cluster := r.GetRoute().GetCluster()
		if cluster == "" || tailplane[cluster] {
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

// addRetry makes Envoy retry requests on another relay if they were not sent to the first one. A
// relay that disappears thus breaks only the requests that it carries. A retry policy of the
// route's owner is kept.
func addRetry(a *routev3.RouteAction) {
	if a.RetryPolicy != nil {
		return
	}
	a.RetryPolicy = &routev3.RetryPolicy{
		RetryOn: "connect-failure,refused-stream,reset-before-request", NumRetries: wrapperspb.UInt32(2),
		RetryHostPredicate: []*routev3.RetryPolicy_RetryHostPredicate{{Name: "envoy.retry_host_predicates.previous_hosts",
			ConfigType: &routev3.RetryPolicy_RetryHostPredicate_TypedConfig{TypedConfig: &anypb.Any{TypeUrl: otherHostsType}}}},
		HostSelectionRetryMaxAttempts: 3,
	}
}

// distribute distributes the requests of a route over the given clusters.
func distribute(r *routev3.Route, tailplane []gateway.WeightedCluster, others weights) {
	all := others
	for _, w := range tailplane {
		all = append(all, weight(w.Cluster, w.Weight))
	}
	a := forwardAction(r)
	for _, w := range all {
		if w.GetName() == missingCluster {
			a.ClusterNotFoundResponseCode = routev3.RouteAction_INTERNAL_SERVER_ERROR
		}
	}
	if len(others) == 0 {
		addRetry(a)
	}
	if len(all) == 1 {
		a.ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: all[0].GetName()}
		return
	}
	a.ClusterSpecifier = &routev3.RouteAction_WeightedClusters{WeightedClusters: &routev3.WeightedCluster{Clusters: all}}
}

// splitRoute creates the route of a path rule from the route r. Only the path and the destination differ.
func splitRoute(r *routev3.Route, p gateway.PathRule, name string, policies []gateway.PolicyStamp) (*routev3.Route, error) {
	out := proto.CloneOf(r)
	out.Name = name
	recordPolicies(out, policies)
	setPath(out.Match, p.Path)
	a := forwardAction(out)
	if prefix := a.GetPrefixRewrite(); prefix != "" {
		// Envoy's prefix rewrite replaces the matched path, which is longer now. Use a regular
		// expression that replaces the path of r.
		a.PrefixRewrite = ""
		a.RegexRewrite = rewrite("^"+regexp.QuoteMeta(pathOf(r.Match).Text), prefix)
	}
	distribute(out, []gateway.WeightedCluster{{Cluster: p.Cluster, Weight: 1}}, nil)
	return out, out.ValidateAll()
}

func rewrite(pattern, substitution string) *matcherv3.RegexMatchAndSubstitute {
	return &matcherv3.RegexMatchAndSubstitute{Pattern: &matcherv3.RegexMatcher{Regex: pattern}, Substitution: substitution}
}

// An origin is the Kubernetes object from which Envoy Gateway created a resource.
type origin struct {
	kind    string
	name    gateway.Name
	section string // name of the listener or rule
}

// originOf reads the origin from Envoy Gateway's metadata. ok is false if there is none.
func originOf(m *corev3.Metadata) (origin, bool) {
	resources := m.GetFilterMetadata()["envoy-gateway"].GetFields()["resources"].GetListValue().GetValues()
	if len(resources) == 0 {
		return origin{}, false
	}
	fields := resources[0].GetStructValue().GetFields()
	text := func(field string) string { return fields[field].GetStringValue() }
	o := origin{kind: text("kind"), name: gateway.Name{Namespace: text("namespace"), Name: text("name")}, section: text("sectionName")}
	return o, o.name.Name != ""
}

// gatewayOf returns the Gateway and the listener of a virtual host. Envoy Gateway 1.9.1 leaves the
// kind empty there.
func gatewayOf(vh *routev3.VirtualHost) (gateway.Name, string, bool) {
	o, ok := originOf(vh.GetMetadata())
	return o.name, o.section, ok && (o.kind == "Gateway" || o.kind == "")
}

// ruleOf parses the name that Envoy Gateway gives a route,
// "httproute/<namespace>/<name>/rule/<index>/match/<n>/<host>", or the name of a rule's cluster,
// which ends after the index.
func ruleOf(name string) (gateway.RuleKey, bool) {
	parts := strings.SplitN(name, "/", 6)
	if len(parts) < 5 || parts[3] != "rule" {
		return gateway.RuleKey{}, false
	}
	kind, known := map[string]string{"httproute": "HTTPRoute", "grpcroute": "GRPCRoute"}[parts[0]]
	index, err := strconv.Atoi(parts[4])
	if !known || err != nil || index < 0 {
		return gateway.RuleKey{}, false
	}
	return gateway.RuleKey{Kind: kind, Route: gateway.Name{Namespace: parts[1], Name: parts[2]}, Index: index}, true
}

// requestedRevisions reads the policies in a call's context. It returns the requested revision for each Gateway
// that is the target of a policy, or "" if no policy has a revision.
func requestedRevisions(resources []*extension.ExtensionResource) map[gateway.Name]string {
	revisions := map[gateway.Name]string{}
	for _, r := range resources {
		var policy struct {
			Kind     string
			Metadata struct{ Namespace string }
			Spec     struct {
				TargetRef struct{ Kind, Name string }
				Revision  string
			}
		}
		if json.Unmarshal(r.GetUnstructuredBytes(), &policy) != nil || policy.Kind != "TailscaleRoutePolicy" ||
			policy.Spec.TargetRef.Kind != "Gateway" {
			continue
		}
		name := gateway.Name{Namespace: policy.Metadata.Namespace, Name: policy.Spec.TargetRef.Name}
		revision, _, _ := strings.Cut(policy.Spec.Revision, "-") // a counter after "-" forces another translation
		if revisions[name] == "" {
			revisions[name] = revision
		}
	}
	return revisions
}
