package forge

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	gitlab "gitlab.com/gitlab-org/api/client-go"
)

// A RunnerSpec is what a runner of a group at GitLab is to be.
type RunnerSpec struct {
	GroupID                                int64
	Tags                                   []string
	RunUntagged, Locked, Protected, Paused bool
	MaximumTimeout                         time.Duration // of a job; 0: as the project says
	Description                            string
	Note                                   string // the maintenance note, at most 1,024 characters: our mark, and who paused it and why
}

// A GitLabRunner is one that GitLab has.
type GitLabRunner struct {
	ID                                     int64
	Paused, Locked, RunUntagged, Protected bool
	// Status is online, offline, stale or never_contacted, paused or not; anything
	// else is as GitLab said it, and means that it is not known.
	Status                     string
	Description, Note, Version string
	Tags                       []string
	MaximumTimeout             time.Duration // 0: none
	ContactedAt                time.Time     // zero: never
	Groups                     []int64
}

// A Manager is one process that spoke to GitLab for a runner. It stays listed long
// after it has gone: what counts is when it spoke last.
type Manager struct {
	SystemID, Status, Version string
	ContactedAt               time.Time // zero: never
}

// A Job runs.
type Job struct{ ID, Project int64 }

// Words of GitLab's for runners.
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

// checkTags refuses what GitLab would take for other tags.
func checkTags(op string, tags []string) error {
	for _, tag := range tags {
		if strings.TrimSpace(tag) != tag || tag == "" || strings.Contains(tag, ",") {
			return &Error{Op: op, Class: Invalid, Message: "a tag that GitLab would read as another one: " + strconv.Quote(clean(tag))}
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

// CreateRunner makes a runner for a group. It is asked for once: if the answer is
// lost there may be one, whose token nobody has, and it is found by its note.
func (g *GitLab) CreateRunner(ctx context.Context, s RunnerSpec) (id int64, token Secret, err error) {
	q := question{op: "create a runner", method: http.MethodPost, path: "/user/runners", body: gitlab.CreateUserRunnerOptions{
		RunnerType: new(groupRunnerType), GroupID: &s.GroupID, TagList: new(slices.Concat([]string{}, s.Tags)), RunUntagged: &s.RunUntagged, Locked: &s.Locked,
		AccessLevel: new(accessLevel(s.Protected)), MaximumTimeout: seconds(s.MaximumTimeout), Paused: &s.Paused, Description: &s.Description, MaintenanceNote: &s.Note,
	}}
	if err := checkTags(q.op, s.Tags); err != nil {
		return 0, Secret{}, err
	}
	a, err := g.ask(ctx, q)
	if err != nil {
		return 0, Secret{}, err
	}
	made, err := read[*gitlab.UserRunner](q, a)
	switch {
	case err != nil:
		return 0, Secret{}, err
	case made == nil || made.ID <= 0 || made.Token == "":
		return 0, Secret{}, unreadable(q, a, "the answer has no runner with a token")
	}
	return made.ID, NewSecret(made.Token), nil
}

// GroupRunners lists the numbers of the runners that the projects of a group may use:
// all, or an error. Those of the groups above it are among them, see Groups of each.
func (g *GitLab) GroupRunners(ctx context.Context, group int64) ([]int64, error) {
	all, err := gitLabList(ctx, g, "list runners", "/groups/"+number(group)+"/runners?type="+groupRunnerType, func(r gitlab.Runner) int64 { return r.ID })
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

// details are a runner as it is read. Where not to know would be taken for no, it is
// told from no.
type details struct {
	gitlab.RunnerDetails
	Paused         *bool  `json:"paused"`
	MaximumTimeout *int64 `json:"maximum_timeout"`
	Version        string `json:"version"` // of the manager that spoke last
}

// Runner reads a runner.
func (g *GitLab) Runner(ctx context.Context, id int64) (GitLabRunner, error) {
	q := question{op: "read a runner", path: runnerPath(id)}
	a, err := g.ask(ctx, q)
	if err != nil {
		return GitLabRunner{}, err
	}
	d, err := read[*details](q, a)
	switch {
	case err != nil:
		return GitLabRunner{}, err
	case d == nil || d.ID != id:
		return GitLabRunner{}, unreadable(q, a, "the answer is not about that runner")
	case d.Paused == nil:
		return GitLabRunner{}, unreadable(q, a, "the answer does not say whether it is paused")
	}
	r := GitLabRunner{ID: d.ID, Paused: *d.Paused, Locked: d.Locked, RunUntagged: d.RunUntagged, Protected: d.AccessLevel == refProtected,
		Status: clean(d.Status), Description: d.Description, Note: d.MaintenanceNote, Version: clean(d.Version), Tags: d.TagList}
	if r.Status == statusPaused { // which hides whether it is there
		r.Status = statusOffline
		if d.Online {
			r.Status = statusOnline
		}
	}
	if d.MaximumTimeout != nil {
		r.MaximumTimeout = time.Duration(*d.MaximumTimeout) * time.Second
	}
	if d.ContactedAt != nil {
		r.ContactedAt = *d.ContactedAt
	}
	for _, group := range d.Groups {
		r.Groups = append(r.Groups, group.ID)
	}
	return r, nil
}

// UpdateRunner makes a runner as s says: its tags, description, timeout, whom it is
// for, and its note if s has one. Whether it is paused is left as it is, which is
// [GitLab.SetPaused]'s; so is its group, which cannot change.
func (g *GitLab) UpdateRunner(ctx context.Context, id int64, s RunnerSpec) error {
	body := struct {
		gitlab.UpdateRunnerDetailsOptions
		MaximumTimeout *int64 `json:"maximum_timeout"` // null takes it away
	}{gitlab.UpdateRunnerDetailsOptions{TagList: new(slices.Concat([]string{}, s.Tags)), RunUntagged: &s.RunUntagged, Locked: &s.Locked,
		AccessLevel: new(accessLevel(s.Protected)), Description: &s.Description}, seconds(s.MaximumTimeout)}
	if s.Note != "" {
		body.MaintenanceNote = &s.Note
	}
	q := question{op: "change a runner", method: http.MethodPut, path: runnerPath(id), body: body}
	if err := checkTags(q.op, s.Tags); err != nil {
		return err
	}
	_, err := g.ask(ctx, q)
	return err
}

// SetPaused pauses a runner, or lets it go on, and returns what GitLab says of it
// afterwards, which proves it. Jobs that run go on. note replaces the whole note,
// our mark in it too; an empty one leaves it.
func (g *GitLab) SetPaused(ctx context.Context, id int64, paused bool, note string) (GitLabRunner, error) {
	body := gitlab.UpdateRunnerDetailsOptions{Paused: &paused}
	if note != "" {
		body.MaintenanceNote = &note
	}
	op := "let a runner go on"
	if paused {
		op = "pause a runner"
	}
	if _, err := g.ask(ctx, question{op: op, method: http.MethodPut, path: runnerPath(id), body: body}); err != nil {
		return GitLabRunner{}, err
	}
	return g.Runner(ctx, id)
}

// ResetToken gives a runner another token. The old one opens nothing from then on. It
// is asked for once: if the answer is lost nobody has the token, and it is to be
// reset again.
func (g *GitLab) ResetToken(ctx context.Context, id int64) (Secret, error) {
	q := question{op: "reset a runner's token", method: http.MethodPost, path: runnerPath(id) + "/reset_authentication_token"}
	a, err := g.ask(ctx, q)
	if err != nil {
		return Secret{}, err
	}
	made, err := read[*gitlab.RunnerAuthenticationToken](q, a)
	switch {
	case err != nil:
		return Secret{}, err
	case made == nil || made.Token == nil || *made.Token == "":
		return Secret{}, unreadable(q, a, "the answer has no token")
	}
	return NewSecret(*made.Token), nil
}

// DeleteRunner deletes a runner, and its running jobs fail. That it is gone already
// is success. It is believed when a read says so.
func (g *GitLab) DeleteRunner(ctx context.Context, id int64) error {
	q := question{op: "delete a runner", method: http.MethodDelete, path: runnerPath(id)}
	if _, err := g.ask(ctx, q); gone(err) != nil {
		return err
	}
	_, err := g.Runner(ctx, id)
	if err == nil {
		return &Error{Op: q.op, Class: Unavailable, Message: "it is still there"}
	}
	return gone(err)
}

// Managers lists who spoke to GitLab for a runner, or an error.
func (g *GitLab) Managers(ctx context.Context, id int64) ([]Manager, error) {
	q := question{op: "list managers", path: runnerPath(id) + "/managers"} // not in pages, and not in the library
	a, err := g.ask(ctx, q)
	if err != nil {
		return nil, err
	}
	list, err := read[[]struct {
		SystemID    string     `json:"system_id"`
		Status      string     `json:"status"`
		Version     string     `json:"version"`
		ContactedAt *time.Time `json:"contacted_at"`
	}](q, a)
	switch {
	case err != nil:
		return nil, err
	case list == nil:
		return nil, unreadable(q, a, "the answer is no list")
	case a.header.Get("X-Next-Page") != "":
		return nil, unreadable(q, a, "the list goes on, on a page that we do not know to read")
	}
	out := make([]Manager, len(list))
	for i, m := range list {
		out[i] = Manager{SystemID: clean(m.SystemID), Status: clean(m.Status), Version: clean(m.Version)}
		if m.ContactedAt != nil {
			out[i].ContactedAt = *m.ContactedAt
		}
	}
	return out, nil
}

// RunningJobs lists the jobs that a runner runs: all, or an error.
func (g *GitLab) RunningJobs(ctx context.Context, id int64) ([]Job, error) {
	type form struct {
		ID      int64 `json:"id"`
		Project struct {
			ID int64 `json:"id"`
		} `json:"project"`
	}
	all, err := gitLabList(ctx, g, "list running jobs", runnerPath(id)+"/jobs?status=running", func(j form) int64 { return j.ID })
	if err != nil {
		return nil, err
	}
	jobs := make([]Job, len(all))
	for i, j := range all {
		jobs[i] = Job{ID: j.ID, Project: j.Project.ID}
	}
	return jobs, nil
}

// CancelJob asks for the end of a job, for which the token needs the scope api. That
// it has ended already is success.
func (g *GitLab) CancelJob(ctx context.Context, project, job int64) error {
	path := "/projects/" + number(project) + "/jobs/" + number(job)
	_, err := g.ask(ctx, question{op: "cancel a job", method: http.MethodPost, path: path + "/cancel"})
	if class := ClassOf(err); class != Invalid && class != Forbidden && class != Conflict {
		return gone(err)
	}
	q := question{op: "read a job", path: path}
	a, readErr := g.ask(ctx, q)
	if readErr != nil {
		return gone(readErr)
	}
	if found, readErr := read[*gitlab.Job](q, a); readErr == nil && found != nil && slices.Contains([]string{"success", "failed", "canceled", "canceling", "skipped"}, found.Status) {
		return nil
	}
	return err
}
