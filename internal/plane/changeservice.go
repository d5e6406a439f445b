package plane

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	fleetgitops "github.com/tailplane/tailplane/internal/fleet/gitops"
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

func (d *ChangeService) getChange(_ context.Context, p access.Permit, req ChangeRequest) (Envelope[Change], error) {
	o, l, err := getObject[Change](d.Plane, KindChange, p, req.ID, "change")
	return newEnvelope(d.Plane, "Change", o, l.Revision, l.Sources), err
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
	c := fleetgitops.Change{ID: id, Ref: out.ref, Org: out.OrgName, Platform: out.Platform, File: out.File, Branch: fleetgitops.Branch(id), Base: out.Base, Version: out.Version,
		Edits: []fleetgitops.Edit{out.edit}, Title: fleetgitops.Title(req.Title, out.ref), Reason: string(req.Reason), Proposer: who}
	if found {
		c = open.stored.Change
	}
	c.Risk, c.Diff, c.Platform = fleetgitops.Risk{Level: out.Risk.Level, Why: out.Risk.Why}, out.Diff, out.Platform
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
	r, err := d.Repository.Propose(ctx, fleetgitops.Proposal{Branch: c.Branch, Path: out.File, Was: was, Content: out.text, Message: fleetgitops.CommitMessage(c),
		Author: fleetgitops.Person{Name: cmp.Or(p.Caller().DisplayName, who), Email: who}, Title: c.Title, Body: fleetgitops.RequestBody(c, d.Link(c.ID)),
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
	return d.answer(p, k, err)
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
	return is.Commit == head && (is.Version == "") == (text == nil) && bytes.Equal(is.Content, text) && !more, err
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
