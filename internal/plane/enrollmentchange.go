package plane

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

// EnrollmentAction is the action of an [EnrollmentChange].
type EnrollmentAction string

// The actions. A caller may request ActionRotate and ActionOffboard without the right to make the change.
const (
	ActionRequest  EnrollmentAction = "request"  // a new enrollment
	ActionEdit     EnrollmentAction = "edit"     // a merge patch of the spec
	ActionApprove  EnrollmentAction = "approve"  // an approval of the reviewed version
	ActionDecline  EnrollmentAction = "decline"  // the deletion of a requested enrollment
	ActionRotate   EnrollmentAction = "rotate"   // a new credential
	ActionOffboard EnrollmentAction = "offboard" // the end of the enrollment
)

// EnrollmentChange is one change of an organisation's enrollment. It is the same from the operation to the [EnrollmentWriter] or to the
// pull request. The fields without a name in the API belong to single actions.
type EnrollmentChange struct {
	Org    string         `json:"-" path:"org"`
	Reason Reason         `json:"reason" doc:"why, 1 to 500 characters"`
	DryRun Flag           `json:"-" query:"dryRun" doc:"show the result, and change nothing"`
	Key    IdempotencyKey `json:"-" header:"Idempotency-Key" doc:"a request with the same key returns what the first one made"`

	Action     EnrollmentAction `json:"-"`
	RecordOnly bool             `json:"-"` // of ActionRotate and ActionOffboard: record the request for the platform administrators
	Spec       json.RawMessage  `json:"-"` // of ActionRequest
	Patch      json.RawMessage  `json:"-"` // of ActionEdit
	Seen       string           `json:"-"` // of ActionApprove and ActionDecline: the reviewed version
	Confirm    string           `json:"-"` // of ActionOffboard: the confirmation phrase
}

// AuditArgs returns the arguments of the request for the audit log.
func (c EnrollmentChange) AuditArgs() map[string]string {
	return c.DryRun.addAuditArg(map[string]string{"org": c.Org, "reason": string(c.Reason)})
}

// EditRequest changes an organisation's enrollment.
type EditRequest struct {
	Patch json.RawMessage `json:"patch" doc:"a merge patch of its spec (RFC 7386)"`
	EnrollmentChange
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

func (r EnrollmentDecideRequest) change(a EnrollmentAction) EnrollmentChange {
	return EnrollmentChange{Action: a, Org: r.Org, Reason: r.Reason, DryRun: r.DryRun, Seen: string(r.Seen)}
}

// OffboardRequest ends an organisation's enrollment.
type OffboardRequest struct {
	EnrollmentChange
	Confirm Text `json:"confirm,omitempty" doc:"the phrase from the error confirmation_required, if the plane makes the change directly"`
}

func (r OffboardRequest) change() EnrollmentChange {
	r.Action, r.EnrollmentChange.Confirm = ActionOffboard, string(r.Confirm)
	return r.EnrollmentChange
}

// RotateRequest replaces an organisation's credential.
type RotateRequest struct{ EnrollmentChange }

// narrow checks the reason, and narrows a permit to the organisation.
func (c EnrollmentChange) narrow(p access.Permit) (access.Permit, error) {
	if err := c.Reason.check(); err != nil {
		return p, err
	}
	return p.In(c.Org)
}

// decides reports whether the change is a decision about a requested enrollment.
func (c EnrollmentChange) decides() bool {
	return c.Action == ActionApprove || c.Action == ActionDecline
}

// check checks the fields of a single action.
func (c EnrollmentChange) check() error {
	switch {
	case c.Action == ActionEdit:
		if fields, err := parseObject("patch", c.Patch); err != nil {
			return err
		} else if len(fields) == 0 {
			return invalidField("patch", "The patch changes nothing.", "Send the fields of the spec to change.")
		}
	case c.decides() && c.Seen == "" && !bool(c.DryRun):
		return invalidField("seen", "The request must name the reviewed version.", "A dry run shows the enrollment and its version.")
	}
	return nil
}

// outcome returns the outcome of the change where the plane approves.
func (c EnrollmentChange) outcome() string {
	switch {
	case c.Action == ActionApprove:
		return OutcomeApproved
	case c.Action == ActionDecline:
		return OutcomeDeclined
	case c.RecordOnly:
		return OutcomeRecorded
	}
	return OutcomeWritten
}

// edit returns the change of the configuration repository, and the title of its pull request; "": the default title.
func (c EnrollmentChange) edit(now time.Time) (e Edit, title string) {
	e = Edit{Kind: enrollmentKind, Name: Text(c.Org), Spec: c.Spec, Patch: c.Patch, Remove: c.Action == ActionOffboard}
	switch c.Action {
	case ActionRequest:
		title = "Enroll " + c.Org
	case ActionOffboard:
		title = "Offboard " + c.Org
	case ActionRotate:
		e.Patch = json.RawMessage(fmt.Sprintf(`{"credentials":{"rotateAt":%q}}`, now.UTC().Format(time.RFC3339)))
		title = "Rotate the credential of " + c.Org
	}
	return e, title
}

// change checks and makes a change.
func (d *EnrollmentService) change(ctx context.Context, p access.Permit, c EnrollmentChange) (Answer, error) {
	p, err := c.narrow(p)
	if err == nil {
		err = c.check()
	}
	if err != nil {
		return Answer{}, err
	}
	return d.apply(ctx, p, c)
}

// apply makes a change: through the writer where the plane approves, and by pull request otherwise. The permit is for the organisation. For a
// caller that may only request a rotation or an end, it records the request. The fleet lets the last jobs finish before the end. The fleet
// replaces GitLab credentials; for GitHub a person must create a new key.
func (d *EnrollmentService) apply(ctx context.Context, p access.Permit, c EnrollmentChange) (Answer, error) {
	right := map[EnrollmentAction]access.Verb{ActionRotate: access.CredentialsRotate, ActionOffboard: access.EnrollmentOffboard}[c.Action]
	switch {
	case d.Writer == nil && c.decides():
		return d.decideChange(ctx, p, c)
	case d.Writer == nil:
		return d.propose(ctx, p, c)
	case c.decides() && c.Seen == "": // a dry run
		e, err := d.Writer.Get(ctx, p)
		if err != nil {
			return Answer{}, err
		}
		c.Seen = e.Digest
	case right != "" && !ViewerOf(p).In(c.Org, right):
		c.RecordOnly = true
	case c.Action == ActionOffboard && !bool(c.DryRun):
		if err := checkConfirm(c.Org, c.Confirm); err != nil {
			return Answer{}, err
		}
	}
	e, changed, err := d.Writer.Apply(ctx, p, c)
	if err != nil {
		return Answer{}, err
	}
	e = e.For(ViewerOf(p)).(Enrollment)
	o := Outcome{OrgName: c.Org, Done: c.outcome(), Seen: e.Digest, Enrollment: &e}
	switch {
	case !changed:
		o.Done = OutcomeNothing
	case bool(c.DryRun):
		o.Done, o.Would = OutcomeNothing, o.Done
	}
	return d.answer(o), nil
}

// propose changes an enrollment by pull request.
func (d *EnrollmentService) propose(ctx context.Context, p access.Permit, c EnrollmentChange) (Answer, error) {
	edit, title := c.edit(d.Plane.Now())
	if c.DryRun {
		e, err := d.Changes.previewChange(ctx, p, PreviewRequest{Edit: edit})
		if err != nil {
			return Answer{}, err
		}
		return d.answer(Outcome{OrgName: c.Org, Done: OutcomeNothing, Would: OutcomeProposed, Preview: &e.Data}), nil
	}
	e, err := d.Changes.proposeChange(ctx, p, ProposeRequest{Edit: edit, Title: title, Reason: c.Reason, Key: c.Key})
	if err != nil {
		return Answer{}, err
	}
	return d.answer(Outcome{OrgName: c.Org, Done: OutcomeProposed, Seen: e.Data.Head, Change: &e.Data}), nil
}

// decideChange approves or declines the open change of an enrollment. The reason of a decline is for the requester: it is in the audit log, and
// in the comment on the change.
func (d *EnrollmentService) decideChange(ctx context.Context, p access.Permit, c EnrollmentChange) (Answer, error) {
	open, found := d.Changes.openChange(enrollmentKind, c.Org)
	if !found {
		return Answer{}, problem.New(problem.NotFound, "This organisation's enrollment has no open change.", "Enrollments are decided by pull request here. Check the changes.")
	}
	if c.DryRun {
		open = open.For(ViewerOf(p)).(Change)
		return d.answer(Outcome{OrgName: c.Org, Done: OutcomeNothing, Would: c.outcome(), Seen: open.Head, Change: &open}), nil
	}
	decide := d.Changes.approveChange
	if c.Action == ActionDecline {
		decide = d.Changes.declineChange
	}
	e, err := decide(ctx, p, DecideRequest{ID: open.ID, Head: c.Seen, Reason: c.Reason})
	if err != nil {
		return Answer{}, err
	}
	return d.answer(Outcome{OrgName: c.Org, Done: c.outcome(), Seen: e.Data.Head, Change: &e.Data}), nil
}

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
