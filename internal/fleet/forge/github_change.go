package forge

import (
	"context"
	"crypto/sha1"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/google/go-github/v89/github"
)

// CheckChanges verifies that the credential may propose changes to the place, which must be a
// repository. If it may not, the error has class Forbidden.
func (g *GitHub) CheckChanges(ctx context.Context) (Identity, error) {
	const op = "check access for changes"
	if err := g.checkRepository(op); err != nil {
		return Identity{}, err
	}
	id := Identity{Kind: GitHubTokenKind}
	if g.app != nil {
		in, err := g.findInstallation(ctx)
		if err != nil {
			return g.identify(nil), err
		}
		id = g.identify(in)
		has := in.GetPermissions()
		id.requirePermission("contents", has.GetContents(), "write")
		id.requirePermission("pull_requests", has.GetPullRequests(), "write")
		if len(id.Missing) > 0 {
			return id, &Error{Op: op, Class: Forbidden, Message: "the App lacks " + strings.Join(id.Missing, ", ")}
		}
	}
	// GitHub does not list the permissions of a token, but it shows whether the token can see the
	// repository.
	r, err := g.repositoryInfo(ctx, op)
	if err == nil && !strings.EqualFold(r.GetFullName(), g.scope.String()) {
		err = &Error{Op: op, Class: Conflict, Message: redact(fmt.Sprintf("%s was renamed to %q", g.scope, r.GetFullName()))}
	}
	if err == nil && g.app == nil && r.Permissions != nil && !r.GetPermissions().GetPush() {
		id.Missing = []string{"push"}
		err = &Error{Op: op, Class: Forbidden, Message: "the token may not write to the repository"}
	}
	return id, err
}

// objectCall returns a call whose response is one object of the repository.
func (g *GitHub) objectCall(ctx context.Context, op string) *call {
	return g.call(ctx, op, g.scope.root(), wantObject())
}

// repositoryInfo reads the repository.
func (g *GitHub) repositoryInfo(ctx context.Context, op string) (*github.Repository, error) {
	k := g.objectCall(ctx, op)
	out, _, err := k.github().Repositories.Get(ctx, g.scope.Owner, g.scope.Name)
	return out, k.outcome(err)
}

func (g *GitHub) checkRepository(op string) error {
	if g.scope.kind != repositoryScope {
		return &Error{Op: op, Class: Invalid, Message: g.scope.String() + " is not a repository"}
	}
	return nil
}

// ReadFile reads a file at the head of a branch. A missing file is not an error: its Version is
// empty.
func (g *GitHub) ReadFile(ctx context.Context, branch, path string) (File, error) {
	return readFile(ctx, g, branch, path)
}

// head returns the last commit of a branch.
func (g *GitHub) head(ctx context.Context, op, branch string) (string, error) {
	k := g.objectCall(ctx, op)
	ref, _, err := k.github().Git.GetRef(ctx, g.scope.Owner, g.scope.Name, "heads/"+branch)
	if err = k.outcome(err); err == nil &&
		(ref.GetRef() != "refs/heads/"+branch || ref.GetObject().GetType() != "commit" || !isCommit(ref.GetObject().GetSHA())) {
		err = k.unusable("the response is not a branch")
	}
	return ref.GetObject().GetSHA(), err
}

// escaped returns a file path with escaped segments. The library needs this for writes, where it
// does not escape paths itself.
func escaped(path string) string {
	parts := strings.Split(path, "/")
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	return strings.Join(parts, "/")
}

// readCommit reads a commit.
func (g *GitHub) readCommit(ctx context.Context, op, commit string) (*github.Commit, error) {
	k := g.objectCall(ctx, op)
	out, _, err := k.github().Git.GetCommit(ctx, g.scope.Owner, g.scope.Name, commit)
	return out, k.outcome(err)
}

// fileAt reads a file at a commit. It verifies by git's checksum that the content is complete.
func (g *GitHub) fileAt(ctx context.Context, op, commit, path string) (File, error) {
	k := g.objectCall(ctx, op)
	c, _, _, err := k.github().Repositories.GetContents(
		ctx,
		g.scope.Owner,
		g.scope.Name,
		path,
		&github.RepositoryContentGetOptions{Ref: commit},
	)
	if err = k.outcome(err); ClassOf(err) == NotFound {
		// Check whether the commit is missing, or the repository is not visible any more.
		if _, err := g.readCommit(ctx, op, commit); err != nil {
			return File{}, err
		}
		return File{Commit: commit}, nil
	}
	if err != nil {
		return File{}, err
	}
	if c.GetType() != "file" || c.GetEncoding() != "base64" || c.Content == nil {
		return File{}, &Error{Op: op, Class: Invalid, Status: http.StatusOK, Message: "it is not a file of up to 1 MB"}
	}
	text, err := base64.StdEncoding.DecodeString(strings.ReplaceAll(*c.Content, "\n", ""))
	if err != nil || blob(text) != c.GetSHA() {
		return File{}, k.unusable("the file is not complete")
	}
	return File{Content: text, Version: c.GetSHA(), Commit: commit}, nil
}

// blob returns the git blob ID of a content.
func blob(content []byte) string {
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00", len(content))
	h.Write(content)
	return hex.EncodeToString(h.Sum(nil))
}

// Propose commits one change on its own branch and opens a pull request for it. Each step first
// checks whether it was done before, so a repeated call after a lost response finishes the same
// proposal. It returns a Conflict if the file is not the version that the change is based on, or if
// the pull request was merged or closed.
func (g *GitHub) Propose(ctx context.Context, p Proposal) (Request, error) {
	const op = "propose a change"
	why := p.invalidReason()
	if err := checkInput(op, g, why == "", why); err != nil {
		return Request{}, err
	}
	pull, err := g.findPull(ctx, op, p)
	if err != nil {
		return Request{}, err
	}
	if err := g.commit(ctx, op, p); err != nil {
		return Request{}, err
	}
	if pull == nil {
		body := &github.NewPullRequest{Title: &p.Title, Head: &p.Branch, Base: &p.Base, Body: &p.Body}
		k := g.objectCall(ctx, op)
		pull, _, err = k.github().PullRequests.Create(ctx, g.scope.Owner, g.scope.Name, body)
		if err = k.outcome(err); ClassOf(err) == Invalid { // another caller created it first, or the response was lost
			if found, again := g.findPull(ctx, op, p); again == nil && found != nil {
				pull, err = found, nil
			}
		}
		if err != nil {
			return Request{}, err
		}
	}
	return g.updateRequest(ctx, op, p, pull)
}

// updateRequest sets the title, the body and the labels of a pull request.
func (g *GitHub) updateRequest(ctx context.Context, op string, p Proposal, pull *github.PullRequest) (Request, error) {
	number := pull.GetNumber()
	if number <= 0 {
		return Request{}, &Error{Op: op, Class: Unavailable, Status: http.StatusOK, Message: "the response is not a pull request"}
	}
	if pull.GetTitle() != p.Title || pull.GetBody() != p.Body {
		if err := g.edit(ctx, op, number, &github.PullRequest{Title: &p.Title, Body: &p.Body}); err != nil {
			return Request{}, err
		}
	}
	missing := slices.Clone(p.Labels)
	for _, l := range pull.Labels {
		if at := slices.Index(missing, l.GetName()); at >= 0 {
			missing = slices.Delete(missing, at, at+1)
		} else if strings.HasPrefix(l.GetName(), ownPrefix) {
			k := g.call(ctx, op, g.scope.root(), nil)
			_, err := k.github().Issues.RemoveLabelForIssue(ctx, g.scope.Owner, g.scope.Name, number, url.PathEscape(l.GetName()))
			if err = k.outcome(err); ignoreNotFound(err) != nil {
				return Request{}, err
			}
		}
	}
	if len(missing) > 0 {
		k := g.call(ctx, op, g.scope.root(), nil)
		_, _, err := k.github().Issues.AddLabelsToIssue(ctx, g.scope.Owner, g.scope.Name, number, missing)
		if err = k.outcome(err); err != nil {
			return Request{}, err
		}
	}
	return g.Request(ctx, number)
}

// edit changes a pull request.
func (g *GitHub) edit(ctx context.Context, op string, number int, change *github.PullRequest) error {
	k := g.call(ctx, op, g.scope.root(), nil)
	_, _, err := k.github().PullRequests.Edit(ctx, g.scope.Owner, g.scope.Name, number, change)
	return k.outcome(err)
}

// findPull returns the open pull request of a change; nil: there is none yet.
func (g *GitHub) findPull(ctx context.Context, op string, p Proposal) (*github.PullRequest, error) {
	options := &github.PullRequestListOptions{
		State:       "all",
		Head:        g.scope.Owner + ":" + p.Branch,
		ListOptions: github.ListOptions{PerPage: githubPage},
	}
	k := g.call(ctx, op, g.scope.root(), wantArray)
	all, _, err := k.github().PullRequests.List(ctx, g.scope.Owner, g.scope.Name, options)
	if err = k.outcome(err); err != nil {
		return nil, err
	}
	var candidates []openRequest
	for _, pull := range all {
		candidates = append(
			candidates,
			openRequest{
				Branch: pull.GetHead().GetRef(),
				Base:   pull.GetBase().GetRef(),
				Own:    strings.EqualFold(pull.GetHead().GetRepo().GetFullName(), g.scope.String()),
				Open:   pull.GetState() == "open",
			},
		)
	}
	i, err := p.findRequest(op, candidates)
	if err != nil || i < 0 {
		return nil, err
	}
	return all[i], nil
}

// commit makes sure that the branch has the change.
func (g *GitHub) commit(ctx context.Context, op string, p Proposal) error {
	s, err := p.findBase(ctx, op, g)
	if err != nil || s.Done {
		return err
	}
	owner, name := g.scope.Owner, g.scope.Name
	if s.Fresh {
		k := g.call(ctx, op, g.scope.root(), nil)
		_, _, err := k.github().Git.CreateRef(ctx, owner, name, github.CreateRef{Ref: "refs/heads/" + p.Branch, SHA: s.At})
		if err = k.outcome(err); err != nil {
			return err
		}
	}
	// GitHub compares the blob with the branch again, so only one of two concurrent commits
	// succeeds.
	body := &github.RepositoryContentFileOptions{
		Message: &p.Message,
		Branch:  &p.Branch,
		Content: p.Content,
		Author:  &github.CommitAuthor{Name: &p.Author.Name, Email: &p.Author.Email},
	}
	if s.Now.Version != "" {
		body.SHA = &s.Now.Version
	}
	k := g.call(ctx, op, g.scope.root(), nil)
	write := k.github().Repositories.UpdateFile
	switch {
	case p.Content == nil:
		write = k.github().Repositories.DeleteFile
	case s.Now.Version == "":
		write = k.github().Repositories.CreateFile
	}
	_, _, err = write(ctx, owner, name, escaped(p.Path), body)
	return k.outcome(err)
}

// pull reads a pull request.
func (g *GitHub) pull(ctx context.Context, op string, number int) (*github.PullRequest, error) {
	k := g.objectCall(ctx, op)
	out, _, err := k.github().PullRequests.Get(ctx, g.scope.Owner, g.scope.Name, number)
	return out, k.outcome(err)
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
	r := Request{
		Number: number,
		URL:    pull.GetHTMLURL(),
		Head:   pull.GetHead().GetSHA(),
		Open:   pull.GetState() == "open",
		Merged: pull.GetMerged(),
	}
	names := map[string]bool{pull.GetUser().GetLogin(): true}
	k := g.call(ctx, op, g.scope.root(), wantArray)
	commits, err := listUncounted(k, func(page *github.ListOptions) ([]*github.RepositoryCommit, *github.Response, error) {
		return k.github().PullRequests.ListCommits(ctx, g.scope.Owner, g.scope.Name, number, page)
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
	reviews, err := listUncounted(k, func(page *github.ListOptions) ([]*github.PullRequestReview, *github.Response, error) {
		return k.github().PullRequests.ListReviews(ctx, g.scope.Owner, g.scope.Name, number, page)
	})
	if err != nil {
		return Request{}, err
	}
	for _, v := range reviews {
		r.Reviews = append(
			r.Reviews,
			Review{By: v.GetUser().GetLogin(), Approved: v.GetState() == "APPROVED", Head: v.GetCommitID(), At: v.GetSubmittedAt().Time},
		)
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
func listUncounted[T any](k *call, read func(*github.ListOptions) ([]T, *github.Response, error)) (out []T, err error) {
	for n := 1; n <= maxPages; n++ {
		page, _, err := read(&github.ListOptions{Page: n, PerPage: githubPage})
		if err = k.outcome(err); err != nil {
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
		all, _, err := k.github().Checks.ListCheckRunsForRef(ctx, owner, name, r.Head, &github.ListCheckRunsOptions{ListOptions: page})
		return all.GetTotal(), all.GetCheckRuns(), k.outcome(err)
	})
	if err == nil {
		k := g.call(ctx, op, g.scope.root(), wantObject("total_count", "statuses"))
		var statuses []*github.RepoStatus
		statuses, err = list(k, (*github.RepoStatus).GetID, func(page github.ListOptions) (int, []*github.RepoStatus, error) {
			all, _, err := k.github().Repositories.GetCombinedStatus(ctx, owner, name, r.Head, &page)
			return all.GetTotalCount(), all.GetStatuses(), k.outcome(err)
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
	_, _, err = k.github().PullRequests.Merge(ctx, g.scope.Owner, g.scope.Name, number, "", options)
	err = k.outcome(err)
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
	if pull.GetNumber() != number || !strings.HasPrefix(branch, ownPrefix) || !isBranch(branch) ||
		!strings.EqualFold(pull.GetHead().GetRepo().GetFullName(), g.scope.String()) {
		return &Error{Op: op, Class: Invalid, Message: "Tailplane did not open it"}
	}
	if pull.GetState() == "open" {
		if comment != "" {
			k := g.call(ctx, op, g.scope.root(), nil)
			note := &github.IssueComment{Body: &comment}
			_, _, err := k.github().Issues.CreateComment(ctx, g.scope.Owner, g.scope.Name, number, note)
			if err = k.outcome(err); err != nil {
				return err
			}
		}
		if err := g.edit(ctx, op, number, &github.PullRequest{State: new("closed")}); err != nil {
			return err
		}
	}
	k := g.call(ctx, op, g.scope.root(), nil)
	_, err = k.github().Git.DeleteRef(ctx, g.scope.Owner, g.scope.Name, "heads/"+branch)
	err = k.outcome(err)
	if e, ok := errors.AsType[*Error](err); ok && (e.Class == NotFound || e.Status == http.StatusUnprocessableEntity) {
		// GitHub answers 422 for a missing branch, so check whether it exists.
		if _, err = g.head(ctx, op, branch); err == nil {
			return e
		}
		return ignoreNotFound(err)
	}
	return err
}
