package gateway

import (
	"net/netip"

	gatewayv1alpha1 "github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway/portmap"
)

// Objects are what Build decides upon: everything that is, as it is stored now.
// Lists may come in any order; objects of one kind have different names.
type Objects struct {
	// Namespace is the operator's, which "Same" means for tailnets, and where the
	// groups are that it makes.
	Namespace string

	// ClusterDomain is the end of the names of Services, such as cluster.local.
	ClusterDomain string

	// Controller is the controllerName of Envoy Gateway's GatewayClasses.
	Controller string

	// ProxyNamespaces are the namespaces, besides Namespace, where groups may be.
	ProxyNamespaces []string

	// Addresses renders the addresses of relays instead of names to resolve.
	Addresses bool

	Tailnets    []*gatewayv1alpha1.TailscaleTailnet
	Groups      []*gatewayv1alpha1.TailscaleProxyGroup
	Services    []*gatewayv1alpha1.TailscaleService
	Attachments []*gatewayv1alpha1.TailscaleGateway
	Policies    []*gatewayv1alpha1.TailscaleRoutePolicy

	// Ports are the tables of ports of groups, as stored.
	Ports map[Name]portmap.Table

	// Relays are, for each TailscaleService, the addresses of the relays that carry
	// it now. Used with Addresses only.
	Relays map[Name][]netip.Addr

	// LeftOut are the namespaces of groups in which the operator may not read now, so
	// that relays there may not be known.
	LeftOut map[string]bool

	Gateways []GatewayObject
	Routes   []RouteObject
	Grants   []GrantObject

	// Namespaces are the labels of all namespaces, by name.
	Namespaces map[string]map[string]string

	// KubeServices are the Services of the cluster that may be backends.
	KubeServices map[Name]bool

	// Roots are the PEM certificates under ca.crt of ConfigMaps that a caBundleRef names.
	Roots map[Name]string
}

// A GatewayObject is what matters here of a Gateway.
type GatewayObject struct {
	Name       Name
	Controller string // the controllerName of its class
	Listeners  []ListenerObject

	// Private says that nobody but relays can open a connection to its Envoys: the
	// Service is ClusterIP, and a NetworkPolicy of ours admits only relays.
	Private bool
}

// A ListenerObject is one listener of a Gateway.
type ListenerObject struct {
	Name     string
	Hostname string // empty is every host
	HTTP     bool   // it has virtual hosts: HTTP, or HTTPS that it terminates
}

// A RouteObject is what matters here of an HTTPRoute or GRPCRoute.
type RouteObject struct {
	Kind      string // "HTTPRoute" or "GRPCRoute"
	Name      Name
	Parents   []ParentObject // those that accepted it
	Hostnames []string       // empty is those of the listeners
	Rules     []RuleObject
}

// A ParentObject is a Gateway, or with Section one listener of it, that accepted a route.
type ParentObject struct {
	Gateway Name
	Section string
}

// A RuleObject is one rule of a route.
type RuleObject struct {
	Name     string // for a policy's sectionName; may be empty
	Paths    []Path // of its matches, in their order; none is all paths
	Backends []BackendObject

	// Answered says that the rule redirects, and so never reaches a backend.
	Answered bool
}

// A BackendObject is one backendRef of a rule.
type BackendObject struct {
	Group, Kind string
	Name        Name // with the namespace of the route if the reference has none
	Port        uint16
	Weight      uint32 // 1 if the reference has none
}

// ours says whether the backend is a TailscaleService.
func (b BackendObject) ours() bool {
	return b.Group == gatewayv1alpha1.Group && b.Kind == "TailscaleService"
}

// A GrantObject is one ReferenceGrant: each From may refer to each To.
type GrantObject struct {
	Namespace string
	From      []GrantFrom
	To        []GrantTo
}

// A GrantFrom is objects of one kind in one namespace.
type GrantFrom struct{ Group, Kind, Namespace string }

// A GrantTo is objects of one kind, or with Name one of them.
type GrantTo struct{ Group, Kind, Name string }

// A Verdict is one condition, without its times. The zero Verdict is not decided.
type Verdict struct {
	OK      bool
	Reason  string
	Message string
}

func holds(reason string) Verdict          { return Verdict{OK: true, Reason: reason} }
func fails(reason, message string) Verdict { return Verdict{Reason: reason, Message: message} }

// Result is what Build decides.
type Result struct {
	Snapshot *Snapshot

	Groups      map[Name]GroupReport
	Services    map[Name]ServiceReport
	Attachments map[Name]AttachmentReport
	Policies    map[Name]PolicyReport

	// Wanted are the groups that are to be there because of others, by name, all
	// in the operator's namespace. One that is no longer here has no user.
	Wanted map[string]WantedGroup

	// Demands are the ports that each group must have, sorted, without those of
	// services that may not use it: what portmap.Table.Allocate is to be asked for.
	Demands map[Name][]portmap.Key
}

// A GroupReport is what is said of a TailscaleProxyGroup.
type GroupReport struct {
	Accepted Verdict `json:"accepted"`
	Tailnet  string  `json:"tailnet,omitempty"` // the TailscaleTailnet that it joins, if Accepted
	LeftOut  bool    `json:"leftOut,omitempty"` // its namespace is
}

// A ServiceReport is what is said of a TailscaleService.
type ServiceReport struct {
	Accepted     Verdict `json:"accepted"`
	ResolvedRefs Verdict `json:"resolvedRefs"`
	Tailnet      string  `json:"tailnet,omitempty"`
	Group        Name    `json:"group,omitzero"`    // the group that carries it; it may still have to be made
	LeftOut      bool    `json:"leftOut,omitempty"` // the namespace of the group is

	// Generation is the generation of the spec that was decided upon.
	Generation int64 `json:"-"`
}

// An AttachmentReport is what is said of a TailscaleGateway. That Envoy Gateway
// does as asked, and that no security is ambiguous, only the extension server sees.
type AttachmentReport struct {
	Accepted     Verdict `json:"accepted"`
	ResolvedRefs Verdict `json:"resolvedRefs"`
	Programmed   Verdict `json:"programmed"`

	TailnetCount int                             `json:"tailnetCount"`
	Routed       []gatewayv1alpha1.RoutedService `json:"routed,omitempty"` // all of them, by name
	Revision     string                          `json:"revision,omitempty"`
	LeftOut      []string                        `json:"leftOut,omitempty"` // namespaces of groups that carry services of it
}

// A PolicyReport is what is said of a TailscaleRoutePolicy.
type PolicyReport struct {
	Accepted     Verdict                      `json:"accepted"`
	ResolvedRefs Verdict                      `json:"resolvedRefs"`
	Programmed   Verdict                      `json:"programmed"`
	Rules        []gatewayv1alpha1.RuleStatus `json:"rules,omitempty"`
}

// A WantedGroup is a TailscaleProxyGroup that the operator is to make, in its own
// namespace, or to keep.
type WantedGroup struct {
	Name      string                         `json:"name"`
	Type      gatewayv1alpha1.Direction      `json:"type"`
	Tailnet   string                         `json:"tailnet"`
	Replicas  int32                          `json:"replicas"`
	Target    *gatewayv1alpha1.TailnetTarget `json:"target,omitempty"` // of a group for one service
	Consumers []string                       `json:"consumers"`        // namespaces of its services, sorted
	Services  []Name                         `json:"services"`         // that use it, sorted
}
