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

// A Mode is how a hold stops runners.
type Mode string

// The modes, the mildest first.
const (
	Pause Mode = "Pause" // no new job; running ones finish
	Drain Mode = "Drain" // and what ran them goes then
	Stop  Mode = "Stop"  // and those that have not finished after ten minutes are cancelled
)

// How long a hold may be set for. Longer than that is forgotten.
const (
	leastHold = time.Minute
	mostHold  = 90 * 24 * time.Hour
)

// A Draft is a hold that is to be made, with its name. The same caller who asks the
// same again has the same name, and so finds what is there.
type Draft struct {
	Name      string
	Scope     Scope
	Mode      Mode
	Reason    string
	ExpiresAt *time.Time
	Digest    string // of what was asked for
}

// A CreateRequest asks for a hold.
type CreateRequest struct {
	Scope     Scope                `json:"scope" doc:"exactly one of all, forge, and org with or without pool"`
	Mode      Mode                 `json:"mode,omitempty" enum:"Pause,Drain,Stop" doc:"Pause without it"`
	Reason    plane.Reason         `json:"reason" doc:"why, 1 to 500 characters"`
	ExpiresIn door.Duration        `json:"expiresIn,omitzero" doc:"when it ends by itself, 1m to 2160h; without it, it does not"`
	Confirm   plane.Text           `json:"confirm,omitempty" doc:"the phrase that the refusal confirmation_required names"`
	DryRun    plane.Flag           `json:"-" query:"dryRun" doc:"ask whether it would be done, and change nothing"`
	Key       plane.IdempotencyKey `json:"-" header:"Idempotency-Key" doc:"the hold's name comes from it and the caller, so that a write that is sent again, to another replica too, is done once; without it from the caller, the scope and the mode"`
}

// AuditArgs tells the record what was asked for.
func (r CreateRequest) AuditArgs() map[string]string {
	args := map[string]string{"scope": r.Scope.String(), "mode": string(cmp.Or(r.Mode, Pause)), "reason": string(r.Reason), "org": r.Scope.Org}
	if r.ExpiresIn != 0 {
		args["expiresIn"] = r.ExpiresIn.String()
	}
	return r.DryRun.Noted(args)
}

// Created is what has become of a hold that was asked for.
type Created struct {
	Hold    Hold `json:"hold"`
	Created bool `json:"created" doc:"false: the caller had it already, or nothing was changed"`
	DryRun  bool `json:"dryRun" doc:"nothing was changed"`
	Targets *int `json:"targets" doc:"how many workloads it is about; null: not known"`
}

// AuditObject names the hold for the record.
func (c Created) AuditObject() string { return c.Hold.Name }

// create makes a hold, or finds it.
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

// digest is of all that was asked for.
func (r CreateRequest) digest() string {
	return digest(r.Scope.String(), string(r.Mode), string(r.Reason), r.ExpiresIn.String())
}

// maxNames is how many holds of one scope, mode and caller may have expired lately.
const maxNames = 32

// draft is the hold that is asked for, or the one that is there: its name comes from
// who asks and for what, so that it is found again by any replica. A hold that holds
// nothing any more keeps its name for a while, and the next one has another.
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

// name is a hold's: at most 40 characters, and that of nobody else's.
func name(s Scope, of []string) string {
	slug := s.slug()
	return strings.TrimRight(slug[:min(len(slug), 27)], "-") + "-" + digest(of...)[:12]
}

func digest(parts ...string) string {
	text, _ := json.Marshal(parts) // strings: nothing in them cannot be written
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// who tells callers apart, on whichever device.
func who(c access.Caller) string { return string(c.Via) + " " + c.Identity() + " " + c.Tailnet }

// A PauseRequest pauses the runners of one organisation in one pool.
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

// AuditArgs tells the record what was asked for.
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
