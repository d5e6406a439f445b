package health

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// injectBuckets end after the API server's timeout.
var injectBuckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .02, .05, .1, .5, 1, 5}

// InjectMetrics holds the metrics of the injection webhook.
type InjectMetrics struct {
	registry
	results  []string
	requests *prometheus.CounterVec // result
	seconds  prometheus.Observer
	outdated atomic.Int64 // -1: unknown
}

// NewInjectMetrics returns the metrics of a webhook. results are all possible results of a request.
func NewInjectMetrics(version, commit string, results []string) *InjectMetrics {
	r := newProcessRegistry(version, commit)
	m := &InjectMetrics{
		registry: r, results: results,
		requests: r.counter("tailplane_inject_requests_total", "Admission reviews, by the result for the pod.", "result"),
		seconds:  r.histogram("tailplane_inject_request_duration_seconds", "Time to answer one admission review.", injectBuckets).WithLabelValues(),
	}
	m.outdated.Store(-1)
	r.gaugeFunc("tailplane_inject_outdated_pods", "Pods whose adapter differs from the currently injected one; absent while they are not counted.", func() (float64, bool) {
		n := m.outdated.Load()
		return float64(n), n >= 0
	})
	for _, result := range results {
		m.requests.WithLabelValues(result)
	}
	return m
}

// ObserveRequest records one request, for inject.Webhook.
func (m *InjectMetrics) ObserveRequest(result string, took time.Duration) {
	if slices.Contains(m.results, result) {
		m.requests.WithLabelValues(result).Inc()
		m.seconds.Observe(took.Seconds())
	}
}

// SetOutdated sets the number of outdated pods. A negative number means unknown.
func (m *InjectMetrics) SetOutdated(n int) { m.outdated.Store(int64(n)) }
