package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// EnrollmentPhase summarizes the conditions of an enrollment.
//
// +kubebuilder:validation:Enum=Requested;Approved;Provisioning;Active;Suspended;Draining;Offboarded;Failed
type EnrollmentPhase string

// Values of EnrollmentPhase.
const (
	PhaseRequested    EnrollmentPhase = "Requested"    // not approved
	PhaseApproved     EnrollmentPhase = "Approved"     // approved; the fleet has not created anything yet
	PhaseProvisioning EnrollmentPhase = "Provisioning" // the fleet creates its runners
	PhaseActive       EnrollmentPhase = "Active"       // its runners accept jobs
	PhaseSuspended    EnrollmentPhase = "Suspended"    // its runners accept no jobs; nothing is deleted
	PhaseDraining     EnrollmentPhase = "Draining"     // the enrollment ends: the last jobs run, then the fleet deletes everything
	PhaseOffboarded   EnrollmentPhase = "Offboarded"   // the fleet has deleted everything
	PhaseFailed       EnrollmentPhase = "Failed"       // a person must act
)

// OffboardStep is one step of offboarding.
//
// +kubebuilder:validation:Enum=StopIntake;Drain;Deregister;DeleteWorkloads;DeleteSecrets;DeleteNamespace;Done
type OffboardStep string

// Offboarding steps, in order.
const (
	StepStopIntake      OffboardStep = "StopIntake"
	StepDrain           OffboardStep = "Drain"
	StepDeregister      OffboardStep = "Deregister"
	StepDeleteWorkloads OffboardStep = "DeleteWorkloads"
	StepDeleteSecrets   OffboardStep = "DeleteSecrets"
	StepDeleteNamespace OffboardStep = "DeleteNamespace"
	StepDone            OffboardStep = "Done"
)

// RunnerEnrollmentStatus is the observed state of an enrollment. Only the fleet writes it.
type RunnerEnrollmentStatus struct {
	// observedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// phase summarizes the conditions.
	// +optional
	Phase EnrollmentPhase `json:"phase,omitempty"`

	// conditions are Ready, Approved, CredentialsValid, NamespaceReady, PolicyReady, PolicyEnforced, Registered, Progressing, Degraded, Drifted, PolicyViolation and DecisionNeeded.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// pools are the workloads of the organisation.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=200
	Pools []EnrolledPoolStatus `json:"pools,omitempty"`

	// adopted are external scale sets (not managed by the fleet) that run jobs of the organisation. A pool names each of them in its field adopt. The fleet shows them and compares them with GitHub. A hold of the pool stops them; a hold of the organisation does not.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=50
	Adopted []EnrolledAdoption `json:"adopted,omitempty"`

	// findings are the differences between the forge, the cluster and the desired state, most severe first, at most 64.
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MaxItems=64
	Findings []EnrollmentFinding `json:"findings,omitempty"`

	// credential describes the credential in use. It never has its value.
	// +optional
	Credential *CredentialStatus `json:"credential,omitempty"`

	// offboard is the progress of offboarding.
	// +optional
	Offboard *OffboardStatus `json:"offboard,omitempty"`
}

// EnrolledAdoption is an external scale set that runs jobs of an organisation.
type EnrolledAdoption struct {
	// name is the name of the pool that adopts the scale set.
	// +required
	// +kubebuilder:validation:MaxLength=40
	Name string `json:"name"`

	// namespace is the namespace of the scale set.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`

	// workload is the name of the object in the cluster.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Workload string `json:"workload,omitempty"`

	// seenAt is when the fleet first saw one of its runners at GitHub.
	// +optional
	SeenAt *metav1.Time `json:"seenAt,omitempty"`

	AdoptedStatus `json:",inline"`
}

// EnrolledPoolStatus is one workload of an organisation. A missing number is unknown.
type EnrolledPoolStatus struct {
	// name is the name of the pool.
	// +required
	// +kubebuilder:validation:MaxLength=40
	Name string `json:"name"`

	// type is how the organisation uses the pool. It is not set for a workload that is ending.
	// +optional
	Type PoolUse `json:"type,omitempty"`

	// kind is the Kubernetes kind of the workload.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind,omitempty"`

	// namespace is the namespace of the workload.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`

	// workload is the name of the object in the cluster.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Workload string `json:"workload,omitempty"`

	// scaleSetId is the ID of the scale set at GitHub.
	// +optional
	ScaleSetID *int64 `json:"scaleSetId,omitempty"`

	// runnerId is the ID of the runner at GitLab.
	// +optional
	RunnerID *int64 `json:"runnerId,omitempty"`

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

	// assigned is the number of jobs that GitHub assigned to it, including running jobs. It is known if the listeners of ARC serve metrics.
	// +optional
	Assigned *int32 `json:"assigned,omitempty"`

	// stranded is the number of assigned jobs that cannot start. It is set only while no runner is allowed.
	// +optional
	Stranded *int32 `json:"stranded,omitempty"`

	// effectiveMax is the maximum number of runners now.
	// +optional
	EffectiveMax *int32 `json:"effectiveMax,omitempty"`

	// allocated is the maximum number of runners without holds.
	// +optional
	Allocated *int32 `json:"allocated,omitempty"`

	// seenAt is when the fleet first saw one of its runners at GitHub.
	// +optional
	SeenAt *metav1.Time `json:"seenAt,omitempty"`

	// allocatedAt is when allocated last changed.
	// +optional
	AllocatedAt *metav1.Time `json:"allocatedAt,omitempty"`

	// hold is the name of the RunnerHold that is in force.
	// +optional
	// +kubebuilder:validation:MaxLength=40
	Hold string `json:"hold,omitempty"`

	// drift lists the differences from the desired state, one word each.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=64
	Drift []string `json:"drift,omitempty"`
}

// EnrollmentFinding is one difference between the forge, the cluster and the desired state.
type EnrollmentFinding struct {
	// id identifies the finding. It does not change while the finding exists.
	// +required
	// +kubebuilder:validation:MaxLength=32
	ID string `json:"id"`

	// kind is the kind of the difference, in one word.
	// +required
	// +kubebuilder:validation:MaxLength=64
	Kind string `json:"kind"`

	// severity is info, warning or error. With an error, jobs do not run, or unauthorised jobs can run.
	// +required
	// +kubebuilder:validation:Enum=info;warning;error
	Severity string `json:"severity"`

	// pool is the affected pool.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Pool string `json:"pool,omitempty"`

	// workload is the affected workload.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Workload string `json:"workload,omitempty"`

	// subject is the affected part of the workload, such as the ID of a runner.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Subject string `json:"subject,omitempty"`

	// want is the desired value.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Want string `json:"want,omitempty"`

	// have is the observed value.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Have string `json:"have,omitempty"`

	// evidence is one sentence about the observation.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Evidence string `json:"evidence,omitempty"`

	// next is one sentence about what to do.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Next string `json:"next,omitempty"`

	// firstSeen is when the fleet first saw the difference.
	// +required
	FirstSeen metav1.Time `json:"firstSeen"`

	// settled is true if the difference has existed too long to come from a change in progress. Unsettled findings appear only here.
	// +optional
	Settled bool `json:"settled,omitempty"`

	// explainedBy is the name of the RunnerHold that causes the difference. Such a finding is not drift.
	// +optional
	// +kubebuilder:validation:MaxLength=40
	ExplainedBy string `json:"explainedBy,omitempty"`

	// unconfirmed is true if the last check could not verify the finding. The finding then stays unchanged.
	// +optional
	Unconfirmed bool `json:"unconfirmed,omitempty"`
}

// CredentialKind is the kind of a credential.
//
// +kubebuilder:validation:Enum=githubApp;githubToken;gitlabToken
type CredentialKind string

// Kinds of credentials.
const (
	CredentialGitHubApp   CredentialKind = "githubApp"
	CredentialGitHubToken CredentialKind = "githubToken"
	CredentialGitLabToken CredentialKind = "gitlabToken"
)

// CredentialStatus describes the credential in use. It never has its value.
type CredentialStatus struct {
	// kind is the kind of the credential.
	// +required
	Kind CredentialKind `json:"kind"`

	// fingerprint distinguishes the credential from others.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Fingerprint string `json:"fingerprint,omitempty"`

	// appId is the ID of the GitHub App.
	// +optional
	AppID *int64 `json:"appId,omitempty"`

	// installationId is the ID of the App's installation in the organisation.
	// +optional
	InstallationID *int64 `json:"installationId,omitempty"`

	// createdAt is when the credential was created, or first seen if the creation time is unknown.
	// +optional
	CreatedAt *metav1.Time `json:"createdAt,omitempty"`

	// expiresAt is when the credential expires.
	// +optional
	ExpiresAt *metav1.Time `json:"expiresAt,omitempty"`
}

// OffboardStatus is the progress of offboarding.
type OffboardStatus struct {
	// step is the current step.
	// +required
	Step OffboardStep `json:"step"`

	// since is when the current step began.
	// +required
	Since metav1.Time `json:"since"`

	// message names what offboarding waits for.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`

	// leaked are the IDs of runners or scale sets that stay at the forge because they could not be deregistered.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=200
	Leaked []int64 `json:"leaked,omitempty"`
}
