package planemcp

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/plane/planefleet"
	"github.com/tailplane/tailplane/internal/problem"
)

// fleetTools returns the tools for runners. There is deliberately no tool to confirm a lift, because a person does that on the dashboard.
// There is no tool to end running jobs either (MC-02).

func fleetTools() []tool {
	state := func(o planefleet.Pool) string { return word(o.State, o.StateReason, false, "") }
	pools := func(all []planefleet.Pool) table {
		return grid([]string{"FORGE", "ORG", "POOL", "IDLE", "BUSY", "PENDING", "FAILED", "MAX", "STATE"}, all, func(o planefleet.Pool) []string {
			return []string{o.Forge, o.OrgName, o.Name, maybe(o.Counts.Idle), maybe(o.Counts.Busy), maybe(o.Counts.Pending), maybe(o.Counts.Failed), maybe(o.EffectiveMax), state(o)}
		})
	}
	holds := func(all []planefleet.Hold) table {
		return grid([]string{"NAME", "HOLDS", "MODE", "STATE", "BY", "SINCE", "UNTIL", "REASON"}, all, func(o planefleet.Hold) []string {
			return []string{o.Name, o.Scope.String(), string(o.Mode), o.State, o.RequestedBy, moment(o.Created), maybeMoment(o.ExpiresAt), o.Reason}
		})
	}
	drifts := func(all []planefleet.Drift) table {
		return grid([]string{"ORG", "POOL", "WHAT", "STATE", "SINCE", "EVIDENCE", "NEXT"}, all, func(o planefleet.Drift) []string {
			return []string{o.OrgName, o.Pool, o.Field, o.Stands(), moment(o.FirstSeen), o.Evidence, o.Next}
		})
	}
	return []tool{
		paged(tool{name: "list_runners", title: "Runners", set: Fleet, verb: planefleet.ListPools.Verb, doc: planefleet.ListPools.Doc, pattern: planefleet.ListPools.Pattern, most: planefleet.ListPools.MaxAnswer}, "pool", pools),
		asking(tool{name: "get_runner", title: "Runners of a pool", set: Fleet, verb: planefleet.GetPool.Verb, doc: planefleet.GetPool.Doc, pattern: planefleet.GetPool.Pattern, most: planefleet.GetPool.MaxAnswer},
			func(a *poolArgs) (string, any, error) {
				of, err := poolOf(a.Pool)
				return planefleet.GetPool.Pattern, &of, err
			}, func(o planefleet.Pool, _ plane.Meta) string { return o.ID + " is " + o.State + "." }, func(o planefleet.Pool) table { return pools([]planefleet.Pool{o}) }),
		list(tool{name: "list_forges", title: "Forges", set: Fleet, verb: planefleet.ListForges.Verb, doc: planefleet.ListForges.Doc, pattern: planefleet.ListForges.Pattern, most: planefleet.ListForges.MaxAnswer}, "forge", []string{"NAME", "TYPE", "URL", "REACHABLE"}, func(o planefleet.Forge) []string {
			return []string{o.Name, o.Type, o.URL, maybe(o.Reachable)}
		}),
		paged(tool{name: "list_enrollments", title: "Organisations", set: Fleet, verb: planefleet.ListEnrollments.Verb, doc: planefleet.ListEnrollments.Doc, pattern: planefleet.ListEnrollments.Pattern, most: planefleet.ListEnrollments.MaxAnswer}, "organisation",
			func(all []planefleet.Enrollment) table { return enrollments(all...) }),
		asking(tool{name: "get_enrollment", title: "Organisation", set: Fleet, verb: planefleet.GetEnrollment.Verb, doc: planefleet.GetEnrollment.Doc, pattern: planefleet.GetEnrollment.Pattern, most: planefleet.GetEnrollment.MaxAnswer},
			func(a *orgArgs) (string, any, error) {
				return planefleet.GetEnrollment.Pattern, &planefleet.EnrollmentRequest{Org: string(a.Org)}, nil
			}, func(o planefleet.Enrollment, _ plane.Meta) string { return o.Name + " is " + o.Phase + "." }, func(o planefleet.Enrollment) table { return enrollments(o) }),
		paged(tool{name: "list_holds", title: "Holds", set: Fleet, verb: planefleet.ListHolds.Verb, doc: planefleet.ListHolds.Doc, pattern: planefleet.ListHolds.Pattern, most: planefleet.ListHolds.MaxAnswer}, "hold", holds),
		paged(tool{name: "list_drift", title: "Drift", set: Fleet, verb: planefleet.ListDrift.Verb, doc: planefleet.ListDrift.Doc, pattern: planefleet.ListDrift.Pattern, most: planefleet.ListDrift.MaxAnswer}, "drift", drifts),
		writing(asking(tool{name: "pause_runner", title: "Pause runners", set: Fleet, verb: planefleet.CreateHold.Verb, pattern: planefleet.CreateHold.Pattern, most: planefleet.CreateHold.MaxAnswer,
			doc: "Pause runners: they take no new job, and running jobs finish. Give exactly one of pool, org, forge, and all: true, the emergency pause. What goes further than one pool is refused first, with a phrase to call again with."},
			pause, created, func(c planefleet.Created) table { return holds([]planefleet.Hold{c.Hold}) }), true),
		writing(asking(tool{name: "resume_runner", title: "Resume runners", set: Fleet, verb: planefleet.LiftHold.Verb, pattern: planefleet.LiftHold.Pattern, most: planefleet.LiftHold.MaxAnswer,
			doc: "Lift a hold, or what holds exactly one pool of an organisation. A hold of more takes a code, which only a person can get, at the page that the refusal names."},
			resume, lifted, nil), false),
	}
}

type poolArgs struct {
	Pool plane.Text `query:"pool" required:"true" doc:"forge/org/pool, the id in list_runners"`
}

type orgArgs struct {
	Org plane.Text `query:"org" required:"true" doc:"the organisation's name"`
}

type pauseArgs struct {
	Reason    plane.Text    `query:"reason" required:"true" doc:"why, 1 to 500 characters: it stands in the record"`
	Pool      plane.Text    `query:"pool" doc:"one pool of one organisation: forge/org/pool, the id in list_runners"`
	Org       plane.Text    `query:"org" doc:"all of one organisation"`
	Forge     plane.Text    `query:"forge" doc:"all of one forge"`
	All       plane.Flag    `query:"all" doc:"true: every runner of the fleet"`
	Drain     plane.Flag    `query:"drain" doc:"true: when the last job has ended, what ran it goes"`
	ExpiresIn door.Duration `query:"expiresIn" doc:"when it ends by itself, such as 2h; without it, it does not"`
	DryRun    plane.Flag    `query:"dryRun" doc:"true: ask whether it would be done, and change nothing"`
	Confirm   plane.Text    `query:"confirm" doc:"the phrase that the refusal confirmation_required named"`
}

func pause(a *pauseArgs) (string, any, error) {
	mode := planefleet.Pause
	if a.Drain {
		mode = planefleet.Drain
	}
	r := &planefleet.CreateRequest{Scope: planefleet.Scope{All: bool(a.All), Forge: string(a.Forge), Org: string(a.Org)}, Mode: mode, Reason: plane.Reason(a.Reason), ExpiresIn: a.ExpiresIn, Confirm: a.Confirm, DryRun: a.DryRun}
	given := 0
	for _, is := range []bool{a.Pool != "", a.Org != "", a.Forge != "", bool(a.All)} {
		if is {
			given++
		}
	}
	switch {
	case given != 1:
		return "", nil, problem.New(problem.Validation, "Exactly one of pool, org, forge and all says what is paused.", "For everything: all: true.")
	case strings.Contains(string(a.Pool+a.Org+a.Forge), "*"): // no wildcards (MC-05)
		return "", nil, problem.New(problem.Validation, "\"*\" is no name.", "For everything: all: true.")
	case a.Pool == "":
		return planefleet.CreateHold.Pattern, r, nil
	}
	forge, org, pool, err := parts(string(a.Pool))
	return planefleet.PausePool.Pattern, &planefleet.PauseRequest{Forge: forge, Org: org, Pool: pool, Reason: r.Reason, ExpiresIn: a.ExpiresIn, Drain: bool(a.Drain), DryRun: a.DryRun}, err
}

type resumeArgs struct {
	Reason  plane.Text `query:"reason" required:"true" doc:"why, 1 to 500 characters: it stands in the record"`
	Hold    plane.Text `query:"hold" doc:"the name of the hold"`
	Pool    plane.Text `query:"pool" doc:"or one pool of one organisation: forge/org/pool"`
	DryRun  plane.Flag `query:"dryRun" doc:"true: ask whether it would be done, and change nothing"`
	Confirm plane.Text `query:"confirm" doc:"the code that a person got for it on the dashboard"`
}

func resume(a *resumeArgs) (string, any, error) {
	switch {
	case (a.Hold == "") == (a.Pool == ""):
		return "", nil, problem.New(problem.Validation, "Exactly one of hold and pool says what is resumed.", "list_holds names the holds.")
	case strings.ContainsAny(string(a.Hold), "*/"):
		return "", nil, problem.New(problem.Validation, "That is not the name of a hold.", "list_holds names the holds.")
	case a.Hold != "":
		return planefleet.LiftHold.Pattern, &planefleet.LiftRequest{Name: string(a.Hold), Reason: plane.Reason(a.Reason), Confirm: a.Confirm, DryRun: a.DryRun}, nil
	}
	forge, org, pool, err := parts(string(a.Pool))
	return planefleet.ResumePool.Pattern, &planefleet.ResumeRequest{Forge: forge, Org: org, Pool: pool, Reason: plane.Reason(a.Reason), DryRun: a.DryRun}, err
}

// parts splits the id of a pool.
func parts(id string) (forge, org, pool string, err error) {
	p := strings.Split(id, "/")
	if len(p) != 3 || strings.Contains(id, "*") || p[0] == "" || p[1] == "" || p[2] == "" {
		return "", "", "", problem.New(problem.Validation, "That is not the id of a pool.", "It is forge/org/pool, as list_runners has it.")
	}
	return p[0], p[1], p[2], nil
}

func created(c planefleet.Created, _ plane.Meta) string {
	about := "It is not known how many workloads it is about."
	if c.Targets != nil {
		about = "It is about " + counted(*c.Targets, "workload") + "."
	}
	switch {
	case c.DryRun:
		return "Nothing was changed: this hold would be made. " + about
	case c.Created:
		return "The hold is made. " + about + " Runners are paused when list_runners says so, and not before."
	}
	return "You hold it already. " + about
}

func lifted(l planefleet.Lifted, _ plane.Meta) string {
	s := fmt.Sprintf("%s lifted: %s.", counted(len(l.Lifted), "hold"), strings.Join(l.Lifted, ", "))
	if l.DryRun {
		s = "Nothing was changed. It would be: " + s
	}
	if len(l.Remaining) > 0 {
		s += " The same runners are held still by " + strings.Join(l.Remaining, ", ") + "."
	}
	return s
}

func enrollments(all ...planefleet.Enrollment) table {
	return grid([]string{"NAME", "FORGE", "PHASE", "ISOLATION", "POOLS", "CREDENTIAL UNTIL", "READY", "ADOPTED"}, all, func(o planefleet.Enrollment) []string {
		until := ""
		if o.Credential != nil {
			until = maybeMoment(o.Credential.ExpiresAt)
		}
		return []string{o.Name, o.Forge, o.Phase, o.Isolation, strconv.Itoa(len(o.Pools)), until, readiness(o.Conditions), o.Takers()}
	})
}

// paged returns a tool for a paged list that can be limited to an organisation or forge.
func paged[T any](t tool, noun string, rows func([]T) table) tool {
	t = reading[planefleet.ListRequest](t, func(e *plane.Envelope[[]T]) plane.Envelope[[]T] { return *e }, func(all []T, m plane.Meta) string { return pageOf(len(all), noun, m) }, rows)
	t.view.fewer = func(r any, n int) { r.(*planefleet.ListRequest).Limit = plane.Count(n) }
	t.view.length = func(all any) int { return len(*all.(*[]T)) }
	return t
}

// asking returns a tool whose arguments are not its operation's parameters. ask makes the request from the arguments and selects the
// operation.
func asking[Args, T any](t tool, ask func(*Args) (pattern string, request any, err error), summary func(T, plane.Meta) string, rows func(T) table) tool {
	t = reading[Args](t, func(e *plane.Envelope[T]) plane.Envelope[T] { return *e }, summary, rows)
	t.view.ask = func(args any) (string, any, error) { return ask(args.(*Args)) }
	return t
}

// writing returns t as a tool that makes changes. It is destructive: it stops work for a while, or ends a stop that a person wanted.
func writing(t tool, idempotent bool) tool {
	t.readOnly, t.destructive, t.idempotent = false, true, idempotent
	return t
}
