package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// A TailscaleRoutePolicy sends the traffic of an HTTPRoute or GRPCRoute to services of a tailnet, or restricts the
// callers of a Gateway.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=tailscaleroutepolicies,singular=tailscaleroutepolicy,shortName=tsrp,categories=tailplane;tailscale-gateway,scope=Namespaced
// +kubebuilder:printcolumn:name="Target",type=string,JSONPath=`.spec.targetRef.name`
// +kubebuilder:printcolumn:name="Kind",type=string,JSONPath=`.spec.targetRef.kind`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type TailscaleRoutePolicy struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the target and the destinations of its traffic, or its allowed callers.
	// +required
	Spec TailscaleRoutePolicySpec `json:"spec"`

	// status is the observed state.
	// +optional
	Status TailscaleRoutePolicyStatus `json:"status,omitempty"`
}

// TailscaleRoutePolicyList is a list of route policies.
//
// +kubebuilder:object:root=true
type TailscaleRoutePolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the route policies.
	Items []TailscaleRoutePolicy `json:"items"`
}

// Kinds that a policy can target.
const (
	KindHTTPRoute = "HTTPRoute"
	KindGRPCRoute = "GRPCRoute"
	KindGateway   = "Gateway"
)

// TailscaleRoutePolicySpec is a target and the destinations of its traffic, or its allowed callers.
//
// +kubebuilder:validation:XValidation:rule="has(self.tailscaleTarget) || has(self.routeRules) || has(self.access) || has(self.revision)",message="set at least one of tailscaleTarget, routeRules and access"
// +kubebuilder:validation:XValidation:rule="self.targetRef.kind != 'Gateway' || (!has(self.tailscaleTarget) && !has(self.routeRules))",message="tailscaleTarget and routeRules are for HTTPRoute and GRPCRoute"
// +kubebuilder:validation:XValidation:rule="self.targetRef.kind == 'Gateway' || !has(self.access)",message="access is for Gateway"
type TailscaleRoutePolicySpec struct {
	// targetRef is the object, in the same namespace, that the policy applies to.
	// +required
	TargetRef PolicyTargetReference `json:"targetRef"`

	// tailnetRef is the tailnet of the services. Unset: the tailnets that the TailscaleGateway attaches to the route's Gateway, in their order.
	// +optional
	TailnetRef *TailnetReference `json:"tailnetRef,omitempty"`

	// tailscaleTarget is the destination of traffic that no rule matches.
	// +optional
	TailscaleTarget *PolicyTarget `json:"tailscaleTarget,omitempty"`

	// defaultBackend is the destination of traffic that no rule matches: Tailnet, or Route for the route's own backends.
	// +optional
	// +kubebuilder:default=Tailnet
	DefaultBackend DefaultBackend `json:"defaultBackend,omitempty"`

	// routeRules are the destinations of more specific traffic.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	RouteRules []RouteRule `json:"routeRules,omitempty"`

	// access restricts the callers of a Gateway.
	// +optional
	Access *GatewayAccess `json:"access,omitempty"`

	// revision makes Envoy Gateway translate its configuration again. Only the operator sets it, on objects that it manages.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Revision string `json:"revision,omitempty"`
}

// DefaultBackend is the destination of traffic that no rule matches.
//
// +kubebuilder:validation:Enum=Tailnet;Route
type DefaultBackend string

// Values of DefaultBackend.
const (
	DefaultBackendTailnet DefaultBackend = "Tailnet"
	DefaultBackendRoute   DefaultBackend = "Route"
)

// PolicyTargetReference names the object that a policy applies to.
type PolicyTargetReference struct {
	// group is gateway.networking.k8s.io.
	// +required
	// +kubebuilder:validation:Enum=gateway.networking.k8s.io
	Group string `json:"group"`

	// kind is HTTPRoute, GRPCRoute or Gateway.
	// +required
	// +kubebuilder:validation:Enum=HTTPRoute;GRPCRoute;Gateway
	Kind string `json:"kind"`

	// name is the object's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// sectionName is the name of one rule of a route, or of one listener of a Gateway. Unset: all.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	SectionName string `json:"sectionName,omitempty"`
}

// PolicyTarget is a set of services: services with a matching name, and services whose devices or VIP services have
// one of the tags.
//
// +kubebuilder:validation:XValidation:rule="has(self.servicePattern) || has(self.tags)",message="set servicePattern, tags or both"
type PolicyTarget struct {
	// servicePattern matches service names. * matches any characters.
	// +optional
	// +kubebuilder:validation:MaxLength=67
	// +kubebuilder:validation:Pattern=`^svc:[-a-z0-9*]{1,63}$`
	ServicePattern string `json:"servicePattern,omitempty"`

	// tags are the tags to match. A service must have at least one of them.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=67
	// +kubebuilder:validation:items:Pattern=`^tag:[a-zA-Z][a-zA-Z0-9-]{0,62}$`
	Tags []string `json:"tags,omitempty"`
}

// RouteRule sends some traffic of the target to one service.
type RouteRule struct {
	// match selects the traffic.
	// +required
	Match RouteMatch `json:"match"`

	// backend is the service that receives the traffic.
	// +required
	Backend RuleBackend `json:"backend"`
}

// RouteMatch selects the traffic of a rule.
type RouteMatch struct {
	// path is /x for exactly this path, /x* for every path with this prefix, and /x/* for /x and all paths below it.
	// +required
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/') && !self.contains('//') && !self.contains('?') && !self.contains('#') && !self.contains('%') && (!self.contains('*') || self.indexOf('*') == self.size() - 1) && !self.matches('/[.][.]?(/|[*]|$)') && self.matches('^[!-~]+$')",message="path must begin with /, have * only at its end, and be plain: no //, ., .., ?, # or %"
	Path string `json:"path"`
}

// RuleBackend is one port of a service in a tailnet.
type RuleBackend struct {
	// serviceName is the service, such as svc:api-server.
	// +required
	// +kubebuilder:validation:MaxLength=67
	// +kubebuilder:validation:Pattern=`^svc:[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`
	ServiceName string `json:"serviceName"`

	// port is the port in the tailnet. The operator adds it to the relays if they do not carry it yet.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
}

// AccessFrom is the allowed origin of a Gateway's callers.
//
// +kubebuilder:validation:Enum=Any;Tailnet
type AccessFrom string

// Values of AccessFrom.
const (
	AccessAny     AccessFrom = "Any"
	AccessTailnet AccessFrom = "Tailnet"
)

// GatewayAccess restricts the callers of a Gateway.
//
// +kubebuilder:validation:XValidation:rule="self.from == 'Tailnet' || !has(self.cidrs)",message="cidrs needs from Tailnet"
type GatewayAccess struct {
	// from is Any, or Tailnet to admit only callers from the tailnet. The relays report the callers' addresses.
	// +optional
	// +kubebuilder:default=Any
	From AccessFrom `json:"from,omitempty"`

	// cidrs are the addresses to admit instead of all tailnet addresses.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=49
	// +kubebuilder:validation:XValidation:rule="self.all(c, isCIDR(c))",message="cidrs must be of the form 100.64.0.0/10"
	CIDRs []string `json:"cidrs,omitempty"`
}
