package health_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/gateway/xds"
	"github.com/tailplane/tailplane/internal/server/health"
)

func TestGatewayMetrics(t *testing.T) {
	m := health.NewGatewayMetrics("v1", "abc", func() int { return 2 })
	m.ObserveCall(xds.Call{Hook: xds.Hooks()[0], Result: xds.Results()[0], Took: time.Millisecond, In: 100, Out: 200})
	m.ObserveBuild(time.Second, nil)
	m.ObserveBuild(0, errors.New("no"))
	m.SetRendered(&gateway.Snapshot{Gateways: map[gateway.Name]*gateway.Gateway{{}: {Routes: make([]gateway.Route, 3), Clusters: make([]gateway.Cluster, 4)}}})
	m.CountRestored()
	m.CountKey("minted")
	m.AddTailnets(func(context.Context) (ready, degraded, services int, known bool) { return 5, 6, 7, true })
	m.AddOmittedNamespaces(func() int { return 8 })
	m.ObserveRequest("list devices", "OK", time.Second)
	m.ObserveRequest("list devices", "CircuitOpen", 0) // the request was not made, so it took no time
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
	if got["tailplane_gateway_last_hook_timestamp_seconds"] < 1e9 {
		t.Error("the time of the last call is missing")
	}
	for name, want := range map[string]float64{"tailplane_tailnet_api_requests_total": 2, "tailplane_tailnet_api_seconds": 1, "tailplane_tailnet_circuit_open": 2, "tailplane_build_info": 1,
		"tailplane_gateway_hook_calls_total": 1, "tailplane_gateway_hook_seconds": 1, "tailplane_gateway_hook_bytes": 2, "tailplane_gateway_build_seconds": 1, "tailplane_gateway_build_faults_total": 1,
		"tailplane_gateway_snapshot_routes": 3, "tailplane_gateway_snapshot_clusters": 4, "tailplane_gateway_status_restores_total": 1, "tailplane_gateway_auth_keys_total": 1,
		"tailplane_tailnet_ready": 5, "tailplane_tailnet_degraded": 6, "tailplane_tailnet_discovery_services": 7, "tailplane_gateway_namespaces_left_out": 8} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
}
