package arc

import (
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
)

// A Phase is ARC's state of a scale set or a runner. Unknown values stay unchanged.
type Phase string

// The phases.
const (
	Pending   Phase = "Pending"
	Running   Phase = "Running"
	Succeeded Phase = "Succeeded" // of a runner: its job has ended
	Failed    Phase = "Failed"    // of a runner: ARC has given up
	Outdated  Phase = "Outdated"  // GitHub considers the runner's image too old
)

// A Set is an AutoscalingRunnerSet.
type Set struct {
	fleet.Key
	UID             types.UID
	ResourceVersion string
	Created         time.Time
	Ending          bool // it is being deleted

	Managed   bool   // the fleet created it
	Org, Pool string // from its labels, which the fleet sets only on its own sets

	Version   string // the ARC version in its label
	ConfigURL string
	Secret    string // name of its credential, in its namespace
	RunnerGroup,
	ScaleSet string // name at GitHub; defaults to Name
	Labels   []string // in addition to that name, since ARC 0.14
	Min, Max int      // Max is Unlimited if it is absent or not readable

	// ID is GitHub's ID of the scale set. Registered and RegisteredGroup are its names there. They
	// are 0 and empty before the registration.
	ID                          int64
	Registered, RegisteredGroup string

	Phase  Phase   // empty: none yet; ARC before 0.14 may set none
	Before *Values // values from before our hold, see [NextExternalWrite]; nil: no hold

	stored     Values // stored minimum and maximum; each may be absent
	unreadable bool   // Before is present but not readable
	fields     []int  // indexes of the hold's entries in the managed fields
}

// ReadSet reads an AutoscalingRunnerSet.
func ReadSet(u *unstructured.Unstructured) Set {
	labels, notes := u.GetLabels(), u.GetAnnotations()
	s := Set{Key: keyOf(u), UID: u.GetUID(), ResourceVersion: u.GetResourceVersion(), Created: u.GetCreationTimestamp().Time, Ending: u.GetDeletionTimestamp() != nil,
		Managed: labels[v1alpha1.ManagedByLabel] == v1alpha1.ManagedBy, Org: labels[v1alpha1.OrgLabel], Pool: labels[v1alpha1.PoolLabel],
		Version: labels[versionLabel], ConfigURL: stringField(u, "spec", "githubConfigUrl"), Secret: stringField(u, "spec", "githubConfigSecret"),
		RunnerGroup: stringField(u, "spec", "runnerGroup"), ScaleSet: stringField(u, "spec", "runnerScaleSetName"),
		ID: parseID(notes[idAnnotation]), Registered: notes[nameAnnotation], RegisteredGroup: notes[groupAnnotation]}
	s.Labels, _, _ = unstructured.NestedStringSlice(u.Object, "spec", "runnerScaleSetLabels")
	if s.ScaleSet == "" {
		s.ScaleSet = s.Name
	}
	s.Max = Unlimited
	if n, exists, ok := numberField(u, "spec", "maxRunners"); exists {
		s.stored.Max = new(int64(Unlimited))
		if ok {
			*s.stored.Max, s.Max = n, int(min(n, Unlimited))
		}
	}
	if n, exists, ok := numberField(u, "spec", "minRunners"); exists && ok {
		s.stored.Min, s.Min = &n, int(min(n, Unlimited))
	}
	// ARC before 0.14 calls the field state.
	if s.Phase = Phase(stringField(u, "status", "phase")); s.Phase == "" {
		s.Phase = Phase(stringField(u, "status", "state"))
	}
	s.readHeld(u, notes)
	return s
}

// mayLackPhase reports whether a missing phase is acceptable: ARC 0.13 has the field, but was never
// seen to set it.
func (s Set) mayLackPhase() bool {
	release, ok := parseRelease(s.Version)
	return s.Phase == "" && ok && release.major == 0 && release.minor < 14
}

// A Listener is an AutoscalingListener: it requests jobs from GitHub for one scale set.
type Listener struct {
	fleet.Key
	UID    types.UID
	Set    fleet.Key
	Ending bool
	Secret string // name of the credential, in the set's namespace

	// Max is the number of jobs that it takes. It is 0 if the field is absent, because ARC omits
	// zeros here. It is Unlimited if the field is not readable.
	Max, Min int
}

// ReadListener reads an AutoscalingListener.
func ReadListener(u *unstructured.Unstructured) Listener {
	l := Listener{Key: keyOf(u), UID: u.GetUID(), Ending: u.GetDeletionTimestamp() != nil, Secret: stringField(u, "spec", "githubConfigSecret"), Min: int(min(countField(u, "spec", "minRunners"), Unlimited)),
		Set: fleet.Key{Namespace: stringField(u, "spec", "autoscalingRunnerSetNamespace"), Name: stringField(u, "spec", "autoscalingRunnerSetName")}}
	if l.Set.Namespace == "" || l.Set.Name == "" {
		l.Set = setFromLabels(u.GetLabels())
	}
	if n, exists, ok := numberField(u, "spec", "maxRunners"); exists {
		l.Max = Unlimited
		if ok {
			l.Max = int(min(n, Unlimited))
		}
	}
	return l
}
