package plane

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"

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

// maxEnrollmentAnswer is the maximum size of a response, in bytes. It includes a diff.
const maxEnrollmentAnswer = 4 << 20

// The operations. The server, the client, the reference, the MCP tool and the commands of tka are all derived from them.
var (
	RequestEnrollment = httpapi.Op[RequestRequest, Answer]{Pattern: "POST " + Base + "/enrollments", Verb: access.EnrollmentRequest, MaxResponse: maxEnrollmentAnswer,
		Doc:       "Request runners for an organisation. This opens a pull request or, where the plane approves, creates an enrollment that waits for approval.",
		Example:   RequestRequest{Org: "acme", Forge: "github", Pools: []Use{{Name: "gh-nix"}}, Owners: []Text{"amy@acme.dev"}, Reason: "our builds wait for an hour", Key: "1f0c6c1e"},
		Responses: exampleOutcomes(OutcomeProposed, OutcomeWritten), Refusals: enrollmentRefusals}
	EditEnrollment = httpapi.Op[EditRequest, Answer]{Pattern: "PATCH " + Base + "/enrollments/{org}", Verb: access.EnrollmentRequest, MaxResponse: maxEnrollmentAnswer,
		Doc:     "Change an organisation's enrollment by pull request or, where the plane approves, directly. Except for owners and members, a direct change needs a new approval.",
		Example: EditRequest{json.RawMessage(`{"quota":{"pods":80}}`), EnrollmentChange{Org: "acme", Reason: "the release"}}, Responses: exampleOutcomes(OutcomeProposed, OutcomeWritten), Refusals: enrollmentRefusals}
	ApproveEnrollment = httpapi.Op[EnrollmentDecideRequest, Answer]{Pattern: "POST " + Base + "/enrollments/{org}/approve", Verb: access.EnrollmentApprove, MaxResponse: maxEnrollmentAnswer,
		Doc:     "Approve the reviewed version of an enrollment, or its open change. Requesters and members of the organisation cannot approve it.",
		Example: EnrollmentDecideRequest{Org: "acme", Seen: exampleDigest, Reason: "they share our budget"}, Responses: exampleOutcomes(OutcomeApproved), Refusals: slices.Concat(enrollmentRefusals, []problem.Code{problem.SelfApproval})}
	DeclineEnrollment = httpapi.Op[EnrollmentDecideRequest, Answer]{Pattern: "POST " + Base + "/enrollments/{org}/decline", Verb: access.EnrollmentDecline, MaxResponse: maxEnrollmentAnswer,
		Doc:     "Decline the reviewed version of a requested enrollment, or its open change without approval. The enrollment is deleted; the change is closed at the forge with the reason.",
		Example: EnrollmentDecideRequest{Org: "acme", Seen: exampleDigest, Reason: "they have runners of their own"}, Responses: exampleOutcomes(OutcomeDeclined), Refusals: enrollmentRefusals}
	OffboardEnrollment = httpapi.Op[OffboardRequest, Answer]{Pattern: "POST " + Base + "/enrollments/{org}/offboard", Verb: access.OffboardRequest, MaxResponse: maxEnrollmentAnswer,
		Doc:     "End an organisation's runners by pull request. Where the plane approves, this ends them at once if the caller's role allows it, and otherwise records a request.",
		Example: OffboardRequest{EnrollmentChange{Org: "acme", Reason: "they have moved away"}, "OFFBOARD acme"}, Responses: exampleOutcomes(OutcomeProposed, OutcomeWritten, OutcomeRecorded), Refusals: offboardRefusals}
	// DeleteEnrollment is Offboard as a DELETE request.
	DeleteEnrollment = httpapi.Op[OffboardRequest, Answer]{Pattern: "DELETE " + Base + "/enrollments/{org}", Verb: access.OffboardRequest, MaxResponse: maxEnrollmentAnswer,
		Doc: "Same as offboard.", Example: OffboardEnrollment.Example, Responses: OffboardEnrollment.Responses, Refusals: offboardRefusals}
	RotateCredential = httpapi.Op[RotateRequest, Answer]{Pattern: "POST " + Base + "/enrollments/{org}/rotate", Verb: access.RotateRequest, MaxResponse: maxEnrollmentAnswer,
		Doc:     "Replace an organisation's credential by pull request or, where the plane approves, directly or on request. The fleet replaces GitLab runner credentials; a person must replace a GitHub App key.",
		Example: RotateRequest{EnrollmentChange{Org: "acme", Reason: "a laptop was lost"}}, Responses: exampleOutcomes(OutcomeProposed, OutcomeWritten, OutcomeRecorded), Refusals: slices.Concat(enrollmentRefusals, []problem.Code{problem.SelfApproval})}
)

var (
	enrollmentRefusals = slices.Concat(writeRefusals, []problem.Code{problem.AuditUnavailable})
	offboardRefusals   = slices.Concat(enrollmentRefusals, []problem.Code{problem.Confirmation})
)

// Routes returns the routes of the API, served by d.
func (d *EnrollmentService) Routes() []httpapi.Route {
	return []httpapi.Route{
		handle(d.Plane, RequestEnrollment, d.requestEnrollment),
		changeRoute(d, EditEnrollment, func(r EditRequest) EnrollmentChange {
			r.Action, r.EnrollmentChange.Patch = ActionEdit, r.Patch
			return r.EnrollmentChange
		}),
		changeRoute(d, ApproveEnrollment, func(r EnrollmentDecideRequest) EnrollmentChange { return r.change(ActionApprove) }),
		changeRoute(d, DeclineEnrollment, func(r EnrollmentDecideRequest) EnrollmentChange { return r.change(ActionDecline) }),
		changeRoute(d, OffboardEnrollment, OffboardRequest.change), changeRoute(d, DeleteEnrollment, OffboardRequest.change),
		changeRoute(d, RotateCredential, func(r RotateRequest) EnrollmentChange {
			r.Action = ActionRotate
			return r.EnrollmentChange
		}),
	}
}

// changeRoute returns the route of an operation that changes an enrollment.
func changeRoute[Req any](d *EnrollmentService, op httpapi.Op[Req, Answer], change func(Req) EnrollmentChange) httpapi.Route {
	return handle(d.Plane, op, func(ctx context.Context, p access.Permit, req Req) (Answer, error) {
		return d.change(ctx, p, change(req))
	})
}

const exampleDigest = "sha256:0f3c9a1b2d4e5f6071820f3c9a1b2d4e5f6071820f3c9a1b2d4e5f6071820f3c"

// exampleOutcomes returns example responses for the reference.
func exampleOutcomes(done ...string) (all []Answer) {
	for _, is := range done {
		o := Outcome{OrgName: "acme", Approval: "plane", Done: is, Seen: exampleDigest}
		if is == OutcomeProposed {
			o.Approval, o.Seen, o.Change = "git", "0f3c9a1b2d4e5f6071820f3c9a1b2d4e5f607182", new(exampleEnrollmentChange())
		} else {
			o.Enrollment = new(exampleEnrollment())
		}
		all = append(all, Answer{newExample("EnrollmentOutcome", o)})
	}
	return all
}
