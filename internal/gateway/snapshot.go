package gateway

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/netip"
	"reflect"
	"slices"
	"strings"
)

// A Name is an object's namespace and name.
type Name struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

// String is namespace/name.
func (n Name) String() string { return n.Namespace + "/" + n.Name }

// Compare orders by namespace, then name.
func (n Name) Compare(m Name) int {
	return cmp.Or(cmp.Compare(n.Namespace, m.Namespace), cmp.Compare(n.Name, m.Name))
}

// A Snapshot is everything that is to be rendered for Envoy Gateway. Build makes
// it; afterwards nobody changes anything in it, so that it may be published
// through one atomic pointer and read without a lock. Equal inputs of Build, in
// any order, give equal snapshots: all lists are sorted as their fields say.
//
// Every reference in it was allowed when it was made: what is not allowed, not
// known or has no port on the relays yet is not in it.
type Snapshot struct {
	// Gateways are the Gateways that anything is to be done for.
	Gateways map[Name]*Gateway

	rules map[RuleKey]agreement // of all Gateways; nil if not Build made it
}

// An agreement is one rule, and whether all Gateways that have it say the same.
type agreement struct {
	rule   Rule
	agreed bool
}

// agreements collects the rules of all Gateways.
func (s *Snapshot) agreements() map[RuleKey]agreement {
	all := map[RuleKey]agreement{}
	for _, g := range s.Sorted() {
		for _, r := range g.Rules {
			if first, had := all[r.Key]; !had {
				all[r.Key] = agreement{r, true}
			} else if first.agreed && !reflect.DeepEqual(first.rule, r) {
				all[r.Key] = agreement{first.rule, false}
			}
		}
	}
	return all
}

// A Gateway is what is to be done for one Gateway of the Gateway API.
//
// How its parts are rendered:
//
//   - PostRouteModify knows a route but no Gateway: use Snapshot.Rule, which says
//     whether all Gateways agree on the rule. If they do not, leave the route
//     alone there and decide in the hooks that know the Gateway.
//   - PostVirtualHostModify and PostTranslateModify add Routes to each virtual
//     host that Route.Covers, and the path rules of Rules before the routes that
//     they are cut from.
//   - PostClusterModify replaces the cluster of a rule by Rule.Sole.
//   - PostHTTPListenerModify applies Listeners.
//   - PostTranslateModify adds those of Clusters that an added or changed route
//     names; the others are not used.
type Gateway struct {
	// Name is the Gateway.
	Name Name `json:"name"`

	// Attachment is the TailscaleGateway whose targetRef names this Gateway; the
	// zero Name if there is none, and only backends of its routes are ours.
	Attachment Name `json:"attachment,omitzero"`

	// Revision is 16 hexadecimal digits that are equal exactly if everything else
	// here is. Envoy Gateway is made to ask again when it changes.
	Revision string `json:"-"`

	// Mappings are the services that have a route, one row for each, sorted by
	// ServiceName, then Port.
	Mappings []Mapping `json:"mappings,omitempty"`

	// Routes are the routes to inject, sorted by the order in which they are to be
	// tried: longer prefix first, then name.
	Routes []Route `json:"routes,omitempty"`

	// Clusters are the clusters that Routes and Rules name, sorted by name, each
	// name once. Rule.Sole is not among them: that cluster is Envoy Gateway's.
	Clusters []Cluster `json:"clusters,omitempty"`

	// Rules say what to do with the rules of HTTPRoutes and GRPCRoutes on this
	// Gateway; a rule that is not here stays as it is. Sorted by Key.
	Rules []Rule `json:"rules,omitempty"`

	// Listeners say who may reach which listener, sorted by Section; the one with
	// an empty Section is for those that no other names. A listener that none is
	// about stays as it is, but for the headers: see Listener.
	Listeners []Listener `json:"listeners,omitempty"`
}

// A Mapping is one service of a tailnet, and how Envoy reaches it.
type Mapping struct {
	ServiceName    string `json:"serviceName"`    // as in the route's name: "web", or "web.dev" if an earlier tailnet has a web
	ClusterName    string `json:"clusterName"`    // "tailscale-cluster-web"
	ProxyGroupName string `json:"proxyGroupName"` // the TailscaleProxyGroup, without its namespace
	HeadlessFQDN   string `json:"headlessFQDN"`   // "<group>.<namespace>.svc.<cluster domain>"
	Port           uint16 `json:"port"`           // in the tailnet
	Protocol       string `json:"protocol"`       // "TCP"; a route cannot use another
	Tailnet        string `json:"tailnet"`        // the TailscaleTailnet
	Service        Name   `json:"service"`        // the TailscaleService
	MatchPort      uint16 `json:"matchPort"`      // on the relays
	Path           string `json:"path"`           // "/svc/web"
}

// A Route is one route to inject, for requests below a path.
type Route struct {
	// Name is "tailscale-svc-<service>"; it is unique within the Gateway.
	Name string `json:"name"`

	// Hosts are the host patterns whose virtual hosts get the route, sorted: "*"
	// is every one, "*.example.com" those below, else exactly that one.
	Hosts []string `json:"hosts"`

	// Section is the listener that the route is for; empty is every one.
	Section string `json:"section,omitempty"`

	// Prefix is the path, without a slash at its end, and is to be matched by
	// whole segments: "/svc/web" is for /svc/web and /svc/web/x, not /svc/webmail.
	Prefix string `json:"prefix"`

	// Strip says that the service sees what follows Prefix, at least "/" and never
	// "//"; else it sees the whole path.
	Strip bool `json:"strip,omitempty"`

	// HostRewrite is the host that the service sees; empty is the caller's.
	HostRewrite string `json:"hostRewrite,omitempty"`

	// Cluster is the name of one of the Gateway's Clusters.
	Cluster string `json:"cluster"`

	// InheritFrom is the HTTPRoute whose per-filter configuration the route takes
	// over in virtual hosts whose routes differ in it; the zero Name if none is
	// named, and then nothing is injected there. Where all routes of the virtual
	// host agree, theirs is taken over and this is not used.
	InheritFrom Name `json:"inheritFrom,omitzero"`
}

// Covers says whether a virtual host with this domain gets the route. A domain
// that stands for more hosts than the route is for does not.
func (r Route) Covers(domain string) bool {
	return slices.ContainsFunc(r.Hosts, func(h string) bool {
		return h == "*" || h == domain || strings.HasPrefix(h, "*.") && len(domain) > len(h)-1 && strings.HasSuffix(domain, h[1:])
	})
}

// A Protocol is what is spoken to a cluster.
type Protocol string

// Values of Protocol.
const (
	HTTP1 Protocol = "http" // HTTP/1.1
	HTTP2 Protocol = "h2c"  // HTTP/2; over TLS if the cluster has TLS
)

// A Cluster is one service of a tailnet as Envoy reaches it: one port of a group
// of relays.
type Cluster struct {
	// Name is unique within the Gateway. StatName is the same without dots, for
	// metrics.
	Name     string `json:"name"`
	StatName string `json:"statName"`

	// Host is the name that resolves to the ready relays, and Port theirs for this
	// service. If Endpoints is not nil, names are not resolved and the relays are
	// there instead (each with its port; sorted; it may be empty).
	Host      string           `json:"host"`
	Port      uint16           `json:"port"`
	Endpoints []netip.AddrPort `json:"endpoints,omitzero"`

	// HealthPort and HealthPath are where each relay says, by HTTP/1.1 and status
	// 200, that it carries this service.
	HealthPort uint16 `json:"healthPort"`
	HealthPath string `json:"healthPath"`

	// Protocol is what the service speaks.
	Protocol Protocol `json:"protocol"`

	// TLS is how it is spoken to over TLS; nil is without.
	TLS *TLS `json:"tls,omitempty"`
}

// TLS is how a service is spoken to over TLS. Its certificate is verified always.
type TLS struct {
	// ServerName is the name to ask for, and to find among the certificate's names.
	ServerName string `json:"serverName"`

	// Roots are PEM certificates to trust; empty is those of Envoy's system.
	Roots string `json:"roots,omitempty"`
}

// A RuleKey is one rule of a route: the numbers in the name that Envoy Gateway
// gives its xDS routes, "httproute/<namespace>/<name>/rule/<index>/match/<n>/<host>".
type RuleKey struct {
	Kind  string `json:"kind"` // "HTTPRoute" or "GRPCRoute"
	Route Name   `json:"route"`
	Index int    `json:"index"` // from 0
}

// Compare orders by kind, route and index.
func (k RuleKey) Compare(o RuleKey) int {
	return cmp.Or(cmp.Compare(k.Kind, o.Kind), k.Route.Compare(o.Route), cmp.Compare(k.Index, o.Index))
}

// ClusterName is the name that Envoy Gateway gives the rule's own cluster.
func (k RuleKey) ClusterName() string {
	return strings.ToLower(k.Kind) + "/" + k.Route.Namespace + "/" + k.Route.Name + "/rule/" + itoa(k.Index)
}

// A Rule says what to do with one rule of an HTTPRoute or GRPCRoute.
type Rule struct {
	Key RuleKey `json:"key"`

	// Policies are the policies in effect here, in the order of Name, to be noted
	// on the route.
	Policies []PolicyStamp `json:"policies,omitempty"`

	// Sole is set if the rule's only backend is one TailscaleService: what Envoy
	// Gateway's cluster of the rule (Sole.Name, which is Key.ClusterName) becomes.
	Sole *Cluster `json:"sole,omitempty"`

	// Mixed are the rule's backends that are TailscaleServices, with the weights
	// that the route gives them, if there is more than one backend: the action
	// becomes weighted, over these and Envoy Gateway's cluster of the rule with
	// OwnWeight. Weights of 0 are not here.
	Mixed []WeightedCluster `json:"mixed,omitempty"`

	// OwnWeight is the sum of the weights of the rule's other backends.
	OwnWeight uint32 `json:"ownWeight,omitempty"`

	// RefusedWeight is the sum of the weights of those TailscaleServices of the
	// rule that may not be used or do not exist. Their share of requests gets
	// status 500, as the Gateway API wishes, and never goes elsewhere.
	RefusedWeight uint32 `json:"refusedWeight,omitempty"`

	// Paths are the path rules of policies, in the order in which they are to be
	// tried. For an xDS route of this rule with path R, PathRule.Path.Relation(R)
	// says what each is to it.
	Paths []PathRule `json:"paths,omitempty"`

	// Default is where requests go that none of Paths is about, instead of the
	// rule's own backends and of Sole and Mixed; empty leaves those.
	Default []WeightedCluster `json:"default,omitempty"`
}

// A PolicyStamp is one generation of a policy.
type PolicyStamp struct {
	Name
	Generation int64 `json:"generation"`
}

// A WeightedCluster is a share of requests. Cluster is the name of one of the
// Gateway's Clusters; Weight is above 0.
type WeightedCluster struct {
	Cluster string `json:"cluster"`
	Weight  uint32 `json:"weight"`
}

// A PathRule is one rule of a policy: requests for Path go to Cluster.
type PathRule struct {
	// Name is "tailscale-rule-<namespace>_<policy>_<index>"; the xDS route for the
	// n-th route that it is cut from adds "_<n>".
	Name    string `json:"name"`
	Path    Path   `json:"path"`
	Cluster string `json:"cluster"`
}

// A Listener says who may reach one listener. From every HTTP listener of a
// Gateway in the Snapshot, headers named Tailscale-* and X-Tailscale-* that a
// client sends are removed, whether or not there is a Listener for it.
type Listener struct {
	// Section is the listener's name in the Gateway; empty is every other one.
	Section string `json:"section,omitempty"`

	// Allow are the direct peers to admit, sorted; empty, with Restrict set,
	// admits nobody. It is used only if Restrict is set.
	Restrict bool           `json:"restrict,omitempty"`
	Allow    []netip.Prefix `json:"allow,omitempty"`

	// ProxyProtocol says that connections may begin with a PROXY header. Without
	// Restrict those that do not are taken too.
	ProxyProtocol bool `json:"proxyProtocol,omitempty"`
}

// Rule returns what is to be done with a rule, if all Gateways of the Snapshot
// that have it say the same. ok is false if none has it; agreed is false if two
// differ, and then the rule is that of the first by name.
func (s *Snapshot) Rule(key RuleKey) (rule Rule, agreed, ok bool) {
	rules := s.rules
	if rules == nil {
		rules = s.agreements()
	}
	a, ok := rules[key]
	return a.rule, a.agreed, ok
}

// Sorted returns the Gateways by name.
func (s *Snapshot) Sorted() []*Gateway {
	all := make([]*Gateway, 0, len(s.Gateways))
	for _, g := range s.Gateways {
		all = append(all, g)
	}
	slices.SortFunc(all, func(a, b *Gateway) int { return a.Name.Compare(b.Name) })
	return all
}

// Rule returns what is to be done with a rule on this Gateway.
func (g *Gateway) Rule(key RuleKey) (Rule, bool) {
	if i, ok := slices.BinarySearchFunc(g.Rules, key, func(r Rule, k RuleKey) int { return r.Key.Compare(k) }); ok {
		return g.Rules[i], true
	}
	return Rule{}, false
}

// Cluster returns the cluster of that name.
func (g *Gateway) Cluster(name string) (Cluster, bool) {
	if i, ok := slices.BinarySearchFunc(g.Clusters, name, func(c Cluster, n string) int { return strings.Compare(c.Name, n) }); ok {
		return g.Clusters[i], true
	}
	return Cluster{}, false
}

// Listener returns what is said of a listener, and false if nothing is.
func (g *Gateway) Listener(section string) (Listener, bool) {
	for _, name := range []string{section, ""} {
		if i := slices.IndexFunc(g.Listeners, func(l Listener) bool { return l.Section == name }); i >= 0 {
			return g.Listeners[i], true
		}
	}
	return Listener{}, false
}

// revision is the hash of everything in g that can change what is rendered.
func (g *Gateway) revision() string {
	text, err := json.Marshal(g)
	if err != nil {
		panic(err) // plain values only: a programming error
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}
