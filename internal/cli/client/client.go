// Package client connects tka to servers: to access servers, whose responses the key of the cluster must prove; to the operator plane, with
// a bearer token; and to the API servers of clusters, directly or with kubectl.
//
// The package keeps the laws of trust on the side of the client. Law 1: the proof identifies a server, not its name or certificate. Law 5:
// the directory of clusters gives only the address of a cluster and the key that its server must prove; tka shows an excluded entry with
// the reason and never signs in to it. Law 6: administrators use their own identity, kubectl and kubeconfig. Law 7: the client rejects
// everything that a server sends beyond what tka requested. Law 8: a token goes only to the configured https host or to the API server with
// the known certificate authority. It follows no redirect and never appears in a URL, an error or a log. The cache has each token of
// kubectl's plugin, until shortly before it expires, in one file that only its owner can read, in memory if the system has a place for
// that; a failure of the cache is never an error.
package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"time"

	"github.com/tailplane/tailplane/internal/cli/dialpolicy"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// A Client is a client for one server, with its last response. It must not be used concurrently.
type Client struct {
	Base    string        // URL: scheme and host
	Timeout time.Duration // of the whole command, for messages
	Last    Exchange
	http    httpapi.Client

	Key          httpapi.PublicKey  // must prove every response; zero: not yet known
	Pinned       bool               // the key is in the settings
	Source       string             // the server that reported the key; "": this machine knows it
	Info         signin.ClusterInfo // of the server's cluster, once the server has proved its identity
	FirstContact bool               // its key was not known before
	Denied       *output.Error      // the server refused the request for its cluster; proved if the key is known
}

// An Exchange is the metadata of the last request and response.
type Exchange struct {
	Reached bool // a connection was established
	Status  int
	Header  http.Header
	nonce   string
	host    string       // as in the request
	body    bytes.Buffer // as far as it was read
}

// New returns a client for the server at base. limit is the time limit of the command, and agent is the User-Agent header. New opens no
// connection.
func New(base string, limit time.Duration, agent string) *Client {
	return newClient(base, limit, agent, dialpolicy.Transport(base))
}

// NewDiscovered is [New] for a server whose address and key another server reported; source is that server. It connects only within the
// tailnet.
func NewDiscovered(base string, key httpapi.PublicKey, source string, limit time.Duration, agent string) *Client {
	c := newClient(base, limit, agent, dialpolicy.TailnetTransport())
	c.Key, c.Source = key, source
	return c
}

func newClient(base string, limit time.Duration, agent string, transport http.RoundTripper) *Client {
	c := &Client{Base: base, Timeout: limit}
	c.http = httpapi.Client{Base: base, HTTP: &http.Client{
		Transport:     &responseRecorder{client: c, next: transport, agent: agent},
		CheckRedirect: func(r *http.Request, _ []*http.Request) error { return redirectError(r.URL.String()) },
	}}
	return c
}

// redirectError is the target of a redirect. tka never follows one: otherwise the server that responds once could choose which server tka
// queries next.
type redirectError string

func (r redirectError) Error() string { return fmt.Sprintf("a redirect to %.200q", string(r)) }

// A responseRecorder records the responses of a client.
type responseRecorder struct {
	client *Client
	next   http.RoundTripper
	agent  string
}

func (rec *responseRecorder) RoundTrip(r *http.Request) (*http.Response, error) {
	rec.client.Last = Exchange{}
	ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { rec.client.Last.Reached = true },
	})
	r = r.Clone(ctx)
	rec.client.Last.nonce, rec.client.Last.host = httpapi.NewNonce(), r.URL.Host
	r.Header.Set("User-Agent", rec.agent)
	r.Header.Set(httpapi.NonceHeader, rec.client.Last.nonce)
	res, err := rec.next.RoundTrip(r)
	if err == nil {
		rec.client.Last.Status, rec.client.Last.Header = res.StatusCode, res.Header
		res.Body = teeBody{io.TeeReader(res.Body, &rec.client.Last.body), res.Body}
	}
	return res, err
}

// A teeBody records a body while it is read. The reader must bound it.
type teeBody struct {
	io.Reader
	io.Closer
}

// Call sends a request for op to the server. Every error is an *output.Error.
func Call[Req, Resp any](ctx context.Context, c *Client, op httpapi.Op[Req, Resp], req Req) (Resp, error) {
	resp, err := op.Call(ctx, c.http, req)
	p, refused := errors.AsType[*problem.Error](err)
	if err != nil && !refused {
		return resp, c.Explain(ctx, err)
	}
	if !c.Key.IsZero() && c.verifyResponse(c.Key) != nil {
		if !refused || !mayBeUnproved(p.Code) {
			var none Resp
			return none, c.wrongKeyError(httpapi.PublicKey{})
		}
		p.Advice = append([]string{"The server did not sign this answer, so it may come from another machine."}, p.Advice...)
	}
	if refused {
		return resp, c.Explain(ctx, err)
	}
	return resp, nil
}

// maxWait is how long one request for a kubeconfig may wait. It is less than servers allow, so that the server ends the wait.
const maxWait = 25 * time.Second

// CallUntilReady repeats the request until the response is other than "not yet" or the time limit is near. A server that supports waiting
// holds the request for the wait that req gets. For other servers, CallUntilReady repeats the request after their Retry-After.
func CallUntilReady[Req, Resp any](ctx context.Context, c *Client, op httpapi.Op[Req, Resp], req func(wait time.Duration) Req) (Resp, error) {
	deadline, _ := ctx.Deadline()
	var lateErr error // error for the last response, if no other one comes in time
	for last := false; ; {
		left := time.Until(deadline)
		resp, err := Call(ctx, c, op, req(max(0, min(maxWait, left-lastRequestTime(left)).Truncate(time.Millisecond))))
		after, later := c.retryDelay(err)
		if !later {
			if _, answered := errors.AsType[*problem.Error](err); err != nil && !answered && lateErr != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return resp, lateErr
			}
			return resp, err
		}
		lateErr = c.notReadyError(err)
		left = time.Until(deadline)
		if available := left - lastRequestTime(left); after > available {
			if last || c.Last.Status != http.StatusAccepted || available <= 0 {
				return resp, lateErr
			}
			after, last = available, true // one more attempt, just before the end
		}
		switch err := retry.Sleep(ctx, after); {
		case errors.Is(err, context.DeadlineExceeded):
			return resp, lateErr
		case err != nil:
			return resp, c.Explain(ctx, err)
		}
	}
}

// lastRequestTime returns how much of the remaining time to reserve for the last request.
func lastRequestTime(left time.Duration) time.Duration { return min(time.Second, left/4) }

// notReadyError returns the error when the response stays "not yet" until the time limit.
func (c *Client) notReadyError(err error) *output.Error {
	if c.Last.Status != http.StatusAccepted {
		if f, ok := errors.AsType[*output.Error](err); ok {
			return f
		}
	}
	return output.Errorf(output.ExitNotReady, "The sign-in was not ready within %v", c.Timeout).Because(err).
		Try("The cluster continues without tka. See the state: tka status").
		Try("Allow more time: tka login --timeout 2m")
}

// retryAfterHeader returns the delay in the Retry-After header; one second without it.
func retryAfterHeader(h http.Header) time.Duration {
	s, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || s <= 0 {
		return time.Second
	}
	return time.Duration(min(s, 3600)) * time.Second
}

// retryDelay reports whether the last response asks the client to retry, and when.
func (c *Client) retryDelay(err error) (time.Duration, bool) {
	p, ok := errors.AsType[*problem.Error](err)
	if ok && p.RetryAfter == 0 {
		p.RetryAfter = time.Second
	}
	switch {
	case ok && output.ProblemExitCode(p.Code) == output.ExitNotReady:
		return p.RetryAfter, true
	case !ok && output.ExitCode(err) == output.ExitFailed && c.Last.Status == http.StatusAccepted: // a server without problem codes
		return retryAfterHeader(c.Last.Header), true
	}
	return 0, false
}
