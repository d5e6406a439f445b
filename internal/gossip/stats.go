package gossip

import "maps"

// kind is the content type of a message. The set is closed, because metrics count by it.
type kind string

const (
	kindDigest kind = "digest"
	kindDelta  kind = "delta"
	kindEmpty  kind = "empty"
)

// Kinds returns the kinds of messages that Stats counts.
func Kinds() []string { return []string{string(kindDigest), string(kindDelta), string(kindEmpty)} }

// Stats are counts since the start, for metrics.
type Stats struct {
	Rounds     uint64
	Late       uint64 // rounds so late that every member got a fresh start
	Failed     uint64 // failed exchanges that this node began
	Messages   map[kind]uint64
	MessagesIn uint64
	BytesIn    uint64
	BytesOut   uint64
	Rejected   map[Reason]uint64
}

func newStats() Stats { return Stats{Messages: map[kind]uint64{}, Rejected: map[Reason]uint64{}} }

func (s Stats) clone() Stats {
	s.Messages, s.Rejected = maps.Clone(s.Messages), maps.Clone(s.Rejected)
	return s
}

// Sent returns how many messages of kind k were sent.
func (s Stats) Sent(k string) uint64 { return s.Messages[kind(k)] }

// An EventKind is the kind of an Event. The set is closed.
type EventKind string

// The kinds of events.
const (
	EventJoin     EventKind = "join"
	EventLeave    EventKind = "leave"
	EventDeath    EventKind = "death"
	EventPin      EventKind = "pin"
	EventUnpin    EventKind = "unpin" // a pin was forgotten
	EventRekey    EventKind = "rekey"
	EventConflict EventKind = "conflict"
	EventRaised   EventKind = "raised"  // this node's own generation
	EventRefused  EventKind = "refused" // rejected items of a peer, counted over about half a minute
)

// An Event is an entry for the audit log. Frequent events of one member are reported as a count.
type Event struct {
	Kind    EventKind
	Node    string
	Cluster string // id, if the event concerns a cluster
	Detail  string // a phrase; for a count, about the last event
	Count   uint64 // how many events it counts; 0: it is a single event
}
