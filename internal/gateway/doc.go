// Package gateway decides what connects a cluster's Gateways with tailnets:
// objects in, a Snapshot to render and the statuses to write out. It keeps laws
// 5 and 7: nothing is in a Snapshot without an allowed reference, and what is not
// known changes nothing.
//
// It is pure: no clock, no I/O, and the same objects in any order give the same
// Snapshot. Its alcoves are gatewaykube, which gathers and applies, and
// gatewayxds, which renders for Envoy Gateway.
package gateway
