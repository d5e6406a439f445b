package forge

import "github.com/tailplane/tailplane/internal/fleet/forge/revision"

// What changes of a repository are made of, see [revision].
type (
	// A File is a file of a repository, as it was at one commit of a branch.
	File = revision.File
	// A Person is an author, as git writes one.
	Person = revision.Person
	// A Proposal is a change of one file, as a pull or merge request.
	Proposal = revision.Proposal
	// A Request is a pull or merge request, as the forge has it now.
	Request = revision.Request
	// A Review is what somebody said of one commit at the forge.
	Review = revision.Review
	// A Check is what a program says of the head.
	Check = revision.Check
)
