// Package planejobs shows single CI runners: their jobs, events, logs and problems. It keeps law 10: text from a job, a repository or a log
// is data. Each request checks whether the caller may see the runners of that organisation.
//
// It is a part of the plane's API and changes nothing.
package planejobs
