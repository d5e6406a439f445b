package dashboard_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/plane/metrics"
)

// jobs returns the services for single runners and for time series, over a Prometheus with a gap in its data.
func (h *env) jobs(t *testing.T, desk *plane.Service) (*plane.RunnerService, *plane.MetricsService) {
	prometheus := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ask := func(key string) float64 { v, _ := strconv.ParseFloat(r.FormValue(key), 64); return v }
		from, to, step := ask("start"), ask("end"), ask("step")
		var values []string
		for i, at := 0, from; at <= to && step > 0; i, at = i+1, at+step {
			if i%40 < 35 { // and then it was away
				values = append(values, fmt.Sprintf(`[%.0f,"%d"]`, at, 2+i/10%5))
			}
		}
		fmt.Fprintf(w, `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[%s]}]}}`, strings.Join(values, ","))
	}))
	t.Cleanup(prometheus.Close)
	events := func(context.Context, string) ([]plane.Event, error) {
		now := time.Now()
		return []plane.Event{{Type: "Warning", Reason: "FailedScheduling", Message: "0/3 nodes are available: 3 Insufficient cpu.", Kind: "Pod", Name: "acme-gh-nix-a", By: "default-scheduler", Count: 4, First: now.Add(-time.Hour), Last: now}}, nil
	}
	log := func(ctx context.Context, p access.Permit, o plane.LogOptions) (io.ReadCloser, error) {
		if err := p.Require(access.LogsRead, time.Now()); err != nil {
			return nil, err
		}
		text := "Listening for Jobs\nRunning job: build\n\x1b[31m<img src=x onerror=window.hurt=1>\x1b[0m\n"
		if !o.Follow {
			return io.NopCloser(strings.NewReader(text)), nil
		}
		r, w := io.Pipe()
		go func() {
			_, _ = io.WriteString(w, text+"more\n")
			<-ctx.Done()
			w.CloseWithError(ctx.Err())
		}()
		return r, nil
	}
	return &plane.RunnerService{Plane: desk, ReadEvents: events, OpenLog: log}, &plane.MetricsService{Plane: desk, Query: (&metrics.Client{URL: prometheus.URL, HTTP: prometheus.Client(), Log: slog.New(slog.DiscardHandler), Now: time.Now}).Query}
}

// job returns a runner of an organisation, in its pod.
func job(org, pool, name, state string, is *plane.Job) plane.Runner {
	now := time.Now()
	return plane.Runner{ID: "tailplane-runners/" + org + "-" + pool + "-" + name, Namespace: "tailplane-runners", Name: org + "-" + pool + "-" + name, Kind: "EphemeralRunner", Pool: "github/" + org + "/" + pool, OrgName: org, State: state,
		Failures: new(0), ForgeID: new(int64(7)), ForgeName: org + "-" + pool + "-" + name, Job: is, Created: now.Add(-5 * time.Minute), ObservedAt: now,
		Pod: &plane.Pod{Phase: "Running", Node: "node-1", Started: &now, Containers: []plane.Container{{Name: "runner", Image: "registry.example/runner:2.330.0", State: "Running", Ready: true, Started: &now}}}}
}
