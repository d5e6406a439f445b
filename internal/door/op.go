package door

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

// An Op is one thing a caller may ask for: a declaration that types both ends.
// The server's route, the client's call and the API reference are read from it.
//
// Req is a struct. Fields with a json name are the body of whatever is no GET,
// fields with a query name (`query:"wait"`) are parameters of the URL, those with a
// path name stand for the pattern's {name}, those with a header name are headers:
// strings, or what reads itself from text, and
// no part of the body (`json:"-"`). A field's doc says in the API reference
// what it is for. Fields of an embedded struct are the request's own.
type Op[Req, Resp any] struct {
	Pattern string      // as in net/http: "POST /api/v1alpha1/login"
	Verb    access.Verb // what access decides about, and audit records
	Doc     string      // one line

	// Routine is an operation of servers among themselves: a visit that was
	// served leaves no entry in the record, only one that was refused does.
	Routine bool

	// Page is something that people come to by links from elsewhere: a browser may
	// then open it, as a document of its own, from another site. What asks for its
	// head only, as link checkers do, gets that; of nothing else there is a head.
	Page bool

	// MaxAnswer bounds what a client reads of an answer, in bytes; 0: a MiB.
	MaxAnswer int64

	// For the API reference: a request that works, what may be answered to it
	// (one for each status), and the codes of the refusals that are this
	// operation's own, beside those that the door gives before it.
	Example  Req
	Answers  []Resp
	Refusals []problem.Code
}

// A Declaration is an Op without its types, for whoever describes operations.
type Declaration struct {
	Pattern           string
	Verb              access.Verb
	Doc               string
	Routine, Page     bool
	Request, Response reflect.Type
	Example           any
	Answers           []any
	Refusals          []problem.Code
}

// Declare describes o.
func (o Op[Req, Resp]) Declare() Declaration {
	d := Declaration{Pattern: o.Pattern, Verb: o.Verb, Doc: o.Doc, Routine: o.Routine, Page: o.Page, Request: reflect.TypeFor[Req](), Response: reflect.TypeFor[Resp](),
		Example: o.Example, Refusals: o.Refusals}
	for _, a := range o.Answers {
		d.Answers = append(d.Answers, a)
	}
	return d
}

// A Route is an Op with somebody behind it.
type Route struct {
	Declaration
	run func(*visit, access.Permit) (any, error)
}

// Before returns the codes by which the door may refuse any operation before it
// is decided about, and those by which it refuses what cannot be read.
func Before() []problem.Code {
	return []problem.Code{problem.WrongHost, problem.CrossOrigin, problem.FunnelRefused, problem.NoIdentity, problem.IdentityUnavailable,
		problem.NodeExpired, problem.RateLimited, problem.BadRequest, problem.Unavailable, problem.Internal}
}

// Verbs returns what routes may be asked for, sorted, each once.
func Verbs(routes ...Route) []access.Verb {
	var verbs []access.Verb
	for _, rt := range routes {
		verbs = append(verbs, rt.Verb)
	}
	slices.Sort(verbs)
	return slices.Compact(verbs)
}

// Argued is a request that tells the record what was asked for. Never a secret. Of
// these, "reason" is the entry's reason, and "org" the organisation that it is about:
// where the path has an {org}, that needs no word.
type Argued interface{ AuditArgs() map[string]string }

// Named is a response that tells the record what it was about.
type Named interface{ AuditObject() string }

// Belonging is a response that tells the record which organisation it was about, where
// the request does not say so.
type Belonging interface{ AuditOrg() string }

// Wire is a pointer to a request that reads its own body, in a form that newer
// versions may have added to. Any other request is decoded strictly.
type Wire interface {
	ReadBody(body []byte) error // in the caller's words: the error is shown to them
	MaxBody() int               // bytes
}

// Shaped is a response that chooses its own status or form.
type Shaped interface {
	// Shape returns the answer for a client that sent the given Accept header.
	Shape(accept string) (Shape, error)
}

// A Shape is an answer on the wire.
type Shape struct {
	Status      int
	RetryAfter  time.Duration // 0: none; sent in whole seconds, rounded up
	Header      http.Header
	ContentType string // for a Body of bytes
	Body        any    // []byte as it is, anything else as JSON
}

// Serve puts fn behind o.
func (o Op[Req, Resp]) Serve(fn func(context.Context, access.Permit, Req) (Resp, error)) Route {
	return o.ServeAfter(nil, fn)
}

// ServeAfter puts fn behind o for an operation that may wait first. The door
// identifies and decides before the wait and again after it, so fn acts on the
// authority of now. A wait that ends in an error ends the visit.
func (o Op[Req, Resp]) ServeAfter(wait func(context.Context, access.Permit, Req) error, fn func(context.Context, access.Permit, Req) (Resp, error)) Route {
	return Route{o.Declare(), func(v *visit, p access.Permit) (any, error) {
		req, err := asked[Req](v)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithDeadline(v.r.Context(), p.Until())
		defer cancel()
		if wait != nil {
			if err := v.await(ctx, func(ctx context.Context) error { return wait(ctx, p, req) }); err != nil {
				return nil, err
			}
			var err error
			if p, err = v.renewed(); err != nil {
				return nil, err
			}
		}
		resp, err := fn(ctx, p, req)
		if n, ok := any(resp).(Named); ok {
			v.entry.Object = n.AuditObject()
		}
		if b, ok := any(resp).(Belonging); ok {
			v.entry.Org = cmp.Or(v.entry.Org, b.AuditOrg())
		}
		return resp, stopped(v.r.Context(), err)
	}}
}

// asked reads what the visit asks for, and takes it down for the record.
func asked[Req any](v *visit) (req Req, err error) {
	v.entry.Org = v.r.PathValue("org")
	if err := decode(v.w, v.r, &req); err != nil {
		return req, err
	}
	if a, ok := any(req).(Argued); ok {
		args := a.AuditArgs()
		v.entry.Reason, v.entry.Org = args["reason"], cmp.Or(v.entry.Org, args["org"])
		delete(args, "reason")
		delete(args, "org")
		v.entry.Args = args
	}
	return req, nil
}

// await lets the visit wait, as long as the client stays and the server runs.
func (v *visit) await(ctx context.Context, wait func(context.Context) error) error {
	release, err := v.limits.hold(v.caller)
	if err != nil {
		return err
	}
	defer release()
	// The request has been read. Its deadline would end the visit: net/http takes
	// a deadline that passes while somebody waits for the client's leaving.
	if err := http.NewResponseController(v.w).SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("wait: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(v.stopping, cancel)()
	began := v.door.Now()
	err = wait(ctx)
	v.waited = max(v.door.Now().Sub(began), 1)
	return stopped(ctx, err)
}

// stopped turns the end of a visit's context into an honest answer: the client
// is gone, or the server is stopping and another one may serve.
func stopped(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		return problem.New(problem.Unavailable, "The request ended before the answer was ready.", "Ask again.").After(time.Second)
	}
	return err
}

// A Client is where an Op's other end is.
type Client struct {
	HTTP *http.Client
	Base string // scheme and host, such as "https://tka.example.ts.net"

	// Open, optional, returns what is in an answer's envelope: the response's JSON,
	// or the refusal. Without it there is none.
	Open func(status int, answer []byte) (data []byte, refused *problem.Error, err error)
}

// maxAnswer bounds what a client reads of an answer.
const maxAnswer = 1 << 20

// Call asks the server for o. A refusal is a *problem.Error; an answer that no
// server of ours would give is an error that says so.
func (o Op[Req, Resp]) Call(ctx context.Context, c Client, req Req) (resp Resp, err error) {
	err = c.Ask(ctx, o.Pattern, o.MaxAnswer, req, &resp)
	return resp, err
}

// Ask is [Op.Call] by what an operation says of itself, for any types: resp is a
// pointer to its response. It is compiled once, and who names no Op in generic code
// does not link what serves it, which programs that are to stay small would feel.
func (c Client) Ask(ctx context.Context, pattern string, maxBytes int64, req, resp any) error {
	hr, err := c.request(ctx, pattern, req)
	if err != nil {
		return fmt.Errorf("%s: %w", pattern, err)
	}
	hr.Header.Set("Accept", "application/json")
	res, err := c.HTTP.Do(hr)
	if err != nil {
		return err // *url.Error says what was asked of whom
	}
	defer res.Body.Close()
	limit := cmp.Or(maxBytes, maxAnswer)
	answer, err := io.ReadAll(io.LimitReader(res.Body, limit+1))
	if err != nil {
		return fmt.Errorf("%s: the answer broke off: %w", pattern, err)
	}
	if int64(len(answer)) > limit {
		return fmt.Errorf("%s: the answer is larger than %d bytes", pattern, limit)
	}
	if c.Open != nil {
		data, refused, err := c.Open(res.StatusCode, answer)
		switch {
		case err != nil:
			return fmt.Errorf("%s: the server answered %q: %w", pattern, res.Status, err)
		case refused != nil:
			refused.RetryAfter = retryAfter(res)
			return refused
		}
		if err := json.Unmarshal(data, resp); err != nil {
			return fmt.Errorf("%s: the answer is not what was asked for: %w", pattern, err)
		}
		return nil
	}
	var refused problem.Error
	if res.StatusCode/100 != 2 || res.StatusCode == http.StatusAccepted {
		_ = json.Unmarshal(answer, &refused) // not a problem: its code stays empty
		refused.RetryAfter = retryAfter(res)
	}
	switch {
	case refused.Code != "":
		return &refused
	case res.StatusCode/100 != 2:
		return fmt.Errorf("%s: the server answered %q and gave no reason: is it a Tailplane server?", pattern, res.Status)
	}
	if err := json.Unmarshal(answer, resp); err != nil {
		return fmt.Errorf("%s: the answer is not what was asked for: %w", pattern, err)
	}
	return nil
}

// Follow asks for an answer that goes on, by what its operation says of itself, and
// returns what is told until the server ends it or ctx does. Who has asked closes it.
func (c Client) Follow(ctx context.Context, pattern string, req any) (io.ReadCloser, error) {
	hr, err := c.request(ctx, pattern, req)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", pattern, err)
	}
	res, err := c.HTTP.Do(hr)
	if err != nil {
		return nil, err // *url.Error says what was asked of whom
	}
	if res.StatusCode == http.StatusOK {
		return res.Body, nil
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err == nil && c.Open != nil {
		var refused *problem.Error
		if _, refused, err = c.Open(res.StatusCode, answer); refused != nil {
			refused.RetryAfter = retryAfter(res)
			return nil, refused
		}
	}
	return nil, fmt.Errorf("%s: the server answered %q: %w", pattern, res.Status, cmp.Or(err, errors.New("it gave no reason")))
}

// request is the request that asks for an operation.
func (c Client) request(ctx context.Context, pattern string, req any) (*http.Request, error) {
	method, path, _ := strings.Cut(pattern, " ")
	query, header := url.Values{}, http.Header{}
	for tag, set := range map[string]func(name, text string){
		"query": func(name, text string) { query.Set(name, text) }, "header": header.Set,
		"path": func(name, text string) { path = strings.ReplaceAll(path, "{"+name+"}", url.PathEscape(text)) },
	} {
		err := each(req, tag, func(name string, field textField) error {
			text, err := field.MarshalText()
			if err == nil && len(text) > 0 {
				set(name, string(text))
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	var body io.Reader
	if method != http.MethodGet {
		b, err := json.Marshal(req)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(b)
	}
	u := strings.TrimSuffix(c.Base, "/") + path
	if len(query) > 0 {
		u += "?" + query.Encode()
	}
	hr, err := http.NewRequestWithContext(ctx, method, u, body)
	if err != nil {
		return nil, err
	}
	hr.Header = header
	if body != nil {
		hr.Header.Set("Content-Type", "application/json")
	}
	return hr, nil
}

// retryAfter is how long an answer asks to wait, at most an hour.
func retryAfter(res *http.Response) time.Duration {
	s, err := strconv.Atoi(res.Header.Get("Retry-After"))
	if err != nil || s < 0 {
		return 0
	}
	return time.Duration(min(s, 3600)) * time.Second
}
