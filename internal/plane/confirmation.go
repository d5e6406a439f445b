package plane

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/hex"
	"maps"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

// Actions on more than one pool of one organisation need a confirmation. Pausing is easy: the caller repeats the request with the phrase in
// the error. Resuming is deliberate: the error names a page, where a person reads the exact request, types a phrase, and gets a code.
//
//	pause: request -> 428, phrase -> request with the phrase
//	lift:  request -> 428, page -> a person types the phrase -> code -> request with the code
//
// Both are valid for the same caller, object and arguments, for five minutes, and once. They are kept in memory only: after a failover the
// new replica requires another confirmation.

const (
	confirmLife         = 5 * time.Minute
	maxPending          = 1000 // of all callers
	maxPendingPerCaller = 20   // of one caller
)

// confirmableAction is an action to be confirmed.
type confirmableAction struct {
	caller string
	verb   access.Verb
	digest string // hash of its arguments

	phrase, object string
	args           map[string]string
	targets        *int
}

// pendingConfirmation is a request that is not confirmed yet, or whose code is not used yet.
type pendingConfirmation struct {
	confirmableAction
	id    string
	until time.Time
	code  [sha256.Size]byte // hash of the code; zero: no person has confirmed the request
}

// confirmations holds the waiting requests.
type confirmations struct {
	mu  sync.Mutex
	all map[string]*pendingConfirmation // by id
}

// acceptPhrase accepts a request, once, if the caller sent it before and phrase is the one from that error. Otherwise it returns a Confirmation
// error.
func (c *confirmations) acceptPhrase(r confirmableAction, phrase string, now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, err := c.pending(r, now)
	if err != nil {
		return err
	}
	sent := w.phrase != "" && w.phrase == r.phrase // the caller sent the request before, and so has received the phrase
	if sent && phrase != "" && equalConstantTime(phrase, r.phrase) {
		delete(c.all, w.id)
		return nil
	}
	w.confirmableAction = r
	refused := problem.New(problem.Confirmation, "This affects more than one pool: "+r.phrase+".", `Send the request again with "confirm": "`+r.phrase+`", within five minutes.`)
	refused.Confirm = &problem.Confirm{Phrase: r.phrase, Targets: r.targets, Until: w.until}
	return refused
}

// acceptCode accepts a request, once, if code is the one that a person received for it. A code used for another request becomes invalid. Without
// a valid code it returns a Confirmation error.
func (c *confirmations) acceptCode(r confirmableAction, code string, now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	sum := sha256.Sum256([]byte(code))
	for id, w := range c.all {
		if code == "" || w.caller != r.caller || w.code == [sha256.Size]byte{} || subtle.ConstantTimeCompare(w.code[:], sum[:]) == 0 || !now.Before(w.until) {
			continue
		}
		delete(c.all, id)
		if w.verb == r.verb && w.digest == r.digest {
			return nil
		}
	}
	w, err := c.pending(r, now)
	if err != nil {
		return err
	}
	w.confirmableAction = r // a code that was issued for the request stays valid
	path := "/confirm/" + w.id
	refused := problem.New(problem.Confirmation, "A person must confirm this first.", "Open "+path+" on the dashboard with your own login, and send the request again with the code that it shows.")
	refused.Confirm = &problem.Confirm{ID: w.id, Path: path, Targets: r.targets, Until: w.until}
	return refused
}

// pending returns the entry of a request and creates it if needed. Callers must hold mu.
func (c *confirmations) pending(r confirmableAction, now time.Time) (*pendingConfirmation, error) {
	own := 0
	maps.DeleteFunc(c.all, func(_ string, w *pendingConfirmation) bool { return !now.Before(w.until) })
	for _, w := range c.all {
		if w.caller == r.caller {
			own++
			if w.verb == r.verb && w.digest == r.digest {
				return w, nil
			}
		}
	}
	if own >= maxPendingPerCaller || len(c.all) >= maxPending {
		return nil, problem.New(problem.RateLimited, "Too many requests wait for confirmation.", "Confirm the waiting requests, or wait until they expire.").WithRetryAfter(confirmLife)
	}
	var random [16]byte
	rand.Read(random[:])
	if c.all == nil {
		c.all = map[string]*pendingConfirmation{}
	}
	w := &pendingConfirmation{confirmableAction: confirmableAction{caller: r.caller, verb: r.verb, digest: r.digest}, id: hex.EncodeToString(random[:]), until: now.Add(confirmLife).UTC()}
	c.all[w.id] = w
	return w, nil
}

func equalConstantTime(a, b string) bool {
	return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1
}

// get returns the caller's waiting request with the given id.
func (c *confirmations) get(p access.Permit, id string, now time.Time) (*pendingConfirmation, error) {
	w := c.all[id]
	if w == nil || w.caller != callerKey(p.Caller()) || !now.Before(w.until) || w.object == "" {
		return nil, problem.New(problem.NotFound, "None of your requests with this id waits for confirmation.", "Send the request again. A request expires after five minutes without confirmation, or when another replica takes over.")
	}
	return w, nil
}

// ConfirmationRequest names a waiting request.
type ConfirmationRequest struct {
	ID string `json:"-" path:"id"`
}

// Asked is a request that waits for confirmation.
type Asked struct {
	ID      string            `json:"id"`
	Verb    access.Verb       `json:"verb"`
	Object  string            `json:"object"`
	Args    map[string]string `json:"args" doc:"arguments of the request"`
	Phrase  string            `json:"phrase" doc:"phrase to type"`
	Targets *int              `json:"targets" doc:"number of affected workloads; null: not known"`
	Until   time.Time         `json:"until"`
}

func (d *FleetService) getConfirmation(_ context.Context, p access.Permit, req ConfirmationRequest) (Envelope[Asked], error) {
	d.confirmations.mu.Lock()
	defer d.confirmations.mu.Unlock()
	w, err := d.confirmations.get(p, req.ID, d.Plane.Now())
	if err != nil {
		return Envelope[Asked]{}, err
	}
	requested := Asked{ID: w.id, Verb: w.verb, Object: w.object, Args: maps.Clone(w.args), Phrase: w.phrase, Targets: w.targets, Until: w.until}
	return newEnvelope(d.Plane, "Confirmation", requested, d.Plane.Store.Revision(), nil), nil
}

// ConfirmRequest confirms a waiting request.
type ConfirmRequest struct {
	ID     string `json:"id"`
	Phrase Text   `json:"phrase" doc:"phrase of the confirmation"`
}

// AuditArgs returns the confirmation for the audit log.
func (r ConfirmRequest) AuditArgs() map[string]string { return map[string]string{"confirmation": r.ID} }

// Code lets the confirmed request pass once.
type Code struct {
	Code  string    `json:"code"`
	Until time.Time `json:"until"`
}

func (d *FleetService) confirm(_ context.Context, p access.Permit, req ConfirmRequest) (Envelope[Code], error) {
	d.confirmations.mu.Lock()
	defer d.confirmations.mu.Unlock()
	w, err := d.confirmations.get(p, req.ID, d.Plane.Now())
	if err != nil {
		return Envelope[Code]{}, err
	}
	if !equalConstantTime(string(req.Phrase), w.phrase) {
		return Envelope[Code]{}, invalidField("phrase", "The phrase is wrong.", "Type it exactly: "+w.phrase+".")
	}
	var random [7]byte
	rand.Read(random[:])
	text := base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(random[:])[:10]
	code := text[:4] + "-" + text[4:8] + "-" + text[8:]
	w.code = sha256.Sum256([]byte(code))
	return newEnvelope(d.Plane, "ConfirmationCode", Code{code, w.until}, d.Plane.Store.Revision(), nil), nil
}
