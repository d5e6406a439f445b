package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// A TailscaleTailnet is one tailnet and the credential that the operator uses for it. It is cluster-scoped, because
// its author chooses which credential the operator sends to which API.
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
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')",message="the name must be a DNS label: it is part of labels and cluster names"
type TailscaleTailnet struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the tailnet and its credential.
	// +required
	Spec TailscaleTailnetSpec `json:"spec"`

	// status is the observed state. Only the operator writes it.
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

// TailscaleTailnetSpec is a tailnet and its credential. Without oauthSecretName and workloadIdentity, the operator
// uses the credential in its mounted files.
//
// +kubebuilder:validation:XValidation:rule="!has(self.oauthSecretNamespace) || has(self.oauthSecretName)",message="oauthSecretNamespace needs oauthSecretName"
// +kubebuilder:validation:XValidation:rule="!has(self.workloadIdentity) || !has(self.oauthSecretName)",message="workloadIdentity and oauthSecretName exclude each other"
type TailscaleTailnetSpec struct {
	// tailnet is the tailnet's segment in the paths of the API. "-" means the tailnet of the credential. It is immutable.
	// +optional
	// +kubebuilder:default="-"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9._@-]+$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="tailnet is immutable"
	// +kubebuilder:validation:XValidation:rule="self != '.' && self != '..'",message="tailnet must be one path segment"
	Tailnet string `json:"tailnet,omitempty"`

	// oauthSecretName is the Secret with the OAuth client, in the keys client_id and client_secret.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	OAuthSecretName string `json:"oauthSecretName,omitempty"`

	// oauthSecretNamespace is the namespace of that Secret. Unset: the operator's namespace. The operator reads only Secrets of configured namespaces.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	OAuthSecretNamespace string `json:"oauthSecretNamespace,omitempty"`

	// workloadIdentity is an OAuth client without a secret. The operator authenticates with a token of its ServiceAccount.
	// +optional
	WorkloadIdentity *WorkloadIdentity `json:"workloadIdentity,omitempty"`

	// tags are the tags of the auth key that validates the credential, and of relays whose group has no tags.
	// +optional
	// +listType=set
	// +kubebuilder:default={"tag:k8s-operator"}
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=67
	// +kubebuilder:validation:items:Pattern=`^tag:[a-zA-Z][a-zA-Z0-9-]{0,62}$`
	Tags []string `json:"tags,omitempty"`

	// apiBaseURL is the URL of the API: https, or http to loopback. The operator's configuration must list it.
	// +optional
	// +kubebuilder:default="https://api.tailscale.com"
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="isURL(self) && !self.contains('@') && !self.contains('?') && !self.contains('#') && (url(self).getScheme() == 'https' || (url(self).getScheme() == 'http' && url(self).getHostname() in ['127.0.0.1', '::1', 'localhost']))",message="apiBaseURL must be an https URL, or http to loopback, without user, query and fragment"
	APIBaseURL string `json:"apiBaseURL,omitempty"`

	// controlURL is the control server of the relays. Unset: Tailscale's.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="isURL(self) && !self.contains('@') && !self.contains('?') && !self.contains('#') && url(self).getScheme() in ['https', 'http'] && url(self).getHostname() != ''",message="controlURL must be an http or https URL without user, query and fragment"
	ControlURL string `json:"controlURL,omitempty"`

	// allowedNamespaces are the namespaces whose groups, services, gateways and policies may use this tailnet. Same means the operator's namespace.
	// +optional
	// +kubebuilder:default={from: Same}
	AllowedNamespaces NamespaceSelector `json:"allowedNamespaces,omitempty"`

	// syncInterval is how often the operator checks the credential and reads the lists, 1m to 1h. A check writes nothing to the tailnet.
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
	// clientID is the ID of the client. It is not secret.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ClientID string `json:"clientID"`

	// audience is the audience of the ServiceAccount token that the client expects.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Audience string `json:"audience"`
}
