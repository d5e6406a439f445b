package xds

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/envoyproxy/gateway/proto/extension"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	proxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/proxy_protocol/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/tailplane/tailplane/internal/gateway"
)

// Row 5 of the list of forbidden outcomes: Envoy resolves a name and never has it in a STATIC
// cluster, it never resolves an address, and IPv6 addresses are valid endpoints.
func TestClusterDiscovery(t *testing.T) {
	named, err := renderCluster(cluster("web"))
	if err != nil {
		t.Fatal(err)
	}
	if named.GetClusterType().GetName() != "envoy.cluster.dns" || named.GetEdsClusterConfig() != nil {
		t.Errorf("a name: %v", named.ClusterDiscoveryType)
	}
	fixed := cluster("web")
	fixed.Endpoints = []netip.AddrPort{netip.MustParseAddrPort("[fd00::1]:10001"), netip.MustParseAddrPort("10.244.0.1:10000")}
	static, err := renderCluster(fixed)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := static.ClusterDiscoveryType.(*clusterv3.Cluster_Type); !ok || static.GetType() != clusterv3.Cluster_STATIC {
		t.Errorf("addresses: %v", static.ClusterDiscoveryType)
	}
	var got []string
	for _, e := range static.LoadAssignment.Endpoints[0].LbEndpoints {
		a := e.GetEndpoint().Address.GetSocketAddress()
		got = append(got, a.Address)
		if e.GetEndpoint().HealthCheckConfig.PortValue != 9002 || a.GetPortValue() < 10000 {
			t.Errorf("endpoint %v", e)
		}
	}
	if !slices.Equal(got, []string{"fd00::1", "10.244.0.1"}) {
		t.Errorf("addresses: %v", got)
	}
	fixed.Endpoints = []netip.AddrPort{}
	switch none, err := renderCluster(fixed); {
	case err != nil:
		t.Errorf("no relay is ready: %v", err)
	case none.GetType() != clusterv3.Cluster_STATIC:
		t.Errorf("no relay is ready: none.GetType() != clusterv3.Cluster_STATIC; none = %v, %v", none, err)
	case len(none.LoadAssignment.Endpoints[0].LbEndpoints) != 0:
		t.Errorf("no relay is ready: got %v, want 0", len(none.LoadAssignment.Endpoints[0].LbEndpoints))
	}
	if h := named.HealthChecks[0]; h.GetHttpHealthCheck().Path != "/readyz/web" || named.AltStatName != "tailscale-cluster-web" {
		t.Errorf("health: %v", h)
	}
}

// Envoy verifies the TLS certificate against the name, and health checks do not use TLS.
func TestClusterTLS(t *testing.T) {
	for _, tc := range []struct{ name, sni, roots string }{{"web.tail8eff9.ts.net", "web.tail8eff9.ts.net", ""}, {"100.64.0.9", "", "-----BEGIN CERTIFICATE-----"}} {
		c := cluster("web")
		c.Protocol, c.TLS = gateway.HTTP2, &gateway.TLS{ServerName: tc.name, Roots: tc.roots}
		out, err := renderCluster(c)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case len(out.TransportSocketMatches) != 2:
			t.Fatalf("%s: len(out.TransportSocketMatches) = %v, want 2", tc.name, len(out.TransportSocketMatches))
		case out.TransportSocket != nil:
			t.Fatalf("%s: out.TransportSocket = %v, want nil", tc.name, out.TransportSocket)
		case out.HealthChecks[0].TransportSocketMatchCriteria.Fields[plaintextMatch] == nil:
			t.Fatalf("%s: out.HealthChecks[0].TransportSocketMatchCriteria.Fields[plaintextMatch] is nil", tc.name)
		}
		upstream := new(tlsv3.UpstreamTlsContext)
		if err := out.TransportSocketMatches[1].TransportSocket.GetTypedConfig().UnmarshalTo(upstream); err != nil {
			t.Fatal(err)
		}
		v := upstream.CommonTlsContext.GetValidationContext()
		switch {
		case upstream.Sni != tc.sni:
			t.Errorf("%s: upstream.Sni = %q, want %q", tc.name, upstream.Sni, tc.sni)
		case v.MatchTypedSubjectAltNames[0].Matcher.GetExact() != tc.name:
			t.Errorf("%s: v.MatchTypedSubjectAltNames[0].Matcher.GetExact() != tc.name, upstream = %v", tc.name, upstream)
		case v.TrustedCa.GetInlineString() != tc.roots:
			t.Errorf("%s: v.TrustedCa.GetInlineString() != tc.roots, upstream = %v", tc.name, upstream)
		case (v.TrustedCa.GetFilename() == systemRoots) != (tc.roots == ""):
			t.Errorf(`%s: (v.TrustedCa.GetFilename() == systemRoots) != (tc.roots == ""), upstream = %v`, tc.name, upstream)
		}
		if out.TypedExtensionProtocolOptions[httpProtocol] == nil || !slices.Equal(upstream.CommonTlsContext.AlpnProtocols, []string{"h2"}) {
			t.Errorf("%s: HTTP/2 is not used", tc.name)
		}
	}
}

// Envoy Gateway's cluster of a rule keeps its name and the settings from policies of the rule.
func TestRetarget(t *testing.T) {
	was := &clusterv3.Cluster{Name: ruleKey("sole").ClusterName(), ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{ServiceName: "x"}, PerConnectionBufferLimitBytes: wrapperspb.UInt32(7),
		CircuitBreakers: &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{MaxConnections: wrapperspb.UInt32(3)}}}}
	before := proto.CloneOf(was)
	c, err := retarget(was, cluster("web"))
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case c.Name != was.Name:
		t.Errorf("c.Name = %q, want %q", c.Name, was.Name)
	case c.LoadAssignment.ClusterName != was.Name:
		t.Errorf("c.LoadAssignment.ClusterName = %q, want %q", c.LoadAssignment.ClusterName, was.Name)
	case c.EdsClusterConfig != nil:
		t.Errorf("c.EdsClusterConfig = %v, want nil", c.EdsClusterConfig)
	case c.PerConnectionBufferLimitBytes.Value != 7:
		t.Errorf("c.PerConnectionBufferLimitBytes.Value = %v, want 7", c.PerConnectionBufferLimitBytes.Value)
	case c.CircuitBreakers.Thresholds[0].MaxConnections.Value != 3:
		t.Errorf("c.CircuitBreakers.Thresholds[0].MaxConnections.Value = %v, want 3", c.CircuitBreakers.Thresholds[0].MaxConnections.Value)
	}
	if !proto.Equal(before, was) {
		t.Error("the request was changed")
	}
}

// Section 8.5, rule 3: the server leaves out a cluster of Tailplane whose name another cluster has
// or that Envoy would reject, and the routes that use it. It leaves out nothing else.
func TestConflictsAndInvalidClusters(t *testing.T) {
	n := fullSnapshot()
	g := n.Gateways[testGateway]
	at := slices.IndexFunc(g.Clusters, func(c gateway.Cluster) bool { return c.Name == "tailscale-cluster-tls" })
	g.Clusters[at].HealthPath = "" // Envoy requires a path
	s, _ := newServer(t, n)
	var report gateway.TranslationReport
	s.Report = func(r gateway.TranslationReport) { report = r }
	// The hook for virtual hosts does not see clusters. It was called before and has added the
	// routes.
	vh, err := s.PostVirtualHostModify(t.Context(), &extension.PostVirtualHostModifyRequest{VirtualHost: example()})
	if err != nil || !slices.Contains(names(vh.GetVirtualHost().GetRoutes()), "tailscale-svc-web") {
		t.Fatalf("virtual host: %v, %v", vh, err)
	}
	in := translationOf("00000000000000aa", vh.VirtualHost)
	in.Clusters = append(in.Clusters, &clusterv3.Cluster{Name: "tailscale-cluster-web"})
	out := translate(t, s, in)
	for _, vh := range out.Routes[0].VirtualHosts {
		for _, r := range vh.Routes {
			if slices.Contains([]string{"tailscale-svc-web", "tailscale-svc-tls"}, r.Name) {
				t.Errorf("route %s leads to a foreign cluster or to none", r.Name)
			}
		}
	}
	if !slices.Contains(names(out.Routes[0].VirtualHosts[0].Routes), "tailscale-svc-strip") {
		t.Errorf("a valid route was removed too: %v", names(out.Routes[0].VirtualHosts[0].Routes))
	}
	if !slices.Equal(report.Conflicted, []string{"tailscale-cluster-web"}) {
		t.Errorf("reported %+v", report)
	}
}

// httpListener returns a listener as Envoy Gateway creates it.
func httpListener(t *testing.T, name string, filters ...*listenerv3.ListenerFilter) *listenerv3.Listener {
	t.Helper()
	config, err := packAny(&hcmv3.HttpConnectionManager{StatPrefix: "http", RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{RouteConfigName: name}}})
	if err != nil {
		t.Fatal(err)
	}
	return &listenerv3.Listener{Name: name, ListenerFilters: filters, DefaultFilterChain: &listenerv3.FilterChain{Filters: []*listenerv3.Filter{
		{Name: "envoy.filters.network.http_connection_manager", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: config}},
	}}}
}

// The hook for listeners removes Tailplane's headers from client requests, and admits only the
// networks in the Gateway's access rules. It changes a listener only if the call's context
// contains a policy of Tailplane. It never changes Envoy Gateway's own listeners.
func TestListeners(t *testing.T) {
	n := fullSnapshot()
	about := map[gateway.Name]string{testGateway: ""}
	tls := &listenerv3.ListenerFilter{Name: "envoy.filters.listener.tls_inspector"}
	for _, tc := range []struct {
		why                string
		name               string
		rules              []gateway.Listener
		names              map[gateway.Name]string
		changed, proxy     bool
		required, restrict bool
	}{
		{"whole", "infra/eg/http", n.Gateways[testGateway].Listeners, about, true, true, true, true},
		{"PROXY for peers that send it", "infra/eg/http", []gateway.Listener{{ProxyProtocol: true}}, about, true, true, false, false},
		{"headers only", "infra/eg/http", nil, about, true, false, false, false},
		{"another listener", "infra/eg/http", []gateway.Listener{{Section: "https", Restrict: true}}, about, true, false, false, false},
		{"no peer is admitted", "infra/eg/http", []gateway.Listener{{Section: "http", Restrict: true}}, about, true, false, false, true},
		{"no policy", "infra/eg/http", n.Gateways[testGateway].Listeners, nil, false, false, false, false},
		{"another Gateway", "infra/other/http", n.Gateways[testGateway].Listeners, map[gateway.Name]string{{Namespace: "infra", Name: "other"}: ""}, false, false, false, false},
		{"shared names", "http-8080", n.Gateways[testGateway].Listeners, about, true, true, true, true},
		{"its own", "envoy-gateway-proxy-ready-0.0.0.0-19003", n.Gateways[testGateway].Listeners, about, false, false, false, false},
	} {
		n := snapshotOf(gateway.Gateway{Listeners: tc.rules})
		in := httpListener(t, tc.name, tls)
		before := proto.CloneOf(in)
		out, err := renderListener(in, n, tc.names)
		if err != nil || !proto.Equal(before, in) {
			t.Fatalf("%s: %v; the request was changed: %v", tc.why, err, !proto.Equal(before, in))
		}
		if (out != in) != tc.changed {
			t.Errorf("%s: changed %v", tc.why, out != in)
		}
		if err := out.ValidateAll(); err != nil {
			t.Errorf("%s: %v", tc.why, err)
		}
		first := out.ListenerFilters[0]
		if (first.Name == proxyName) != tc.proxy || out.ListenerFilters[len(out.ListenerFilters)-1].Name != tls.Name {
			t.Errorf("%s: listener filters %v", tc.why, out.ListenerFilters)
		}
		if tc.proxy {
			p := new(proxyv3.ProxyProtocol)
			if err := first.GetTypedConfig().UnmarshalTo(p); err != nil || p.AllowRequestsWithoutProxyProtocol == tc.required {
				t.Errorf("%s: %v, %v", tc.why, p, err)
			}
		}
		filters := out.DefaultFilterChain.Filters
		if (filters[0].Name == accessName) != tc.restrict {
			t.Errorf("%s: filters %v", tc.why, filters)
		}
		if tc.restrict {
			r := new(rbacv3.RBAC)
			switch err := filters[0].GetTypedConfig().UnmarshalTo(r); {
			case err != nil:
				t.Errorf("%s: %v", tc.why, err)
			case r.Rules.Action != 0:
				t.Errorf("%s: r.Rules.Action = %v, want 0", tc.why, r.Rules.Action)
			case (len(r.Rules.Policies) == 0) != (tc.why == "no peer is admitted"):
				t.Errorf(`%s: (len(r.Rules.Policies) == 0) != (tc.why == "no peer is admitted"), %v, %v`, tc.why, r, err)
			}
		}
		m := new(hcmv3.HttpConnectionManager)
		if err := filters[len(filters)-1].GetTypedConfig().UnmarshalTo(m); err != nil || (len(m.EarlyHeaderMutationExtensions) == 1) != tc.changed {
			t.Errorf("%s: %v, %v", tc.why, m, err)
		}
		if again, err := renderListener(out, n, tc.names); err != nil || !proto.Equal(again, out) {
			t.Errorf("%s: a second time: %v, %v", tc.why, again, err)
		}
	}
}
