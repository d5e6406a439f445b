// Package arc reads what GitHub's actions-runner-controller (ARC) says in the cluster:
// which controller there is, how its scale sets stand, who takes jobs for them and what
// those jobs are. It keeps law 7: what cannot be read is never taken for a runner that
// has gone, a listener that takes no job or a number that is 0.
//
// All of it is pure. ARC's Go types cannot be imported, so each kind is read field by
// field from what the API server gave; a field of another type than it should have is
// like one that is not there, and wherever that would be the dangerous answer it is read
// as the safe one.
//
//	Discover, Choose            the controller: its version, its account, what it watches
//	ReadSet … ReadPod, Group    objects -> Parts of each scale set
//	Parts.State                 Stopped, Registered, counts, jobs, Secrets, trouble
//	Conflicts, Gate, Churn      what only shows when one compares, or looks twice
//	Adopted                     what a hold writes to a scale set that somebody else keeps
package arc

import "k8s.io/apimachinery/pkg/runtime/schema"

// ARC's kinds, of which all but AutoscalingListener are in the namespace of the runners.
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

// Kind is one of the kinds with ARC's group and version.
func Kind(kind string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: apiGroup, Version: apiVersion, Kind: kind}
}

// Reasons of troubles and conditions.
const (
	ReasonMissing            = "ARCMissing"            // no controller was found
	ReasonVersionUnknown     = "ARCVersionUnknown"     // it does not say its version, or says two
	ReasonVersionUnsupported = "ARCVersionUnsupported" // it is not one of 0.13.1 to 0.14
	ReasonWatchesOther       = "ARCWatchesOther"       // it only looks at another namespace
	ReasonAmbiguous          = "ARCAmbiguous"          // several look at that namespace
	ReasonDeletes            = "ARCDeletesScaleSets"   // it deletes what is made, as if it were of another version
	ReasonUpgrading          = "ARCUpgrading"          // a pod of another version still works
	ReasonConflict           = "ScaleSetConflict"      // another object works with the same scale set of GitHub's
	ReasonOutdated           = "RunnerOutdated"        // GitHub takes the runner's image for too old
	ReasonCrashLoop          = "RunnersCrash"          // runners end before they take a job
	ReasonResumeWaits        = "ResumeWaitsForJobs"    // ARC starts no listener until the last job has ended
	ReasonHoldOverwritten    = "HoldOverwritten"       // somebody undid a hold
	ReasonHeldUnreadable     = "HeldValuesUnreadable"  // what was there before a hold cannot be read
)
