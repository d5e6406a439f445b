package fleet

import (
	"time"

	"github.com/tailplane/tailplane/api/v1alpha1"
)

// A Key names a workload in the cluster.
type Key struct{ Namespace, Name string }

// A Workload is what runs the jobs of one pool for one organisation: a scale set at
// GitHub and its AutoscalingRunnerSet, or a runner at GitLab and its managers. What
// cannot be changed in place gets a new workload beside the old one, which then ends.
type Workload struct {
	Key
	Pool     string
	Revision int
	Shape    string    // what of it cannot be changed in place, see [Shape]
	Since    time.Time // when its own credential was made, for GitLab

	Object  Answer // its object is in the cluster
	Current bool   // and says what it is to say, capacity aside
	// Ready says that it was seen at the forge, and that what takes its jobs runs: it
	// need not be open for that.
	Ready Answer

	Stopped Answer // proved to take no new job, see [StoppedGitHub]; GitLab's: paused, or no manager is left
	Jobs    *int   // that run, none if neither manager nor pod is left; nil: not known
	Ending  bool   // its object is being deleted

	// Remote says that the forge has it. A scale set has gone from GitHub only when
	// its object has gone from the cluster.
	Remote   Answer
	RemoteID int64 // 0: not known
	// Denied is how often in a row the forge refused to have it removed, 401 or
	// 403, or the credential for asking is gone. Other failures do not count.
	Denied int

	// Lost says that GitLab has the runner, with our mark, and nobody its token.
	Lost      bool
	Contacted Answer // whether a manager ever spoke for it
	// ByHand says that a person made the runner at GitLab, and that only a person can
	// delete it there.
	ByHand bool

	Copies  []string // of the credential, that anything of it still names
	Trouble Trouble  // what a person must see to
}

// A Trouble is something that the fleet cannot mend. Its zero value is none.
type Trouble struct{ Reason, Message string }

// A Wanted is one workload that there should be.
type Wanted struct {
	Pool, Namespace, Shape string
}

// A Copy is a copy of the credential beside the runners.
type Copy struct{ Namespace, Name string }

// A CredentialState is how the credential stands that an enrollment names.
type CredentialState struct {
	Valid Answer
	// InUse says whether the copy that workloads use is valid, where that is an
	// older one.
	InUse       Answer
	Reason      string // of the condition CredentialsValid
	Message     string
	Fingerprint string // see [Fingerprint]; of what is copied
}

// Facts are everything that Next looks at.
type Facts struct {
	Enrollment *v1alpha1.RunnerEnrollment
	Forge      v1alpha1.ForgeType
	Approved   Condition   // see [Approved]
	Violations []Violation // of this enrollment, see [Check]
	Held       bool        // our finalizer is on it
	Pruned     bool        // it went with many others at once, see [Pruned]

	Wanted    []Wanted
	Workloads []Workload
	// Listed says that the lists of workloads and copies are whole. Without that
	// nothing is made or deleted.
	Listed bool

	Credential CredentialState
	Copies     []Copy

	Namespace Answer  // it and what is in it are as wanted
	Policies  Answer  // its NetworkPolicies are
	Unbounded Trouble // why they cannot be
	Access    Answer  // who starts the pods may do so there

	// Of an enrollment that ends.
	Secrets      Answer // any Secret with its label is left, its credential among them
	OwnNamespace Answer // its namespace is left
	AnythingElse Answer // anything else with its label is left
	// RunnerGroups says whether a runner group that we made is left. No if we never
	// made one: then nobody need be asked.
	RunnerGroups Answer
}

// A Deed names what to do next.
type Deed string

// The deeds. Each may have been done before: the outcome is the same.
const (
	Hold             Deed = "hold"              // put the finalizer on
	MakeNamespace    Deed = "make namespace"    // and all that bounds what runs in it
	CopyCredential   Deed = "copy credential"   // as it is now, under its new name
	MakeAccess       Deed = "make access"       // let ARC or the managers start pods there
	MakeRunner       Deed = "make runner"       // at GitLab: marked, its token into the Secret, then its number
	ResetToken       Deed = "reset token"       // of runners whose token is lost
	DropRunner       Deed = "drop runner"       // delete runners that nobody ever spoke for
	Apply            Deed = "apply"             // make the objects of workloads what they are to be
	StopIntake       Deed = "stop intake"       // see to it that workloads take no new job
	Deregister       Deed = "deregister"        // take workloads away from the forge; the credential stays
	ForceRelease     Deed = "force release"     // take ARC's finalizers off; the scale sets stay at GitHub
	DropRunnerGroups Deed = "drop runner group" // those that we made
	DeleteWorkloads  Deed = "delete workloads"  // their objects
	DropCopy         Deed = "drop copy"         // of an older credential, which nothing names any more
	DeleteSecrets    Deed = "delete secrets"    // all that carry the organisation's label
	DeleteNamespace  Deed = "delete namespace"
	Release          Deed = "release" // take the finalizer off
)

// Irreversible says whether a deed cannot be undone.
func (d Deed) Irreversible() bool {
	switch d {
	case DropRunner, Deregister, ForceRelease, DropRunnerGroups, DeleteWorkloads, DropCopy, DeleteSecrets, DeleteNamespace, Release:
		return true
	}
	return false
}

// An Act is a deed and what it is about.
type Act struct {
	Deed     Deed
	Workload Key    // empty: it is about all of the enrollment, or about Make
	Make     Wanted // with MakeRunner and Apply: what there is no workload for yet
	Copy     Copy   // with DropCopy
}

// A Step is what to do now, and what to say.
type Step struct {
	// Acts do not depend on one another: one that fails keeps none of the others
	// from being done. When all have been tried, Next is asked again.
	Acts []Act

	// Open are the workloads that may take jobs; every other one is to have no
	// capacity, and is paused at GitLab.
	Open []Key

	Report Report
	// Wake is when to look again though nothing changes; zero: the times at which
	// the fleet looks anyway are enough.
	Wake time.Time
}

// A Report is what is to be said of an enrollment.
type Report struct {
	Phase      v1alpha1.EnrollmentPhase
	Conditions []Condition
	Offboard   *v1alpha1.OffboardStatus // nil: it does not end
}

// Reasons of an enrollment's conditions, beside those of violations and approval.
const (
	ReasonActive         = "Active"              // all of its pools take jobs
	ReasonProvisioning   = "Provisioning"        // something is being made
	ReasonValid          = "Valid"               // the forge accepts it
	ReasonNotChecked     = "NotChecked"          // nobody knows yet, or cannot be asked
	ReasonInvalid        = "Invalid"             // the forge does not accept it
	ReasonRestarts       = "Restarts"            // what takes its jobs starts anew
	ReasonReady          = "Ready"               // it is as it should be
	ReasonNotReady       = "NotReady"            // it is not as it should be yet
	ReasonUnbounded      = "ClusterCIDRsMissing" // fleet.clusterCIDRs is not set, so what jobs connect to cannot be bounded
	ReasonRegistered     = "Registered"          // every pool was seen at the forge
	ReasonNotRegistered  = "NotRegistered"       // not every pool was
	ReasonNone           = "None"                // nothing is to be said
	ReasonRotationFailed = "RotationFailed"      // the new credential is invalid, the old one still works
	ReasonRotationDue    = "RotationDue"         // a person must make another key
	ReasonListIncomplete = "ListIncomplete"      // nothing is done until everything can be listed
	ReasonOffboarding    = "Offboarding"         // it ends
	ReasonDrainTimeout   = "DrainTimeout"        // jobs run longer than offboardTimeout
	ReasonMassDeletion   = "MassDeletion"        // many enrollments were deleted at once
	ReasonCleanupSkipped = "ForgeCleanupSkipped" // something stays at the forge
	ReasonByHand         = "DeleteByHand"        // a person has to delete a runner at the forge
	ReasonKept           = "Kept"                // runners stay for an enrollment of the same name
)

// MaxDenied is how often a forge refuses to have something removed before a person
// is asked.
const MaxDenied = 5

// Reasons and spans of [Pruned].
const (
	pruneWindow = 10 * time.Minute
	pruneLeast  = 3
)

// Pruned are the enrollments that were deleted together with so many others that it
// was hardly meant: three or more, and over a quarter of all, within ten minutes. It
// depends on what is stored only, so it holds until somebody confirms.
func Pruned(enrollments []v1alpha1.RunnerEnrollment) map[string]bool {
	pruned := map[string]bool{}
	for i := range enrollments {
		first := enrollments[i].DeletionTimestamp
		if first.IsZero() {
			continue
		}
		var within []string // ten minutes from this one on
		for j := range enrollments {
			if at := enrollments[j].DeletionTimestamp; !at.IsZero() && !at.Before(first) && at.Sub(first.Time) <= pruneWindow {
				within = append(within, enrollments[j].Name)
			}
		}
		if len(within) >= pruneLeast && 4*len(within) > len(enrollments) {
			for _, name := range within {
				pruned[name] = true
			}
		}
	}
	return pruned
}
