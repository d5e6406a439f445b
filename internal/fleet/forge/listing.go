package forge

import (
	"context"
	"errors"
	"net/url"
	"strconv"

	"github.com/google/go-github/v84/github"

	"github.com/tailplane/tailplane/internal/fleet/forge/gitname"
	"github.com/tailplane/tailplane/internal/fleet/forge/tree"
)

// Head is the last commit of a branch.
func (g *GitHub) Head(ctx context.Context, branch string) (string, error) {
	if err := errors.Join(g.isRepository(tree.Op), tree.CheckBranch(branch)); err != nil {
		return "", err
	}
	return g.head(ctx, tree.Op, branch)
}

// Files lists the files of a folder at a commit, and with deep those of all folders in
// it; "" is the whole repository. A folder that is not there has none. More than can be
// told of are Invalid, and never a part of them.
func (g *GitHub) Files(ctx context.Context, commit, folder string, deep bool) ([]tree.File, error) {
	if err := errors.Join(g.isRepository(tree.Op), tree.Check(commit, folder)); err != nil {
		return nil, err
	}
	c, err := get[github.Commit](ctx, g, question{op: tree.Op, path: g.place.Root() + "/git/commits/" + commit})
	if err != nil {
		return nil, err
	}
	return tree.Down(c.GetTree().GetSHA(), folder, deep, func(id string, deep bool) ([]tree.Entry, error) { return g.tree(ctx, id, deep) })
}

// tree reads a tree of git's, whole.
func (g *GitHub) tree(ctx context.Context, id string, deep bool) (all []tree.Entry, err error) {
	if !gitname.IsCommit(id) { // which has names of the same kind
		return nil, tree.Odd()
	}
	q := question{op: tree.Op, path: g.place.Root() + "/git/trees/" + id}
	if deep {
		q.path += "?recursive=1" // any value, "false" too, has GitHub do it
	}
	t, err := get[github.Tree](ctx, g, q)
	switch {
	case err != nil:
		return nil, err
	case t.GetTruncated():
		return nil, tree.TooMany()
	case t.Truncated == nil || t.Entries == nil:
		return nil, tree.Odd()
	}
	for _, e := range t.Entries {
		all = append(all, tree.Entry{Path: e.GetPath(), Type: e.GetType(), Mode: e.GetMode(), ID: e.GetSHA()})
	}
	return all, nil
}

// Head is the last commit of a branch.
func (g *GitLab) Head(ctx context.Context, branch string) (string, error) {
	if err := errors.Join(g.isProject(tree.Op), tree.CheckBranch(branch)); err != nil {
		return "", err
	}
	return g.head(ctx, tree.Op, branch)
}

// Files lists the files of a folder at a commit, and with deep those of all folders in
// it; "" is the whole repository. A folder that is not there has none. More than can be
// told of are Invalid, and never a part of them.
//
// It goes by numbered pages. Those by a token GitLab has from 17.1 on only, and does not
// say of a full one whether it is the last.
func (g *GitLab) Files(ctx context.Context, commit, folder string, deep bool) ([]tree.File, error) {
	if err := errors.Join(g.isProject(tree.Op), tree.Check(commit, folder)); err != nil {
		return nil, err
	}
	query := url.Values{"path": {folder}, "ref": {commit}, "recursive": {strconv.FormatBool(deep)}}
	all, err := gitLabListOnce(ctx, g, tree.Op, g.at("repository", "tree")+"?"+query.Encode(), tree.Most, func(e tree.Entry) string { return e.Path })
	switch {
	case ClassOf(err) == NotFound && folder != "":
		// GitLab says so from 15.0 on. Or the commit is not there, or the project cannot
		// be seen any more.
		_, err := g.ask(ctx, question{op: tree.Op, path: g.at("repository", "commits", commit)})
		return nil, err
	case errors.Is(err, errMoved):
		return nil, tree.Odd() // what a commit has does not change
	case err != nil:
		return nil, err
	}
	return tree.Files("", all), nil
}
