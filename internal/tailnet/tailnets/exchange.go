package tailnets

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"

	tailscale "tailscale.com/client/tailscale/v2"
)

// An exchange is one operation over the wire. It is the client library's Auth and
// its transport, and writes down what came: the library loses the status of an
// error page, takes a redirect for success, and reads without a limit.
type exchange struct {
	client *Client
	ctx    context.Context // the caller's

	token  Secret // that was shown
	status int
	wait   time.Duration
	failed *tokenError
	body   []byte
}

// errBusy says that too much is asked at once, by ourselves.
var errBusy = errors.New("too many requests of our own wait for this tailnet's API")

// run returns nil, or what went wrong.
func (x *exchange) run(op Op, do func(context.Context, *tailscale.Client) error) *Error {
	c := x.client
	ctx, cancel := context.WithTimeout(x.ctx, 2*attemptTime) // for the token and the request
	defer cancel()
	err := do(ctx, &tailscale.Client{
		BaseURL: c.base, Tailnet: c.config.Tailnet, UserAgent: c.config.UserAgent, Auth: x, HTTP: &http.Client{},
	})
	if err == nil {
		return nil
	}
	out := &Error{Op: op, Status: x.status, Class: classOf(x.status), RetryAfter: x.wait, cause: err}
	switch {
	case x.failed != nil:
		out.AtToken, out.Status, out.Class, out.RetryAfter = true, x.failed.status, x.failed.class(), x.failed.wait
		out.cause = x.failed
		if x.failed.cause != nil && (x.failed.status == 0 || x.failed.status < 400) {
			out.Message = printable(x.failed.cause.Error(), c.config.Credential.Secret)
		}
	case x.status >= 400:
		if said, ok := errors.AsType[tailscale.APIError](err); ok {
			out.Message = printable(said.Message, x.token, c.config.Credential.Secret)
		}
	default:
		out.Message = printable(err.Error(), x.token, c.config.Credential.Secret)
	}
	if errors.Is(err, errBusy) {
		out.Class, out.RetryAfter = RateLimited, firstBackoff
	}
	if x.ctx.Err() != nil && out.Class == Unavailable {
		out.Class = noClass
	}
	return out
}

// HTTPClient implements [tailscale.Auth].
func (x *exchange) HTTPClient(*http.Client, string) *http.Client { return &http.Client{Transport: x} }

// RoundTrip implements [http.RoundTripper]. A token may have been revoked within
// its hour: a refusal counts when a fresh one is refused as well.
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
	if req.URL.Host != c.base.Host || req.URL.Scheme != c.base.Scheme {
		return nil, fmt.Errorf("a credential for %s is not for %s", c.base.Host, req.URL.Host)
	}
	if again {
		if t := c.token.Load(); t != nil && t.text == x.token {
			c.token.CompareAndSwap(t, nil)
		}
	}
	t, err := c.accessToken(req.Context())
	if err != nil {
		x.failed, _ = errors.AsType[*tokenError](err)
		return nil, err
	}
	x.token = t.text
	if err := c.limit.Wait(req.Context()); err != nil {
		return nil, errors.Join(errBusy, err)
	}
	ctx, cancel := context.WithTimeout(req.Context(), attemptTime)
	defer cancel()
	own := req.Clone(ctx)
	if req.GetBody != nil {
		if own.Body, err = req.GetBody(); err != nil {
			return nil, err
		}
	}
	own.Header.Set("Authorization", "Bearer "+t.text.Reveal())
	res, err := c.transport.RoundTrip(own)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	x.status = res.StatusCode
	x.wait = retryAfter(res.Header, c.now())
	if res.StatusCode/100 == 3 {
		return nil, errors.New("the API answers with a redirect, which is not followed")
	}
	if x.body, err = io.ReadAll(io.LimitReader(res.Body, mostBody+1)); err != nil {
		return nil, err
	}
	if len(x.body) > mostBody {
		return nil, fmt.Errorf("the answer is longer than %d MB", mostBody>>20)
	}
	if kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); res.StatusCode/100 == 2 && kind == "text/html" {
		return nil, errors.New("the answer is a web page, so it is not from the API") // of a portal, which a deletion must not take for done
	}
	res.Body = io.NopCloser(bytes.NewReader(x.body))
	return res, nil
}
