package forgetest

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/testkit/forgetest/history"
)

func (g *GitHubFake) pullForm(name string, b *repositoryGit, p *GitHubPull) map[string]any {
	owner, _, _ := strings.Cut(name, "/")
	labels := []any{}
	for _, l := range p.Labels {
		labels = append(labels, map[string]any{"name": l})
	}
	side := func(branch, sha string) map[string]any {
		return map[string]any{"ref": branch, "sha": sha, "label": owner + ":" + branch, "repo": map[string]any{"full_name": name}}
	}
	head := b.headOf(p)
	_, clean := b.merged(p)
	state := "unknown"
	switch {
	case p.State != "open":
	case !clean:
		state = "dirty"
	case p.Draft:
		state = "draft"
	case b.approved(p) < b.reviews[p.Base]:
		state = "blocked"
	default:
		state = "clean"
	}
	return map[string]any{"number": p.Number, "title": p.Title, "body": p.Body, "state": p.State, "merged": p.Merged, "draft": p.Draft, "user": map[string]any{"login": p.By}, "labels": labels,
		"head": side(p.Head, head), "base": side(p.Base, b.Head(p.Base)), "commits": len(b.since(head, p.root)), "mergeable_state": state,
		"html_url": g.URL + "/" + name + "/pull/" + text(int64(p.Number))}
}

func (g *GitHubFake) pullRoutes(on func(pattern, permission string, h func(*http.Request, string, *repositoryGit) githubReply)) {
	on("GET /pulls", "pull_requests", func(r *http.Request, name string, b *repositoryGit) githubReply {
		q := r.URL.Query()
		all := []any{}
		for _, p := range slices.Backward(b.pulls) { // "Default: created", newest first
			owner, _, _ := strings.Cut(name, "/")
			if (q.Get("state") == "all" || p.State == "open") && (q.Get("head") == "" || strings.EqualFold(q.Get("head"), owner+":"+p.Head)) {
				all = append(all, g.pullForm(name, b, p))
			}
		}
		return g.paged(r, "", all)
	})
	on("POST /pulls", "pull_requests", func(r *http.Request, name string, b *repositoryGit) githubReply {
		sent, ok := body[struct{ Title, Head, Base, Body string }](r)
		head, base := b.Head(sent.Head), b.Head(sent.Base)
		own, root := b.Own(head, sent.Base)
		switch {
		case !ok || sent.Title == "" || head == "" || base == "":
			return no(http.StatusUnprocessableEntity, "Validation Failed")
		case len(own) == 0:
			return no(http.StatusUnprocessableEntity, "No commits between "+sent.Base+" and "+sent.Head)
		case slices.ContainsFunc(b.pulls, func(p *GitHubPull) bool { return p.Head == sent.Head && p.State == "open" }):
			return no(http.StatusUnprocessableEntity, "A pull request already exists for "+sent.Head+".")
		}
		p := &GitHubPull{Number: len(b.pulls) + 1, Title: sent.Title, Body: sent.Body, State: "open", Head: sent.Head, Base: sent.Base, By: Bot,
			root: root}
		b.pulls = append(b.pulls, p)
		return said(http.StatusCreated, g.pullForm(name, b, p))
	})
	one := func(pattern, permission string, h func(*http.Request, string, *repositoryGit, *GitHubPull) githubReply) {
		on(pattern, permission, func(r *http.Request, name string, b *repositoryGit) githubReply {
			n := number(r, "number")
			if n < 1 || n > int64(len(b.pulls)) {
				return refused(http.StatusNotFound)
			}
			return h(r, name, b, b.pulls[n-1])
		})
	}
	one("GET /pulls/{number}", "pull_requests", func(_ *http.Request, name string, b *repositoryGit, p *GitHubPull) githubReply {
		return said(http.StatusOK, g.pullForm(name, b, p))
	})
	one("PATCH /pulls/{number}", "pull_requests", func(r *http.Request, name string, b *repositoryGit, p *GitHubPull) githubReply {
		sent, ok := body[struct{ Title, Body, State *string }](r)
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
			p.Last = b.headOf(p)
			p.State = "closed"
		}
		return said(http.StatusOK, g.pullForm(name, b, p))
	})
	one("POST /issues/{number}/comments", "pull_requests", func(r *http.Request, _ string, _ *repositoryGit, p *GitHubPull) githubReply {
		sent, ok := body[struct{ Body string }](r)
		if !ok || sent.Body == "" {
			return no(http.StatusUnprocessableEntity, "Validation Failed")
		}
		p.Comments = append(p.Comments, sent.Body)
		return said(http.StatusCreated, map[string]any{"id": len(p.Comments), "body": sent.Body, "user": map[string]any{"login": Bot}})
	})
	one("GET /pulls/{number}/commits", "pull_requests", func(r *http.Request, _ string, b *repositoryGit, p *GitHubPull) githubReply {
		all := []any{}
		for _, c := range b.since(b.headOf(p), p.root) {
			form := map[string]any{"sha": c.ID, "author": nil, "committer": nil, "commit": map[string]any{"message": c.Message,
				"author": map[string]any{"name": c.AuthorName, "email": c.AuthorEmail}, "committer": map[string]any{"name": c.CommitterName, "email": c.CommitterEmail}}}
			if login := b.logins[c.ID]; login != "" {
				form["author"] = map[string]any{"login": login}
			}
			all = append(all, form)
		}
		return g.paged(r, "", all[:min(len(all), 250)]) // "Lists a maximum of 250 commits"
	})
	one("GET /pulls/{number}/reviews", "pull_requests", func(r *http.Request, _ string, _ *repositoryGit, p *GitHubPull) githubReply {
		all := []any{}
		for i, v := range p.Reviews {
			all = append(all, map[string]any{"id": i + 1, "user": map[string]any{"login": v.By}, "state": v.State, "commit_id": v.Commit, "submitted_at": v.At.UTC().Format(time.RFC3339)})
		}
		return g.paged(r, "", all)
	})
	one("PUT /pulls/{number}/merge", "contents", func(r *http.Request, name string, b *repositoryGit, p *GitHubPull) githubReply {
		sent, ok := body[struct {
			SHA    string
			Method string `json:"merge_method"`
		}](r)
		head := b.headOf(p)
		files, clean := b.merged(p)
		repo, _ := g.repo(name)
		switch {
		case !ok || p.State != "open" || p.Draft || !clean:
			return no(http.StatusMethodNotAllowed, "Pull Request is not mergeable")
		case repo.Squash && sent.Method != "squash":
			return no(http.StatusMethodNotAllowed, "Merge commits are not allowed on this repository.")
		case sent.SHA != "" && sent.SHA != head:
			return no(http.StatusConflict, "Head branch was modified. Review and try the merge again.")
		case b.approved(p) < b.reviews[p.Base]:
			return no(http.StatusMethodNotAllowed, "At least 1 approving review is required by reviewers with write access.")
		}
		p.State, p.Merged, p.Last = "closed", true, head
		sha := b.Add(p.Base, history.Commit{Parent: b.Head(p.Base), Files: files, Message: "Merge " + p.Title, AuthorName: Bot, CommitterName: "GitHub", CommitterEmail: "noreply@github.com"})
		return said(http.StatusOK, map[string]any{"merged": true, "sha": sha, "message": "Pull Request successfully merged"})
	})
	one("POST /issues/{number}/labels", "pull_requests", func(r *http.Request, _ string, _ *repositoryGit, p *GitHubPull) githubReply {
		// GitHub accepts a list, and an object with a list.
		raw, ok := body[json.RawMessage](r)
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
	})
	one("DELETE /issues/{number}/labels/{label}", "pull_requests", func(r *http.Request, _ string, _ *repositoryGit, p *GitHubPull) githubReply {
		at := slices.Index(p.Labels, r.PathValue("label"))
		if at < 0 {
			return no(http.StatusNotFound, "Label does not exist")
		}
		p.Labels = slices.Delete(p.Labels, at, at+1)
		return said(http.StatusOK, []any{})
	})
	checks := func(status bool, key string) func(*http.Request, string, *repositoryGit) githubReply {
		return func(r *http.Request, _ string, b *repositoryGit) githubReply {
			all := []any{}
			for _, p := range b.pulls {
				for i, c := range p.Checks {
					switch {
					case b.headOf(p) != r.PathValue("sha") || c.Status != status:
					case status:
						all = append(all, map[string]any{"id": i + 1, "context": c.Name, "state": c.State})
					default:
						all = append(all, map[string]any{"id": i + 1, "name": c.Name, "status": "completed", "conclusion": c.State})
					}
				}
			}
			return g.paged(r, key, all)
		}
	}
	on("GET /commits/{sha}/check-runs", "checks", checks(false, "check_runs"))
	on("GET /commits/{sha}/status", "statuses", checks(true, "statuses"))
}
