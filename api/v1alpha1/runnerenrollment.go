package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Names that the fleet and what works with it must agree upon.
const (
	// FleetFinalizer is on every RunnerEnrollment from before anything is made for it.
	FleetFinalizer = "tailplane.dev/fleet"

	// OrgLabel carries, on everything of an organisation, its name; it is also the key of the taint on its own nodes.
	OrgLabel = "tailplane.dev/org"

	// PoolLabel carries, on everything of a workload, the name of its pool.
	PoolLabel = "tailplane.dev/pool"

	// IsolationLabel carries, on a namespace of runners, the isolation that it is for.
	IsolationLabel = "tailplane.dev/isolation"

	// OffboardAnnotation tells the fleet how to end an enrollment: OffboardKeep or OffboardConfirm.
	OffboardAnnotation = "tailplane.dev/offboard"
	OffboardKeep       = "keep"    // leave the runners for an enrollment of the same name
	OffboardConfirm    = "confirm" // it is meant, though many enrollments were deleted at once

	// ForceCleanupAnnotation, with a reason, gives up what cannot be deregistered: it stays at the forge.
	ForceCleanupAnnotation = "tailplane.dev/force-cleanup"

	// RequestedByAnnotation carries, as a JSON list, the logins of those who wrote some of an enrollment by the plane since it was last approved: none of them approves it.
	RequestedByAnnotation = "tailplane.dev/requested-by"

	// AskedAnnotation carries, as JSON, what somebody asked for by the plane whom it may not be done for: see the plane's Asked.
	AskedAnnotation = "tailplane.dev/asked"
)

// Isolation is what separates the runners of an organisation from those of others.
//
// +kubebuilder:validation:Enum=None;Namespace;Node
type Isolation string

// The levels, the weakest first.
const (
	IsolationNone      Isolation = "None"      // a namespace for all
	IsolationNamespace Isolation = "Namespace" // a namespace of its own
	IsolationNode      Isolation = "Node"      // and nodes of its own
)

// PoolUse is how an organisation uses a pool.
//
// +kubebuilder:validation:Enum=Shared;Dedicated;OrgPlusUser
type PoolUse string

// The uses.
const (
	UseShared      PoolUse = "Shared"      // as others do
	UseDedicated   PoolUse = "Dedicated"   // nobody else does
	UseOrgPlusUser PoolUse = "OrgPlusUser" // for listed repositories only
)

// EnrollmentPhase is the summary of an enrollment's conditions.
//
// +kubebuilder:validation:Enum=Requested;Approved;Provisioning;Active;Suspended;Draining;Offboarded;Failed
type EnrollmentPhase string

// The phases.
const (
	PhaseRequested    EnrollmentPhase = "Requested"    // nobody has approved it
	PhaseApproved     EnrollmentPhase = "Approved"     // nothing was made yet
	PhaseProvisioning EnrollmentPhase = "Provisioning" // its runners are being made
	PhaseActive       EnrollmentPhase = "Active"       // its runners take jobs
	PhaseSuspended    EnrollmentPhase = "Suspended"    // they take no job, and nothing is deleted
	PhaseDraining     EnrollmentPhase = "Draining"     // it ends: the last jobs run, and then all of it goes
	PhaseOffboarded   EnrollmentPhase = "Offboarded"   // all of it has gone
	PhaseFailed       EnrollmentPhase = "Failed"       // it needs a person
)

// OffboardStep is how far an enrollment that ends has come.
//
// +kubebuilder:validation:Enum=StopIntake;Drain;Deregister;DeleteWorkloads;DeleteSecrets;DeleteNamespace;Done
type OffboardStep string

// The steps, in order.
const (
	StepStopIntake      OffboardStep = "StopIntake"
	StepDrain           OffboardStep = "Drain"
	StepDeregister      OffboardStep = "Deregister"
	StepDeleteWorkloads OffboardStep = "DeleteWorkloads"
	StepDeleteSecrets   OffboardStep = "DeleteSecrets"
	StepDeleteNamespace OffboardStep = "DeleteNamespace"
	StepDone            OffboardStep = "Done"
)

// A RunnerEnrollment is one organisation (GitHub) or group (GitLab) that has CI
// runners of the fleet. Its name is the organisation's name everywhere: in roles, in
// URLs, in labels and in the names of everything made for it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=runnerenrollments,singular=runnerenrollment,shortName=renroll,categories=tailplane,scope=Cluster
// +kubebuilder:printcolumn:name="Forge",type=string,JSONPath=`.spec.forge`
// +kubebuilder:printcolumn:name="Isolation",type=string,JSONPath=`.spec.isolation`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="URL",type=string,JSONPath=`.spec.configURL`,priority=1
// +kubebuilder:printcolumn:name="Credential Expires",type=string,JSONPath=`.status.credential.expiresAt`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$')",message="the name must be a DNS label of at most 40 characters"
type RunnerEnrollment struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is who is enrolled, in what, and how it is kept apart.
	// +required
	Spec RunnerEnrollmentSpec `json:"spec"`

	// status is how it stands.
	// +optional
	Status RunnerEnrollmentStatus `json:"status,omitempty"`
}

// RunnerEnrollmentList is a list of enrollments.
//
// +kubebuilder:object:root=true
type RunnerEnrollmentList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the enrollments.
	Items []RunnerEnrollment `json:"items"`
}

// RunnerEnrollmentSpec is who is enrolled, in what, and how it is kept apart.
//
// +kubebuilder:validation:XValidation:rule="self.isolation != 'Node' || (has(self.placement) && has(self.placement.nodeSelector) && self.placement.nodeSelector.size() > 0)",message="isolation Node needs placement.nodeSelector"
type RunnerEnrollmentSpec struct {
	// forge is the name of the RunnerForge where the organisation is.
	// +required
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="forge is immutable"
	Forge string `json:"forge"`

	// configURL is the organisation, enterprise or repository on GitHub, or the group on GitLab, as people see it.
	// +required
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="configURL is immutable"
	// +kubebuilder:validation:XValidation:rule="isURL(self) && !self.contains('@') && !self.contains('?') && !self.contains('#') && !self.contains('%') && url(self).getHostname() != '' && (url(self).getScheme() == 'https' || (url(self).getScheme() == 'http' && url(self).getHostname() in ['127.0.0.1', '::1', 'localhost'])) && url(self).getEscapedPath().size() > 1",message="configURL must be an https URL, or http to loopback, with a path and without user, query, fragment and escapes"
	ConfigURL string `json:"configURL"`

	// groupID is the number of the GitLab group; 0 is looked up from configURL.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="groupID is immutable"
	GroupID int64 `json:"groupID"`

	// isolation is what separates its runners from those of others.
	// +optional
	// +kubebuilder:default=None
	Isolation Isolation `json:"isolation,omitempty"`

	// pools are the pools that it uses.
	// +required
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=50
	Pools []EnrolledPool `json:"pools"`

	// credentials are what the fleet shows to the forge.
	// +required
	Credentials EnrollmentCredentials `json:"credentials"`

	// quota bounds what its namespace uses, with isolation Namespace and Node.
	// +optional
	// +kubebuilder:default={}
	Quota EnrollmentQuota `json:"quota,omitzero"`

	// placement is where its pods run.
	// +optional
	Placement *EnrollmentPlacement `json:"placement,omitempty"`

	// network is what its jobs may connect to, beside the cluster's DNS: unset is port 443 of the Internet.
	// +optional
	Network *EnrollmentNetwork `json:"network,omitempty"`

	// owners are the full logins of who administers the organisation here.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=50
	// +kubebuilder:validation:items:MinLength=3
	// +kubebuilder:validation:items:MaxLength=254
	// +kubebuilder:validation:items:Pattern=`^[^\x00-\x20\x7f*]+$`
	Owners []string `json:"owners,omitempty"`

	// members are the full logins of who belongs to it; *@example.com is everybody there.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=500
	// +kubebuilder:validation:items:MinLength=3
	// +kubebuilder:validation:items:MaxLength=254
	// +kubebuilder:validation:items:Pattern=`^([^\x00-\x20\x7f*]+|\*@[^\x00-\x20\x7f*@]+)$`
	Members []string `json:"members,omitempty"`

	// offboardTimeout is how long its last jobs may take when it ends, before a person is asked: 1m to 720h.
	// +optional
	// +kubebuilder:default="24h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m') && duration(self) <= duration('720h')",message="offboardTimeout must be 1m to 720h"
	OffboardTimeout metav1.Duration `json:"offboardTimeout,omitzero"`

	// approval is who approved it, where the plane approves.
	// +optional
	Approval *EnrollmentApproval `json:"approval,omitempty"`
}

// EnrolledPool is one pool that an organisation uses.
//
// +kubebuilder:validation:XValidation:rule="(self.type == 'OrgPlusUser') == has(self.repositories)",message="type OrgPlusUser, and no other, needs repositories"
// +kubebuilder:validation:XValidation:rule="!has(self.runnerGroup) || self.type != 'Shared'",message="runnerGroup is for types Dedicated and OrgPlusUser"
// +kubebuilder:validation:XValidation:rule="!self.allowPublic || self.type == 'OrgPlusUser'",message="allowPublic is for type OrgPlusUser"
type EnrolledPool struct {
	// name is the name of a RunnerPool.
	// +required
	// +kubebuilder:validation:MaxLength=40
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$`
	Name string `json:"name"`

	// type is how it is used.
	// +optional
	// +kubebuilder:default=Shared
	Type PoolUse `json:"type,omitempty"`

	// max is how many runners the organisation can have of it, if that is less than the pool's own max.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	Max *int32 `json:"max,omitempty"`

	// repositories are those whose jobs may use it, as owner/name.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=200
	// +kubebuilder:validation:items:MaxLength=140
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9._-]+$`
	Repositories []string `json:"repositories,omitempty"`

	// runnerGroup is the organisation's runner group that it is put into.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9 ._-]*$`
	RunnerGroup string `json:"runnerGroup,omitempty"`

	// allowPublic admits public repositories, whose pull requests come from anybody.
	// +optional
	// +kubebuilder:default=false
	AllowPublic bool `json:"allowPublic"`
}

// EnrollmentCredentials are what the fleet shows to the forge.
type EnrollmentCredentials struct {
	// secretName is a Secret in the fleet's namespace that carries the label tailplane.dev/org with this enrollment's name.
	// +required
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	SecretName string `json:"secretName"`

	// rotateEvery is how old it may become: 24h to 8760h; unset is any age.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('24h') && duration(self) <= duration('8760h')",message="rotateEvery must be 24h to 8760h"
	RotateEvery *metav1.Duration `json:"rotateEvery,omitempty"`

	// rotateAt is when it is to be replaced, whatever its age: what was made before that time is, once the time has come.
	// +optional
	RotateAt *metav1.Time `json:"rotateAt,omitempty"`
}

// EnrollmentQuota bounds what the namespace of an organisation uses.
type EnrollmentQuota struct {
	// cpu is the sum of the CPU that its pods request.
	// +optional
	// +kubebuilder:default="16"
	CPU resource.Quantity `json:"cpu,omitzero"`

	// memory is the sum of the memory that they request.
	// +optional
	// +kubebuilder:default="32Gi"
	Memory resource.Quantity `json:"memory,omitzero"`

	// pods is how many there may be.
	// +optional
	// +kubebuilder:default=50
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	Pods int32 `json:"pods,omitempty"`
}

// EnrollmentPlacement is where the pods of an organisation run.
type EnrollmentPlacement struct {
	// nodeSelector are labels of the nodes. With isolation Node the label tailplane.dev/org is added to it.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// tolerations are taints that they tolerate; not those of another organisation's nodes.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// runtimeClassName is their runtime class.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	RuntimeClassName string `json:"runtimeClassName,omitempty"`
}

// EnrollmentNetwork is what the jobs of an organisation may connect to.
type EnrollmentNetwork struct {
	// egress are addresses outside the cluster; unset is port 443 of all. Private ones, the tailnet's and the cluster's own are always left out.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Egress []NetworkEgress `json:"egress,omitempty"`

	// caches are pods in the cluster, in namespaces that the fleet's settings allow.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Caches []NetworkCache `json:"caches,omitempty"`
}

// NetworkEgress are addresses outside the cluster.
type NetworkEgress struct {
	// cidr is a range of addresses.
	// +required
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="isCIDR(self) && cidr(self) == cidr(self).masked()",message="cidr must be a range of addresses, such as 203.0.113.0/24"
	CIDR string `json:"cidr"`

	// ports are TCP ports.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:Minimum=1
	// +kubebuilder:validation:items:Maximum=65535
	Ports []int32 `json:"ports"`
}

// NetworkCache are pods in the cluster that keep what jobs fetch.
type NetworkCache struct {
	// namespace is where they are.
	// +required
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`
	Namespace string `json:"namespace"`

	// podSelector are their labels.
	// +required
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=16
	PodSelector map[string]string `json:"podSelector"`

	// port is their TCP port.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
}

// EnrollmentApproval is who approved an enrollment, and what was approved.
type EnrollmentApproval struct {
	// by is the whole login of who approved it.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=254
	// +kubebuilder:validation:Pattern=`^[^\x00-\x20\x7f]+$`
	By string `json:"by"`

	// at is when.
	// +required
	At metav1.Time `json:"at"`

	// digest is of everything but owners, members and the approval itself: whoever changes the rest needs another one.
	// +required
	// +kubebuilder:validation:MaxLength=71
	// +kubebuilder:validation:Pattern=`^sha256:[0-9a-f]{64}$`
	Digest string `json:"digest"`
}

// RunnerEnrollmentStatus is how an enrollment stands. Only the fleet writes it.
type RunnerEnrollmentStatus struct {
	// observedGeneration is the generation of the spec that this status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// phase is the summary of the conditions.
	// +optional
	Phase EnrollmentPhase `json:"phase,omitempty"`

	// conditions are Ready, Approved, CredentialsValid, NamespaceReady, PolicyReady, PolicyEnforced, Registered, Progressing, Degraded, Drifted, PolicyViolation and DecisionNeeded.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// pools are its workloads.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=200
	Pools []EnrolledPoolStatus `json:"pools,omitempty"`

	// adopted are scale sets of somebody else's that take jobs of the organisation, as pools
	// adopt them. The fleet shows them and compares them with GitHub; holds of their pools
	// hold them, and holds of the organisation do not.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=50
	Adopted []EnrolledAdoption `json:"adopted,omitempty"`

	// findings are what the forge, the cluster and what was decided do not agree about,
	// the worst first; at most 64 of them.
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MaxItems=64
	Findings []EnrollmentFinding `json:"findings,omitempty"`

	// credential is the credential that is in use, without its value.
	// +optional
	Credential *CredentialStatus `json:"credential,omitempty"`

	// offboard is how far its end has come.
	// +optional
	Offboard *OffboardStatus `json:"offboard,omitempty"`
}

// EnrolledAdoption is a scale set of somebody else's that takes jobs of an organisation.
type EnrolledAdoption struct {
	// name is that of the pool that adopts it.
	// +required
	// +kubebuilder:validation:MaxLength=40
	Name string `json:"name"`

	// namespace is where it is.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`

	// workload is its name.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Workload string `json:"workload,omitempty"`

	// seenAt is when GitHub was first seen to have a runner of it.
	// +optional
	SeenAt *metav1.Time `json:"seenAt,omitempty"`

	AdoptedStatus `json:",inline"`
}

// EnrolledPoolStatus is one workload of an organisation. A number that is not given
// is not known.
type EnrolledPoolStatus struct {
	// name is the pool's name.
	// +required
	// +kubebuilder:validation:MaxLength=40
	Name string `json:"name"`

	// type is how the pool is used; not given for a workload that only ends.
	// +optional
	Type PoolUse `json:"type,omitempty"`

	// kind is the kind of the workload.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind,omitempty"`

	// namespace is where the workload is.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`

	// workload is its name.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Workload string `json:"workload,omitempty"`

	// scaleSetId is GitHub's number of the scale set.
	// +optional
	ScaleSetID *int64 `json:"scaleSetId,omitempty"`

	// runnerId is GitLab's number of the runner.
	// +optional
	RunnerID *int64 `json:"runnerId,omitempty"`

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

	// assigned is how many jobs GitHub gave it, those that run with them, where ARC's listeners serve metrics.
	// +optional
	Assigned *int32 `json:"assigned,omitempty"`

	// stranded is how many of them cannot start, while there may be no runner.
	// +optional
	Stranded *int32 `json:"stranded,omitempty"`

	// effectiveMax is how many runners there may be now.
	// +optional
	EffectiveMax *int32 `json:"effectiveMax,omitempty"`

	// allocated is how many there may be without holds, and allocatedAt is when that last changed.
	// +optional
	Allocated *int32 `json:"allocated,omitempty"`

	// seenAt is when the forge was first seen to have a runner of it, for GitHub.
	// +optional
	SeenAt *metav1.Time `json:"seenAt,omitempty"`

	// allocatedAt is when allocated last changed.
	// +optional
	AllocatedAt *metav1.Time `json:"allocatedAt,omitempty"`

	// hold is the name of the RunnerHold that is in force.
	// +optional
	// +kubebuilder:validation:MaxLength=40
	Hold string `json:"hold,omitempty"`

	// drift says what is not as it should be, in a word each.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=64
	Drift []string `json:"drift,omitempty"`
}

// EnrollmentFinding is one thing that forge, cluster and what was decided do not agree about.
type EnrollmentFinding struct {
	// id names the finding; it is the same for as long as it stands.
	// +required
	// +kubebuilder:validation:MaxLength=32
	ID string `json:"id"`

	// kind is what it says, in a word.
	// +required
	// +kubebuilder:validation:MaxLength=64
	Kind string `json:"kind"`

	// severity says how bad it is: an error is that jobs do not run, or that somebody may run them who should not.
	// +required
	// +kubebuilder:validation:Enum=info;warning;error
	Severity string `json:"severity"`

	// pool is the pool that it is about.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Pool string `json:"pool,omitempty"`

	// workload is the workload that it is about.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Workload string `json:"workload,omitempty"`

	// subject is what of the workload it is about, such as the number of a runner.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Subject string `json:"subject,omitempty"`

	// want is what there should be.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Want string `json:"want,omitempty"`

	// have is what there is.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Have string `json:"have,omitempty"`

	// evidence says in a sentence what was seen.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Evidence string `json:"evidence,omitempty"`

	// next says in a sentence what to do.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Next string `json:"next,omitempty"`

	// firstSeen is since when it stands.
	// +required
	FirstSeen metav1.Time `json:"firstSeen"`

	// settled says that it has stood long enough to be no trace of something that goes on. What is not settled is not told otherwise.
	// +optional
	Settled bool `json:"settled,omitempty"`

	// explainedBy is the name of the RunnerHold by which it is as it is; then it is no drift.
	// +optional
	// +kubebuilder:validation:MaxLength=40
	ExplainedBy string `json:"explainedBy,omitempty"`

	// unconfirmed says that the last look could not tell, so that it stands as it was.
	// +optional
	Unconfirmed bool `json:"unconfirmed,omitempty"`
}

// CredentialKind is what a credential is.
//
// +kubebuilder:validation:Enum=githubApp;githubToken;gitlabToken
type CredentialKind string

// The kinds.
const (
	CredentialGitHubApp   CredentialKind = "githubApp"
	CredentialGitHubToken CredentialKind = "githubToken"
	CredentialGitLabToken CredentialKind = "gitlabToken"
)

// CredentialStatus says which credential is in use; never its value.
type CredentialStatus struct {
	// kind is what it is.
	// +required
	Kind CredentialKind `json:"kind"`

	// fingerprint tells it from others.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Fingerprint string `json:"fingerprint,omitempty"`

	// appId is the number of the GitHub App.
	// +optional
	AppID *int64 `json:"appId,omitempty"`

	// installationId is the number of its installation in the organisation.
	// +optional
	InstallationID *int64 `json:"installationId,omitempty"`

	// createdAt is when it was made, or first seen if that is not known.
	// +optional
	CreatedAt *metav1.Time `json:"createdAt,omitempty"`

	// expiresAt is when it ends by itself.
	// +optional
	ExpiresAt *metav1.Time `json:"expiresAt,omitempty"`
}

// OffboardStatus is how far the end of an enrollment has come.
type OffboardStatus struct {
	// step is what is being done.
	// +required
	Step OffboardStep `json:"step"`

	// since is when that began.
	// +required
	Since metav1.Time `json:"since"`

	// message says what is waited for.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`

	// leaked are the numbers of what stays at the forge because it could not be deregistered.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=200
	Leaked []int64 `json:"leaked,omitempty"`
}
