package forgetest

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/testkit/forgetest/history"
)

type pullHandler func(repositoryRequest, *GitHubPull) githubReply

// pullRoutes adds the routes of pull requests and of the checks of their commits.
func (g *GitHubFake) pullRoutes(on func(pattern, permission string, do repositoryHandler)) {
	on("GET /pulls", "pull_requests", g.listPulls)
	on("POST /pulls", "pull_requests", g.createPull)
	on("GET /pulls/{number}", "pull_requests", onPull(g.getPull))
	on("PATCH /pulls/{number}", "pull_requests", onPull(g.updatePull))
	on("GET /pulls/{number}/commits", "pull_requests", onPull(g.listPullCommits))
	on("GET /pulls/{number}/reviews", "pull_requests", onPull(g.listReviews))
	on("PUT /pulls/{number}/merge", "contents", onPull(g.mergePull))
	on("POST /issues/{number}/comments", "pull_requests", onPull(g.createComment))
	on("POST /issues/{number}/labels", "pull_requests", onPull(g.addLabels))
	on("DELETE /issues/{number}/labels/{label}", "pull_requests", onPull(g.removeLabel))
	on("GET /commits/{sha}/check-runs", "checks", g.listCheckRuns)
	on("GET /commits/{sha}/status", "statuses", g.listStatuses)
}

// onPull finds the pull request of a request.
func onPull(do pullHandler) repositoryHandler {
	return func(r repositoryRequest) githubReply {
		n := number(r.Request, "number")
		if n < 1 || n > int64(len(r.git.pulls)) {
			return refused(http.StatusNotFound)
		}
		return do(r, r.git.pulls[n-1])
	}
}

// pullForm is a pull request in a response.
func (g *GitHubFake) pullForm(r repositoryRequest, p *GitHubPull) map[string]any {
	owner, _, _ := strings.Cut(r.name, "/")
	labels := []any{}
	for _, l := range p.Labels {
		labels = append(labels, map[string]any{"name": l})
	}
	side := func(branch, sha string) map[string]any {
		return map[string]any{"ref": branch, "sha": sha, "label": owner + ":" + branch, "repo": map[string]any{"full_name": r.name}}
	}
	head := r.git.headOf(p)
	return map[string]any{
		"number": p.Number, "title": p.Title, "body": p.Body, "state": p.State, "merged": p.Merged, "draft": p.Draft,
		"user": map[string]any{"login": p.By}, "labels": labels,
		"head": side(p.Head, head), "base": side(p.Base, r.git.Head(p.Base)),
		"commits": len(r.git.since(head, p.root)), "mergeable_state": r.git.mergeableState(p),
		"html_url": g.URL + "/" + r.name + "/pull/" + text(int64(p.Number)),
	}
}

// mergeableState returns whether a pull request can be merged, as GitHub's mergeable_state.
func (b *repositoryGit) mergeableState(p *GitHubPull) string {
	_, clean := b.merged(p)
	switch {
	case p.State != "open":
		return "unknown"
	case !clean:
		return "dirty"
	case p.Draft:
		return "draft"
	case b.approved(p) < b.reviews[p.Base]:
		return "blocked"
	}
	return "clean"
}

// listPulls lists pull requests. "Default: created", newest first.
func (g *GitHubFake) listPulls(r repositoryRequest) githubReply {
	owner, _, _ := strings.Cut(r.name, "/")
	q := r.URL.Query()
	all := []any{}
	for _, p := range slices.Backward(r.git.pulls) {
		if (q.Get("state") == "all" || p.State == "open") && (q.Get("head") == "" || strings.EqualFold(q.Get("head"), owner+":"+p.Head)) {
			all = append(all, g.pullForm(r, p))
		}
	}
	return g.paged(r.Request, "", all)
}

func (g *GitHubFake) createPull(r repositoryRequest) githubReply {
	sent, ok := body[struct{ Title, Head, Base, Body string }](r.Request)
	head, base := r.git.Head(sent.Head), r.git.Head(sent.Base)
	own, root := r.git.Own(head, sent.Base)
	switch {
	case !ok || sent.Title == "" || head == "" || base == "":
		return no(http.StatusUnprocessableEntity, "Validation Failed")
	case len(own) == 0:
		return no(http.StatusUnprocessableEntity, "No commits between "+sent.Base+" and "+sent.Head)
	case slices.ContainsFunc(r.git.pulls, func(p *GitHubPull) bool { return p.Head == sent.Head && p.State == "open" }):
		return no(http.StatusUnprocessableEntity, "A pull request already exists for "+sent.Head+".")
	}
	p := &GitHubPull{
		Number: len(r.git.pulls) + 1, Title: sent.Title, Body: sent.Body, State: "open",
		Head: sent.Head, Base: sent.Base, By: Bot, root: root,
	}
	r.git.pulls = append(r.git.pulls, p)
	return said(http.StatusCreated, g.pullForm(r, p))
}

func (g *GitHubFake) getPull(r repositoryRequest, p *GitHubPull) githubReply {
	return said(http.StatusOK, g.pullForm(r, p))
}

func (g *GitHubFake) updatePull(r repositoryRequest, p *GitHubPull) githubReply {
	sent, ok := body[struct{ Title, Body, State *string }](r.Request)
	if !ok {
		return no(http.StatusUnprocessableEntity, "Validation Failed")
	}
	if sent.Title != nil {
		p.Title = *sent.Title
	}
	if sent.Body != nil {
		p.Body = *sent.Body
	}
	if sent.State != nil && *sent.State == "closed" && p.State == "open" {
		p.Last = r.git.headOf(p)
		p.State = "closed"
	}
	return said(http.StatusOK, g.pullForm(r, p))
}

func (g *GitHubFake) createComment(r repositoryRequest, p *GitHubPull) githubReply {
	sent, ok := body[struct{ Body string }](r.Request)
	if !ok || sent.Body == "" {
		return no(http.StatusUnprocessableEntity, "Validation Failed")
	}
	p.Comments = append(p.Comments, sent.Body)
	return said(http.StatusCreated, map[string]any{"id": len(p.Comments), "body": sent.Body, "user": map[string]any{"login": Bot}})
}

// listPullCommits "Lists a maximum of 250 commits".
func (g *GitHubFake) listPullCommits(r repositoryRequest, p *GitHubPull) githubReply {
	all := []any{}
	for _, c := range r.git.since(r.git.headOf(p), p.root) {
		form := map[string]any{"sha": c.ID, "author": nil, "committer": nil, "commit": map[string]any{
			"message":   c.Message,
			"author":    map[string]any{"name": c.AuthorName, "email": c.AuthorEmail},
			"committer": map[string]any{"name": c.CommitterName, "email": c.CommitterEmail},
		}}
		if login := r.git.logins[c.ID]; login != "" {
			form["author"] = map[string]any{"login": login}
		}
		all = append(all, form)
	}
	return g.paged(r.Request, "", all[:min(len(all), 250)])
}

func (g *GitHubFake) listReviews(r repositoryRequest, p *GitHubPull) githubReply {
	all := []any{}
	for i, v := range p.Reviews {
		all = append(all, map[string]any{
			"id": i + 1, "user": map[string]any{"login": v.By}, "state": v.State,
			"commit_id": v.Commit, "submitted_at": v.At.UTC().Format(time.RFC3339),
		})
	}
	return g.paged(r.Request, "", all)
}

func (g *GitHubFake) mergePull(r repositoryRequest, p *GitHubPull) githubReply {
	sent, ok := body[struct {
		SHA    string
		Method string `json:"merge_method"`
	}](r.Request)
	head := r.git.headOf(p)
	files, clean := r.git.merged(p)
	repo, _ := g.repo(r.name)
	switch {
	case !ok || p.State != "open" || p.Draft || !clean:
		return no(http.StatusMethodNotAllowed, "Pull Request is not mergeable")
	case repo.Squash && sent.Method != "squash":
		return no(http.StatusMethodNotAllowed, "Merge commits are not allowed on this repository.")
	case sent.SHA != "" && sent.SHA != head:
		return no(http.StatusConflict, "Head branch was modified. Review and try the merge again.")
	case r.git.approved(p) < r.git.reviews[p.Base]:
		return no(http.StatusMethodNotAllowed, "At least 1 approving review is required by reviewers with write access.")
	}
	p.State, p.Merged, p.Last = "closed", true, head
	sha := r.git.Add(p.Base, history.Commit{
		Parent: r.git.Head(p.Base), Files: files, Message: "Merge " + p.Title,
		AuthorName: Bot, CommitterName: "GitHub", CommitterEmail: "noreply@github.com",
	})
	return said(http.StatusOK, map[string]any{"merged": true, "sha": sha, "message": "Pull Request successfully merged"})
}

// addLabels adds labels to a pull request. GitHub accepts a list, and an object with a list.
func (g *GitHubFake) addLabels(r repositoryRequest, p *GitHubPull) githubReply {
	raw, ok := body[json.RawMessage](r.Request)
	var sent struct{ Labels []string }
	if !ok || json.Unmarshal(raw, &sent.Labels) != nil && json.Unmarshal(raw, &sent) != nil {
		return no(http.StatusUnprocessableEntity, "Validation Failed")
	}
	for _, l := range sent.Labels {
		if !slices.Contains(p.Labels, l) {
			p.Labels = append(p.Labels, l)
		}
	}
	return said(http.StatusOK, []any{})
}

func (g *GitHubFake) removeLabel(r repositoryRequest, p *GitHubPull) githubReply {
	at := slices.Index(p.Labels, r.PathValue("label"))
	if at < 0 {
		return no(http.StatusNotFound, "Label does not exist")
	}
	p.Labels = slices.Delete(p.Labels, at, at+1)
	return said(http.StatusOK, []any{})
}

func (g *GitHubFake) listCheckRuns(r repositoryRequest) githubReply {
	return g.paged(r.Request, "check_runs", r.checks(false, func(id int, c GitHubCheck) any {
		return map[string]any{"id": id, "name": c.Name, "status": "completed", "conclusion": c.State}
	}))
}

func (g *GitHubFake) listStatuses(r repositoryRequest) githubReply {
	return g.paged(r.Request, "statuses", r.checks(true, func(id int, c GitHubCheck) any {
		return map[string]any{"id": id, "context": c.Name, "state": c.State}
	}))
}

// checks returns the check runs, or with status the commit statuses, of the commit that a request names.
func (r repositoryRequest) checks(status bool, form func(id int, c GitHubCheck) any) []any {
	all := []any{}
	for _, p := range r.git.pulls {
		for i, c := range p.Checks {
			if r.git.headOf(p) == r.PathValue("sha") && c.Status == status {
				all = append(all, form(i+1, c))
			}
		}
	}
	return all
}
