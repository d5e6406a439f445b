package planefleet

import (
	"context"
	"strconv"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
)

// RescheduleRequest changes the expiry of a hold. No other field of a hold ever changes.
type RescheduleRequest struct {
	Name      string        `json:"-" path:"name"`
	ExpiresIn door.Duration `json:"expiresIn,omitzero" doc:"when it ends by itself, from now on, 1m to 2160h; without it, it does not"`
	Reason    plane.Reason  `json:"reason" doc:"why, 1 to 500 characters"`
	Confirm   plane.Text    `json:"confirm,omitempty" doc:"the code that a person got for an earlier end"`
	DryRun    plane.Flag    `json:"-" query:"dryRun" doc:"ask whether it would be done, and change nothing"`
	Match     plane.Text    `json:"-" header:"If-Match" doc:"the hold's version as the caller knows it: of another one nothing is changed"`
}

// AuditArgs returns the arguments of the request for the audit log.
func (r RescheduleRequest) AuditArgs() map[string]string {
	args := map[string]string{"hold": r.Name, "reason": string(r.Reason), "expiresIn": "never"}
	if r.ExpiresIn != 0 {
		args["expiresIn"] = r.ExpiresIn.String()
	}
	return r.DryRun.Noted(args)
}

// Rescheduled is a hold with its new expiry.
type Rescheduled struct {
	Hold   Hold `json:"hold"`
	DryRun bool `json:"dryRun" doc:"nothing was changed"`
}

// AuditObject returns the hold for the audit log.
func (r Rescheduled) AuditObject() string { return r.Hold.Name }

// AuditOrg returns the organisation for the audit log.
func (r Rescheduled) AuditOrg() string { return r.Hold.Scope.Org }

// reschedule changes the expiry of a hold. A caller that may lift the hold may do this. An earlier end lets runners take jobs earlier. For
// a hold of more than one pool of one organisation a person must confirm that, as for a lift.
func (d *Desk) reschedule(ctx context.Context, p access.Permit, req RescheduleRequest) (e plane.Envelope[Rescheduled], err error) {
	if err := checkEnd(req.ExpiresIn); err != nil {
		return e, err
	}
	if err := req.Reason.Check(); err != nil {
		return e, err
	}
	h, l, err := plane.One[Hold](d.Plane, plane.KindHold, p, req.Name, "hold")
	if err != nil {
		return e, err
	}
	if p, err = d.mayLift(p, h); err != nil {
		return e, err
	}
	if over := h.over(); over != "" {
		return e, problem.New(problem.Conflict, over, "Pause anew.")
	}
	if req.Match != "" && string(req.Match) != h.Version {
		return e, problem.New(problem.Conflict, "The hold has changed since version "+strconv.Quote(string(req.Match))+".", "Look at it again.")
	}
	now := d.Plane.Now()
	end := ending(req.ExpiresIn, now)
	if h.Scope.wide() && !bool(req.DryRun) && sooner(end, h.ExpiresAt) {
		ask := request{who: who(p.Caller()), verb: access.HoldsLift, digest: digest("end", h.Name, h.UID, h.Version, string(req.Reason), req.ExpiresIn.String()), phrase: h.Scope.phrase("END"), object: h.Name, args: req.AuditArgs(), targets: h.Targets}
		if err := d.confirmations.coded(ask, string(req.Confirm), now); err != nil {
			return e, err
		}
	}
	is, err := d.Reschedule(ctx, p, h, end, bool(req.DryRun))
	if err != nil {
		return e, err
	}
	is.Held = h.Held
	return plane.Answer(d.Plane, "HoldRescheduled", Rescheduled{is.For(plane.ViewerOf(p)).(Hold), bool(req.DryRun)}, l.Revision, l.Sources), nil
}

// checkEnd returns an error for a duration outside leastHold to mostHold. Zero means no expiry.
func checkEnd(in door.Duration) error {
	if d := time.Duration(in); d != 0 && (d < leastHold || d > mostHold) {
		return plane.Invalid("expiresIn", in.String()+" is not 1m to 2160h.", "Leave it out for a hold that does not end by itself.")
	}
	return nil
}

// ending returns when a hold expires, or nil if it does not.
func ending(in door.Duration, now time.Time) *time.Time {
	if in == 0 {
		return nil
	}
	return new(now.Add(time.Duration(in)).UTC().Truncate(time.Second))
}

// sooner reports whether end is before was. nil means never.
func sooner(end, was *time.Time) bool { return end != nil && (was == nil || end.Before(*was)) }
