package plane

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

// Reason is the caller's reason for a change. The audit log keeps it.
type Reason string

// check returns a validation error if the reason is blank, has more than 500 characters, or has a control character.
func (r Reason) check() error {
	n := utf8.RuneCountInString(string(r))
	switch {
	case strings.TrimSpace(string(r)) == "":
		return invalidField("reason", "A reason is required.", "Give the reason in one sentence. The audit log keeps it.")
	case n > 500:
		return invalidField("reason", fmt.Sprintf("The reason has %d characters; the limit is 500.", n))
	case strings.ContainsFunc(string(r), unicode.IsControl):
		return invalidField("reason", "The reason contains a control character.", "Write it in one line.")
	}
	return nil
}

// Flag is a parameter with the value "true" or "false".
type Flag bool

// addAuditArg adds dryRun to the audit arguments if the flag is set, and returns them.
func (f Flag) addAuditArg(args map[string]string) map[string]string {
	if f {
		args["dryRun"] = "true"
	}
	return args
}

// MarshalText implements [encoding.TextMarshaler].
func (f Flag) MarshalText() ([]byte, error) {
	if !f {
		return nil, nil
	}
	return []byte("true"), nil
}

// UnmarshalText implements [encoding.TextUnmarshaler].
func (f *Flag) UnmarshalText(b []byte) error {
	switch string(b) {
	case "true":
		*f = true
	case "false":
		*f = false
	default:
		return fmt.Errorf("%.20q is neither true nor false", b)
	}
	return nil
}

// IdempotencyKey makes a repeated write take effect once. The client chooses 1 to 128 printable ASCII characters.
type IdempotencyKey string

// MarshalText implements [encoding.TextMarshaler].
func (k IdempotencyKey) MarshalText() ([]byte, error) { return []byte(k), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (k *IdempotencyKey) UnmarshalText(b []byte) error {
	if len(b) == 0 || len(b) > 128 || strings.ContainsFunc(string(b), func(r rune) bool { return r < 0x21 || r > 0x7e }) {
		return fmt.Errorf("it is not 1 to 128 printable ASCII characters")
	}
	*k = IdempotencyKey(b)
	return nil
}

// RevokeRequest ends one sign-in.
type RevokeRequest struct {
	Namespace string         `json:"-" path:"namespace"`
	Name      string         `json:"-" path:"name"`
	Reason    Reason         `json:"reason" doc:"why, 1 to 500 characters"`
	DryRun    Flag           `json:"-" query:"dryRun" doc:"check whether the request would succeed, and change nothing"`
	Key       IdempotencyKey `json:"-" header:"Idempotency-Key" doc:"a write with the same key takes effect once; a repeated write gets the first answer for ten minutes"`
}

// AuditArgs returns the request's arguments for the audit log.
func (r RevokeRequest) AuditArgs() map[string]string {
	return r.DryRun.addAuditArg(map[string]string{"signin": r.Namespace + "/" + r.Name, "reason": string(r.Reason)})
}

// Revocation is the result of revoking a sign-in.
type Revocation struct {
	ID        string     `json:"id"`
	DryRun    bool       `json:"dryRun" doc:"true if the request changed nothing"`
	Deleted   bool       `json:"deleted" doc:"true: the TkaSignin is deleted, and its bindings are removed at once"`
	RefusedBy *time.Time `json:"refusedBy" doc:"until this time the API server may still accept its token, without rights; null: not deleted"`
}

// revokeSignin ends a sign-in. It returns NotFound for a sign-in that the caller may not see, and Forbidden for one that the caller may see but
// not end.
func (d *Service) revokeSignin(ctx context.Context, p access.Permit, req RevokeRequest) (Envelope[Revocation], error) {
	if err := req.Reason.check(); err != nil {
		return Envelope[Revocation]{}, err
	}
	return d.replays.do(d.Now(), p.Caller(), req.Key, req, func() (Envelope[Revocation], error) {
		id := req.Namespace + "/" + req.Name
		v := ViewerOf(p)
		known := d.Store.List(KindSignin)
		o, found := d.Store.Get(KindSignin, id)
		switch {
		case found && v.sees(KindSignin, o) && !v.allows(access.SigninsRevoke, o):
			_, err := p.In("") // returns the error that names the missing permission
			return Envelope[Revocation]{}, err
		case found && v.sees(KindSignin, o):
		case !known.Known: // the sign-in may exist
			return Envelope[Revocation]{}, problem.New(problem.Unavailable, "The sign-ins of this cluster are not known yet.", "Try again in a moment.").WithRetryAfter(time.Second)
		default:
			return Envelope[Revocation]{}, problem.New(problem.NotFound, "The sign-in does not exist, or you may not see it.", "List the sign-ins that you may see.")
		}
		done, err := d.RevokeSignin(ctx, p, req.Namespace, req.Name, string(req.Reason), bool(req.DryRun))
		if err != nil {
			return Envelope[Revocation]{}, err
		}
		done.ID, done.DryRun = id, bool(req.DryRun)
		return newEnvelope(d, "Revocation", done, d.Store.Revision(), known.Sources), nil
	})
}

// AuditObject returns the sign-in for the audit log.
func (r Revocation) AuditObject() string { return r.ID }

// replayCache keeps the answers to writes with an idempotency key, so that a repeated write is not made again. It keeps at most maxReplays
// answers, each for replayLife, and only in memory. After a restart a repeated write finds that the sign-in no longer exists.
type replayCache struct {
	mu   sync.Mutex
	done map[replayKey]*replay
}

type replayKey struct {
	who string
	key IdempotencyKey
}

type replay struct {
	digest [sha256.Size]byte // hash of the request
	at     time.Time
	ended  bool
	answer Envelope[Revocation]
}

const (
	replayLife = 10 * time.Minute
	maxReplays = 1000
)

// do calls do, or returns the earlier answer if the caller has already used key for the same request.
func (r *replayCache) do(now time.Time, c access.Caller, key IdempotencyKey, req RevokeRequest, do func() (Envelope[Revocation], error)) (Envelope[Revocation], error) {
	if key == "" {
		return do()
	}
	at := replayKey{string(c.Via) + " " + c.Identity() + " " + c.Tailnet + " " + c.Device.ID, key}
	of := sha256.Sum256(encode([]any{req.Namespace, req.Name, req.Reason, req.DryRun}))
	r.mu.Lock()
	for k, was := range r.done {
		if now.Sub(was.at) >= replayLife {
			delete(r.done, k)
		}
	}
	was, again := r.done[at]
	switch {
	case again && was.digest != of:
		r.mu.Unlock()
		return Envelope[Revocation]{}, problem.New(problem.Conflict, "This Idempotency-Key was used for another request.", "Use a new key for each request.")
	case again && !was.ended:
		r.mu.Unlock()
		return Envelope[Revocation]{}, problem.New(problem.Conflict, "The first request with this Idempotency-Key has no answer yet.", "Wait for its answer, or try again in a moment.")
	case again:
		defer r.mu.Unlock()
		return was.answer, nil
	case len(r.done) >= maxReplays:
		r.mu.Unlock()
		return Envelope[Revocation]{}, problem.New(problem.RateLimited, "There were too many recent writes with an Idempotency-Key.", "Wait, or send the request without a key.").WithRetryAfter(time.Minute)
	}
	if r.done == nil {
		r.done = map[replayKey]*replay{}
	}
	own := &replay{digest: of, at: now}
	r.done[at] = own
	r.mu.Unlock()

	answer, err := do()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		delete(r.done, at) // the write failed, so the client may repeat it
		return answer, err
	}
	own.answer, own.ended = answer, true
	return answer, nil
}
