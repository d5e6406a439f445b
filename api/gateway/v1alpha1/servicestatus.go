package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// TailscaleServiceStatus is the observed state of a TailscaleService.
type TailscaleServiceStatus struct {
	// observedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// egress is how the cluster reaches the target.
	// +optional
	Egress *EgressStatus `json:"egress,omitempty"`

	// vip is the service on the tailnet.
	// +optional
	VIP *VIPStatus `json:"vip,omitempty"`

	// conditions are Accepted, ResolvedRefs, Programmed and Ready.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// EgressStatus is how the cluster reaches a target.
type EgressStatus struct {
	// group is the proxy group in use, as <namespace>/<name>.
	// +optional
	Group string `json:"group,omitempty"`

	// service is the Service in front of the relays, as <namespace>/<name>.
	// +optional
	Service string `json:"service,omitempty"`

	// externalName is the Service that pods of this namespace use to reach the target.
	// +optional
	ExternalName string `json:"externalName,omitempty"`

	// ports are the ports that are assigned on the relays.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Ports []EgressPort `json:"ports,omitempty"`

	// endpoints counts the relays that carry the service.
	// +optional
	Endpoints EndpointCount `json:"endpoints,omitempty"`
}

// EgressPort is one port of a service and its port on the relays.
type EgressPort struct {
	// port is the port that callers use.
	// +required
	Port int32 `json:"port"`

	// matchPort is the port on the relays.
	// +required
	MatchPort int32 `json:"matchPort"`

	// protocol is TCP or UDP.
	// +optional
	Protocol PortProtocol `json:"protocol,omitempty"`
}

// EndpointCount counts relays.
type EndpointCount struct {
	// ready is the number of relays that carry the service now.
	// +optional
	Ready int32 `json:"ready"`

	// total is the number of relays that should carry the service.
	// +optional
	Total int32 `json:"total"`
}

// VIPStatus is a service on the tailnet.
type VIPStatus struct {
	// name is the name of the service, such as svc:grafana.
	// +optional
	Name string `json:"name,omitempty"`

	// tailnet is the TailscaleTailnet of the service.
	// +optional
	Tailnet string `json:"tailnet,omitempty"`

	// addresses are the service's tailnet addresses.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4
	Addresses []string `json:"addresses,omitempty"`

	// dnsName is the service's name in MagicDNS.
	// +optional
	DNSName string `json:"dnsName,omitempty"`

	// owners is the number of operators that share the service.
	// +optional
	Owners int32 `json:"owners,omitempty"`

	// hosts counts the relays that are hosts of the service.
	// +optional
	Hosts *VIPHosts `json:"hosts,omitempty"`
}

// VIPHosts counts the hosts of a service on a tailnet.
type VIPHosts struct {
	// configured is the number of relays that advertise the service.
	// +optional
	Configured int32 `json:"configured"`

	// approved is the number of these relays that the tailnet approved.
	// +optional
	Approved int32 `json:"approved"`
}
