package apiproxy

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// MetricSources provide values that are read at each scrape. Each is optional; a nil source has no metric.
type MetricSources struct {
	Clusters    func() []UpstreamStatus
	Owners      func() int       // objects with a known cluster
	Certificate func() time.Time // expiry of the listener's certificate
	AuditLog    func() AuditLogStats
	Traces      func() TraceExporterStats
}

// UpstreamStatus is the health of a cluster, for metrics and the admin server.
type UpstreamStatus struct {
	Name string `json:"name"`
	Health
}

// RegisterSources registers the metrics of s.
func (m *Metrics) RegisterSources(s MetricSources) { m.MustRegister(sourceCollector{m, s}) }

// sourceCollector is a collector of the metrics of MetricSources.
type sourceCollector struct {
	m *Metrics
	s MetricSources
}

var (
	healthyDesc = newDesc(
		"mca_cluster_healthy",
		"1 while a cluster receives requests; 0 while it is unhealthy and its requests are answered with 503.",
		"cluster",
	)
	ownersDesc      = newDesc("mca_owner_entries", "Objects with a known cluster.")
	certificateDesc = newDesc("mca_certificate_expiry_timestamp_seconds", "Expiry time of the certificate that applications see.")
	entriesDesc     = newDesc("mca_audit_entries_total", "Lines of the audit log, by result.", "result")
	auditUpDesc     = newDesc("mca_audit_up", "1 while the audit log can be written.")
	spansDesc       = newDesc("mca_trace_spans_total", "Spans of traces, by result.", "result")
)

func newDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// Describe implements [prometheus.Collector].
func (c sourceCollector) Describe(ch chan<- *prometheus.Desc) {
	all := []*prometheus.Desc{healthyDesc, ownersDesc, certificateDesc, spansDesc}
	if c.s.AuditLog != nil {
		all = append(all, entriesDesc, auditUpDesc)
	}
	for _, d := range all {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (c sourceCollector) Collect(ch chan<- prometheus.Metric) {
	count := func(d *prometheus.Desc, n int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	served := c.m.known.Load().clusters
	for _, state := range c.s.Clusters() {
		if slices.Contains(served, state.Name) { // only clusters of the configuration
			gauge(healthyDesc, boolValue(state.State != StateUnhealthy), state.Name)
		}
	}
	gauge(ownersDesc, float64(c.s.Owners()))
	gauge(certificateDesc, float64(c.s.Certificate().Unix()))
	if c.s.AuditLog != nil {
		s := c.s.AuditLog()
		count(entriesDesc, s.Written, "written")
		count(entriesDesc, s.Lost, "lost")
		gauge(auditUpDesc, boolValue(s.Up))
	}
	spans := c.s.Traces()
	count(spansDesc, spans.Sent, "sent")
	count(spansDesc, spans.Dropped, "dropped")
	count(spansDesc, spans.Failed, "failed")
}

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
