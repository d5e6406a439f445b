// Package gossip finds out which clusters are out there, and how sure we are:
// the access servers of many clusters tell each other about themselves, peer to
// peer, by scuttlebutt anti-entropy. It keeps law 5: nothing that a member says
// gives anybody a credential; a record only tells a person's tka where to knock.
//
//	        heartbeat and digest
//	A ------------------------------> B    what A knows, as numbers
//	                                       (and A's record, when A has not met B yet)
//	A <------------------------------ B    what B knows better, and the records that A lacks
//	A ------------------------------> B    the records that B lacks, if there are any
//
// Decisions are pure: Open says what a record is, Merge what becomes of it, the
// detector who is alive. Only Node.Run has goroutines and a network.
package gossip

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/gossip/endpoint"
)

// An Order numbers what one node has said about itself; the greater one wins.
// It is compared with orders of the same node only, and never with a clock.
type Order struct {
	Generation uint64 // grows at each start; below 2^53
	Version    uint64 // grows at each change; from 1, below 2^31
}

const (
	maxGeneration = 1<<53 - 1
	maxVersion    = 1<<31 - 1
)

// Compare is -1 when o is the older one.
func (o Order) Compare(p Order) int {
	return cmp.Or(cmp.Compare(o.Generation, p.Generation), cmp.Compare(o.Version, p.Version))
}

// A Reason is why something that a peer sent did not count. The set is closed:
// metrics count by it.
type Reason string

// The reasons.
const (
	Malformed    Reason = "malformed"    // it cannot be read, or breaks a limit
	Signature    Reason = "signature"    // the signature does not fit
	Binding      Reason = "binding"      // another node's or another cluster's; or of a node that our tailnet does not have
	Endpoint     Reason = "endpoint"     // an address that the node may not announce
	Tag          Reason = "tag"          // a caller that is no member: without a required tag, shared in, expired
	Old          Reason = "old"          // we know a later one
	Buried       Reason = "tombstone"    // of a node that was forgotten
	Size         Reason = "size"         // no room for more members
	Rate         Reason = "rate"         // too many requests, or from a peer that is backed off
	Equivocation Reason = "equivocation" // two records of one order
	Heartbeat    Reason = "heartbeat"    // a number that cannot be
	Network      Reason = "network"      // of another gossip network
)

// Reasons returns every reason.
func Reasons() []Reason {
	return []Reason{Malformed, Signature, Binding, Endpoint, Tag, Old, Buried, Size, Rate, Equivocation, Heartbeat, Network}
}

// Settings say how a node gossips. The zero value of a field is its default.
type Settings struct {
	Network         string           // name of the gossip network
	Interval        time.Duration    // between rounds
	Fanout          int              // peers asked in each round
	Seeds           []string         // host names of nodes to ask first
	PinnedOnly      bool             // no cluster counts but those of Pins
	Pins            []Pin            // keys of clusters, before anything that was met
	Allow           endpoint.Allowed // addresses that records may name though they are private
	MaxMembers      int
	MaxMessageBytes int           // of a message with records that we send
	ForgetAfter     time.Duration // a dead member's time in the list
}

// A Pin says by which key a cluster is known.
type Pin struct {
	Cluster string // id
	Key     door.PublicKey
}

// WithDefaults returns s complete, or says what of it cannot be. How far it should
// go is for whoever reads settings of people.
func (s Settings) WithDefaults() (Settings, error) {
	s.Network = cmp.Or(s.Network, "default")
	s.Interval = cmp.Or(s.Interval, 300*time.Millisecond)
	s.Fanout = cmp.Or(s.Fanout, 3)
	s.MaxMembers = cmp.Or(s.MaxMembers, 2048)
	s.MaxMessageBytes = cmp.Or(s.MaxMessageBytes, 16<<10)
	s.ForgetAfter = cmp.Or(s.ForgetAfter, 24*time.Hour)
	switch {
	case !endpoint.IsLabel(s.Network):
		return s, fmt.Errorf("network: %q is not a DNS label", s.Network)
	case s.Interval < 0, s.Fanout < 0, s.MaxMembers < 0, s.ForgetAfter < 0:
		return s, errors.New("interval, fanout, maxMembers or forgetAfter is negative")
	case s.MaxMessageBytes < 12<<10 || s.MaxMessageBytes > MaxMessage: // the largest record must fit beside the longest digest
		return s, fmt.Errorf("maxMessageBytes: %d is not between 12288 and 65536", s.MaxMessageBytes)
	}
	for _, p := range s.Pins {
		if !clusterID.MatchString(p.Cluster) || p.Key.IsZero() {
			return s, fmt.Errorf("pins: %q with the key %q is not a pin", p.Cluster, p.Key)
		}
	}
	return s, nil
}

// A Peer is a node of our tailnet that carries a required tag, as our own
// netmap has it.
type Peer struct {
	ID    string // stable node id
	Name  string // fully qualified, in lower case, without the final dot
	Addrs []netip.Addr
}

// A Netmap is the peers of our tailnet at one moment. It is immutable; the nil
// Netmap has none.
type Netmap struct {
	peers []Peer // sorted by id
	byID  map[string]int
}

// NewNetmap returns the netmap of peers.
func NewNetmap(peers []Peer) *Netmap {
	m := &Netmap{peers: slices.Clone(peers), byID: make(map[string]int, len(peers))}
	slices.SortFunc(m.peers, func(a, b Peer) int { return strings.Compare(a.ID, b.ID) })
	for i, p := range m.peers {
		m.byID[p.ID] = i
	}
	return m
}

// Find returns the peer of that id.
func (m *Netmap) Find(id string) (Peer, bool) {
	if m == nil {
		return Peer{}, false
	}
	i, ok := m.byID[id]
	if !ok {
		return Peer{}, false
	}
	return m.peers[i], true
}

// Len returns how many peers there are.
func (m *Netmap) Len() int {
	if m == nil {
		return 0
	}
	return len(m.peers)
}
