package merge

import (
	"context"
	"fmt"
	"io"
	"time"
)

// startTimeout is how long a member may take to start its response, if others wait for it: to open a watch, or
// to answer an optional request.
const startTimeout = 10 * time.Second

var errStartTimeout = fmt.Errorf("no answer in %v", startTimeout)

// StartInTime calls req and gives the member 10 s to start its response. The rest of the response may take as long
// as ctx lives. The caller must call end when it no longer needs the response.
func StartInTime[T io.Closer](ctx context.Context, req func(context.Context) (T, error)) (response T, end func(), err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(startTimeout, func() { cancel(errStartTimeout) })
	response, err = req(ctx)
	if !timer.Stop() && err == nil {
		response.Close()
		err = errStartTimeout
	}
	if err != nil {
		if context.Cause(ctx) == errStartTimeout {
			err = errStartTimeout
		}
		cancel(nil)
	}
	return response, func() { cancel(nil) }, err
}

// CloseWith returns a body whose Close also calls end.
func CloseWith(body io.ReadCloser, end func()) io.ReadCloser { return &hookedBody{body, end} }

type hookedBody struct {
	io.ReadCloser
	end func()
}

// Close implements [io.Closer].
func (e *hookedBody) Close() error {
	e.end()
	return e.ReadCloser.Close()
}
