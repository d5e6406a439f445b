package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ForgeType is the software of a forge.
//
// +kubebuilder:validation:Enum=github;gitlab
type ForgeType string

// Values of ForgeType.
const (
	GitHub ForgeType = "github"
	GitLab ForgeType = "gitlab"
)

// A RunnerForge is a source of CI jobs: one GitHub or one GitLab instance. The fleet sends the credentials of enrolled
// organisations only to its URL, so the URL is immutable.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=runnerforges,singular=runnerforge,shortName=rforge,categories=tailplane,scope=Cluster
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.type`
// +kubebuilder:printcolumn:name="URL",type=string,JSONPath=`.spec.url`
// +kubebuilder:printcolumn:name="Reachable",type=string,JSONPath=`.status.conditions[?(@.type=="Reachable")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.version`,priority=1
// +kubebuilder:printcolumn:name="Remaining",type=integer,JSONPath=`.status.rateLimit.remaining`,priority=1
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$')",message="the name must be a DNS label of at most 40 characters"
type RunnerForge struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the type and the address of the forge.
	// +required
	Spec RunnerForgeSpec `json:"spec"`

	// status is the observed state. Only the fleet writes it.
	// +optional
	Status RunnerForgeStatus `json:"status,omitempty"`
}

// RunnerForgeList is a list of forges.
//
// +kubebuilder:object:root=true
type RunnerForgeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the forges.
	Items []RunnerForge `json:"items"`
}

// RunnerForgeSpec is the type and the address of a forge.
//
// +kubebuilder:validation:XValidation:rule="has(self.apiURL) == has(oldSelf.apiURL)",message="apiURL is immutable"
type RunnerForgeSpec struct {
	// type is the software of the forge.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="type is immutable"
	Type ForgeType `json:"type"`

	// url is the web URL: https, or http to loopback. The URL of each organisation begins with it.
	// +required
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="url is immutable"
	// +kubebuilder:validation:XValidation:rule="isURL(self) && !self.contains('@') && !self.contains('?') && !self.contains('#') && url(self).getHostname() != '' && (url(self).getScheme() == 'https' || (url(self).getScheme() == 'http' && url(self).getHostname() in ['127.0.0.1', '::1', 'localhost']))",message="url must be an https URL, or http to loopback, without user, query and fragment"
	URL string `json:"url"`

	// apiURL is the URL of the API, if it is not the default for such a forge.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="apiURL is immutable"
	// +kubebuilder:validation:XValidation:rule="isURL(self) && !self.contains('@') && !self.contains('?') && !self.contains('#') && url(self).getHostname() != '' && (url(self).getScheme() == 'https' || (url(self).getScheme() == 'http' && url(self).getHostname() in ['127.0.0.1', '::1', 'localhost']))",message="apiURL must be an https URL, or http to loopback, without user, query and fragment"
	APIURL string `json:"apiURL,omitempty"`

	// caBundle has the CA certificates that verify the forge, in PEM. Unset: those of the system.
	// +optional
	// +kubebuilder:validation:MaxLength=65536
	// +kubebuilder:validation:Pattern=`^\s*-----BEGIN CERTIFICATE-----`
	CABundle string `json:"caBundle,omitempty"`
}

// RunnerForgeStatus is the observed state of a forge.
type RunnerForgeStatus struct {
	// observedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions are Ready and Reachable.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// version is the version that the forge reports. Unset if the forge does not report one.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Version string `json:"version,omitempty"`

	// rateLimit is the remaining API rate limit of the organisation that has the least left.
	// +optional
	RateLimit *ForgeRateLimit `json:"rateLimit,omitempty"`
}

// ForgeRateLimit is the remaining API rate limit of a forge.
type ForgeRateLimit struct {
	// remaining is the number of requests left until resetAt.
	// +required
	// +kubebuilder:validation:Minimum=0
	Remaining int64 `json:"remaining"`

	// resetAt is when the rate limit resets.
	// +optional
	ResetAt *metav1.Time `json:"resetAt,omitempty"`
}
