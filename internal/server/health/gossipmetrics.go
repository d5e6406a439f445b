package health

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tailplane/tailplane/internal/gossip"
	gossiphttp "github.com/tailplane/tailplane/internal/gossip/http"
)

// mergeBuckets are in seconds.
var mergeBuckets = []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .05}

// ObserveMerge records how long merging one gossip message took.
func (m *Metrics) ObserveMerge(took time.Duration) { m.merge.Observe(took.Seconds()) }

// AddGossip adds the metrics from stats, members and meter, which are read at each scrape. No label names a node or a cluster.
func (m *Metrics) AddGossip(stats func() gossip.Stats, members func() *gossip.Members, meter *gossiphttp.Meter) {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	m.MustRegister(m.merge, gossipCollector{stats, members, meter,
		desc("tailplane_members", "Known access servers, including this one, by state.", "state"),
		desc("tailplane_gossip_rounds_total", "Rounds that were started, and rounds that were so late that the failure detector was reset for all members.", "result"),
		desc("tailplane_gossip_exchange_failures_total", "Failed exchanges that this server started."),
		desc("tailplane_gossip_messages_total", "Messages, by direction and content; the content of incoming messages is not counted.", "direction", "kind"),
		desc("tailplane_gossip_bytes_total", "Bytes of messages, without the HTTP overhead.", "direction"),
		desc("tailplane_gossip_wire_bytes_total", "Bytes on the connections of messages, including HTTP.", "direction"),
		desc("tailplane_gossip_rejected_total", "Rejected messages and parts of messages, by reason.", "reason"),
		desc("tailplane_gossip_isolated", "1 while this server receives no messages from the others; it then declares none of them dead."),
		desc("tailplane_gossip_oldest_contact_seconds", "Time since the last direct message, of the member with the longest such time."),
	})
}

type gossipCollector struct {
	stats   func() gossip.Stats
	members func() *gossip.Members
	meter   *gossiphttp.Meter

	states, rounds, failures, messages, bytes, wire, rejected, isolated, oldest *prometheus.Desc
}

func (t gossipCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{t.states, t.rounds, t.failures, t.messages, t.bytes, t.wire, t.rejected, t.isolated, t.oldest} {
		ch <- d
	}
}

func (t gossipCollector) Collect(ch chan<- prometheus.Metric) {
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	m := t.members()
	there := m.Count()
	for _, s := range gossip.States() {
		gauge(t.states, float64(there[s]), string(s))
	}
	s := t.stats()
	count(t.rounds, s.Rounds-s.Late, "ok")
	count(t.rounds, s.Late, "late")
	count(t.failures, s.Failed)
	for _, k := range gossip.Kinds() {
		count(t.messages, s.Messages[k], "out", k)
	}
	count(t.messages, s.MessagesIn, "in", "any")
	count(t.bytes, s.BytesIn, "in")
	count(t.bytes, s.BytesOut, "out")
	in, out := t.meter.Bytes()
	count(t.wire, in, "in")
	count(t.wire, out, "out")
	for _, r := range gossip.Reasons() {
		count(t.rejected, s.Rejected[r], string(r))
	}
	isolated := 0.0
	if m.Isolated {
		isolated = 1
	}
	gauge(t.isolated, isolated)
	gauge(t.oldest, m.OldestContact.Seconds())
}
