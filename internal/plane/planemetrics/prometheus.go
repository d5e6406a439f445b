package planemetrics

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Bounds of what a Prometheus is asked and answers.
const (
	askLimit  = 10 * time.Second
	maxBytes  = 8 << 20
	maxSeries = 20 // of one question
	maxBelow  = 30 * time.Second
	minBelow  = time.Second
	atOnce    = 4 // questions
)

// A Prometheus answers questions. It is asked by several at the same time; one that does
// not answer is left alone for a moment, and longer each time. Its URL is set once.
type Prometheus struct {
	URL  string // http://prometheus.monitoring.svc:9090
	HTTP *http.Client
	Log  *slog.Logger // is told why it does not answer, which callers are not
	Now  func() time.Time

	mu    sync.Mutex
	until time.Time // it is left alone until then
	pause time.Duration
	last  error
}

// Client is one that asks a Prometheus: it follows nobody elsewhere, and uses no proxy.
func Client() *http.Client {
	return &http.Client{Timeout: askLimit, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{TLSHandshakeTimeout: 5 * time.Second, IdleConnTimeout: time.Minute, MaxIdleConnsPerHost: atOnce, MaxConnsPerHost: 4 * atOnce}}
}

// A grid is the times of a series.
type grid struct {
	from time.Time
	step time.Duration
	n    int
}

// gridOf is a window that ends now, on whole steps: two who ask within one step ask the
// same.
func gridOf(w Window, now time.Time) grid {
	n := int(w.For/w.Step) + 1
	return grid{now.UTC().Truncate(w.Step).Add(-time.Duration(n-1) * w.Step), w.Step, n}
}

// ends is when a grid that is made anew is another one.
func (g grid) ends() time.Time { return g.from.Add(time.Duration(g.n) * g.step) }

func (g grid) times() []time.Time {
	all := make([]time.Time, g.n)
	for i := range all {
		all[i] = g.from.Add(time.Duration(i) * g.step)
	}
	return all
}

// found is one series of an answer: its labels, and a value for each time of the grid,
// nil where there is none.
type found struct {
	labels map[string]string
	values []*float64
}

var errLeftAlone = errors.New("it did not answer a moment ago, and is asked again soon")

// ask asks one question.
func (p *Prometheus) ask(ctx context.Context, expr string, g grid) ([]found, error) {
	if err := p.rests(); err != nil {
		return nil, err
	}
	all, err := p.query(ctx, expr, g)
	if ctx.Err() == nil {
		p.answered(err)
	}
	return all, err
}

// rests is why it is not asked now.
func (p *Prometheus) rests() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.Now().Before(p.until) {
		return fmt.Errorf("%w: %w", errLeftAlone, p.last)
	}
	return nil
}

func (p *Prometheus) answered(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a, is := errors.AsType[away](err); is && p.last == nil {
		p.Log.Warn("the Prometheus does not answer", "err", unaddressed(a.cause))
	}
	if p.last = err; err == nil {
		p.pause, p.until = 0, time.Time{}
		return
	}
	if now := p.Now(); !now.Before(p.until) { // those who ask at the same time fail once
		p.pause = min(max(2*p.pause, minBelow), maxBelow)
		p.until = now.Add(p.pause)
	}
}

// unaddressed is a cause without the URL, which may have a password in it.
func unaddressed(err error) error {
	if u, is := errors.AsType[*url.Error](err); is {
		return u.Err
	}
	return err
}

func (p *Prometheus) query(ctx context.Context, expr string, g grid) ([]found, error) {
	at := func(t time.Time) string { return strconv.FormatInt(t.Unix(), 10) }
	form := url.Values{"query": {expr}, "start": {at(g.from)}, "end": {at(g.from.Add(time.Duration(g.n-1) * g.step))}, "step": {strconv.Itoa(int(g.step / time.Second))}, "timeout": {askLimit.String()}}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(p.URL, "/")+"/api/v1/query_range", strings.NewReader(form.Encode()))
	if err != nil {
		return nil, away{"its URL is none", err}
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	res, err := p.HTTP.Do(r)
	if err != nil {
		return nil, away{"it cannot be reached", err}
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxBytes+1))
	if err != nil {
		return nil, away{"its answer broke off", err}
	}
	if len(body) > maxBytes {
		return nil, fmt.Errorf("its answer has more than %d bytes", maxBytes)
	}
	return read(res.StatusCode, body, g)
}

// away is why there is no answer, for everybody who may see the sources: where the
// Prometheus is, and what it is asked with, is in the cause and not told.
type away struct {
	what  string
	cause error
}

func (a away) Unwrap() error { return a.cause }

// Error implements error.
func (a away) Error() string {
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

// read reads an answer onto a grid.
func read(status int, body []byte, g grid) ([]found, error) {
	var a struct {
		Status, ErrorType string
		Data              struct {
			ResultType string
			Result     []struct {
				Metric map[string]string
				Values [][2]json.RawMessage
			}
		}
	}
	if err := json.Unmarshal(body, &a); err != nil {
		return nil, fmt.Errorf("it answered %d, and no Prometheus answers so", status)
	}
	if a.Status != "success" || status != http.StatusOK {
		return nil, fmt.Errorf("it answered %d %.60q", status, a.ErrorType)
	}
	if a.Data.ResultType != "matrix" {
		return nil, fmt.Errorf("it answered with a %.20q, not a matrix", a.Data.ResultType)
	}
	if len(a.Data.Result) > maxSeries {
		return nil, fmt.Errorf("it answered with %d series, more than %d", len(a.Data.Result), maxSeries)
	}
	all := []found{}
	for _, s := range a.Data.Result {
		f := found{s.Metric, make([]*float64, g.n)}
		for _, pair := range s.Values {
			if err := f.put(pair, g); err != nil {
				return nil, err
			}
		}
		all = append(all, f)
	}
	return all, nil
}

// put puts one value onto the grid. What is no number is no value.
func (f found) put(pair [2]json.RawMessage, g grid) error {
	var at float64
	var text string
	if json.Unmarshal(pair[0], &at) != nil || json.Unmarshal(pair[1], &text) != nil {
		return errors.New("one of its values is none")
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return fmt.Errorf("one of its values is %.20q", text)
	}
	i := int(math.Round((at - float64(g.from.Unix())) / g.step.Seconds()))
	if i >= 0 && i < g.n && !math.IsNaN(v) && !math.IsInf(v, 0) {
		f.values[i] = &v
	}
	return nil
}
