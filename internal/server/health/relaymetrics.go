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
	registry
	connections *prometheus.CounterVec // direction, protocol, result
	bytes       *prometheus.CounterVec // direction
	open        prometheus.Gauge
	dial        prometheus.Observer
	drain       prometheus.Histogram
}

// NewRelayMetrics returns the metrics of a relay.
func NewRelayMetrics(version, commit string) *RelayMetrics {
	r := newProcessRegistry(version, commit)
	m := &RelayMetrics{
		registry:    r,
		connections: r.counter("tailplane_relay_connections_total", "Connections and UDP flows, by result.", "direction", "protocol", "result"),
		bytes:       r.counter("tailplane_relay_bytes_total", "Bytes to the tailnet (out) and from it (in); counted when a connection ends.", "direction"),
		open:        r.gauge("tailplane_relay_open_connections", "Open TCP connections.").WithLabelValues(),
		dial:        r.histogram("tailplane_relay_dial_seconds", "Time to connect to a target or a backend, or to fail.", dialBuckets).WithLabelValues(),
		drain:       prometheus.NewHistogram(prometheus.HistogramOpts{Name: "tailplane_relay_drain_seconds", Help: "Time from the start of a drain until no connection was open.", Buckets: drainBuckets}),
	}
	m.MustRegister(m.drain)
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

// AddRelay adds a gauge that shows whether the relay carries all its services.
func (m *RelayMetrics) AddRelay(carrying func() bool) {
	m.gaugeFunc("tailplane_relay_ready", "1 while the relay takes new connections for all of its services.", func() (float64, bool) {
		return number(carrying()), true
	})
}
