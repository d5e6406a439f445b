package mcp

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
)

// fleetTools returns the tools for runners. There is deliberately no tool to confirm a lift, because a person does that on the dashboard.
// There is no tool to end running jobs either (MC-02).
func fleetTools() []tool {
	pools := rowsOf([]string{"FORGE", "ORG", "POOL", "IDLE", "BUSY", "PENDING", "FAILED", "MAX", "STATE"}, func(o plane.Pool) []string {
		return []string{o.Forge, o.OrgName, o.Name, orUnknown(o.Counts.Idle), orUnknown(o.Counts.Busy), orUnknown(o.Counts.Pending), orUnknown(o.Counts.Failed),
			orUnknown(o.EffectiveMax), withReason(o.State, o.StateReason, false, "")}
	})
	holds := rowsOf([]string{"NAME", "HOLDS", "MODE", "STATE", "BY", "SINCE", "UNTIL", "REASON"}, func(o plane.Hold) []string {
		return []string{o.Name, o.Scope.String(), string(o.Mode), o.State, o.RequestedBy, formatTime(o.Created), formatTime(orZero(o.ExpiresAt)), o.Reason}
	})
	drifts := rowsOf([]string{"ORG", "POOL", "WHAT", "STATE", "SINCE", "EVIDENCE", "NEXT"}, func(o plane.Drift) []string {
		return []string{o.OrgName, o.Pool, o.Field, o.CurrentState(), formatTime(o.FirstSeen), o.Evidence, o.Next}
	})
	forges := rowsOf([]string{"NAME", "TYPE", "URL", "REACHABLE"}, func(o plane.Forge) []string { return []string{o.Name, o.Type, o.URL, orUnknown(o.Reachable)} })
	enrollments := rowsOf([]string{"NAME", "FORGE", "PHASE", "ISOLATION", "POOLS", "CREDENTIAL UNTIL", "READY", "ADOPTED"}, func(o plane.Enrollment) []string {
		until := formatTime(orZero(orZero(o.Credential).ExpiresAt))
		return []string{o.Name, o.Forge, o.Phase, o.Isolation, strconv.Itoa(len(o.Pools)), until, readiness(o.Conditions), o.DescribeExternal()}
	})
	return []tool{
		listTool[plane.FleetListRequest](operationTool(plane.ListPools, "list_runners", "Runners", Fleet), "pool", pools),
		poolTool(operationTool(plane.GetPool, "get_runner", "Runners of a pool", Fleet),
			func(o plane.Pool, _ plane.Meta) string { return o.ID + " is " + o.State + "." }, one(pools)),
		listTool[plane.ListRequest](operationTool(plane.ListForges, "list_forges", "Forges", Fleet), "forge", forges),
		listTool[plane.FleetListRequest](operationTool(plane.ListEnrollments, "list_enrollments", "Organisations", Fleet), "organisation", enrollments),
		requestTool(operationTool(plane.GetEnrollment, "get_enrollment", "Organisation", Fleet),
			func(a *orgArgs) (string, any, error) {
				return plane.GetEnrollment.Pattern, &plane.EnrollmentRequest{Org: string(a.Org)}, nil
			}, func(o plane.Enrollment, _ plane.Meta) string { return o.Name + " is " + o.Phase + "." }, one(enrollments)),
		listTool[plane.FleetListRequest](operationTool(plane.ListHolds, "list_holds", "Holds", Fleet), "hold", holds),
		listTool[plane.FleetListRequest](operationTool(plane.ListDrift, "list_drift", "Drift", Fleet), "drift", drifts),
		writeTool(requestTool(operationTool(plane.CreateHold, "pause_runner", "Pause runners", Fleet).withDoc("Pause runners: they take no new jobs, and running jobs finish. "+
			"Give exactly one of pool, org, forge, or all: true (the emergency pause). The first call with a wider scope than one pool is refused; its answer has a phrase for a second call."),
			pauseRequest, createdSummary, func(c plane.Created) table { return holds([]plane.Hold{c.Hold}) }), true, true),
		writeTool(requestTool(operationTool(plane.LiftHold, "resume_runner", "Resume runners", Fleet).withDoc("Lift a hold, or the holds of exactly one pool of an organisation. "+
			"A hold with a wider scope needs a code, which only a person can get, at the page that the refusal names."), resumeRequest, liftedSummary, nil), true, false),
	}
}

// poolTool returns a tool that shows something of one pool. Its arguments have the pool's id.
func poolTool[T any](t tool, summary func(T, plane.Meta) string, rows func(T) table) tool {
	return requestTool(t, func(a *poolArgs) (string, any, error) {
		of, err := poolRequest(a.Pool)
		return t.pattern, &of, err
	}, summary, rows)
}

type poolArgs struct {
	Pool plane.Text `query:"pool" required:"true" doc:"forge/org/pool, the id in list_runners"`
}

type orgArgs struct {
	Org plane.Text `query:"org" required:"true" doc:"the organisation's name"`
}

type pauseArgs struct {
	Reason    plane.Text       `query:"reason" required:"true" doc:"reason for the audit log, 1 to 500 characters"`
	Pool      plane.Text       `query:"pool" doc:"one pool of one organisation: forge/org/pool, the id in list_runners"`
	Org       plane.Text       `query:"org" doc:"all runners of one organisation"`
	Forge     plane.Text       `query:"forge" doc:"all runners of one forge"`
	All       plane.Flag       `query:"all" doc:"true: all runners of the fleet"`
	Drain     plane.Flag       `query:"drain" doc:"true: also remove each workload after its last job"`
	ExpiresIn httpapi.Duration `query:"expiresIn" doc:"when it expires automatically, such as 2h; without it, never"`
	DryRun    plane.Flag       `query:"dryRun" doc:"true: check whether the request would succeed, and change nothing"`
	Confirm   plane.Text       `query:"confirm" doc:"the phrase from the error confirmation_required"`
}

func pauseRequest(a *pauseArgs) (string, any, error) {
	mode := plane.ModePause
	if a.Drain {
		mode = plane.ModeDrain
	}
	r := &plane.CreateRequest{Scope: plane.Scope{All: bool(a.All), Forge: string(a.Forge), Org: string(a.Org)}, Mode: mode, Reason: plane.Reason(a.Reason), ExpiresIn: a.ExpiresIn, Confirm: a.Confirm, DryRun: a.DryRun}
	given := 0
	for _, is := range []bool{a.Pool != "", a.Org != "", a.Forge != "", bool(a.All)} {
		if is {
			given++
		}
	}
	switch {
	case given != 1:
		return "", nil, problem.New(problem.Validation, "Give exactly one of pool, org, forge and all.", "To pause all runners, use all: true.")
	case strings.Contains(string(a.Pool+a.Org+a.Forge), "*"): // no wildcards (MC-05)
		return "", nil, problem.New(problem.Validation, "\"*\" is not a name.", "To pause all runners, use all: true.")
	case a.Pool == "":
		return plane.CreateHold.Pattern, r, nil
	}
	of, err := poolRequest(a.Pool)
	options := plane.PauseOptions{Reason: r.Reason, ExpiresIn: a.ExpiresIn, Drain: bool(a.Drain), DryRun: a.DryRun}
	return plane.PausePool.Pattern, &plane.PauseRequest{PoolRequest: of, PauseOptions: options}, err
}

type resumeArgs struct {
	Reason  plane.Text `query:"reason" required:"true" doc:"reason for the audit log, 1 to 500 characters"`
	Hold    plane.Text `query:"hold" doc:"the name of the hold"`
	Pool    plane.Text `query:"pool" doc:"or one pool of one organisation: forge/org/pool"`
	DryRun  plane.Flag `query:"dryRun" doc:"true: check whether the request would succeed, and change nothing"`
	Confirm plane.Text `query:"confirm" doc:"the code that a person got on the dashboard"`
}

func resumeRequest(a *resumeArgs) (string, any, error) {
	switch {
	case (a.Hold == "") == (a.Pool == ""):
		return "", nil, problem.New(problem.Validation, "Give exactly one of hold and pool.", "list_holds shows the names of the holds.")
	case strings.ContainsAny(string(a.Hold), "*/"):
		return "", nil, problem.New(problem.Validation, "The value is not the name of a hold.", "list_holds shows the names of the holds.")
	case a.Hold != "":
		return plane.LiftHold.Pattern, &plane.LiftRequest{Name: string(a.Hold), Reason: plane.Reason(a.Reason), Confirm: a.Confirm, DryRun: a.DryRun}, nil
	}
	of, err := poolRequest(a.Pool)
	return plane.ResumePool.Pattern, &plane.ResumeRequest{PoolRequest: of, Reason: plane.Reason(a.Reason), DryRun: a.DryRun}, err
}

// poolRequest returns the pool with the id.
func poolRequest(id plane.Text) (plane.PoolRequest, error) {
	p := strings.Split(string(id), "/")
	if len(p) != 3 || strings.Contains(string(id), "*") || slices.Contains(p, "") {
		return plane.PoolRequest{}, problem.New(problem.Validation, "The value is not the id of a pool.", "Use forge/org/pool, from list_runners.")
	}
	return plane.PoolRequest{Forge: p[0], Org: p[1], Pool: p[2]}, nil
}

func createdSummary(c plane.Created, _ plane.Meta) string {
	about := "The number of affected workloads is not known."
	if c.Targets != nil {
		about = "It affects " + countOf(*c.Targets, "workload") + "."
	}
	switch {
	case c.DryRun:
		return "Nothing was changed. This hold would be created. " + about
	case c.Created:
		return "The hold is created. " + about + " Runners are paused only when list_runners shows the state Paused."
	}
	return "You already have this hold. " + about
}

func liftedSummary(l plane.Lifted, _ plane.Meta) string {
	s := fmt.Sprintf("%s lifted: %s.", countOf(len(l.Lifted), "hold"), strings.Join(l.Lifted, ", "))
	if l.DryRun {
		s = "Nothing was changed. It would be: " + s
	}
	if len(l.Remaining) > 0 {
		s += " The same runners are still held by " + strings.Join(l.Remaining, ", ") + "."
	}
	return s
}
