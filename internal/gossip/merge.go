package gossip

import (
	"fmt"
	"slices"
	"time"

	"github.com/tailplane/tailplane/internal/audit"
)

// A Delivery is the set of records of one message.
type Delivery struct {
	From    string // the node that sent it, as WhoIs identifies it
	Records []*Record
	Netmap  *Netmap
}

// A Change is the result of merging one record.
type Change struct {
	Record *Record
	Entry  *Entry // the current entry; nil when the record was refused
	Was    *Entry // the entry that it replaced; nil: the member is new
	Reason Reason // why it was refused or conflicts; "" when it was accepted
	Detail string

	// Returned is an earlier record of the node that it should see again; nil: none.
	Returned *Record
	Lost     []audit.LogHead // lines of audit logs that the node stated before and contradicts now

	Pinned bool // this record pinned its node and cluster
	Rekey  bool // the cluster's key changed
	Proxy  bool // this record pinned the cluster's access proxy
	// Own marks a record of this node that is signed by our cluster's key, or by its key before the last rotation. This process may not have
	// written it.
	Own bool
}

// Merge applies the records that a peer sent and returns the changes; unchanged records produce none. A rejected record never excludes
// another one. Merge is pure and idempotent, and commutative except for the first contact.
//
// When two nodes claim one cluster, or two records have one order, the first one stays and Merge marks the conflict. A relayed record of a
// node that was never met has no authority. It is replaced as soon as the node itself sends a record.
func Merge(v *View, d Delivery, now time.Time) (*View, []Change) {
	next := *v
	next.moved = false
	var changes []Change
	for _, r := range d.Records {
		if c := next.mergeRecord(r, d, now); c.Entry != nil || c.Reason != "" || c.Own {
			c.Record = r
			changes = append(changes, c)
		}
	}
	if !next.moved {
		return v, changes
	}
	return &next, changes
}

// mergeRecord merges one record. v must be a copy that no other goroutine has seen yet.
func (v *View) mergeRecord(r *Record, d Delivery, now time.Time) Change {
	if r.Node == v.rules.Self {
		switch {
		case r.Key != v.rules.Key && (r.Key != v.prevKey || v.prevKey.IsZero()):
			return Change{Reason: Binding, Detail: "it is a record of this node, signed with another key"}
		case !r.isSignatureValid():
			return Change{Reason: Signature}
		}
		return Change{Own: true}
	}
	p, ok := d.Netmap.Find(r.Node)
	if !ok {
		return Change{Reason: Binding, Detail: "the tailnet has no such node with a required tag"}
	}
	firstHand := d.From == r.Node
	t, buried := v.tombs.Get(r.Node)
	if buried && t.rejects(r.Generation, firstHand) {
		return Change{Reason: Buried}
	}
	was, known := v.entries.Get(r.Node)
	if known && was.Signed.equal(r.Signed) && (!firstHand || was.FirstHand && v.Verified(was)) {
		return Change{}
	}
	verdict := v.checkPins(r, firstHand)
	if !verdict.accept {
		return Change{Reason: Binding, Detail: verdict.detail}
	}
	e := &Entry{Record: r, FirstHand: firstHand, Conflict: verdict.conflict}
	wrong := v.checkEndpoints(e, p, d.Netmap, verdict)
	remember := !known && (firstHand || verdict.trusted) // remember the refusal
	switch {
	case wrong != nil && !remember:
		return Change{Reason: Endpoint, Detail: wrong.Error()}
	case wrong == nil && !known && v.entries.Len() >= v.rules.MaxMembers:
		return Change{Reason: Size, Detail: fmt.Sprintf("the limit of %d members is reached", v.entries.Len())}
	case verdict.rekey && known && v.weight(was) == 1 && r.Order.Compare(was.Order) <= 0:
		return Change{Reason: Old} // a repeated earlier handover must not move the key back
	case wrong == nil && known && !verdict.pin:
		if c, beaten := v.isBeaten(was, e, verdict.trusted); beaten {
			return c
		}
	}
	// From here on the record would change something, so now verify the signature, which is expensive.
	if !r.isSignatureValid() {
		return Change{Reason: Signature}
	}
	if wrong != nil {
		v.moved = true
		v.refused = v.refused.With(r.Node, Refusal{r.Node, r.ClusterID, r.Order, Endpoint, wrong.Error(), now})
		return Change{Reason: Endpoint, Detail: wrong.Error()}
	}
	c := Change{Entry: e, Was: was}
	v.storePins(r, verdict, &c) // first, because a relayed entry may match the pins from now on
	if known {
		if keep, cached := v.compareEntries(was, e, verdict.trusted); keep {
			if c.Pinned || c.Rekey {
				cached = Change{Entry: was, Was: was, Pinned: c.Pinned, Rekey: c.Rekey}
			}
			return cached
		}
	}
	if e.Conflict {
		c.Reason, c.Detail = Binding, verdict.detail
	}
	before := earlier(was, t, r)
	if e.Witness = witness(before, r); before != nil && !e.Conflict {
		c.Returned = e.returned(before)
		if e.Witness != nil {
			c.Lost = slices.DeleteFunc(slices.Clone(e.Witness.Lost), func(h audit.LogHead) bool { return slices.Contains(before.Witness.Lost, h) })
		}
	}
	v.moved = true
	v.entries = v.entries.With(r.Node, e)
	c.Proxy = e.Proxied && v.Verified(e) && v.pinProxy(r.Facts)
	if known {
		return c
	}
	v.tombs, v.refused = v.tombs.Without(r.Node), v.refused.Without(r.Node)
	return c
}

// isBeaten reports whether the existing entry has more weight than e, or is later.
func (v *View) isBeaten(was, e *Entry, trusted bool) (Change, bool) {
	switch now, before := boolOrder(e.FirstHand || trusted), v.weight(was); {
	case now < before:
		return Change{Reason: Binding, Detail: "the node itself sent a different record"}, true
	case now == before && e.Order.Compare(was.Order) < 0:
		return Change{Reason: Old}, true
	}
	return Change{}, false
}

// compareEntries reports whether the existing entry stays, and the resulting change.
func (v *View) compareEntries(was, e *Entry, trusted bool) (keep bool, c Change) {
	if c, beaten := v.isBeaten(was, e, trusted); beaten {
		return true, c
	}
	if boolOrder(e.FirstHand || trusted) > v.weight(was) || e.Order.Compare(was.Order) > 0 {
		return false, Change{}
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
	v.moved = true
	v.entries = v.entries.With(was.Node, &marked)
	return true, Change{Entry: &marked, Was: was, Reason: Equivocation, Detail: "two different records have the same order"}
}
