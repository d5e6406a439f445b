package apiproxy

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/tailplane/tailplane/internal/util/retry"
)

// TraceExporterConfig configures a TraceExporter. Fields without a remark are required.
type TraceExporterConfig struct {
	// Endpoint is the http or https URL of a collector. /v1/traces is appended to its path, unless the path
	// already ends with it.
	Endpoint string
	// Resource is optional. It describes the sender.
	Resource []attribute.KeyValue
	// Transport is optional. Nil means a separate transport without a proxy.
	Transport http.RoundTripper
	// Queue is optional. It is the number of spans that may wait; 0: 1,024.
	Queue int
	Log   *slog.Logger
}

// Limits of the export.
const (
	defaultSpanQueue     = 1024
	spanBatchSize        = 256
	spanBatchTime        = 5 * time.Second  // how long a span waits for a full batch
	spanSendTimeout      = 10 * time.Second // one attempt
	spanRetryTime        = time.Minute      // all attempts for one batch
	spanFlushTime        = 5 * time.Second  // after the end of Run's ctx
	minSendPause         = time.Second      // between attempts
	maxSendPause         = 15 * time.Second
	maxCollectorResponse = 64 << 10
)

// TraceExporter queues ended spans and sends them by OTLP over HTTP in JSON. Spans that the collector does not accept in
// time are dropped and counted. The official exporters link gRPC, which is larger than the rest of the adapter. It implements [sdktrace.SpanProcessor].
type TraceExporter struct {
	url      string
	resource []otlpKeyValue
	client   http.RoundTripper
	log      *slog.Logger
	queue    chan sdktrace.ReadOnlySpan
	down     bool // only Run uses it

	sent, dropped, failed atomic.Int64
}

// NewTraceExporter returns a TraceExporter. It opens no connection; Run does.
func NewTraceExporter(c TraceExporterConfig) (*TraceExporter, error) {
	if c.Log == nil {
		return nil, errors.New("otlpjson: a required field is missing")
	}
	u, err := url.Parse(c.Endpoint)
	switch {
	case err != nil:
		return nil, errors.New("the trace endpoint is not a URL") // the cause repeats the URL, which may contain a password
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.User != nil, u.RawQuery != "", u.Fragment != "":
		return nil, errors.New("the trace endpoint is not a URL such as http://collector.example:4318, without user and query")
	}
	if path := strings.TrimRight(u.Path, "/"); !strings.HasSuffix(path, "/v1/traces") {
		u.Path = path + "/v1/traces"
	}
	e := &TraceExporter{url: u.String(), resource: otlpAttributes(c.Resource), client: c.Transport, log: c.Log, queue: make(chan sdktrace.ReadOnlySpan, cmp.Or(c.Queue, defaultSpanQueue))}
	if e.client == nil {
		e.client = &http.Transport{MaxConnsPerHost: 1, IdleConnTimeout: 90 * time.Second, TLSHandshakeTimeout: spanSendTimeout, ForceAttemptHTTP2: true}
	}
	return e, nil
}

// OnStart implements [sdktrace.SpanProcessor].
func (e *TraceExporter) OnStart(context.Context, sdktrace.ReadWriteSpan) {}

// OnEnd queues a span, or drops it if the queue is full. It never blocks.
func (e *TraceExporter) OnEnd(s sdktrace.ReadOnlySpan) {
	if !s.SpanContext().IsSampled() {
		return
	}
	select {
	case e.queue <- s:
	default:
		e.dropped.Add(1)
	}
}

// Shutdown implements [sdktrace.SpanProcessor]. It does nothing, because Run sends the rest when it ends.
func (e *TraceExporter) Shutdown(context.Context) error { return nil }

// ForceFlush implements [sdktrace.SpanProcessor]. It does nothing.
func (e *TraceExporter) ForceFlush(context.Context) error { return nil }

// TraceExporterStats are counters of spans since the start.
type TraceExporterStats struct {
	Sent    int64 // accepted by the collector
	Dropped int64 // because the queue was full
	Failed  int64 // not accepted by the collector
}

// Stats returns the counters.
func (e *TraceExporter) Stats() TraceExporterStats {
	return TraceExporterStats{Sent: e.sent.Load(), Dropped: e.dropped.Load(), Failed: e.failed.Load()}
}

// Run sends spans until ctx ends. It then sends the pending ones for at most five seconds.
func (e *TraceExporter) Run(ctx context.Context) error {
	var batch []sdktrace.ReadOnlySpan
	for more := true; more; {
		if batch, more = e.collect(ctx); more {
			more = e.deliver(ctx, batch)
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), spanFlushTime)
	defer cancel()
	for {
		for len(batch) < spanBatchSize {
			s, ok := e.poll()
			if !ok {
				break
			}
			batch = append(batch, s)
		}
		if len(batch) == 0 {
			return nil
		}
		if !e.deliver(last, batch) {
			e.failed.Add(int64(len(batch)))
		}
		batch = batch[:0]
	}
}

// collect waits for a first span and then for a full batch. more is false if ctx has ended.
func (e *TraceExporter) collect(ctx context.Context) (batch []sdktrace.ReadOnlySpan, more bool) {
	select {
	case s := <-e.queue:
		batch = append(batch, s)
	case <-ctx.Done():
		return nil, false
	}
	enough := time.NewTimer(spanBatchTime)
	defer enough.Stop()
	for len(batch) < spanBatchSize {
		select {
		case s := <-e.queue:
			batch = append(batch, s)
		case <-enough.C:
			return batch, true
		case <-ctx.Done():
			return batch, false
		}
	}
	return batch, true
}

func (e *TraceExporter) poll() (sdktrace.ReadOnlySpan, bool) {
	select {
	case s := <-e.queue:
		return s, true
	default:
		return nil, false
	}
}

// deliver sends a batch. It retries for a minute if the collector requests it or does not respond. Meanwhile
// new spans wait in the queue, and are dropped when it is full. It returns false if ctx ended before there
// was a result.
func (e *TraceExporter) deliver(ctx context.Context, batch []sdktrace.ReadOnlySpan) bool {
	n := int64(len(batch))
	body, err := e.body(batch)
	for until, pause := time.Now().Add(spanRetryTime), minSendPause; err == nil; pause = min(2*pause, maxSendPause) {
		var rejected int64
		var again time.Duration
		if rejected, again, err = e.send(ctx, body); err == nil {
			e.sent.Add(n - min(rejected, n))
			e.failed.Add(min(rejected, n))
			if e.down {
				e.down = false
				e.log.Info("traces reach the collector again", "failed", e.failed.Load(), "dropped", e.dropped.Load())
			}
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		wait := max(again, pause+rand.N(pause/2))
		if again == noRetry || time.Now().Add(wait).After(until) {
			break
		}
		if err = retry.Sleep(ctx, wait); err != nil {
			return false
		}
	}
	e.failed.Add(n)
	if !e.down {
		e.down = true
		e.log.Warn("traces do not reach the collector", "err", err)
	}
	return true
}

func (e *TraceExporter) body(batch []sdktrace.ReadOnlySpan) ([]byte, error) {
	plain, err := encodeSpans(e.resource, batch)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err = z.Write(plain); err == nil {
		err = z.Close()
	}
	return b.Bytes(), err
}

// noRetry means that there must be no retry.
const noRetry = time.Duration(-1)

// send makes one attempt. It returns how many spans the collector rejected. With an error it returns the
// minimal wait before a retry, or never.
func (e *TraceExporter) send(ctx context.Context, body []byte) (rejected int64, again time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, spanSendTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url, bytes.NewReader(body))
	if err != nil {
		return 0, noRetry, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Content-Encoding", "gzip")
	req.Header.Set("User-Agent", "mca")
	res, err := e.client.RoundTrip(req) // redirects are not followed
	if err != nil {
		return 0, 0, err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxCollectorResponse))
	switch {
	case res.StatusCode == http.StatusOK && err != nil:
		return 0, noRetry, err // the collector may have accepted them
	case res.StatusCode >= 200 && res.StatusCode <= 299:
		return rejectedSpans(answer), 0, nil
	}
	err = fmt.Errorf("the collector answers with status %d", res.StatusCode)
	switch res.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return 0, retryAfter(res.Header.Get("Retry-After")), err
	}
	return 0, noRetry, err
}

// rejectedSpans returns the number of rejected spans in a response, or 0 if it has none.
func rejectedSpans(answer []byte) int64 {
	var a struct {
		PartialSuccess struct {
			RejectedSpans json.RawMessage `json:"rejectedSpans"` // a string; some collectors send a number
		} `json:"partialSuccess"`
	}
	if json.Unmarshal(answer, &a) != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.Trim(string(a.PartialSuccess.RejectedSpans), `"`), 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// retryAfter parses seconds or a date. It returns 0 if there is none.
func retryAfter(s string) time.Duration {
	if n, err := strconv.Atoi(s); err == nil && n >= 0 && n < 3600 {
		return time.Duration(n) * time.Second
	}
	if t, err := http.ParseTime(s); err == nil {
		return max(0, time.Until(t))
	}
	return 0
}
