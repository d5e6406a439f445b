package plane

import (
	"slices"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
)

// maxFleetList is the maximum size of a list of runners, in bytes.
const maxFleetList = 16 << 20

// The operations. The server, the client, the reference, the MCP tools and the commands of tka are all derived from them.
var (
	ListPools = httpapi.Op[FleetListRequest, Envelope[[]Pool]]{Pattern: "GET " + Base + "/pools", Verb: access.FleetRead, MaxResponse: maxFleetList,
		Doc: "List the runners of each organisation in each pool.", Responses: []Envelope[[]Pool]{newExamplePage("PoolList", examplePoolObject())}, Refusals: listRefusals}
	GetPool = httpapi.Op[PoolRequest, Envelope[Pool]]{Pattern: "GET " + Base + "/pools/{forge}/{org}/{pool}", Verb: access.FleetRead,
		Doc: "Show the runners of one organisation in one pool.", Example: examplePoolRequest, Responses: []Envelope[Pool]{newExample("Pool", examplePoolObject())}, Refusals: getRefusals}
	// ListRunnersByForge has the path that the existing dashboard and its tools use.
	ListRunnersByForge = httpapi.Op[RunnersRequest, Envelope[Runners]]{Pattern: "GET /api/runners", Verb: access.FleetRead, MaxResponse: maxFleetList,
		Doc: "Show the runners, grouped by forge.", Responses: []Envelope[Runners]{newExample("Runners", Runners{[]ForgeRunners{{Forge: "github", Type: "github", Source: "ok",
			Counts: Counts{new(1), new(2), new(0), new(0)}, Orgs: []string{"acme"}, Runners: []Pool{examplePoolObject()}}}})}, Refusals: listRefusals}
	ListEnrollments = httpapi.Op[FleetListRequest, Envelope[[]Enrollment]]{Pattern: "GET " + Base + "/enrollments", Verb: access.FleetRead, MaxResponse: maxFleetList,
		Doc: "List the organisations that have runners.", Responses: []Envelope[[]Enrollment]{newExamplePage("EnrollmentList", exampleEnrollment())}, Refusals: listRefusals}
	GetEnrollment = httpapi.Op[EnrollmentRequest, Envelope[Enrollment]]{Pattern: "GET " + Base + "/enrollments/{org}", Verb: access.FleetRead,
		Doc: "Show one organisation.", Example: EnrollmentRequest{"acme"}, Responses: []Envelope[Enrollment]{newExample("Enrollment", exampleEnrollment())}, Refusals: getRefusals}
	ListForges = listOperation("forges", access.FleetRead, forges(), "List the forges, where jobs come from.", Forge{ID: "github", Name: "github", Type: "github", URL: "https://github.com",
		Reachable: new(true), RateLimit: &RateLimit{Remaining: 4800}, Conditions: []Condition{}, ObservedAt: exampleTime})
	ListDrift = httpapi.Op[FleetListRequest, Envelope[[]Drift]]{Pattern: "GET " + Base + "/drift", Verb: access.FleetRead, MaxResponse: maxFleetList,
		Doc: "List the drift of runners, at the forge or in the cluster.", Responses: []Envelope[[]Drift]{newExamplePage("DriftList", exampleDrift())}, Refusals: listRefusals}
	ListHolds = httpapi.Op[FleetListRequest, Envelope[[]Hold]]{Pattern: "GET " + Base + "/holds", Verb: access.FleetRead, MaxResponse: maxFleetList,
		Doc: "List the holds, which pause runners.", Responses: []Envelope[[]Hold]{newExamplePage("HoldList", exampleHold())}, Refusals: listRefusals}
	GetHold = httpapi.Op[HoldRequest, Envelope[Hold]]{Pattern: "GET " + Base + "/holds/{name}", Verb: access.FleetRead,
		Doc: "Show one hold and its progress.", Example: HoldRequest{"acme-gh-nix-3f9c1a2b4d5e"}, Responses: []Envelope[Hold]{newExample("Hold", exampleHold())}, Refusals: getRefusals}

	CreateHold = httpapi.Op[CreateRequest, Envelope[Created]]{Pattern: "POST " + Base + "/holds", Verb: access.HoldsCreate,
		Doc:       "Pause the runners of one pool of an organisation. A wider scope (an organisation, a pool, a forge, or all) needs a second, confirmed request.",
		Example:   CreateRequest{Scope: Scope{All: true}, Mode: ModePause, Reason: "node upgrade", ExpiresIn: httpapi.Duration(2 * time.Hour), Confirm: "PAUSE ALL", Key: "1f0c6c1e"},
		Responses: []Envelope[Created]{newExample("HoldCreated", Created{Hold: exampleHold(), Created: true, Targets: new(1)})},
		Refusals:  slices.Concat(writeRefusals, []problem.Code{problem.Confirmation})}
	PausePool = httpapi.Op[PauseRequest, Envelope[Created]]{Pattern: "POST " + Base + "/pools/{forge}/{org}/{pool}/pause", Verb: access.HoldsCreate,
		Doc: "Pause the runners of one organisation in one pool.", Example: PauseRequest{examplePoolRequest, PauseOptions{Reason: "a flaky image"}},
		Responses: []Envelope[Created]{newExample("HoldCreated", Created{Hold: exampleHold(), Created: true, Targets: new(1)})}, Refusals: writeRefusals}
	ResumePool = httpapi.Op[ResumeRequest, Envelope[Lifted]]{Pattern: "POST " + Base + "/pools/{forge}/{org}/{pool}/resume", Verb: access.HoldsLift,
		Doc: "Lift the holds of exactly one organisation in one pool.", Example: ResumeRequest{PoolRequest: examplePoolRequest, Reason: "the image is mended"},
		Responses: []Envelope[Lifted]{newExample("HoldLifted", Lifted{Lifted: []string{"acme-gh-nix-3f9c1a2b4d5e"}, Remaining: []string{}})},
		Refusals:  slices.Concat(writeRefusals, []problem.Code{problem.Held, problem.AuditUnavailable})}
	LiftHold = httpapi.Op[LiftRequest, Envelope[Lifted]]{Pattern: "DELETE " + Base + "/holds/{name}", Verb: access.HoldsLift,
		Doc:       "Lift a hold. A hold with a wider scope than one pool of an organisation needs a code that a person gets from the dashboard.",
		Example:   LiftRequest{Name: "all-3f9c1a2b4d5e", Reason: "the upgrade is done", Confirm: "K7QM-2XPA-9D"},
		Responses: []Envelope[Lifted]{newExample("HoldLifted", Lifted{Lifted: []string{"all-3f9c1a2b4d5e"}, Remaining: []string{}})},
		Refusals:  slices.Concat(writeRefusals, []problem.Code{problem.Confirmation, problem.AuditUnavailable})}
	RescheduleHold = httpapi.Op[RescheduleRequest, Envelope[Rescheduled]]{Pattern: "PATCH " + Base + "/holds/{name}", Verb: access.HoldsLift,
		Doc:       "Change when a hold expires automatically. An earlier expiry of a hold with a wider scope than one pool of an organisation needs a code that a person gets from the dashboard.",
		Example:   RescheduleRequest{Name: "acme-gh-nix-3f9c1a2b4d5e", ExpiresIn: httpapi.Duration(4 * time.Hour), Reason: "the upgrade takes longer", Match: "1"},
		Responses: []Envelope[Rescheduled]{newExample("HoldRescheduled", Rescheduled{Hold: exampleHold()})}, Refusals: slices.Concat(writeRefusals, []problem.Code{problem.Confirmation, problem.AuditUnavailable})}

	IgnoreDrift = httpapi.Op[IgnoreRequest, Envelope[Ignoring]]{Pattern: "POST " + Base + "/drift/{id}/ignore", Verb: access.ConfigPropose,
		Doc:       "Ignore a drift for a limited time. It stays in the list but is not counted. A drift that gets worse is reported again.",
		Example:   IgnoreRequest{ID: "5f0c2b1a9d3e4f60", Reason: "we try other labels", ExpiresIn: httpapi.Duration(72 * time.Hour)},
		Responses: []Envelope[Ignoring]{newExample("DriftIgnored", Ignoring{Drift: exampleDrift().WithIgnore(DriftIgnore{"amy@acme.dev", "we try other labels", exampleTime.Add(72 * time.Hour)})})}, Refusals: slices.Concat(writeRefusals, []problem.Code{problem.AuditUnavailable})}
	UnignoreDrift = httpapi.Op[UnignoreRequest, Envelope[Ignoring]]{Pattern: "DELETE " + Base + "/drift/{id}/ignore", Verb: access.ConfigPropose,
		Doc: "Stop ignoring a drift.", Example: UnignoreRequest{ID: "5f0c2b1a9d3e4f60", Reason: "the trial is over"},
		Responses: []Envelope[Ignoring]{newExample("DriftIgnored", Ignoring{Drift: exampleDrift()})}, Refusals: slices.Concat(writeRefusals, []problem.Code{problem.AuditUnavailable})}
	RefreshDrift = httpapi.Op[RefreshRequest, Envelope[Refreshed]]{Pattern: "POST " + Base + "/drift/refresh", Verb: access.ConfigPropose,
		Doc:       "Compare the configuration repository with the cluster now. The fleet makes its own comparisons on its own schedule, and the response says so.",
		Responses: []Envelope[Refreshed]{newExample("DriftRefreshed", Refreshed{[]Look{{"gitops:drift", true, "The comparison starts now."}}})}, Refusals: slices.Concat(streamRefusals, []problem.Code{problem.MediaType, problem.TooLarge, problem.AuditUnavailable})}

	GetConfirmation = httpapi.Op[ConfirmationRequest, Envelope[Asked]]{Pattern: "GET " + Base + "/confirmations/{id}", Verb: access.HoldsLift,
		Doc: "Show a request that waits for the caller's confirmation, with its exact arguments.", Example: ConfirmationRequest{"0b1c2d3e4f5a6b7c"},
		Responses: []Envelope[Asked]{newExample("Confirmation", exampleConfirmation())}, Refusals: getRefusals}
	ConfirmAction = httpapi.Op[ConfirmRequest, Envelope[Code]]{Pattern: "POST " + Base + "/confirmations", Verb: access.HoldsLift,
		Doc:     "Confirm a request that was made in the caller's name, and get its code. The code is valid once, within five minutes, for the same caller and arguments. It is not available as a tool.",
		Example: ConfirmRequest{ID: "0b1c2d3e4f5a6b7c", Phrase: "LIFT ALL"}, Responses: []Envelope[Code]{newExample("ConfirmationCode", Code{"K7QM-2XPA-9D", exampleTime.Add(confirmLife)})},
		Refusals: slices.Concat(streamRefusals, []problem.Code{problem.NotFound, problem.Validation, problem.MediaType, problem.TooLarge})}
)

// Routes returns the routes of the API, served by d.
func (d *FleetService) Routes() []httpapi.Route {
	return append(d.routesByName(),
		handle(d.Plane, ListPools, d.listPools), handle(d.Plane, GetPool, d.getPool), handle(d.Plane, ListRunnersByForge, d.listRunnersByForge),
		handle(d.Plane, ListEnrollments, d.listEnrollments),
		handle(d.Plane, GetEnrollment, getter(d.Plane, enrollments(), "organisation", func(r EnrollmentRequest) string { return r.Org })),
		listRoute(d.Plane, ListForges, forges()),
		handle(d.Plane, ListDrift, d.listDrift), handle(d.Plane, ListHolds, d.listHolds),
		handle(d.Plane, GetHold, getter(d.Plane, holds(), "hold", func(r HoldRequest) string { return r.Name })), handle(d.Plane, CreateHold, d.createHold),
		handle(d.Plane, PausePool, d.pausePool), handle(d.Plane, ResumePool, d.resumePool), handle(d.Plane, LiftHold, d.liftHold),
		handle(d.Plane, RescheduleHold, d.rescheduleHold),
		handle(d.Plane, IgnoreDrift, d.ignoreDrift), handle(d.Plane, UnignoreDrift, d.unignoreDrift), handle(d.Plane, RefreshDrift, d.refreshDrift),
		handle(d.Plane, GetConfirmation, d.getConfirmation), handle(d.Plane, ConfirmAction, d.confirm),
	)
}

var examplePoolRequest = PoolRequest{"github", "acme", "gh-nix"}

func examplePoolObject() Pool {
	return Pool{ID: "github/acme/gh-nix", Name: "gh-nix", Forge: "github", OrgName: "acme", Type: "Shared", Isolation: "None", RunsOn: []string{"self-hosted", "nix"},
		Scaling: &Scaling{0, 5, 20}, State: PoolActive, Holds: []string{}, Counts: Counts{new(1), new(2), new(0), new(0)}, EffectiveMax: new(5), Allocated: new(5), Assigned: new(2),
		Controller: Controller{"AutoscalingRunnerSet", "tailplane-runners", "acme-gh-nix"}, ScaleSetID: new(int64(17)), Drift: []string{},
		Actions: &PoolActions{Pause: Action{Allowed: true}, Resume: Action{Why: "No hold applies to it."}}, ObservedAt: exampleTime}
}

// exampleEnrollment returns an organisation, for the reference.
func exampleEnrollment() Enrollment {
	return Enrollment{ID: "acme", Name: "acme", Forge: "github", ConfigURL: "https://github.com/acme", Isolation: "None", Phase: "Active",
		Pools: []EnrolledPool{{Name: "gh-nix", Type: "Shared", Repositories: []string{}}}, ExternalScaleSets: []Adoption{}, Owners: []string{"amy@acme.dev"}, Members: []string{}, Conditions: []Condition{}, RequestedBy: []string{}, ObservedAt: exampleTime}
}

func exampleHold() Hold {
	return Hold{ID: "acme-gh-nix-3f9c1a2b4d5e", Name: "acme-gh-nix-3f9c1a2b4d5e", UID: "6f1f3f0e-6f0e-4f0c-9a63-1f4f6f6f2b11", Version: "1", Scope: Scope{Org: "acme", Pool: "gh-nix"}, Mode: ModePause,
		Reason: "a flaky image", RequestedBy: "alice@example.com", Created: exampleTime, State: HoldApplying, Failed: []HoldFailure{}, ObservedAt: exampleTime}
}

func exampleDrift() Drift {
	return Drift{ID: "5f0c2b1a9d3e4f60", OrgName: "acme", Forge: "github", Pool: "gh-nix", Workload: "acme-gh-nix", Field: "LabelsDiffer", Kind: DriftForge, Severity: "warning",
		Want: new("self-hosted, nix"), Have: new("self-hosted"), Evidence: "Its labels at the forge differ from the labels of the pool.", Next: "Restore the labels, or change the pool.", FirstSeen: exampleTime, ObservedAt: exampleTime}
}

func exampleConfirmation() Asked {
	return Asked{ID: "0b1c2d3e4f5a6b7c", Verb: access.HoldsLift, Object: "all-3f9c1a2b4d5e", Args: map[string]string{"hold": "all-3f9c1a2b4d5e", "reason": "the upgrade is done"},
		Phrase: "LIFT ALL", Until: exampleTime.Add(confirmLife)}
}
