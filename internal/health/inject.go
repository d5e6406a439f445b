package health

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// injectBuckets end where the API server has stopped waiting.
var injectBuckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .02, .05, .1, .5, 1, 5}

// Inject are what the injection webhook counts.
type Inject struct {
	*prometheus.Registry

	results  []string
	requests *prometheus.CounterVec // result
	seconds  prometheus.Histogram
	outdated atomic.Int64 // -1: not known
}

// NewInject returns the metrics of a webhook of that version; results are all
// that can become of a question.
func NewInject(version, commit string, results []string) *Inject {
	m := &Inject{
		Registry: newProcessRegistry(version, commit), results: results,
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tailplane_inject_requests_total", Help: "Questions of API servers, by what became of the pod."}, []string{"result"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "tailplane_inject_request_duration_seconds", Help: "Time to answer one question.", Buckets: injectBuckets,
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100}),
	}
	m.MustRegister(m.requests, m.seconds)
	m.outdated.Store(-1)
	m.MustRegister(gauge{prometheus.NewDesc("tailplane_inject_outdated_pods", "Pods whose adapter is not the one that is injected today; nothing while they are not counted.", nil, nil), func() (float64, bool) {
		n := m.outdated.Load()
		return float64(n), n >= 0
	}})
	for _, r := range results {
		m.requests.WithLabelValues(r)
	}
	return m
}

// Measure is for inject.Webhook.
func (m *Inject) Measure(result string, took time.Duration) {
	if slices.Contains(m.results, result) {
		m.requests.WithLabelValues(result).Inc()
		m.seconds.Observe(took.Seconds())
	}
}

// Outdated takes a new count; a negative one says that it is not known.
func (m *Inject) Outdated(n int) { m.outdated.Store(int64(n)) }

// Readiness shows whether l is ready, at each scrape.
func (m *Inject) Readiness(l *Listener) { m.MustRegister(readiness(l)) }
