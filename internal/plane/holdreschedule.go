package plane

import (
	"context"
	"strconv"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
)

// RescheduleRequest changes the expiry of a hold. No other field of a hold ever changes.
type RescheduleRequest struct {
	Name      string           `json:"-" path:"name"`
	ExpiresIn httpapi.Duration `json:"expiresIn,omitzero" doc:"when it expires automatically, from now, 1m to 2160h; without it, never"`
	Reason    Reason           `json:"reason" doc:"why, 1 to 500 characters"`
	Confirm   Text             `json:"confirm,omitempty" doc:"the code that a person got on the dashboard, for an earlier expiry"`
	DryRun    Flag             `json:"-" query:"dryRun" doc:"check whether the request would succeed, and change nothing"`
	Match     Text             `json:"-" header:"If-Match" doc:"the hold's version that the caller knows; if it differs, the request changes nothing"`
}

// AuditArgs returns the arguments of the request for the audit log.
func (r RescheduleRequest) AuditArgs() map[string]string {
	args := map[string]string{"hold": r.Name, "reason": string(r.Reason), "expiresIn": "never"}
	if r.ExpiresIn != 0 {
		args["expiresIn"] = r.ExpiresIn.String()
	}
	return r.DryRun.addAuditArg(args)
}

// Rescheduled is a hold with its new expiry.
type Rescheduled struct {
	Hold   Hold `json:"hold"`
	DryRun bool `json:"dryRun" doc:"true if the request changed nothing"`
}

// AuditObject returns the hold for the audit log.
func (r Rescheduled) AuditObject() string { return r.Hold.Name }

// AuditOrg returns the organisation for the audit log.
func (r Rescheduled) AuditOrg() string { return r.Hold.Scope.Org }

// rescheduleHold changes the expiry of a hold. A caller that may lift the hold may do this. An earlier end lets runners take jobs earlier. For
// a hold of more than one pool of one organisation a person must confirm that, as for a lift.
func (d *FleetService) rescheduleHold(ctx context.Context, p access.Permit, req RescheduleRequest) (e Envelope[Rescheduled], err error) {
	if err := checkExpiry(req.ExpiresIn); err != nil {
		return e, err
	}
	if err := req.Reason.check(); err != nil {
		return e, err
	}
	h, l, err := getObject[Hold](d.Plane, KindHold, p, req.Name, "hold")
	if err != nil {
		return e, err
	}
	if p, err = d.mayLift(p, h); err != nil {
		return e, err
	}
	if over := h.endedReason(); over != "" {
		return e, problem.New(problem.Conflict, over, "Make a new hold.")
	}
	if req.Match != "" && string(req.Match) != h.Version {
		return e, problem.New(problem.Conflict, "The hold has changed since version "+strconv.Quote(string(req.Match))+".", "Check the hold again.")
	}
	now := d.Plane.Now()
	end := expiryAt(req.ExpiresIn, now)
	if h.Scope.wide() && !bool(req.DryRun) && shortens(end, h.ExpiresAt) {
		ask := confirmableAction{caller: callerKey(p.Caller()), verb: access.HoldsLift, digest: digestOf("end", h.Name, h.UID, h.Version, string(req.Reason), req.ExpiresIn.String()), phrase: h.Scope.phrase("END"), object: h.Name, args: req.AuditArgs(), targets: h.Targets}
		if err := d.confirmations.acceptCode(ask, string(req.Confirm), now); err != nil {
			return e, err
		}
	}
	is, err := d.RescheduleHold(ctx, p, h, end, bool(req.DryRun))
	if err != nil {
		return e, err
	}
	is.HeldOrgs = h.HeldOrgs
	return newEnvelope(d.Plane, "HoldRescheduled", Rescheduled{is.For(ViewerOf(p)).(Hold), bool(req.DryRun)}, l.Revision, l.Sources), nil
}

// checkExpiry returns an error for a duration outside minHold to maxHold. Zero means no expiry.
func checkExpiry(in httpapi.Duration) error {
	if d := time.Duration(in); d != 0 && (d < minHold || d > maxHold) {
		return invalidField("expiresIn", in.String()+" is not between 1m and 2160h.", "Omit it for a hold that does not expire automatically.")
	}
	return nil
}

// expiryAt returns when a hold expires, or nil if it does not.
func expiryAt(in httpapi.Duration, now time.Time) *time.Time {
	if in == 0 {
		return nil
	}
	return new(now.Add(time.Duration(in)).UTC().Truncate(time.Second))
}

// shortens reports whether end is before was. nil means never.
func shortens(end, was *time.Time) bool { return end != nil && (was == nil || end.Before(*was)) }
