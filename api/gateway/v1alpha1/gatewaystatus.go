package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// TailscaleGatewayStatus is the observed state of a TailscaleGateway.
type TailscaleGatewayStatus struct {
	// observedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// tailnetCount is the number of attached and usable tailnets.
	// +optional
	TailnetCount int32 `json:"tailnetCount"`

	// serviceCount is the number of services with a route.
	// +optional
	ServiceCount int32 `json:"serviceCount"`

	// tailnets are the discovery results of each tailnet.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Tailnets []AttachedTailnetStatus `json:"tailnets,omitempty"`

	// services are the routed services, at most 100, sorted by name.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	Services []RoutedService `json:"services,omitempty"`

	// revision is the configuration revision that Envoy Gateway should use, and the one that it uses.
	// +optional
	Revision *GatewayRevision `json:"revision,omitempty"`

	// conditions are Accepted, ResolvedRefs, Programmed, Ready and Degraded.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// AttachedTailnetStatus is the discovery result of one tailnet.
type AttachedTailnetStatus struct {
	// name is the tailnet's name.
	// +required
	Name string `json:"name"`

	// discoveredServices is the number of known services.
	// +optional
	DiscoveredServices int32 `json:"discoveredServices"`

	// lastSyncTime is the time of the last successful read of the tailnet.
	// +optional
	LastSyncTime *metav1.Time `json:"lastSyncTime,omitempty"`

	// stale is true if the known services are older than they should be.
	// +optional
	Stale bool `json:"stale,omitempty"`

	// message describes errors and omitted services.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// RoutedService is one service and its route.
type RoutedService struct {
	// name is the service's name, without svc:.
	// +required
	Name string `json:"name"`

	// tailnet is the TailscaleTailnet of the service.
	// +optional
	Tailnet string `json:"tailnet,omitempty"`

	// route is the name of the route.
	// +optional
	Route string `json:"route,omitempty"`

	// path is the path prefix of the route.
	// +optional
	Path string `json:"path,omitempty"`

	// cluster is the name of the Envoy cluster.
	// +optional
	Cluster string `json:"cluster,omitempty"`

	// state is whether the route is in effect, or why it is not.
	// +optional
	State string `json:"state,omitempty"`
}

// GatewayRevision is the configuration revision that Envoy Gateway should use, and the one that it uses.
type GatewayRevision struct {
	// desired is the revision that Envoy Gateway should translate.
	// +optional
	Desired string `json:"desired,omitempty"`

	// translated is the revision that Envoy Gateway last translated.
	// +optional
	Translated string `json:"translated,omitempty"`

	// time is when the operator saw the translated revision.
	// +optional
	Time *metav1.Time `json:"time,omitempty"`
}
