package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// TailnetReference names a TailscaleTailnet.
type TailnetReference struct {
	// name is the name of the TailscaleTailnet.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
}

// ObjectReference names an object. The field that has the reference determines the kind.
type ObjectReference struct {
	// name is the object's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// namespace is the namespace of the object. Unset: the namespace of the referring object.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
}

// NamespacesFrom selects namespaces.
//
// +kubebuilder:validation:Enum=Same;All;Selector
type NamespacesFrom string

// Values of NamespacesFrom.
const (
	NamespacesSame     NamespacesFrom = "Same"     // the namespace of the object itself; for a tailnet, the operator's
	NamespacesAll      NamespacesFrom = "All"      // every namespace
	NamespacesSelector NamespacesFrom = "Selector" // namespaces whose labels match
)

// NamespaceSelector selects namespaces.
//
// +kubebuilder:validation:XValidation:rule="(self.from == 'Selector') == has(self.selector)",message="selector must be set if and only if from is Selector"
type NamespaceSelector struct {
	// from selects the namespaces: Same, All, or those that match selector.
	// +optional
	// +kubebuilder:default=Same
	From NamespacesFrom `json:"from,omitempty"`

	// selector matches the labels of namespaces. An empty selector matches all namespaces.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
}

// PortProtocol is the transport protocol of a port.
//
// +kubebuilder:validation:Enum=TCP;UDP
type PortProtocol string

// Values of PortProtocol.
const (
	TCP PortProtocol = "TCP"
	UDP PortProtocol = "UDP"
)

// AppProtocol is the application protocol of a port.
//
// +kubebuilder:validation:Enum=http;https;h2c;grpc;tcp
type AppProtocol string

// Values of AppProtocol.
const (
	AppHTTP  AppProtocol = "http"
	AppHTTPS AppProtocol = "https"
	AppH2C   AppProtocol = "h2c"
	AppGRPC  AppProtocol = "grpc"
	AppTCP   AppProtocol = "tcp"
)

// ProxyProtocol is how a relay sends the caller's address to a backend.
//
// +kubebuilder:validation:Enum=None;V2
type ProxyProtocol string

// Values of ProxyProtocol.
const (
	ProxyProtocolNone ProxyProtocol = "None"
	ProxyProtocolV2   ProxyProtocol = "V2"
)
