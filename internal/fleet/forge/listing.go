package forge

import (
	"context"
	"errors"

	"github.com/google/go-github/v89/github"
	gitlab "gitlab.com/gitlab-org/api/client-go/v2"
)

// Head is the last commit of a branch.
func (g *GitHub) Head(ctx context.Context, branch string) (string, error) {
	if err := errors.Join(g.isRepository(listOp), checkBranch(branch)); err != nil {
		return "", err
	}
	return g.head(ctx, listOp, branch)
}

// Files lists the files of a folder at a commit, and with deep those of all folders in
// it; "" is the whole repository. A folder that is not there has none. More than can be
// told of are Invalid, and never a part of them.
func (g *GitHub) Files(ctx context.Context, commit, folder string, deep bool) ([]TreeFile, error) {
	if err := errors.Join(g.isRepository(listOp), checkFolder(commit, folder)); err != nil {
		return nil, err
	}
	c, err := g.commitForm(ctx, listOp, commit)
	if err != nil {
		return nil, err
	}
	return descend(c.GetTree().GetSHA(), folder, deep, func(id string, deep bool) ([]treeEntry, error) { return g.tree(ctx, id, deep) })
}

// tree reads a tree of git's, whole.
func (g *GitHub) tree(ctx context.Context, id string, deep bool) (all []treeEntry, err error) {
	if !isCommit(id) { // which has names of the same kind
		return nil, oddTree()
	}
	t, err := inRepository(ctx, g, listOp, func(c *github.Client) (*github.Tree, *github.Response, error) {
		return c.Git.GetTree(ctx, g.place.Owner, g.place.Name, id, deep)
	})
	switch {
	case err != nil:
		return nil, err
	case t.GetTruncated():
		return nil, tooManyFiles()
	case t.Truncated == nil || t.Entries == nil:
		return nil, oddTree()
	}
	for _, e := range t.Entries {
		all = append(all, treeEntry{Path: e.GetPath(), Type: e.GetType(), Mode: e.GetMode(), ID: e.GetSHA()})
	}
	return all, nil
}

// Head is the last commit of a branch.
func (g *GitLab) Head(ctx context.Context, branch string) (string, error) {
	if err := errors.Join(g.isProject(listOp), checkBranch(branch)); err != nil {
		return "", err
	}
	return g.head(ctx, listOp, branch)
}

// Files lists the files of a folder at a commit, and with deep those of all folders in
// it; "" is the whole repository. A folder that is not there has none. More than can be
// told of are Invalid, and never a part of them.
//
// It goes by numbered pages. Those by a token GitLab has from 17.1 on only, and does not
// say of a full one whether it is the last.
func (g *GitLab) Files(ctx context.Context, commit, folder string, deep bool) ([]TreeFile, error) {
	if err := errors.Join(g.isProject(listOp), checkFolder(commit, folder)); err != nil {
		return nil, err
	}
	k := g.call(listOp, g.at("repository", "tree"), array)
	nodes, err := gitLabListOnce(ctx, k, mostFiles, func(n *gitlab.TreeNode) string { return n.Path },
		func(c *gitlab.Client, page gitlab.ListOptions, o gitlab.RequestOptionFunc) ([]*gitlab.TreeNode, *gitlab.Response, error) {
			return c.Repositories.ListTree(g.project, &gitlab.ListTreeOptions{ListOptions: page, Path: &folder, Ref: &commit, Recursive: &deep}, o)
		})
	switch {
	case ClassOf(err) == NotFound && folder != "":
		// GitLab says so from 15.0 on. Or the commit is not there, or the project cannot
		// be seen any more.
		return nil, g.hasCommit(ctx, listOp, commit)
	case errors.Is(err, errMoved):
		return nil, oddTree() // what a commit has does not change
	case err != nil:
		return nil, err
	}
	all := make([]treeEntry, len(nodes))
	for i, n := range nodes {
		all[i] = treeEntry{Path: n.Path, Type: n.Type, Mode: n.Mode, ID: n.ID}
	}
	return plainFiles("", all), nil
}
