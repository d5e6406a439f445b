// Package tsapi asks Tailscale's HTTP API about several tailnets, with a client
// for each that shares nothing with another: credential, token, limit, circuit and
// memory. It keeps law 7: an answer that is not understood is a failure with a
// class and never an empty list, and what was known stays known.
package tsapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	tailscale "tailscale.com/client/tailscale/v2"

	"github.com/tailplane/tailplane/internal/util/httptransport"
)

// Config is what a client needs. Fields without a remark are required.
type Config struct {
	BaseURL    string // without /api/v2; https, or http to a loopback address
	Tailnet    string // as paths name it; "-": the credential's own
	Credential Credential
	UserAgent  string
	PerSecond  float64 // requests, tokens included
	Burst      int
	Now        func() time.Time
	// Observe, optional, hears of each request and of each that was not made.
	Observe func(Op, Class, time.Duration)

	// transport, in tests, stands for the network.
	transport http.RoundTripper
}

// ParseBaseURL checks where a credential may be sent: to an https URL without a path,
// or by plain http to this machine.
func ParseBaseURL(text string) (*url.URL, error) {
	u, err := httptransport.ParseBase(text)
	if err != nil {
		return nil, err
	}
	if u.Path != "" {
		return nil, fmt.Errorf("%q must have a scheme and a host only", text)
	}
	return u, nil
}

// A Client asks the API of one tailnet. Its methods may be called at the same time.
type Client struct {
	config Config
	base   *url.URL
	wire   http.RoundTripper        // below api and tokens
	api    *httptransport.Transport // of operations
	tokens *httptransport.Transport // of access tokens, whose answers are small
	limit  *rate.Limiter

	token    atomic.Pointer[token]
	fetching flight[*token]

	deviceList  memory[[]Device]
	serviceList memory[Services]
	tagged      tagged

	working context.Context
	stop    context.CancelFunc

	mu        sync.Mutex
	circuit   circuit
	last      *Error
	lastAt    time.Time
	callers   int // at work
	dropped   bool
	abandoned bool // and nobody is at work any more
}

// New returns a client. It asks nothing yet.
func New(c Config) (*Client, error) {
	base, err := ParseBaseURL(c.BaseURL)
	if err != nil {
		return nil, fmt.Errorf("API of a tailnet: %w", err)
	}
	if c.Tailnet == "" || c.Credential.ClientID == "" || c.Credential.Secret.IsZero() == (c.Credential.Assert == nil) ||
		c.UserAgent == "" || c.PerSecond <= 0 || c.Burst < 1 || c.Now == nil {
		return nil, errors.New("API of a tailnet: tailnet, credential (one of two kinds), user agent, limits and clock are required")
	}
	own := &Client{config: c, base: base, wire: c.transport, limit: rate.NewLimiter(rate.Limit(c.PerSecond), c.Burst)}
	own.working, own.stop = context.WithCancel(context.Background())
	if own.wire == nil {
		own.wire = &http.Transport{
			Proxy:                  http.ProxyFromEnvironment,
			DialContext:            (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
			TLSHandshakeTimeout:    5 * time.Second,
			MaxResponseHeaderBytes: 64 << 10,
			MaxIdleConns:           4,
			MaxConnsPerHost:        8,
			IdleConnTimeout:        90 * time.Second,
			ForceAttemptHTTP2:      true,
		}
	}
	if own.api, err = httptransport.New(httptransport.Config{Base: base, MaxBody: mostBody, Timeout: attemptTime, RoundTripper: own.wire}); err != nil {
		return nil, err
	}
	if own.tokens, err = httptransport.New(httptransport.Config{Base: base, MaxBody: mostToken, Timeout: attemptTime, RoundTripper: own.wire}); err != nil {
		return nil, err
	}
	return own, nil
}

func (c *Client) now() time.Time { return c.config.Now() }

func (c *Client) observe(op Op, class Class, took time.Duration) {
	if c.config.Observe != nil && class != noClass {
		c.config.Observe(op, class, took)
	}
}

// State is how a client gets on with its API.
type State struct {
	Circuit  CircuitState
	Failures int       // in a row
	Last     *Error    // the last that was no success; nil: there was none
	LastAt   time.Time // of Last
}

// State returns how the client gets on.
func (c *Client) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return State{Circuit: c.circuit.state(c.now()), Failures: c.circuit.failures, Last: c.last, LastAt: c.lastAt}
}

// Scopes returns what the last access token was good for, as the API said; nil if
// there was none yet, or if it did not say.
func (c *Client) Scopes() []string {
	if t := c.token.Load(); t != nil {
		return t.scopes
	}
	return nil
}

// enter and leave frame each piece of work, so that a client that is dropped can
// finish what it began.
func (c *Client) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.abandoned || c.dropped && c.callers == 0 {
		return false
	}
	c.callers++
	return true
}

func (c *Client) leave() {
	c.mu.Lock()
	c.callers--
	last := c.dropped && c.callers == 0
	c.mu.Unlock()
	if last {
		c.end()
	}
}

// drop gives the client up: work in hand goes on, new work is refused.
func (c *Client) drop() {
	c.mu.Lock()
	c.dropped = true
	idle := c.callers == 0
	c.mu.Unlock()
	if idle {
		c.end()
	}
}

func (c *Client) end() {
	c.mu.Lock()
	c.abandoned = true
	c.mu.Unlock()
	c.stop()
	if t, ok := c.wire.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
}

// start runs f beside its caller for as long as the client lives; false: it does no more.
func (c *Client) start(f func(context.Context)) bool {
	if !c.enter() {
		return false
	}
	go func() {
		defer c.leave()
		f(c.working)
	}()
	return true
}

// ask runs one operation: within the limit, unless the circuit is open, and the
// second time at once if the first failed for no reason of ours.
func (c *Client) ask(ctx context.Context, op Op, do func(context.Context, *tailscale.Client) error) error {
	if !c.enter() {
		return &Error{Op: op, Class: Dropped}
	}
	defer c.leave()
	for {
		err := c.attempt(ctx, op, do)
		failure, ours := errors.AsType[*Error](err)
		if !ours || failure.Class != Unavailable || failure.RetryAfter > 0 || !op.repeatable() || ctx.Err() != nil {
			return err
		}
	}
}

func (c *Client) attempt(ctx context.Context, op Op, do func(context.Context, *tailscale.Client) error) error {
	c.mu.Lock()
	why, wait := c.circuit.admit(c.now())
	c.mu.Unlock()
	if why != OK {
		c.observe(op, why, 0)
		return &Error{Op: op, Class: why, RetryAfter: wait}
	}
	begun := c.now()
	x := &exchange{client: c, ctx: ctx}
	failure := x.run(op, do)
	class := OK
	if failure != nil {
		class = failure.Class
	}
	c.observe(op, class, c.now().Sub(begun))

	c.mu.Lock()
	defer c.mu.Unlock()
	switch class {
	case OK:
		c.circuit.succeeded()
		return nil
	case noClass:
		c.circuit.abandoned()
		return fmt.Errorf("%s: %w", op, context.Cause(ctx))
	case Unavailable:
		failure.RetryAfter = max(c.circuit.failed(c.now()), failure.RetryAfter)
	case RateLimited:
		failure.RetryAfter = c.circuit.limited(c.now(), failure.RetryAfter)
	case NoToken:
		if failure.Status != 0 {
			c.circuit.succeeded()
		} else {
			c.circuit.abandoned() // nothing was asked of Tailscale
		}
	default:
		c.circuit.succeeded() // it is well enough to refuse
	}
	if class != NotFound {
		c.last, c.lastAt = failure, c.now() // that something is not there is an answer
	}
	return failure
}
