package planefleet

import (
	"context"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
)

// Ignored says who ignores a drift, why, and until when.
type Ignored struct {
	By, Reason string
	Until      time.Time // zero: not ignored
}

// IgnoreRequest asks to ignore a drift for a while.
type IgnoreRequest struct {
	ID        string        `json:"-" path:"id"`
	Reason    plane.Reason  `json:"reason" doc:"why, 1 to 500 characters"`
	ExpiresIn door.Duration `json:"expiresIn" doc:"when it is told again, 1m to 2160h"`
	DryRun    plane.Flag    `json:"-" query:"dryRun" doc:"ask whether it would be done, and change nothing"`
}

// AuditArgs returns the arguments of the request for the audit log.
func (r IgnoreRequest) AuditArgs() map[string]string {
	return r.DryRun.Noted(map[string]string{"drift": r.ID, "reason": string(r.Reason), "expiresIn": r.ExpiresIn.String()})
}

// UnignoreRequest ends the ignoring of a drift.
type UnignoreRequest struct {
	ID     string       `json:"-" path:"id"`
	Reason plane.Reason `json:"reason" doc:"why, 1 to 500 characters"`
	DryRun plane.Flag   `json:"-" query:"dryRun" doc:"ask whether it would be done, and change nothing"`
}

// AuditArgs returns the arguments of the request for the audit log.
func (r UnignoreRequest) AuditArgs() map[string]string {
	return r.DryRun.Noted(map[string]string{"drift": r.ID, "reason": string(r.Reason)})
}

// Ignoring is the drift after the request.
type Ignoring struct {
	Drift  Drift `json:"drift"`
	DryRun bool  `json:"dryRun" doc:"nothing was changed"`
}

// AuditObject returns the drift for the audit log.
func (i Ignoring) AuditObject() string { return i.Drift.ID }

// AuditOrg returns the organisation for the audit log.
func (i Ignoring) AuditOrg() string { return i.Drift.OrgName }

func (d *Desk) ignore(ctx context.Context, p access.Permit, req IgnoreRequest) (e plane.Envelope[Ignoring], err error) {
	if req.ExpiresIn == 0 {
		return e, plane.Invalid("expiresIn", "It says when the drift is told again.", "Such as 72h; 2160h at most.")
	}
	if err := checkEnd(req.ExpiresIn); err != nil {
		return e, err
	}
	return d.ignoring(ctx, p, req.ID, Ignored{p.Caller().Identity(), string(req.Reason), *ending(req.ExpiresIn, d.Plane.Now())}, bool(req.DryRun))
}

func (d *Desk) unignore(ctx context.Context, p access.Permit, req UnignoreRequest) (plane.Envelope[Ignoring], error) {
	return d.ignoring(ctx, p, req.ID, Ignored{By: p.Caller().Identity(), Reason: string(req.Reason)}, bool(req.DryRun))
}

// ignoring changes until when a drift is ignored. The permit must allow its verb for the drift's organisation.
func (d *Desk) ignoring(ctx context.Context, p access.Permit, id string, i Ignored, dryRun bool) (e plane.Envelope[Ignoring], err error) {
	if err := plane.Reason(i.Reason).Check(); err != nil {
		return e, err
	}
	o, l, err := plane.One[Drift](d.Plane, plane.KindDrift, p, id, "drift")
	if err != nil {
		return e, err
	}
	v := plane.ViewerOf(p)
	if p, err = p.In(o.OrgName); err != nil {
		return e, err
	}
	switch {
	case i.Until.IsZero() && o.IgnoredUntil == nil:
		return e, problem.New(problem.Conflict, "Nobody ignores it.", "Look at it as it is now.")
	case !i.Until.IsZero() && o.ExplainedBy != "":
		return e, problem.New(problem.Conflict, "The hold "+o.ExplainedBy+" explains it: it is no drift.", "There is nothing to ignore.")
	}
	if err := d.Ignore(ctx, p, o, i, dryRun); err != nil {
		return e, err
	}
	return plane.Answer(d.Plane, "DriftIgnored", Ignoring{o.Ignoring(i).For(v).(Drift), dryRun}, l.Revision, l.Sources), nil
}

// Ignoring returns the drift with i set.
func (o Drift) Ignoring(i Ignored) Drift {
	o.IgnoredUntil, o.IgnoredBy, o.IgnoredReason = nil, "", ""
	if !i.Until.IsZero() {
		o.IgnoredUntil, o.IgnoredBy, o.IgnoredReason = new(i.Until), i.By, i.Reason
	}
	return o
}

// RefreshRequest asks for a new comparison.
type RefreshRequest struct{}

// Look says whether a source was triggered to compare again.
type Look struct {
	Source  string `json:"source"`
	Asked   bool   `json:"asked" doc:"false: it was not; message says when it looks by itself"`
	Message string `json:"message" doc:"a sentence"`
}

// Refreshed lists the sources that compare again.
type Refreshed struct {
	Looks []Look `json:"looks" doc:"by observedAt of a source in meta of the list one sees when it has looked"`
}

func (d *Desk) refresh(context.Context, access.Permit, RefreshRequest) (plane.Envelope[Refreshed], error) {
	l := d.Plane.Board.List(plane.KindDrift)
	return plane.Answer(d.Plane, "DriftRefreshed", Refreshed{append([]Look{}, d.LookAgain()...)}, l.Revision, l.Sources), nil
}
