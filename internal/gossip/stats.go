package gossip

import "maps"

// kind is what a message carries. The set is closed: metrics count by it.
type kind string

const (
	kindDigest kind = "digest"
	kindDelta  kind = "delta"
	kindEmpty  kind = "empty"
)

// Kinds returns the kinds of messages that Stats counts.
func Kinds() []string { return []string{string(kindDigest), string(kindDelta), string(kindEmpty)} }

// Stats are counts since the start, for whoever shows metrics.
type Stats struct {
	Rounds     uint64
	Late       uint64 // rounds so late that everybody was given a fresh start
	Failed     uint64 // exchanges that we began and that broke off
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

// Sent returns how many messages of that kind were sent.
func (s Stats) Sent(k string) uint64 { return s.Messages[kind(k)] }

// An EventKind is what an Event tells. The set is closed.
type EventKind string

// The kinds of events.
const (
	EventJoin     EventKind = "join"
	EventLeave    EventKind = "leave"
	EventDeath    EventKind = "death"
	EventPin      EventKind = "pin"
	EventUnpin    EventKind = "unpin" // what was pinned is forgotten
	EventRekey    EventKind = "rekey"
	EventConflict EventKind = "conflict"
	EventRaised   EventKind = "raised"  // our own generation
	EventRefused  EventKind = "refused" // what a peer sent did not count; summed over half a minute or so
)

// An Event is something that the audit record should hold. What happens to one
// member more often than is worth an entry each is told as a sum.
type Event struct {
	Kind    EventKind
	Node    string
	Cluster string // id, where one is concerned
	Detail  string // a phrase; of a sum, about the last
	Count   uint64 // how many it sums up; 0: it is one
}
