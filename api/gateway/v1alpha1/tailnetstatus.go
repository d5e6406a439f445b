package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// TailscaleTailnetStatus is what the operator found out about a tailnet.
type TailscaleTailnetStatus struct {
	// observedGeneration is the generation of the spec that this status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// tailnetInfo is what the tailnet is called.
	// +optional
	TailnetInfo *TailnetInfo `json:"tailnetInfo,omitempty"`

	// deviceCount is how many devices the tailnet lists.
	// +optional
	DeviceCount int32 `json:"deviceCount,omitempty"`

	// serviceCount is how many VIP services the tailnet lists.
	// +optional
	ServiceCount int32 `json:"serviceCount,omitempty"`

	// scopes are what the credential may do, as the token says.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	Scopes []string `json:"scopes,omitempty"`

	// lastSyncTime is when the lists were last read without an error.
	// +optional
	LastSyncTime *metav1.Time `json:"lastSyncTime,omitempty"`

	// nextSyncTime is when they will be read next.
	// +optional
	NextSyncTime *metav1.Time `json:"nextSyncTime,omitempty"`

	// validation is how far the proof of the credential is, so that no key is left behind after a crash.
	// +optional
	Validation *TailnetValidation `json:"validation,omitempty"`

	// api is how the API answers.
	// +optional
	API *TailnetAPI `json:"api,omitempty"`

	// conditions are Authenticated, Validated, Ready and Degraded.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// TailnetInfo is what a tailnet is called.
type TailnetInfo struct {
	// name is the MagicDNS domain, such as tail8eff9.ts.net.
	// +optional
	Name string `json:"name,omitempty"`

	// organization is Personal or Organization; a hint from the form of the name.
	// +optional
	Organization string `json:"organization,omitempty"`
}

// ValidationPhase is a step of the proof that a credential can do its work.
//
// +kubebuilder:validation:Enum=Pending;InProgress;CleanupPending;Done
type ValidationPhase string

// Values of ValidationPhase.
const (
	ValidationPending        ValidationPhase = "Pending"
	ValidationInProgress     ValidationPhase = "InProgress"     // a key may have been made
	ValidationCleanupPending ValidationPhase = "CleanupPending" // a key was made and must be deleted
	ValidationDone           ValidationPhase = "Done"
)

// TailnetValidation is how far the proof of a credential is.
type TailnetValidation struct {
	// phase is the step: Pending, InProgress, CleanupPending or Done.
	// +optional
	Phase ValidationPhase `json:"phase,omitempty"`

	// secretVersion is the credential that is or was proved: the uid and resourceVersion of the Secret, or the time of the files.
	// +optional
	SecretVersion string `json:"secretVersion,omitempty"`

	// generation is the generation of the spec for which it was proved.
	// +optional
	Generation int64 `json:"generation,omitempty"`

	// nonce is in the description of the key, to find it again.
	// +optional
	Nonce string `json:"nonce,omitempty"`

	// keyID is the id of the key, which is not secret.
	// +optional
	KeyID string `json:"keyID,omitempty"`

	// time is when the step was reached.
	// +optional
	Time *metav1.Time `json:"time,omitempty"`
}

// CircuitState says whether calls go to the API.
//
// +kubebuilder:validation:Enum=Closed;Open;HalfOpen
type CircuitState string

// Values of CircuitState.
const (
	CircuitClosed   CircuitState = "Closed"   // calls go out
	CircuitOpen     CircuitState = "Open"     // calls fail here
	CircuitHalfOpen CircuitState = "HalfOpen" // one call tries
)

// TailnetAPI is how the API of a tailnet answers.
type TailnetAPI struct {
	// state says whether calls go to the API: Closed (they do), Open or HalfOpen.
	// +optional
	State CircuitState `json:"state,omitempty"`

	// consecutiveFailures is how many calls failed in a row.
	// +optional
	ConsecutiveFailures int32 `json:"consecutiveFailures,omitempty"`

	// lastError is the last failure; it stays after a success.
	// +optional
	LastError *TailnetAPIError `json:"lastError,omitempty"`
}

// TailnetAPIError is a failed call of the API.
type TailnetAPIError struct {
	// class is what kind of failure it was, such as refused, rate limited or transient.
	// +optional
	Class string `json:"class,omitempty"`

	// httpStatus is the status of the answer; 0 if there was none.
	// +optional
	HTTPStatus int32 `json:"httpStatus,omitempty"`

	// message says what failed, and holds no credential.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`

	// time is when it failed.
	// +optional
	Time *metav1.Time `json:"time,omitempty"`
}
