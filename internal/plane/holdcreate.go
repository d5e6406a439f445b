package plane

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
)

// HoldMode is how a hold stops runners.
type HoldMode string

// The modes, mildest first.
const (
	ModePause HoldMode = "Pause" // no new job; running jobs finish
	ModeDrain HoldMode = "Drain" // like Pause, then the runners' workload is removed
	ModeStop  HoldMode = "Stop"  // like Drain, but jobs that still run after ten minutes are cancelled
)

// The limits of a hold's duration. A longer hold would be forgotten.
const (
	minHold = time.Minute
	maxHold = 90 * 24 * time.Hour
)

// HoldDraft is a hold to be made, with its name. The name is derived from the caller and the request, so a repeated request finds the existing
// hold.
type HoldDraft struct {
	Name      string
	Scope     Scope
	Mode      HoldMode
	Reason    string
	ExpiresAt *time.Time
	Digest    string // hash of the request
}

// CreateRequest asks for a hold.
type CreateRequest struct {
	Scope     Scope            `json:"scope" doc:"exactly one of all, forge, and org with or without pool"`
	Mode      HoldMode         `json:"mode,omitempty" enum:"Pause,Drain,Stop" doc:"default Pause"`
	Reason    Reason           `json:"reason" doc:"why, 1 to 500 characters"`
	ExpiresIn httpapi.Duration `json:"expiresIn,omitzero" doc:"when it expires automatically, 1m to 2160h; without it, never"`
	Confirm   Text             `json:"confirm,omitempty" doc:"the phrase from the error confirmation_required"`
	DryRun    Flag             `json:"-" query:"dryRun" doc:"check whether the request would succeed, and change nothing"`
	Key       IdempotencyKey   `json:"-" header:"Idempotency-Key" doc:"the hold's name is derived from the key and the caller, so a repeated request makes one hold, also at another replica; without a key, from the caller, the scope and the mode"`
}

// AuditArgs returns the arguments of the request for the audit log.
func (r CreateRequest) AuditArgs() map[string]string {
	args := map[string]string{"scope": r.Scope.String(), "mode": string(cmp.Or(r.Mode, ModePause)), "reason": string(r.Reason), "org": r.Scope.Org}
	if r.ExpiresIn != 0 {
		args["expiresIn"] = r.ExpiresIn.String()
	}
	return r.DryRun.addAuditArg(args)
}

// Created is the result of a request for a hold.
type Created struct {
	Hold    Hold `json:"hold"`
	Created bool `json:"created" doc:"false if the caller already had this hold, or the request changed nothing"`
	DryRun  bool `json:"dryRun" doc:"true if the request changed nothing"`
	Targets *int `json:"targets" doc:"number of affected workloads; null: not known"`
}

// AuditObject returns the hold for the audit log.
func (c Created) AuditObject() string { return c.Hold.Name }

// createHold makes a hold, or returns the existing one.
func (d *FleetService) createHold(ctx context.Context, p access.Permit, req CreateRequest) (e Envelope[Created], err error) {
	now := d.Plane.Now()
	req.Mode = cmp.Or(req.Mode, ModePause)
	if err := req.check(); err != nil {
		return e, err
	}
	if p, err = req.Scope.narrow(p); err != nil {
		return e, err
	}
	if req.Mode == ModeStop && !ViewerOf(p).In(req.Scope.Org, access.HoldsStop) {
		refused := problem.New(problem.Forbidden, "Your role allows you to pause and drain runners, but not to end running jobs.", "Use mode Drain, or ask an org-admin.")
		refused.Needed = &problem.Need{Verb: string(access.HoldsStop), Org: req.Scope.Org}
		return e, refused
	}
	if err := d.checkScope(req.Scope); err != nil {
		return e, err
	}
	draft, found, err := d.draftHold(p.Caller(), req, now)
	if err != nil {
		return e, err
	}
	c := Created{DryRun: bool(req.DryRun)}
	some, known := d.poolsIn(req.Scope)
	if known {
		c.Targets = new(len(some))
	}
	if found != nil {
		c.Hold = found.For(ViewerOf(p)).(Hold)
		return d.createdHold(c), nil
	}
	if req.Scope.wide() && !bool(req.DryRun) {
		ask := confirmableAction{caller: callerKey(p.Caller()), verb: access.HoldsCreate, digest: draft.Digest, phrase: req.Scope.phrase("PAUSE"), targets: c.Targets}
		if err := d.confirmations.acceptPhrase(ask, string(req.Confirm), now); err != nil {
			return e, err
		}
	}
	h, created, err := d.CreateHold(ctx, p, draft, bool(req.DryRun))
	if err != nil {
		return e, err
	}
	c.Hold, c.Created = h.For(ViewerOf(p)).(Hold), created && !c.DryRun
	return d.createdHold(c), nil
}

func (d *FleetService) createdHold(c Created) Envelope[Created] {
	l := d.Plane.Store.List(KindHold)
	return newEnvelope(d.Plane, "HoldCreated", c, l.Revision, l.Sources)
}

func (r CreateRequest) check() error {
	if err := r.Scope.check(); err != nil {
		return err
	}
	if r.Mode != ModePause && r.Mode != ModeDrain && r.Mode != ModeStop {
		return invalidField("mode", fmt.Sprintf("%.40q is not a mode.", r.Mode), "Use Pause, Drain or Stop.")
	}
	if err := checkExpiry(r.ExpiresIn); err != nil {
		return err
	}
	return r.Reason.check()
}

// digest returns the hash of the request.
func (r CreateRequest) digest() string {
	return digestOf(r.Scope.String(), string(r.Mode), string(r.Reason), r.ExpiresIn.String())
}

// maxHoldNames is the maximum number of recently expired holds of one scope, mode and caller.
const maxHoldNames = 32

// draftHold returns the hold to be made, or the existing hold. The name is derived from the caller and the request, so every replica finds it.
// A hold that is over keeps its name for a while, and a new one gets another name.
func (d *FleetService) draftHold(c access.Caller, r CreateRequest, now time.Time) (HoldDraft, *Hold, error) {
	draft := HoldDraft{Scope: r.Scope, Mode: r.Mode, Reason: string(r.Reason), ExpiresAt: expiryAt(r.ExpiresIn, now), Digest: r.digest()}
	of := []string{callerKey(c), "scope", r.Scope.String(), string(r.Mode)}
	if r.Key != "" {
		of = []string{callerKey(c), "key", string(r.Key)}
	}
	for n := range maxHoldNames {
		draft.Name = holdName(r.Scope, append(slices.Clone(of), fmt.Sprint(n)))
		o, found := d.Plane.Store.Get(KindHold, draft.Name)
		h, _ := o.(Hold)
		switch {
		case !found:
			return draft, nil, nil
		case r.Key == "" && h.endedReason() != "":
			continue
		case h.Digest == draft.Digest && h.RequestedBy == c.Identity():
			return draft, &h, nil
		case r.Key != "":
			return draft, nil, problem.New(problem.Conflict, "This Idempotency-Key was used for another request.", "Use a new key for each request.")
		}
		return draft, nil, problem.New(problem.Conflict, fmt.Sprintf("You already hold %s with %s, for a different reason or duration.", r.Scope, h.Name), "Lift that hold first, or keep it.")
	}
	return draft, nil, problem.New(problem.Conflict, "Too many of your holds with this scope have expired recently.", "Send an Idempotency-Key, so that the hold gets a different name.")
}

// holdName returns a hold's name: at most 40 characters, and unique to the scope and the hashed parts.
func holdName(s Scope, of []string) string {
	slug := s.slug()
	return strings.TrimRight(slug[:min(len(slug), 27)], "-") + "-" + digestOf(of...)[:12]
}

func digestOf(parts ...string) string {
	text, _ := json.Marshal(parts) // strings can always be encoded
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// callerKey identifies a caller, independent of the device.
func callerKey(c access.Caller) string { return string(c.Via) + " " + c.Identity() + " " + c.Tailnet }

// PauseRequest pauses the runners of one organisation in one pool.
type PauseRequest struct {
	PoolRequest
	PauseOptions
}

// PauseOptions says how to pause runners.
type PauseOptions struct {
	Reason    Reason           `json:"reason" doc:"why, 1 to 500 characters"`
	ExpiresIn httpapi.Duration `json:"expiresIn,omitzero" doc:"when it expires automatically, 1m to 2160h; without it, never"`
	Drain     bool             `json:"drain,omitempty" doc:"also remove each workload after its last job"`
	DryRun    Flag             `json:"-" query:"dryRun" doc:"check whether the request would succeed, and change nothing"`
	Key       IdempotencyKey   `json:"-" header:"Idempotency-Key" doc:"as for a hold"`
}

// AuditArgs returns the arguments of the request for the audit log.
func (r PauseRequest) AuditArgs() map[string]string { return r.createRequest().AuditArgs() }

func (r PauseRequest) createRequest() CreateRequest {
	c := CreateRequest{Scope: Scope{Org: r.Org, Pool: r.Pool}, Mode: ModePause, Reason: r.Reason, ExpiresIn: r.ExpiresIn, DryRun: r.DryRun, Key: r.Key}
	if r.Drain {
		c.Mode = ModeDrain
	}
	return c
}

func (d *FleetService) pausePool(ctx context.Context, p access.Permit, req PauseRequest) (Envelope[Created], error) {
	if _, _, err := getObject[Pool](d.Plane, KindPool, p, req.id(), "pool"); err != nil {
		return Envelope[Created]{}, err
	}
	return d.createHold(ctx, p, req.createRequest())
}

// Scope is what a hold covers: everything, a forge, an organisation, a pool, or a pool of an organisation.
type Scope struct {
	All   bool   `json:"all,omitempty" doc:"all runners of the fleet"`
	Forge string `json:"forge,omitempty" doc:"all runners of a forge"`
	Org   string `json:"org,omitempty" doc:"all runners of an organisation, or with pool only that pool"`
	Pool  string `json:"pool,omitempty" doc:"a pool; without org: for all organisations"`
}

var namePattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$`)

// check returns an error for an invalid scope. Wildcards are not allowed (MC-05).
func (s Scope) check() error {
	n := 0
	for _, given := range []bool{s.All, s.Forge != "", s.Org != "" || s.Pool != ""} {
		if given {
			n++
		}
	}
	if n != 1 {
		return invalidField("scope", "The scope must have exactly one of all, forge, or org with or without pool.", `For one pool of one organisation: {"org": "acme", "pool": "gh-nix"}.`)
	}
	for field, name := range map[string]string{"forge": s.Forge, "org": s.Org, "pool": s.Pool} {
		if name != "" && !namePattern.MatchString(name) {
			return invalidField("scope", fmt.Sprintf("%.60q is not the name of a %s.", name, field), "Give one name. For all runners, use all: true.")
		}
	}
	return nil
}

// wide reports whether the scope covers more than one pool of one organisation.
func (s Scope) wide() bool { return s.Org == "" || s.Pool == "" }

// covers reports whether the scope covers p.
func (s Scope) covers(p Pool) bool {
	switch {
	case s.All:
		return true
	case s.Forge != "":
		return s.Forge == p.Forge
	}
	return (s.Org == "" || s.Org == p.OrgName) && (s.Pool == "" || s.Pool == p.Name)
}

// narrow returns the permit for this scope only. A scope of several organisations needs a role for all of them.
func (s Scope) narrow(p access.Permit) (access.Permit, error) {
	if s.Org != "" {
		return p.In(s.Org)
	}
	return p.InAll()
}

// String describes the scope for people.
func (s Scope) String() string {
	switch {
	case s.All:
		return "everything"
	case s.Forge != "":
		return "forge " + s.Forge
	case s.Pool == "":
		return "org " + s.Org
	case s.Org == "":
		return "pool " + s.Pool
	}
	return "pool " + s.Pool + " of " + s.Org
}

// phrase returns the phrase that the caller must type to confirm an action on the scope.
func (s Scope) phrase(verb string) string {
	if s.All {
		return verb + " ALL"
	}
	noun, name, _ := strings.Cut(s.String(), " ")
	return verb + " " + strings.ToUpper(noun) + " " + name
}

// slug returns the beginning of the hold's name.
func (s Scope) slug() string {
	switch {
	case s.All:
		return "all"
	case s.Forge != "":
		return "forge-" + s.Forge
	case s.Pool == "":
		return s.Org
	case s.Org == "":
		return "pool-" + s.Pool
	}
	return s.Org + "-" + s.Pool
}
