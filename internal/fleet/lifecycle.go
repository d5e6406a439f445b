package fleet

import (
	"cmp"
	"time"

	"github.com/tailplane/tailplane/api/v1alpha1"
)

// A Key names a workload in the cluster.
type Key struct{ Namespace, Name string }

// Compare orders keys by namespace, then by name.
func (k Key) Compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Namespace, o.Namespace), cmp.Compare(k.Name, o.Name))
}

// A Workload runs the jobs of one pool for one organisation. At GitHub it is a scale set with its
// AutoscalingRunnerSet; at GitLab, a runner with its managers. A change that is not possible in
// place creates a new workload. The old one then ends.
type Workload struct {
	Key
	Pool     string
	Revision int
	Shape    string    // hash of the immutable settings, see [ShapeHash]
	Since    time.Time // creation time of its own credential, for GitLab

	Object  Answer // its object exists in the cluster
	Current bool   // and matches the desired state, except for capacity
	// Ready says that the forge has registered it and that its listener or manager runs. It can be
	// ready while it takes no jobs.
	Ready Answer

	Stopped Answer // proven to take no new jobs, see [StoppedGitHub]; GitLab: paused, or no manager is left
	Jobs    *int   // running jobs; 0 if no manager and no pod is left; nil: not known
	Ending  bool   // its object is being deleted

	// Remote says that the forge has it. A scale set is gone from GitHub only when its object is
	// gone from the cluster.
	Remote   Answer
	RemoteID int64 // 0: not known
	// Denied counts the consecutive times that the forge refused its removal (401 or 403), or that
	// the credential for the removal was gone. Other failures do not count.
	Denied int

	// Lost says that GitLab has the runner with our mark, but its token is lost.
	Lost      bool
	Contacted Answer // whether a manager ever contacted GitLab for it
	// Manual says that a person created the runner at GitLab. Only a person can delete it there.
	Manual bool

	Copies  []string // copies of the credential that it still references
	Failure Failure  // a problem that a person must solve
}

// A Failure is a problem that the fleet cannot repair. The zero value means none.
type Failure struct{ Reason, Message string }

// A DesiredWorkload is a workload that should exist.
type DesiredWorkload struct {
	Pool, Namespace, Shape string
}

// A CredentialCopy is a copy of the credential in the namespace of the runners.
type CredentialCopy struct{ Namespace, Name string }

// A CredentialState is the state of the credential that an enrollment names.
type CredentialState struct {
	Valid Answer
	// InUse says whether the older copy that the workloads use is valid. It matters only while the
	// workloads use an older copy.
	InUse       Answer
	Reason      string // of the condition CredentialsValid
	Message     string
	Fingerprint string // of the copied data, see [Fingerprint]
}

// Facts are the complete input of [Next].
type Facts struct {
	Enrollment   *v1alpha1.RunnerEnrollment
	Forge        v1alpha1.ForgeType
	Approved     Condition   // see [Approved]
	Violations   []Violation // of this enrollment, see [Check]
	HasFinalizer bool        // the object has our finalizer
	Pruned       bool        // deleted together with many others, see [Pruned]

	Desired   []DesiredWorkload
	Workloads []Workload
	// Listed says that the lists of workloads and copies are complete. Otherwise Next creates and
	// deletes nothing.
	Listed bool

	Credential CredentialState
	Copies     []CredentialCopy

	Namespace Answer  // the namespace and its content match the desired state
	Policies  Answer  // its NetworkPolicies match the desired state
	Unbounded Failure // why the policies cannot restrict the jobs
	Access    Answer  // the pod creators may create pods there

	// Used only while an enrollment ends.
	Secrets      Answer // Secrets with its label are left, including its credential
	OwnNamespace Answer // its namespace is left
	OtherObjects Answer // other objects with its label are left
	// RunnerGroups says whether a runner group that the operator created is left. It is No if the
	// operator never created one; then no query is needed.
	RunnerGroups Answer
}

// An ActionKind names an action.
type ActionKind string

// The actions. All are idempotent.
const (
	AddFinalizer       ActionKind = "hold"              // add the finalizer
	EnsureNamespace    ActionKind = "make namespace"    // with everything that restricts its pods
	CopyCredential     ActionKind = "copy credential"   // the current data, under its new name
	EnsureAccess       ActionKind = "make access"       // let ARC or the managers start pods there
	CreateRunner       ActionKind = "make runner"       // at GitLab: create with mark, store the token in the Secret, then record the id
	ResetToken         ActionKind = "reset token"       // of runners whose token is lost
	DeleteRunner       ActionKind = "drop runner"       // delete runners that no manager ever used
	ApplyWorkload      ActionKind = "apply"             // bring the objects of workloads to the desired state
	StopIntake         ActionKind = "stop intake"       // make workloads take no new jobs
	Deregister         ActionKind = "deregister"        // remove workloads from the forge; the credential stays
	ForceRelease       ActionKind = "force release"     // remove ARC's finalizers; the scale sets stay at GitHub
	DeleteRunnerGroups ActionKind = "drop runner group" // those that the operator created
	DeleteWorkloads    ActionKind = "delete workloads"  // their objects
	DeleteCopy         ActionKind = "drop copy"         // of an older credential that is no longer referenced
	DeleteSecrets      ActionKind = "delete secrets"    // all that have the organisation's label
	DeleteNamespace    ActionKind = "delete namespace"
	RemoveFinalizer    ActionKind = "release" // remove the finalizer
)

// Irreversible reports whether an action cannot be undone.
func (d ActionKind) Irreversible() bool {
	switch d {
	case DeleteRunner,
		Deregister,
		ForceRelease,
		DeleteRunnerGroups,
		DeleteWorkloads,
		DeleteCopy,
		DeleteSecrets,
		DeleteNamespace,
		RemoveFinalizer:
		return true
	}
	return false
}

// An Action is an action and its object.
type Action struct {
	Kind     ActionKind
	Workload Key             // empty: the action concerns the whole enrollment, or Create
	Create   DesiredWorkload // with CreateRunner and ApplyWorkload: the workload to create
	Copy     CredentialCopy  // with DeleteCopy
}

// A Step holds the actions to do now and the status to report.
type Step struct {
	// Actions are independent: a failed action does not prevent the others. After all were tried, the
	// caller calls Next again.
	Actions []Action

	// Open lists the workloads that may take jobs. Every other workload must have no capacity, and
	// must be paused at GitLab.
	Open []Key

	Report Report
	// Wake is when to reconcile again without an event. Zero means that the regular resync is
	// enough.
	Wake time.Time
}

// A Report is the status to write for an enrollment.
type Report struct {
	Phase      v1alpha1.EnrollmentPhase
	Conditions []Condition
	Offboard   *v1alpha1.OffboardStatus // nil: it does not end
}

// Reasons of an enrollment's conditions, in addition to those of violations and approval.
const (
	ReasonActive         = "Active"              // all of its pools take jobs
	ReasonProvisioning   = "Provisioning"        // something is being created
	ReasonValid          = "Valid"               // the forge accepts it
	ReasonNotChecked     = "NotChecked"          // not checked yet, or cannot be checked
	ReasonInvalid        = "Invalid"             // the forge does not accept it
	ReasonRestarts       = "Restarts"            // a listener or manager restarts
	ReasonReady          = "Ready"               // matches the desired state
	ReasonNotReady       = "NotReady"            // does not match the desired state yet
	ReasonUnbounded      = "ClusterCIDRsMissing" // fleet.clusterCIDRs is not set, so policies cannot restrict connections of jobs
	ReasonRegistered     = "Registered"          // the forge has registered every pool
	ReasonNotRegistered  = "NotRegistered"       // some pools are not registered
	ReasonNone           = "None"                // nothing to report
	ReasonRotationFailed = "RotationFailed"      // the new credential is invalid, the old one still works
	ReasonRotationDue    = "RotationDue"         // a person must create another key
	ReasonListIncomplete = "ListIncomplete"      // nothing happens until all lists are complete
	ReasonOffboarding    = "Offboarding"         // the enrollment ends
	ReasonDrainTimeout   = "DrainTimeout"        // jobs run longer than offboardTimeout
	ReasonMassDeletion   = "MassDeletion"        // many enrollments were deleted at once
	ReasonCleanupSkipped = "ForgeCleanupSkipped" // something stays at the forge
	ReasonByHand         = "DeleteByHand"        // a person must delete a runner at the forge
	ReasonKept           = "Kept"                // runners stay for an enrollment of the same name
)

// MaxDenied is how many times a forge must refuse a removal before a person must decide.
const MaxDenied = 5

// Thresholds of [Pruned].
const (
	pruneWindow = 10 * time.Minute
	pruneMin    = 3
)

// Pruned returns the enrollments that were deleted together with so many others that the deletion
// was probably a mistake. The threshold is three or more, and over a quarter of all, within ten
// minutes. The result depends only on stored objects, so it holds until a person confirms.
func Pruned(enrollments []v1alpha1.RunnerEnrollment) map[string]bool {
	pruned := map[string]bool{}
	for i := range enrollments {
		first := enrollments[i].DeletionTimestamp
		if first.IsZero() {
			continue
		}
		var within []string // within ten minutes after this one
		for j := range enrollments {
			if at := enrollments[j].DeletionTimestamp; !at.IsZero() && !at.Before(first) && at.Sub(first.Time) <= pruneWindow {
				within = append(within, enrollments[j].Name)
			}
		}
		if len(within) >= pruneMin && 4*len(within) > len(enrollments) {
			for _, name := range within {
				pruned[name] = true
			}
		}
	}
	return pruned
}
