package forgetest

import (
	"net/http"
	"strconv"
	"strings"
)

// runnerOwner is a kind of owner of runners. The routes are the same for all kinds. The required permissions differ.
type runnerOwner struct{ root, permission, scope string }

// ownerHandler handles a request about an account or a repository: owner/name.
type ownerHandler func(r *http.Request, place string) githubReply

// runnerRoutes adds the routes of "REST API endpoints for self-hosted runners", "… for self-hosted runner groups", "…
// for workflow runs" and "… for repositories".
func (g *GitHubFake) runnerRoutes(handle func(string, githubHandler)) {
	organization := runnerOwner{"/orgs/{account}", "organization_self_hosted_runners", "admin:org"}
	repository := runnerOwner{"/repos/{account}/{repo}", "administration", "repo"}
	// The name of the App permission is assumed.
	enterprise := runnerOwner{"/enterprises/{account}", "enterprise_self_hosted_runners", "manage_runners:enterprise"}
	for _, owner := range []runnerOwner{organization, repository, enterprise} {
		on := func(pattern string, do ownerHandler) {
			method, path, _ := strings.Cut(pattern, " ")
			handle(method+" "+owner.root+path, g.atOwner(owner, do))
		}
		on("GET /actions/runners", g.listRunners)
		on("GET /actions/runners/{id}", g.onRunner(g.getRunner))
		on("DELETE /actions/runners/{id}", g.onRunner(g.deleteRunner))
		if owner != repository {
			g.groupRoutes(on)
		}
	}
	g.repositoryRoutes(handle)
	g.runRoutes(handle)
}

// atOwner finds the owner of a request, and checks the sender's permission.
func (g *GitHubFake) atOwner(owner runnerOwner, do ownerHandler) githubHandler {
	return func(r *http.Request, v sender) githubReply {
		account := r.PathValue("account")
		place, exists := account, g.accounts[strings.ToLower(account)] != nil
		if r.PathValue("repo") != "" {
			place = repositoryName(r)
			repo, _ := g.repo(place)
			exists = repo != nil
		}
		if !exists {
			return refused(http.StatusNotFound)
		}
		if status := v.reach(account, owner.permission, writes(r), owner.scope); status != http.StatusOK {
			return refused(status)
		}
		return do(r, place)
	}
}

// onRunner finds the runner of a request.
func (g *GitHubFake) onRunner(do func(*GitHubRunner) githubReply) ownerHandler {
	return func(r *http.Request, place string) githubReply {
		x := g.runners[number(r, "id")]
		if x == nil || !strings.EqualFold(x.Place, place) {
			return refused(http.StatusNotFound)
		}
		return do(x)
	}
}

func (g *GitHubFake) listRunners(r *http.Request, place string) githubReply {
	return g.paged(r, "runners", g.runnerForms(func(x *GitHubRunner) bool { return strings.EqualFold(x.Place, place) }))
}

func (g *GitHubFake) getRunner(x *GitHubRunner) githubReply {
	return said(http.StatusOK, runnerForm(x))
}

// deleteRunner rejects a busy runner as actions/actions-runner-controller describes: "Runner … is currently running a
// job and cannot be deleted", status 422.
func (g *GitHubFake) deleteRunner(x *GitHubRunner) githubReply {
	if x.Busy {
		message := "Runner " + strconv.Quote(x.Name) + " is currently running a job and cannot be deleted."
		return no(http.StatusUnprocessableEntity, message)
	}
	delete(g.runners, x.ID)
	return said(http.StatusNoContent, nil)
}

// number returns a number in the path of a request, or 0.
func number(r *http.Request, name string) int64 {
	n, _ := strconv.ParseInt(r.PathValue(name), 10, 64)
	return n
}

// runnerForms are the runners that which selects, in a response.
func (g *GitHubFake) runnerForms(which func(*GitHubRunner) bool) (out []any) {
	for _, x := range sorted(g.runners) {
		if which(x) {
			out = append(out, runnerForm(x))
		}
	}
	return out
}

func runnerForm(x *GitHubRunner) map[string]any {
	labels := []any{}
	for i, l := range x.Labels {
		labels = append(labels, map[string]any{"id": i + 1, "name": l, "type": "custom"})
	}
	return map[string]any{
		"id": x.ID, "name": x.Name, "os": x.OS, "status": x.Status, "busy": x.Busy, "labels": labels, "runner_group_id": x.Group,
	}
}
