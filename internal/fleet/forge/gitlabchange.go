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

	gitlab "gitlab.com/gitlab-org/api/client-go"

	"github.com/tailplane/tailplane/internal/fleet/forge/exchange"
	"github.com/tailplane/tailplane/internal/fleet/forge/gitname"
	"github.com/tailplane/tailplane/internal/fleet/forge/revision"
)

// leastPush is the access level from which one may push to a branch: Developer.
const leastPush = 30

// projectIn reads the path of a project from its URL.
func projectIn(web *url.URL, text string) (string, error) {
	u, err := exchange.ParseURL(text)
	if err != nil {
		return "", err
	}
	path, ok := strings.CutPrefix(u.Path, web.Path+"/")
	if u.Scheme != web.Scheme || !strings.EqualFold(u.Host, web.Host) || !ok || !gitname.IsPath(path) || !strings.Contains(path, "/") {
		return "", fmt.Errorf("%q is the URL of no project of %s", clean(text), web)
	}
	return path, nil
}

// at is a path below the project.
func (g *GitLab) at(parts ...string) string {
	out := "/projects/" + url.PathEscape(g.project)
	for _, p := range parts {
		out += "/" + url.PathEscape(p)
	}
	return out
}

func (g *GitLab) isProject(op string) error {
	if g.project == "" {
		return &Error{Op: op, Class: Invalid, Message: "the client is for no project"}
	}
	return nil
}

// CheckChanges finds out whether the credential may propose changes to the project of
// the configuration. If it may not, the error is of class Forbidden.
func (g *GitLab) CheckChanges(ctx context.Context) (Identity, error) {
	const op = "check for changes"
	if err := g.isProject(op); err != nil {
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
	q := question{op: op, path: g.at()}
	a, err := g.ask(ctx, q)
	if err != nil {
		return id, err
	}
	p, err := read[*gitlab.Project](q, a)
	switch {
	case err != nil:
		return id, err
	case p == nil || p.PathWithNamespace == "":
		return id, unreadable(q, a, "the answer has no project")
	case !strings.EqualFold(p.PathWithNamespace, g.project):
		return id, &Error{Op: op, Class: Conflict, Message: clean(fmt.Sprintf("%s is called %q now", g.project, p.PathWithNamespace))}
	}
	if p.Permissions != nil { // of an administrator nothing is said
		level := -1
		if x := p.Permissions.ProjectAccess; x != nil {
			level = int(x.AccessLevel)
		}
		if x := p.Permissions.GroupAccess; x != nil {
			level = max(level, int(x.AccessLevel))
		}
		if level >= 0 && level < leastPush {
			id.Missing = []string{"developer"}
			return id, &Error{Op: op, Class: Forbidden, Message: "the token's user may not push to a branch"}
		}
	}
	return id, nil
}

// ReadFile reads a file at the head of a branch. That there is none is no error: its
// Version is empty.
func (g *GitLab) ReadFile(ctx context.Context, branch, path string) (File, error) {
	const op = "read a file"
	if err := g.isProject(op); err != nil {
		return File{}, err
	}
	if !gitname.IsBranch(branch) || !gitname.IsPath(path) {
		return File{}, &Error{Op: op, Class: Invalid, Message: clean(fmt.Sprintf("%q on %q is no file", path, branch))}
	}
	head, err := g.head(ctx, op, branch)
	if err != nil {
		return File{}, err
	}
	return g.fileAt(ctx, op, head, path)
}

// head is the last commit of a branch.
func (g *GitLab) head(ctx context.Context, op, branch string) (string, error) {
	q := question{op: op, path: g.at("repository", "branches", branch)}
	a, err := g.ask(ctx, q)
	if err != nil {
		return "", err
	}
	b, err := read[*gitlab.Branch](q, a)
	switch {
	case err != nil:
		return "", err
	case b == nil || b.Name != branch || b.Commit == nil || !gitname.IsCommit(b.Commit.ID):
		return "", unreadable(q, a, "the answer is no branch")
	}
	return b.Commit.ID, nil
}

// fileAt reads a file at a commit that is there, and proves by its sum that it is whole.
func (g *GitLab) fileAt(ctx context.Context, op, commit, path string) (File, error) {
	q := question{op: op, path: g.at("repository", "files", path) + "?ref=" + commit}
	a, err := g.ask(ctx, q)
	if ClassOf(err) == NotFound {
		// Or the project cannot be seen any more.
		if _, err := g.ask(ctx, question{op: op, path: g.at("repository", "commits", commit)}); err != nil {
			return File{}, err
		}
		return File{Commit: commit}, nil
	}
	if err != nil {
		return File{}, err
	}
	f, err := read[*gitlab.File](q, a)
	switch {
	case err != nil:
		return File{}, err
	case f == nil || f.FilePath != path || f.Encoding != "base64" || !gitname.IsCommit(f.LastCommitID):
		return File{}, unreadable(q, a, "the answer is no file")
	}
	text, err := base64.StdEncoding.DecodeString(f.Content)
	if sum := sha256.Sum256(text); err != nil || hex.EncodeToString(sum[:]) != f.SHA256 {
		return File{}, unreadable(q, a, "the file is not whole")
	}
	return File{Content: text, Version: f.LastCommitID, Commit: commit}, nil
}

// Propose makes a commit with one change on a branch of its own, and a merge request
// of it. Each step looks first whether it was done, so that after an answer that was
// lost the same is proposed again. A file that is not as it was when the change was
// made is a Conflict, and so is a request that was merged or closed.
func (g *GitLab) Propose(ctx context.Context, p Proposal) (Request, error) {
	const op = "propose a change"
	if err := g.isProject(op); err != nil {
		return Request{}, err
	}
	if why := p.Wrong(); why != "" {
		return Request{}, &Error{Op: op, Class: Invalid, Message: why}
	}
	mr, err := g.mergeRequestOf(ctx, op, p)
	if err != nil {
		return Request{}, err
	}
	if err := g.commit(ctx, op, p); err != nil {
		return Request{}, err
	}
	if mr == nil {
		q := question{op: op, method: http.MethodPost, path: g.at("merge_requests"), body: map[string]any{"source_branch": p.Branch, "target_branch": p.Base,
			"title": p.Title, "description": p.Body, "labels": strings.Join(p.Labels, ","), "remove_source_branch": true}}
		a, err := g.ask(ctx, q)
		if ClassOf(err) == Conflict { // somebody was quicker with the same, or an answer was lost
			found, again := g.mergeRequestOf(ctx, op, p)
			if again != nil || found == nil {
				return Request{}, err
			}
			mr, err = found, nil
		} else if err == nil {
			mr, err = read[*gitlab.MergeRequest](q, a)
		}
		if err != nil {
			return Request{}, err
		}
	}
	if mr == nil || mr.IID <= 0 {
		return Request{}, &Error{Op: op, Class: Unavailable, Status: http.StatusOK, Message: "the answer is no merge request"}
	}
	if err := g.settle(ctx, op, p, mr); err != nil {
		return Request{}, err
	}
	return g.takenUp(ctx, op, int(mr.IID), p.Branch)
}

// GitLab takes a commit up into a merge request a moment after it was made.
const (
	takeUpPause = 250 * time.Millisecond
	takeUpTries = 40
)

// takenUp reads a merge request whose last commit is that of its branch.
func (g *GitLab) takenUp(ctx context.Context, op string, iid int, branch string) (Request, error) {
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
			return Request{}, &Error{Op: op, Class: Unavailable, Status: http.StatusOK, Message: "the merge request does not have its last commit yet"}
		}
		select {
		case <-time.After(takeUpPause):
		case <-ctx.Done():
			return Request{}, fmt.Errorf("%s: %w", op, context.Cause(ctx))
		}
	}
}

// settle gives a merge request its words and its labels.
func (g *GitLab) settle(ctx context.Context, op string, p Proposal, mr *gitlab.MergeRequest) error {
	body := map[string]string{}
	if mr.Title != p.Title || mr.Description != p.Body {
		body["title"], body["description"] = p.Title, p.Body
	}
	more := slices.DeleteFunc(slices.Clone(p.Labels), func(l string) bool { return slices.Contains(mr.Labels, l) })
	fewer := slices.DeleteFunc(slices.Clone([]string(mr.Labels)), func(l string) bool { return !strings.HasPrefix(l, revision.Prefix) || slices.Contains(p.Labels, l) })
	if len(more) > 0 {
		body["add_labels"] = strings.Join(more, ",")
	}
	if len(fewer) > 0 {
		body["remove_labels"] = strings.Join(fewer, ",")
	}
	if len(body) == 0 {
		return nil
	}
	_, err := g.ask(ctx, question{op: op, method: http.MethodPut, path: g.requestPath(int(mr.IID)), body: body})
	return err
}

func (g *GitLab) requestPath(iid int, parts ...string) string {
	return g.at(append([]string{"merge_requests", number(int64(iid))}, parts...)...)
}

// mergeRequestOf finds the open merge request of a change; nil: there was none yet.
func (g *GitLab) mergeRequestOf(ctx context.Context, op string, p Proposal) (*gitlab.MergeRequest, error) {
	all, err := gitLabList(ctx, g, op, g.at("merge_requests")+"?"+url.Values{"state": {"all"}, "scope": {"all"}, "source_branch": {p.Branch}}.Encode(),
		func(mr gitlab.MergeRequest) int64 { return mr.IID })
	if err != nil {
		return nil, err
	}
	var candidates []revision.Candidate
	for _, mr := range all {
		candidates = append(candidates, revision.Candidate{Branch: mr.SourceBranch, Base: mr.TargetBranch, Own: mr.SourceProjectID == mr.TargetProjectID, Open: mr.State == "opened"})
	}
	i, err := p.Which(op, candidates)
	if err != nil || i < 0 {
		return nil, err
	}
	return &all[i], nil
}

// commit sees to it that the branch has the change. A new branch comes with its first
// commit, or not at all.
func (g *GitLab) commit(ctx context.Context, op string, p Proposal) error {
	s, err := p.Begin(ctx, op, revision.Repository{Head: g.head, File: g.fileAt})
	if err != nil || s.Done {
		return err
	}
	action := map[string]string{"action": "update", "file_path": p.Path}
	switch {
	case p.Content == nil:
		action["action"] = "delete"
	case s.Now.Version == "":
		action["action"] = "create"
	}
	if s.Now.Version != "" {
		action["last_commit_id"] = s.Now.Version // GitLab compares it once more: of two at once one commits
	}
	if p.Content != nil {
		action["encoding"], action["content"] = "base64", base64.StdEncoding.EncodeToString(p.Content)
	}
	body := map[string]any{"branch": p.Branch, "commit_message": p.Message, "author_name": p.Author.Name, "author_email": p.Author.Email, "actions": []any{action}}
	if s.Fresh {
		body["start_sha"] = s.At
	}
	_, err = g.ask(ctx, question{op: op, method: http.MethodPost, path: g.at("repository", "commits"), body: body})
	if ClassOf(err) != Invalid {
		return err
	}
	// GitLab says 400 of everything: that the file has changed is seen by looking.
	head, again := g.head(ctx, op, p.Branch)
	if again != nil {
		return err
	}
	now, again := g.fileAt(ctx, op, head, p.Path)
	switch {
	case again != nil:
		return err
	case p.Is(now):
		return nil // somebody was quicker with the same
	case now.Version != p.Was:
		return p.Changed(op)
	}
	return err
}
