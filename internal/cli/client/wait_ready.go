package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/util/retry"
)

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

// An IssuedKubeconfig is a validated kubeconfig from the server.
type IssuedKubeconfig struct {
	signin.Kubeconfig
	Until time.Time // actual expiry of the token; zero if the server does not report it
}

// Kubeconfig waits for the sign-in and fetches its kubeconfig.
func (c *Client) Kubeconfig(ctx context.Context) (IssuedKubeconfig, error) {
	k, err := CallUntilReady(ctx, c, signin.GetKubeconfig, func(wait time.Duration) signin.KubeconfigRequest {
		return signin.KubeconfigRequest{Wait: httpapi.Duration(wait)}
	})
	if err != nil {
		return IssuedKubeconfig{}, err
	}
	g := IssuedKubeconfig{Kubeconfig: k}
	if s := c.Last.Header.Get(signin.ExpiresHeader); s != "" {
		if g.Until, err = time.Parse(time.RFC3339, s); err != nil {
			err = fmt.Errorf("the expiry of the token, %.60q, is not a time", s)
		}
	}
	if err == nil {
		err = CheckKubeconfig(k)
	}
	if err != nil {
		return IssuedKubeconfig{}, c.InvalidResponse("kubeconfig", err)
	}
	if k.Cluster != c.Info.Name || k.Server != c.Info.ServerURL || !bytes.Equal(k.CA, c.Info.CAData) {
		return IssuedKubeconfig{}, output.Errorf(output.ExitRefused, "tka does not use the kubeconfig from %s: its API server is not the one that the server proved", c.Base).
			Try("Ask an administrator of the server. tka changed nothing on this machine.")
	}
	return g, nil
}

// InvalidResponse returns the error for a response that tka rejects.
func (c *Client) InvalidResponse(what string, err error) *output.Error {
	return output.Errorf(output.ExitFailed, "tka does not use the %s from %s: %v", what, c.Base, err).Because(err).
		Try("Ask an administrator of the server. tka changed nothing on this machine.")
}
