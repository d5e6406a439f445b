// Package planemetrics shows metrics of CI runners over time, from an optional Prometheus. It keeps law 7: an unmeasured value is null,
// never 0. Without a Prometheus there are no values, and the source says so.
//
//	pool, window --Questions--> own PromQL --Prometheus--> series on one grid of times
//
// Callers never supply PromQL. The queries are templates, and one function quotes the values in them.
package planemetrics
