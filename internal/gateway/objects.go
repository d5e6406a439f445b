package gateway

import (
	"net/netip"

	gatewayv1alpha1 "github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/kube/conditions"
)

// Objects are the inputs of Build: the relevant objects as they are stored now. Lists can be in
// any order. Two objects of one kind must not have the same name.
type Objects struct {
	// Namespace is the operator's namespace. The operator creates its groups here, and the
	// selector "Same" of a tailnet means this namespace.
	Namespace string

	// ClusterDomain is the DNS suffix of Services, such as cluster.local.
	ClusterDomain string

	// Controller is the controllerName of Envoy Gateway's GatewayClasses.
	Controller string

	// ProxyNamespaces are the namespaces, in addition to Namespace, that may contain groups.
	ProxyNamespaces []string

	// Addresses makes Build use the addresses of relays as endpoints instead of a DNS name.
	Addresses bool

	Tailnets    []*gatewayv1alpha1.TailscaleTailnet
	Groups      []*gatewayv1alpha1.TailscaleProxyGroup
	Services    []*gatewayv1alpha1.TailscaleService
	Attachments []*gatewayv1alpha1.TailscaleGateway
	Policies    []*gatewayv1alpha1.TailscaleRoutePolicy

	// Ports are the stored port tables of the groups.
	Ports map[Name]PortTable

	// Relays are, for each TailscaleService, the addresses of the relays that carry it now. Build
	// uses them only if Addresses is set.
	Relays map[Name][]netip.Addr

	// Unreadable are the namespaces of groups that the operator cannot read now. Relays in them may
	// be unknown.
	Unreadable map[string]bool

	Gateways []GatewayObject
	Routes   []RouteObject
	Grants   []GrantObject

	// Namespaces maps each namespace to its labels.
	Namespaces map[string]map[string]string

	// KubeServices are the Services of the cluster that may be backends.
	KubeServices map[Name]bool

	// Roots are the PEM certificates under ca.crt of the ConfigMaps that a caBundleRef names.
	Roots map[Name]string
}

// A GatewayObject is the relevant part of a Gateway.
type GatewayObject struct {
	Name       Name
	Controller string // controllerName of the Gateway's class
	Listeners  []ListenerObject

	// Private means that only relays can connect to the Gateway's Envoys: the Service is
	// ClusterIP, and a NetworkPolicy of Tailplane admits only relays.
	Private bool
}

// A ListenerObject is one listener of a Gateway.
type ListenerObject struct {
	Name     string
	Hostname string // empty means every host
	HTTP     bool   // the listener has virtual hosts: HTTP, or HTTPS with TLS termination
}

// A RouteObject is the relevant part of an HTTPRoute or GRPCRoute.
type RouteObject struct {
	Kind      string // "HTTPRoute" or "GRPCRoute"
	Name      Name
	Parents   []ParentObject // only parents that accepted the route
	Hostnames []string       // empty means the hostnames of the listeners
	Rules     []RuleObject
}

// A ParentObject is a Gateway that accepted a route. If Section is set, only this listener
// accepted it.
type ParentObject struct {
	Gateway Name
	Section string
}

// A RuleObject is one rule of a route.
type RuleObject struct {
	Name     string // for a policy's sectionName; may be empty
	Paths    []Path // paths of the matches, in order; empty means all paths
	Backends []BackendObject

	// Answered means that the rule redirects and therefore never reaches a backend.
	Answered bool
}

// A BackendObject is one backendRef of a rule.
type BackendObject struct {
	Group, Kind string
	Name        Name // the namespace is the route's if the reference has none
	Port        uint16
	Weight      uint32 // 1 if the reference has none
}

// isTailscaleService reports whether the backend is a TailscaleService.
func (b BackendObject) isTailscaleService() bool {
	return b.Group == gatewayv1alpha1.Group && b.Kind == "TailscaleService"
}

// A GrantObject is one ReferenceGrant: each From may refer to each To.
type GrantObject struct {
	Namespace string
	From      []GrantFrom
	To        []GrantTo
}

// A GrantFrom means all objects of one kind in one namespace.
type GrantFrom struct{ Group, Kind, Namespace string }

// A GrantTo means all objects of one kind, or only the object Name if Name is set.
type GrantTo struct{ Group, Kind, Name string }

// Result is the output of Build.
type Result struct {
	Snapshot *Snapshot

	Groups      map[Name]GroupReport
	Services    map[Name]ServiceReport
	Attachments map[Name]AttachmentReport
	Policies    map[Name]PolicyReport

	// DesiredGroups are the groups that services need and that the operator creates, by name. All are in
	// the operator's namespace. A group that is no longer in DesiredGroups is unused.
	DesiredGroups map[string]DesiredGroup

	// RequiredPorts are the ports that each group must have, sorted. Ports of services that may not use
	// the group are not included. They are the input of PortTable.Allocate.
	RequiredPorts map[Name][]PortKey
}

// A GroupReport is the status of a TailscaleProxyGroup.
type GroupReport struct {
	Accepted   conditions.Condition `json:"accepted"`
	Tailnet    string               `json:"tailnet,omitempty"` // the TailscaleTailnet that the group joins, if Accepted
	Unreadable bool                 `json:"leftOut,omitempty"` // the operator cannot read the group's namespace now
}

// A ServiceReport is the status of a TailscaleService.
type ServiceReport struct {
	Accepted     conditions.Condition `json:"accepted"`
	ResolvedRefs conditions.Condition `json:"resolvedRefs"`
	Tailnet      string               `json:"tailnet,omitempty"`
	Group        Name                 `json:"group,omitzero"`    // the group that carries the service; it may not exist yet
	Unreadable   bool                 `json:"leftOut,omitempty"` // the operator cannot read the group's namespace now

	// Generation is the metadata.generation of the spec that this report is about.
	Generation int64 `json:"-"`
}

// An AttachmentReport is the status of a TailscaleGateway. It does not say whether Envoy Gateway
// applied the configuration or whether security filters are ambiguous. Only the extension server
// knows this.
type AttachmentReport struct {
	Accepted     conditions.Condition `json:"accepted"`
	ResolvedRefs conditions.Condition `json:"resolvedRefs"`
	Programmed   conditions.Condition `json:"programmed"`

	TailnetCount int                             `json:"tailnetCount"`
	Routed       []gatewayv1alpha1.RoutedService `json:"routed,omitempty"` // all services, sorted by name
	Revision     string                          `json:"revision,omitempty"`
	Unreadable   []string                        `json:"leftOut,omitempty"` // unreadable namespaces of groups of its services
}

// A PolicyReport is the status of a TailscaleRoutePolicy.
type PolicyReport struct {
	Accepted     conditions.Condition         `json:"accepted"`
	ResolvedRefs conditions.Condition         `json:"resolvedRefs"`
	Programmed   conditions.Condition         `json:"programmed"`
	Rules        []gatewayv1alpha1.RuleStatus `json:"rules,omitempty"`
}

// A DesiredGroup is a TailscaleProxyGroup that must exist in the operator's namespace.
type DesiredGroup struct {
	Name      string                         `json:"name"`
	Type      gatewayv1alpha1.Direction      `json:"type"`
	Tailnet   string                         `json:"tailnet"`
	Replicas  int32                          `json:"replicas"`
	Target    *gatewayv1alpha1.TailnetTarget `json:"target,omitempty"` // only for a group of one service
	Consumers []string                       `json:"consumers"`        // namespaces of the services, sorted
	Services  []Name                         `json:"services"`         // services that use the group, sorted
}
