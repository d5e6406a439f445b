// Package otlp sends the audit log to a collector as OpenTelemetry logs. The export never
// delays a request. Lines that the collector does not accept in time are dropped from the export
// and counted; they are still in the file.
//
// The export is off unless the standard OTEL_ variables name a collector. Each log record carries
// the complete line. The collector is therefore also a witness: lines that are later removed from
// the file are still there, with their number and hash.
package otlp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploghttp"
	"go.opentelemetry.io/otel/log"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	"go.opentelemetry.io/otel/sdk/resource"

	"github.com/tailplane/tailplane/internal/audit"
)

// A Config describes the process whose audit log is exported. All fields except Version are
// required.
type Config struct {
	Service string // service.name, unless the environment sets it
	Version string // service.version
	Cluster string // k8s.cluster.name
	// Getenv is os.Getenv. It decides whether the export is on. In addition, the OpenTelemetry SDK
	// reads its own variables from the environment.
	Getenv func(string) string
	Log    *slog.Logger
}

// Enabled reports whether the environment turns the export on: it names a collector and does not
// disable logs. An unsupported exporter or protocol is an error.
func (c Config) Enabled() (bool, error) {
	if c.Getenv("OTEL_SDK_DISABLED") == "true" {
		return false, nil
	}
	endpoint := cmp.Or(c.Getenv("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT"), c.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT"))
	switch exporter := c.Getenv("OTEL_LOGS_EXPORTER"); exporter {
	case "none":
		return false, nil
	case "":
		if endpoint == "" {
			return false, nil
		}
	case "otlp":
	default:
		return false, fmt.Errorf("OTEL_LOGS_EXPORTER is %q; supported values are otlp and none", exporter)
	}
	switch protocol := cmp.Or(c.Getenv("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL"), c.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL")); protocol {
	case "", "http/protobuf":
		return true, nil
	default:
		return false, fmt.Errorf("the OTLP protocol is %q; only http/protobuf is supported", protocol)
	}
}

// An Exporter sends audit lines to a collector.
type Exporter struct {
	provider *sdklog.LoggerProvider
	logger   log.Logger
	out      *countingExporter
	received atomic.Int64
}

// New returns an Exporter configured by the environment, or nil if the export is off. It does not
// wait for the collector. The caller must close the Exporter after the audit.Log that it serves.
func New(ctx context.Context, c Config) (*Exporter, error) {
	if c.Service == "" || c.Cluster == "" || c.Getenv == nil || c.Log == nil {
		return nil, errors.New("auditotlp: a required field is missing")
	}
	if on, err := c.Enabled(); err != nil || !on {
		return nil, err
	}
	out, err := otlploghttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("OTLP logs: %w", err)
	}
	who, err := resource.New(ctx,
		resource.WithTelemetrySDK(),
		resource.WithAttributes(attribute.String("service.name", c.Service), attribute.String("service.version", c.Version),
			attribute.String("k8s.cluster.name", c.Cluster)),
		resource.WithFromEnv(), // last, so that the administrator's environment wins
	)
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	e := &Exporter{out: &countingExporter{Exporter: out, log: c.Log}}
	e.provider = sdklog.NewLoggerProvider(sdklog.WithResource(who), sdklog.WithProcessor(sdklog.NewBatchProcessor(e.out)))
	e.logger = e.provider.Logger("github.com/tailplane/tailplane/internal/audit", log.WithInstrumentationVersion(c.Version))
	return e, nil
}

// Export queues l for sending and returns at once. Use it as audit.Config.Export.
func (e *Exporter) Export(l audit.Line) {
	e.received.Add(1)
	e.logger.Emit(context.Background(), record(l))
}

// Stats counts lines. Lines that are neither sent nor failed are queued, or were dropped because
// the queue was full.
type Stats struct{ Received, Sent, Failed int64 }

// Stats returns the current counts.
func (e *Exporter) Stats() Stats {
	return Stats{Received: e.received.Load(), Sent: e.out.sent.Load(), Failed: e.out.failed.Load()}
}

// Close sends the queued lines. It returns when they are sent or when ctx ends.
func (e *Exporter) Close(ctx context.Context) error {
	if err := e.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("OTLP logs: %w", err)
	}
	return nil
}

// record converts l to an OpenTelemetry log record. Attributes use names from the semantic
// conventions where one exists.
func record(l audit.Line) (r log.Record) {
	r.SetEventName("tailplane.audit." + string(l.Kind))
	r.SetBody(log.StringValue(string(l.Text)))
	r.SetSeverity(log.SeverityInfo)
	text := func(key, value string) {
		if value != "" {
			r.AddAttributes(log.String(key, value))
		}
	}
	if l.Seq > 0 { // 0: a lost entry, which is not in the file
		text("tailplane.audit.log", l.Log)
		text("tailplane.audit.hash", l.Hash.String())
		r.AddAttributes(log.Int64("tailplane.audit.seq", int64(l.Seq)))
	}
	content, err := l.Content()
	if err != nil {
		return r
	}
	switch c := content.(type) {
	case audit.Entry:
		r.SetTimestamp(c.Time)
		text("log.record.uid", c.RequestID)
		text("user.name", c.Actor.Login)
		text("tailplane.node", c.Actor.Node)
		text("tailplane.surface", c.Surface)
		text("tailplane.verb", string(c.Verb))
		text("tailplane.org", c.Org)
		text("tailplane.object", c.Object)
		text("tailplane.result", string(c.Result))
		text("error.type", string(c.Code))
		switch c.Result {
		case audit.Refused:
			r.SetSeverity(log.SeverityWarn)
		case audit.Failed:
			r.SetSeverity(log.SeverityError)
		}
		if l.Seq == 0 {
			r.SetSeverity(log.SeverityError)
			text("tailplane.audit.lost", "true")
		}
	case audit.Gap:
		r.SetTimestamp(c.Time)
		r.SetSeverity(log.SeverityError)
		r.AddAttributes(log.Int64("tailplane.audit.dropped", c.Lost))
	case audit.Torn:
		r.SetTimestamp(c.Time)
		r.SetSeverity(log.SeverityWarn)
	case audit.Header:
		r.SetTimestamp(c.Time)
	case audit.Checkpoint:
		r.SetTimestamp(c.Time)
	case audit.KeyChange:
		r.SetTimestamp(c.Time)
	}
	return r
}

// countingExporter counts the results of an exporter. It logs a failure once, because the SDK would print
// every failure to standard error.
type countingExporter struct {
	sdklog.Exporter
	log          *slog.Logger
	sent, failed atomic.Int64
	down         atomic.Bool
}

// Export implements [sdklog.Exporter].
func (r *countingExporter) Export(ctx context.Context, records []sdklog.Record) error {
	if err := r.Exporter.Export(ctx, records); err != nil {
		if r.failed.Add(int64(len(records))); r.down.CompareAndSwap(false, true) {
			r.log.Error("exporting the audit log to the collector fails; the file is complete", "err", err)
		}
		return nil
	}
	if r.sent.Add(int64(len(records))); r.down.CompareAndSwap(true, false) {
		r.log.Info("exporting the audit log to the collector works again", "failed", r.failed.Load())
	}
	return nil
}
