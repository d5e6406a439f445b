package plane

import (
	"context"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
)

// DriftIgnore says who ignores a drift, why, and until when.
type DriftIgnore struct {
	By, Reason string
	Until      time.Time // zero: not ignored
}

// IgnoreRequest asks to ignore a drift for a while.
type IgnoreRequest struct {
	ID        string           `json:"-" path:"id"`
	Reason    Reason           `json:"reason" doc:"why, 1 to 500 characters"`
	ExpiresIn httpapi.Duration `json:"expiresIn" doc:"how long to ignore it, 1m to 2160h"`
	DryRun    Flag             `json:"-" query:"dryRun" doc:"check whether the request would succeed, and change nothing"`
}

// AuditArgs returns the arguments of the request for the audit log.
func (r IgnoreRequest) AuditArgs() map[string]string {
	return r.DryRun.addAuditArg(map[string]string{"drift": r.ID, "reason": string(r.Reason), "expiresIn": r.ExpiresIn.String()})
}

// UnignoreRequest ends the ignoring of a drift.
type UnignoreRequest struct {
	ID     string `json:"-" path:"id"`
	Reason Reason `json:"reason" doc:"why, 1 to 500 characters"`
	DryRun Flag   `json:"-" query:"dryRun" doc:"check whether the request would succeed, and change nothing"`
}

// AuditArgs returns the arguments of the request for the audit log.
func (r UnignoreRequest) AuditArgs() map[string]string {
	return r.DryRun.addAuditArg(map[string]string{"drift": r.ID, "reason": string(r.Reason)})
}

// Ignoring is the drift after the request.
type Ignoring struct {
	Drift  Drift `json:"drift"`
	DryRun bool  `json:"dryRun" doc:"true if the request changed nothing"`
}

// AuditObject returns the drift for the audit log.
func (i Ignoring) AuditObject() string { return i.Drift.ID }

// AuditOrg returns the organisation for the audit log.
func (i Ignoring) AuditOrg() string { return i.Drift.OrgName }

func (d *FleetService) ignoreDrift(ctx context.Context, p access.Permit, req IgnoreRequest) (e Envelope[Ignoring], err error) {
	if req.ExpiresIn == 0 {
		return e, invalidField("expiresIn", "Set how long to ignore the drift.", "For example 72h; at most 2160h.")
	}
	if err := checkExpiry(req.ExpiresIn); err != nil {
		return e, err
	}
	return d.setIgnore(ctx, p, req.ID, DriftIgnore{p.Caller().Identity(), string(req.Reason), *expiryAt(req.ExpiresIn, d.Plane.Now())}, bool(req.DryRun))
}

func (d *FleetService) unignoreDrift(ctx context.Context, p access.Permit, req UnignoreRequest) (Envelope[Ignoring], error) {
	return d.setIgnore(ctx, p, req.ID, DriftIgnore{By: p.Caller().Identity(), Reason: string(req.Reason)}, bool(req.DryRun))
}

// setIgnore changes until when a drift is ignored. The permit must allow its verb for the drift's organisation.
func (d *FleetService) setIgnore(ctx context.Context, p access.Permit, id string, i DriftIgnore, dryRun bool) (e Envelope[Ignoring], err error) {
	if err := Reason(i.Reason).check(); err != nil {
		return e, err
	}
	o, l, err := getObject[Drift](d.Plane, KindDrift, p, id, "drift")
	if err != nil {
		return e, err
	}
	v := ViewerOf(p)
	if p, err = p.In(o.OrgName); err != nil {
		return e, err
	}
	switch {
	case i.Until.IsZero() && o.IgnoredUntil == nil:
		return e, problem.New(problem.Conflict, "The drift is not ignored.", "Check its current state.")
	case !i.Until.IsZero() && o.ExplainedBy != "":
		return e, problem.New(problem.Conflict, "The hold "+o.ExplainedBy+" explains the difference, so it is not a drift.", "There is nothing to ignore.")
	}
	if err := d.IgnoreDrift(ctx, p, o, i, dryRun); err != nil {
		return e, err
	}
	return newEnvelope(d.Plane, "DriftIgnored", Ignoring{o.WithIgnore(i).For(v).(Drift), dryRun}, l.Revision, l.Sources), nil
}

// WithIgnore returns the drift with i set.
func (o Drift) WithIgnore(i DriftIgnore) Drift {
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
	Source    string `json:"source"`
	Triggered bool   `json:"asked" doc:"true if the source compares again now; otherwise message says when it does"`
	Message   string `json:"message" doc:"a sentence"`
}

// Refreshed lists the sources that compare again.
type Refreshed struct {
	Sources []Look `json:"looks" null:"never" doc:"the sources; observedAt in meta of the list shows when each has compared"`
}

func (d *FleetService) refreshDrift(context.Context, access.Permit, RefreshRequest) (Envelope[Refreshed], error) {
	l := d.Plane.Store.List(KindDrift)
	return newEnvelope(d.Plane, "DriftRefreshed", Refreshed{append([]Look{}, d.RefreshDrift()...)}, l.Revision, l.Sources), nil
}
