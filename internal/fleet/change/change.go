// Package change implements the rules for changes of the fleet's configuration, which are made by
// pull request. It enforces that nobody approves their own change, and that only the approved
// commit is merged.
//
// The package is pure: it computes the content of a file after a change, the approvals that a
// change still needs, and whether a person may approve it. Other packages read and write files at a
// forge, and store changes.
package change

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// A Ref identifies an object of the configuration. Only one change at a time can be open for it.
type Ref struct {
	Kind string `json:"kind"` // RunnerPool, RunnerEnrollment or RunnerForge
	Name string `json:"name"`
}

func (r Ref) String() string { return r.Kind + " " + r.Name }

// A State is the progress of a change.
type State string

// The states. An approved change may be merged. A merged change is applied when the cluster has its
// content.
const (
	Open     State = "open"
	Approved State = "approved"
	Merging  State = "merging" // the approval is used up; the merge request to the forge is sent or about to be sent
	Merged   State = "merged"
	Applied  State = "applied"
	Closed   State = "closed"
)

// Over reports whether the state is final.
func (s State) Over() bool { return s == Applied || s == Closed }

// ApprovalLife is how long an approval is valid.
const ApprovalLife = 7 * 24 * time.Hour

// A Change is one change and its progress. It is stored as JSON.
type Change struct {
	ID      string `json:"id"` // a DNS label
	Ref     Ref    `json:"ref"`
	Org     string `json:"org,omitempty"` // owner; empty: the platform
	File    string `json:"file"`
	Edits   []Edit `json:"edits"` // applied one after the other to the current file
	Branch  string `json:"branch"`
	Number  int    `json:"number"` // of the pull or merge request
	URL     string `json:"url"`
	Base    string `json:"base"`    // commit that the change is based on
	Version string `json:"version"` // version of the file at Base
	Head    string `json:"head"`    // last commit of the change

	Title    string `json:"title"`
	Reason   string `json:"reason"`
	Risk     Risk   `json:"risk"`
	Diff     string `json:"diff"`
	DiffOf   string `json:"diffOf,omitempty"` // commit of Diff: the last one that the plane made
	Stale    bool   `json:"stale,omitempty"`  // the file has changed since Base
	Platform bool   `json:"platform"`         // a platform-admin must approve
	Proposer string `json:"proposer"`         // login
	// Authors lists all authors of the change, by all their names: logins here and at the forge,
	// and e-mail addresses of commits.
	Authors []string `json:"authors"`

	State     State      `json:"state"`
	OpenedAt  time.Time  `json:"openedAt"`
	Approvals []Approval `json:"approvals,omitempty"` // of Head
	MergedBy  string     `json:"mergedBy,omitempty"`
	MergedAt  *time.Time `json:"mergedAt,omitempty"`  // when the merge was first seen
	AppliedAt *time.Time `json:"appliedAt,omitempty"` // when the cluster was first seen to have it
	Checks    []Check    `json:"checks,omitempty"`
	Blocked   string     `json:"mergeBlocked,omitempty"` // why the forge refused to merge it
}

// An Approval covers exactly one commit.
type Approval struct {
	By   string    `json:"by"`             // login
	Node string    `json:"node,omitempty"` // stable ID of the device, from which the login's permissions are derived
	At   time.Time `json:"at"`
	Head string    `json:"head"`
}

// A Check is the result of an automated check of the head.
type Check struct {
	Name  string `json:"name"`
	State string `json:"state"` // as the forge reports it
	URL   string `json:"url,omitempty"`
}

// Errors of Approve and Merge.
var (
	ErrOwn         = errors.New("nobody approves a change that they wrote some of")
	ErrMoved       = errors.New("the change has another commit than the one that was looked at")
	ErrNotOpen     = errors.New("the change is not open any more")
	ErrNotApproved = errors.New("nobody who may has approved the change as it is now")
	ErrBlocked     = errors.New("the forge would not merge it")
)

// Opened returns a change that was just proposed.
func Opened(c Change, now time.Time) Change {
	c.State, c.OpenedAt, c.Approvals, c.MergedBy = Open, now.UTC(), nil, ""
	c.DiffOf = c.Head
	c.Authors = people(append(slices.Clone(c.Authors), c.Proposer)...)
	return c
}

// Amended returns the change with another commit, by a person who may not be the proposer. Both are
// authors then, and all approvals become void.
func (c Change) Amended(by string, with Edit, head string) Change {
	c.Edits, c.Head, c.DiffOf = append(slices.Clone(c.Edits), with), head, head
	c.State, c.Approvals = Open, nil
	c.Authors = people(append(slices.Clone(c.Authors), by)...)
	return c
}

// Beside returns the change if the merge would include more than the plane wrote. Its diff then
// belongs to no existing commit.
func (c Change) Beside() Change {
	c.DiffOf, c.Platform = "", true
	return c
}

// A Request is the forge's state of the pull or merge request.
type Request struct {
	Head    string
	Open    bool
	Merged  bool
	Authors []string // authors of its commits: logins, addresses, and those in trailers
	Checks  []Check
	Blocked string // why it cannot be merged; empty: it can, or the forge does not know
}

// Seen returns the change with the forge's current state. A commit from outside voids the
// approvals, and its authors cannot approve. It may concern objects of any owner, so a
// platform-admin must approve. The caller must pass a complete answer of the forge: Seen takes it
// as known.
func (c Change) Seen(r Request) Change {
	c.Authors = people(append(slices.Clone(c.Authors), r.Authors...)...)
	c.Checks, c.Blocked = slices.Clone(r.Checks), r.Blocked
	if r.Head != "" && r.Head != c.Head {
		c.Head, c.Approvals, c.Platform = r.Head, nil, true
		if c.State == Approved {
			c.State = Open
		}
	}
	c.Approvals = slices.DeleteFunc(slices.Clone(c.Approvals), func(a Approval) bool { return c.wrote(a.By) })
	switch {
	case c.State.Over() || c.State == Merged:
	case r.Merged:
		c.State = Merged
	case !r.Open:
		c.State = Closed
	case len(c.Approvals) == 0 && c.State == Approved:
		c.State = Open
	}
	return c
}

// Approve returns the change with a person's approval of the commit head. Repeating an approval
// only renews its time.
func (c Change) Approve(by, node, head string, now time.Time) (Change, error) {
	switch {
	case c.State != Open && c.State != Approved:
		return c, fmt.Errorf("%w: it is %s", ErrNotOpen, c.State)
	case c.wrote(by):
		return c, ErrOwn
	case head != c.Head:
		return c, fmt.Errorf("%w: it is at %s now", ErrMoved, short(c.Head))
	}
	c.Approvals = slices.DeleteFunc(slices.Clone(c.Approvals), func(a Approval) bool { return same(a.By, by) })
	c.Approvals = append(c.Approvals, Approval{By: by, Node: node, At: now.UTC(), Head: head})
	c.State = Approved
	return c, nil
}

// Merge returns the change to store before the caller lets the forge merge exactly Head. Its
// approvals are used up. The caller must store it only if the stored change has not been modified;
// then only one of two concurrent calls merges. may reports whether the approver's current role
// still allows the approval.
func (c Change) Merge(by, head string, may func(Approval) bool, now time.Time) (Change, error) {
	switch {
	case c.State != Open && c.State != Approved:
		return c, fmt.Errorf("%w: it is %s", ErrNotOpen, c.State)
	case head != c.Head:
		return c, fmt.Errorf("%w: it is at %s now", ErrMoved, short(c.Head))
	case c.Blocked != "":
		return c, fmt.Errorf("%w: %s", ErrBlocked, c.Blocked)
	case !slices.ContainsFunc(c.Approvals, func(a Approval) bool { return c.counts(a, now) && may(a) }):
		return c, ErrNotApproved
	}
	c.State, c.MergedBy, c.Approvals = Merging, by, nil
	return c, nil
}

// Refused returns the change after the forge refused the merge. It needs a new approval.
func (c Change) Refused(why string) Change {
	c.State, c.MergedBy, c.Blocked = Open, "", why
	return c
}

// counts reports whether an approval covers the current head and is recent enough.
func (c Change) counts(a Approval, now time.Time) bool {
	return a.Head == c.Head && now.Before(a.At.Add(ApprovalLife)) && !c.wrote(a.By)
}

// wrote reports whether a person is an author of the change.
func (c Change) wrote(login string) bool {
	return same(c.Proposer, login) || slices.ContainsFunc(c.Authors, func(a string) bool { return same(a, login) })
}

// same reports whether two names belong to the same person. Forges and tailnets ignore the case of
// letters.
func same(a, b string) bool { return a != "" && strings.EqualFold(a, b) }

// people returns the names, sorted and without duplicates.
func people(names ...string) []string {
	names = slices.DeleteFunc(slices.Clone(names), func(s string) bool { return s == "" })
	slices.SortFunc(names, func(a, b string) int { return strings.Compare(strings.ToLower(a), strings.ToLower(b)) })
	return slices.CompactFunc(names, same)
}

func short(commit string) string { return commit[:min(len(commit), 12)] }
