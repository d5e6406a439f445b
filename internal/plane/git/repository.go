// Package git gives the operator plane access to the configuration repository at GitHub or GitLab. It keeps law 7: a missing response
// of a forge never counts as an answer.
package git

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tailplane/tailplane/internal/fleet/forge"
	"github.com/tailplane/tailplane/internal/fleet/gitops"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
)

// Config locates the repository.
type Config struct {
	Forge       string // github or gitlab
	URL, APIURL string
	CABundle    []byte            // PEM, in addition to the system's
	Repository  string            // owner/name, or GitLab's path of the project
	Branch      string            // the applied branch
	Credential  map[string][]byte `json:"-"` // the Secret's data
	// Logins maps tailnet logins to the other names that people have in commits. Case is ignored, as at forges and tailnets.
	Logins map[string][]string
}

// Open returns the repository. It sends no request yet. An error names the invalid setting.
func Open(c Config) (*Repository, error) {
	place := strings.TrimSuffix(c.URL, "/") + "/" + c.Repository
	var f forgeClient
	var err error
	switch c.Forge {
	case "github":
		f, err = forge.NewGitHub(forge.Config{URL: c.URL, APIURL: c.APIURL, CABundle: c.CABundle, ScopeURL: place, Credential: c.Credential})
	case "gitlab":
		f, err = forge.NewGitLab(forge.Config{URL: c.URL, APIURL: c.APIURL, CABundle: c.CABundle, ScopeURL: place, Credential: c.Credential})
	default:
		err = fmt.Errorf("%q is neither github nor gitlab", c.Forge)
	}
	if err != nil {
		return nil, err
	}
	return &Repository{forge: f, branch: c.Branch, logins: c.Logins}, nil
}

// forgeClient holds the methods that GitHub and GitLab share.
type forgeClient interface {
	ReadFile(ctx context.Context, branch, path string) (forge.File, error)
	Propose(ctx context.Context, p forge.Proposal) (forge.Request, error)
	Request(ctx context.Context, number int) (forge.Request, error)
	Touched(ctx context.Context, base, commit string) ([]string, error)
	Head(ctx context.Context, branch string) (commit string, err error)
	Files(ctx context.Context, commit, folder string, deep bool) ([]forge.TreeFile, error)
	Merge(ctx context.Context, number int, head string) error
	Withdraw(ctx context.Context, number int, comment string) error
}

// Repository is the configuration repository. Its errors are problems.
type Repository struct {
	forge  forgeClient
	branch string // the applied branch
	logins map[string][]string
	files  atomic.Pointer[fileList] // the last list
}

// fileList is the list of files for a pattern.
type fileList struct {
	pattern string
	files   plane.RepositoryFiles
}

var _ plane.Repository = (*Repository)(nil)

// ReadFile implements [plane.Repository].
func (r *Repository) ReadFile(ctx context.Context, branch, path string) (gitops.File, error) {
	f, err := r.forge.ReadFile(ctx, cmp.Or(branch, r.branch), path)
	return f, forgeError(err)
}

// Propose implements [plane.Repository].
func (r *Repository) Propose(ctx context.Context, p gitops.Proposal) (gitops.Request, error) {
	p.Base = r.branch
	return r.withLogins(r.forge.Propose(ctx, forge.Proposal(p)))
}

// PullRequest implements [plane.Repository].
func (r *Repository) PullRequest(ctx context.Context, number int) (gitops.Request, error) {
	return r.withLogins(r.forge.Request(ctx, number))
}

// ChangedFiles implements [plane.Repository].
func (r *Repository) ChangedFiles(ctx context.Context, commit string) ([]string, error) {
	files, err := r.forge.Touched(ctx, r.branch, commit)
	return files, forgeError(err)
}

// Files returns the files of the applied branch that match a pattern of [gitops.ManifestPath]. It lists them again only after a new commit. It
// returns problem.TooLarge if the forge's list is incomplete or too long.
func (r *Repository) Files(ctx context.Context, pattern string) (plane.RepositoryFiles, error) {
	head, err := r.forge.Head(ctx, r.branch)
	if err != nil {
		return plane.RepositoryFiles{}, forgeError(err)
	}
	if last := r.files.Load(); last != nil && last.pattern == pattern && last.files.Commit == head {
		return last.files, nil
	}
	folder, deep := gitops.PatternFolder(pattern)
	all, err := r.forge.Files(ctx, head, folder, deep)
	if forge.ClassOf(err) == forge.Invalid {
		return plane.RepositoryFiles{}, problem.New(problem.TooLarge, "The configuration repository: "+err.Error()+".", "Keep the objects in a separate folder, or all of them in one file (plane.gitops.path).")
	}
	if err != nil {
		return plane.RepositoryFiles{}, forgeError(err)
	}
	files, fits := plane.RepositoryFiles{Commit: head, Blobs: map[string]string{}}, gitops.PathMatcher(pattern)
	for _, f := range all {
		if fits(f.Path) {
			files.Blobs[f.Path] = f.Blob
		}
	}
	r.files.Store(&fileList{pattern, files})
	return files, nil
}

// Merge implements [plane.Repository].
func (r *Repository) Merge(ctx context.Context, number int, head string) error {
	return forgeError(r.forge.Merge(ctx, number, head))
}

// Close implements [plane.Repository].
func (r *Repository) Close(ctx context.Context, number int, comment string) error {
	return forgeError(r.forge.Withdraw(ctx, number, comment))
}

// withLogins adds the logins whose names at the forge are among the authors of a request.
func (r *Repository) withLogins(is gitops.Request, err error) (gitops.Request, error) {
	authors := is.Authors
	for login, names := range r.logins {
		if slices.ContainsFunc(names, func(name string) bool {
			return slices.ContainsFunc(authors, func(a string) bool { return strings.EqualFold(a, name) })
		}) {
			is.Authors = append(slices.Clone(is.Authors), login)
		}
	}
	return is, forgeError(err)
}

// forgeError converts a forge's error to a problem for callers of the plane.
func forgeError(err error) error {
	if err == nil {
		return nil
	}
	message := "The configuration repository: " + err.Error() + "."
	switch forge.ClassOf(err) {
	case forge.Conflict:
		return problem.New(problem.Conflict, message, "Check the current state of the change, or preview it again.")
	case forge.NotFound, forge.Invalid:
		return problem.New(problem.Conflict, message, "Check the pull request at the forge.")
	case forge.Refused, forge.Forbidden:
		return problem.New(problem.Unavailable, message, "The administrator of this server must renew its credential for the repository (plane.gitops).").WithRetryAfter(time.Minute)
	}
	wait := 10 * time.Second
	if e, ok := errors.AsType[*forge.Error](err); ok && e.RetryAfter > 0 {
		wait = e.RetryAfter
	}
	return problem.New(problem.Unavailable, message, "Try again later.").WithRetryAfter(wait)
}
