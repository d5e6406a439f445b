package httpapi

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

// An Op is the declaration of one operation, with types for both ends. The server's route, the
// client's call and the API reference use it.
//
// Req is a struct. Fields with a json name form the body of every method except GET. Fields with a
// query name (`query:"wait"`) are query parameters. Fields with a path name replace {name} in the
// pattern, and fields with a header name are headers. Query, path and header fields are strings or
// implement encoding.TextMarshaler and encoding.TextUnmarshaler. They are not part of the body
// (`json:"-"`). The doc tag describes a field in the API reference. Fields of an embedded struct
// count as fields of the request.
type Op[Req, Resp any] struct {
	Pattern string      // pattern of net/http, such as "POST /api/v1alpha1/login"
	Verb    access.Verb // the verb for access decisions and the audit log
	Doc     string      // one line

	// Routine marks an operation between servers. A served request writes no audit entry; a refused
	// one does.
	Routine bool

	// Page marks a page that people open through links from other sites. A browser may then open it
	// as a top-level document from another site. Pages also answer HEAD requests, which link
	// checkers send.
	Page bool

	// MaxResponse limits the size of a response that a client reads, in bytes; 0: 1 MiB.
	MaxResponse int64

	// For the API reference: an example request, an example response for each status, and the codes
	// of the operation's refusals. The codes of Before are not repeated here.
	Example   Req
	Responses []Resp
	Refusals  []problem.Code
}

// A Declaration is an Op without its types.
type Declaration struct {
	Pattern           string
	Verb              access.Verb
	Doc               string
	Routine, Page     bool
	Request, Response reflect.Type
	Example           any
	Responses         []any
	Refusals          []problem.Code
}

// Declare returns the declaration of o.
func (o Op[Req, Resp]) Declare() Declaration {
	d := Declaration{Pattern: o.Pattern, Verb: o.Verb, Doc: o.Doc, Routine: o.Routine, Page: o.Page, Request: reflect.TypeFor[Req](), Response: reflect.TypeFor[Resp](),
		Example: o.Example, Refusals: o.Refusals}
	for _, a := range o.Responses {
		d.Responses = append(d.Responses, a)
	}
	return d
}

// A Route is an Op with a handler.
type Route struct {
	Declaration
	handle func(*request, access.Permit) (any, error)
}

// CommonRefusals returns the codes that can refuse any operation before the decision, and the codes for
// requests that cannot be parsed.
func CommonRefusals() []problem.Code {
	return []problem.Code{problem.WrongHost, problem.CrossOrigin, problem.FunnelRefused, problem.NoIdentity, problem.IdentityUnavailable,
		problem.NodeExpired, problem.IdentityAmbiguous, problem.RateLimited, problem.BadRequest, problem.Unavailable, problem.Internal}
}

// Verbs returns the verbs of routes, sorted and without duplicates.
func Verbs(routes ...Route) []access.Verb {
	var verbs []access.Verb
	for _, rt := range routes {
		verbs = append(verbs, rt.Verb)
	}
	slices.Sort(verbs)
	return slices.Compact(verbs)
}

// An AuditArguer request returns its arguments for the audit log. They must not contain secrets.
// "reason" becomes the entry's reason and "org" its organisation. A request with {org} in its path
// need not return "org".
type AuditArguer interface{ AuditArgs() map[string]string }

// An AuditNamer response returns the name of its object for the audit log.
type AuditNamer interface{ AuditObject() string }

// An AuditOwner response returns its organisation for the audit log, if the request does not name it.
type AuditOwner interface{ AuditOrg() string }

// An AuditDetailer response adds arguments to the entry of the audit log. They must not contain secrets.
type AuditDetailer interface{ AuditDetails() map[string]string }

// An AuditCredential response returns the ID of the token that it contains for the audit log, or "" if
// the token has none.
type AuditCredential interface{ AuditCredentialID() string }

// An AuditActor response names the caller for whom the request acted, if the caller of the request only passes it on. The
// entry of the audit log is that caller's, and its argument "proxy" is the node that sent the request.
type AuditActor interface{ AuditActor() (access.Caller, bool) }

// A BodyReader is a pointer to a request that decodes its body itself, in a format to which newer
// versions may add fields. All other requests are decoded strictly.
type BodyReader interface {
	ReadBody(body []byte) error // the error is shown to the caller
	MaxBody() int               // bytes
}

// A Responder response chooses its status or form.
type Responder interface {
	// EncodeResponse returns the response for a client that sent the given Accept header.
	EncodeResponse(accept string) (Response, error)
}

// A Response is an encoded response.
type Response struct {
	Status      int
	RetryAfter  time.Duration // 0: none; sent in whole seconds, rounded up
	Header      http.Header
	ContentType string // for a Body of type []byte
	Body        any    // []byte is sent as it is; any other value as JSON
}

// A Waiter is a request that may wait. One that does not wait takes no place of those that do.
type Waiter interface{ Waits() bool }

// Serve returns a route that handles o with fn.
func (o Op[Req, Resp]) Serve(fn func(context.Context, access.Permit, Req) (Resp, error)) Route {
	return o.ServeAfter(nil, fn)
}

// ServeAfter is like Serve for an operation that may wait first. The server identifies the caller
// and decides before the wait and again after it, so fn runs with current permissions. An error of
// wait ends the request. A request that implements [Waiter] decides whether it waits.
func (o Op[Req, Resp]) ServeAfter(wait func(context.Context, access.Permit, Req) error, fn func(context.Context, access.Permit, Req) (Resp, error)) Route {
	return Route{o.Declare(), func(v *request, p access.Permit) (any, error) {
		req, err := decodeRequest[Req](v)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithDeadline(v.r.Context(), p.Until())
		defer cancel()
		if w, is := any(req).(Waiter); wait != nil && (!is || w.Waits()) {
			if err := v.waitFor(ctx, func(ctx context.Context) error { return wait(ctx, p, req) }); err != nil {
				return nil, err
			}
			var err error
			if p, err = v.renew(); err != nil {
				return nil, err
			}
		}
		resp, err := fn(ctx, p, req)
		if n, ok := any(resp).(AuditNamer); ok {
			v.entry.Object = n.AuditObject()
		}
		if b, ok := any(resp).(AuditOwner); ok {
			v.entry.Org = cmp.Or(v.entry.Org, b.AuditOrg())
		}
		if a, ok := any(resp).(AuditDetailer); ok && err == nil {
			for name, text := range a.AuditDetails() {
				if v.entry.Args == nil {
					v.entry.Args = map[string]string{}
				}
				v.entry.Args[name] = text
			}
		}
		if a, ok := any(resp).(AuditActor); ok {
			v.setActor(a.AuditActor())
		}
		if c, ok := any(resp).(AuditCredential); ok {
			v.entry.CredentialID = c.AuditCredentialID()
		}
		return resp, unavailableIfCanceled(v.r.Context(), err)
	}}
}

// decodeRequest decodes the request and copies its arguments to the audit entry.
func decodeRequest[Req any](v *request) (req Req, err error) {
	v.entry.Org = v.r.PathValue("org")
	if err := decode(v.w, v.r, &req); err != nil {
		return req, err
	}
	if a, ok := any(req).(AuditArguer); ok {
		args := a.AuditArgs()
		v.entry.Reason, v.entry.Org = args["reason"], cmp.Or(v.entry.Org, args["org"])
		delete(args, "reason")
		delete(args, "org")
		v.entry.Args = args
	}
	return req, nil
}

// waitFor runs wait until it returns, the client leaves, or the server stops.
func (v *request) waitFor(ctx context.Context, wait func(context.Context) error) error {
	release, err := v.limits.acquireWaiter(v.caller)
	if err != nil {
		return err
	}
	defer release()
	// Remove the read deadline, because the request is already read. Otherwise net/http treats the
	// deadline as if the client had left, and ends the request.
	if err := http.NewResponseController(v.w).SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("wait: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(v.stopping, cancel)()
	began := v.server.Now()
	err = wait(ctx)
	v.waited = max(v.server.Now().Sub(began), 1)
	return unavailableIfCanceled(ctx, err)
}

// unavailableIfCanceled returns a problem if err is caused by the end of the request's context: the client left,
// or the server is stopping.
func unavailableIfCanceled(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		return problem.New(problem.Unavailable, "The request ended before the response was ready.", "Send the request again.").WithRetryAfter(time.Second)
	}
	return err
}

// A Client is the client side of an Op.
type Client struct {
	HTTP *http.Client
	Base string // scheme and host, such as "https://tka.example.ts.net"

	// Open, optional, unwraps a response envelope. It returns the JSON of the response, or the
	// refusal. If Open is nil, there is no envelope.
	Open func(status int, answer []byte) (data []byte, refused *problem.Error, err error)
}

// maxResponse is the default limit of a response in bytes.
const maxResponse = 1 << 20

// Call sends the request o to the server. A refusal is a *problem.Error. A response that is not
// from a Tailplane server is an error that says so.
func (o Op[Req, Resp]) Call(ctx context.Context, c Client, req Req) (resp Resp, err error) {
	err = c.Do(ctx, o.Pattern, o.MaxResponse, req, &resp)
	return resp, err
}

// Do is like [Op.Call], but takes the pattern and untyped values. resp is a pointer to the
// response type. Ask is compiled only once, and a program that uses it instead of a generic Op does
// not link the server code. That keeps small programs small.
func (c Client) Do(ctx context.Context, pattern string, maxBytes int64, req, resp any) error {
	res, err := c.send(ctx, pattern, req, "application/json")
	if err != nil {
		return err
	}
	defer res.Body.Close()
	limit := cmp.Or(maxBytes, maxResponse)
	answer, err := io.ReadAll(io.LimitReader(res.Body, limit+1))
	if err != nil {
		return fmt.Errorf("%s: read the response: %w", pattern, err)
	}
	if int64(len(answer)) > limit {
		return fmt.Errorf("%s: the response is larger than %d bytes", pattern, limit)
	}
	var refused *problem.Error
	switch {
	case c.Open != nil:
		if answer, refused, err = c.Open(res.StatusCode, answer); err != nil {
			return fmt.Errorf("%s: the server answered %q: %w", pattern, res.Status, err)
		}
	case res.StatusCode/100 != 2 || res.StatusCode == http.StatusAccepted:
		refused = new(problem.Error)
		if _ = json.Unmarshal(answer, refused); refused.Code == "" { // this is not a problem
			refused = nil
		}
		if refused == nil && res.StatusCode/100 != 2 {
			return fmt.Errorf("%s: the server answered %q without a reason: is it a Tailplane server?", pattern, res.Status)
		}
	}
	if refused != nil {
		refused.RetryAfter = retryAfter(res)
		return refused
	}
	if err := json.Unmarshal(answer, resp); err != nil {
		return fmt.Errorf("%s: the answer does not have the expected form: %w", pattern, err)
	}
	return nil
}

// Follow requests a streamed response and returns its body. The stream ends when the server ends it
// or ctx ends. The caller must close the body.
func (c Client) Follow(ctx context.Context, pattern string, req any) (io.ReadCloser, error) {
	res, err := c.send(ctx, pattern, req, "")
	if err != nil {
		return nil, err
	}
	if res.StatusCode == http.StatusOK {
		return res.Body, nil
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxResponse))
	if err == nil && c.Open != nil {
		var refused *problem.Error
		if _, refused, err = c.Open(res.StatusCode, answer); refused != nil {
			refused.RetryAfter = retryAfter(res)
			return nil, refused
		}
	}
	return nil, fmt.Errorf("%s: the server answered %q: %w", pattern, res.Status, cmp.Or(err, errors.New("no reason in the response")))
}

// send sends the request for an operation, with an Accept header if accept is set.
func (c Client) send(ctx context.Context, pattern string, req any, accept string) (*http.Response, error) {
	hr, err := c.request(ctx, pattern, req)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", pattern, err)
	}
	if accept != "" {
		hr.Header.Set("Accept", accept)
	}
	return c.HTTP.Do(hr) // its error is a *url.Error, which names the operation and the URL
}

// request returns the HTTP request for an operation.
func (c Client) request(ctx context.Context, pattern string, req any) (*http.Request, error) {
	method, path, _ := strings.Cut(pattern, " ")
	query, header := url.Values{}, http.Header{}
	for tag, set := range map[string]func(name, text string){
		"query": func(name, text string) { query.Set(name, text) }, "header": header.Set,
		"path": func(name, text string) { path = strings.ReplaceAll(path, "{"+name+"}", url.PathEscape(text)) },
	} {
		err := eachField(req, tag, func(name string, field textField) error {
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

// retryAfter returns the Retry-After of a response, at most one hour.
func retryAfter(res *http.Response) time.Duration {
	s, err := strconv.Atoi(res.Header.Get("Retry-After"))
	if err != nil || s < 0 {
		return 0
	}
	return time.Duration(min(s, 3600)) * time.Second
}
