package forgetest

import (
	"cmp"
	"encoding/base64"
	"net/http"
	"strings"

	"github.com/tailplane/tailplane/testkit/forgetest/history"
)

// repositoryRequest is a request about the content of a repository. The sender has the required permission.
type repositoryRequest struct {
	*http.Request
	name string // owner/name
	git  *repositoryGit
}

type repositoryHandler func(repositoryRequest) githubReply

// gitRoutes adds the routes of "REST API endpoints for repository contents", "… Git references", "… pull requests",
// "… pull request reviews", "… labels", "… Git trees", "… check runs" and "… commit statuses".
func (g *GitHubFake) gitRoutes(handle func(string, githubHandler)) {
	on := func(pattern, permission string, do repositoryHandler) {
		method, path, _ := strings.Cut(pattern, " ")
		handle(method+" /repos/{account}/{repo}"+path, g.inRepository(permission, do))
	}
	on("GET /git/ref/{ref...}", "contents", g.getRef)
	on("POST /git/refs", "contents", g.createRef)
	on("DELETE /git/refs/{ref...}", "contents", g.deleteRef)
	on("GET /git/commits/{sha}", "contents", g.getCommit)
	on("GET /git/trees/{sha}", "contents", g.getTree)
	on("GET /compare/{range...}", "contents", g.compareCommits)
	on("GET /contents/{path...}", "contents", g.getContents)
	on("PUT /contents/{path...}", "contents", g.writeContents)
	on("DELETE /contents/{path...}", "contents", g.writeContents)
	g.pullRoutes(on)
}

// inRepository finds the repository of a request, and checks the sender's permission.
func (g *GitHubFake) inRepository(permission string, do repositoryHandler) githubHandler {
	return func(r *http.Request, v sender) githubReply {
		repo, _ := g.repo(repositoryName(r))
		if repo == nil {
			return refused(http.StatusNotFound)
		}
		if status := v.reach(r.PathValue("account"), permission, writes(r), "repo"); status != http.StatusOK {
			return refused(status)
		}
		return do(repositoryRequest{r, repo.Name, repo.git})
	}
}

// repositoryName returns the repository that a request names: owner/name.
func repositoryName(r *http.Request) string {
	return r.PathValue("account") + "/" + r.PathValue("repo")
}

// writes reports whether a request needs the write permission.
func writes(r *http.Request) bool { return r.Method != http.MethodGet && r.Method != http.MethodHead }

// refForm is a reference in a response.
func refForm(branch, sha string) map[string]any {
	return map[string]any{"ref": "refs/heads/" + branch, "object": map[string]any{"type": "commit", "sha": sha}}
}

// ref returns the branch that a request names, and its head. The head is empty if the branch does not exist.
func (r repositoryRequest) ref() (branch, head string) {
	branch = strings.TrimPrefix(r.PathValue("ref"), "heads/")
	return branch, r.git.Head(branch)
}

func (g *GitHubFake) getRef(r repositoryRequest) githubReply {
	branch, head := r.ref()
	if head == "" {
		return refused(http.StatusNotFound)
	}
	return said(http.StatusOK, refForm(branch, head))
}

func (g *GitHubFake) createRef(r repositoryRequest) githubReply {
	sent, ok := body[struct{ Ref, SHA string }](r.Request)
	branch, full := strings.CutPrefix(sent.Ref, "refs/heads/")
	switch {
	case !ok || !full || branch == "":
		return no(http.StatusUnprocessableEntity, "Reference name must start with 'refs/'")
	case r.git.Head(branch) != "":
		return no(http.StatusUnprocessableEntity, "Reference already exists")
	case !r.git.Branch(branch, sent.SHA):
		return no(http.StatusUnprocessableEntity, "Object does not exist")
	}
	return said(http.StatusCreated, refForm(branch, sent.SHA))
}

// deleteRef deletes a branch. That closes its open pull requests.
func (g *GitHubFake) deleteRef(r repositoryRequest) githubReply {
	branch, head := r.ref()
	if head == "" {
		return no(http.StatusUnprocessableEntity, "Reference does not exist")
	}
	for _, p := range r.git.pulls {
		if p.Head == branch && p.State == "open" {
			p.State, p.Last = "closed", head
		}
	}
	r.git.Delete(branch)
	return said(http.StatusNoContent, nil)
}

func (g *GitHubFake) getCommit(r repositoryRequest) githubReply {
	sha := r.PathValue("sha")
	if _, ok := r.git.Commit(sha); !ok {
		return refused(http.StatusNotFound)
	}
	tree, _ := r.git.Folder(sha, "")
	return said(http.StatusOK, map[string]any{"sha": sha, "tree": map[string]any{"sha": tree}})
}

// getTree is "Get a tree". Any value of recursive counts as true. A tree that is too large is truncated, and the
// response reports this.
func (g *GitHubFake) getTree(r repositoryRequest) githubReply {
	id := r.PathValue("sha")
	all, ok := r.git.Tree(id, r.URL.Query().Has("recursive"))
	if !ok {
		return refused(http.StatusNotFound)
	}
	entries := []any{}
	for _, e := range all[:min(len(all), r.git.most)] {
		form := map[string]any{"path": e.Path, "mode": e.Mode, "type": e.Type, "sha": e.ID}
		if e.Type == "blob" {
			form["size"] = e.Size
		}
		entries = append(entries, form)
	}
	return said(http.StatusOK, map[string]any{"sha": id, "tree": entries, "truncated": len(all) > r.git.most})
}

func (g *GitHubFake) compareCommits(r repositoryRequest) githubReply {
	base, head, _ := strings.Cut(r.PathValue("range"), "...")
	if _, ok := r.git.Commit(head); !ok || r.git.Head(base) == "" {
		return refused(http.StatusNotFound)
	}
	files := []any{}
	for _, path := range r.git.Touched(head, base) {
		files = append(files, map[string]any{"filename": path})
	}
	return said(http.StatusOK, map[string]any{"files": files})
}

func (g *GitHubFake) getContents(r repositoryRequest) githubReply {
	at := cmp.Or(r.URL.Query().Get("ref"), "main")
	c, ok := r.git.Commit(cmp.Or(r.git.Head(at), at))
	if !ok {
		return no(http.StatusNotFound, "No commit found for the ref "+at)
	}
	content, ok := c.Files[r.PathValue("path")]
	if !ok {
		return refused(http.StatusNotFound)
	}
	return said(http.StatusOK, map[string]any{
		"type": "file", "encoding": "base64", "size": len(content), "path": r.PathValue("path"),
		"sha": history.Blob(content), "content": base64Lines(content),
	})
}

// base64Lines encodes content in lines of 60 characters, as GitHub returns it.
func base64Lines(content string) string {
	text := base64.StdEncoding.EncodeToString([]byte(content))
	var lines strings.Builder
	for ; len(text) > 60; text = text[60:] {
		lines.WriteString(text[:60] + "\n")
	}
	lines.WriteString(text + "\n")
	return lines.String()
}

// contentsChange is the request body of "Create or update file contents" and of "Delete a file".
type contentsChange struct {
	Message, Content, SHA, Branch string
	Author, Committer             *struct{ Name, Email string }
}

// commit returns the commit of the change, without its files. "committer: default the authenticated user; author:
// default the committer".
func (sent contentsChange) commit() GitHubCommit {
	c := GitHubCommit{Message: sent.Message, CommitterName: Bot, CommitterEmail: "1+" + Bot + "@users.noreply.github.com"}
	if sent.Committer != nil {
		c.CommitterName, c.CommitterEmail = sent.Committer.Name, sent.Committer.Email
	}
	c.AuthorName, c.AuthorEmail = c.CommitterName, c.CommitterEmail
	if sent.Author != nil {
		c.AuthorName, c.AuthorEmail = sent.Author.Name, sent.Author.Email
	}
	return c
}

// writeContents creates, updates or deletes a file. A file that exists needs its current SHA.
func (g *GitHubFake) writeContents(r repositoryRequest) githubReply {
	sent, ok := body[contentsChange](r.Request)
	branch := cmp.Or(sent.Branch, "main")
	last, known := r.git.Commit(r.git.Head(branch))
	path := r.PathValue("path")
	deletes := r.Method == http.MethodDelete
	switch {
	case !ok || sent.Message == "":
		return no(http.StatusUnprocessableEntity, "Invalid request.\n\n\"message\" wasn't supplied.")
	case !known:
		return no(http.StatusNotFound, "Branch "+branch+" not found")
	}
	was, exists := last.Files[path]
	switch {
	case exists && sent.SHA == "":
		return no(http.StatusUnprocessableEntity, "Invalid request.\n\n\"sha\" wasn't supplied.")
	case !exists && deletes:
		return refused(http.StatusNotFound)
	case sent.SHA != "" && (!exists || history.Blob(was) != sent.SHA):
		return no(http.StatusConflict, path+" does not match "+sent.SHA)
	}
	text, err := base64.StdEncoding.DecodeString(sent.Content)
	if err != nil {
		return no(http.StatusUnprocessableEntity, "content is not valid Base64")
	}
	change := map[string]*string{path: new(string(text))}
	if deletes {
		change[path] = nil
	}
	sha := r.git.commit(branch, sent.commit(), change)
	status := http.StatusCreated
	if exists {
		status = http.StatusOK
	}
	return said(status, map[string]any{
		"content": map[string]any{"sha": history.Blob(string(text))}, "commit": map[string]any{"sha": sha},
	})
}
