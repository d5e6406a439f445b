package gateway

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// A Name is the namespace and name of an object.
type Name struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

// String returns namespace/name.
func (n Name) String() string { return n.Namespace + "/" + n.Name }

// Compare compares by namespace, then by name.
func (n Name) Compare(m Name) int {
	return cmp.Or(cmp.Compare(n.Namespace, m.Namespace), cmp.Compare(n.Name, m.Name))
}

// A Snapshot is everything to render for Envoy Gateway. Only Build creates it, and it must not be
// modified afterwards. It can therefore be published through one atomic pointer and read without a
// lock. Equal inputs of Build in any order give equal snapshots: all lists are sorted as
// documented at their fields.
//
// Every reference in it was allowed when Build ran. A service that is not allowed, not known or
// without a port on the relays is not included.
type Snapshot struct {
	// Gateways are the Gateways that need changes.
	Gateways map[Name]*Gateway

	rules map[RuleKey]agreement // rules of all Gateways; nil if Build did not create the Snapshot
}

// An agreement is one rule, and whether all Gateways that have it need the same change.
type agreement struct {
	rule   Rule
	agreed bool
}

// agreements collects the rules of all Gateways.
func (s *Snapshot) agreements() map[RuleKey]agreement {
	all := map[RuleKey]agreement{}
	for _, g := range s.Sorted() {
		for _, r := range g.Rules {
			if first, existing := all[r.Key]; !existing {
				all[r.Key] = agreement{r, true}
			} else if first.agreed && !reflect.DeepEqual(first.rule, r) {
				all[r.Key] = agreement{first.rule, false}
			}
		}
	}
	return all
}

// A Gateway is everything to render for one Gateway of the Gateway API.
//
// The parts are rendered as follows:
//
//   - PostRouteModify receives a route without its Gateway. It uses Snapshot.Rule, which reports
//     whether all Gateways agree on the rule. If they do not agree, it leaves the route unchanged,
//     and the hooks that know the Gateway change it.
//   - PostVirtualHostModify and PostTranslateModify add Routes to each virtual host that
//     Route.Covers. They add the path rules of Rules before the routes that these were cut from.
//   - PostClusterModify replaces the cluster of a rule by Rule.Sole.
//   - PostHTTPListenerModify applies Listeners.
//   - PostTranslateModify adds the Clusters that an added or changed route names. It ignores the
//     others.
type Gateway struct {
	// Name is the name of the Gateway.
	Name Name `json:"name"`

	// Attachment is the TailscaleGateway whose targetRef names this Gateway. It is the zero Name
	// if there is none; then only route backends or policies refer to tailnet services.
	Attachment Name `json:"attachment,omitzero"`

	// Revision is a hash of all other fields, as 16 hexadecimal digits. When it changes, the
	// operator makes Envoy Gateway translate again.
	Revision string `json:"-"`

	// Mappings are the services that have a route, one row each, sorted by ServiceName, then Port.
	Mappings []Mapping `json:"mappings,omitempty"`

	// Routes are the routes to inject, in order of precedence: longer prefix first, then name.
	Routes []Route `json:"routes,omitempty"`

	// Clusters are the clusters that Routes and Rules name, sorted by name, without duplicates.
	// Rule.Sole is not included because Envoy Gateway creates that cluster.
	Clusters []Cluster `json:"clusters,omitempty"`

	// Rules are the changes to rules of HTTPRoutes and GRPCRoutes on this Gateway, sorted by Key.
	// A rule that is not included stays unchanged.
	Rules []Rule `json:"rules,omitempty"`

	// Listeners are the access rules of listeners, sorted by Section. The entry with an empty
	// Section applies to the listeners without an entry. A listener without any entry stays
	// unchanged, except that headers are removed: see Listener.
	Listeners []Listener `json:"listeners,omitempty"`
}

// A Mapping is one service of a tailnet and the way Envoy reaches it.
type Mapping struct {
	ServiceName    string `json:"serviceName"`    // as in the route's name: "web", or "web.dev" if an earlier tailnet has a web
	ClusterName    string `json:"clusterName"`    // "tailscale-cluster-web"
	ProxyGroupName string `json:"proxyGroupName"` // name of the TailscaleProxyGroup, without its namespace
	HeadlessFQDN   string `json:"headlessFQDN"`   // "<group>.<namespace>.svc.<cluster domain>"
	Port           uint16 `json:"port"`           // number in the tailnet
	Protocol       string `json:"protocol"`       // always "TCP": routes cannot use other protocols
	Tailnet        string `json:"tailnet"`        // name of the TailscaleTailnet
	Service        Name   `json:"service"`        // the TailscaleService
	MatchPort      uint16 `json:"matchPort"`      // port on the relays
	Path           string `json:"path"`           // "/svc/web"
}

// A Route is one route to inject, for requests below a path.
type Route struct {
	// Name is "tailscale-svc-<service>". It is unique within the Gateway.
	Name string `json:"name"`

	// Hosts are the host patterns of the virtual hosts that get the route, sorted. "*" matches
	// every host, "*.example.com" matches the hosts below it, any other pattern matches exactly.
	Hosts []string `json:"hosts"`

	// Section is the name of the listener that gets the route. Empty means every listener.
	Section string `json:"section,omitempty"`

	// Prefix is the path without a trailing slash. It matches whole segments: "/svc/web" matches
	// /svc/web and /svc/web/x, but not /svc/webmail.
	Prefix string `json:"prefix"`

	// Strip removes Prefix from the path that the service receives. The remaining path is at least
	// "/" and never begins with "//". Without Strip the service receives the whole path.
	Strip bool `json:"strip,omitempty"`

	// HostRewrite is the Host header for the service. Empty keeps the caller's.
	HostRewrite string `json:"hostRewrite,omitempty"`

	// Cluster is the name of one of the Gateway's Clusters.
	Cluster string `json:"cluster"`

	// InheritFrom is the HTTPRoute whose per-filter configuration the route copies. It is used
	// only in virtual hosts whose routes have different configurations; where all routes agree,
	// the route copies theirs. If it is the zero Name and the routes differ, no route is injected
	// there.
	InheritFrom Name `json:"inheritFrom,omitzero"`
}

// Covers reports whether a virtual host with this domain gets the route. A domain that matches
// more hosts than the route does not get it.
func (r Route) Covers(domain string) bool {
	return slices.ContainsFunc(r.Hosts, func(h string) bool {
		return h == "*" || h == domain || strings.HasPrefix(h, "*.") && len(domain) > len(h)-1 && strings.HasSuffix(domain, h[1:])
	})
}

// A Protocol is the application protocol of a cluster.
type Protocol string

// Values of Protocol.
const (
	HTTP1 Protocol = "http" // HTTP/1.1
	HTTP2 Protocol = "h2c"  // HTTP/2; over TLS if the cluster has TLS
)

// A Cluster is one service of a tailnet as Envoy reaches it: one port on a group of relays.
type Cluster struct {
	// Name is unique within the Gateway. StatName is Name without dots, for metrics.
	Name     string `json:"name"`
	StatName string `json:"statName"`

	// Host is the DNS name of the ready relays, and Port is the port of this service on them. If
	// Endpoints is not nil, Envoy uses these addresses instead of DNS. Endpoints is sorted,
	// includes the port, and may be empty.
	Host      string           `json:"host"`
	Port      uint16           `json:"port"`
	Endpoints []netip.AddrPort `json:"endpoints,omitzero"`

	// HealthPort and HealthPath are the health check of each relay over HTTP/1.1. Status 200 means
	// that the relay carries this service.
	HealthPort uint16 `json:"healthPort"`
	HealthPath string `json:"healthPath"`

	// Protocol is the protocol of the service.
	Protocol Protocol `json:"protocol"`

	// TLS is the TLS configuration towards the service. Nil means plaintext.
	TLS *TLS `json:"tls,omitempty"`
}

// TLS is the TLS configuration towards a service. Envoy always verifies the certificate.
type TLS struct {
	// ServerName is the SNI, and must be one of the names in the certificate.
	ServerName string `json:"serverName"`

	// Roots are trusted PEM certificates. Empty means the system roots of Envoy's image.
	Roots string `json:"roots,omitempty"`
}

// A RuleKey identifies one rule of a route. It holds the parts of the name that Envoy Gateway
// gives its xDS routes, "httproute/<namespace>/<name>/rule/<index>/match/<n>/<host>".
type RuleKey struct {
	Kind  string `json:"kind"` // "HTTPRoute" or "GRPCRoute"
	Route Name   `json:"route"`
	Index int    `json:"index"` // starts at 0
}

// Compare compares by kind, route and index.
func (k RuleKey) Compare(o RuleKey) int {
	return cmp.Or(cmp.Compare(k.Kind, o.Kind), k.Route.Compare(o.Route), cmp.Compare(k.Index, o.Index))
}

// ClusterName returns the name that Envoy Gateway gives the cluster of the rule.
func (k RuleKey) ClusterName() string {
	return strings.ToLower(k.Kind) + "/" + k.Route.Namespace + "/" + k.Route.Name + "/rule/" + strconv.Itoa(k.Index)
}

// A Rule describes the changes to one rule of an HTTPRoute or GRPCRoute.
type Rule struct {
	Key RuleKey `json:"key"`

	// Policies are the policies in effect here, sorted by Name. They are recorded in the metadata
	// of the route.
	Policies []PolicyStamp `json:"policies,omitempty"`

	// Sole is set if the only backend of the rule is one TailscaleService. It replaces the
	// contents of Envoy Gateway's cluster of the rule. Sole.Name equals Key.ClusterName.
	Sole *Cluster `json:"sole,omitempty"`

	// Mixed are the backends of the rule that are TailscaleServices, with their weights in the
	// route, if the rule has more than one backend. The route action becomes weighted: these
	// clusters, plus Envoy Gateway's cluster of the rule with OwnWeight. Weights of 0 are not
	// included.
	Mixed []WeightedCluster `json:"mixed,omitempty"`

	// OwnWeight is the sum of the weights of the rule's other backends.
	OwnWeight uint32 `json:"ownWeight,omitempty"`

	// RefusedWeight is the sum of the weights of the rule's TailscaleServices that do not exist or
	// may not be used. Their share of requests gets status 500, as the Gateway API requires, and
	// is never sent to another backend.
	RefusedWeight uint32 `json:"refusedWeight,omitempty"`

	// Paths are the path rules of policies, in order of precedence. For an xDS route of this rule
	// with path R, PathRule.Path.Relation(R) says how to apply each of them.
	Paths []PathRule `json:"paths,omitempty"`

	// Default are the clusters for requests that match none of Paths. They replace the rule's own
	// backends, Sole and Mixed. Empty keeps those.
	Default []WeightedCluster `json:"default,omitempty"`
}

// A PolicyStamp is one generation of a policy.
type PolicyStamp struct {
	Name
	Generation int64 `json:"generation"`
}

// A WeightedCluster is a share of requests. Cluster is the name of one of the Gateway's Clusters.
// Weight is above 0.
type WeightedCluster struct {
	Cluster string `json:"cluster"`
	Weight  uint32 `json:"weight"`
}

// A PathRule is one rule of a policy: requests for Path go to Cluster.
type PathRule struct {
	// Name is "tailscale-rule-<namespace>_<policy>_<index>". The xDS routes that implement it
	// append "_<n>", where n counts the routes that the rule is cut from.
	Name    string `json:"name"`
	Path    Path   `json:"path"`
	Cluster string `json:"cluster"`
}

// A Listener is the access rule of one listener. Headers named Tailscale-* and X-Tailscale-* from
// clients are removed on every HTTP listener of a Gateway in the Snapshot, even on those without a
// Listener.
type Listener struct {
	// Section is the name of the listener. Empty means all listeners that no other entry names.
	Section string `json:"section,omitempty"`

	// Allow are the networks of the peers to admit, sorted. It is used only if Restrict is set; an
	// empty Allow then admits no peer.
	Restrict bool           `json:"restrict,omitempty"`
	Allow    []netip.Prefix `json:"allow,omitempty"`

	// ProxyProtocol means that connections may begin with a PROXY header. Without Restrict,
	// connections without the header are accepted too.
	ProxyProtocol bool `json:"proxyProtocol,omitempty"`
}

// Rule returns the change to a rule. ok is false if no Gateway of the Snapshot has it. agreed is
// false if two Gateways need different changes; rule is then the one of the first Gateway by name.
func (s *Snapshot) Rule(key RuleKey) (rule Rule, agreed, ok bool) {
	rules := s.rules
	if rules == nil {
		rules = s.agreements()
	}
	a, ok := rules[key]
	return a.rule, a.agreed, ok
}

// Sorted returns the Gateways sorted by name.
func (s *Snapshot) Sorted() []*Gateway {
	return slices.SortedFunc(maps.Values(s.Gateways), func(a, b *Gateway) int { return a.Name.Compare(b.Name) })
}

// Rule returns the change to a rule on this Gateway. ok is false if the rule stays unchanged.
func (g *Gateway) Rule(key RuleKey) (Rule, bool) {
	if i, ok := slices.BinarySearchFunc(g.Rules, key, func(r Rule, k RuleKey) int { return r.Key.Compare(k) }); ok {
		return g.Rules[i], true
	}
	return Rule{}, false
}

// Cluster returns the cluster with this name.
func (g *Gateway) Cluster(name string) (Cluster, bool) {
	if i, ok := slices.BinarySearchFunc(g.Clusters, name, func(c Cluster, n string) int { return strings.Compare(c.Name, n) }); ok {
		return g.Clusters[i], true
	}
	return Cluster{}, false
}

// Listener returns the access rule that applies to a listener. ok is false if none applies.
func (g *Gateway) Listener(section string) (Listener, bool) {
	for _, name := range []string{section, ""} {
		if i := slices.IndexFunc(g.Listeners, func(l Listener) bool { return l.Section == name }); i >= 0 {
			return g.Listeners[i], true
		}
	}
	return Listener{}, false
}

// revision returns a hash of everything in g that can change the rendered configuration.
func (g *Gateway) revision() string {
	text, err := json.Marshal(g)
	if err != nil {
		panic(err) // g holds plain values only, so an error is a programming error
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// A TranslationReport describes the answer to a Translation call of Envoy Gateway for one Gateway.
type TranslationReport struct {
	Gateway      Name
	Requested    string   // the revision that Envoy Gateway requested
	Rendered     string   // the revision that it received
	VirtualHosts bool     // the hook for virtual hosts was called since the previous Translation
	Received     int      // number of route configurations in the request
	Incomplete   bool     // Envoy Gateway sent neither virtual hosts nor routes
	Routes       int      // number of Tailplane's routes in the answer
	Ambiguous    []string // sorted domains without an injected route: their routes have different filters and no InheritFrom applies
	Conflicted   []string // sorted names of Tailplane's clusters that were left out, because another cluster has the name
}
