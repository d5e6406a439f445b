package tsapi

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	tailscale "tailscale.com/client/tailscale/v2"

	"github.com/tailplane/tailplane/internal/util/httptransport"
	"github.com/tailplane/tailplane/internal/util/secret"
)

// An exchange executes one operation as the transport of the client library. It adds the access
// token and stores the status and body of the response. This is needed because the library loses
// the status of an error page and accepts {} as an empty list. All other rules are those of
// [httptransport].
type exchange struct {
	client *Client
	ctx    context.Context // the caller's context

	token  secret.Text // the access token of the last request
	status int
	wait   time.Duration
	failed *Error
	body   []byte
}

// errBusy means that this client's rate limit does not allow the request in time.
var errBusy = errors.New("too many requests of this process wait for this tailnet's API")

// run executes do and returns nil or a classified error.
func (x *exchange) run(op Op, do func(context.Context, *tailscale.Client) error) *Error {
	c := x.client
	ctx, cancel := context.WithTimeout(x.ctx, 2*attemptTime) // for the token and the request
	defer cancel()
	err := do(ctx, &tailscale.Client{
		BaseURL: c.base, Tailnet: c.config.Tailnet, UserAgent: c.config.UserAgent, HTTP: httptransport.ClientOf(x),
	})
	if err == nil {
		return nil
	}
	out := &Error{Op: op, Status: x.status, Class: classOf(x.status), RetryAfter: x.wait, cause: err}
	switch {
	case x.failed != nil:
		*out = *x.failed
		out.Op = op
		if x.failed.Status < 400 {
			out.Message = printable(x.failed.cause.Error(), c.config.Credential.Secret)
		}
	case x.status >= 400:
		if refusal, ok := errors.AsType[tailscale.APIError](err); ok {
			out.Message = printable(refusal.Message, x.token, c.config.Credential.Secret)
		}
	default:
		text := err.Error()
		if broken, ok := errors.AsType[*httptransport.Error](err); ok {
			text = broken.Message // net/http adds the complete URL
		}
		out.Message = printable(text, x.token, c.config.Credential.Secret)
	}
	if errors.Is(err, errBusy) {
		out.Class, out.RetryAfter = RateLimited, firstBackoff
	}
	if x.ctx.Err() != nil && out.Class == Unavailable {
		out.Class = noClass
	}
	return out
}

// exchangeOf returns the exchange of a library client.
func exchangeOf(api *tailscale.Client) *exchange { return api.HTTP.Transport.(*exchange) }

// RoundTrip implements [http.RoundTripper]. A token may be revoked before it expires, so a 401 is
// repeated once with a new token.
func (x *exchange) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := x.send(req, false)
	if err == nil && res.StatusCode == http.StatusUnauthorized && req.GetBody != nil {
		return x.send(req, true)
	}
	return res, err
}

func (x *exchange) send(req *http.Request, again bool) (*http.Response, error) {
	c := x.client
	x.status, x.wait, x.body = 0, 0, nil
	if again {
		if t := c.token.Load(); t != nil && t.text.Equal(x.token) {
			c.token.CompareAndSwap(t, nil)
		}
	}
	t, err := c.accessToken(req.Context())
	if err != nil {
		x.failed, _ = errors.AsType[*Error](err)
		return nil, err
	}
	x.token = t.text
	if err := c.limit.Wait(req.Context()); err != nil {
		return nil, errors.Join(errBusy, err)
	}
	own := req.Clone(req.Context())
	if req.GetBody != nil {
		if own.Body, err = req.GetBody(); err != nil {
			return nil, err
		}
	}
	res, err := c.api.With(x.authorize, x.observe).RoundTrip(own)
	if err != nil {
		return nil, err
	}
	if res.StatusCode/100 == 3 { // 304 passes the transport, and the library treats it as success
		return nil, &httptransport.Error{Status: res.StatusCode, Message: "the API answered 304 to an unconditional request"}
	}
	if x.body, err = io.ReadAll(res.Body); err != nil {
		return nil, err
	}
	res.Body = io.NopCloser(bytes.NewReader(x.body))
	return res, nil
}

func (x *exchange) authorize(r *http.Request) error {
	r.Header.Set("Authorization", "Bearer "+x.token.Reveal())
	return nil
}

func (x *exchange) observe(status int, header http.Header) {
	x.status, x.wait = status, retryAfter(header, x.client.now())
}
