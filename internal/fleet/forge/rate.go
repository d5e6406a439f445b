package forge

import (
	"net/http"
	"strconv"
	"time"
)

// Rate is how often a forge may be asked, as it said last; the zero Rate: it never
// did.
type Rate struct {
	Limit, Remaining int
	Reset            time.Time // by the forge's clock
}

// longestWait bounds what a forge may ask for: GitHub's limits are those of an hour.
const longestWait = time.Hour

// rateFrom reads the three headers that begin with prefix, "X-RateLimit-" of GitHub and
// "RateLimit-" of GitLab. ok is whether all are there.
func rateFrom(h http.Header, prefix string) (r Rate, ok bool) {
	limit, err1 := strconv.Atoi(h.Get(prefix + "Limit"))
	remaining, err2 := strconv.Atoi(h.Get(prefix + "Remaining"))
	reset, err3 := strconv.ParseInt(h.Get(prefix+"Reset"), 10, 64)
	if err1 != nil || err2 != nil || err3 != nil || limit < 0 || remaining < 0 || reset <= 0 {
		return Rate{}, false
	}
	return Rate{Limit: limit, Remaining: remaining, Reset: time.Unix(reset, 0).UTC()}, true
}

// retryAfter reads the header of that name: seconds, or a date by the forge's clock,
// as now is. 0: there is none that can be read.
func retryAfter(h http.Header, now time.Time) time.Duration {
	text := h.Get("Retry-After")
	if n, err := strconv.ParseUint(text, 10, 31); err == nil {
		return min(time.Duration(n)*time.Second, longestWait)
	}
	if at, err := http.ParseTime(text); err == nil {
		return min(max(at.Sub(now), 0), longestWait)
	}
	return 0
}
