package xds

import (
	"cmp"
	"net/netip"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	commondnsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/common/dns/v3"
	dnsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/dns/v3"
	rawv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/raw_buffer/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/tailplane/tailplane/internal/gateway"
)

const (
	systemRoots    = "/etc/ssl/certs/ca-certificates.crt" // path in Envoy's image
	httpProtocol   = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
	plaintextMatch = "health" // match key that selects plaintext for health checks
)

// marshal writes maps in sorted order, so that equal messages have equal bytes.
var marshal = proto.MarshalOptions{Deterministic: true}

// packAny wraps a message in an Any.
func packAny(m proto.Message) (*anypb.Any, error) {
	a := new(anypb.Any)
	return a, anypb.MarshalFrom(a, m, marshal)
}

// renderCluster creates a cluster for one port of a group of relays.
func renderCluster(c gateway.Cluster) (*clusterv3.Cluster, error) {
	out := &clusterv3.Cluster{Name: c.Name, AltStatName: c.StatName, LbPolicy: clusterv3.Cluster_LEAST_REQUEST}
	return out, setEndpoints(out, c)
}

// retarget points Envoy Gateway's cluster of a rule at the relays. It keeps what policies for the
// rule configure, such as limits and load balancing.
func retarget(was *clusterv3.Cluster, c gateway.Cluster) (*clusterv3.Cluster, error) {
	out := proto.CloneOf(was)
	out.EdsClusterConfig = nil
	return out, setEndpoints(out, c)
}

// setEndpoints sets the endpoints and the protocol of a cluster and validates it. It sets defaults for other fields only
// if they are unset.
func setEndpoints(out *clusterv3.Cluster, c gateway.Cluster) error {
	out.LoadAssignment = &endpointv3.ClusterLoadAssignment{ClusterName: out.Name, Endpoints: []*endpointv3.LocalityLbEndpoints{{}}}
	group := out.LoadAssignment.Endpoints[0]
	if c.Endpoints != nil {
		out.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
		for _, e := range c.Endpoints {
			group.LbEndpoints = append(group.LbEndpoints, endpoint(e.Addr().String(), e.Port(), c.HealthPort))
		}
	} else {
		// Every address of the name becomes a separate endpoint, as with STRICT_DNS.
		dns, err := packAny(&dnsv3.DnsCluster{DnsRefreshRate: durationpb.New(5 * time.Second), RespectDnsTtl: true, DnsLookupFamily: commondnsv3.DnsLookupFamily_V4_PREFERRED})
		if err != nil {
			return err
		}
		out.ClusterDiscoveryType = &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{Name: "envoy.cluster.dns", TypedConfig: dns}}
		group.LbEndpoints = []*endpointv3.LbEndpoint{endpoint(c.Host, c.Port, c.HealthPort)}
	}
	out.ConnectTimeout = cmp.Or(out.ConnectTimeout, durationpb.New(10*time.Second))
	out.PerConnectionBufferLimitBytes = cmp.Or(out.PerConnectionBufferLimitBytes, wrapperspb.UInt32(32<<10))
	// An unhealthy relay does not carry this service. If all relays are unhealthy, 503 is correct, so
	// turn off panic mode.
	out.CommonLbConfig = cmp.Or(out.CommonLbConfig, &clusterv3.Cluster_CommonLbConfig{HealthyPanicThreshold: &typev3.Percent{}})
	out.OutlierDetection = cmp.Or(out.OutlierDetection, &clusterv3.OutlierDetection{
		ConsecutiveGatewayFailure: wrapperspb.UInt32(5), EnforcingConsecutiveGatewayFailure: wrapperspb.UInt32(100),
		EnforcingConsecutive_5Xx: wrapperspb.UInt32(0), EnforcingSuccessRate: wrapperspb.UInt32(0),
		Interval: durationpb.New(
			5 * time.Second,
		),
		BaseEjectionTime: durationpb.New(10 * time.Second), MaxEjectionPercent: wrapperspb.UInt32(50),
	})
	var match *structpb.Struct
	if c.TLS != nil {
		match = &structpb.Struct{Fields: map[string]*structpb.Value{plaintextMatch: structpb.NewBoolValue(true)}}
		if err := setTLS(out, c, match); err != nil {
			return err
		}
	}
	if len(out.HealthChecks) == 0 {
		// Envoy would send the cluster name as Host. Send the name of the relays' Service instead,
		// which no other party can own.
		host, _, _ := strings.Cut(c.Host, ".svc.")
		out.HealthChecks = []*corev3.HealthCheck{{
			// Without NoTrafficInterval, Envoy would wait a minute to check again a relay that was
			// not ready at the first check.
			Interval: durationpb.New(
				5 * time.Second,
			),
			NoTrafficInterval: durationpb.New(5 * time.Second), Timeout: durationpb.New(2 * time.Second),
			UnhealthyThreshold: wrapperspb.UInt32(2), HealthyThreshold: wrapperspb.UInt32(1), TransportSocketMatchCriteria: match,
			HealthChecker: &corev3.HealthCheck_HttpHealthCheck_{
				HttpHealthCheck: &corev3.HealthCheck_HttpHealthCheck{
					Host:            host + ".svc",
					Path:            c.HealthPath,
					CodecClientType: typev3.CodecClientType_HTTP1,
				},
			},
		}}
	}
	if c.Protocol != gateway.HTTP2 {
		return out.ValidateAll()
	}
	options, err := packAny(&httpv3.HttpProtocolOptions{UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{
		ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
			ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{
				Http2ProtocolOptions: &corev3.Http2ProtocolOptions{},
			},
		},
	}})
	if err != nil {
		return err
	}
	if out.TypedExtensionProtocolOptions == nil {
		out.TypedExtensionProtocolOptions = map[string]*anypb.Any{}
	}
	out.TypedExtensionProtocolOptions[httpProtocol] = options
	return out.ValidateAll()
}

func endpoint(host string, port, health uint16) *endpointv3.LbEndpoint {
	return &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
		Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(port)},
		}}},
		HealthCheckConfig: &endpointv3.Endpoint_HealthCheckConfig{PortValue: uint32(health)},
	}}}
}

// setTLS sends requests over TLS. Health checks stay in plaintext because the relay itself
// answers them.
func setTLS(out *clusterv3.Cluster, c gateway.Cluster, health *structpb.Struct) error {
	name := &tlsv3.SubjectAltNameMatcher{SanType: tlsv3.SubjectAltNameMatcher_DNS}
	upstream := &tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{}}
	if _, err := netip.ParseAddr(c.TLS.ServerName); err == nil {
		name.SanType = tlsv3.SubjectAltNameMatcher_IP_ADDRESS // SNI cannot be an IP address
	} else {
		upstream.Sni = c.TLS.ServerName
	}
	name.Matcher = &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: c.TLS.ServerName}}
	roots := &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: systemRoots}}
	if c.TLS.Roots != "" {
		roots.Specifier = &corev3.DataSource_InlineString{InlineString: c.TLS.Roots}
	}
	upstream.CommonTlsContext.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContext{
		ValidationContext: &tlsv3.CertificateValidationContext{
			TrustedCa: roots, MatchTypedSubjectAltNames: []*tlsv3.SubjectAltNameMatcher{name},
		},
	}
	if c.Protocol == gateway.HTTP2 {
		upstream.CommonTlsContext.AlpnProtocols = []string{"h2"}
	}
	secure, err := packAny(upstream)
	if err != nil {
		return err
	}
	plain, err := packAny(&rawv3.RawBuffer{})
	if err != nil {
		return err
	}
	out.TransportSocket = nil
	out.TransportSocketMatches = []*clusterv3.Cluster_TransportSocketMatch{
		{
			Name:  plaintextMatch,
			Match: health,
			TransportSocket: &corev3.TransportSocket{
				Name:       "envoy.transport_sockets.raw_buffer",
				ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: plain},
			},
		},
		{
			Name:  "requests",
			Match: &structpb.Struct{},
			TransportSocket: &corev3.TransportSocket{
				Name:       "envoy.transport_sockets.tls",
				ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: secure},
			},
		},
	}
	return nil
}
