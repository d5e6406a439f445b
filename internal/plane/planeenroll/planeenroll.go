// Package planeenroll lets people ask for runners of an organisation, and approve,
// rotate and end them. It keeps the law that nobody approves what they asked for: where
// git approves, whatever is asked for is a change by pull request, and the plane writes
// nothing itself.
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

// A Desk answers what people ask about enrollments.
type Desk struct {
	Plane   *plane.Desk
	Changes *planechange.Desk
	Writer  Writer // where the plane approves; nil: git does
}

// A Writer writes enrollments, each for a permit that is narrowed to the organisation.
// With dryRun it asks the API server whether it would, and changes nothing. What it
// returns is the enrollment as it is then, or would be. Its errors are problems.
type Writer interface {
	// Read returns the enrollment as it is.
	Read(ctx context.Context, p access.Permit) (planefleet.Enrollment, error)
	// Create makes one that nobody has approved yet. One that was made by the same
	// request is returned as it is: created says which of the two.
	Create(ctx context.Context, p access.Permit, spec json.RawMessage, request string, dryRun bool) (e planefleet.Enrollment, created bool, err error)
	// Edit changes its spec by a merge patch.
	Edit(ctx context.Context, p access.Permit, patch json.RawMessage, dryRun bool) (planefleet.Enrollment, error)
	// Approve approves exactly what has the digest.
	Approve(ctx context.Context, p access.Permit, digest string, dryRun bool) (planefleet.Enrollment, error)
	// Decline takes away exactly what has the digest, if it was only asked for.
	Decline(ctx context.Context, p access.Permit, digest string, dryRun bool) (planefleet.Enrollment, error)
	// Rotate has its credential replaced.
	Rotate(ctx context.Context, p access.Permit, dryRun bool) (planefleet.Enrollment, error)
	// Offboard deletes it; the fleet takes its runners down.
	Offboard(ctx context.Context, p access.Permit, dryRun bool) (planefleet.Enrollment, error)
	// Ask writes down that somebody asks for what is not theirs to do.
	Ask(ctx context.Context, p access.Permit, what planefleet.Wish, reason string, dryRun bool) (planefleet.Enrollment, error)
}

// What has become of something that was asked for.
const (
	Proposed = "proposed" // a pull request is open for it
	Approved = "approved" // the open change, or the enrollment
	Declined = "declined" // the open change is closed, or the enrollment that was asked for is gone
	Written  = "written"  // the enrollment is as was asked for; the fleet does the rest
	Asked    = "asked"    // it stands with the enrollment, for those who run the platform
	Nothing  = "nothing"  // it was a dry run, or was done already
)

// An Outcome is what has become of something that was asked for, or would.
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

// AuditObject names the organisation for the record, or the change.
func (o Outcome) AuditObject() string {
	if o.Change != nil {
		return o.Change.ID
	}
	return o.OrgName
}

// An Answer has an Outcome. It is 202 where somebody has to approve or to do it first.
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

// by is what approves.
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

// written is the outcome of something that the Writer did, or would do.
func (d *Desk) written(p access.Permit, e planefleet.Enrollment, done string, dryRun bool) Answer {
	e = e.For(plane.ViewerOf(p)).(planefleet.Enrollment)
	o := Outcome{OrgName: p.Org(), Done: done, Seen: e.Digest, Enrollment: &e}
	if dryRun {
		o.Done, o.Would = Nothing, done
	}
	return d.answer(o)
}

// propose is what was asked for as a change by pull request.
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

// begin checks what every write has: a reason, and a permit for the organisation.
func begin(p access.Permit, org string, reason plane.Reason) (access.Permit, error) {
	if err := reason.Check(); err != nil {
		return p, err
	}
	return p.In(org)
}

// may says whether the caller may do more than ask.
func may(p access.Permit, v access.Verb) bool { return plane.ViewerOf(p).In(p.Org(), v) }

// meant refuses what goes far and was not asked for twice.
func meant(org, confirm string) error {
	phrase := "OFFBOARD " + org
	if confirm == phrase {
		return nil
	}
	refused := problem.New(problem.Confirmation, fmt.Sprintf("This takes all runners of %s down and deletes their credential.", org), fmt.Sprintf("If it is meant, ask again with the phrase %q.", phrase))
	refused.Confirm = &problem.Confirm{Phrase: phrase}
	return refused
}
