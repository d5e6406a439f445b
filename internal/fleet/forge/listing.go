package forge

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/google/go-github/v84/github"
	gitlab "gitlab.com/gitlab-org/api/client-go"

	"github.com/tailplane/tailplane/internal/fleet/forge/gitname"
)

// Which files a repository has, as it was at one commit: what is asked for afterwards
// is of the same moment, however many answers it takes.

// A Listed is a file of which only the name was asked for.
type Listed struct {
	Path string // from the repository's root
	Blob string // what git calls its content: the same as long as that is
}

// opFiles is what listing is called in errors.
const opFiles = "list files"

// mostListed bounds what is listed of one folder, in files and folders.
const mostListed = 10_000

func tooMany(status int) error {
	return &Error{Op: opFiles, Class: Invalid, Status: status, Message: "too many files: more than are told, or than " + strconv.Itoa(mostListed)}
}

func checkListing(commit, folder string) error {
	if !gitname.IsCommit(commit) || folder != "" && !gitname.IsPath(folder) {
		return &Error{Op: opFiles, Class: Invalid, Message: "there is no such folder to list"}
	}
	return nil
}

// listed adds what is a file, and neither a link nor another repository.
func listed(all []Listed, kind, mode, file, blob string) []Listed {
	if kind != "blob" || mode != "100644" && mode != "100755" {
		return all
	}
	return append(all, Listed{file, blob})
}

// Head is the last commit of a branch.
func (g *GitHub) Head(ctx context.Context, branch string) (string, error) {
	if err := g.isRepository(opFiles); err != nil {
		return "", err
	}
	if !gitname.IsBranch(branch) {
		return "", &Error{Op: opFiles, Class: Invalid, Message: "there is no such branch"}
	}
	return g.head(ctx, opFiles, branch)
}

// Files lists the files of a folder at a commit, and with deep those of all folders in
// it; "" is the whole repository. A folder that is not there has none. More than can be
// told of are Invalid, and never a part of them.
func (g *GitHub) Files(ctx context.Context, commit, folder string, deep bool) ([]Listed, error) {
	if err := g.isRepository(opFiles); err != nil {
		return nil, err
	}
	if err := checkListing(commit, folder); err != nil {
		return nil, err
	}
	c, err := get[github.Commit](ctx, g, question{op: opFiles, path: g.place.Root() + "/git/commits/" + commit})
	if err != nil {
		return nil, err
	}
	at := c.GetTree().GetSHA()
	// Down to the folder first: what is beside it may be too much to be told.
	for part := range strings.SplitSeq(folder, "/") {
		if part == "" {
			break // the root
		}
		in, err := g.tree(ctx, at, false)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(in, func(e *github.TreeEntry) bool { return e.GetPath() == part && e.GetType() == "tree" })
		if i < 0 {
			return nil, nil
		}
		at = in[i].GetSHA()
	}
	in, err := g.tree(ctx, at, deep)
	if err != nil {
		return nil, err
	}
	if len(in) > mostListed {
		return nil, tooMany(http.StatusOK)
	}
	var all []Listed
	for _, e := range in {
		all = listed(all, e.GetType(), e.GetMode(), path.Join(folder, e.GetPath()), e.GetSHA())
	}
	return all, nil
}

// tree reads a tree of git's, whole.
func (g *GitHub) tree(ctx context.Context, id string, deep bool) ([]*github.TreeEntry, error) {
	odd := &Error{Op: opFiles, Class: Unavailable, Status: http.StatusOK, Message: "the answer has no tree"}
	if !gitname.IsCommit(id) { // which has names of the same kind
		return nil, odd
	}
	q := question{op: opFiles, path: g.place.Root() + "/git/trees/" + id}
	if deep {
		q.path += "?recursive=1" // any value, "false" too, has GitHub do it
	}
	t, err := get[github.Tree](ctx, g, q)
	switch {
	case err != nil:
		return nil, err
	case t.GetTruncated():
		return nil, tooMany(http.StatusOK)
	case t.Truncated == nil || t.Entries == nil:
		return nil, odd
	}
	return t.Entries, nil
}

// Head is the last commit of a branch.
func (g *GitLab) Head(ctx context.Context, branch string) (string, error) {
	if err := g.isProject(opFiles); err != nil {
		return "", err
	}
	if !gitname.IsBranch(branch) {
		return "", &Error{Op: opFiles, Class: Invalid, Message: "there is no such branch"}
	}
	return g.head(ctx, opFiles, branch)
}

// Files lists the files of a folder at a commit, and with deep those of all folders in
// it; "" is the whole repository. A folder that is not there has none. More than can be
// told of are Invalid, and never a part of them.
//
// It goes by numbered pages. Those by a token GitLab has from 17.1 on only, and does not
// say of a full one whether it is the last.
func (g *GitLab) Files(ctx context.Context, commit, folder string, deep bool) ([]Listed, error) {
	if err := g.isProject(opFiles); err != nil {
		return nil, err
	}
	if err := checkListing(commit, folder); err != nil {
		return nil, err
	}
	query := url.Values{"path": {folder}, "ref": {commit}, "recursive": {strconv.FormatBool(deep)}}
	in, err := gitLabListOnce(ctx, g, opFiles, g.at("repository", "tree")+"?"+query.Encode(), mostListed, func(n gitlab.TreeNode) string { return n.Path })
	if ClassOf(err) == NotFound && folder != "" {
		// GitLab says so from 15.0 on. Or the commit is not there, or the project cannot
		// be seen any more.
		_, err := g.ask(ctx, question{op: opFiles, path: g.at("repository", "commits", commit)})
		return nil, err
	}
	if errors.Is(err, errMoved) {
		err = &Error{Op: opFiles, Class: Unavailable, Message: "the pages are not of one list"}
	}
	if err != nil {
		return nil, err
	}
	var all []Listed
	for _, n := range in {
		all = listed(all, n.Type, n.Mode, n.Path, n.ID)
	}
	return all, nil
}
