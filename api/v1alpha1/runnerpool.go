package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// ContainerMode is how a job of a GitHub runner gets containers.
//
// +kubebuilder:validation:Enum=default;dind;kubernetes;kubernetes-novolume
type ContainerMode string

// The container modes.
const (
	ModeDefault            ContainerMode = "default"             // none
	ModeDind               ContainerMode = "dind"                // a privileged Docker beside the job
	ModeKubernetes         ContainerMode = "kubernetes"          // pods of their own, with a volume between
	ModeKubernetesNoVolume ContainerMode = "kubernetes-novolume" // pods of their own
)

// RunnerContainer is the name of the container that runs the job, in a pool's
// template.
const RunnerContainer = "runner"

// A RunnerPool is a class of CI runner. It belongs to no organisation: each one that
// is enrolled in it has a workload of its own, and all of them share its budget.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=runnerpools,singular=runnerpool,shortName=rpool,categories=tailplane,scope=Cluster
// +kubebuilder:printcolumn:name="Forge",type=string,JSONPath=`.spec.forge`
// +kubebuilder:printcolumn:name="Orgs",type=integer,JSONPath=`.status.orgs`
// +kubebuilder:printcolumn:name="Allocated",type=integer,JSONPath=`.status.allocated`
// +kubebuilder:printcolumn:name="Budget",type=integer,JSONPath=`.spec.scaling.budget`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Dedicated To",type=string,JSONPath=`.spec.dedicatedTo`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$')",message="the name must be a DNS label of at most 40 characters"
type RunnerPool struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what its runners are, and how many there may be.
	// +required
	Spec RunnerPoolSpec `json:"spec"`

	// status is how it stands.
	// +optional
	Status RunnerPoolStatus `json:"status,omitempty"`
}

// RunnerPoolList is a list of pools.
//
// +kubebuilder:object:root=true
type RunnerPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the pools.
	Items []RunnerPool `json:"items"`
}

// RunnerPoolSpec is what the runners of a pool are, and how many there may be.
//
// +kubebuilder:validation:XValidation:rule="!has(self.template) || (!has(self.image) && !has(self.resources))",message="give a template, or image and resources, not both"
// +kubebuilder:validation:XValidation:rule="has(self.adopt) == has(oldSelf.adopt)",message="adopt is immutable"
type RunnerPoolSpec struct {
	// forge is the name of the RunnerForge whose jobs it runs.
	// +required
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="forge is immutable"
	Forge string `json:"forge"`

	// runsOn are the labels (GitHub) or tags (GitLab) by which jobs find it; {org} stands for the enrollment's name.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=100
	// +kubebuilder:validation:items:Pattern=`^([A-Za-z0-9._:/-]|\{org\})+$`
	RunsOn []string `json:"runsOn"`

	// scaling is how many runners there may be.
	// +required
	Scaling PoolScaling `json:"scaling"`

	// containerMode is how a job gets containers. With isolation None, dind is for one organisation, and the
	// kubernetes modes are for clusters where no other one has that isolation.
	// +optional
	// +kubebuilder:default=default
	ContainerMode ContainerMode `json:"containerMode,omitempty"`

	// image is the runner's image; unset is the fleet's. For GitLab it is the image of jobs that name none.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][!-~]*$`
	Image string `json:"image,omitempty"`

	// resources are what the runner's container requests and may use; for GitLab, what each job may.
	// +optional
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`

	// template is a whole PodTemplateSpec for GitHub runners; its container that runs the job is named runner. It is
	// kept as it was written and checked by the fleet: misspelt fields, host paths and host namespaces are refused.
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:pruning:PreserveUnknownFields
	Template *runtime.RawExtension `json:"template,omitempty"`

	// gitlab is what only GitLab's runners have.
	// +optional
	GitLab *PoolGitLab `json:"gitlab,omitempty"`

	// dedicatedTo is the name of the one RunnerEnrollment that may use it; unset is any.
	// +optional
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$`
	DedicatedTo string `json:"dedicatedTo,omitempty"`

	// adopt names a scale set that somebody else keeps: it is shown, and held, but never made or deleted.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="adopt is immutable"
	Adopt *PoolAdopt `json:"adopt,omitempty"`
}

// PoolScaling is how many runners of a pool there may be.
//
// +kubebuilder:validation:XValidation:rule="self.min <= self.max",message="min must be at most max"
// +kubebuilder:validation:XValidation:rule="self.max <= self.budget",message="max must be at most budget"
// +kubebuilder:validation:XValidation:rule="self.guarantee <= self.max",message="guarantee must be at most max"
type PoolScaling struct {
	// min is how many runners wait for jobs, for each organisation.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	Min int32 `json:"min"`

	// max is how many runners each organisation can have.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	Max int32 `json:"max"`

	// budget is how many runners all organisations can have together.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	Budget int32 `json:"budget"`

	// guarantee is what each organisation has whatever the others do.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	Guarantee int32 `json:"guarantee"`
}

// PoolGitLab is what only GitLab's runners have.
type PoolGitLab struct {
	// concurrent is how many jobs one manager runs at most; the allocation may allow fewer.
	// +optional
	// +kubebuilder:default=4
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	Concurrent int32 `json:"concurrent,omitempty"`

	// replicas is how many managers one organisation has.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10
	Replicas int32 `json:"replicas,omitempty"`

	// shutdownTimeout is how long a manager that stops waits for its jobs, at most 24h.
	// +optional
	// +kubebuilder:default="1h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="shutdownTimeout must be 1s to 24h"
	ShutdownTimeout metav1.Duration `json:"shutdownTimeout,omitzero"`

	// runUntagged lets it run jobs without tags.
	// +optional
	// +kubebuilder:default=false
	RunUntagged bool `json:"runUntagged"`

	// protected limits it to protected branches and tags.
	// +optional
	// +kubebuilder:default=false
	Protected bool `json:"protected"`

	// locked keeps it from being given to other projects.
	// +optional
	// +kubebuilder:default=true
	Locked bool `json:"locked"`

	// maximumTimeout is how long a job may take, 10m to 720h.
	// +optional
	// +kubebuilder:default="1h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10m') && duration(self) <= duration('720h')",message="maximumTimeout must be 10m to 720h"
	MaximumTimeout metav1.Duration `json:"maximumTimeout,omitzero"`
}

// PoolAdopt names an AutoscalingRunnerSet that somebody else keeps.
type PoolAdopt struct {
	// namespace is where it is.
	// +required
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`
	Namespace string `json:"namespace"`

	// name is its name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Name string `json:"name"`
}

// RunnerPoolStatus is how a pool stands.
type RunnerPoolStatus struct {
	// observedGeneration is the generation of the spec that this status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions are Ready and Degraded.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// orgs is how many organisations are enrolled in it.
	// +optional
	Orgs int32 `json:"orgs"`

	// allocated is how many runners they may have together now.
	// +optional
	Allocated int32 `json:"allocated"`

	// budget is the budget that allocated was decided by.
	// +optional
	Budget int32 `json:"budget"`

	// adopted is how the scale set stands that the pool adopts.
	// +optional
	Adopted *AdoptedStatus `json:"adopted,omitempty"`
}

// AdoptedStatus is how a scale set stands that somebody else keeps. What is not given is not known.
type AdoptedStatus struct {
	// scaleSetId is GitHub's number of it.
	// +optional
	ScaleSetID *int64 `json:"scaleSetId,omitempty"`

	// min is its minimum of runners, as it stands there.
	// +optional
	Min *int32 `json:"min,omitempty"`

	// max is its maximum of runners, as it stands there; 2147483647 is none.
	// +optional
	Max *int32 `json:"max,omitempty"`

	// idle is how many runners wait for a job.
	// +optional
	Idle *int32 `json:"idle,omitempty"`

	// busy is how many runners run one.
	// +optional
	Busy *int32 `json:"busy,omitempty"`

	// pending is how many runners start.
	// +optional
	Pending *int32 `json:"pending,omitempty"`

	// failed is how many runners failed.
	// +optional
	Failed *int32 `json:"failed,omitempty"`

	// hold is the name of the RunnerHold that is in force.
	// +optional
	// +kubebuilder:validation:MaxLength=40
	Hold string `json:"hold,omitempty"`
}
