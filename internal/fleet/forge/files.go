package forge

import (
	"context"
	"errors"
	"net/http"
	"path"
	"strconv"
	"strings"

	"github.com/google/go-github/v89/github"
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
	t, _, err := k.github().Git.GetTree(ctx, g.scope.Owner, g.scope.Name, id, deep)
	switch err = k.outcome(err); {
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
	name := func(n *gitlab.TreeNode) string { return n.Path }
	nodes, err := gitLabListOnce(k, maxFiles, name, func(page gitlab.ListOptions) ([]*gitlab.TreeNode, *gitlab.Response, error) {
		options := &gitlab.ListTreeOptions{ListOptions: page, Path: &folder, Ref: &commit, Recursive: &deep}
		return k.gitlab().Repositories.ListTree(g.project, options, gitlab.WithContext(ctx))
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

// A TreeFile is a file in a listing, without its content.
type TreeFile struct {
	Path string // from the repository's root
	Blob string // git blob ID; it changes with the content
}

// A treeEntry is a file, a folder, a link or a submodule, as a forge reports it.
type treeEntry struct {
	Path, Mode string
	Type       string // blob, tree or commit
	ID         string
}

// listOp is the operation name of listings in errors.
const listOp = "list files"

// maxFiles is the maximum number of files and folders in the listing of one folder.
const maxFiles = 10_000

// tooManyFiles returns the error for a listing that is too long.
func tooManyFiles() *Error {
	return &Error{
		Op:      listOp,
		Class:   Invalid,
		Message: "too many files: the forge does not list all of them, or there are more than " + strconv.Itoa(maxFiles),
	}
}

// invalidTree returns the error for a response without a tree.
func invalidTree() *Error {
	return &Error{Op: listOp, Class: Unavailable, Status: http.StatusOK, Message: "the response has no tree"}
}

// checkFolder refuses an invalid commit or folder. The folder "" is the whole repository.
func checkFolder(r repository, commit, folder string) error {
	return checkInput(listOp, r, isCommit(commit) && (folder == "" || isPath(folder)), "there is no such folder to list")
}

// plainFiles returns the plain files among entries of a folder. It skips links and submodules.
func plainFiles(folder string, all []treeEntry) (files []TreeFile) {
	for _, e := range all {
		if e.Type == "blob" && (e.Mode == "100644" || e.Mode == "100755") {
			files = append(files, TreeFile{path.Join(folder, e.Path), e.ID})
		}
	}
	return files
}

// descend lists a folder below a git tree, with all subfolders if deep is true. read reads one
// tree. descend does not read the siblings of the folders on the path, because they may be too
// large to list.
func descend(id, folder string, deep bool, read func(id string, deep bool) ([]treeEntry, error)) ([]TreeFile, error) {
	for part := range strings.SplitSeq(folder, "/") {
		if part == "" {
			break // the root
		}
		in, err := read(id, false)
		if err != nil {
			return nil, err
		}
		id = ""
		for _, e := range in {
			if e.Path == part && e.Type == "tree" {
				id = e.ID
			}
		}
		if id == "" {
			return nil, nil
		}
	}
	all, err := read(id, deep)
	if err != nil {
		return nil, err
	}
	if len(all) > maxFiles {
		return nil, tooManyFiles()
	}
	return plainFiles(folder, all), nil
}

// Touched covers everything that a merge of a commit would change, whoever wrote it. A pull request
// that the fleet opened may contain more commits than the fleet put into it.

// Touched lists the paths of the files that a commit changes relative to the merge base with the
// branch base: everything that a merge would change. A moved file has two paths.
func (g *GitHub) Touched(ctx context.Context, base, commit string) ([]string, error) {
	const op = "compare a change"
	if err := checkInput(op, g, isBranch(base) && isCommit(commit), "there is no such commit to compare"); err != nil {
		return nil, err
	}
	k := g.call(ctx, op, g.scope.root(), wantObject("files"))
	c, _, err := k.github().Repositories.CompareCommits(ctx, g.scope.Owner, g.scope.Name, base, commit, &github.ListOptions{PerPage: 1})
	if err = k.outcome(err); err != nil {
		return nil, err
	}
	var out []string
	for _, f := range c.Files {
		out = append(out, f.GetFilename(), f.GetPreviousFilename())
	}
	return sortedPaths(out), nil
}

// Touched lists the paths of the files that a commit changes relative to the merge base with the
// branch base: everything that a merge would change. A moved file has two paths.
func (g *GitLab) Touched(ctx context.Context, base, commit string) ([]string, error) {
	const op = "compare a change"
	if err := checkInput(op, g, isBranch(base) && isCommit(commit), "there is no such commit to compare"); err != nil {
		return nil, err
	}
	k := g.call(ctx, op, g.projectPath(), wantObject("diffs"))
	c, _, err := k.gitlab().Repositories.Compare(g.project, &gitlab.CompareOptions{From: &base, To: &commit}, gitlab.WithContext(ctx))
	switch err = k.outcome(err); {
	case err != nil:
		return nil, err
	case c.CompareTimeout:
		return nil, k.unusable("the response does not have all files")
	}
	var out []string
	for _, d := range c.Diffs {
		if d == nil {
			return nil, k.unusable("the response has a file without a name")
		}
		out = append(out, d.OldPath, d.NewPath)
	}
	return sortedPaths(out), nil
}
