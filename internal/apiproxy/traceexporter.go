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

// TraceExporter sends ended spans by OTLP over HTTP in JSON. It is both ends of the SDK's batch processor: the exporter
// behind it, and a [sdktrace.SpanProcessor] in front of it that counts the spans that do not fit into its queue. The
// official exporters link gRPC, which is larger than the rest of the adapter.
type TraceExporter struct {
	url      string
	resource []otlpKeyValue
	client   http.RoundTripper
	log      *slog.Logger
	batches  sdktrace.SpanProcessor // calls ExportSpans
	limit    int64                  // the number of spans that may wait
	waiting  atomic.Int64
	stopping context.Context // ends when Run stops
	stop     context.CancelFunc
	ctx      context.Context // of all attempts
	giveUp   context.CancelFunc
	down     bool // only ExportSpans uses it

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
	queue := cmp.Or(c.Queue, defaultSpanQueue)
	e := &TraceExporter{url: u.String(), resource: otlpAttributes(c.Resource), client: c.Transport, log: c.Log, limit: int64(queue)}
	e.stopping, e.stop = context.WithCancel(context.Background())
	e.ctx, e.giveUp = context.WithCancel(context.Background())
	if e.client == nil {
		e.client = &http.Transport{
			MaxConnsPerHost:     1,
			IdleConnTimeout:     90 * time.Second,
			TLSHandshakeTimeout: spanSendTimeout,
			ForceAttemptHTTP2:   true,
		}
	}
	e.batches = sdktrace.NewBatchSpanProcessor(e, sdktrace.WithMaxQueueSize(queue), sdktrace.WithMaxExportBatchSize(spanBatchSize),
		sdktrace.WithBatchTimeout(spanBatchTime), sdktrace.WithExportTimeout(2*spanRetryTime))
	return e, nil
}

// OnStart implements [sdktrace.SpanProcessor].
func (e *TraceExporter) OnStart(context.Context, sdktrace.ReadWriteSpan) {}

// OnEnd queues a span, or drops it if the queue is full. It never blocks.
func (e *TraceExporter) OnEnd(s sdktrace.ReadOnlySpan) {
	switch {
	case !s.SpanContext().IsSampled():
	case e.waiting.Add(1) > e.limit:
		e.waiting.Add(-1)
		e.dropped.Add(1)
	default:
		e.batches.OnEnd(s)
	}
}

// Shutdown implements [sdktrace.SpanProcessor] and [sdktrace.SpanExporter]. It does nothing, because Run sends the rest when it ends.
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

// Run waits until ctx ends. It then sends the pending spans for at most five seconds.
func (e *TraceExporter) Run(ctx context.Context) error {
	<-ctx.Done()
	e.stop()
	late := time.AfterFunc(spanFlushTime, e.giveUp)
	defer late.Stop()
	return e.batches.Shutdown(context.WithoutCancel(ctx))
}

// ExportSpans implements [sdktrace.SpanExporter]. It retries for a minute if the collector requests it or does not
// respond. Meanwhile new spans wait in the queue, and are dropped when it is full.
func (e *TraceExporter) ExportSpans(_ context.Context, batch []sdktrace.ReadOnlySpan) error {
	n := int64(len(batch))
	e.waiting.Add(-n)
	body, err := e.body(batch)
	for until, pause := time.Now().Add(spanRetryTime), minSendPause; err == nil; pause = min(2*pause, maxSendPause) {
		var rejected int64
		var again time.Duration
		if rejected, again, err = e.send(e.ctx, body); err == nil {
			e.sent.Add(n - min(rejected, n))
			e.failed.Add(min(rejected, n))
			if e.down {
				e.down = false
				e.log.Info("traces reach the collector again", "failed", e.failed.Load(), "dropped", e.dropped.Load())
			}
			return nil
		}
		wait := max(again, pause+rand.N(pause/2))
		if again == noRetry || time.Now().Add(wait).After(until) {
			break
		}
		sleep := e.stopping // when Run stops, the next attempt follows at once
		if sleep.Err() != nil {
			sleep = e.ctx
		}
		_ = retry.Sleep(sleep, wait)
		err = e.ctx.Err()
	}
	e.failed.Add(n)
	if !e.down && e.ctx.Err() == nil {
		e.down = true
		e.log.Warn("traces do not reach the collector", "err", err)
	}
	return nil
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
