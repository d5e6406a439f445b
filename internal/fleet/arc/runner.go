package arc

import (
	"bytes"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tailplane/tailplane/internal/fleet"
)

// A RunnerSet is an EphemeralRunnerSet: the runners of one scale set from one template. During a
// replacement there are two.
type RunnerSet struct {
	fleet.Key
	UID     types.UID
	Set     fleet.Key
	Created time.Time
	Ending  bool
	Secret  string
	Desired int // number of runners that its listener requested
	Phase   Phase
}

// ReadRunnerSet reads an EphemeralRunnerSet.
func ReadRunnerSet(u *unstructured.Unstructured) RunnerSet {
	r := RunnerSet{Key: keyOf(u), UID: u.GetUID(), Created: u.GetCreationTimestamp().Time, Ending: u.GetDeletionTimestamp() != nil,
		Secret: stringField(u, "spec", "ephemeralRunnerSpec", "githubConfigSecret"), Desired: int(min(countField(u, "spec", "replicas"), Unlimited)),
		Phase: Phase(stringField(u, "status", "phase")), Set: setFromLabels(u.GetLabels())}
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
	r := Runner{Key: keyOf(u), UID: u.GetUID(), Set: setFromLabels(u.GetLabels()), Created: u.GetCreationTimestamp().Time, Ending: u.GetDeletionTimestamp() != nil,
		Secret: stringField(u, "spec", "githubConfigSecret"), Phase: Phase(stringField(u, "status", "phase")), Ready: boolField(u, "status", "ready"),
		Reason: stringField(u, "status", "reason"), Message: stringField(u, "status", "message"), ID: countField(u, "status", "runnerId"), Registered: stringField(u, "status", "runnerName")}
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
		r.Job = &Job{Runner: r.Key, ID: job, Request: countField(u, "status", "jobRequestId"), Repository: stringField(u, "status", "jobRepositoryName"),
			Workflow: stringField(u, "status", "jobWorkflowRef"), Name: stringField(u, "status", "jobDisplayName"), Run: countField(u, "status", "workflowRunId"), Started: lastWrite(u.GetManagedFields())}
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
	l := Pod{Key: fleet.Key{Namespace: p.Namespace, Name: p.Name}, Set: setFromLabels(p.Labels), Ended: p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed}
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
	if err != nil || p.Spec.HostNetwork || ip.Zone() != "" || ip.IsUnspecified() || ip.IsMulticast() || ip.IsLinkLocalUnicast() || ip.Unmap().IsLinkLocalUnicast() {
		return at
	}
	for _, c := range p.Spec.Containers {
		for _, port := range c.Ports {
			if c.Name == "listener" && port.Name == "metrics" && (port.Protocol == "" || port.Protocol == corev1.ProtocolTCP) && port.ContainerPort > 0 && port.ContainerPort < 1<<16 {
				return netip.AddrPortFrom(ip, uint16(port.ContainerPort))
			}
		}
	}
	return at
}
