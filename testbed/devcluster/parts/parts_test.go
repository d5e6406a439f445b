package parts_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tailplane/tailplane/testbed/devcluster/parts"
)

// If a part ends too early, the whole group ends with its name and its reason.
func TestAPartThatEndsByItselfIsReported(t *testing.T) {
	broken := errors.New("broken")
	for _, tc := range []struct {
		err  error
		says string
		why  string
	}{
		{broken, "controller x ended unexpectedly: broken", "with an error"},
		{nil, "controller x ended unexpectedly: it returned without an error", "without one, as most controllers return"},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, fail := context.WithCancelCause(t.Context())
			g := parts.New(ctx, fail)
			defer g.Stop()
			g.Go("controller y", func(ctx context.Context) error { <-ctx.Done(); return nil })
			g.Go("controller x", func(context.Context) error { return tc.err })
			synctest.Wait()
			if got := context.Cause(ctx); got == nil || got.Error() != tc.says {
				t.Errorf("%s: got %v, want %q", tc.why, got, tc.says)
			}
			if tc.err != nil && !errors.Is(context.Cause(ctx), tc.err) {
				t.Errorf("%s: the reason is not wrapped", tc.why)
			}
		})
	}
}

// Stop waits for parts that need time to end, and ignores their errors.
func TestStopWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, fail := context.WithCancelCause(t.Context())
		defer fail(nil)
		g := parts.New(ctx, fail)
		var ended atomic.Int32
		for i := range 3 {
			g.Go("slow", func(ctx context.Context) error {
				<-ctx.Done()
				time.Sleep(time.Duration(i) * time.Minute)
				ended.Add(1)
				return errors.New("late")
			})
		}
		start := time.Now()
		g.Stop()
		if ended.Load() != 3 || time.Since(start) != 2*time.Minute {
			t.Errorf("Stop returned after %v with %d of 3 ended", time.Since(start), ended.Load())
		}
		if err := context.Cause(ctx); err != nil && strings.Contains(err.Error(), "late") {
			t.Errorf("an orderly end was taken for a failure: %v", err)
		}
	})
}
