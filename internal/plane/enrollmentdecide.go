package plane

import (
	"context"
	"encoding/json"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

// EditRequest changes an organisation's enrollment.
type EditRequest struct {
	Org    string          `json:"-" path:"org"`
	Patch  json.RawMessage `json:"patch" doc:"a merge patch of its spec (RFC 7386)"`
	Reason Reason          `json:"reason" doc:"why, 1 to 500 characters"`
	DryRun Flag            `json:"-" query:"dryRun" doc:"show the result, and change nothing"`
	Key    IdempotencyKey  `json:"-" header:"Idempotency-Key" doc:"a request with the same key returns what the first one made"`
}

// AuditArgs returns the arguments of the request for the audit log.
func (r EditRequest) AuditArgs() map[string]string {
	return r.DryRun.addAuditArg(map[string]string{"org": r.Org, "reason": string(r.Reason)})
}

func (d *EnrollmentService) editEnrollment(ctx context.Context, p access.Permit, req EditRequest) (Answer, error) {
	p, err := narrowPermit(p, req.Org, req.Reason)
	if err != nil {
		return Answer{}, err
	}
	if fields, err := parseObject("patch", req.Patch); err != nil {
		return Answer{}, err
	} else if len(fields) == 0 {
		return Answer{}, invalidField("patch", "The patch changes nothing.", "Send the fields of the spec to change.")
	}
	if d.Writer == nil {
		return d.propose(ctx, p, Edit{Patch: req.Patch}, "", req.Reason, req.Key, bool(req.DryRun))
	}
	e, err := d.Writer.Edit(ctx, p, req.Patch, bool(req.DryRun))
	if err != nil {
		return Answer{}, err
	}
	return d.writtenOutcome(p, e, OutcomeWritten, bool(req.DryRun)), nil
}

// EnrollmentDecideRequest is a decision about an enrollment that the caller has reviewed.
type EnrollmentDecideRequest struct {
	Org    string `json:"-" path:"org"`
	Seen   Text   `json:"seen,omitempty" doc:"the reviewed version, from a dry run: the commit of the open change, or the enrollment's digest"`
	Reason Reason `json:"reason" doc:"why, 1 to 500 characters"`
	DryRun Flag   `json:"-" query:"dryRun" doc:"show the enrollment or change, and change nothing"`
}

// AuditArgs returns the arguments of the request for the audit log.
func (r EnrollmentDecideRequest) AuditArgs() map[string]string {
	return r.DryRun.addAuditArg(map[string]string{"org": r.Org, "seen": string(r.Seen), "reason": string(r.Reason)})
}

// approveEnrollment approves the enrollment, or, where git approves, its open change.
func (d *EnrollmentService) approveEnrollment(ctx context.Context, p access.Permit, req EnrollmentDecideRequest) (Answer, error) {
	return d.decide(ctx, p, req, OutcomeApproved, EnrollmentWriter.Approve)
}

// declineEnrollment declines an enrollment that is only requested, or, where git approves, its open change. The reason is for the requester: it is in
// the audit log, and in the comment on the change.
func (d *EnrollmentService) declineEnrollment(ctx context.Context, p access.Permit, req EnrollmentDecideRequest) (Answer, error) {
	return d.decide(ctx, p, req, OutcomeDeclined, EnrollmentWriter.Decline)
}

// decide applies a decision: through write where the plane approves, and through the open change otherwise. The caller must name the
// version that it has reviewed.
func (d *EnrollmentService) decide(ctx context.Context, p access.Permit, req EnrollmentDecideRequest, done string, write func(EnrollmentWriter, context.Context, access.Permit, string, bool) (Enrollment, error)) (Answer, error) {
	p, err := narrowPermit(p, req.Org, req.Reason)
	switch {
	case err != nil:
		return Answer{}, err
	case req.Seen == "" && !bool(req.DryRun):
		return Answer{}, invalidField("seen", "The request must name the reviewed version.", "A dry run shows the enrollment and its version.")
	case d.Writer == nil:
		return d.decideChange(ctx, p, req, done)
	}
	if req.DryRun && req.Seen == "" {
		e, err := d.Writer.Get(ctx, p)
		if err != nil {
			return Answer{}, err
		}
		req.Seen = Text(e.Digest)
	}
	e, err := write(d.Writer, ctx, p, string(req.Seen), bool(req.DryRun))
	if err != nil {
		return Answer{}, err
	}
	return d.writtenOutcome(p, e, done, bool(req.DryRun)), nil
}

func (d *EnrollmentService) decideChange(ctx context.Context, p access.Permit, req EnrollmentDecideRequest, done string) (Answer, error) {
	c, found := d.Changes.openChange(outcomeKind, req.Org)
	if !found {
		return Answer{}, problem.New(problem.NotFound, "This organisation's enrollment has no open change.", "Enrollments are decided by pull request here. Check the changes.")
	}
	if req.DryRun {
		c = c.For(ViewerOf(p)).(Change)
		return d.answer(Outcome{OrgName: req.Org, Done: OutcomeNothing, Would: done, Seen: c.Head, Change: &c}), nil
	}
	does := d.Changes.approveChange
	if done == OutcomeDeclined {
		does = d.Changes.declineChange
	}
	e, err := does(ctx, p, DecideRequest{ID: c.ID, Head: string(req.Seen), Reason: req.Reason})
	if err != nil {
		return Answer{}, err
	}
	return d.answer(Outcome{OrgName: req.Org, Done: done, Seen: e.Data.Head, Change: &e.Data}), nil
}

// OffboardRequest ends an organisation's enrollment.
type OffboardRequest struct {
	Org     string         `json:"-" path:"org"`
	Reason  Reason         `json:"reason" doc:"why, 1 to 500 characters"`
	Confirm Text           `json:"confirm,omitempty" doc:"the phrase from the error confirmation_required, if the plane makes the change directly"`
	DryRun  Flag           `json:"-" query:"dryRun" doc:"show the result, and change nothing"`
	Key     IdempotencyKey `json:"-" header:"Idempotency-Key" doc:"a request with the same key returns what the first one made"`
}

// AuditArgs returns the arguments of the request for the audit log.
func (r OffboardRequest) AuditArgs() map[string]string {
	return r.DryRun.addAuditArg(map[string]string{"org": r.Org, "reason": string(r.Reason)})
}

// offboardEnrollment ends an enrollment, or records the request for it. The fleet lets the last jobs finish first.
func (d *EnrollmentService) offboardEnrollment(ctx context.Context, p access.Permit, req OffboardRequest) (Answer, error) {
	p, err := narrowPermit(p, req.Org, req.Reason)
	switch {
	case err != nil:
		return Answer{}, err
	case d.Writer == nil:
		return d.propose(ctx, p, Edit{Remove: true}, "Offboard "+req.Org, req.Reason, req.Key, bool(req.DryRun))
	case !allows(p, access.EnrollmentOffboard):
		return d.requestAction(ctx, p, ActionOffboard, req.Reason, bool(req.DryRun))
	case !bool(req.DryRun):
		if err := checkConfirm(req.Org, string(req.Confirm)); err != nil {
			return Answer{}, err
		}
	}
	e, err := d.Writer.Offboard(ctx, p, bool(req.DryRun))
	if err != nil {
		return Answer{}, err
	}
	return d.writtenOutcome(p, e, OutcomeWritten, bool(req.DryRun)), nil
}

// RotateRequest replaces an organisation's credential.
type RotateRequest struct {
	Org    string         `json:"-" path:"org"`
	Reason Reason         `json:"reason" doc:"why, 1 to 500 characters"`
	DryRun Flag           `json:"-" query:"dryRun" doc:"show the result, and change nothing"`
	Key    IdempotencyKey `json:"-" header:"Idempotency-Key" doc:"a request with the same key returns what the first one made"`
}

// AuditArgs returns the arguments of the request for the audit log.
func (r RotateRequest) AuditArgs() map[string]string {
	return r.DryRun.addAuditArg(map[string]string{"org": r.Org, "reason": string(r.Reason)})
}

// rotateCredential triggers the replacement of a credential, or records the request for it. The fleet replaces GitLab credentials. For GitHub a
// person must create a new key.
func (d *EnrollmentService) rotateCredential(ctx context.Context, p access.Permit, req RotateRequest) (Answer, error) {
	p, err := narrowPermit(p, req.Org, req.Reason)
	switch {
	case err != nil:
		return Answer{}, err
	case d.Writer == nil:
		patch, err := json.Marshal(map[string]any{"credentials": map[string]any{"rotateAt": d.Plane.Now().UTC().Format(time.RFC3339)}})
		if err != nil {
			return Answer{}, err
		}
		return d.propose(ctx, p, Edit{Patch: patch}, "Rotate the credential of "+req.Org, req.Reason, req.Key, bool(req.DryRun))
	case !allows(p, access.CredentialsRotate):
		return d.requestAction(ctx, p, ActionRotate, req.Reason, bool(req.DryRun))
	}
	e, err := d.Writer.Rotate(ctx, p, bool(req.DryRun))
	if err != nil {
		return Answer{}, err
	}
	return d.writtenOutcome(p, e, OutcomeWritten, bool(req.DryRun)), nil
}

// requestAction records a request for an action that the caller may not take.
func (d *EnrollmentService) requestAction(ctx context.Context, p access.Permit, what RequestedAction, reason Reason, dryRun bool) (Answer, error) {
	e, err := d.Writer.RequestAction(ctx, p, what, string(reason), dryRun)
	if err != nil {
		return Answer{}, err
	}
	return d.writtenOutcome(p, e, OutcomeRecorded, dryRun), nil
}
