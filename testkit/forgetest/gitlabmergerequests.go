package forgetest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// GitLabMergeRequest is a merge request.
type GitLabMergeRequest struct {
	IID                               int64
	Title, Description, State, Author string
	Source, Target, SHA               string
	Fork                              bool // its branch is in another project
	Labels, Notes                     []string
	Approvals                         map[string]time.Time // time of approval by login
	versions                          []gitLabVersion
	late                              int // remaining reads until it shows the new head of its branch
}

type gitLabVersion struct {
	head string
	at   time.Time
}

// MergeRequests returns the merge requests of a project, by IID.
func (g *GitLabFake) MergeRequests(project string) []GitLabMergeRequest {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []GitLabMergeRequest
	for _, mr := range g.projects[project].requests {
		c := *mr
		c.Labels, c.Approvals = slices.Clone(mr.Labels), maps.Clone(mr.Approvals)
		out = append(out, c)
	}
	return out
}

// ChangeMergeRequest changes a merge request, as a user of GitLab would.
func (g *GitLabFake) ChangeMergeRequest(project string, iid int64, change func(*GitLabMergeRequest)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change(g.projects[project].requests[iid-1])
}

// AddMergeRequest creates a merge request, as a user of GitLab would, and returns its IID.
func (g *GitLabFake) AddMergeRequest(project string, mr GitLabMergeRequest) int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.request(g.projects[project], mr).IID
}

// request adds a merge request to a project. Its IID is the next number.
func (g *GitLabFake) request(p *gitLabProject, mr GitLabMergeRequest) *GitLabMergeRequest {
	mr.IID, mr.State, mr.Approvals = int64(len(p.requests)+1), cmp.Or(mr.State, "opened"), map[string]time.Time{}
	mr.SHA = cmp.Or(mr.SHA, p.Head(mr.Source))
	mr.versions = []gitLabVersion{{mr.SHA, g.now()}}
	p.requests = append(p.requests, &mr)
	return &mr
}

// Approve approves a merge request as login at the current time.
func (g *GitLabFake) Approve(project string, iid int64, login string) {
	g.ChangeMergeRequest(project, iid, func(mr *GitLabMergeRequest) { mr.Approvals[login] = g.now() })
}

// Refuse makes the merge requests of a project not mergeable, with a detailed_merge_status of GitLab. Empty ends
// that.
func (g *GitLabFake) Refuse(project, status string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.projects[project].refusal = status
}

// Lag delays the effect of a push: merge requests show the new commit only after that many reads.
func (g *GitLabFake) Lag(project string, reads int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.projects[project].lag = reads
}

// requestForm is a merge request in a response.
func (g *GitLabFake) requestForm(p *gitLabProject, mr *GitLabMergeRequest) object {
	source := p.id
	if mr.Fork {
		source += 100_000
	}
	return object{
		"id": 5000 + mr.IID, "iid": mr.IID, "project_id": p.id, "title": mr.Title, "description": mr.Description, "state": mr.State,
		"author":        object{"id": 7, "username": mr.Author},
		"source_branch": mr.Source, "target_branch": mr.Target, "source_project_id": source, "target_project_id": p.id,
		"labels": slices.Concat([]string{}, mr.Labels), "sha": mr.SHA,
		"web_url":               fmt.Sprintf("%s/%s/-/merge_requests/%d", g.URL, p.path, mr.IID),
		"detailed_merge_status": p.mergeStatus(mr),
	}
}

// mergeStatus returns the detailed_merge_status of a merge request.
func (p *gitLabProject) mergeStatus(mr *GitLabMergeRequest) string {
	_, fits := p.Merged(mr.SHA, mr.Target)
	switch {
	case mr.State != "opened":
		return "not_open"
	case p.refusal != "":
		return p.refusal
	case !fits:
		return "conflict"
	}
	return "mergeable"
}

func (g *GitLabFake) mergeRequests(_ *GitLabToken, p *gitLabProject, r *http.Request) reply {
	var all []*GitLabMergeRequest
	for _, mr := range slices.Backward(p.requests) {
		state, source := r.FormValue("state"), r.FormValue("source_branch")
		if (state == "" || state == "all" || state == mr.State) && (source == "" || source == mr.Source) {
			all = append(all, mr)
		}
	}
	return page(r, all, func(mr *GitLabMergeRequest) object { return g.requestForm(p, mr) })
}

func (g *GitLabFake) openRequest(t *GitLabToken, p *gitLabProject, r *http.Request) reply {
	var w struct {
		Source      string `json:"source_branch"`
		Target      string `json:"target_branch"`
		Title       string `json:"title"`
		Description string `json:"description"`
		Labels      string `json:"labels"`
	}
	if err := json.NewDecoder(r.Body).Decode(&w); err != nil || w.Source == "" || w.Target == "" || w.Title == "" {
		return reply{status: http.StatusBadRequest, body: object{"error": "source_branch, target_branch, title are missing"}}
	}
	for _, mr := range p.requests {
		if mr.State == "opened" && mr.Source == w.Source && mr.Target == w.Target && !mr.Fork {
			text := fmt.Sprintf("Another open merge request already exists for this source branch: !%d", mr.IID)
			return reply{status: http.StatusConflict, body: object{"message": []string{text}}}
		}
	}
	if p.Head(w.Source) == "" || p.Head(w.Target) == "" {
		return invalid("base", "branch does not exist")
	}
	if len([]rune(w.Title)) > 255 {
		return invalid("title", "is too long (maximum is 255 characters)")
	}
	mr := g.request(p, GitLabMergeRequest{
		Title: w.Title, Description: w.Description, Author: t.user(), Source: w.Source, Target: w.Target, Labels: split(w.Labels),
	})
	return reply{status: http.StatusCreated, body: g.requestForm(p, mr)}
}

// split returns the labels of a list with commas.
func split(labels string) []string {
	return slices.DeleteFunc(strings.Split(labels, ","), func(s string) bool { return s == "" })
}

// onRequest finds the merge request of a request.
func onRequest(do func(*GitLabToken, *gitLabProject, *GitLabMergeRequest, *http.Request) reply) projectHandler {
	return func(t *GitLabToken, p *gitLabProject, r *http.Request) reply {
		n, err := strconv.Atoi(r.PathValue("iid"))
		if err != nil || n < 1 || n > len(p.requests) {
			return message(http.StatusNotFound, "Not found")
		}
		return do(t, p, p.requests[n-1], r)
	}
}

// mergeRequest returns a merge request. After a push it counts the reads until it shows the new head; see Lag.
func (g *GitLabFake) mergeRequest(_ *GitLabToken, p *gitLabProject, mr *GitLabMergeRequest, _ *http.Request) reply {
	if mr.late > 0 {
		if mr.late--; mr.late == 0 && mr.State == "opened" {
			mr.SHA = p.Head(mr.Source)
		}
	}
	return reply{status: http.StatusOK, body: g.requestForm(p, mr)}
}

func (g *GitLabFake) changeRequest(_ *GitLabToken, p *gitLabProject, mr *GitLabMergeRequest, r *http.Request) reply {
	var w struct {
		Title, Description *string
		Add                string `json:"add_labels"`
		Remove             string `json:"remove_labels"`
		Event              string `json:"state_event"`
	}
	if err := json.NewDecoder(r.Body).Decode(&w); err != nil {
		return reply{status: http.StatusBadRequest, body: object{"error": "The provided request body is invalid"}}
	}
	set(&mr.Title, w.Title)
	set(&mr.Description, w.Description)
	gone := split(w.Remove)
	mr.Labels = slices.DeleteFunc(append(mr.Labels, split(w.Add)...), func(l string) bool { return slices.Contains(gone, l) })
	if w.Event == "close" && mr.State == "opened" {
		mr.State = "closed"
	}
	return reply{status: http.StatusOK, body: g.requestForm(p, mr)}
}

// merge is `put ':id/merge_requests/:merge_request_iid/merge'`. It returns 401 without permission, 405 if the merge
// request is not mergeable, 409 for a different head, and 422 for a conflict.
func (g *GitLabFake) merge(t *GitLabToken, p *gitLabProject, mr *GitLabMergeRequest, r *http.Request) reply {
	var w struct {
		SHA    string `json:"sha"`
		Remove bool   `json:"should_remove_source_branch"`
	}
	if err := json.NewDecoder(r.Body).Decode(&w); err != nil {
		return reply{status: http.StatusBadRequest, body: object{"error": "The provided request body is invalid"}}
	}
	files, fits := p.Merged(mr.SHA, mr.Target)
	switch {
	case t.Level < 40:
		return message(http.StatusUnauthorized, "Unauthorized")
	case mr.State != "opened" || p.refusal != "":
		return message(http.StatusMethodNotAllowed, "Method Not Allowed")
	case w.SHA != "" && w.SHA != mr.SHA:
		return reply{status: http.StatusConflict, body: object{"message": "SHA does not match HEAD of source branch: " + mr.SHA}}
	case !fits:
		return reply{status: http.StatusUnprocessableEntity, body: object{"message": "Branch cannot be merged"}}
	}
	mr.State = "merged"
	g.advance(p, mr.Target, commitBy(t.user(), p.Head(mr.Target), "Merge branch '"+mr.Source+"'", files))
	if w.Remove {
		p.Delete(mr.Source)
	}
	return reply{status: http.StatusOK, body: g.requestForm(p, mr)}
}

// note is `post ":id/merge_requests/:noteable_id/notes"`: a comment.
func (g *GitLabFake) note(t *GitLabToken, _ *gitLabProject, mr *GitLabMergeRequest, r *http.Request) reply {
	var w struct{ Body string }
	if err := json.NewDecoder(r.Body).Decode(&w); err != nil || w.Body == "" {
		return reply{status: http.StatusBadRequest, body: object{"error": "body is missing"}}
	}
	mr.Notes = append(mr.Notes, w.Body)
	return reply{status: http.StatusCreated, body: object{"id": len(mr.Notes), "body": w.Body, "author": object{"username": t.user()}}}
}

func (g *GitLabFake) requestCommits(_ *GitLabToken, p *gitLabProject, mr *GitLabMergeRequest, r *http.Request) reply {
	own, _ := p.Own(mr.SHA, mr.Target)
	return page(r, own, commitForm)
}

func (g *GitLabFake) requestVersions(_ *GitLabToken, _ *gitLabProject, mr *GitLabMergeRequest, r *http.Request) reply {
	var all []object
	for i, v := range slices.Backward(mr.versions) {
		all = append(all, object{
			"id": 1000*mr.IID + int64(i), "head_commit_sha": v.head, "created_at": v.at.UTC(), "merge_request_id": 5000 + mr.IID,
		})
	}
	return page(r, all, func(v object) object { return v })
}

// requestApprovals are entities/approvals.rb: logins and times, but no commit. This project keeps approvals after a
// push.
func (g *GitLabFake) requestApprovals(_ *GitLabToken, _ *gitLabProject, mr *GitLabMergeRequest, _ *http.Request) reply {
	by := []object{}
	for _, login := range slices.Sorted(maps.Keys(mr.Approvals)) {
		by = append(by, object{"user": object{"id": 9, "username": login}, "approved_at": mr.Approvals[login].UTC()})
	}
	return reply{status: http.StatusOK, body: object{"approved": len(by) > 0, "approved_by": by}}
}
