package forge

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/google/go-github/v89/github"
)

// pull reads a pull request.
func (g *GitHub) pull(ctx context.Context, op string, number int) (*github.PullRequest, error) {
	k := g.objectCall(ctx, op)
	return k.result(k.github().PullRequests.Get(ctx, g.scope.Owner, g.scope.Name, number))
}

// Request reads a pull request with all its authors, reviews and checks.
func (g *GitHub) Request(ctx context.Context, number int) (Request, error) {
	const op = "read a pull request"
	if err := g.checkRepository(op); err != nil {
		return Request{}, err
	}
	pull, err := g.pull(ctx, op, number)
	if err != nil {
		return Request{}, err
	}
	if pull.GetNumber() != number || !isCommit(pull.GetHead().GetSHA()) {
		return Request{}, &Error{Op: op, Class: Unavailable, Status: http.StatusOK, Message: "the response is not a pull request"}
	}
	r := Request{Number: number, URL: pull.GetHTMLURL(), Head: pull.GetHead().GetSHA(), Open: pull.GetState() == "open", Merged: pull.GetMerged()}
	names := map[string]bool{pull.GetUser().GetLogin(): true}
	k := g.call(ctx, op, g.scope.root(), wantArray)
	commits, err := listUncounted(k, func(page *github.ListOptions) ([]*github.RepositoryCommit, error) {
		return k.result(k.github().PullRequests.ListCommits(ctx, g.scope.Owner, g.scope.Name, number, page))
	})
	if err != nil {
		return Request{}, err
	}
	if len(commits) != pull.GetCommits() || !slices.ContainsFunc(commits,
		func(c *github.RepositoryCommit) bool { return c.GetSHA() == r.Head }) {
		// GitHub lists at most 250 commits, or a commit was added in the meantime. The authors are
		// not completely known, so there is no result.
		return Request{}, &Error{Op: op, Class: Unavailable, Status: http.StatusOK, Message: "the forge does not list all of its commits"}
	}
	for _, c := range commits {
		for _, name := range append(coAuthors(c.GetCommit().GetMessage()), c.GetAuthor().GetLogin(), c.GetCommitter().GetLogin(), c.GetCommit().GetAuthor().GetEmail(),
			c.GetCommit().GetAuthor().GetName(), c.GetCommit().GetCommitter().GetEmail()) {
			names[name] = true
		}
	}
	delete(names, "")
	r.Authors = slices.Sorted(maps.Keys(names))
	reviews, err := listUncounted(k, func(page *github.ListOptions) ([]*github.PullRequestReview, error) {
		return k.result(k.github().PullRequests.ListReviews(ctx, g.scope.Owner, g.scope.Name, number, page))
	})
	if err != nil {
		return Request{}, err
	}
	for _, v := range reviews {
		r.Reviews = append(r.Reviews, Review{By: v.GetUser().GetLogin(), Approved: v.GetState() == "APPROVED", Head: v.GetCommitID(), At: v.GetSubmittedAt().Time})
	}
	switch pull.GetMergeableState() {
	case "dirty":
		r.Blocked = "it conflicts with a change that was merged in the meantime"
	case "blocked":
		r.Blocked = "the branch's rules require more, such as a review at GitHub"
	case "behind":
		r.Blocked = "it is behind its base, and the branch's rules do not allow that"
	case "draft":
		r.Blocked = "it is a draft"
	}
	err = g.checks(ctx, op, &r)
	return r, err
}

// listUncounted reads a list that does not report its length.
func listUncounted[T any](k *call, read func(*github.ListOptions) ([]T, error)) (out []T, err error) {
	for n := 1; n <= maxPages; n++ {
		page, err := read(&github.ListOptions{Page: n, PerPage: githubPage})
		if err != nil {
			return nil, err
		}
		if out = append(out, page...); !hasNext(k.responseHeader) {
			return out, nil
		}
	}
	return nil, k.unusable("the list does not end")
}

// checks reads the results of automated checks of the head, from both of GitHub's APIs. If the
// credential may not read them, ChecksKnown stays false.
func (g *GitHub) checks(ctx context.Context, op string, r *Request) error {
	owner, name := g.scope.Owner, g.scope.Name
	k := g.call(ctx, op, g.scope.root(), wantObject("total_count", "check_runs"))
	runs, err := list(k, (*github.CheckRun).GetID, func(page github.ListOptions) (int, []*github.CheckRun, error) {
		all, err := k.result(k.github().Checks.ListCheckRunsForRef(ctx, owner, name, r.Head, &github.ListCheckRunsOptions{ListOptions: page}))
		return all.GetTotal(), all.GetCheckRuns(), err
	})
	if err == nil {
		k := g.call(ctx, op, g.scope.root(), wantObject("total_count", "statuses"))
		var statuses []*github.RepoStatus
		statuses, err = list(k, (*github.RepoStatus).GetID, func(page github.ListOptions) (int, []*github.RepoStatus, error) {
			all, err := k.result(k.github().Repositories.GetCombinedStatus(ctx, owner, name, r.Head, &page))
			return all.GetTotalCount(), all.GetStatuses(), err
		})
		for _, s := range statuses {
			r.Checks = append(r.Checks, Check{Name: redact(s.GetContext()), State: s.GetState(), URL: s.GetTargetURL()})
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
		r.Checks = append(r.Checks, Check{Name: redact(c.GetName()), State: state, URL: c.GetHTMLURL()})
	}
	r.ChecksKnown = err == nil
	return err
}

// Merge merges a pull request if head is its last commit; otherwise it returns a Conflict. If
// exactly that commit was merged before, that is success. If a rule of the branch forbids the
// merge, that is Invalid; people must resolve it at GitHub.
func (g *GitHub) Merge(ctx context.Context, number int, head string) error {
	const op = "merge a pull request"
	if err := checkInput(op, g, isCommit(head), "only a reviewed commit can be merged"); err != nil {
		return err
	}
	how, err := g.mergeMethod(ctx, op)
	if err != nil {
		return err
	}
	k := g.call(ctx, op, g.scope.root(), nil)
	options := &github.PullRequestOptions{SHA: head, MergeMethod: how}
	_, err = k.result(k.github().PullRequests.Merge(ctx, g.scope.Owner, g.scope.Name, number, "", options))
	if c := ClassOf(err); c == Invalid || c == Conflict || c == Unavailable {
		pull, requested := g.pull(ctx, op, number)
		if requested == nil && pull.GetMerged() && pull.GetHead().GetSHA() == head {
			return nil // the response was lost, or another caller merged it first
		}
	}
	return err
}

// mergeMethod returns the first merge method that the repository permits: merge commit, squash or
// rebase. GitHub does not show the settings to every credential; then mergeMethod returns the
// first.
func (g *GitHub) mergeMethod(ctx context.Context, op string) (string, error) {
	r, err := g.repositoryInfo(ctx, op)
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

// Withdraw closes a pull request and deletes its branch, which must have our prefix. If the request
// is closed or gone already, that is success. It first adds the comment, which is Markdown. If
// closing fails, the next try adds the comment again.
func (g *GitHub) Withdraw(ctx context.Context, number int, comment string) error {
	const op = "close a pull request"
	if err := g.checkRepository(op); err != nil {
		return err
	}
	pull, err := g.pull(ctx, op, number)
	if err != nil {
		return err
	}
	branch := pull.GetHead().GetRef()
	if pull.GetNumber() != number || !strings.HasPrefix(branch, ownPrefix) || !isBranch(branch) || !strings.EqualFold(pull.GetHead().GetRepo().GetFullName(), g.scope.String()) {
		return &Error{Op: op, Class: Invalid, Message: "Tailplane did not open it"}
	}
	if pull.GetState() == "open" {
		if comment != "" {
			k := g.call(ctx, op, g.scope.root(), nil)
			note := &github.IssueComment{Body: &comment}
			if _, err := k.result(k.github().Issues.CreateComment(ctx, g.scope.Owner, g.scope.Name, number, note)); err != nil {
				return err
			}
		}
		if err := g.edit(ctx, op, number, &github.PullRequest{State: new("closed")}); err != nil {
			return err
		}
	}
	k := g.call(ctx, op, g.scope.root(), nil)
	err = k.finish(k.github().Git.DeleteRef(ctx, g.scope.Owner, g.scope.Name, "heads/"+branch))
	if e, ok := errors.AsType[*Error](err); ok && (e.Class == NotFound || e.Status == http.StatusUnprocessableEntity) {
		// GitHub answers 422 for a missing branch, so check whether it exists.
		if _, err = g.head(ctx, op, branch); err == nil {
			return e
		}
		return ignoreNotFound(err)
	}
	return err
}
