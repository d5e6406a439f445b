package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// ContainerMode is how a job of a GitHub runner starts containers.
//
// +kubebuilder:validation:Enum=default;dind;kubernetes;kubernetes-novolume
type ContainerMode string

// The container modes.
const (
	ModeDefault            ContainerMode = "default"             // no containers
	ModeDind               ContainerMode = "dind"                // a privileged Docker sidecar in the runner's pod
	ModeKubernetes         ContainerMode = "kubernetes"          // separate pods with a shared volume
	ModeKubernetesNoVolume ContainerMode = "kubernetes-novolume" // separate pods
)

// RunnerContainer is the name of the container that runs the job, in a pool's template.
const RunnerContainer = "runner"

// A RunnerPool is a class of CI runners. It belongs to no organisation. Each organisation that is enrolled in it has a
// separate workload, and all these workloads share the pool's budget.
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

	// spec is the configuration and the limits of the runners.
	// +required
	Spec RunnerPoolSpec `json:"spec"`

	// status is the observed state. Only the fleet writes it.
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

// RunnerPoolSpec is the configuration and the limits of a pool's runners.
//
// +kubebuilder:validation:XValidation:rule="!has(self.template) || (!has(self.image) && !has(self.resources))",message="set template, or image and resources, not both"
// +kubebuilder:validation:XValidation:rule="has(self.adopt) == has(oldSelf.adopt)",message="adopt is immutable"
type RunnerPoolSpec struct {
	// forge is the name of the RunnerForge whose jobs the runners run.
	// +required
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="forge is immutable"
	Forge string `json:"forge"`

	// runsOn are the labels (GitHub) or tags (GitLab) that jobs select. {org} stands for the name of the enrollment.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=100
	// +kubebuilder:validation:items:Pattern=`^([A-Za-z0-9._:/-]|\{org\})+$`
	RunsOn []string `json:"runsOn"`

	// scaling limits the number of runners.
	// +required
	Scaling PoolScaling `json:"scaling"`

	// containerMode is how a job starts containers. With isolation None, only one organisation may use dind, and the kubernetes modes need a cluster where no other organisation has isolation None.
	// +optional
	// +kubebuilder:default=default
	ContainerMode ContainerMode `json:"containerMode,omitempty"`

	// image is the image of the runner. Unset: the fleet's default. For GitLab, it is the image of jobs that name no image.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][!-~]*$`
	Image string `json:"image,omitempty"`

	// resources are the requests and limits of the runner's container. For GitLab, they apply to each job.
	// +optional
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`

	// template is a full PodTemplateSpec for GitHub runners. The container that runs the job must be named runner. The API server stores it unchanged; the fleet rejects unknown fields, host paths and host namespaces.
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:pruning:PreserveUnknownFields
	Template *runtime.RawExtension `json:"template,omitempty"`

	// gitlab has the settings of GitLab runners.
	// +optional
	GitLab *PoolGitLab `json:"gitlab,omitempty"`

	// dedicatedTo is the name of the only RunnerEnrollment that may use the pool. Unset: any.
	// +optional
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$`
	DedicatedTo string `json:"dedicatedTo,omitempty"`

	// adopt names an external scale set. The fleet shows it and can hold it. The fleet never creates or deletes it.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="adopt is immutable"
	Adopt *PoolAdopt `json:"adopt,omitempty"`
}

// PoolScaling limits the number of runners of a pool.
//
// +kubebuilder:validation:XValidation:rule="self.min <= self.max",message="min must be at most max"
// +kubebuilder:validation:XValidation:rule="self.max <= self.budget",message="max must be at most budget"
// +kubebuilder:validation:XValidation:rule="self.guarantee <= self.max",message="guarantee must be at most max"
type PoolScaling struct {
	// min is the number of idle runners for each organisation.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	Min int32 `json:"min"`

	// max is the maximum number of runners for each organisation.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	Max int32 `json:"max"`

	// budget is the maximum number of runners for all organisations together.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	Budget int32 `json:"budget"`

	// guarantee is the number of runners reserved for each organisation.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	Guarantee int32 `json:"guarantee"`
}

// PoolGitLab has the settings of GitLab runners.
type PoolGitLab struct {
	// concurrent is the maximum number of jobs of one manager. The allocation may allow fewer.
	// +optional
	// +kubebuilder:default=4
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	Concurrent int32 `json:"concurrent,omitempty"`

	// replicas is the number of managers for each organisation.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10
	Replicas int32 `json:"replicas,omitempty"`

	// shutdownTimeout is how long a stopping manager waits for its jobs, at most 24h.
	// +optional
	// +kubebuilder:default="1h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="shutdownTimeout must be 1s to 24h"
	ShutdownTimeout metav1.Duration `json:"shutdownTimeout,omitzero"`

	// runUntagged allows jobs without tags.
	// +optional
	// +kubebuilder:default=false
	RunUntagged bool `json:"runUntagged"`

	// protected limits the runners to protected branches and tags.
	// +optional
	// +kubebuilder:default=false
	Protected bool `json:"protected"`

	// locked prevents the assignment of the runners to other projects.
	// +optional
	// +kubebuilder:default=true
	Locked bool `json:"locked"`

	// maximumTimeout is the maximum duration of a job, 10m to 720h.
	// +optional
	// +kubebuilder:default="1h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10m') && duration(self) <= duration('720h')",message="maximumTimeout must be 10m to 720h"
	MaximumTimeout metav1.Duration `json:"maximumTimeout,omitzero"`
}

// PoolAdopt names an external AutoscalingRunnerSet (not managed by the fleet).
type PoolAdopt struct {
	// namespace is the namespace of the scale set.
	// +required
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`
	Namespace string `json:"namespace"`

	// name is the name of the scale set.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Name string `json:"name"`
}

// RunnerPoolStatus is the observed state of a pool.
type RunnerPoolStatus struct {
	// observedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions are Ready and Degraded.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// orgs is the number of organisations that are enrolled in the pool.
	// +optional
	Orgs int32 `json:"orgs"`

	// allocated is the maximum number of runners of all organisations together now.
	// +optional
	Allocated int32 `json:"allocated"`

	// budget is the budget at the time of the allocation.
	// +optional
	Budget int32 `json:"budget"`

	// adopted is the observed state of the external scale set.
	// +optional
	Adopted *AdoptedStatus `json:"adopted,omitempty"`
}

// AdoptedStatus is the observed state of an external scale set. A missing field is unknown.
type AdoptedStatus struct {
	// scaleSetId is the ID of the scale set at GitHub.
	// +optional
	ScaleSetID *int64 `json:"scaleSetId,omitempty"`

	// min is the configured minimum number of runners.
	// +optional
	Min *int32 `json:"min,omitempty"`

	// max is the configured maximum number of runners. 2147483647 means no maximum.
	// +optional
	Max *int32 `json:"max,omitempty"`

	// idle is the number of runners that wait for a job.
	// +optional
	Idle *int32 `json:"idle,omitempty"`

	// busy is the number of runners that run a job.
	// +optional
	Busy *int32 `json:"busy,omitempty"`

	// pending is the number of runners that are starting.
	// +optional
	Pending *int32 `json:"pending,omitempty"`

	// failed is the number of runners that failed.
	// +optional
	Failed *int32 `json:"failed,omitempty"`

	// hold is the name of the RunnerHold that is in force.
	// +optional
	// +kubebuilder:validation:MaxLength=40
	Hold string `json:"hold,omitempty"`
}
