package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// A TailscaleService makes a tailnet service a backend in the cluster (egress), or a cluster service available on a
// tailnet (ingress).
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=tailscaleservices,singular=tailscaleservice,shortName=tssvc,categories=tailplane;tailscale-gateway,scope=Namespaced
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.type`
// +kubebuilder:printcolumn:name="Tailnet",type=string,JSONPath=`.spec.tailnetRef.name`
// +kubebuilder:printcolumn:name="Target",type=string,JSONPath=`.spec.target.*`
// +kubebuilder:printcolumn:name="Endpoints",type=integer,JSONPath=`.status.egress.endpoints.ready`
// +kubebuilder:printcolumn:name="VIP",type=string,JSONPath=`.spec.vipService.name`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')",message="the name must be a DNS label: it is part of the names of Services and Envoy clusters"
type TailscaleService struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired connection.
	// +required
	Spec TailscaleServiceSpec `json:"spec"`

	// status is the observed state. Only the operator writes it.
	// +optional
	Status TailscaleServiceStatus `json:"status,omitempty"`
}

// TailscaleServiceList is a list of services.
//
// +kubebuilder:object:root=true
type TailscaleServiceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the services.
	Items []TailscaleService `json:"items"`
}

// TailscaleServiceSpec is the desired connection between the cluster and a tailnet.
//
// +kubebuilder:validation:XValidation:rule="(self.type == 'egress') == has(self.target)",message="target must be set if and only if type is egress"
// +kubebuilder:validation:XValidation:rule="(self.type == 'ingress') == has(self.vipService)",message="vipService must be set if and only if type is ingress"
// +kubebuilder:validation:XValidation:rule="(self.type == 'ingress') == has(self.backendRef)",message="backendRef must be set if and only if type is ingress"
// +kubebuilder:validation:XValidation:rule="self.type == 'egress' || (!has(self.upstreamTLS) && !has(self.clusterService))",message="upstreamTLS and clusterService are for type egress"
// +kubebuilder:validation:XValidation:rule="self.type == 'ingress' || self.proxyProtocol == 'None'",message="proxyProtocol is for type ingress"
// +kubebuilder:validation:XValidation:rule="self.type == 'ingress' || self.ports.all(p, !has(p.tls))",message="tls of a port is for type ingress"
type TailscaleServiceSpec struct {
	// type is egress, a service of the tailnet for the cluster, or ingress, a service of the cluster for the tailnet. It is immutable.
	// +optional
	// +kubebuilder:default=egress
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="type is immutable"
	Type Direction `json:"type,omitempty"`

	// tailnetRef is the tailnet. Unset: the tailnet of the group, or the tailnet that is annotated as default.
	// +optional
	TailnetRef *TailnetReference `json:"tailnetRef,omitempty"`

	// proxyGroupRef is the proxy group to use. Unset: the operator creates a group. The consumers of a group in another namespace must include this namespace.
	// +optional
	ProxyGroupRef *ObjectReference `json:"proxyGroupRef,omitempty"`

	// ports are the ports and their destinations.
	// +required
	// +listType=map
	// +listMapKey=port
	// +listMapKey=protocol
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self.all(a, !has(a.name) || self.exists_one(b, has(b.name) && b.name == a.name))",message="port names must be unique"
	Ports []ServicePort `json:"ports"`

	// target is the service in the tailnet. Only for type egress.
	// +optional
	Target *ServiceTarget `json:"target,omitempty"`

	// upstreamTLS configures TLS from Envoy to the target. Only for type egress.
	// +optional
	UpstreamTLS *UpstreamTLS `json:"upstreamTLS,omitempty"`

	// clusterService is the Service that pods use to reach the target. Only for type egress.
	// +optional
	ClusterService *ClusterService `json:"clusterService,omitempty"`

	// vipService is the service on the tailnet. Only for type ingress.
	// +optional
	VIPService *VIPService `json:"vipService,omitempty"`

	// backendRef is the backend in the cluster. Only for type ingress.
	// +optional
	BackendRef *BackendReference `json:"backendRef,omitempty"`

	// proxyProtocol is V2 if the relay sends the caller's tailnet address to the backend with the PROXY protocol. Only for type ingress.
	// +optional
	// +kubebuilder:default=None
	ProxyProtocol ProxyProtocol `json:"proxyProtocol,omitempty"`
}

// TLSHandling is how a relay handles TLS connections.
//
// +kubebuilder:validation:Enum=Passthrough;Terminate
type TLSHandling string

// Values of TLSHandling.
const (
	TLSPassthrough TLSHandling = "Passthrough" // the relay forwards the bytes unchanged
	TLSTerminate   TLSHandling = "Terminate"   // the relay has the certificate for the service's name
)

// ServicePort is one port of a service and its destination.
//
// +kubebuilder:validation:XValidation:rule="self.protocol == 'TCP' || (!has(self.appProtocol) && !has(self.tls))",message="appProtocol and tls are for TCP"
type ServicePort struct {
	// name is the name of the port. Unset: protocol and number, such as tcp-80.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name,omitempty"`

	// port is the port number that callers use. Callers are HTTPRoutes and pods for egress, and the tailnet for ingress.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`

	// targetPort is the port number on the other side: in the tailnet for egress, on the backend for ingress. Unset: port.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	TargetPort int32 `json:"targetPort,omitempty"`

	// protocol is TCP or UDP. A VIP service carries only TCP. For ingress, UDP is available on the addresses of the relays.
	// +optional
	// +kubebuilder:default=TCP
	Protocol PortProtocol `json:"protocol,omitempty"`

	// appProtocol is the application protocol: http, https, h2c, grpc or tcp. Unset: http for ports that Envoy uses.
	// +optional
	AppProtocol AppProtocol `json:"appProtocol,omitempty"`

	// tls is how the relay handles TLS: Passthrough (the default) or Terminate. Only for type ingress.
	// +optional
	TLS TLSHandling `json:"tls,omitempty"`
}

// ServiceTarget is a service in a tailnet.
//
// +kubebuilder:validation:XValidation:rule="(has(self.serviceName) ? 1 : 0) + (has(self.tags) ? 1 : 0) + (has(self.fqdn) ? 1 : 0) + (has(self.ip) ? 1 : 0) == 1",message="set exactly one of serviceName, tags, fqdn and ip"
type ServiceTarget struct {
	// serviceName is a VIP service, such as svc:web or web.
	// +optional
	// +kubebuilder:validation:MaxLength=67
	// +kubebuilder:validation:Pattern=`^(svc:)?[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`
	ServiceName string `json:"serviceName,omitempty"`

	// tags are the tags that a target device must have, all of them.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=67
	// +kubebuilder:validation:items:Pattern=`^tag:[a-zA-Z][a-zA-Z0-9-]{0,62}$`
	Tags []string `json:"tags,omitempty"`

	// fqdn is the MagicDNS name of one device or service, within the tailnet's domain.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\.)+[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="!self.endsWith('.localhost') && !self.endsWith('.cluster.local') && !self.endsWith('.svc') && self != 'metadata.google.internal'",message="fqdn must be a name of the tailnet"
	FQDN string `json:"fqdn,omitempty"`

	// ip is the tailnet address of one device or service.
	// +optional
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="isIP(self) && (cidr('100.64.0.0/10').containsIP(self) || cidr('fd7a:115c:a1e0::/48').containsIP(self)) && !cidr('100.100.100.100/32').containsIP(self) && !cidr('fd7a:115c:a1e0::53/128').containsIP(self)",message="ip must be a tailnet address, within 100.64.0.0/10 or fd7a:115c:a1e0::/48, and not the tailnet's resolver"
	IP string `json:"ip,omitempty"`
}

// UpstreamTLSMode is whether Envoy uses TLS to a target.
//
// +kubebuilder:validation:Enum=None;Simple
type UpstreamTLSMode string

// Values of UpstreamTLSMode.
const (
	UpstreamTLSNone   UpstreamTLSMode = "None"
	UpstreamTLSSimple UpstreamTLSMode = "Simple" // Envoy verifies the target's certificate
)

// UpstreamTLS configures TLS from Envoy to a target.
//
// +kubebuilder:validation:XValidation:rule="!has(self.mode) || self.mode == 'Simple' || (!has(self.serverName) && !has(self.caBundleRef))",message="serverName and caBundleRef are for mode Simple"
type UpstreamTLS struct {
	// mode is None or Simple. Unset: Simple for ports with appProtocol https.
	// +optional
	Mode UpstreamTLSMode `json:"mode,omitempty"`

	// serverName is the name for SNI and verification. Unset: the target's name.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	ServerName string `json:"serverName,omitempty"`

	// caBundleRef is the ConfigMap with the CA certificates, in the key ca.crt. Unset: those of the system. A ConfigMap in another namespace needs a ReferenceGrant.
	// +optional
	CABundleRef *ObjectReference `json:"caBundleRef,omitempty"`
}

// ClusterService is the Service that pods use to reach a target.
type ClusterService struct {
	// create is whether the operator creates the Service.
	// +optional
	// +kubebuilder:default=true
	Create *bool `json:"create,omitempty"`

	// name is the name of the Service. Unset: the name of the TailscaleService.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name,omitempty"`
}

// VIPService is a service on a tailnet with dedicated addresses.
type VIPService struct {
	// name is the name of the service in the tailnet, such as svc:grafana.
	// +required
	// +kubebuilder:validation:MaxLength=67
	// +kubebuilder:validation:Pattern=`^svc:[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`
	Name string `json:"name"`

	// tags are the tags of the service. Rules of the tailnet policy refer to them.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=67
	// +kubebuilder:validation:items:Pattern=`^tag:[a-zA-Z][a-zA-Z0-9-]{0,62}$`
	Tags []string `json:"tags,omitempty"`

	// comment is the text in the tailnet's admin console.
	// +optional
	// +kubebuilder:validation:MaxLength=200
	Comment string `json:"comment,omitempty"`

	// adopt is whether the operator takes over an existing service with this name that it did not create.
	// +optional
	// +kubebuilder:default=false
	Adopt bool `json:"adopt,omitempty"`

	// autoApprove is whether the operator approves its relays as hosts of the service.
	// +optional
	// +kubebuilder:default=true
	AutoApprove *bool `json:"autoApprove,omitempty"`
}

// BackendReference names the backend of connections from the tailnet.
//
// +kubebuilder:validation:XValidation:rule="!has(self.group) || size(self.group) == 0 || (self.kind == 'Gateway' && self.group == 'gateway.networking.k8s.io')",message="the group must be that of the kind: empty for Service, gateway.networking.k8s.io for Gateway"
type BackendReference struct {
	// group is the API group of the backend. Unset: the group of the kind.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Group string `json:"group,omitempty"`

	// kind is Service or Gateway.
	// +optional
	// +kubebuilder:default=Service
	// +kubebuilder:validation:Enum=Service;Gateway
	Kind string `json:"kind,omitempty"`

	// name is the backend's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// namespace is the namespace of the backend. Unset: this namespace. Another namespace needs a ReferenceGrant.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
}
