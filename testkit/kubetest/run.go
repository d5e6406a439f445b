package kubetest

import (
	"context"
	"sync"
	"testing"
	"time"
)

// Background runs controllers until stop is called, which waits for their end. That they
// end with an error, or not within the limit, is an error of the test; killed says whether
// the test itself cut them off, so that their error says nothing.
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
			t.Errorf("%s does not end", what)
		}
	})
}
