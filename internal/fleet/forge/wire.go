package forge

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/fleet/forge/exchange"
	"github.com/tailplane/tailplane/internal/fleet/forge/failure"
	"github.com/tailplane/tailplane/internal/fleet/forge/rate"
)

const (
	mostAtOnce = 4 // requests of one client: GitHub counts what runs at the same time
	userAgent  = "tailplane-fleet"
)

// A wire carries the requests of one client. It is where the laws are kept that no
// single call could forget: the credential goes to one host, answers are read whole
// or not at all, a pause that was asked for is kept.
type wire struct {
	base    *url.URL // of the API
	host    *exchange.Host
	clock   func() time.Time
	observe func(op string, status int)
	// refusal may know better what a status means than the status itself; ok: it does.
	refusal func(a *answer, now time.Time) (class Class, wait time.Duration, ok bool)
	prefix  string // of the headers of a limit

	slots chan struct{}

	mu    sync.Mutex
	rate  Rate
	pause time.Time     // by our clock; until then nothing is asked
	skew  time.Duration // the forge's clock ahead of ours
}

// A question is one request.
type question struct {
	op     string
	method string // GET if empty
	path   string // below the API's root, with its query; what is variable in it is escaped
	body   any    // as JSON; nil: none
	header http.Header
	// show is the credential; zero: the question is asked without one, and neither
	// heeds nor sets limits, which are those of the credential.
	show   Secret
	secret bool // the answer is a secret: nothing of it is in an error
}

// An answer is what came, whole.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func newWire(base *url.URL, bundle []byte, now func() time.Time, observe func(string, int)) (*wire, error) {
	host, err := exchange.New(base, bundle)
	if err != nil {
		return nil, err
	}
	if now == nil {
		now = time.Now
	}
	return &wire{base: base, host: host, clock: now, observe: observe, slots: make(chan struct{}, mostAtOnce)}, nil
}

// now is the time by the forge's clock, as far as it was told.
func (w *wire) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.clock().Add(w.skew)
}

func (w *wire) lastRate() Rate {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rate
}

// ask asks once. The answer has a status of 2xx; any other is an *[Error], except
// when the caller's context ended, which says nothing about the forge.
func (w *wire) ask(ctx context.Context, q question) (*answer, error) {
	if !q.show.IsZero() {
		w.mu.Lock()
		wait := w.pause.Sub(w.clock())
		w.mu.Unlock()
		if wait > 0 {
			return nil, &Error{Op: q.op, Class: RateLimited, RetryAfter: wait}
		}
	}
	select {
	case w.slots <- struct{}{}:
		defer func() { <-w.slots }()
	case <-ctx.Done():
		return nil, fmt.Errorf("%s: %w", q.op, context.Cause(ctx))
	}
	a, err := w.send(ctx, q)
	if err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%s: %w", q.op, context.Cause(ctx))
		}
		return nil, w.useless(q, a, err.Error())
	}
	if a.status/100 == 2 {
		// A portal's page must not be taken for a deletion that was done.
		if kind, _, _ := mime.ParseMediaType(a.header.Get("Content-Type")); kind == "text/html" {
			return nil, w.useless(q, a, "the answer is a web page, so it is not from the API")
		}
		return a, nil
	}
	return nil, w.failure(q, a)
}

// useless is the error of an answer that did not come, or that nobody can read.
func (w *wire) useless(q question, a *answer, why string) *Error {
	e := &Error{Op: q.op, Class: Unavailable, Message: clean(why, q.show)}
	if a != nil {
		e.Status = a.status
	}
	return e
}

// failure is the error of an answer that says no.
func (w *wire) failure(q question, a *answer) *Error {
	e := &Error{Op: q.op, Class: failure.OfStatus(a.status), Status: a.status}
	now := w.now()
	e.RetryAfter = rate.RetryAfter(a.header, now)
	if w.refusal != nil {
		if class, wait, ok := w.refusal(a, now); ok {
			e.Class, e.RetryAfter = class, max(wait, e.RetryAfter)
		}
	}
	if e.Class == RateLimited {
		if e.RetryAfter <= 0 {
			e.RetryAfter = time.Minute // what GitHub asks for if it says nothing; short enough for GitLab
		}
		if !q.show.IsZero() {
			w.mu.Lock()
			if until := w.clock().Add(e.RetryAfter); until.After(w.pause) {
				w.pause = until
			}
			w.mu.Unlock()
		}
	}
	if !q.secret {
		e.Message = said(a.body, q.show)
	}
	return e
}

// said is what a forge says in the body of a refusal.
func said(body []byte, secrets ...Secret) string {
	var form struct {
		Message json.RawMessage `json:"message"` // GitLab's may be an object of fields and lists
		Error   string          `json:"error"`
		Errors  []struct {
			Message string `json:"message"`
		} `json:"errors"`
	}
	if json.Unmarshal(body, &form) != nil {
		return ""
	}
	var text string
	if json.Unmarshal(form.Message, &text) != nil {
		text = string(form.Message)
	}
	if text == "" {
		text = form.Error
	}
	for _, e := range form.Errors {
		if e.Message != "" {
			text += ": " + e.Message
		}
	}
	return clean(text, secrets...)
}

// send sends a question and reads its answer. An error comes with the answer that it
// is about, if there is one.
func (w *wire) send(ctx context.Context, q question) (*answer, error) {
	r := exchange.Request{Method: cmp.Or(q.method, http.MethodGet), Path: q.path, Header: http.Header{}}
	maps.Copy(r.Header, q.header)
	r.Header.Set("User-Agent", userAgent)
	if q.body != nil {
		var err error
		if r.Body, err = json.Marshal(q.body); err != nil {
			return nil, errors.New("the question cannot be written")
		}
		r.Header.Set("Content-Type", "application/json")
	}
	if !q.show.IsZero() {
		r.Header.Set("Authorization", "Bearer "+q.show.Reveal())
	}
	got, err := w.host.Ask(ctx, r, func(status int, h http.Header) {
		if w.observe != nil {
			w.observe(q.op, status)
		}
		w.learn(q, h)
	})
	if got == nil {
		return nil, err
	}
	return &answer{got.Status, got.Header, got.Body}, err
}

// learn reads what each answer says beside itself: the forge's time, and how often
// it may still be asked.
func (w *wire) learn(q question, h http.Header) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if at, err := http.ParseTime(h.Get("Date")); err == nil {
		w.skew = at.Sub(w.clock()).Truncate(time.Second)
	}
	if r, ok := rate.From(h, w.prefix); ok && !q.show.IsZero() {
		w.rate = r
	}
}

// read is the answer as a T. An answer that is none, or empty, is Unavailable: an
// empty body must not become an empty list.
func read[T any](q question, a *answer) (T, error) {
	var out T
	if len(bytes.TrimSpace(a.body)) == 0 {
		return out, &Error{Op: q.op, Class: Unavailable, Status: a.status, Message: "the answer is empty"}
	}
	if err := json.Unmarshal(a.body, &out); err != nil {
		return out, &Error{Op: q.op, Class: Unavailable, Status: a.status, Message: "the answer cannot be read"}
	}
	return out, nil
}
