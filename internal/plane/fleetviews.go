package plane

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
)

// The methods that the plane's store needs of the objects, and what each caller may see of them.

// Key returns "forge/org/pool".
func (o Pool) Key() string { return o.ID }

// Org returns the organisation of the runners.
func (o Pool) Org() string { return o.OrgName }

// Observed implements [plane.Object].
func (o Pool) Observed() time.Time { return o.ObservedAt }

// At implements [plane.Object].
func (o Pool) At(t time.Time) Object { o.ObservedAt = t; return o }

// CurrentState implements [Stateful].
func (o Pool) CurrentState() string { return o.State }

// Trouble implements [Stateful].
func (o Pool) Trouble() (Severity, string, string) {
	switch o.State {
	case PoolFailing:
		return SeverityError, o.State, o.StateReason
	case PoolDegraded, StateUnknown:
		return SeverityWarning, o.State, o.StateReason
	}
	return "", "", ""
}

// scope returns the scope of a hold of exactly these runners.
func (o Pool) scope() Scope { return Scope{Org: o.OrgName, Pool: o.Name} }

// For implements [plane.Personal]: it adds the actions that the caller may take.
func (o Pool) For(v Viewer) Object {
	o.Actions = &PoolActions{
		Pause: actionUnless(when(!v.In(o.OrgName, access.HoldsCreate), "Your role does not allow you to hold runners of "+o.OrgName+"."),
			when(len(o.Holds) > 0, "A hold applies already.")),
		Resume: actionUnless(when(!v.In(o.OrgName, access.HoldsLift), "Your role does not allow you to lift holds of "+o.OrgName+"."),
			when(len(o.Holds) == 0, "No hold applies to it.")),
	}
	return o
}

// Key returns the id of the drift.
func (o Drift) Key() string { return o.ID }

// Org returns the organisation of the runners.
func (o Drift) Org() string { return o.OrgName }

// Observed implements [plane.Object].
func (o Drift) Observed() time.Time { return o.ObservedAt }

// At implements [plane.Object].
func (o Drift) At(t time.Time) Object { o.ObservedAt = t; return o }

// CurrentState implements [Stateful]: the severity, or the reason why no action is needed.
func (o Drift) CurrentState() string {
	switch {
	case o.ExplainedBy != "":
		return DriftExplained
	case o.IgnoredUntil != nil:
		return DriftIgnored
	}
	return o.Severity
}

// For implements [plane.Personal]: it adds the actions that the caller may take.
func (o Drift) For(v Viewer) Object {
	role := when(!v.In(o.OrgName, access.ConfigPropose), "Your role does not allow you to ignore it.")
	o.Actions = &DriftActions{
		Ignore:   actionUnless(role, when(o.ExplainedBy != "", "A hold explains the difference, so it is not a drift.")),
		Unignore: actionUnless(role, when(o.IgnoredUntil == nil, "The drift is not ignored.")),
	}
	return o
}

// Settled implements [plane.Settled]: a hold explains the drift, or a person ignores it.
func (o Drift) Settled() bool { return o.ExplainedBy != "" || o.IgnoredUntil != nil }

// Trouble implements [Stateful]. It reports nothing, because the pool itself reports that it is degraded.
func (o Drift) Trouble() (Severity, string, string) { return "", "", "" }

// Key returns the organisation's name.
func (o Enrollment) Key() string { return o.ID }

// Org returns the organisation's name.
func (o Enrollment) Org() string { return o.Name }

// Observed implements [plane.Object].
func (o Enrollment) Observed() time.Time { return o.ObservedAt }

// At implements [plane.Object].
func (o Enrollment) At(t time.Time) Object { o.ObservedAt = t; return o }

// CurrentState implements [Stateful].
func (o Enrollment) CurrentState() string { return o.Phase }

// Trouble implements [Stateful].
func (o Enrollment) Trouble() (Severity, string, string) {
	for _, kind := range []string{"PolicyViolation", "DecisionNeeded"} {
		if c := findCondition(o.Conditions, kind); c.Status == "True" {
			return SeverityError, c.Reason, c.Message
		}
	}
	if o.Requested != nil {
		return SeverityWarning, "Asked", o.Requested.By + " asks to " + string(o.Requested.What) + " it: " + o.Requested.Reason
	}
	switch o.Phase {
	case "Requested":
		return SeverityWarning, "NotApproved", "The enrollment waits for approval."
	case "Failed", "Suspended":
		if c := findCondition(o.Conditions, "Ready"); c.Status == "False" {
			return SeverityError, c.Reason, c.Message
		}
		return SeverityError, o.Phase, "Its runners take no jobs."
	}
	return "", "", ""
}

// For implements [plane.Personal]: it adds the actions that the caller may take.
func (o Enrollment) For(v Viewer) Object {
	ends := when(o.Phase == "Draining" || o.Phase == "Offboarded" || o.Offboard != nil, "The enrollment is already ending.")
	may := func(verb access.Verb, reasons ...string) Action {
		role := when(!v.In(o.Name, verb), "Your role does not allow you to do this for "+o.Name+".")
		return actionUnless(role, ends, cmp.Or(reasons...))
	}
	approved := when(findCondition(o.Conditions, "Approved").Status == "True", "The current version is approved already.")
	beyond := when(o.Approval != nil || o.Phase != StateUnknown && o.Phase != "Requested", "The enrollment is no longer only a request.")
	isAuthor := func(by string) bool { return strings.EqualFold(by, v.Caller().Identity()) }
	own := when(slices.ContainsFunc(o.RequestedBy, isAuthor), "You wrote a part of it.")
	o.Actions = &EnrollmentActions{Edit: may(access.EnrollmentRequest), Approve: may(access.EnrollmentApprove, approved, own), Decline: may(access.EnrollmentDecline, beyond),
		Rotate: may(access.RotateRequest), Offboard: may(access.OffboardRequest)}
	return o
}

// Key returns the name.
func (o Forge) Key() string { return o.ID }

// Org returns "": a forge belongs to all organisations that are enrolled there.
func (o Forge) Org() string { return "" }

// Orgs implements [plane.Shared].
func (o Forge) Orgs() []string { return o.EnrolledOrgs }

// Observed implements [plane.Object].
func (o Forge) Observed() time.Time { return o.ObservedAt }

// At implements [plane.Object].
func (o Forge) At(t time.Time) Object { o.ObservedAt = t; return o }

// CurrentState implements [Stateful].
func (o Forge) CurrentState() string {
	return describe(o.Reachable, "Reachable", "Unreachable", StateUnknown)
}

// Trouble implements [Stateful].
func (o Forge) Trouble() (Severity, string, string) {
	if o.Reachable == nil || *o.Reachable {
		return "", "", ""
	}
	return SeverityError, "Unreachable", "The forge does not respond, so its state cannot be confirmed."
}

// For implements [plane.Personal]. It hides the rate limit and the condition messages, which are about all organisations, from callers of
// one.
func (o Forge) For(v Viewer) Object {
	if !v.Everywhere(access.FleetRead) {
		o.RateLimit = nil
		o.Conditions = slices.Clone(o.Conditions)
		for i := range o.Conditions {
			o.Conditions[i].Message = ""
		}
	}
	return o
}

// Key returns the name.
func (o Hold) Key() string { return o.ID }

// Org returns the organisation of the runners, or "" if the hold covers several.
func (o Hold) Org() string { return o.Scope.Org }

// Orgs implements [plane.Shared]: the organisations whose runners the hold covers.
func (o Hold) Orgs() []string { return o.HeldOrgs }

// Observed implements [plane.Object].
func (o Hold) Observed() time.Time { return o.ObservedAt }

// At implements [plane.Object].
func (o Hold) At(t time.Time) Object { o.ObservedAt = t; return o }

// CurrentState implements [Stateful].
func (o Hold) CurrentState() string { return o.State }

// Trouble implements [Stateful]. A wide hold is itself a warning.
func (o Hold) Trouble() (Severity, string, string) {
	switch {
	case len(o.Failed) > 0:
		return SeverityError, o.Failed[0].Reason, fmt.Sprintf("%s of %s still takes new jobs, or does not respond.", o.Failed[0].Pool, o.Failed[0].Org)
	case o.Scope.wide() && o.endedReason() == "":
		return SeverityWarning, "Held", "Runners are held: " + o.Scope.String() + "."
	}
	return "", "", ""
}

// endedReason returns why the hold no longer has an effect, or "" if it has.
func (o Hold) endedReason() string {
	switch o.State {
	case HoldLifting:
		return "The hold is being lifted."
	case HoldExpired:
		return "The hold has expired."
	}
	return ""
}

// For implements [plane.Personal]. It hides the counts, which are about all that the hold covers, from callers that may not see all of it.
func (o Hold) For(v Viewer) Object {
	if !v.In(o.Scope.Org, access.FleetRead) {
		o.Targets, o.Applied, o.Drained, o.RemainingJobs = nil, nil, nil, nil
		o.Failed = slices.DeleteFunc(append([]HoldFailure{}, o.Failed...), func(f HoldFailure) bool { return !v.In(f.Org, access.FleetRead) })
	}
	o.Actions = &HoldActions{Lift: actionUnless(o.endedReason(), o.liftRefusal(v))}
	return o
}

// liftRefusal returns why the caller may not lift the hold, or "" if the caller may.
func (o Hold) liftRefusal(v Viewer) string {
	c := v.Caller()
	switch {
	case !v.In(o.Scope.Org, access.HoldsLift):
		return "Your role does not allow you to lift it."
	case !o.Scope.All && o.Scope.Forge == "", v.Everywhere(access.HoldsLiftWide):
		return ""
	case v.Own(access.HoldsLiftWide) && !c.Shared && o.RequestedBy == c.Identity():
		return ""
	}
	return "Only the person who set it or a platform-admin can lift a hold of a forge or of all runners."
}

// The tables of the lists: the columns for search and sort, and the states.

func pools() table[Pool] {
	return table[Pool]{Kind: KindPool, Name: "PoolList", Columns: func(o Pool) map[string]string {
		return map[string]string{"name": o.Name, "forge": o.Forge, "org": o.OrgName, "type": o.Type, "state": o.State,
			"busy": sortableNumber(o.Counts.Busy), "idle": sortableNumber(o.Counts.Idle)}
	}, State: Pool.CurrentState, States: []string{PoolFailing, StateUnknown, PoolDegraded, PoolPausing, PoolDraining, PoolResuming, PoolProvisioning, PoolDrained, PoolPaused, PoolActive}}
}

func enrollments() table[Enrollment] {
	return table[Enrollment]{Kind: KindEnrollment, Name: "EnrollmentList", Columns: func(o Enrollment) map[string]string {
		return map[string]string{"name": o.Name, "forge": o.Forge, "isolation": o.Isolation, "phase": o.Phase}
	}, State: Enrollment.CurrentState, States: []string{StateUnknown, "Requested", "Approved", "Provisioning", "Active", "Suspended", "Draining", "Offboarded", "Failed"}}
}

func holds() table[Hold] {
	return table[Hold]{Kind: KindHold, Name: "HoldList", Columns: func(o Hold) map[string]string {
		return map[string]string{"name": o.Name, "scope": o.Scope.String(), "mode": string(o.Mode), "reason": o.Reason,
			"requestedBy": o.RequestedBy, "created": sortableTime(&o.Created), "expiresAt": sortableTime(o.ExpiresAt)}
	}, State: Hold.CurrentState, States: []string{HoldApplying, HoldApplied, PoolDrained, HoldLifting, HoldExpired}}
}

func drifts() table[Drift] {
	return table[Drift]{Kind: KindDrift, Name: "DriftList", Columns: func(o Drift) map[string]string {
		return map[string]string{"org": o.OrgName, "pool": o.Pool, "field": o.Field, "severity": o.Severity, "evidence": o.Evidence,
			"firstSeen": sortableTime(&o.FirstSeen)}
	}, State: Drift.CurrentState, States: []string{"error", "warning", "info", DriftExplained, DriftIgnored}}
}

func forges() table[Forge] {
	return table[Forge]{Kind: KindForge, Name: "ForgeList", Columns: func(o Forge) map[string]string {
		return map[string]string{"name": o.Name, "type": o.Type, "url": o.URL}
	}, State: Forge.CurrentState, States: []string{"Reachable", "Unreachable", StateUnknown}}
}
