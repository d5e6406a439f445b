package health_test

import (
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/health"
)

func TestGatewayMetrics(t *testing.T) {
	m := health.NewGateway("v1", "abc", func() int { return 2 })
	m.Asked("list devices", "OK", time.Second)
	m.Asked("list devices", "CircuitOpen", 0) // was not made, so it took no time
	families, err := m.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, x := range f.GetMetric() {
			got[f.GetName()] += x.GetCounter().GetValue() + x.GetGauge().GetValue() + float64(x.GetHistogram().GetSampleCount())
		}
	}
	for name, want := range map[string]float64{"tailplane_tailnet_api_requests_total": 2, "tailplane_tailnet_api_seconds": 1, "tailplane_tailnet_circuit_open": 2, "tailplane_build_info": 1} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
}
