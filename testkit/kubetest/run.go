package kubetest

import (
	"context"
	"sync"
	"testing"
	"time"
)

// Background runs controllers until the caller calls stop, which waits for their end. The test fails if run returns
// an error, or does not return within limit. An error is ignored if killed returns true, because the test itself cut
// off the controllers.
func Background(t testing.TB, what string, limit time.Duration, killed func() bool, run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil && !killed() {
				t.Errorf("%s: %v", what, err)
			}
		case <-time.After(limit):
			t.Errorf("%s does not stop", what)
		}
	})
}
