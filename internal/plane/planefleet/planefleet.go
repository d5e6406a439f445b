// Package planefleet shows the CI runners of each organisation and their forges, and manages holds, which pause runners. It keeps law 2:
// actions on many runners need a confirmation, and callers pause and lift only for organisations that their role covers.
//
// It is a part of the plane's API. The fleet controllers apply the holds, and the plane reports a hold as confirmed only when the fleet has
// confirmed it.
package planefleet
