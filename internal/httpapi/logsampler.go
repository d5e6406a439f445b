package httpapi

import (
	"log/slog"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/problem"
)

// sampleInterval is the minimum time between two log lines for one code.
const sampleInterval = 10 * time.Second

// A logSampler logs why requests failed and aggregates repeated failures, so that a caller that fails a
// thousand times per second cannot fill the log. The audit log has an entry for each.
type logSampler struct {
	mu         sync.Mutex
	lastLogged map[problem.Code]sampleState // by code; the codes are a closed set
}

type sampleState struct {
	loggedAt time.Time // time of the last line
	skipped  int       // failures since the last line
}

func (t *logSampler) log(log *slog.Logger, v *request, p *problem.Error, now time.Time) {
	attrs := []any{"audit", v.entry.RequestID, "op", v.route.Pattern, "code", p.Code, "err", p.Cause()}
	switch {
	case p.Code == problem.Internal: // always logged in full, because the caller only got the audit ID
		log.Error("visit failed", attrs...)
		return
	case p.Code.Status() < 500:
		log.Debug("visit refused", attrs...)
		return
	}
	t.mu.Lock()
	s := t.lastLogged[p.Code]
	more, sampled := s.skipped, !s.loggedAt.IsZero() && now.Sub(s.loggedAt) < sampleInterval
	if sampled {
		s.skipped++
	} else {
		s = sampleState{loggedAt: now}
	}
	t.lastLogged[p.Code] = s
	t.mu.Unlock()
	if sampled {
		return
	}
	if more > 0 {
		attrs = append(attrs, "alsoSince", more)
	}
	log.Error("visit failed", attrs...)
}
