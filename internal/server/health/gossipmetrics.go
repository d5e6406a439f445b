package health

import (
	"time"

	"github.com/tailplane/tailplane/internal/gossip"
	gossiphttp "github.com/tailplane/tailplane/internal/gossip/http"
)

// mergeBuckets are in seconds.
var mergeBuckets = []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .05}

// ObserveMerge records how long merging one gossip message took. AddGossip must be called before.
func (m *Metrics) ObserveMerge(took time.Duration) { m.merge.Observe(took.Seconds()) }

// AddGossip adds the metrics from stats, members and meter, which are read at each scrape. No label names a node or a cluster.
func (m *Metrics) AddGossip(stats func() gossip.Stats, members func() *gossip.Members, meter *gossiphttp.Meter) {
	m.merge = m.histogram("tailplane_gossip_merge_seconds", "Time to merge one gossip message.", mergeBuckets).WithLabelValues()
	m.collect(func(emit emitter) {
		known := members()
		byState := known.Count()
		for _, s := range gossip.States() {
			emit("tailplane_members", float64(byState[s]), string(s))
		}
		s := stats()
		emit("tailplane_gossip_rounds_total", float64(s.Rounds-s.Late), "ok")
		emit("tailplane_gossip_rounds_total", float64(s.Late), "late")
		emit("tailplane_gossip_exchange_failures_total", float64(s.Failed))
		for _, k := range gossip.Kinds() {
			emit("tailplane_gossip_messages_total", float64(s.Messages[k]), "out", k)
		}
		emit("tailplane_gossip_messages_total", float64(s.MessagesIn), "in", "any")
		emit("tailplane_gossip_bytes_total", float64(s.BytesIn), "in")
		emit("tailplane_gossip_bytes_total", float64(s.BytesOut), "out")
		in, out := meter.Bytes()
		emit("tailplane_gossip_wire_bytes_total", float64(in), "in")
		emit("tailplane_gossip_wire_bytes_total", float64(out), "out")
		for _, r := range gossip.Reasons() {
			emit("tailplane_gossip_rejected_total", float64(s.Rejected[r]), string(r))
		}
		emit("tailplane_gossip_rolled_back", float64(known.RolledBack()))
		emit("tailplane_gossip_isolated", number(known.Isolated))
		emit("tailplane_gossip_oldest_contact_seconds", known.OldestContact.Seconds())
	},
		metric{"tailplane_members", "Known access servers, including this one, by state.", []string{"state"}},
		metric{"tailplane_gossip_rounds_total", "Rounds that were started, and rounds that were so late that the failure detector was reset for all members.", []string{"result"}},
		metric{"tailplane_gossip_exchange_failures_total", "Failed exchanges that this server started.", nil},
		metric{"tailplane_gossip_messages_total", "Messages, by direction and content; the content of incoming messages is not counted.", []string{"direction", "kind"}},
		metric{"tailplane_gossip_bytes_total", "Bytes of messages, without the HTTP overhead.", []string{"direction"}},
		metric{"tailplane_gossip_wire_bytes_total", "Bytes on the connections of messages, including HTTP.", []string{"direction"}},
		metric{"tailplane_gossip_rejected_total", "Rejected messages and parts of messages, by reason.", []string{"reason"}},
		metric{"tailplane_gossip_rolled_back", "Clusters with an audit log that lacks lines which it once had, including this cluster.", nil},
		metric{"tailplane_gossip_isolated", "1 while this server receives no messages from the others; it then declares none of them dead.", nil},
		metric{"tailplane_gossip_oldest_contact_seconds", "Time since the last direct message, of the member with the longest such time.", nil},
	)
}
