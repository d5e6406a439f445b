package forge

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// A File is a file of a repository, as it was at one commit of a branch.
type File struct {
	Content []byte
	// Version is what a later change is checked against: git's blob at GitHub, the
	// last commit that changed the file at GitLab. Empty: there is no such file.
	Version string
	Commit  string // the branch's head when it was read
}

// A Person is an author, as git writes one.
type Person struct{ Name, Email string }

// A Proposal is a change of one file, as a pull or merge request. Proposing the same
// again finds what was made; proposing something else for the same branch is another
// commit in the same request.
type Proposal struct {
	Base   string // the branch that it is for
	Branch string // its own; it begins with tailplane/
	Path   string // of the file
	// Was is the Version of the file that the change was made from: on Branch if that
	// is there already, else on Base. Anything else there now is a Conflict.
	Was     string
	Content []byte // nil: the file goes
	Message string // of the commit, trailers included
	Author  Person // the committer is whom the credential is
	Title   string
	Body    string
	Labels  []string // each begins with tailplane/; others of that beginning are taken away
}

// A Request is a pull or merge request, as the forge has it now.
type Request struct {
	Number       int
	URL          string
	Head         string // its last commit
	Open, Merged bool
	// Authors are all names of all who wrote some of it: logins, and the addresses of
	// authors, committers and co-authors.
	Authors []string
	Reviews []Review
	Checks  []Check
	// ChecksKnown is false where the credential may not read them.
	ChecksKnown bool
	Blocked     string // why it cannot be merged as it is; empty: it can, or the forge does not know
}

// A Review is what somebody said of one commit at the forge.
type Review struct {
	By       string // login at the forge
	Approved bool   // else: changes are asked for, or it is a remark, or was dismissed
	Head     string
	At       time.Time
}

// A Check is what a program says of the head.
type Check struct{ Name, State, URL string }

// ownPrefix is before the names of branches and labels that are ours to change.
const ownPrefix = "tailplane/"

// wrong says what of a proposal cannot be; empty: nothing.
func (p Proposal) wrong() string {
	switch {
	case !isBranch(p.Base) || strings.HasPrefix(p.Base, ownPrefix):
		return "there is no such branch to change"
	case !isBranch(p.Branch) || !strings.HasPrefix(p.Branch, ownPrefix):
		return "a change has a branch of its own"
	case !isPath(p.Path):
		return "that is no path of a file"
	case p.Content == nil && p.Was == "":
		return "what is not there cannot go"
	case p.Message == "" || p.Title == "" || p.Author.Name == "" || p.Author.Email == "":
		return "a change has a message, a title and an author"
	}
	for _, l := range p.Labels {
		if !strings.HasPrefix(l, ownPrefix) || strings.ContainsAny(l, ",") {
			return "a label of a change begins with " + ownPrefix
		}
	}
	return ""
}

// A candidate is what decides whether a request is a proposal's.
type candidate struct {
	Branch, Base string
	Own, Open    bool // Own: the branch is of the repository itself, and not of a fork
}

// which of all requests is the proposal's; -1: there was none yet. One that is over is
// not opened again.
func (p Proposal) which(op string, all []candidate) (int, error) {
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

// A repositoryReader is what of a forge's is read, in the same way at each.
type repositoryReader struct {
	Head func(ctx context.Context, op, branch string) (commit string, err error)
	File func(ctx context.Context, op, commit, path string) (File, error)
}

// A start is what the commit of a proposal begins from.
type start struct {
	At    string // a commit: the head of the proposal's branch or, while fresh, of its base
	Fresh bool   // there is no such branch yet
	Done  bool   // the branch has the change already
	Now   File
}

// begin finds out from what the commit of a proposal begins. That the file is not what
// the change was made from is a Conflict.
func (p Proposal) begin(ctx context.Context, op string, r repositoryReader) (s start, err error) {
	s.At, err = r.Head(ctx, op, p.Branch)
	if s.Fresh = ClassOf(err) == NotFound; s.Fresh {
		s.At, err = r.Head(ctx, op, p.Base)
	}
	if err != nil {
		return s, err
	}
	if s.Now, err = r.File(ctx, op, s.At, p.Path); err != nil {
		return s, err
	}
	s.Done = p.is(s.Now)
	switch {
	case s.Done && s.Fresh:
		return s, &Error{Op: op, Class: Conflict, Message: clean(fmt.Sprintf("%s is so already on %s", p.Path, p.Base))}
	case !s.Done && s.Now.Version != p.Was:
		return s, p.changed(op)
	}
	return s, nil
}

// is says whether a file is what the proposal makes of it.
func (p Proposal) is(f File) bool {
	if p.Content == nil {
		return f.Version == ""
	}
	return f.Version != "" && string(f.Content) == string(p.Content)
}

// changed is the error of a file that is not what the proposal was made from.
func (p Proposal) changed(op string) error {
	return &Error{Op: op, Class: Conflict, Message: clean(p.Path + " has changed since")}
}

// sortedPaths are those that there are, each once, in order.
func sortedPaths(all []string) []string {
	all = slices.DeleteFunc(all, func(p string) bool { return p == "" })
	slices.Sort(all)
	return slices.Compact(all)
}
