package door

import (
	"log/slog"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/problem"
)

// tallyTime is how long refusals of one code are summed before the next line.
const tallyTime = 10 * time.Second

// A tally writes why visits were refused or failed, and sums what repeats:
// whoever is refused a thousand times a second must not fill the log. The audit
// record has an entry of each.
type tally struct {
	mu   sync.Mutex
	said map[problem.Code]*sum // of a closed set
}

type sum struct {
	at    time.Time // of the last line
	since int       // visits that it did not show
}

func (t *tally) say(log *slog.Logger, v *visit, p *problem.Error, now time.Time) {
	attrs := []any{"audit", v.entry.RequestID, "op", v.route.Pattern, "code", p.Code, "err", p.Cause()}
	switch {
	case p.Code == problem.Internal: // always whole: the caller was told no more than the id
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
