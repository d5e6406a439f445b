package forge

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/google/go-github/v84/github"
)

// A Runner is one that is registered at GitHub.
type Runner struct {
	ID               int64
	Name, Status, OS string // Status is online or offline, or as GitHub says
	Busy             bool
	Labels           []string
	Group            int64 // 0: GitHub does not say
}

const (
	githubPage = 100
	mostPages  = 500
	readings   = 3 // of a list that changes while it is read
)

// runnerForm is a runner as GitHub writes it; the library has no group.
type runnerForm struct {
	github.Runner
	GroupID int64 `json:"runner_group_id"`
}

type runnerPage struct {
	Total   *int         `json:"total_count"`
	Runners []runnerForm `json:"runners"`
}

// list reads a list to its end. It is whole when it has as many things as GitHub
// said it has, at most, on any of its pages: things that move to a page that was
// read already are missed otherwise.
func list[T any](ctx context.Context, g *GitHub, op, path, key string, id func(T) int64) ([]T, error) {
	for range readings {
		out, whole, err := readList(ctx, g, op, path, key, id)
		if err != nil || whole {
			return out, err
		}
	}
	return nil, &Error{Op: op, Class: Unavailable, Status: http.StatusOK, Message: "the list is not whole, or changes too fast to be read"}
}

func readList[T any](ctx context.Context, g *GitHub, op, path, key string, id func(T) int64) (out []T, whole bool, err error) {
	seen, most := map[int64]bool{}, 0
	out = []T{}
	for n := 1; n <= mostPages; n++ {
		q := question{op: op, path: fmt.Sprintf("%s?per_page=%d&page=%d", path, githubPage, n)}
		a, err := g.ask(ctx, q)
		if err != nil {
			return nil, false, err
		}
		odd := &Error{Op: op, Class: Unavailable, Status: a.status, Message: "the answer is no list of that kind"}
		page, err := read[map[string]json.RawMessage](q, a)
		if err != nil {
			return nil, false, err
		}
		var total *int
		var things []T
		if json.Unmarshal(page["total_count"], &total) != nil || total == nil || json.Unmarshal(page[key], &things) != nil || things == nil {
			return nil, false, odd
		}
		most = max(most, *total)
		for _, t := range things {
			if id(t) <= 0 {
				return nil, false, odd
			}
			if !seen[id(t)] {
				seen[id(t)] = true
				out = append(out, t)
			}
		}
		if !hasNext(a.header) {
			return out, len(out) >= most, nil
		}
	}
	return nil, false, &Error{Op: op, Class: Unavailable, Status: http.StatusOK, Message: "the list does not end"}
}

// hasNext reads the Link header of a page. Where it leads to is not looked at: the
// credential goes where we say.
func hasNext(h http.Header) bool {
	for _, link := range strings.Split(strings.Join(h.Values("Link"), ","), ",") {
		if strings.Contains(link, `rel="next"`) {
			return true
		}
	}
	return false
}

// Runners lists the runners of the place: all of them, or an error.
func (g *GitHub) Runners(ctx context.Context) ([]Runner, error) {
	return g.runners(ctx, "list runners", g.place.Root()+"/actions/runners")
}

func (g *GitHub) runners(ctx context.Context, op, path string) ([]Runner, error) {
	forms, err := list(ctx, g, op, path, "runners", func(r runnerForm) int64 { return r.GetID() })
	if err != nil {
		return nil, err
	}
	out := make([]Runner, 0, len(forms))
	for _, r := range forms {
		labels := make([]string, 0, len(r.Labels))
		for _, l := range r.Labels {
			labels = append(labels, l.GetName())
		}
		out = append(out, Runner{ID: r.GetID(), Name: r.GetName(), Status: r.GetStatus(), OS: r.GetOS(), Busy: r.GetBusy(), Labels: labels, Group: r.GroupID})
	}
	return out, nil
}

// DeleteRunner deletes a runner, and looks whether it is gone. That it was gone
// already is success. A busy one is not deleted: Invalid.
func (g *GitHub) DeleteRunner(ctx context.Context, id int64) error {
	return g.remove(ctx, "delete a runner", g.place.Root()+"/actions/runners", id)
}

// remove deletes one of a collection and proves that it is gone.
func (g *GitHub) remove(ctx context.Context, op, collection string, id int64) error {
	path := collection + "/" + strconv.FormatInt(id, 10)
	_, err := g.ask(ctx, question{op: op, method: http.MethodDelete, path: path})
	if err = gone(err); err != nil {
		return err
	}
	_, err = g.ask(ctx, question{op: op, path: path})
	if err == nil {
		return &Error{Op: op, Class: Unavailable, Status: http.StatusOK, Message: "it is still there"}
	}
	return g.gone(ctx, err, op, collection)
}

// gone takes for success that something of a collection is not found, if the
// collection is: GitHub says "not found" also of what one may not see any more.
func (g *GitHub) gone(ctx context.Context, err error, op, collection string) error {
	if err = gone(err); err != nil {
		return err
	}
	_, err = g.ask(ctx, question{op: op, path: collection + "?per_page=1"})
	if ClassOf(err) == NotFound {
		return &Error{Op: op, Class: Forbidden, Status: http.StatusNotFound, Message: "it cannot be seen any more, so it is not known to be gone"}
	}
	return err
}

// CancelRun asks for the end of a workflow run in a repository (owner/name) of the
// place; by force if it does not heed the first. That it has ended is success.
func (g *GitHub) CancelRun(ctx context.Context, repository string, run int64, force bool) error {
	const op = "cancel a run"
	if !g.place.Owns(repository) || run <= 0 {
		return &Error{Op: op, Class: Invalid, Message: clean(fmt.Sprintf("%q is no repository of %s", repository, g.place))}
	}
	path := "/repos/" + repository + "/actions/runs/" + strconv.FormatInt(run, 10)
	how := "/cancel"
	if force {
		how = "/force-cancel"
	}
	_, err := g.ask(ctx, question{op: op, method: http.MethodPost, path: path + how})
	if ClassOf(err) != Conflict {
		return err
	}
	r, asked := get[github.WorkflowRun](ctx, g, question{op: op, path: path})
	if asked == nil && r.GetStatus() == "completed" {
		return nil
	}
	return err
}
