package forge

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/google/go-github/v89/github"
)

// A Runner is a runner that is registered at GitHub.
type Runner struct {
	ID           int64
	Name, Status string // Status is online, offline or another value of GitHub
	Busy         bool
	Labels       []string
	Group        int64 // 0: not reported
}

const (
	githubPage = 100
	maxPages   = 500
	readings   = 3 // tries for a list that changes while it is read
)

// readPage reads one page of a list. total is the length of the list that GitHub reports.
type readPage[T any] func(page github.ListOptions) (total int, items []T, err error)

// list reads a list to its end. The list is complete if it has at least as many items as the
// largest total that any page reported. Otherwise list would miss items that move to an earlier
// page during the reads.
func list[T any](k *call, id func(T) int64, read readPage[T]) ([]T, error) {
	for range readings {
		out, whole, err := readList(k, id, read)
		if err != nil || whole {
			return out, err
		}
	}
	return nil, k.unusable("the list is incomplete, or it changes too fast to be read")
}

func readList[T any](k *call, id func(T) int64, read readPage[T]) (out []T, whole bool, err error) {
	seen, limit := map[int64]bool{}, 0
	out = []T{}
	for n := 1; n <= maxPages; n++ {
		total, items, err := read(github.ListOptions{Page: n, PerPage: githubPage})
		if err != nil {
			return nil, false, err
		}
		limit = max(limit, total)
		for _, t := range items {
			if id(t) <= 0 {
				return nil, false, k.unusable("the response is not a list of that kind")
			}
			if !seen[id(t)] {
				seen[id(t)] = true
				out = append(out, t)
			}
		}
		if !hasNext(k.responseHeader) {
			return out, len(out) >= limit, nil
		}
	}
	return nil, false, k.unusable("the list does not end")
}

// hasNext reports whether the Link header names a next page. The URL in it is ignored, because the
// credential must go only to URLs that this package builds.
func hasNext(h http.Header) bool {
	for _, link := range strings.Split(strings.Join(h.Values("Link"), ","), ",") {
		if strings.Contains(link, `rel="next"`) {
			return true
		}
	}
	return false
}

// request sends a request to a path below that of the call, and decodes the response into out. It serves endpoints
// that repositories, organisations and enterprises have alike: the library has another method for each of them.
func (k *call) request(method, path string, out any) error {
	c := k.github()
	r, err := c.NewRequest(k.ctx, method, k.below[1:]+path, nil)
	if err == nil {
		_, err = c.Do(r, out)
	}
	return k.outcome(err)
}

// readPage reads one page of the list at a path, see [call.request].
func (k *call) readPage(path string, page github.ListOptions, out any) error {
	query := url.Values{"per_page": {strconv.Itoa(page.PerPage)}}
	if page.Page > 0 {
		query.Set("page", strconv.Itoa(page.Page))
	}
	return k.request(http.MethodGet, path+"?"+query.Encode(), out)
}

// runnersCall returns a call for the runners of the place.
func (g *GitHub) runnersCall(ctx context.Context, op string) *call {
	return g.call(ctx, op, g.scope.root()+"/actions/runners", wantObject("total_count", "runners"))
}

// Runners lists all runners of the place, or returns an error.
func (g *GitHub) Runners(ctx context.Context) ([]Runner, error) {
	return readRunners(g.runnersCall(ctx, "list runners"), "")
}

// readRunners reads the list of runners at a path.
func readRunners(k *call, path string) ([]Runner, error) {
	forms, err := list(k, (*github.Runner).GetID, func(page github.ListOptions) (int, []*github.Runner, error) {
		var all github.Runners
		err := k.readPage(path, page, &all)
		return all.TotalCount, all.Runners, err
	})
	if err != nil {
		return nil, err
	}
	out := make([]Runner, 0, len(forms))
	for _, r := range forms {
		labels := make([]string, 0, len(r.Labels))
		for _, l := range r.Labels {
			labels = append(labels, l.GetName())
		}
		out = append(
			out,
			Runner{ID: r.GetID(), Name: r.GetName(), Status: r.GetStatus(), Busy: r.GetBusy(), Labels: labels, Group: r.GetRunnerGroupID()},
		)
	}
	return out, nil
}

// DeleteRunner deletes a runner and verifies that it is gone. If it was gone before, that is
// success. GitHub does not delete a busy runner; that is Invalid.
func (g *GitHub) DeleteRunner(ctx context.Context, id int64) error {
	const op = "delete a runner"
	k := g.call(ctx, op, g.scope.root()+"/actions/runners", nil)
	path := "/" + strconv.FormatInt(id, 10)
	err := k.request(http.MethodDelete, path, nil)
	get := func() error { return k.request(http.MethodGet, path, new(github.Runner)) }
	return confirmDeleted(k, err, get, func() error { // whether the runners of the place are visible at all
		return g.runnersCall(ctx, op).readPage("", github.ListOptions{PerPage: 1}, new(github.Runners))
	})
}

// confirmDeleted verifies that one item of a collection is gone. err is the error of its deletion.
func confirmDeleted(k *call, err error, get, see func() error) error {
	if err = ignoreNotFound(err); err != nil {
		return err
	}
	if err = get(); err == nil {
		return k.unusable("it still exists")
	}
	return confirmGone(k.op, err, see)
}

// confirmGone treats NotFound of an item as success only if its collection is visible. GitHub also
// answers NotFound for objects that the credential may not see any more.
func confirmGone(op string, err error, see func() error) error {
	if err = ignoreNotFound(err); err != nil {
		return err
	}
	err = see()
	if ClassOf(err) == NotFound {
		return &Error{
			Op:      op,
			Class:   Forbidden,
			Status:  http.StatusNotFound,
			Message: "it is not visible any more, so its deletion cannot be confirmed",
		}
	}
	return err
}

// CancelRun requests the end of a workflow run in a repository (owner/name) of the place. With
// force it uses GitHub's force-cancel. If the run has ended, that is success.
func (g *GitHub) CancelRun(ctx context.Context, repository string, run int64, force bool) error {
	const op = "cancel a run"
	if !g.scope.owns(repository) || run <= 0 {
		return &Error{Op: op, Class: Invalid, Message: redact(fmt.Sprintf("%q is not a repository of %s", repository, g.scope))}
	}
	below := "/repos/" + repository + "/actions/runs/" + strconv.FormatInt(run, 10)
	action := "/cancel"
	if force {
		action = "/force-cancel"
	}
	err := g.call(ctx, op, below, nil).request(http.MethodPost, action, nil)
	if ClassOf(err) != Conflict {
		return err
	}
	var r github.WorkflowRun
	if g.call(ctx, op, below, wantObject("status")).request(http.MethodGet, "", &r) == nil && r.GetStatus() == "completed" {
		return nil
	}
	return err
}

// A RunnerGroup says which repositories may use its runners.
type RunnerGroup struct {
	ID                    int64
	Name, Visibility      string // Visibility is all, private or selected
	Default, AllowsPublic bool
	Repositories          []string // owner/name, sorted; only with Visibility selected
}

// groupsPath returns the API path of the runner groups of the place.
func (g *GitHub) groupsPath() string { return g.scope.root() + "/actions/runner-groups" }

// RunnerGroups lists all runner groups of the place, or returns an error. A plan without extra
// groups answers Forbidden or NotFound.
func (g *GitHub) RunnerGroups(ctx context.Context) ([]RunnerGroup, error) {
	const op = "list runner groups"
	if err := g.hasGroups(op); err != nil {
		return nil, err
	}
	forms, err := g.listGroups(ctx, op)
	if err != nil {
		return nil, err
	}
	out := make([]RunnerGroup, 0, len(forms))
	for _, f := range forms {
		group := newRunnerGroup(f)
		if group.Visibility == "selected" && g.scope.kind == orgScope {
			if group.Repositories, err = g.repositoriesOf(ctx, op, group.ID); err != nil {
				return nil, err
			}
		}
		out = append(out, group)
	}
	return out, nil
}

// hasGroups returns an error for a repository, because its runners are in no group.
func (g *GitHub) hasGroups(op string) error {
	if g.scope.kind == repositoryScope {
		return &Error{Op: op, Class: Invalid, Message: "a repository has no runner groups"}
	}
	return nil
}

func (g *GitHub) listGroups(ctx context.Context, op string) ([]*github.RunnerGroup, error) {
	k := g.call(ctx, op, g.groupsPath(), wantObject("total_count", "runner_groups"))
	return list(k, (*github.RunnerGroup).GetID, func(page github.ListOptions) (int, []*github.RunnerGroup, error) {
		var all github.RunnerGroups
		err := k.readPage("", page, &all)
		return all.TotalCount, all.RunnerGroups, err
	})
}

func newRunnerGroup(f *github.RunnerGroup) RunnerGroup {
	return RunnerGroup{
		ID:           f.GetID(),
		Name:         f.GetName(),
		Visibility:   f.GetVisibility(),
		Default:      f.GetDefault(),
		AllowsPublic: f.GetAllowsPublicRepositories(),
	}
}

func (g *GitHub) repositoriesOf(ctx context.Context, op string, group int64) ([]string, error) {
	k := g.call(ctx, op, g.groupsPath(), wantObject("total_count", "repositories"))
	forms, err := list(k, (*github.Repository).GetID, func(page github.ListOptions) (int, []*github.Repository, error) {
		all, _, err := k.github().Actions.ListRepositoryAccessRunnerGroup(ctx, g.scope.Owner, group, &page)
		return all.GetTotalCount(), all.GetRepositories(), k.outcome(err)
	})
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(forms))
	for _, r := range forms {
		names = append(names, r.GetFullName())
	}
	slices.Sort(names)
	return names, nil
}

// EnsureRunnerGroup makes sure that the organisation has a runner group of that name for exactly
// these repositories (owner/name). A repository of another owner is Invalid, and so is a public one
// unless allowPublic is true; EnsureRunnerGroup then writes nothing. created reports whether this call
// created the group: the caller may delete only such a group later.
func (g *GitHub) EnsureRunnerGroup(
	ctx context.Context,
	name string,
	repositories []string,
	allowPublic bool,
) (group RunnerGroup, created bool, err error) {
	const op = "ensure a runner group"
	if g.scope.kind != orgScope {
		return RunnerGroup{}, false, &Error{Op: op, Class: Invalid, Message: "only an organisation has groups for repositories"}
	}
	if name == "" || len(repositories) == 0 {
		return RunnerGroup{}, false, &Error{Op: op, Class: Invalid, Message: "a group needs a name and repositories"}
	}
	var ids []int64
	var names []string
	for _, r := range repositories {
		id, full, err := g.repository(ctx, op, r, allowPublic)
		if err != nil {
			return RunnerGroup{}, false, err
		}
		if !slices.Contains(ids, id) {
			ids, names = append(ids, id), append(names, full)
		}
	}
	slices.Sort(names)
	group, exists, err := g.groupNamed(ctx, op, name)
	if err != nil {
		return RunnerGroup{}, false, err
	}
	if !exists {
		group, err = g.createGroup(ctx, op, name, ids, allowPublic)
		if err != nil {
			return RunnerGroup{}, false, err
		}
		created = true
	}
	if group.Visibility != "selected" || group.AllowsPublic != allowPublic {
		// Restrict the visibility before any repository is added.
		body := github.UpdateRunnerGroupRequest{Name: &name, Visibility: new("selected"), AllowsPublicRepositories: &allowPublic}
		k := g.call(ctx, op, g.groupsPath(), nil)
		_, _, err := k.github().Actions.UpdateOrganizationRunnerGroup(ctx, g.scope.Owner, group.ID, body)
		if err = k.outcome(err); err != nil {
			return group, created, err
		}
		group.Visibility, group.AllowsPublic = "selected", allowPublic
	}
	if group.Repositories, err = g.repositoriesOf(ctx, op, group.ID); err != nil {
		return group, created, err
	}
	if !slices.Equal(group.Repositories, names) {
		body := github.SetRepoAccessRunnerGroupRequest{SelectedRepositoryIDs: ids}
		k := g.call(ctx, op, g.groupsPath(), nil)
		_, err := k.github().Actions.SetRepositoryAccessRunnerGroup(ctx, g.scope.Owner, group.ID, body)
		if err = k.outcome(err); err != nil {
			return group, created, err
		}
		group.Repositories = names
	}
	return group, created, nil
}

// repository finds a repository of the organisation by its current name.
func (g *GitHub) repository(ctx context.Context, op, name string, public bool) (id int64, full string, err error) {
	if !g.scope.owns(name) {
		return 0, "", &Error{Op: op, Class: Invalid, Message: redact(fmt.Sprintf("%q is not a repository of %s", name, g.scope.Owner))}
	}
	owner, short, _ := strings.Cut(name, "/")
	k := g.call(ctx, op, "/repos/"+name, wantObject())
	r, _, err := k.github().Repositories.Get(ctx, owner, short)
	switch err = k.outcome(err); {
	case err != nil:
		return 0, "", err
	case r.GetID() <= 0 || r.GetFullName() == "" || r.GetVisibility() == "" && r.Private == nil:
		return 0, "", k.unusable("the response is not a repository")
	case !strings.EqualFold(r.GetFullName(), name):
		// It was renamed, or moved to another owner.
		return 0, "", &Error{Op: op, Class: Conflict, Message: redact(fmt.Sprintf("%q was renamed to %q", name, r.GetFullName()))}
	case !public && (r.GetVisibility() == "public" || r.Private != nil && !r.GetPrivate()):
		return 0, "", &Error{Op: op, Class: Invalid, Message: redact(fmt.Sprintf("%q is public: any pull request would run there", name))}
	}
	return r.GetID(), r.GetFullName(), nil
}

// groupNamed finds a group that belongs to the organisation. The organisation may not change a
// group that an enterprise shares with it.
func (g *GitHub) groupNamed(ctx context.Context, op, name string) (group RunnerGroup, exists bool, err error) {
	forms, err := g.listGroups(ctx, op)
	if err != nil {
		return RunnerGroup{}, false, err
	}
	for _, f := range forms {
		if !strings.EqualFold(f.GetName(), name) {
			continue
		}
		if f.GetDefault() || f.GetInherited() {
			return RunnerGroup{}, false, &Error{
				Op:      op,
				Class:   Conflict,
				Message: redact(fmt.Sprintf("the group %q is the default group, or it belongs to the enterprise", name)),
			}
		}
		return newRunnerGroup(f), true, nil
	}
	return RunnerGroup{}, false, nil
}

// createGroup creates a group. If the response is lost, it looks for the group by name: the group did
// not exist a moment ago, so it is the new one.
func (g *GitHub) createGroup(ctx context.Context, op, name string, ids []int64, allowPublic bool) (RunnerGroup, error) {
	body := github.CreateRunnerGroupRequest{
		Name:                     &name,
		Visibility:               new("selected"),
		SelectedRepositoryIDs:    ids,
		AllowsPublicRepositories: &allowPublic,
	}
	k := g.call(ctx, op, g.groupsPath(), wantObject())
	f, _, err := k.github().Actions.CreateOrganizationRunnerGroup(ctx, g.scope.Owner, body)
	if err = k.outcome(err); err == nil && f.GetID() > 0 {
		return newRunnerGroup(f), nil
	}
	if err == nil {
		err = &Error{Op: op, Class: Unavailable, Status: http.StatusOK, Message: "the response is not a group"}
	}
	if ClassOf(err) == Unavailable && ctx.Err() == nil {
		if group, exists, found := g.groupNamed(ctx, op, name); found == nil && exists {
			return group, nil
		}
	}
	return RunnerGroup{}, err
}

// DeleteRunnerGroup deletes a runner group and verifies that it is gone. If it was gone before,
// that is success. If runners are in it, that is a Conflict: GitHub would move them to the default
// group, which is open to every repository.
func (g *GitHub) DeleteRunnerGroup(ctx context.Context, id int64) error {
	const op = "delete a runner group"
	if err := g.hasGroups(op); err != nil {
		return err
	}
	path := "/" + strconv.FormatInt(id, 10)
	visible := func() error { // whether the runner groups of the place are visible at all
		return g.call(ctx, op, g.groupsPath(), wantObject()).readPage("", github.ListOptions{PerPage: 1}, new(github.RunnerGroups))
	}
	var f github.RunnerGroup
	get := func() error { return g.call(ctx, op, g.groupsPath(), wantObject()).request(http.MethodGet, path, &f) }
	if err := get(); err != nil {
		return confirmGone(op, err, visible)
	}
	if f.GetID() != id || f.GetDefault() || f.GetInherited() {
		return &Error{Op: op, Class: Conflict, Message: "it is the default group, or it belongs to the enterprise"}
	}
	inside, err := readRunners(g.call(ctx, op, g.groupsPath(), wantObject("total_count", "runners")), path+"/runners")
	if err != nil {
		return confirmGone(op, err, visible)
	}
	if len(inside) > 0 {
		return &Error{Op: op, Class: Conflict, Message: fmt.Sprintf("it still has %d runners", len(inside))}
	}
	k := g.call(ctx, op, g.groupsPath(), nil)
	return confirmDeleted(k, k.request(http.MethodDelete, path, nil), get, visible)
}
