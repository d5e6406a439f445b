package observe

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tailplane/tailplane/internal/apiproxy/observe/otlpjson"
	"github.com/tailplane/tailplane/internal/apiproxy/observe/record"
)

// Sources provide values that are read at each scrape. Each is optional; a nil source has no metric.
type Sources struct {
	Clusters    func() []ClusterState
	Owners      func() int       // objects with a known cluster
	Certificate func() time.Time // expiry of the listener's certificate
	Record      func() record.Stats
	Traces      func() TraceStats
}

// TraceStats are counters of spans.
type TraceStats = otlpjson.Stats

// ClusterState is the health of a cluster, for metrics and the admin server.
type ClusterState struct {
	Name      string    `json:"name"`
	State     string    `json:"state"` // healthy, degraded, unhealthy, unknown
	Since     time.Time `json:"since"`
	LastError string    `json:"lastError,omitempty"`
	Success   float64   `json:"success"` // success rate of the requests of the last minute, 0 to 1; 1 if there were none
}

// Unhealthy is the state of a cluster that receives no requests.
const Unhealthy = "unhealthy"

// Ask registers the metrics of s.
func (m *Metrics) Ask(s Sources) { m.MustRegister(scrape{m, s}) }

// scrape is a collector of the metrics of Sources.
type scrape struct {
	m *Metrics
	s Sources
}

var (
	healthyDesc     = desc("mca_cluster_healthy", "1 while a cluster is asked; 0 while it is unhealthy and requests for it are answered with 503.", "cluster")
	ownersDesc      = desc("mca_owner_entries", "Objects whose cluster is known.")
	certificateDesc = desc("mca_certificate_expiry_timestamp_seconds", "When the certificate that applications see ends.")
	entriesDesc     = desc("mca_audit_entries_total", "Lines of the audit record, by what became of them.", "result")
	auditUpDesc     = desc("mca_audit_up", "1 while lines reach the audit record.")
	spansDesc       = desc("mca_trace_spans_total", "Spans of traces, by what became of them.", "result")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// Describe implements [prometheus.Collector].
func (c scrape) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []struct {
		asked bool
		desc  []*prometheus.Desc
	}{
		{c.s.Clusters != nil, []*prometheus.Desc{healthyDesc}},
		{c.s.Owners != nil, []*prometheus.Desc{ownersDesc}},
		{c.s.Certificate != nil, []*prometheus.Desc{certificateDesc}},
		{c.s.Record != nil, []*prometheus.Desc{entriesDesc, auditUpDesc}},
		{c.s.Traces != nil, []*prometheus.Desc{spansDesc}},
	} {
		if d.asked {
			for _, one := range d.desc {
				ch <- one
			}
		}
	}
}

// Collect implements [prometheus.Collector].
func (c scrape) Collect(ch chan<- prometheus.Metric) {
	count := func(d *prometheus.Desc, n int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	if c.s.Clusters != nil {
		served := c.m.document.Load().clusters
		for _, state := range c.s.Clusters() {
			if slices.Contains(served, state.Name) { // only clusters of the configuration
				gauge(healthyDesc, truth(state.State != Unhealthy), state.Name)
			}
		}
	}
	if c.s.Owners != nil {
		gauge(ownersDesc, float64(c.s.Owners()))
	}
	if c.s.Certificate != nil {
		gauge(certificateDesc, float64(c.s.Certificate().Unix()))
	}
	if c.s.Record != nil {
		s := c.s.Record()
		count(entriesDesc, s.Written, "written")
		count(entriesDesc, s.Lost, "lost")
		gauge(auditUpDesc, truth(s.Up))
	}
	if c.s.Traces != nil {
		s := c.s.Traces()
		count(spansDesc, s.Sent, "sent")
		count(spansDesc, s.Dropped, "dropped")
		count(spansDesc, s.Failed, "failed")
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
