package forge

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	gitlab "gitlab.com/gitlab-org/api/client-go/v2"

	"github.com/tailplane/tailplane/internal/util/secret"
)

// A RunnerSpec is the desired state of a group's runner at GitLab.
type RunnerSpec struct {
	GroupID                                int64
	Tags                                   []string
	RunUntagged, Locked, Protected, Paused bool
	MaximumTimeout                         time.Duration // of a job; 0: the project's setting
	Description                            string
	Note                                   string // maintenance note, at most 1,024 characters: our mark, and the reason for a pause
}

// A GitLabRunner is a runner as GitLab reports it.
type GitLabRunner struct {
	ID                                     int64
	Paused, Locked, RunUntagged, Protected bool
	// Status is online, offline, stale or never_contacted, whether the runner is paused or not. Any
	// other value is GitLab's text, and means that the status is not known.
	Status                     string
	Description, Note, Version string
	Tags                       []string
	MaximumTimeout             time.Duration // 0: none
	ContactedAt                time.Time     // zero: never
	Groups                     []int64
}

// A Job is a running job.
type Job struct{ ID, Project int64 }

// GitLab's values for runners.
const (
	refProtected    = "ref_protected"
	notProtected    = "not_protected"
	statusPaused    = "paused"
	statusOnline    = "online"
	statusOffline   = "offline"
	groupRunnerType = "group_type"
)

func accessLevel(protected bool) string {
	if protected {
		return refProtected
	}
	return notProtected
}

// checkTags refuses tags that GitLab would read as other tags.
func checkTags(op string, tags []string) error {
	for _, tag := range tags {
		if strings.TrimSpace(tag) != tag || tag == "" || strings.Contains(tag, ",") {
			return &Error{Op: op, Class: Invalid, Message: "GitLab would change this tag: " + strconv.Quote(redact(tag))}
		}
	}
	return nil
}

func seconds(d time.Duration) *int64 {
	if d <= 0 {
		return nil
	}
	return new(int64(d / time.Second))
}

// CreateRunner creates a runner for a group. It sends the request once. If the response is lost, a
// runner may exist whose token is not known; callers can find it by its note.
func (g *GitLab) CreateRunner(ctx context.Context, s RunnerSpec) (id int64, token secret.Text, err error) {
	const op = "create a runner"
	if err := checkTags(op, s.Tags); err != nil {
		return 0, secret.Text{}, err
	}
	k := g.call(ctx, op, "/user/runners", wantObject("id", "token"))
	options := &gitlab.CreateUserRunnerOptions{
		RunnerType: new(
			groupRunnerType,
		),
		GroupID: &s.GroupID, TagList: new(slices.Concat([]string{}, s.Tags)), RunUntagged: &s.RunUntagged, Locked: &s.Locked,
		AccessLevel: new(
			accessLevel(s.Protected),
		),
		MaximumTimeout: seconds(s.MaximumTimeout), Paused: &s.Paused, Description: &s.Description, MaintenanceNote: &s.Note,
	}
	created, _, err := k.gitlab().Users.CreateUserRunner(options, gitlab.WithContext(ctx))
	switch err = k.outcome(err); {
	case err != nil:
		return 0, secret.Text{}, err
	case created.ID <= 0 || created.Token == "":
		return 0, secret.Text{}, k.unusable("the response has no runner with a token")
	}
	return created.ID, secret.New(created.Token), nil
}

// GroupRunners lists the IDs of all runners that the projects of a group may use, or returns an
// error. The list includes runners of parent groups; see Groups of each runner.
func (g *GitLab) GroupRunners(ctx context.Context, group int64) ([]int64, error) {
	k := g.call(ctx, "list runners", "/groups/"+number(group)+"/runners", wantArray)
	key := func(r *gitlab.Runner) int64 { return r.ID }
	all, err := gitLabList(k, key, func(page gitlab.ListOptions) ([]*gitlab.Runner, *gitlab.Response, error) {
		options := &gitlab.ListGroupsRunnersOptions{ListOptions: page, Type: new(groupRunnerType)}
		return k.gitlab().Runners.ListGroupsRunners(group, options, gitlab.WithContext(ctx))
	})
	if err != nil {
		return nil, err
	}
	ids := make([]int64, len(all))
	for i, r := range all {
		ids[i] = r.ID
	}
	slices.Sort(ids)
	return ids, nil
}

func number(id int64) string { return strconv.FormatInt(id, 10) }

func runnerPath(id int64) string { return "/runners/" + number(id) }

// Runner reads a runner.
func (g *GitLab) Runner(ctx context.Context, id int64) (GitLabRunner, error) {
	k := g.call(
		ctx,
		"read a runner",
		runnerPath(id),
		wantObject("id", "paused"),
	) // without the key paused, the library would report "not paused"
	d, _, err := k.gitlab().Runners.GetRunnerDetails(id, gitlab.WithContext(ctx))
	switch err = k.outcome(err); {
	case err != nil:
		return GitLabRunner{}, err
	case d.ID != id:
		return GitLabRunner{}, k.unusable("the response is for another runner")
	}
	//lint:ignore SA1019 the version of a runner is only in this field of the REST API
	version := redact(d.Version)
	r := GitLabRunner{ID: d.ID, Paused: d.Paused, Locked: d.Locked, RunUntagged: d.RunUntagged, Protected: d.AccessLevel == refProtected,
		Status: redact(d.Status), Description: d.Description, Note: d.MaintenanceNote, Version: version, Tags: d.TagList,
		MaximumTimeout: time.Duration(d.MaximumTimeout) * time.Second}
	if r.Status == statusPaused { // it hides whether the runner is online
		r.Status = statusOffline
		if d.Online {
			r.Status = statusOnline
		}
	}
	if d.ContactedAt != nil {
		r.ContactedAt = *d.ContactedAt
	}
	for _, group := range d.Groups {
		r.Groups = append(r.Groups, group.ID)
	}
	return r, nil
}

// UpdateRunner changes the tags, the description, the timeout and the access of a runner to those
// of s, and its note if s has one. It does not change whether the runner is paused; use
// [GitLab.SetPaused] for that. It does not change the group either, which is fixed.
func (g *GitLab) UpdateRunner(ctx context.Context, id int64, s RunnerSpec) error {
	body := struct {
		gitlab.UpdateRunnerDetailsOptions
		MaximumTimeout *int64 `json:"maximum_timeout"` // null removes it
	}{gitlab.UpdateRunnerDetailsOptions{TagList: new(slices.Concat([]string{}, s.Tags)), RunUntagged: &s.RunUntagged, Locked: &s.Locked,
		AccessLevel: new(accessLevel(s.Protected)), Description: &s.Description}, seconds(s.MaximumTimeout)}
	if s.Note != "" {
		body.MaintenanceNote = &s.Note
	}
	const op = "change a runner"
	if err := checkTags(op, s.Tags); err != nil {
		return err
	}
	// The library's method cannot send the null that removes the timeout.
	k := g.call(ctx, op, runnerPath(id), nil)
	r, err := k.gitlab().NewRequest(http.MethodPut, runnerPath(id)[1:], body, []gitlab.RequestOptionFunc{gitlab.WithContext(ctx)})
	if err != nil {
		return k.outcome(err)
	}
	_, err = k.gitlab().Do(r, nil)
	return k.outcome(err)
}

// SetPaused pauses or resumes a runner. It returns the runner as GitLab reports it afterwards,
// which proves the change. Running jobs continue. note replaces the whole note, including our mark;
// an empty note keeps the old one.
func (g *GitLab) SetPaused(ctx context.Context, id int64, paused bool, note string) (GitLabRunner, error) {
	body := &gitlab.UpdateRunnerDetailsOptions{Paused: &paused}
	if note != "" {
		body.MaintenanceNote = &note
	}
	op := "resume a runner"
	if paused {
		op = "pause a runner"
	}
	k := g.call(ctx, op, runnerPath(id), nil)
	_, _, err := k.gitlab().Runners.UpdateRunnerDetails(id, body, gitlab.WithContext(ctx))
	if err = k.outcome(err); err != nil {
		return GitLabRunner{}, err
	}
	return g.Runner(ctx, id)
}

// ResetToken gives a runner a new token. The old token is not valid from then on. ResetToken sends
// the request once. If the response is lost, the new token is not known and the caller must reset
// it again.
func (g *GitLab) ResetToken(ctx context.Context, id int64) (secret.Text, error) {
	k := g.call(ctx, "reset a runner's token", runnerPath(id)+"/reset_authentication_token", wantObject("token"))
	created, _, err := k.gitlab().Runners.ResetRunnerAuthenticationToken(id, gitlab.WithContext(ctx))
	switch err = k.outcome(err); {
	case err != nil:
		return secret.Text{}, err
	case *created.Token == "":
		return secret.Text{}, k.unusable("the response has no token")
	}
	return secret.New(*created.Token), nil
}

// DeleteRunner deletes a runner; its running jobs fail. If the runner is gone already, that is
// success. DeleteRunner verifies the deletion with a read.
func (g *GitLab) DeleteRunner(ctx context.Context, id int64) error {
	const op = "delete a runner"
	k := g.call(ctx, op, runnerPath(id), nil)
	_, err := k.gitlab().Runners.RemoveRunner(id, gitlab.WithContext(ctx))
	if err = k.outcome(err); ignoreNotFound(err) != nil {
		return err
	}
	_, err = g.Runner(ctx, id)
	if err == nil {
		return &Error{Op: op, Class: Unavailable, Message: "it still exists"}
	}
	return ignoreNotFound(err)
}

// RunningJobs lists all running jobs of a runner, or returns an error.
func (g *GitLab) RunningJobs(ctx context.Context, id int64) ([]Job, error) {
	k := g.call(ctx, "list running jobs", runnerPath(id)+"/jobs", wantArray)
	key := func(j *gitlab.Job) int64 { return j.ID }
	all, err := gitLabList(k, key, func(page gitlab.ListOptions) ([]*gitlab.Job, *gitlab.Response, error) {
		options := &gitlab.ListRunnerJobsOptions{ListOptions: page, Status: new("running")}
		return k.gitlab().Runners.ListRunnerJobs(id, options, gitlab.WithContext(ctx))
	})
	if err != nil {
		return nil, err
	}
	jobs := make([]Job, len(all))
	for i, j := range all {
		jobs[i].ID = j.ID
		if j.Project != nil {
			jobs[i].Project = j.Project.ID
		}
	}
	return jobs, nil
}

// CancelJob requests the end of a job. The token needs the scope api. If the job has ended, that is
// success.
func (g *GitLab) CancelJob(ctx context.Context, project, job int64) error {
	path := "/projects/" + number(project) + "/jobs/" + number(job)
	k := g.call(ctx, "cancel a job", path+"/cancel", nil)
	//lint:ignore SA1019 its successor has the same name as the call without options, in the next major version
	_, _, err := k.gitlab().Jobs.CancelJobWithOptions(project, job, &gitlab.CancelJobOptions{}, gitlab.WithContext(ctx))
	err = k.outcome(err)
	if class := ClassOf(err); class != Invalid && class != Forbidden && class != Conflict {
		return ignoreNotFound(err)
	}
	k = g.call(ctx, "read a job", path, wantObject())
	found, _, readErr := k.gitlab().Jobs.GetJob(project, job, gitlab.WithContext(ctx))
	switch readErr = k.outcome(readErr); {
	case readErr != nil && k.status/100 != 2:
		return ignoreNotFound(readErr)
	case readErr == nil && slices.Contains([]string{"success", "failed", "canceled", "canceling", "skipped"}, found.Status):
		return nil
	}
	return err
}
