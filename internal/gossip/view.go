package gossip

import (
	"time"

	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/gossip/endpoint"
	"github.com/tailplane/tailplane/internal/gossip/table"
)

// Rules are what a view decides by.
type Rules struct {
	Self       string // stable node id of ours
	Key        door.PublicKey
	Pins       []Pin
	PinnedOnly bool
	Allow      endpoint.Allowed
	MaxMembers int
}

// A View is what one node believes of the others: their records, whose key is
// whose, who is forgotten. It is immutable; Merge returns the next one.
type View struct {
	rules   *Rules
	entries table.Table[*Entry]
	// Trust on first use: the cluster of a node, and the key of a cluster, as the
	// node itself said over a connection on which WhoIs named it.
	nodes    table.Table[string]
	clusters table.Table[door.PublicKey]
	absent   table.Table[time.Time] // since when our tailnet does not have a node of nodes
	pinned   int                    // bytes that these three take up where they are stored
	// Records that were refused but stand for a node that we know by nothing
	// else, so that they are not asked for in every round.
	refused table.Table[Refusal]
	tombs   table.Table[Tombstone]
	moved   bool // within Merge: something has changed
}

// An Entry is one member's record and how it came.
type Entry struct {
	*Record
	// FirstHand: these bytes came from the node itself.
	FirstHand bool
	// Conflict: somebody else was here first, or there are two records of one order.
	Conflict bool
}

// A Refusal is a record that a node announced and that does not count.
type Refusal struct {
	Node    string
	Cluster string
	Order
	Reason Reason
	Detail string // what is wrong, a phrase
	At     time.Time
}

// A Tombstone keeps the records of a forgotten node from coming back.
type Tombstone struct {
	Generation uint64
	At         time.Time
	Hearsay    bool // the number was somebody else's word: it does not keep out the node's own
}

// keeps reports whether the tombstone keeps out a record of that generation.
func (t Tombstone) keeps(generation uint64, firstHand bool) bool {
	return generation <= t.Generation && !(t.Hearsay && firstHand)
}

const (
	maxTombstones = 4096
	tombstoneLife = 7 * 24 * time.Hour
	refusalLife   = time.Minute // then it is asked for once more: our netmap or settings may have changed
)

// NewView returns the view that knows nobody, with what was pinned before.
func NewView(rules Rules, m Memory) *View {
	v := &View{rules: &rules}
	v.recall(m)
	return v
}

// Find returns what is known of a node.
func (v *View) Find(node string) (*Entry, bool) { return v.entries.Get(node) }

// Len returns how many members there are, without the node itself.
func (v *View) Len() int { return v.entries.Len() }

// Forget turns members into tombstones, and drops the tombstones and refusals
// whose time has passed.
func Forget(v *View, nodes []string, now time.Time) *View {
	next := *v
	gone := map[string]bool{}
	for _, n := range nodes {
		if e, ok := v.entries.Get(n); ok {
			gone[n] = true
			next.tombs = next.tombs.With(n, Tombstone{e.Generation, now, v.weight(e) == 0})
		}
	}
	if len(gone) > 0 {
		next.entries = v.entries.Without(gone)
	}
	next.tombs = table.Expire(next.tombs, maxTombstones, func(t Tombstone) time.Time { return t.At }, now.Add(-tombstoneLife))
	next.refused = table.Expire(next.refused, v.rules.MaxMembers, func(r Refusal) time.Time { return r.At }, now.Add(-refusalLife))
	return &next
}
