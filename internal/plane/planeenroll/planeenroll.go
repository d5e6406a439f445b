// Package planeenroll handles requests for runners of an organisation, and their approval, rotation and end. People must not approve what
// they requested. Where git approves, every request becomes a pull request and the plane itself writes nothing.
package planeenroll

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/plane/planechange"
	"github.com/tailplane/tailplane/internal/plane/planefleet"
	"github.com/tailplane/tailplane/internal/problem"
)

// Desk is the service for enrollments.
type Desk struct {
	Plane   *plane.Desk
	Changes *planechange.Desk
	Writer  Writer // used where the plane approves; nil: git approves
}

// Writer writes enrollments. Each permit must be narrowed to the organisation. With dryRun it sends a dry-run request to the API server and
// changes nothing. It returns the enrollment after the change. Its errors are problems.
type Writer interface {
	// Read returns the enrollment.
	Read(ctx context.Context, p access.Permit) (planefleet.Enrollment, error)
	// Create creates an unapproved enrollment. If the same request has already created it, Create returns it unchanged and created is
	// false.
	Create(ctx context.Context, p access.Permit, spec json.RawMessage, request string, dryRun bool) (e planefleet.Enrollment, created bool, err error)
	// Edit changes the spec by a merge patch.
	Edit(ctx context.Context, p access.Permit, patch json.RawMessage, dryRun bool) (planefleet.Enrollment, error)
	// Approve approves the enrollment if it has the digest.
	Approve(ctx context.Context, p access.Permit, digest string, dryRun bool) (planefleet.Enrollment, error)
	// Decline deletes the enrollment if it has the digest and is only requested.
	Decline(ctx context.Context, p access.Permit, digest string, dryRun bool) (planefleet.Enrollment, error)
	// Rotate triggers the replacement of the credential.
	Rotate(ctx context.Context, p access.Permit, dryRun bool) (planefleet.Enrollment, error)
	// Offboard deletes the enrollment. The fleet then removes its runners.
	Offboard(ctx context.Context, p access.Permit, dryRun bool) (planefleet.Enrollment, error)
	// Ask records a request for an action that the caller may not take.
	Ask(ctx context.Context, p access.Permit, what planefleet.Wish, reason string, dryRun bool) (planefleet.Enrollment, error)
}

// The results of a request.
const (
	Proposed = "proposed" // a pull request is open
	Approved = "approved" // the open change or the enrollment is approved
	Declined = "declined" // the open change is closed, or the requested enrollment is deleted
	Written  = "written"  // the enrollment is written; the fleet does the rest
	Asked    = "asked"    // the request is recorded on the enrollment, for the platform team
	Nothing  = "nothing"  // a dry run, or done already
)

// Outcome is the result of a request, or of its dry run.
type Outcome struct {
	OrgName    string                 `json:"org"`
	Approval   string                 `json:"approval" enum:"git,plane" doc:"what approves enrollments: a merged pull request, or the plane"`
	Done       string                 `json:"done" enum:"proposed,approved,declined,written,asked,nothing" doc:"proposed: a pull request is open; declined: it is closed, or what was asked for is gone; asked: it stands with the enrollment, for those who run the platform; nothing: it was a dry run, or was done already"`
	Would      string                 `json:"would,omitempty" enum:"proposed,approved,declined,written,asked" doc:"in a dry run, what would be done"`
	Seen       string                 `json:"seen,omitempty" doc:"what an approval, or to decline it, has to name: the commit of the open change, or the enrollment's digest"`
	Change     *planechange.Change    `json:"change" doc:"the change by pull request; null: there is none"`
	Preview    *planechange.Preview   `json:"preview,omitempty" doc:"in a dry run, the change as it would be"`
	Enrollment *planefleet.Enrollment `json:"enrollment" doc:"as it is then; null: it is what the change says"`
}

// AuditObject returns the change, or else the organisation, for the audit log.
func (o Outcome) AuditObject() string {
	if o.Change != nil {
		return o.Change.ID
	}
	return o.OrgName
}

// Answer is a response with an Outcome. Its status is 202 if a person must still approve the change or make it.
type Answer struct{ plane.Envelope[Outcome] }

// WithAuditID implements [door.Identifiable].
func (a Answer) WithAuditID(id string) any {
	a.Meta.RequestID = id
	return a
}

// Shape implements [door.Shaped].
func (a Answer) Shape(string) (door.Shape, error) {
	s := door.Shape{Status: http.StatusOK, Body: a.Envelope}
	if a.Data.Done == Proposed || a.Data.Done == Asked {
		s.Status = http.StatusAccepted
	}
	return s, nil
}

const kind = "RunnerEnrollment"

// by returns what approves enrollments: git or plane.
func (d *Desk) by() string {
	if d.Writer == nil {
		return "git"
	}
	return "plane"
}

func (d *Desk) answer(o Outcome) Answer {
	o.Approval = d.by()
	return Answer{plane.Answer(d.Plane, "EnrollmentOutcome", o, d.Plane.Board.Revision(), nil)}
}

// written returns the response for a change that the Writer has made, or would make.
func (d *Desk) written(p access.Permit, e planefleet.Enrollment, done string, dryRun bool) Answer {
	e = e.For(plane.ViewerOf(p)).(planefleet.Enrollment)
	o := Outcome{OrgName: p.Org(), Done: done, Seen: e.Digest, Enrollment: &e}
	if dryRun {
		o.Done, o.Would = Nothing, done
	}
	return d.answer(o)
}

// propose makes the requested edit as a pull request.
func (d *Desk) propose(ctx context.Context, p access.Permit, edit planechange.Edit, title string, reason plane.Reason, key plane.IdempotencyKey, dryRun bool) (Answer, error) {
	edit.Kind, edit.Name = kind, plane.Text(p.Org())
	if dryRun {
		e, err := d.Changes.Preview(ctx, p, planechange.PreviewRequest{Edit: edit})
		if err != nil {
			return Answer{}, err
		}
		return d.answer(Outcome{OrgName: p.Org(), Done: Nothing, Would: Proposed, Preview: &e.Data}), nil
	}
	e, err := d.Changes.Propose(ctx, p, planechange.ProposeRequest{Edit: edit, Title: title, Reason: reason, Key: key})
	if err != nil {
		return Answer{}, err
	}
	return d.answer(Outcome{OrgName: p.Org(), Done: Proposed, Seen: e.Data.Head, Change: &e.Data}), nil
}

// begin checks the reason and narrows the permit to the organisation.
func begin(p access.Permit, org string, reason plane.Reason) (access.Permit, error) {
	if err := reason.Check(); err != nil {
		return p, err
	}
	return p.In(org)
}

// may reports whether the caller may use the verb for the permit's organisation.
func may(p access.Permit, v access.Verb) bool { return plane.ViewerOf(p).In(p.Org(), v) }

// meant returns a Confirmation error unless confirm is the phrase.
func meant(org, confirm string) error {
	phrase := "OFFBOARD " + org
	if confirm == phrase {
		return nil
	}
	refused := problem.New(problem.Confirmation, fmt.Sprintf("This takes all runners of %s down and deletes their credential.", org), fmt.Sprintf("If it is meant, ask again with the phrase %q.", phrase))
	refused.Confirm = &problem.Confirm{Phrase: phrase}
	return refused
}
