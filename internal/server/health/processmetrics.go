package health

import (
	"context"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// A registry creates and registers the metrics of a process.
type registry struct{ *prometheus.Registry }

// newRegistry returns a registry with the build information.
func newRegistry(version, commit string) registry {
	r := registry{prometheus.NewRegistry()}
	r.gauge("tailplane_build_info", "1; the labels describe the running program.", "version", "commit").WithLabelValues(version, commit).Set(1)
	return r
}

// newProcessRegistry returns a registry that also has the metrics of the Go runtime and the process.
func newProcessRegistry(version, commit string) registry {
	r := newRegistry(version, commit)
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

func (r registry) counter(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	r.MustRegister(c)
	return c
}

func (r registry) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	r.MustRegister(g)
	return g
}

func (r registry) histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets, NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100}, labels)
	r.MustRegister(h)
	return h
}

// gaugeFunc adds a gauge that is read at each scrape. There is no sample while read returns false.
func (r registry) gaugeFunc(name, help string, read func() (float64, bool)) {
	r.collect(func(emit emitter) {
		if v, ok := read(); ok {
			emit(name, v)
		}
	}, metric{name: name, help: help})
}

// countFunc adds a gauge of a number that is read at each scrape.
func (r registry) countFunc(name, help string, read func() int) {
	r.gaugeFunc(name, help, func() (float64, bool) { return float64(read()), true })
}

// AddReadiness adds a gauge that shows whether l is ready.
func (r registry) AddReadiness(l *Listener) {
	r.gaugeFunc("tailplane_ready", "1 while every check of /readyz passes.", func() (float64, bool) {
		return number(l.Ready(context.Background())), true
	})
}

// A metric describes a metric that is read at each scrape. The name of a counter ends with _total; other metrics are gauges.
type metric struct {
	name, help string
	labels     []string
}

// An emitter adds a sample of a metric to a scrape.
type emitter func(name string, value float64, labels ...string)

// collect adds metrics that read emits at each scrape.
func (r registry) collect(read func(emitter), metrics ...metric) {
	c := collector{map[string]*prometheus.Desc{}, read}
	for _, m := range metrics {
		c.descs[m.name] = prometheus.NewDesc(m.name, m.help, m.labels, nil)
	}
	r.MustRegister(c)
}

// A collector implements [prometheus.Collector].
type collector struct {
	descs map[string]*prometheus.Desc // by name
	read  func(emitter)
}

func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	c.read(func(name string, value float64, labels ...string) {
		kind := prometheus.GaugeValue
		if strings.HasSuffix(name, "_total") {
			kind = prometheus.CounterValue
		}
		ch <- prometheus.MustNewConstMetric(c.descs[name], kind, value, labels...)
	})
}

// number returns 1 for true and 0 for false.
func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
