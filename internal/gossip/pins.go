package gossip

import (
	"crypto/ed25519"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tailplane/tailplane/internal/httpapi"
)

// How long a pin outlives its node, counted from when our tailnet lost the node. Node ids are never reused, so the pin of a lost node
// protects nothing. With its last node, the key of a cluster is forgotten too. That key is trust, so the pin of a last node lives longer.
const (
	nodePinLife    = 7 * 24 * time.Hour
	clusterPinLife = 90 * 24 * time.Hour
	crowdedPinLife = 24 * time.Hour // for both, when room gets short
)

// maxPinned bounds the stored size of pins. They are stored in an object of at most 1 MiB that other servers of our cluster write too.
// Above half of maxPinned, room is short.
const maxPinned = 768 << 10

// A Memory is what must survive a restart. Its JSON form is stored.
type Memory struct {
	Generation uint64                       `json:"generation"` // the greatest generation this node ever had
	Clusters   map[string]httpapi.PublicKey `json:"clusters"`   // keys by cluster id
	Nodes      map[string]string            `json:"nodes"`      // cluster ids by node
	Proxies    map[string]string            `json:"proxies"`    // host names of access proxies by cluster id
	Absent     map[string]int64             `json:"absent"`     // by node of Nodes: Unix seconds since when our tailnet does not have it
}

func (v *View) memory(generation uint64) Memory {
	m := Memory{Generation: generation, Clusters: maps.Collect(v.clusters.All()), Nodes: maps.Collect(v.nodes.All()), Proxies: maps.Collect(v.proxies.All()), Absent: map[string]int64{}}
	for node, since := range v.absent.All() {
		m.Absent[node] = since.Unix()
	}
	return m
}

// restore restores the pins from m.
func (v *View) restore(m Memory) {
	for id, key := range m.Clusters {
		v.pinCluster(id, key)
	}
	for id, host := range m.Proxies {
		v.pinProxy(Facts{ClusterID: id, Proxy: "https://" + host})
	}
	for node, id := range m.Nodes {
		v.pinNode(node, id)
		if since, ok := m.Absent[node]; ok {
			v.absent = v.absent.With(node, time.Unix(since, 0))
		}
	}
}

// nodePin and clusterPin return the stored sizes of pins, including room for a time of absence.
func nodePin(node, cluster string) int { return 2*len(node) + len(cluster) + 24 }
func clusterPin(cluster string) int    { return len(cluster) + 60 }

// pinNode pins a node to a cluster.
func (v *View) pinNode(node, cluster string) {
	if before, ok := v.nodes.Get(node); ok {
		v.pinned -= nodePin(node, before)
	}
	v.pinned += nodePin(node, cluster)
	v.nodes = v.nodes.With(node, cluster)
	v.moved = true
}

// pinCluster pins a cluster to a key.
func (v *View) pinCluster(cluster string, key httpapi.PublicKey) {
	if _, ok := v.clusters.Get(cluster); !ok {
		v.pinned += clusterPin(cluster)
	}
	v.clusters = v.clusters.With(cluster, key)
	v.moved = true
}

// Prune records which pinned nodes are missing from our tailnet. It forgets those that have been missing for long and returns them. It
// ignores an empty netmap. Like Merge it is pure.
func Prune(v *View, m *Netmap, now time.Time) (*View, []string) {
	if m.Len() == 0 {
		return v, nil
	}
	type missing struct {
		node  string
		since time.Time
	}
	next := *v
	nodes := map[string]int{} // number of nodes of each cluster
	var away []missing
	var back, dropped, keys []string
	for node, cluster := range v.nodes.All() {
		nodes[cluster]++
		_, here := m.Find(node)
		since, was := v.absent.Get(node)
		switch {
		case here || node == v.rules.Self:
			if was {
				back = append(back, node)
			}
			continue
		case !was || since.After(now): // the clock was set back
			since = now
			next.absent = next.absent.With(node, now)
		}
		away = append(away, missing{node, since})
	}
	slices.SortStableFunc(away, func(a, b missing) int { return a.since.Compare(b.since) }) // away is in the order of nodes
	for _, x := range away {
		cluster, _ := v.nodes.Get(x.node)
		life := nodePinLife
		if nodes[cluster] == 1 {
			life = clusterPinLife
		}
		if next.isCrowded() {
			life = crowdedPinLife
		}
		if now.Sub(x.since) <= life {
			continue
		}
		dropped = append(dropped, x.node)
		next.pinned -= nodePin(x.node, cluster)
		if nodes[cluster]--; nodes[cluster] == 0 {
			keys = append(keys, cluster)
			next.pinned -= clusterPin(cluster)
		}
	}
	if next.isCrowded() { // drop clusters whose nodes an administrator has removed
		for cluster := range v.clusters.All() {
			if _, had := nodes[cluster]; !had {
				keys = append(keys, cluster)
				next.pinned -= clusterPin(cluster)
			}
		}
	}
	next.absent = next.absent.Without(slices.Concat(back, dropped)...)
	next.nodes, next.clusters = next.nodes.Without(dropped...), next.clusters.Without(keys...)
	next.withoutProxies(keys)
	return &next, dropped
}

func (v *View) isCrowded() bool { return v.pinned > maxPinned/2 }

// Verified reports whether e matches the pins of its cluster and its node. tka may send a person only to a verified entry. A pin that
// changes revokes this at once.
func (v *View) Verified(e *Entry) bool {
	if e.Conflict {
		return false
	}
	cluster, ok := v.nodes.Get(e.Node)
	key, _, known := v.keyOf(e.ClusterID)
	return ok && known && cluster == e.ClusterID && key == e.Key
}

// keyOf returns the key that a cluster is pinned to. policy reports whether an administrator configured the pin.
func (v *View) keyOf(cluster string) (key httpapi.PublicKey, policy, ok bool) {
	for _, p := range v.rules.Pins {
		if p.Cluster == cluster {
			return p.Key, true, true
		}
	}
	key, ok = v.clusters.Get(cluster)
	return key, false, ok
}

// weight is the precedence of an entry over another one for the same node. An entry from the node itself, or one that matches the pins,
// beats relayed entries of any order.
func (v *View) weight(e *Entry) int {
	return boolOrder(e.FirstHand || v.Verified(e))
}

// A pinDecision is what the pins decide about a record.
type pinDecision struct {
	accept   bool
	trusted  bool // it matches the pins or creates them
	pin      bool // creates pins
	rekey    bool
	conflict bool
	detail   string
}

// checkPins checks a record against the pins. It accepts a contradicting record, marked as a conflict, if the record comes from the node itself
// or its node has no pin. It rejects other contradicting records.
func (v *View) checkPins(r *Record, firstHand bool) pinDecision {
	pinnedTo, nodeKnown := v.nodes.Get(r.Node)
	key, policy, clusterKnown := v.keyOf(r.ClusterID)
	refuse := func(format string, args ...any) pinDecision {
		return pinDecision{accept: firstHand || !nodeKnown, conflict: true, detail: fmt.Sprintf(format, args...)}
	}
	switch {
	case v.rules.PinnedOnly && !policy && r.Key != v.rules.Key:
		return pinDecision{detail: "gossip.pins does not list the cluster, and only listed clusters are trusted"}
	case r.ClusterID == "":
		return pinDecision{detail: "it has no cluster"}
	case nodeKnown && pinnedTo != r.ClusterID:
		return refuse("the node is pinned to the cluster %s", pinnedTo)
	case clusterKnown && key != r.Key:
		if policy || !isHandedOver(r, key) {
			return refuse("the cluster is pinned to another key")
		}
		if firstHand || nodeKnown {
			return pinDecision{accept: true, trusted: true, pin: true, rekey: true}
		}
		return pinDecision{accept: true} // a relayed record of a node that this node has not met
	case firstHand:
		if !(nodeKnown && clusterKnown) && v.pinned+nodePin(r.Node, r.ClusterID)+clusterPin(r.ClusterID) > maxPinned {
			return pinDecision{accept: true, detail: "there are too many pins"}
		}
		return pinDecision{accept: true, trusted: true, pin: !nodeKnown || !clusterKnown}
	}
	return pinDecision{accept: true, trusted: nodeKnown && clusterKnown}
}

// isHandedOver reports whether key signed the handover of its cluster to the key of r.
func isHandedOver(r *Record, key httpapi.PublicKey) bool {
	return r.PrevKey == key && ed25519.Verify(key[:], RekeyMessage(r.ClusterID, r.Key), r.PrevSig)
}

// storePins stores the pins that the verdict creates.
func (v *View) storePins(r *Record, by pinDecision, c *Change) {
	if !by.pin {
		return
	}
	if id, ok := v.nodes.Get(r.Node); !ok || id != r.ClusterID {
		v.pinNode(r.Node, r.ClusterID)
	}
	if _, policy, _ := v.keyOf(r.ClusterID); !policy {
		v.pinCluster(r.ClusterID, r.Key)
	}
	c.Pinned, c.Rekey = !by.rekey, by.rekey
}

// withOwnPin returns a view that pins our own cluster to this node and knows the cluster's previous key.
func (v *View) withOwnPin(f Facts) *View {
	cluster, _ := v.nodes.Get(f.Node)
	if key, ok := v.clusters.Get(f.ClusterID); ok && key == f.Key && cluster == f.ClusterID && v.prevKey == f.PrevKey && v.hasProxy(f) {
		return v
	}
	next := *v
	next.prevKey = f.PrevKey
	next.pinNode(f.Node, f.ClusterID)
	next.pinCluster(f.ClusterID, f.Key)
	next.pinProxy(f)
	return &next
}
