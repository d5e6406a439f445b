// Package attacktest has what the packages below test/attack share: Env, which is the
// whole product on a real tailnet and a real API server; the devices, connections and
// homes of its users; what the API server was asked and the access server recorded
// since a Mark; and Index, the list of attacks that have a test.
//
// Each package below test/attack is a test binary with an Env of its own, which the
// first test that calls Start starts and Main stops.
package attacktest
