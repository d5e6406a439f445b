package serving

import (
	"context"
	"log/slog"
	"net/http"
)

// inspect writes the one line of a visit: writes and failures for everybody,
// the rest for who looks closely. It holds no body, no header but the user agent,
// nothing of the query, and no token in any form.
func (v *visit) inspect() {
	level := slog.LevelDebug
	read := v.parsed && (v.req.Verb == "get" || v.req.Verb == "list" || v.req.Verb == "watch") && v.upgrade == ""
	if !read || v.code >= http.StatusBadRequest {
		level = slog.LevelInfo
	}
	if v.panicked {
		level = slog.LevelError
	}
	ctx := context.Background()
	if !v.Log.Enabled(ctx, level) {
		return
	}
	attrs := make([]slog.Attr, 0, 16)
	say := func(key, value string) {
		if value != "" {
			attrs = append(attrs, slog.String(key, clip(value)))
		}
	}
	if v.parsed {
		say("verb", v.req.Verb)
		if v.req.NonResource {
			say("path", v.req.Path)
		}
		say("group", v.req.Group)
		say("resource", v.req.Resource)
		say("subresource", v.req.Subresource)
		say("namespace", v.req.Namespace)
		say("name", v.req.Name)
	} else {
		say("method", v.r.Method)
	}
	say("cluster", v.target.name())
	say("rule", v.target.Rule)
	say("upgrade", v.upgrade)
	attrs = append(attrs, slog.Int("code", v.code), slog.Duration("took", v.Now().Sub(v.began)), slog.Int64("bytes", v.bytes))
	say("agent", v.r.UserAgent())
	say("audit", v.auditID)
	if v.err != nil {
		say("err", v.err.Error())
	}
	v.Log.LogAttrs(ctx, level, "request", attrs...)
}

// clip bounds what a stranger can put into one field of a line.
func clip(s string) string {
	if len(s) > 200 {
		return s[:200] + "…"
	}
	return s
}
