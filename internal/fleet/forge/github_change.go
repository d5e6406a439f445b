package forge

import (
	"context"
	"crypto/sha1"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/google/go-github/v84/github"

	"github.com/tailplane/tailplane/internal/fleet/forge/gitname"
	"github.com/tailplane/tailplane/internal/fleet/forge/place"
	"github.com/tailplane/tailplane/internal/fleet/forge/revision"
)

// CheckChanges finds out whether the credential may propose changes to the place,
// which is a repository. If it may not, the error is of class Forbidden.
func (g *GitHub) CheckChanges(ctx context.Context) (Identity, error) {
	const op = "check for changes"
	if err := g.isRepository(op); err != nil {
		return Identity{}, err
	}
	id := Identity{Kind: GitHubTokenKind}
	if g.app != nil {
		in, err := g.findInstallation(ctx)
		if err != nil {
			return g.identify(installation{}), err
		}
		id = g.identify(in)
		has := in.Permissions
		if has == nil {
			has = &github.InstallationPermissions{}
		}
		id.need("contents", has.GetContents(), "write")
		id.need("pull_requests", has.GetPullRequests(), "write")
		if len(id.Missing) > 0 {
			return id, &Error{Op: op, Class: Forbidden, Message: "the App lacks " + strings.Join(id.Missing, ", ")}
		}
	}
	// What a token may do is not told; that the repository is there for it is.
	r, err := get[github.Repository](ctx, g, question{op: op, path: g.place.Root()})
	if err == nil && !strings.EqualFold(r.GetFullName(), g.place.String()) {
		err = &Error{Op: op, Class: Conflict, Message: clean(fmt.Sprintf("%s is called %q now", g.place, r.GetFullName()))}
	}
	if err == nil && g.app == nil && r.Permissions != nil && !r.GetPermissions().GetPush() {
		id.Missing = []string{"push"}
		err = &Error{Op: op, Class: Forbidden, Message: "the token may not write to the repository"}
	}
	return id, err
}

func (g *GitHub) isRepository(op string) error {
	if g.place.Kind != place.Repository {
		return &Error{Op: op, Class: Invalid, Message: g.place.String() + " is no repository"}
	}
	return nil
}

// ReadFile reads a file at the head of a branch. That there is none is no error: its
// Version is empty.
func (g *GitHub) ReadFile(ctx context.Context, branch, path string) (File, error) {
	const op = "read a file"
	if err := g.isRepository(op); err != nil {
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
func (g *GitHub) head(ctx context.Context, op, branch string) (string, error) {
	q := question{op: op, path: g.place.Root() + "/git/ref/heads/" + branch}
	ref, err := get[github.Reference](ctx, g, q)
	if err == nil && (ref.GetRef() != "refs/heads/"+branch || ref.GetObject().GetType() != "commit" || !gitname.IsCommit(ref.GetObject().GetSHA())) {
		err = &Error{Op: op, Class: Unavailable, Status: http.StatusOK, Message: "the answer is no branch"}
	}
	return ref.GetObject().GetSHA(), err
}

func (g *GitHub) contents(path string) string {
	parts := strings.Split(path, "/")
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	return g.place.Root() + "/contents/" + strings.Join(parts, "/")
}

// fileAt reads a file at a commit, and proves by git's own sum that it is whole.
func (g *GitHub) fileAt(ctx context.Context, op, commit, path string) (File, error) {
	c, err := get[github.RepositoryContent](ctx, g, question{op: op, path: g.contents(path) + "?ref=" + commit})
	if ClassOf(err) == NotFound {
		// Or the commit is not there, or the repository cannot be seen any more.
		if _, err := g.ask(ctx, question{op: op, path: g.place.Root() + "/git/commits/" + commit}); err != nil {
			return File{}, err
		}
		return File{Commit: commit}, nil
	}
	if err != nil {
		return File{}, err
	}
	if c.GetType() != "file" || c.GetEncoding() != "base64" || c.Content == nil {
		return File{}, &Error{Op: op, Class: Invalid, Status: http.StatusOK, Message: "it is no file of up to 1 MB"}
	}
	text, err := base64.StdEncoding.DecodeString(strings.ReplaceAll(*c.Content, "\n", ""))
	if err != nil || blob(text) != c.GetSHA() {
		return File{}, &Error{Op: op, Class: Unavailable, Status: http.StatusOK, Message: "the file is not whole"}
	}
	return File{Content: text, Version: c.GetSHA(), Commit: commit}, nil
}

// blob is what git calls a content.
func blob(content []byte) string {
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00", len(content))
	h.Write(content)
	return hex.EncodeToString(h.Sum(nil))
}

// Propose makes a commit with one change on a branch of its own, and a pull request
// of it. Each step looks first whether it was done, so that after an answer that was
// lost the same is proposed again. A file that is not as it was when the change was
// made is a Conflict, and so is a request that was merged or closed.
func (g *GitHub) Propose(ctx context.Context, p Proposal) (Request, error) {
	const op = "propose a change"
	if err := g.isRepository(op); err != nil {
		return Request{}, err
	}
	if why := p.Wrong(); why != "" {
		return Request{}, &Error{Op: op, Class: Invalid, Message: why}
	}
	pull, err := g.pullOf(ctx, op, p)
	if err != nil {
		return Request{}, err
	}
	if err := g.commit(ctx, op, p); err != nil {
		return Request{}, err
	}
	if pull == nil {
		body := map[string]any{"title": p.Title, "head": p.Branch, "base": p.Base, "body": p.Body}
		made, err := get[github.PullRequest](ctx, g, question{op: op, method: http.MethodPost, path: g.place.Root() + "/pulls", body: body})
		if ClassOf(err) == Invalid {
			// Somebody was quicker with the same, or an answer was lost.
			if pull, found := g.pullOf(ctx, op, p); found == nil && pull != nil {
				return g.settle(ctx, op, p, pull)
			}
		}
		if err != nil {
			return Request{}, err
		}
		pull = &made
	}
	return g.settle(ctx, op, p, pull)
}

// settle gives a pull request its words and its labels.
func (g *GitHub) settle(ctx context.Context, op string, p Proposal, pull *github.PullRequest) (Request, error) {
	if pull.GetNumber() <= 0 {
		return Request{}, &Error{Op: op, Class: Unavailable, Status: http.StatusOK, Message: "the answer is no pull request"}
	}
	number := strconv.Itoa(pull.GetNumber())
	if pull.GetTitle() != p.Title || pull.GetBody() != p.Body {
		q := question{op: op, method: http.MethodPatch, path: g.place.Root() + "/pulls/" + number, body: map[string]any{"title": p.Title, "body": p.Body}}
		if _, err := g.ask(ctx, q); err != nil {
			return Request{}, err
		}
	}
	missing := slices.Clone(p.Labels)
	labels := g.place.Root() + "/issues/" + number + "/labels"
	for _, l := range pull.Labels {
		if at := slices.Index(missing, l.GetName()); at >= 0 {
			missing = slices.Delete(missing, at, at+1)
		} else if strings.HasPrefix(l.GetName(), revision.Prefix) {
			_, err := g.ask(ctx, question{op: op, method: http.MethodDelete, path: labels + "/" + url.PathEscape(l.GetName())})
			if err = gone(err); err != nil {
				return Request{}, err
			}
		}
	}
	if len(missing) > 0 {
		if _, err := g.ask(ctx, question{op: op, method: http.MethodPost, path: labels, body: map[string]any{"labels": missing}}); err != nil {
			return Request{}, err
		}
	}
	return g.Request(ctx, pull.GetNumber())
}

// pullOf finds the open pull request of a change; nil: there was none yet.
func (g *GitHub) pullOf(ctx context.Context, op string, p Proposal) (*github.PullRequest, error) {
	query := url.Values{"state": {"all"}, "head": {g.place.Owner + ":" + p.Branch}, "per_page": {"100"}}
	all, err := get[[]*github.PullRequest](ctx, g, question{op: op, path: g.place.Root() + "/pulls?" + query.Encode()})
	if err != nil {
		return nil, err
	}
	var candidates []revision.Candidate
	for _, pull := range all {
		candidates = append(candidates, revision.Candidate{Branch: pull.GetHead().GetRef(), Base: pull.GetBase().GetRef(), Own: strings.EqualFold(pull.GetHead().GetRepo().GetFullName(), g.place.String()), Open: pull.GetState() == "open"})
	}
	i, err := p.Which(op, candidates)
	if err != nil || i < 0 {
		return nil, err
	}
	return all[i], nil
}

// commit sees to it that the branch has the change.
func (g *GitHub) commit(ctx context.Context, op string, p Proposal) error {
	s, err := p.Begin(ctx, op, revision.Repository{Head: g.head, File: g.fileAt})
	if err != nil || s.Done {
		return err
	}
	if s.Fresh {
		q := question{op: op, method: http.MethodPost, path: g.place.Root() + "/git/refs", body: map[string]string{"ref": "refs/heads/" + p.Branch, "sha": s.At}}
		if _, err := g.ask(ctx, q); err != nil {
			return err
		}
	}
	// GitHub compares the blob with the branch's once more: of two at once one commits.
	body := map[string]any{"message": p.Message, "branch": p.Branch, "author": map[string]string{"name": p.Author.Name, "email": p.Author.Email}}
	method := http.MethodPut
	if s.Now.Version != "" {
		body["sha"] = s.Now.Version
	}
	if p.Content == nil {
		method = http.MethodDelete
	} else {
		body["content"] = base64.StdEncoding.EncodeToString(p.Content)
	}
	_, err = g.ask(ctx, question{op: op, method: method, path: g.contents(p.Path), body: body})
	return err
}
