package link

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/tailplane/tailplane/internal/cli/fault"
	"github.com/tailplane/tailplane/internal/cli/reach"
	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// longestWait is how long one request for a kubeconfig may wait. It is less than servers allow, so that the server ends the wait.
const longestWait = 25 * time.Second

// Patiently repeats the request until the response is other than "not yet" or the time limit is near. A server that supports waiting holds
// the request for the wait that req gets. For other servers, Patiently repeats the request after their Retry-After.
func Patiently[Req, Resp any](ctx context.Context, l *Link, op door.Op[Req, Resp], req func(wait time.Duration) Req) (Resp, error) {
	deadline, _ := ctx.Deadline()
	var late error // error for the last response, if no other one comes in time
	for last := false; ; {
		left := time.Until(deadline)
		resp, err := Call(ctx, l, op, req(max(0, min(longestWait, left-lastTry(left)).Truncate(time.Millisecond))))
		after, later := l.notYet(err)
		if !later {
			if _, answered := errors.AsType[*problem.Error](err); err != nil && !answered && late != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return resp, late
			}
			return resp, err
		}
		late = l.tooLate(err)
		left = time.Until(deadline)
		if room := left - lastTry(left); after > room {
			if last || l.Last.Status != http.StatusAccepted || room <= 0 {
				return resp, late
			}
			after, last = room, true // one more attempt, just before the end
		}
		switch err := retry.Sleep(ctx, after); {
		case errors.Is(err, context.DeadlineExceeded):
			return resp, late
		case err != nil:
			return resp, l.Explain(ctx, err)
		}
	}
}

// lastTry returns how much of the remaining time to reserve for the last request.
func lastTry(left time.Duration) time.Duration { return min(time.Second, left/4) }

// tooLate returns the fault when the response stays "not yet" until the time limit.
func (l *Link) tooLate(err error) *fault.Fault {
	if l.Last.Status != http.StatusAccepted {
		if f, ok := errors.AsType[*fault.Fault](err); ok {
			return f
		}
	}
	return fault.New(fault.NotReady, "The sign-in was not ready within %v", l.Limit).Because(err).
		Try("It goes on without tka; look at it with: tka status").
		Try("Give it longer: tka login --timeout 2m")
}

// retryAfter returns the delay in the Retry-After header; one second without it.
func retryAfter(h http.Header) time.Duration {
	s, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || s <= 0 {
		return time.Second
	}
	return time.Duration(min(s, 3600)) * time.Second
}

// A Granted is a validated kubeconfig from the server.
type Granted struct {
	signin.Kubeconfig
	Until time.Time // actual expiry of the token; zero if the server does not report it
}

// Kubeconfig waits for the sign-in and fetches its kubeconfig.
func (l *Link) Kubeconfig(ctx context.Context) (Granted, error) {
	k, err := Patiently(ctx, l, signin.GetKubeconfig, func(wait time.Duration) signin.KubeconfigRequest {
		return signin.KubeconfigRequest{Wait: door.Duration(wait)}
	})
	if err != nil {
		return Granted{}, err
	}
	g := Granted{Kubeconfig: k}
	if s := l.Last.Header.Get(signin.ExpiresHeader); s != "" {
		if g.Until, err = time.Parse(time.RFC3339, s); err != nil {
			err = fmt.Errorf("the end of the token, %.60q, is not a time", s)
		}
	}
	if err == nil {
		err = reach.CheckKubeconfig(k)
	}
	if err != nil {
		return Granted{}, l.BadAnswer("kubeconfig", err)
	}
	if k.Cluster != l.Info.Name || k.Server != l.Info.ServerURL || !bytes.Equal(k.CA, l.Info.CAData) {
		return Granted{}, fault.New(fault.Refused, "The kubeconfig from %s is not used: it leads to another place than the server proved", l.Base).
			Try("Ask whoever runs the server; nothing was changed on this machine.")
	}
	return g, nil
}

// BadAnswer returns the fault for a response that tka rejects.
func (l *Link) BadAnswer(what string, err error) *fault.Fault {
	return fault.New(fault.Failed, "The %s from %s is not used: %v", what, l.Base, err).Because(err).
		Try("Ask whoever runs the server; nothing was changed on this machine.")
}
