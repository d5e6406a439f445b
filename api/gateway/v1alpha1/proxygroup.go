package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Direction is the direction of the connections of a group or service.
//
// +kubebuilder:validation:Enum=egress;ingress
type Direction string

// Values of Direction.
const (
	Egress  Direction = "egress"  // from the cluster to the tailnet
	Ingress Direction = "ingress" // from the tailnet to the cluster
)

// A TailscaleProxyGroup is a set of relay pods that carry connections between the cluster and one tailnet. Each pod is
// a device of the tailnet.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:resource:path=tailscaleproxygroups,singular=tailscaleproxygroup,shortName=tspg,categories=tailplane;tailscale-gateway,scope=Namespaced
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.type`
// +kubebuilder:printcolumn:name="Tailnet",type=string,JSONPath=`.spec.tailnetRef.name`
// +kubebuilder:printcolumn:name="Replicas",type=integer,JSONPath=`.spec.replicas`
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=`.status.readyReplicas`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?$')",message="the name must be a DNS label of at most 52 characters: the labels of its pods contain it with a hash"
type TailscaleProxyGroup struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired relays.
	// +required
	Spec TailscaleProxyGroupSpec `json:"spec"`

	// status is the observed state. Only the operator writes it.
	// +optional
	Status TailscaleProxyGroupStatus `json:"status,omitempty"`
}

// TailscaleProxyGroupList is a list of proxy groups.
//
// +kubebuilder:object:root=true
type TailscaleProxyGroupList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the proxy groups.
	Items []TailscaleProxyGroup `json:"items"`
}

// Runtime is the program in a group's pods.
//
// +kubebuilder:validation:Enum=Relay;Containerboot
type Runtime string

// Values of Runtime. Stored objects may still hold RuntimeContainerboot, which the operator refuses.
const (
	RuntimeRelay         Runtime = "Relay"         // tailplaned relay, unprivileged
	RuntimeContainerboot Runtime = "Containerboot" // Tailscale's own image; no longer supported
)

// Supported reports whether the operator can run the runtime. The zero Runtime is RuntimeRelay.
func (r Runtime) Supported() bool { return r == "" || r == RuntimeRelay }

// TailscaleProxyGroupSpec is the desired relays. The security context of their pods cannot be configured.
//
// +kubebuilder:validation:XValidation:rule="has(self.tailnetRef) == has(oldSelf.tailnetRef) && (!has(self.tailnetRef) || self.tailnetRef == oldSelf.tailnetRef)",message="tailnetRef is immutable"
// +kubebuilder:validation:XValidation:rule="self.type == 'egress' || !has(self.tailnetTarget)",message="tailnetTarget is for type egress"
type TailscaleProxyGroupSpec struct {
	// type is egress, from the cluster to the tailnet, or ingress, from the tailnet to the cluster. It is immutable.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="type is immutable"
	Type Direction `json:"type"`

	// replicas is the number of relay pods, and of devices in the tailnet: 0 to 50.
	// +optional
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=50
	Replicas *int32 `json:"replicas,omitempty"`

	// tailnetRef is the tailnet that the relays join. Unset: the tailnet that is annotated as default. It is immutable.
	// +optional
	TailnetRef *TailnetReference `json:"tailnetRef,omitempty"`

	// tailnetTarget is one target that the group carries without a TailscaleService. Only for type egress.
	// +optional
	TailnetTarget *TailnetTarget `json:"tailnetTarget,omitempty"`

	// tags are the tags of the devices. Unset: the tags of the TailscaleTailnet.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=67
	// +kubebuilder:validation:items:Pattern=`^tag:[a-zA-Z][a-zA-Z0-9-]{0,62}$`
	Tags []string `json:"tags,omitempty"`

	// hostnamePrefix is the prefix of the device names, before "-" and the ordinal. Unset: the name of the group.
	// +optional
	// +kubebuilder:validation:MaxLength=62
	// +kubebuilder:validation:Pattern=`^[a-z0-9][a-z0-9-]{0,61}$`
	HostnamePrefix string `json:"hostnamePrefix,omitempty"`

	// consumers are the namespaces whose TailscaleServices may use this group.
	// +optional
	// +kubebuilder:default={from: Same}
	Consumers NamespaceSelector `json:"consumers,omitempty"`

	// runtime is the program in the pods: Relay. The operator refuses Containerboot (Tailscale's own image), which is no longer supported.
	// +optional
	// +kubebuilder:default=Relay
	Runtime Runtime `json:"runtime,omitempty"`

	// drainTimeout is how long a terminating pod waits for open connections, 0s to 10m.
	// +optional
	// +kubebuilder:default="60s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('10m')",message="drainTimeout must be 0s to 10m"
	DrainTimeout *metav1.Duration `json:"drainTimeout,omitempty"`

	// image is the image of the pods. It has an effect only if the operator allows custom images.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`

	// resources are the requests and limits of each pod. Unset: the operator's default.
	// +optional
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`

	// nodeSelector is the labels of the nodes where the pods may run.
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// tolerations are the tolerations of the pods.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// affinity is the affinity of the pods.
	// +optional
	Affinity *corev1.Affinity `json:"affinity,omitempty"`

	// topologySpreadConstraints are the topology spread constraints of the pods. Unset: the pods spread over nodes if possible.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	TopologySpreadConstraints []corev1.TopologySpreadConstraint `json:"topologySpreadConstraints,omitempty"`

	// priorityClassName is the priority class of the pods.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	PriorityClassName string `json:"priorityClassName,omitempty"`

	// podLabels are additional labels of the pods. The operator's labels take precedence.
	// +optional
	PodLabels map[string]string `json:"podLabels,omitempty"`

	// podAnnotations are additional annotations of the pods. The operator's annotations take precedence.
	// +optional
	PodAnnotations map[string]string `json:"podAnnotations,omitempty"`
}

// TailnetTarget is a target that a group carries without a TailscaleService: a service, devices by tag, or one name or
// address.
//
// +kubebuilder:validation:XValidation:rule="(has(self.serviceName) || has(self.tags) ? 1 : 0) + (has(self.fqdn) ? 1 : 0) + (has(self.ip) ? 1 : 0) == 1",message="set serviceName and tags (one or both), or fqdn, or ip"
type TailnetTarget struct {
	// serviceName is a VIP service, such as svc:web or web. If tags are also set, the devices with these tags are used when the service does not exist.
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

	// ports are the target's ports.
	// +optional
	// +listType=map
	// +listMapKey=port
	// +listMapKey=protocol
	// +kubebuilder:default={{name: http, protocol: TCP, port: 80}}
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	Ports []TargetPort `json:"ports,omitempty"`
}

// TargetPort is a port of a target in a tailnet.
type TargetPort struct {
	// name is the name of the port.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name,omitempty"`

	// protocol is TCP or UDP.
	// +optional
	// +kubebuilder:default=TCP
	Protocol PortProtocol `json:"protocol,omitempty"`

	// port is the port number on the target.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
}
