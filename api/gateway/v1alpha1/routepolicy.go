package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// A TailscaleRoutePolicy sends the traffic of an HTTPRoute or GRPCRoute to
// services of a tailnet, or says who may reach a Gateway.
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

	// spec is what is done with whose traffic.
	// +required
	Spec TailscaleRoutePolicySpec `json:"spec"`

	// status is what came of it.
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

// Kinds that a policy can be about.
const (
	KindHTTPRoute = "HTTPRoute"
	KindGRPCRoute = "GRPCRoute"
	KindGateway   = "Gateway"
)

// TailscaleRoutePolicySpec is what is done with whose traffic.
//
// +kubebuilder:validation:XValidation:rule="has(self.tailscaleTarget) || has(self.routeRules) || has(self.access) || has(self.revision)",message="give at least one of tailscaleTarget, routeRules and access"
// +kubebuilder:validation:XValidation:rule="self.targetRef.kind != 'Gateway' || (!has(self.tailscaleTarget) && !has(self.routeRules))",message="tailscaleTarget and routeRules are for HTTPRoute and GRPCRoute"
// +kubebuilder:validation:XValidation:rule="self.targetRef.kind == 'Gateway' || !has(self.access)",message="access is for Gateway"
type TailscaleRoutePolicySpec struct {
	// targetRef is the object, in the same namespace, that the policy is about.
	// +required
	TargetRef PolicyTargetReference `json:"targetRef"`

	// tailnetRef is the tailnet of the services; unset are those that the TailscaleGateway of the route's Gateway attaches, in their order.
	// +optional
	TailnetRef *TailnetReference `json:"tailnetRef,omitempty"`

	// tailscaleTarget is where the target's traffic goes that no rule is about.
	// +optional
	TailscaleTarget *PolicyTarget `json:"tailscaleTarget,omitempty"`

	// defaultBackend is Tailnet, or Route to leave traffic that no rule is about with the route's own backends.
	// +optional
	// +kubebuilder:default=Tailnet
	DefaultBackend DefaultBackend `json:"defaultBackend,omitempty"`

	// routeRules are where more specific traffic goes.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	RouteRules []RouteRule `json:"routeRules,omitempty"`

	// access says who may reach a Gateway.
	// +optional
	Access *GatewayAccess `json:"access,omitempty"`

	// revision makes Envoy Gateway translate anew. The operator sets it, on objects of its own.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Revision string `json:"revision,omitempty"`
}

// DefaultBackend says where traffic goes that no rule is about.
//
// +kubebuilder:validation:Enum=Tailnet;Route
type DefaultBackend string

// Values of DefaultBackend.
const (
	DefaultBackendTailnet DefaultBackend = "Tailnet"
	DefaultBackendRoute   DefaultBackend = "Route"
)

// PolicyTargetReference names what a policy is about.
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

	// sectionName is one rule of a route, or one listener of a Gateway, by name; unset are all.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	SectionName string `json:"sectionName,omitempty"`
}

// PolicyTarget is a set of services: those whose name matches, and those whose
// devices or VIP services carry one of the tags.
//
// +kubebuilder:validation:XValidation:rule="has(self.servicePattern) || has(self.tags)",message="give servicePattern, tags or both"
type PolicyTarget struct {
	// servicePattern matches names of services, with * for any characters.
	// +optional
	// +kubebuilder:validation:MaxLength=67
	// +kubebuilder:validation:Pattern=`^svc:[-a-z0-9*]{1,63}$`
	ServicePattern string `json:"servicePattern,omitempty"`

	// tags are tags of which a service carries at least one.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=67
	// +kubebuilder:validation:items:Pattern=`^tag:[a-zA-Z][a-zA-Z0-9-]{0,62}$`
	Tags []string `json:"tags,omitempty"`
}

// RouteRule sends some of the target's traffic to one service.
type RouteRule struct {
	// match is which traffic.
	// +required
	Match RouteMatch `json:"match"`

	// backend is the service.
	// +required
	Backend RuleBackend `json:"backend"`
}

// RouteMatch is which traffic a rule is about.
type RouteMatch struct {
	// path is /x for exactly that path, /x* for every path that begins so, and /x/* for /x and everything below it.
	// +required
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/') && !self.contains('//') && !self.contains('?') && !self.contains('#') && !self.contains('%') && (!self.contains('*') || self.indexOf('*') == self.size() - 1) && !self.matches('/[.][.]?(/|[*]|$)') && self.matches('^[!-~]+$')",message="path must begin with /, have * only at its end, and be plain: no //, ., .., ?, # or %"
	Path string `json:"path"`
}

// RuleBackend is one port of a service in a tailnet.
type RuleBackend struct {
	// serviceName is the service, as svc:api-server.
	// +required
	// +kubebuilder:validation:MaxLength=67
	// +kubebuilder:validation:Pattern=`^svc:[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`
	ServiceName string `json:"serviceName"`

	// port is the port in the tailnet. One that the relays do not carry yet is given to them.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
}

// AccessFrom says from where a Gateway may be reached.
//
// +kubebuilder:validation:Enum=Any;Tailnet
type AccessFrom string

// Values of AccessFrom.
const (
	AccessAny     AccessFrom = "Any"
	AccessTailnet AccessFrom = "Tailnet"
)

// GatewayAccess says who may reach a Gateway.
//
// +kubebuilder:validation:XValidation:rule="self.from == 'Tailnet' || !has(self.cidrs)",message="cidrs are for from Tailnet"
type GatewayAccess struct {
	// from is Any, or Tailnet to admit only callers of the tailnet, as the relays tell their addresses.
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
