package planeenroll

import (
	"context"
	"encoding/json"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/plane/planechange"
	"github.com/tailplane/tailplane/internal/plane/planefleet"
	"github.com/tailplane/tailplane/internal/problem"
)

// EditRequest changes an organisation's enrollment.
type EditRequest struct {
	Org    string               `json:"-" path:"org"`
	Patch  json.RawMessage      `json:"patch" doc:"a merge patch of its spec (RFC 7386)"`
	Reason plane.Reason         `json:"reason" doc:"why, 1 to 500 characters"`
	DryRun plane.Flag           `json:"-" query:"dryRun" doc:"show what it would become, and change nothing"`
	Key    plane.IdempotencyKey `json:"-" header:"Idempotency-Key" doc:"a request with the key of an earlier one finds what that one made"`
}

// AuditArgs returns the arguments of the request for the audit log.
func (r EditRequest) AuditArgs() map[string]string {
	return r.DryRun.Noted(map[string]string{"org": r.Org, "reason": string(r.Reason)})
}

func (d *Desk) edit(ctx context.Context, p access.Permit, req EditRequest) (Answer, error) {
	p, err := begin(p, req.Org, req.Reason)
	if err != nil {
		return Answer{}, err
	}
	if fields, err := object("patch", req.Patch); err != nil {
		return Answer{}, err
	} else if len(fields) == 0 {
		return Answer{}, plane.Invalid("patch", "That changes nothing.", "Give the fields of the spec that are to be others.")
	}
	if d.Writer == nil {
		return d.propose(ctx, p, planechange.Edit{Patch: req.Patch}, "", req.Reason, req.Key, bool(req.DryRun))
	}
	e, err := d.Writer.Edit(ctx, p, req.Patch, bool(req.DryRun))
	if err != nil {
		return Answer{}, err
	}
	return d.written(p, e, Written, bool(req.DryRun)), nil
}

// DecideRequest is a decision about an enrollment that the caller has reviewed.
type DecideRequest struct {
	Org    string       `json:"-" path:"org"`
	Seen   plane.Text   `json:"seen,omitempty" doc:"what was looked at, as a dry run says it: the commit of the open change, or the enrollment's digest"`
	Reason plane.Reason `json:"reason" doc:"why, 1 to 500 characters"`
	DryRun plane.Flag   `json:"-" query:"dryRun" doc:"show what it is about, and change nothing"`
}

// AuditArgs returns the arguments of the request for the audit log.
func (r DecideRequest) AuditArgs() map[string]string {
	return r.DryRun.Noted(map[string]string{"org": r.Org, "seen": string(r.Seen), "reason": string(r.Reason)})
}

// approve approves the enrollment, or, where git approves, its open change.
func (d *Desk) approve(ctx context.Context, p access.Permit, req DecideRequest) (Answer, error) {
	return d.decide(ctx, p, req, Approved, Writer.Approve)
}

// decline declines an enrollment that is only requested, or, where git approves, its open change. The reason is for the requester: it is in
// the audit log, and in the comment on the change.
func (d *Desk) decline(ctx context.Context, p access.Permit, req DecideRequest) (Answer, error) {
	return d.decide(ctx, p, req, Declined, Writer.Decline)
}

// decide applies a decision: through write where the plane approves, and through the open change otherwise. The caller must name the
// version that it has reviewed.
func (d *Desk) decide(ctx context.Context, p access.Permit, req DecideRequest, done string, write func(Writer, context.Context, access.Permit, string, bool) (planefleet.Enrollment, error)) (Answer, error) {
	p, err := begin(p, req.Org, req.Reason)
	switch {
	case err != nil:
		return Answer{}, err
	case req.Seen == "" && !bool(req.DryRun):
		return Answer{}, plane.Invalid("seen", "Say what was looked at.", "A dry run shows it, with what to name.")
	case d.Writer == nil:
		return d.decideChange(ctx, p, req, done)
	}
	if req.DryRun && req.Seen == "" {
		e, err := d.Writer.Read(ctx, p)
		if err != nil {
			return Answer{}, err
		}
		req.Seen = plane.Text(e.Digest)
	}
	e, err := write(d.Writer, ctx, p, string(req.Seen), bool(req.DryRun))
	if err != nil {
		return Answer{}, err
	}
	return d.written(p, e, done, bool(req.DryRun)), nil
}

func (d *Desk) decideChange(ctx context.Context, p access.Permit, req DecideRequest, done string) (Answer, error) {
	c, there := d.Changes.OpenOf(kind, req.Org)
	if !there {
		return Answer{}, problem.New(problem.NotFound, "No change of this organisation's enrollment is open.", "Here a pull request is decided about; look at the changes.")
	}
	if req.DryRun {
		c = c.For(plane.ViewerOf(p)).(planechange.Change)
		return d.answer(Outcome{OrgName: req.Org, Done: Nothing, Would: done, Seen: c.Head, Change: &c}), nil
	}
	does := d.Changes.Approve
	if done == Declined {
		does = d.Changes.Decline
	}
	e, err := does(ctx, p, planechange.DecideRequest{ID: c.ID, Head: string(req.Seen), Reason: req.Reason})
	if err != nil {
		return Answer{}, err
	}
	return d.answer(Outcome{OrgName: req.Org, Done: done, Seen: e.Data.Head, Change: &e.Data}), nil
}

// OffboardRequest ends an organisation's enrollment.
type OffboardRequest struct {
	Org     string               `json:"-" path:"org"`
	Reason  plane.Reason         `json:"reason" doc:"why, 1 to 500 characters"`
	Confirm plane.Text           `json:"confirm,omitempty" doc:"the phrase that the refusal confirmation_required names, where it is done at once"`
	DryRun  plane.Flag           `json:"-" query:"dryRun" doc:"show what it would become, and change nothing"`
	Key     plane.IdempotencyKey `json:"-" header:"Idempotency-Key" doc:"a request with the key of an earlier one finds what that one made"`
}

// AuditArgs returns the arguments of the request for the audit log.
func (r OffboardRequest) AuditArgs() map[string]string {
	return r.DryRun.Noted(map[string]string{"org": r.Org, "reason": string(r.Reason)})
}

// offboard ends an enrollment, or records the request for it. The fleet lets the last jobs finish first.
func (d *Desk) offboard(ctx context.Context, p access.Permit, req OffboardRequest) (Answer, error) {
	p, err := begin(p, req.Org, req.Reason)
	switch {
	case err != nil:
		return Answer{}, err
	case d.Writer == nil:
		return d.propose(ctx, p, planechange.Edit{Remove: true}, "Offboard "+req.Org, req.Reason, req.Key, bool(req.DryRun))
	case !may(p, access.EnrollmentOffboard):
		return d.ask(ctx, p, planefleet.WishOffboard, req.Reason, bool(req.DryRun))
	case !bool(req.DryRun):
		if err := meant(req.Org, string(req.Confirm)); err != nil {
			return Answer{}, err
		}
	}
	e, err := d.Writer.Offboard(ctx, p, bool(req.DryRun))
	if err != nil {
		return Answer{}, err
	}
	return d.written(p, e, Written, bool(req.DryRun)), nil
}

// RotateRequest replaces an organisation's credential.
type RotateRequest struct {
	Org    string               `json:"-" path:"org"`
	Reason plane.Reason         `json:"reason" doc:"why, 1 to 500 characters"`
	DryRun plane.Flag           `json:"-" query:"dryRun" doc:"show what it would become, and change nothing"`
	Key    plane.IdempotencyKey `json:"-" header:"Idempotency-Key" doc:"a request with the key of an earlier one finds what that one made"`
}

// AuditArgs returns the arguments of the request for the audit log.
func (r RotateRequest) AuditArgs() map[string]string {
	return r.DryRun.Noted(map[string]string{"org": r.Org, "reason": string(r.Reason)})
}

// rotate triggers the replacement of a credential, or records the request for it. The fleet replaces GitLab credentials. For GitHub a
// person must create a new key.
func (d *Desk) rotate(ctx context.Context, p access.Permit, req RotateRequest) (Answer, error) {
	p, err := begin(p, req.Org, req.Reason)
	switch {
	case err != nil:
		return Answer{}, err
	case d.Writer == nil:
		patch, err := json.Marshal(map[string]any{"credentials": map[string]any{"rotateAt": d.Plane.Now().UTC().Format(time.RFC3339)}})
		if err != nil {
			return Answer{}, err
		}
		return d.propose(ctx, p, planechange.Edit{Patch: patch}, "Rotate the credential of "+req.Org, req.Reason, req.Key, bool(req.DryRun))
	case !may(p, access.CredentialsRotate):
		return d.ask(ctx, p, planefleet.WishRotate, req.Reason, bool(req.DryRun))
	}
	e, err := d.Writer.Rotate(ctx, p, bool(req.DryRun))
	if err != nil {
		return Answer{}, err
	}
	return d.written(p, e, Written, bool(req.DryRun)), nil
}

// ask records a request for an action that the caller may not take.
func (d *Desk) ask(ctx context.Context, p access.Permit, what planefleet.Wish, reason plane.Reason, dryRun bool) (Answer, error) {
	e, err := d.Writer.Ask(ctx, p, what, string(reason), dryRun)
	if err != nil {
		return Answer{}, err
	}
	return d.written(p, e, Asked, dryRun), nil
}
