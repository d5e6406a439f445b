package plane

import (
	"context"
	"net/http"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
)

// EnrollmentService is the service for enrollments.
type EnrollmentService struct {
	Plane   *Service
	Changes *ChangeService
	Writer  EnrollmentWriter // used where the plane approves; nil: git approves
}

// EnrollmentWriter writes enrollments. Each permit must be narrowed to the organisation. Its errors are problems.
type EnrollmentWriter interface {
	// Get returns the enrollment.
	Get(ctx context.Context, p access.Permit) (Enrollment, error)
	// Apply makes a change, and returns the enrollment after it. changed is false if the same request created the enrollment before. A dry run
	// sends a dry-run request to the API server and changes nothing. An approval and a decline need the enrollment's current digest.
	Apply(ctx context.Context, p access.Permit, c EnrollmentChange) (e Enrollment, changed bool, err error)
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

// enrollmentKind is the kind of an enrollment's object.
const enrollmentKind = "RunnerEnrollment"

// answer returns the response, with the way in which enrollments are approved.
func (d *EnrollmentService) answer(o Outcome) Answer {
	o.Approval = "git"
	if d.Writer != nil {
		o.Approval = "plane"
	}
	return Answer{newEnvelope(d.Plane, "EnrollmentOutcome", o, d.Plane.Store.Revision(), nil)}
}
