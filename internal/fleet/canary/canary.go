// Package canary tries, from where an organisation's jobs are, to reach what none of them
// may reach. NetworkPolicies are words until a network plugin keeps them: only somebody who
// tries can tell.
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
	settle   = 30 * time.Second // a plugin keeps a policy for a pod a moment after it began
	between  = time.Second      // until it has settled
)

// Code is what the program exits with when something was reached.
const Code = 3

// A Canary tries. Only Never is required.
type Canary struct {
	Never []string // addresses with ports that must not answer
	// Always are addresses of which one must answer: a pod that reaches nothing at all
	// proves nothing.
	Always []string
	Every  time.Duration // how often; 0: a minute

	// Dial, optional, opens a connection.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	mu     sync.Mutex
	proved bool
}

// A ReachedError names what was reached.
type ReachedError struct{ Addresses []string }

func (e *ReachedError) Error() string { return "reached: " + strings.Join(e.Addresses, ", ") }

// Run tries until ctx ends, or something is reached that must not be: a *ReachedError.
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

// answering are those of addresses from which something comes back, in their order. That
// a connection is refused is an answer, too: the packet has got there.
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

// ServeHTTP answers 200 while the last try has proved it: nothing that must not be was
// reached, and something else was.
func (c *Canary) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.proved {
		http.Error(w, "not proved", http.StatusServiceUnavailable)
	}
}
