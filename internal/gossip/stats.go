package gossip

import "maps"

// The kinds of messages, by content. The set is closed, because metrics count by it.
const (
	kindDigest = "digest"
	kindDelta  = "delta"
	kindEmpty  = "empty"
)

// Kinds returns the kinds of messages that Stats counts.
func Kinds() []string { return []string{kindDigest, kindDelta, kindEmpty} }

// Stats are counts since the start, for metrics.
type Stats struct {
	Rounds     uint64
	Late       uint64            // rounds so late that every member got a fresh start
	Failed     uint64            // failed exchanges that this node began
	Messages   map[string]uint64 // sent, by kind
	MessagesIn uint64
	BytesIn    uint64
	BytesOut   uint64
	Rejected   map[Reason]uint64
}

func newStats() Stats { return Stats{Messages: map[string]uint64{}, Rejected: map[Reason]uint64{}} }

func (s Stats) clone() Stats {
	s.Messages, s.Rejected = maps.Clone(s.Messages), maps.Clone(s.Rejected)
	return s
}

// An EventKind is the kind of an Event. The set is closed.
type EventKind string

// The kinds of events.
const (
	EventJoin       EventKind = "join"
	EventLeave      EventKind = "leave"
	EventDeath      EventKind = "death"
	EventPin        EventKind = "pin"
	EventUnpin      EventKind = "unpin" // a pin was forgotten
	EventRekey      EventKind = "rekey"
	EventConflict   EventKind = "conflict"
	EventRaised     EventKind = "raised"     // this node's own generation
	EventRolledBack EventKind = "rolledBack" // an audit log lacks lines that it once had
	EventRefused    EventKind = "refused"    // rejected items of a peer, counted over about half a minute
)

// An Event is an entry for the audit log. Frequent events of one member are reported as a count.
type Event struct {
	Kind    EventKind
	Node    string
	Cluster string // id, if the event concerns a cluster
	Detail  string // a phrase; for a count, about the last event
	Count   uint64 // how many events it counts; 0: it is a single event
}
