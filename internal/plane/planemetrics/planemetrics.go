// Package planemetrics shows operators numbers of CI runners over time, from a
// Prometheus if there is one. It keeps law 7: what was not measured is null, never 0,
// and without a Prometheus there are no numbers and the source says so.
//
//	pool, window --Questions--> PromQL of ours --Prometheus--> series on one grid of times
//
// A caller never supplies a question: they are templates, and what stands in them is
// quoted by one function.
package planemetrics
