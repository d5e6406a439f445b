package plane

import (
	"time"

	"github.com/tailplane/tailplane/internal/access"
)

// The objects as the API returns them. Unknown values are null. Names of jobs and repositories, and reasons, are untrusted text.

// The states of a runner, worst first.
const (
	RunnerFailed   = "Failed"   // runs no job and never will
	RunnerOutdated = "Outdated" // too old for the forge
	RunnerPending  = "Pending"  // its pod does not run yet
	RunnerStarting = "Starting" // its pod runs, but it has not registered at the forge
	RunnerEnding   = "Ending"
	RunnerBusy     = "Busy" // runs a job
	RunnerIdle     = "Idle" // waits for a job
	RunnerFinished = "Finished"
)

// Runner is one runner of one organisation in one pool.
type Runner struct {
	ID        string `json:"id" doc:"namespace/name"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Kind      string `json:"kind" enum:"EphemeralRunner,Pod" doc:"the kind of object in the cluster: a runner at GitHub, the pod of a job at GitLab"`
	Pool      string `json:"pool" doc:"id of its pool: forge/org/pool"`
	OrgName   string `json:"org"`

	State   string `json:"state" enum:"Failed,Outdated,Pending,Starting,Ending,Busy,Idle,Finished"`
	Reason  string `json:"reason" doc:"one word, from the controller that runs it"`
	Message string `json:"message" doc:"a sentence, from the controller that runs it"`
	// Failures is how often the pod failed.
	Failures    *int       `json:"failures" doc:"number of failures of its pod; null: not counted"`
	LastFailure *time.Time `json:"lastFailure"`
	ForgeID     *int64     `json:"forgeId" doc:"the runner's number at the forge; null: none yet"`
	ForgeName   string     `json:"forgeName" doc:"name at the forge"`
	Job         *Job       `json:"job" doc:"null: it runs no job"`
	Pod         *Pod       `json:"pod" doc:"null: none, or not known"`
	Created     time.Time  `json:"created"`

	Actions *RunnerActions `json:"actions,omitempty" doc:"actions that the caller may take"`

	ObservedAt time.Time `json:"observedAt"`
}

// Job is the job of a runner.
type Job struct {
	ID         string     `json:"id" doc:"id at the forge"`
	Name       string     `json:"name"`
	Repository string     `json:"repository" doc:"owner/name; empty: not known"`
	Workflow   string     `json:"workflow" doc:"the file and the ref; empty: not known"`
	Run        *int64     `json:"run" doc:"the workflow run's number"`
	URL        string     `json:"url" doc:"URL of the run or the job at the organisation's forge; empty: not known"`
	Started    *time.Time `json:"started"`
}

// Pod is the pod of a runner.
type Pod struct {
	Phase      string      `json:"phase"`
	Node       string      `json:"node" doc:"empty: not assigned yet"`
	Reason     string      `json:"reason"`
	Message    string      `json:"message"`
	Started    *time.Time  `json:"started"`
	Containers []Container `json:"containers"`
}

// Container is a container of a pod.
type Container struct {
	Name     string     `json:"name"`
	Image    string     `json:"image"`
	Init     bool       `json:"init" doc:"true for an init container"`
	State    string     `json:"state" enum:"Waiting,Running,Terminated,Unknown"`
	Reason   string     `json:"reason"`
	Message  string     `json:"message"`
	Ready    bool       `json:"ready"`
	Restarts int        `json:"restarts"`
	ExitCode *int       `json:"exitCode" doc:"null: it has not ended"`
	Started  *time.Time `json:"started"`
}

// RunnerActions are the actions that the caller may take on a runner.
type RunnerActions struct {
	Log Action `json:"log"`
}

// Key returns "namespace/name".
func (o Runner) Key() string { return o.ID }

// Org returns the organisation of the runner.
func (o Runner) Org() string { return o.OrgName }

// Observed implements [plane.Object].
func (o Runner) Observed() time.Time { return o.ObservedAt }

// At implements [plane.Object].
func (o Runner) At(t time.Time) Object { o.ObservedAt = t; return o }

// CurrentState implements [Stateful].
func (o Runner) CurrentState() string { return o.State }

// Trouble implements [Stateful].
func (o Runner) Trouble() (Severity, string, string) {
	switch o.State {
	case RunnerFailed, RunnerOutdated:
		return SeverityError, o.State, o.Message
	}
	return "", "", ""
}

// For implements [plane.Personal]: it adds the actions that the caller may take.
func (o Runner) For(v Viewer) Object {
	o.Actions = &RunnerActions{Log: actionUnless(when(!v.In(o.OrgName, access.LogsRead), "Your role does not allow you to read logs of "+o.OrgName+"."),
		when(o.Kind == ephemeralRunner && o.State == RunnerPending && o.Pod == nil, "The runner has no pod yet."))}
	return o
}

// ephemeralRunner is the kind of a GitHub runner in the cluster.
const ephemeralRunner = "EphemeralRunner"

func runners() table[Runner] {
	return table[Runner]{Kind: KindRunner, Name: "RunnerList", Columns: func(o Runner) map[string]string {
		return map[string]string{"name": o.Name, "org": o.OrgName, "state": o.State, "created": sortableTime(&o.Created),
			"job": orZero(o.Job).Name, "repository": orZero(o.Job).Repository, "started": sortableTime(orZero(o.Job).Started)}
	}, State: Runner.CurrentState, States: []string{RunnerFailed, RunnerOutdated, RunnerPending, RunnerStarting, RunnerEnding, RunnerBusy, RunnerIdle, RunnerFinished}}
}
