package forge

import (
	"context"
	"crypto/sha1"
	"encoding/base64"
	"encoding/hex"
	"fmt"
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
	return k.result(k.github().Repositories.Get(ctx, g.scope.Owner, g.scope.Name))
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
	ref, err := k.result(k.github().Git.GetRef(ctx, g.scope.Owner, g.scope.Name, "heads/"+branch))
	if err == nil && (ref.GetRef() != "refs/heads/"+branch || ref.GetObject().GetType() != "commit" || !isCommit(ref.GetObject().GetSHA())) {
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
	return k.result(k.github().Git.GetCommit(ctx, g.scope.Owner, g.scope.Name, commit))
}

// fileAt reads a file at a commit. It verifies by git's checksum that the content is complete.
func (g *GitHub) fileAt(ctx context.Context, op, commit, path string) (File, error) {
	k := g.objectCall(ctx, op)
	c, _, response, err := k.github().Repositories.GetContents(ctx, g.scope.Owner, g.scope.Name, path, &github.RepositoryContentGetOptions{Ref: commit})
	if err = k.finish(response, err); ClassOf(err) == NotFound {
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
		pull, err = k.result(k.github().PullRequests.Create(ctx, g.scope.Owner, g.scope.Name, body))
		if ClassOf(err) == Invalid { // another caller created it first, or the response was lost
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
			err := k.finish(k.github().Issues.RemoveLabelForIssue(ctx, g.scope.Owner, g.scope.Name, number, url.PathEscape(l.GetName())))
			if ignoreNotFound(err) != nil {
				return Request{}, err
			}
		}
	}
	if len(missing) > 0 {
		k := g.call(ctx, op, g.scope.root(), nil)
		if _, err := k.result(k.github().Issues.AddLabelsToIssue(ctx, g.scope.Owner, g.scope.Name, number, missing)); err != nil {
			return Request{}, err
		}
	}
	return g.Request(ctx, number)
}

// edit changes a pull request.
func (g *GitHub) edit(ctx context.Context, op string, number int, change *github.PullRequest) error {
	k := g.call(ctx, op, g.scope.root(), nil)
	_, err := k.result(k.github().PullRequests.Edit(ctx, g.scope.Owner, g.scope.Name, number, change))
	return err
}

// findPull returns the open pull request of a change; nil: there is none yet.
func (g *GitHub) findPull(ctx context.Context, op string, p Proposal) (*github.PullRequest, error) {
	options := &github.PullRequestListOptions{State: "all", Head: g.scope.Owner + ":" + p.Branch, ListOptions: github.ListOptions{PerPage: githubPage}}
	k := g.call(ctx, op, g.scope.root(), wantArray)
	all, err := k.result(k.github().PullRequests.List(ctx, g.scope.Owner, g.scope.Name, options))
	if err != nil {
		return nil, err
	}
	var candidates []openRequest
	for _, pull := range all {
		candidates = append(candidates, openRequest{Branch: pull.GetHead().GetRef(), Base: pull.GetBase().GetRef(), Own: strings.EqualFold(pull.GetHead().GetRepo().GetFullName(), g.scope.String()), Open: pull.GetState() == "open"})
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
		if _, err := k.result(k.github().Git.CreateRef(ctx, owner, name, github.CreateRef{Ref: "refs/heads/" + p.Branch, SHA: s.At})); err != nil {
			return err
		}
	}
	// GitHub compares the blob with the branch again, so only one of two concurrent commits
	// succeeds.
	body := &github.RepositoryContentFileOptions{Message: &p.Message, Branch: &p.Branch, Content: p.Content, Author: &github.CommitAuthor{Name: &p.Author.Name, Email: &p.Author.Email}}
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
	_, err = k.result(write(ctx, owner, name, escaped(p.Path), body))
	return err
}
