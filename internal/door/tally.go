package door

import (
	"log/slog"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/problem"
)

// tallyTime is the minimum time between two log lines for one code.
const tallyTime = 10 * time.Second

// A tally logs why requests failed and aggregates repeated failures, so that a caller that fails a
// thousand times per second cannot fill the log. The audit log has an entry for each.
type tally struct {
	mu   sync.Mutex
	said map[problem.Code]*sum // by code; the codes are a closed set
}

type sum struct {
	at    time.Time // time of the last line
	since int       // failures since the last line
}

func (t *tally) say(log *slog.Logger, v *visit, p *problem.Error, now time.Time) {
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
	s := t.said[p.Code]
	if s == nil {
		s = new(sum)
		t.said[p.Code] = s
	}
	if !s.at.IsZero() && now.Sub(s.at) < tallyTime {
		s.since++
		t.mu.Unlock()
		return
	}
	more := s.since
	s.at, s.since = now, 0
	t.mu.Unlock()
	if more > 0 {
		attrs = append(attrs, "alsoSince", more)
	}
	log.Error("visit failed", attrs...)
}
