package plane

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
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
	if err := req.Reason.check(); err != nil {
		return e, err
	}
	h, _, err := getObject[Hold](d.Plane, KindHold, p, req.Name, "hold")
	if err != nil {
		return e, err
	}
	if p, err = d.mayLift(p, h); err != nil {
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

// mayLift returns the permit for this hold only, or why the caller may not lift it.
func (d *FleetService) mayLift(p access.Permit, h Hold) (access.Permit, error) {
	narrow, err := h.Scope.narrow(p)
	switch why := h.liftRefusal(ViewerOf(p)); {
	case err != nil:
		return access.Permit{}, err
	case why != "":
		refused := problem.New(problem.Forbidden, why, "Ask the person who set it, "+h.RequestedBy+".")
		refused.Needed = &problem.Need{Verb: string(access.HoldsLiftWide)}
		for _, role := range p.PlaneRoles() {
			refused.Have = append(refused.Have, role.String())
		}
		return access.Permit{}, refused
	}
	return narrow, nil
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
	Forge  string `json:"-" path:"forge"`
	Org    string `json:"-" path:"org"`
	Pool   string `json:"-" path:"pool"`
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
	o, _, err := getObject[Pool](d.Plane, KindPool, p, req.Forge+"/"+req.Org+"/"+req.Pool, "pool")
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
