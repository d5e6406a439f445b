// Package arc reads the objects of GitHub's actions-runner-controller (ARC) in the cluster: the
// installed controller, the state of its scale sets, their listeners and their jobs. It implements
// law 7: an unreadable value never counts as a runner that is gone, a listener that takes no jobs,
// or the number 0.
//
// The package is pure: it does no I/O. ARC's Go types cannot be imported, so the package reads each
// field from unstructured objects. A field of the wrong type counts as absent. If that were the
// dangerous answer, it is read as the safe one.
//
//	Discover, Choose                        the controller: its version, its account, its watched namespace.
//	ReadSet … ReadPod, GroupBySet           objects -> Objects of each scale set.
//	Objects.State                           Stopped, Registered, counts, jobs, Secrets, failure.
//	Conflicts, CreationGate, CrashTracker   problems that show only by comparison or over time.
//	NextExternalWrite                       writes of a hold to an external scale set
package arc

import "k8s.io/apimachinery/pkg/runtime/schema"

// ARC's kinds. All but AutoscalingListener are in the namespace of the runners.
const (
	apiGroup          = "actions.github.com"
	apiVersion        = "v1alpha1"
	SetKind           = "AutoscalingRunnerSet"
	ListenerKind      = "AutoscalingListener" // in the namespace of the controller
	RunnerSetKind     = "EphemeralRunnerSet"
	RunnerKind        = "EphemeralRunner"
	setNameLabel      = "actions.github.com/scale-set-name"
	setNamespaceLabel = "actions.github.com/scale-set-namespace"
	versionLabel      = "app.kubernetes.io/version"
	idAnnotation      = "runner-scale-set-id"
	nameAnnotation    = "actions.github.com/runner-scale-set-name"
	groupAnnotation   = "actions.github.com/runner-group-name"
)

// Kind returns the GroupVersionKind of one of ARC's kinds.
func Kind(kind string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: apiGroup, Version: apiVersion, Kind: kind}
}

// Reasons of troubles and conditions.
const (
	ReasonMissing            = "ARCMissing"            // no controller was found
	ReasonVersionUnknown     = "ARCVersionUnknown"     // no version, or two different ones
	ReasonVersionUnsupported = "ARCVersionUnsupported" // not one of 0.13.1 to 0.14
	ReasonWatchesOther       = "ARCWatchesOther"       // it watches only another namespace
	ReasonAmbiguous          = "ARCAmbiguous"          // several controllers watch that namespace
	ReasonDeletes            = "ARCDeletesScaleSets"   // it deletes new objects, as if they were of another version
	ReasonUpgrading          = "ARCUpgrading"          // a pod of another version still runs
	ReasonConflict           = "ScaleSetConflict"      // another object uses the same GitHub scale set
	ReasonOutdated           = "RunnerOutdated"        // GitHub considers the runner's image too old
	ReasonCrashLoop          = "RunnersCrash"          // runners end before they take a job
	ReasonResumeWaits        = "ResumeWaitsForJobs"    // ARC starts no listener until the last job has ended
	ReasonHoldOverwritten    = "HoldOverwritten"       // others undid a hold
	ReasonHeldUnreadable     = "HeldValuesUnreadable"  // the values from before a hold cannot be read
)
