package health_test

import (
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/fleet/controller"
	"github.com/tailplane/tailplane/internal/server/health"
)

// Unknown values are missing from the metrics. Known values have the labels that the alerts use.
func TestFleetMetrics(t *testing.T) {
	m := health.NewFleetMetrics("v1", "abc")
	known := false
	now := time.Now()
	m.AddValues(func() (controller.Metrics, bool) {
		return controller.Metrics{
			Workloads: []controller.WorkloadMetrics{{Forge: "github", Org: "acme", Pool: "nix", RunnerCounts: controller.RunnerCounts{Busy: new(3)}, EffectiveMax: 5, Drift: 1, Failing: true, Stranded: new(2)}},
			Rates:     []controller.RateLimitMetrics{{Forge: "github", Org: "acme", Remaining: 4800}},
			Expiries:  []controller.ExpiryMetrics{{Forge: "gitlab", Org: "acme", At: now.Add(time.Minute)}},
			Holds:     2,
		}, known
	}, func() time.Time { return now })
	m.ObserveRequest("github", "acme", "list runners", 200)
	m.ObserveRequest("github", "acme", "list groups", 200)
	m.ObserveRequest("github", "acme", "list runners", 0)
	m.ObserveAllocation(time.Millisecond)
	gather := func() map[string]float64 {
		families, err := m.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			for _, x := range f.GetMetric() {
				name := []string{strings.TrimPrefix(f.GetName(), "tailplane_fleet_")}
				for _, l := range x.GetLabel() {
					name = append(name, l.GetValue())
				}
				got[strings.Join(name, " ")] = x.GetCounter().GetValue() + x.GetGauge().GetValue() + float64(x.GetHistogram().GetSampleCount())
			}
		}
		return got
	}
	got := gather()
	for name, want := range map[string]float64{"forge_requests_total 200 github acme": 2, "forge_requests_total none github acme": 1, "allocate_seconds": 1} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
	if _, there := got["holds"]; there {
		t.Errorf("an unknown value is shown: %v", got)
	}
	known = true
	got = gather()
	for name, want := range map[string]float64{"runners github acme nix busy": 3, "effective_max github acme nix": 5, "drift_findings github acme nix": 1, "stranded_jobs github acme nix": 2, "pool_failing github acme nix": 1, "rate_limit_remaining github acme": 4800, "credential_expiry_seconds gitlab acme": 60, "holds": 2} {
		if v, there := got[name]; !there || v != want {
			t.Errorf("%s is %v, want %v", name, v, want)
		}
	}
	if _, there := got["runners github acme nix idle"]; there {
		t.Errorf("an unknown number of runners is shown: %v", got)
	}
}
