package plane

import (
	"slices"

	"github.com/tailplane/tailplane/internal/access"
)

// Viewer is what one caller may see. It is created from each permit and is valid only as long as that permit.
type Viewer struct {
	caller access.Caller
	verbs  map[string][]access.Verb // by organisation; "*" means everywhere, "own" means the caller's own objects
}

// ViewerOf returns what the caller of a permit may see.
func ViewerOf(p access.Permit) Viewer { return Viewer{p.Caller(), p.Verbs()} }

// Caller returns the caller.
func (v Viewer) Caller() access.Caller { return v.caller }

// In reports whether the caller may use verb on objects of org.
func (v Viewer) In(org string, verb access.Verb) bool {
	return v.Everywhere(verb) || org != "" && slices.Contains(v.verbs[org], verb)
}

// Own reports whether the caller may use verb on its own objects.
func (v Viewer) Own(verb access.Verb) bool { return slices.Contains(v.verbs["own"], verb) }

// Everywhere reports whether the caller may use verb on all objects.
func (v Viewer) Everywhere(verb access.Verb) bool {
	return slices.Contains(v.verbs[access.AllOrgs], verb)
}

// readVerb returns the verb that a caller needs to see objects of a kind. For an unknown kind it returns "", so no caller sees it.
func (k Kind) readVerb() access.Verb {
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

// sees reports whether the caller may see o.
func (v Viewer) sees(k Kind, o Object) bool { return v.allows(k.readVerb(), o) }

// allows reports whether the caller may use verb on o.
func (v Viewer) allows(verb access.Verb, o Object) bool {
	if v.In(o.Org(), verb) {
		return true
	}
	if shared, ok := o.(Shared); ok && slices.ContainsFunc(shared.Orgs(), func(org string) bool { return v.In(org, verb) }) {
		return true
	}
	owned, ok := o.(Owned)
	return ok && v.Own(verb) && owned.Owner().Is(v.caller)
}

// Anywhere reports whether the caller may use verb on some objects.
func (v Viewer) Anywhere(verb access.Verb) bool {
	for _, verbs := range v.verbs {
		if slices.Contains(verbs, verb) {
			return true
		}
	}
	return false
}

// seesAny reports whether the caller may see some objects of a kind.
func (v Viewer) seesAny(k Kind) bool { return v.Anywhere(k.readVerb()) }

// visibleTo returns the objects of a listing that the caller of a permit may see, in the form for this caller.
func visibleTo[T Object](p access.Permit, l Listing) []T {
	return visibleObjects[T](ViewerOf(p), l.Kind, l.Objects)
}

// visibleObjects returns the objects of all that v may see, in the form for its caller.
func visibleObjects[T Object](v Viewer, k Kind, all []Object) []T {
	out := make([]T, 0, len(all))
	for _, o := range all {
		if v.sees(k, o) {
			out = append(out, v.view(o).(T))
		}
	}
	return out
}

// view returns o in the form for this caller.
func (v Viewer) view(o Object) Object {
	if personal, ok := o.(Personal); ok {
		return personal.For(v)
	}
	return o
}

// For implements [Personal]: it adds the actions that the caller may take on the sign-in.
func (o Signin) For(v Viewer) Object {
	o.Actions = &SigninActions{Revoke: actionUnless(when(!v.allows(access.SigninsRevoke, o), "You may revoke only your own sign-ins."),
		when(o.Phase == "Ending" || o.Phase == "Expired", "The sign-in is already ending."))}
	return o
}
