package kube

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/plane"
)

// poolState returns the state of an enrollment's runners in a pool, and the reason. Only the fleet can confirm Paused and Drained; the plane
// never derives them itself. in holds the active holds, sorted.
func poolState(e *v1alpha1.RunnerEnrollment, pool string, s *v1alpha1.EnrolledPoolStatus, in []*v1alpha1.RunnerHold) (state, why string) {
	if c := meta.FindStatusCondition(e.Status.Conditions, "PolicyViolation"); c != nil && c.Status == metav1.ConditionTrue {
		return plane.PoolFailing, c.Message
	}
	ready := meta.FindStatusCondition(e.Status.Conditions, "Ready")
	switch e.Status.Phase {
	case v1alpha1.PhaseFailed, v1alpha1.PhaseSuspended:
		if ready != nil && ready.Status == metav1.ConditionFalse {
			return plane.PoolFailing, ready.Message
		}
		return plane.PoolFailing, "The organisation's enrollment is " + string(e.Status.Phase) + "."
	}
	switch {
	case e.Status.Phase == "":
		return plane.StateUnknown, "The fleet has not reported a status for this organisation yet."
	case e.Status.Phase == v1alpha1.PhaseDraining || !e.DeletionTimestamp.IsZero():
		return plane.PoolDraining, "The organisation's enrollment is ending."
	case e.Status.Phase == v1alpha1.PhaseOffboarded:
		return plane.PoolDrained, "The organisation's enrollment has ended."
	case len(in) > 0:
		return heldPoolState(e.Name, pool, s, in)
	case e.Status.Phase == v1alpha1.PhaseActive && s == nil:
		return plane.StateUnknown, "The fleet has not reported a status for this pool yet."
	case s == nil, e.Status.Phase != v1alpha1.PhaseActive:
		return plane.PoolProvisioning, "The organisation's enrollment is " + string(e.Status.Phase) + "."
	case !slices.ContainsFunc(e.Spec.Pools, func(p v1alpha1.EnrolledPool) bool { return p.Name == pool }):
		return plane.PoolDraining, "The organisation no longer uses this pool."
	case ready != nil && ready.Status == metav1.ConditionFalse && ready.Reason == fleet.ReasonRestarts && s.Hold == "" && len(s.Drift) == 0:
		return plane.PoolProvisioning, ready.Message
	case s.Hold != "":
		return plane.PoolResuming, "The hold " + s.Hold + " is gone, and the fleet has not yet confirmed that the runners take jobs again."
	case s.EffectiveMax == nil:
		return plane.StateUnknown, "The maximum number of runners is not known."
	case len(s.Drift) > 0:
		return plane.PoolDegraded, "Drift: " + s.Drift[0] + "."
	case s.Failed != nil && *s.Failed > 0:
		return plane.PoolDegraded, fmt.Sprintf("%d of its runners have failed.", *s.Failed)
	}
	if c := meta.FindStatusCondition(e.Status.Conditions, "Degraded"); c != nil && c.Status == metav1.ConditionTrue {
		return plane.PoolDegraded, c.Message
	}
	return plane.PoolActive, ""
}

// heldPoolState returns the state of held runners. The fleet names the hold that applies, which is the strongest of several. The status of that
// hold gives the progress.
func heldPoolState(org, pool string, s *v1alpha1.EnrolledPoolStatus, in []*v1alpha1.RunnerHold) (state, why string) {
	h := in[0]
	if s != nil {
		if i := slices.IndexFunc(in, func(h *v1alpha1.RunnerHold) bool { return h.Name == s.Hold }); i >= 0 {
			h = in[i]
		}
	}
	why = fmt.Sprintf("Hold %s by %s: %s", h.Name, h.Spec.RequestedBy, h.Spec.Reason)
	if s != nil && slices.Contains(s.Drift, "PauseByDrain") {
		why += " (its runner managers are stopped, because GitLab cannot pause it)"
	}
	ends := h.Spec.Mode != v1alpha1.HoldPause
	switch {
	case s == nil || s.Hold != h.Name || !holdConfirmed(h, org, pool):
		return plane.PoolPausing, why
	case !ends:
		return plane.PoolPaused, why
	case meta.IsStatusConditionTrue(h.Status.Conditions, "Drained") && h.Status.ObservedGeneration == h.Generation:
		return plane.PoolDrained, why
	}
	return plane.PoolDraining, why
}

// holdConfirmed reports whether the hold confirms that these runners take no new job: either all its workloads do not, or all except those that
// it lists as failed.
func holdConfirmed(h *v1alpha1.RunnerHold, org, pool string) bool {
	st := h.Status
	switch {
	case st.ObservedGeneration != h.Generation:
		return false
	case meta.IsStatusConditionTrue(st.Conditions, "Applied"):
		return true
	}
	return st.Targets > 0 && int(st.Targets-st.Applied) == len(st.Failed) && st.Applied > 0 &&
		!slices.ContainsFunc(st.Failed, func(f v1alpha1.HoldFailure) bool { return f.Org == org && f.Pool == pool })
}

// requestAnnotation is on holds and enrollments that the plane has made. It identifies the request.
const requestAnnotation = "tailplane.dev/request"

func driftOf(e *v1alpha1.RunnerEnrollment, f v1alpha1.EnrollmentFinding, now time.Time) plane.Drift {
	d := plane.Drift{ID: f.ID, OrgName: e.Name, Forge: e.Spec.Forge, Pool: f.Pool, Workload: f.Workload, Subject: f.Subject, Field: f.Kind, Kind: plane.DriftForge, Severity: f.Severity,
		Want: orNil(f.Want), Have: orNil(f.Have), Evidence: f.Evidence, Next: f.Next, FirstSeen: f.FirstSeen.UTC(), ExplainedBy: f.ExplainedBy, Unconfirmed: f.Unconfirmed, ObservedAt: now}
	switch fleet.FindingKind(f.Kind) {
	case fleet.DriftIntakeMissing, fleet.DriftCapacity, fleet.DriftVersionSkew:
		d.Kind = plane.DriftActual
	}
	return d
}

// holdOf converts a hold as of now, without the organisations that it covers.
func holdOf(h *v1alpha1.RunnerHold, now time.Time) plane.Hold {
	o := plane.Hold{ID: h.Name, Name: h.Name, UID: string(h.UID), Version: holdVersion(h), Scope: plane.Scope{All: h.Spec.Scope.All, Forge: h.Spec.Scope.Forge, Org: h.Spec.Scope.Org, Pool: h.Spec.Scope.Pool},
		Mode: plane.HoldMode(h.Spec.Mode), Reason: h.Spec.Reason, RequestedBy: h.Spec.RequestedBy, Created: h.CreationTimestamp.UTC(), ExpiresAt: timeOrNil(h.Spec.ExpiresAt),
		State: plane.HoldApplying, Failed: []plane.HoldFailure{}, ObservedAt: now, Digest: h.Annotations[requestAnnotation]}
	if st := h.Status; st.ObservedGeneration > 0 { // before the first observation, 0 means unknown
		o.Targets, o.Applied, o.Drained, o.RemainingJobs = new(int(st.Targets)), new(int(st.Applied)), new(int(st.Drained)), intOrNil(st.RemainingJobs)
		for _, f := range st.Failed {
			o.Failed = append(o.Failed, plane.HoldFailure{Pool: f.Pool, Org: f.Org, Reason: f.Reason})
		}
	}
	switch applied := h.Status.ObservedGeneration == h.Generation && meta.IsStatusConditionTrue(h.Status.Conditions, "Applied"); {
	case !h.DeletionTimestamp.IsZero():
		o.State = plane.HoldLifting
	case fleet.HoldLifted(h, now):
		o.State = plane.HoldExpired
	case applied && meta.IsStatusConditionTrue(h.Status.Conditions, "Drained"):
		o.State = plane.PoolDrained
	case applied:
		o.State = plane.HoldApplied
	}
	return o
}

// enrollmentOf converts an enrollment that was read at now.
func enrollmentOf(e *v1alpha1.RunnerEnrollment, now time.Time) plane.Enrollment {
	o := plane.Enrollment{ID: e.Name, Name: e.Name, Forge: e.Spec.Forge, ConfigURL: e.Spec.ConfigURL, Isolation: string(e.Spec.Isolation), Phase: string(e.Status.Phase),
		Pools: []plane.EnrolledPool{}, ExternalScaleSets: []plane.Adoption{}, Owners: nonNil(e.Spec.Owners), Members: nonNil(e.Spec.Members), Conditions: conditionsOf(e.Status.Conditions), ObservedAt: now}
	if o.Phase == "" {
		o.Phase = plane.StateUnknown
	}
	for _, p := range e.Spec.Pools {
		o.Pools = append(o.Pools, plane.EnrolledPool{Name: p.Name, Type: string(p.Type), Max: intOrNil(p.Max), Repositories: nonNil(p.Repositories)})
	}
	for _, a := range e.Status.Adopted {
		o.ExternalScaleSets = append(o.ExternalScaleSets, plane.Adoption{Pool: a.Name, Namespace: a.Namespace, Workload: a.Workload, ScaleSetID: a.ScaleSetID, Min: intOrNil(a.Min), Max: intOrNil(a.Max),
			Counts: plane.Counts{Idle: intOrNil(a.Idle), Busy: intOrNil(a.Busy), Pending: intOrNil(a.Pending), Failed: intOrNil(a.Failed)}, Hold: a.Hold, SeenAt: timeOrNil(a.SeenAt)})
	}
	if e.Spec.Isolation != v1alpha1.IsolationNone {
		o.Quota = &plane.Quota{CPU: e.Spec.Quota.CPU.String(), Memory: e.Spec.Quota.Memory.String(), Pods: int(e.Spec.Quota.Pods)}
	}
	if c := e.Status.Credential; c != nil {
		o.Credential = &plane.EnrollmentCredential{Kind: string(c.Kind), Fingerprint: c.Fingerprint, AppID: c.AppID, InstallationID: c.InstallationID, CreatedAt: timeOrNil(c.CreatedAt), ExpiresAt: timeOrNil(c.ExpiresAt)}
	}
	o.Digest, o.RequestedBy, o.Requested, o.Rotation.At = fleet.Digest(e), nonNil(requestedBy(e)), requestedAction(e), timeOrNil(e.Spec.Credentials.RotateAt)
	if every := e.Spec.Credentials.RotateEvery; every != nil {
		o.Rotation.Every = every.Duration.String()
	}
	if a := e.Spec.Approval; a != nil {
		o.Approval = &plane.EnrollmentApproval{By: a.By, At: a.At.UTC(), Digest: a.Digest}
	}
	if f := e.Status.Offboard; f != nil {
		o.Offboard = &plane.Offboard{Step: string(f.Step), Since: f.Since.UTC(), Message: f.Message}
	}
	return o
}

// holdVersion returns the version of the hold's spec.
func holdVersion(h *v1alpha1.RunnerHold) string { return strconv.FormatInt(h.Generation, 10) }

// requestedBy returns the logins that changed the enrollment since its last approval. An unreadable annotation counts as empty: the
// admission policies let only the writers of specs write it.
func requestedBy(e *v1alpha1.RunnerEnrollment) (logins []string) {
	_ = json.Unmarshal([]byte(e.Annotations[v1alpha1.RequestedByAnnotation]), &logins)
	return logins
}

// requestedAction returns the open request on an enrollment, or nil if there is none or it is unreadable.
func requestedAction(e *v1alpha1.RunnerEnrollment) *plane.EnrollmentAsked {
	var a plane.EnrollmentAsked
	if err := json.Unmarshal([]byte(e.Annotations[v1alpha1.RequestedAnnotation]), &a); err != nil || a.What != plane.ActionRotate && a.What != plane.ActionOffboard {
		return nil
	}
	return &a
}

// The origins of a setting that are not objects.
const (
	fromDefault = "default"
	fromFleet   = "fleet"
)

// settingsOf returns the effective settings of an organisation in a pool, with their origins. in holds the names of the active holds. The
// result is nil if the pool is unknown.
func settingsOf(e *v1alpha1.RunnerEnrollment, pool *v1alpha1.RunnerPool, s *v1alpha1.EnrolledPoolStatus, in []string) (all []plane.Setting) {
	if pool == nil {
		return nil
	}
	org, own := "RunnerEnrollment "+e.Name, "RunnerPool "+pool.Name
	add := func(name, value, from string, over ...plane.Origin) {
		all = append(all, plane.Setting{Name: name, Value: value, From: from, Over: append([]plane.Origin{}, over...)})
	}
	var use v1alpha1.EnrolledPool
	for _, p := range e.Spec.Pools {
		if p.Name == pool.Name {
			use = p
		}
	}
	add("forge", e.Spec.Forge, org)
	add("configURL", e.Spec.ConfigURL, org)
	add("type", string(use.Type), org)
	add("isolation", string(e.Spec.Isolation), org)
	labels := []plane.Origin{}
	if raw := strings.Join(pool.Spec.RunsOn, ", "); strings.Contains(raw, "{org}") {
		labels = append(labels, plane.Origin{Value: raw, From: own})
	}
	add("runsOn", strings.Join(fleet.RunsOn(pool, e.Name), ", "), own, labels...)
	scale := pool.Spec.Scaling
	add("scaling.min", fmt.Sprint(scale.Min), own)
	limit := plane.Origin{Value: fmt.Sprint(scale.Max), From: own}
	if use.Max != nil && *use.Max < scale.Max {
		add("scaling.max", fmt.Sprint(*use.Max), org, limit)
		limit = plane.Origin{Value: fmt.Sprint(*use.Max), From: org}
	} else {
		add("scaling.max", limit.Value, own)
	}
	add("scaling.budget", fmt.Sprint(scale.Budget), own)
	add("scaling.guarantee", fmt.Sprint(scale.Guarantee), own)
	if s != nil && s.Allocated != nil {
		add("allocated", fmt.Sprint(*s.Allocated), fromFleet, limit)
		limit = plane.Origin{Value: fmt.Sprint(*s.Allocated), From: fromFleet}
	}
	if s != nil && s.EffectiveMax != nil {
		from := fromFleet
		if len(in) > 0 {
			from = "RunnerHold " + cmp.Or(s.Hold, in[0])
		}
		add("effectiveMax", fmt.Sprint(*s.EffectiveMax), from, limit)
	}
	add("containerMode", string(cmp.Or(pool.Spec.ContainerMode, v1alpha1.ModeDefault)), own)
	switch {
	case pool.Spec.Template != nil:
		add("image", "image of its template", own)
	case pool.Spec.Image != "":
		add("image", pool.Spec.Image, own)
	default:
		add("image", "the fleet's default image", fromDefault)
	}
	addSet := func(name, value, from string) {
		if value != "" {
			add(name, value, from)
		}
	}
	addSet("dedicatedTo", pool.Spec.DedicatedTo, own)
	if pool.Spec.Adopt != nil {
		add("adopt", pool.Spec.Adopt.Namespace+"/"+pool.Spec.Adopt.Name, own)
	}
	if g := pool.Spec.GitLab; g != nil {
		add("gitlab.concurrent", fmt.Sprint(g.Concurrent), own)
		add("gitlab.replicas", fmt.Sprint(g.Replicas), own)
		add("gitlab.runUntagged", fmt.Sprint(g.RunUntagged), own)
		add("gitlab.protected", fmt.Sprint(g.Protected), own)
		add("gitlab.maximumTimeout", g.MaximumTimeout.Duration.String(), own)
	}
	addSet("repositories", strings.Join(use.Repositories, ", "), org)
	addSet("runnerGroup", use.RunnerGroup, org)
	if use.AllowPublic {
		add("allowPublic", "true", org)
	}
	return all
}
