// Package gitops implements the rules for changes of the fleet's configuration, which are made by
// pull request. It enforces that no author approves their own change, and that only the
// approved commit is merged.
//
// The package is pure: it computes the content of a file after a change, the approvals that a
// change still needs, and whether a person may approve it. Other packages read and write files at a
// forge, and store changes.
package gitops

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tailplane/tailplane/internal/util/sanitize"
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
	StateOpen     State = "open"
	StateApproved State = "approved"
	StateMerging  State = "merging" // the approval is used up; the merge request to the forge is sent or about to be sent
	StateMerged   State = "merged"
	StateApplied  State = "applied"
	StateClosed   State = "closed"
)

// Final reports whether the state is final.
func (s State) Final() bool { return s == StateApplied || s == StateClosed }

// ApprovalLifetime is how long an approval is valid.
const ApprovalLifetime = 7 * 24 * time.Hour

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
	ErrSelfApproval = errors.New("an author of a change may not approve it")
	ErrHeadChanged  = errors.New("the change's latest commit is not the reviewed commit")
	ErrNotOpen      = errors.New("the change is not open any more")
	ErrNotApproved  = errors.New("the current commit of the change has no valid approval")
	ErrBlocked      = errors.New("the forge blocks the merge")
)

// OpenChange returns a change that was just proposed.
func OpenChange(c Change, now time.Time) Change {
	c.State, c.OpenedAt, c.Approvals, c.MergedBy = StateOpen, now.UTC(), nil, ""
	c.DiffOf = c.Head
	c.Authors = uniqueLogins(append(slices.Clone(c.Authors), c.Proposer)...)
	return c
}

// Amend returns the change with another commit, by a person who may not be the proposer. Both are
// authors then, and all approvals become void.
func (c Change) Amend(by string, with Edit, head string) Change {
	c.Edits, c.Head, c.DiffOf = append(slices.Clone(c.Edits), with), head, head
	c.State, c.Approvals = StateOpen, nil
	c.Authors = uniqueLogins(append(slices.Clone(c.Authors), by)...)
	return c
}

// WithForeignCommits returns the change if the merge would include more than the plane wrote. Its diff then
// belongs to no existing commit.
func (c Change) WithForeignCommits() Change {
	c.DiffOf, c.Platform = "", true
	return c
}

// A Request is the forge's state of the pull or merge request.
type Request struct {
	Number       int
	URL          string
	Head         string // its last commit
	Open, Merged bool
	// Authors lists all names of all persons who wrote a part of it: logins, and the names and addresses of authors, committers and
	// co-authors.
	Authors     []string
	Reviews     []Review
	Checks      []Check
	ChecksKnown bool   // false: the credential may not read the checks
	Blocked     string // why it cannot be merged now; empty: it can, or the forge does not know
}

// A Review is a person's review of one commit at the forge.
type Review struct {
	By       string // login at the forge
	Approved bool   // false: changes requested, a comment, or a dismissed review
	Head     string
	At       time.Time
}

// A File is the content of a repository path.
type File struct {
	Content []byte
	// Version identifies the content that a later change is checked against: the git blob ID at GitHub, the last commit that
	// changed the file at GitLab. It is empty if the file does not exist.
	Version string
	Commit  string // the head of the branch when the file was read
}

// A Person is an author, as git records one.
type Person struct{ Name, Email string }

// A Proposal is a change of one file, as a pull or merge request. Proposing the same change again finds the existing request. Proposing
// another change for the same branch adds a commit to the existing request.
type Proposal struct {
	Base   string // target branch
	Branch string // source branch; it begins with tailplane/
	Path   string // of the file
	// Was is the Version of the file that the change is based on: on Branch if that exists, else on Base. Any other version there is a
	// conflict.
	Was     string
	Content []byte // nil: delete the file
	Message string // commit message, including trailers
	Author  Person // the committer is the owner of the credential
	Title   string
	Body    string
	Labels  []string // each begins with tailplane/; other labels with that prefix are removed
}

// Observe returns the change with the forge's current state. A commit from outside voids the
// approvals, and its authors cannot approve. It may concern objects of any owner, so a
// platform-admin must approve. The caller must pass a complete answer of the forge: Observe
// takes it as known.
func (c Change) Observe(r Request) Change {
	c.Authors = uniqueLogins(append(slices.Clone(c.Authors), r.Authors...)...)
	c.Checks, c.Blocked = slices.Clone(r.Checks), r.Blocked
	if r.Head != "" && r.Head != c.Head {
		c.Head, c.Approvals, c.Platform = r.Head, nil, true
		if c.State == StateApproved {
			c.State = StateOpen
		}
	}
	c.Approvals = slices.DeleteFunc(slices.Clone(c.Approvals), func(a Approval) bool { return c.isAuthor(a.By) })
	switch {
	case c.State.Final() || c.State == StateMerged:
	case r.Merged:
		c.State = StateMerged
	case !r.Open:
		c.State = StateClosed
	case len(c.Approvals) == 0 && c.State == StateApproved:
		c.State = StateOpen
	}
	return c
}

// Approve returns the change with a person's approval of the commit head. Repeating an approval
// only renews its time.
func (c Change) Approve(by, node, head string, now time.Time) (Change, error) {
	switch {
	case c.State != StateOpen && c.State != StateApproved:
		return c, fmt.Errorf("%w: it is %s", ErrNotOpen, c.State)
	case c.isAuthor(by):
		return c, ErrSelfApproval
	case head != c.Head:
		return c, fmt.Errorf("%w: it is at %s now", ErrHeadChanged, shortCommit(c.Head))
	}
	c.Approvals = slices.DeleteFunc(slices.Clone(c.Approvals), func(a Approval) bool { return sameLogin(a.By, by) })
	c.Approvals = append(c.Approvals, Approval{By: by, Node: node, At: now.UTC(), Head: head})
	c.State = StateApproved
	return c, nil
}

// Merge returns the change to store before the caller lets the forge merge exactly Head. Its
// approvals are used up. The caller must store it only if the stored change has not been modified;
// then only one of two concurrent calls merges. may reports whether the approver's current role
// still allows the approval.
func (c Change) Merge(by, head string, may func(Approval) bool, now time.Time) (Change, error) {
	switch {
	case c.State != StateOpen && c.State != StateApproved:
		return c, fmt.Errorf("%w: it is %s", ErrNotOpen, c.State)
	case head != c.Head:
		return c, fmt.Errorf("%w: it is at %s now", ErrHeadChanged, shortCommit(c.Head))
	case c.Blocked != "":
		return c, fmt.Errorf("%w: %s", ErrBlocked, c.Blocked)
	case !slices.ContainsFunc(c.Approvals, func(a Approval) bool { return c.isValidApproval(a, now) && may(a) }):
		return c, ErrNotApproved
	}
	c.State, c.MergedBy, c.Approvals = StateMerging, by, nil
	return c, nil
}

// MergeRefused returns the change after the forge refused the merge. It needs a new approval.
func (c Change) MergeRefused(why string) Change {
	c.State, c.MergedBy, c.Blocked = StateOpen, "", why
	return c
}

// isValidApproval reports whether an approval covers the current head and is recent enough.
func (c Change) isValidApproval(a Approval, now time.Time) bool {
	return a.Head == c.Head && now.Before(a.At.Add(ApprovalLifetime)) && !c.isAuthor(a.By)
}

// isAuthor reports whether a person is an author of the change.
func (c Change) isAuthor(login string) bool {
	return sameLogin(c.Proposer, login) || slices.ContainsFunc(c.Authors, func(a string) bool { return sameLogin(a, login) })
}

// sameLogin reports whether two names belong to the same person. Forges and tailnets ignore the case of
// letters.
func sameLogin(a, b string) bool { return a != "" && strings.EqualFold(a, b) }

// uniqueLogins returns the names, sorted and without duplicates.
func uniqueLogins(names ...string) []string {
	names = slices.DeleteFunc(slices.Clone(names), func(s string) bool { return s == "" })
	slices.SortFunc(names, func(a, b string) int { return strings.Compare(strings.ToLower(a), strings.ToLower(b)) })
	return slices.CompactFunc(names, sameLogin)
}

func shortCommit(commit string) string { return commit[:min(len(commit), 12)] }

// titleLimit is the maximum length of a title at GitHub and GitLab, in characters.
const titleLimit = 255

// NewID returns the name of a change. The same request of the same person gets the same ID, so a
// repeated request finds the existing change.
func NewID(login, key string) string {
	sum := sha256.Sum256([]byte(strings.ToLower(login) + "\x00" + key))
	return "c" + hex.EncodeToString(sum[:8])
}

// Branch returns the branch of a change's commits.
func Branch(id string) string { return "tailplane/" + id }

// Title returns a title on one line within the limit: the desired one, or one that names the changed
// object.
func Title(desired string, r Ref) string {
	t := cmp.Or(sanitize.Line(desired), "Change "+r.String())
	if utf8.RuneCountInString(t) > titleLimit {
		t = string([]rune(t)[:titleLimit-1]) + "…"
	}
	return t
}

// CommitMessage returns the commit message. It quotes people's text, so that only our trailers count as
// trailers.
func CommitMessage(c Change) string {
	return fmt.Sprintf("%s\n\n%s\n\nTailplane-Change: %s\n", Title(c.Title, c.Ref), blockQuote(c.Reason), c.ID)
}

// RequestBody returns the description of the pull or merge request. link is the URL of the change's page.
func RequestBody(c Change, link string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\nProposed by `%s` for %s. Risk: **%s**", blockQuote(c.Reason), inlineCode(c.Proposer), c.Ref, c.Risk.Level)
	if len(c.Risk.Why) > 0 {
		fmt.Fprintf(&b, " (%s)", strings.Join(c.Risk.Why, ", "))
	}
	b.WriteString(".\n")
	if link != "" {
		fmt.Fprintf(&b, "\n[Details](%s): checks, approvals, and whether it is applied.\n", link)
	}
	fmt.Fprintf(&b, "\nTailplane-Change: %s\n", c.ID)
	return b.String()
}

// ClosingComment returns the closing comment of a pull or merge request: what was done, by whom and why.
func ClosingComment(done, by, reason string) string {
	return fmt.Sprintf("%s by `%s`:\n\n%s\n", done, inlineCode(by), blockQuote(reason))
}

// blockQuote quotes a text in Markdown. Git does not read a quoted line as a trailer.
func blockQuote(s string) string {
	var lines []string
	for l := range strings.Lines(s) {
		lines = append(lines, strings.TrimRight("> "+strings.ReplaceAll(sanitize.Line(l), "@", "@\u200b"), " ")) // avoid mentions
	}
	return strings.Join(lines, "\n")
}

// inlineCode prepares a text for use between back quotes.
func inlineCode(s string) string { return strings.ReplaceAll(sanitize.Line(s), "`", "'") }

// A Risk says how carefully a change needs to be reviewed, and why.
type Risk struct {
	Level string   `json:"level"` // low, medium or high
	Why   []string `json:"why,omitempty"`
}

// riskFields lists the fields that affect isolation, permissions or capacity.
var riskFields = []struct{ field, level, why string }{
	{
		"isolation",
		"high",
		"isolation",
	}, {"containerMode", "high", "container mode"}, {"template", "high", "pod template"}, {"dedicatedTo", "high", "owner of the pool"},
	{
		"credentials",
		"high",
		"credential",
	}, {"network", "high", "network"}, {"owners", "high", "owners"}, {"members", "high", "members"}, {"placement", "high", "nodes"},
	{
		"configURL",
		"high",
		"URL at the forge",
	}, {"url", "high", "forge"}, {"apiURL", "high", "forge"}, {"caBundle", "high", "CA bundle of the forge"},
	{
		"adopt",
		"high",
		"adoption",
	}, {"approval", "high", "approval"}, {"pools", "medium", "pools"}, {"scaling", "medium", "capacity"}, {"quota", "medium", "quota"},
	{"gitlab", "medium", "managers"}, {"image", "medium", "image"}, {"runsOn", "medium", "labels"},
}

// AssessRisk returns the risk of a change of a spec from old to is. Nil means that the object is created
// or deleted.
func AssessRisk(old, is map[string]any) Risk {
	r := Risk{Level: "low"}
	note := func(level, why string) {
		if !slices.Contains(r.Why, why) {
			r.Why = append(r.Why, why)
		}
		if level == "high" || r.Level == "low" {
			r.Level = level
		}
	}
	switch {
	case old == nil:
		note("medium", "new object")
	case is == nil:
		note("high", "deletion")
		return r
	}
	for _, x := range riskFields {
		if old != nil && !reflect.DeepEqual(old[x.field], is[x.field]) {
			note(x.level, x.why)
		}
	}
	return r
}

// ownerFields lists the fields that an organisation may change itself, by kind: in its enrollment, and in a
// pool that is dedicated to it. All other fields affect others, so a platform-admin must approve.
var ownerFields = map[string][]string{
	"RunnerEnrollment": {"owners", "members"},
	"RunnerPool":       {"runsOn", "image", "resources"},
}

// Owner returns the owner of an object whose spec changes from old to is: the organisation, or ""
// for the platform. Nil means that the object does not exist. platform reports whether a
// platform-admin must approve.
func Owner(r Ref, old, is map[string]any) (org string, platform bool) {
	switch r.Kind {
	case "RunnerEnrollment":
		org = r.Name
	case "RunnerPool":
		before, _ := old["dedicatedTo"].(string)
		after, _ := is["dedicatedTo"].(string)
		if before == after || old == nil {
			org = after
		}
	}
	if org == "" || old == nil || is == nil {
		return org, true
	}
	for k := range maps.Keys(MergePatch(old, is)) {
		if !reflect.DeepEqual(old[k], is[k]) && !slices.Contains(ownerFields[r.Kind], k) {
			return org, true
		}
	}
	return org, false
}

// ContainsSpec reports whether the live object contains all values of spec. It may contain more, such as
// defaults.
func ContainsSpec(spec, live any) bool {
	switch spec := spec.(type) {
	case map[string]any:
		l, ok := live.(map[string]any)
		for k, v := range spec {
			ok = ok && ContainsSpec(v, l[k])
		}
		return ok
	case []any:
		l, ok := live.([]any)
		ok = ok && len(l) == len(spec)
		for i := 0; ok && i < len(spec); i++ {
			ok = ContainsSpec(spec[i], l[i])
		}
		return ok
	}
	return fmt.Sprint(spec) == fmt.Sprint(live) // the two sides may use different number types
}
