package forge

import (
	"net/http"
	"strconv"
	"time"

	"github.com/tailplane/tailplane/internal/util/httptransport"
)

// Rate is a forge's rate limit, as last reported. The zero Rate means that the forge never reported
// one.
type Rate struct {
	Limit, Remaining int
	Reset            time.Time // by the forge's clock
}

// maxRetryAfter limits the wait that a forge can demand. GitHub's limits are per hour.
const maxRetryAfter = time.Hour

// parseRate reads the three headers with the prefix "X-RateLimit-" (GitHub) or "RateLimit-"
// (GitLab). ok reports whether all are present and valid.
func parseRate(h http.Header, prefix string) (r Rate, ok bool) {
	limit, err1 := strconv.Atoi(h.Get(prefix + "Limit"))
	remaining, err2 := strconv.Atoi(h.Get(prefix + "Remaining"))
	reset, err3 := strconv.ParseInt(h.Get(prefix+"Reset"), 10, 64)
	if err1 != nil || err2 != nil || err3 != nil || limit < 0 || remaining < 0 || reset <= 0 {
		return Rate{}, false
	}
	return Rate{Limit: limit, Remaining: remaining, Reset: time.Unix(reset, 0).UTC()}, true
}

// retryAfter reads the Retry-After header: seconds, or a date by the forge's clock. now must be the
// time of that clock. It returns 0 if there is no readable header.
func retryAfter(h http.Header, now time.Time) time.Duration {
	return httptransport.RetryAfter(h, now, maxRetryAfter)
}
