package xds

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/envoyproxy/gateway/proto/extension"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/tailplane/tailplane/internal/gateway"
)

var testGateway = gateway.Name{Namespace: "infra", Name: "eg"}

// snapshotOf returns a snapshot with one Gateway.
func snapshotOf(g gateway.Gateway) *gateway.Snapshot {
	g.Name = testGateway
	if g.Revision == "" {
		g.Revision = "00000000000000aa"
	}
	return &gateway.Snapshot{Gateways: map[gateway.Name]*gateway.Gateway{testGateway: &g}}
}

func cluster(service string) gateway.Cluster {
	return gateway.Cluster{Name: "tailscale-cluster-" + service, StatName: "tailscale-cluster-" + service, Host: service + ".relays.svc.cluster.local", Port: 10000,
		HealthPort: 9002, HealthPath: "/readyz/" + service, Protocol: gateway.HTTP1}
}

func service(name string) gateway.Route {
	return gateway.Route{Name: "tailscale-svc-" + name, Hosts: []string{"*"}, Prefix: "/svc/" + name, Cluster: "tailscale-cluster-" + name}
}

func ruleKey(route string) gateway.RuleKey {
	return gateway.RuleKey{Kind: "HTTPRoute", Route: gateway.Name{Namespace: "shop", Name: route}}
}

// fullSnapshot returns a snapshot that uses every field.
func fullSnapshot() *gateway.Snapshot {
	tls := cluster("tls")
	tls.TLS, tls.Protocol = &gateway.TLS{ServerName: "tls.tail8eff9.ts.net", Roots: "-----BEGIN CERTIFICATE-----"}, gateway.HTTP2
	fixed := cluster("fixed")
	fixed.Endpoints = []netip.AddrPort{netip.MustParseAddrPort("10.244.0.1:10000"), netip.MustParseAddrPort("[fd00::1]:10001")}
	sole := cluster("sole")
	sole.Name = ruleKey("sole").ClusterName()
	strip := service("strip")
	strip.Strip, strip.HostRewrite, strip.InheritFrom = true, "strip.tail8eff9.ts.net", gateway.Name{Namespace: "shop", Name: "mixed"}
	return snapshotOf(gateway.Gateway{
		Routes:   []gateway.Route{strip, service("web"), service("tls")},
		Clusters: []gateway.Cluster{cluster("api"), fixed, cluster("strip"), tls, cluster("web")},
		Rules: []gateway.Rule{
			{Key: ruleKey("mixed"), Mixed: []gateway.WeightedCluster{{Cluster: "tailscale-cluster-web", Weight: 20}}, OwnWeight: 80, RefusedWeight: 5,
				Policies: []gateway.PolicyStamp{{Name: gateway.Name{Namespace: "shop", Name: "p"}, Generation: 3}}},
			{Key: ruleKey("paths"), Paths: []gateway.PathRule{
				{Name: "tailscale-rule-shop_p_0", Path: gateway.Path{Kind: gateway.PathExact, Text: "/api/health"}, Cluster: "tailscale-cluster-web"},
				{Name: "tailscale-rule-shop_p_1", Path: gateway.Path{Kind: gateway.PathPrefix, Text: "/api"}, Cluster: "tailscale-cluster-api"},
			}, Default: []gateway.WeightedCluster{{Cluster: "tailscale-cluster-fixed", Weight: 1}, {Cluster: "tailscale-cluster-web", Weight: 1}}},
			{Key: ruleKey("sole"), Sole: &sole},
		},
		Listeners: []gateway.Listener{{Restrict: true, ProxyProtocol: true, Allow: []netip.Prefix{netip.MustParsePrefix("100.64.0.0/10")}}},
	})
}

// newServer returns a server that does not listen, and its measured calls.
func newServer(t testing.TB, n *gateway.Snapshot) (*Server, func() []Call) {
	t.Helper()
	var mu sync.Mutex
	var calls []Call
	s := &Server{Deadline: 20 * time.Second, MaxMessage: 64 << 20, Log: slog.New(slog.DiscardHandler), Measure: func(c Call) {
		mu.Lock()
		defer mu.Unlock()
		calls = append(calls, c)
	}}
	if n != nil {
		s.Publish(n)
	}
	return s, func() []Call {
		mu.Lock()
		defer mu.Unlock()
		return calls
	}
}

// objectMetadata returns the metadata that Envoy Gateway adds to its resources.
func objectMetadata(kind, namespace, name, section string) *corev3.Metadata {
	s, err := structpb.NewStruct(map[string]any{"resources": []any{map[string]any{"kind": kind, "namespace": namespace, "name": name, "sectionName": section}}})
	if err != nil {
		panic(err)
	}
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"envoy-gateway": s}}
}

// foreignRoute returns a route of Envoy Gateway for a prefix; "/" means all paths.
func foreignRoute(route, prefix string) *routev3.Route {
	r := &routev3.Route{Name: fmt.Sprintf("httproute/shop/%s/rule/0/match/0/example_com", route), Metadata: objectMetadata("HTTPRoute", "shop", route, ""),
		Match:  &routev3.RouteMatch{},
		Action: &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: ruleKey(route).ClusterName()}}}}
	setPath(r.Match, gateway.RoutePath("PathPrefix", prefix))
	return r
}

// withFilter activates a filter on a route.
func withFilter(r *routev3.Route, requirement string) *routev3.Route {
	a, err := packAny(&jwtv3.PerRouteConfig{RequirementSpecifier: &jwtv3.PerRouteConfig_RequirementName{RequirementName: requirement}})
	if err != nil {
		panic(err)
	}
	r.TypedPerFilterConfig = map[string]*anypb.Any{"envoy.filters.http.jwt_authn": a, "envoy.filters.http.cors": a, "envoy.filters.http.ext_authz/1": a}
	return r
}

func virtualHost(domain string, routes ...*routev3.Route) *routev3.VirtualHost {
	return &routev3.VirtualHost{Name: "infra/eg/http/" + domain, Domains: []string{domain}, Metadata: objectMetadata("", "infra", "eg", "http"), Routes: routes}
}

// translationOf returns a Translation request with the virtual hosts of one listener and the
// clusters that Envoy Gateway creates for their rules.
func translationOf(revision string, hosts ...*routev3.VirtualHost) *extension.PostTranslateModifyRequest {
	in := &extension.PostTranslateModifyRequest{PostTranslateContext: &extension.PostTranslateExtensionContext{ExtensionResources: []*extension.ExtensionResource{revisionOf(revision)}},
		Routes: []*routev3.RouteConfiguration{{Name: "infra/eg/http", VirtualHosts: hosts}}}
	for _, name := range []string{"mixed", "paths", "sole", "plain"} {
		in.Clusters = append(in.Clusters, &clusterv3.Cluster{Name: ruleKey(name).ClusterName(), ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
			EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{ServiceName: ruleKey(name).ClusterName()}})
	}
	return in
}

// revisionOf returns the operator's policy of the Gateway as Envoy Gateway sends it.
func revisionOf(revision string) *extension.ExtensionResource {
	b, err := json.Marshal(map[string]any{"apiVersion": "gateway.tailscale.com/v1alpha1", "kind": "TailscaleRoutePolicy", "metadata": map[string]any{"namespace": "infra", "name": "x"},
		"spec": map[string]any{"revision": revision, "targetRef": map[string]any{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "eg"}}})
	if err != nil {
		panic(err)
	}
	return &extension.ExtensionResource{UnstructuredBytes: b}
}

// example returns a virtual host to which every part of whole applies.
func example() *routev3.VirtualHost {
	return virtualHost("example.com", foreignRoute("paths", "/api/health/deep"), foreignRoute("mixed", "/shop"), foreignRoute("sole", "/sole"), foreignRoute("paths", "/"))
}
