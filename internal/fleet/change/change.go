// Package change decides about changes of the fleet's configuration, which are
// made by pull request. It keeps the law that nobody approves what they wrote, and
// that what is merged is what was approved.
//
// All of it is pure: what a file says after a change, what a change still needs,
// whether somebody may approve it. Files are read and written at a forge, and
// changes are kept, by others.
package change

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// A Ref names an object of the configuration. One change at a time is open for it.
type Ref struct {
	Kind string `json:"kind"` // RunnerPool, RunnerEnrollment or RunnerForge
	Name string `json:"name"`
}

func (r Ref) String() string { return r.Kind + " " + r.Name }

// A State is how far a change is.
type State string

// The states. A change that is approved may be merged; a merged one is applied when
// the cluster has what it says.
const (
	Open     State = "open"
	Approved State = "approved"
	Merging  State = "merging" // its approval is used up; the forge has been, or is being, told
	Merged   State = "merged"
	Applied  State = "applied"
	Closed   State = "closed"
)

// Over reports whether nothing comes any more.
func (s State) Over() bool { return s == Applied || s == Closed }

// ApprovalLife is how long an approval is good for.
const ApprovalLife = 7 * 24 * time.Hour

// A Change is one change and what has become of it. It is kept as JSON.
type Change struct {
	ID      string `json:"id"` // a DNS label
	Ref     Ref    `json:"ref"`
	Org     string `json:"org,omitempty"` // whose it is; empty: the platform's
	File    string `json:"file"`
	Edits   []Edit `json:"edits"` // one after the other, of what the file says now
	Branch  string `json:"branch"`
	Number  int    `json:"number"` // of the pull or merge request
	URL     string `json:"url"`
	Base    string `json:"base"`    // the commit that it was made from
	Version string `json:"version"` // of the file then
	Head    string `json:"head"`    // its own last commit

	Title    string `json:"title"`
	Reason   string `json:"reason"`
	Risk     Risk   `json:"risk"`
	Diff     string `json:"diff"`
	DiffOf   string `json:"diffOf,omitempty"` // the commit that Diff is of: the last one that was made from here
	Stale    bool   `json:"stale,omitempty"`  // the file is another one by now than it was made from
	Platform bool   `json:"platform"`         // it takes an approval of those who run the platform
	Proposer string `json:"proposer"`         // login
	// Authors are all who wrote some of it, by any name that they have: logins here and
	// at the forge, e-mail addresses of commits.
	Authors []string `json:"authors"`

	State     State      `json:"state"`
	OpenedAt  time.Time  `json:"openedAt"`
	Approvals []Approval `json:"approvals,omitempty"` // of Head
	MergedBy  string     `json:"mergedBy,omitempty"`
	MergedAt  *time.Time `json:"mergedAt,omitempty"`  // when it was first seen merged
	AppliedAt *time.Time `json:"appliedAt,omitempty"` // when the cluster was first seen to have it
	Checks    []Check    `json:"checks,omitempty"`
	Blocked   string     `json:"mergeBlocked,omitempty"` // why the forge would not merge it
}

// An Approval is of exactly one commit.
type Approval struct {
	By   string    `json:"by"`             // login
	Node string    `json:"node,omitempty"` // the device, by its stable id: from where it is known what the login may
	At   time.Time `json:"at"`
	Head string    `json:"head"`
}

// A Check is what something that looks at pull requests says of the head.
type Check struct {
	Name  string `json:"name"`
	State string `json:"state"` // as the forge has it
	URL   string `json:"url,omitempty"`
}

// What keeps somebody from approving or merging.
var (
	ErrOwn         = errors.New("nobody approves a change that they wrote some of")
	ErrMoved       = errors.New("the change has another commit than the one that was looked at")
	ErrNotOpen     = errors.New("the change is not open any more")
	ErrNotApproved = errors.New("nobody who may has approved the change as it is now")
	ErrBlocked     = errors.New("the forge would not merge it")
)

// Opened is a change that was just proposed.
func Opened(c Change, now time.Time) Change {
	c.State, c.OpenedAt, c.Approvals, c.MergedBy = Open, now.UTC(), nil, ""
	c.DiffOf = c.Head
	c.Authors = people(append(slices.Clone(c.Authors), c.Proposer)...)
	return c
}

// Amended is the change with another commit of somebody's, who may be another one
// than proposed it: both wrote it, and what was approved is void.
func (c Change) Amended(by string, with Edit, head string) Change {
	c.Edits, c.Head, c.DiffOf = append(slices.Clone(c.Edits), with), head, head
	c.State, c.Approvals = Open, nil
	c.Authors = people(append(slices.Clone(c.Authors), by)...)
	return c
}

// Beside is the change when what would be merged has more in it than was written from
// here: its diff is of no commit that there is.
func (c Change) Beside() Change {
	c.DiffOf, c.Platform = "", true
	return c
}

// A Request is what the forge says of the pull or merge request.
type Request struct {
	Head    string
	Open    bool
	Merged  bool
	Authors []string // of its commits: logins, addresses, those of trailers
	Checks  []Check
	Blocked string // why it cannot be merged; empty: it can, or nobody knows
}

// Seen is the change as the forge has it now. A commit that did not come from here
// voids the approvals, and whoever wrote it cannot approve. Nobody here knows whose
// objects it is about: so those who run the platform have to approve it. Nothing that
// is unknown is taken for an end: the caller has an answer.
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

// Approve is the change with somebody's approval of the commit that they looked at. The
// same approval again changes nothing but its time.
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

// Merge is the change as it is to be kept before the forge is told to merge exactly
// Head: its approvals are used up. Whoever keeps it must do so only if nobody changed
// it meanwhile; then of two at once one merges. May says whether who gave an approval
// still may, as their role is now.
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

// Refused is the change after the forge did not merge it: it needs an approval again.
func (c Change) Refused(why string) Change {
	c.State, c.MergedBy, c.Blocked = Open, "", why
	return c
}

// counts reports whether an approval is of what the change is now, and recent enough.
func (c Change) counts(a Approval, now time.Time) bool {
	return a.Head == c.Head && now.Before(a.At.Add(ApprovalLife)) && !c.wrote(a.By)
}

// wrote reports whether somebody wrote some of it.
func (c Change) wrote(login string) bool {
	return same(c.Proposer, login) || slices.ContainsFunc(c.Authors, func(a string) bool { return same(a, login) })
}

// same reports whether two names are one person's. Forges and tailnets do not tell
// letters apart by case.
func same(a, b string) bool { return a != "" && strings.EqualFold(a, b) }

// people are names, each once, in order.
func people(names ...string) []string {
	names = slices.DeleteFunc(slices.Clone(names), func(s string) bool { return s == "" })
	slices.SortFunc(names, func(a, b string) int { return strings.Compare(strings.ToLower(a), strings.ToLower(b)) })
	return slices.CompactFunc(names, same)
}

func short(commit string) string { return commit[:min(len(commit), 12)] }
