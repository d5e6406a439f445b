package plane

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	fleetgitops "github.com/tailplane/tailplane/internal/fleet/gitops"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/util/redact"
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

func (d *ChangeService) getChange(_ context.Context, p access.Permit, req ChangeRequest) (Envelope[Change], error) {
	o, l, err := getObject[Change](d.Plane, KindChange, p, req.ID, "change")
	return newEnvelope(d.Plane, "Change", o, l.Revision, l.Sources), err
}

// Limits on a file and on the stored diff, in bytes. A change is stored in a ConfigMap, which holds at most 1 MiB.
const (
	maxFile       = 512 << 10
	maxStoredDiff = 256 << 10
)

// preparedChange is a change before it is proposed, with the data to propose it.
type preparedChange struct {
	ref  fleetgitops.Ref
	edit fleetgitops.Edit
	file RepositoryFile
	path string
	is   map[string]any
	text []byte
	Preview
}

// prepare computes the change that e describes. It returns an error, and no data of the file, if p does not permit the change.
func (d *ChangeService) prepare(ctx context.Context, p access.Permit, e Edit, before []fleetgitops.Edit) (out preparedChange, _ access.Permit, err error) {
	if err := d.checkRepository(); err != nil {
		return out, p, err
	}
	if hasCredential(e.Patch) || hasCredential(e.Spec) {
		return out, p, credentialRefused("spec")
	}
	out.edit = fleetgitops.Edit{Patch: e.Patch, Spec: e.Spec, Remove: e.Remove}
	if err := out.edit.Validate(); err != nil {
		return out, p, changeProblem(err)
	}
	if out.ref, err = fleetgitops.ParseRef(string(e.Kind), string(e.Name)); err != nil {
		return out, p, changeProblem(err)
	}
	if org, _ := fleetgitops.Owner(out.ref, nil, nil); org != "" { // by name alone: check the permit before the file is read
		if _, err := p.In(org); err != nil {
			return out, p, err
		}
	}
	if out.path, err = d.Layout.File(out.ref); errors.Is(err, fleetgitops.ErrInvalidEdit) {
		return out, p, changeProblem(err)
	} else if err != nil {
		return out, p, problem.New(problem.Internal, "internal error").WithCause(err)
	}
	if out.file, err = d.Repository.ReadFile(ctx, "", out.path); err != nil {
		return out, p, err
	}
	if len(out.file.Text) > maxFile {
		return out, p, problem.New(problem.Conflict, "The file is larger than 512 KiB, so this server does not change it.", "Store each object in a separate file (plane.gitops.path).")
	}
	was, found, err := d.Layout.Spec(out.file.Text, out.ref)
	if err != nil {
		return out, p, changeProblem(err)
	}
	if !found {
		was = nil
	}
	text, applyErr := d.Layout.Apply(out.file.Text, out.ref, append(slices.Clone(before), out.edit)...)
	if applyErr == nil {
		if out.is, found, err = d.Layout.Spec(text, out.ref); err != nil {
			return out, p, changeProblem(err)
		} else if !found {
			out.is = nil
		}
	}
	out.OrgName, out.Platform = fleetgitops.Owner(out.ref, was, out.is)
	if p, err = p.In(out.OrgName); err != nil {
		return out, p, err
	}
	if applyErr != nil {
		return out, p, changeProblem(applyErr)
	}
	if out.text = text; len(bytes.TrimSpace(text)) == 0 {
		out.text = nil
	}
	r := fleetgitops.AssessRisk(was, out.is)
	old := out.file.Text
	if out.file.Version == "" {
		old = nil
	}
	out.File, out.Base, out.Version, out.Risk = out.path, out.file.Commit, out.file.Version, Risk{r.Level, append([]string{}, r.Why...)}
	if out.Diff = unifiedDiff(out.path, old, out.text); len(out.Diff) > maxStoredDiff {
		out.Diff = strings.ToValidUTF8(out.Diff[:maxStoredDiff], "") + "\n(the diff is longer: see the pull request for all of it)\n"
	}
	if out.Note = d.Layout.Note(); out.Note != "" {
		return out, p, nil
	}
	if err := d.DryRun(ctx, out.ref, out.is); err != nil {
		if pr, ok := errors.AsType[*problem.Error](err); !ok || pr.Code != problem.Validation {
			return out, p, err
		}
		out.Refused = err.Error()
		return out, p, nil
	}
	if d.BrokenRules != nil {
		rules, err := d.BrokenRules(ctx, out.ref, out.is)
		if err != nil {
			return out, p, err
		}
		// A change of an organisation shows only broken rules of that organisation. A change of the platform shows them all.
		out.Rules = slices.DeleteFunc(rules, func(r Rule) bool { return out.OrgName != "" && r.Org != out.OrgName })
	}
	return out, p, nil
}

// openChange returns the open change of an object, if there is one.
func (d *ChangeService) openChange(kind, name string) (Change, bool) {
	for _, o := range d.Plane.Store.List(KindChange).Objects {
		if c, ok := o.(Change); ok && c.Kind == kind && c.Name == name && (c.State == string(fleetgitops.StateOpen) || c.State == string(fleetgitops.StateApproved)) {
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
		return d.answer(p, *made)
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
	c := fleetgitops.Change{ID: id, Ref: out.ref, Org: out.OrgName, Platform: out.Platform, File: out.path, Branch: fleetgitops.Branch(id), Base: out.Base, Version: out.Version,
		Edits: []fleetgitops.Edit{out.edit}, Title: fleetgitops.Title(req.Title, out.ref), Reason: string(req.Reason), Proposer: who}
	if found {
		c = open.stored.Change
	}
	c.Risk, c.Diff, c.Platform = fleetgitops.Risk{Level: out.Risk.Level, Why: out.Risk.Why}, out.Diff, out.Platform
	was := out.Version
	if found {
		on, err := d.Repository.ReadFile(ctx, c.Branch, out.path)
		if err != nil {
			return e, err
		}
		if on.Commit != c.DiffOf { // not Head, which may be a commit that another person has pushed
			return e, problem.New(problem.Conflict, "The open change of this object has a push that was made at the forge.", "Continue at "+c.URL+", or close the change.")
		}
		was = on.Version
	}
	r, err := d.Repository.Propose(ctx, Proposal{Branch: c.Branch, Path: out.path, BaseVersion: was, Text: out.text, Message: fleetgitops.CommitMessage(c), Name: cmp.Or(p.Caller().DisplayName, who), Email: who,
		Title: c.Title, Body: fleetgitops.RequestBody(c, d.Link(c.ID)), Risk: c.Risk.Level})
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
		c = fleetgitops.OpenChange(c, d.Plane.Now())
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
	if err != nil {
		return e, err
	}
	return d.answer(p, k)
}

// changesOnlyFile reports whether head changes only c.File, to exactly text. Other people can guess the name of the branch and may be able to push to
// it.
func (d *ChangeService) changesOnlyFile(ctx context.Context, c fleetgitops.Change, head string, text []byte) (bool, error) {
	is, err := d.Repository.ReadFile(ctx, c.Branch, c.File)
	if err != nil {
		return false, err
	}
	touched, err := d.Repository.ChangedFiles(ctx, head)
	more := slices.ContainsFunc(touched, func(path string) bool { return path != c.File })
	return is.Commit == head && (is.Version == "") == (text == nil) && bytes.Equal(is.Text, text) && !more, err
}

// maxRepeats is how often a caller may propose and give up the same edit on one day.
const maxRepeats = 16

// findEarlier returns the change that an earlier copy of the request made, if its response was lost. Otherwise it returns the id for a new
// change. A finished change matches only by idempotency key.
func (d *ChangeService) findEarlier(ctx context.Context, who string, req ProposeRequest) (id string, made *StoredChange) {
	of := cmp.Or(string(req.Key), string(req.Kind)+"/"+string(req.Name)+string(req.Patch)+string(req.Spec)+d.Plane.Now().UTC().Format(time.DateOnly))
	for n := range maxRepeats {
		id = fleetgitops.NewID(who, of+strings.Repeat("/again", n))
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

func (d *ChangeService) answer(p access.Permit, k StoredChange) (Envelope[Change], error) {
	o := NewChange(k, d.Plane.Now().UTC())
	d.Plane.Store.Set(KindChange, ChangesSource, o)
	return newEnvelope(d.Plane, "Change", o.For(ViewerOf(p)).(Change), d.Plane.Store.Revision(), nil), nil
}

// ChangesSource is the name of the source that provides changes to the plane's store.
const ChangesSource = "kubernetes:changes"

// currentChange returns the change with its current state at the forge. The permit must allow its verb for the change's organisation.
func (d *ChangeService) currentChange(ctx context.Context, p access.Permit, id string) (StoredChange, error) {
	if err := d.checkRepository(); err != nil {
		return StoredChange{}, err
	}
	k, err := d.Store.Get(ctx, id)
	if err != nil {
		return k, err
	}
	if _, err := p.In(k.Org); err != nil {
		return StoredChange{}, err
	}
	r, err := d.Repository.PullRequest(ctx, k.Number)
	if err != nil {
		return k, err
	}
	k.Change = k.Observe(r.Request)
	return k, nil
}

// approveChange approves a change. The permit must allow its verb for the change's organisation.
func (d *ChangeService) approveChange(ctx context.Context, p access.Permit, req DecideRequest) (e Envelope[Change], err error) {
	if err := req.Reason.check(); err != nil {
		return e, err
	}
	k, err := d.currentChange(ctx, p, req.ID)
	if err != nil {
		return e, err
	}
	if err := mayApprove(p, k); req.Head == k.Head && err != nil {
		return e, err
	}
	c := p.Caller()
	if k.Change, err = k.Approve(c.Identity(), string(c.Device.ID), req.Head, d.Plane.Now()); err != nil {
		return e, changeProblem(err)
	}
	if k, err = d.save(ctx, k); err != nil {
		return e, err
	}
	return d.answer(p, k)
}

// mayApprove returns a Forbidden error if the caller's approval of the change would not count.
func mayApprove(p access.Permit, k StoredChange) error {
	verb := approvalVerb(k.Platform)
	if ViewerOf(p).In(k.Org, verb) {
		return nil
	}
	why := "This change affects more than one organisation"
	if k.DiffOf != k.Head {
		why = "This change has a push that was made at the forge"
	}
	refused := problem.New(problem.Forbidden, why+", so a platform-admin must approve it.", "Ask a platform-admin.")
	refused.Needed = &problem.Need{Verb: string(verb), Org: k.Org}
	return refused
}

// mergeChange uses up the approval before it merges at the forge. If the forge's response is lost, [ChangePoller] determines the result.
func (d *ChangeService) mergeChange(ctx context.Context, p access.Permit, req DecideRequest) (e Envelope[Change], err error) {
	if err := req.Reason.check(); err != nil {
		return e, err
	}
	k, err := d.currentChange(ctx, p, req.ID)
	if err != nil {
		return e, err
	}
	may := func(a fleetgitops.Approval) bool { return d.StillAllowed(ctx, a, k.Org, approvalVerb(k.Platform)) }
	if k.Change, err = k.Merge(p.Caller().Identity(), req.Head, may, d.Plane.Now()); err != nil {
		return e, changeProblem(err)
	}
	if k, err = d.save(ctx, k); err != nil {
		return e, err
	}
	return d.finish(ctx, p, k)
}

// finish merges the change at the forge and saves the result.
func (d *ChangeService) finish(ctx context.Context, p access.Permit, k StoredChange) (e Envelope[Change], err error) {
	mergeErr := d.Repository.Merge(ctx, k.Number, k.Head)
	switch pr, _ := errors.AsType[*problem.Error](mergeErr); {
	case mergeErr == nil:
		k.Change = k.Observe(fleetgitops.Request{Head: k.Head, Merged: true})
	case pr != nil && pr.Code != problem.Unavailable && pr.Code != problem.RateLimited:
		k.Change = k.MergeRefused(pr.Message)
	default: // unknown result: the change stays as it is until Watch determines it
		return e, mergeErr
	}
	if k, err = d.save(ctx, k); err != nil {
		return e, err
	}
	if mergeErr != nil {
		return e, mergeErr
	}
	return d.answer(p, k)
}

func (d *ChangeService) closeChange(ctx context.Context, p access.Permit, req CloseRequest) (e Envelope[Change], err error) {
	if err := req.Reason.check(); err != nil {
		return e, err
	}
	k, err := d.currentChange(ctx, p, req.ID)
	if err != nil {
		return e, err
	}
	switch {
	case k.State != fleetgitops.StateOpen && k.State != fleetgitops.StateApproved:
		return e, changeProblem(fleetgitops.ErrNotOpen)
	case k.Proposer != p.Caller().Identity() && !ViewerOf(p).In(k.Org, access.ConfigApprove):
		return e, problem.New(problem.Forbidden, "Only the proposer or an approver can close a change.")
	}
	return d.withdraw(ctx, p, k, "Closed", req.Reason)
}

// declineChange closes an open change that is not approved, at the commit that the caller has reviewed. The permit must allow its verb for the
// change's organisation.
func (d *ChangeService) declineChange(ctx context.Context, p access.Permit, req DecideRequest) (e Envelope[Change], err error) {
	if err := req.Reason.check(); err != nil {
		return e, err
	}
	k, err := d.currentChange(ctx, p, req.ID)
	switch {
	case err != nil:
		return e, err
	case k.State == fleetgitops.StateApproved:
		return e, problem.New(problem.Conflict, "The change is approved already.", "Close the change if it must not be merged.")
	case k.State != fleetgitops.StateOpen:
		return e, changeProblem(fleetgitops.ErrNotOpen)
	case k.Head != req.Head:
		return e, changeProblem(fleetgitops.ErrHeadChanged)
	}
	if err := mayApprove(p, k); err != nil {
		return e, err
	}
	return d.withdraw(ctx, p, k, "Declined", req.Reason)
}

// withdraw closes the pull request with a comment that names the caller and the reason, and then closes the change.
func (d *ChangeService) withdraw(ctx context.Context, p access.Permit, k StoredChange, done string, reason Reason) (e Envelope[Change], err error) {
	if hasCredential(reason) {
		return e, credentialRefused("reason")
	}
	if err := d.Repository.Close(ctx, k.Number, fleetgitops.ClosingComment(done, p.Caller().Identity(), string(reason))); err != nil {
		return e, err
	}
	k.State, k.Approvals = fleetgitops.StateClosed, nil
	if k, err = d.save(ctx, k); err != nil {
		return e, err
	}
	return d.answer(p, k)
}

// hasCredential reports whether a text contains something that can only be a credential.
func hasCredential[T ~string | ~[]byte](text T) bool {
	return redact.Certain(string(text)) != string(text)
}

// credentialRefused returns the error for a request that would write a credential into the repository and its history, where every reader sees it.
func credentialRefused(field string) error {
	e := problem.New(problem.Validation, "The request contains a credential, and the repository's history keeps every proposal.", "Store the credential in a Secret of the cluster, and name that Secret here. If you have sent the credential anywhere, replace it.")
	e.Field = field
	return e
}

// changeProblem converts an error of package change to a problem.
func changeProblem(err error) error {
	switch {
	case errors.Is(err, fleetgitops.ErrSelfApproval):
		return problem.New(problem.SelfApproval, "You wrote a part of this change.", "Ask another person to approve it.")
	case errors.Is(err, fleetgitops.ErrHeadChanged), errors.Is(err, fleetgitops.ErrNotOpen), errors.Is(err, fleetgitops.ErrNotApproved), errors.Is(err, fleetgitops.ErrBlocked):
		return problem.New(problem.Conflict, sentence(err), "Check the current state of the change.")
	case errors.Is(err, fleetgitops.ErrObjectNotFound):
		return problem.New(problem.NotFound, sentence(err), "Send its whole spec to create it.")
	case errors.Is(err, fleetgitops.ErrObjectExists):
		return problem.New(problem.Conflict, sentence(err), "Send a patch instead.")
	case errors.Is(err, fleetgitops.ErrUnreadableFile), errors.Is(err, fleetgitops.ErrDuplicateObject):
		return problem.New(problem.Conflict, sentence(err), "Correct the file in the repository first.")
	}
	return problem.New(problem.Validation, sentence(err), "A patch is a JSON object with fields of the spec.")
}

func sentence(err error) string {
	s := []rune(err.Error())
	if len(s) > 0 && 'a' <= s[0] && s[0] <= 'z' {
		s[0] -= 'a' - 'A'
	}
	return string(s) + "."
}
