package forge

import (
	"context"
	"net/http"
	"net/url"

	"github.com/google/go-github/v84/github"
	gitlab "gitlab.com/gitlab-org/api/client-go"

	"github.com/tailplane/tailplane/internal/fleet/forge/gitname"
	"github.com/tailplane/tailplane/internal/fleet/forge/revision"
)

// What merging a commit would change, whoever wrote it: a pull request that one made
// may have more than was put into it.

// Touched are the paths of the files that a commit leaves otherwise than they were where
// it left base, a branch: all that merging it would change. A file that moved has two.
func (g *GitHub) Touched(ctx context.Context, base, commit string) ([]string, error) {
	const op = "compare a change"
	if err := g.isRepository(op); err != nil {
		return nil, err
	}
	if !gitname.IsBranch(base) || !gitname.IsCommit(commit) {
		return nil, &Error{Op: op, Class: Invalid, Message: "there is no such commit to compare"}
	}
	c, err := get[github.CommitsComparison](ctx, g, question{op: op, path: g.place.Root() + "/compare/" + base + "..." + commit + "?per_page=1"})
	if err == nil && c.Files == nil {
		err = &Error{Op: op, Class: Unavailable, Status: http.StatusOK, Message: "the answer has no files"}
	}
	var out []string
	for _, f := range c.Files {
		out = append(out, f.GetFilename(), f.GetPreviousFilename())
	}
	return revision.Paths(out), err
}

// Touched are the paths of the files that a commit leaves otherwise than they were where
// it left base, a branch: all that merging it would change. A file that moved has two.
func (g *GitLab) Touched(ctx context.Context, base, commit string) ([]string, error) {
	const op = "compare a change"
	if err := g.isProject(op); err != nil {
		return nil, err
	}
	if !gitname.IsBranch(base) || !gitname.IsCommit(commit) {
		return nil, &Error{Op: op, Class: Invalid, Message: "there is no such commit to compare"}
	}
	q := question{op: op, path: g.at("repository", "compare") + "?" + url.Values{"from": {base}, "to": {commit}}.Encode()}
	a, err := g.ask(ctx, q)
	if err != nil {
		return nil, err
	}
	c, err := read[*gitlab.Compare](q, a)
	switch {
	case err != nil:
		return nil, err
	case c == nil || c.Diffs == nil || c.CompareTimeout:
		return nil, unreadable(q, a, "the answer has no files")
	}
	var out []string
	for _, d := range c.Diffs {
		out = append(out, d.OldPath, d.NewPath)
	}
	return revision.Paths(out), nil
}
