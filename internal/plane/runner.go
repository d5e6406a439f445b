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
	Kind      string `json:"kind" enum:"EphemeralRunner,Pod" doc:"what it is in the cluster: at GitHub a runner, at GitLab the pod of a job"`
	Pool      string `json:"pool" doc:"the id of its pool: forge/org/pool"`
	OrgName   string `json:"org"`

	State   string `json:"state" enum:"Failed,Outdated,Pending,Starting,Ending,Busy,Idle,Finished"`
	Reason  string `json:"reason" doc:"a word, from whoever runs it"`
	Message string `json:"message" doc:"a sentence, from whoever runs it"`
	// Failures is how often the pod failed.
	Failures    *int       `json:"failures" doc:"how often its pod failed; null: nobody counts"`
	LastFailure *time.Time `json:"lastFailure"`
	ForgeID     *int64     `json:"forgeId" doc:"the forge's number of it; null: it has none yet"`
	ForgeName   string     `json:"forgeName" doc:"its name at the forge"`
	Job         *Job       `json:"job" doc:"null: it has none"`
	Pod         *Pod       `json:"pod" doc:"null: there is none, or it is not known"`
	Created     time.Time  `json:"created"`

	Actions *RunnerActions `json:"actions,omitempty" doc:"what the caller may do with it"`

	ObservedAt time.Time `json:"observedAt"`
}

// Job is the job of a runner.
type Job struct {
	ID         string     `json:"id" doc:"the forge's"`
	Name       string     `json:"name"`
	Repository string     `json:"repository" doc:"owner/name; empty: not known"`
	Workflow   string     `json:"workflow" doc:"the file and the ref; empty: not known"`
	Run        *int64     `json:"run" doc:"the workflow run's number"`
	URL        string     `json:"url" doc:"of the run or the job, at the forge of the organisation; empty: not known"`
	Started    *time.Time `json:"started"`
}

// Pod is the pod of a runner.
type Pod struct {
	Phase      string      `json:"phase"`
	Node       string      `json:"node" doc:"empty: it has none yet"`
	Reason     string      `json:"reason"`
	Message    string      `json:"message"`
	Started    *time.Time  `json:"started"`
	Containers []Container `json:"containers"`
}

// Container is a container of a pod.
type Container struct {
	Name     string     `json:"name"`
	Image    string     `json:"image"`
	Init     bool       `json:"init" doc:"it runs before the others"`
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
	a := RunnerActions{Log: Action{Allowed: true}}
	switch {
	case !v.In(o.OrgName, access.LogsRead):
		a.Log = Action{Why: "Your role does not allow to read logs of " + o.OrgName + "."}
	case o.Kind == ephemeralRunner && o.State == RunnerPending && o.Pod == nil:
		a.Log = Action{Why: "It has no pod yet."}
	}
	o.Actions = &a
	return o
}

// ephemeralRunner is the kind of a GitHub runner in the cluster.
const ephemeralRunner = "EphemeralRunner"

func runners() table[Runner] {
	return table[Runner]{Kind: KindRunner, Name: "RunnerList", Columns: map[string]func(Runner) string{
		"name":       func(o Runner) string { return o.Name },
		"org":        func(o Runner) string { return o.OrgName },
		"state":      func(o Runner) string { return o.State },
		"created":    func(o Runner) string { return sortableTime(&o.Created) },
		"job":        func(o Runner) string { return o.jobOrZero().Name },
		"repository": func(o Runner) string { return o.jobOrZero().Repository },
		"started":    func(o Runner) string { return sortableTime(o.jobOrZero().Started) },
	}, State: Runner.CurrentState, States: []string{RunnerFailed, RunnerOutdated, RunnerPending, RunnerStarting, RunnerEnding, RunnerBusy, RunnerIdle, RunnerFinished}}
}

func (o Runner) jobOrZero() Job {
	if o.Job == nil {
		return Job{}
	}
	return *o.Job
}
