package plane

import (
	"slices"

	"github.com/tailplane/tailplane/internal/access"
)

// A viewer is how far one caller sees. It is made anew of each permit, and so ends
// with it.
type viewer struct {
	caller access.Caller
	verbs  map[string][]access.Verb // by organisation; "*": everywhere, "own": what is one's own
}

func viewerOf(p access.Permit) viewer { return viewer{p.Caller(), p.Verbs()} }

// everywhere reports whether the caller may do v to everything.
func (v viewer) everywhere(verb access.Verb) bool {
	return slices.Contains(v.verbs[access.AllOrgs], verb)
}

// reads is the verb that shows objects of a kind. One that nobody decided about
// nobody sees.
func (k Kind) reads() access.Verb {
	switch k {
	case KindSignin:
		return access.SigninsRead
	case KindCluster, KindTailnet, KindGateway, KindRoute, KindProxyGroup, KindAdapter:
		return access.InfraRead
	}
	return ""
}

// sees reports whether the caller may know of o.
func (v viewer) sees(k Kind, o Object) bool { return v.may(k.reads(), o) }

// may reports whether the caller may do verb to o.
func (v viewer) may(verb access.Verb, o Object) bool {
	switch {
	case v.everywhere(verb), o.Org() != "" && slices.Contains(v.verbs[o.Org()], verb):
		return true
	}
	owned, ok := o.(Owned)
	return ok && slices.Contains(v.verbs["own"], verb) && owned.Owner().Is(v.caller)
}

// any reports whether there are objects of a kind that the caller may know of.
func (v viewer) any(k Kind) bool {
	for _, verbs := range v.verbs {
		if slices.Contains(verbs, k.reads()) {
			return true
		}
	}
	return false
}

// seen are those of all that the caller may know of, each as it is for this caller.
func seen[T Object](v viewer, k Kind, all []Object) []T {
	out := make([]T, 0, len(all))
	for _, o := range all {
		if v.sees(k, o) {
			out = append(out, v.show(o).(T))
		}
	}
	return out
}

// show is o as it is for this caller: with what may be done with it.
func (v viewer) show(o Object) Object {
	s, ok := o.(Signin)
	if !ok {
		return o
	}
	revoke := Action{Allowed: true}
	switch {
	case !v.may(access.SigninsRevoke, s):
		revoke = Action{Why: "You may revoke your own sign-ins only."}
	case s.Phase == "Ending" || s.Phase == "Expired":
		revoke = Action{Why: "It is ending already."}
	}
	s.Actions = &SigninActions{Revoke: revoke}
	return s
}
