package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TailscaleProxyGroupStatus is the observed relays.
type TailscaleProxyGroupStatus struct {
	// observedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// replicas is the number of pods.
	// +optional
	Replicas int32 `json:"replicas,omitempty"`

	// readyReplicas is the number of ready pods.
	// +optional
	ReadyReplicas int32 `json:"readyReplicas,omitempty"`

	// selector is the label selector of the pods, for kubectl scale and autoscalers.
	// +optional
	Selector string `json:"selector,omitempty"`

	// ports are the ports on the pods that are assigned to services.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	Ports []MappedPort `json:"ports,omitempty"`

	// devices are the group's devices in the tailnet, including devices that must still be deleted.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	Devices []RelayDevice `json:"devices,omitempty"`

	// conditions are Accepted, Available, Ready and Degraded.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// MappedPort is one port of a group's pods and its destination.
type MappedPort struct {
	// service is the TailscaleService of the port, as <namespace>.<name>.
	// +required
	Service string `json:"service"`

	// protocol is TCP or UDP.
	// +required
	Protocol PortProtocol `json:"protocol"`

	// matchPort is the port on the pods, 10000 to 10999.
	// +required
	MatchPort int32 `json:"matchPort"`

	// targetPort is the port in the tailnet.
	// +required
	TargetPort int32 `json:"targetPort"`
}

// RelayDevice is one replica as a device of the tailnet.
type RelayDevice struct {
	// ordinal is the replica's number, from 0.
	// +required
	Ordinal int32 `json:"ordinal"`

	// podUID is the UID of the device's last pod.
	// +optional
	PodUID types.UID `json:"podUID,omitempty"`

	// nodeID is the stable node ID of the device.
	// +optional
	NodeID string `json:"nodeID,omitempty"`

	// hostname is the name that the device requested.
	// +optional
	Hostname string `json:"hostname,omitempty"`

	// fqdn is the device's MagicDNS name.
	// +optional
	FQDN string `json:"fqdn,omitempty"`

	// ips are the device's tailnet addresses.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4
	IPs []string `json:"ips,omitempty"`

	// ready is true if the replica carries traffic.
	// +optional
	Ready bool `json:"ready"`

	// reason is why the replica is not ready.
	// +optional
	Reason string `json:"reason,omitempty"`
}
