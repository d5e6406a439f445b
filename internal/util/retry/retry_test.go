package retry_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tailplane/tailplane/internal/util/retry"
)

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if err := retry.Sleep(t.Context(), time.Hour); err != nil {
			t.Error(err)
		}
		if d := time.Since(began); d != time.Hour {
			t.Errorf("Sleep took %v, want 1h", d)
		}
	})
}

// A sleep ends together with its context and returns the context's error. Callers compare it with
// context.Canceled and context.DeadlineExceeded, which a cause is not.
func TestSleepEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			name string
			ctx  func() (context.Context, func())
			want error
		}{
			{"cancelled for a cause", func() (context.Context, func()) {
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(time.Second, func() { cancel(errors.New("interrupted")) })
				return ctx, func() {}
			}, context.Canceled},
			{"at its deadline", func() (context.Context, func()) {
				return context.WithTimeout(t.Context(), time.Second)
			}, context.DeadlineExceeded},
		} {
			ctx, cancel := c.ctx()
			began := time.Now()
			if err := retry.Sleep(ctx, time.Hour); err != c.want {
				t.Errorf("%s: Sleep = %v, want %v", c.name, err, c.want)
			}
			if d := time.Since(began); d != time.Second {
				t.Errorf("%s: Sleep took %v, want 1s", c.name, d)
			}
			cancel()
		}
	})
}

// An ended context takes precedence over a wait that is already over, so a loop with zero pauses
// still ends.
func TestSleepRefusesAnEndedContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wake := make(chan struct{})
	close(wake)
	for range 100 { // select chooses randomly between ready cases
		if err := retry.SleepOrWake(ctx, -time.Second, wake); err != context.Canceled {
			t.Fatalf("SleepOrWake = %v, want %v", err, context.Canceled)
		}
	}
	if err := retry.Sleep(t.Context(), -time.Second); err != nil {
		t.Errorf("Sleep with a negative duration = %v, want nil", err)
	}
}

func TestSleepOrWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		closed, sent := make(chan struct{}), make(chan struct{}, 1)
		time.AfterFunc(time.Second, func() { close(closed) })
		time.AfterFunc(2*time.Second, func() { sent <- struct{}{} })
		began := time.Now()
		for i, wake := range []chan struct{}{closed, sent} {
			if err := retry.SleepOrWake(t.Context(), time.Hour, wake); err != nil {
				t.Error(err)
			}
			if d, want := time.Since(began), time.Duration(i+1)*time.Second; d != want {
				t.Errorf("wake-up %d came after %v, want %v", i, d, want)
			}
		}
	})
}
