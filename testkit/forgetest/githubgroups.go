package forgetest

import (
	"net/http"
	"slices"
	"strings"
)

func groupForm(x *GitHubGroup) map[string]any {
	return map[string]any{"id": x.ID, "name": x.Name, "visibility": x.Visibility, "default": x.Default, "inherited": x.Inherited,
		"allows_public_repositories": x.AllowsPublic, "restricted_to_workflows": false, "selected_workflows": []any{}}
}

// groupChange is the request body that creates or changes a runner group.
type groupChange struct {
	Name         string  `json:"name"`
	Visibility   string  `json:"visibility"`
	Repositories []int64 `json:"selected_repository_ids"`
	AllowsPublic *bool   `json:"allows_public_repositories"`
}

// groupRoutes adds the routes of runner groups.
func (g *GitHubFake) groupRoutes(on func(pattern string, do ownerHandler)) {
	const root = "/actions/runner-groups"
	on("GET "+root, g.withGroups(g.listGroups))
	on("POST "+root, g.withGroups(g.createGroup))
	on("GET "+root+"/{id}", g.onGroup(g.getGroup))
	on("PATCH "+root+"/{id}", g.onGroup(g.updateGroup))
	on("DELETE "+root+"/{id}", g.onGroup(g.deleteGroup))
	on("GET "+root+"/{id}/runners", g.onGroup(g.listGroupRunners))
	on("GET "+root+"/{id}/repositories", g.onGroup(g.listGroupRepositories))
	on("PUT "+root+"/{id}/repositories", g.onGroup(g.setGroupRepositories))
}

// withGroups rejects requests about groups of an account whose plan has no groups besides the default one. fleet.md
// 4.3: such a plan returns 403 or 404.
func (g *GitHubFake) withGroups(do ownerHandler) ownerHandler {
	return func(r *http.Request, account string) githubReply {
		if g.accounts[strings.ToLower(account)].NoGroups {
			return refused(http.StatusForbidden)
		}
		return do(r, account)
	}
}

// onGroup finds the runner group of a request.
func (g *GitHubFake) onGroup(do func(*http.Request, *GitHubGroup) githubReply) ownerHandler {
	return g.withGroups(func(r *http.Request, account string) githubReply {
		x := g.groups[number(r, "id")]
		if x == nil || !strings.EqualFold(x.Account, account) {
			return refused(http.StatusNotFound)
		}
		return do(r, x)
	})
}

func (g *GitHubFake) listGroups(r *http.Request, account string) githubReply {
	var all []any
	for _, x := range sorted(g.groups) {
		if strings.EqualFold(x.Account, account) {
			all = append(all, groupForm(x))
		}
	}
	return g.paged(r, "runner_groups", all)
}

// createGroup creates a group. The defaults are those of the documentation: "Default: all" for the visibility, and
// "Default: false" for public repositories.
func (g *GitHubFake) createGroup(r *http.Request, account string) githubReply {
	sent, ok := body[groupChange](r)
	if !ok || sent.Name == "" {
		return no(http.StatusUnprocessableEntity, "Invalid request.")
	}
	for _, x := range g.groups {
		if strings.EqualFold(x.Account, account) && x.Name == sent.Name {
			// The status is assumed; nothing relies on it.
			return no(http.StatusConflict, "A runner group with that name already exists")
		}
	}
	x := &GitHubGroup{ID: g.number(), Account: account, Name: sent.Name, Visibility: "all", Repositories: sent.Repositories}
	if sent.Visibility != "" {
		x.Visibility = sent.Visibility
	}
	x.AllowsPublic = sent.AllowsPublic != nil && *sent.AllowsPublic
	g.groups[x.ID] = x
	return said(http.StatusCreated, groupForm(x))
}

func (g *GitHubFake) getGroup(_ *http.Request, x *GitHubGroup) githubReply {
	return said(http.StatusOK, groupForm(x))
}

// updateGroup changes a group. The name is the only field that the documentation requires.
func (g *GitHubFake) updateGroup(r *http.Request, x *GitHubGroup) githubReply {
	sent, ok := body[groupChange](r)
	if !ok || sent.Name == "" {
		return no(http.StatusUnprocessableEntity, "Invalid request.")
	}
	x.Name = sent.Name
	if sent.Visibility != "" {
		x.Visibility = sent.Visibility
	}
	if sent.AllowsPublic != nil {
		x.AllowsPublic = *sent.AllowsPublic
	}
	return said(http.StatusOK, groupForm(x))
}

// deleteGroup deletes a group. "Runners are automatically returned to the default group when their group is deleted".
func (g *GitHubFake) deleteGroup(_ *http.Request, x *GitHubGroup) githubReply {
	delete(g.groups, x.ID)
	for _, d := range g.groups {
		if !d.Default || !strings.EqualFold(d.Account, x.Account) {
			continue
		}
		for _, runner := range g.runners {
			if runner.Group == x.ID {
				runner.Group = d.ID
			}
		}
	}
	return said(http.StatusNoContent, nil)
}

func (g *GitHubFake) listGroupRunners(r *http.Request, x *GitHubGroup) githubReply {
	return g.paged(r, "runners", g.runnerForms(func(y *GitHubRunner) bool { return y.Group == x.ID }))
}

func (g *GitHubFake) listGroupRepositories(r *http.Request, x *GitHubGroup) githubReply {
	var all []any
	for _, id := range slices.Sorted(slices.Values(x.Repositories)) {
		if repo := g.repos[id]; repo != nil {
			all = append(all, g.repositoryForm(repo))
		}
	}
	return g.paged(r, "repositories", all)
}

// setGroupRepositories sets the repositories of a group: "to be able to set … visibility must be set to selected".
func (g *GitHubFake) setGroupRepositories(r *http.Request, x *GitHubGroup) githubReply {
	sent, ok := body[groupChange](r)
	if !ok || x.Visibility != "selected" {
		return no(http.StatusUnprocessableEntity, "Invalid request.")
	}
	x.Repositories = sent.Repositories
	return said(http.StatusNoContent, nil)
}
