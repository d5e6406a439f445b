package health

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tailplane/tailplane/internal/accessproxy"
	"github.com/tailplane/tailplane/internal/problem"
)

// ProxyMetrics holds the metrics of the access proxy.
type ProxyMetrics struct {
	requests *prometheus.CounterVec   // verb, code
	seconds  *prometheus.HistogramVec // verb
	bytes    prometheus.Counter
	cuts     *prometheus.CounterVec // kind, cause
	refusals *prometheus.CounterVec // reason
}

// proxyVerbs are the values of the label verb.
var proxyVerbs = []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "nonresource"}

// AddProxy adds the metrics of the access proxy. kinds returns the kind of each open stream; it runs at each scrape.
func (m *Metrics) AddProxy(kinds func() []string) *ProxyMetrics {
	m.collect(func(emit emitter) {
		open := map[string]int{}
		for _, k := range kinds() {
			open[k]++
		}
		for _, k := range accessproxy.StreamKinds() {
			emit("tailplane_proxy_streams", float64(open[k]), k)
		}
	}, metric{"tailplane_proxy_streams", "Open streams through the access proxy, by kind.", []string{"kind"}})
	p := &ProxyMetrics{
		requests: m.counter("tailplane_proxy_requests_total", "Requests through the access proxy, by verb and class of the response status.", "verb", "code"),
		seconds:  m.histogram("tailplane_proxy_request_seconds", "Time from the first to the last byte of requests that are not streams.", requestBuckets, "verb"),
		bytes:    m.counter("tailplane_proxy_response_bytes_total", "Bytes of responses, without headers.").WithLabelValues(),
		cuts:     m.counter("tailplane_proxy_cuts_total", "Streams that the access proxy ended, by kind and cause.", "kind", "cause"),
		refusals: m.counter("tailplane_proxy_refusals_total", "Requests that the access proxy refused before the API server received them, by the code in the response.", "reason"),
	}
	for _, c := range problem.Codes() {
		p.refusals.WithLabelValues(string(c))
	}
	return p
}

// Measure records the end of a request.
func (p *ProxyMetrics) Measure(o accessproxy.Outcome) {
	verb := o.Verb
	if !slices.Contains(proxyVerbs, verb) {
		verb = unknown
	}
	p.requests.WithLabelValues(verb, statusClass(o.Status)).Inc()
	p.bytes.Add(float64(o.Bytes))
	if o.Stream == "" {
		p.seconds.WithLabelValues(verb).Observe(o.Took.Seconds())
	}
	if o.Code != "" && slices.Contains(problem.Codes(), problem.Code(o.Code)) {
		p.refusals.WithLabelValues(o.Code).Inc()
	}
	if o.Cut != "" && slices.Contains(accessproxy.StreamKinds(), o.Stream) {
		p.cuts.WithLabelValues(o.Stream, o.Cut).Inc()
	}
}
