// Package promquery queries a Prometheus for series over time, with Prometheus' own client. It is a separate package so that programs that
// only describe the operations of [planemetrics] do not link that client. Responses have a size limit, and no error contains the URL or
// password of the Prometheus.
package promquery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/prometheus/client_golang/api"
	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"github.com/tailplane/tailplane/internal/plane/planemetrics"
)

// The limits of one query and its response, and of the pause after a failure.
const (
	queryTime = 10 * time.Second
	MaxBytes  = 8 << 20
	MaxSeries = 20
	minPause  = time.Second
	MaxPause  = 30 * time.Second
	maxConns  = 16
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
	return &http.Client{Timeout: queryTime, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{TLSHandshakeTimeout: 5 * time.Second, IdleConnTimeout: time.Minute, MaxIdleConnsPerHost: maxConns / 4, MaxConnsPerHost: maxConns}}
}

var errPaused = errors.New("it did not answer a moment ago, and is asked again soon")

// Query implements [planemetrics.Query].
func (c *Client) Query(ctx context.Context, expr string, g planemetrics.Grid) ([]planemetrics.Found, error) {
	if err := c.paused(); err != nil {
		return nil, err
	}
	all, err := c.query(ctx, expr, g)
	if ctx.Err() == nil {
		c.answered(err)
	}
	return all, err
}

// paused returns an error during a pause.
func (c *Client) paused() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Now().Before(c.until) {
		return fmt.Errorf("%w: %w", errPaused, c.last)
	}
	return nil
}

func (c *Client) answered(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a, is := errors.AsType[awayError](err); is && c.last == nil {
		c.Log.Warn("the Prometheus does not answer", "err", withoutURL(a.cause))
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

func (c *Client) query(ctx context.Context, expr string, g planemetrics.Grid) ([]planemetrics.Found, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTime)
	defer cancel()
	own := *c.HTTP
	own.Transport = bounded{own.Transport}
	inner, err := api.NewClient(api.Config{Address: c.URL, Client: &own})
	if err != nil {
		return nil, awayError{"its URL is none", err}
	}
	x := &exchange{Client: inner}
	over := v1.Range{Start: g.From, End: g.From.Add(time.Duration(g.N-1) * g.Step), Step: g.Step}
	value, _, err := v1.NewAPI(x).QueryRange(ctx, expr, over, v1.WithTimeout(queryTime))
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
	all := make([]planemetrics.Found, 0, len(matrix))
	for _, s := range matrix {
		all = append(all, onGrid(s, g))
	}
	return all, nil
}

// onGrid returns the values of a series on a grid. NaN and infinities count as missing.
func onGrid(s *model.SampleStream, g planemetrics.Grid) planemetrics.Found {
	f := planemetrics.Found{Labels: make(map[string]string, len(s.Metric)), Values: make([]*float64, g.N)}
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
