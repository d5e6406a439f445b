package planekube

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/plane/planefleet"
)

// stateOf returns the state of an enrollment's runners in a pool, and the reason. Only the fleet can confirm Paused and Drained; the plane
// never derives them itself. in holds the active holds, sorted.
func stateOf(e *v1alpha1.RunnerEnrollment, pool string, s *v1alpha1.EnrolledPoolStatus, in []*v1alpha1.RunnerHold) (state, why string) {
	if c := meta.FindStatusCondition(e.Status.Conditions, "PolicyViolation"); c != nil && c.Status == metav1.ConditionTrue {
		return planefleet.Failing, c.Message
	}
	ready := meta.FindStatusCondition(e.Status.Conditions, "Ready")
	switch e.Status.Phase {
	case v1alpha1.PhaseFailed, v1alpha1.PhaseSuspended:
		if ready != nil && ready.Status == metav1.ConditionFalse {
			return planefleet.Failing, ready.Message
		}
		return planefleet.Failing, "The organisation's enrollment is " + string(e.Status.Phase) + "."
	}
	switch {
	case e.Status.Phase == "":
		return planefleet.Unknown, "The fleet has said nothing of this organisation yet."
	case e.Status.Phase == v1alpha1.PhaseDraining || !e.DeletionTimestamp.IsZero():
		return planefleet.Draining, "The organisation's enrollment ends."
	case e.Status.Phase == v1alpha1.PhaseOffboarded:
		return planefleet.Drained, "The organisation's enrollment has ended."
	case len(in) > 0:
		return heldState(e.Name, pool, s, in)
	case e.Status.Phase == v1alpha1.PhaseActive && s == nil:
		return planefleet.Unknown, "The fleet has said nothing of it yet."
	case s == nil, e.Status.Phase != v1alpha1.PhaseActive:
		return planefleet.Provisioning, "The organisation's enrollment is " + string(e.Status.Phase) + "."
	case !slices.ContainsFunc(e.Spec.Pools, func(p v1alpha1.EnrolledPool) bool { return p.Name == pool }):
		return planefleet.Draining, "The organisation does not use this pool any more."
	case ready != nil && ready.Status == metav1.ConditionFalse && ready.Reason == fleet.ReasonRestarts && s.Hold == "" && len(s.Drift) == 0:
		return planefleet.Provisioning, ready.Message
	case s.Hold != "":
		return planefleet.Resuming, "The hold " + s.Hold + " is gone, and the fleet has not said that jobs are taken again."
	case s.EffectiveMax == nil:
		return planefleet.Unknown, "It is not known how many runners there may be."
	case len(s.Drift) > 0:
		return planefleet.Degraded, "Not as it should be: " + s.Drift[0] + "."
	case s.Failed != nil && *s.Failed > 0:
		return planefleet.Degraded, fmt.Sprintf("%d of its runners have failed.", *s.Failed)
	}
	if c := meta.FindStatusCondition(e.Status.Conditions, "Degraded"); c != nil && c.Status == metav1.ConditionTrue {
		return planefleet.Degraded, c.Message
	}
	return planefleet.Active, ""
}

// heldState returns the state of held runners. The fleet names the hold that applies, which is the strongest of several. The status of that
// hold gives the progress.
func heldState(org, pool string, s *v1alpha1.EnrolledPoolStatus, in []*v1alpha1.RunnerHold) (state, why string) {
	h := in[0]
	if s != nil {
		if i := slices.IndexFunc(in, func(h *v1alpha1.RunnerHold) bool { return h.Name == s.Hold }); i >= 0 {
			h = in[i]
		}
	}
	why = fmt.Sprintf("Hold %s by %s: %s", h.Name, h.Spec.RequestedBy, h.Spec.Reason)
	if s != nil && slices.Contains(s.Drift, "PauseByDrain") {
		why += " (its managers are ended for that: GitLab cannot be told to pause it)"
	}
	ends := h.Spec.Mode != v1alpha1.HoldPause
	switch {
	case s == nil || s.Hold != h.Name || !confirmed(h, org, pool):
		return planefleet.Pausing, why
	case !ends:
		return planefleet.Paused, why
	case current(h.Status.Conditions, "Drained") == "True" && h.Status.ObservedGeneration == h.Generation:
		return planefleet.Drained, why
	}
	return planefleet.Draining, why
}

// confirmed reports whether the hold confirms that these runners take no new job: either all its workloads do not, or all except those that
// it lists as failed.
func confirmed(h *v1alpha1.RunnerHold, org, pool string) bool {
	st := h.Status
	switch {
	case st.ObservedGeneration != h.Generation:
		return false
	case current(st.Conditions, "Applied") == "True":
		return true
	}
	return st.Targets > 0 && int(st.Targets-st.Applied) == len(st.Failed) && st.Applied > 0 &&
		!slices.ContainsFunc(st.Failed, func(f v1alpha1.HoldFailure) bool { return f.Org == org && f.Pool == pool })
}

// current returns the status of a condition, or "" if it is missing.
func current(all []metav1.Condition, kind string) string {
	if c := meta.FindStatusCondition(all, kind); c != nil {
		return string(c.Status)
	}
	return ""
}

// RequestAnnotation is on holds and enrollments that the plane has made. It identifies the request.
const RequestAnnotation = "tailplane.dev/request"

func driftOf(e *v1alpha1.RunnerEnrollment, f v1alpha1.EnrollmentFinding, now time.Time) planefleet.Drift {
	d := planefleet.Drift{ID: f.ID, OrgName: e.Name, Forge: e.Spec.Forge, Pool: f.Pool, Workload: f.Workload, Subject: f.Subject, Field: f.Kind, Kind: planefleet.DriftForge, Severity: f.Severity,
		Want: orNil(f.Want), Have: orNil(f.Have), Evidence: f.Evidence, Next: f.Next, FirstSeen: f.FirstSeen.UTC(), ExplainedBy: f.ExplainedBy, Unconfirmed: f.Unconfirmed, ObservedAt: now}
	switch fleet.FindingKind(f.Kind) {
	case fleet.DriftIntakeMissing, fleet.DriftCapacity, fleet.DriftVersionSkew:
		d.Kind = planefleet.DriftActual
	}
	return d
}

// HoldOf converts a hold as of now, without the organisations that it covers.
func HoldOf(h *v1alpha1.RunnerHold, now time.Time) planefleet.Hold {
	o := planefleet.Hold{ID: h.Name, Name: h.Name, UID: string(h.UID), Version: version(h), Scope: planefleet.Scope{All: h.Spec.Scope.All, Forge: h.Spec.Scope.Forge, Org: h.Spec.Scope.Org, Pool: h.Spec.Scope.Pool},
		Mode: planefleet.Mode(h.Spec.Mode), Reason: h.Spec.Reason, RequestedBy: h.Spec.RequestedBy, Created: h.CreationTimestamp.UTC(), ExpiresAt: moment(h.Spec.ExpiresAt),
		State: planefleet.Applying, Failed: []planefleet.HoldFailure{}, ObservedAt: now, Digest: h.Annotations[RequestAnnotation]}
	if st := h.Status; st.ObservedGeneration > 0 { // before the first observation, 0 means unknown
		o.Targets, o.Applied, o.Drained, o.RemainingJobs = new(int(st.Targets)), new(int(st.Applied)), new(int(st.Drained)), whole(st.RemainingJobs)
		for _, f := range st.Failed {
			o.Failed = append(o.Failed, planefleet.HoldFailure{Pool: f.Pool, Org: f.Org, Reason: f.Reason})
		}
	}
	switch is := h.Status.ObservedGeneration == h.Generation; {
	case !h.DeletionTimestamp.IsZero():
		o.State = planefleet.Lifting
	case fleet.HoldLifted(h, now):
		o.State = planefleet.Expired
	case is && current(h.Status.Conditions, "Applied") == "True" && current(h.Status.Conditions, "Drained") == "True":
		o.State = planefleet.Drained
	case is && current(h.Status.Conditions, "Applied") == "True":
		o.State = planefleet.Applied
	}
	return o
}

// EnrollmentOf converts an enrollment that was read at now.
func EnrollmentOf(e *v1alpha1.RunnerEnrollment, now time.Time) planefleet.Enrollment {
	o := planefleet.Enrollment{ID: e.Name, Name: e.Name, Forge: e.Spec.Forge, ConfigURL: e.Spec.ConfigURL, Isolation: string(e.Spec.Isolation), Phase: string(e.Status.Phase),
		Pools: []planefleet.EnrolledPool{}, Adopted: []planefleet.Adoption{}, Owners: listed(e.Spec.Owners), Members: listed(e.Spec.Members), Conditions: conditionsOf(e.Status.Conditions), ObservedAt: now}
	if o.Phase == "" {
		o.Phase = planefleet.Unknown
	}
	for _, p := range e.Spec.Pools {
		o.Pools = append(o.Pools, planefleet.EnrolledPool{Name: p.Name, Type: string(p.Type), Max: whole(p.Max), Repositories: listed(p.Repositories)})
	}
	for _, a := range e.Status.Adopted {
		o.Adopted = append(o.Adopted, planefleet.Adoption{Pool: a.Name, Namespace: a.Namespace, Workload: a.Workload, ScaleSetID: a.ScaleSetID, Min: whole(a.Min), Max: whole(a.Max),
			Counts: planefleet.Counts{Idle: whole(a.Idle), Busy: whole(a.Busy), Pending: whole(a.Pending), Failed: whole(a.Failed)}, Hold: a.Hold, SeenAt: moment(a.SeenAt)})
	}
	if e.Spec.Isolation != v1alpha1.IsolationNone {
		o.Quota = &planefleet.Quota{CPU: e.Spec.Quota.CPU.String(), Memory: e.Spec.Quota.Memory.String(), Pods: int(e.Spec.Quota.Pods)}
	}
	if c := e.Status.Credential; c != nil {
		o.Credential = &planefleet.Credential{Kind: string(c.Kind), Fingerprint: c.Fingerprint, AppID: c.AppID, InstallationID: c.InstallationID, CreatedAt: moment(c.CreatedAt), ExpiresAt: moment(c.ExpiresAt)}
	}
	o.Digest, o.RequestedBy, o.Asked, o.Rotation.At = fleet.Digest(e), listed(requestedBy(e)), asked(e), moment(e.Spec.Credentials.RotateAt)
	if every := e.Spec.Credentials.RotateEvery; every != nil {
		o.Rotation.Every = every.Duration.String()
	}
	if a := e.Spec.Approval; a != nil {
		o.Approval = &planefleet.EnrollmentApproval{By: a.By, At: a.At.UTC(), Digest: a.Digest}
	}
	if f := e.Status.Offboard; f != nil {
		o.Offboard = &planefleet.Offboard{Step: string(f.Step), Since: f.Since.UTC(), Message: f.Message}
	}
	return o
}

// version returns the version of the hold's spec.
func version(h *v1alpha1.RunnerHold) string { return strconv.FormatInt(h.Generation, 10) }

// requestedBy returns the logins that changed the enrollment since its last approval. An unreadable annotation counts as empty: the
// admission policies let only the writers of specs write it.
func requestedBy(e *v1alpha1.RunnerEnrollment) (logins []string) {
	_ = json.Unmarshal([]byte(e.Annotations[v1alpha1.RequestedByAnnotation]), &logins)
	return logins
}

// asked returns the open request on an enrollment, or nil if there is none or it is unreadable.
func asked(e *v1alpha1.RunnerEnrollment) *planefleet.EnrollmentAsked {
	var a planefleet.EnrollmentAsked
	if err := json.Unmarshal([]byte(e.Annotations[v1alpha1.AskedAnnotation]), &a); err != nil || a.What != planefleet.WishRotate && a.What != planefleet.WishOffboard {
		return nil
	}
	return &a
}
