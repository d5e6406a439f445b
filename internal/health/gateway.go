package health

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Gateway are what the gateway counts.
type Gateway struct {
	*prometheus.Registry

	requests *prometheus.CounterVec   // op, class
	seconds  *prometheus.HistogramVec // op
}

// NewGateway returns the metrics of a gateway of that version. unwell says of how
// many tailnets the API is left alone, because it failed too often.
func NewGateway(version, commit string, unwell func() int) *Gateway {
	m := &Gateway{
		Registry: newProcessRegistry(version, commit),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tailplane_tailnet_api_requests_total", Help: "Requests to Tailscale's API, by what was asked and what became of it."}, []string{"op", "class"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "tailplane_tailnet_api_seconds", Help: "Time of one request to Tailscale's API.", Buckets: prometheus.DefBuckets,
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100}, []string{"op"}),
	}
	open := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tailplane_tailnet_circuit_open", Help: "Tailnets whose API is left alone because it failed too often."},
		func() float64 { return float64(unwell()) })
	m.MustRegister(m.requests, m.seconds, open)
	return m
}

// Asked counts a request to Tailscale's API; op and class are from closed sets.
func (m *Gateway) Asked(op, class string, took time.Duration) {
	m.requests.WithLabelValues(op, class).Inc()
	if took > 0 {
		m.seconds.WithLabelValues(op).Observe(took.Seconds())
	}
}

// Readiness shows whether l is ready, at each scrape.
func (m *Gateway) Readiness(l *Listener) { m.MustRegister(readiness(l)) }
