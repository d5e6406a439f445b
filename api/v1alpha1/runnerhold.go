package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// HoldMode is how a hold stops runners.
//
// +kubebuilder:validation:Enum=Pause;Drain;Stop
type HoldMode string

// Hold modes, mildest first.
const (
	HoldPause HoldMode = "Pause" // no new jobs; running jobs finish
	HoldDrain HoldMode = "Drain" // like Pause; the runners are removed when their jobs have finished
	HoldStop  HoldMode = "Stop"  // like Drain; jobs that run longer than the grace period are cancelled
)

// A RunnerHold stops runners from accepting jobs. It is in force while it exists and has not expired. Deleting it
// lifts this hold only. If several holds apply, the strongest one is in force.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=runnerholds,singular=runnerhold,shortName=rhold,categories=tailplane,scope=Cluster
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`
// +kubebuilder:printcolumn:name="All",type=boolean,JSONPath=`.spec.scope.all`
// +kubebuilder:printcolumn:name="Forge",type=string,JSONPath=`.spec.scope.forge`
// +kubebuilder:printcolumn:name="Org",type=string,JSONPath=`.spec.scope.org`
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.spec.scope.pool`
// +kubebuilder:printcolumn:name="Applied",type=string,JSONPath=`.status.conditions[?(@.type=="Applied")].status`
// +kubebuilder:printcolumn:name="By",type=string,JSONPath=`.spec.requestedBy`
// +kubebuilder:printcolumn:name="Expires",type=string,JSONPath=`.spec.expiresAt`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Targets",type=integer,JSONPath=`.status.targets`,priority=1
// +kubebuilder:printcolumn:name="Drained",type=integer,JSONPath=`.status.drained`,priority=1
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.spec.reason`,priority=1
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$')",message="the name must be a DNS label of at most 40 characters"
type RunnerHold struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the scope, the mode and the expiry of the hold. Only expiresAt can be changed; for another hold, create another RunnerHold.
	// +required
	Spec RunnerHoldSpec `json:"spec"`

	// status is the progress of the hold.
	// +optional
	Status RunnerHoldStatus `json:"status,omitempty"`
}

// RunnerHoldList is a list of holds.
//
// +kubebuilder:object:root=true
type RunnerHoldList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the holds.
	Items []RunnerHold `json:"items"`
}

// RunnerHoldSpec is the scope, the mode and the expiry of a hold.
//
// +kubebuilder:validation:XValidation:rule="has(self.grace) == has(oldSelf.grace)",message="grace is immutable"
type RunnerHoldSpec struct {
	// scope selects the workloads to hold.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="scope is immutable"
	Scope HoldScope `json:"scope"`

	// mode is how the hold stops runners.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="mode is immutable"
	Mode HoldMode `json:"mode"`

	// reason is the reason, for people.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=500
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="reason is immutable"
	Reason string `json:"reason"`

	// requestedBy is the full login of the person who requested the hold.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=254
	// +kubebuilder:validation:Pattern=`^[^\x00-\x20\x7f]+$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="requestedBy is immutable"
	RequestedBy string `json:"requestedBy"`

	// expiresAt is when the hold expires automatically. Unset: never.
	// +optional
	ExpiresAt *metav1.Time `json:"expiresAt,omitempty"`

	// grace is how long jobs may still run before mode Stop cancels them: 0s to 24h.
	// +optional
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s') && duration(self) <= duration('24h')",message="grace must be 0s to 24h"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="grace is immutable"
	Grace *metav1.Duration `json:"grace,omitempty"`
}

// HoldScope selects the workloads of a hold: all, one forge, one organisation, one pool, or one pool of one
// organisation.
//
// +kubebuilder:validation:XValidation:rule="[has(self.all), has(self.forge), has(self.org) || has(self.pool)].filter(x, x).size() == 1",message="set exactly one of all, forge, and org with or without pool"
type HoldScope struct {
	// all holds every runner of the fleet.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self",message="all must be true or unset"
	All bool `json:"all,omitempty"`

	// forge is the name of a RunnerForge.
	// +optional
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$`
	Forge string `json:"forge,omitempty"`

	// org is the name of a RunnerEnrollment.
	// +optional
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$`
	Org string `json:"org,omitempty"`

	// pool is the name of a RunnerPool.
	// +optional
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$`
	Pool string `json:"pool,omitempty"`
}

// RunnerHoldStatus is the progress of a hold. A missing number is unknown.
type RunnerHoldStatus struct {
	// observedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions are Ready, Applied, Drained and Expired.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// targets is the number of workloads in scope.
	// +optional
	Targets int32 `json:"targets"`

	// applied is the number of workloads that verifiably accept no new jobs.
	// +optional
	Applied int32 `json:"applied"`

	// drained is the number of workloads that have no job left.
	// +optional
	Drained int32 `json:"drained"`

	// remainingJobs is the number of jobs that still run. It is not set while the fleet cannot read one of the workloads.
	// +optional
	RemainingJobs *int32 `json:"remainingJobs,omitempty"`

	// failed are the workloads that could not be held, at most 100.
	// +optional
	// +listType=map
	// +listMapKey=pool
	// +listMapKey=org
	// +kubebuilder:validation:MaxItems=100
	Failed []HoldFailure `json:"failed,omitempty"`
}

// HoldFailure is one workload that could not be held.
type HoldFailure struct {
	// pool is the pool of the workload.
	// +required
	// +kubebuilder:validation:MaxLength=40
	Pool string `json:"pool"`

	// org is the organisation of the workload. Empty for an external scale set.
	// +required
	// +kubebuilder:validation:MaxLength=40
	Org string `json:"org"`

	// reason is the reason, in one word.
	// +required
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason"`
}
