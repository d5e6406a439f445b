package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// A TailscaleGateway attaches tailnets to a Gateway. Services of the tailnets become routes of the Gateway, and the
// Gateway itself can become a service on a tailnet.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=tailscalegateways,singular=tailscalegateway,shortName=tsgw,categories=tailplane;tailscale-gateway,scope=Namespaced
// +kubebuilder:printcolumn:name="Gateway",type=string,JSONPath=`.spec.targetRef.name`
// +kubebuilder:printcolumn:name="Tailnets",type=integer,JSONPath=`.status.tailnetCount`
// +kubebuilder:printcolumn:name="Services",type=integer,JSONPath=`.status.serviceCount`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')",message="the name must be a DNS label: it is part of the names of discovered services"
type TailscaleGateway struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the Gateway and the tailnets to attach to it.
	// +required
	Spec TailscaleGatewaySpec `json:"spec"`

	// status is the observed state. Only the operator writes it.
	// +optional
	Status TailscaleGatewayStatus `json:"status,omitempty"`
}

// TailscaleGatewayList is a list of gateways.
//
// +kubebuilder:object:root=true
type TailscaleGatewayList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the gateways.
	Items []TailscaleGateway `json:"items"`
}

// TailscaleGatewaySpec is a Gateway and the tailnets to attach to it.
type TailscaleGatewaySpec struct {
	// targetRef is the Gateway, in the same namespace. It is immutable.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="targetRef is immutable"
	TargetRef GatewayReference `json:"targetRef"`

	// tailnets are the tailnets to attach. If two tailnets have a service with the same name, the service of the earlier one keeps the short name.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.exists_one(b, b.tailnetRef.name == a.tailnetRef.name))",message="a tailnet can be attached only once"
	Tailnets []AttachedTailnet `json:"tailnets"`
}

// GatewayReference names a Gateway, or one listener of it.
type GatewayReference struct {
	// group is gateway.networking.k8s.io.
	// +required
	// +kubebuilder:validation:Enum=gateway.networking.k8s.io
	Group string `json:"group"`

	// kind is Gateway.
	// +required
	// +kubebuilder:validation:Enum=Gateway
	Kind string `json:"kind"`

	// name is the Gateway's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// sectionName is one listener of the Gateway. Unset: all listeners.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	SectionName string `json:"sectionName,omitempty"`
}

// AttachedTailnet is one tailnet that is attached to a Gateway.
type AttachedTailnet struct {
	// tailnetRef is the tailnet. Its allowedNamespaces must include this namespace.
	// +required
	TailnetRef TailnetReference `json:"tailnetRef"`

	// serviceDiscovery selects the services of the tailnet to discover.
	// +optional
	// +kubebuilder:default={}
	ServiceDiscovery ServiceDiscovery `json:"serviceDiscovery,omitempty"`

	// routeGeneration selects the routes to generate.
	// +optional
	RouteGeneration RouteGeneration `json:"routeGeneration,omitempty"`

	// proxyGroup selects the relays that carry the discovered services.
	// +optional
	// +kubebuilder:default={}
	ProxyGroup GatewayProxyGroup `json:"proxyGroup,omitempty"`
}

// ServiceDiscovery selects the services of a tailnet to discover.
type ServiceDiscovery struct {
	// enabled turns discovery on or off.
	// +optional
	// +kubebuilder:default=true
	Enabled *bool `json:"enabled,omitempty"`

	// syncInterval is the interval of discovery, 30s to 1h.
	// +optional
	// +kubebuilder:default="60s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('30s') && duration(self) <= duration('1h')",message="syncInterval must be 30s to 1h"
	SyncInterval metav1.Duration `json:"syncInterval,omitzero"`

	// patterns are the names of the services to include. * matches any characters.
	// +optional
	// +listType=set
	// +kubebuilder:default={"svc:*"}
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=67
	// +kubebuilder:validation:items:Pattern=`^svc:[-a-z0-9*]{1,63}$`
	Patterns []string `json:"patterns,omitempty"`

	// excludePatterns are the names of the services to exclude. * matches any characters.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=67
	// +kubebuilder:validation:items:Pattern=`^svc:[-a-z0-9*]{1,63}$`
	ExcludePatterns []string `json:"excludePatterns,omitempty"`

	// tags are the tags of the devices to include. * matches any characters. A device with the tag tag:svc-web serves web. Without tags, all devices with such a tag are included.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=67
	// +kubebuilder:validation:items:Pattern=`^tag:[a-zA-Z*][a-zA-Z0-9*-]{0,62}$`
	Tags []string `json:"tags,omitempty"`

	// removalGrace has no effect. It is accepted for compatibility, 0s to 24h.
	// +optional
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('24h')",message="removalGrace must be 0s to 24h"
	RemovalGrace *metav1.Duration `json:"removalGrace,omitempty"`
}

// RouteGeneration selects the routes to generate for a tailnet.
type RouteGeneration struct {
	// egress are the routes to services of the tailnet. Unset: none.
	// +optional
	Egress *EgressRoutes `json:"egress,omitempty"`

	// ingress makes the Gateway a service on the tailnet. Unset: it is not.
	// +optional
	Ingress *IngressRoutes `json:"ingress,omitempty"`
}

// PathRewrite selects the path that a service receives.
//
// +kubebuilder:validation:Enum=Keep;Strip
type PathRewrite string

// Values of PathRewrite.
const (
	PathKeep  PathRewrite = "Keep"
	PathStrip PathRewrite = "Strip" // the service receives the path after the prefix
)

// HostRewrite selects the host that a service receives.
//
// +kubebuilder:validation:Enum=Keep;Target
type HostRewrite string

// Values of HostRewrite.
const (
	HostKeep   HostRewrite = "Keep"
	HostTarget HostRewrite = "Target" // the name of the service in the tailnet
)

// EgressRoutes are the routes to services of a tailnet.
type EgressRoutes struct {
	// hostnames are the hosts of the Gateway that get the routes. "*" means all.
	// +optional
	// +listType=set
	// +kubebuilder:default={"*"}
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^(\*|(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)$`
	Hostnames []string `json:"hostnames,omitempty"`

	// pathPrefix is the path of a service's route. {service} stands for the service's name. It must occur once, as a whole segment.
	// +optional
	// +kubebuilder:default="/svc/{service}"
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*/\{service\}(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*$`
	PathPrefix string `json:"pathPrefix,omitempty"`

	// rewrite selects the path that the service receives: the whole path (Keep), or the path after the prefix (Strip).
	// +optional
	// +kubebuilder:default=Keep
	Rewrite PathRewrite `json:"rewrite,omitempty"`

	// hostRewrite selects the host that the service receives: the caller's host (Keep), or the service's name in the tailnet (Target).
	// +optional
	// +kubebuilder:default=Keep
	HostRewrite HostRewrite `json:"hostRewrite,omitempty"`

	// port is the preferred port of a service. If the service does not have it, its lowest TCP port is used.
	// +optional
	// +kubebuilder:default=80
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`

	// appProtocol is the application protocol of the services.
	// +optional
	// +kubebuilder:default=http
	// +kubebuilder:validation:XValidation:rule="self != 'tcp'",message="routes of a Gateway need http, https, h2c or grpc"
	AppProtocol AppProtocol `json:"appProtocol,omitempty"`

	// inheritFrom is the HTTPRoute whose security settings the routes inherit if the routes of a host have different ones.
	// +optional
	InheritFrom *ObjectReference `json:"inheritFrom,omitempty"`
}

// IngressRoutes make a Gateway a service on a tailnet.
type IngressRoutes struct {
	// vipService is the service on the tailnet.
	// +required
	VIPService VIPService `json:"vipService"`

	// ports are the ports of the service, and of the Gateway's listeners.
	// +required
	// +listType=map
	// +listMapKey=port
	// +listMapKey=protocol
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	Ports []ServicePort `json:"ports"`

	// proxyProtocol is V2 if the relays send the tailnet address of the caller to Envoy.
	// +optional
	// +kubebuilder:default=None
	ProxyProtocol ProxyProtocol `json:"proxyProtocol,omitempty"`
}

// GroupMode is how services are assigned to proxy groups.
//
// +kubebuilder:validation:Enum=PerService;Shared
type GroupMode string

// Values of GroupMode.
const (
	GroupPerService GroupMode = "PerService" // one group for each service
	GroupShared     GroupMode = "Shared"     // one group for all of a tailnet
)

// GatewayProxyGroup selects the relays that carry the discovered services.
type GatewayProxyGroup struct {
	// mode is PerService, a group for each service, or Shared, one group for all services.
	// +optional
	// +kubebuilder:default=PerService
	Mode GroupMode `json:"mode,omitempty"`

	// replicas is the number of relays in each generated group, 0 to 50.
	// +optional
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=50
	Replicas *int32 `json:"replicas,omitempty"`

	// maxGroups is the maximum number of generated groups, 1 to 1000.
	// +optional
	// +kubebuilder:default=50
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxGroups int32 `json:"maxGroups,omitempty"`

	// ref is an existing group to use for all services. No group is then generated.
	// +optional
	Ref *ObjectReference `json:"ref,omitempty"`
}
