// Package tsapi is a client for Tailscale's HTTP API, for several tailnets. The clients share
// nothing: each has a separate credential, token, rate limit, circuit breaker and cache. The
// package enforces law 7. A response that cannot be parsed is a classified error and never an empty
// list, and cached data stays available.
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

// Config configures a Client. Fields are required unless their comment says otherwise.
type Config struct {
	BaseURL    string // without /api/v2; https, or http to a loopback address
	Tailnet    string // as used in URL paths; "-": the tailnet of the credential
	Credential Credential
	UserAgent  string
	PerSecond  float64 // requests per second, including token requests
	Burst      int
	Now        func() time.Time
	// Observe, optional, is called for each request, and for each request that was not sent.
	Observe func(Op, Class, time.Duration)

	// transport replaces the network in tests.
	transport http.RoundTripper
}

// ParseBaseURL parses a URL that may receive a credential: an https URL without a path, or an http
// URL of the local machine.
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

// A Client is an API client for one tailnet. It is safe for concurrent use.
type Client struct {
	config Config
	base   *url.URL
	wire   http.RoundTripper        // below api and tokens
	api    *httptransport.Transport // for API operations
	tokens *httptransport.Transport // for access tokens, whose responses are small
	limit  *rate.Limiter

	token    atomic.Pointer[token]
	fetching flight[*token]

	deviceList  cachedRead[[]Device]
	serviceList cachedRead[Services]
	tagged      tagged

	working context.Context
	stop    context.CancelFunc

	mu      sync.Mutex
	circuit circuit
	last    *Error
	lastAt  time.Time
	callers int // calls in progress
	dropped bool
}

// New returns a client. It sends no request.
func New(c Config) (*Client, error) {
	base, err := ParseBaseURL(c.BaseURL)
	if err != nil {
		return nil, fmt.Errorf("tailnet API: %w", err)
	}
	if c.Tailnet == "" || c.Credential.ClientID == "" || c.Credential.Secret.IsZero() == (c.Credential.Assert == nil) ||
		c.UserAgent == "" || c.PerSecond <= 0 || c.Burst < 1 || c.Now == nil {
		return nil, errors.New("tailnet API: tailnet, credential (one of two kinds), user agent, limits and clock are required")
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
	if own.api, err = httptransport.New(httptransport.Config{Base: base, MaxBody: maxBody, Timeout: attemptTime, RoundTripper: own.wire}); err != nil {
		return nil, err
	}
	if own.tokens, err = httptransport.New(httptransport.Config{Base: base, MaxBody: maxToken, Timeout: attemptTime, RoundTripper: own.wire}); err != nil {
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

// A State is the health of a client.
type State struct {
	Circuit  CircuitState
	Failures int       // consecutive
	Last     *Error    // the last error; nil: none
	LastAt   time.Time // of Last
}

// State returns the health of the client.
func (c *Client) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return State{Circuit: c.circuit.state(c.now()), Failures: c.circuit.failures, Last: c.last, LastAt: c.lastAt}
}

// Scopes returns the scopes of the last access token, as reported by the API. It returns nil if
// there was no token yet or if the API did not report scopes.
func (c *Client) Scopes() []string {
	if t := c.token.Load(); t != nil {
		return t.scopes
	}
	return nil
}

// enter registers a call, so that a dropped client can finish it. The caller must call leave if
// enter returns true.
func (c *Client) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dropped && c.callers == 0 {
		return false
	}
	c.callers++
	return true
}

func (c *Client) leave() {
	c.mu.Lock()
	c.callers--
	c.mu.Unlock()
	c.endIfUnused()
}

// drop retires the client. Calls in progress continue, and new calls are refused.
func (c *Client) drop() {
	c.mu.Lock()
	c.dropped = true
	c.mu.Unlock()
	c.endIfUnused()
}

// endIfUnused ends the shared fetches and the connections of a dropped client without calls. No call
// can begin after that.
func (c *Client) endIfUnused() {
	c.mu.Lock()
	unused := c.dropped && c.callers == 0
	c.mu.Unlock()
	if !unused {
		return
	}
	c.stop()
	if t, ok := c.wire.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
}

// start runs f in the background for as long as the client lives. It returns false if the client is
// retired.
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

// call runs one operation within the rate limit, unless the circuit is open. It retries once at once
// if the first attempt failed with Unavailable and no wait is required.
func (c *Client) call(ctx context.Context, op Op, do func(context.Context, *tailscale.Client) error) error {
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

// request is call for an operation with a result.
func request[T any](ctx context.Context, c *Client, op Op, do func(context.Context, *tailscale.Client) (T, error)) (result T, err error) {
	err = c.call(ctx, op, func(ctx context.Context, api *tailscale.Client) (err error) {
		result, err = do(ctx, api)
		return err
	})
	return result, err
}

func (c *Client) attempt(ctx context.Context, op Op, do func(context.Context, *tailscale.Client) error) error {
	c.mu.Lock()
	why, wait := c.circuit.allow(c.now())
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
		c.circuit.release()
		return fmt.Errorf("%s: %w", op, context.Cause(ctx))
	case Unavailable:
		failure.RetryAfter = max(c.circuit.failed(c.now()), failure.RetryAfter)
	case RateLimited:
		failure.RetryAfter = c.circuit.limited(c.now(), failure.RetryAfter)
	case NoToken:
		if failure.Status != 0 {
			c.circuit.succeeded()
		} else {
			c.circuit.release() // no request was sent to Tailscale
		}
	default:
		c.circuit.succeeded() // the API works, it refused the request
	}
	if class != NotFound {
		c.last, c.lastAt = failure, c.now() // a missing object is a valid answer
	}
	return failure
}
