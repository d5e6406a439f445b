package forge

import (
	"context"
	"errors"

	gitlab "gitlab.com/gitlab-org/api/client-go/v2"
)

// Head returns the last commit of a branch.
func (g *GitHub) Head(ctx context.Context, branch string) (string, error) {
	return readHead(ctx, g, branch)
}

// Files lists the files of a folder at a commit; with deep also those of all its subfolders. The
// folder "" is the whole repository. A missing folder has no files. If there are more files than
// Files can list, it returns Invalid, never a part of them.
func (g *GitHub) Files(ctx context.Context, commit, folder string, deep bool) ([]TreeFile, error) {
	if err := checkFolder(g, commit, folder); err != nil {
		return nil, err
	}
	c, err := g.readCommit(ctx, listOp, commit)
	if err != nil {
		return nil, err
	}
	return descend(c.GetTree().GetSHA(), folder, deep, func(id string, deep bool) ([]treeEntry, error) { return g.tree(ctx, id, deep) })
}

// tree reads a complete git tree.
func (g *GitHub) tree(ctx context.Context, id string, deep bool) (all []treeEntry, err error) {
	if !isCommit(id) { // tree IDs have the form of commit IDs
		return nil, invalidTree()
	}
	k := g.objectCall(ctx, listOp)
	t, err := k.result(k.github().Git.GetTree(ctx, g.scope.Owner, g.scope.Name, id, deep))
	switch {
	case err != nil:
		return nil, err
	case t.GetTruncated():
		return nil, tooManyFiles()
	case t.Truncated == nil || t.Entries == nil:
		return nil, invalidTree()
	}
	for _, e := range t.Entries {
		all = append(all, treeEntry{Path: e.GetPath(), Type: e.GetType(), Mode: e.GetMode(), ID: e.GetSHA()})
	}
	return all, nil
}

// Head returns the last commit of a branch.
func (g *GitLab) Head(ctx context.Context, branch string) (string, error) {
	return readHead(ctx, g, branch)
}

// Files lists the files of a folder at a commit; with deep also those of all its subfolders. The
// folder "" is the whole repository. A missing folder has no files. If there are more files than
// Files can list, it returns Invalid, never a part of them.
//
// It uses numbered pages. GitLab has keyset pages only since 17.1, and does not report whether a
// full keyset page is the last one.
func (g *GitLab) Files(ctx context.Context, commit, folder string, deep bool) ([]TreeFile, error) {
	if err := checkFolder(g, commit, folder); err != nil {
		return nil, err
	}
	k := g.call(ctx, listOp, g.projectPath("repository", "tree"), wantArray)
	nodes, err := gitLabListOnce(k, maxFiles, func(n *gitlab.TreeNode) string { return n.Path }, func(page gitlab.ListOptions) ([]*gitlab.TreeNode, error) {
		options := &gitlab.ListTreeOptions{ListOptions: page, Path: &folder, Ref: &commit, Recursive: &deep}
		return k.result(k.gitlab().Repositories.ListTree(g.project, options, gitlab.WithContext(ctx)))
	})
	switch {
	case ClassOf(err) == NotFound && folder != "":
		// GitLab answers so since 15.0 for a missing folder. Check whether the commit is missing,
		// or the project is not visible any more.
		return nil, g.hasCommit(ctx, listOp, commit)
	case errors.Is(err, errListChanged):
		return nil, invalidTree() // the content of a commit does not change
	case err != nil:
		return nil, err
	}
	all := make([]treeEntry, len(nodes))
	for i, n := range nodes {
		all[i] = treeEntry{Path: n.Path, Type: n.Type, Mode: n.Mode, ID: n.ID}
	}
	return plainFiles("", all), nil
}
