package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// TailscaleGatewayStatus is what came of a TailscaleGateway.
type TailscaleGatewayStatus struct {
	// observedGeneration is the generation of the spec that this status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// tailnetCount is how many tailnets are attached and usable.
	// +optional
	TailnetCount int32 `json:"tailnetCount"`

	// serviceCount is how many services have a route.
	// +optional
	ServiceCount int32 `json:"serviceCount"`

	// tailnets say how discovery goes, tailnet by tailnet.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Tailnets []AttachedTailnetStatus `json:"tailnets,omitempty"`

	// services are the routed services, the first 100 by name.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	Services []RoutedService `json:"services,omitempty"`

	// revision is what Envoy Gateway was asked for, and what it got.
	// +optional
	Revision *GatewayRevision `json:"revision,omitempty"`

	// conditions are Accepted, ResolvedRefs, Programmed, Ready and Degraded.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// AttachedTailnetStatus is how discovery goes for one tailnet.
type AttachedTailnetStatus struct {
	// name is the tailnet's name.
	// +required
	Name string `json:"name"`

	// discoveredServices is how many services are known.
	// +optional
	DiscoveredServices int32 `json:"discoveredServices"`

	// lastSyncTime is when the tailnet was last read without an error.
	// +optional
	LastSyncTime *metav1.Time `json:"lastSyncTime,omitempty"`

	// stale says whether what is known is older than it should be.
	// +optional
	Stale bool `json:"stale,omitempty"`

	// message says what went wrong or was left out.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// RoutedService is one service and its route.
type RoutedService struct {
	// name is the service's name, without svc:.
	// +required
	Name string `json:"name"`

	// tailnet is the TailscaleTailnet that it is in.
	// +optional
	Tailnet string `json:"tailnet,omitempty"`

	// route is the name of the route.
	// +optional
	Route string `json:"route,omitempty"`

	// path is the path prefix of the route.
	// +optional
	Path string `json:"path,omitempty"`

	// cluster is the name of the cluster in Envoy.
	// +optional
	Cluster string `json:"cluster,omitempty"`

	// state says whether the route is in effect, and why not.
	// +optional
	State string `json:"state,omitempty"`
}

// GatewayRevision is what Envoy Gateway was asked for, and what it got.
type GatewayRevision struct {
	// desired is the revision that Envoy Gateway was asked to translate.
	// +optional
	Desired string `json:"desired,omitempty"`

	// translated is the revision that it last translated.
	// +optional
	Translated string `json:"translated,omitempty"`

	// time is when the translated one was seen.
	// +optional
	Time *metav1.Time `json:"time,omitempty"`
}
