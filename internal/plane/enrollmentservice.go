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
	Approval   string      `json:"approval" enum:"git,plane" doc:"what approves enrollments: a merged pull request, or the plane"`
	Done       string      `json:"done" enum:"proposed,approved,declined,written,asked,nothing" doc:"proposed: a pull request is open; declined: it is closed, or what was asked for is gone; asked: it stands with the enrollment, for those who run the platform; nothing: it was a dry run, or was done already"`
	Would      string      `json:"would,omitempty" enum:"proposed,approved,declined,written,asked" doc:"in a dry run, what would be done"`
	Seen       string      `json:"seen,omitempty" doc:"what an approval, or to decline it, has to name: the commit of the open change, or the enrollment's digest"`
	Change     *Change     `json:"change" doc:"the change by pull request; null: there is none"`
	Preview    *Preview    `json:"preview,omitempty" doc:"in a dry run, the change as it would be"`
	Enrollment *Enrollment `json:"enrollment" doc:"as it is then; null: it is what the change says"`
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

// narrowPermit checks the reason and narrows the permit to the organisation.
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
	refused := problem.New(problem.Confirmation, fmt.Sprintf("This takes all runners of %s down and deletes their credential.", org), fmt.Sprintf("If it is meant, ask again with the phrase %q.", phrase))
	refused.Confirm = &problem.Confirm{Phrase: phrase}
	return refused
}
