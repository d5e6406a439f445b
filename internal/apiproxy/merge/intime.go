package merge

import (
	"context"
	"fmt"
	"io"
	"time"
)

// answerTime is how long a member may take to start its response, if others wait for it: to open a watch, or
// to answer an optional request.
const answerTime = 10 * time.Second

var errSlow = fmt.Errorf("no answer in %v", answerTime)

// InTime calls ask and gives the member 10 s to start its response. The rest of the response may take as long
// as ctx lives. The caller must call end when it no longer needs the response.
func InTime[T io.Closer](ctx context.Context, ask func(context.Context) (T, error)) (answer T, end func(), err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(answerTime, func() { cancel(errSlow) })
	answer, err = ask(ctx)
	if !timer.Stop() && err == nil {
		answer.Close()
		err = errSlow
	}
	if err != nil {
		if context.Cause(ctx) == errSlow {
			err = errSlow
		}
		cancel(nil)
	}
	return answer, func() { cancel(nil) }, err
}

// Ending returns a body whose Close also calls end.
func Ending(body io.ReadCloser, end func()) io.ReadCloser { return &ending{body, end} }

type ending struct {
	io.ReadCloser
	end func()
}

// Close implements [io.Closer].
func (e *ending) Close() error {
	e.end()
	return e.ReadCloser.Close()
}
