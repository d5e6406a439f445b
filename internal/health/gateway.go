package health

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// hookBuckets are the buckets of responses to Envoy Gateway: less than a millisecond for single objects, less than two seconds for all of
// them.
var hookBuckets = []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2, 5}

// Gateway holds the metrics of the gateway.
type Gateway struct {
	*prometheus.Registry

	requests *prometheus.CounterVec   // op, class
	seconds  *prometheus.HistogramVec // op

	calls    *prometheus.CounterVec   // hook, result
	took     *prometheus.HistogramVec // hook
	bytes    *prometheus.HistogramVec // hook, direction
	last     prometheus.Gauge
	build    prometheus.Histogram
	faults   prometheus.Counter
	routes   prometheus.Gauge
	clusters prometheus.Gauge
	restores prometheus.Counter
	keys     *prometheus.CounterVec // op
}

// NewGateway returns the metrics of a gateway. unwell returns the number of tailnets whose API calls are suspended after too many failures.
// hooks and results are all possible label values.
func NewGateway(version, commit string, unwell func() int, hooks, results []string) *Gateway {
	histogram := func(name, help string, buckets []float64) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets, NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100}
	}
	m := &Gateway{
		Registry: newProcessRegistry(version, commit),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tailplane_tailnet_api_requests_total", Help: "Requests to Tailscale's API, by what was asked and what became of it."}, []string{"op", "class"}),
		seconds:  prometheus.NewHistogramVec(histogram("tailplane_tailnet_api_seconds", "Time of one request to Tailscale's API.", prometheus.DefBuckets), []string{"op"}),
		calls:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tailplane_gateway_hook_calls_total", Help: "Calls of Envoy Gateway, by hook and by how they were answered."}, []string{"hook", "result"}),
		took:     prometheus.NewHistogramVec(histogram("tailplane_gateway_hook_seconds", "Time to answer one call of Envoy Gateway.", hookBuckets), []string{"hook"}),
		bytes:    prometheus.NewHistogramVec(histogram("tailplane_gateway_hook_bytes", "Size of one message, in from Envoy Gateway or out to it.", prometheus.ExponentialBuckets(256, 4, 10)), []string{"hook", "direction"}),
		last:     prometheus.NewGauge(prometheus.GaugeOpts{Name: "tailplane_gateway_last_hook_timestamp_seconds", Help: "When Envoy Gateway last called; 0 if it has not."}),
		build:    prometheus.NewHistogram(histogram("tailplane_gateway_build_seconds", "Time of one decision about everything.", prometheus.DefBuckets)),
		faults:   prometheus.NewCounter(prometheus.CounterOpts{Name: "tailplane_gateway_build_faults_total", Help: "Decisions that could not be made; the one before stays in force."}),
		routes:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "tailplane_gateway_snapshot_routes", Help: "Routes of services in what is rendered, of all Gateways."}),
		clusters: prometheus.NewGauge(prometheus.GaugeOpts{Name: "tailplane_gateway_snapshot_clusters", Help: "Clusters in what is rendered, of all Gateways."}),
		restores: prometheus.NewCounter(prometheus.CounterOpts{Name: "tailplane_gateway_status_restores_total", Help: "Statuses of policies that were written again after Envoy Gateway erased them."}),
		keys:     prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tailplane_gateway_auth_keys_total", Help: "Auth keys of relays, by what was done."}, []string{"op"}),
	}
	open := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tailplane_tailnet_circuit_open", Help: "Tailnets whose API is left alone because it failed too often."},
		func() float64 { return float64(unwell()) })
	m.MustRegister(m.requests, m.seconds, open, m.calls, m.took, m.bytes, m.last, m.build, m.faults, m.routes, m.clusters, m.restores, m.keys)
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

// Asked counts a request to Tailscale's API. op and class must be from closed sets.
func (m *Gateway) Asked(op, class string, took time.Duration) {
	m.requests.WithLabelValues(op, class).Inc()
	if took > 0 {
		m.seconds.WithLabelValues(op).Observe(took.Seconds())
	}
}

// Called counts a call from Envoy Gateway. hook and result must be values given to NewGateway. in and out are message sizes in bytes.
func (m *Gateway) Called(hook, result string, took time.Duration, in, out int) {
	m.calls.WithLabelValues(hook, result).Inc()
	m.took.WithLabelValues(hook).Observe(took.Seconds())
	m.bytes.WithLabelValues(hook, "in").Observe(float64(in))
	m.bytes.WithLabelValues(hook, "out").Observe(float64(out))
	m.last.SetToCurrentTime()
}

// Built records the time of a build, or counts a failed one if err is not nil.
func (m *Gateway) Built(took time.Duration, err error) {
	if err != nil {
		m.faults.Inc()
		return
	}
	m.build.Observe(took.Seconds())
}

// Rendering sets the numbers of routes and clusters to render.
func (m *Gateway) Rendering(routes, clusters int) {
	m.routes.Set(float64(routes))
	m.clusters.Set(float64(clusters))
}

// Restored counts a status that was written again.
func (m *Gateway) Restored() { m.restores.Inc() }

// Key counts an operation on an auth key: minted, deleted or reissued.
func (m *Gateway) Key(op string) { m.keys.WithLabelValues(op).Inc() }

// Tailnets holds numbers of tailnets and services.
type Tailnets struct{ Ready, Degraded, Services int }

// Tailnets adds gauges with the values from count, which runs at each scrape. There are no samples while count returns false.
func (m *Gateway) Tailnets(count func() (Tailnets, bool)) {
	show := func(name, help string, of func(Tailnets) int) {
		m.MustRegister(gauge{prometheus.NewDesc(name, help, nil, nil), func() (float64, bool) {
			now, known := count()
			return float64(of(now)), known
		}})
	}
	show("tailplane_tailnet_ready", "Tailnets that are ready.", func(t Tailnets) int { return t.Ready })
	show("tailplane_tailnet_degraded", "Tailnets that work on what was known last.", func(t Tailnets) int { return t.Degraded })
	show("tailplane_tailnet_discovery_services", "Services that discovery knows, of all tailnets.", func(t Tailnets) int { return t.Services })
}

// LeftOut adds a gauge of the namespaces in which the account lacks required read access. count runs at each scrape.
func (m *Gateway) LeftOut(count func() int) {
	m.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tailplane_gateway_namespaces_left_out", Help: "Namespaces where this account may not read what it should; the others go on."},
		func() float64 { return float64(count()) }))
}

// Readiness adds a gauge that shows whether l is ready.
func (m *Gateway) Readiness(l *Listener) { m.MustRegister(readiness(l)) }
