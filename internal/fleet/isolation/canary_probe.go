package isolation

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tailplane/tailplane/internal/util/retry"
)

// Times of a canary.
const (
	canaryTimeout       = 3 * time.Second
	canarySettleTime    = 30 * time.Second // a plugin may apply a policy to a pod shortly after the pod starts
	canaryRetryInterval = time.Second      // between tries before settle has passed
)

// CanaryExitCode is the program's exit code if the canary reached a forbidden address.
const CanaryExitCode = 3

// A CanaryProbe makes the attempts. Only Never is required.
type CanaryProbe struct {
	Forbidden []string // addresses with ports that must not answer
	// Required lists addresses of which at least one must answer: a pod without any connection proves
	// nothing.
	Required []string
	Interval time.Duration // interval; 0: one minute

	// Dial, optional, opens a connection.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	mu       sync.Mutex
	enforced bool
}

// A CanaryReachedError lists the forbidden addresses that were reached.
type CanaryReachedError struct{ Addresses []string }

func (e *CanaryReachedError) Error() string { return "reached: " + strings.Join(e.Addresses, ", ") }

// Run makes attempts until ctx ends. It returns a *CanaryReachedError when it reaches a forbidden
// address.
func (c *CanaryProbe) Run(ctx context.Context) error {
	if len(c.Forbidden) == 0 {
		return errors.New("a canary needs at least one address that it must not reach")
	}
	startedAt := time.Now()
	for {
		reached := c.reachable(ctx, c.Forbidden)
		if ctx.Err() != nil {
			return nil
		}
		settled := time.Since(startedAt) >= canarySettleTime
		if len(reached) > 0 && settled {
			return &CanaryReachedError{reached}
		}
		works := len(c.Required) == 0 || len(c.reachable(ctx, c.Required)) > 0
		c.mu.Lock()
		c.enforced = len(reached) == 0 && works
		c.mu.Unlock()
		pause := canaryRetryInterval
		if settled || len(reached) == 0 && works {
			pause = c.Interval
			if pause == 0 {
				pause = time.Minute
			}
		}
		if retry.Sleep(ctx, pause) != nil {
			return nil
		}
	}
}

// reachable returns the addresses that answer, in their order. A refused connection is an answer
// too: the packet arrived.
func (c *CanaryProbe) reachable(ctx context.Context, addresses []string) []string {
	dial := c.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	ctx, cancel := context.WithTimeout(ctx, canaryTimeout)
	defer cancel()
	answers := make([]bool, len(addresses))
	var wg sync.WaitGroup
	for i, address := range addresses {
		wg.Go(func() {
			conn, err := dial(ctx, "tcp", address)
			if err == nil {
				conn.Close()
			}
			answers[i] = err == nil || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET)
		})
	}
	wg.Wait()
	i := -1
	return slices.DeleteFunc(slices.Clone(addresses), func(string) bool { i++; return !answers[i] })
}

// ServeHTTP answers 200 if the last attempt proved that the policies work: it reached no forbidden
// address, and it reached an allowed one.
func (c *CanaryProbe) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.enforced {
		http.Error(w, "not proved", http.StatusServiceUnavailable)
	}
}
