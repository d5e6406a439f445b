package health

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Buckets in seconds: of connecting to a tailnet node, and of draining.
var (
	dialBuckets  = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
	drainBuckets = []float64{1, 5, 10, 30, 60, 120, 300, 600}
)

// RelayMetrics holds the metrics of a relay. No label names a service, an address or a node.
type RelayMetrics struct {
	*prometheus.Registry

	connections *prometheus.CounterVec // direction, protocol, result
	bytes       *prometheus.CounterVec // direction
	open        prometheus.Gauge
	dial        prometheus.Histogram
	drain       prometheus.Histogram
}

// NewRelayMetrics returns the metrics of a relay.
func NewRelayMetrics(version, commit string) *RelayMetrics {
	m := &RelayMetrics{
		Registry: newProcessRegistry(version, commit),
		connections: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tailplane_relay_connections_total", Help: "Connections and UDP flows, by result."},
			[]string{"direction", "protocol", "result"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tailplane_relay_bytes_total", Help: "Bytes to the tailnet (out) and from it (in); counted when a connection ends."}, []string{"direction"}),
		open:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "tailplane_relay_open_connections", Help: "Open TCP connections."}),
		dial:  prometheus.NewHistogram(prometheus.HistogramOpts{Name: "tailplane_relay_dial_seconds", Help: "Time to connect to a target or a backend, or to fail.", Buckets: dialBuckets, NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100}),
		drain: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "tailplane_relay_drain_seconds", Help: "Time from the start of a drain until no connection was open.", Buckets: drainBuckets}),
	}
	m.MustRegister(m.connections, m.bytes, m.open, m.dial, m.drain)
	return m
}

// Connection counts a connection by its result.
func (m *RelayMetrics) Connection(direction, protocol, result string) {
	m.connections.WithLabelValues(direction, protocol, result).Inc()
}

// Open changes the number of open connections.
func (m *RelayMetrics) Open(change int) { m.open.Add(float64(change)) }

// Bytes counts the bytes transferred.
func (m *RelayMetrics) Bytes(direction string, n int64) {
	m.bytes.WithLabelValues(direction).Add(float64(n))
}

// Dialed records the time of one connection attempt.
func (m *RelayMetrics) Dialed(took time.Duration) { m.dial.Observe(took.Seconds()) }

// Drained records the time of draining.
func (m *RelayMetrics) Drained(took time.Duration) { m.drain.Observe(took.Seconds()) }

// AddReadiness adds gauges that show whether l is ready and whether the relay carries all its services.
func (m *RelayMetrics) AddReadiness(l *Listener, carrying func() bool) {
	m.MustRegister(readiness(l), gaugeCollector{prometheus.NewDesc("tailplane_relay_ready", "1 while the relay takes new connections for all of its services.", nil, nil), func() (float64, bool) {
		return map[bool]float64{true: 1}[carrying()], true
	}})
}
