package forgetest

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"maps"
	"net/http"
	"path"
	"strconv"
	"strings"

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

// AddProject creates a project with the branch main and a first commit of these files.
func (g *GitLabFake) AddProject(path string, files map[string]string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := &gitLabProject{Repository: history.New(), id: g.number(), path: path, statuses: map[string][]object{}}
	g.projects[path] = p
	g.advance(p, "main", history.Commit{
		Message: "first", AuthorName: "Root", AuthorEmail: "root@example.com",
		CommitterName: "Root", CommitterEmail: "root@example.com", Files: maps.Clone(files),
	})
}

// Push commits to a branch, as a user would, and returns the commit ID. Nil content deletes a file. A new branch
// starts at main.
func (g *GitLabFake) Push(project, branch, login, message string, files map[string]*string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.projects[project]
	parent, _ := p.Commit(cmp.Or(p.Head(branch), p.Head("main")))
	c := commitBy(login, parent.ID, message, maps.Clone(parent.Files))
	for path, content := range files {
		if content == nil {
			delete(c.Files, path)
		} else {
			c.Files[path] = *content
		}
	}
	return g.advance(p, branch, c)
}

// commitBy returns a commit whose author and committer are a user.
func commitBy(login, parent, message string, files map[string]string) history.Commit {
	email := login + "@example.com"
	return history.Commit{
		Parent: parent, Message: message, Files: files,
		AuthorName: login, AuthorEmail: email, CommitterName: login, CommitterEmail: email,
	}
}

// advance adds a commit to a branch, and to the open merge requests of that branch.
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

// SetStatus sets a commit status, as a CI program does.
func (g *GitLabFake) SetStatus(project, commit, name, status string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.projects[project]
	p.statuses[commit] = append(p.statuses[commit], object{
		"id": g.number(), "sha": commit, "name": name, "status": status, "target_url": g.URL + "/jobs/" + name,
	})
}

// projectHandler handles a request about a project that the token may see.
type projectHandler func(*GitLabToken, *gitLabProject, *http.Request) reply

// projectRoutes are the routes of projects, their repositories and their merge requests.
func (g *GitLabFake) projectRoutes() map[string]projectHandler {
	const (
		project  = "/projects/{project}"
		commits  = project + "/repository/commits"
		branch   = project + "/repository/branches/{branch}"
		requests = project + "/merge_requests"
		request  = requests + "/{iid}"
	)
	return map[string]projectHandler{
		"GET " + project:   g.project,
		"GET " + branch:    g.branch,
		"DELETE " + branch: g.deleteBranch,
		"GET " + project + "/repository/files/{file}": g.file,
		"GET " + project + "/repository/tree":         g.tree,
		"GET " + project + "/repository/compare":      g.compare,
		"POST " + commits:                             g.push,
		"GET " + commits + "/{sha}":                   g.commit,
		"GET " + commits + "/{sha}/statuses":          g.commitStatuses,
		"GET " + requests:                             g.mergeRequests,
		"POST " + requests:                            g.openRequest,
		"GET " + request:                              onRequest(g.mergeRequest),
		"PUT " + request:                              onRequest(g.changeRequest),
		"PUT " + request + "/merge":                   onRequest(g.merge),
		"POST " + request + "/notes":                  onRequest(g.note),
		"GET " + request + "/commits":                 onRequest(g.requestCommits),
		"GET " + request + "/versions":                onRequest(g.requestVersions),
		"GET " + request + "/approvals":               onRequest(g.requestApprovals),
	}
}

// inProject finds the project of a request. A project that the token may not see returns 404.
func (g *GitLabFake) inProject(do projectHandler) func(*GitLabToken, *http.Request) reply {
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
	return reply{status: http.StatusOK, body: object{
		"file_name": path[strings.LastIndex(path, "/")+1:], "file_path": path, "size": len(text), "encoding": "base64",
		"content": base64.StdEncoding.EncodeToString([]byte(text)), "content_sha256": hex.EncodeToString(sum[:]),
		"ref": ref, "commit_id": c.ID, "last_commit_id": p.LastFor(c.ID, path),
	}}
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
	return object{
		"id": c.ID, "short_id": c.ID[:8], "message": c.Message, "author_name": c.AuthorName, "author_email": c.AuthorEmail,
		"committer_name": c.CommitterName, "committer_email": c.CommitterEmail, "parent_ids": []string{c.Parent},
	}
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

// pushForm is the request body of "Create a commit with multiple files and actions".
type pushForm struct {
	Branch      string       `json:"branch"`
	StartSHA    string       `json:"start_sha"`
	Message     string       `json:"commit_message"`
	AuthorName  string       `json:"author_name"`
	AuthorEmail string       `json:"author_email"`
	Actions     []pushAction `json:"actions"`
}

type pushAction struct {
	Action       string `json:"action"`
	Path         string `json:"file_path"`
	Content      string `json:"content"`
	Encoding     string `json:"encoding"`
	LastCommitID string `json:"last_commit_id"`
}

// push is lib/api/commits.rb and app/services/files/multi_service.rb: all errors are 400.
func (g *GitLabFake) push(t *GitLabToken, p *gitLabProject, r *http.Request) reply {
	var w pushForm
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
	c := commitBy(t.user(), head, w.Message, maps.Clone(parent.Files))
	c.AuthorName, c.AuthorEmail = cmp.Or(w.AuthorName, c.AuthorName), cmp.Or(w.AuthorEmail, c.AuthorEmail)
	for _, a := range w.Actions {
		if refusal := a.apply(p, head, c.Files); refusal != "" {
			return no(refusal)
		}
	}
	made, _ := p.Commit(g.advance(p, w.Branch, c))
	return reply{status: http.StatusCreated, body: commitForm(made)}
}

// apply applies an action to the files of a commit after head. It returns the reason of a refusal.
func (a pushAction) apply(p *gitLabProject, head string, files map[string]string) (refusal string) {
	_, exists := files[a.Path]
	switch {
	case a.Action == "create" && exists:
		return "A file with this name already exists"
	case a.Action != "create" && a.LastCommitID != "" && (!exists || a.LastCommitID != p.LastFor(head, a.Path)):
		return "The file has changed since you started editing it: " + a.Path
	case a.Action != "create" && !exists:
		return "A file with this name doesn't exist"
	case a.Action == "delete":
		delete(files, a.Path)
		return ""
	}
	text := []byte(a.Content)
	if a.Encoding == "base64" {
		var err error
		if text, err = base64.StdEncoding.DecodeString(a.Content); err != nil {
			return "invalid base64"
		}
	}
	files[a.Path] = string(text)
	return ""
}
