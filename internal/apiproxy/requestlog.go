package apiproxy

import (
	"context"
	"log/slog"
	"net/http"
	"time"
)

// logRequest writes the log line of a request. Writes, upgrades and failures have level info, reads have level
// debug. The line has nothing of a body, of the query, or of any header except User-Agent.
func (v *RequestTelemetry) logRequest(now time.Time, out *Result) {
	level := slog.LevelInfo
	switch {
	case out.Panicked:
		level = slog.LevelError
	case v.req != nil && isReadVerb(v.req.Verb) && !NeedsAudit(v.req) && out.Code != 0 && out.Code < http.StatusBadRequest:
		level = slog.LevelDebug
	}
	ctx := context.Background()
	if !v.telemetry.Log.Enabled(ctx, level) {
		return
	}
	attrs := make([]slog.Attr, 0, 18)
	add := func(key, value string) {
		if value != "" {
			attrs = append(attrs, SanitizedAttr(key, value))
		}
	}
	if req := v.req; req != nil {
		add("verb", req.Verb)
		if req.NonResource {
			add("path", req.Path)
		}
		add("group", req.Group)
		add("resource", req.Resource)
		add("subresource", req.Subresource)
		add("namespace", req.Namespace)
		add("name", req.Name)
	} else {
		add("method", v.r.Method)
	}
	add("rule", v.rule)
	switch len(v.clusters) {
	case 0:
	case 1:
		add("cluster", v.clusters[0])
	default:
		add("cluster", MergedLabel)
	}
	add("stream", string(v.kind))
	add("upgrade", out.Upgrade)
	attrs = append(attrs, slog.Int("code", out.Code), slog.Duration("took", now.Sub(v.began)), slog.Int64("bytes", out.Bytes))
	add("agent", v.r.UserAgent())
	add("audit", v.auditID)
	add("trace", spanTraceID(v.span))
	add("refused", string(v.refusal))
	if out.Err != nil {
		add("err", out.Err.Error())
	} else {
		add("err", out.Message)
	}
	v.telemetry.Log.LogAttrs(ctx, level, "request", attrs...)
}

// isReadVerb reports whether a verb changes nothing.
func isReadVerb(verb string) bool {
	return verb == "get" || verb == "list" || verb == "watch" || verb == "head" || verb == "options"
}
