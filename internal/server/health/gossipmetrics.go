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
		desc("tailplane_members", "Access servers that are known of, this one included, by state.", "state"),
		desc("tailplane_gossip_rounds_total", "Rounds that were begun, and those among them that came so late that everybody got a fresh start.", "result"),
		desc("tailplane_gossip_exchange_failures_total", "Exchanges that this server began and that broke off."),
		desc("tailplane_gossip_messages_total", "Messages, by direction and what they carry; of those that came in that is not counted.", "direction", "kind"),
		desc("tailplane_gossip_bytes_total", "Bytes of messages, without what HTTP adds.", "direction"),
		desc("tailplane_gossip_wire_bytes_total", "Bytes of the connections that messages go over, HTTP included.", "direction"),
		desc("tailplane_gossip_rejected_total", "Messages and parts of messages that did not count, by reason.", "reason"),
		desc("tailplane_gossip_isolated", "1 while this server hears none of the others, and so calls none of them dead."),
		desc("tailplane_gossip_oldest_contact_seconds", "How long ago that member was heard that has not been heard itself for longest."),
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
		count(t.messages, s.Sent(k), "out", k)
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
