package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/testkit/tailnettest"
)

// NoLimits is the setting api.limits without rate limits: one machine plays all callers.
const NoLimits = "{login: {perMinute: 0}, kubeconfig: {perMinute: 0}, others: {perMinute: 0}, all: {perMinute: 0}}"

// startLimit is how long the start of a shared environment may take on a busy machine.
const startLimit = 10 * time.Minute

// ends are the functions that AtEnd has collected.
var ends struct {
	mu  sync.Mutex
	all []func() error
}

// AtEnd registers end. Main calls the registered functions after the last test, in reverse order. A test that starts
// something for all tests of its package calls AtEnd once.
func AtEnd(end func() error) {
	ends.mu.Lock()
	defer ends.mu.Unlock()
	ends.all = append(ends.all, end)
}

// Shared returns a function that returns the environment of all tests of a package. The first call creates it, and Main
// ends it.
func Shared[E any](create func(context.Context) (E, error), end func(E) error) func() (E, error) {
	return sync.OnceValues(func() (E, error) {
		ctx, cancel := context.WithTimeout(context.Background(), startLimit)
		defer cancel()
		e, err := create(ctx)
		if err == nil {
			AtEnd(func() error { return end(e) })
		}
		return e, err
	})
}

// SharedEnv is Shared for an Env in a temporary directory, which create receives. The Env that create returns is closed
// even if create fails. What create starts beside it, create registers with AtEnd.
func SharedEnv(create func(ctx context.Context, dir string) (*Env, error)) func(testing.TB) *Env {
	shared := Shared(func(ctx context.Context) (*Env, error) {
		dir, err := os.MkdirTemp("", "tailplane")
		if err != nil {
			return nil, err
		}
		AtEnd(func() error { return os.RemoveAll(dir) })
		env, err := create(ctx, dir)
		if err != nil && env != nil {
			err = errors.Join(err, env.Close())
		}
		return env, err
	}, (*Env).Close)
	return func(t testing.TB) *Env {
		t.Helper()
		env, err := shared()
		if err != nil {
			t.Fatal(err)
		}
		return env
	}
}

// Main runs the tests of a package, and then calls the functions of AtEnd. It exits the process.
func Main(m *testing.M) {
	tailnettest.Quiet()
	code := m.Run()
	for _, end := range slices.Backward(ends.all) {
		if err := end(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}
