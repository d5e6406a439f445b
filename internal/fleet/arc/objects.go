package arc

import (
	"bytes"
	"cmp"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/util/sanitize"
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
	s := Set{
		Key:             keyOf(u),
		UID:             u.GetUID(),
		ResourceVersion: u.GetResourceVersion(),
		Created:         u.GetCreationTimestamp().Time,
		Ending:          u.GetDeletionTimestamp() != nil,
		Managed:         labels[v1alpha1.ManagedByLabel] == v1alpha1.ManagedBy,
		Org:             labels[v1alpha1.OrgLabel],
		Pool:            labels[v1alpha1.PoolLabel],
		Version:         labels[versionLabel],
		ConfigURL:       stringField(u, "spec", "githubConfigUrl"),
		Secret:          stringField(u, "spec", "githubConfigSecret"),
		RunnerGroup:     stringField(u, "spec", "runnerGroup"),
		ScaleSet:        cmp.Or(stringField(u, "spec", "runnerScaleSetName"), u.GetName()),
		ID:              parseID(notes[idAnnotation]),
		Registered:      notes[nameAnnotation],
		RegisteredGroup: notes[groupAnnotation],
	}
	s.Labels, _, _ = unstructured.NestedStringSlice(u.Object, "spec", "runnerScaleSetLabels")
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
	s.Phase = Phase(cmp.Or(stringField(u, "status", "phase"), stringField(u, "status", "state")))
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
	l := Listener{
		Key:    keyOf(u),
		UID:    u.GetUID(),
		Ending: u.GetDeletionTimestamp() != nil,
		Secret: stringField(u, "spec", "githubConfigSecret"),
		Min:    int(min(countField(u, "spec", "minRunners"), Unlimited)),
		Set: fleet.Key{
			Namespace: stringField(u, "spec", "autoscalingRunnerSetNamespace"),
			Name:      stringField(u, "spec", "autoscalingRunnerSetName"),
		},
	}
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

// A RunnerSet is an EphemeralRunnerSet: the runners of one scale set from one template. During a
// replacement there are two.
type RunnerSet struct {
	fleet.Key
	Set     fleet.Key
	Created time.Time
	Ending  bool
	Secret  string
	Desired int // number of runners that its listener requested
}

// ReadRunnerSet reads an EphemeralRunnerSet.
func ReadRunnerSet(u *unstructured.Unstructured) RunnerSet {
	r := RunnerSet{Key: keyOf(u), Created: u.GetCreationTimestamp().Time, Ending: u.GetDeletionTimestamp() != nil,
		Secret: stringField(
			u,
			"spec",
			"ephemeralRunnerSpec",
			"githubConfigSecret",
		),
		Desired: int(min(countField(u, "spec", "replicas"), Unlimited)),
		Set:     setFromLabels(u.GetLabels())}
	if o, ok := ownerOfKind(u.GetOwnerReferences(), SetKind); ok {
		r.Set = fleet.Key{Namespace: u.GetNamespace(), Name: o.Name}
	}
	return r
}

// A Runner is an EphemeralRunner: one runner for one job, with one pod of the same name.
type Runner struct {
	fleet.Key
	UID       types.UID
	Set       fleet.Key // from its labels; empty if they are missing
	RunnerSet string    // name of the EphemeralRunnerSet
	Created   time.Time
	Ending    bool // it is being deleted; with a job, it stays until the job has ended
	Secret    string

	Phase           Phase
	Ready           bool
	Reason, Message string // reason of its state: foreign text
	Failures        int    // number of failures of its pod
	LastFailure     time.Time

	ID         int64  // GitHub's ID; 0: none yet
	Registered string // its name at GitHub
	Job        *Job   // nil: none
}

// A Job is the job of a runner. Its fields contain foreign text.
type Job struct {
	Runner     fleet.Key
	ID         string
	Request    int64
	Repository string // owner/name
	Workflow   string // workflow file and ref
	Name       string
	Run        int64 // ID of the workflow run; 0: not known
	// Started is when the listener reported the start of the job; zero if it is not known. It comes
	// from the managed fields, so it is missing if those were stripped.
	Started time.Time
}

// Done reports whether the runner takes no more jobs and runs none.
func (r Runner) Done() bool { return r.Phase == Succeeded || r.Phase == Failed || r.Phase == Outdated }

// Busy reports whether the runner runs a job.
func (r Runner) Busy() bool { return r.Job != nil && !r.Done() }

// ReadRunner reads an EphemeralRunner.
func ReadRunner(u *unstructured.Unstructured) Runner {
	r := Runner{
		Key:     keyOf(u),
		UID:     u.GetUID(),
		Set:     setFromLabels(u.GetLabels()),
		Created: u.GetCreationTimestamp().Time,
		Ending:  u.GetDeletionTimestamp() != nil,
		Secret:  stringField(u, "spec", "githubConfigSecret"),
		Phase:   Phase(stringField(u, "status", "phase")),
		Reason: stringField(
			u,
			"status",
			"reason",
		),
		Message:    stringField(u, "status", "message"),
		ID:         countField(u, "status", "runnerId"),
		Registered: stringField(u, "status", "runnerName"),
	}
	r.Ready, _, _ = unstructured.NestedBool(u.Object, "status", "ready")
	if o, ok := ownerOfKind(u.GetOwnerReferences(), RunnerSetKind); ok {
		r.RunnerSet = o.Name
	}
	failures, _, _ := unstructured.NestedFieldNoCopy(u.Object, "status", "failures")
	if failures, ok := failures.(map[string]any); ok {
		r.Failures = len(failures)
		for _, v := range failures {
			s, _ := v.(string)
			if at, err := time.Parse(time.RFC3339, s); err == nil && at.After(r.LastFailure) {
				r.LastFailure = at
			}
		}
	}
	if job := stringField(u, "status", "jobId"); job != "" {
		r.Job = &Job{
			Runner:     r.Key,
			ID:         job,
			Request:    countField(u, "status", "jobRequestId"),
			Repository: stringField(u, "status", "jobRepositoryName"),
			Workflow: stringField(
				u,
				"status",
				"jobWorkflowRef",
			),
			Name:    stringField(u, "status", "jobDisplayName"),
			Run:     countField(u, "status", "workflowRunId"),
			Started: lastWrite(u.GetManagedFields()),
		}
	}
	return r
}

// lastWrite returns the last write time of the field manager that sets the job, which writes once per
// job.
func lastWrite(fields []metav1.ManagedFieldsEntry) (at time.Time) {
	for _, f := range fields {
		if f.FieldsV1 != nil && f.Time != nil && bytes.Contains(f.FieldsV1.GetRawBytes(), []byte(`"f:jobId"`)) && f.Time.After(at) {
			at = f.Time.Time
		}
	}
	return at
}

// A Pod is the pod of a listener.
type Pod struct {
	fleet.Key
	Set      fleet.Key
	Listener types.UID // its AutoscalingListener, which may be gone; empty: not known
	Ready    bool
	Ended    bool // all of its containers have ended
	// Metrics is the address of its metrics. It is not valid if the pod serves no metrics or has no
	// IP address of its own.
	Metrics netip.AddrPort
}

// ReadPod reads a pod of ARC's namespace. It returns false for a pod of no listener.
func ReadPod(p *corev1.Pod) (Pod, bool) {
	l := Pod{
		Key:   fleet.Key{Namespace: p.Namespace, Name: p.Name},
		Set:   setFromLabels(p.Labels),
		Ended: p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed,
	}
	o, owned := ownerOfKind(p.OwnerReferences, ListenerKind)
	if !owned && p.Labels["app.kubernetes.io/component"] != "runner-scale-set-listener" {
		return Pod{}, false
	}
	l.Listener = o.UID
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			l.Ready = c.Status == corev1.ConditionTrue && p.DeletionTimestamp == nil && !l.Ended
		}
	}
	if owned {
		l.Metrics = metricsAddress(p)
	}
	return l, true
}

// metricsAddress returns the metrics address of a listener, if it serves metrics. The address must be
// the pod's own, not the node's.
func metricsAddress(p *corev1.Pod) (at netip.AddrPort) {
	ip, err := netip.ParseAddr(p.Status.PodIP)
	if err != nil || p.Spec.HostNetwork || ip.Zone() != "" || ip.IsUnspecified() || ip.IsMulticast() || ip.IsLinkLocalUnicast() ||
		ip.Unmap().IsLinkLocalUnicast() {
		return at
	}
	for _, c := range p.Spec.Containers {
		for _, port := range c.Ports {
			if c.Name == "listener" && port.Name == "metrics" && (port.Protocol == "" || port.Protocol == corev1.ProtocolTCP) &&
				port.ContainerPort > 0 &&
				port.ContainerPort < 1<<16 {
				return netip.AddrPortFrom(ip, uint16(port.ContainerPort))
			}
		}
	}
	return at
}

// Unlimited is ARC's value for no maximum.
const Unlimited = math.MaxInt32

func keyOf(u *unstructured.Unstructured) fleet.Key {
	return fleet.Key{Namespace: u.GetNamespace(), Name: u.GetName()}
}

func stringField(u *unstructured.Unstructured, path ...string) string {
	s, _, _ := unstructured.NestedString(u.Object, path...)
	return s
}

// numberField returns a whole number that is not negative, such as a number of runners. It returns (0,
// true, false) if the field is present but not readable.
func numberField(u *unstructured.Unstructured, path ...string) (n int64, exists, readable bool) {
	v, exists, err := unstructured.NestedFieldNoCopy(u.Object, path...)
	if err != nil {
		return 0, true, false
	}
	if !exists || v == nil {
		return 0, false, false
	}
	switch v := v.(type) {
	case int64:
		n = v
	case int:
		n = int64(v)
	case float64:
		if v != math.Trunc(v) || math.Abs(v) > 1<<53 {
			return 0, true, false
		}
		n = int64(v)
	default:
		return 0, true, false
	}
	if n < 0 {
		return 0, true, false
	}
	return n, true, true
}

// countField returns a number; 0 if the field is absent or not readable.
func countField(u *unstructured.Unstructured, path ...string) int64 {
	n, _, _ := numberField(u, path...)
	return n
}

// parseID parses an ID from GitHub; 0 if it is not valid. GitHub's IDs are positive.
func parseID(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n <= 0 {
		return 0
	}
	return n
}

// ownerOfKind returns the owner reference of one of ARC's kinds, if there is one.
func ownerOfKind(refs []metav1.OwnerReference, kind string) (metav1.OwnerReference, bool) {
	for _, r := range refs {
		if r.Kind == kind && strings.HasPrefix(r.APIVersion, apiGroup+"/") {
			return r, true
		}
	}
	return metav1.OwnerReference{}, false
}

// setFromLabels returns the scale set in the labels; empty if there is none.
func setFromLabels(labels map[string]string) fleet.Key {
	k := fleet.Key{Namespace: labels[setNamespaceLabel], Name: labels[setNameLabel]}
	if k.Namespace == "" || k.Name == "" {
		return fleet.Key{}
	}
	return k
}

// maxSanitized is the maximum length, in bytes, of a foreign text in our messages.
const maxSanitized = 300

// shortLine makes a foreign text safe for a sentence: one line, printable and short.
func shortLine(s string) string {
	clean := sanitize.Line(strings.ToValidUTF8(s, ""))
	if len(clean) > maxSanitized {
		clean = strings.ToValidUTF8(clean[:maxSanitized], "") + "…"
	}
	return clean
}
