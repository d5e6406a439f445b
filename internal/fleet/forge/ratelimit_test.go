package forge

import (
	"net/http"
	"testing"
	"time"
)

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for text, want := range map[string]time.Duration{"": 0, "7": 7 * time.Second, "-1": 0, "soon": 0, "99999999": maxRetryAfter, "9999999999999999999": 0,
		"Fri, 02 Jan 2026 03:05:05 GMT": time.Minute, "Fri, 02 Jan 2026 03:00:05 GMT": 0, "Fri, 02 Jan 2036 03:00:05 GMT": maxRetryAfter} {
		if got := retryAfter(http.Header{"Retry-After": {text}}, now); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

func TestFrom(t *testing.T) {
	reported := func(limit, remaining, reset string) http.Header {
		h := http.Header{}
		h.Set("X-RateLimit-Limit", limit)
		h.Set("X-RateLimit-Remaining", remaining)
		h.Set("X-RateLimit-Reset", reset)
		return h
	}
	if r, ok := parseRate(reported("5000", "0", "1767323045"), "X-RateLimit-"); !ok || r != (Rate{Limit: 5000, Reset: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}) {
		t.Errorf("%+v, %v", r, ok)
	}
	for _, h := range []http.Header{{}, reported("", "1", "1"), reported("1", "-1", "1"), reported("1", "1", "0"), reported("x", "1", "1"), reported("1", "1", "99999999999999999999")} {
		if r, ok := parseRate(h, "X-RateLimit-"); ok || r != (Rate{}) {
			t.Errorf("%v is read as %+v", h, r)
		}
	}
	if _, ok := parseRate(reported("1", "1", "1"), "RateLimit-"); ok {
		t.Error("another forge's headers are read")
	}
}
