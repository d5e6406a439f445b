package planefleet

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
)

// LiftRequest lifts a hold.
type LiftRequest struct {
	Name    string       `json:"-" path:"name"`
	Reason  plane.Reason `json:"reason" doc:"why, 1 to 500 characters"`
	Confirm plane.Text   `json:"confirm,omitempty" doc:"the code that a person got for it"`
	DryRun  plane.Flag   `json:"-" query:"dryRun" doc:"ask whether it would be done, and change nothing"`
}

// AuditArgs returns the arguments of the request for the audit log.
func (r LiftRequest) AuditArgs() map[string]string {
	return r.DryRun.Noted(map[string]string{"hold": r.Name, "reason": string(r.Reason)})
}

// Lifted is the result of lifting holds.
type Lifted struct {
	Lifted    []string `json:"lifted" doc:"names of those that are deleted; that jobs are taken again, pools say"`
	Remaining []string `json:"remaining" doc:"names of others that hold some of the same runners still"`
	DryRun    bool     `json:"dryRun" doc:"nothing was changed"`

	org string // the organisation of all these holds
}

// AuditObject returns the holds for the audit log.
func (l Lifted) AuditObject() string { return strings.Join(l.Lifted, ",") }

// AuditOrg returns the organisation for the audit log.
func (l Lifted) AuditOrg() string { return l.org }

// lift lifts one hold. The right to pause does not include the right to lift.
func (d *Desk) lift(ctx context.Context, p access.Permit, req LiftRequest) (e plane.Envelope[Lifted], err error) {
	if err := req.Reason.Check(); err != nil {
		return e, err
	}
	h, _, err := plane.One[Hold](d.Plane, plane.KindHold, p, req.Name, "hold")
	if err != nil {
		return e, err
	}
	if p, err = d.mayLift(p, h); err != nil {
		return e, err
	}
	if h.Scope.wide() && !bool(req.DryRun) {
		ask := request{who: who(p.Caller()), verb: access.HoldsLift, digest: digest(h.Name, h.UID, string(req.Reason)), phrase: h.Scope.phrase("LIFT"), object: h.Name, args: req.AuditArgs(), targets: h.Targets}
		if err := d.confirmations.coded(ask, string(req.Confirm), d.Plane.Now()); err != nil {
			return e, err
		}
	}
	if err := d.Lift(ctx, p, h, bool(req.DryRun)); err != nil {
		return e, err
	}
	return d.lifted(p, []Hold{h}, bool(req.DryRun)), nil
}

// mayLift narrows the permit to one hold, or returns why the caller may not lift it.
func (d *Desk) mayLift(p access.Permit, h Hold) (access.Permit, error) {
	narrow, err := h.Scope.permitted(p)
	switch why := h.liftable(plane.ViewerOf(p)); {
	case err != nil:
		return access.Permit{}, err
	case why != "":
		refused := problem.New(problem.Forbidden, why, "Ask whoever set it, "+h.RequestedBy+".")
		refused.Needed = &problem.Need{Verb: string(access.HoldsLiftWide)}
		for _, duty := range p.Duties() {
			refused.Have = append(refused.Have, duty.String())
		}
		return access.Permit{}, refused
	}
	return narrow, nil
}

// lifted returns the result for the lifted holds, with the other holds that still cover the same runners.
func (d *Desk) lifted(p access.Permit, holds []Hold, dryRun bool) plane.Envelope[Lifted] {
	out := Lifted{Lifted: []string{}, Remaining: []string{}, DryRun: dryRun, org: holds[0].Scope.Org}
	var some []Pool
	for _, h := range holds {
		out.Lifted = append(out.Lifted, h.Name)
		more, _ := d.matching(h.Scope)
		some = append(some, more...)
	}
	l := d.Plane.Board.List(plane.KindHold)
	for _, h := range plane.Seen[Hold](p, l) {
		if h.over() == "" && !slices.Contains(out.Lifted, h.Name) && slices.ContainsFunc(some, h.Scope.Holds) {
			out.Remaining = append(out.Remaining, h.Name)
		}
	}
	return plane.Answer(d.Plane, "HoldLifted", out, l.Revision, l.Sources)
}

// ResumeRequest lifts the holds of exactly one organisation's runners in one pool.
type ResumeRequest struct {
	Forge  string       `json:"-" path:"forge"`
	Org    string       `json:"-" path:"org"`
	Pool   string       `json:"-" path:"pool"`
	Reason plane.Reason `json:"reason" doc:"why, 1 to 500 characters"`
	DryRun plane.Flag   `json:"-" query:"dryRun" doc:"ask whether it would be done, and change nothing"`
}

// AuditArgs returns the arguments of the request for the audit log.
func (r ResumeRequest) AuditArgs() map[string]string {
	return r.DryRun.Noted(map[string]string{"scope": Scope{Org: r.Org, Pool: r.Pool}.String(), "reason": string(r.Reason)})
}

// resume lifts the holds of exactly one pool. Callers must lift wider holds by name.
func (d *Desk) resume(ctx context.Context, p access.Permit, req ResumeRequest) (e plane.Envelope[Lifted], err error) {
	if err := req.Reason.Check(); err != nil {
		return e, err
	}
	o, _, err := plane.One[Pool](d.Plane, plane.KindPool, p, req.Forge+"/"+req.Org+"/"+req.Pool, "pool")
	if err != nil {
		return e, err
	}
	if p, err = o.scope().permitted(p); err != nil {
		return e, err
	}
	var mine []Hold
	var other *Hold
	for _, h := range plane.Seen[Hold](p, d.Plane.Board.List(plane.KindHold)) {
		switch {
		case h.over() != "" || !h.Scope.Holds(o):
		case h.Scope == o.scope():
			mine = append(mine, h)
		case other == nil:
			other = &h
		}
	}
	switch {
	case len(mine) == 0 && other != nil:
		return e, problem.New(problem.Held, fmt.Sprintf("It is held with more: %s by %s, since %s: %s", other.Name, other.RequestedBy, other.Created.Format(time.RFC3339), other.Reason),
			"Lift that hold by its name.")
	case len(mine) == 0:
		return e, problem.New(problem.Conflict, "Nothing holds it.", "Look at its state: it may be resuming.")
	}
	for i, h := range mine {
		if err := d.Lift(ctx, p, h, bool(req.DryRun)); err != nil && (i == 0 || problem.CodeOf(err) != problem.NotFound) {
			return e, err
		}
	}
	return d.lifted(p, mine, bool(req.DryRun)), nil
}
