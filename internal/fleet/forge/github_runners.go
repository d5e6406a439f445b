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

// runnersCall returns a call for the runners of the place.
func (g *GitHub) runnersCall(ctx context.Context, op string) *call {
	return g.call(ctx, op, g.scope.root()+"/actions/runners", wantObject("total_count", "runners"))
}

// listRunners reads one page of the runners of the place.
func (g *GitHub) listRunners(k *call, page github.ListOptions) (*github.Runners, error) {
	options := &github.ListRunnersOptions{ListOptions: page}
	switch g.scope.kind {
	case repositoryScope:
		return k.result(k.github().Actions.ListRunners(k.ctx, g.scope.Owner, g.scope.Name, options))
	case enterpriseScope:
		return k.result(k.github().Enterprise.ListRunners(k.ctx, g.scope.Owner, options))
	}
	return k.result(k.github().Actions.ListOrganizationRunners(k.ctx, g.scope.Owner, options))
}

// Runners lists all runners of the place, or returns an error.
func (g *GitHub) Runners(ctx context.Context) ([]Runner, error) {
	k := g.runnersCall(ctx, "list runners")
	return readRunners(k, func(page github.ListOptions) (*github.Runners, error) { return g.listRunners(k, page) })
}

func readRunners(k *call, read func(github.ListOptions) (*github.Runners, error)) ([]Runner, error) {
	forms, err := list(k, (*github.Runner).GetID, func(page github.ListOptions) (int, []*github.Runner, error) {
		all, err := read(page)
		return all.GetTotalCount(), all.GetRunners(), err
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
		out = append(out, Runner{ID: r.GetID(), Name: r.GetName(), Status: r.GetStatus(), Busy: r.GetBusy(), Labels: labels, Group: r.GetRunnerGroupID()})
	}
	return out, nil
}

// DeleteRunner deletes a runner and verifies that it is gone. If it was gone before, that is
// success. GitHub does not delete a busy runner; that is Invalid.
func (g *GitHub) DeleteRunner(ctx context.Context, id int64) error {
	const op = "delete a runner"
	owner, name := g.scope.Owner, g.scope.Name
	k := g.call(ctx, op, g.scope.root()+"/actions/runners", nil)
	actions, enterprise := k.github().Actions, k.github().Enterprise
	var err error
	switch g.scope.kind {
	case repositoryScope:
		err = k.finish(actions.RemoveRunner(ctx, owner, name, id))
	case enterpriseScope:
		err = k.finish(enterprise.RemoveRunner(ctx, owner, id))
	default:
		err = k.finish(actions.RemoveOrganizationRunner(ctx, owner, id))
	}
	get := func() (err error) {
		switch g.scope.kind {
		case repositoryScope:
			_, err = k.result(actions.GetRunner(ctx, owner, name, id))
		case enterpriseScope:
			_, err = k.result(enterprise.GetRunner(ctx, owner, id))
		default:
			_, err = k.result(actions.GetOrganizationRunner(ctx, owner, id))
		}
		return err
	}
	return confirmDeleted(k, err, get, func() error { // whether the runners of the place are visible at all
		_, err := g.listRunners(g.runnersCall(ctx, op), github.ListOptions{PerPage: 1})
		return err
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
	k := g.call(ctx, op, below, nil)
	cancel := k.github().Actions.CancelWorkflowRunByID
	if force { // missing in the library
		cancel = func(ctx context.Context, _, _ string, _ int64) (*github.Response, error) {
			r, err := k.github().NewRequest(ctx, http.MethodPost, below[1:]+"/force-cancel", nil)
			if err != nil {
				return nil, err
			}
			return k.github().Do(r, nil)
		}
	}
	err := k.finish(cancel(ctx, owner, name, run))
	if ClassOf(err) != Conflict {
		return err
	}
	k = g.call(ctx, op, below, wantObject("status"))
	r, requested := k.result(k.github().Actions.GetWorkflowRunByID(ctx, owner, name, run))
	if requested == nil && r.GetStatus() == "completed" {
		return nil
	}
	return err
}
