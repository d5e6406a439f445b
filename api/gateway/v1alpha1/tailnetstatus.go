package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// TailscaleTailnetStatus is the observed state of a tailnet.
type TailscaleTailnetStatus struct {
	// observedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// tailnetInfo is the name of the tailnet.
	// +optional
	TailnetInfo *TailnetInfo `json:"tailnetInfo,omitempty"`

	// deviceCount is the number of devices in the tailnet.
	// +optional
	DeviceCount int32 `json:"deviceCount,omitempty"`

	// serviceCount is the number of VIP services in the tailnet.
	// +optional
	ServiceCount int32 `json:"serviceCount,omitempty"`

	// scopes are the OAuth scopes of the token.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	Scopes []string `json:"scopes,omitempty"`

	// lastSyncTime is when the operator last read the lists successfully.
	// +optional
	LastSyncTime *metav1.Time `json:"lastSyncTime,omitempty"`

	// nextSyncTime is when the operator reads the lists next.
	// +optional
	NextSyncTime *metav1.Time `json:"nextSyncTime,omitempty"`

	// validation is the progress of the credential's validation. It ensures that no key remains after a crash.
	// +optional
	Validation *TailnetValidation `json:"validation,omitempty"`

	// api is the health of the API.
	// +optional
	API *TailnetAPI `json:"api,omitempty"`

	// conditions are Authenticated, Validated, Ready and Degraded.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// TailnetInfo is the name of a tailnet.
type TailnetInfo struct {
	// name is the MagicDNS domain, such as tail8eff9.ts.net.
	// +optional
	Name string `json:"name,omitempty"`

	// organization is Personal or Organization. It is a guess from the form of the name.
	// +optional
	Organization string `json:"organization,omitempty"`
}

// ValidationPhase is a step of the validation of a credential.
//
// +kubebuilder:validation:Enum=Pending;InProgress;CleanupPending;Done
type ValidationPhase string

// Values of ValidationPhase.
const (
	ValidationPending        ValidationPhase = "Pending"
	ValidationInProgress     ValidationPhase = "InProgress"     // the operator may have created a key
	ValidationCleanupPending ValidationPhase = "CleanupPending" // the operator created a key and must delete it
	ValidationDone           ValidationPhase = "Done"
)

// TailnetValidation is the progress of a credential's validation.
type TailnetValidation struct {
	// phase is the step: Pending, InProgress, CleanupPending or Done.
	// +optional
	Phase ValidationPhase `json:"phase,omitempty"`

	// secretVersion identifies the validated credential: the UID and resourceVersion of the Secret, or the time of the files.
	// +optional
	SecretVersion string `json:"secretVersion,omitempty"`

	// generation is the generation of the spec at the validation.
	// +optional
	Generation int64 `json:"generation,omitempty"`

	// nonce is part of the description of the key, to find it again.
	// +optional
	Nonce string `json:"nonce,omitempty"`

	// keyID is the ID of the key. It is not secret.
	// +optional
	KeyID string `json:"keyID,omitempty"`

	// time is when the current step began.
	// +optional
	Time *metav1.Time `json:"time,omitempty"`
}

// CircuitState is the state of the circuit breaker for calls to the API.
//
// +kubebuilder:validation:Enum=Closed;Open;HalfOpen
type CircuitState string

// Values of CircuitState.
const (
	CircuitClosed   CircuitState = "Closed"   // the operator sends calls
	CircuitOpen     CircuitState = "Open"     // calls fail without being sent
	CircuitHalfOpen CircuitState = "HalfOpen" // the operator sends one call as a test
)

// TailnetAPI is the health of a tailnet's API.
type TailnetAPI struct {
	// state is the state of the circuit breaker: Closed (the operator sends calls), Open or HalfOpen.
	// +optional
	State CircuitState `json:"state,omitempty"`

	// consecutiveFailures is the number of consecutive failed calls.
	// +optional
	ConsecutiveFailures int32 `json:"consecutiveFailures,omitempty"`

	// lastError is the last error. It stays after a success.
	// +optional
	LastError *TailnetAPIError `json:"lastError,omitempty"`
}

// TailnetAPIError is a failed call to the API.
type TailnetAPIError struct {
	// class is the kind of error, such as refused, rate limited or transient.
	// +optional
	Class string `json:"class,omitempty"`

	// httpStatus is the status of the response. 0 if there was no response.
	// +optional
	HTTPStatus int32 `json:"httpStatus,omitempty"`

	// message is the error message. It never contains a credential.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`

	// time is when the call failed.
	// +optional
	Time *metav1.Time `json:"time,omitempty"`
}
