//go:build unix

package arctest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tailplane/tailplane/internal/util/retry"
)

// Job is a job at GitHub.
type Job struct {
	ID         string // required and unique
	Repository string // owner/name
	Workflow   string
	Name       string
	Run        int64
}

type job struct {
	Job
	set     types.NamespacedName
	at      int64 // scale set that has taken the job; 0: none yet
	started bool
	ended   bool
}

// Assign assigns jobs to a set, as GitHub does when a workflow uses its labels. The jobs wait at GitHub until a
// listener takes them. A listener takes at most as many jobs as it may have runners. Jobs that were taken but not
// started stay so while the set has no capacity.
func (a *ARC) Assign(namespace, set string, jobs ...Job) {
	k := types.NamespacedName{Namespace: namespace, Name: set}
	a.mu.Lock()
	for _, j := range jobs {
		a.jobs = append(a.jobs, &job{Job: j, set: k})
	}
	a.mu.Unlock()
	a.queue.Add(k)
}

// take lets the listener of a set take waiting jobs until it has most jobs. It returns the number of its jobs.
func (a *ARC) take(set types.NamespacedName, id int64, most int) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, j := range a.jobs {
		if j.set == set && j.at == id && !j.ended {
			n++
		}
	}
	for _, j := range a.jobs {
		if n < most && j.set == set && j.at != id && !j.started && !j.ended {
			j.at = id
			n++
		}
	}
	return n
}

// Jobs returns the numbers of a set's jobs that wait at GitHub, that its listener has taken but that have not
// started, and that run.
func (a *ARC) Jobs(namespace, set string) (waiting, taken, running int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, j := range a.jobs {
		switch {
		case j.set != types.NamespacedName{Namespace: namespace, Name: set} || j.ended:
		case j.started:
			running++
		case j.at != 0:
			taken++
		default:
			waiting++
		}
	}
	return waiting, taken, running
}

// Start starts a job on an idle runner. It waits for the job and the runner.
func (a *ARC) Start(ctx context.Context, id string) error {
	for {
		done, err := a.start(ctx, id)
		if done || err != nil {
			return err
		}
		if retry.Sleep(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("job %s: no runner waits for it: %w", id, context.Cause(ctx))
		}
	}
}

var errNoJob = errors.New("the job does not exist")

func (a *ARC) find(id string) (job, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := slices.IndexFunc(a.jobs, func(j *job) bool { return j.ID == id && !j.ended })
	if i < 0 {
		return job{}, fmt.Errorf("job %s: %w", id, errNoJob)
	}
	return *a.jobs[i], nil
}

func (a *ARC) mark(id string, change func(*job)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, j := range a.jobs {
		if j.ID == id {
			change(j)
		}
	}
}

// startAll starts all jobs that can start, if jobs start by themselves.
func (a *ARC) startAll(ctx context.Context, set types.NamespacedName) error {
	if !a.o.Auto {
		return nil
	}
	a.mu.Lock()
	var ids []string
	for _, j := range a.jobs {
		if j.set == set && j.at != 0 && !j.started && !j.ended {
			ids = append(ids, j.ID)
		}
	}
	a.mu.Unlock()
	for _, id := range ids {
		if started, err := a.start(ctx, id); !started || err != nil {
			return err
		}
	}
	return nil
}

func (a *ARC) start(ctx context.Context, id string) (bool, error) {
	j, err := a.find(id)
	if err != nil || j.started {
		return j.started, err
	}
	if j.at == 0 {
		return false, nil
	}
	runners, err := a.admin.Resource(runnerResource).Namespace(j.set.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "actions.github.com/scale-set-name=" + j.set.Name})
	if err != nil {
		return false, err
	}
	for i := range runners.Items {
		r := &runners.Items[i]
		ready, _ := r.Object["status"].(map[string]any)
		if r.GetDeletionTimestamp() != nil || busy(r) || done(r) || ready["ready"] != true {
			continue
		}
		// The listener reports this by a patch of the runner's status, only once per job.
		_, err := patchBy(ctx, a.admin, runnerResource, r, map[string]any{"metadata": map[string]any{"resourceVersion": r.GetResourceVersion()}, "status": map[string]any{"jobId": j.ID, "jobRequestId": j.Run + 1,
			"jobRepositoryName": j.Repository, "jobWorkflowRef": j.Workflow, "workflowRunId": j.Run, "jobDisplayName": j.Name}}, "ghalistener", "status")
		if err != nil {
			continue // the runner is deleted or changed: try another one, or later
		}
		a.mark(id, func(j *job) { j.started = true })
		a.note("%s: job %s runs", j.set, id)
		return true, nil
	}
	return false, nil
}

// Finish ends a job. Its runner has completed and is removed.
func (a *ARC) Finish(ctx context.Context, id string) error {
	j, err := a.find(id)
	if err != nil {
		return err
	}
	runners, err := a.admin.Resource(runnerResource).Namespace(j.set.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "actions.github.com/scale-set-name=" + j.set.Name})
	if err != nil {
		return err
	}
	for i := range runners.Items {
		if r := &runners.Items[i]; text(r, "status", "jobId") == id {
			if _, err := patchBy(ctx, a.admin, runnerResource, r, map[string]any{"status": map[string]any{"phase": "Succeeded", "ready": false}}, "manager", "status"); err != nil {
				return err
			}
		}
	}
	a.mark(id, func(j *job) { j.ended = true })
	a.note("%s: job %s has ended", j.set, id)
	a.queue.Add(j.set)
	return nil
}

// Cancel ends the jobs of a workflow run, as GitHub does for a cancelled run.
func (a *ARC) Cancel(ctx context.Context, repository string, run int64) error {
	a.mu.Lock()
	var ids []string
	for _, j := range a.jobs {
		if j.Repository == repository && j.Run == run && !j.ended {
			ids = append(ids, j.ID)
		}
	}
	a.mu.Unlock()
	var errs []error
	for _, id := range ids {
		errs = append(errs, a.Finish(ctx, id))
	}
	return errors.Join(errs...)
}
