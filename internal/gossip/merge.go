package gossip

import (
	"crypto/ed25519"
	"fmt"
	"time"

	"github.com/tailplane/tailplane/internal/door"
)

// A Delivery is the records of one message, opened.
type Delivery struct {
	From    string // the node at the other end, as WhoIs names it
	Records []*Record
	Netmap  *Netmap
}

// A Change is what became of one record of a delivery.
type Change struct {
	Record *Record
	Entry  *Entry // as it stands now; nil when the record was refused
	Was    *Entry // what it replaced; nil: the member is new
	Reason Reason // why it was refused, or why it is a conflict; "" when it counts
	Detail string

	Pinned bool // node and cluster are known by this record from now on
	Rekey  bool // the cluster's key is another one from now on
	// Own is a record of ourselves, by our cluster's key, that we did not write.
	Own bool
}

// Merge takes in what a peer sent and says what changed; unchanged records say
// nothing. A record that does not count never keeps out another one. Merge is
// pure, idempotent and, but for who is met first, commutative: of two who claim
// one cluster, or of two records of one order, the first one stays, and the
// conflict is marked. Hearsay about a node that was never met is not authority
// for anything, and is gone when the node speaks for itself.
func Merge(v *View, d Delivery, now time.Time) (*View, []Change) {
	next := *v
	var changes []Change
	for _, r := range d.Records {
		if c := next.take(r, d, now); c.Entry != nil || c.Reason != "" || c.Own {
			c.Record = r
			changes = append(changes, c)
		}
	}
	if len(changes) == 0 {
		return v, nil
	}
	return &next, changes
}

// take merges one record. v is a copy that nobody else has seen yet.
func (v *View) take(r *Record, d Delivery, now time.Time) Change {
	if r.Node == v.rules.Self {
		if r.Key == v.rules.Key {
			return Change{Own: true}
		}
		return Change{Reason: Binding, Detail: "it is in our name, by another key"}
	}
	p, ok := d.Netmap.Find(r.Node)
	if !ok {
		return Change{Reason: Binding, Detail: "our tailnet has no such node with a required tag"}
	}
	firstHand := d.From == r.Node
	if t, ok := v.tombs.get(r.Node); ok && t.keeps(r.Generation, firstHand) {
		return Change{Reason: Buried}
	}
	was, known := v.entries.get(r.Node)
	e := &Entry{Record: r, FirstHand: firstHand}
	verdict := v.judge(r, firstHand)
	if !verdict.accept {
		return Change{Reason: Binding, Detail: verdict.detail}
	}
	e.Conflict = verdict.conflict
	if err := v.rules.Allow.checkEndpoints(r, p); err != nil {
		if !known && (firstHand || verdict.trusted) {
			v.refused = v.refused.with(r.Node, Refusal{r.Node, r.ClusterID, r.Order, Endpoint, err.Error(), now})
		}
		return Change{Reason: Endpoint, Detail: err.Error()}
	}
	if !known && v.entries.size >= v.rules.MaxMembers {
		return Change{Reason: Size, Detail: fmt.Sprintf("there are %d members", v.entries.size)}
	}
	if verdict.rekey && known && v.weight(was) == 1 && r.Order.Compare(was.Order) <= 0 {
		return Change{Reason: Old} // a handover of before, said again, moves no key back
	}
	c := Change{Entry: e, Was: was}
	v.pin(r, verdict, &c) // first, as hearsay that was kept may fit the pins from now on
	if known {
		if keep, kept := v.compare(was, e, verdict.trusted); keep {
			if c.Pinned || c.Rekey {
				kept = Change{Entry: was, Was: was, Pinned: c.Pinned, Rekey: c.Rekey}
			}
			return kept
		}
	}
	if e.Conflict {
		c.Reason, c.Detail = Binding, verdict.detail
	}
	v.entries = v.entries.with(r.Node, e)
	if known {
		return c
	}
	drop := map[string]bool{r.Node: true}
	if _, ok := v.tombs.get(r.Node); ok {
		v.tombs = v.tombs.without(drop)
	}
	if _, ok := v.refused.get(r.Node); ok {
		v.refused = v.refused.without(drop)
	}
	return c
}

// compare says whether the entry that is there stays, and what that changes.
func (v *View) compare(was, e *Entry, trusted bool) (keep bool, c Change) {
	weight := 0
	if e.FirstHand || trusted {
		weight = 1
	}
	if old := v.weight(was); weight != old {
		return weight < old, Change{Reason: Binding, Detail: "the node itself says otherwise"}
	}
	switch e.Order.Compare(was.Order) {
	case 1:
		return false, Change{}
	case -1:
		return true, Change{Reason: Old}
	}
	if was.Signed.equal(e.Signed) {
		if e.FirstHand && !was.FirstHand {
			e.Conflict = e.Conflict || was.Conflict
			return false, Change{}
		}
		return true, Change{}
	}
	if was.Conflict {
		return true, Change{Reason: Equivocation}
	}
	marked := *was
	marked.Conflict = true
	v.entries = v.entries.with(was.Node, &marked)
	return true, Change{Entry: &marked, Was: was, Reason: Equivocation, Detail: "two records of one order"}
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
	pinnedTo, nodeKnown := v.nodes.get(r.Node)
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
		if !nodeKnown && v.nodes.size >= maxPins || !clusterKnown && v.clusters.size >= maxPins {
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
	if id, ok := v.nodes.get(r.Node); !ok || id != r.ClusterID {
		v.nodes = v.nodes.with(r.Node, r.ClusterID)
	}
	if _, policy, _ := v.keyOf(r.ClusterID); !policy {
		v.clusters = v.clusters.with(r.ClusterID, r.Key)
	}
	c.Pinned, c.Rekey = !by.rekey, by.rekey
}

// owning returns the view that knows our own cluster as ours.
func (v *View) owning(f Facts) *View {
	cluster, _ := v.nodes.get(f.Node)
	if key, ok := v.clusters.get(f.ClusterID); ok && key == f.Key && cluster == f.ClusterID {
		return v
	}
	next := *v
	next.nodes = v.nodes.with(f.Node, f.ClusterID)
	next.clusters = v.clusters.with(f.ClusterID, f.Key)
	return &next
}
