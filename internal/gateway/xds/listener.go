package xds

import (
	"net/netip"
	"slices"
	"strings"

	mutationv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacconfigv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	proxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/proxy_protocol/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	headersv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/http/early_header_mutation/header_mutation/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/tailplane/tailplane/internal/gateway"
)

const (
	internalListener = "envoy-gateway-proxy-ready-"
	proxyName        = "envoy.filters.listener.proxy_protocol"
	// These names are specific to Tailplane, so that a user's filter of the same type does not
	// replace the one below.
	headersName = "tailscale.gateway.headers"
	accessName  = "tailscale.gateway.access"
)

// renderListener returns a changed copy of l, or l itself if nothing changes. Nothing changes if l
// is not an HTTP listener or belongs to none of the Gateways in names. names are the Gateways of
// the policies in the call's context.
func renderListener(l *listenerv3.Listener, n *gateway.Snapshot, names map[gateway.Name]string) (*listenerv3.Listener, error) {
	if strings.HasPrefix(l.GetName(), internalListener) {
		return l, nil
	}
	out := proto.CloneOf(l)
	chains := out.FilterChains
	if out.DefaultFilterChain != nil {
		chains = append(slices.Clone(chains), out.DefaultFilterChain)
	}
	http, proxied, bare := false, false, false // bare: a part of the listener accepts connections without a PROXY header
	for _, c := range chains {
		g, section, ok, err := protectChain(c, l.GetName(), n, names)
		if err != nil {
			return nil, err
		}
		if !ok {
			bare = true
			continue
		}
		http = true
		rule, restricted := g.Listener(section)
		proxied = proxied || restricted && rule.ProxyProtocol
		bare = bare || !restricted || !rule.Restrict || !rule.ProxyProtocol
		if !restricted || !rule.Restrict {
			continue
		}
		filter, err := restrictNetworks(rule.Allow)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(c.Filters, func(f *listenerv3.Filter) bool { return f.GetName() == filter.GetName() }) {
			c.Filters = slices.Insert(c.Filters, 0, filter)
		}
	}
	if !http {
		return l, nil
	}
	if proxied && !slices.ContainsFunc(out.ListenerFilters, func(f *listenerv3.ListenerFilter) bool { return f.GetName() == proxyName }) {
		config, err := packAny(&proxyv3.ProxyProtocol{AllowRequestsWithoutProxyProtocol: bare})
		if err != nil {
			return nil, err
		}
		// The filter must be first, because TLS and other protocols begin after the PROXY header.
		out.ListenerFilters = slices.Insert(out.ListenerFilters, 0, &listenerv3.ListenerFilter{
			Name: proxyName, ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: config},
		})
	}
	return out, nil
}

// protectChain makes the HTTP connection managers of a filter chain remove the headers that only
// Tailplane may set. ok is false if the chain belongs to none of the Gateways in names.
func protectChain(
	c *listenerv3.FilterChain,
	listener string,
	n *gateway.Snapshot,
	names map[gateway.Name]string,
) (g *gateway.Gateway, section string, ok bool, err error) {
	for _, f := range c.GetFilters() {
		m := new(hcmv3.HttpConnectionManager)
		if !f.GetTypedConfig().MessageIs(m) {
			continue
		}
		if err := f.GetTypedConfig().UnmarshalTo(m); err != nil {
			return nil, "", false, err
		}
		if g, section = listenerOf(m, listener, n, names); g == nil {
			continue
		}
		ok = true
		if slices.ContainsFunc(
			m.EarlyHeaderMutationExtensions,
			func(e *corev3.TypedExtensionConfig) bool { return e.GetName() == headersName },
		) {
			continue
		}
		drop, err := removeHeaders()
		if err != nil {
			return nil, "", false, err
		}
		m.EarlyHeaderMutationExtensions = slices.Insert(m.EarlyHeaderMutationExtensions, 0, drop)
		config, err := packAny(m)
		if err != nil {
			return nil, "", false, err
		}
		f.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: config}
	}
	return g, section, ok, nil
}

// listenerOf returns the Gateway and the listener that a connection manager serves. Envoy Gateway
// names its routes "<namespace>/<gateway>/<listener>". If listener names are shared, only the
// Gateway can be found, and only if there is exactly one.
func listenerOf(
	m *hcmv3.HttpConnectionManager,
	listener string,
	n *gateway.Snapshot,
	names map[gateway.Name]string,
) (*gateway.Gateway, string) {
	for _, name := range []string{m.GetRds().GetRouteConfigName(), listener} {
		parts := strings.Split(name, "/")
		if len(parts) != 3 {
			continue
		}
		of := gateway.Name{Namespace: parts[0], Name: parts[1]}
		if _, ok := names[of]; ok {
			return n.Gateways[of], parts[2]
		}
	}
	if len(names) == 1 {
		for of := range names {
			return n.Gateways[of], ""
		}
	}
	return nil, ""
}

func removeHeaders() (*corev3.TypedExtensionConfig, error) {
	m := &headersv3.HeaderMutation{}
	for _, prefix := range []string{"tailscale-", "x-tailscale-"} {
		m.Mutations = append(
			m.Mutations,
			&mutationv3.HeaderMutation{
				Action: &mutationv3.HeaderMutation_RemoveOnMatch_{RemoveOnMatch: &mutationv3.HeaderMutation_RemoveOnMatch{
					KeyMatcher: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: prefix}, IgnoreCase: true},
				}},
			},
		)
	}
	config, err := packAny(m)
	return &corev3.TypedExtensionConfig{Name: headersName, TypedConfig: config}, err
}

// restrictNetworks creates a network filter that admits only connections from these networks. It uses the
// address in the PROXY header if there is one. It filters connections because a request may
// contain a forwarded address that Envoy is configured to trust.
func restrictNetworks(allow []netip.Prefix) (*listenerv3.Filter, error) {
	var principals []*rbacconfigv3.Principal
	for _, p := range allow {
		principals = append(principals, &rbacconfigv3.Principal{Identifier: &rbacconfigv3.Principal_RemoteIp{RemoteIp: &corev3.CidrRange{
			AddressPrefix: p.Addr().String(), PrefixLen: wrapperspb.UInt32(uint32(p.Bits())),
		}}})
	}
	rules := &rbacconfigv3.RBAC{Action: rbacconfigv3.RBAC_ALLOW} // denies all connections that match no policy
	if len(principals) > 0 {
		rules.Policies = map[string]*rbacconfigv3.Policy{"tailnet": {
			Permissions: []*rbacconfigv3.Permission{{Rule: &rbacconfigv3.Permission_Any{Any: true}}}, Principals: principals,
		}}
	}
	config, err := packAny(&rbacv3.RBAC{Rules: rules, StatPrefix: "tailscale_"})
	return &listenerv3.Filter{Name: accessName, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: config}}, err
}
