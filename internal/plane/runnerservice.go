package plane

import (
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
)

// RunnerService is the service for single runners. All fields are required except where noted.
type RunnerService struct {
	Plane *Service
	// ReadEvents returns the recent events of a namespace. The events may be some seconds old, and they are not limited to those of the caller.
	ReadEvents func(ctx context.Context, namespace string) ([]Event, error)
	// OpenLog opens the log of a runner of the permit's organisation. The stream ends with ctx. It is optional; nil means that no logs are
	// shown.
	OpenLog func(ctx context.Context, p access.Permit, o LogOptions) (io.ReadCloser, error)
}

// RunnerListRequest asks for one page of a pool's runners of an organisation.
type RunnerListRequest struct {
	ListRequest
	PoolRequest
}

// RunnerRequest names a runner.
type RunnerRequest struct {
	Namespace string `json:"-" path:"namespace"`
	Name      string `json:"-" path:"name"`
}

// id returns the runner's id.
func (r RunnerRequest) id() string { return r.Namespace + "/" + r.Name }

// getPool returns a pool of an organisation as the caller sees it.
func (d *RunnerService) getPool(p access.Permit, req PoolRequest) (Pool, Listing, error) {
	return getObject[Pool](d.Plane, KindPool, p, req.id(), "pool")
}

// listRunners returns one page of a pool's runners.
func (d *RunnerService) listRunners(_ context.Context, p access.Permit, req RunnerListRequest) (Envelope[[]Runner], error) {
	return d.page(p, req, "", func(Runner) bool { return true })
}

// listJobs returns one page of the runners that have a job, running or finished.
func (d *RunnerService) listJobs(_ context.Context, p access.Permit, req RunnerListRequest) (Envelope[[]Runner], error) {
	return d.page(p, req, " jobs", func(o Runner) bool { return o.Job != nil })
}

func (d *RunnerService) page(p access.Permit, req RunnerListRequest, only string, admits func(Runner) bool) (e Envelope[[]Runner], err error) {
	if _, _, err := d.getPool(p, req.PoolRequest); err != nil {
		return e, err
	}
	of := req.id()
	return listPage(d.Plane, runners(), p, req.ListRequest, of+only, func(o Runner) bool { return o.Pool == of && admits(o) })
}

// listPods returns one page of all runners, of every pool.
func (d *RunnerService) listPods(_ context.Context, p access.Permit, req FleetListRequest) (Envelope[[]Runner], error) {
	return listPage(d.Plane, runners(), p, req.ListRequest, req.only(), func(o Runner) bool {
		forge, _, _ := strings.Cut(o.Pool, "/")
		return req.matches(o.OrgName, forge)
	})
}

// Config holds the effective settings of a pool of an organisation.
type Config struct {
	ID       string    `json:"id" doc:"pool id: forge/org/pool"`
	Settings []Setting `json:"settings" doc:"null: the pool's settings are not known"`
}

func (d *RunnerService) getConfig(_ context.Context, p access.Permit, req PoolRequest) (Envelope[Config], error) {
	o, l, err := d.getPool(p, req)
	return newEnvelope(d.Plane, "PoolConfig", Config{o.ID, o.Settings}, l.Revision, l.Sources), err
}

// ConfigNameRequest names a pool without its organisation.
type ConfigNameRequest struct {
	Name Text `json:"-" query:"name" doc:"name of a pool, or its id: forge/org/pool"`
}

func (d *RunnerService) getNamedConfig(ctx context.Context, p access.Permit, req ConfigNameRequest) (e Envelope[Config], err error) {
	if req.Name == "" {
		return e, invalidField("name", "The request must name a pool.", "List the pools that you may see.")
	}
	of, err := resolvePool(d.Plane, p, string(req.Name))
	if err != nil {
		return e, err
	}
	return d.getConfig(ctx, p, of)
}

// Diagnosis lists the problems of a pool's runners.
type Diagnosis struct {
	ID       string    `json:"id" doc:"pool id: forge/org/pool"`
	State    string    `json:"state" doc:"state of the pool"`
	Findings []Finding `json:"findings" doc:"the problems, the worst first; empty: no problem was found"`
}

// getDiagnosis examines all known facts of a pool. Unknown facts are findings too, and do not stop the diagnosis.
func (d *RunnerService) getDiagnosis(ctx context.Context, p access.Permit, req PoolRequest) (e Envelope[Diagnosis], err error) {
	o, l, err := d.getPool(p, req)
	if err != nil {
		return e, err
	}
	f := diagnosisInput{Pool: o}
	known := d.Plane.Store.List(KindRunner)
	for _, r := range visibleTo[Runner](p, known) {
		if r.Pool == o.ID {
			f.Runners = append(f.Runners, r)
		}
	}
	f.RunnersKnown = known.Known
	if org, _, err := getObject[Enrollment](d.Plane, KindEnrollment, p, o.OrgName, "organisation"); err == nil {
		f.Enrollment = &org
	}
	if forge, _, err := getObject[Forge](d.Plane, KindForge, p, o.Forge, "forge"); err == nil {
		f.Forge = &forge
	}
	sources := append(slices.Clone(l.Sources), known.Sources...)
	var source Source
	f.Events, source = d.poolEvents(ctx, o)
	f.Sources = uniqueSources(append(sources, source))
	return newEnvelope(d.Plane, "PoolDiagnosis", Diagnosis{o.ID, o.State, diagnose(f)}, l.Revision, f.Sources), nil
}

// uniqueSources returns the sources without duplicates, in order.
func uniqueSources(all []Source) (out []Source) {
	for _, s := range all {
		if !slices.ContainsFunc(out, func(o Source) bool { return o.Name == s.Name }) {
			out = append(out, s)
		}
	}
	return out
}

// now returns the current time in UTC.
func (d *RunnerService) now() time.Time { return d.Plane.Now().UTC() }

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
		handle(d.Plane, GetConfig, d.getConfig), handle(d.Plane, GetDiagnosis, d.getDiagnosis),
		handle(d.Plane, GetRunner, getter(d.Plane, runners(), "runner", RunnerRequest.id)),
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
