package planefleet

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
)

// Mode is how a hold stops runners.
type Mode string

// The modes, mildest first.
const (
	Pause Mode = "Pause" // no new job; running jobs finish
	Drain Mode = "Drain" // like Pause, then the runners' workload is removed
	Stop  Mode = "Stop"  // like Drain, but jobs that still run after ten minutes are cancelled
)

// The limits of a hold's duration. A longer hold would be forgotten.
const (
	leastHold = time.Minute
	mostHold  = 90 * 24 * time.Hour
)

// Draft is a hold to be made, with its name. The name is derived from the caller and the request, so a repeated request finds the existing
// hold.
type Draft struct {
	Name      string
	Scope     Scope
	Mode      Mode
	Reason    string
	ExpiresAt *time.Time
	Digest    string // hash of the request
}

// CreateRequest asks for a hold.
type CreateRequest struct {
	Scope     Scope                `json:"scope" doc:"exactly one of all, forge, and org with or without pool"`
	Mode      Mode                 `json:"mode,omitempty" enum:"Pause,Drain,Stop" doc:"Pause without it"`
	Reason    plane.Reason         `json:"reason" doc:"why, 1 to 500 characters"`
	ExpiresIn door.Duration        `json:"expiresIn,omitzero" doc:"when it ends by itself, 1m to 2160h; without it, it does not"`
	Confirm   plane.Text           `json:"confirm,omitempty" doc:"the phrase that the refusal confirmation_required names"`
	DryRun    plane.Flag           `json:"-" query:"dryRun" doc:"ask whether it would be done, and change nothing"`
	Key       plane.IdempotencyKey `json:"-" header:"Idempotency-Key" doc:"the hold's name comes from it and the caller, so that a write that is sent again, to another replica too, is done once; without it from the caller, the scope and the mode"`
}

// AuditArgs returns the arguments of the request for the audit log.
func (r CreateRequest) AuditArgs() map[string]string {
	args := map[string]string{"scope": r.Scope.String(), "mode": string(cmp.Or(r.Mode, Pause)), "reason": string(r.Reason), "org": r.Scope.Org}
	if r.ExpiresIn != 0 {
		args["expiresIn"] = r.ExpiresIn.String()
	}
	return r.DryRun.Noted(args)
}

// Created is the result of a request for a hold.
type Created struct {
	Hold    Hold `json:"hold"`
	Created bool `json:"created" doc:"false: the caller had it already, or nothing was changed"`
	DryRun  bool `json:"dryRun" doc:"nothing was changed"`
	Targets *int `json:"targets" doc:"how many workloads it is about; null: not known"`
}

// AuditObject returns the hold for the audit log.
func (c Created) AuditObject() string { return c.Hold.Name }

// create makes a hold, or returns the existing one.
func (d *Desk) create(ctx context.Context, p access.Permit, req CreateRequest) (e plane.Envelope[Created], err error) {
	now := d.Plane.Now()
	req.Mode = cmp.Or(req.Mode, Pause)
	if err := req.check(); err != nil {
		return e, err
	}
	if p, err = req.Scope.permitted(p); err != nil {
		return e, err
	}
	if req.Mode == Stop && !plane.ViewerOf(p).In(req.Scope.Org, access.HoldsStop) {
		refused := problem.New(problem.Forbidden, "Your role allows to pause and to drain, not to end running jobs.", "Use mode Drain, or ask an org-admin.")
		refused.Needed = &problem.Need{Verb: string(access.HoldsStop), Org: req.Scope.Org}
		return e, refused
	}
	if err := d.exists(req.Scope); err != nil {
		return e, err
	}
	draft, there, err := d.draft(p.Caller(), req, now)
	if err != nil {
		return e, err
	}
	c := Created{DryRun: bool(req.DryRun)}
	some, known := d.matching(req.Scope)
	if known {
		c.Targets = new(len(some))
	}
	if there != nil {
		c.Hold = there.For(plane.ViewerOf(p)).(Hold)
		return d.created(c), nil
	}
	if req.Scope.wide() && !bool(req.DryRun) {
		ask := request{who: who(p.Caller()), verb: access.HoldsCreate, digest: draft.Digest, phrase: req.Scope.phrase("PAUSE"), targets: c.Targets}
		if err := d.confirmations.said(ask, string(req.Confirm), now); err != nil {
			return e, err
		}
	}
	h, created, err := d.Create(ctx, p, draft, bool(req.DryRun))
	if err != nil {
		return e, err
	}
	c.Hold, c.Created = h.For(plane.ViewerOf(p)).(Hold), created && !c.DryRun
	return d.created(c), nil
}

func (d *Desk) created(c Created) plane.Envelope[Created] {
	l := d.Plane.Board.List(plane.KindHold)
	return plane.Answer(d.Plane, "HoldCreated", c, l.Revision, l.Sources)
}

func (r CreateRequest) check() error {
	if err := r.Scope.check(); err != nil {
		return err
	}
	if r.Mode != Pause && r.Mode != Drain && r.Mode != Stop {
		return plane.Invalid("mode", fmt.Sprintf("%.40q is no mode.", r.Mode), "There are Pause, Drain and Stop.")
	}
	if err := checkEnd(r.ExpiresIn); err != nil {
		return err
	}
	return r.Reason.Check()
}

// digest returns the hash of the request.
func (r CreateRequest) digest() string {
	return digest(r.Scope.String(), string(r.Mode), string(r.Reason), r.ExpiresIn.String())
}

// maxNames is the maximum number of recently expired holds of one scope, mode and caller.
const maxNames = 32

// draft returns the hold to be made, or the existing hold. The name is derived from the caller and the request, so every replica finds it.
// A hold that is over keeps its name for a while, and a new one gets another name.
func (d *Desk) draft(c access.Caller, r CreateRequest, now time.Time) (Draft, *Hold, error) {
	draft := Draft{Scope: r.Scope, Mode: r.Mode, Reason: string(r.Reason), ExpiresAt: ending(r.ExpiresIn, now), Digest: r.digest()}
	of := []string{who(c), "scope", r.Scope.String(), string(r.Mode)}
	if r.Key != "" {
		of = []string{who(c), "key", string(r.Key)}
	}
	for n := range maxNames {
		draft.Name = name(r.Scope, append(slices.Clone(of), fmt.Sprint(n)))
		o, there := d.Plane.Board.Get(plane.KindHold, draft.Name)
		h, _ := o.(Hold)
		switch {
		case !there:
			return draft, nil, nil
		case r.Key == "" && h.over() != "":
			continue
		case h.Digest == draft.Digest && h.RequestedBy == c.Identity():
			return draft, &h, nil
		case r.Key != "":
			return draft, nil, problem.New(problem.Conflict, "This Idempotency-Key was used for another request.", "Use a new key for each thing that you ask for.")
		}
		return draft, nil, problem.New(problem.Conflict, fmt.Sprintf("You hold %s already, by %s, for another reason or another time.", r.Scope, h.Name), "Lift that one first, or leave it.")
	}
	return draft, nil, problem.New(problem.Conflict, "Too many such holds of yours have expired lately.", "Send an Idempotency-Key, which gives it another name.")
}

// name returns a hold's name: at most 40 characters, and unique to the scope and the hashed parts.
func name(s Scope, of []string) string {
	slug := s.slug()
	return strings.TrimRight(slug[:min(len(slug), 27)], "-") + "-" + digest(of...)[:12]
}

func digest(parts ...string) string {
	text, _ := json.Marshal(parts) // strings can always be encoded
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// who identifies a caller, independent of the device.
func who(c access.Caller) string { return string(c.Via) + " " + c.Identity() + " " + c.Tailnet }

// PauseRequest pauses the runners of one organisation in one pool.
type PauseRequest struct {
	Forge     string               `json:"-" path:"forge"`
	Org       string               `json:"-" path:"org"`
	Pool      string               `json:"-" path:"pool"`
	Reason    plane.Reason         `json:"reason" doc:"why, 1 to 500 characters"`
	ExpiresIn door.Duration        `json:"expiresIn,omitzero" doc:"when it ends by itself, 1m to 2160h; without it, it does not"`
	Drain     bool                 `json:"drain,omitempty" doc:"when the last job has ended, what ran it goes"`
	DryRun    plane.Flag           `json:"-" query:"dryRun" doc:"ask whether it would be done, and change nothing"`
	Key       plane.IdempotencyKey `json:"-" header:"Idempotency-Key" doc:"as of a hold"`
}

// AuditArgs returns the arguments of the request for the audit log.
func (r PauseRequest) AuditArgs() map[string]string { return r.hold().AuditArgs() }

func (r PauseRequest) hold() CreateRequest {
	c := CreateRequest{Scope: Scope{Org: r.Org, Pool: r.Pool}, Mode: Pause, Reason: r.Reason, ExpiresIn: r.ExpiresIn, DryRun: r.DryRun, Key: r.Key}
	if r.Drain {
		c.Mode = Drain
	}
	return c
}

func (d *Desk) pause(ctx context.Context, p access.Permit, req PauseRequest) (plane.Envelope[Created], error) {
	if _, _, err := plane.One[Pool](d.Plane, plane.KindPool, p, req.Forge+"/"+req.Org+"/"+req.Pool, "pool"); err != nil {
		return plane.Envelope[Created]{}, err
	}
	return d.create(ctx, p, req.hold())
}
