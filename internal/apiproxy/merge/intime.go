package merge

import (
	"context"
	"fmt"
	"io"
	"time"
)

// answerTime is how long a member may take to begin an answer that others wait
// for: that a watch is open, or one that they can do without.
const answerTime = 10 * time.Second

var errSlow = fmt.Errorf("no answer in %v", answerTime)

// InTime asks a member, who has 10 s to begin an answer and as long as ctx to end
// it. Who has done with the answer calls end.
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

// Ending is a body that, when it is closed, ends what was begun for it.
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
