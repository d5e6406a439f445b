package forge

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/fleet/gitops"
)

// A change on its way between the plane and a forge has the types of package gitops.
type (
	File    = gitops.File
	Person  = gitops.Person
	Request = gitops.Request
	Review  = gitops.Review
	Check   = gitops.Check
)

// A Proposal is a [gitops.Proposal] that a client checks and sends.
type Proposal gitops.Proposal

// ownPrefix is the prefix of the branches and labels that this client may change.
const ownPrefix = "tailplane/"

// invalidReason returns the reason why a proposal is not valid. It is empty if the proposal is valid.
func (p Proposal) invalidReason() string {
	switch {
	case !isBranch(p.Base) || strings.HasPrefix(p.Base, ownPrefix):
		return "there is no such branch to change"
	case !isBranch(p.Branch) || !strings.HasPrefix(p.Branch, ownPrefix):
		return "a change needs a branch with Tailplane's prefix"
	case !isPath(p.Path):
		return "the file path is not valid"
	case p.Content == nil && p.Was == "":
		return "a file that does not exist cannot be deleted"
	case p.Message == "" || p.Title == "" || p.Author.Name == "" || p.Author.Email == "":
		return "a change needs a message, a title and an author"
	case slices.ContainsFunc(p.Labels, func(l string) bool { return !strings.HasPrefix(l, ownPrefix) || strings.Contains(l, ",") }):
		return "a label of a change must begin with " + ownPrefix
	}
	return ""
}

// An openRequest is the part of a request that decides whether it belongs to a proposal.
type openRequest struct {
	Branch, Base string
	Own, Open    bool // Own: the branch is in the repository itself, not in a fork
}

// findRequest returns the index of the open request of the proposal, or -1 if there is none yet. A merged
// or closed request is a Conflict; it is not opened again.
func (p Proposal) findRequest(op string, all []openRequest) (int, error) {
	over := false
	for i, c := range all {
		switch {
		case c.Branch != p.Branch || !c.Own:
		case !c.Open:
			over = true
		case c.Base != p.Base:
			return -1, &Error{Op: op, Class: Conflict, Message: "the change is open for another branch"}
		default:
			return i, nil
		}
	}
	if over {
		return -1, &Error{Op: op, Class: Conflict, Message: "the change was merged or closed"}
	}
	return -1, nil
}

// A repository is the repository of a [GitHub] or a [GitLab].
type repository interface {
	checkRepository(op string) error // an error if the client has no repository
	head(ctx context.Context, op, branch string) (commit string, err error)
	fileAt(ctx context.Context, op, commit, path string) (File, error)
}

// checkInput returns an error of class Invalid unless the client has a repository and the input of an operation is valid.
func checkInput(op string, r repository, valid bool, why string) error {
	err := r.checkRepository(op)
	if err == nil && !valid {
		err = &Error{Op: op, Class: Invalid, Message: why}
	}
	return err
}

func readFile(ctx context.Context, r repository, branch, path string) (File, error) {
	const op = "read a file"
	if err := checkInput(op, r, isBranch(branch) && isPath(path), redact(fmt.Sprintf("%q on %q is not a file", path, branch))); err != nil {
		return File{}, err
	}
	head, err := r.head(ctx, op, branch)
	if err != nil {
		return File{}, err
	}
	return r.fileAt(ctx, op, head, path)
}

// readHead returns the last commit of a branch for a listing.
func readHead(ctx context.Context, r repository, branch string) (string, error) {
	if err := checkInput(listOp, r, isBranch(branch), "there is no such branch"); err != nil {
		return "", err
	}
	return r.head(ctx, listOp, branch)
}

// A base is the base for the commit of a proposal.
type base struct {
	At    string // commit: the head of the proposal's branch or, if Fresh, of its base
	Fresh bool   // the branch does not exist yet
	Done  bool   // the branch already has the change
	Now   File
}

// findBase finds the base for the commit of a proposal. It returns a Conflict if the file is not the
// version that the change is based on.
func (p Proposal) findBase(ctx context.Context, op string, r repository) (s base, err error) {
	s.At, err = r.head(ctx, op, p.Branch)
	if s.Fresh = ClassOf(err) == NotFound; s.Fresh {
		s.At, err = r.head(ctx, op, p.Base)
	}
	if err != nil {
		return s, err
	}
	if s.Now, err = r.fileAt(ctx, op, s.At, p.Path); err != nil {
		return s, err
	}
	s.Done = p.matches(s.Now)
	switch {
	case s.Done && s.Fresh:
		return s, &Error{Op: op, Class: Conflict, Message: redact(fmt.Sprintf("%s already has this content on %s", p.Path, p.Base))}
	case !s.Done && s.Now.Version != p.Was:
		return s, p.conflict(op)
	}
	return s, nil
}

// matches reports whether a file already has the proposed content.
func (p Proposal) matches(f File) bool {
	if p.Content == nil {
		return f.Version == ""
	}
	return f.Version != "" && string(f.Content) == string(p.Content)
}

// conflict returns the error for a file that differs from the base of the proposal.
func (p Proposal) conflict(op string) error {
	return &Error{Op: op, Class: Conflict, Message: redact(p.Path + " has changed since")}
}

// sortedPaths returns the non-empty paths, sorted and without duplicates.
func sortedPaths(all []string) []string {
	all = slices.DeleteFunc(all, func(p string) bool { return p == "" })
	slices.Sort(all)
	return slices.Compact(all)
}

const plainChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/-"

// isBranch reports whether a text is a valid branch name. It accepts only plain names, fewer than
// git does.
func isBranch(s string) bool {
	return len(s) <= 200 && strings.Trim(s, plainChars) == "" && isPath(s) &&
		!strings.HasPrefix(s, "-") && !strings.Contains(s, "..") && !strings.HasSuffix(s, ".") && !strings.HasSuffix(s, ".lock")
}

// isPath reports whether a text is a valid path of a file in a repository. It refuses paths that
// lead out of the repository, into git's own directory or into a forge's directory.
func isPath(s string) bool {
	if s == "" || len(s) > 1000 || strings.ContainsAny(s, "\\\x00\r\n") {
		return false
	}
	for i, part := range strings.Split(s, "/") {
		switch strings.ToLower(part) {
		case "", ".", "..", ".git":
			return false
		case ".github", ".gitlab", ".gitlab-ci.yml":
			if i == 0 {
				return false // forges run the files in it
			}
		}
	}
	return true
}

// isCommit reports whether a text is a full commit ID.
func isCommit(s string) bool {
	return len(s) >= 40 && len(s) <= 64 && strings.Trim(s, "0123456789abcdef") == ""
}

// coAuthors returns the names and addresses in the Co-authored-by trailers of a commit message.
func coAuthors(message string) (out []string) {
	for l := range strings.Lines(message) {
		key, owner, ok := strings.Cut(strings.TrimSpace(l), ":")
		if !ok || !strings.EqualFold(strings.TrimSpace(key), "Co-authored-by") {
			continue
		}
		name, address, _ := strings.Cut(owner, "<")
		address, _, _ = strings.Cut(address, ">")
		for _, s := range []string{strings.TrimSpace(name), strings.TrimSpace(address)} {
			if s != "" {
				out = append(out, s)
			}
		}
	}
	return out
}
