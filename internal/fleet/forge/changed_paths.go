package forge

import (
	"context"

	"github.com/google/go-github/v89/github"
	gitlab "gitlab.com/gitlab-org/api/client-go/v2"
)

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
	c, err := k.result(k.github().Repositories.CompareCommits(ctx, g.scope.Owner, g.scope.Name, base, commit, &github.ListOptions{PerPage: 1}))
	if err != nil {
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
	c, err := k.result(k.gitlab().Repositories.Compare(g.project, &gitlab.CompareOptions{From: &base, To: &commit}, gitlab.WithContext(ctx)))
	switch {
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
