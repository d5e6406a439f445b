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

// A Manager is a process that contacted GitLab for a runner. GitLab lists it long after it is gone,
// so only the time of its last contact counts.
type Manager struct {
	SystemID, Status, Version string
	ContactedAt               time.Time // zero: never
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
	k := g.call(op, "/user/runners", wantObject("id", "token"))
	options := &gitlab.CreateUserRunnerOptions{
		RunnerType: new(groupRunnerType), GroupID: &s.GroupID, TagList: new(slices.Concat([]string{}, s.Tags)), RunUntagged: &s.RunUntagged, Locked: &s.Locked,
		AccessLevel: new(accessLevel(s.Protected)), MaximumTimeout: seconds(s.MaximumTimeout), Paused: &s.Paused, Description: &s.Description, MaintenanceNote: &s.Note,
	}
	created, err := doGitLab(ctx, k, func(c *gitlab.Client, o gitlab.RequestOptionFunc) (*gitlab.UserRunner, *gitlab.Response, error) {
		return c.Users.CreateUserRunner(options, o)
	})
	switch {
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
	k := g.call("list runners", "/groups/"+number(group)+"/runners", wantArray)
	all, err := gitLabList(ctx, k, func(r *gitlab.Runner) int64 { return r.ID },
		func(c *gitlab.Client, page gitlab.ListOptions, o gitlab.RequestOptionFunc) ([]*gitlab.Runner, *gitlab.Response, error) {
			return c.Runners.ListGroupsRunners(group, &gitlab.ListGroupsRunnersOptions{ListOptions: page, Type: new(groupRunnerType)}, o)
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
	k := g.call("read a runner", runnerPath(id), wantObject("id", "paused")) // without the key paused, the library would report "not paused"
	d, err := doGitLab(ctx, k, func(c *gitlab.Client, o gitlab.RequestOptionFunc) (*gitlab.RunnerDetails, *gitlab.Response, error) {
		return c.Runners.GetRunnerDetails(id, o)
	})
	switch {
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
	return doGitLabNoBody(ctx, g.call(op, runnerPath(id), nil), func(c *gitlab.Client, o gitlab.RequestOptionFunc) (*gitlab.Response, error) {
		// The library's method cannot send the null that removes the timeout.
		r, err := c.NewRequest(http.MethodPut, runnerPath(id)[1:], body, []gitlab.RequestOptionFunc{o})
		if err != nil {
			return nil, err
		}
		return c.Do(r, nil)
	})
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
	if err := doGitLabNoBody(ctx, g.call(op, runnerPath(id), nil), func(c *gitlab.Client, o gitlab.RequestOptionFunc) (*gitlab.Response, error) {
		_, response, err := c.Runners.UpdateRunnerDetails(id, body, o)
		return response, err
	}); err != nil {
		return GitLabRunner{}, err
	}
	return g.Runner(ctx, id)
}

// ResetToken gives a runner a new token. The old token is not valid from then on. ResetToken sends
// the request once. If the response is lost, the new token is not known and the caller must reset
// it again.
func (g *GitLab) ResetToken(ctx context.Context, id int64) (secret.Text, error) {
	k := g.call("reset a runner's token", runnerPath(id)+"/reset_authentication_token", wantObject("token"))
	created, err := doGitLab(ctx, k,
		func(c *gitlab.Client, o gitlab.RequestOptionFunc) (*gitlab.RunnerAuthenticationToken, *gitlab.Response, error) {
			return c.Runners.ResetRunnerAuthenticationToken(id, o)
		})
	switch {
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
	err := doGitLabNoBody(ctx, g.call(op, runnerPath(id), nil), func(c *gitlab.Client, o gitlab.RequestOptionFunc) (*gitlab.Response, error) {
		return c.Runners.RemoveRunner(id, o)
	})
	if ignoreNotFound(err) != nil {
		return err
	}
	_, err = g.Runner(ctx, id)
	if err == nil {
		return &Error{Op: op, Class: Unavailable, Message: "it still exists"}
	}
	return ignoreNotFound(err)
}

// Managers lists the processes that contacted GitLab for a runner, or returns an error.
func (g *GitLab) Managers(ctx context.Context, id int64) ([]Manager, error) {
	k := g.call("list managers", runnerPath(id)+"/managers", wantArray) // the list has no pages
	list, err := doGitLab(ctx, k, func(c *gitlab.Client, o gitlab.RequestOptionFunc) ([]*gitlab.RunnerManager, *gitlab.Response, error) {
		return c.Runners.ListRunnerManagers(id, o)
	})
	switch {
	case err != nil:
		return nil, err
	case slices.Contains(list, nil):
		return nil, k.unusable("the list has an entry without an identifier")
	case k.responseHeader.Get("X-Next-Page") != "":
		return nil, k.unusable("the list has further pages, which are not supported")
	}
	out := make([]Manager, len(list))
	for i, m := range list {
		out[i] = Manager{SystemID: redact(m.SystemID), Status: redact(m.Status), Version: redact(m.Version)}
		if m.ContactedAt != nil {
			out[i].ContactedAt = *m.ContactedAt
		}
	}
	return out, nil
}

// RunningJobs lists all running jobs of a runner, or returns an error.
func (g *GitLab) RunningJobs(ctx context.Context, id int64) ([]Job, error) {
	k := g.call("list running jobs", runnerPath(id)+"/jobs", wantArray)
	all, err := gitLabList(ctx, k, func(j *gitlab.Job) int64 { return j.ID },
		func(c *gitlab.Client, page gitlab.ListOptions, o gitlab.RequestOptionFunc) ([]*gitlab.Job, *gitlab.Response, error) {
			return c.Runners.ListRunnerJobs(id, &gitlab.ListRunnerJobsOptions{ListOptions: page, Status: new("running")}, o)
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
	err := doGitLabNoBody(ctx, g.call("cancel a job", path+"/cancel", nil),
		func(c *gitlab.Client, o gitlab.RequestOptionFunc) (*gitlab.Response, error) {
			//lint:ignore SA1019 its successor has the same name as the call without options, in the next major version
			_, response, err := c.Jobs.CancelJobWithOptions(project, job, &gitlab.CancelJobOptions{}, o)
			return response, err
		})
	if class := ClassOf(err); class != Invalid && class != Forbidden && class != Conflict {
		return ignoreNotFound(err)
	}
	k := g.call("read a job", path, wantObject())
	found, readErr := doGitLab(ctx, k, func(c *gitlab.Client, o gitlab.RequestOptionFunc) (*gitlab.Job, *gitlab.Response, error) {
		return c.Jobs.GetJob(project, job, o)
	})
	switch {
	case readErr != nil && k.status/100 != 2:
		return ignoreNotFound(readErr)
	case readErr == nil && slices.Contains([]string{"success", "failed", "canceled", "canceling", "skipped"}, found.Status):
		return nil
	}
	return err
}
