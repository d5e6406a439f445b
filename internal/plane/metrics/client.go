// Package metrics queries a Prometheus for series over time, with Prometheus' own client. It is a separate package because tka, which
// links [plane.MetricsService] in package plane, must not link that client. Responses have a size limit, and no error contains the URL
// or password of the Prometheus.
package metrics

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/url"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/api"
	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"github.com/tailplane/tailplane/internal/plane"
)

// The limits of one query and its response, and of the pause after a failure.
const (
	queryTimeout = 10 * time.Second
	MaxBytes     = 8 << 20
	MaxSeries    = 20
	minPause     = time.Second
	MaxPause     = 30 * time.Second
	maxConns     = 16
)

// Client queries one Prometheus. It is safe for concurrent use. After a failure it sends no query during a pause, which grows with each
// failure. Callers must not change its fields after the first query.
type Client struct {
	URL  string // such as http://prometheus.monitoring.svc:9090; may contain user and password
	HTTP *http.Client
	Log  *slog.Logger // logs the cause of a failure, which callers do not receive
	Now  func() time.Time

	mu    sync.Mutex
	until time.Time // no query before this time
	pause time.Duration
	last  error
}

// HTTPClient returns a client for [Client.HTTP] that follows no redirects and uses no proxy.
func HTTPClient() *http.Client {
	return &http.Client{Timeout: queryTimeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{TLSHandshakeTimeout: 5 * time.Second, IdleConnTimeout: time.Minute, MaxIdleConnsPerHost: maxConns / 4, MaxConnsPerHost: maxConns}}
}

var errPaused = errors.New("it did not respond a moment ago; the next request follows soon")

// Query implements [plane.MetricsQuery].
func (c *Client) Query(ctx context.Context, expr string, g plane.MetricsGrid) ([]plane.QueryResult, error) {
	if err := c.checkPause(); err != nil {
		return nil, err
	}
	all, err := c.query(ctx, expr, g)
	if ctx.Err() == nil {
		c.recordResult(err)
	}
	return all, err
}

// checkPause returns an error during a pause.
func (c *Client) checkPause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Now().Before(c.until) {
		return fmt.Errorf("%w: %w", errPaused, c.last)
	}
	return nil
}

func (c *Client) recordResult(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a, is := errors.AsType[unreachableError](err); is && c.last == nil {
		c.Log.Warn("the Prometheus server does not respond", "err", withoutURL(a.cause))
	}
	if c.last = err; err == nil {
		c.pause, c.until = 0, time.Time{}
		return
	}
	if now := c.Now(); !now.Before(c.until) { // concurrent failures count once
		c.pause = min(max(2*c.pause, minPause), MaxPause)
		c.until = now.Add(c.pause)
	}
}

// withoutURL returns a cause without the URL, which may contain a password.
func withoutURL(err error) error {
	if u, is := errors.AsType[*url.Error](err); is {
		return u.Err
	}
	return err
}

func (c *Client) query(ctx context.Context, expr string, g plane.MetricsGrid) ([]plane.QueryResult, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	own := *c.HTTP
	own.Transport = limitedTransport{own.Transport}
	inner, err := api.NewClient(api.Config{Address: c.URL, Client: &own})
	if err != nil {
		return nil, unreachableError{"its URL is not valid", err}
	}
	x := &statusClient{Client: inner}
	over := v1.Range{Start: g.From, End: g.From.Add(time.Duration(g.N-1) * g.Step), Step: g.Step}
	value, _, err := v1.NewAPI(x).QueryRange(ctx, expr, over, v1.WithTimeout(queryTimeout))
	switch {
	case x.failure != nil:
		return nil, x.failure
	case err != nil:
		return nil, x.refused(err)
	}
	matrix, is := value.(model.Matrix)
	if !is {
		return nil, fmt.Errorf("it answered with a %.20q, not a matrix", value.Type())
	}
	if len(matrix) > MaxSeries {
		return nil, fmt.Errorf("it answered with %d series, more than %d", len(matrix), MaxSeries)
	}
	all := make([]plane.QueryResult, 0, len(matrix))
	for _, s := range matrix {
		all = append(all, alignToGrid(s, g))
	}
	return all, nil
}

// alignToGrid returns the values of a series on a grid. NaN and infinities count as missing.
func alignToGrid(s *model.SampleStream, g plane.MetricsGrid) plane.QueryResult {
	f := plane.QueryResult{Labels: make(map[string]string, len(s.Metric)), Values: make([]*float64, g.N)}
	for name, value := range s.Metric {
		f.Labels[string(name)] = string(value)
	}
	for _, pair := range s.Values {
		v := float64(pair.Value)
		i := int(math.Round(pair.Timestamp.Time().Sub(g.From).Seconds() / g.Step.Seconds()))
		if i >= 0 && i < g.N && !math.IsNaN(v) && !math.IsInf(v, 0) {
			f.Values[i] = &v
		}
	}
	return f
}

// limitedTransport is a transport that limits response bodies to MaxBytes.
type limitedTransport struct{ next http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (b limitedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	next := b.next
	if next == nil {
		next = http.DefaultTransport
	}
	res, err := next.RoundTrip(r)
	if err == nil {
		res.Body = http.MaxBytesReader(nil, res.Body, MaxBytes)
	}
	return res, err
}

// statusClient is one query over HTTP. It records the status, which the library drops, and the failures that the library does not distinguish.
type statusClient struct {
	api.Client

	status  int
	failure error
}

// Do implements [api.Client].
func (x *statusClient) Do(ctx context.Context, r *http.Request) (*http.Response, []byte, error) {
	if r.Method != http.MethodPost {
		// The library repeats a query that failed with 403, 405 or 501 as a GET, with the expression in the URL, where proxies log it.
		x.failure = fmt.Errorf("it answered %d", x.status)
		return nil, nil, x.failure
	}
	res, body, err := x.Client.Do(ctx, r)
	if res != nil {
		x.status = res.StatusCode
	}
	_, large := errors.AsType[*http.MaxBytesError](err)
	switch {
	case large:
		x.failure = fmt.Errorf("its answer has more than %d bytes", MaxBytes)
	case err != nil && res == nil:
		x.failure = unreachableError{"it cannot be reached", err}
	case err != nil:
		x.failure = unreachableError{"its answer is incomplete", err}
	case x.status/100 == 2 && x.status != http.StatusOK: // the library treats it as success
		x.failure = fmt.Errorf("it answered %d", x.status)
	}
	if x.failure != nil {
		return nil, nil, x.failure
	}
	return res, body, nil
}

// refused returns the error for a response that the library did not accept. It repeats only the name of the error from the response.
func (x *statusClient) refused(err error) error {
	if e, is := errors.AsType[*v1.Error](err); is && e.Type != v1.ErrBadResponse {
		return fmt.Errorf("it answered %d %.60q", x.status, e.Type)
	}
	return fmt.Errorf("it answered %d, which is not an answer of Prometheus", x.status)
}

// unreachableError says why there is no response. Every caller that sees the sources sees it. The cause may contain the URL of the Prometheus and
// its password, so Error omits it.
type unreachableError struct {
	what  string
	cause error
}

func (a unreachableError) Unwrap() error { return a.cause }

// Error implements error.
func (a unreachableError) Error() string {
	_, certificate := errors.AsType[*tls.CertificateVerificationError](a.cause)
	_, name := errors.AsType[*net.DNSError](a.cause)
	timeout, is := errors.AsType[net.Error](a.cause)
	switch {
	case is && timeout.Timeout():
		return a.what + ": it took too long"
	case name:
		return a.what + ": its name could not be resolved"
	case certificate:
		return a.what + ": its certificate is not trusted"
	case errors.Is(a.cause, syscall.ECONNREFUSED):
		return a.what + ": nothing listens there"
	}
	return a.what
}
