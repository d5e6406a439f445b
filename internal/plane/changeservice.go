package plane

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/fleet/gitops"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
)

// Edit is a requested change of one object. It has exactly one of a patch of the spec, the spec of a new object, and its removal.
type Edit struct {
	Kind   Text            `json:"kind" doc:"RunnerPool, RunnerEnrollment or RunnerForge"`
	Name   Text            `json:"name"`
	Patch  json.RawMessage `json:"patch,omitempty" doc:"a merge patch of its spec (RFC 7386)"`
	Spec   json.RawMessage `json:"spec,omitempty" doc:"spec of a new object"`
	Remove bool            `json:"remove,omitempty" doc:"true: remove the object"`
}

// PreviewRequest asks what a change would do.
type PreviewRequest struct{ Edit }

// Preview describes what a change would do.
type Preview struct {
	File     string `json:"file"`
	Base     string `json:"base" doc:"the commit that it is based on"`
	Version  string `json:"version" doc:"version of the file, to send with the proposal"`
	Diff     string `json:"diff" doc:"unified diff of the file"`
	Risk     Risk   `json:"risk"`
	OrgName  string `json:"org" doc:"organisation that owns it; empty: the platform"`
	Platform bool   `json:"platform" doc:"a platform-admin must approve it"`
	Refused  string `json:"refused" doc:"why the API server would reject the object; empty: it would accept it"`
	Rules    []Rule `json:"rules" doc:"rules between objects that it would break; the fleet does not apply an object that breaks one; null: not checked"`
	Note     string `json:"note,omitempty" doc:"why the API server did not check it, and where the result will be visible; empty: the API server checked it"`
	Open     string `json:"open" doc:"the open change of this object, to which this one would be added; empty: none"`
}

// Rule is a fleet rule between objects that a change would break.
type Rule struct {
	Org     string `json:"org" doc:"the enrollment that would have no effect, or less"`
	Pool    string `json:"pool" doc:"the affected pool; empty: the whole enrollment"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// ProposeRequest proposes a change.
type ProposeRequest struct {
	Edit
	Title   string         `json:"title,omitempty" doc:"title of the pull request; default: a summary of the change"`
	Reason  Reason         `json:"reason" doc:"why, 1 to 500 characters"`
	Version string         `json:"version,omitempty" doc:"version of the file, from the preview; if the file has changed since, the request fails with conflict"`
	Key     IdempotencyKey `json:"-" header:"Idempotency-Key" doc:"the change's id is derived from the key and the caller, so a repeated request makes one change; without a key, from the caller and the content"`
}

// AuditArgs returns the arguments of the request for the audit log.
func (r ProposeRequest) AuditArgs() map[string]string {
	return map[string]string{"object": string(r.Kind) + "/" + string(r.Name), "reason": string(r.Reason)}
}

// DecideRequest is a decision about a change at the commit that the caller has reviewed.
type DecideRequest struct {
	ID     string `json:"-" path:"id"`
	Head   string `json:"head" doc:"the commit that the caller has reviewed"`
	Reason Reason `json:"reason" doc:"why, 1 to 500 characters"`
}

// AuditArgs returns the arguments of the request for the audit log.
func (r DecideRequest) AuditArgs() map[string]string {
	return map[string]string{"change": r.ID, "head": r.Head, "reason": string(r.Reason)}
}

// CloseRequest closes a change without merging it.
type CloseRequest struct {
	ID     string `json:"-" path:"id"`
	Reason Reason `json:"reason" doc:"why, 1 to 500 characters"`
}

// AuditArgs returns the arguments of the request for the audit log.
func (r CloseRequest) AuditArgs() map[string]string {
	return map[string]string{"change": r.ID, "reason": string(r.Reason)}
}

// AuditObject returns the change for the audit log.
func (o Change) AuditObject() string { return o.ID }

// AuditOrg returns the organisation for the audit log.
func (o Change) AuditOrg() string { return o.Org() }

// ChangeRequest names a change.
type ChangeRequest struct {
	ID string `json:"-" path:"id"`
}

// openChange returns the open change of an object, if there is one.
func (d *ChangeService) openChange(kind, name string) (Change, bool) {
	for _, o := range d.Plane.Store.List(KindChange).Objects {
		if c, ok := o.(Change); ok && c.Kind == kind && c.Name == name && isOpen(c.State) {
			return c, true
		}
	}
	return Change{}, false
}

// previewChange returns what a change would do. The permit must allow its verb for the owner of the object.
func (d *ChangeService) previewChange(ctx context.Context, p access.Permit, req PreviewRequest) (Envelope[Preview], error) {
	open, found := d.openChange(string(req.Kind), string(req.Name))
	out, _, err := d.prepare(ctx, p, req.Edit, open.stored.Edits)
	if err != nil {
		return Envelope[Preview]{}, err
	}
	if found {
		out.Open = open.ID
	}
	return newEnvelope(d.Plane, "ChangePreview", out.Preview, d.Plane.Store.Revision(), nil), nil
}

// proposeChange opens a change, or adds to the open change of the object. The permit must allow its verb for the owner of the object.
func (d *ChangeService) proposeChange(ctx context.Context, p access.Permit, req ProposeRequest) (e Envelope[Change], err error) {
	if err := req.Reason.check(); err != nil {
		return e, err
	}
	if hasCredential(req.Title) || hasCredential(req.Reason) {
		return e, credentialRefused("reason")
	}
	who := p.Caller().Identity()
	id, made := d.findEarlier(ctx, who, req)
	if made != nil {
		if p, err = p.In(made.Org); err != nil { // the caller may have lost the role since
			return e, err
		}
		return d.answer(p, *made, nil)
	}
	open, found := d.openChange(string(req.Kind), string(req.Name))
	out, p, err := d.prepare(ctx, p, req.Edit, open.stored.Edits)
	switch {
	case err != nil:
		return e, err
	case out.Refused != "":
		return e, problem.New(problem.Validation, "The API server would reject it: "+out.Refused, "Correct it, and preview it again.")
	case req.Version != "" && req.Version != out.Version, found && open.stored.Version != out.Version:
		return e, problem.New(problem.Conflict, "The file has changed since the change was made.", "Preview it again. If the object has an open change, merge or close that change first.")
	}
	c := gitops.Change{ID: id, Ref: out.ref, Org: out.OrgName, Platform: out.Platform, File: out.File, Branch: gitops.Branch(id), Base: out.Base, Version: out.Version,
		Edits: []gitops.Edit{out.edit}, Title: gitops.Title(req.Title, out.ref), Reason: string(req.Reason), Proposer: who}
	if found {
		c = open.stored.Change
	}
	c.Risk, c.Diff, c.Platform = gitops.Risk{Level: out.Risk.Level, Why: out.Risk.Why}, out.Diff, out.Platform
	was := out.Version
	if found {
		on, err := d.Repository.ReadFile(ctx, c.Branch, out.File)
		if err != nil {
			return e, err
		}
		if on.Commit != c.DiffOf { // not Head, which may be a commit that another person has pushed
			return e, problem.New(problem.Conflict, "The open change of this object has a push that was made at the forge.", "Continue at "+c.URL+", or close the change.")
		}
		was = on.Version
	}
	r, err := d.Repository.Propose(ctx, gitops.Proposal{Branch: c.Branch, Path: out.File, Was: was, Content: out.text, Message: gitops.CommitMessage(c),
		Author: gitops.Person{Name: cmp.Or(p.Caller().DisplayName, who), Email: who}, Title: c.Title, Body: gitops.RequestBody(c, d.Link(c.ID)),
		Labels: []string{"tailplane/risk-" + c.Risk.Level}})
	if err != nil {
		return e, err
	}
	alone, err := d.changesOnlyFile(ctx, c, r.Head, out.text)
	if err != nil {
		return e, err
	}
	if found {
		c = c.Amend(who, out.edit, r.Head)
	} else {
		c.Head, c.Number, c.URL = r.Head, r.Number, r.URL
		c = gitops.OpenChange(c, d.Plane.Now())
	}
	if !alone {
		c = c.WithForeignCommits()
	}
	k := StoredChange{c, open.stored.StoreVersion}
	if found {
		k, err = d.save(ctx, k)
	} else {
		k, err = d.Store.Create(ctx, c)
	}
	return d.answer(p, k, err)
}

// changesOnlyFile reports whether head changes only c.File, to exactly text. Other people can guess the name of the branch and may be able to push to
// it.
func (d *ChangeService) changesOnlyFile(ctx context.Context, c gitops.Change, head string, text []byte) (bool, error) {
	is, err := d.Repository.ReadFile(ctx, c.Branch, c.File)
	if err != nil {
		return false, err
	}
	touched, err := d.Repository.ChangedFiles(ctx, head)
	more := slices.ContainsFunc(touched, func(path string) bool { return path != c.File })
	return is.Commit == head && (is.Version == "") == (text == nil) && bytes.Equal(is.Content, text) && !more, err
}

// maxRepeats is how often a caller may propose and give up the same edit on one day.
const maxRepeats = 16

// findEarlier returns the change that an earlier copy of the request made, if its response was lost. Otherwise it returns the id for a new
// change. A finished change matches only by idempotency key.
func (d *ChangeService) findEarlier(ctx context.Context, who string, req ProposeRequest) (id string, made *StoredChange) {
	of := cmp.Or(string(req.Key), string(req.Kind)+"/"+string(req.Name)+string(req.Patch)+string(req.Spec)+d.Plane.Now().UTC().Format(time.DateOnly))
	for n := range maxRepeats {
		id = gitops.NewID(who, of+strings.Repeat("/again", n))
		if d.checkRepository() != nil {
			return id, nil
		}
		k, err := d.Store.Get(ctx, id)
		if err != nil || k.Proposer != who {
			return id, nil
		}
		if req.Key != "" || !k.State.Final() {
			return id, &k
		}
	}
	return id, nil
}

// The operations. The server, the client, the reference, the MCP tools and the commands of tka are all derived from them.
var (
	PreviewChange = httpapi.Op[PreviewRequest, Envelope[Preview]]{Pattern: "POST " + Base + "/changes/preview", Verb: access.ConfigPropose, MaxResponse: maxDiff,
		Doc:     "Preview a change of the configuration: the diff of the file, and whether the API server would accept it. Nothing is changed.",
		Example: PreviewRequest{exampleEdit}, Responses: []Envelope[Preview]{newExample("ChangePreview", Preview{File: "fleet/gh-nix.yaml", Base: exampleCommit, Version: exampleBlob,
			Diff: exampleDiff, Risk: Risk{"medium", []string{"capacity"}}, Platform: true})}, Refusals: writeRefusals}
	ProposeChange = httpapi.Op[ProposeRequest, Envelope[Change]]{Pattern: "POST " + Base + "/changes", Verb: access.ConfigPropose, MaxResponse: maxDiff,
		Doc:       "Propose a change by pull request. If the object has an open change, the request adds to it.",
		Example:   ProposeRequest{Edit: exampleEdit, Title: "More nix runners", Reason: "the queue is long in the morning", Version: exampleBlob, Key: "1f0c6c1e"},
		Responses: []Envelope[Change]{newExample("Change", exampleChange())}, Refusals: writeRefusals}
	ListChanges = httpapi.Op[ChangeListRequest, Envelope[[]Change]]{Pattern: "GET " + Base + "/changes", Verb: access.FleetRead, MaxResponse: 16 << 20,
		Doc: "List changes of the configuration.", Responses: []Envelope[[]Change]{newExamplePage("ChangeList", exampleChange())}, Refusals: listRefusals}
	GetChange = httpapi.Op[ChangeRequest, Envelope[Change]]{Pattern: "GET " + Base + "/changes/{id}", Verb: access.FleetRead, MaxResponse: maxDiff,
		Doc: "Show one change.", Example: ChangeRequest{exampleChangeID}, Responses: []Envelope[Change]{newExample("Change", exampleChange())}, Refusals: getRefusals}
	ApproveChange = httpapi.Op[DecideRequest, Envelope[Change]]{Pattern: "POST " + Base + "/changes/{id}/approve", Verb: access.ConfigApprove, MaxResponse: maxDiff,
		Doc: "Approve a change at the commit that the caller has reviewed. An author of the change cannot approve it.", Example: DecideRequest{exampleChangeID, exampleCommit, "the nodes carry it"},
		Responses: []Envelope[Change]{newExample("Change", exampleChange())}, Refusals: slices.Concat(writeRefusals, []problem.Code{problem.SelfApproval})}
	MergeChange = httpapi.Op[DecideRequest, Envelope[Change]]{Pattern: "POST " + Base + "/changes/{id}/merge", Verb: access.ConfigApprove, MaxResponse: maxDiff,
		Doc: "Merge an approved change at the commit that the caller has reviewed. The approval is used up.", Example: DecideRequest{exampleChangeID, exampleCommit, "now is a quiet moment"},
		Responses: []Envelope[Change]{newExample("Change", exampleChange())}, Refusals: writeRefusals}
	legacyProposeChange = withPath(ProposeChange, "/api/gitops/submit") // the path that the existing dashboard and its tools use
	CloseChange         = httpapi.Op[CloseRequest, Envelope[Change]]{Pattern: "POST " + Base + "/changes/{id}/close", Verb: access.ConfigPropose, MaxResponse: maxDiff,
		Doc: "Close a change without a merge.", Example: CloseRequest{exampleChangeID, "the queue is short again"}, Responses: []Envelope[Change]{newExample("Change", exampleChange())}, Refusals: writeRefusals}
)

// maxDiff is the maximum size of a response with a diff, in bytes.
const maxDiff = 4 << 20

// Routes returns the routes of the API, served by d.
func (d *ChangeService) Routes() []httpapi.Route {
	return []httpapi.Route{
		handle(d.Plane, PreviewChange, d.previewChange), handle(d.Plane, ProposeChange, d.proposeChange), handle(d.Plane, ListChanges, d.listChanges),
		handle(d.Plane, GetChange, getter(d.Plane, changes(), "change", func(r ChangeRequest) string { return r.ID })),
		handle(d.Plane, ApproveChange, d.approveChange), handle(d.Plane, MergeChange, d.mergeChange), handle(d.Plane, CloseChange, d.closeChange),
		handle(d.Plane, legacyProposeChange, d.proposeChange),
	}
}

// ChangeListRequest asks for one page of the changes.
type ChangeListRequest struct {
	ListRequest
	Org Text `json:"-" query:"org" doc:"only entries of this organisation"`
}

func (d *ChangeService) listChanges(_ context.Context, p access.Permit, req ChangeListRequest) (Envelope[[]Change], error) {
	return listPage(d.Plane, changes(), p, req.ListRequest, string(req.Org), func(o Change) bool { return req.Org == "" || string(req.Org) == o.OrgName })
}

func changes() table[Change] {
	return table[Change]{Kind: KindChange, Name: "ChangeList", Columns: func(o Change) map[string]string {
		return map[string]string{"opened": o.OpenedAt.UTC().Format(time.RFC3339), "name": o.Name, "kind": o.Kind, "org": o.OrgName,
			"proposer": o.Proposer, "title": o.Title, "risk": o.Risk.Level, "number": cmp.Or(strconv.Itoa(o.Number), "0"),
			"state": o.State}
	}, State: Change.CurrentState, States: []string{string(gitops.StateOpen), string(gitops.StateApproved), string(gitops.StateMerging), string(gitops.StateMerged), string(gitops.StateApplied), string(gitops.StateClosed)}}
}

const (
	exampleChangeID = "c3f9c1a2b4d5e6f70"
	exampleCommit   = "0f3c9a1b2d4e5f6071820f3c9a1b2d4e5f607182"
	exampleBlob     = "9a1b2d4e5f6071820f3c9a1b2d4e5f6071820f3c"
	exampleDiff     = "diff a/fleet/gh-nix.yaml b/fleet/gh-nix.yaml\n--- a/fleet/gh-nix.yaml\n+++ b/fleet/gh-nix.yaml\n@@ -8,4 +8,4 @@\n   runsOn: [self-hosted, nix]\n" +
		"   scaling:\n     min: 0\n-    max: 5\n+    max: 8\n"
)

var exampleEdit = Edit{Kind: "RunnerPool", Name: "gh-nix", Patch: json.RawMessage(`{"scaling":{"max":8}}`)}

func exampleChange() Change {
	return Change{ID: exampleChangeID, Kind: "RunnerPool", Name: "gh-nix", File: "fleet/gh-nix.yaml", Number: 42, URL: "https://github.com/acme/fleet/pull/42", Branch: "tailplane/" + exampleChangeID,
		Base: exampleCommit, Head: exampleCommit, State: string(gitops.StateApproved), Proposer: "amy@acme.dev", Title: "More nix runners", Reason: "the queue is long in the morning",
		Risk: Risk{"medium", []string{"capacity"}}, Platform: true, Diff: exampleDiff, DiffOf: exampleCommit, Checks: []Check{{"yamllint", "success", ""}},
		Approvals: []Approval{{"pat@platform.dev", exampleTime, exampleCommit}}, OpenedAt: exampleTime, ObservedAt: exampleTime}
}

// exampleEnrollmentChange returns an open change of an organisation, for the reference.
func exampleEnrollmentChange() Change {
	c := exampleChange()
	c.OrgName, c.Kind, c.Name, c.File, c.Title, c.State, c.Approvals, c.Diff = "acme", "RunnerEnrollment", "acme", "fleet/acme.yaml", "Enroll acme", string(gitops.StateOpen), []Approval{}, ""
	c.Reason, c.Risk = "our builds wait for an hour", Risk{"medium", []string{"it is new"}}
	return c
}
