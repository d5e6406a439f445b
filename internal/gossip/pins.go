package gossip

import (
	"crypto/ed25519"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/door"
)

// How long a pin outlives the node that it is about, counted from when our
// tailnet had that node no more: node ids are not given out twice, so it protects
// nobody then. With the last node of a cluster its key is forgotten, and that is
// trust: it takes longer.
const (
	nodePinLife    = 7 * 24 * time.Hour
	clusterPinLife = 90 * 24 * time.Hour
	crowdedPinLife = 24 * time.Hour // for both, when room gets short
)

// maxPinned bounds what pins take up where they are stored, which is an object of
// at most a MiB that others of our cluster write too. When half is used, room is short.
const maxPinned = 768 << 10

// A Memory is what a restart must not forget. Its JSON form is stored.
type Memory struct {
	Generation uint64                    `json:"generation"` // the greatest that we ever had
	Clusters   map[string]door.PublicKey `json:"clusters"`   // keys by cluster id
	Nodes      map[string]string         `json:"nodes"`      // cluster ids by node
	Absent     map[string]int64          `json:"absent"`     // by node of Nodes: since when our tailnet does not have it, in Unix seconds
}

func (v *View) memory(generation uint64) Memory {
	m := Memory{Generation: generation, Clusters: map[string]door.PublicKey{}, Nodes: map[string]string{}, Absent: map[string]int64{}}
	for id, key := range v.clusters.All() {
		m.Clusters[id] = key
	}
	for node, id := range v.nodes.All() {
		m.Nodes[node] = id
	}
	for node, since := range v.absent.All() {
		m.Absent[node] = since.Unix()
	}
	return m
}

// recall takes in what was remembered.
func (v *View) recall(m Memory) {
	for id, key := range m.Clusters {
		v.trust(id, key)
	}
	for node, id := range m.Nodes {
		v.bind(node, id)
		if since, ok := m.Absent[node]; ok {
			v.absent = v.absent.With(node, time.Unix(since, 0))
		}
	}
}

// Sizes where it is stored, with room for a time of absence.
func nodePin(node, cluster string) int { return 2*len(node) + len(cluster) + 24 }
func clusterPin(cluster string) int    { return len(cluster) + 60 }

// bind pins a node to a cluster.
func (v *View) bind(node, cluster string) {
	if before, ok := v.nodes.Get(node); ok {
		v.pinned -= nodePin(node, before)
	}
	v.pinned += nodePin(node, cluster)
	v.nodes = v.nodes.With(node, cluster)
	v.moved = true
}

// trust pins a cluster to a key.
func (v *View) trust(cluster string, key door.PublicKey) {
	if _, ok := v.clusters.Get(cluster); !ok {
		v.pinned += clusterPin(cluster)
	}
	v.clusters = v.clusters.With(cluster, key)
	v.moved = true
}

// Prune notes which pinned nodes our tailnet does not have any more, and forgets
// those that it has not had for long, which it returns. A netmap without anybody
// says nothing. Like Merge it is pure.
func Prune(v *View, m *Netmap, now time.Time) (*View, []string) {
	if m.Len() == 0 {
		return v, nil
	}
	type missing struct {
		node  string
		since time.Time
	}
	next, back := *v, map[string]bool{}
	nodes := map[string]int{} // of each cluster
	var away []missing
	for node, cluster := range v.nodes.All() {
		nodes[cluster]++
		_, here := m.Find(node)
		since, was := v.absent.Get(node)
		switch {
		case here || node == v.rules.Self:
			if was {
				back[node] = true
			}
			continue
		case !was || since.After(now): // clocks are set back
			since = now
			next.absent = next.absent.With(node, now)
		}
		away = append(away, missing{node, since})
	}
	slices.SortFunc(away, func(a, b missing) int {
		if c := a.since.Compare(b.since); c != 0 {
			return c
		}
		return strings.Compare(a.node, b.node)
	})
	var dropped []string
	gone, keys := map[string]bool{}, map[string]bool{}
	for _, x := range away {
		cluster, _ := v.nodes.Get(x.node)
		life := nodePinLife
		if nodes[cluster] == 1 {
			life = clusterPinLife
		}
		if next.crowded() {
			life = crowdedPinLife
		}
		if now.Sub(x.since) <= life {
			continue
		}
		gone[x.node], back[x.node] = true, true
		dropped = append(dropped, x.node)
		next.pinned -= nodePin(x.node, cluster)
		if nodes[cluster]--; nodes[cluster] == 0 {
			keys[cluster] = true
			next.pinned -= clusterPin(cluster)
		}
	}
	if next.crowded() { // of clusters whose nodes an administrator has taken out
		for cluster := range v.clusters.All() {
			if nodes[cluster] == 0 && !keys[cluster] {
				keys[cluster] = true
				next.pinned -= clusterPin(cluster)
			}
		}
	}
	if len(back) > 0 {
		next.absent = next.absent.Without(back)
	}
	if len(gone) > 0 {
		next.nodes = next.nodes.Without(gone)
	}
	if len(keys) > 0 {
		next.clusters = next.clusters.Without(keys)
	}
	return &next, dropped
}

func (v *View) crowded() bool { return v.pinned > maxPinned/2 }

// Verified reports whether e is what its cluster and its node were met as: only
// then may a person be sent there. A pin that moved on takes this away at once.
func (v *View) Verified(e *Entry) bool {
	if e.Conflict {
		return false
	}
	cluster, ok := v.nodes.Get(e.Node)
	key, _, known := v.keyOf(e.ClusterID)
	return ok && known && cluster == e.ClusterID && key == e.Key
}

// keyOf returns the key that a cluster is pinned to; policy when an
// administrator said so.
func (v *View) keyOf(cluster string) (key door.PublicKey, policy, ok bool) {
	for _, p := range v.rules.Pins {
		if p.Cluster == cluster {
			return p.Key, true, true
		}
	}
	key, ok = v.clusters.Get(cluster)
	return key, false, ok
}

// weight is how much an entry counts against another one for the same node: a
// word of the node itself, or one that fits the pins, beats hearsay of any order.
func (v *View) weight(e *Entry) int {
	return weigh(e.FirstHand || v.Verified(e))
}

func weigh(counts bool) int {
	if counts {
		return 1
	}
	return 0
}

// A verdict is whose word a record is.
type verdict struct {
	accept   bool
	trusted  bool // it fits the pins, or makes them
	pin      bool // makes them
	rekey    bool
	conflict bool
	detail   string
}

// judge asks the pins. What comes from the node itself is kept even against
// them, marked; hearsay against them is not.
func (v *View) judge(r *Record, firstHand bool) verdict {
	pinnedTo, nodeKnown := v.nodes.Get(r.Node)
	key, policy, clusterKnown := v.keyOf(r.ClusterID)
	refuse := func(format string, args ...any) verdict {
		return verdict{accept: firstHand || !nodeKnown, conflict: true, detail: fmt.Sprintf(format, args...)}
	}
	switch {
	case v.rules.PinnedOnly && !policy && r.Key != v.rules.Key:
		return verdict{detail: "gossip.pins has no such cluster, and no other is trusted"}
	case r.ClusterID == "":
		return verdict{detail: "it names no cluster"}
	case nodeKnown && pinnedTo != r.ClusterID:
		return refuse("the node is known to serve the cluster %s", pinnedTo)
	case clusterKnown && key != r.Key:
		if policy || !handedOver(r, key) {
			return refuse("the cluster is known by another key")
		}
		if firstHand || nodeKnown {
			return verdict{accept: true, trusted: true, pin: true, rekey: true}
		}
		return verdict{accept: true} // hearsay of a node that we have not met
	case firstHand:
		if !(nodeKnown && clusterKnown) && v.pinned+nodePin(r.Node, r.ClusterID)+clusterPin(r.ClusterID) > maxPinned {
			return verdict{accept: true, detail: "there are too many pins"}
		}
		return verdict{accept: true, trusted: true, pin: !nodeKnown || !clusterKnown}
	}
	return verdict{accept: true, trusted: nodeKnown && clusterKnown}
}

// handedOver reports whether key handed its cluster over to the key of r.
func handedOver(r *Record, key door.PublicKey) bool {
	return r.PrevKey == key && ed25519.Verify(key[:], Rekeying(r.ClusterID, r.Key), r.PrevSig)
}

// pin keeps what the verdict binds.
func (v *View) pin(r *Record, by verdict, c *Change) {
	if !by.pin {
		return
	}
	if id, ok := v.nodes.Get(r.Node); !ok || id != r.ClusterID {
		v.bind(r.Node, r.ClusterID)
	}
	if _, policy, _ := v.keyOf(r.ClusterID); !policy {
		v.trust(r.ClusterID, r.Key)
	}
	c.Pinned, c.Rekey = !by.rekey, by.rekey
}

// owning returns the view that knows our own cluster as ours.
func (v *View) owning(f Facts) *View {
	cluster, _ := v.nodes.Get(f.Node)
	if key, ok := v.clusters.Get(f.ClusterID); ok && key == f.Key && cluster == f.ClusterID {
		return v
	}
	next := *v
	next.bind(f.Node, f.ClusterID)
	next.trust(f.ClusterID, f.Key)
	return &next
}
