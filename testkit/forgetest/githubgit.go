package forgetest

import (
	"cmp"
	"encoding/base64"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/testkit/forgetest/history"
)

// repositoryGit is the content of a repository, and its pull requests.
type repositoryGit struct {
	*history.Repository
	logins  map[string]string // GitHub logins of commit authors
	pulls   []*GitHubPull     // the first has number 1
	reviews map[string]int    // number of reviews that a branch requires
	most    int               // maximum number of entries in a tree response
}

func newRepositoryGit() *repositoryGit {
	return &repositoryGit{Repository: history.New(), logins: map[string]string{}, reviews: map[string]int{}, most: 100_000}
}

// GitHubCommit is a commit with all its files.
type GitHubCommit struct {
	SHA, Parent                   string
	Message                       string
	AuthorName, AuthorEmail       string
	AuthorLogin                   string // empty: GitHub knows no account for the address
	CommitterEmail, CommitterName string
	Files                         map[string]string
}

// GitHubPull is a pull request.
type GitHubPull struct {
	Number             int
	Title, Body, State string
	Head, Base         string // branches
	Last               string // the head commit after it was merged or closed
	Merged, Draft      bool
	By                 string
	Labels             []string
	Comments           []string
	Reviews            []GitHubReview
	Checks             []GitHubCheck
	root               string // commit where it branched off its base
}

// GitHubReview is a review of one commit.
type GitHubReview struct {
	By, State, Commit string
	At                time.Time
}

// GitHubCheck is a check run, or with Status a commit status.
type GitHubCheck struct {
	Name, State string
	Status      bool
}

// Bot is the login of an App that writes commits and comments.
const Bot = "tailplane[bot]"

func (b *repositoryGit) commit(branch string, c GitHubCommit, change map[string]*string) string {
	last, _ := b.Commit(b.Head(branch))
	files := map[string]string{}
	maps.Copy(files, last.Files)
	for path, content := range change {
		if content == nil {
			delete(files, path)
		} else {
			files[path] = *content
		}
	}
	id := b.Add(branch, history.Commit{Parent: last.ID, Message: c.Message, AuthorName: c.AuthorName, AuthorEmail: c.AuthorEmail,
		CommitterName: c.CommitterName, CommitterEmail: c.CommitterEmail, Files: files})
	b.logins[id] = c.AuthorLogin
	return id
}

// treeForm is "Get a tree". Any value of recursive counts as true. A tree that is too large is truncated, and the
// response reports this.
func (b *repositoryGit) treeForm(r *http.Request) githubReply {
	id := r.PathValue("sha")
	all, ok := b.Tree(id, r.URL.Query().Has("recursive"))
	if !ok {
		return refused(http.StatusNotFound)
	}
	entries := []any{}
	for _, e := range all[:min(len(all), b.most)] {
		form := map[string]any{"path": e.Path, "mode": e.Mode, "type": e.Type, "sha": e.ID}
		if e.Type == "blob" {
			form["size"] = e.Size
		}
		entries = append(entries, form)
	}
	return said(http.StatusOK, map[string]any{"sha": id, "tree": entries, "truncated": len(all) > b.most})
}

// TreeLimit sets the maximum number of entries in a tree response of a repository.
func (g *GitHubFake) TreeLimit(repository int64, most int) {
	g.change(func() { g.repos[repository].git.most = most })
}

// since returns the commits of a pull request, oldest first.
func (b *repositoryGit) since(head, root string) []history.Commit {
	log := b.Log(head)
	if at := slices.IndexFunc(log, func(c history.Commit) bool { return c.ID == root }); at >= 0 {
		log = log[:at]
	}
	slices.Reverse(log)
	return log
}

func (b *repositoryGit) headOf(p *GitHubPull) string {
	if at := b.Head(p.Head); at != "" && p.State == "open" {
		return at
	}
	return p.Last
}

// merged returns the files after a merge of a pull request. It returns false on a conflict.
func (b *repositoryGit) merged(p *GitHubPull) (map[string]string, bool) {
	return b.Merged(b.headOf(p), p.Base)
}

func (b *repositoryGit) approved(p *GitHubPull) int {
	n := 0
	for _, r := range p.Reviews {
		if r.State == "APPROVED" {
			n++
		}
	}
	return n
}

// Push commits to a branch, as a user does with git. A new branch starts at main. Nil content deletes a file.
func (g *GitHubFake) Push(repository int64, branch string, c GitHubCommit, change map[string]*string) (sha string) {
	g.change(func() {
		b := g.repos[repository].git
		if b.Head(branch) == "" {
			b.Branch(branch, b.Head("main"))
		}
		c.AuthorName, c.AuthorEmail = cmp.Or(c.AuthorName, "Someone"), cmp.Or(c.AuthorEmail, "someone@example.com")
		c.CommitterName, c.CommitterEmail = cmp.Or(c.CommitterName, c.AuthorName), cmp.Or(c.CommitterEmail, c.AuthorEmail)
		sha = b.commit(branch, c, change)
	})
	return sha
}

// Commit returns the last commit of a branch. Its SHA is empty if the branch does not exist.
func (g *GitHubFake) Commit(repository int64, branch string) (c GitHubCommit) {
	g.change(func() {
		b := g.repos[repository].git
		x, _ := b.Commit(b.Head(branch))
		c = GitHubCommit{x.ID, x.Parent, x.Message, x.AuthorName, x.AuthorEmail, b.logins[x.ID], x.CommitterEmail, x.CommitterName, maps.Clone(x.Files)}
	})
	return c
}

// Pulls returns the pull requests of a repository.
func (g *GitHubFake) Pulls(repository int64) (out []GitHubPull) {
	g.change(func() {
		for _, p := range g.repos[repository].git.pulls {
			c := *p
			c.Labels, c.Reviews, c.Checks = slices.Clone(p.Labels), slices.Clone(p.Reviews), slices.Clone(p.Checks)
			out = append(out, c)
		}
	})
	return out
}

// ChangePull changes a pull request, as users do.
func (g *GitHubFake) ChangePull(repository int64, number int, change func(*GitHubPull)) {
	g.change(func() { change(g.repos[repository].git.pulls[number-1]) })
}

// Review adds a user's review of the current commit of a pull request.
func (g *GitHubFake) Review(repository int64, number int, by, state string) {
	g.change(func() {
		b := g.repos[repository].git
		p := b.pulls[number-1]
		p.Reviews = append(p.Reviews, GitHubReview{By: by, State: state, Commit: b.headOf(p), At: g.now()})
	})
}

// Protect sets the number of approving reviews that a branch requires.
func (g *GitHubFake) Protect(repository int64, branch string, reviews int) {
	g.change(func() { g.repos[repository].git.reviews[branch] = reviews })
}

// gitRoutes adds the routes of "REST API endpoints for repository contents", "… Git references", "… pull requests",
// "… pull request reviews", "… labels", "… Git trees", "… check runs" and "… commit statuses".
func (g *GitHubFake) gitRoutes(handle func(string, githubHandler)) {
	const root = "/repos/{account}/{repo}"
	type in struct {
		*http.Request
		name string
		git  *repositoryGit
	}
	on := func(pattern, permission string, h func(in) githubReply) {
		method, path, _ := strings.Cut(pattern, " ")
		handle(method+" "+root+path, func(r *http.Request, v sender) githubReply {
			repo, _ := g.repo(r.PathValue("account") + "/" + r.PathValue("repo"))
			if repo == nil {
				return refused(http.StatusNotFound)
			}
			if status := v.reach(r.PathValue("account"), permission, method != http.MethodGet, "repo"); status != http.StatusOK {
				return refused(status)
			}
			return h(in{r, repo.Name, repo.git})
		})
	}
	ref := func(branch, sha string) githubReply {
		return said(http.StatusOK, map[string]any{"ref": "refs/heads/" + branch, "object": map[string]any{"type": "commit", "sha": sha}})
	}
	branchOf := func(r in) (string, string) {
		branch := strings.TrimPrefix(r.PathValue("ref"), "heads/")
		return branch, r.git.Head(branch)
	}
	on("GET /git/ref/{ref...}", "contents", func(r in) githubReply {
		branch, sha := branchOf(r)
		if sha == "" {
			return refused(http.StatusNotFound)
		}
		return ref(branch, sha)
	})
	on("GET /git/commits/{sha}", "contents", func(r in) githubReply {
		if _, ok := r.git.Commit(r.PathValue("sha")); !ok {
			return refused(http.StatusNotFound)
		}
		tree, _ := r.git.Folder(r.PathValue("sha"), "")
		return said(http.StatusOK, map[string]any{"sha": r.PathValue("sha"), "tree": map[string]any{"sha": tree}})
	})
	on("GET /git/trees/{sha}", "contents", func(r in) githubReply { return r.git.treeForm(r.Request) })
	on("GET /compare/{range...}", "contents", func(r in) githubReply {
		base, head, _ := strings.Cut(r.PathValue("range"), "...")
		if _, ok := r.git.Commit(head); !ok || r.git.Head(base) == "" {
			return refused(http.StatusNotFound)
		}
		files := []any{}
		for _, path := range r.git.Touched(head, base) {
			files = append(files, map[string]any{"filename": path})
		}
		return said(http.StatusOK, map[string]any{"files": files})
	})
	on("POST /git/refs", "contents", func(r in) githubReply {
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
		reply := ref(branch, sent.SHA)
		reply.status = http.StatusCreated
		return reply
	})
	on("DELETE /git/refs/{ref...}", "contents", func(r in) githubReply {
		branch, sha := branchOf(r)
		if sha == "" {
			return no(http.StatusUnprocessableEntity, "Reference does not exist")
		}
		for _, p := range r.git.pulls { // deleting its branch closes a pull request
			if p.Head == branch && p.State == "open" {
				p.State, p.Last = "closed", sha
			}
		}
		r.git.Delete(branch)
		return said(http.StatusNoContent, nil)
	})
	on("GET /contents/{path...}", "contents", func(r in) githubReply {
		at := cmp.Or(r.URL.Query().Get("ref"), "main")
		c, ok := r.git.Commit(cmp.Or(r.git.Head(at), at))
		if !ok {
			return no(http.StatusNotFound, "No commit found for the ref "+at)
		}
		content, ok := c.Files[r.PathValue("path")]
		if !ok {
			return refused(http.StatusNotFound)
		}
		text := base64.StdEncoding.EncodeToString([]byte(content))
		var lines strings.Builder // in lines of 60 characters, as GitHub returns it
		for ; len(text) > 60; text = text[60:] {
			lines.WriteString(text[:60] + "\n")
		}
		lines.WriteString(text + "\n")
		return said(http.StatusOK, map[string]any{"type": "file", "encoding": "base64", "size": len(content), "path": r.PathValue("path"), "sha": history.Blob(content), "content": lines.String()})
	})
	write := func(r in) githubReply {
		type person struct{ Name, Email string }
		sent, ok := body[struct {
			Message, Content, SHA, Branch string
			Author, Committer             *person
		}](r.Request)
		branch := cmp.Or(sent.Branch, "main")
		last, known := r.git.Commit(r.git.Head(branch))
		path := r.PathValue("path")
		switch {
		case !ok || sent.Message == "":
			return no(http.StatusUnprocessableEntity, "Invalid request.\n\n\"message\" wasn't supplied.")
		case !known:
			return no(http.StatusNotFound, "Branch "+branch+" not found")
		}
		was, there := last.Files[path]
		switch {
		case there && sent.SHA == "":
			return no(http.StatusUnprocessableEntity, "Invalid request.\n\n\"sha\" wasn't supplied.")
		case !there && r.Method == http.MethodDelete:
			return refused(http.StatusNotFound)
		case sent.SHA != "" && (!there || history.Blob(was) != sent.SHA):
			return no(http.StatusConflict, path+" does not match "+sent.SHA)
		}
		text, err := base64.StdEncoding.DecodeString(sent.Content)
		if err != nil {
			return no(http.StatusUnprocessableEntity, "content is not valid Base64")
		}
		// "committer: default the authenticated user; author: default the committer"
		c := GitHubCommit{Message: sent.Message, CommitterName: Bot, CommitterEmail: "1+" + Bot + "@users.noreply.github.com"}
		if sent.Committer != nil {
			c.CommitterName, c.CommitterEmail = sent.Committer.Name, sent.Committer.Email
		}
		c.AuthorName, c.AuthorEmail = c.CommitterName, c.CommitterEmail
		if sent.Author != nil {
			c.AuthorName, c.AuthorEmail = sent.Author.Name, sent.Author.Email
		}
		change := map[string]*string{path: new(string(text))}
		status := http.StatusCreated
		if r.Method == http.MethodDelete {
			change[path] = nil
		}
		if there {
			status = http.StatusOK
		}
		sha := r.git.commit(branch, c, change)
		return said(status, map[string]any{"content": map[string]any{"sha": history.Blob(string(text))}, "commit": map[string]any{"sha": sha}})
	}
	on("PUT /contents/{path...}", "contents", write)
	on("DELETE /contents/{path...}", "contents", write)
	g.pullRoutes(func(pattern, permission string, h func(*http.Request, string, *repositoryGit) githubReply) {
		on(pattern, permission, func(r in) githubReply { return h(r.Request, r.name, r.git) })
	})
}
