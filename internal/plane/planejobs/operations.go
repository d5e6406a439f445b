package planejobs

import (
	"slices"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/plane/planefleet"
	"github.com/tailplane/tailplane/internal/problem"
)

// maxList is the maximum size of a list of runners, in bytes.
const maxList = 16 << 20

const ofPool = "GET " + plane.Base + "/pools/{forge}/{org}/{pool}"

// The operations. The server, the client, the reference, the MCP tools and the commands of tka are all derived from them.
var (
	ListRunners = door.Op[ListRequest, plane.Envelope[[]Runner]]{Pattern: ofPool + "/runners", Verb: access.FleetRead, MaxAnswer: maxList,
		Doc: "List the runners of one organisation in one pool.", Example: exampleList, Answers: []plane.Envelope[[]Runner]{plane.ExamplePage("RunnerList", exampleRunner())}, Refusals: plane.Seeking}
	ListJobs = door.Op[ListRequest, plane.Envelope[[]Runner]]{Pattern: ofPool + "/jobs", Verb: access.FleetRead, MaxAnswer: maxList,
		Doc: "List the jobs of one organisation in one pool: the runners that have one.", Example: exampleList, Answers: []plane.Envelope[[]Runner]{plane.ExamplePage("RunnerList", exampleRunner())}, Refusals: plane.Seeking}
	// The next two have the paths that the existing dashboard and its tools use.
	ListPods = door.Op[planefleet.ListRequest, plane.Envelope[[]Runner]]{Pattern: "GET /api/k8s/pods", Verb: access.FleetRead, MaxAnswer: maxList,
		Doc: "List all runners that the caller may see.", Answers: ListRunners.Answers, Refusals: plane.Reading}
	GetNamedConfig = door.Op[NameRequest, plane.Envelope[Config]]{Pattern: "GET /api/gitops/config", Verb: access.FleetRead, Example: NameRequest{"gh-nix"},
		Doc:     "Show what is in force for the runners of one organisation in one pool, by a name that no other pool has that the caller may see, or by its id.",
		Answers: GetConfig.Answers, Refusals: slices.Concat(plane.Seeking, []problem.Code{problem.Conflict})}

	ListEvents = door.Op[planefleet.PoolRequest, plane.Envelope[[]Event]]{Pattern: ofPool + "/events", Verb: access.FleetRead, MaxAnswer: 4 << 20,
		Doc: "List what happened lately to the runners of one organisation in one pool, the newest first; at most 200.", Example: examplePool, Answers: []plane.Envelope[[]Event]{plane.Example("EventList", []Event{exampleEvent})}, Refusals: plane.Finding}
	GetConfig = door.Op[planefleet.PoolRequest, plane.Envelope[Config]]{Pattern: ofPool + "/config", Verb: access.FleetRead,
		Doc: "Show what is in force for the runners of one organisation in one pool, and where each of it comes from.", Example: examplePool,
		Answers: []plane.Envelope[Config]{plane.Example("PoolConfig", Config{"github/acme/gh-nix", []planefleet.Setting{{Name: "scaling.max", Value: "3", From: "RunnerEnrollment acme",
			Over: []planefleet.Origin{{Value: "5", From: "RunnerPool gh-nix"}}}}})}, Refusals: plane.Finding}
	GetDiagnosis = door.Op[planefleet.PoolRequest, plane.Envelope[Diagnosis]]{Pattern: ofPool + "/diagnosis", Verb: access.FleetRead,
		Doc: "Say what keeps the runners of one organisation in one pool from working, the worst first: what it is, what says so, and what to do.", Example: examplePool,
		Answers: []plane.Envelope[Diagnosis]{plane.Example("PoolDiagnosis", Diagnosis{"github/acme/gh-nix", planefleet.Paused, []Finding{{plane.Warning, "It is held: it takes no new job.",
			"Hold node-upgrade by alice@example.com: node upgrade", "Ask who set the hold, or resume it: node-upgrade."}}})}, Refusals: plane.Finding}
	GetRunner = door.Op[RunnerRequest, plane.Envelope[Runner]]{Pattern: "GET " + plane.Base + "/runners/{namespace}/{name}", Verb: access.FleetRead,
		Doc: "Show one runner, with its job and its pod.", Example: exampleAsked, Answers: []plane.Envelope[Runner]{plane.Example("Runner", exampleRunner())}, Refusals: plane.Finding}
	ReadLog = door.Op[LogRequest, LogStream]{Pattern: "GET " + plane.Base + "/runners/{namespace}/{name}/log", Verb: access.LogsRead,
		Doc: "Read what a runner has written, as it was written, and with follow what it goes on to write.", Example: LogRequest{RunnerRequest: exampleAsked, Tail: 100, Follow: true}, Answers: []LogStream{{}}, Refusals: reading}
	ListLines = door.Op[LinesRequest, plane.Envelope[Log]]{Pattern: "GET " + plane.Base + "/runners/{namespace}/{name}/log/lines", Verb: access.LogsRead, MaxAnswer: 8 << 20,
		Doc: "Show the end of what a runner has written, in one piece.", Example: LinesRequest{RunnerRequest: exampleAsked, Tail: 100},
		Answers: []plane.Envelope[Log]{plane.Example("Log", Log{Runner: "tailplane-runners/acme-gh-nix-7xk2p-runner-q9w4z", Container: "runner", Lines: []string{"Listening for Jobs", "Running job: build"}})}, Refusals: reading}
)

// reading are the errors of requests for a log.
var reading = slices.Concat(plane.Seeking, []problem.Code{problem.Conflict})

// Routes returns the routes of the API, served by d.
func (d *Desk) Routes() []door.Route {
	return []door.Route{
		plane.Behind(d.Plane, ListRunners, d.list), plane.Behind(d.Plane, ListJobs, d.jobs), plane.Behind(d.Plane, ListEvents, d.events),
		plane.Behind(d.Plane, GetConfig, d.config), plane.Behind(d.Plane, GetDiagnosis, d.diagnosis), plane.Behind(d.Plane, GetRunner, d.runner),
		ReadLog.ServeStream(d.log), plane.Behind(d.Plane, ListLines, d.lines),
		plane.Behind(d.Plane, ListPods, d.all), plane.Behind(d.Plane, GetNamedConfig, d.configNamed),
	}
}

// Operations describes the API.
func Operations() []door.Declaration {
	var all []door.Declaration
	for _, rt := range (&Desk{Plane: new(plane.Desk)}).Routes() {
		all = append(all, rt.Declaration)
	}
	return all
}

var (
	examplePool  = planefleet.PoolRequest{Forge: "github", Org: "acme", Pool: "gh-nix"}
	exampleList  = ListRequest{PoolRequest: examplePool}
	exampleAsked = RunnerRequest{"tailplane-runners", "acme-gh-nix-7xk2p-runner-q9w4z"}
	exampleEvent = Event{"Warning", "FailedScheduling", "0/3 nodes are available: 3 Insufficient cpu.", "Pod", "acme-gh-nix-7xk2p-runner-q9w4z", "default-scheduler", 4, plane.ExampleTime.Add(-time.Minute), plane.ExampleTime}
)

func exampleRunner() Runner {
	return Runner{ID: "tailplane-runners/acme-gh-nix-7xk2p-runner-q9w4z", Namespace: "tailplane-runners", Name: "acme-gh-nix-7xk2p-runner-q9w4z", Kind: kindRunner, Pool: "github/acme/gh-nix", OrgName: "acme",
		State: Busy, Failures: new(0), ForgeID: new(int64(4711)), ForgeName: "acme-gh-nix-7xk2p-runner-q9w4z",
		Job:     &Job{ID: "b7c9", Name: "build", Repository: "acme/shop", Workflow: "acme/shop/.github/workflows/ci.yaml@refs/heads/main", Run: new(int64(9001)), URL: "https://github.com/acme/shop/actions/runs/9001", Started: &plane.ExampleTime},
		Pod:     &Pod{Phase: "Running", Node: "node-1", Started: &plane.ExampleTime, Containers: []Container{{Name: "runner", Image: "registry.example/runner:2.330.0", State: "Running", Ready: true, Started: &plane.ExampleTime}}},
		Created: plane.ExampleTime, Actions: &RunnerActions{Log: plane.Action{Allowed: true}}, ObservedAt: plane.ExampleTime}
}
