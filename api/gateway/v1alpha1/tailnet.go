package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// A TailscaleTailnet is one tailnet and the credential that the operator uses
// for it. It is cluster-scoped: who may write one chooses which credential is
// sent to which API.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=tailscaletailnets,singular=tailscaletailnet,shortName=tstn,categories=tailplane;tailscale-gateway,scope=Cluster
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Tailnet",type=string,JSONPath=`.status.tailnetInfo.name`
// +kubebuilder:printcolumn:name="Organization",type=string,JSONPath=`.status.tailnetInfo.organization`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Devices",type=integer,JSONPath=`.status.deviceCount`,priority=1
// +kubebuilder:printcolumn:name="Last Sync",type=date,JSONPath=`.status.lastSyncTime`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')",message="the name must be a DNS label: labels and cluster names carry it"
type TailscaleTailnet struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is which tailnet, and how to speak to it.
	// +required
	Spec TailscaleTailnetSpec `json:"spec"`

	// status is what the operator found out about it.
	// +optional
	Status TailscaleTailnetStatus `json:"status,omitempty"`
}

// TailscaleTailnetList is a list of tailnets.
//
// +kubebuilder:object:root=true
type TailscaleTailnetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the tailnets.
	Items []TailscaleTailnet `json:"items"`
}

// TailscaleTailnetSpec is which tailnet, and how to speak to it. Without
// oauthSecretName and workloadIdentity the credential is the operator's mounted
// files.
//
// +kubebuilder:validation:XValidation:rule="!has(self.oauthSecretNamespace) || has(self.oauthSecretName)",message="oauthSecretNamespace needs oauthSecretName"
// +kubebuilder:validation:XValidation:rule="!has(self.workloadIdentity) || !has(self.oauthSecretName)",message="workloadIdentity and oauthSecretName exclude each other"
type TailscaleTailnetSpec struct {
	// tailnet is the tailnet's segment in the path of the API; "-" is the tailnet that the credential belongs to. It cannot be changed.
	// +optional
	// +kubebuilder:default="-"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9._@-]+$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="tailnet is immutable"
	// +kubebuilder:validation:XValidation:rule="self != '.' && self != '..'",message="tailnet is a segment of a path"
	Tailnet string `json:"tailnet,omitempty"`

	// oauthSecretName is the Secret with the OAuth client: the keys client_id and client_secret.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	OAuthSecretName string `json:"oauthSecretName,omitempty"`

	// oauthSecretNamespace is where that Secret is; unset is the operator's namespace. The operator reads Secrets of listed namespaces only.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	OAuthSecretNamespace string `json:"oauthSecretNamespace,omitempty"`

	// workloadIdentity is an OAuth client without a secret: the operator proves itself by a token of its own ServiceAccount.
	// +optional
	WorkloadIdentity *WorkloadIdentity `json:"workloadIdentity,omitempty"`

	// tags are the tags of the key that validates the credential, and of relays whose group names none.
	// +optional
	// +listType=set
	// +kubebuilder:default={"tag:k8s-operator"}
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=67
	// +kubebuilder:validation:items:Pattern=`^tag:[a-zA-Z][a-zA-Z0-9-]{0,62}$`
	Tags []string `json:"tags,omitempty"`

	// apiBaseURL is where the API is: https, or http to loopback. It must be on the operator's list.
	// +optional
	// +kubebuilder:default="https://api.tailscale.com"
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="isURL(self) && !self.contains('@') && !self.contains('?') && !self.contains('#') && (url(self).getScheme() == 'https' || (url(self).getScheme() == 'http' && url(self).getHostname() in ['127.0.0.1', '::1', 'localhost']))",message="apiBaseURL must be an https URL, or http to loopback, without user, query and fragment"
	APIBaseURL string `json:"apiBaseURL,omitempty"`

	// controlURL is the login server of relays, for control servers other than Tailscale's; unset is Tailscale's.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="isURL(self) && !self.contains('@') && !self.contains('?') && !self.contains('#') && url(self).getScheme() in ['https', 'http'] && url(self).getHostname() != ''",message="controlURL must be an http or https URL without user, query and fragment"
	ControlURL string `json:"controlURL,omitempty"`

	// allowedNamespaces are the namespaces whose groups, services, gateways and policies may use this tailnet; Same is the operator's namespace.
	// +optional
	// +kubebuilder:default={from: Same}
	AllowedNamespaces NamespaceSelector `json:"allowedNamespaces,omitempty"`

	// syncInterval is how often the credential and the lists are checked, 1m to 1h. A check writes nothing.
	// +optional
	// +kubebuilder:default="5m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m') && duration(self) <= duration('1h')",message="syncInterval must be 1m to 1h"
	SyncInterval metav1.Duration `json:"syncInterval,omitzero"`
}

// WorkloadIdentity is an OAuth client that trusts the cluster's issuer.
type WorkloadIdentity struct {
	// clientID is the client's id, which is not secret.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ClientID string `json:"clientID"`

	// audience is the audience of the ServiceAccount token, as the client expects it.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Audience string `json:"audience"`
}
