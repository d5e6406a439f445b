package observe

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy/observe/text"
)

// inspect writes the log line of a request. Writes, upgrades and failures have level info, reads have level
// debug. The line has nothing of a body, of the query, or of any header except User-Agent.
func (v *Visit) inspect(now time.Time, out *Outcome) {
	level := slog.LevelInfo
	switch {
	case out.Panicked:
		level = slog.LevelError
	case v.req != nil && reads(v.req.Verb) && !Guarded(v.req) && out.Code != 0 && out.Code < http.StatusBadRequest:
		level = slog.LevelDebug
	}
	ctx := context.Background()
	if !v.o.Log.Enabled(ctx, level) {
		return
	}
	attrs := make([]slog.Attr, 0, 18)
	say := func(key, value string) {
		if value != "" {
			attrs = append(attrs, text.Attr(key, value))
		}
	}
	if req := v.req; req != nil {
		say("verb", req.Verb)
		if req.NonResource {
			say("path", req.Path)
		}
		say("group", req.Group)
		say("resource", req.Resource)
		say("subresource", req.Subresource)
		say("namespace", req.Namespace)
		say("name", req.Name)
	} else {
		say("method", v.r.Method)
	}
	say("rule", v.rule)
	switch len(v.clusters) {
	case 0:
	case 1:
		say("cluster", v.clusters[0])
	default:
		say("cluster", Merged)
	}
	say("stream", string(v.kind))
	say("upgrade", out.Upgrade)
	attrs = append(attrs, slog.Int("code", out.Code), slog.Duration("took", now.Sub(v.began)), slog.Int64("bytes", out.Bytes))
	say("agent", v.r.UserAgent())
	say("audit", v.auditID)
	say("trace", traceID(v.span))
	say("refused", string(v.refusal))
	if out.Err != nil {
		say("err", out.Err.Error())
	} else {
		say("err", out.Message)
	}
	v.o.Log.LogAttrs(ctx, level, "request", attrs...)
}

// reads reports whether a verb changes nothing.
func reads(verb string) bool {
	switch verb {
	case "get", "list", "watch", "head", "options":
		return true
	}
	return false
}
