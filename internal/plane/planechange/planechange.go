// Package planechange lets people change the fleet's configuration by pull request:
// they see what a change would do, propose it, approve what others proposed, and
// merge it. It keeps the law that the plane writes no configuration itself: what is
// merged comes into the cluster by whoever applies the repository.
package planechange

import (
	"context"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/fleet/change"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
)

// A Repository is where the configuration is kept. Its errors are problems.
type Repository interface {
	// ReadFile returns a file as it is at the head of a branch; "" is the branch that is
	// applied.
	ReadFile(ctx context.Context, branch, path string) (File, error)
	// Propose makes a branch with one commit and a request to merge it, or adds a commit
	// to those that are there. It is a problem.Conflict if the file is another one by now.
	Propose(ctx context.Context, p Proposal) (Request, error)
	// Request says what has become of it.
	Request(ctx context.Context, number int) (Request, error)
	// Touched are the files that merging a commit would change, whoever wrote it.
	Touched(ctx context.Context, commit string) ([]string, error)
	// Merge merges exactly head, or is a problem.Conflict.
	Merge(ctx context.Context, number int, head string) error
	// Withdraw closes a request that was not merged, and says why in a comment.
	Withdraw(ctx context.Context, number int, comment string) error
}

// A File is what a repository has under a path.
type File struct {
	Text    []byte
	Version string // of the file; empty: there is none
	Commit  string // the head of the branch
}

// Files are those of a repository that may be objects', as they were at one commit.
type Files struct {
	Commit string
	Blobs  map[string]string // path to what git calls the content
}

// A Proposal is one file that changes.
type Proposal struct {
	Branch, Path string
	Was          string // the Version of the file on Branch, or, if that is not there, on the one that is applied
	Text         []byte // nil: it goes
	Message      string
	Name, Email  string // of the author
	Title, Body  string
	Risk         string // low, medium or high
}

// A Request is a pull or merge request.
type Request struct {
	Number int
	URL    string
	change.Request
}

// A Book says where objects are in the repository, and reads and edits its files. Its
// errors are those of the package change.
type Book interface {
	File(r change.Ref) (string, error)
	// Spec is what a file says of an object, and whether it says anything.
	Spec(file []byte, r change.Ref) (spec map[string]any, there bool, err error)
	// Apply is the file after edits, one after the other.
	Apply(file []byte, r change.Ref, edits ...change.Edit) ([]byte, error)
	// Note is why the API server cannot be asked what it would make of an object; empty:
	// it can.
	Note() string
}

// A Store keeps changes, for all replicas.
type Store interface {
	// Get returns a change; a problem.NotFound if there is none.
	Get(ctx context.Context, id string) (Kept, error)
	// Create keeps a new one, or returns the one that is there.
	Create(ctx context.Context, c change.Change) (Kept, error)
	// Save keeps it if nobody changed it since it was read; else a problem.Conflict.
	Save(ctx context.Context, k Kept) (Kept, error)
}

// Kept is a change, and when of its keeping it is.
type Kept struct {
	change.Change
	At string // as the store has it: which of its versions
}

// A Desk answers what people ask about changes. Without a Repository nothing can be
// changed, and every operation but the lists says so.
type Desk struct {
	Plane      *plane.Desk
	Repository Repository
	Store      Store
	Book       Book                   // how objects are kept in the repository
	Link       func(id string) string // of a change's page
	// Try asks the API server whether it would take an object, in the name of the plane
	// and without a change; a spec that is nil goes. A problem says why not.
	Try func(ctx context.Context, r change.Ref, spec map[string]any) error
	// Breaks, optional, says which of the fleet's rules between objects would be broken.
	Breaks func(ctx context.Context, r change.Ref, spec map[string]any) ([]Rule, error)
	// May says whether who gave an approval still may, as the policy is now.
	May func(ctx context.Context, a change.Approval, org string, v access.Verb) bool
}

// ready refuses where no repository is set.
func (d *Desk) ready() error {
	if d.Repository == nil {
		return problem.New(problem.Unavailable, "No repository is set for changes of the configuration.", "Set plane.gitops, or change the objects where you keep them.")
	}
	return nil
}

// approves is the verb that an approval of a change takes.
func approves(platform bool) access.Verb {
	if platform {
		return access.EnrollmentApprove
	}
	return access.ConfigApprove
}

// A Change is a change as people see it.
type Change struct {
	ID        string     `json:"id"`
	OrgName   string     `json:"org" doc:"whose it is; empty: the platform's"`
	Kind      string     `json:"kind"`
	Name      string     `json:"name"`
	File      string     `json:"file"`
	Number    int        `json:"number"`
	URL       string     `json:"url"`
	Branch    string     `json:"branch"`
	Base      string     `json:"base"`
	Head      string     `json:"head" doc:"the commit that an approval or a merge is about"`
	State     string     `json:"state" enum:"open,approved,merging,merged,applied,closed"`
	Proposer  string     `json:"proposer"`
	Title     string     `json:"title"`
	Reason    string     `json:"reason"`
	Risk      Risk       `json:"risk"`
	Platform  bool       `json:"platform" doc:"those who run the platform have to approve it"`
	Diff      string     `json:"diff" doc:"of the real file, as a unified diff"`
	DiffOf    string     `json:"diffOf" doc:"the commit that the diff is of; if it is not head, somebody has pushed at the forge, and only the pull request shows what is there now"`
	Stale     bool       `json:"stale" doc:"the file is another one by now than the change was made from"`
	Checks    []Check    `json:"checks"`
	Approvals []Approval `json:"approvals"`
	Blocked   string     `json:"mergeBlocked" doc:"why the forge would not merge it; empty: nothing is known against it"`
	MergedBy  string     `json:"mergedBy" doc:"who had it merged; empty: nobody from here"`
	OpenedAt  time.Time  `json:"openedAt"`
	MergedAt  *time.Time `json:"mergedAt" doc:"when it was first seen merged; null: it is not, or nobody kept when"`
	AppliedAt *time.Time `json:"appliedAt" doc:"when the cluster was first seen to have it; null: it has not, or nobody kept when"`

	Actions    *Actions  `json:"actions,omitempty"`
	ObservedAt time.Time `json:"observedAt"`

	kept Kept
}

// A Risk is how much a change deserves a second look, and for what.
type Risk struct {
	Level string   `json:"level" enum:"low,medium,high"`
	Why   []string `json:"why"`
}

// A Check is what something that looks at pull requests says.
type Check struct {
	Name  string `json:"name"`
	State string `json:"state"`
	URL   string `json:"url"`
}

// An Approval is of exactly one commit.
type Approval struct {
	By   string    `json:"by"`
	At   time.Time `json:"at"`
	Head string    `json:"head"`
}

// Actions are what the caller may do with a change.
type Actions struct {
	Approve plane.Action `json:"approve"`
	Merge   plane.Action `json:"merge"`
	Close   plane.Action `json:"close"`
}

// Of is a change that is kept, as the Board has it.
func Of(k Kept, now time.Time) Change {
	c := k.Change
	o := Change{ID: c.ID, OrgName: c.Org, Kind: c.Ref.Kind, Name: c.Ref.Name, File: c.File, Number: c.Number, URL: c.URL, Branch: c.Branch, Base: c.Base, Head: c.Head,
		State: string(c.State), Proposer: c.Proposer, Title: c.Title, Reason: c.Reason, Risk: Risk{c.Risk.Level, append([]string{}, c.Risk.Why...)}, Platform: c.Platform, Diff: c.Diff, DiffOf: c.DiffOf, Stale: c.Stale, MergedBy: c.MergedBy,
		Checks: []Check{}, Approvals: []Approval{}, Blocked: c.Blocked, OpenedAt: c.OpenedAt, MergedAt: c.MergedAt, AppliedAt: c.AppliedAt, ObservedAt: now, kept: k}
	for _, x := range c.Checks {
		o.Checks = append(o.Checks, Check{x.Name, x.State, x.URL})
	}
	for _, x := range c.Approvals {
		o.Approvals = append(o.Approvals, Approval{x.By, x.At, x.Head})
	}
	return o
}

// Key returns the id.
func (o Change) Key() string { return o.ID }

// Org returns whose it is.
func (o Change) Org() string { return o.OrgName }

// Observed implements [plane.Object].
func (o Change) Observed() time.Time { return o.ObservedAt }

// At implements [plane.Object].
func (o Change) At(t time.Time) plane.Object { o.ObservedAt = t; return o }

// Settled implements [plane.Settled]: what was merged, or given up, is open no more.
func (o Change) Settled() bool {
	return o.State != string(change.Open) && o.State != string(change.Approved) && o.State != string(change.Merging)
}

// Stands implements [plane.Standing].
func (o Change) Stands() string { return o.State }

// Trouble implements [plane.Standing].
func (o Change) Trouble() (plane.Severity, string, string) {
	if o.Blocked != "" && (o.State == string(change.Open) || o.State == string(change.Approved)) {
		return plane.Warning, "MergeBlocked", o.Blocked
	}
	return "", "", ""
}

// For implements [plane.Personal]: it says what the caller may do.
func (o Change) For(v plane.Viewer) plane.Object {
	var a Actions
	verb := approves(o.Platform)
	open := o.State == string(change.Open) || o.State == string(change.Approved)
	_, own := o.kept.Approve(v.Caller().Identity(), "", o.Head, o.OpenedAt)
	switch {
	case !open:
		a.Approve.Why, a.Merge.Why, a.Close.Why = "It is "+o.State+".", "It is "+o.State+".", "It is "+o.State+"."
		o.Actions = &a
		return o
	case !v.In(o.OrgName, verb):
		a.Approve.Why = "Your role does not allow to approve it."
	case own != nil:
		a.Approve.Why = "You wrote some of it."
	default:
		a.Approve.Allowed = true
	}
	switch {
	case !v.In(o.OrgName, access.ConfigApprove):
		a.Merge.Why = "Your role does not allow to merge it."
	case o.State != string(change.Approved):
		a.Merge.Why = "Nobody has approved it as it is."
	case o.Blocked != "":
		a.Merge.Why = "The forge would not merge it: " + o.Blocked
	default:
		a.Merge.Allowed = true
	}
	if a.Close.Allowed = v.In(o.OrgName, access.ConfigApprove) || o.Proposer == v.Caller().Identity(); !a.Close.Allowed {
		a.Close.Why = "It is not yours."
	}
	o.Actions = &a
	return o
}

// save keeps a change, with when it was first seen as far as it has come.
func (d *Desk) save(ctx context.Context, k Kept) (Kept, error) {
	now := d.Plane.Now().UTC().Truncate(time.Second)
	if k.MergedAt == nil && (k.State == change.Merged || k.State == change.Applied) {
		k.MergedAt = new(now)
	}
	if k.AppliedAt == nil && k.State == change.Applied {
		k.AppliedAt = new(now)
	}
	return d.Store.Save(ctx, k)
}
