package health_test

import (
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/tailplane/tailplane/internal/server/health"
)

// The webhook's label values are closed sets that exist from the start. An unknown value is missing.
func TestInjectMetrics(t *testing.T) {
	m := health.NewInjectMetrics("v1", "abc", []string{"patched", "refused"})
	m.ObserveRequest("patched", time.Millisecond)
	m.ObserveRequest("what a stranger chose", time.Millisecond)
	l := &health.Listener{Gatherer: m, Log: slog.New(slog.DiscardHandler)}
	scrape := func() string {
		r := httptest.NewRequest("GET", "/metrics", nil)
		r.Host = "localhost"
		w := httptest.NewRecorder()
		l.Handler().ServeHTTP(w, r)
		var ours strings.Builder
		for line := range strings.Lines(w.Body.String()) {
			if strings.Contains(line, "tailplane_") {
				ours.WriteString(line)
			}
		}
		return ours.String()
	}
	text := scrape()
	if problems, err := promlint.New(strings.NewReader(text)).Lint(); err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
	for _, want := range []string{`tailplane_inject_requests_total{result="patched"} 1`, `tailplane_inject_requests_total{result="refused"} 0`, "tailplane_inject_request_duration_seconds_count 1\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	if strings.Contains(text, "stranger") || strings.Contains(text, "outdated_pods") {
		t.Errorf("a value that was not counted is shown:\n%s", text)
	}
	if m.SetOutdated(0); !strings.Contains(scrape(), "tailplane_inject_outdated_pods 0") {
		t.Error("none is a number too")
	}
	if m.SetOutdated(-1); strings.Contains(scrape(), "outdated_pods") {
		t.Error("an outdated value is shown")
	}
}
