// Package retry holds what every loop that tries again needs: a sleep that a
// context can end. It imports the standard library only, so that each program
// may link it.
package retry

import (
	"context"
	"time"
)

// Sleep waits for d and returns nil, or returns ctx.Err() as soon as ctx ends.
// With a ctx that has ended already it returns that error without waiting, also
// when d is zero or negative. [context.Cause] gives the reason of the end, where
// a caller needs it.
//
// Sleep leaves no timer and no goroutine behind. In a testing/synctest bubble it
// takes the bubble's time.
func Sleep(ctx context.Context, d time.Duration) error {
	return SleepOrWake(ctx, d, nil)
}

// SleepOrWake is [Sleep], but that it also returns nil when wake is closed or
// delivers a value. A nil wake never does. The caller cannot tell which of the
// two ended the wait, and looks at its own state again in both cases.
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
