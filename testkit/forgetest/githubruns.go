package forgetest

import (
	"net/http"
	"strings"
)

// repositoryRoutes adds the routes of "REST API endpoints for repositories".
func (g *GitHubFake) repositoryRoutes(handle func(string, githubHandler)) {
	handle("GET /repos/{account}/{repo}", g.getRepository)
	handle("GET /repositories/{id}", g.getRepositoryByID)
}

// getRepository redirects from a former name: "Best practices", follow redirects: 301 to the URL with its ID.
func (g *GitHubFake) getRepository(r *http.Request, v sender) githubReply {
	repo, moved := g.repo(repositoryName(r))
	switch {
	case repo == nil:
		return refused(http.StatusNotFound)
	case moved:
		reply := said(http.StatusMovedPermanently, map[string]string{"message": "Moved Permanently"})
		reply.header = http.Header{"Location": {g.URL + githubRoot + "/repositories/" + text(repo.ID)}}
		return reply
	}
	return g.oneRepository(repo, v)
}

func (g *GitHubFake) getRepositoryByID(r *http.Request, v sender) githubReply {
	repo := g.repos[number(r, "id")]
	if repo == nil {
		return refused(http.StatusNotFound)
	}
	return g.oneRepository(repo, v)
}

// oneRepository returns a repository to a sender who may see it. Private ones are hidden from others.
func (g *GitHubFake) oneRepository(repo *GitHubRepository, v sender) githubReply {
	if owner, _, _ := strings.Cut(repo.Name, "/"); !repo.Public {
		if status := v.reach(owner, "metadata", false, "repo"); status != http.StatusOK {
			return refused(http.StatusNotFound)
		}
	}
	return said(http.StatusOK, g.repositoryForm(repo))
}

func (g *GitHubFake) repositoryForm(repo *GitHubRepository) map[string]any {
	visibility := "private"
	if repo.Public {
		visibility = "public"
	}
	owner, name, _ := strings.Cut(repo.Name, "/")
	return map[string]any{"id": repo.ID, "name": name, "full_name": repo.Name, "private": !repo.Public, "visibility": visibility,
		"owner": map[string]any{"login": owner}, "default_branch": "main",
		"allow_merge_commit": !repo.Squash, "allow_squash_merge": true, "allow_rebase_merge": !repo.Squash}
}

// runRoutes adds the routes of "REST API endpoints for workflow runs".
func (g *GitHubFake) runRoutes(handle func(string, githubHandler)) {
	const root = "/repos/{account}/{repo}/actions/runs/{id}"
	handle("GET "+root, g.onRun(g.getRun))
	handle("POST "+root+"/cancel", g.onRun(g.cancelRun))
	handle("POST "+root+"/force-cancel", g.onRun(g.forceCancelRun))
}

// onRun finds the run of a request, and checks the sender's permission.
func (g *GitHubFake) onRun(do func(*GitHubRun) githubReply) githubHandler {
	return func(r *http.Request, v sender) githubReply {
		x := g.runs[number(r, "id")]
		if x == nil || !strings.EqualFold(x.Repository, repositoryName(r)) {
			return refused(http.StatusNotFound)
		}
		if status := v.reach(r.PathValue("account"), "actions", writes(r), "repo"); status != http.StatusOK {
			return refused(status)
		}
		return do(x)
	}
}

func (g *GitHubFake) getRun(x *GitHubRun) githubReply {
	return said(http.StatusOK, map[string]any{"id": x.ID, "status": x.Status, "conclusion": x.Conclusion})
}

func (g *GitHubFake) cancelRun(x *GitHubRun) githubReply { return g.endRun(x, x.Stubborn) }

func (g *GitHubFake) forceCancelRun(x *GitHubRun) githubReply { return g.endRun(x, false) }

// endRun accepts a cancel. A run that ignores it continues. "Cancel a workflow run": 409 for a completed run.
func (g *GitHubFake) endRun(x *GitHubRun, ignored bool) githubReply {
	switch {
	case x.Status == "completed":
		return no(http.StatusConflict, "Cannot cancel a workflow run that is completed.")
	case !ignored:
		x.Status, x.Conclusion = "completed", "cancelled"
	}
	return said(http.StatusAccepted, map[string]any{})
}
