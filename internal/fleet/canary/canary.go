// Package canary tries to reach forbidden addresses from the place of an organisation's jobs.
// NetworkPolicies have an effect only if the network plugin enforces them, and only a connection
// attempt can show that.
package canary

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
	answerIn = 3 * time.Second
	settle   = 30 * time.Second // a plugin may apply a policy to a pod shortly after the pod starts
	between  = time.Second      // between tries before settle has passed
)

// Code is the program's exit code if the canary reached a forbidden address.
const Code = 3

// A Canary makes the attempts. Only Never is required.
type Canary struct {
	Never []string // addresses with ports that must not answer
	// Always lists addresses of which at least one must answer: a pod without any connection proves
	// nothing.
	Always []string
	Every  time.Duration // interval; 0: one minute

	// Dial, optional, opens a connection.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	mu     sync.Mutex
	proved bool
}

// A ReachedError lists the forbidden addresses that were reached.
type ReachedError struct{ Addresses []string }

func (e *ReachedError) Error() string { return "reached: " + strings.Join(e.Addresses, ", ") }

// Run makes attempts until ctx ends. It returns a *ReachedError when it reaches a forbidden
// address.
func (c *Canary) Run(ctx context.Context) error {
	if len(c.Never) == 0 {
		return errors.New("a canary needs something that it must not reach")
	}
	began := time.Now()
	for {
		reached := c.answering(ctx, c.Never)
		if ctx.Err() != nil {
			return nil
		}
		settled := time.Since(began) >= settle
		if len(reached) > 0 && settled {
			return &ReachedError{reached}
		}
		works := len(c.Always) == 0 || len(c.answering(ctx, c.Always)) > 0
		c.mu.Lock()
		c.proved = len(reached) == 0 && works
		c.mu.Unlock()
		pause := between
		if settled || len(reached) == 0 && works {
			pause = c.Every
			if pause == 0 {
				pause = time.Minute
			}
		}
		if retry.Sleep(ctx, pause) != nil {
			return nil
		}
	}
}

// answering returns the addresses that answer, in their order. A refused connection is an answer
// too: the packet arrived.
func (c *Canary) answering(ctx context.Context, addresses []string) []string {
	dial := c.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	ctx, cancel := context.WithTimeout(ctx, answerIn)
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
func (c *Canary) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.proved {
		http.Error(w, "not proved", http.StatusServiceUnavailable)
	}
}
