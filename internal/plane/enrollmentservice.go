package plane

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
)

// EnrollmentService is the service for enrollments.
type EnrollmentService struct {
	Plane   *Service
	Changes *ChangeService
	Writer  EnrollmentWriter // used where the plane approves; nil: git approves
}

// EnrollmentWriter writes enrollments. Each permit must be narrowed to the organisation. With dryRun it sends a dry-run request to the API server and
// changes nothing. It returns the enrollment after the change. Its errors are problems.
type EnrollmentWriter interface {
	// Get returns the enrollment.
	Get(ctx context.Context, p access.Permit) (Enrollment, error)
	// Create creates an unapproved enrollment. If the same request has already created it, Create returns it unchanged and created is
	// false.
	Create(ctx context.Context, p access.Permit, spec json.RawMessage, request string, dryRun bool) (e Enrollment, created bool, err error)
	// Edit changes the spec by a merge patch.
	Edit(ctx context.Context, p access.Permit, patch json.RawMessage, dryRun bool) (Enrollment, error)
	// Approve approves the enrollment if it has the digest.
	Approve(ctx context.Context, p access.Permit, digest string, dryRun bool) (Enrollment, error)
	// Decline deletes the enrollment if it has the digest and is only requested.
	Decline(ctx context.Context, p access.Permit, digest string, dryRun bool) (Enrollment, error)
	// Rotate triggers the replacement of the credential.
	Rotate(ctx context.Context, p access.Permit, dryRun bool) (Enrollment, error)
	// Offboard deletes the enrollment. The fleet then removes its runners.
	Offboard(ctx context.Context, p access.Permit, dryRun bool) (Enrollment, error)
	// RequestAction records a request for an action that the caller may not take.
	RequestAction(ctx context.Context, p access.Permit, what RequestedAction, reason string, dryRun bool) (Enrollment, error)
}

// The results of a request.
const (
	OutcomeProposed = "proposed" // a pull request is open
	OutcomeApproved = "approved" // the open change or the enrollment is approved
	OutcomeDeclined = "declined" // the open change is closed, or the requested enrollment is deleted
	OutcomeWritten  = "written"  // the enrollment is written; the fleet does the rest
	OutcomeRecorded = "asked"    // the request is recorded on the enrollment, for the platform team
	OutcomeNothing  = "nothing"  // a dry run, or done already
)

// Outcome is the result of a request, or of its dry run.
type Outcome struct {
	OrgName    string      `json:"org"`
	Approval   string      `json:"approval" enum:"git,plane" doc:"how enrollments are approved: by a merged pull request, or by the plane"`
	Done       string      `json:"done" enum:"proposed,approved,declined,written,asked,nothing" doc:"proposed: a pull request is open; declined: the pull request is closed, or the requested enrollment is deleted; asked: the request is recorded in the enrollment, for platform-admins; nothing: a dry run, or already done"`
	Would      string      `json:"would,omitempty" enum:"proposed,approved,declined,written,asked" doc:"in a dry run, the result of the real request"`
	Seen       string      `json:"seen,omitempty" doc:"the version to name when approving or declining: the commit of the open change, or the enrollment's digest"`
	Change     *Change     `json:"change" doc:"the change by pull request; null: none"`
	Preview    *Preview    `json:"preview,omitempty" doc:"in a dry run, a preview of the change"`
	Enrollment *Enrollment `json:"enrollment" doc:"the enrollment afterwards; null: see the change"`
}

// AuditObject returns the change, or else the organisation, for the audit log.
func (o Outcome) AuditObject() string {
	if o.Change != nil {
		return o.Change.ID
	}
	return o.OrgName
}

// Answer is a response with an Outcome. Its status is 202 if a person must still approve the change or make it.
type Answer struct{ Envelope[Outcome] }

// WithAuditID implements [httpapi.AuditIdentifiable].
func (a Answer) WithAuditID(id string) any {
	a.Meta.RequestID = id
	return a
}

// EncodeResponse implements [httpapi.Responder].
func (a Answer) EncodeResponse(string) (httpapi.Response, error) {
	s := httpapi.Response{Status: http.StatusOK, Body: a.Envelope}
	if a.Data.Done == OutcomeProposed || a.Data.Done == OutcomeRecorded {
		s.Status = http.StatusAccepted
	}
	return s, nil
}

const outcomeKind = "RunnerEnrollment"

// approvedBy returns what approves enrollments: git or plane.
func (d *EnrollmentService) approvedBy() string {
	if d.Writer == nil {
		return "git"
	}
	return "plane"
}

func (d *EnrollmentService) answer(o Outcome) Answer {
	o.Approval = d.approvedBy()
	return Answer{newEnvelope(d.Plane, "EnrollmentOutcome", o, d.Plane.Store.Revision(), nil)}
}

// writtenOutcome returns the response for a change that the Writer has made, or would make.
func (d *EnrollmentService) writtenOutcome(p access.Permit, e Enrollment, done string, dryRun bool) Answer {
	e = e.For(ViewerOf(p)).(Enrollment)
	o := Outcome{OrgName: p.Org(), Done: done, Seen: e.Digest, Enrollment: &e}
	if dryRun {
		o.Done, o.Would = OutcomeNothing, done
	}
	return d.answer(o)
}

// propose makes the requested edit as a pull request.
func (d *EnrollmentService) propose(ctx context.Context, p access.Permit, edit Edit, title string, reason Reason, key IdempotencyKey, dryRun bool) (Answer, error) {
	edit.Kind, edit.Name = outcomeKind, Text(p.Org())
	if dryRun {
		e, err := d.Changes.previewChange(ctx, p, PreviewRequest{Edit: edit})
		if err != nil {
			return Answer{}, err
		}
		return d.answer(Outcome{OrgName: p.Org(), Done: OutcomeNothing, Would: OutcomeProposed, Preview: &e.Data}), nil
	}
	e, err := d.Changes.proposeChange(ctx, p, ProposeRequest{Edit: edit, Title: title, Reason: reason, Key: key})
	if err != nil {
		return Answer{}, err
	}
	return d.answer(Outcome{OrgName: p.Org(), Done: OutcomeProposed, Seen: e.Data.Head, Change: &e.Data}), nil
}

// narrowPermit checks the reason, and returns the permit for this organisation only.
func narrowPermit(p access.Permit, org string, reason Reason) (access.Permit, error) {
	if err := reason.check(); err != nil {
		return p, err
	}
	return p.In(org)
}

// allows reports whether the caller may use the verb for the permit's organisation.
func allows(p access.Permit, v access.Verb) bool { return ViewerOf(p).In(p.Org(), v) }

// checkConfirm returns a Confirmation error unless confirm is the phrase.
func checkConfirm(org, confirm string) error {
	phrase := "OFFBOARD " + org
	if confirm == phrase {
		return nil
	}
	refused := problem.New(problem.Confirmation, fmt.Sprintf("This removes all runners of %s and deletes their credential.", org), fmt.Sprintf("To confirm, send the request again with the phrase %q.", phrase))
	refused.Confirm = &problem.Confirm{Phrase: phrase}
	return refused
}
