package planefleet

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
	"github.com/tailplane/tailplane/internal/plane"
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
	confirmLife = 5 * time.Minute
	maxWaiting  = 1000 // of all callers
	maxOfOne    = 20   // of one caller
)

// request is an action to be confirmed.
type request struct {
	who    string
	verb   access.Verb
	digest string // hash of its arguments

	phrase, object string
	args           map[string]string
	targets        *int
}

// waiting is a request that is not confirmed yet, or whose code is not used yet.
type waiting struct {
	request
	id    string
	until time.Time
	code  [sha256.Size]byte // hash of the code; zero: no person has confirmed the request
}

// confirmations holds the waiting requests.
type confirmations struct {
	mu  sync.Mutex
	all map[string]*waiting // by id
}

// said accepts a request, once, if the caller sent it before and phrase is the one from that error. Otherwise it returns a Confirmation
// error.
func (c *confirmations) said(r request, phrase string, now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, err := c.wait(r, now)
	if err != nil {
		return err
	}
	if w.asked(r) && phrase != "" && same(phrase, r.phrase) {
		delete(c.all, w.id)
		return nil
	}
	w.request = r
	refused := problem.New(problem.Confirmation, "This goes further than one pool: "+r.phrase+".", `Ask once more, with "confirm": "`+r.phrase+`", within five minutes.`)
	refused.Confirm = &problem.Confirm{Phrase: r.phrase, Targets: r.targets, Until: w.until}
	return refused
}

// coded accepts a request, once, if code is the one that a person received for it. A code used for another request becomes invalid. Without
// a valid code it returns a Confirmation error.
func (c *confirmations) coded(r request, code string, now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	sum := sha256.Sum256([]byte(code))
	for id, w := range c.all {
		if code == "" || w.who != r.who || w.code == [sha256.Size]byte{} || subtle.ConstantTimeCompare(w.code[:], sum[:]) == 0 || !now.Before(w.until) {
			continue
		}
		delete(c.all, id)
		if w.verb == r.verb && w.digest == r.digest {
			return nil
		}
	}
	w, err := c.wait(r, now)
	if err != nil {
		return err
	}
	w.request = r // a code that was issued for the request stays valid
	path := "/confirm/" + w.id
	refused := problem.New(problem.Confirmation, "A person confirms this first.", "Open "+path+" on the dashboard, as yourself, and ask once more with the code that it shows.")
	refused.Confirm = &problem.Confirm{ID: w.id, Path: path, Targets: r.targets, Until: w.until}
	return refused
}

// wait returns the entry of a request and creates it if needed. Callers must hold mu.
func (c *confirmations) wait(r request, now time.Time) (*waiting, error) {
	mine := 0
	maps.DeleteFunc(c.all, func(_ string, w *waiting) bool { return !now.Before(w.until) })
	for _, w := range c.all {
		if w.who == r.who {
			mine++
			if w.verb == r.verb && w.digest == r.digest {
				return w, nil
			}
		}
	}
	if mine >= maxOfOne || len(c.all) >= maxWaiting {
		return nil, problem.New(problem.RateLimited, "Too much waits to be confirmed.", "Confirm what waits, or wait until it is forgotten.").After(confirmLife)
	}
	var random [16]byte
	rand.Read(random[:])
	if c.all == nil {
		c.all = map[string]*waiting{}
	}
	w := &waiting{request: request{who: r.who, verb: r.verb, digest: r.digest}, id: hex.EncodeToString(random[:]), until: now.Add(confirmLife).UTC()}
	c.all[w.id] = w
	return w, nil
}

// asked reports whether the caller sent the request before, and so has received the phrase.
func (w *waiting) asked(r request) bool { return w.phrase != "" && w.phrase == r.phrase }

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// of returns the caller's waiting request with the given id.
func (c *confirmations) of(p access.Permit, id string, now time.Time) (*waiting, error) {
	w := c.all[id]
	if w == nil || w.who != who(p.Caller()) || !now.Before(w.until) || w.object == "" {
		return nil, problem.New(problem.NotFound, "Nothing of yours with this id waits to be confirmed.", "Ask for it anew: what is not confirmed within five minutes is forgotten, and so is it when another replica takes over.")
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
	Args    map[string]string `json:"args" doc:"exactly what was asked for"`
	Phrase  string            `json:"phrase" doc:"what is to be typed"`
	Targets *int              `json:"targets" doc:"how many workloads it is about; null: not known"`
	Until   time.Time         `json:"until"`
}

func (d *Desk) asked(_ context.Context, p access.Permit, req ConfirmationRequest) (plane.Envelope[Asked], error) {
	d.confirmations.mu.Lock()
	defer d.confirmations.mu.Unlock()
	w, err := d.confirmations.of(p, req.ID, d.Plane.Now())
	if err != nil {
		return plane.Envelope[Asked]{}, err
	}
	asked := Asked{ID: w.id, Verb: w.verb, Object: w.object, Args: maps.Clone(w.args), Phrase: w.phrase, Targets: w.targets, Until: w.until}
	return plane.Answer(d.Plane, "Confirmation", asked, d.Plane.Board.Revision(), nil), nil
}

// ConfirmRequest confirms a waiting request.
type ConfirmRequest struct {
	ID     string     `json:"id"`
	Phrase plane.Text `json:"phrase" doc:"as the confirmation has it"`
}

// AuditArgs returns the confirmation for the audit log.
func (r ConfirmRequest) AuditArgs() map[string]string { return map[string]string{"confirmation": r.ID} }

// Code lets the confirmed request pass once.
type Code struct {
	Code  string    `json:"code"`
	Until time.Time `json:"until"`
}

func (d *Desk) confirm(_ context.Context, p access.Permit, req ConfirmRequest) (plane.Envelope[Code], error) {
	d.confirmations.mu.Lock()
	defer d.confirmations.mu.Unlock()
	w, err := d.confirmations.of(p, req.ID, d.Plane.Now())
	if err != nil {
		return plane.Envelope[Code]{}, err
	}
	if !same(string(req.Phrase), w.phrase) {
		return plane.Envelope[Code]{}, plane.Invalid("phrase", "That is not the phrase.", "Type it as it stands there: "+w.phrase+".")
	}
	var random [7]byte
	rand.Read(random[:])
	text := base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(random[:])[:10]
	code := text[:4] + "-" + text[4:8] + "-" + text[8:]
	w.code = sha256.Sum256([]byte(code))
	return plane.Answer(d.Plane, "ConfirmationCode", Code{code, w.until}, d.Plane.Board.Revision(), nil), nil
}
