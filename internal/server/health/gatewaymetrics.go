package health

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/gateway/xds"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
)

// hookBuckets are the buckets of responses to Envoy Gateway: less than a millisecond for single objects, less than two seconds for all of
// them.
var hookBuckets = []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2, 5}

// GatewayMetrics holds the metrics of the gateway.
type GatewayMetrics struct {
	registry
	requests *prometheus.CounterVec   // op, class
	seconds  *prometheus.HistogramVec // op
	calls    *prometheus.CounterVec   // hook, result
	duration *prometheus.HistogramVec // hook
	bytes    *prometheus.HistogramVec // hook, direction
	last     prometheus.Gauge
	build    prometheus.Observer
	faults   prometheus.Counter
	routes   prometheus.Gauge
	clusters prometheus.Gauge
	restores prometheus.Counter
	keys     *prometheus.CounterVec // op
}

// NewGatewayMetrics returns the metrics of a gateway. failing returns the number of tailnets whose API calls are suspended after too many failures.
func NewGatewayMetrics(version, commit string, failing func() int) *GatewayMetrics {
	r := newProcessRegistry(version, commit)
	m := &GatewayMetrics{
		registry: r,
		requests: r.counter("tailplane_tailnet_api_requests_total", "Requests to Tailscale's API, by operation and result.", "op", "class"),
		seconds:  r.histogram("tailplane_tailnet_api_seconds", "Time of one request to Tailscale's API.", prometheus.DefBuckets, "op"),
		calls:    r.counter("tailplane_gateway_hook_calls_total", "Calls of Envoy Gateway, by hook and result.", "hook", "result"),
		duration: r.histogram("tailplane_gateway_hook_seconds", "Time to answer one call of Envoy Gateway.", hookBuckets, "hook"),
		bytes:    r.histogram("tailplane_gateway_hook_bytes", "Size of one message from (in) or to (out) Envoy Gateway.", prometheus.ExponentialBuckets(256, 4, 10), "hook", "direction"),
		last:     r.gauge("tailplane_gateway_last_hook_timestamp_seconds", "Time of Envoy Gateway's last call; 0 if there was none.").WithLabelValues(),
		build:    r.histogram("tailplane_gateway_build_seconds", "Time to compute one complete snapshot.", prometheus.DefBuckets).WithLabelValues(),
		faults:   r.counter("tailplane_gateway_build_faults_total", "Snapshots that could not be computed; the previous one stays in effect.").WithLabelValues(),
		routes:   r.gauge("tailplane_gateway_snapshot_routes", "Rendered routes of services, of all Gateways.").WithLabelValues(),
		clusters: r.gauge("tailplane_gateway_snapshot_clusters", "Rendered clusters, of all Gateways.").WithLabelValues(),
		restores: r.counter("tailplane_gateway_status_restores_total", "Statuses of policies that were written again after Envoy Gateway erased them.").WithLabelValues(),
		keys:     r.counter("tailplane_gateway_auth_keys_total", "Auth keys of relays, by action.", "op"),
	}
	r.countFunc("tailplane_tailnet_circuit_open", "Tailnets whose API is not called now because it failed too often.", failing)
	for _, hook := range xds.Hooks() { // an alert on a missing series would never fire
		for _, result := range xds.Results() {
			m.calls.WithLabelValues(string(hook), string(result))
		}
	}
	for _, op := range []string{"minted", "deleted", "reissued"} {
		m.keys.WithLabelValues(op)
	}
	return m
}

// ObserveRequest counts a request to Tailscale's API.
func (m *GatewayMetrics) ObserveRequest(op tsapi.Op, class tsapi.Class, took time.Duration) {
	m.requests.WithLabelValues(string(op), string(class)).Inc()
	if took > 0 {
		m.seconds.WithLabelValues(string(op)).Observe(took.Seconds())
	}
}

// ObserveCall counts a call from Envoy Gateway.
func (m *GatewayMetrics) ObserveCall(c xds.Call) {
	hook := string(c.Hook)
	m.calls.WithLabelValues(hook, string(c.Result)).Inc()
	m.duration.WithLabelValues(hook).Observe(c.Took.Seconds())
	m.bytes.WithLabelValues(hook, "in").Observe(float64(c.In))
	m.bytes.WithLabelValues(hook, "out").Observe(float64(c.Out))
	m.last.SetToCurrentTime()
}

// ObserveBuild records the time of a build, or counts a failed one if err is not nil.
func (m *GatewayMetrics) ObserveBuild(took time.Duration, err error) {
	if err != nil {
		m.faults.Inc()
		return
	}
	m.build.Observe(took.Seconds())
}

// SetRendered sets the numbers of rendered routes and clusters.
func (m *GatewayMetrics) SetRendered(n *gateway.Snapshot) {
	routes, clusters := 0, 0
	for _, g := range n.Gateways {
		routes, clusters = routes+len(g.Routes), clusters+len(g.Clusters)
	}
	m.routes.Set(float64(routes))
	m.clusters.Set(float64(clusters))
}

// CountRestored counts a status that was written again.
func (m *GatewayMetrics) CountRestored() { m.restores.Inc() }

// CountKey counts an operation on an auth key: minted, deleted or reissued.
func (m *GatewayMetrics) CountKey(op string) { m.keys.WithLabelValues(op).Inc() }

// countTime bounds the reading of caches for one scrape.
const countTime = 5 * time.Second

// AddTailnets adds gauges with the values from count, which runs at each scrape. There are no samples while count returns false.
func (m *GatewayMetrics) AddTailnets(count func(context.Context) (ready, degraded, services int, known bool)) {
	m.collect(func(emit emitter) {
		ctx, cancel := context.WithTimeout(context.Background(), countTime)
		defer cancel()
		if ready, degraded, services, known := count(ctx); known {
			emit("tailplane_tailnet_ready", float64(ready))
			emit("tailplane_tailnet_degraded", float64(degraded))
			emit("tailplane_tailnet_discovery_services", float64(services))
		}
	},
		metric{"tailplane_tailnet_ready", "Tailnets that are ready.", nil},
		metric{"tailplane_tailnet_degraded", "Tailnets that work with the last known state.", nil},
		metric{"tailplane_tailnet_discovery_services", "Services that discovery has found, of all tailnets.", nil},
	)
}

// AddOmittedNamespaces adds a gauge of the namespaces in which the account lacks required read access. count runs at each scrape.
func (m *GatewayMetrics) AddOmittedNamespaces(count func() int) {
	m.countFunc("tailplane_gateway_namespaces_left_out", "Namespaces where this account lacks the right to read; the other namespaces continue to work.", count)
}
