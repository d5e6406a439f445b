package merge

import (
	"strconv"

	"github.com/tailplane/tailplane/internal/apiproxy/codec"
)

// Planner computes the requests to the members of a merged collection that continue from a client's position. An object
// keeps the resourceVersion of its cluster. A merged list, a bookmark and a continue token have a [Vector], which is
// written as one decimal number, because clients compare resourceVersions as numbers.
type Planner struct {
	Epoch uint64
	Width int   // the highest slot of the configuration plus 1
	Slots []int // of the members, in member order
	Hash  string
}

// Plan is the set of requests to the members.
type Plan struct {
	Requests []MemberRequest // one for each member, in member order
	// Verbatim means that the API refuses the request. Only the first member gets it, and its response is the
	// response.
	Verbatim bool
	// Vector is what is known before any response.
	Vector Vector
	// Known means that Vector is the position of the list, whatever the members answer.
	Known bool
	// Token is set for a later page of a list. Requests then has the current member first, and the members after
	// it.
	Token *continueToken
}

// Plan maps a request on a merged collection to requests to the members. The errors are 400, 410 and 504. A
// watch must send a 410 as an ERROR event, because clients do not accept any other form as the end.
func (p Planner) Plan(q Query) (Plan, *codec.Status) {
	if q.isInvalid() {
		return p.verbatim(q), nil
	}
	if !q.Watch && q.Continue != "" {
		return p.page(q)
	}
	rv, bad := ParseResourceVersion(q.RV)
	if bad != nil {
		return Plan{}, bad
	}
	if rv.Plain > 0 && q.Watch && !q.wantsInitial() {
		return Plan{}, expiredStatus(
			"too old resource version: " + q.RV + " belongs to one cluster, but several clusters have this collection",
		)
	}
	plan := Plan{Vector: newVector(p.Epoch, p.Width)}
	v := rv.Vector
	if v != nil && v.Epoch > p.Epoch {
		return Plan{}, newerEpochStatus(v.Epoch, p.Epoch)
	}
	if v != nil && v.Epoch == p.Epoch {
		plan.Vector.widen(len(v.Fields))
	}
	switch {
	case v == nil && rv.Plain == 0:
		for _, slot := range p.Slots {
			plan.Requests = append(plan.Requests, requestFromEmpty(slot, q))
		}
		return plan, nil
	case v == nil, v.Epoch < p.Epoch, p.isForeign(*v):
		if q.isExact() || q.Watch && !q.wantsInitial() {
			return Plan{}, expiredStatus("too old resource version: the clusters of this collection changed since then")
		}
		for _, slot := range p.Slots {
			plan.Requests = append(plan.Requests, requestMostRecent(slot, q))
		}
		return plan, nil
	}
	if q.isExact() || q.Watch && !q.wantsInitial() {
		plan.Vector = v.Clone()
		plan.Vector.widen(p.Width)
		plan.Known = !q.Watch
	}
	for _, slot := range p.Slots {
		field := v.At(slot)
		if field == 0 && q.isExact() {
			return Plan{}, expiredStatus("too old resource version: it does not include every cluster")
		}
		plan.Requests = append(plan.Requests, requestFrom(slot, field, q))
	}
	return plan, nil
}

// isForeign reports whether v has a position of a cluster that is not a member.
func (p Planner) isForeign(v Vector) bool {
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

// requestFromEmpty returns the request to a member for a request without a position.
func requestFromEmpty(slot int, q Query) MemberRequest {
	a := MemberRequest{Slot: slot, Watch: q.Watch, RV: q.RV, Match: q.Match, Limit: q.Limit, Initial: q.Initial}
	if q.Watch && q.Initial == nil {
		a.Initial, a.Match = new(true), matchNotOlderThan // such a watch starts with the existing objects
	}
	if q.Watch {
		a.Limit = 0
	}
	return a
}

// requestMostRecent returns the request for a position that has no meaning here. The most recent state is never
// older than the requested one.
func requestMostRecent(slot int, q Query) MemberRequest {
	q.RV = ""
	if !q.Watch {
		q.Match = "" // the API refuses it without a resourceVersion
	}
	return requestFromEmpty(slot, q)
}

// requestFrom returns the request for a position in a vector.
func requestFrom(slot int, field uint64, q Query) MemberRequest {
	switch {
	case q.Watch && (field == 0 || !q.wantsInitial()): // without a field, the member joins or returns
		return requestAt(slot, field)
	case field == 0:
		return requestMostRecent(slot, q)
	}
	a := MemberRequest{Slot: slot, Watch: q.Watch, RV: formatRV(field), Match: matchNotOlderThan, Initial: q.Initial}
	if !q.Watch {
		a.Limit = q.Limit
	}
	if q.isExact() {
		a.Match = matchExact
	}
	return a
}

// requestAt returns a watch of one member from its resourceVersion field. A watch from 0 starts with the existing
// objects.
func requestAt(slot int, field uint64) MemberRequest {
	if field == 0 {
		return MemberRequest{Slot: slot, Watch: true, Match: matchNotOlderThan, Initial: new(true)}
	}
	return MemberRequest{Slot: slot, Watch: true, RV: formatRV(field)}
}

// requestExactly returns a request for a page of one member at its resourceVersion field.
func requestExactly(slot int, field uint64, limit int64) MemberRequest {
	return MemberRequest{Slot: slot, RV: formatRV(field), Match: matchExact, Limit: limit}
}

func formatRV(n uint64) string { return strconv.FormatUint(n, 10) }

// page continues a list at a token. A member without a position when the list started was left out then and
// stays left out.
func (p Planner) page(q Query) (Plan, *codec.Status) {
	if q.RV != "" && q.RV != "0" {
		return Plan{}, badRequestStatus("specifying resource version is not allowed when using continue")
	}
	t, bad := decodeToken(q.Continue, p.Hash, p.Epoch)
	if bad != nil {
		return Plan{}, bad
	}
	if p.isForeign(t.Vector) {
		return Plan{}, expiredStatus("the continue token is too old: the clusters of this collection changed since then")
	}
	plan := Plan{Vector: t.Vector.Clone(), Known: true, Token: &t}
	plan.Vector.widen(p.Width)
	for _, slot := range p.Slots {
		field := t.Vector.At(slot)
		switch {
		case slot == t.Slot && t.Inner != "":
			plan.Requests = append(plan.Requests, MemberRequest{Slot: slot, Continue: t.Inner, Limit: q.Limit})
		case slot == t.Slot && t.Inconsistent:
			plan.Requests = append(plan.Requests, MemberRequest{Slot: slot, Limit: q.Limit})
		case slot == t.Slot && field > 0, len(plan.Requests) > 0 && field > 0:
			plan.Requests = append(plan.Requests, requestExactly(slot, field, q.Limit))
		}
	}
	if len(plan.Requests) == 0 || plan.Requests[0].Slot != t.Slot {
		return Plan{}, expiredStatus("the continue token is too old: this collection no longer includes its cluster")
	}
	return plan, nil
}

// verbatim forwards an invalid request to the first member, which returns the error.
func (p Planner) verbatim(q Query) Plan {
	a := MemberRequest{Slot: p.Slots[0], Watch: q.Watch, RV: q.RV, Match: q.Match, Continue: q.Continue, Limit: q.Limit, Initial: q.Initial}
	if rv, bad := ParseResourceVersion(q.RV); bad == nil && rv.Vector != nil {
		a.RV = ""
		if f := rv.Vector.At(a.Slot); f > 0 {
			a.RV = formatRV(f)
		}
	}
	if isToken(q.Continue) {
		a.Continue = "mca" // invalid with any value
	}
	return Plan{Verbatim: true, Requests: []MemberRequest{a}, Vector: newVector(p.Epoch, p.Width)}
}

// ObjectVersion returns the resourceVersion for a GET at the cluster that has the object. If merged is false, only
// that cluster holds the collection.
func (p Planner) ObjectVersion(rv string, slot int, merged bool) (string, *codec.Status) {
	r, bad := ParseResourceVersion(rv)
	switch {
	case bad != nil || r.Vector == nil:
		return rv, nil // the cluster itself validates anything that is not a vector
	case r.Vector.Epoch > p.Epoch:
		return "", newerEpochStatus(r.Vector.Epoch, p.Epoch)
	case !merged || r.Vector.Epoch < p.Epoch || r.Vector.At(slot) == 0:
		return "", nil
	}
	return formatRV(r.Vector.At(slot)), nil
}

// SingleCluster removes vectors and merged continue tokens from a request to a cluster that alone holds a
// collection. If the request has neither, changed is false and the caller forwards it as is.
func (p Planner) SingleCluster(q Query, slot int) (a MemberRequest, changed bool, refusal *codec.Status) {
	if q.Continue != "" && isToken(q.Continue) {
		return MemberRequest{}, false, expiredStatus("the continue token is too old: only one cluster has the collection now")
	}
	rv, bad := ParseResourceVersion(q.RV)
	if bad != nil || rv.Vector == nil {
		return MemberRequest{}, false, nil
	}
	switch {
	case rv.Vector.Epoch > p.Epoch:
		return MemberRequest{}, false, newerEpochStatus(rv.Vector.Epoch, p.Epoch)
	case q.isInvalid():
		a = p.verbatim(q).Requests[0]
		a.Slot = slot
		return a, true, nil
	case q.isExact() || q.Watch && !q.wantsInitial():
		return MemberRequest{}, false, expiredStatus("too old resource version: only one cluster has the collection now")
	}
	a = requestMostRecent(slot, q)
	a.Continue = q.Continue
	return a, true, nil
}
