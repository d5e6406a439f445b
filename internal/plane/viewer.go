package plane

import (
	"slices"

	"github.com/tailplane/tailplane/internal/access"
)

// A Viewer is how far one caller sees. It is made anew of each permit, and so ends
// with it.
type Viewer struct {
	caller access.Caller
	verbs  map[string][]access.Verb // by organisation; "*": everywhere, "own": what is one's own
}

// ViewerOf returns how far the caller of a permit sees.
func ViewerOf(p access.Permit) Viewer { return Viewer{p.Caller(), p.Verbs()} }

// Caller is who looks.
func (v Viewer) Caller() access.Caller { return v.caller }

// In reports whether the caller may do verb to what belongs to org.
func (v Viewer) In(org string, verb access.Verb) bool {
	return v.Everywhere(verb) || org != "" && slices.Contains(v.verbs[org], verb)
}

// Own reports whether the caller may do verb to what is the caller's own.
func (v Viewer) Own(verb access.Verb) bool { return slices.Contains(v.verbs["own"], verb) }

// Everywhere reports whether the caller may do verb to everything.
func (v Viewer) Everywhere(verb access.Verb) bool {
	return slices.Contains(v.verbs[access.AllOrgs], verb)
}

// reads is the verb that shows objects of a kind. One that nobody decided about
// nobody sees.
func (k Kind) reads() access.Verb {
	switch k {
	case KindSignin:
		return access.SigninsRead
	case KindPool, KindEnrollment, KindHold, KindForge, KindChange, KindDrift, KindRunner:
		return access.FleetRead
	case KindCluster, KindTailnet, KindGateway, KindRoute, KindProxyGroup, KindAdapter:
		return access.InfraRead
	}
	return ""
}

// sees reports whether the caller may know of o.
func (v Viewer) sees(k Kind, o Object) bool { return v.may(k.reads(), o) }

// may reports whether the caller may do verb to o.
func (v Viewer) may(verb access.Verb, o Object) bool {
	if v.In(o.Org(), verb) {
		return true
	}
	if shared, ok := o.(Shared); ok && slices.ContainsFunc(shared.Orgs(), func(org string) bool { return v.In(org, verb) }) {
		return true
	}
	owned, ok := o.(Owned)
	return ok && v.Own(verb) && owned.Owner().Is(v.caller)
}

// any reports whether there are objects of a kind that the caller may know of.
func (v Viewer) any(k Kind) bool {
	for _, verbs := range v.verbs {
		if slices.Contains(verbs, k.reads()) {
			return true
		}
	}
	return false
}

// Seen are the objects of a listing that the caller of a permit may know of, each as
// it is for this caller.
func Seen[T Object](p access.Permit, l Listing) []T { return seen[T](ViewerOf(p), l.Kind, l.Objects) }

// seen are those of all that the caller may know of, each as it is for this caller.
func seen[T Object](v Viewer, k Kind, all []Object) []T {
	out := make([]T, 0, len(all))
	for _, o := range all {
		if v.sees(k, o) {
			out = append(out, v.show(o).(T))
		}
	}
	return out
}

// show is o as it is for this caller.
func (v Viewer) show(o Object) Object {
	if personal, ok := o.(Personal); ok {
		return personal.For(v)
	}
	return o
}

// For implements [Personal]: it says what the caller may do with the sign-in.
func (o Signin) For(v Viewer) Object {
	revoke := Action{Allowed: true}
	switch {
	case !v.may(access.SigninsRevoke, o):
		revoke = Action{Why: "You may revoke your own sign-ins only."}
	case o.Phase == "Ending" || o.Phase == "Expired":
		revoke = Action{Why: "It is ending already."}
	}
	o.Actions = &SigninActions{Revoke: revoke}
	return o
}
