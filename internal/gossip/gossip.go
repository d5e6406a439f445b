// Package gossip discovers the clusters of the tailnet and tracks their liveness. The access servers of many clusters exchange records
// about themselves, peer to peer, by scuttlebutt anti-entropy. The package keeps law 5: no gossip message grants a credential. A record
// only gives a person's tka the address of a cluster.
//
//	        heartbeat and digest
//	A ------------------------------> B    the knowledge of A, as numbers
//	                                       (and A's record, when A has not met B yet)
//	A <------------------------------ B    newer knowledge of B, and the records that A lacks
//	A ------------------------------> B    the records that B lacks, if there are any
//
// Decisions are pure: Open parses and verifies a record, Merge applies it, and the detector decides which members are alive. Only Node.Run
// has goroutines and a network.
package gossip

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/httpapi"
)

// An Order numbers the records of one node; the greater order wins. It is comparable only with orders of the same node, and never with a
// clock.
type Order struct {
	Generation uint64 // increases at each start; below 2^53
	Version    uint64 // increases at each change; from 1, below 2^31
}

const (
	maxGeneration = 1<<53 - 1
	maxVersion    = 1<<31 - 1
	maxPrevKey    = maxGeneration / 2 // for records by our previous key, whose holder must not be able to use up all generations
)

// Compare returns -1 when o is older than p, 0 when they are equal and 1 when o is newer.
func (o Order) Compare(p Order) int {
	return cmp.Or(cmp.Compare(o.Generation, p.Generation), cmp.Compare(o.Version, p.Version))
}

// A Reason is why the engine rejected something that a peer sent. The set is closed, because metrics count by it.
type Reason string

// The reasons.
const (
	Malformed    Reason = "malformed"    // cannot be decoded, or exceeds a limit
	Signature    Reason = "signature"    // the signature does not verify
	Binding      Reason = "binding"      // belongs to another node or cluster, or to a node that our tailnet does not have
	Endpoint     Reason = "endpoint"     // an address that the node may not announce
	Tag          Reason = "tag"          // the caller is no member: it lacks a required tag, is shared in or has expired
	Old          Reason = "old"          // a later record is known
	Buried       Reason = "tombstone"    // of a node that was forgotten
	Size         Reason = "size"         // no room for more members
	Rate         Reason = "rate"         // too many requests, or the peer is backed off
	Equivocation Reason = "equivocation" // two different records have the same order
	Heartbeat    Reason = "heartbeat"    // an implausible heartbeat
	Network      Reason = "network"      // of another gossip network
)

// Reasons returns every reason.
func Reasons() []Reason {
	return []Reason{Malformed, Signature, Binding, Endpoint, Tag, Old, Buried, Size, Rate, Equivocation, Heartbeat, Network}
}

// Settings configure how a node gossips. The zero value of a field means its default.
type Settings struct {
	Network          string           // name of the gossip network
	Interval         time.Duration    // between rounds
	Fanout           int              // peers queried in each round
	Seeds            []string         // host names of the nodes to query first
	PinnedOnly       bool             // trust only the clusters in Pins
	Pins             []Pin            // keys of clusters; they override keys learned at first contact
	AllowedEndpoints AllowedEndpoints // private addresses that records may announce nevertheless
	MaxMembers       int
	MaxMessageBytes  int           // limit for a message with records that this node sends
	ForgetAfter      time.Duration // how long a dead member stays in the list
}

// A Pin binds a cluster to its key.
type Pin struct {
	Cluster string // id
	Key     httpapi.PublicKey
}

// WithDefaults returns s with defaults filled in, or an error for an impossible value. The code that parses the settings checks reasonable
// ranges.
func (s Settings) WithDefaults() (Settings, error) {
	s.Network = cmp.Or(s.Network, "default")
	s.Interval = cmp.Or(s.Interval, 300*time.Millisecond)
	s.Fanout = cmp.Or(s.Fanout, 3)
	s.MaxMembers = cmp.Or(s.MaxMembers, 2048)
	s.MaxMessageBytes = cmp.Or(s.MaxMessageBytes, 16<<10)
	s.ForgetAfter = cmp.Or(s.ForgetAfter, 24*time.Hour)
	switch {
	case !isDNSLabel(s.Network):
		return s, fmt.Errorf("network: %q is not a DNS label", s.Network)
	case s.Interval < 0, s.Fanout < 0, s.MaxMembers < 0, s.ForgetAfter < 0:
		return s, errors.New("interval, fanout, maxMembers and forgetAfter must not be negative")
	case s.MaxMessageBytes < 12<<10 || s.MaxMessageBytes > MaxMessage: // the largest record must fit together with the longest digest
		return s, fmt.Errorf("maxMessageBytes: %d is not between 12288 and 65536", s.MaxMessageBytes)
	}
	for _, p := range s.Pins {
		if !clusterID.MatchString(p.Cluster) || p.Key.IsZero() {
			return s, fmt.Errorf("pins: %q with the key %q is not a pin", p.Cluster, p.Key)
		}
	}
	return s, nil
}

// A Peer is a node of our tailnet that carries a required tag, as this node's netmap describes it.
type Peer struct {
	ID    string // stable node id
	Name  string // fully qualified, in lower case, without the final dot
	Addrs []netip.Addr
}

// A Netmap is the set of peers of our tailnet at one moment. It is immutable. The nil Netmap is empty.
type Netmap struct {
	peers []Peer // sorted by id
	byID  map[string]Peer
}

// NewNetmap returns a netmap of peers.
func NewNetmap(peers []Peer) *Netmap {
	m := &Netmap{peers: slices.Clone(peers), byID: make(map[string]Peer, len(peers))}
	slices.SortFunc(m.peers, func(a, b Peer) int { return strings.Compare(a.ID, b.ID) })
	for _, p := range m.peers {
		m.byID[p.ID] = p
	}
	return m
}

// Find returns the peer with that id.
func (m *Netmap) Find(id string) (Peer, bool) {
	if m == nil {
		return Peer{}, false
	}
	p, ok := m.byID[id]
	return p, ok
}

// Len returns the number of peers.
func (m *Netmap) Len() int {
	if m == nil {
		return 0
	}
	return len(m.peers)
}
