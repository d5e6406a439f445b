package arc

import (
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
)

// A Phase is how ARC says that a scale set or a runner stands. Others than these are
// kept as they were said.
type Phase string

// The phases.
const (
	Pending   Phase = "Pending"
	Running   Phase = "Running"
	Succeeded Phase = "Succeeded" // of a runner: its job has ended
	Failed    Phase = "Failed"    // of a runner: ARC has given up
	Outdated  Phase = "Outdated"  // GitHub takes the runner's image for too old
)

// A Set is an AutoscalingRunnerSet.
type Set struct {
	fleet.Key
	UID             types.UID
	ResourceVersion string
	Created         time.Time
	Ending          bool // it is being deleted

	Ours      bool   // the fleet made it
	Org, Pool string // by its labels, which are the fleet's only if it is ours

	Version   string // of ARC, that it was made for
	ConfigURL string
	Secret    string // the name of its credential, in its namespace
	RunnerGroup,
	ScaleSet string // at GitHub; its own name if it says none
	Labels   []string // beside that name, from ARC 0.14 on
	Min, Max int      // Max is Unlimited where it says none, or nothing that can be read

	// ID is GitHub's number of the scale set, and Registered and RegisteredGroup its
	// names there; 0 and empty before it has one.
	ID                          int64
	Registered, RegisteredGroup string

	Phase  Phase   // empty: nothing was said yet. ARC before 0.14 need not say any
	Before *Values // what a hold of ours found here, see [Adopted]; nil: none holds it

	said   Values // minimum and maximum, of which each may be missing
	marred bool   // Before is there and cannot be read
	fields []int  // places of what a hold owns among the managed fields
}

// ReadSet reads an AutoscalingRunnerSet.
func ReadSet(u *unstructured.Unstructured) Set {
	labels, notes := u.GetLabels(), u.GetAnnotations()
	s := Set{Key: key(u), UID: u.GetUID(), ResourceVersion: u.GetResourceVersion(), Created: u.GetCreationTimestamp().Time, Ending: u.GetDeletionTimestamp() != nil,
		Ours: labels[v1alpha1.ManagedByLabel] == v1alpha1.ManagedBy, Org: labels[v1alpha1.OrgLabel], Pool: labels[v1alpha1.PoolLabel],
		Version: labels[versionLabel], ConfigURL: text(u, "spec", "githubConfigUrl"), Secret: text(u, "spec", "githubConfigSecret"),
		RunnerGroup: text(u, "spec", "runnerGroup"), ScaleSet: text(u, "spec", "runnerScaleSetName"),
		ID: id(notes[idAnnotation]), Registered: notes[nameAnnotation], RegisteredGroup: notes[groupAnnotation]}
	s.Labels, _, _ = unstructured.NestedStringSlice(u.Object, "spec", "runnerScaleSetLabels")
	if s.ScaleSet == "" {
		s.ScaleSet = s.Name
	}
	s.Max = Unlimited
	if n, there, ok := number(u, "spec", "maxRunners"); there {
		s.said.Max = new(int64(Unlimited))
		if ok {
			*s.said.Max, s.Max = n, int(min(n, Unlimited))
		}
	}
	if n, there, ok := number(u, "spec", "minRunners"); there && ok {
		s.said.Min, s.Min = &n, int(min(n, Unlimited))
	}
	// The word was another one before 0.14.
	if s.Phase = Phase(text(u, "status", "phase")); s.Phase == "" {
		s.Phase = Phase(text(u, "status", "state"))
	}
	s.readHeld(u, notes)
	return s
}

// unspoken says whether a phase need not be said: ARC 0.13 has a place for one, and
// nobody was seen to write there.
func (s Set) unspoken() bool {
	release, ok := parse(s.Version)
	return s.Phase == "" && ok && release.major == 0 && release.minor < 14
}

// A Listener is an AutoscalingListener: what asks GitHub for jobs, for one scale set.
type Listener struct {
	fleet.Key
	UID    types.UID
	Set    fleet.Key
	Ending bool
	Secret string // the name of the credential, in the set's namespace

	// Max is how many jobs it takes. It is 0 where the object says nothing: ARC leaves
	// zeros out here. Where it says what cannot be read it is Unlimited.
	Max, Min int
}

// ReadListener reads an AutoscalingListener.
func ReadListener(u *unstructured.Unstructured) Listener {
	l := Listener{Key: key(u), UID: u.GetUID(), Ending: u.GetDeletionTimestamp() != nil, Secret: text(u, "spec", "githubConfigSecret"), Min: int(min(count(u, "spec", "minRunners"), Unlimited)),
		Set: fleet.Key{Namespace: text(u, "spec", "autoscalingRunnerSetNamespace"), Name: text(u, "spec", "autoscalingRunnerSetName")}}
	if l.Set.Namespace == "" || l.Set.Name == "" {
		l.Set = labelled(u.GetLabels())
	}
	if n, there, ok := number(u, "spec", "maxRunners"); there {
		l.Max = Unlimited
		if ok {
			l.Max = int(min(n, Unlimited))
		}
	}
	return l
}
