package forge

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/google/go-github/v89/github"
)

// A Runner is a runner that is registered at GitHub.
type Runner struct {
	ID               int64
	Name, Status, OS string // Status is online, offline or another value of GitHub
	Busy             bool
	Labels           []string
	Group            int64 // 0: not reported
}

const (
	githubPage = 100
	maxPages   = 500
	readings   = 3 // tries for a list that changes while it is read
)

// A listing is one page of a list and the total length that GitHub reports.
type listing[T any] struct {
	total  int
	things []T
}

// readPage reads one page of a list with a method of the library.
type readPage[T any] func(c *github.Client, page github.ListOptions) (listing[T], *github.Response, error)

// list reads a list to its end. The list is complete if it has at least as many items as the
// largest total that any page reported. Otherwise list would miss items that move to an earlier
// page during the reads.
func list[T any](ctx context.Context, k *call, id func(T) int64, read readPage[T]) ([]T, error) {
	for range readings {
		out, whole, err := readList(ctx, k, id, read)
		if err != nil || whole {
			return out, err
		}
	}
	return nil, k.unusable("the list is incomplete, or it changes too fast to be read")
}

func readList[T any](ctx context.Context, k *call, id func(T) int64, read readPage[T]) (out []T, whole bool, err error) {
	seen, limit := map[int64]bool{}, 0
	out = []T{}
	for n := 1; n <= maxPages; n++ {
		page, err := doGitHub(ctx, k, func(c *github.Client) (listing[T], *github.Response, error) {
			return read(c, github.ListOptions{Page: n, PerPage: githubPage})
		})
		if err != nil {
			return nil, false, err
		}
		limit = max(limit, page.total)
		for _, t := range page.things {
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

// runnersCall returns a call for the runners of the place.
func (g *GitHub) runnersCall(op string) *call {
	return g.call(op, g.scope.root()+"/actions/runners", wantObject("total_count", "runners"))
}

// runnerPage reads one page of the runners of the place.
func (g *GitHub) runnerPage(ctx context.Context, k *call, page github.ListOptions) (*github.Runners, error) {
	return doGitHub(ctx, k, func(c *github.Client) (*github.Runners, *github.Response, error) { return g.listRunners(ctx, c, page) })
}

func (g *GitHub) listRunners(ctx context.Context, c *github.Client, page github.ListOptions) (*github.Runners, *github.Response, error) {
	options := &github.ListRunnersOptions{ListOptions: page}
	switch g.scope.kind {
	case repositoryScope:
		return c.Actions.ListRunners(ctx, g.scope.Owner, g.scope.Name, options)
	case enterpriseScope:
		return c.Enterprise.ListRunners(ctx, g.scope.Owner, options)
	}
	return c.Actions.ListOrganizationRunners(ctx, g.scope.Owner, options)
}

// Runners lists all runners of the place, or returns an error.
func (g *GitHub) Runners(ctx context.Context) ([]Runner, error) {
	return readRunners(ctx, g.runnersCall("list runners"),
		func(c *github.Client, page github.ListOptions) (*github.Runners, *github.Response, error) {
			return g.listRunners(ctx, c, page)
		})
}

func readRunners(ctx context.Context, k *call, read func(*github.Client, github.ListOptions) (*github.Runners, *github.Response, error)) ([]Runner, error) {
	forms, err := list(ctx, k, (*github.Runner).GetID,
		func(c *github.Client, page github.ListOptions) (listing[*github.Runner], *github.Response, error) {
			all, response, err := read(c, page)
			if err != nil {
				return listing[*github.Runner]{}, response, err
			}
			return listing[*github.Runner]{all.TotalCount, all.Runners}, response, nil
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
		out = append(out, Runner{ID: r.GetID(), Name: r.GetName(), Status: r.GetStatus(), OS: r.GetOS(), Busy: r.GetBusy(), Labels: labels, Group: r.GetRunnerGroupID()})
	}
	return out, nil
}

// DeleteRunner deletes a runner and verifies that it is gone. If it was gone before, that is
// success. GitHub does not delete a busy runner; that is Invalid.
func (g *GitHub) DeleteRunner(ctx context.Context, id int64) error {
	const op = "delete a runner"
	owner, name := g.scope.Owner, g.scope.Name
	k := g.call(op, g.scope.root()+"/actions/runners", nil)
	return deleteItem(ctx, k, func(c *github.Client) (*github.Response, error) {
		switch g.scope.kind {
		case repositoryScope:
			return c.Actions.RemoveRunner(ctx, owner, name, id)
		case enterpriseScope:
			return c.Enterprise.RemoveRunner(ctx, owner, id)
		}
		return c.Actions.RemoveOrganizationRunner(ctx, owner, id)
	}, func(c *github.Client) (*github.Response, error) {
		var response *github.Response
		var err error
		switch g.scope.kind {
		case repositoryScope:
			_, response, err = c.Actions.GetRunner(ctx, owner, name, id)
		case enterpriseScope:
			_, response, err = c.Enterprise.GetRunner(ctx, owner, id)
		default:
			_, response, err = c.Actions.GetOrganizationRunner(ctx, owner, id)
		}
		return response, err
	}, g.runnersVisible(ctx, op))
}

// runnersVisible returns a function that checks whether the runners of the place are visible at all.
func (g *GitHub) runnersVisible(ctx context.Context, op string) func() error {
	return func() error {
		_, err := g.runnerPage(ctx, g.runnersCall(op), github.ListOptions{PerPage: 1})
		return err
	}
}

// deleteItem deletes one item of a collection and verifies that it is gone.
func deleteItem(ctx context.Context, k *call, del, get func(*github.Client) (*github.Response, error), see func() error) error {
	if err := ignoreNotFound(doGitHubNoBody(ctx, k, del)); err != nil {
		return err
	}
	err := doGitHubNoBody(ctx, k, get)
	if err == nil {
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
		return &Error{Op: op, Class: Forbidden, Status: http.StatusNotFound, Message: "it is not visible any more, so its deletion cannot be confirmed"}
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
	owner, name, _ := strings.Cut(repository, "/")
	below := "/repos/" + repository + "/actions/runs/" + strconv.FormatInt(run, 10)
	err := doGitHubNoBody(ctx, g.call(op, below, nil), func(c *github.Client) (*github.Response, error) {
		if !force {
			return c.Actions.CancelWorkflowRunByID(ctx, owner, name, run)
		}
		r, err := c.NewRequest(ctx, http.MethodPost, below[1:]+"/force-cancel", nil) // missing in the library
		if err != nil {
			return nil, err
		}
		return c.Do(r, nil)
	})
	if ClassOf(err) != Conflict {
		return err
	}
	r, requested := doGitHub(ctx, g.call(op, below, wantObject("status")), func(c *github.Client) (*github.WorkflowRun, *github.Response, error) {
		return c.Actions.GetWorkflowRunByID(ctx, owner, name, run)
	})
	if requested == nil && r.GetStatus() == "completed" {
		return nil
	}
	return err
}
