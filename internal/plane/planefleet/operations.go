package planefleet

import (
	"slices"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
)

// maxList is the maximum size of a list of runners, in bytes.
const maxList = 16 << 20

// The operations. The server, the client, the reference, the MCP tools and the commands of tka are all derived from them.
var (
	ListPools = door.Op[ListRequest, plane.Envelope[[]Pool]]{Pattern: "GET " + plane.Base + "/pools", Verb: access.FleetRead, MaxAnswer: maxList,
		Doc: "List the runners of each organisation in each pool.", Answers: []plane.Envelope[[]Pool]{plane.ExamplePage("PoolList", examplePool())}, Refusals: plane.Reading}
	GetPool = door.Op[PoolRequest, plane.Envelope[Pool]]{Pattern: "GET " + plane.Base + "/pools/{forge}/{org}/{pool}", Verb: access.FleetRead,
		Doc: "Show the runners of one organisation in one pool.", Example: examplePoolRequest, Answers: []plane.Envelope[Pool]{plane.Example("Pool", examplePool())}, Refusals: plane.Finding}
	// ListRunners has the path that the existing dashboard and its tools use.
	ListRunners = door.Op[RunnersRequest, plane.Envelope[Runners]]{Pattern: "GET /api/runners", Verb: access.FleetRead, MaxAnswer: maxList,
		Doc: "Show the runners, grouped by forge.", Answers: []plane.Envelope[Runners]{plane.Example("Runners", Runners{[]ForgeRunners{{Forge: "github", Type: "github", Source: "ok",
			Counts: Counts{new(1), new(2), new(0), new(0)}, Orgs: []string{"acme"}, Runners: []Pool{examplePool()}}}})}, Refusals: plane.Reading}
	ListEnrollments = door.Op[ListRequest, plane.Envelope[[]Enrollment]]{Pattern: "GET " + plane.Base + "/enrollments", Verb: access.FleetRead, MaxAnswer: maxList,
		Doc: "List the organisations that have runners.", Answers: []plane.Envelope[[]Enrollment]{plane.ExamplePage("EnrollmentList", ExampleEnrollment())}, Refusals: plane.Reading}
	GetEnrollment = door.Op[EnrollmentRequest, plane.Envelope[Enrollment]]{Pattern: "GET " + plane.Base + "/enrollments/{org}", Verb: access.FleetRead,
		Doc: "Show one organisation.", Example: EnrollmentRequest{"acme"}, Answers: []plane.Envelope[Enrollment]{plane.Example("Enrollment", ExampleEnrollment())}, Refusals: plane.Finding}
	ListForges = plane.ListOf("forges", access.FleetRead, forges(), "List where jobs come from.", Forge{ID: "github", Name: "github", Type: "github", URL: "https://github.com",
		Reachable: new(true), RateLimit: &RateLimit{Remaining: 4800}, Conditions: []plane.Condition{}, ObservedAt: plane.ExampleTime})
	ListDrift = door.Op[ListRequest, plane.Envelope[[]Drift]]{Pattern: "GET " + plane.Base + "/drift", Verb: access.FleetRead, MaxAnswer: maxList,
		Doc: "List what of the runners is not as it should be, at the forge or here.", Answers: []plane.Envelope[[]Drift]{plane.ExamplePage("DriftList", exampleDrift())}, Refusals: plane.Reading}
	ListHolds = door.Op[ListRequest, plane.Envelope[[]Hold]]{Pattern: "GET " + plane.Base + "/holds", Verb: access.FleetRead, MaxAnswer: maxList,
		Doc: "List the holds, which pause runners.", Answers: []plane.Envelope[[]Hold]{plane.ExamplePage("HoldList", exampleHold())}, Refusals: plane.Reading}
	GetHold = door.Op[HoldRequest, plane.Envelope[Hold]]{Pattern: "GET " + plane.Base + "/holds/{name}", Verb: access.FleetRead,
		Doc: "Show one hold, and how far it has come.", Example: HoldRequest{"acme-gh-nix-3f9c1a2b4d5e"}, Answers: []plane.Envelope[Hold]{plane.Example("Hold", exampleHold())}, Refusals: plane.Finding}

	CreateHold = door.Op[CreateRequest, plane.Envelope[Created]]{Pattern: "POST " + plane.Base + "/holds", Verb: access.HoldsCreate,
		Doc:      "Pause runners: of one pool of an organisation, or, asked for twice, of an organisation, a pool, a forge, or all.",
		Example:  CreateRequest{Scope: Scope{All: true}, Mode: Pause, Reason: "node upgrade", ExpiresIn: door.Duration(2 * time.Hour), Confirm: "PAUSE ALL", Key: "1f0c6c1e"},
		Answers:  []plane.Envelope[Created]{plane.Example("HoldCreated", Created{Hold: exampleHold(), Created: true, Targets: new(1)})},
		Refusals: slices.Concat(plane.Writing, []problem.Code{problem.Confirmation})}
	PausePool = door.Op[PauseRequest, plane.Envelope[Created]]{Pattern: "POST " + plane.Base + "/pools/{forge}/{org}/{pool}/pause", Verb: access.HoldsCreate,
		Doc: "Pause the runners of one organisation in one pool.", Example: PauseRequest{Forge: "github", Org: "acme", Pool: "gh-nix", Reason: "a flaky image"},
		Answers: []plane.Envelope[Created]{plane.Example("HoldCreated", Created{Hold: exampleHold(), Created: true, Targets: new(1)})}, Refusals: plane.Writing}
	ResumePool = door.Op[ResumeRequest, plane.Envelope[Lifted]]{Pattern: "POST " + plane.Base + "/pools/{forge}/{org}/{pool}/resume", Verb: access.HoldsLift,
		Doc: "Lift what holds the runners of exactly one organisation in one pool.", Example: ResumeRequest{Forge: "github", Org: "acme", Pool: "gh-nix", Reason: "the image is mended"},
		Answers:  []plane.Envelope[Lifted]{plane.Example("HoldLifted", Lifted{Lifted: []string{"acme-gh-nix-3f9c1a2b4d5e"}, Remaining: []string{}})},
		Refusals: slices.Concat(plane.Writing, []problem.Code{problem.Held, problem.AuditUnavailable})}
	LiftHold = door.Op[LiftRequest, plane.Envelope[Lifted]]{Pattern: "DELETE " + plane.Base + "/holds/{name}", Verb: access.HoldsLift,
		Doc:      "Lift a hold. One of more than a pool of an organisation takes a code that a person gets from the dashboard.",
		Example:  LiftRequest{Name: "all-3f9c1a2b4d5e", Reason: "the upgrade is done", Confirm: "K7QM-2XPA-9D"},
		Answers:  []plane.Envelope[Lifted]{plane.Example("HoldLifted", Lifted{Lifted: []string{"all-3f9c1a2b4d5e"}, Remaining: []string{}})},
		Refusals: slices.Concat(plane.Writing, []problem.Code{problem.Confirmation, problem.AuditUnavailable})}
	RescheduleHold = door.Op[RescheduleRequest, plane.Envelope[Rescheduled]]{Pattern: "PATCH " + plane.Base + "/holds/{name}", Verb: access.HoldsLift,
		Doc:     "Change when a hold ends by itself. An earlier end of one of more than a pool of an organisation takes a code that a person gets from the dashboard.",
		Example: RescheduleRequest{Name: "acme-gh-nix-3f9c1a2b4d5e", ExpiresIn: door.Duration(4 * time.Hour), Reason: "the upgrade takes longer", Match: "1"},
		Answers: []plane.Envelope[Rescheduled]{plane.Example("HoldRescheduled", Rescheduled{Hold: exampleHold()})}, Refusals: slices.Concat(plane.Writing, []problem.Code{problem.Confirmation, problem.AuditUnavailable})}

	IgnoreDrift = door.Op[IgnoreRequest, plane.Envelope[Ignoring]]{Pattern: "POST " + plane.Base + "/drift/{id}/ignore", Verb: access.ConfigPropose,
		Doc:     "Ignore a drift for a while: it stays listed, and is not counted. One that gets worse is told again.",
		Example: IgnoreRequest{ID: "5f0c2b1a9d3e4f60", Reason: "we try other labels", ExpiresIn: door.Duration(72 * time.Hour)},
		Answers: []plane.Envelope[Ignoring]{plane.Example("DriftIgnored", Ignoring{Drift: exampleDrift().Ignoring(Ignored{"amy@acme.dev", "we try other labels", plane.ExampleTime.Add(72 * time.Hour)})})}, Refusals: slices.Concat(plane.Writing, []problem.Code{problem.AuditUnavailable})}
	UnignoreDrift = door.Op[UnignoreRequest, plane.Envelope[Ignoring]]{Pattern: "DELETE " + plane.Base + "/drift/{id}/ignore", Verb: access.ConfigPropose,
		Doc: "Ignore a drift no more.", Example: UnignoreRequest{ID: "5f0c2b1a9d3e4f60", Reason: "the trial is over"},
		Answers: []plane.Envelope[Ignoring]{plane.Example("DriftIgnored", Ignoring{Drift: exampleDrift()})}, Refusals: slices.Concat(plane.Writing, []problem.Code{problem.AuditUnavailable})}
	RefreshDrift = door.Op[RefreshRequest, plane.Envelope[Refreshed]]{Pattern: "POST " + plane.Base + "/drift/refresh", Verb: access.ConfigPropose,
		Doc:     "Look for drift anew: at the repository of the configuration. What only the fleet can compare it compares by itself, and the answer says so.",
		Answers: []plane.Envelope[Refreshed]{plane.Example("DriftRefreshed", Refreshed{[]Look{{"gitops:drift", true, "It is compared anew now."}}})}, Refusals: slices.Concat(plane.Limited, []problem.Code{problem.MediaType, problem.TooLarge, problem.AuditUnavailable})}

	GetConfirmation = door.Op[ConfirmationRequest, plane.Envelope[Asked]]{Pattern: "GET " + plane.Base + "/confirmations/{id}", Verb: access.HoldsLift,
		Doc: "Show what is to be confirmed: exactly what was asked for in the caller's name.", Example: ConfirmationRequest{"0b1c2d3e4f5a6b7c"},
		Answers: []plane.Envelope[Asked]{plane.Example("Confirmation", exampleAsked())}, Refusals: plane.Finding}
	Confirm = door.Op[ConfirmRequest, plane.Envelope[Code]]{Pattern: "POST " + plane.Base + "/confirmations", Verb: access.HoldsLift,
		Doc:     "Confirm what was asked for in the caller's name, and get the code for it: for the same caller and the same arguments, once, within five minutes. It is no tool.",
		Example: ConfirmRequest{ID: "0b1c2d3e4f5a6b7c", Phrase: "LIFT ALL"}, Answers: []plane.Envelope[Code]{plane.Example("ConfirmationCode", Code{"K7QM-2XPA-9D", plane.ExampleTime.Add(confirmLife)})},
		Refusals: slices.Concat(plane.Limited, []problem.Code{problem.NotFound, problem.Validation, problem.MediaType, problem.TooLarge})}
)

// Routes returns the routes of the API, served by d.
func (d *Desk) Routes() []door.Route {
	return append(d.named(),
		plane.Behind(d.Plane, ListPools, d.pools), plane.Behind(d.Plane, GetPool, d.pool), plane.Behind(d.Plane, ListRunners, d.runners),
		plane.Behind(d.Plane, ListEnrollments, d.enrollments), plane.Behind(d.Plane, GetEnrollment, d.enrollment), plane.Pages(d.Plane, ListForges, forges()),
		plane.Behind(d.Plane, ListDrift, d.drifts), plane.Behind(d.Plane, ListHolds, d.holds), plane.Behind(d.Plane, GetHold, d.hold), plane.Behind(d.Plane, CreateHold, d.create),
		plane.Behind(d.Plane, PausePool, d.pause), plane.Behind(d.Plane, ResumePool, d.resume), plane.Behind(d.Plane, LiftHold, d.lift),
		plane.Behind(d.Plane, RescheduleHold, d.reschedule),
		plane.Behind(d.Plane, IgnoreDrift, d.ignore), plane.Behind(d.Plane, UnignoreDrift, d.unignore), plane.Behind(d.Plane, RefreshDrift, d.refresh),
		plane.Behind(d.Plane, GetConfirmation, d.asked), plane.Behind(d.Plane, Confirm, d.confirm),
	)
}

// Operations describes the API.
func Operations() []door.Declaration {
	var all []door.Declaration
	for _, rt := range (&Desk{Plane: new(plane.Desk)}).Routes() {
		all = append(all, rt.Declaration)
	}
	return all
}

var examplePoolRequest = PoolRequest{"github", "acme", "gh-nix"}

func examplePool() Pool {
	return Pool{ID: "github/acme/gh-nix", Name: "gh-nix", Forge: "github", OrgName: "acme", Type: "Shared", Isolation: "None", RunsOn: []string{"self-hosted", "nix"},
		Scaling: &Scaling{0, 5, 20}, State: Active, Holds: []string{}, Counts: Counts{new(1), new(2), new(0), new(0)}, EffectiveMax: new(5), Allocated: new(5), Assigned: new(2),
		Controller: Controller{"AutoscalingRunnerSet", "tailplane-runners", "acme-gh-nix"}, ScaleSetID: new(int64(17)), Drift: []string{},
		Actions: &PoolActions{Pause: plane.Action{Allowed: true}, Resume: plane.Action{Why: "Nothing holds it."}}, ObservedAt: plane.ExampleTime}
}

// ExampleEnrollment returns an organisation, for the reference.
func ExampleEnrollment() Enrollment {
	return Enrollment{ID: "acme", Name: "acme", Forge: "github", ConfigURL: "https://github.com/acme", Isolation: "None", Phase: "Active",
		Pools: []EnrolledPool{{Name: "gh-nix", Type: "Shared", Repositories: []string{}}}, Adopted: []Adoption{}, Owners: []string{"amy@acme.dev"}, Members: []string{}, Conditions: []plane.Condition{}, RequestedBy: []string{}, ObservedAt: plane.ExampleTime}
}

func exampleHold() Hold {
	return Hold{ID: "acme-gh-nix-3f9c1a2b4d5e", Name: "acme-gh-nix-3f9c1a2b4d5e", UID: "6f1f3f0e-6f0e-4f0c-9a63-1f4f6f6f2b11", Version: "1", Scope: Scope{Org: "acme", Pool: "gh-nix"}, Mode: Pause,
		Reason: "a flaky image", RequestedBy: "alice@example.com", Created: plane.ExampleTime, State: Applying, Failed: []HoldFailure{}, ObservedAt: plane.ExampleTime}
}

func exampleDrift() Drift {
	return Drift{ID: "5f0c2b1a9d3e4f60", OrgName: "acme", Forge: "github", Pool: "gh-nix", Workload: "acme-gh-nix", Field: "LabelsDiffer", Kind: DriftForge, Severity: "warning",
		Want: new("self-hosted, nix"), Have: new("self-hosted"), Evidence: "Its labels at the forge are not those of the pool.", Next: "Put the labels back, or change the pool.", FirstSeen: plane.ExampleTime, ObservedAt: plane.ExampleTime}
}

func exampleAsked() Asked {
	return Asked{ID: "0b1c2d3e4f5a6b7c", Verb: access.HoldsLift, Object: "all-3f9c1a2b4d5e", Args: map[string]string{"hold": "all-3f9c1a2b4d5e", "reason": "the upgrade is done"},
		Phrase: "LIFT ALL", Until: plane.ExampleTime.Add(confirmLife)}
}
