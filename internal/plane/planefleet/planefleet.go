// Package planefleet is what operators see of the CI runners and ask for: the runners
// of each organisation, where their jobs come from, and holds, which pause them. It
// keeps law 2: whoever goes far is asked twice, and nobody pauses or lifts for an
// organisation that is not theirs.
//
// It is a part of the plane's desk. What a hold does is decided in the fleet; that it
// has been confirmed is said only when the fleet says so.
package planefleet
