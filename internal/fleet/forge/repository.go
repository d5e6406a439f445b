package forge

import (
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/fleet/forge/gitname"
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

// checkProposal says what of a proposal cannot be.
func checkProposal(p Proposal) string {
	switch {
	case !gitname.IsBranch(p.Base) || strings.HasPrefix(p.Base, ownPrefix):
		return "there is no such branch to change"
	case !gitname.IsBranch(p.Branch) || !strings.HasPrefix(p.Branch, ownPrefix):
		return "a change has a branch of its own"
	case !gitname.IsPath(p.Path):
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
