package forgetest

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tailplane/tailplane/testkit/forgetest/history"
)

// gitLabProject is a project with a repository.
type gitLabProject struct {
	*history.Repository
	id       int64
	path     string
	requests []*GitLabMergeRequest // by IID, from 1
	statuses map[string][]object
	refusal  string // detailed_merge_status that overrides the computed one
	lag      int
}

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

// AddProject creates a project with the branch main and a first commit of these files.
func (g *GitLabFake) AddProject(path string, files map[string]string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := &gitLabProject{Repository: history.New(), id: g.number(), path: path, statuses: map[string][]object{}}
	g.projects[path] = p
	g.advance(p, "main", history.Commit{Message: "first", AuthorName: "Root", AuthorEmail: "root@example.com", CommitterName: "Root", CommitterEmail: "root@example.com", Files: maps.Clone(files)})
}

// Push commits to a branch, as a user would, and returns the commit ID. Nil content deletes a file. A new branch
// starts at main.
func (g *GitLabFake) Push(project, branch, login, message string, files map[string]*string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.projects[project]
	parent, _ := p.Commit(cmp.Or(p.Head(branch), p.Head("main")))
	c := history.Commit{Parent: parent.ID, Message: message, AuthorName: login, AuthorEmail: login + "@example.com", CommitterName: login, CommitterEmail: login + "@example.com", Files: maps.Clone(parent.Files)}
	for path, content := range files {
		if content == nil {
			delete(c.Files, path)
		} else {
			c.Files[path] = *content
		}
	}
	return g.advance(p, branch, c)
}

// advance adds a commit to a branch.
func (g *GitLabFake) advance(p *gitLabProject, branch string, c history.Commit) string {
	id := p.Add(branch, c)
	for _, mr := range p.requests {
		if mr.State == "opened" && mr.Source == branch && !mr.Fork {
			mr.versions = append(mr.versions, gitLabVersion{id, g.now()})
			mr.late = p.lag
			if mr.late == 0 {
				mr.SHA = id
			}
		}
	}
	return id
}

// File returns a file at the head of a branch. It returns false if the file does not exist.
func (g *GitLabFake) File(project, branch, path string) (string, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	head, _ := g.projects[project].Commit(g.projects[project].Head(branch))
	text, ok := head.Files[path]
	return text, ok
}

// Log returns the commits of a branch, newest first, or nil if the branch does not exist.
func (g *GitLabFake) Log(project, branch string) []history.Commit {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.projects[project]
	return p.Repository.Log(p.Head(branch))
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

// SetStatus sets a commit status, as a CI program does.
func (g *GitLabFake) SetStatus(project, commit, name, status string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.projects[project]
	p.statuses[commit] = append(p.statuses[commit], object{"id": g.number(), "sha": commit, "name": name, "status": status, "target_url": g.URL + "/jobs/" + name})
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

func (g *GitLabFake) changeRoutes() map[string]func(*GitLabToken, *gitLabProject, *http.Request) reply {
	return map[string]func(*GitLabToken, *gitLabProject, *http.Request) reply{
		"GET /projects/{project}":                                   g.project,
		"GET /projects/{project}/repository/branches/{branch}":      g.branch,
		"DELETE /projects/{project}/repository/branches/{branch}":   g.deleteBranch,
		"GET /projects/{project}/repository/files/{file}":           g.file,
		"GET /projects/{project}/repository/tree":                   g.tree,
		"GET /projects/{project}/repository/commits/{sha}":          g.commit,
		"GET /projects/{project}/repository/commits/{sha}/statuses": g.commitStatuses,
		"POST /projects/{project}/repository/commits":               g.push,
		"GET /projects/{project}/repository/compare":                g.compare,
		"GET /projects/{project}/merge_requests":                    g.mergeRequests,
		"POST /projects/{project}/merge_requests":                   g.openRequest,
		"GET /projects/{project}/merge_requests/{iid}":              g.mergeRequest,
		"PUT /projects/{project}/merge_requests/{iid}":              g.changeRequest,
		"PUT /projects/{project}/merge_requests/{iid}/merge":        g.merge,
		"POST /projects/{project}/merge_requests/{iid}/notes":       g.note,
		"GET /projects/{project}/merge_requests/{iid}/commits":      g.requestCommits,
		"GET /projects/{project}/merge_requests/{iid}/versions":     g.requestVersions,
		"GET /projects/{project}/merge_requests/{iid}/approvals":    g.requestApprovals,
	}
}

// inProject finds the project of a request. A project that the token may not see returns 404.
func (g *GitLabFake) inProject(do func(*GitLabToken, *gitLabProject, *http.Request) reply) func(*GitLabToken, *http.Request) reply {
	return func(t *GitLabToken, r *http.Request) reply {
		for path, p := range g.projects {
			if name := r.PathValue("project"); (strings.EqualFold(path, name) || strconv.FormatInt(p.id, 10) == name) && t.Level > 0 {
				return do(t, p, r)
			}
		}
		return message(http.StatusNotFound, "Project Not Found")
	}
}

func (g *GitLabFake) project(t *GitLabToken, p *gitLabProject, _ *http.Request) reply {
	return reply{status: http.StatusOK, body: object{"id": p.id, "path_with_namespace": p.path, "default_branch": "main",
		"permissions": object{"project_access": nil, "group_access": object{"access_level": t.Level}}}}
}

func (g *GitLabFake) branch(_ *GitLabToken, p *gitLabProject, r *http.Request) reply {
	name := r.PathValue("branch")
	head, ok := p.Commit(p.Head(name))
	if !ok {
		return message(http.StatusNotFound, "Branch Not Found")
	}
	return reply{status: http.StatusOK, body: object{"name": name, "commit": commitForm(head)}}
}

func (g *GitLabFake) deleteBranch(_ *GitLabToken, p *gitLabProject, r *http.Request) reply {
	if !p.Delete(r.PathValue("branch")) {
		return message(http.StatusNotFound, "Branch Not Found")
	}
	return reply{status: http.StatusNoContent}
}

// file is lib/api/files.rb.
func (g *GitLabFake) file(_ *GitLabToken, p *gitLabProject, r *http.Request) reply {
	ref := r.FormValue("ref")
	c, ok := p.Commit(cmp.Or(p.Head(ref), ref))
	if !ok {
		return message(http.StatusNotFound, "Commit Not Found")
	}
	path := r.PathValue("file")
	text, ok := c.Files[path]
	if !ok {
		return message(http.StatusNotFound, "File Not Found")
	}
	sum := sha256.Sum256([]byte(text))
	return reply{status: http.StatusOK, body: object{"file_name": path[strings.LastIndex(path, "/")+1:], "file_path": path, "size": len(text), "encoding": "base64",
		"content": base64.StdEncoding.EncodeToString([]byte(text)), "content_sha256": hex.EncodeToString(sum[:]), "ref": ref, "commit_id": c.ID, "last_commit_id": p.LastFor(c.ID, path)}}
}

// tree is lib/api/repositories.rb, with numbered pages. Directories are entries too.
func (g *GitLabFake) tree(_ *GitLabToken, p *gitLabProject, r *http.Request) reply {
	ref, folder := cmp.Or(r.FormValue("ref"), "main"), r.FormValue("path")
	c, ok := p.Commit(cmp.Or(p.Head(ref), ref))
	if !ok {
		return message(http.StatusNotFound, "Tree Not Found")
	}
	id, ok := p.Folder(c.ID, folder)
	if !ok {
		return message(http.StatusNotFound, "invalid revision or path Not Found")
	}
	all, _ := p.Tree(id, r.FormValue("recursive") == "true")
	return page(r, all, func(e history.Entry) object {
		return object{"id": e.ID, "name": path.Base(e.Path), "type": e.Type, "path": path.Join(folder, e.Path), "mode": e.Mode}
	})
}

func commitForm(c history.Commit) object {
	return object{"id": c.ID, "short_id": c.ID[:8], "message": c.Message, "author_name": c.AuthorName, "author_email": c.AuthorEmail, "committer_name": c.CommitterName,
		"committer_email": c.CommitterEmail, "parent_ids": []string{c.Parent}}
}

func (g *GitLabFake) commit(_ *GitLabToken, p *gitLabProject, r *http.Request) reply {
	c, ok := p.Commit(r.PathValue("sha"))
	if !ok {
		return message(http.StatusNotFound, "Commit Not Found")
	}
	return reply{status: http.StatusOK, body: commitForm(c)}
}

func (g *GitLabFake) compare(_ *GitLabToken, p *gitLabProject, r *http.Request) reply {
	from, to := r.FormValue("from"), r.FormValue("to")
	if _, ok := p.Commit(to); !ok || p.Head(from) == "" {
		return message(http.StatusNotFound, "Ref Not Found")
	}
	diffs := []object{}
	for _, path := range p.Touched(to, from) {
		diffs = append(diffs, object{"old_path": path, "new_path": path})
	}
	return reply{status: http.StatusOK, body: object{"diffs": diffs, "compare_timeout": false}}
}

func (g *GitLabFake) commitStatuses(t *GitLabToken, p *gitLabProject, r *http.Request) reply {
	return page(r, p.statuses[r.PathValue("sha")], func(s object) object { return s })
}

// push is lib/api/commits.rb and app/services/files/multi_service.rb: all errors are 400.
func (g *GitLabFake) push(t *GitLabToken, p *gitLabProject, r *http.Request) reply {
	var w struct {
		Branch      string `json:"branch"`
		StartSHA    string `json:"start_sha"`
		Message     string `json:"commit_message"`
		AuthorName  string `json:"author_name"`
		AuthorEmail string `json:"author_email"`
		Actions     []struct {
			Action       string `json:"action"`
			Path         string `json:"file_path"`
			Content      string `json:"content"`
			Encoding     string `json:"encoding"`
			LastCommitID string `json:"last_commit_id"`
		} `json:"actions"`
	}
	if err := json.NewDecoder(r.Body).Decode(&w); err != nil || w.Branch == "" || w.Message == "" || len(w.Actions) == 0 {
		return reply{status: http.StatusBadRequest, body: object{"error": "branch, commit_message, actions are missing"}}
	}
	no := func(text string) reply { return reply{status: http.StatusBadRequest, body: object{"message": text}} }
	head := p.Head(w.Branch)
	there := head != ""
	start, known := p.Commit(w.StartSHA)
	switch {
	case t.Level < 30 || w.Branch == "main" && t.Level < 40:
		return message(http.StatusForbidden, "Forbidden - You are not allowed to push into this branch")
	case there && w.StartSHA != "":
		return no("A branch called '" + w.Branch + "' already exists. Switch to that branch in order to make changes")
	case !there && !known:
		return no("You can only create or edit files when you are on a branch")
	case !there:
		head = start.ID
	}
	parent, _ := p.Commit(head)
	c := history.Commit{Parent: head, Message: w.Message, AuthorName: cmp.Or(w.AuthorName, t.user()), AuthorEmail: cmp.Or(w.AuthorEmail, t.user()+"@example.com"),
		CommitterName: t.user(), CommitterEmail: t.user() + "@example.com", Files: maps.Clone(parent.Files)}
	for _, a := range w.Actions {
		_, exists := c.Files[a.Path]
		switch {
		case a.Action == "create" && exists:
			return no("A file with this name already exists")
		case a.Action != "create" && a.LastCommitID != "" && (!exists || a.LastCommitID != p.LastFor(head, a.Path)):
			return no("The file has changed since you started editing it: " + a.Path)
		case a.Action != "create" && !exists:
			return no("A file with this name doesn't exist")
		case a.Action == "delete":
			delete(c.Files, a.Path)
			continue
		}
		text := []byte(a.Content)
		if a.Encoding == "base64" {
			var err error
			if text, err = base64.StdEncoding.DecodeString(a.Content); err != nil {
				return no("invalid base64")
			}
		}
		c.Files[a.Path] = string(text)
	}
	made, _ := p.Commit(g.advance(p, w.Branch, c))
	return reply{status: http.StatusCreated, body: commitForm(made)}
}

func (g *GitLabFake) requestForm(p *gitLabProject, mr *GitLabMergeRequest) object {
	source := p.id
	if mr.Fork {
		source += 100_000
	}
	return object{"id": 5000 + mr.IID, "iid": mr.IID, "project_id": p.id, "title": mr.Title, "description": mr.Description, "state": mr.State, "author": object{"id": 7, "username": mr.Author},
		"source_branch": mr.Source, "target_branch": mr.Target, "source_project_id": source, "target_project_id": p.id, "labels": slices.Concat([]string{}, mr.Labels),
		"sha": mr.SHA, "web_url": fmt.Sprintf("%s/%s/-/merge_requests/%d", g.URL, p.path, mr.IID), "detailed_merge_status": p.mergeStatus(mr)}
}

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
			return reply{status: http.StatusConflict, body: object{"message": []string{fmt.Sprintf("Another open merge request already exists for this source branch: !%d", mr.IID)}}}
		}
	}
	if p.Head(w.Source) == "" || p.Head(w.Target) == "" {
		return invalid("base", "branch does not exist")
	}
	if len([]rune(w.Title)) > 255 {
		return invalid("title", "is too long (maximum is 255 characters)")
	}
	mr := g.request(p, GitLabMergeRequest{Title: w.Title, Description: w.Description, Author: t.user(), Source: w.Source, Target: w.Target, Labels: split(w.Labels)})
	return reply{status: http.StatusCreated, body: g.requestForm(p, mr)}
}

func split(labels string) []string {
	return slices.DeleteFunc(strings.Split(labels, ","), func(s string) bool { return s == "" })
}

// numbered finds the merge request of a request.
func (g *GitLabFake) numbered(p *gitLabProject, r *http.Request) (*GitLabMergeRequest, *reply) {
	n, err := strconv.Atoi(r.PathValue("iid"))
	if err != nil || n < 1 || n > len(p.requests) {
		return nil, new(message(http.StatusNotFound, "Not found"))
	}
	return p.requests[n-1], nil
}

func (g *GitLabFake) mergeRequest(_ *GitLabToken, p *gitLabProject, r *http.Request) reply {
	mr, no := g.numbered(p, r)
	if no != nil {
		return *no
	}
	if mr.late > 0 {
		if mr.late--; mr.late == 0 && mr.State == "opened" {
			mr.SHA = p.Head(mr.Source)
		}
	}
	return reply{status: http.StatusOK, body: g.requestForm(p, mr)}
}

func (g *GitLabFake) changeRequest(_ *GitLabToken, p *gitLabProject, r *http.Request) reply {
	mr, no := g.numbered(p, r)
	if no != nil {
		return *no
	}
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
func (g *GitLabFake) merge(t *GitLabToken, p *gitLabProject, r *http.Request) reply {
	mr, no := g.numbered(p, r)
	if no != nil {
		return *no
	}
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
	g.advance(p, mr.Target, history.Commit{Parent: p.Head(mr.Target), Message: "Merge branch '" + mr.Source + "'", AuthorName: t.user(), AuthorEmail: t.user() + "@example.com",
		CommitterName: t.user(), CommitterEmail: t.user() + "@example.com", Files: files})
	if w.Remove {
		p.Delete(mr.Source)
	}
	return reply{status: http.StatusOK, body: g.requestForm(p, mr)}
}

// note is `post ":id/merge_requests/:noteable_id/notes"`: a comment.
func (g *GitLabFake) note(t *GitLabToken, p *gitLabProject, r *http.Request) reply {
	mr, no := g.numbered(p, r)
	if no != nil {
		return *no
	}
	var w struct{ Body string }
	if err := json.NewDecoder(r.Body).Decode(&w); err != nil || w.Body == "" {
		return reply{status: http.StatusBadRequest, body: object{"error": "body is missing"}}
	}
	mr.Notes = append(mr.Notes, w.Body)
	return reply{status: http.StatusCreated, body: object{"id": len(mr.Notes), "body": w.Body, "author": object{"username": t.user()}}}
}

func (g *GitLabFake) requestCommits(_ *GitLabToken, p *gitLabProject, r *http.Request) reply {
	mr, no := g.numbered(p, r)
	if no != nil {
		return *no
	}
	own, _ := p.Own(mr.SHA, mr.Target)
	return page(r, own, commitForm)
}

func (g *GitLabFake) requestVersions(_ *GitLabToken, p *gitLabProject, r *http.Request) reply {
	mr, no := g.numbered(p, r)
	if no != nil {
		return *no
	}
	var all []object
	for i, v := range slices.Backward(mr.versions) {
		all = append(all, object{"id": 1000*mr.IID + int64(i), "head_commit_sha": v.head, "created_at": v.at.UTC(), "merge_request_id": 5000 + mr.IID})
	}
	return page(r, all, func(v object) object { return v })
}

// requestApprovals are entities/approvals.rb: logins and times, but no commit. This project keeps approvals after a
// push.
func (g *GitLabFake) requestApprovals(_ *GitLabToken, p *gitLabProject, r *http.Request) reply {
	mr, no := g.numbered(p, r)
	if no != nil {
		return *no
	}
	by := []object{}
	for _, login := range slices.Sorted(maps.Keys(mr.Approvals)) {
		by = append(by, object{"user": object{"id": 9, "username": login}, "approved_at": mr.Approvals[login].UTC()})
	}
	return reply{status: http.StatusOK, body: object{"approved": len(by) > 0, "approved_by": by}}
}
