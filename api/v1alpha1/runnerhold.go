package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// HoldMode is how a hold stops runners.
//
// +kubebuilder:validation:Enum=Pause;Drain;Stop
type HoldMode string

// The modes, the mildest first.
const (
	HoldPause HoldMode = "Pause" // no new job; running ones finish
	HoldDrain HoldMode = "Drain" // and what ran them goes then
	HoldStop  HoldMode = "Stop"  // and those that have not finished after the grace are cancelled
)

// A RunnerHold is a pause of runners. It holds as long as it exists and has not
// expired; deleting it lifts it, and only it: of several holds the strongest is in
// force.
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

	// spec is what is held, how and until when. All but expiresAt is immutable: another hold is another RunnerHold.
	// +required
	Spec RunnerHoldSpec `json:"spec"`

	// status is how far it has come.
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

// RunnerHoldSpec is what is held, how and until when.
//
// +kubebuilder:validation:XValidation:rule="has(self.grace) == has(oldSelf.grace)",message="grace is immutable"
type RunnerHoldSpec struct {
	// scope is what is held.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="scope is immutable"
	Scope HoldScope `json:"scope"`

	// mode is how.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="mode is immutable"
	Mode HoldMode `json:"mode"`

	// reason is why, for people.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=500
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="reason is immutable"
	Reason string `json:"reason"`

	// requestedBy is the whole login of who asked for it.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=254
	// +kubebuilder:validation:Pattern=`^[^\x00-\x20\x7f]+$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="requestedBy is immutable"
	RequestedBy string `json:"requestedBy"`

	// expiresAt is when it ends by itself; unset is never.
	// +optional
	ExpiresAt *metav1.Time `json:"expiresAt,omitempty"`

	// grace is how long mode Stop lets jobs run before it cancels them: 0s to 24h.
	// +optional
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s') && duration(self) <= duration('24h')",message="grace must be 0s to 24h"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="grace is immutable"
	Grace *metav1.Duration `json:"grace,omitempty"`
}

// HoldScope is what a hold holds: everything, one forge, one organisation, one pool,
// or one pool of one organisation.
//
// +kubebuilder:validation:XValidation:rule="[has(self.all), has(self.forge), has(self.org) || has(self.pool)].filter(x, x).size() == 1",message="give exactly one of all, forge, and org with or without pool"
type HoldScope struct {
	// all holds every runner of the fleet.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self",message="all is true or not given"
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

// RunnerHoldStatus is how far a hold has come. A number that is not given is not
// known.
type RunnerHoldStatus struct {
	// observedGeneration is the generation of the spec that this status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions are Ready, Applied, Drained and Expired.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// targets is how many workloads it holds.
	// +optional
	Targets int32 `json:"targets"`

	// applied is how many of them are proved to take no new job.
	// +optional
	Applied int32 `json:"applied"`

	// drained is how many of them have no job left.
	// +optional
	Drained int32 `json:"drained"`

	// remainingJobs is how many jobs still run; not given while one of the workloads cannot be asked.
	// +optional
	RemainingJobs *int32 `json:"remainingJobs,omitempty"`

	// failed are those that could not be held, the first 100.
	// +optional
	// +listType=map
	// +listMapKey=pool
	// +listMapKey=org
	// +kubebuilder:validation:MaxItems=100
	Failed []HoldFailure `json:"failed,omitempty"`
}

// HoldFailure is one workload that could not be held.
type HoldFailure struct {
	// pool is its pool.
	// +required
	// +kubebuilder:validation:MaxLength=40
	Pool string `json:"pool"`

	// org is its organisation; empty for a scale set of somebody else's.
	// +required
	// +kubebuilder:validation:MaxLength=40
	Org string `json:"org"`

	// reason is why, in one word.
	// +required
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason"`
}
