// Package planegit is the repository of the fleet's configuration, at GitHub or GitLab,
// as the operator plane sees it. It keeps law 7: what a forge did not answer is never
// taken for an answer.
package planegit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tailplane/tailplane/internal/fleet/change"
	"github.com/tailplane/tailplane/internal/fleet/forge"
	"github.com/tailplane/tailplane/internal/plane/planechange"
	"github.com/tailplane/tailplane/internal/problem"
)

// Config is where the repository is.
type Config struct {
	Forge       string // github or gitlab
	URL, APIURL string
	CABundle    []byte            // PEM, beside the system's
	Repository  string            // owner/name, or GitLab's path of the project
	Branch      string            // that is applied
	Credential  map[string][]byte `json:"-"` // the Secret's data
	// Logins are the other names that people have in commits, by their login on the
	// tailnet. Forges and tailnets tell neither apart by case.
	Logins map[string][]string
}

// Open returns the repository. It asks nothing yet; an error says what of the
// configuration cannot be.
func Open(c Config) (*Repository, error) {
	place := strings.TrimSuffix(c.URL, "/") + "/" + c.Repository
	var f client
	var err error
	switch c.Forge {
	case "github":
		f, err = forge.NewGitHub(forge.GitHubConfig{URL: c.URL, APIURL: c.APIURL, CABundle: c.CABundle, Place: place, Credential: c.Credential})
	case "gitlab":
		f, err = forge.NewGitLab(forge.GitLabConfig{URL: c.URL, APIURL: c.APIURL, CABundle: c.CABundle, Place: place, Credential: c.Credential})
	default:
		err = fmt.Errorf("%q is neither github nor gitlab", c.Forge)
	}
	if err != nil {
		return nil, err
	}
	return &Repository{forge: f, branch: c.Branch, logins: c.Logins}, nil
}

// client is what GitHub and GitLab do alike.
type client interface {
	ReadFile(ctx context.Context, branch, path string) (forge.File, error)
	Propose(ctx context.Context, p forge.Proposal) (forge.Request, error)
	Request(ctx context.Context, number int) (forge.Request, error)
	Touched(ctx context.Context, base, commit string) ([]string, error)
	Head(ctx context.Context, branch string) (commit string, err error)
	Files(ctx context.Context, commit, folder string, deep bool) ([]forge.TreeFile, error)
	Merge(ctx context.Context, number int, head string) error
	Withdraw(ctx context.Context, number int, comment string) error
}

// A Repository is where the configuration is kept. Its errors are problems.
type Repository struct {
	forge  client
	branch string // that is applied
	logins map[string][]string
	listed atomic.Pointer[listing] // last
}

// A listing is what was listed of a pattern.
type listing struct {
	pattern string
	files   planechange.Files
}

var _ planechange.Repository = (*Repository)(nil)

// ReadFile implements [planechange.Repository].
func (r *Repository) ReadFile(ctx context.Context, branch, path string) (planechange.File, error) {
	if branch == "" {
		branch = r.branch
	}
	f, err := r.forge.ReadFile(ctx, branch, path)
	return planechange.File{Text: f.Content, Version: f.Version, Commit: f.Commit}, told(err)
}

// Propose implements [planechange.Repository].
func (r *Repository) Propose(ctx context.Context, p planechange.Proposal) (planechange.Request, error) {
	made, err := r.forge.Propose(ctx, forge.Proposal{Base: r.branch, Branch: p.Branch, Path: p.Path, Was: p.Was, Content: p.Text, Message: p.Message,
		Author: forge.Person{Name: p.Name, Email: p.Email}, Title: p.Title, Body: p.Body, Labels: []string{"tailplane/risk-" + p.Risk}})
	return r.requestOf(made), told(err)
}

// Request implements [planechange.Repository].
func (r *Repository) Request(ctx context.Context, number int) (planechange.Request, error) {
	is, err := r.forge.Request(ctx, number)
	return r.requestOf(is), told(err)
}

// Touched implements [planechange.Repository].
func (r *Repository) Touched(ctx context.Context, commit string) ([]string, error) {
	files, err := r.forge.Touched(ctx, r.branch, commit)
	return files, told(err)
}

// Files are the files of the branch that is applied that may be objects', by a pattern as
// [change.File] has it. They are listed anew when somebody has committed something.
// More than the forge tells of, or than are worth a look, are a problem.TooLarge.
func (r *Repository) Files(ctx context.Context, pattern string) (planechange.Files, error) {
	head, err := r.forge.Head(ctx, r.branch)
	if err != nil {
		return planechange.Files{}, told(err)
	}
	if last := r.listed.Load(); last != nil && last.pattern == pattern && last.files.Commit == head {
		return last.files, nil
	}
	folder, deep := change.Folder(pattern)
	all, err := r.forge.Files(ctx, head, folder, deep)
	if forge.ClassOf(err) == forge.Invalid {
		return planechange.Files{}, problem.New(problem.TooLarge, "The repository of the configuration: "+err.Error()+".", "Keep the objects in a folder of their own, or all of them in one file (plane.gitops.path).")
	}
	if err != nil {
		return planechange.Files{}, told(err)
	}
	files, fits := planechange.Files{Commit: head, Blobs: map[string]string{}}, change.Fits(pattern)
	for _, f := range all {
		if fits(f.Path) {
			files.Blobs[f.Path] = f.Blob
		}
	}
	r.listed.Store(&listing{pattern, files})
	return files, nil
}

// Merge implements [planechange.Repository].
func (r *Repository) Merge(ctx context.Context, number int, head string) error {
	return told(r.forge.Merge(ctx, number, head))
}

// Withdraw implements [planechange.Repository].
func (r *Repository) Withdraw(ctx context.Context, number int, comment string) error {
	return told(r.forge.Withdraw(ctx, number, comment))
}

func (r *Repository) requestOf(is forge.Request) planechange.Request {
	out := planechange.Request{Number: is.Number, URL: is.URL, Request: change.Request{Head: is.Head, Open: is.Open, Merged: is.Merged, Authors: r.known(is.Authors), Blocked: is.Blocked}}
	for _, c := range is.Checks {
		out.Checks = append(out.Checks, change.Check{Name: c.Name, State: c.State, URL: c.URL})
	}
	return out
}

// known are the names that a forge has for who wrote something, and the logins of those who have them.
func (r *Repository) known(authors []string) []string {
	all := slices.Clone(authors)
	for login, names := range r.logins {
		if slices.ContainsFunc(names, func(name string) bool {
			return slices.ContainsFunc(authors, func(a string) bool { return strings.EqualFold(a, name) })
		}) {
			all = append(all, login)
		}
	}
	return all
}

// told is a forge's error as callers of the plane are told it.
func told(err error) error {
	if err == nil {
		return nil
	}
	message := "The repository of the configuration: " + err.Error() + "."
	switch forge.ClassOf(err) {
	case forge.Conflict:
		return problem.New(problem.Conflict, message, "Look at the change, or preview it, as it is now.")
	case forge.NotFound, forge.Invalid:
		return problem.New(problem.Conflict, message, "Look at the pull request at the forge.")
	case forge.Refused, forge.Forbidden:
		return problem.New(problem.Unavailable, message, "Whoever runs the plane has to renew its credential for the repository (plane.gitops).").After(time.Minute)
	}
	wait := 10 * time.Second
	if e, ok := errors.AsType[*forge.Error](err); ok && e.RetryAfter > 0 {
		wait = e.RetryAfter
	}
	return problem.New(problem.Unavailable, message, "Try again in a while.").After(wait)
}
