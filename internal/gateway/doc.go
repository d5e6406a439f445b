// Package gateway computes how the Gateways of a cluster connect to tailnets. It turns Kubernetes
// objects into a Snapshot to render and into the statuses to write. It enforces law 5 (nothing is
// in a Snapshot without an allowed reference) and law 7 (missing information changes nothing).
//
// The package is pure: it uses no clock and no I/O, and the same objects in any order give the
// same Snapshot. Package controller reads the objects and writes the statuses. Package xds
// renders the Snapshot for Envoy Gateway.
package gateway
