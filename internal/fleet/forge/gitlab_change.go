package forge

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	gitlab "gitlab.com/gitlab-org/api/client-go/v2"

	"github.com/tailplane/tailplane/internal/util/httptransport"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// minPushAccess is the minimum access level for pushes to a branch: Developer.
const minPushAccess = 30

// projectIn returns the path of a project from its URL.
func projectIn(web *url.URL, text string) (string, error) {
	u, err := httptransport.ParseBase(text)
	if err != nil {
		return "", err
	}
	path, ok := strings.CutPrefix(u.Path, web.Path+"/")
	if u.Scheme != web.Scheme || !strings.EqualFold(u.Host, web.Host) || !ok || !isPath(path) || !strings.Contains(path, "/") {
		return "", fmt.Errorf("%q is not the URL of a project of %s", redact(text), web)
	}
	return path, nil
}

// projectPath returns an API path below the project, escaped as the library does it.
func (g *GitLab) projectPath(parts ...string) string {
	out := "/projects/" + gitlab.PathEscape(g.project)
	for _, p := range parts {
		out += "/" + gitlab.PathEscape(p)
	}
	return out
}

func (g *GitLab) checkRepository(op string) error {
	if g.project == "" {
		return &Error{Op: op, Class: Invalid, Message: "the client has no project"}
	}
	return nil
}

// CheckChanges verifies that the credential may propose changes to the configured project. If it
// may not, the error has class Forbidden.
func (g *GitLab) CheckChanges(ctx context.Context) (Identity, error) {
	const op = "check access for changes"
	if err := g.checkRepository(op); err != nil {
		return Identity{}, err
	}
	id, err := g.Check(ctx)
	if err != nil {
		return id, err
	}
	id.Missing = nil
	if !slices.Contains(id.Scopes, scopeAPI) {
		id.Missing = []string{scopeAPI}
		return id, &Error{Op: op, Class: Forbidden, Message: "the token lacks the scope " + scopeAPI}
	}
	k := g.call(ctx, op, g.projectPath(), wantObject("path_with_namespace"))
	p, _, err := k.gitlab().Projects.GetProject(g.project, nil, gitlab.WithContext(ctx))
	switch err = k.outcome(err); {
	case err != nil:
		return id, err
	case !strings.EqualFold(p.PathWithNamespace, g.project):
		return id, &Error{Op: op, Class: Conflict, Message: redact(fmt.Sprintf("%s was renamed to %q", g.project, p.PathWithNamespace))}
	}
	if p.Permissions != nil { // GitLab reports no permissions for an administrator
		level := -1
		if x := p.Permissions.ProjectAccess; x != nil {
			level = int(x.AccessLevel)
		}
		if x := p.Permissions.GroupAccess; x != nil {
			level = max(level, int(x.AccessLevel))
		}
		if level >= 0 && level < minPushAccess {
			id.Missing = []string{"developer"}
			return id, &Error{Op: op, Class: Forbidden, Message: "the token's user may not push to a branch"}
		}
	}
	return id, nil
}

// ReadFile reads a file at the head of a branch. A missing file is not an error: its Version is
// empty.
func (g *GitLab) ReadFile(ctx context.Context, branch, path string) (File, error) {
	return readFile(ctx, g, branch, path)
}

// head returns the last commit of a branch.
func (g *GitLab) head(ctx context.Context, op, branch string) (string, error) {
	k := g.call(ctx, op, g.projectPath("repository", "branches", branch), wantObject("name", "commit"))
	b, _, err := k.gitlab().Branches.GetBranch(g.project, branch, gitlab.WithContext(ctx))
	switch err = k.outcome(err); {
	case err != nil:
		return "", err
	case b.Name != branch || !isCommit(b.Commit.ID):
		return "", k.unusable("the response is not a branch")
	}
	return b.Commit.ID, nil
}

// hasCommit returns an error if a commit does not exist, or if the project is not visible any more.
func (g *GitLab) hasCommit(ctx context.Context, op, commit string) error {
	k := g.call(ctx, op, g.projectPath("repository", "commits", commit), wantObject())
	_, _, err := k.gitlab().Commits.GetCommit(g.project, commit, nil, gitlab.WithContext(ctx))
	return k.outcome(err)
}

// fileAt reads a file at an existing commit. It verifies by the checksum that the content is
// complete.
func (g *GitLab) fileAt(ctx context.Context, op, commit, path string) (File, error) {
	k := g.call(ctx, op, g.projectPath("repository", "files", path), wantObject("file_path", "encoding", "last_commit_id"))
	f, _, err := k.gitlab().RepositoryFiles.GetFile(g.project, path, &gitlab.GetFileOptions{Ref: &commit}, gitlab.WithContext(ctx))
	switch err = k.outcome(err); {
	case ClassOf(err) == NotFound:
		return File{Commit: commit}, g.hasCommit(ctx, op, commit)
	case err != nil:
		return File{}, err
	case f.FilePath != path || f.Encoding != "base64" || !isCommit(f.LastCommitID):
		return File{}, k.unusable("the response is not a file")
	}
	text, err := base64.StdEncoding.DecodeString(f.Content)
	if sum := sha256.Sum256(text); err != nil || hex.EncodeToString(sum[:]) != f.SHA256 {
		return File{}, k.unusable("the file is not complete")
	}
	return File{Content: text, Version: f.LastCommitID, Commit: commit}, nil
}

// Propose commits one change on its own branch and opens a merge request for it. Each step first
// checks whether it was done before, so a repeated call after a lost response finishes the same
// proposal. It returns a Conflict if the file is not the version that the change is based on, or if
// the merge request was merged or closed.
func (g *GitLab) Propose(ctx context.Context, p Proposal) (Request, error) {
	const op = "propose a change"
	why := p.invalidReason()
	if err := checkInput(op, g, why == "", why); err != nil {
		return Request{}, err
	}
	mr, err := g.findMergeRequest(ctx, op, p)
	if err != nil {
		return Request{}, err
	}
	if err := g.commit(ctx, op, p); err != nil {
		return Request{}, err
	}
	if mr == nil {
		options := &gitlab.CreateMergeRequestOptions{SourceBranch: &p.Branch, TargetBranch: &p.Base, Title: &p.Title, Description: &p.Body,
			Labels: new(gitlab.LabelOptions(slices.Concat([]string{}, p.Labels))), RemoveSourceBranch: new(true)}
		k := g.call(ctx, op, g.projectPath("merge_requests"), wantObject("iid"))
		created, _, err := k.gitlab().MergeRequests.CreateMergeRequest(g.project, options, gitlab.WithContext(ctx))
		switch err = k.outcome(err); {
		case ClassOf(err) == Conflict: // another caller created it first, or the response was lost
			found, again := g.findMergeRequest(ctx, op, p)
			if again != nil || found == nil {
				return Request{}, err
			}
			mr = found
		case err != nil:
			return Request{}, err
		default:
			mr = &created.BasicMergeRequest
		}
	}
	if mr == nil || mr.IID <= 0 {
		return Request{}, &Error{Op: op, Class: Unavailable, Status: http.StatusOK, Message: "the response is not a merge request"}
	}
	if err := g.updateRequest(ctx, op, p, mr); err != nil {
		return Request{}, err
	}
	return g.waitForCommit(ctx, op, int(mr.IID), p.Branch)
}

// GitLab adds a commit to a merge request a moment after the commit was made. These limits bound
// the wait.
const (
	takeUpPause = 250 * time.Millisecond
	takeUpTries = 40
)

// waitForCommit waits until the merge request shows the last commit of its branch, and reads it.
func (g *GitLab) waitForCommit(ctx context.Context, op string, iid int, branch string) (Request, error) {
	for try := 1; ; try++ {
		head, err := g.head(ctx, op, branch)
		if err != nil {
			return Request{}, err
		}
		mr, err := g.mergeRequest(ctx, op, iid)
		if err != nil {
			return Request{}, err
		}
		if mr.SHA == head {
			return g.Request(ctx, iid)
		}
		if try == takeUpTries {
			return Request{}, &Error{
				Op:      op,
				Class:   Unavailable,
				Status:  http.StatusOK,
				Message: "the merge request does not have its last commit yet",
			}
		}
		if retry.Sleep(ctx, takeUpPause) != nil {
			return Request{}, fmt.Errorf("%s: %w", op, context.Cause(ctx))
		}
	}
}

// updateRequest sets the title, the description and the labels of a merge request.
func (g *GitLab) updateRequest(ctx context.Context, op string, p Proposal, mr *gitlab.BasicMergeRequest) error {
	change := &gitlab.UpdateMergeRequestOptions{}
	if mr.Title != p.Title || mr.Description != p.Body {
		change.Title, change.Description = &p.Title, &p.Body
	}
	more := slices.DeleteFunc(slices.Clone(p.Labels), func(l string) bool { return slices.Contains(mr.Labels, l) })
	fewer := slices.DeleteFunc(
		slices.Clone([]string(mr.Labels)),
		func(l string) bool { return !strings.HasPrefix(l, ownPrefix) || slices.Contains(p.Labels, l) },
	)
	if len(more) > 0 {
		change.AddLabels = new(gitlab.LabelOptions(more))
	}
	if len(fewer) > 0 {
		change.RemoveLabels = new(gitlab.LabelOptions(fewer))
	}
	if *change == (gitlab.UpdateMergeRequestOptions{}) {
		return nil
	}
	return g.edit(ctx, op, int(mr.IID), change)
}

// edit changes a merge request.
func (g *GitLab) edit(ctx context.Context, op string, iid int, change *gitlab.UpdateMergeRequestOptions) error {
	k := g.call(ctx, op, g.requestPath(iid), nil)
	_, _, err := k.gitlab().MergeRequests.UpdateMergeRequest(g.project, int64(iid), change, gitlab.WithContext(ctx))
	return k.outcome(err)
}

func (g *GitLab) requestPath(iid int, parts ...string) string {
	return g.projectPath(append([]string{"merge_requests", number(int64(iid))}, parts...)...)
}

// findMergeRequest returns the open merge request of a change; nil: there is none yet.
func (g *GitLab) findMergeRequest(ctx context.Context, op string, p Proposal) (*gitlab.BasicMergeRequest, error) {
	k := g.call(ctx, op, g.projectPath("merge_requests"), wantArray)
	iid := func(mr *gitlab.BasicMergeRequest) int64 { return mr.IID }
	all, err := gitLabList(k, iid, func(page gitlab.ListOptions) ([]*gitlab.BasicMergeRequest, *gitlab.Response, error) {
		options := &gitlab.ListProjectMergeRequestsOptions{ListOptions: page, State: new("all"), Scope: new("all"), SourceBranch: &p.Branch}
		return k.gitlab().MergeRequests.ListProjectMergeRequests(g.project, options, gitlab.WithContext(ctx))
	})
	if err != nil {
		return nil, err
	}
	var candidates []openRequest
	for _, mr := range all {
		candidates = append(
			candidates,
			openRequest{
				Branch: mr.SourceBranch,
				Base:   mr.TargetBranch,
				Own:    mr.SourceProjectID == mr.TargetProjectID,
				Open:   mr.State == "opened",
			},
		)
	}
	i, err := p.findRequest(op, candidates)
	if err != nil || i < 0 {
		return nil, err
	}
	return all[i], nil
}

// commit makes sure that the branch has the change. GitLab creates a new branch together with its
// first commit, or not at all.
func (g *GitLab) commit(ctx context.Context, op string, p Proposal) error {
	s, err := p.findBase(ctx, op, g)
	if err != nil || s.Done {
		return err
	}
	action := &gitlab.CommitActionOptions{Action: new(gitlab.FileUpdate), FilePath: &p.Path}
	switch {
	case p.Content == nil:
		action.Action = new(gitlab.FileDelete)
	case s.Now.Version == "":
		action.Action = new(gitlab.FileCreate)
	}
	if s.Now.Version != "" {
		action.LastCommitID = &s.Now.Version // GitLab compares it again, so only one of two concurrent commits succeeds
	}
	if p.Content != nil {
		action.Encoding, action.Content = new("base64"), new(base64.StdEncoding.EncodeToString(p.Content))
	}
	options := &gitlab.CreateCommitOptions{
		Branch:        &p.Branch,
		CommitMessage: &p.Message,
		AuthorName:    &p.Author.Name,
		AuthorEmail:   &p.Author.Email,
		Actions:       []*gitlab.CommitActionOptions{action},
	}
	if s.Fresh {
		options.StartSHA = &s.At
	}
	k := g.call(ctx, op, g.projectPath("repository", "commits"), nil)
	_, _, err = k.gitlab().Commits.CreateCommit(g.project, options, gitlab.WithContext(ctx))
	if err = k.outcome(err); ClassOf(err) != Invalid {
		return err
	}
	// GitLab answers 400 for many causes, so read the file again to see whether it has changed.
	head, again := g.head(ctx, op, p.Branch)
	if again != nil {
		return err
	}
	now, again := g.fileAt(ctx, op, head, p.Path)
	switch {
	case again != nil:
		return err
	case p.matches(now):
		return nil // another caller committed the same first
	case now.Version != p.Was:
		return p.conflict(op)
	}
	return err
}
