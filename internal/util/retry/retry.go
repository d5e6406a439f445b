// Package retry provides what loops that try again need: a sleep that a context can end, and the
// choice of the next time. It imports the standard library only, so that every program can use it.
package retry

import (
	"context"
	"time"
)

// Sleep waits for d and returns nil, or returns ctx.Err() as soon as ctx ends. If ctx has already
// ended, Sleep returns that error without waiting, even if d is zero or negative. Callers that need
// the reason can use [context.Cause].
//
// Sleep leaves no timer and no goroutine behind. In a testing/synctest bubble it uses the time of
// the bubble.
func Sleep(ctx context.Context, d time.Duration) error {
	return SleepOrWake(ctx, d, nil)
}

// SleepOrWake is like [Sleep], but it also returns nil when wake is closed or delivers a value. A
// nil wake never does. The caller cannot tell which event ended the wait, and must check its state
// in both cases.
func SleepOrWake(ctx context.Context, d time.Duration, wake <-chan struct{}) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-wake:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Earliest returns the earlier of two times at which to look again. The zero time means never.
func Earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
