package plane

import (
	"slices"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
)

// maxRunnerList is the maximum size of a list of runners, in bytes.
const maxRunnerList = 16 << 20

const poolPath = "GET " + Base + "/pools/{forge}/{org}/{pool}"

// The operations. The server, the client, the reference, the MCP tools and the commands of tka are all derived from them.
var (
	ListRunners = httpapi.Op[RunnerListRequest, Envelope[[]Runner]]{Pattern: poolPath + "/runners", Verb: access.FleetRead, MaxResponse: maxRunnerList,
		Doc: "List the runners of one organisation in one pool.", Example: exampleRunnerList, Responses: []Envelope[[]Runner]{newExamplePage("RunnerList", exampleRunner())}, Refusals: searchRefusals}
	ListJobs = httpapi.Op[RunnerListRequest, Envelope[[]Runner]]{Pattern: poolPath + "/jobs", Verb: access.FleetRead, MaxResponse: maxRunnerList,
		Doc: "List the jobs of one organisation in one pool: its runners that have a job.", Example: exampleRunnerList, Responses: []Envelope[[]Runner]{newExamplePage("RunnerList", exampleRunner())}, Refusals: searchRefusals}
	// The next two have the paths that the existing dashboard and its tools use.
	ListPods = httpapi.Op[FleetListRequest, Envelope[[]Runner]]{Pattern: "GET /api/k8s/pods", Verb: access.FleetRead, MaxResponse: maxRunnerList,
		Doc: "List all runners that the caller may see.", Responses: ListRunners.Responses, Refusals: listRefusals}
	GetNamedConfig = httpapi.Op[ConfigNameRequest, Envelope[Config]]{Pattern: "GET /api/gitops/config", Verb: access.FleetRead, Example: ConfigNameRequest{"gh-nix"},
		Doc:       "Show the effective settings of one organisation's runners in one pool, by id or by a name that is unique among the pools that the caller may see.",
		Responses: GetConfig.Responses, Refusals: slices.Concat(searchRefusals, []problem.Code{problem.Conflict})}

	ListEvents = httpapi.Op[PoolRequest, Envelope[[]Event]]{Pattern: poolPath + "/events", Verb: access.FleetRead, MaxResponse: 4 << 20,
		Doc: "List recent events of the runners of one organisation in one pool, the newest first; at most 200.", Example: exampleRunnerPool, Responses: []Envelope[[]Event]{newExample("EventList", []Event{exampleEvent})}, Refusals: getRefusals}
	GetConfig = httpapi.Op[PoolRequest, Envelope[Config]]{Pattern: poolPath + "/config", Verb: access.FleetRead,
		Doc: "Show the effective settings of one organisation's runners in one pool, and the source of each.", Example: exampleRunnerPool,
		Responses: []Envelope[Config]{newExample("PoolConfig", Config{"github/acme/gh-nix", []Setting{{Name: "scaling.max", Value: "3", From: "RunnerEnrollment acme",
			Over: []Origin{{Value: "5", From: "RunnerPool gh-nix"}}}}})}, Refusals: getRefusals}
	GetDiagnosis = httpapi.Op[PoolRequest, Envelope[Diagnosis]]{Pattern: poolPath + "/diagnosis", Verb: access.FleetRead,
		Doc: "Diagnose the runners of one organisation in one pool: each problem with its evidence and the next step, the worst first.", Example: exampleRunnerPool,
		Responses: []Envelope[Diagnosis]{newExample("PoolDiagnosis", Diagnosis{"github/acme/gh-nix", PoolPaused, []Finding{{SeverityWarning, "A hold pauses the pool: it takes no new jobs.",
			"Hold node-upgrade by alice@example.com: node upgrade", "Ask the person who set the hold, or resume it: node-upgrade."}}})}, Refusals: getRefusals}
	GetRunner = httpapi.Op[RunnerRequest, Envelope[Runner]]{Pattern: "GET " + Base + "/runners/{namespace}/{name}", Verb: access.FleetRead,
		Doc: "Show one runner, with its job and its pod.", Example: exampleRunnerRequest, Responses: []Envelope[Runner]{newExample("Runner", exampleRunner())}, Refusals: getRefusals}
	ReadLog = httpapi.Op[LogRequest, LogStream]{Pattern: "GET " + Base + "/runners/{namespace}/{name}/log", Verb: access.LogsRead,
		Doc: "Read a runner's log unchanged; with follow, also new output.", Example: LogRequest{RunnerRequest: exampleRunnerRequest, Tail: 100, Follow: true}, Responses: []LogStream{{}}, Refusals: logRefusals}
	ListLines = httpapi.Op[LinesRequest, Envelope[Log]]{Pattern: "GET " + Base + "/runners/{namespace}/{name}/log/lines", Verb: access.LogsRead, MaxResponse: 8 << 20,
		Doc: "Show the end of a runner's log in one response.", Example: LinesRequest{RunnerRequest: exampleRunnerRequest, Tail: 100},
		Responses: []Envelope[Log]{newExample("Log", Log{Runner: "tailplane-runners/acme-gh-nix-7xk2p-runner-q9w4z", Container: "runner", Lines: []string{"Listening for Jobs", "Running job: build"}})}, Refusals: logRefusals}
)

// logRefusals are the errors of requests for a log.
var logRefusals = slices.Concat(searchRefusals, []problem.Code{problem.Conflict})

// Routes returns the routes of the API, served by d.
func (d *RunnerService) Routes() []httpapi.Route {
	return []httpapi.Route{
		handle(d.Plane, ListRunners, d.listRunners), handle(d.Plane, ListJobs, d.listJobs), handle(d.Plane, ListEvents, d.listEvents),
		handle(d.Plane, GetConfig, d.getConfig), handle(d.Plane, GetDiagnosis, d.getDiagnosis), handle(d.Plane, GetRunner, d.getRunner),
		ReadLog.ServeStream(d.streamLog), handle(d.Plane, ListLines, d.listLines),
		handle(d.Plane, ListPods, d.listPods), handle(d.Plane, GetNamedConfig, d.getNamedConfig),
	}
}

var (
	exampleRunnerPool    = PoolRequest{Forge: "github", Org: "acme", Pool: "gh-nix"}
	exampleRunnerList    = RunnerListRequest{PoolRequest: exampleRunnerPool}
	exampleRunnerRequest = RunnerRequest{"tailplane-runners", "acme-gh-nix-7xk2p-runner-q9w4z"}
	exampleEvent         = Event{"Warning", "FailedScheduling", "0/3 nodes are available: 3 Insufficient cpu.", "Pod", "acme-gh-nix-7xk2p-runner-q9w4z", "default-scheduler", 4, exampleTime.Add(-time.Minute), exampleTime}
)

func exampleRunner() Runner {
	return Runner{ID: "tailplane-runners/acme-gh-nix-7xk2p-runner-q9w4z", Namespace: "tailplane-runners", Name: "acme-gh-nix-7xk2p-runner-q9w4z", Kind: ephemeralRunner, Pool: "github/acme/gh-nix", OrgName: "acme",
		State: RunnerBusy, Failures: new(0), ForgeID: new(int64(4711)), ForgeName: "acme-gh-nix-7xk2p-runner-q9w4z",
		Job:     &Job{ID: "b7c9", Name: "build", Repository: "acme/shop", Workflow: "acme/shop/.github/workflows/ci.yaml@refs/heads/main", Run: new(int64(9001)), URL: "https://github.com/acme/shop/actions/runs/9001", Started: &exampleTime},
		Pod:     &Pod{Phase: "Running", Node: "node-1", Started: &exampleTime, Containers: []Container{{Name: "runner", Image: "registry.example/runner:2.330.0", State: "Running", Ready: true, Started: &exampleTime}}},
		Created: exampleTime, Actions: &RunnerActions{Log: Action{Allowed: true}}, ObservedAt: exampleTime}
}
