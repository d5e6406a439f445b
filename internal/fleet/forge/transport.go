package forge

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-github/v89/github"

	"github.com/tailplane/tailplane/internal/util/httptransport"
	"github.com/tailplane/tailplane/internal/util/secret"
)

const (
	maxConcurrent = 4 // concurrent requests of one client: GitHub limits concurrent requests
	userAgent     = "tailplane-fleet"
)

// A transport sends the requests of one client. It holds the state that all calls share: the strict
// transport, the cached pages with an ETag, the rate limits and the offset of the forge's clock.
type transport struct {
	base    *url.URL // of the API
	http    *httptransport.Transport
	clock   func() time.Time
	observe func(op string, status int)
	// refusal may classify a failed response more precisely than its status. ok reports whether it
	// did.
	refusal func(k *call, now time.Time) (class Class, wait time.Duration, ok bool)
	prefix  string // prefix of the rate limit headers
	pages   pageCache

	mu    sync.Mutex
	rate  Rate
	pause time.Time     // in local time; the wire sends no requests before it
	skew  time.Duration // the forge's clock minus the local clock
}

func newTransport(base *url.URL, c Config) (*transport, error) {
	t, err := httptransport.New(httptransport.Config{Base: base, CABundle: c.CABundle, FollowReads: true, MaxConcurrent: maxConcurrent})
	if err != nil {
		return nil, err
	}
	w := &transport{base: base, http: t, clock: c.Now, observe: c.Observe}
	if w.clock == nil {
		w.clock = time.Now
	}
	if w.observe == nil {
		w.observe = func(string, int) {}
	}
	return w, nil
}

// now returns the time of the forge's clock, as far as the forge reported it.
func (w *transport) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.clock().Add(w.skew)
}

// Rate returns the forge's rate limit, as last reported. GitHub reports its primary one.
func (w *transport) Rate() Rate {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rate
}

func (w *transport) paused() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pause.Sub(w.clock())
}

// A call is the [http.RoundTripper] of one operation. Each operation gets its own library client on
// top of a call, so a library keeps no state between operations. The call decides what a response
// means. Errors of the libraries are not used, because they contain the URL and the whole response.
type call struct {
	ctx       context.Context // of the operation; its end explains an error
	transport *transport
	op        string
	below     string                   // requests must go to this path of the API, or below it
	strip     string                   // prefix that the library adds to the path of the API
	header    http.Header              // replaces headers of the library
	want      func(body []byte) string // explains why a success response is not acceptable; nil: accept all
	secret    bool                     // errors must not repeat any part of the response
	// credential returns the credential. With the zero Text, the request has no credential; it then
	// neither obeys nor updates the rate limits, because rate limits belong to a credential.
	credential func(context.Context) (secret.Text, error)
	// renew reports whether the request must be sent once more, with another credential.
	renew func(used secret.Text, err error) bool

	// The last response.
	status         int
	responseHeader http.Header
	body           []byte
	err            error
}

// RoundTrip implements [http.RoundTripper]. It returns only success responses; every other response
// is an error.
func (k *call) RoundTrip(r *http.Request) (response *http.Response, err error) {
	k.status, k.responseHeader, k.body, k.err = 0, nil, nil, nil
	defer func() { k.err = err }()
	var body []byte
	if r.Body != nil {
		defer r.Body.Close()
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, &Error{Op: k.op, Class: Invalid, Message: "the request cannot be read"}
		}
	}
	for renewed := false; ; renewed = true {
		used, err := k.credential(r.Context())
		if err != nil {
			return nil, err
		}
		response, err := k.send(r, body, used)
		if err == nil || renewed || k.renew == nil || !k.renew(used, err) {
			return response, err
		}
	}
}

// send sends a request once. Its error is an *[Error], except when the caller's context ended,
// which says nothing about the forge.
func (k *call) send(r *http.Request, body []byte, used secret.Text) (*http.Response, error) {
	w, ctx := k.transport, r.Context()
	if wait := w.paused(); wait > 0 && !used.IsZero() {
		return nil, &Error{Op: k.op, Class: RateLimited, RetryAfter: wait}
	}
	next := r.Clone(ctx)
	next.Body = http.NoBody
	if len(body) > 0 {
		next.Body = io.NopCloser(bytes.NewReader(body))
	}
	maps.Copy(next.Header, k.header)
	next.URL.Path, next.URL.RawPath = k.stripped(r.URL.Path), k.stripped(r.URL.RawPath)
	if path := strings.TrimPrefix(next.URL.EscapedPath(), w.base.EscapedPath()); path != k.below && !strings.HasPrefix(path, k.below+"/") {
		return nil, &Error{Op: k.op, Class: Invalid, Message: "the request would go to another path"}
	}
	transport := w.http.With(func(r *http.Request) error {
		if !used.IsZero() {
			r.Header.Set("Authorization", "Bearer "+used.Reveal())
		}
		return nil
	}, func(status int, h http.Header) {
		w.observe(k.op, status)
		w.recordHeaders(h, !used.IsZero())
	})
	response, err := w.pages.roundTrip(transport, next)
	if err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%s: %w", k.op, context.Cause(ctx))
		}
		e, _ := errors.AsType[*httptransport.Error](err)
		return nil, &Error{Op: k.op, Class: Unavailable, Status: e.Status, Message: redact(e.Message, used)}
	}
	k.status, k.responseHeader = response.StatusCode, response.Header
	if k.body, err = io.ReadAll(response.Body); err != nil {
		return nil, k.unusable("the response cannot be read")
	}
	response.Body = io.NopCloser(bytes.NewReader(k.body))
	if k.status/100 != 2 {
		return nil, k.failure(used)
	}
	if k.want != nil {
		if why := k.want(k.body); why != "" {
			return nil, k.unusable(why)
		}
	}
	return response, nil
}

func (k *call) stripped(path string) string {
	if rest, ok := strings.CutPrefix(path, k.transport.base.Path+k.strip); ok {
		return k.transport.base.Path + rest
	}
	return path
}

// outcome returns the error of a library method that returned err. After an error, callers must not use
// the results of the method.
func (k *call) outcome(err error) error {
	_, accepted := errors.AsType[*github.AcceptedError](err) // 202, which the library returns as an error
	switch {
	case k.err != nil:
		return k.err
	case err == nil || accepted:
		return nil
	case k.ctx.Err() != nil:
		return fmt.Errorf("%s: %w", k.op, context.Cause(k.ctx))
	case k.status == 0:
		return &Error{Op: k.op, Class: Invalid, Message: "the request cannot be built"}
	}
	return k.unusable("the response cannot be read")
}

// unusable returns the error for a success response with unusable content.
func (k *call) unusable(why string) *Error {
	return &Error{Op: k.op, Class: Unavailable, Status: k.status, Message: why}
}

// failure returns the error for a failure response.
func (k *call) failure(used secret.Text) *Error {
	w := k.transport
	e := &Error{Op: k.op, Class: classOfStatus(k.status), Status: k.status}
	now := w.now()
	e.RetryAfter = retryAfter(k.responseHeader, now)
	if class, wait, ok := w.refusal(k, now); ok {
		e.Class, e.RetryAfter = class, max(wait, e.RetryAfter)
	}
	if e.Class == RateLimited {
		if e.RetryAfter <= 0 {
			e.RetryAfter = time.Minute // the wait that GitHub documents without headers; short enough for GitLab
		}
		if !used.IsZero() {
			w.mu.Lock()
			if until := w.clock().Add(e.RetryAfter); until.After(w.pause) {
				w.pause = until
			}
			w.mu.Unlock()
		}
	}
	if !k.secret {
		e.Message = errorMessage(k.body, used)
	}
	return e
}

// recordHeaders reads the clock and the rate limit from the headers of each response.
func (w *transport) recordHeaders(h http.Header, credential bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if at, err := http.ParseTime(h.Get("Date")); err == nil {
		w.skew = at.Sub(w.clock()).Truncate(time.Second)
	}
	if r, ok := parseRate(h, w.prefix); ok && credential {
		w.rate = r
	}
}

// errorMessage returns the message in the body of a failure response.
func errorMessage(body []byte, secrets ...secret.Text) string {
	var form struct {
		Message json.RawMessage `json:"message"` // at GitLab it can be an object of fields and lists
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
	text = cmp.Or(text, form.Error)
	for _, e := range form.Errors {
		if e.Message != "" {
			text += ": " + e.Message
		}
	}
	return redact(text, secrets...)
}

// wantObject accepts a JSON object with these keys, none of them null. The libraries do not distinguish
// a missing key from an empty one.
func wantObject(keys ...string) func([]byte) string {
	return func(body []byte) string {
		var have map[string]json.RawMessage
		if len(bytes.TrimSpace(body)) == 0 {
			return "the response is empty"
		}
		if json.Unmarshal(body, &have) != nil || have == nil {
			return "the response is not an object"
		}
		for _, key := range keys {
			if value := have[key]; len(value) == 0 || string(value) == "null" {
				return "the response has no " + key
			}
		}
		return ""
	}
}

// wantArray accepts a JSON array without null elements. A null element may make a library panic.
func wantArray(body []byte) string {
	var items []json.RawMessage
	if json.Unmarshal(body, &items) != nil || items == nil {
		return "the response is not a list"
	}
	if slices.ContainsFunc(items, func(item json.RawMessage) bool { return string(item) == "null" }) {
		return "the list has an empty entry"
	}
	return ""
}

const maxPageCache = 8 << 20 // bytes of cached pages; above it, the whole cache is cleared

// pageCache caches the last responses to reads that have an ETag. The forge does not send an unchanged
// page again, and GitHub does not count it against the rate limit.
type pageCache struct {
	mu   sync.Mutex
	of   map[string]page
	size int
}

type page struct {
	header http.Header
	body   []byte
}

// roundTrip sends a request, with the ETag of the cached response if there is one. For an unchanged
// page it returns the cached body with the new headers. It must take the new headers, because
// GitLab reports the next page in a header that the ETag does not cover. A former last page may
// have a next page now.
func (p *pageCache) roundTrip(rt http.RoundTripper, r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet {
		return rt.RoundTrip(r)
	}
	address := r.URL.String()
	known, keeps := p.get(address)
	if keeps {
		r.Header.Set("If-None-Match", known.header.Get("ETag"))
	}
	response, err := rt.RoundTrip(r)
	switch {
	case err != nil:
	case response.StatusCode == http.StatusNotModified && keeps:
		header := known.header.Clone()
		maps.Copy(header, response.Header)
		response.StatusCode, response.Status, response.Header = http.StatusOK, "200 OK", header
		response.Body, response.ContentLength = io.NopCloser(bytes.NewReader(known.body)), int64(len(known.body))
	case response.StatusCode == http.StatusOK:
		body, err := io.ReadAll(response.Body)
		if err != nil {
			return nil, err
		}
		response.Body = io.NopCloser(bytes.NewReader(body))
		p.set(address, page{response.Header, body})
	}
	return response, err
}

func (p *pageCache) get(address string) (page, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known, ok := p.of[address]
	return known, ok
}

func (p *pageCache) set(address string, a page) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if old, ok := p.of[address]; ok {
		p.size -= len(old.body)
		delete(p.of, address)
	}
	if a.header.Get("ETag") == "" || len(a.body) > maxPageCache {
		return
	}
	if p.size+len(a.body) > maxPageCache || p.of == nil {
		p.of, p.size = map[string]page{}, 0
	}
	p.of[address], p.size = a, p.size+len(a.body)
}
