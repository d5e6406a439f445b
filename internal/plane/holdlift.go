package plane

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
)

// LiftRequest lifts a hold.
type LiftRequest struct {
	Name    string `json:"-" path:"name"`
	Reason  Reason `json:"reason" doc:"why, 1 to 500 characters"`
	Confirm Text   `json:"confirm,omitempty" doc:"the code that a person got on the dashboard"`
	DryRun  Flag   `json:"-" query:"dryRun" doc:"check whether the request would succeed, and change nothing"`
}

// AuditArgs returns the arguments of the request for the audit log.
func (r LiftRequest) AuditArgs() map[string]string {
	return r.DryRun.addAuditArg(map[string]string{"hold": r.Name, "reason": string(r.Reason)})
}

// Lifted is the result of lifting holds.
type Lifted struct {
	Lifted    []string `json:"lifted" doc:"names of the deleted holds; the state of the pools shows when runners take jobs again"`
	Remaining []string `json:"remaining" doc:"names of other holds that still apply to some of the same runners"`
	DryRun    bool     `json:"dryRun" doc:"true if the request changed nothing"`

	org string // the organisation of all these holds
}

// AuditObject returns the holds for the audit log.
func (l Lifted) AuditObject() string { return strings.Join(l.Lifted, ",") }

// AuditOrg returns the organisation for the audit log.
func (l Lifted) AuditOrg() string { return l.org }

// liftHold lifts one hold. The right to pause does not include the right to lift.
func (d *FleetService) liftHold(ctx context.Context, p access.Permit, req LiftRequest) (e Envelope[Lifted], err error) {
	h, _, p, err := d.liftable(p, req.Name, req.Reason)
	if err != nil {
		return e, err
	}
	if h.Scope.wide() && !bool(req.DryRun) {
		ask := confirmableAction{caller: callerKey(p.Caller()), verb: access.HoldsLift, digest: digestOf(h.Name, h.UID, string(req.Reason)), phrase: h.Scope.phrase("LIFT"), object: h.Name, args: req.AuditArgs(), targets: h.Targets}
		if err := d.confirmations.acceptCode(ask, string(req.Confirm), d.Plane.Now()); err != nil {
			return e, err
		}
	}
	if err := d.LiftHold(ctx, p, h, bool(req.DryRun)); err != nil {
		return e, err
	}
	return d.liftedHolds(p, []Hold{h}, bool(req.DryRun)), nil
}

// liftable returns a hold, and the permit for this hold only. It returns an error if the caller may not lift the hold.
func (d *FleetService) liftable(p access.Permit, name string, reason Reason) (h Hold, l Listing, narrow access.Permit, err error) {
	if err = reason.check(); err != nil {
		return h, l, narrow, err
	}
	if h, l, err = getObject[Hold](d.Plane, KindHold, p, name, "hold"); err != nil {
		return h, l, narrow, err
	}
	narrow, err = h.Scope.narrow(p)
	switch why := h.liftRefusal(ViewerOf(p)); {
	case err != nil:
	case why != "":
		refused := problem.New(problem.Forbidden, why, "Ask the person who set it, "+h.RequestedBy+".")
		refused.Needed = &problem.Need{Verb: string(access.HoldsLiftWide)}
		for _, role := range p.PlaneRoles() {
			refused.Have = append(refused.Have, role.String())
		}
		return h, l, access.Permit{}, refused
	}
	return h, l, narrow, err
}

// liftedHolds returns the result for the lifted holds, with the other holds that still cover the same runners.
func (d *FleetService) liftedHolds(p access.Permit, holds []Hold, dryRun bool) Envelope[Lifted] {
	out := Lifted{Lifted: []string{}, Remaining: []string{}, DryRun: dryRun, org: holds[0].Scope.Org}
	var some []Pool
	for _, h := range holds {
		out.Lifted = append(out.Lifted, h.Name)
		more, _ := d.poolsIn(h.Scope)
		some = append(some, more...)
	}
	l := d.Plane.Store.List(KindHold)
	for _, h := range visibleTo[Hold](p, l) {
		if h.endedReason() == "" && !slices.Contains(out.Lifted, h.Name) && slices.ContainsFunc(some, h.Scope.covers) {
			out.Remaining = append(out.Remaining, h.Name)
		}
	}
	return newEnvelope(d.Plane, "HoldLifted", out, l.Revision, l.Sources)
}

// ResumeRequest lifts the holds of exactly one organisation's runners in one pool.
type ResumeRequest struct {
	PoolRequest
	Reason Reason `json:"reason" doc:"why, 1 to 500 characters"`
	DryRun Flag   `json:"-" query:"dryRun" doc:"check whether the request would succeed, and change nothing"`
}

// AuditArgs returns the arguments of the request for the audit log.
func (r ResumeRequest) AuditArgs() map[string]string {
	return r.DryRun.addAuditArg(map[string]string{"scope": Scope{Org: r.Org, Pool: r.Pool}.String(), "reason": string(r.Reason)})
}

// resumePool lifts the holds of exactly one pool. Callers must lift wider holds by name.
func (d *FleetService) resumePool(ctx context.Context, p access.Permit, req ResumeRequest) (e Envelope[Lifted], err error) {
	if err := req.Reason.check(); err != nil {
		return e, err
	}
	o, _, err := getObject[Pool](d.Plane, KindPool, p, req.id(), "pool")
	if err != nil {
		return e, err
	}
	if p, err = o.scope().narrow(p); err != nil {
		return e, err
	}
	var own []Hold
	var other *Hold
	for _, h := range visibleTo[Hold](p, d.Plane.Store.List(KindHold)) {
		switch {
		case h.endedReason() != "" || !h.Scope.covers(o):
		case h.Scope == o.scope():
			own = append(own, h)
		case other == nil:
			other = &h
		}
	}
	switch {
	case len(own) == 0 && other != nil:
		return e, problem.New(problem.Held, fmt.Sprintf("A wider hold applies to it: %s by %s, since %s: %s", other.Name, other.RequestedBy, other.Created.Format(time.RFC3339), other.Reason),
			"Lift that hold by its name.")
	case len(own) == 0:
		return e, problem.New(problem.Conflict, "No hold applies to it.", "Check its state: the runners may be resuming.")
	}
	for i, h := range own {
		if err := d.LiftHold(ctx, p, h, bool(req.DryRun)); err != nil && (i == 0 || problem.CodeOf(err) != problem.NotFound) {
			return e, err
		}
	}
	return d.liftedHolds(p, own, bool(req.DryRun)), nil
}

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
	h, l, p, err := d.liftable(p, req.Name, req.Reason)
	if err != nil {
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
