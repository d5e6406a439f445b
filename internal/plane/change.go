package plane

import (
	"context"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/fleet/gitops"
	"github.com/tailplane/tailplane/internal/problem"
)

// Repository holds the configuration at a forge. Its errors are problems.
type Repository interface {
	// ReadFile returns a file at the head of a branch. "" means the branch that is applied to the cluster.
	ReadFile(ctx context.Context, branch, path string) (gitops.File, error)
	// Propose creates a branch with one commit and a pull request, or adds a commit to an existing one. The base is the applied branch. It
	// returns problem.Conflict if the file is no longer at the version Was.
	Propose(ctx context.Context, p gitops.Proposal) (gitops.Request, error)
	// PullRequest returns the state of a pull request.
	PullRequest(ctx context.Context, number int) (gitops.Request, error)
	// ChangedFiles returns the files that merging a commit would change, including changes by other authors.
	ChangedFiles(ctx context.Context, commit string) ([]string, error)
	// Merge merges exactly head, or returns problem.Conflict.
	Merge(ctx context.Context, number int, head string) error
	// Close closes a pull request that is not merged, with a comment.
	Close(ctx context.Context, number int, comment string) error
}

// RepositoryFiles lists the repository's files that may hold objects, at one commit.
type RepositoryFiles struct {
	Commit string
	Blobs  map[string]string // path to git blob id
}

// RepositoryLayout finds, reads and edits objects in the repository's files. Its errors are those of package change.
type RepositoryLayout interface {
	File(r gitops.Ref) (string, error)
	// Spec returns an object's spec in a file, and whether the file has the object.
	Spec(file []byte, r gitops.Ref) (spec map[string]any, found bool, err error)
	// Apply returns the file after the edits, applied in order.
	Apply(file []byte, r gitops.Ref, edits ...gitops.Edit) ([]byte, error)
	// Note returns why the API server cannot check an object of this repository, or "" if it can.
	Note() string
}

// ChangeStore stores changes for all replicas.
type ChangeStore interface {
	// Get returns a change, or problem.NotFound.
	Get(ctx context.Context, id string) (StoredChange, error)
	// Create stores a new change, or returns the one that has its id already.
	Create(ctx context.Context, c gitops.Change) (StoredChange, error)
	// Save stores the change if it has not changed since it was read. Otherwise it returns problem.Conflict.
	Save(ctx context.Context, k StoredChange) (StoredChange, error)
}

// StoredChange is a stored change with its version in the store.
type StoredChange struct {
	gitops.Change
	StoreVersion string // the version in the store
}

// ChangeService is the service for changes. Without a Repository every operation except the lists returns an error.
type ChangeService struct {
	Plane      *Service
	Repository Repository
	Store      ChangeStore
	Layout     RepositoryLayout       // how the repository stores objects
	Link       func(id string) string // returns the URL of a change's page
	// DryRun checks with a dry run, as the plane, whether the API server would accept the object. A nil spec deletes it. The error is a
	// problem that says why not.
	DryRun func(ctx context.Context, r gitops.Ref, spec map[string]any) error
	// BrokenRules returns the fleet rules between objects that the change would break. It is optional.
	BrokenRules func(ctx context.Context, r gitops.Ref, spec map[string]any) ([]Rule, error)
	// StillAllowed reports whether the current policy still lets the approver approve.
	StillAllowed func(ctx context.Context, a gitops.Approval, org string, v access.Verb) bool
}

// checkRepository returns an error if no repository is configured.
func (d *ChangeService) checkRepository() error {
	if d.Repository == nil {
		return problem.New(problem.Unavailable, "No configuration repository is set, so changes by pull request are not available.", "Set plane.gitops, or change the objects where you maintain them.")
	}
	return nil
}

// approvalVerb returns the verb that an approval of a change requires.
func approvalVerb(platform bool) access.Verb {
	if platform {
		return access.EnrollmentApprove
	}
	return access.ConfigApprove
}

// Change is a change as the API shows it.
type Change struct {
	ID        string     `json:"id"`
	OrgName   string     `json:"org" doc:"organisation that owns it; empty: the platform"`
	Kind      string     `json:"kind"`
	Name      string     `json:"name"`
	File      string     `json:"file"`
	Number    int        `json:"number"`
	URL       string     `json:"url"`
	Branch    string     `json:"branch"`
	Base      string     `json:"base"`
	Head      string     `json:"head" doc:"the commit that an approval or a merge must name"`
	State     string     `json:"state" enum:"open,approved,merging,merged,applied,closed"`
	Proposer  string     `json:"proposer"`
	Title     string     `json:"title"`
	Reason    string     `json:"reason"`
	Risk      Risk       `json:"risk"`
	Platform  bool       `json:"platform" doc:"a platform-admin must approve it"`
	Diff      string     `json:"diff" doc:"unified diff of the file"`
	DiffOf    string     `json:"diffOf" doc:"the commit of the diff; if it is not head, there was a push at the forge, and only the pull request shows the current content"`
	Stale     bool       `json:"stale" doc:"the file has changed since the change was made"`
	Checks    []Check    `json:"checks"`
	Approvals []Approval `json:"approvals"`
	Blocked   string     `json:"mergeBlocked" doc:"why the forge would refuse to merge it; empty: no known reason"`
	MergedBy  string     `json:"mergedBy" doc:"the login that merged it through this server; empty: not merged through it"`
	OpenedAt  time.Time  `json:"openedAt"`
	MergedAt  *time.Time `json:"mergedAt" doc:"when the merge was first seen; null: not merged, or the time is unknown"`
	AppliedAt *time.Time `json:"appliedAt" doc:"when it was first seen in the cluster; null: not in the cluster, or the time is unknown"`

	Actions    *Actions  `json:"actions,omitempty"`
	ObservedAt time.Time `json:"observedAt"`

	stored StoredChange
}

// Risk is the estimated risk of a change, and the reasons for it.
type Risk struct {
	Level string   `json:"level" enum:"low,medium,high"`
	Why   []string `json:"why"`
}

// Check is the result of one CI check of a pull request.
type Check struct {
	Name  string `json:"name"`
	State string `json:"state"`
	URL   string `json:"url"`
}

// Approval is an approval of exactly one commit.
type Approval struct {
	By   string    `json:"by"`
	At   time.Time `json:"at"`
	Head string    `json:"head"`
}

// Actions are the actions that the caller may take on a change.
type Actions struct {
	Approve Action `json:"approve"`
	Merge   Action `json:"merge"`
	Close   Action `json:"close"`
}

// NewChange returns a stored change in the form for the plane's store.
func NewChange(k StoredChange, now time.Time) Change {
	c := k.Change
	o := Change{ID: c.ID, OrgName: c.Org, Kind: c.Ref.Kind, Name: c.Ref.Name, File: c.File, Number: c.Number, URL: c.URL, Branch: c.Branch, Base: c.Base, Head: c.Head,
		State: string(c.State), Proposer: c.Proposer, Title: c.Title, Reason: c.Reason, Risk: Risk{c.Risk.Level, append([]string{}, c.Risk.Why...)}, Platform: c.Platform, Diff: c.Diff, DiffOf: c.DiffOf, Stale: c.Stale, MergedBy: c.MergedBy,
		Checks: []Check{}, Approvals: []Approval{}, Blocked: c.Blocked, OpenedAt: c.OpenedAt, MergedAt: c.MergedAt, AppliedAt: c.AppliedAt, ObservedAt: now, stored: k}
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

// Org returns the organisation that owns the object, or "" for the platform.
func (o Change) Org() string { return o.OrgName }

// Observed implements [plane.Object].
func (o Change) Observed() time.Time { return o.ObservedAt }

// At implements [plane.Object].
func (o Change) At(t time.Time) Object { o.ObservedAt = t; return o }

// isOpen reports whether a change in this state can be decided.
func isOpen(state string) bool {
	return state == string(gitops.StateOpen) || state == string(gitops.StateApproved)
}

// Settled implements [plane.Settled]: a merged or closed change is finished.
func (o Change) Settled() bool {
	return !isOpen(o.State) && o.State != string(gitops.StateMerging)
}

// CurrentState implements [Stateful].
func (o Change) CurrentState() string { return o.State }

// Trouble implements [Stateful].
func (o Change) Trouble() (Severity, string, string) {
	if o.Blocked != "" && isOpen(o.State) {
		return SeverityWarning, "MergeBlocked", o.Blocked
	}
	return "", "", ""
}

// For implements [plane.Personal]: it adds the actions that the caller may take.
func (o Change) For(v Viewer) Object {
	_, own := o.stored.Approve(v.Caller().Identity(), "", o.Head, o.OpenedAt)
	ended := when(!isOpen(o.State), "It is "+o.State+".")
	merges := v.In(o.OrgName, access.ConfigApprove)
	o.Actions = &Actions{
		Approve: actionUnless(ended, when(!v.In(o.OrgName, approvalVerb(o.Platform)), "Your role does not allow you to approve it."),
			when(own != nil, "You wrote a part of it.")),
		Merge: actionUnless(ended, when(!merges, "Your role does not allow you to merge it."),
			when(o.State != string(gitops.StateApproved), "The current version is not approved."),
			when(o.Blocked != "", "The forge would refuse to merge it: "+o.Blocked)),
		Close: actionUnless(ended, when(!merges && o.Proposer != v.Caller().Identity(), "Only the proposer or an approver can close it.")),
	}
	return o
}
