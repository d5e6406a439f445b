package forgetest

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// runnerRoutes adds the routes of "REST API endpoints for self-hosted runners", "… for self-hosted runner groups", "…
// for workflow runs" and "… for repositories".
func (g *GitHubFake) runnerRoutes(handle func(string, githubHandler)) {
	// The routes are the same for the three kinds of owner. The required permissions differ.
	for _, kind := range []struct{ root, permission, scope string }{
		{"/orgs/{account}", "organization_self_hosted_runners", "admin:org"},
		{"/repos/{account}/{repo}", "administration", "repo"},
		{"/enterprises/{account}", "enterprise_self_hosted_runners", "manage_runners:enterprise"}, // the App permission's name is assumed
	} {
		enter := func(r *http.Request, v sender, write bool) (place string, reply githubReply) {
			place = r.PathValue("account")
			if r.PathValue("repo") != "" {
				place += "/" + r.PathValue("repo")
				if repo, _ := g.repo(place); repo == nil {
					return "", refused(http.StatusNotFound)
				}
			} else if g.accounts[strings.ToLower(place)] == nil {
				return "", refused(http.StatusNotFound)
			}
			if status := v.reach(r.PathValue("account"), kind.permission, write, kind.scope); status != http.StatusOK {
				return "", refused(status)
			}
			return place, githubReply{}
		}
		handle("GET "+kind.root+"/actions/runners", func(r *http.Request, v sender) githubReply {
			place, reply := enter(r, v, false)
			if place == "" {
				return reply
			}
			return g.paged(r, "runners", g.runnerForms(func(x *GitHubRunner) bool { return strings.EqualFold(x.Place, place) }))
		})
		one := func(r *http.Request, v sender, write bool) (*GitHubRunner, githubReply) {
			place, reply := enter(r, v, write)
			if place == "" {
				return nil, reply
			}
			x := g.runners[number(r, "id")]
			if x == nil || !strings.EqualFold(x.Place, place) {
				return nil, refused(http.StatusNotFound)
			}
			return x, githubReply{}
		}
		handle("GET "+kind.root+"/actions/runners/{id}", func(r *http.Request, v sender) githubReply {
			x, reply := one(r, v, false)
			if x == nil {
				return reply
			}
			return said(http.StatusOK, runnerForm(x))
		})
		handle("DELETE "+kind.root+"/actions/runners/{id}", func(r *http.Request, v sender) githubReply {
			x, reply := one(r, v, true)
			switch {
			case x == nil:
				return reply
			case x.Busy:
				// actions/actions-runner-controller: "Runner … is currently running a job and cannot be deleted",
				// status 422
				return no(http.StatusUnprocessableEntity, "Runner "+strconv.Quote(x.Name)+" is currently running a job and cannot be deleted.")
			}
			delete(g.runners, x.ID)
			return said(http.StatusNoContent, nil)
		})
		if kind.root != "/repos/{account}/{repo}" {
			g.groupRoutes(handle, kind.root, enter)
		}
	}
	g.runRoutes(handle)
}

func number(r *http.Request, name string) int64 {
	n, _ := strconv.ParseInt(r.PathValue(name), 10, 64)
	return n
}

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
	return map[string]any{"id": x.ID, "name": x.Name, "os": x.OS, "status": x.Status, "busy": x.Busy, "labels": labels, "runner_group_id": x.Group}
}

func groupForm(x *GitHubGroup) map[string]any {
	return map[string]any{"id": x.ID, "name": x.Name, "visibility": x.Visibility, "default": x.Default, "inherited": x.Inherited,
		"allows_public_repositories": x.AllowsPublic, "restricted_to_workflows": false, "selected_workflows": []any{}}
}

func (g *GitHubFake) groupRoutes(handle func(string, githubHandler), root string, enter func(*http.Request, sender, bool) (string, githubReply)) {
	root += "/actions/runner-groups"
	within := func(r *http.Request, v sender, write bool) (string, githubReply) {
		account, reply := enter(r, v, write)
		if account != "" && g.accounts[strings.ToLower(account)].NoGroups {
			return "", refused(http.StatusForbidden) // fleet.md 4.3: a plan without extra groups returns 403 or 404
		}
		return account, reply
	}
	one := func(r *http.Request, v sender, write bool) (*GitHubGroup, githubReply) {
		account, reply := within(r, v, write)
		if account == "" {
			return nil, reply
		}
		x := g.groups[number(r, "id")]
		if x == nil || !strings.EqualFold(x.Account, account) {
			return nil, refused(http.StatusNotFound)
		}
		return x, githubReply{}
	}
	handle("GET "+root, func(r *http.Request, v sender) githubReply {
		account, reply := within(r, v, false)
		if account == "" {
			return reply
		}
		var all []any
		for _, x := range sorted(g.groups) {
			if strings.EqualFold(x.Account, account) {
				all = append(all, groupForm(x))
			}
		}
		return g.paged(r, "runner_groups", all)
	})
	type sent struct {
		Name         string  `json:"name"`
		Visibility   string  `json:"visibility"`
		Repositories []int64 `json:"selected_repository_ids"`
		AllowsPublic *bool   `json:"allows_public_repositories"`
	}
	handle("POST "+root, func(r *http.Request, v sender) githubReply {
		account, reply := within(r, v, true)
		if account == "" {
			return reply
		}
		in, ok := body[sent](r)
		if !ok || in.Name == "" {
			return no(http.StatusUnprocessableEntity, "Invalid request.")
		}
		for _, x := range g.groups {
			if strings.EqualFold(x.Account, account) && x.Name == in.Name {
				return no(http.StatusConflict, "A runner group with that name already exists") // the status is assumed; nothing relies on it
			}
		}
		x := &GitHubGroup{ID: g.number(), Account: account, Name: in.Name, Visibility: "all", Repositories: in.Repositories} // "Default: all"
		if in.Visibility != "" {
			x.Visibility = in.Visibility
		}
		x.AllowsPublic = in.AllowsPublic != nil && *in.AllowsPublic // "Default: false"
		g.groups[x.ID] = x
		return said(http.StatusCreated, groupForm(x))
	})
	handle("GET "+root+"/{id}", func(r *http.Request, v sender) githubReply {
		x, reply := one(r, v, false)
		if x == nil {
			return reply
		}
		return said(http.StatusOK, groupForm(x))
	})
	handle("PATCH "+root+"/{id}", func(r *http.Request, v sender) githubReply {
		x, reply := one(r, v, true)
		if x == nil {
			return reply
		}
		in, ok := body[sent](r)
		if !ok || in.Name == "" { // the only field that the documentation requires
			return no(http.StatusUnprocessableEntity, "Invalid request.")
		}
		x.Name = in.Name
		if in.Visibility != "" {
			x.Visibility = in.Visibility
		}
		if in.AllowsPublic != nil {
			x.AllowsPublic = *in.AllowsPublic
		}
		return said(http.StatusOK, groupForm(x))
	})
	handle("DELETE "+root+"/{id}", func(r *http.Request, v sender) githubReply {
		x, reply := one(r, v, true)
		if x == nil {
			return reply
		}
		delete(g.groups, x.ID)
		for _, d := range g.groups {
			if !d.Default || !strings.EqualFold(d.Account, x.Account) {
				continue
			}
			for _, y := range g.runners {
				if y.Group == x.ID {
					y.Group = d.ID // "Runners are automatically returned to the default group when their group is deleted"
				}
			}
		}
		return said(http.StatusNoContent, nil)
	})
	handle("GET "+root+"/{id}/runners", func(r *http.Request, v sender) githubReply {
		x, reply := one(r, v, false)
		if x == nil {
			return reply
		}
		return g.paged(r, "runners", g.runnerForms(func(y *GitHubRunner) bool { return y.Group == x.ID }))
	})
	handle("GET "+root+"/{id}/repositories", func(r *http.Request, v sender) githubReply {
		x, reply := one(r, v, false)
		if x == nil {
			return reply
		}
		var all []any
		for _, id := range slices.Sorted(slices.Values(x.Repositories)) {
			if repo := g.repos[id]; repo != nil {
				all = append(all, g.repositoryForm(repo))
			}
		}
		return g.paged(r, "repositories", all)
	})
	handle("PUT "+root+"/{id}/repositories", func(r *http.Request, v sender) githubReply {
		x, reply := one(r, v, true)
		if x == nil {
			return reply
		}
		in, ok := body[sent](r)
		if !ok || x.Visibility != "selected" { // "to be able to set … visibility must be set to selected"
			return no(http.StatusUnprocessableEntity, "Invalid request.")
		}
		x.Repositories = in.Repositories
		return said(http.StatusNoContent, nil)
	})
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

func (g *GitHubFake) runRoutes(handle func(string, githubHandler)) {
	handle("GET /repos/{account}/{repo}", func(r *http.Request, v sender) githubReply {
		repo, moved := g.repo(r.PathValue("account") + "/" + r.PathValue("repo"))
		if repo == nil {
			return refused(http.StatusNotFound)
		}
		if moved { // "Best practices", follow redirects: 301 to the URL with its ID
			return githubReply{status: http.StatusMovedPermanently, body: map[string]string{"message": "Moved Permanently"},
				header: http.Header{"Location": {g.URL + githubRoot + "/repositories/" + text(repo.ID)}}}
		}
		return g.oneRepository(repo, v)
	})
	handle("GET /repositories/{id}", func(r *http.Request, v sender) githubReply {
		repo := g.repos[number(r, "id")]
		if repo == nil {
			return refused(http.StatusNotFound)
		}
		return g.oneRepository(repo, v)
	})
	one := func(r *http.Request, v sender, write bool) (*GitHubRun, githubReply) {
		x := g.runs[number(r, "id")]
		if x == nil || !strings.EqualFold(x.Repository, r.PathValue("account")+"/"+r.PathValue("repo")) {
			return nil, refused(http.StatusNotFound)
		}
		if status := v.reach(r.PathValue("account"), "actions", write, "repo"); status != http.StatusOK {
			return nil, refused(status)
		}
		return x, githubReply{}
	}
	handle("GET /repos/{account}/{repo}/actions/runs/{id}", func(r *http.Request, v sender) githubReply {
		x, reply := one(r, v, false)
		if x == nil {
			return reply
		}
		return said(http.StatusOK, map[string]any{"id": x.ID, "status": x.Status, "conclusion": x.Conclusion})
	})
	for _, how := range []string{"cancel", "force-cancel"} {
		handle("POST /repos/{account}/{repo}/actions/runs/{id}/"+how, func(r *http.Request, v sender) githubReply {
			x, reply := one(r, v, true)
			switch {
			case x == nil:
				return reply
			case x.Status == "completed": // "Cancel a workflow run": 409 Conflict
				return no(http.StatusConflict, "Cannot cancel a workflow run that is completed.")
			case how == "force-cancel" || !x.Stubborn:
				x.Status, x.Conclusion = "completed", "cancelled"
			}
			return said(http.StatusAccepted, map[string]any{})
		})
	}
}

func (g *GitHubFake) oneRepository(repo *GitHubRepository, v sender) githubReply {
	if owner, _, _ := strings.Cut(repo.Name, "/"); !repo.Public {
		if status := v.reach(owner, "metadata", false, "repo"); status != http.StatusOK {
			return refused(http.StatusNotFound) // private ones are hidden
		}
	}
	return said(http.StatusOK, g.repositoryForm(repo))
}
