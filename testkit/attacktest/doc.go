// Package attacktest is shared by the packages in test/attack. It contains Env: the whole product on a real tailnet
// and a real API server, with the devices, connections and homes of its users. A Mark reads the requests to the API
// server and the audit entries of the access server since a moment. Index lists the attacks that have a test.
//
// Each package in test/attack is a test binary with its own Env. The first test that calls Start starts it, and Main
// stops it.
package attacktest
