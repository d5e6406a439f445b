package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Names shared by the fleet and the components that work with it.
const (
	// FleetFinalizer is added to every RunnerEnrollment before the fleet creates anything for it.
	FleetFinalizer = "tailplane.dev/fleet"

	// OrgLabel has the organisation's name. All its objects have this label; it is also the key of the taint on its dedicated nodes.
	OrgLabel = "tailplane.dev/org"

	// PoolLabel has the name of the pool. All objects of a workload have this label.
	PoolLabel = "tailplane.dev/pool"

	// IsolationLabel has the isolation level of a namespace of runners.
	IsolationLabel = "tailplane.dev/isolation"

	// OffboardAnnotation selects how the fleet ends an enrollment: OffboardKeep or OffboardConfirm.
	OffboardAnnotation = "tailplane.dev/offboard"
	OffboardKeep       = "keep"    // keep the runners for an enrollment of the same name
	OffboardConfirm    = "confirm" // confirm the deletion although many enrollments were deleted at once

	// ForceCleanupAnnotation ends an enrollment although some runners cannot be deregistered. Its value is the reason. These runners stay at the forge.
	ForceCleanupAnnotation = "tailplane.dev/force-cleanup"

	// RequestedByAnnotation has, as a JSON list, the logins of the persons who changed an enrollment through the plane since its last approval. None of them may approve it.
	RequestedByAnnotation = "tailplane.dev/requested-by"

	// RequestedAnnotation has, as JSON, a change that a person requested through the plane and that another person must approve: a rotation or an offboarding.
	RequestedAnnotation = "tailplane.dev/asked"
)

// Isolation is the level of separation between the runners of an organisation and those of other organisations.
//
// +kubebuilder:validation:Enum=None;Namespace;Node
type Isolation string

// Isolation levels, weakest first.
const (
	IsolationNone      Isolation = "None"      // one namespace shared by all organisations
	IsolationNamespace Isolation = "Namespace" // a separate namespace
	IsolationNode      Isolation = "Node"      // a separate namespace and separate nodes
)

// PoolUse is how an organisation uses a pool.
//
// +kubebuilder:validation:Enum=Shared;Dedicated;OrgPlusUser
type PoolUse string

// Values of PoolUse.
const (
	UseShared      PoolUse = "Shared"      // shared with other organisations
	UseDedicated   PoolUse = "Dedicated"   // used by this organisation only
	UseOrgPlusUser PoolUse = "OrgPlusUser" // used by the listed repositories only
)

// A RunnerEnrollment gives one organisation (GitHub) or group (GitLab) CI runners of the fleet. Its name is the name
// of the organisation in roles, URLs and labels, and in the names of all objects that the fleet creates for it.
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

	// spec is the organisation, its pools and its isolation.
	// +required
	Spec RunnerEnrollmentSpec `json:"spec"`

	// status is the observed state. Only the fleet writes it.
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

// RunnerEnrollmentSpec is the organisation, its pools and its isolation.
//
// +kubebuilder:validation:XValidation:rule="self.isolation != 'Node' || (has(self.placement) && has(self.placement.nodeSelector) && self.placement.nodeSelector.size() > 0)",message="isolation Node needs placement.nodeSelector"
type RunnerEnrollmentSpec struct {
	// forge is the name of the RunnerForge that hosts the organisation.
	// +required
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="forge is immutable"
	Forge string `json:"forge"`

	// configURL is the web URL of the organisation, enterprise or repository on GitHub, or of the group on GitLab.
	// +required
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="configURL is immutable"
	// +kubebuilder:validation:XValidation:rule="isURL(self) && !self.contains('@') && !self.contains('?') && !self.contains('#') && !self.contains('%') && url(self).getHostname() != '' && (url(self).getScheme() == 'https' || (url(self).getScheme() == 'http' && url(self).getHostname() in ['127.0.0.1', '::1', 'localhost'])) && url(self).getEscapedPath().size() > 1",message="configURL must be an https URL, or http to loopback, with a path and without user, query, fragment and escapes"
	ConfigURL string `json:"configURL"`

	// groupID is the ID of the GitLab group. 0 means that the fleet looks it up from configURL.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="groupID is immutable"
	GroupID int64 `json:"groupID"`

	// isolation is the separation from the runners of other organisations.
	// +optional
	// +kubebuilder:default=None
	Isolation Isolation `json:"isolation,omitempty"`

	// pools are the pools that the organisation uses.
	// +required
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=50
	Pools []EnrolledPool `json:"pools"`

	// credentials authenticate the fleet to the forge.
	// +required
	Credentials EnrollmentCredentials `json:"credentials"`

	// quota limits the resources of the organisation's namespace, with isolation Namespace or Node.
	// +optional
	// +kubebuilder:default={}
	Quota EnrollmentQuota `json:"quota,omitzero"`

	// placement selects the nodes for the organisation's pods.
	// +optional
	Placement *EnrollmentPlacement `json:"placement,omitempty"`

	// network lists the connections that its jobs may open in addition to the cluster's DNS. Unset: port 443 on the Internet.
	// +optional
	Network *EnrollmentNetwork `json:"network,omitempty"`

	// owners are the full logins of the organisation's administrators.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=50
	// +kubebuilder:validation:items:MinLength=3
	// +kubebuilder:validation:items:MaxLength=254
	// +kubebuilder:validation:items:Pattern=`^[^\x00-\x20\x7f*]+$`
	Owners []string `json:"owners,omitempty"`

	// members are the full logins of the organisation's members. *@example.com means all logins of that domain.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=500
	// +kubebuilder:validation:items:MinLength=3
	// +kubebuilder:validation:items:MaxLength=254
	// +kubebuilder:validation:items:Pattern=`^([^\x00-\x20\x7f*]+|\*@[^\x00-\x20\x7f*@]+)$`
	Members []string `json:"members,omitempty"`

	// offboardTimeout is how long offboarding waits for the last jobs before a person must decide: 1m to 720h.
	// +optional
	// +kubebuilder:default="24h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m') && duration(self) <= duration('720h')",message="offboardTimeout must be 1m to 720h"
	OffboardTimeout metav1.Duration `json:"offboardTimeout,omitzero"`

	// approval is the approval of the enrollment, if the plane is the approver.
	// +optional
	Approval *EnrollmentApproval `json:"approval,omitempty"`
}

// EnrolledPool is one pool that an organisation uses.
//
// +kubebuilder:validation:XValidation:rule="(self.type == 'OrgPlusUser') == has(self.repositories)",message="repositories must be set if and only if type is OrgPlusUser"
// +kubebuilder:validation:XValidation:rule="!has(self.runnerGroup) || self.type != 'Shared'",message="runnerGroup is for types Dedicated and OrgPlusUser"
// +kubebuilder:validation:XValidation:rule="!self.allowPublic || self.type == 'OrgPlusUser'",message="allowPublic is for type OrgPlusUser"
type EnrolledPool struct {
	// name is the name of the RunnerPool.
	// +required
	// +kubebuilder:validation:MaxLength=40
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$`
	Name string `json:"name"`

	// type is how the organisation uses the pool.
	// +optional
	// +kubebuilder:default=Shared
	Type PoolUse `json:"type,omitempty"`

	// max limits the runners of the organisation in this pool, if it is less than the pool's max.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	Max *int32 `json:"max,omitempty"`

	// repositories are the repositories whose jobs may use the pool, as owner/name.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=200
	// +kubebuilder:validation:items:MaxLength=140
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9._-]+$`
	Repositories []string `json:"repositories,omitempty"`

	// runnerGroup is the organisation's GitHub runner group for these runners.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9 ._-]*$`
	RunnerGroup string `json:"runnerGroup,omitempty"`

	// allowPublic admits public repositories. Anyone can open a pull request there.
	// +optional
	// +kubebuilder:default=false
	AllowPublic bool `json:"allowPublic"`
}

// EnrollmentCredentials authenticate the fleet to the forge.
type EnrollmentCredentials struct {
	// secretName is a Secret in the fleet's namespace. Its label tailplane.dev/org must have this enrollment's name.
	// +required
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	SecretName string `json:"secretName"`

	// rotateEvery is the maximum age of the credential: 24h to 8760h. Unset: no limit.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('24h') && duration(self) <= duration('8760h')",message="rotateEvery must be 24h to 8760h"
	RotateEvery *metav1.Duration `json:"rotateEvery,omitempty"`

	// rotateAt requests one rotation: at this time, the fleet replaces a credential that is older than it.
	// +optional
	RotateAt *metav1.Time `json:"rotateAt,omitempty"`
}

// EnrollmentQuota limits the resources of an organisation's namespace.
type EnrollmentQuota struct {
	// cpu limits the sum of the CPU requests of all pods.
	// +optional
	// +kubebuilder:default="16"
	CPU resource.Quantity `json:"cpu,omitzero"`

	// memory limits the sum of the memory requests of all pods.
	// +optional
	// +kubebuilder:default="32Gi"
	Memory resource.Quantity `json:"memory,omitzero"`

	// pods limits the number of pods.
	// +optional
	// +kubebuilder:default=50
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	Pods int32 `json:"pods,omitempty"`
}

// EnrollmentPlacement selects the nodes for the pods of an organisation.
type EnrollmentPlacement struct {
	// nodeSelector is the labels of the nodes. With isolation Node, the fleet adds the label tailplane.dev/org.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// tolerations are the tolerations of the pods. They must not tolerate the taint of another organisation's nodes.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// runtimeClassName is the runtime class of the pods.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	RuntimeClassName string `json:"runtimeClassName,omitempty"`
}

// EnrollmentNetwork lists the connections that the jobs of an organisation may open.
type EnrollmentNetwork struct {
	// egress are destinations outside the cluster. Unset: port 443 of all addresses. Private, tailnet and cluster addresses are always excluded.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Egress []NetworkEgress `json:"egress,omitempty"`

	// caches are cache pods in the cluster. The settings of the fleet must allow their namespaces.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Caches []NetworkCache `json:"caches,omitempty"`
}

// NetworkEgress is a range of addresses outside the cluster, with ports.
type NetworkEgress struct {
	// cidr is the range of addresses.
	// +required
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="isCIDR(self) && cidr(self) == cidr(self).masked()",message="cidr must be a range of addresses, such as 203.0.113.0/24"
	CIDR string `json:"cidr"`

	// ports are the TCP ports.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:Minimum=1
	// +kubebuilder:validation:items:Maximum=65535
	Ports []int32 `json:"ports"`
}

// NetworkCache selects cache pods in the cluster.
type NetworkCache struct {
	// namespace is the namespace of the cache pods.
	// +required
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`
	Namespace string `json:"namespace"`

	// podSelector is the labels of the cache pods.
	// +required
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=16
	PodSelector map[string]string `json:"podSelector"`

	// port is the TCP port of the cache pods.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
}

// EnrollmentApproval records who approved an enrollment, and the approved content.
type EnrollmentApproval struct {
	// by is the full login of the approver.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=254
	// +kubebuilder:validation:Pattern=`^[^\x00-\x20\x7f]+$`
	By string `json:"by"`

	// at is the time of the approval.
	// +required
	At metav1.Time `json:"at"`

	// digest is the digest of the approved spec without owners, members and approval. A change of anything else needs a new approval.
	// +required
	// +kubebuilder:validation:MaxLength=71
	// +kubebuilder:validation:Pattern=`^sha256:[0-9a-f]{64}$`
	Digest string `json:"digest"`
}
