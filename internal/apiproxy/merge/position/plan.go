package position

import (
	"strconv"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy/merge/wire"
)

// Place is a merged collection, as far as positions need it.
type Place struct {
	Epoch uint64
	Width int   // the highest slot of the configuration plus 1
	Slots []int // of the members, in member order
	Hash  string
	Ring  *Ring
	Now   time.Time // for the ring
}

// Plan is the set of requests to the members.
type Plan struct {
	Asks []Ask // one for each member, in member order
	// Verbatim means that the API refuses the request. Only the first member gets it, and its response is the
	// response.
	Verbatim bool
	// Vector is what is known before any response.
	Vector Vector
	// Known means that Vector is the position of the list, whatever the members answer.
	Known bool
	// Token is set for a later page of a list. Asks then has the current member first, and the members after
	// it.
	Token *Token
}

// Plan maps a request on a merged collection to requests to the members. The errors are 400, 410 and 504. A
// watch must send a 410 as an ERROR event, because clients do not accept any other form as the end.
func (p Place) Plan(q Query) (Plan, *wire.Status) {
	if q.refused() {
		return p.verbatim(q), nil
	}
	if !q.Watch && q.Continue != "" {
		return p.page(q)
	}
	rv, bad := ParseRV(q.RV)
	if bad != nil {
		return Plan{}, bad
	}
	if rv.Plain > 0 && q.Watch && !q.initial() {
		v, ok := p.ring(rv.Plain)
		if !ok {
			return Plan{}, Expired("too old resource version: " + q.RV + " is of one cluster, and several keep this collection")
		}
		rv = RV{Vector: &v}
	}
	plan := Plan{Vector: NewVector(p.Epoch, p.Width)}
	v := rv.Vector
	if v != nil && v.Epoch > p.Epoch {
		return Plan{}, ahead(v.Epoch, p.Epoch)
	}
	if v != nil && v.Epoch == p.Epoch {
		plan.Vector.widen(len(v.Fields))
	}
	switch {
	case v == nil && rv.Plain == 0:
		for _, slot := range p.Slots {
			plan.Asks = append(plan.Asks, fromNothing(slot, q))
		}
		return plan, nil
	case v == nil, v.Epoch < p.Epoch, p.foreign(*v):
		if q.exactly() || q.Watch && !q.initial() {
			return Plan{}, Expired("too old resource version: the clusters of this collection have changed since")
		}
		for _, slot := range p.Slots {
			plan.Asks = append(plan.Asks, mostRecent(slot, q))
		}
		return plan, nil
	}
	if q.exactly() || q.Watch && !q.initial() {
		plan.Vector = v.Clone()
		plan.Vector.widen(p.Width)
		plan.Known = !q.Watch
	}
	for _, slot := range p.Slots {
		field := v.At(slot)
		if field == 0 && q.exactly() {
			return Plan{}, Expired("too old resource version: not every cluster had been read")
		}
		plan.Asks = append(plan.Asks, from(slot, field, q))
	}
	return plan, nil
}

func (p Place) ring(rv uint64) (Vector, bool) {
	if p.Ring == nil {
		return Vector{}, false
	}
	return p.Ring.Get(p.Epoch, rv, p.Slots, p.Now)
}

// foreign reports whether v has a position of a cluster that is not a member.
func (p Place) foreign(v Vector) bool {
	var member [MaxSlots]bool
	for _, slot := range p.Slots {
		member[slot] = true
	}
	for slot, f := range v.Fields {
		if f > 0 && !member[slot] {
			return true
		}
	}
	return false
}

// fromNothing returns the request to a member for a request without a position.
func fromNothing(slot int, q Query) Ask {
	a := Ask{Slot: slot, Watch: q.Watch, RV: q.RV, Match: q.Match, Limit: q.Limit, Initial: q.Initial}
	if q.Watch && q.Initial == nil {
		a.Initial, a.Match = new(true), notOlderThan // such a watch starts with the existing objects
	}
	if q.Watch {
		a.Limit = 0
	}
	return a
}

// mostRecent returns the request for a position that has no meaning here. The most recent state is never
// older than the requested one.
func mostRecent(slot int, q Query) Ask {
	q.RV = ""
	if !q.Watch {
		q.Match = "" // the API refuses it without a resourceVersion
	}
	return fromNothing(slot, q)
}

// from returns the request for a position in a vector.
func from(slot int, field uint64, q Query) Ask {
	switch {
	case field == 0 && q.Watch: // a member that joins or returns
		return Ask{Slot: slot, Watch: true, Match: notOlderThan, Initial: new(true)}
	case field == 0:
		return mostRecent(slot, q)
	case q.Watch && !q.initial():
		return At(slot, field)
	}
	a := Ask{Slot: slot, Watch: q.Watch, RV: rvText(field), Match: notOlderThan, Initial: q.Initial}
	if !q.Watch {
		a.Limit = q.Limit
	}
	if q.exactly() {
		a.Match = exact
	}
	return a
}

// At returns a watch of one member from its resourceVersion field. A watch from 0 starts with the existing
// objects.
func At(slot int, field uint64) Ask {
	if field == 0 {
		return Ask{Slot: slot, Watch: true, Match: notOlderThan, Initial: new(true)}
	}
	return Ask{Slot: slot, Watch: true, RV: rvText(field)}
}

// Exactly returns a request for a page of one member at its resourceVersion field.
func Exactly(slot int, field uint64, limit int64) Ask {
	return Ask{Slot: slot, RV: rvText(field), Match: exact, Limit: limit}
}

func rvText(n uint64) string { return strconv.FormatUint(n, 10) }

// page continues a list at a token. A member without a position when the list started was left out then and
// stays left out.
func (p Place) page(q Query) (Plan, *wire.Status) {
	if q.RV != "" && q.RV != "0" {
		return Plan{}, BadRequest("specifying resource version is not allowed when using continue")
	}
	t, bad := DecodeToken(q.Continue, p.Hash, p.Epoch)
	if bad != nil {
		return Plan{}, bad
	}
	if p.foreign(t.Vector) {
		return Plan{}, Expired("the continue token is too old: the clusters of this collection have changed since")
	}
	plan := Plan{Vector: t.Vector.Clone(), Known: true, Token: &t}
	plan.Vector.widen(p.Width)
	for _, slot := range p.Slots {
		field := t.Vector.At(slot)
		switch {
		case slot == t.Slot && t.Inner != "":
			plan.Asks = append(plan.Asks, Ask{Slot: slot, Continue: t.Inner, Limit: q.Limit})
		case slot == t.Slot && t.Inconsistent:
			plan.Asks = append(plan.Asks, Ask{Slot: slot, Limit: q.Limit})
		case slot == t.Slot && field > 0, len(plan.Asks) > 0 && field > 0:
			plan.Asks = append(plan.Asks, Exactly(slot, field, q.Limit))
		}
	}
	if len(plan.Asks) == 0 || plan.Asks[0].Slot != t.Slot {
		return Plan{}, Expired("the continue token is too old: its cluster is no longer of this collection")
	}
	return plan, nil
}

// verbatim forwards an invalid request to the first member, which returns the error.
func (p Place) verbatim(q Query) Plan {
	a := Ask{Slot: p.Slots[0], Watch: q.Watch, RV: q.RV, Match: q.Match, Continue: q.Continue, Limit: q.Limit, Initial: q.Initial}
	if rv, bad := ParseRV(q.RV); bad == nil && rv.Vector != nil {
		a.RV = ""
		if f := rv.Vector.At(a.Slot); f > 0 {
			a.RV = rvText(f)
		}
	}
	if IsToken(q.Continue) {
		a.Continue = "mca" // invalid with any value
	}
	return Plan{Verbatim: true, Asks: []Ask{a}, Vector: NewVector(p.Epoch, p.Width)}
}

// Named returns the resourceVersion for a GET at the cluster that has the object. If merged is false, only
// that cluster holds the collection.
func (p Place) Named(rv string, slot int, merged bool) (string, *wire.Status) {
	r, bad := ParseRV(rv)
	switch {
	case bad != nil || r.Vector == nil:
		return rv, nil // the cluster itself validates anything that is not a vector
	case r.Vector.Epoch > p.Epoch:
		return "", ahead(r.Vector.Epoch, p.Epoch)
	case !merged || r.Vector.Epoch < p.Epoch || r.Vector.At(slot) == 0:
		return "", nil
	}
	return rvText(r.Vector.At(slot)), nil
}

// Single removes vectors and merged continue tokens from a request to a cluster that alone holds a
// collection. If the request has neither, changed is false and the caller forwards it as is.
func (p Place) Single(q Query, slot int) (a Ask, changed bool, refusal *wire.Status) {
	if q.Continue != "" && IsToken(q.Continue) {
		return Ask{}, false, Expired("the continue token is too old: one cluster keeps the collection now")
	}
	rv, bad := ParseRV(q.RV)
	if bad != nil || rv.Vector == nil {
		return Ask{}, false, nil
	}
	switch {
	case rv.Vector.Epoch > p.Epoch:
		return Ask{}, false, ahead(rv.Vector.Epoch, p.Epoch)
	case q.refused():
		a = p.verbatim(q).Asks[0]
		a.Slot = slot
		return a, true, nil
	case q.exactly() || q.Watch && !q.initial():
		return Ask{}, false, Expired("too old resource version: one cluster keeps the collection now")
	}
	a = mostRecent(slot, q)
	a.Continue = q.Continue
	return a, true, nil
}
