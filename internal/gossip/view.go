package gossip

import (
	"time"

	"github.com/tailplane/tailplane/internal/httpapi"
)

// Rules configure the decisions of a view.
type Rules struct {
	Self string // stable node id of this server
	Key  httpapi.PublicKey
	Settings
}

// A View is what one node believes about the others: their records, the keys of clusters and the forgotten nodes. It is immutable; Merge
// returns the next one.
type View struct {
	rules   *Rules
	entries sortedMap[*Entry]
	// Trust on first use: nodes maps a node to its cluster, and clusters maps a cluster to its key. Each pin comes from the node itself,
	// over a connection on which WhoIs identified it.
	nodes    sortedMap[string]
	clusters sortedMap[httpapi.PublicKey]
	proxies  sortedMap[string]    // host names of access proxies by cluster
	absent   sortedMap[time.Time] // since when our tailnet does not have a node of nodes
	pinned   int                  // stored size of these four, in bytes
	// refused holds the refused records of nodes that have no other record here, so that this node does not request them in every round.
	refused sortedMap[Refusal]
	tombs   sortedMap[Tombstone]
	prevKey httpapi.PublicKey // of our cluster, before its last rotation; zero: none
	moved   bool              // Merge has changed something
}

// An Entry is one member's record and its origin.
type Entry struct {
	*Record
	// FirstHand reports whether the node itself sent these bytes.
	FirstHand bool
	// Conflict reports that another node or key claimed the same identity first, or that two records have one order.
	Conflict bool
	Proxied  bool     // people reach the API server only through the proxy
	Witness  *Witness // nil: the member has stated nothing about audit logs
}

// A Refusal is a record that this node received and rejected.
type Refusal struct {
	Node    string
	Cluster string
	Order
	Reason Reason
	Detail string // a phrase with the reason
	At     time.Time
}

// A Tombstone keeps out the old records of a forgotten node. If the node lives, it gets its buried record back and raises its generation
// above it.
type Tombstone struct {
	Generation uint64
	At         time.Time
	Hearsay    bool   // the generation came from another node, so the tombstone does not keep out records from the node itself
	Record     Signed // the buried record; empty if Hearsay
	Witness    *Witness
}

// rejects reports whether the tombstone keeps out a record of that generation.
func (t Tombstone) rejects(generation uint64, firstHand bool) bool {
	return generation <= t.Generation && !(t.Hearsay && firstHand)
}

const (
	maxTombstones = 4096
	tombstoneLife = 7 * 24 * time.Hour
	refusalLife   = time.Minute // then it is requested again: our netmap or settings may have changed
)

// NewView returns a view without members, with the pins of m.
func NewView(rules Rules, m Memory) *View {
	v := &View{rules: &rules}
	v.restore(m)
	return v
}

// Forget turns members into tombstones, and drops expired tombstones and refusals.
func Forget(v *View, nodes []string, now time.Time) *View {
	next := *v
	for _, n := range nodes {
		if e, ok := v.entries.Get(n); ok {
			t := Tombstone{Generation: e.Generation, At: now, Hearsay: v.weight(e) == 0}
			if !t.Hearsay {
				t.Record, t.Witness = e.Signed, e.Witness
			}
			next.tombs = next.tombs.With(n, t)
		}
	}
	next.entries = v.entries.Without(nodes...)
	next.tombs = expireEntries(next.tombs, maxTombstones, func(t Tombstone) time.Time { return t.At }, now.Add(-tombstoneLife))
	next.refused = expireEntries(next.refused, v.rules.MaxMembers, func(r Refusal) time.Time { return r.At }, now.Add(-refusalLife))
	return &next
}
