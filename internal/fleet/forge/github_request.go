package forge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/google/go-github/v84/github"

	"github.com/tailplane/tailplane/internal/fleet/forge/gitname"
	"github.com/tailplane/tailplane/internal/fleet/forge/revision"
)

func (g *GitHub) pullPath(number int) string {
	return g.place.Root() + "/pulls/" + strconv.Itoa(number)
}

// Request reads a pull request with all who wrote some of it and what was said of it.
func (g *GitHub) Request(ctx context.Context, number int) (Request, error) {
	const op = "read a pull request"
	if err := g.isRepository(op); err != nil {
		return Request{}, err
	}
	pull, err := get[github.PullRequest](ctx, g, question{op: op, path: g.pullPath(number)})
	if err != nil {
		return Request{}, err
	}
	odd := &Error{Op: op, Class: Unavailable, Status: http.StatusOK, Message: "the answer is no pull request"}
	if pull.GetNumber() != number || !gitname.IsCommit(pull.GetHead().GetSHA()) {
		return Request{}, odd
	}
	r := Request{Number: number, URL: pull.GetHTMLURL(), Head: pull.GetHead().GetSHA(), Open: pull.GetState() == "open", Merged: pull.GetMerged()}
	names := map[string]bool{pull.GetUser().GetLogin(): true}
	commits, err := unnumbered[*github.RepositoryCommit](ctx, g, op, g.pullPath(number)+"/commits")
	if err != nil {
		return Request{}, err
	}
	if len(commits) != pull.GetCommits() || !slices.ContainsFunc(commits, func(c *github.RepositoryCommit) bool { return c.GetSHA() == r.Head }) {
		// GitHub tells 250 at most; or there came one meanwhile. Who wrote all of it is
		// not known, so it is not said.
		return Request{}, &Error{Op: op, Class: Unavailable, Status: http.StatusOK, Message: "not all of its commits are told"}
	}
	for _, c := range commits {
		for _, name := range append(gitname.CoAuthors(c.GetCommit().GetMessage()), c.GetAuthor().GetLogin(), c.GetCommitter().GetLogin(), c.GetCommit().GetAuthor().GetEmail(),
			c.GetCommit().GetAuthor().GetName(), c.GetCommit().GetCommitter().GetEmail()) {
			names[name] = true
		}
	}
	delete(names, "")
	r.Authors = slices.Sorted(maps.Keys(names))
	reviews, err := unnumbered[*github.PullRequestReview](ctx, g, op, g.pullPath(number)+"/reviews")
	if err != nil {
		return Request{}, err
	}
	for _, v := range reviews {
		r.Reviews = append(r.Reviews, Review{By: v.GetUser().GetLogin(), Approved: v.GetState() == "APPROVED", Head: v.GetCommitID(), At: v.GetSubmittedAt().Time})
	}
	switch pull.GetMergeableState() {
	case "dirty":
		r.Blocked = "it conflicts with what was merged meanwhile"
	case "blocked":
		r.Blocked = "the branch's rules ask for more, such as a review at GitHub"
	case "behind":
		r.Blocked = "it is behind its base, and the branch's rules do not let that be"
	case "draft":
		r.Blocked = "it is a draft"
	}
	err = g.checks(ctx, op, &r)
	return r, err
}

// checks reads what programs say of the head, in both of GitHub's ways. Who may not
// read them is not told that there are none.
func (g *GitHub) checks(ctx context.Context, op string, r *Request) error {
	at := g.place.Root() + "/commits/" + r.Head
	runs, err := list(ctx, g, op, at+"/check-runs", "check_runs", func(c *github.CheckRun) int64 { return c.GetID() })
	if err == nil {
		var statuses []*github.RepoStatus
		statuses, err = list(ctx, g, op, at+"/status", "statuses", func(s *github.RepoStatus) int64 { return s.GetID() })
		for _, s := range statuses {
			r.Checks = append(r.Checks, Check{Name: clean(s.GetContext()), State: s.GetState(), URL: s.GetTargetURL()})
		}
	}
	if ClassOf(err) == Forbidden {
		r.Checks = nil
		return nil
	}
	for _, c := range runs {
		state := c.GetStatus()
		if state == "completed" {
			state = c.GetConclusion()
		}
		r.Checks = append(r.Checks, Check{Name: clean(c.GetName()), State: state, URL: c.GetHTMLURL()})
	}
	r.ChecksKnown = err == nil
	return err
}

// unnumbered reads a list that does not say how long it is.
func unnumbered[T any](ctx context.Context, g *GitHub, op, path string) (out []T, err error) {
	for n := 1; n <= mostPages; n++ {
		q := question{op: op, path: fmt.Sprintf("%s?per_page=%d&page=%d", path, githubPage, n)}
		a, err := g.ask(ctx, q)
		if err != nil {
			return nil, err
		}
		page, err := read[[]T](q, a)
		if err != nil {
			return nil, err
		}
		if page == nil {
			return nil, &Error{Op: op, Class: Unavailable, Status: a.status, Message: "the answer is no list of that kind"}
		}
		if out = append(out, page...); !hasNext(a.header) {
			return out, nil
		}
	}
	return nil, &Error{Op: op, Class: Unavailable, Status: http.StatusOK, Message: "the list does not end"}
}

// Merge merges a pull request if its last commit is head; else that is a Conflict.
// That exactly that was merged already is success. What the branch's rules do not let
// be is Invalid, and left to people at GitHub.
func (g *GitHub) Merge(ctx context.Context, number int, head string) error {
	const op = "merge a pull request"
	if err := g.isRepository(op); err != nil {
		return err
	}
	if !gitname.IsCommit(head) {
		return &Error{Op: op, Class: Invalid, Message: "only a commit that was looked at is merged"}
	}
	how, err := g.mergeMethod(ctx, op)
	if err != nil {
		return err
	}
	_, err = g.ask(ctx, question{op: op, method: http.MethodPut, path: g.pullPath(number) + "/merge", body: map[string]string{"sha": head, "merge_method": how}})
	if c := ClassOf(err); c == Invalid || c == Conflict || c == Unavailable {
		pull, asked := get[github.PullRequest](ctx, g, question{op: op, path: g.pullPath(number)})
		if asked == nil && pull.GetMerged() && pull.GetHead().GetSHA() == head {
			return nil // its answer was lost, or somebody was quicker
		}
	}
	return err
}

// mergeMethod is the first way of merging that the repository permits: with a commit
// of its own, in one commit, or on top. GitHub does not tell everybody; then the first
// is tried.
func (g *GitHub) mergeMethod(ctx context.Context, op string) (string, error) {
	r, err := get[github.Repository](ctx, g, question{op: op, path: g.place.Root()})
	switch {
	case err != nil:
		return "", err
	case r.AllowMergeCommit == nil || r.GetAllowMergeCommit():
		return "merge", nil
	case r.GetAllowSquashMerge():
		return "squash", nil
	}
	return "rebase", nil
}

// Withdraw closes a pull request and deletes its branch, if that is one of ours. That
// it is closed or gone already is success. A comment, Markdown, is written before that;
// if closing fails, another try writes it again.
func (g *GitHub) Withdraw(ctx context.Context, number int, comment string) error {
	const op = "close a pull request"
	if err := g.isRepository(op); err != nil {
		return err
	}
	pull, err := get[github.PullRequest](ctx, g, question{op: op, path: g.pullPath(number)})
	if err != nil {
		return err
	}
	branch := pull.GetHead().GetRef()
	if pull.GetNumber() != number || !strings.HasPrefix(branch, revision.Prefix) || !gitname.IsBranch(branch) || !strings.EqualFold(pull.GetHead().GetRepo().GetFullName(), g.place.String()) {
		return &Error{Op: op, Class: Invalid, Message: "it is none of ours"}
	}
	if pull.GetState() == "open" {
		if comment != "" {
			if _, err := g.ask(ctx, question{op: op, method: http.MethodPost, path: g.place.Root() + "/issues/" + strconv.Itoa(number) + "/comments", body: map[string]string{"body": comment}}); err != nil {
				return err
			}
		}
		if _, err := g.ask(ctx, question{op: op, method: http.MethodPatch, path: g.pullPath(number), body: map[string]string{"state": "closed"}}); err != nil {
			return err
		}
	}
	_, err = g.ask(ctx, question{op: op, method: http.MethodDelete, path: g.place.Root() + "/git/refs/heads/" + branch})
	if e, ok := errors.AsType[*Error](err); ok && (e.Class == NotFound || e.Status == http.StatusUnprocessableEntity) {
		// GitHub says 422 of a branch that is not there; so it is looked for.
		if _, err = g.head(ctx, op, branch); err == nil {
			return e
		}
		return gone(err)
	}
	return err
}
