package health

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// hookBuckets are the buckets of responses to Envoy Gateway: less than a millisecond for single objects, less than two seconds for all of
// them.
var hookBuckets = []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2, 5}

// GatewayMetrics holds the metrics of the gateway.
type GatewayMetrics struct {
	*prometheus.Registry

	requests *prometheus.CounterVec   // op, class
	seconds  *prometheus.HistogramVec // op

	calls    *prometheus.CounterVec   // hook, result
	duration *prometheus.HistogramVec // hook
	bytes    *prometheus.HistogramVec // hook, direction
	last     prometheus.Gauge
	build    prometheus.Histogram
	faults   prometheus.Counter
	routes   prometheus.Gauge
	clusters prometheus.Gauge
	restores prometheus.Counter
	keys     *prometheus.CounterVec // op
}

// NewGatewayMetrics returns the metrics of a gateway. unwell returns the number of tailnets whose API calls are suspended after too many failures.
// hooks and results are all possible label values.
func NewGatewayMetrics(version, commit string, unwell func() int, hooks, results []string) *GatewayMetrics {
	histogram := func(name, help string, buckets []float64) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets, NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100}
	}
	m := &GatewayMetrics{
		Registry: newProcessRegistry(version, commit),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tailplane_tailnet_api_requests_total", Help: "Requests to Tailscale's API, by operation and result."}, []string{"op", "class"}),
		seconds:  prometheus.NewHistogramVec(histogram("tailplane_tailnet_api_seconds", "Time of one request to Tailscale's API.", prometheus.DefBuckets), []string{"op"}),
		calls:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tailplane_gateway_hook_calls_total", Help: "Calls of Envoy Gateway, by hook and result."}, []string{"hook", "result"}),
		duration: prometheus.NewHistogramVec(histogram("tailplane_gateway_hook_seconds", "Time to answer one call of Envoy Gateway.", hookBuckets), []string{"hook"}),
		bytes:    prometheus.NewHistogramVec(histogram("tailplane_gateway_hook_bytes", "Size of one message from (in) or to (out) Envoy Gateway.", prometheus.ExponentialBuckets(256, 4, 10)), []string{"hook", "direction"}),
		last:     prometheus.NewGauge(prometheus.GaugeOpts{Name: "tailplane_gateway_last_hook_timestamp_seconds", Help: "Time of Envoy Gateway's last call; 0 if there was none."}),
		build:    prometheus.NewHistogram(histogram("tailplane_gateway_build_seconds", "Time to compute one complete snapshot.", prometheus.DefBuckets)),
		faults:   prometheus.NewCounter(prometheus.CounterOpts{Name: "tailplane_gateway_build_faults_total", Help: "Snapshots that could not be computed; the previous one stays in effect."}),
		routes:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "tailplane_gateway_snapshot_routes", Help: "Rendered routes of services, of all Gateways."}),
		clusters: prometheus.NewGauge(prometheus.GaugeOpts{Name: "tailplane_gateway_snapshot_clusters", Help: "Rendered clusters, of all Gateways."}),
		restores: prometheus.NewCounter(prometheus.CounterOpts{Name: "tailplane_gateway_status_restores_total", Help: "Statuses of policies that were written again after Envoy Gateway erased them."}),
		keys:     prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tailplane_gateway_auth_keys_total", Help: "Auth keys of relays, by action."}, []string{"op"}),
	}
	open := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tailplane_tailnet_circuit_open", Help: "Tailnets whose API is not called now because it failed too often."},
		func() float64 { return float64(unwell()) })
	m.MustRegister(m.requests, m.seconds, open, m.calls, m.duration, m.bytes, m.last, m.build, m.faults, m.routes, m.clusters, m.restores, m.keys)
	for _, hook := range hooks { // an alert on a missing series would never fire
		for _, result := range results {
			m.calls.WithLabelValues(hook, result)
		}
	}
	for _, op := range []string{"minted", "deleted", "reissued"} {
		m.keys.WithLabelValues(op)
	}
	return m
}

// ObserveRequest counts a request to Tailscale's API. op and class must be from closed sets.
func (m *GatewayMetrics) ObserveRequest(op, class string, took time.Duration) {
	m.requests.WithLabelValues(op, class).Inc()
	if took > 0 {
		m.seconds.WithLabelValues(op).Observe(took.Seconds())
	}
}

// ObserveCall counts a call from Envoy Gateway. hook and result must be values given to NewGatewayMetrics. in and out are message sizes in bytes.
func (m *GatewayMetrics) ObserveCall(hook, result string, took time.Duration, in, out int) {
	m.calls.WithLabelValues(hook, result).Inc()
	m.duration.WithLabelValues(hook).Observe(took.Seconds())
	m.bytes.WithLabelValues(hook, "in").Observe(float64(in))
	m.bytes.WithLabelValues(hook, "out").Observe(float64(out))
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

// SetRendered sets the numbers of routes and clusters to render.
func (m *GatewayMetrics) SetRendered(routes, clusters int) {
	m.routes.Set(float64(routes))
	m.clusters.Set(float64(clusters))
}

// CountRestored counts a status that was written again.
func (m *GatewayMetrics) CountRestored() { m.restores.Inc() }

// CountKey counts an operation on an auth key: minted, deleted or reissued.
func (m *GatewayMetrics) CountKey(op string) { m.keys.WithLabelValues(op).Inc() }

// TailnetCounts holds numbers of tailnets and services.
type TailnetCounts struct{ Ready, Degraded, Services int }

// AddTailnets adds gauges with the values from count, which runs at each scrape. There are no samples while count returns false.
func (m *GatewayMetrics) AddTailnets(count func() (TailnetCounts, bool)) {
	show := func(name, help string, of func(TailnetCounts) int) {
		m.MustRegister(gaugeCollector{prometheus.NewDesc(name, help, nil, nil), func() (float64, bool) {
			now, known := count()
			return float64(of(now)), known
		}})
	}
	show("tailplane_tailnet_ready", "Tailnets that are ready.", func(t TailnetCounts) int { return t.Ready })
	show("tailplane_tailnet_degraded", "Tailnets that work with the last known state.", func(t TailnetCounts) int { return t.Degraded })
	show("tailplane_tailnet_discovery_services", "Services that discovery has found, of all tailnets.", func(t TailnetCounts) int { return t.Services })
}

// AddOmittedNamespaces adds a gauge of the namespaces in which the account lacks required read access. count runs at each scrape.
func (m *GatewayMetrics) AddOmittedNamespaces(count func() int) {
	m.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tailplane_gateway_namespaces_left_out", Help: "Namespaces where this account lacks the right to read; the other namespaces continue to work."},
		func() float64 { return float64(count()) }))
}

// AddReadiness adds a gauge that shows whether l is ready.
func (m *GatewayMetrics) AddReadiness(l *Listener) { m.MustRegister(readiness(l)) }
